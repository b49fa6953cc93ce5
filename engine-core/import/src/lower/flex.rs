//! Attention whose scores and weights go through graphs of the model.

use super::{super::builder::Lowering, Rule, attention::repeat_heads};
use crate::{element_type, error::Refusal};
use planforge_graph::ir::{Binary, ElementType, Op, ValueId};

pub const DOMAIN: &str = "ai.onnx.preview";

pub const RULES: &[Rule] = &[Rule {
    op_type: "FlexAttention",
    attributes: &["prob_mod", "scale", "score_mod", "softmax_precision"],
    lower: flex_attention,
}];

/// What a graph of the model makes of a value, or the value itself where there is no such graph.
fn modified(node: &mut Lowering<'_>, name: &'static str, x: ValueId) -> Result<ValueId, Refusal> {
    if !node.attributes.has(name) {
        return Ok(x);
    }
    let graph = node.attributes.graph(name)?;
    match node.subgraph(graph, &[x])?[..] {
        [result] if node.same_type(result, x) => Ok(result),
        [result] => {
            let value = node.ty(result).to_string();
            Err(Refusal::Impossible { what: "what a graph makes of the scores", value, shape: node.shape(x) })
        }
        ref results => {
            let reason = format!("gives {} values in the place of one", results.len());
            Err(Refusal::Attribute { name: name.into(), reason })
        }
    }
}

fn flex_attention(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let (q, k, v) = (node.input(0, "Q")?, node.input(1, "K")?, node.input(2, "V")?);
    let (shape, keys) = (node.shape(q), node.shape(k));
    let ([_, heads, _, size], [_, _, _, of], 4) = (&shape[..], &keys[..], node.ty(v).rank()) else {
        return Err(Refusal::Unsupported { what: "attention over other than 4 axes".into() });
    };
    let (heads, size) = (*heads, *size);
    if *of != size {
        return Err(Refusal::Impossible { what: "the size of keys", value: of.to_string(), shape });
    }
    let k = repeat_heads(node, k, heads)?;
    let v = repeat_heads(node, v, heads)?;
    let scale = match node.attributes.float("scale")? {
        Some(scale) => f64::from(scale),
        None => 1.0 / (size as f64).sqrt(),
    };
    let element = node.ty(v).element;
    let wide = match node.attributes.int("softmax_precision")? {
        Some(number) => i32::try_from(number).ok().and_then(|number| element_type(number).ok()).ok_or_else(|| {
            Refusal::Attribute { name: "softmax_precision".into(), reason: "names no type that is supported".into() }
        })?,
        None if element == ElementType::F64 => element,
        None => ElementType::F32,
    };
    let (q, k, values) = (node.cast(q, wide)?, node.cast(k, wide)?, node.cast(v, wide)?);
    let k = node.transpose(k, &[0, 1, 3, 2])?;
    let scores = node.matmul(q, k)?;
    let scores = node.binary_with(Binary::Mul, scores, scale)?;
    let scores = modified(node, "score_mod", scores)?;
    let weights = node.emit(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let weights = modified(node, "prob_mod", weights)?;
    let y = node.matmul(weights, values)?;
    Ok(vec![node.cast(y, element)?])
}

#[cfg(test)]
mod tests {
    use super::DOMAIN;
    use crate::{
        import,
        testing::{TestModel, float, int, numbers},
    };
    use planforge_graph::{interpreter, ir::Tensor};
    use planforge_onnx::proto::{AttributeProto, GraphProto, OperatorSetIdProto, attribute_proto::AttributeType};
    use std::collections::BTreeMap;

    fn graph(name: &str, op_type: &str, outputs: &[&str]) -> AttributeProto {
        let mut inner = TestModel::new(26).input("scores", &[1, 1, 2, 3]).node(op_type, &["scores"], "made", vec![]);
        for output in outputs {
            inner = inner.output(output);
        }
        let g: GraphProto = inner.proto.graph.take().expect("a test model has a graph");
        let (g, r#type) = (Some(Box::new(g)), AttributeType::Graph as i32);
        AttributeProto { name: name.into(), g, r#type, ..AttributeProto::default() }
    }

    fn model(attributes: Vec<AttributeProto>) -> TestModel {
        let mut model = TestModel::new(26)
            .input("q", &[1, 1, 2, 4])
            .input("k", &[1, 1, 3, 4])
            .input("v", &[1, 1, 3, 2])
            .node("FlexAttention", &["q", "k", "v"], "y", attributes)
            .output("y");
        model.graph().node[0].domain = DOMAIN.into();
        model.proto.opset_import.push(OperatorSetIdProto { domain: DOMAIN.into(), version: 1 });
        model
    }

    fn run(model: &TestModel) -> Vec<f64> {
        let tensor = |name: &str, shape: &[usize]| {
            let values = numbers(shape.iter().product());
            (name.to_owned(), Tensor::from_vec(shape.to_vec(), values).expect("numbers fill the shape"))
        };
        let inputs = [tensor("q", &[1, 1, 2, 4]), tensor("k", &[1, 1, 3, 4]), tensor("v", &[1, 1, 3, 2])];
        interpreter::execute(&model.import(), &BTreeMap::from(inputs)).expect("the graph runs")["y"].to_f64s()
    }

    #[test]
    fn scores_and_weights_go_through_graphs() {
        let plain = run(&model(vec![]));
        // Weights of the opposite sign give the opposite.
        let opposite = run(&model(vec![graph("prob_mod", "Neg", &["made"])]));
        assert!(plain.iter().zip(&opposite).all(|(a, b)| (a + b).abs() < 1e-6), "{plain:?} {opposite:?}");
        // Scores of the opposite sign weigh the values the other way around.
        let turned = run(&model(vec![graph("score_mod", "Neg", &["made"])]));
        assert_eq!(run(&model(vec![float("scale", -0.5)])), turned);
    }

    #[test]
    fn a_graph_gives_one_value_of_the_same_type() {
        let two = model(vec![graph("score_mod", "Neg", &["made", "scores"])]);
        let error = import(&two.model(), None).expect_err("two values").to_string();
        assert!(error.contains("score_mod gives 2 values in the place of one"), "{error}");
        let other = model(vec![graph("score_mod", "IsNaN", &["made"])]);
        let error = import(&other.model(), None).expect_err("bools").to_string();
        assert!(error.contains("what a graph makes of the scores is bool"), "{error}");
        let error = import(&model(vec![int("score_mod", 1)]).model(), None).expect_err("no graph").to_string();
        assert!(error.contains("score_mod has the type"), "{error}");
    }
}
