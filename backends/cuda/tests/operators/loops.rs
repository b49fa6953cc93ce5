//! Operators that are computed by plain loops, or as others: one of each kind and form.

use super::{Bench, Case, Conv2d};
use planforge_graph::ir::{
    Activation, Binary, Conv, ConvTranspose, ElementType, Epilogue, MatMul, NamedOp, Node, Op, Pool, PoolKind,
    Quantization, ReduceKind, Tensor, Unary, ValueId,
};

type Cases = Vec<(String, Case)>;

fn conv_of(sizes: [usize; 4], groups: usize, activation: Option<Activation>, rank: usize) -> Op {
    let [stride, before, after, dilation] = sizes;
    let pads = [vec![before; rank], vec![after; rank]].concat();
    Op::Conv(Conv {
        strides: vec![stride; rank],
        pads,
        dilations: vec![dilation; rank],
        groups,
        epilogue: Epilogue { activation },
    })
}

/// Values of another type than f32, made of what the input gives and given back as f32.
fn through(element: ElementType, shape: &[usize], op: Op, out: &[usize], out_element: ElementType) -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", shape);
    let scale = bench.graph.add_constant("scale", Tensor::scalar(9.0f32));
    let large = bench.node(Op::Binary(Binary::Mul), vec![x, Some(scale)], shape);
    let positive = bench.node(Op::Unary(Unary::Abs), vec![Some(large)], shape);
    let cast = typed(&mut bench, Op::Cast { to: element }, vec![Some(positive)], element, shape);
    let mut inputs = vec![Some(cast)];
    if matches!(op, Op::Binary(_) | Op::MatMul(_)) {
        inputs.push(Some(cast));
    }
    let y = typed(&mut bench, op, inputs, out_element, out);
    let y = bench.node(Op::Cast { to: ElementType::F32 }, vec![Some(y)], out);
    bench.finish(y)
}

fn typed(bench: &mut Bench, op: Op, inputs: Vec<Option<ValueId>>, element: ElementType, shape: &[usize]) -> ValueId {
    let out = bench.graph.add_value(format!("value{}", bench.graph.values.len()), element, shape);
    let origins = vec![format!("node{}", bench.graph.nodes.len())];
    bench.graph.nodes.push(Node { op, inputs, outputs: vec![out], origins });
    out
}

/// Convolutions with few channels added to others, over one and three dimensions, and transposed.
pub fn convolutions() -> Cases {
    let mut cases = Vec::new();
    for channels in [18, 21, 36] {
        let conv = Conv2d { x: [1, 24, 5, 6], out: channels, residual: true, ..Conv2d::default() };
        cases.push((format!("a residual of {channels} channels"), conv.case()));
        // Where what is added was itself made in more channels than it has.
        let mut bench = Bench::new();
        let x = bench.input("x", &[1, 24, 5, 6]);
        let (w, v) =
            (bench.constant("w", &[channels, 24, 3, 3], 0.2), bench.constant("v", &[channels, channels, 3, 3], 0.2));
        let op = || conv_of([1, 1, 1, 1], 1, Some(Activation::Relu), 2);
        let shape = [1, channels, 5, 6];
        let first = bench.node(op(), vec![x, w], &shape);
        let second = bench.node(op(), vec![Some(first), v, None, Some(first)], &shape);
        let y = bench.node(op(), vec![Some(second), v, None, Some(first)], &shape);
        cases.push((format!("two blocks of {channels} channels"), bench.finish(y)));
    }
    for (shape, out, taps, sizes, groups) in [
        (&[2, 24, 19][..], 16, 5, [2, 2, 1, 1], 1),
        (&[1, 12, 30], 12, 3, [1, 2, 0, 2], 3),
        (&[2, 4, 5, 6, 7], 6, 3, [1, 1, 1, 1], 2),
        (&[1, 3, 8, 6, 5], 5, 2, [2, 0, 1, 1], 1),
    ] {
        let rank = shape.len() - 2;
        let [stride, before, after, dilation] = sizes;
        let size = |size: &usize| (size + before + after - dilation * (taps - 1) - 1) / stride + 1;
        let out_shape: Vec<usize> = [shape[0], out].into_iter().chain(shape[2..].iter().map(size)).collect();
        let mut bench = Bench::new();
        let x = bench.input("x", shape);
        let weights = [vec![out, shape[1] / groups], vec![taps; rank]].concat();
        let (w, b) = (bench.constant("w", &weights, 0.4), bench.constant("b", &[out], 0.5));
        let z = bench.input("z", &out_shape);
        let y = bench.node(conv_of(sizes, groups, Some(Activation::Silu), rank), vec![x, w, b, z], &out_shape);
        cases.push((format!("convolution over {rank} dimensions, {groups} groups"), bench.finish(y)));
    }
    for (shape, out, taps, stride, pad, groups) in [
        (&[2, 8, 5, 6][..], 12, 2, 2, 0, 1),
        (&[1, 6, 5, 4], 8, 4, 2, 1, 1),
        (&[1, 6, 5, 4], 8, 3, 1, 1, 1),
        (&[1, 6, 5, 4], 4, 3, 2, 1, 2),
        (&[2, 5, 9], 3, 4, 3, 1, 1),
        (&[1, 2, 3, 4, 3], 3, 3, 2, 0, 1),
    ] {
        let rank = shape.len() - 2;
        let size = |size: &usize| (size - 1) * stride + taps - 2 * pad;
        let out_shape: Vec<usize> = [shape[0], out].into_iter().chain(shape[2..].iter().map(size)).collect();
        let mut bench = Bench::new();
        let x = bench.input("x", shape);
        let weights = [vec![shape[1], out / groups], vec![taps; rank]].concat();
        let (w, b) = (bench.constant("w", &weights, 0.4), bench.constant("b", &[out], 0.5));
        let op = Op::ConvTranspose(ConvTranspose {
            strides: vec![stride; rank],
            pads: vec![pad; rank],
            dilations: vec![1; rank],
            groups,
        });
        let y = bench.node(op, vec![x, w, b], &out_shape);
        cases.push((format!("transposed convolution over {rank} dimensions by {taps}"), bench.finish(y)));
    }
    cases
}

/// Windows, and what slides otherwise.
pub fn windows() -> Cases {
    let mut cases = Vec::new();
    for kind in [PoolKind::Max, PoolKind::Average { count_pad: false }, PoolKind::Average { count_pad: true }] {
        for (shape, out) in [(&[2, 3, 11][..], &[2, 3, 6][..]), (&[1, 2, 5, 6, 7], &[1, 2, 3, 3, 4])] {
            let rank = shape.len() - 2;
            let mut bench = Bench::new();
            let x = bench.input("x", shape);
            let op = Op::Pool(Pool {
                kind,
                kernel: vec![3; rank],
                strides: vec![2; rank],
                pads: vec![1; 2 * rank],
                dilations: vec![1; rank],
            });
            let y = bench.node(op, vec![x], out);
            cases.push((format!("{kind:?} over {rank} dimensions"), bench.finish(y)));
        }
    }
    let window = |name: &str| {
        NamedOp::new(name)
            .with_sizes("kernel", &[3, 2])
            .with_sizes("strides", &[2, 1])
            .with_sizes("pads", &[1, 0, 1, 1])
            .with_sizes("dilations", &[1, 1])
    };
    let mut case = |what: &str, op: Op, shape: &[usize], out: &[usize]| {
        let mut bench = Bench::new();
        let x = bench.input("x", shape);
        let y = bench.node(op, vec![x], out);
        cases.push((what.to_owned(), bench.finish(y)));
    };
    let lp = window("lp_pool").with_int("p", 3);
    case("a pool of third powers", Op::Named(lp.into()), &[2, 3, 7, 6], &[2, 3, 4, 6]);
    case("columns to an image", Op::Named(window("col2im").into()), &[2, 18, 24], &[2, 3, 7, 6]);
    case("local normalisation", Op::Lrn { alpha: 0.3, beta: 0.75, bias: 1.5, size: 5 }, &[2, 7, 3, 4], &[2, 7, 3, 4]);
    cases
}

/// Elements by what other elements say.
pub fn indexed() -> Cases {
    let mut cases = Vec::new();
    let longs = |shape: &[usize], values: &[i64]| {
        Tensor::from_vec(shape.to_vec(), values.to_vec()).expect("as many values as the shape says")
    };
    let mut bench = Bench::new();
    let x = bench.input("x", &[2, 4, 5, 3]);
    let index = Some(bench.graph.add_constant("index", longs(&[2, 3, 2], &[0, 1, -1, 4, 2, -5, 3, 3, 1, 0, -4, 2])));
    let y = bench.node(Op::GatherNd { batch_dims: 1 }, vec![x, index], &[2, 3, 3]);
    cases.push(("gathered by pairs".to_owned(), bench.finish(y)));

    for reduction in ["none", "add", "mul", "max", "min"] {
        let mut bench = Bench::new();
        let (x, updates) = (bench.input("x", &[4, 5, 3]), bench.input("u", &[3, 4, 2]));
        let places: Vec<i64> = (0..24).map(|at| at * 7 % 5 - if at % 3 == 0 { 5 } else { 0 }).collect();
        let index = Some(bench.graph.add_constant("index", longs(&[3, 4, 2], &places)));
        let op = NamedOp::new("scatter_elements").with_int("axis", 1).with_text("reduction", reduction);
        let y = bench.node(Op::Named(op.into()), vec![x, index, updates], &[4, 5, 3]);
        cases.push((format!("elements put by {reduction}"), bench.finish(y)));

        let mut bench = Bench::new();
        let (x, updates) = (bench.input("x", &[4, 5, 3]), bench.input("u", &[2, 3, 3]));
        let index = Some(bench.graph.add_constant("index", longs(&[2, 3, 2], &[0, 1, -1, 4, 0, 1, 3, 3, 0, -4, 2, 2])));
        let op = NamedOp::new("scatter_nd").with_text("reduction", reduction);
        let y = bench.node(Op::Named(op.into()), vec![x, index, updates], &[4, 5, 3]);
        cases.push((format!("rows put by {reduction}"), bench.finish(y)));
    }

    for (largest, axis) in [(true, 1), (false, 2)] {
        for place in [0, 1] {
            let mut bench = Bench::new();
            let x = bench.input("x", &[3, 7, 6]);
            let mut shape = [3, 7, 6];
            shape[axis] = 4;
            let values = bench.graph.add_value("values", ElementType::F32, &shape);
            let places = bench.graph.add_value("places", ElementType::I64, &shape);
            let (op, origins) = (Op::TopK { axis, largest }, vec!["top".to_owned()]);
            bench.graph.nodes.push(Node { op, inputs: vec![x], outputs: vec![values, places], origins });
            let op = Op::Cast { to: ElementType::F32 };
            let y = bench.node(op, vec![Some([values, places][place])], &shape);
            cases.push((format!("the first four along {axis}, result {place}"), bench.finish(y)));
        }
    }

    let mut bench = Bench::new();
    let x = bench.input("x", &[5, 3, 4]);
    let op = NamedOp::new("reverse_sequence").with_int("time", 0).with_int("batch", 1);
    let lengths = Some(bench.graph.add_constant("lengths", longs(&[3], &[5, 1, 3])));
    let turned = bench.node(Op::Named(op.into()), vec![x, lengths], &[5, 3, 4]);
    let op = Op::Slice { starts: vec![4, 0, 3], steps: vec![-2, 1, -1] };
    let y = bench.node(op, vec![Some(turned)], &[3, 3, 4]);
    cases.push(("turned around".to_owned(), bench.finish(y)));

    let mut bench = Bench::new();
    let index = bench.given("index", longs(&[2, 3], &[0, 3, -1, 7, 2, -4]));
    let values = bench.constant("values", &[2], 1.0);
    let y = bench.node(Op::OneHot { axis: 1 }, vec![index, values], &[2, 4, 3]);
    cases.push(("one of four".to_owned(), bench.finish(y)));
    cases
}

/// Other types, quantization, transforms and sums over named axes.
pub fn numbers() -> Cases {
    use ElementType::{F64, I16, I64, U8, U16, U32, U64};
    let mut cases = Vec::new();
    let shape = [3, 4, 4];
    for element in [F64, I16, U16, U32, U64, U8] {
        for op in [Op::Binary(Binary::Add), Op::Binary(Binary::Max), Op::MatMul(MatMul::default())] {
            cases.push((format!("{} of {element}", op.kind()), through(element, &shape, op, &shape, element)));
        }
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Mean] {
            let op = Op::Reduce { kind, axes: vec![1], keep: false };
            cases.push((format!("{kind:?} of {element}"), through(element, &shape, op, &[3, 4], element)));
        }
    }
    for op in [
        Op::Activation(Activation::Gelu(planforge_graph::ir::GeluForm::Erf)),
        Op::Activation(Activation::Mish),
        Op::Unary(Unary::Erf),
        Op::Unary(Unary::Exp),
        Op::Softmax { axis: 1, log: false },
        Op::LayerNorm { axis: 1, epsilon: 1e-5 },
    ] {
        cases.push((format!("{} in f64", op.kind()), through(F64, &shape, op, &shape, F64)));
    }
    // What is added in a narrow type goes around before anything wider sees it.
    let mut bench = Bench::new();
    let x = bench.input("x", &[40]);
    let scale = bench.graph.add_constant("scale", Tensor::scalar(120.0f32));
    let large = bench.node(Op::Binary(Binary::Mul), vec![x, Some(scale)], &[40]);
    let narrow = typed(&mut bench, Op::Cast { to: ElementType::I8 }, vec![Some(large)], ElementType::I8, &[40]);
    let sum = typed(&mut bench, Op::Binary(Binary::Add), vec![Some(narrow); 2], ElementType::I8, &[40]);
    let wide = typed(&mut bench, Op::Cast { to: I64 }, vec![Some(sum)], I64, &[40]);
    let y = bench.node(Op::Cast { to: ElementType::F32 }, vec![Some(wide)], &[40]);
    cases.push(("sums that go around".to_owned(), bench.finish(y)));

    for axis in [None, Some(1)] {
        let mut bench = Bench::new();
        let x = bench.input("x", &shape);
        let count = if axis.is_some() { 4 } else { 1 };
        let scales = (0..count).map(|at| 0.01 + 0.003 * at as f32).collect();
        let scale_shape = if axis.is_some() { vec![count] } else { vec![] };
        let scale = Tensor::from_vec(scale_shape.clone(), scales).expect("as many values as the shape says");
        let zero = Tensor::from_vec(scale_shape, vec![7u8; count]).expect("as many values as the shape says");
        let (scale, zero) = (bench.graph.add_constant("scale", scale), bench.graph.add_constant("zero", zero));
        let how = Quantization { element: U8, axis };
        let inputs = |x| vec![x, Some(scale), Some(zero)];
        let whole = typed(&mut bench, Op::Quantize(how), inputs(x), U8, &shape);
        let back = bench.node(Op::Dequantize(how), inputs(Some(whole)), &shape);
        let fake = bench.node(Op::FakeQuantize(how), inputs(x), &shape);
        let y = bench.node(Op::Binary(Binary::Add), vec![Some(back), Some(fake)], &shape);
        cases.push((format!("quantized along {axis:?}"), bench.finish(y)));
    }

    let mut bench = Bench::new();
    let (a, b) = (bench.input("a", &[2, 3, 5]), bench.input("b", &[5, 4, 2]));
    // bij, jkb -> kb
    let op = NamedOp::new("einsum").with_sizes("labels", &[0, 1, 2, 2, 3, 0, 3, 0]).with_sizes("ranks", &[3, 3, 2]);
    let y = bench.node(Op::Named(op.into()), vec![a, b], &[4, 2]);
    cases.push(("a sum over named axes".to_owned(), bench.finish(y)));

    for (inverse, onesided, parts, from, out) in [
        (0, 1, 1, [2, 12, 3, 1], [2, 7, 3, 2]),
        (1, 1, 2, [2, 7, 3, 2], [2, 12, 3, 1]),
        (0, 0, 2, [2, 9, 3, 2], [2, 12, 3, 2]),
    ] {
        let mut bench = Bench::new();
        let x = bench.input("x", &from);
        let op = NamedOp::new("dft").with_int("axis", 1).with_int("length", 12);
        let op = op.with_int("inverse", inverse).with_int("onesided", onesided);
        let y = bench.node(Op::Named(op.into()), vec![x], &out);
        cases.push((format!("a transform, inverse {inverse}, of {parts} parts"), bench.finish(y)));
    }
    let mut bench = Bench::new();
    let (x, window) = (bench.input("x", &[2, 40]), bench.constant("w", &[16], 1.0));
    let op = NamedOp::new("stft").with_int("step", 8).with_int("length", 16).with_int("onesided", 1);
    let y = bench.node(Op::Named(op.into()), vec![x, window], &[2, 4, 9, 2]);
    cases.push(("transforms of frames".to_owned(), bench.finish(y)));
    cases
}

/// Normalisation and softmax of long rows, and of rows whose parameters repeat.
pub fn long_rows() -> Cases {
    let mut cases = Vec::new();
    let mut bench = Bench::new();
    let x = bench.input("x", &[1, 2, 65_536, 4]);
    let (scale, bias) = (bench.constant("s", &[2], 1.0), bench.constant("b", &[2], 0.5));
    let y = bench.node(Op::InstanceNorm { epsilon: 1e-5 }, vec![x, scale, bias], &[1, 2, 65_536, 4]);
    cases.push(("normalisation of 262,144 elements".to_owned(), bench.finish(y)));
    for kind in [ReduceKind::Mean, ReduceKind::L2, ReduceKind::Max, ReduceKind::LogSumExp, ReduceKind::SumSquare] {
        let mut bench = Bench::new();
        let x = bench.input("x", &[3, 128, 2, 600]);
        let op = Op::Reduce { kind, axes: vec![1, 3], keep: kind == ReduceKind::Max };
        let shape = if kind == ReduceKind::Max { vec![3, 1, 2, 1] } else { vec![3, 2] };
        let y = bench.node(op, vec![x], &shape);
        cases.push((format!("{kind:?} of many elements"), bench.finish(y)));
    }
    let mut bench = Bench::new();
    let x = bench.input("x", &[1, 140_000]);
    let y = bench.node(Op::Softmax { axis: 1, log: true }, vec![x], &[1, 140_000]);
    cases.push(("softmax of 140,000 elements".to_owned(), bench.finish(y)));
    let mut bench = Bench::new();
    let x = bench.input("x", &[3, 4, 6]);
    let scale = bench.constant("s", &[4, 1], 1.0);
    let y = bench.node(Op::LayerNorm { axis: 1, epsilon: 1e-5 }, vec![x, scale], &[3, 4, 6]);
    cases.push(("a scale that repeats".to_owned(), bench.finish(y)));
    cases
}

/// Recurrent cells of both directions, with everything that they may be given.
pub fn cells() -> Cases {
    let mut cases = Vec::new();
    let (steps, batch, inputs, hidden, directions) = (5, 3, 4, 6, 2);
    for (name, gates, functions, flags) in [
        ("rnn", 1, &["Tanh", "Softsign"][..], &[][..]),
        ("gru", 3, &["Sigmoid", "Tanh", "HardSigmoid", "Elu"], &[]),
        ("gru", 3, &["Sigmoid", "Tanh", "Sigmoid", "Tanh"], &["linear_before_reset"]),
        ("lstm", 4, &["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Softplus", "LeakyRelu"], &[]),
        ("lstm", 4, &["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh"], &["input_forget"]),
    ] {
        for result in 0..if name == "lstm" { 3 } else { 2 } {
            let mut bench = Bench::new();
            let x = bench.input("x", &[steps, batch, inputs]);
            let w = bench.constant("w", &[directions, gates * hidden, inputs], 0.5);
            let r = bench.constant("r", &[directions, gates * hidden, hidden], 0.5);
            let b = bench.constant("b", &[directions, 2 * gates * hidden], 0.5);
            let lengths = Tensor::from_vec(vec![batch], vec![5i32, 2, 4]).expect("three lengths");
            let lengths = Some(bench.graph.add_constant("lengths", lengths));
            let h = bench.input("h", &[directions, batch, hidden]);
            let mut given = vec![x, w, r, b, lengths, h];
            let states = [directions, batch, hidden];
            let mut shapes = vec![vec![steps, directions, batch, hidden], states.to_vec()];
            if name == "lstm" {
                given.extend([bench.input("c", &states), bench.constant("p", &[directions, 3 * hidden], 0.5)]);
                shapes.push(states.to_vec());
            }
            let mut op = NamedOp::new(name).with_ints("reverse", &[0, 1]).with_texts("activations", functions);
            op = op.with_floats("clip", &[0.8]);
            for flag in flags {
                op = op.with_int(flag, 1);
            }
            let outputs: Vec<ValueId> = shapes
                .iter()
                .enumerate()
                .map(|(at, shape)| bench.graph.add_value(format!("result{at}"), ElementType::F32, shape))
                .collect();
            let origins = vec!["cell".to_owned()];
            bench.graph.nodes.push(Node { op: Op::Named(op.into()), inputs: given, outputs: outputs.clone(), origins });
            let y = bench.node(Op::Unary(Unary::Neg), vec![Some(outputs[result])], &shapes[result]);
            cases.push((format!("{name} {flags:?}, result {result}"), bench.finish(y)));
        }
    }
    cases
}

/// Cells of regions, the mean and the largest of their samples.
pub fn regions() -> Cases {
    let mut cases = Vec::new();
    for (largest, samples, half_pixel) in [(0, 2, 1), (1, 2, 0), (0, 0, 0)] {
        let mut bench = Bench::new();
        let x = bench.input("x", &[2, 3, 8, 9]);
        let corners = vec![0.0f32, 0.0, 6.0, 5.0, 2.5, 1.5, 8.0, 7.25, -1.0, 3.0, 4.0, 12.0];
        let regions = bench.given("regions", Tensor::from_vec(vec![3, 4], corners).expect("three regions"));
        let images = bench.given("images", Tensor::from_vec(vec![3], vec![0i64, 1, 1]).expect("three images"));
        let op = NamedOp::new("roi_align").with_int("height", 3).with_int("width", 4).with_int("samples", samples);
        let op = op.with_floats("scale", &[0.75]).with_int("half_pixel", half_pixel).with_int("largest", largest);
        let y = bench.node(Op::Named(op.into()), vec![x, regions, images], &[3, 3, 3, 4]);
        cases.push((format!("regions, largest {largest}, samples {samples}"), bench.finish(y)));
    }
    cases
}
