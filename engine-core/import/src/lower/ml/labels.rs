//! Categories and labels.

use super::{no_strings, version, wrong};
use crate::{builder::Lowering, error::Refusal, lower::Rule};
use planforge_graph::ir::{ElementType, NamedOp, Op, Tensor, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "OneHotEncoder", attributes: &["cats_int64s", "cats_strings", "zeros"], lower: one_hot },
    Rule {
        op_type: "LabelEncoder",
        attributes: &[
            "classes_strings",
            "default_float",
            "default_int64",
            "default_string",
            "default_tensor",
            "keys_floats",
            "keys_int64s",
            "keys_strings",
            "keys_tensor",
            "values_floats",
            "values_int64s",
            "values_strings",
            "values_tensor",
        ],
        lower: label_encoder,
    },
    Rule { op_type: "ZipMap", attributes: &["classlabels_int64s", "classlabels_strings"], lower: zip_map },
];

/// A category that is not listed gives zeros, or where `zeros` is 0 an error of the run.
fn one_hot(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    version(node)?;
    node.at_most(1)?;
    if node.attributes.texts("cats_strings")?.is_some_and(|strings| !strings.is_empty()) {
        return Err(no_strings("categories"));
    }
    let categories = node.attributes.ints("cats_int64s")?.unwrap_or_default();
    if categories.is_empty() {
        return Err(wrong("cats_int64s", "has no category"));
    }
    let zeros = node.attributes.flag("zeros", true)?;
    let x = node.input(0, "X")?;
    let x = node.cast(x, ElementType::I64)?;
    let op = NamedOp::new("categories").with_ints("categories", categories).with_int("strict", i64::from(!zeros));
    Ok(vec![node.emit(Op::Named(op.into()), &[x])?])
}

/// Keys or values: a list of floats or integers, or a tensor.
fn list(node: &Lowering<'_>, names: [&'static str; 4]) -> Result<Option<Tensor>, Refusal> {
    let [floats, ints, strings, tensor] = names;
    if node.attributes.texts(strings)?.is_some_and(|list| !list.is_empty()) {
        return Err(no_strings("labels"));
    }
    if let Some(list) = node.attributes.floats(floats)?.filter(|list| !list.is_empty()) {
        return Ok(Some(Tensor::from_vec(vec![list.len()], list.to_vec())?));
    }
    if let Some(list) = node.attributes.ints(ints)?.filter(|list| !list.is_empty()) {
        return Ok(Some(Tensor::from_vec(vec![list.len()], list.to_vec())?));
    }
    let Some(proto) = node.attributes.tensor(tensor)? else { return Ok(None) };
    let tensor = node.read_tensor(proto)?;
    Ok(Some(tensor.reshaped(vec![tensor.len()])?))
}

fn label_encoder(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let version = version(node)?;
    node.at_most(1)?;
    if node.attributes.texts("classes_strings")?.is_some() {
        return Err(no_strings("labels"));
    }
    let missing = |what: &str| wrong(what, "is missing");
    let keys = list(node, ["keys_floats", "keys_int64s", "keys_strings", "keys_tensor"])?;
    let keys = keys.ok_or_else(|| missing("keys_tensor"))?;
    let values = list(node, ["values_floats", "values_int64s", "values_strings", "values_tensor"])?;
    let values = values.ok_or_else(|| missing("values_tensor"))?;
    let (float, int) = (node.attributes.float_or("default_float", -0.0)?, node.attributes.int_or("default_int64", -1)?);
    node.attributes.without_effect("default_string");
    let default = match node.attributes.tensor("default_tensor")? {
        Some(proto) => node.read_tensor(proto)?.reshaped(vec![1])?,
        None if values.element() == ElementType::F32 => Tensor::from_vec(vec![1], vec![float])?,
        None if values.element() == ElementType::F64 => Tensor::from_vec(vec![1], vec![f64::from(float)])?,
        None => Tensor::from_vec(vec![1], vec![int])?,
    };
    let x = node.input(0, "X")?;
    let ids = [keys, values, default].map(|tensor| node.add_constant(tensor));
    // Integers of 32 bits are looked up in a list of 64.
    let x = match (node.ty(x).element, node.ty(ids[0]).element) {
        (ElementType::I32, ElementType::I64) => node.cast(x, ElementType::I64)?,
        _ => x,
    };
    let default = node.cast(ids[2], node.ty(ids[1]).element)?;
    let op = NamedOp::new("lookup").with_int("nan", i64::from(version >= 4));
    Ok(vec![node.emit(Op::Named(op.into()), &[x, ids[0], ids[1], default])?])
}

/// Engines give the tensor that maps would be made of; a note says so.
fn zip_map(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    version(node)?;
    node.at_most(1)?;
    node.attributes.without_effect("classlabels_int64s");
    node.attributes.without_effect("classlabels_strings");
    let x = node.input(0, "X")?;
    let tensor = node.emit(Op::Identity, &[x])?;
    node.builder.unzipped.push(tensor);
    Ok(vec![tensor])
}
