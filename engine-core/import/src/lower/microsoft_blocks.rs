//! Products and look-ups of `com.microsoft` in weights of few bits, with a scale for each block of them.

use super::{super::builder::Lowering, Rule, sizes};
use crate::{
    error::Refusal,
    narrow::{Narrow, unpacked},
};
use planforge_graph::ir::{Binary, ElementType, MatMul, Op, Tensor, ValueId};
use planforge_onnx::proto::tensor_proto::DataType;

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "MatMulNBits",
        attributes: &["K", "N", "accuracy_level", "bits", "block_size", "weight_prepacked"],
        lower: matmul,
    },
    Rule {
        op_type: "GatherBlockQuantized",
        attributes: &["bits", "block_size", "gather_axis", "quantize_axis"],
        lower: gather,
    },
];

/// Largest size of a matrix or block: products of two of them stay in 64 bits.
const MAX_SIZE: usize = 1 << 30;

/// Rows of packed numbers, `count` of each row that `packed` holds more of.
fn rows(packed: &Tensor, bits: usize, shape: [usize; 2]) -> Result<Tensor, Refusal> {
    let [count, width] = shape;
    let per_row = (width * bits).div_ceil(8);
    if packed.element() != ElementType::U8 || Some(packed.len()) != count.checked_mul(per_row) {
        let value = format!("{} {:?}", packed.element(), packed.shape());
        return Err(Refusal::Impossible { what: "the packed list", value, shape: shape.to_vec() });
    }
    let data_type = match bits {
        2 => DataType::Uint2,
        4 => DataType::Uint4,
        _ => return Ok(packed.reshaped(vec![count, width])?),
    };
    let narrow = Narrow::of(data_type as i32).ok_or(Refusal::Inner)?;
    unpacked(narrow, vec![count, per_row * 8 / bits], packed.bytes()).map_err(|what| Refusal::Unsupported { what })
}

/// Weights are read as `(number - zero) * scale` and multiplied as floats, whatever accuracy would do.
fn matmul(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(6)?;
    node.attributes.without_effect("accuracy_level");
    node.attributes.must_be("weight_prepacked", 0)?;
    let size =
        |name: &'static str| -> Result<usize, Refusal> { Ok(sizes(name, &[node.attributes.required_int(name)?])?[0]) };
    let (depth, width, block) = (size("K")?, size("N")?, size("block_size")?);
    let bits = match node.attributes.int_or("bits", 4)? {
        bits @ (2 | 4 | 8) => bits as usize,
        other => return Err(Refusal::Attribute { name: "bits".into(), reason: format!("is {other}, not 2, 4 or 8") }),
    };
    if node.optional(4).is_some() {
        return Err(Refusal::Unsupported { what: "an order of groups (g_idx)".into() });
    }
    let possible = [depth, width, block].iter().all(|size| (1..=MAX_SIZE).contains(size));
    if !possible || block * bits % 8 != 0 {
        let value = block.to_string();
        return Err(Refusal::Impossible { what: "the size of blocks", value, shape: vec![width, depth] });
    }
    let blocks = depth.div_ceil(block);
    let x = node.input(0, "A")?;
    let element = node.ty(x).element;
    let weights = rows(node.known(1, "B")?, bits, [width, blocks * block])?;
    let weights = node.add_constant(weights.reshaped(vec![width, blocks, block])?);
    let weights = node.cast(weights, ElementType::F32)?;
    let column = |node: &mut Lowering<'_>, id: ValueId| {
        if node.shape(id).iter().product::<usize>() != width * blocks {
            let value = node.ty(id).to_string();
            return Err(Refusal::Impossible { what: "the scales", value, shape: vec![width, blocks] });
        }
        let id = node.reshape(id, vec![width, blocks, 1])?;
        node.cast(id, ElementType::F32)
    };
    let zero = match node.optional(3) {
        None => node.scalar(ElementType::F32, f64::from(1u32 << (bits - 1)))?,
        Some(zero) if node.ty(zero).element == ElementType::U8 => {
            let packed = rows(node.known(3, "zero_points")?, bits, [width, blocks])?;
            let packed = node.add_constant(packed);
            let own = node.part(packed, 1, 0, blocks)?;
            column(node, own)?
        }
        Some(zero) => column(node, zero)?,
    };
    let scales = node.input(2, "scales")?;
    let scales = column(node, scales)?;
    let weights = node.binary(Binary::Sub, weights, zero)?;
    let weights = node.binary(Binary::Mul, weights, scales)?;
    let weights = node.reshape(weights, vec![width, blocks * block])?;
    let weights = node.part(weights, 1, 0, depth)?;
    let x = node.cast(x, ElementType::F32)?;
    let mut y = node.emit(Op::MatMul(MatMul { trans_b: true, ..MatMul::default() }), &[x, weights])?;
    if let Some(bias) = node.optional(5) {
        let bias = node.cast(bias, ElementType::F32)?;
        y = node.binary(Binary::Add, y, bias)?;
    }
    Ok(vec![node.cast(y, element)?])
}

/// Rows of a table of few bits, looked up before they are made numbers of: the table would be far larger then.
fn gather(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(4)?;
    node.attributes.must_be("gather_axis", 0)?;
    let block = sizes("block_size", &[node.attributes.int_or("block_size", 128)?])?[0];
    let bits = match node.attributes.int_or("bits", 4)? {
        bits @ (4 | 8) => bits as usize,
        other => return Err(Refusal::Attribute { name: "bits".into(), reason: format!("is {other}, not 4 or 8") }),
    };
    let (data, indices, scales) = (node.input(0, "data")?, node.input(1, "indices")?, node.input(2, "scales")?);
    // Bytes hold two numbers of four bits; types of four bits are kept one to a byte already.
    let is_packed = node.ty(data).element == ElementType::U8 && node.narrow(data).is_none();
    let (count, width) = match node.shape(data)[..] {
        [count, width] if is_packed => (count, width.saturating_mul(8 / bits)),
        [count, width] => (count, width),
        ref shape => {
            let value = format!("{} axes", shape.len());
            return Err(Refusal::Impossible { what: "the table", value, shape: shape.to_vec() });
        }
    };
    if !(1..=MAX_SIZE).contains(&block) || ![1, -1].contains(&node.attributes.int_or("quantize_axis", 1)?) {
        let reason = "is not the last axis, in blocks of some size".to_owned();
        return Err(Refusal::Attribute { name: "quantize_axis".into(), reason });
    }
    let blocks = width.div_ceil(block);
    if node.shape(scales) != [count, blocks] {
        let value = format!("{:?}", node.shape(scales));
        return Err(Refusal::Impossible { what: "the scales", value, shape: vec![count, blocks] });
    }
    let element = node.ty(scales).element;
    let table =
        |node: &mut Lowering<'_>, position: usize, what: &'static str, width: usize| match is_packed && bits == 4 {
            true => {
                let numbers = rows(node.known(position, what)?, bits, [count, width])?;
                let packed = node.add_constant(numbers);
                node.part(packed, 1, 0, width)
            }
            false => {
                let id = node.input(position, what)?;
                node.codes(id)
            }
        };
    let numbers = table(node, 0, "data", width)?;
    let looked_up = |node: &mut Lowering<'_>, id: ValueId| {
        let found = node.emit(Op::Gather { axis: 0 }, &[id, indices])?;
        node.cast(found, ElementType::F32)
    };
    let numbers = looked_up(node, numbers)?;
    let shape = node.shape(numbers);
    let axis = shape.len() - 1;
    // One for every number of a block.
    let spread = |node: &mut Lowering<'_>, id: ValueId| {
        let found = looked_up(node, id)?;
        let mut apart = node.shape(found);
        if apart.last() != Some(&blocks) {
            let value = format!("{:?}", node.shape(found));
            return Err(Refusal::Impossible { what: "the zero points", value, shape: vec![count, blocks] });
        }
        apart.push(1);
        let found = node.reshape(found, apart.clone())?;
        apart[axis + 1] = block;
        let found = node.emit_as(Op::Expand, &[found], apart.clone())?;
        apart.truncate(axis + 1);
        apart[axis] = blocks.saturating_mul(block);
        let found = node.reshape(found, apart)?;
        node.part(found, axis, 0, width)
    };
    let scales = spread(node, scales)?;
    let numbers = match node.optional(3) {
        Some(_) => {
            let zero = table(node, 3, "zero_points", blocks)?;
            let zero = spread(node, zero)?;
            node.binary(Binary::Sub, numbers, zero)?
        }
        None if is_packed => node.binary_with(Binary::Sub, numbers, f64::from(1u32 << (bits - 1)))?,
        None => numbers,
    };
    let y = node.binary(Binary::Mul, numbers, scales)?;
    Ok(vec![node.cast(y, element)?])
}

#[cfg(test)]
mod tests {
    use crate::{
        import,
        testing::{TestModel, int},
    };
    use planforge_graph::{interpreter, ir::Tensor};
    use planforge_onnx::proto::{OperatorSetIdProto, TensorProto, tensor_proto::DataType};
    use std::collections::BTreeMap;

    fn model(bits: i64, weights: &[u8], zero: Option<u8>) -> TestModel {
        let mut model = TestModel::new(17).input("x", &[1, 20]).floats("scale", &[2], &[2.0, 10.0]);
        let bytes = |name: &str, values: &[u8]| TensorProto {
            name: name.into(),
            data_type: DataType::Uint8 as i32,
            dims: vec![values.len() as i64],
            raw_data: values.to_vec().into(),
            ..TensorProto::default()
        };
        model.graph().initializer.push(bytes("w", weights));
        model.graph().initializer.extend(zero.map(|zero| bytes("zero", &[zero])));
        let inputs: &[&str] = if zero.is_some() { &["x", "w", "scale", "zero"] } else { &["x", "w", "scale"] };
        let attributes = vec![int("K", 20), int("N", 1), int("bits", bits), int("block_size", 16)];
        let mut model = model.node("MatMulNBits", inputs, "y", attributes).output("y");
        model.graph().node[0].domain = "com.microsoft".into();
        model.proto.opset_import.push(OperatorSetIdProto { domain: "com.microsoft".into(), version: 1 });
        model
    }

    fn run(model: &TestModel) -> f64 {
        let x = Tensor::from_vec(vec![1, 20], (0..20).map(|at| at as f32).collect()).expect("a row");
        interpreter::execute(&model.import(), &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs")["y"]
            .to_f64s()[0]
    }

    #[test]
    fn weights_of_blocks_have_scales_and_zero_points() {
        // Even places weigh 0, odd ones 1; what lies beyond the depth weighs nothing.
        let weights = [0x98; 16];
        let (first, second) = (1. + 3. + 5. + 7. + 9. + 11. + 13. + 15., 17. + 19.);
        assert_eq!(run(&model(4, &weights, None)), 2.0 * first + 10.0 * second);
        // The second block's zero is one more.
        let even = 16.0 + 18.0;
        assert_eq!(run(&model(4, &weights, Some(0x98))), 2.0 * first - 10.0 * even);
    }

    #[test]
    fn weights_are_as_many_as_their_shape_says() {
        let error = import(&model(4, &[0; 15], None).model(), None).expect_err("15 bytes").to_string();
        assert!(error.contains("the packed list is u8 [15]"), "{error}");
        let error = import(&model(3, &[0; 16], None).model(), None).expect_err("3 bits").to_string();
        assert!(error.contains("bits is 3, not 2, 4 or 8"), "{error}");
    }
}
