//! Sequences of tensors inside of a graph: how many there are, and which, is known here, so nothing is left of them.

use super::{super::builder::Lowering, Rule, sizes};
use crate::error::Refusal;
use planforge_graph::ir::{Op, Tensor, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "ConcatFromSequence", attributes: &["axis", "new_axis"], lower: concat },
    Rule { op_type: "SequenceAt", attributes: &[], lower: at },
    Rule { op_type: "SequenceConstruct", attributes: &[], lower: construct },
    Rule { op_type: "SequenceEmpty", attributes: &["dtype"], lower: empty },
    Rule { op_type: "SequenceErase", attributes: &[], lower: erase },
    Rule { op_type: "SequenceInsert", attributes: &[], lower: insert },
    Rule { op_type: "SequenceLength", attributes: &[], lower: length },
    Rule { op_type: "SplitToSequence", attributes: &["axis", "keepdims"], lower: split },
];

/// A value that stands for a sequence.
fn sequence(node: &mut Lowering<'_>, members: Vec<ValueId>) -> Result<Vec<ValueId>, Refusal> {
    node.builder.unroll(members.len())?;
    let handle = node.add_constant(Tensor::from_vec::<u8>(vec![0], Vec::new())?);
    node.builder.sequences.insert(handle, members);
    Ok(vec![handle])
}

fn members(node: &Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let id = node.value(0, "input_sequence")?;
    let members = node.builder.sequences.get(&id).cloned();
    members.ok_or_else(|| Refusal::Element(format!("{} in the place of a sequence", node.ty(id))))
}

/// Where the position of input `position` lies among `count`; from the end where it is negative.
fn place(node: &Lowering<'_>, position: usize, count: usize) -> Result<Option<usize>, Refusal> {
    let Some(given) = node.known_ints(position, "position")? else { return Ok(None) };
    let wrong = || Refusal::Impossible { what: "the position", value: format!("{given:?}"), shape: vec![count] };
    let [at] = given[..] else { return Err(wrong()) };
    let at = if at < 0 { at.saturating_add(count as i64) } else { at };
    usize::try_from(at).ok().filter(|&at| at < count).map(Some).ok_or_else(wrong)
}

fn construct(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let members = (0..node.inputs.len()).map(|position| node.input(position, "a tensor")).collect::<Result<_, _>>()?;
    sequence(node, members)
}

fn empty(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(0)?;
    node.attributes.without_effect("dtype");
    sequence(node, Vec::new())
}

fn at(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let members = members(node)?;
    let place = place(node, 1, members.len())?.ok_or(Refusal::MissingInput { position: 1, what: "position" })?;
    Ok(vec![node.emit(Op::Identity, &[members[place]])?])
}

fn insert(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let (mut members, tensor) = (members(node)?, node.input(1, "tensor")?);
    // It may stand behind the last.
    let end = members.len();
    let place = match node.known_ints(2, "position")?.as_deref() {
        Some(&[at]) if at == end as i64 => end,
        _ => place(node, 2, end)?.unwrap_or(end),
    };
    members.insert(place, tensor);
    sequence(node, members)
}

fn erase(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let mut members = members(node)?;
    let last = members.len().saturating_sub(1);
    let place = place(node, 1, members.len())?.unwrap_or(last);
    if members.is_empty() {
        return Err(Refusal::Impossible { what: "the position", value: "[]".into(), shape: vec![0] });
    }
    members.remove(place);
    sequence(node, members)
}

fn length(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let count = members(node)?.len();
    Ok(vec![node.add_constant(Tensor::scalar(count as i64))])
}

fn concat(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let mut members = members(node)?;
    let first = *members.first().ok_or_else(|| Refusal::Unsupported { what: "joining no tensors".into() })?;
    let new = node.attributes.flag("new_axis", false)?;
    let rank = node.ty(first).rank() + usize::from(new);
    let axis = node.axis(node.attributes.required_int("axis")?, rank, "axis")?;
    if new {
        for member in &mut members {
            let mut shape = node.shape(*member);
            shape.insert(axis.min(shape.len()), 1);
            *member = node.reshape(*member, shape)?;
        }
    }
    Ok(vec![node.emit(Op::Concat { axis }, &members)?])
}

/// Parts of an axis: of given sizes, of one size as far as it goes, or one by one.
fn split(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let x = node.input(0, "input")?;
    let shape = node.shape(x);
    let axis = node.axis(node.attributes.int_or("axis", 0)?, shape.len(), "axis")?;
    let keep = node.attributes.flag("keepdims", true)?;
    let size = shape[axis];
    let by = node.optional(1).map(|by| node.ty(by).rank());
    let given = node.known_ints(1, "split")?;
    let parts: Vec<usize> = match (given, by) {
        (Some(given), Some(0)) => {
            let part = sizes("split", &given)?.first().copied().filter(|&part| part > 0);
            let wrong =
                || Refusal::Impossible { what: "the size of parts", value: format!("{given:?}"), shape: shape.clone() };
            let part = part.ok_or_else(wrong)?;
            (0..size).step_by(part).map(|from| part.min(size - from)).collect()
        }
        (Some(given), _) => sizes("split", &given)?,
        (None, _) => vec![1; size],
    };
    node.builder.unroll(parts.len())?;
    if parts.iter().try_fold(0usize, |sum, &part| sum.checked_add(part)) != Some(size) {
        return Err(Refusal::Impossible { what: "the list of parts", value: format!("{parts:?}"), shape });
    }
    let flat = by.is_none() && !keep;
    let (mut from, mut members) = (0, Vec::with_capacity(parts.len()));
    for part in parts {
        let mut member = node.part(x, axis, from, part)?;
        if flat {
            let mut shape = shape.clone();
            shape.remove(axis);
            member = node.reshape(member, shape)?;
        }
        from += part;
        members.push(member);
    }
    sequence(node, members)
}

#[cfg(test)]
mod tests {
    use crate::{
        import,
        testing::{TestModel, int},
    };
    use planforge_graph::{interpreter, ir::Tensor};
    use std::collections::BTreeMap;

    fn rows() -> TestModel {
        TestModel::new(17).input("x", &[3, 2]).longs("first", &[0]).longs("last", &[-1]).longs("far", &[7])
    }

    fn run(model: &TestModel) -> Tensor {
        let x = Tensor::from_vec(vec![3, 2], vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).expect("three rows");
        interpreter::execute(&model.import(), &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs")["y"]
            .clone()
    }

    #[test]
    fn parts_are_told_apart_moved_and_joined() {
        let turned = rows()
            .node("SplitToSequence", &["x"], "parts", vec![int("keepdims", 0)])
            .node("SequenceAt", &["parts", "last"], "end", vec![])
            .node("SequenceErase", &["parts"], "fewer", vec![])
            .node("SequenceInsert", &["fewer", "end", "first"], "turned", vec![])
            .node("SequenceLength", &["turned"], "count", vec![])
            .node("ConcatFromSequence", &["turned"], "y", vec![int("axis", 0), int("new_axis", 1)])
            .output("y");
        let y = run(&turned);
        assert_eq!((y.shape(), y.to_f64s()), (&[3, 2][..], vec![5.0, 6.0, 1.0, 2.0, 3.0, 4.0]));
        let mut chunks = rows();
        chunks = chunks.constant("two", &Tensor::scalar(2i64)).node("SplitToSequence", &["x", "two"], "parts", vec![]);
        let y = run(&chunks.node("SequenceAt", &["parts", "last"], "y", vec![]).output("y"));
        assert_eq!((y.shape(), y.to_f64s()), (&[1, 2][..], vec![5.0, 6.0]));
        let built = rows()
            .node("SequenceEmpty", &[], "none", vec![])
            .node("SequenceInsert", &["none", "x"], "one", vec![])
            .node("SequenceConstruct", &["x", "x"], "two", vec![])
            .node("SequenceAt", &["one", "first"], "a", vec![])
            .node("ConcatFromSequence", &["two"], "b", vec![int("axis", -1)])
            .node("Concat", &["a", "b"], "y", vec![int("axis", 1)])
            .output("y");
        assert_eq!(run(&built).shape(), [3, 6]);
    }

    #[test]
    fn a_sequence_is_no_tensor() {
        let says =
            |model: TestModel| import(&model.output("y").model(), None).expect_err("this is refused").to_string();
        let split = || rows().node("SplitToSequence", &["x"], "parts", vec![]);
        let error = says(split().node("Neg", &["parts"], "y", vec![]));
        assert!(error.contains("element type a sequence is not supported"), "{error}");
        let error = says(rows().node("SequenceLength", &["x"], "y", vec![]));
        assert!(error.contains("f32 [3, 2] in the place of a sequence"), "{error}");
        let error = says(split().node("SequenceAt", &["parts", "far"], "y", vec![]));
        assert!(error.contains("the position is [7]"), "{error}");
        let error = says(rows().node("SplitToSequence", &["x"], "y", vec![]));
        assert!(error.contains("output y has the element type a sequence"), "{error}");
    }
}
