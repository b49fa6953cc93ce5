//! Linear models and support vector machines.

use super::{class_labels, constant, features::single_rows, transform, transformed, wrong};
use crate::{builder::Lowering, error::Refusal, lower::Rule};
use planforge_graph::ir::{Activation, Binary, Compare, ElementType, MatMul, NamedOp, Op, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "LinearRegressor",
        attributes: &["coefficients", "intercepts", "post_transform", "targets"],
        lower: linear_regressor,
    },
    Rule {
        op_type: "LinearClassifier",
        attributes: &[
            "classlabels_ints",
            "classlabels_strings",
            "coefficients",
            "intercepts",
            "multi_class",
            "post_transform",
        ],
        lower: linear_classifier,
    },
    Rule {
        op_type: "SVMRegressor",
        attributes: &[
            "coefficients",
            "kernel_params",
            "kernel_type",
            "n_supports",
            "one_class",
            "post_transform",
            "rho",
            "support_vectors",
        ],
        lower: svm_regressor,
    },
    Rule {
        op_type: "SVMClassifier",
        attributes: &[
            "classlabels_ints",
            "classlabels_strings",
            "coefficients",
            "kernel_params",
            "kernel_type",
            "post_transform",
            "prob_a",
            "prob_b",
            "rho",
            "support_vectors",
            "vectors_per_class",
        ],
        lower: svm_classifier,
    },
];

fn floats<'a>(node: &Lowering<'a>, name: &'static str) -> Result<&'a [f32], Refusal> {
    Ok(node.attributes.floats(name)?.unwrap_or_default())
}

/// `alpha x weights^T + bias`, the weights of each result lying together.
fn product(
    node: &mut Lowering<'_>,
    x: ValueId,
    weights: &[f32],
    count: usize,
    alpha: f32,
    bias: Option<&[f32]>,
) -> Result<ValueId, Refusal> {
    let columns = node.shape(x)[1];
    if count.checked_mul(columns) != Some(weights.len()) {
        let reason = format!("are {} numbers, not {count} times the {columns} features of X", weights.len());
        return Err(wrong("the coefficients", &reason));
    }
    let weights = constant(node, &[count, columns], weights)?;
    let mut inputs = vec![Some(x), Some(weights)];
    if let Some(bias) = bias {
        inputs.push(Some(constant(node, &[bias.len()], bias)?));
    }
    let op = MatMul { alpha, trans_b: true, ..MatMul::default() };
    node.emit_optional(Op::MatMul(op), inputs, &[])
}

fn linear_regressor(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = single_rows(node)?;
    let targets = node.attributes.int_or("targets", 1)?;
    let targets = usize::try_from(targets).map_err(|_| wrong("targets", "is negative"))?;
    let intercepts = floats(node, "intercepts")?;
    let bias = Some(intercepts).filter(|bias| bias.len() == targets && targets > 0);
    let scores = product(node, x, floats(node, "coefficients")?, targets, 1.0, bias)?;
    let transform = transform(node)?;
    Ok(vec![transformed(node, scores, transform)?])
}

fn linear_classifier(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = single_rows(node)?;
    // What it said was never used.
    node.attributes.without_effect("multi_class");
    let labels = class_labels(node, "classlabels_ints")?;
    let (coefficients, intercepts) = (floats(node, "coefficients")?, floats(node, "intercepts")?);
    let columns = node.shape(x)[1];
    // Without intercepts the coefficients say how many scores there are.
    let count = if intercepts.is_empty() { coefficients.len() / columns.max(1) } else { intercepts.len() };
    let bias = Some(intercepts).filter(|bias| !bias.is_empty());
    let scores = product(node, x, coefficients, count, 1.0, bias)?;
    let transform = transform(node)?;
    let op = NamedOp::new("linear_classes").with_ints("labels", &labels).with_text("transform", transform);
    node.emit_all(Op::Named(op.into()), vec![Some(scores)], &[])
}

/// What the rows are to each vector, by `kernel_type`; without `vectors` it is linear.
fn kernel(
    node: &mut Lowering<'_>,
    x: ValueId,
    vectors: &[f32],
    count: usize,
    linear_bias: Option<f32>,
) -> Result<ValueId, Refusal> {
    let kind = node.attributes.text_or("kernel_type", "LINEAR")?;
    let parameters = floats(node, "kernel_params")?;
    let [gamma, coef0, degree] = match *parameters {
        [] => [0.0; 3],
        [gamma, coef0, degree] => [gamma, coef0, degree],
        _ => return Err(wrong("kernel_params", "has not 3 values: gamma, coef0, degree")),
    };
    let columns = node.shape(x)[1];
    let kind = if linear_bias.is_some() { "LINEAR" } else { kind };
    match kind {
        "LINEAR" => {
            let bias = linear_bias.filter(|&bias| bias != 0.0).map(|bias| vec![bias; count]);
            product(node, x, vectors, count, 1.0, bias.as_deref())
        }
        "RBF" => {
            if count.checked_mul(columns) != Some(vectors.len()) {
                return Err(wrong("support_vectors", &format!("are not {count} times {columns} numbers")));
            }
            let vectors = constant(node, &[count, columns], vectors)?;
            let op = NamedOp::new("rbf").with_floats("gamma", &[gamma]);
            node.emit(Op::Named(op.into()), &[x, vectors])
        }
        "POLY" | "SIGMOID" => {
            let y = product(node, x, vectors, count, gamma, Some(&vec![coef0; count]))?;
            match kind {
                "POLY" => node.binary_with(Binary::Pow, y, degree.into()),
                _ => node.emit(Op::Activation(Activation::Tanh), &[y]),
            }
        }
        other => Err(wrong("kernel_type", &format!("is '{other}', which is unknown"))),
    }
}

fn svm_regressor(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = single_rows(node)?;
    let supports = node.attributes.int_or("n_supports", 0)?;
    let supports = usize::try_from(supports).map_err(|_| wrong("n_supports", "is negative"))?;
    let (coefficients, rho) = (floats(node, "coefficients")?, floats(node, "rho")?);
    let vectors = floats(node, "support_vectors")?;
    let &[rho, ..] = rho else { return Err(wrong("rho", "is missing")) };
    // ONNX Runtime leaves the scores as they are, whatever `post_transform` says.
    node.attributes.without_effect("post_transform");
    let one_class = node.attributes.int_or("one_class", 0)? != 0;
    let mut y = match supports {
        0 => kernel(node, x, coefficients, 1, Some(rho))?,
        _ => {
            let near = kernel(node, x, vectors, supports, None)?;
            product(node, near, coefficients, 1, 1.0, Some(&[rho]))?
        }
    };
    if one_class {
        let inside = node.compare_with(Compare::Greater, y, 0.0)?;
        let (one, other) = (node.scalar(ElementType::F32, 1.0)?, node.scalar(ElementType::F32, -1.0)?);
        y = node.choose(inside, one, other)?;
    }
    Ok(vec![y])
}

fn svm_classifier(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = single_rows(node)?;
    let labels = class_labels(node, "classlabels_ints")?;
    let classes = labels.len();
    let counts = node.attributes.ints("vectors_per_class")?.unwrap_or_default();
    let (coefficients, rho) = (floats(node, "coefficients")?, floats(node, "rho")?);
    let vectors = floats(node, "support_vectors")?;
    let (a, b) = (floats(node, "prob_a")?, floats(node, "prob_b")?);
    let transform = transform(node)?;
    let all = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(usize::try_from(count).ok()?));
    let all = all.ok_or_else(|| wrong("vectors_per_class", "holds what is no count"))?;
    if all == 0 {
        return linear_svm(node, x, &labels, coefficients, rho, transform);
    }
    let pairs = classes * classes.saturating_sub(1) / 2;
    if classes < 2 || counts.len() != classes {
        return Err(wrong("vectors_per_class", &format!("has {} counts for {classes} classes", counts.len())));
    }
    if coefficients.len() != (classes - 1) * all || rho.len() < pairs {
        return Err(wrong("coefficients", "and rho are not as many as the classes need"));
    }
    if a.len() != b.len() || (!a.is_empty() && a.len() < pairs) {
        return Err(wrong("prob_a", "and prob_b have not one value for each pair of classes"));
    }
    let near = kernel(node, x, vectors, all, None)?;
    let coefficients = constant(node, &[classes - 1, all], coefficients)?;
    let mut inputs = vec![Some(near), Some(coefficients), Some(constant(node, &[pairs], &rho[..pairs])?)];
    if !a.is_empty() {
        inputs.push(Some(constant(node, &[pairs], &a[..pairs])?));
        inputs.push(Some(constant(node, &[pairs], &b[..pairs])?));
    }
    let op = NamedOp::new("svm_classes")
        .with_ints("labels", &labels)
        .with_ints("counts", counts)
        .with_text("transform", transform);
    node.emit_all(Op::Named(op.into()), inputs, &[])
}

/// One line of coefficients for each class. Of two classes the second wins where the larger score is above zero, or
/// where no coefficient is below zero at least a half.
fn linear_svm(
    node: &mut Lowering<'_>,
    x: ValueId,
    labels: &[i64],
    coefficients: &[f32],
    rho: &[f32],
    transform: &str,
) -> Result<Vec<ValueId>, Refusal> {
    let &[rho, ..] = rho else { return Err(wrong("rho", "is missing")) };
    let scores = kernel(node, x, coefficients, labels.len(), Some(rho))?;
    let op = NamedOp::new("svm_linear_classes")
        .with_ints("labels", labels)
        .with_text("transform", transform)
        .with_int("positive", i64::from(coefficients.iter().all(|&value| value >= 0.0)));
    node.emit_all(Op::Named(op.into()), vec![Some(scores)], &[])
}
