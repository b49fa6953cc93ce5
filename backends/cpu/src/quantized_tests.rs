//! Quantized operators of every form, at every level and by every tactic: integers are those of the reference, bit for bit.

use super::{
    agreement_tests::{Ran, assert_agrees, given, run_all},
    program::{StepKind, SumsTo},
};
use planforge_graph::{
    interpreter,
    ir::{ElementType, Graph, Tensor},
};
use planforge_import::testing::{TestModel, dim, int, ints, value_info};
use planforge_onnx::proto::{OperatorSetIdProto, TensorProto, tensor_proto::DataType, tensor_shape_proto::dimension};
use proptest::prelude::*;

fn bytes(element: ElementType, shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |at: usize| ((at * 73 + seed * 31) % 256 + at * at % 7) as u8;
    Tensor::new(element, shape.to_vec(), (0..count).map(value).collect::<Vec<u8>>().into()).unwrap()
}

/// Inputs of bytes, constants of any integers.
trait OfBytes: Sized {
    fn bytes_in(self, name: &str, element: ElementType, shape: &[i64]) -> Self;
    fn constant_bytes(self, name: &str, tensor: &Tensor) -> Self;
}

fn data_type(element: ElementType) -> i32 {
    (match element {
        ElementType::U8 => DataType::Uint8,
        ElementType::I32 => DataType::Int32,
        _ => DataType::Int8,
    }) as i32
}

impl OfBytes for TestModel {
    fn bytes_in(mut self, name: &str, element: ElementType, shape: &[i64]) -> Self {
        let dims = shape.iter().map(|&size| dim(dimension::Value::DimValue(size))).collect();
        self.graph().input.push(value_info(name, data_type(element), dims));
        self
    }

    fn constant_bytes(mut self, name: &str, tensor: &Tensor) -> Self {
        self.graph().initializer.push(TensorProto {
            name: name.into(),
            data_type: data_type(tensor.element()),
            dims: tensor.shape().iter().map(|&size| size as i64).collect(),
            raw_data: tensor.bytes().clone(),
            ..TensorProto::default()
        });
        self
    }
}

fn byte(element: ElementType, value: u8) -> Tensor {
    Tensor::new(element, Vec::new(), vec![value].into()).unwrap()
}

fn element(signed: bool) -> ElementType {
    if signed { ElementType::I8 } else { ElementType::U8 }
}

/// Scales of columns.
fn scales(count: usize) -> Vec<f32> {
    (0..count).map(|at| 0.001 + at as f32 * 0.000_37).collect()
}

fn microsoft(mut model: TestModel) -> TestModel {
    for node in &mut model.graph().node {
        if node.op_type.starts_with("QLinear") && !["QLinearConv", "QLinearMatMul"].contains(&node.op_type.as_str())
            || ["QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"].contains(&node.op_type.as_str())
        {
            node.domain = "com.microsoft".into();
        }
    }
    model.proto.opset_import.push(OperatorSetIdProto { domain: "com.microsoft".into(), version: 1 });
    model
}

/// How far outputs of the optimised graph may be from those of the imported one.
#[derive(Clone, Copy, PartialEq)]
enum Near {
    /// Integers are equal, floats but for rounding.
    Exact,
    /// A number whose sums were rounded on the way may fall to the other side, where it is half way: one step, and a
    /// float made of it by as much as a step of it is worth.
    OneStep { worth: f64 },
}

/// Holds a model to both references; gives the kinds of its steps.
fn check(model: &TestModel, near: Near) -> Vec<StepKind> {
    let imported = model.import();
    let optimized: Graph = planforge_passes::pipeline(imported.clone(), super::TARGET).unwrap().graph;
    let inputs = given(&imported);
    let meant = interpreter::execute(&imported, &inputs).unwrap();
    let want = interpreter::execute(&optimized, &inputs).unwrap();
    for (name, meant) in &meant {
        let floats = meant.element() == ElementType::F32;
        let (meant, want) = (meant.to_f64s(), want[name].to_f64s());
        let top = meant.iter().fold(1e-6f64, |top, value| top.max(value.abs()));
        let bound = match (floats, near) {
            (true, Near::Exact) => 2e-5 * top,
            (true, Near::OneStep { worth }) => worth + 2e-5 * top,
            (false, Near::Exact) => 0.0,
            (false, Near::OneStep { .. }) => 1.0,
        };
        for (at, (meant, want)) in meant.iter().zip(&want).enumerate() {
            assert!((meant - want).abs() <= bound, "{name}[{at}]: {want} was {meant}\n{imported}\n{optimized}");
        }
    }
    let draft = super::lower::lower(&optimized).unwrap();
    run_all(&draft, &inputs, &mut |ran: Ran<'_>| {
        for (name, want) in &want {
            let (floats, got) = (want.element() == ElementType::F32, &ran.outputs[name]);
            let want = want.to_f64s();
            let top = want.iter().fold(1e-6f64, |top, value| top.max(value.abs()));
            assert_eq!(got.len(), want.len());
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                let bound = if floats { 2e-5 * top } else { 0.0 };
                let fits = (got - want).abs() <= bound;
                assert!(fits, "{name}[{at}] at {} by {}: {got}, not {want}", ran.level, ran.tactics);
            }
        }
    });
    draft.steps.into_iter().map(|step| step.step.kind).collect()
}

fn count(kinds: &[StepKind], name: &str) -> usize {
    kinds.iter().filter(|kind| kind.name() == name).count()
}

/// Nothing runs by reference, and so many steps are of this kind.
fn assert_steps(kinds: &[StepKind], name: &str, times: usize) {
    let names: Vec<&str> = kinds.iter().map(StepKind::name).collect();
    assert_eq!(count(kinds, name), times, "{names:?}");
    assert!(!kinds.iter().any(|kind| matches!(kind, StepKind::Reference { .. })), "{names:?}");
}

/// A convolution in all its forms.
#[derive(Clone, Debug)]
struct Window {
    batch: usize,
    per_group: usize,
    out_per_group: usize,
    groups: usize,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: i64,
    pad: i64,
    dilation: i64,
    x_signed: bool,
    w_signed: bool,
    /// Scales and zero points of weights are one for each column.
    many: bool,
    biased: bool,
}

impl Window {
    fn fits(&self) -> bool {
        (0..2).all(|axis| self.size[axis] as i64 + 2 * self.pad > (self.kernel[axis] as i64 - 1) * self.dilation)
    }

    fn columns(&self) -> usize {
        self.out_per_group * self.groups
    }

    fn depthwise(&self) -> bool {
        self.groups > 1 && self.per_group == 1 && self.out_per_group == 1
    }

    fn step(&self) -> &'static str {
        if self.depthwise() { "integer_depthwise" } else { "integer_conv" }
    }

    fn attributes(&self) -> Vec<planforge_onnx::proto::AttributeProto> {
        vec![
            ints("strides", &[self.stride; 2]),
            ints("pads", &[self.pad; 4]),
            ints("dilations", &[self.dilation; 2]),
            int("group", self.groups as i64),
        ]
    }

    /// A model with the operands of a convolution but for the image.
    fn operands(&self) -> TestModel {
        let weights = [self.columns(), self.per_group, self.kernel[0], self.kernel[1]];
        let many = if self.many { vec![self.columns()] } else { Vec::new() };
        let count: usize = many.iter().product();
        TestModel::new(17)
            .constant_bytes("w", &bytes(element(self.w_signed), &weights, 3))
            .floats("w.scale", &many, &scales(count))
            .constant_bytes("w.zero", &bytes(element(self.w_signed), &many, 5))
            .floats("x.scale", &[], &[0.02])
            .constant_bytes("x.zero", &byte(element(self.x_signed), 131))
            .floats("y.scale", &[], &[0.11])
            .constant_bytes("y.zero", &byte(element(self.x_signed), 7))
    }

    fn shape(&self) -> [i64; 4] {
        [self.batch, self.per_group * self.groups, self.size[0], self.size[1]].map(|size| size as i64)
    }
}

fn windows() -> impl Strategy<Value = Window> {
    let sizes = (1usize..3, 1usize..9, 1usize..12, 1usize..4, [1usize..8, 1usize..9], [1usize..4, 1usize..4]);
    let steps = (1i64..3, 0i64..3, 1i64..3);
    (sizes, steps, any::<[bool; 5]>()).prop_map(|(sizes, (stride, pad, dilation), flags)| {
        let (batch, per_group, out_per_group, groups, size, kernel) = sizes;
        let [x_signed, w_signed, many, biased, depthwise] = flags;
        let (per_group, out_per_group, groups) =
            if depthwise { (1, 1, per_group * out_per_group + 1) } else { (per_group, out_per_group, groups) };
        Window {
            batch,
            per_group,
            out_per_group,
            groups,
            size,
            kernel,
            stride,
            pad,
            dilation,
            x_signed,
            w_signed,
            many,
            biased,
        }
    })
}

fn qlinear_conv(of: &Window) -> TestModel {
    let bias = Tensor::from_vec(vec![of.columns()], (0..of.columns() as i32).map(|at| at * 977 - 4000).collect());
    let mut names = vec!["x", "x.scale", "x.zero", "w", "w.scale", "w.zero", "y.scale", "y.zero"];
    if of.biased {
        names.push("b");
    }
    of.operands()
        .bytes_in("x", element(of.x_signed), &of.shape())
        .constant_bytes("b", &bias.unwrap())
        .node("QLinearConv", &names, "y", of.attributes())
        .output("y")
}

fn qdq_conv(of: &Window, activation: &str) -> TestModel {
    let mut names = vec!["xd", "wd"];
    if of.biased {
        names.push("b");
    }
    let bias: Vec<f32> = (0..of.columns()).map(|at| at as f32 * 0.3 - 2.0).collect();
    let of_weights = if of.many { vec![int("axis", 0)] } else { vec![] };
    of.operands()
        .input("x", &of.shape())
        .floats("b", &[of.columns()], &bias)
        .node("QuantizeLinear", &["x", "x.scale", "x.zero"], "xq", vec![])
        .node("DequantizeLinear", &["xq", "x.scale", "x.zero"], "xd", vec![])
        .node("DequantizeLinear", &["w", "w.scale", "w.zero"], "wd", of_weights)
        .node("Conv", &names, "c", of.attributes())
        .node(activation, &["c"], "a", vec![])
        .node("QuantizeLinear", &["a", "y.scale", "y.zero"], "yq", vec![])
        .node("DequantizeLinear", &["yq", "y.scale", "y.zero"], "y", vec![])
        .output("yq")
        .output("y")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn convolutions_of_integers(of in windows()) {
        prop_assume!(of.fits());
        assert_steps(&check(&qlinear_conv(&of), Near::Exact), of.step(), 1);
    }

    #[test]
    fn convolutions_between_quantizations(of in windows(), relu: bool) {
        prop_assume!(of.fits());
        let model = qdq_conv(&of, if relu { "Relu" } else { "Identity" });
        assert_steps(&check(&model, Near::OneStep { worth: 0.11 }), of.step(), 1);
    }

    #[test]
    fn sums_of_convolutions(of in windows()) {
        prop_assume!(of.fits());
        let of = Window { many: false, ..of };
        let model = of
            .operands()
            .bytes_in("x", element(of.x_signed), &of.shape())
            .node("ConvInteger", &["x", "w", "x.zero", "w.zero"], "y", of.attributes())
            .output("y");
        assert_steps(&check(&model, Near::Exact), of.step(), 1);
    }

    #[test]
    fn products_of_integers(
        batch in 1i64..3, rows in 1i64..20, depth in 1usize..70, columns in 1usize..40, signed: [bool; 2], many: bool,
    ) {
        let list = if many { vec![columns] } else { vec![] };
        let count: usize = list.iter().product();
        let operands = || TestModel::new(17)
            .constant_bytes("w", &bytes(element(signed[1]), &[depth, columns], 1))
            .constant_bytes("x.zero", &byte(element(signed[0]), 200))
            .constant_bytes("w.zero", &bytes(element(signed[1]), &list, 9))
            .floats("x.scale", &[], &[0.03])
            .floats("w.scale", &list, &scales(count))
            .floats("y.scale", &[], &[0.07])
            .constant_bytes("y.zero", &byte(element(signed[0]), 100));
        let shape = [batch, rows, depth as i64];
        let whole = operands()
            .bytes_in("x", element(signed[0]), &shape)
            .node("MatMulInteger", &["x", "w", "x.zero", "w.zero"], "y", vec![])
            .output("y");
        assert_steps(&check(&whole, Near::Exact), "integer_gemm", 1);
        let names = ["x", "x.scale", "x.zero", "w", "w.scale", "w.zero", "y.scale", "y.zero"];
        let linear = operands()
            .bytes_in("x", element(signed[0]), &shape)
            .node("QLinearMatMul", &names, "y", vec![])
            .output("y");
        assert_steps(&check(&linear, Near::Exact), "integer_gemm", 1);
        let axis = if many { vec![int("axis", 1)] } else { vec![] };
        let floats = operands()
            .bytes_in("x", element(signed[0]), &shape)
            .floats("b", &[columns], &scales(columns))
            .node("DequantizeLinear", &["x", "x.scale", "x.zero"], "xd", vec![])
            .node("DequantizeLinear", &["w", "w.scale", "w.zero"], "wd", axis)
            .node("MatMul", &["xd", "wd"], "m", vec![])
            .node("Add", &["m", "b"], "y", vec![])
            .output("y");
        let kinds = check(&floats, Near::Exact);
        assert_steps(&kinds, "integer_gemm", 1);
        prop_assert_eq!(kinds.len(), 1);
    }

    #[test]
    fn rows_that_are_quantized_as_they_come(
        rows in 1i64..20, depth in 1usize..70, columns in 1usize..40, signed: bool, many: bool, biased: bool,
    ) {
        let list = if many { vec![columns] } else { vec![] };
        let count: usize = list.iter().product();
        let mut names = vec!["x", "w", "w.scale", "w.zero"];
        if biased {
            names.push("b");
        }
        let model = TestModel::new(17)
            .input("x", &[rows, depth as i64])
            .constant_bytes("w", &bytes(element(signed), &[depth, columns], 1))
            .constant_bytes("w.zero", &bytes(element(signed), &list, 9))
            .floats("w.scale", &list, &scales(count))
            .floats("b", &[columns], &scales(columns));
        let one = microsoft(model.clone().node("DynamicQuantizeMatMul", &names, "y", vec![]).output("y"));
        let kinds = check(&one, Near::Exact);
        assert_steps(&kinds, "integer_gemm", 1);
        // As the standard has it.
        let model = model
            .node_of("DynamicQuantizeLinear", &["x"], &["xq", "x.scale", "x.zero"], vec![])
            .node("MatMulInteger", &["xq", "w", "x.zero", "w.zero"], "i", vec![])
            .node("Cast", &["i"], "f", vec![int("to", 1)])
            .node("Mul", &["x.scale", "w.scale"], "scale", vec![])
            .node("Mul", &["f", "scale"], "s", vec![]);
        let model = if biased { model.node("Add", &["s", "b"], "y", vec![]) } else { model.node("Identity", &["s"], "y", vec![]) };
        let kinds = check(&model.output("y"), Near::Exact);
        assert_steps(&kinds, "integer_gemm", 1);
        let floats = kinds.iter().any(|kind| matches!(kind, StepKind::IntegerGemm { to: SumsTo::Floats, .. }));
        prop_assert!(floats);
    }
}

/// One sum of this falls half way between two steps: in floats to one side, in integers to the other.
#[test]
fn a_sum_half_way_between_two_steps() {
    let of = Window {
        batch: 1,
        per_group: 1,
        out_per_group: 1,
        groups: 17,
        size: [2, 7],
        kernel: [1, 3],
        stride: 1,
        pad: 0,
        dilation: 1,
        x_signed: false,
        w_signed: true,
        many: false,
        biased: false,
    };
    assert_steps(&check(&qdq_conv(&of, "Identity"), Near::OneStep { worth: 0.11 }), of.step(), 1);
}

#[test]
fn operators_of_the_quantizer_are_steps_of_integers() {
    for signed in [false, true] {
        let of = element(signed);
        let model = |shape: &[i64]| {
            TestModel::new(17)
                .bytes_in("x", of, shape)
                .floats("s", &[], &[0.05])
                .floats("t", &[], &[0.09])
                .constant_bytes("z", &byte(of, 120))
                .constant_bytes("u", &byte(of, 9))
        };
        let gemm = model(&[5, 19])
            .constant_bytes("w", &bytes(ElementType::I8, &[11, 19], 4))
            .floats("ws", &[11], &scales(11))
            .constant_bytes("wz", &byte(ElementType::I8, 0))
            .constant_bytes(
                "c",
                &Tensor::from_vec(vec![11], (0..11).map(|at| at * 300 - 900).collect::<Vec<i32>>()).unwrap(),
            );
        let names = ["x", "s", "z", "w", "ws", "wz", "c", "t", "u"];
        let attributes = vec![int("transB", 1)];
        let quantized = microsoft(gemm.clone().node("QGemm", &names, "y", attributes.clone()).output("y"));
        assert_steps(&check(&quantized, Near::OneStep { worth: 0.0 }), "integer_gemm", 1);
        let floats = microsoft(gemm.node("QGemm", &names[..7], "y", attributes).output("y"));
        assert_steps(&check(&floats, Near::Exact), "integer_gemm", 1);
        let add = model(&[1, 7, 5, 6])
            .bytes_in("v", of, &[1, 7, 5, 6])
            .node("QLinearAdd", &["x", "s", "z", "v", "t", "u", "t", "z"], "y", vec![])
            .output("y");
        assert_steps(&check(&microsoft(add), Near::Exact), "loops", 1);
        let mean = model(&[1, 7, 5, 6])
            .node("QLinearGlobalAveragePool", &["x", "s", "z", "t", "u"], "y", vec![int("channels_last", 0)])
            .output("y");
        assert_steps(&check(&microsoft(mean), Near::OneStep { worth: 0.0 }), "loops", 2);
        let concat = model(&[1, 7, 5, 6])
            .bytes_in("v", of, &[1, 2, 5, 6])
            .node("QLinearConcat", &["t", "u", "x", "t", "u", "v", "s", "z"], "y", vec![int("axis", 1)])
            .output("y");
        assert_steps(&check(&microsoft(concat), Near::Exact), "move", 1);
    }
}

#[test]
fn what_only_moves_moves_bytes() {
    for signed in [false, true] {
        let of = element(signed);
        let model = TestModel::new(17)
            .bytes_in("x", of, &[1, 9, 8, 7])
            .floats("s", &[], &[0.05])
            .constant_bytes("z", &byte(of, 120))
            .node("DequantizeLinear", &["x", "s", "z"], "a", vec![])
            .node(
                "MaxPool",
                &["a"],
                "b",
                vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4]), ints("strides", &[2; 2])],
            )
            .node("QuantizeLinear", &["b", "s", "z"], "c", vec![])
            .node("DequantizeLinear", &["c", "s", "z"], "d", vec![])
            .node("Flatten", &["d"], "e", vec![])
            .node("QuantizeLinear", &["e", "s", "z"], "y", vec![])
            .output("y");
        let kinds = check(&model, Near::Exact);
        assert_steps(&kinds, "integer_pool", 1);
        assert_eq!(count(&kinds, "loops"), 0);
        let plain = TestModel::new(17)
            .bytes_in("x", of, &[2, 3, 9])
            .node("MaxPool", &["x"], "y", vec![ints("kernel_shape", &[2])])
            .output("y");
        assert_steps(&check(&plain, Near::Exact), "integer_pool", 1);
    }
}

/// What has no integer form stays as it was, and right.
#[test]
fn scales_and_depths_that_do_not_suit_stay_floats() {
    let model = |scale: f32, depth: usize| {
        TestModel::new(17)
            .bytes_in("x", ElementType::U8, &[2, depth as i64])
            .constant_bytes("w", &bytes(ElementType::I8, &[depth, 3], 1))
            .floats("s", &[], &[scale])
            .floats("t", &[], &[0.01])
            .node("DequantizeLinear", &["x", "t"], "xd", vec![])
            .node("DequantizeLinear", &["w", "s"], "wd", vec![])
            .node("MatMul", &["xd", "wd"], "y", vec![])
            .output("y")
    };
    assert_steps(&check(&model(0.5, 40), Near::Exact), "integer_gemm", 1);
    for (scale, depth) in [(0.0, 40), (-1.0, 40), (0.5, 33_000)] {
        assert_steps(&check(&model(scale, depth), Near::Exact), "integer_gemm", 0);
        assert_agrees(&model(scale, depth));
    }
}

/// The importer computes what it makes of small weights at once; large ones come as they are stored.
#[test]
fn large_weights_are_read_as_they_are_stored() {
    let of = Window {
        batch: 1,
        per_group: 256,
        out_per_group: 260,
        groups: 1,
        size: [2, 2],
        kernel: [1, 1],
        stride: 1,
        pad: 0,
        dilation: 1,
        x_signed: false,
        w_signed: true,
        many: true,
        biased: true,
    };
    for (w_signed, many) in [(true, true), (false, false)] {
        let of = Window { w_signed, many, ..of.clone() };
        assert_steps(&check(&qlinear_conv(&of), Near::Exact), "integer_conv", 1);
    }
    for signed in [false, true] {
        let whole = TestModel::new(17)
            .bytes_in("x", ElementType::U8, &[3, 512])
            .constant_bytes("w", &bytes(element(signed), &[512, 130], 1))
            .constant_bytes("x.zero", &byte(ElementType::U8, 200))
            .constant_bytes("w.zero", &bytes(element(signed), &[130], 9))
            .node("MatMulInteger", &["x", "w", "x.zero", "w.zero"], "y", vec![])
            .output("y");
        assert_steps(&check(&whole, Near::Exact), "integer_gemm", 1);
    }
}
