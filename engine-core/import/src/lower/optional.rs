//! Optionals that hold something, or that a node leaves out: whether one is there is known here. What they hold may be a
//! sequence, as it may of an Identity.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::ir::{Op, Tensor, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "Identity", attributes: &[], lower: get_element },
    Rule { op_type: "Optional", attributes: &["type"], lower: optional },
    Rule { op_type: "OptionalGetElement", attributes: &[], lower: get_element },
    Rule { op_type: "OptionalHasElement", attributes: &[], lower: has_element },
];

fn optional(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    node.attributes.without_effect("type");
    let held = node.optional(0).ok_or_else(|| Refusal::Unsupported { what: "an optional without a value".into() })?;
    same(node, held)
}

/// The value itself; a sequence has no other.
fn same(node: &mut Lowering<'_>, held: ValueId) -> Result<Vec<ValueId>, Refusal> {
    match node.builder.sequences.contains_key(&held) {
        true => Ok(vec![held]),
        false => Ok(vec![node.emit(Op::Identity, &[held])?]),
    }
}

fn get_element(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let held = node.value(0, "input")?;
    same(node, held)
}

fn has_element(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let is_there = Tensor::from_bools(Vec::new(), vec![u8::from(node.optional(0).is_some())])?;
    Ok(vec![node.add_constant(is_there)])
}

#[cfg(test)]
mod tests {
    use crate::{import, testing::TestModel};

    #[test]
    fn whether_a_value_is_there_is_known() {
        for (inputs, expected) in [(&["o"][..], 1), (&[""], 0), (&[], 0)] {
            let graph = TestModel::new(18)
                .input("x", &[2])
                .node("Optional", &["x"], "o", vec![])
                .node("OptionalHasElement", inputs, "there", vec![])
                .node("OptionalGetElement", &["o"], "y", vec![])
                .output("there")
                .output("y")
                .import();
            let there = graph.constant(graph.outputs[0].value).expect("it is known");
            assert_eq!(there.bools(), Ok(&[expected][..]), "{inputs:?}");
        }
    }

    #[test]
    fn an_optional_that_holds_nothing_is_refused() {
        let empty = TestModel::new(18).input("x", &[2]).node("Optional", &[], "y", vec![]).output("y");
        let error = import(&empty.model(), None).expect_err("nothing is held").to_string();
        assert!(error.contains("an optional without a value is not supported"), "{error}");
    }
}
