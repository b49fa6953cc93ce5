//! Models of every class of operators that real networks hold beside the common ones: none of their steps runs by its
//! reference, and all agree with it.

use super::agreement_tests::assert_agrees;
use planforge_graph::ir::{ElementType, Tensor};
use planforge_import::testing::{TestModel, float, int, ints, numbers, text};
use planforge_onnx::proto::{AttributeProto, attribute_proto::AttributeType, tensor_proto::DataType};
use proptest::prelude::*;

/// Agrees with the reference by steps that are kernels alone; gives their kinds.
fn assert_kernels(what: &str, model: &TestModel) -> Vec<&'static str> {
    let graph = planforge_passes::pipeline(model.import(), super::TARGET).unwrap().graph;
    let draft = super::lower::lower(&graph).unwrap();
    let references: Vec<String> = draft
        .steps
        .iter()
        .filter(|of| matches!(of.step.kind, super::program::StepKind::Reference { .. }))
        .map(|of| format!("{} of {}", of.step.kind.name(), of.step.origins.join(" + ")))
        .collect();
    assert!(references.is_empty(), "{what} runs by reference: {references:?}");
    assert_agrees(model).1
}

fn texts(name: &str, values: &[&'static str]) -> AttributeProto {
    let strings = values.iter().map(|&value| value.into()).collect();
    AttributeProto { name: name.into(), strings, r#type: AttributeType::Strings as i32, ..AttributeProto::default() }
}

fn to(element: DataType) -> Vec<AttributeProto> {
    vec![int("to", element as i64)]
}

fn bools(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    Tensor::from_bools(shape.to_vec(), (0..count).map(|at| u8::from(at % 3 == 0)).collect()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn transposed_convolutions(
        batch in 1usize..3, per_group in 1usize..6, out_per_group in 1usize..6, groups in 1usize..4,
        size in (1usize..7, 1usize..7), kernel in (1usize..6, 1usize..6), stride in (1i64..4, 1i64..4), pad in 0i64..3,
        more in 0i64..2, biased: bool, line: bool,
    ) {
        let channels = per_group * groups;
        let (strides, kernel) = if line { (vec![stride.1], vec![kernel.1]) } else { (vec![stride.0, stride.1], vec![kernel.0, kernel.1]) };
        let sizes: Vec<i64> = if line { vec![size.1 as i64] } else { vec![size.0 as i64, size.1 as i64] };
        let fits = (0..sizes.len()).all(|axis| (sizes[axis] - 1) * strides[axis] + kernel[axis] as i64 > 2 * pad);
        let padding = strides.iter().map(|&stride| more.min(stride - 1)).collect::<Vec<_>>();
        prop_assume!(fits);
        let of: Vec<usize> = [channels, out_per_group].into_iter().chain(kernel.iter().copied()).collect();
        let shape: Vec<i64> = [batch as i64, channels as i64].into_iter().chain(sizes).collect();
        let out = out_per_group * groups;
        let attributes = vec![
            ints("strides", &strides), ints("pads", &vec![pad; 2 * strides.len()]), int("group", groups as i64),
            ints("output_padding", &padding),
        ];
        let model = TestModel::new(17)
            .input("x", &shape)
            .floats("w", &of, &numbers(of.iter().product()))
            .floats("b", &[out], &numbers(out))
            .node("ConvTranspose", if biased { &["x", "w", "b"] } else { &["x", "w"] }, "y", attributes)
            .output("y");
        assert_kernels("a transposed convolution", &model);
    }

    #[test]
    fn volumes(
        per_group in 1usize..5, out_per_group in 1usize..5, groups in 1usize..3, size in (1i64..6, 1i64..6, 1i64..6),
        kernel in (1usize..4, 1usize..4, 1usize..4), stride in 1i64..3, pad in 0i64..2, average: bool, count_pad: bool,
    ) {
        let channels = per_group * groups;
        let kernels = [kernel.0, kernel.1, kernel.2];
        let sizes = [size.0, size.1, size.2];
        prop_assume!((0..3).all(|axis| sizes[axis] + 2 * pad >= kernels[axis] as i64 && pad < kernels[axis] as i64));
        let of: Vec<usize> = [out_per_group * groups, per_group].into_iter().chain(kernels).collect();
        let shape = [2, channels as i64, size.0, size.1, size.2];
        let (strides, pads) = (ints("strides", &[stride; 3]), ints("pads", &[pad; 6]));
        let kernel_shape = ints("kernel_shape", &kernels.map(|size| size as i64));
        let pool = if average { "AveragePool" } else { "MaxPool" };
        let mut attributes = vec![strides.clone(), pads.clone(), kernel_shape];
        if average {
            attributes.push(int("count_include_pad", count_pad.into()));
        }
        let model = TestModel::new(17)
            .input("x", &shape)
            .floats("w", &of, &numbers(of.iter().product()))
            .floats("b", &[of[0]], &numbers(of[0]))
            .node("Conv", &["x", "w", "b"], "c", vec![strides, pads, int("group", groups as i64)])
            .node("Relu", &["c"], "r", vec![])
            .node(pool, &["x"], "p", attributes)
            .output("r")
            .output("p");
        assert_kernels("a volume", &model);
    }

    #[test]
    fn convolutions_by_computed_weights(
        batch in 1usize..3, per_group in 1usize..5, out_per_group in 1usize..5, groups in 1usize..3,
        size in (1i64..7, 1i64..7), kernel in (1usize..4, 1usize..4), stride in 1i64..3, pad in 0i64..2, dilation in 1i64..3,
    ) {
        let fits = |size: i64, kernel: usize| size + 2 * pad > (kernel as i64 - 1) * dilation;
        prop_assume!(fits(size.0, kernel.0) && fits(size.1, kernel.1));
        let (channels, out) = (per_group * groups, out_per_group * groups);
        let model = TestModel::new(17)
            .input("x", &[batch as i64, channels as i64, size.0, size.1])
            .input("w", &[out as i64, per_group as i64, kernel.0 as i64, kernel.1 as i64])
            .input("b", &[out as i64])
            .node("Tanh", &["w"], "v", vec![])
            .node("Conv", &["x", "v", "b"], "c", vec![
                ints("strides", &[stride; 2]), ints("pads", &[pad; 4]), ints("dilations", &[dilation; 2]),
                int("group", groups as i64),
            ])
            .node("Relu", &["c"], "y", vec![])
            .output("y");
        assert_kernels("a convolution by computed weights", &model);
    }

    #[test]
    fn recurrent_networks(
        cell in 0usize..5, steps in 1usize..6, batch in 1usize..8, inputs in 1usize..9, hidden in 1usize..40,
        direction in 0usize..3, states: bool, lengths: bool, biased: bool,
    ) {
        let (name, gates) = [("RNN", 1), ("GRU", 3), ("GRU", 3), ("LSTM", 4), ("LSTM", 4)][cell];
        let directions = if direction == 2 { 2 } else { 1 };
        let wide = gates * hidden;
        let small = |count: usize| numbers(count).iter().map(|value| value * 0.3).collect::<Vec<_>>();
        let mut attributes = vec![
            int("hidden_size", hidden as i64),
            text("direction", ["forward", "reverse", "bidirectional"][direction]),
        ];
        if cell == 2 {
            attributes.push(int("linear_before_reset", 1));
        }
        if cell == 4 {
            attributes.push(float("clip", 0.75));
        }
        let model = TestModel::new(17)
            .input("x", &[steps as i64, batch as i64, inputs as i64])
            .floats("w", &[directions, wide, inputs], &small(directions * wide * inputs))
            .floats("r", &[directions, wide, hidden], &small(directions * wide * hidden))
            .floats("b", &[directions, 2 * wide], &small(directions * 2 * wide))
            .input("h", &[directions as i64, batch as i64, hidden as i64])
            .input("c", &[directions as i64, batch as i64, hidden as i64])
            .floats("p", &[directions, 3 * hidden], &small(directions * 3 * hidden))
            .longs("long", &(0..batch).map(|row| ((row * 3) % (steps + 1)) as i64).collect::<Vec<_>>())
            .node("Cast", &["long"], "lengths", to(DataType::Int32));
        let bias = if biased { "b" } else { "" };
        let (lengths, h) = (if lengths { "lengths" } else { "" }, if states { "h" } else { "" });
        let given = ["x", "w", "r", bias, lengths, h, if states { "c" } else { "" }, if cell == 4 { "p" } else { "" }];
        let count = if name == "LSTM" { 8 } else { 6 };
        let outputs: &[&str] = if name == "LSTM" { &["y", "last", "state"] } else { &["y", "last"] };
        let mut model = model.node_of(name, &given[..count], outputs, attributes).output("y").output("last");
        // Everything that is given is read.
        model = model.node("Add", &["h", "c"], "both", vec![]).output("both");
        assert_kernels(name, &model);
    }

    #[test]
    fn padding_in_every_mode(
        size in (1i64..6, 1i64..6), pads in proptest::collection::vec(-1i64..5, 4), mode in 0usize..4, image: bool,
    ) {
        let mode = ["constant", "reflect", "edge", "wrap"][mode];
        let (top, left, bottom, right) = (pads[0], pads[1], pads[2], pads[3]);
        let inside = |size: i64, before: i64, after: i64| size + before + after > 0 && size + before > 0 && size + after > 0;
        prop_assume!(inside(size.0, top, bottom) && inside(size.1, left, right));
        prop_assume!(mode != "reflect" || [top, bottom].iter().all(|&pad| pad < size.0) && [left, right].iter().all(|&pad| pad < size.1));
        prop_assume!(mode == "constant" || pads.iter().all(|&pad| pad >= 0));
        let model = TestModel::new(19)
            .input("x", &[2, 3, size.0, size.1])
            .floats("w", &[3, 3, 1, 1], &numbers(9))
            .longs("pads", &[0, 0, top, left, 0, 0, bottom, right])
            .floats("fill", &[], &[0.5]);
        let model = match image {
            true => model.node("Conv", &["x", "w"], "a", vec![]),
            false => model.node("Relu", &["x"], "a", vec![]),
        };
        let given: &[&str] = if mode == "constant" { &["a", "pads", "fill"] } else { &["a", "pads"] };
        assert_kernels(mode, &model.node("Pad", given, "y", vec![text("mode", mode)]).output("y"));
    }
}

#[test]
fn element_wise_operators_of_every_type_are_loops() {
    let model = TestModel::new(18)
        .input("x", &[2, 3, 5, 7])
        .floats("per_channel", &[3, 1, 1], &[0.5, -1.0, 2.0])
        .floats("line", &[7], &numbers(7))
        .floats("two", &[], &[2.0])
        .floats("third", &[], &[0.3])
        .floats("w", &[3, 3, 1, 1], &numbers(9))
        .constant("mask", &bools(&[5, 1]))
        .node("Conv", &["x", "w"], "image", vec![])
        .node("Pow", &["image", "two"], "square", vec![])
        .node("Add", &["square", "third"], "more", vec![])
        .node("Log", &["more"], "log", vec![])
        .node("Floor", &["log"], "floor", vec![])
        .node("Where", &["mask", "floor", "per_channel"], "chosen", vec![])
        .node("Sin", &["chosen"], "sine", vec![])
        .node("Less", &["sine", "line"], "less", vec![])
        .node("Cast", &["x"], "whole", to(DataType::Int32))
        .node("Cast", &["line"], "along", to(DataType::Int32))
        .node("Mul", &["whole", "along"], "product", vec![])
        .node("Cast", &["product"], "number", to(DataType::Double))
        .node("Exp", &["number"], "wide", vec![])
        .node("Cast", &["wide"], "narrow", to(DataType::Float))
        .node("Cast", &["less"], "flag", to(DataType::Float))
        .node("Sign", &["narrow"], "sign", vec![])
        .node("PRelu", &["narrow", "per_channel"], "leaky", vec![])
        .node("Max", &["sign", "flag"], "y", vec![])
        .output("y")
        .output("leaky");
    let kinds = assert_kernels("element-wise", &model);
    let loops = kinds.iter().filter(|kind| **kind == "loops").count();
    assert!(loops <= 6, "what follows each other is one step: {kinds:?}");
}

#[test]
fn quantization_is_loops() {
    let model = TestModel::new(19)
        .input("x", &[2, 4, 6])
        .floats("scale", &[], &[0.02])
        .floats("scales", &[4], &[0.01, 0.02, 0.03, 0.04])
        .constant("zero", &Tensor::new(ElementType::I8, vec![], vec![3u8].into()).unwrap())
        .constant("zeros", &Tensor::new(ElementType::I8, vec![4], vec![0u8, 1, 255, 2].into()).unwrap())
        .node("QuantizeLinear", &["x", "scale", "zero"], "q", vec![])
        .node("DequantizeLinear", &["q", "scale", "zero"], "d", vec![])
        .node("QuantizeLinear", &["d", "scales", "zeros"], "p", vec![int("axis", 1)])
        .node("Cast", &["p"], "y", to(DataType::Float))
        .output("y")
        .output("d");
    assert_kernels("quantization", &model);
}

#[test]
fn reductions_over_any_axes_and_images() {
    for keep in [0, 1] {
        let mut model = TestModel::new(18).input("x", &[2, 3, 40, 5]).floats("w", &[3, 3, 1, 1], &numbers(9));
        model = model.node("Conv", &["x", "w"], "image", vec![]);
        let kinds = [
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
        ];
        for (index, axes) in
            [&[0i64][..], &[1], &[2], &[3], &[1, 3], &[0, 2], &[2, 3], &[0, 1, 2, 3]].iter().enumerate()
        {
            let (axes_name, y, z) = (format!("axes{index}"), format!("y{index}"), format!("z{index}"));
            let kind = kinds[index];
            model = model
                .longs(&axes_name, axes)
                .node(kind, &["image", &axes_name], &y, vec![int("keepdims", keep)])
                .node(kind, &["x", &axes_name], &z, vec![int("keepdims", keep)])
                .output(&y)
                .output(&z);
        }
        assert_kernels("reductions", &model);
    }
}

#[test]
fn order_places_and_lines_along_axes() {
    let mut model = TestModel::new(18).input("x", &[2, 6, 20, 3]).longs("k", &[4]).longs("axis", &[2]);
    for axis in 0..4i64 {
        let name = |what: &str| format!("{what}{axis}");
        model = model
            .node("Softmax", &["x"], &name("soft"), vec![int("axis", axis)])
            .node("LogSoftmax", &["x"], &name("log"), vec![int("axis", axis)])
            .node("ArgMax", &["x"], &name("place"), vec![int("axis", axis)])
            .node("Cast", &[&name("place")], &name("place_number"), to(DataType::Float))
            .output(&name("soft"))
            .output(&name("log"))
            .output(&name("place_number"));
    }
    let model = model
        .node("CumSum", &["x", "axis"], "sums", vec![int("exclusive", 1)])
        .node_of("TopK", &["x", "k"], &["best", "places"], vec![int("axis", 2)])
        .node("Cast", &["places"], "best_places", to(DataType::Float))
        .output("sums")
        .output("best")
        .output("best_places");
    assert_kernels("along axes", &model);
}

#[test]
fn normalization_of_channels_and_groups() {
    let model = TestModel::new(18)
        .input("x", &[2, 6, 5, 4])
        .floats("scale", &[6], &numbers(6))
        .floats("bias", &[6], &numbers(6))
        .floats("variance", &[6], &[1.0, 0.5, 2.0, 0.25, 1.5, 3.0])
        .node("InstanceNormalization", &["x", "scale", "bias"], "channels", vec![])
        .node("BatchNormalization", &["x", "scale", "bias", "bias", "variance"], "batch", vec![])
        .output("channels")
        .output("batch");
    assert_kernels("normalization", &model);
}

#[test]
fn elements_are_moved_by_kernels() {
    let model = TestModel::new(18)
        .input("x", &[2, 8, 4, 6])
        .longs("repeats", &[1, 2, 1, 3])
        .longs("starts", &[3, -1])
        .longs("ends", &[-100, -100])
        .longs("axes", &[2, 3])
        .longs("steps", &[-1, -2])
        .longs("rows", &[1, 0, -1])
        .constant("at", &Tensor::from_vec(vec![3, 2], vec![1i64, 7, 0, -8, 1, 0]).unwrap())
        .constant("along", &Tensor::from_vec(vec![2, 8, 1, 6], (0..96).map(|at| at % 4).collect::<Vec<i64>>()).unwrap())
        .floats("updates", &[3, 4, 6], &numbers(72))
        .floats("off_on", &[2], &[-1.0, 2.0])
        .longs("depth", &[4])
        .floats("scales", &[4], &[1.0, 1.0, 1.7, 0.6])
        .node("Tile", &["x", "repeats"], "tiled", vec![])
        .node("Slice", &["x", "starts", "ends", "axes", "steps"], "turned", vec![])
        .node("DepthToSpace", &["x"], "space", vec![int("blocksize", 2)])
        .node("DepthToSpace", &["x"], "space_crd", vec![int("blocksize", 2), text("mode", "CRD")])
        .node("SpaceToDepth", &["x"], "deep", vec![int("blocksize", 2)])
        .node("Trilu", &["x"], "upper", vec![])
        .node("GatherND", &["x", "at"], "points", vec![])
        .node("GatherElements", &["x", "along"], "elements", vec![int("axis", 2)])
        .node("ScatterND", &["x", "at", "updates"], "put", vec![text("reduction", "add")])
        .node("ScatterElements", &["x", "along", "elements"], "spread", vec![int("axis", 2), text("reduction", "max")])
        .node("OneHot", &["rows", "depth", "off_on"], "hot", vec![])
        .node("Resize", &["x", "", "scales"], "linear", vec![text("mode", "linear")])
        .node("Resize", &["x", "", "scales"], "nearest", vec![text("mode", "nearest")])
        .output("tiled")
        .output("turned")
        .output("space")
        .output("space_crd")
        .output("deep")
        .output("upper")
        .output("points")
        .output("elements")
        .output("put")
        .output("spread")
        .output("hot")
        .output("linear")
        .output("nearest");
    assert_kernels("moves", &model);
}

#[test]
fn recurrent_activations_have_their_usual_values() {
    let model = TestModel::new(17)
        .input("x", &[3, 2, 4])
        .floats("w", &[1, 20, 4], &numbers(80))
        .floats("r", &[1, 20, 5], &numbers(100))
        .node(
            "LSTM",
            &["x", "w", "r"],
            "y",
            vec![int("hidden_size", 5), texts("activations", &["HardSigmoid", "Softsign", "Elu"])],
        )
        .output("y");
    assert_kernels("activations", &model);
}

#[test]
fn fourier_transforms_are_fast_ones() {
    let model = TestModel::new(20)
        .input("signal", &[3, 400])
        .input("line", &[2, 60, 3, 1])
        .input("whole", &[1, 12, 2])
        .constant("step", &Tensor::scalar(10i64))
        .constant("length", &Tensor::scalar(32i64))
        .constant("axis", &Tensor::scalar(1i64))
        .constant("long", &Tensor::scalar(77i64))
        .floats("window", &[32], &numbers(32))
        .node("STFT", &["signal", "step", "window"], "frames", vec![])
        .node("STFT", &["signal", "step", "", "length"], "plain", vec![int("onesided", 0)])
        .node("DFT", &["line", "", "axis"], "dft", vec![int("onesided", 1)])
        .node("DFT", &["line", "long", "axis"], "longer", vec![])
        .node("DFT", &["whole", "", "axis"], "back", vec![int("inverse", 1)])
        .output("frames")
        .output("plain")
        .output("dft")
        .output("longer")
        .output("back");
    let kinds = assert_kernels("fourier", &model);
    assert_eq!(kinds.iter().filter(|kind| **kind == "fourier").count(), 5, "{kinds:?}");
}

#[test]
fn einsum_is_products() {
    let model = TestModel::new(18)
        .input("x", &[2, 5, 6])
        .input("y", &[2, 4, 6])
        .floats("w", &[6, 3, 4], &numbers(72))
        .floats("v", &[5], &numbers(5))
        .node("Einsum", &["x", "w"], "heads", vec![text("equation", "bsd,dhe->bhse")])
        .node("Einsum", &["x", "y"], "scores", vec![text("equation", "bqd,bkd->bqk")])
        .node("Einsum", &["x", "y", "v"], "three", vec![text("equation", "bqd,bkd,q->kq")])
        .node("Einsum", &["x"], "sum", vec![text("equation", "bsd->db")])
        .node("Einsum", &["v", "x"], "outer", vec![text("equation", "s,bsd->bsd")])
        .output("heads")
        .output("scores")
        .output("three")
        .output("sum")
        .output("outer");
    assert_kernels("einsum", &model);
}

#[test]
fn products_of_integers_are_kernels() {
    let bytes = |shape: &[usize], element: ElementType| {
        let count: usize = shape.iter().product();
        Tensor::new(element, shape.to_vec(), (0..count).map(|at| (at * 37 % 256) as u8).collect::<Vec<u8>>().into())
            .unwrap()
    };
    let model = TestModel::new(18)
        .input("x", &[3, 700])
        .input("image", &[1, 4, 6, 5])
        .constant("w", &bytes(&[700, 5], ElementType::I8))
        .constant("f", &bytes(&[6, 4, 3, 3], ElementType::I8))
        .constant("w_zero", &Tensor::new(ElementType::I8, vec![], vec![0u8].into()).unwrap())
        .floats("scale", &[], &[0.01])
        .node_of("DynamicQuantizeLinear", &["x"], &["q", "q_scale", "q_zero"], vec![])
        .node("MatMulInteger", &["q", "w", "q_zero", "w_zero"], "sums", vec![])
        .node("Cast", &["sums"], "y", to(DataType::Float))
        .node_of("DynamicQuantizeLinear", &["image"], &["p", "p_scale", "p_zero"], vec![])
        .node("ConvInteger", &["p", "f", "p_zero"], "c", vec![])
        .node("Cast", &["c"], "conv", to(DataType::Float))
        .node("QLinearConv", &["p", "p_scale", "p_zero", "f", "scale", "w_zero", "scale", "p_zero"], "r", vec![])
        .node("Cast", &["r"], "z", to(DataType::Float))
        .output("y")
        .output("conv")
        .output("z");
    let kinds = assert_kernels("integers", &model);
    assert!(kinds.contains(&"integer_gemm") && kinds.contains(&"integer_conv"), "{kinds:?}");
    // Scales that are known late: exact sums of floats.
    assert!(kinds.contains(&"conv"), "{kinds:?}");
}
