//! One step of an optimizer: new parameters of old ones and their gradients.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::ir::{Binary, Compare, ElementType, Unary, ValueId};

pub const DOMAIN: &str = "ai.onnx.preview.training";

pub const RULES: &[Rule] = &[
    Rule { op_type: "Adagrad", attributes: &["decay_factor", "epsilon", "norm_coefficient"], lower: adagrad },
    Rule {
        op_type: "Adam",
        attributes: &["alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post"],
        lower: adam,
    },
    Rule { op_type: "Momentum", attributes: &["alpha", "beta", "mode", "norm_coefficient"], lower: momentum },
];

/// Learning rate, number of updates so far, and for each tensor that is optimized `lists` values of its shape.
struct Given {
    rate: ValueId,
    updates: ValueId,
    tensors: Vec<Vec<ValueId>>,
}

fn given(node: &Lowering<'_>, lists: usize) -> Result<Given, Refusal> {
    let (rate, updates) = (node.input(0, "R")?, node.input(1, "T")?);
    for scalar in [rate, updates] {
        if node.shape(scalar).iter().product::<usize>() != 1 {
            let value = node.ty(scalar).to_string();
            return Err(Refusal::Impossible { what: "a number", value, shape: node.shape(scalar) });
        }
    }
    let rest = node.inputs.len() - 2;
    if rest == 0 || !rest.is_multiple_of(lists) {
        let what = format!("an optimizer of {rest} tensors in the place of {lists} for each parameter");
        return Err(Refusal::Unsupported { what });
    }
    let count = rest / lists;
    let mut tensors = Vec::with_capacity(count);
    for index in 0..count {
        let of = |list: usize| node.input(2 + list * count + index, "a tensor");
        let values: Vec<ValueId> = (0..lists).map(of).collect::<Result<_, _>>()?;
        if let Some(&other) = values.iter().find(|&&other| !node.same_type(values[0], other)) {
            let value = node.ty(other).to_string();
            return Err(Refusal::Impossible { what: "a tensor's type", value, shape: node.shape(values[0]) });
        }
        tensors.push(values);
    }
    Ok(Given { rate, updates, tensors })
}

/// A number of the model as one of `element`, without axes.
fn number(node: &mut Lowering<'_>, id: ValueId, element: ElementType) -> Result<ValueId, Refusal> {
    let id = node.reshape(id, Vec::new())?;
    node.cast(id, element)
}

/// The gradient with that of `coefficient / 2` times the square of the parameters.
fn regularized(node: &mut Lowering<'_>, x: ValueId, gradient: ValueId, by: f32) -> Result<ValueId, Refusal> {
    if by == 0.0 {
        return Ok(gradient);
    }
    let pull = node.binary_with(Binary::Mul, x, by.into())?;
    node.binary(Binary::Add, pull, gradient)
}

/// `a x + b y`
fn mixed(node: &mut Lowering<'_>, [a, b]: [f64; 2], x: ValueId, y: ValueId) -> Result<ValueId, Refusal> {
    let x = node.binary_with(Binary::Mul, x, a)?;
    let y = node.binary_with(Binary::Mul, y, b)?;
    node.binary(Binary::Add, x, y)
}

/// First the first result of every tensor, then the second.
fn in_lists(results: &[Vec<ValueId>]) -> Vec<ValueId> {
    let lists = results.first().map_or(0, Vec::len);
    (0..lists).flat_map(|list| results.iter().map(move |of_one| of_one[list])).collect()
}

fn adagrad(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let Given { rate, updates, tensors } = given(node, 3)?;
    let decay = node.attributes.float_or("decay_factor", 0.0)?;
    let epsilon = node.attributes.float_or("epsilon", 1e-6)?;
    let norm = node.attributes.float_or("norm_coefficient", 0.0)?;
    let mut results = Vec::new();
    for tensor in tensors {
        let [x, gradient, squares] = tensor[..] else { return Err(Refusal::Inner) };
        let element = node.ty(x).element;
        let (rate, updates) = (number(node, rate, element)?, number(node, updates, element)?);
        let slowed = node.binary_with(Binary::Mul, updates, decay.into())?;
        let slowed = node.binary_with(Binary::Add, slowed, 1.0)?;
        let rate = node.binary(Binary::Div, rate, slowed)?;
        let gradient = regularized(node, x, gradient, norm)?;
        let square = node.binary(Binary::Mul, gradient, gradient)?;
        let squares = node.binary(Binary::Add, squares, square)?;
        let root = node.unary(Unary::Sqrt, squares)?;
        let root = node.binary_with(Binary::Add, root, epsilon.into())?;
        let step = node.binary(Binary::Mul, rate, gradient)?;
        let step = node.binary(Binary::Div, step, root)?;
        results.push(vec![node.binary(Binary::Sub, x, step)?, squares]);
    }
    Ok(in_lists(&results))
}

/// `1 - factor^updates`
fn unbiased(node: &mut Lowering<'_>, factor: f32, updates: ValueId) -> Result<ValueId, Refusal> {
    let factor = node.scalar(node.ty(updates).element, factor.into())?;
    let power = node.binary(Binary::Pow, factor, updates)?;
    let lacking = node.binary_with(Binary::Mul, power, -1.0)?;
    node.binary_with(Binary::Add, lacking, 1.0)
}

fn adam(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let Given { rate, updates, tensors } = given(node, 4)?;
    let (alpha, beta) = (node.attributes.float_or("alpha", 0.9)?, node.attributes.float_or("beta", 0.999)?);
    let epsilon = node.attributes.float_or("epsilon", 1e-6)?;
    let norm = node.attributes.float_or("norm_coefficient", 0.0)?;
    let after = node.attributes.float_or("norm_coefficient_post", 0.0)?;
    let mut results = Vec::new();
    for tensor in tensors {
        let [x, gradient, momentum, squares] = tensor[..] else { return Err(Refusal::Inner) };
        let element = node.ty(x).element;
        let (rate, updates) = (number(node, rate, element)?, number(node, updates, element)?);
        let gradient = regularized(node, x, gradient, norm)?;
        let momentum = mixed(node, [alpha.into(), 1.0 - f64::from(alpha)], momentum, gradient)?;
        let square = node.binary(Binary::Mul, gradient, gradient)?;
        let squares = mixed(node, [beta.into(), 1.0 - f64::from(beta)], squares, square)?;
        let root = node.unary(Unary::Sqrt, squares)?;
        let root = node.binary_with(Binary::Add, root, epsilon.into())?;
        // The first averages lack what was before them; at the very first there is nothing to correct.
        let (first, second) = (unbiased(node, alpha, updates)?, unbiased(node, beta, updates)?);
        let second = node.unary(Unary::Sqrt, second)?;
        let corrected = node.binary(Binary::Mul, rate, second)?;
        let corrected = node.binary(Binary::Div, corrected, first)?;
        let later = node.compare_with(Compare::Greater, updates, 0.0)?;
        let rate = node.choose(later, corrected, rate)?;
        let step = node.binary(Binary::Div, momentum, root)?;
        let step = node.binary(Binary::Mul, rate, step)?;
        let mut made = node.binary(Binary::Sub, x, step)?;
        if after != 0.0 {
            made = node.binary_with(Binary::Mul, made, 1.0 - f64::from(after))?;
        }
        results.push(vec![made, momentum, squares]);
    }
    Ok(in_lists(&results))
}

fn momentum(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let Given { rate, updates, tensors } = given(node, 3)?;
    let required = |name: &'static str| {
        let missing = || Refusal::Attribute { name: name.into(), reason: "is missing".into() };
        node.attributes.float(name)?.ok_or_else(missing)
    };
    let (alpha, beta, norm) = (required("alpha")?, required("beta")?, required("norm_coefficient")?);
    let nesterov = match node.attributes.text_or("mode", "")? {
        "standard" => false,
        "nesterov" => true,
        other => {
            let reason = format!("is '{other}', not standard or nesterov");
            return Err(Refusal::Attribute { name: "mode".into(), reason });
        }
    };
    let mut results = Vec::new();
    for tensor in tensors {
        let [x, gradient, momentum] = tensor[..] else { return Err(Refusal::Inner) };
        let element = node.ty(x).element;
        let (rate, updates) = (number(node, rate, element)?, number(node, updates, element)?);
        let gradient = regularized(node, x, gradient, norm)?;
        // The very first gradient counts in full.
        let later = node.compare_with(Compare::Greater, updates, 0.0)?;
        let (full, weighted) = (node.scalar(element, 1.0)?, node.scalar(element, beta.into())?);
        let weight = node.choose(later, weighted, full)?;
        let fresh = node.binary(Binary::Mul, gradient, weight)?;
        let kept = node.binary_with(Binary::Mul, momentum, alpha.into())?;
        let momentum = node.binary(Binary::Add, kept, fresh)?;
        let mut way = momentum;
        if nesterov {
            let ahead = node.binary_with(Binary::Mul, momentum, alpha.into())?;
            way = node.binary(Binary::Add, gradient, ahead)?;
        }
        let step = node.binary(Binary::Mul, rate, way)?;
        results.push(vec![node.binary(Binary::Sub, x, step)?, momentum]);
    }
    Ok(in_lists(&results))
}

#[cfg(test)]
mod tests {
    use super::DOMAIN;
    use crate::{
        import,
        testing::{TestModel, float, text},
    };
    use planforge_graph::{
        interpreter,
        ir::{ElementType, Tensor},
    };
    use planforge_onnx::proto::{AttributeProto, OperatorSetIdProto};
    use std::collections::BTreeMap;

    fn model(op_type: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<AttributeProto>) -> TestModel {
        let mut model = TestModel::new(17).input("r", &[]).input_of("t", ElementType::I64, &[]);
        for name in &inputs[2..] {
            model = model.input(name, &[1]);
        }
        let mut model = model.node_of(op_type, inputs, outputs, attributes);
        for name in outputs {
            model = model.output(name);
        }
        model.graph().node[0].domain = DOMAIN.into();
        model.proto.opset_import.push(OperatorSetIdProto { domain: DOMAIN.into(), version: 1 });
        model
    }

    fn run(model: &TestModel, updates: i64, values: &[(&str, f32)]) -> BTreeMap<String, f64> {
        let number = |value: f32| Tensor::from_vec(vec![1], vec![value]).expect("one number");
        let mut inputs: BTreeMap<String, Tensor> =
            values.iter().map(|&(name, value)| (name.to_owned(), number(value))).collect();
        inputs.insert("r".into(), Tensor::scalar(0.1f32));
        inputs.insert("t".into(), Tensor::scalar(updates));
        let made = interpreter::execute(&model.import(), &inputs).expect("the graph runs");
        made.into_iter().map(|(name, tensor)| (name, tensor.to_f64s()[0])).collect()
    }

    #[test]
    fn several_tensors_are_optimized_list_by_list() {
        let inputs = ["r", "t", "x", "y", "gx", "gy", "hx", "hy"];
        let adagrad = model("Adagrad", &inputs, &["x1", "y1", "hx1", "hy1"], vec![]);
        let values = [("x", 1.0), ("y", 2.0), ("gx", 3.0), ("gy", 0.0), ("hx", 16.0), ("hy", 4.0)];
        let made = run(&adagrad, 0, &values);
        assert!((made["x1"] - (1.0 - 0.1 * 3.0 / 5.0)).abs() < 1e-6, "{made:?}");
        assert_eq!((made["hx1"], made["y1"], made["hy1"]), (25.0, 2.0, 4.0));
    }

    #[test]
    fn averages_are_corrected_once_there_was_an_update() {
        let adam = model("Adam", &["r", "t", "x", "g", "v", "h"], &["x1", "v1", "h1"], vec![]);
        let values = [("x", 1.0), ("g", 2.0), ("v", 0.0), ("h", 0.0)];
        let (v, h): (f64, f64) = (0.2, 0.004);
        for (updates, rate) in [(0, 0.1), (2, 0.1 * (1.0f64 - 0.999f64.powi(2)).sqrt() / (1.0 - 0.81))] {
            let made = run(&adam, updates, &values);
            let expected = 1.0 - rate * v / h.sqrt();
            assert!((made["x1"] - expected).abs() < 1e-3 * expected.abs(), "{made:?} instead of {expected}");
        }
    }

    #[test]
    fn momentum_knows_two_modes_and_refuses_others() {
        let of = |mode: &'static str| {
            let attributes =
                vec![float("alpha", 0.5), float("beta", 0.25), float("norm_coefficient", 0.0), text("mode", mode)];
            model("Momentum", &["r", "t", "x", "g", "v"], &["x1", "v1"], attributes)
        };
        let values = [("x", 1.0), ("g", 4.0), ("v", 2.0)];
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} instead of {b}");
        near(run(&of("standard"), 3, &values)["x1"], 1.0 - 0.1 * 2.0);
        near(run(&of("standard"), 0, &values)["x1"], 1.0 - 0.1 * 5.0);
        near(run(&of("nesterov"), 3, &values)["x1"], 1.0 - 0.1 * 5.0);
        let error = import(&of("heavy").model(), None).expect_err("no such mode").to_string();
        assert!(error.contains("mode is 'heavy', not standard or nesterov"), "{error}");
        let odd = model("Adam", &["r", "t", "x", "g", "v"], &["x1"], vec![]);
        let error = import(&odd.model(), None).expect_err("one is missing").to_string();
        assert!(error.contains("3 tensors in the place of 4"), "{error}");
    }
}
