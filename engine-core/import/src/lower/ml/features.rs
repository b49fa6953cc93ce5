//! What prepares features.

use super::{constant, rows, version, wrong};
use crate::{builder::Lowering, error::Refusal, lower::Rule};
use planforge_graph::ir::{Binary, Compare, ElementType, Op, PadMode, ReduceKind, Tensor, Unary, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "Scaler", attributes: &["offset", "scale"], lower: scaler },
    Rule { op_type: "Normalizer", attributes: &["norm"], lower: normalizer },
    Rule { op_type: "Binarizer", attributes: &["threshold"], lower: binarizer },
    Rule {
        op_type: "Imputer",
        attributes: &["imputed_value_floats", "imputed_value_int64s", "replaced_value_float", "replaced_value_int64"],
        lower: imputer,
    },
    Rule { op_type: "ArrayFeatureExtractor", attributes: &[], lower: extractor },
    Rule { op_type: "FeatureVectorizer", attributes: &["inputdimensions"], lower: vectorizer },
];

/// The only input, and how many features a row of it has.
fn features(node: &mut Lowering<'_>) -> Result<(ValueId, usize), Refusal> {
    version(node)?;
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    match node.shape(x)[..] {
        [columns] | [_, columns] => Ok((x, columns)),
        _ => Err(Refusal::Impossible { what: "the rank of X", value: "neither 1 nor 2".into(), shape: node.shape(x) }),
    }
}

/// f32 for integers, floats as they are.
fn as_float(node: &mut Lowering<'_>, x: ValueId) -> Result<ValueId, Refusal> {
    match node.ty(x).element {
        ElementType::F32 | ElementType::F64 => Ok(x),
        _ => node.cast(x, ElementType::F32),
    }
}

/// One value for all features, or one for each.
fn per_feature(
    node: &mut Lowering<'_>,
    name: &'static str,
    values: &[f32],
    columns: usize,
) -> Result<ValueId, Refusal> {
    match values.len() {
        1 => constant(node, &[], values),
        count if count == columns => constant(node, &[count], values),
        count => Err(wrong(name, &format!("has {count} values for {columns} features"))),
    }
}

fn scaler(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (x, columns) = features(node)?;
    let (offset, scale) = (node.attributes.floats("offset")?, node.attributes.floats("scale")?);
    let mut y = as_float(node, x)?;
    for (name, values, op) in [("offset", offset, Binary::Sub), ("scale", scale, Binary::Mul)] {
        if let Some(values) = values.filter(|values| !values.is_empty()) {
            let values = per_feature(node, name, values, columns)?;
            let values = node.cast(values, node.ty(y).element)?;
            y = node.binary(op, y, values)?;
        }
    }
    Ok(vec![node.cast(y, ElementType::F32)?])
}

/// A row whose norm is 0 stays as it is. `MAX` is the largest value, not the largest by size.
fn normalizer(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (x, _) = features(node)?;
    let x = as_float(node, x)?;
    let axis = node.shape(x).len() - 1;
    let kind = match node.attributes.text_or("norm", "MAX")? {
        "MAX" => ReduceKind::Max,
        "L1" => ReduceKind::L1,
        "L2" => ReduceKind::L2,
        other => return Err(wrong("norm", &format!("is '{other}', which is unknown"))),
    };
    let norm = node.reduce(kind, x, &[axis], true)?;
    let is_zero = node.compare_with(Compare::Equal, norm, 0.0)?;
    let one = node.scalar(node.ty(norm).element, 1.0)?;
    let norm = node.choose(is_zero, one, norm)?;
    let y = node.binary(Binary::Div, x, norm)?;
    Ok(vec![node.cast(y, ElementType::F32)?])
}

fn binarizer(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    version(node)?;
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    let element = node.ty(x).element;
    let compared = as_float(node, x)?;
    let threshold = f64::from(node.attributes.float_or("threshold", 0.0)?);
    let above = node.compare_with(Compare::Greater, compared, threshold)?;
    Ok(vec![node.cast(above, element)?])
}

fn imputer(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (x, columns) = features(node)?;
    let element = node.ty(x).element;
    let (floats, ints) =
        (node.attributes.floats("imputed_value_floats")?, node.attributes.ints("imputed_value_int64s")?);
    let replaced = f64::from(node.attributes.float_or("replaced_value_float", 0.0)?);
    let replaced_int = node.attributes.int_or("replaced_value_int64", 0)?;
    let is_float = matches!(element, ElementType::F32 | ElementType::F64);
    let count = if is_float { floats.map_or(0, <[f32]>::len) } else { ints.map_or(0, <[i64]>::len) };
    let name = if is_float { "imputed_value_floats" } else { "imputed_value_int64s" };
    if count == 0 {
        return Err(wrong(name, &format!("has no value, which X of {element} needs")));
    }
    // What is not one for each feature is the first for all of them.
    let (shape, count) = if count == columns { (vec![count], count) } else { (Vec::new(), 1) };
    let imputed = match is_float {
        true => Tensor::from_vec(shape, floats.unwrap_or_default()[..count].to_vec())?,
        false => Tensor::from_vec(shape, ints.unwrap_or_default()[..count].to_vec())?,
    };
    let imputed = node.add_constant(imputed);
    let imputed = node.cast(imputed, element)?;
    let missing = match (is_float, replaced.is_nan()) {
        (true, true) => node.unary(Unary::IsNan, x)?,
        (true, false) => node.compare_with(Compare::Equal, x, replaced)?,
        (false, _) => {
            let value = node.add_constant(Tensor::scalar(replaced_int));
            let value = node.cast(value, element)?;
            node.compare(Compare::Equal, x, value)?
        }
    };
    Ok(vec![node.choose(missing, imputed, x)?])
}

/// Columns by number; a list becomes one row.
fn extractor(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    version(node)?;
    node.at_most(2)?;
    let (x, indices) = (node.input(0, "X")?, node.input(1, "Y")?);
    let shape = node.shape(x);
    let x = if shape.len() == 1 { node.reshape(x, vec![1, shape[0]])? } else { x };
    let axis = shape.len().max(2) - 1;
    let count = node.shape(indices).iter().product();
    if shape.is_empty() || count == 0 {
        return Err(Refusal::Impossible { what: "the indices", value: format!("{count} of them"), shape });
    }
    let indices = node.reshape(indices, vec![count])?;
    Ok(vec![node.emit(Op::Gather { axis }, &[x, indices])?])
}

/// Inputs side by side as f32, each as wide as its attribute says: cut, or filled up with zeros.
fn vectorizer(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    version(node)?;
    let widths = node.attributes.ints("inputdimensions")?.unwrap_or_default();
    if widths.is_empty() || widths.len() != node.inputs.len() || widths.iter().any(|&width| width < 0) {
        return Err(wrong("inputdimensions", "has not one size for each input"));
    }
    let mut parts = Vec::new();
    for (position, &width) in widths.iter().enumerate() {
        let x = node.input(position, "X")?;
        let shape = node.shape(x);
        let [rows, columns] = match shape[..] {
            [] => return Err(Refusal::Impossible { what: "the rank", value: "0".into(), shape }),
            [columns] => [1, columns],
            [rows, ref rest @ ..] => [rows, rest.iter().product()],
        };
        let x = node.cast(x, ElementType::F32)?;
        let x = node.reshape(x, vec![rows, columns])?;
        let width = width as usize;
        parts.push(match columns > width {
            true => node.part(x, 1, 0, width)?,
            false if columns == width => x,
            false => {
                let op = Op::Pad { mode: PadMode::Constant, begins: vec![0, 0] };
                node.emit_as(op, &[x], vec![rows, width])?
            }
        });
    }
    Ok(vec![node.emit(Op::Concat { axis: 1 }, &parts)?])
}

/// The rows as f32, as linear models and support vectors take them.
pub(super) fn single_rows(node: &mut Lowering<'_>) -> Result<ValueId, Refusal> {
    let x = rows(node)?;
    node.cast(x, ElementType::F32)
}
