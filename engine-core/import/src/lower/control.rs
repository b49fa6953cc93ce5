//! Branches and loops: what is taken becomes plain nodes.
//!
//! A condition that is known selects its branch. One that is not makes both branches run, and each result is selected;
//! so both must give results of the same shapes. A loop is unrolled; once its condition is not known, later iterations
//! run all the same and their results are kept only while it held.

use super::{super::builder::Lowering, Rule};
use crate::{error::Refusal, scope::Scope};
use planforge_graph::{
    ir::{Binary, ElementType, Op, Tensor, ValueId},
    reference::OpError,
};
use planforge_onnx::proto::GraphProto;

pub const RULES: &[Rule] = &[
    Rule { op_type: "If", attributes: &["then_branch", "else_branch"], lower: branch },
    Rule { op_type: "Loop", attributes: &["body"], lower: repeat },
    Rule {
        op_type: "Scan",
        attributes: &[
            "body",
            "directions",
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
        (2..node.inputs.len()).map(|position| node.value(position, "a state")).collect::<Result<_, _>>()?;
    let carried = state.len();
    let scanned = body.output.len().checked_sub(carried + 1).ok_or_else(|| Refusal::Unsupported {
        what: format!("a loop of {carried} states whose body gives {} outputs", body.output.len()),
    })?;
    let mut scans: Vec<Vec<ValueId>> = vec![Vec::new(); scanned];
    let initializers = node.initializers(body);
    let first = node.builder.graph.values.len();
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
        let kept = state.iter().chain(&cond).chain(scans.iter().flatten()).copied();
        node.builder.forget(first, kept);
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

fn impossible_scan(what: &str) -> Refusal {
    Refusal::Unsupported { what: format!("a scan with {what}") }
}

/// What runs along sequences, one step after the other.
struct Scan<'a> {
    body: &'a GraphProto,
    initializers: Scope,
    /// How many of the inputs are states; the others are sequences.
    carried: usize,
    /// Axis of each sequence, and whether it is read from its end.
    along: Vec<(usize, bool)>,
    /// The same of what is stacked.
    stacked: Vec<(i64, bool)>,
}

fn scan(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let body = node.attributes.graph("body")?;
    let scanned = usize::try_from(node.attributes.required_int("num_scan_inputs")?).unwrap_or(usize::MAX);
    // Opset 8 has the sequences' lengths in front.
    let first = usize::from(node.opset < 9);
    let inputs: Vec<ValueId> =
        (first..node.inputs.len()).map(|position| node.input(position, "a scan's input")).collect::<Result<_, _>>()?;
    let fewer = || impossible_scan("fewer inputs than it scans");
    let carried = inputs.len().checked_sub(scanned).ok_or_else(fewer)?;
    let given = body.output.len().checked_sub(carried).ok_or_else(|| impossible_scan("fewer outputs than states"))?;
    if node.opset < 9 {
        let directions = per_scan(node, "directions", scanned)?;
        let along = directions.into_iter().map(|direction| (0, direction != 0)).collect();
        let initializers = node.initializers(body);
        return batched(node, &Scan { body, initializers, carried, along, stacked: vec![(0, false); given] }, &inputs);
    }
    let axes = per_scan(node, "scan_input_axes", scanned)?;
    let directions = per_scan(node, "scan_input_directions", scanned)?;
    let out_axes = per_scan(node, "scan_output_axes", given)?;
    let out_directions = per_scan(node, "scan_output_directions", given)?;
    let mut along = Vec::with_capacity(scanned);
    for ((&axis, direction), &id) in axes.iter().zip(directions).zip(&inputs[carried..]) {
        along.push((node.axis(axis, node.ty(id).rank(), "scan_input_axes")?, direction != 0));
    }
    let stacked = out_axes.into_iter().zip(out_directions).map(|(axis, direction)| (axis, direction != 0)).collect();
    let initializers = node.initializers(body);
    run(node, &Scan { body, initializers, carried, along, stacked }, &inputs)
}

/// As it was in opset 8: every input has a batch in front, each image of which is scanned by itself.
fn batched(node: &mut Lowering<'_>, scan: &Scan<'_>, inputs: &[ValueId]) -> Result<Vec<ValueId>, Refusal> {
    if node.optional(0).is_some() {
        return Err(impossible_scan("lengths for its sequences"));
    }
    let mut sizes = inputs.iter().map(|&id| node.shape(id).first().copied());
    let batch = sizes.next().flatten().ok_or_else(|| impossible_scan("nothing to scan"))?;
    if sizes.any(|size| size != Some(batch)) {
        return Err(impossible_scan("batches of different sizes"));
    }
    let mut results: Vec<Vec<ValueId>> = Vec::new();
    for image in 0..batch {
        node.builder.unroll(2 * inputs.len())?;
        let mut own = Vec::with_capacity(inputs.len());
        for &id in inputs {
            let part = node.part(id, 0, image, 1)?;
            let shape = node.shape(id)[1..].to_vec();
            own.push(node.reshape(part, shape)?);
        }
        results.push(run(node, scan, &own)?);
    }
    let count = results.first().map_or(0, Vec::len);
    let of = |at: usize| results.iter().map(|images| images[at]).collect::<Vec<_>>();
    (0..count).map(of).map(|parts| stack(node, parts, 0, false)).collect()
}

fn run(node: &mut Lowering<'_>, scan: &Scan<'_>, inputs: &[ValueId]) -> Result<Vec<ValueId>, Refusal> {
    let (mut state, sequences) = (inputs[..scan.carried].to_vec(), &inputs[scan.carried..]);
    if sequences.iter().zip(&scan.along).any(|(&id, &(axis, _))| axis >= node.ty(id).rank()) {
        return Err(impossible_scan("a sequence without steps"));
    }
    let mut lengths = sequences.iter().zip(&scan.along).map(|(&id, &(axis, _))| node.shape(id)[axis]);
    let length = lengths.next().ok_or_else(|| impossible_scan("nothing to scan"))?;
    if lengths.any(|other| other != length) {
        return Err(impossible_scan("sequences of different lengths"));
    }
    if length as i64 > MAX_ITERATIONS {
        return Err(impossible_scan("more iterations than 65536"));
    }
    let mut scans: Vec<Vec<ValueId>> = vec![Vec::new(); scan.stacked.len()];
    let first = node.builder.graph.values.len();
    for step in 0..length {
        // Beside the nodes of the body: two that cut out each argument, and one for each part that is stacked.
        node.builder.unroll(1 + 2 * sequences.len() + scans.len())?;
        let mut arguments = state.clone();
        for (&id, &(axis, from_end)) in sequences.iter().zip(&scan.along) {
            let shape = node.shape(id);
            let (mut starts, mut part) = (vec![0; shape.len()], shape.clone());
            (starts[axis], part[axis]) = (if from_end { length - 1 - step } else { step }, 1);
            let op = Op::Slice { starts, steps: vec![1; shape.len()] };
            let piece = node.emit_as(op, &[id], part.clone())?;
            part.remove(axis);
            arguments.push(node.emit_as(Op::Reshape, &[piece], part)?);
        }
        let results = node.iteration(scan.body, &scan.initializers, &arguments)?;
        let (states, made) = results.split_at(scan.carried);
        state = states.to_vec();
        for (parts, &part) in scans.iter_mut().zip(made) {
            parts.push(part);
        }
        node.builder.forget(first, state.iter().chain(scans.iter().flatten()).copied());
    }
    for (parts, &(axis, from_end)) in scans.into_iter().zip(&scan.stacked) {
        state.push(stack(node, parts, axis, from_end)?);
    }
    Ok(state)
}

impl From<planforge_graph::ir::TensorError> for Refusal {
    fn from(error: planforge_graph::ir::TensorError) -> Self {
        OpError::from(error).into()
    }
}
