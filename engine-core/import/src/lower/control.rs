//! Branches and loops: what is taken becomes plain nodes.
//!
//! A condition that is known selects its branch. One that is not makes both branches run, and each result is selected;
//! so both must give results of the same shapes. A loop is unrolled; once its condition is not known, later iterations
//! run all the same and their results are kept only while it held.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::{
    ir::{Binary, ElementType, Op, Tensor, ValueId},
    reference::OpError,
};

pub const RULES: &[Rule] = &[
    Rule { op_type: "If", attributes: &["then_branch", "else_branch"], lower: branch },
    Rule { op_type: "Loop", attributes: &["body"], lower: repeat },
    Rule {
        op_type: "Scan",
        attributes: &[
            "body",
            "num_scan_inputs",
            "scan_input_axes",
            "scan_input_directions",
            "scan_output_axes",
            "scan_output_directions",
        ],
        lower: scan,
    },
];

/// Most iterations of one loop; each is unrolled.
pub const MAX_ITERATIONS: i64 = 1 << 16;

/// Most iterations of a loop whose end follows from data: all of them always run.
pub const MAX_MASKED_ITERATIONS: i64 = 1 << 10;

/// A bool without axes.
fn condition(node: &mut Lowering<'_>, id: ValueId) -> Result<ValueId, Refusal> {
    let ty = node.ty(id);
    if ty.element != ElementType::Bool || ty.shape.iter().product::<usize>() != 1 {
        let value = ty.to_string();
        return Err(Refusal::Impossible { what: "the condition", value, shape: vec![1] });
    }
    if ty.rank() == 0 { Ok(id) } else { node.emit_as(Op::Reshape, &[id], Vec::new()) }
}

fn branch(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let given = node.input(0, "cond")?;
    let cond = condition(node, given)?;
    let (then, otherwise) = (node.attributes.graph("then_branch")?, node.attributes.graph("else_branch")?);
    match node.known_flag(cond) {
        Some(true) => node.subgraph(then, &[]),
        Some(false) => node.subgraph(otherwise, &[]),
        None => {
            let (then, otherwise) = (node.subgraph(then, &[])?, node.subgraph(otherwise, &[])?);
            if then.len() != otherwise.len() {
                return Err(Refusal::Unsupported { what: "a branch with other outputs than its opposite".into() });
            }
            let pairs = then.into_iter().zip(otherwise);
            pairs.map(|(then, otherwise)| select(node, cond, then, otherwise)).collect()
        }
    }
}

fn select(node: &mut Lowering<'_>, cond: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, Refusal> {
    if a == b {
        return Ok(a);
    }
    if !node.same_type(a, b) {
        return Err(Refusal::NotConstant { what: "a condition between results of different shapes" });
    }
    node.emit(Op::Where, &[cond, a, b])
}

/// Values of one scanned output, each with an axis put in at `axis`, in order.
fn stack(node: &mut Lowering<'_>, mut parts: Vec<ValueId>, axis: i64, reverse: bool) -> Result<ValueId, Refusal> {
    if reverse {
        parts.reverse();
    }
    let Some(&first) = parts.first() else {
        return Err(Refusal::NotConstant { what: "the shape of what no iteration gives" });
    };
    let mut shape = node.shape(first);
    let axis = node.axis(axis, shape.len() + 1, "scan_output_axes")?;
    shape.insert(axis, 1);
    let raised: Vec<ValueId> =
        parts.iter().map(|&part| node.emit_as(Op::Reshape, &[part], shape.clone())).collect::<Result<_, _>>()?;
    node.emit(Op::Concat { axis }, &raised)
}

fn repeat(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let body = node.attributes.graph("body")?;
    let most = node.known_ints(0, "the trip count")?.and_then(|count| count.first().copied());
    let mut cond = match node.optional(1) {
        Some(cond) => Some(condition(node, cond)?),
        None => None,
    };
    let mut state: Vec<ValueId> =
        (2..node.inputs.len()).map(|position| node.input(position, "a state")).collect::<Result<_, _>>()?;
    let carried = state.len();
    let scanned = body.output.len().checked_sub(carried + 1).ok_or_else(|| Refusal::Unsupported {
        what: format!("a loop of {carried} states whose body gives {} outputs", body.output.len()),
    })?;
    let mut scans: Vec<Vec<ValueId>> = vec![Vec::new(); scanned];
    let initializers = node.initializers(body);
    // Set once the condition is not known: whether every condition so far held.
    let mut active: Option<ValueId> = None;
    for iteration in 0.. {
        if most.is_some_and(|most| iteration >= most) {
            break;
        }
        let known = cond.map_or(Some(true), |cond| node.known_flag(cond));
        if known == Some(false) {
            break;
        }
        if let (None, Some(cond)) = (known, cond) {
            let bounded = most.is_some_and(|most| most <= MAX_MASKED_ITERATIONS);
            if !bounded || scanned > 0 {
                return Err(Refusal::NotConstant { what: "the condition of a loop that it alone ends" });
            }
            active = Some(match active {
                None => cond,
                Some(active) => node.emit(Op::Binary(Binary::And), &[active, cond])?,
            });
        }
        if iteration >= MAX_ITERATIONS {
            return Err(Refusal::Unsupported { what: format!("a loop of more than {MAX_ITERATIONS} iterations") });
        }
        // Beside the nodes of the body: one for each state that is selected, and for each part that is stacked.
        let selected = if active.is_some() { carried } else { 0 };
        node.builder.unroll(1 + selected + scanned)?;
        let number = node.add_constant(Tensor::scalar(iteration));
        let held = match cond {
            Some(cond) => cond,
            None => node.scalar(ElementType::Bool, 1.0)?,
        };
        let results = node.iteration(body, &initializers, &[&[number, held], state.as_slice()].concat())?;
        let [next, results @ ..] = results.as_slice() else { return Err(Refusal::Inner) };
        let (states, scan) = results.split_at(carried);
        cond = Some(condition(node, *next)?);
        state = match active {
            None => states.to_vec(),
            Some(active) => {
                let pairs = states.iter().zip(&state);
                pairs.map(|(&new, &old)| select(node, active, new, old)).collect::<Result<_, _>>()?
            }
        };
        for (parts, &part) in scans.iter_mut().zip(scan) {
            parts.push(part);
        }
    }
    for (index, parts) in scans.into_iter().enumerate() {
        if node.wants(carried + index) {
            state.push(stack(node, parts, 0, false)?);
        } else {
            break;
        }
    }
    Ok(state)
}

/// One number per input or output; all zero when the attribute is not given.
fn per_scan(node: &Lowering<'_>, name: &'static str, count: usize) -> Result<Vec<i64>, Refusal> {
    let given = node.attributes.ints(name)?.map_or_else(|| vec![0; count], <[i64]>::to_vec);
    match given.len() == count {
        true => Ok(given),
        false => Err(Refusal::Attribute { name: name.into(), reason: format!("has {} values", given.len()) }),
    }
}

fn scan(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let body = node.attributes.graph("body")?;
    let scanned = usize::try_from(node.attributes.required_int("num_scan_inputs")?).unwrap_or(usize::MAX);
    let impossible = |what: &str| Refusal::Unsupported { what: format!("a scan with {what}") };
    let carried = node.inputs.len().checked_sub(scanned).ok_or_else(|| impossible("fewer inputs than it scans"))?;
    let given = body.output.len().checked_sub(carried).ok_or_else(|| impossible("fewer outputs than states"))?;
    let axes = per_scan(node, "scan_input_axes", scanned)?;
    let directions = per_scan(node, "scan_input_directions", scanned)?;
    let out_axes = per_scan(node, "scan_output_axes", given)?;
    let out_directions = per_scan(node, "scan_output_directions", given)?;
    let inputs: Vec<ValueId> =
        (0..node.inputs.len()).map(|position| node.input(position, "a scan's input")).collect::<Result<_, _>>()?;
    let (mut state, sequences) = (inputs[..carried].to_vec(), &inputs[carried..]);
    let axes = axes.iter().zip(sequences).map(|(&axis, &id)| node.axis(axis, node.ty(id).rank(), "scan_input_axes"));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    let mut lengths = sequences.iter().zip(&axes).map(|(&id, &axis)| node.shape(id)[axis]);
    let length = lengths.next().ok_or_else(|| impossible("nothing to scan"))?;
    if lengths.any(|other| other != length) {
        return Err(impossible("sequences of different lengths"));
    }
    if length as i64 > MAX_ITERATIONS {
        return Err(impossible("more iterations than 65536"));
    }
    let mut scans: Vec<Vec<ValueId>> = vec![Vec::new(); given];
    let initializers = node.initializers(body);
    for step in 0..length {
        // Beside the nodes of the body: two that cut out each argument, and one for each part that is stacked.
        node.builder.unroll(1 + 2 * scanned + given)?;
        let mut arguments = state.clone();
        for ((&id, &axis), &direction) in sequences.iter().zip(&axes).zip(&directions) {
            let shape = node.shape(id);
            let (mut starts, mut part) = (vec![0; shape.len()], shape.clone());
            (starts[axis], part[axis]) = (if direction == 0 { step } else { length - 1 - step }, 1);
            let op = Op::Slice { starts, steps: vec![1; shape.len()] };
            let piece = node.emit_as(op, &[id], part.clone())?;
            part.remove(axis);
            arguments.push(node.emit_as(Op::Reshape, &[piece], part)?);
        }
        let results = node.iteration(body, &initializers, &arguments)?;
        let (states, scan) = results.split_at(carried);
        state = states.to_vec();
        for (parts, &part) in scans.iter_mut().zip(scan) {
            parts.push(part);
        }
    }
    for (index, parts) in scans.into_iter().enumerate() {
        state.push(stack(node, parts, out_axes[index], out_directions[index] != 0)?);
    }
    Ok(state)
}

impl From<planforge_graph::ir::TensorError> for Refusal {
    fn from(error: planforge_graph::ir::TensorError) -> Self {
        OpError::from(error).into()
    }
}
