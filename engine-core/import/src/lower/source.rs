//! Operators that make values out of attributes and shapes: all of them are constants here.

use super::{super::builder::Lowering, Rule, sizes};
use crate::{builder::MAX_FOLDED_ELEMENTS, element_type, error::Refusal};
use planforge_graph::ir::{Op, Tensor, ValueId};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "Constant",
        attributes: &[
            "sparse_value",
            "value",
            "value_float",
            "value_floats",
            "value_int",
            "value_ints",
            "value_string",
            "value_strings",
        ],
        lower: constant,
    },
    Rule { op_type: "ConstantOfShape", attributes: &["value"], lower: constant_of_shape },
    Rule { op_type: "Shape", attributes: &["start", "end"], lower: shape },
    Rule { op_type: "Size", attributes: &[], lower: size },
    Rule { op_type: "Range", attributes: &[], lower: range },
    Rule { op_type: "EyeLike", attributes: &["dtype", "k"], lower: eye_like },
];

fn constant(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(0)?;
    let attributes = &node.attributes;
    if let Some(value) = attributes.tensor("value")? {
        return Ok(vec![node.read_constant(value)?]);
    }
    let tensor = if let Some(value) = attributes.float("value_float")? {
        Tensor::scalar(value)
    } else if let Some(value) = attributes.int("value_int")? {
        Tensor::scalar(value)
    } else if let Some(values) = attributes.floats("value_floats")? {
        Tensor::from_vec(vec![values.len()], values.to_vec()).map_err(planforge_graph::reference::OpError::from)?
    } else if let Some(values) = attributes.ints("value_ints")? {
        Tensor::from_vec(vec![values.len()], values.to_vec()).map_err(planforge_graph::reference::OpError::from)?
    } else {
        return Err(Refusal::Unsupported { what: "a constant without a dense number".into() });
    };
    Ok(vec![node.add_constant(tensor)])
}

fn constant_of_shape(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let shape = node.known_ints(0, "shape")?.ok_or(Refusal::MissingInput { position: 0, what: "shape" })?;
    let value = match node.attributes.tensor("value")? {
        Some(value) => node.read_tensor(value)?,
        None => Tensor::scalar(0f32),
    };
    if value.len() != 1 {
        return Err(Refusal::Impossible {
            what: "the value",
            value: format!("{} elements", value.len()),
            shape: vec![1],
        });
    }
    let value = value.reshaped(Vec::new()).map_err(planforge_graph::reference::OpError::from)?;
    let value = node.add_constant(value);
    Ok(vec![node.emit_as(Op::Expand, &[value], sizes("shape", &shape)?)?])
}

fn shape(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let shape = node.shape(node.input(0, "data")?);
    let rank = shape.len() as i64;
    let (mut start, mut end) = (0, rank);
    if node.opset >= 15 {
        let clamp = |at: i64| if at < 0 { at.saturating_add(rank) } else { at }.clamp(0, rank);
        start = clamp(node.attributes.int_or("start", 0)?);
        end = clamp(node.attributes.int_or("end", rank)?);
    }
    let sizes: Vec<i64> =
        shape.iter().skip(start as usize).take((end - start).max(0) as usize).map(|&size| size as i64).collect();
    let tensor = Tensor::from_vec(vec![sizes.len()], sizes).map_err(planforge_graph::reference::OpError::from)?;
    Ok(vec![node.add_constant(tensor)])
}

fn size(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let count: usize = node.shape(node.input(0, "data")?).iter().product();
    Ok(vec![node.add_constant(Tensor::scalar(count as i64))])
}

fn range(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let element = node.ty(node.input(0, "start")?).element;
    let one = |position: usize, what: &'static str| -> Result<f64, Refusal> {
        match node.known_floats(position, what)?.as_deref() {
            Some([value]) => Ok(*value),
            _ => Err(Refusal::MissingInput { position, what }),
        }
    };
    let (start, limit, delta) = (one(0, "start")?, one(1, "limit")?, one(2, "delta")?);
    let count = ((limit - start) / delta).ceil().max(0.0);
    if count.is_nan() || count > MAX_FOLDED_ELEMENTS as f64 || delta == 0.0 {
        let value = format!("{start} to {limit} by {delta}");
        return Err(Refusal::Impossible { what: "the range", value, shape: vec![MAX_FOLDED_ELEMENTS] });
    }
    let values: Vec<f64> = (0..count as usize).map(|index| start + index as f64 * delta).collect();
    let tensor = Tensor::from_vec(vec![values.len()], values).map_err(planforge_graph::reference::OpError::from)?;
    let values = node.add_constant(tensor);
    Ok(vec![node.emit(Op::Cast { to: element }, &[values])?])
}

fn eye_like(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "input")?;
    let [rows, columns] = node.shape(x)[..] else {
        return Err(Refusal::Impossible { what: "the rank", value: "not 2".into(), shape: node.shape(x) });
    };
    let element = match node.attributes.int("dtype")? {
        None => node.ty(x).element,
        Some(dtype) => i32::try_from(dtype).ok().and_then(|dtype| element_type(dtype).ok()).ok_or_else(|| {
            Refusal::Attribute { name: "dtype".into(), reason: "is not a supported element type".into() }
        })?,
    };
    if rows.saturating_mul(columns) > MAX_FOLDED_ELEMENTS {
        return Err(Refusal::Impossible { what: "the size", value: "too large".into(), shape: node.shape(x) });
    }
    let k = node.attributes.int_or("k", 0)?;
    let on = |row: usize, column: usize| u8::from(column as i64 - row as i64 == k);
    let ones = (0..rows).flat_map(|row| (0..columns).map(move |column| on(row, column))).collect();
    let tensor = Tensor::from_bools(vec![rows, columns], ones).map_err(planforge_graph::reference::OpError::from)?;
    let ones = node.add_constant(tensor);
    Ok(vec![node.emit(Op::Cast { to: element }, &[ones])?])
}
