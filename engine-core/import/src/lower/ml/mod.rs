//! Operators of `ai.onnx.ml`: what converters of scikit-learn, XGBoost and LightGBM emit.
//!
//! | module | operators |
//! |---|---|
//! | [`trees`] | ensembles of trees |
//! | [`ensemble`] | their nodes as one list, whatever attributes they come in |
//! | [`linear`] | linear models and support vector machines |
//! | [`features`] | what prepares features |
//! | [`labels`] | categories and labels |
//!
//! Where the standard leaves a meaning open it is that of ONNX Runtime. Engines know no strings and no maps: labels that
//! are strings are refused by name, and of a `ZipMap` the tensor is given that it makes maps of.

mod ensemble;
mod features;
mod labels;
mod linear;
mod trees;

use super::{super::builder::Lowering, Rule};
use crate::{error::Refusal, imported_opset};
use planforge_graph::{
    ir::{ElementType, NamedOp, Op, Tensor, ValueId},
    named::TRANSFORMS,
};

/// The domain of these operators.
pub const DOMAIN: &str = "ai.onnx.ml";

/// Newest version of the domain that is known.
pub const NEWEST: i64 = 5;

pub const TABLES: &[&[Rule]] = &[features::RULES, labels::RULES, linear::RULES, trees::RULES];

/// The first tables that need a version are the trees' and the labels'; all refuse one that is not known yet.
fn version(node: &Lowering<'_>) -> Result<i64, Refusal> {
    let version = imported_opset(node.model, DOMAIN).unwrap_or(1);
    match (1..=NEWEST).contains(&version) {
        true => Ok(version),
        false => Err(Refusal::Unsupported { what: format!("version {version} of {DOMAIN} (known: 1 to {NEWEST})") }),
    }
}

/// The first input as rows of features; a list is one row.
fn rows(node: &mut Lowering<'_>) -> Result<ValueId, Refusal> {
    version(node)?;
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    match node.shape(x)[..] {
        [columns] => node.reshape(x, vec![1, columns]),
        [_, _] => Ok(x),
        _ => Err(Refusal::Impossible { what: "the rank of X", value: "neither 1 nor 2".into(), shape: node.shape(x) }),
    }
}

/// A list of floats as a constant of the shape they have.
fn constant(node: &mut Lowering<'_>, shape: &[usize], values: &[f32]) -> Result<ValueId, Refusal> {
    Ok(node.add_constant(Tensor::from_vec(shape.to_vec(), values.to_vec())?))
}

/// Floats as a constant of f32 or f64.
fn floats_of(node: &mut Lowering<'_>, element: ElementType, values: &[f64]) -> Result<ValueId, Refusal> {
    let shape = vec![values.len()];
    let tensor = match element {
        ElementType::F64 => Tensor::from_vec(shape, values.to_vec())?,
        _ => Tensor::from_vec(shape, values.iter().map(|&value| value as f32).collect())?,
    };
    Ok(node.add_constant(tensor))
}

/// What `post_transform` names.
fn transform<'a>(node: &Lowering<'a>) -> Result<&'a str, Refusal> {
    let name = node.attributes.text_or("post_transform", "NONE")?;
    match TRANSFORMS.contains(&name) {
        true => Ok(name),
        false => Err(wrong("post_transform", &format!("is '{name}', which is unknown"))),
    }
}

/// The scores of regressors after `post_transform`.
fn transformed(node: &mut Lowering<'_>, scores: ValueId, transform: &str) -> Result<ValueId, Refusal> {
    match transform {
        "NONE" => Ok(scores),
        _ => {
            let op = NamedOp::new("score_transform").with_text("transform", transform);
            node.emit(Op::Named(op.into()), &[scores])
        }
    }
}

fn wrong(name: &str, reason: &str) -> Refusal {
    Refusal::Attribute { name: name.into(), reason: reason.into() }
}

/// The integers that classes are told by. Where the model has strings instead they are refused, unless nobody asks for
/// the label, which then is the place in the list.
fn class_labels(node: &Lowering<'_>, ints: &'static str) -> Result<Vec<i64>, Refusal> {
    let strings = node.attributes.texts("classlabels_strings")?.unwrap_or_default();
    let labels = node.attributes.ints(ints)?.unwrap_or_default();
    if strings.is_empty() {
        return match labels {
            [] => Err(wrong(ints, "has no label")),
            labels => Ok(labels.to_vec()),
        };
    }
    match node.wants(0) {
        true => Err(no_strings("labels of classes")),
        false => Ok((0..strings.len() as i64).collect()),
    }
}

/// Engines have no strings.
fn no_strings(what: &str) -> Refusal {
    Refusal::Strings { what: what.into() }
}
