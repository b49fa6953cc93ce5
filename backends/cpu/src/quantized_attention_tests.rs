//! Attention over bytes in all its forms, at every level and by every tactic. The products are exact; a weight on the edge
//! between two steps may fall to the other side, for exponentials are rounded otherwise than the reference's.

use super::{
    agreement_tests::{Ran, run_all},
    program::StepKind,
};
use planforge_graph::{
    interpreter,
    ir::{ElementType, Tensor},
};
use planforge_import::testing::{TestModel, dim, int, ints, numbers, value_info};
use planforge_onnx::proto::{TensorProto, tensor_proto::DataType, tensor_shape_proto::dimension};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
struct Form {
    /// With an axis of heads.
    heads: Option<usize>,
    batch: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    value_depth: usize,
    /// Of queries, keys, values, weights and result.
    signed: [bool; 5],
    zeros: [u8; 5],
    /// Keys are given as (keys, depth) and transposed as bytes.
    transposed: bool,
    mask: Option<Vec<i64>>,
    result: bool,
}

fn data_type(signed: bool) -> i32 {
    (if signed { DataType::Int8 } else { DataType::Uint8 }) as i32
}

fn lead(form: &Form) -> Vec<usize> {
    [Some(form.batch), form.heads].into_iter().flatten().collect()
}

fn shape(form: &Form, last: [usize; 2]) -> Vec<usize> {
    [&lead(form)[..], &last].concat()
}

/// A byte that stands for the middle of its type, moved by some.
fn zero(signed: bool, by: u8) -> u8 {
    let small = by % 16;
    if signed { small.wrapping_sub(8) } else { 120 + small }
}

fn model(form: &Form) -> (TestModel, BTreeMap<String, Tensor>) {
    let names = ["q", "k", "v", "w", "y"];
    let mut model = TestModel::new(17).floats("s", &[], &[0.02]).floats("eighth", &[], &[0.125]);
    let mut given = BTreeMap::new();
    let keys = if form.transposed { [form.keys, form.depth] } else { [form.depth, form.keys] };
    let sizes = [[form.queries, form.depth], keys, [form.keys, form.value_depth]];
    for (at, name) in names.into_iter().enumerate() {
        // Weights are never below none of them.
        let signed = form.signed[at];
        let value = if at == 3 { if signed { 0x80 } else { 0 } } else { zero(signed, form.zeros[at]) };
        model.graph().initializer.push(TensorProto {
            name: format!("{name}.zero"),
            data_type: data_type(signed),
            raw_data: vec![value].into(),
            ..TensorProto::default()
        });
        let Some(size) = sizes.get(at) else { continue };
        let shape = shape(form, *size);
        let count: usize = shape.iter().product();
        let dims = shape.iter().map(|&size| dim(dimension::Value::DimValue(size as i64))).collect();
        model.graph().input.push(value_info(name, data_type(signed), dims));
        let bytes: Vec<u8> = (0..count).map(|byte| (byte * (89 + 2 * at) + byte / 11 + at * 40) as u8).collect();
        let element = if signed { ElementType::I8 } else { ElementType::U8 };
        given.insert(name.to_owned(), Tensor::new(element, shape, bytes.into()).unwrap());
        model = model.node("DequantizeLinear", &[name, "s", &format!("{name}.zero")], &format!("{name}.d"), vec![]);
    }
    let mut k = "k.d";
    if form.transposed {
        let rank = lead(form).len() as i64 + 2;
        let perm: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        model = model
            .node("Transpose", &["k.d"], "k.t", vec![ints("perm", &perm)])
            .node("QuantizeLinear", &["k.t", "s", "k.zero"], "k.q", vec![])
            .node("DequantizeLinear", &["k.q", "s", "k.zero"], "k.b", vec![]);
        k = "k.b";
    }
    model = model.node("MatMul", &["q.d", k], "scores", vec![]).node("Mul", &["scores", "eighth"], "scaled", vec![]);
    let mut scores = "scaled";
    if let Some(shape) = &form.mask {
        let sizes: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
        let values: Vec<f32> = numbers(sizes.iter().product());
        given.insert("mask".to_owned(), Tensor::from_vec(sizes, values).unwrap());
        model = model.input("mask", shape).node("Add", &[scores, "mask"], "masked", vec![]);
        scores = "masked";
    }
    let step = if form.signed[3] { 1.0 / 254.0 } else { 1.0 / 255.0 };
    model = model
        .floats("step", &[], &[step])
        .node("Softmax", &[scores], "w", vec![int("axis", -1)])
        .node("QuantizeLinear", &["w", "step", "w.zero"], "w.q", vec![])
        .node("DequantizeLinear", &["w.q", "step", "w.zero"], "w.d", vec![])
        .node("MatMul", &["w.d", "v.d"], "y", vec![]);
    if form.result {
        model = model.node("QuantizeLinear", &["y", "s", "y.zero"], "y.q", vec![]).output("y.q");
    } else {
        model = model.output("y");
    }
    (model, given)
}

fn check(form: &Form) {
    let (model, given) = model(form);
    let graph = planforge_passes::pipeline(model.import(), super::TARGET).unwrap().graph;
    let want = interpreter::execute(&graph, &given).unwrap();
    let draft = super::lower::lower(&graph).unwrap();
    let kinds: Vec<&str> = draft.steps.iter().map(|of| of.step.kind.name()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "integer_attention").count(), 1, "{kinds:?}");
    let floats =
        |of: &&super::draft::DraftStep| matches!(of.step.kind, StepKind::Reference { .. } | StepKind::Softmax { .. });
    assert_eq!(draft.steps.iter().filter(floats).count(), 0, "{kinds:?}");
    run_all(&draft, &given, &mut |ran: Ran<'_>| {
        for (name, want) in &want {
            let (floats, want) = (want.element() == ElementType::F32, want.to_f64s());
            let got = &ran.outputs[name];
            assert_eq!(got.len(), want.len());
            // What one step of a weight is worth, times the largest value: two and a half.
            let worth = if floats { 2.6 / 127.0 } else { 1.0 };
            let apart: Vec<f64> = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).collect();
            let other = apart.iter().filter(|apart| **apart > 1e-5).count();
            let fits = apart.iter().all(|apart| *apart <= worth) && other <= want.len() / 8 + form.value_depth;
            assert!(fits, "{name} at {} by {}: {apart:?}", ran.level, ran.tactics);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn attention_over_bytes_is_one_step_and_right(
        heads in proptest::option::of(1usize..4), batch in 1usize..3, queries in 1usize..18, keys in 1usize..40,
        depth in 1usize..36, value_depth in 1usize..20, signed: [bool; 5], zeros: [u8; 5], transposed: bool,
        masked in 0usize..4, result: bool,
    ) {
        let full = [&[batch][..], heads.as_slice(), &[queries, keys]].concat().into_iter().map(|size| size as i64).collect();
        let mask = match masked {
            0 => None,
            1 => Some(full),
            2 => Some(vec![queries as i64, 1]),
            _ => Some(vec![keys as i64]),
        };
        let form = Form { heads, batch, queries, keys, depth, value_depth, signed, zeros, transposed, mask, result };
        check(&form);
    }
}
