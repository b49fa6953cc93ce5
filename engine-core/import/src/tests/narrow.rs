//! Types of eight bits and fewer: weights of them, inputs and outputs, and what is refused.

use super::{refused, run};
use crate::{
    Note, Problem, engine_tensor, import, import_noted,
    testing::{TestModel, dim, int, text, value_info},
};
use planforge_graph::{
    interpreter,
    ir::{ElementType, Tensor},
};
use planforge_onnx::proto::{TensorProto, tensor_proto::DataType, tensor_shape_proto::dimension::Value};
use std::collections::BTreeMap;

fn packed(name: &str, data_type: DataType, dims: &[i64], bytes: &[u8]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: data_type as i32,
        dims: dims.to_vec(),
        raw_data: bytes.to_vec().into(),
        ..TensorProto::default()
    }
}

fn with_weights(mut model: TestModel, weights: TensorProto) -> TestModel {
    model.graph().initializer.push(weights);
    model
}

fn with_input(mut model: TestModel, data_type: DataType, size: i64) -> TestModel {
    model.graph().input.push(value_info("x", data_type as i32, vec![dim(Value::DimValue(size))]));
    model
}

#[test]
fn integers_are_unpacked_lowest_bits_first() {
    let values = |data_type, bytes: &[u8], count: i64| {
        let tensor = engine_tensor(&packed("w", data_type, &[count], bytes)).expect("as many as its shape says");
        (tensor.element(), tensor.to_i64s().expect("integers"))
    };
    assert_eq!(values(DataType::Int4, &[0x8f, 0x07], 3), (ElementType::I8, vec![-1, -8, 7]));
    assert_eq!(values(DataType::Uint4, &[0x8f, 0x07], 3), (ElementType::U8, vec![15, 8, 7]));
    assert_eq!(values(DataType::Int2, &[0b01_10_11_00], 4), (ElementType::I8, vec![0, -1, -2, 1]));
    assert_eq!(values(DataType::Uint2, &[0b01_10_11_00, 0b10], 5), (ElementType::U8, vec![0, 3, 2, 1, 2]));
    let error = engine_tensor(&packed("w", DataType::Int4, &[5], &[0; 2])).expect_err("five take three bytes");
    assert!(error.contains("2 bytes"), "{error}");
}

#[test]
fn weights_of_four_bits_are_multiplied_by_the_scales_of_their_blocks() {
    let model = TestModel::new(21).input("x", &[1, 4]).floats("scale", &[2, 2], &[1.0, 10.0, 0.5, 2.0]);
    // Rows of 1 2 3, -1 -2 -3, 4 5 6, 7 -8 0: the first two columns share a scale.
    let weights = packed("w", DataType::Int4, &[4, 3], &[0x21, 0xf3, 0xde, 0x54, 0x76, 0x08]);
    let model = with_weights(model, weights)
        .node("DequantizeLinear", &["w", "scale"], "wide", vec![int("axis", 1), int("block_size", 2)])
        .node("MatMul", &["x", "wide"], "y", vec![])
        .output("y");
    // There are scales for two rows alone.
    let error = refused(&model).to_string();
    assert!(error.contains("the scales of blocks is [2, 2]"), "{error}");
    let scale = [1.0, 10.0, 2.0, 20.0, 0.5, 1.0, 1.0, 0.0];
    let model = TestModel::new(21).input("x", &[1, 4]).floats("scale", &[4, 2], &scale);
    let weights = packed("w", DataType::Int4, &[4, 3], &[0x21, 0xf3, 0xde, 0x54, 0x76, 0x08]);
    let model = with_weights(model, weights)
        .node("DequantizeLinear", &["w", "scale"], "wide", vec![int("axis", 1), int("block_size", 2)])
        .node("MatMul", &["x", "wide"], "y", vec![])
        .output("y");
    assert_eq!(run(&model, &[1, 4], vec![1.0, 0.0, 0.0, 0.0]).to_f64s(), [1.0, 2.0, 30.0]);
    assert_eq!(run(&model, &[1, 4], vec![0.0, 1.0, 0.0, 0.0]).to_f64s(), [-2.0, -4.0, -60.0]);
    assert_eq!(run(&model, &[1, 4], vec![0.0, 0.0, 1.0, 1.0]).to_f64s(), [9.0, -5.5, 6.0]);
}

#[test]
fn codes_at_inputs_and_outputs_are_told_and_refused_where_that_is_asked_for() {
    let model = with_input(TestModel::new(21), DataType::Float8e4m3fn, 3)
        .node("Cast", &["x"], "wide", vec![int("to", 1)])
        .node("Mul", &["wide", "wide"], "square", vec![])
        .node("Cast", &["square"], "y", vec![int("to", DataType::Float8e4m3fn as i64)])
        .node("Identity", &["y"], "z", vec![])
        .output("z");
    let imported = import_noted(&model.model(), None, false).expect("both are kept as codes");
    let declared = || "FLOAT8E4M3FN".to_owned();
    let note = |place: &str| Note::KeptAs { place: place.into(), declared: declared(), element: ElementType::U8 };
    assert_eq!(imported.notes, [note("input x"), note("output z")]);
    assert!(imported.notes[0].to_string().contains("has it as u8, one to a byte: the codes of the numbers"));
    // 1, -2 and what is no number.
    let x = Tensor::from_vec(vec![3], vec![0x38u8, 0xc0, 0x7f]).expect("three codes");
    let made = interpreter::execute(&imported.graph, &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs");
    assert_eq!(made["z"].to_i64s().expect("codes"), [0x38, 0x48, 0x7f]);
    let problems = import_noted(&model.model(), None, true).expect_err("strict").problems;
    let problem = |place: &str| Problem::Element { place: place.into(), element: declared() };
    assert_eq!(problems, [problem("input x"), problem("output z")]);
}

#[test]
fn codes_are_never_taken_for_numbers() {
    let codes = |op_type: &str, inputs: &[&str], attributes| {
        let model = with_input(TestModel::new(21), DataType::Float8e5m2, 2);
        import(&model.node(op_type, inputs, "y", attributes).output("y").model(), None)
    };
    codes("Reshape", &["x", "x"], vec![]).expect_err("a shape is no code");
    for (op_type, inputs) in [("Add", &["x", "x"][..]), ("Relu", &["x"]), ("ReduceMax", &["x"]), ("Less", &["x", "x"])]
    {
        let error = codes(op_type, inputs, vec![]).expect_err(op_type).to_string();
        assert!(error.contains("element type FLOAT8E5M2 is not supported"), "{op_type}: {error}");
    }
    codes("Concat", &["x", "x"], vec![int("axis", 0)]).expect("codes can be moved");
    let scale = packed("s", DataType::Float8e4m3fn, &[2], &[0x38, 0x38]);
    let model = with_weights(with_input(TestModel::new(21), DataType::Float8e5m2, 2), scale);
    let mixed = model.node("Concat", &["x", "s"], "y", vec![int("axis", 0)]).output("y");
    assert!(refused(&mixed).to_string().contains("element type FLOAT8E5M2"));
}

#[test]
fn numbers_are_quantized_to_few_bits() {
    let model = |data_type: DataType, zero: u8| {
        let zero = packed("zero", data_type, &[], &[zero]);
        let model = with_weights(TestModel::new(23).input("x", &[5]).floats("scale", &[], &[0.5]), zero);
        model
            .node("QuantizeLinear", &["x", "scale", "zero"], "q", vec![])
            .node("DequantizeLinear", &["q", "scale", "zero"], "y", vec![])
            .output("y")
    };
    let x = vec![0.2, 1.0, -1.3, 100.0, -100.0];
    let back = |data_type, zero| run(&model(data_type, zero), &[5], x.clone()).to_f64s();
    assert_eq!(back(DataType::Int4, 1), [0.0, 1.0, -1.5, 3.0, -4.5]);
    assert_eq!(back(DataType::Uint4, 8), [0.0, 1.0, -1.5, 3.5, -4.0]);
    assert_eq!(back(DataType::Int2, 0), [0.0, 0.5, -1.0, 0.5, -1.0]);
    assert_eq!(back(DataType::Float4e2m1, 0), [0.25, 1.0, -1.5, 3.0, -3.0]);
    assert_eq!(back(DataType::Float8e5m2, 0)[3..], [96.0, -96.0]);
    let other = model(DataType::Int4, 1).node(
        "QuantizeLinear",
        &["x", "scale", "zero"],
        "z",
        vec![int("output_dtype", DataType::Uint4 as i64)],
    );
    let error = refused(&other.output("z")).to_string();
    assert!(error.contains("output_dtype is UINT4, but the zero point is INT4"), "{error}");
    let strange = TestModel::new(24).input("x", &[1]).node(
        "Cast",
        &["x"],
        "y",
        vec![int("to", DataType::Float8e8m0 as i64), text("round_mode", "away")],
    );
    let error = refused(&strange.output("y")).to_string();
    assert!(error.contains("round_mode is away"), "{error}");
}
