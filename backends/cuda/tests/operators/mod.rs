//! Graphs of one operator or a few, with random inputs and what the reference operators make of them.

pub mod loops;

use planforge_cuda::view::Kind;
use planforge_graph::{
    interpreter,
    ir::{
        Activation, ArgReduce, Attention, Binary, Conv, ElementType, Epilogue, Graph, MatMul, Node, Op, Output,
        PadMode, Pool, PoolKind, ReduceKind, Resize, ResizeCoordinates, ResizeMode, ResizeNearest, Tensor, Unary,
        ValueId,
    },
};
use std::collections::BTreeMap;

/// Largest error of a result relative to its root mean square, for storage in 11 and in 8 bits of precision.
pub fn bound(kind: Kind) -> f64 {
    match kind {
        Kind::F16 => 2e-3,
        Kind::Bf16 => 1.6e-2,
        _ => 1e-4,
    }
}

/// Random numbers of one test, the same every time.
pub struct Random(u64);

impl Random {
    pub fn tensor(&mut self, shape: &[usize], scale: f32) -> Tensor {
        let values = (0..shape.iter().product::<usize>()).map(|_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * scale
        });
        Tensor::from_vec(shape.to_vec(), values.collect()).expect("as many values as the shape says")
    }
}

/// A graph of one operator in the making.
pub struct Bench {
    pub graph: Graph,
    pub inputs: BTreeMap<String, Tensor>,
    pub random: Random,
}

impl Bench {
    pub fn new() -> Self {
        Self { graph: Graph::default(), inputs: BTreeMap::new(), random: Random(42) }
    }

    pub fn input(&mut self, name: &str, shape: &[usize]) -> Option<ValueId> {
        let tensor = self.random.tensor(shape, 1.0);
        self.given(name, tensor)
    }

    pub fn given(&mut self, name: &str, tensor: Tensor) -> Option<ValueId> {
        let id = self.graph.add_value(name, tensor.element(), tensor.shape());
        self.graph.inputs.push(id);
        self.inputs.insert(name.into(), tensor);
        Some(id)
    }

    pub fn constant(&mut self, name: &str, shape: &[usize], scale: f32) -> Option<ValueId> {
        let tensor = self.random.tensor(shape, scale);
        Some(self.graph.add_constant(name, tensor))
    }

    pub fn node(&mut self, op: Op, inputs: Vec<Option<ValueId>>, shape: &[usize]) -> ValueId {
        let out = self.graph.add_value(format!("value{}", self.graph.values.len()), ElementType::F32, shape);
        let origins = vec![format!("node{}", self.graph.nodes.len())];
        self.graph.nodes.push(Node { op, inputs, outputs: vec![out], origins });
        out
    }

    /// The graph whose result is `out`.
    pub fn finish(mut self, out: ValueId) -> Case {
        self.graph.outputs.push(Output { name: "out".into(), value: out });
        self.graph.check().expect("the test's graph is one");
        let expected =
            interpreter::execute(&self.graph, &self.inputs).expect("the reference computes it").remove("out");
        let expected = expected.expect("the graph has this output").to_f64s();
        Case { graph: self.graph, inputs: self.inputs, expected }
    }
}

/// A graph, its inputs, and its one result.
pub struct Case {
    pub graph: Graph,
    pub inputs: BTreeMap<String, Tensor>,
    pub expected: Vec<f64>,
}

impl Case {
    /// Root mean square of the difference to what is expected, relative to that; `bytes` are of f32.
    pub fn error(&self, bytes: &[u8]) -> f64 {
        let got = bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        let squares: f64 = self.expected.iter().map(|x| x * x).sum();
        let differences: f64 = got.zip(&self.expected).map(|(a, b)| (a - b) * (a - b)).sum();
        (differences / squares.max(1e-30)).sqrt()
    }
}

/// One convolution; sizes are height, then width.
#[derive(Clone)]
pub struct Conv2d {
    pub x: [usize; 4],
    pub out: usize,
    pub taps: [usize; 2],
    pub strides: [usize; 2],
    pub pads: [usize; 4],
    pub dilation: usize,
    pub groups: usize,
    pub activation: Option<Activation>,
    pub residual: bool,
}

impl Default for Conv2d {
    fn default() -> Self {
        Self {
            x: [2, 64, 17, 19],
            out: 72,
            taps: [3, 3],
            strides: [1, 1],
            pads: [1; 4],
            dilation: 1,
            groups: 1,
            activation: Some(Activation::Relu),
            residual: false,
        }
    }
}

impl Conv2d {
    pub fn stem(x: [usize; 4], out: usize, taps: usize, pad: usize) -> Self {
        let activation = Some(Activation::Silu);
        Self { x, out, taps: [taps; 2], strides: [2, 2], pads: [pad; 4], activation, ..Self::default() }
    }

    pub fn patches(x: [usize; 4], out: usize, size: usize) -> Self {
        Self { x, out, taps: [size; 2], strides: [size; 2], pads: [0; 4], activation: None, ..Self::default() }
    }

    pub fn depthwise(x: [usize; 4], taps: usize, stride: usize) -> Self {
        Self {
            x,
            out: x[1],
            taps: [taps; 2],
            strides: [stride; 2],
            pads: [taps / 2; 4],
            groups: x[1],
            activation: Some(Activation::HardSwish),
            ..Self::default()
        }
    }

    fn op(&self) -> Op {
        Op::Conv(Conv {
            strides: self.strides.to_vec(),
            pads: self.pads.to_vec(),
            dilations: vec![self.dilation; 2],
            groups: self.groups,
            epilogue: Epilogue { activation: self.activation },
        })
    }

    pub fn case(&self) -> Case {
        let mut bench = Bench::new();
        let Self { x: [n, c, h, w], out, taps, strides, pads, dilation, groups, .. } = *self;
        let size = |axis: usize, size: usize| {
            (size + pads[axis] + pads[axis + 2] - dilation * (taps[axis] - 1) - 1) / strides[axis] + 1
        };
        let shape = [n, out, size(0, h), size(1, w)];
        let x = bench.input("x", &self.x);
        let fan = c / groups * taps[0] * taps[1];
        let weights = bench.constant("w", &[out, c / groups, taps[0], taps[1]], (3.0 / fan as f32).sqrt());
        let bias = bench.constant("b", &[out], 0.5);
        let mut inputs = vec![x, weights, bias];
        if self.residual {
            inputs.push(bench.input("z", &shape));
        }
        let y = bench.node(self.op(), inputs, &shape);
        bench.finish(y)
    }
}

/// A convolution of single pixels.
fn pointwise(activation: Option<Activation>) -> Op {
    Conv2d { taps: [1, 1], pads: [0; 4], activation, ..Conv2d::default() }.op()
}

pub fn product([m, n, k]: [usize; 3], activation: Option<Activation>, residual: bool) -> Case {
    let mut bench = Bench::new();
    let a = bench.input("a", &[m, k]);
    let b = bench.constant("b", &[k, n], (3.0 / k as f32).sqrt());
    let bias = bench.constant("bias", &[n], 0.5);
    let mut inputs = vec![a, b, bias];
    if residual {
        inputs.push(bench.input("z", &[m, n]));
    }
    let op = Op::MatMul(MatMul { epilogue: Epilogue { activation }, ..MatMul::default() });
    let y = bench.node(op, inputs, &[m, n]);
    bench.finish(y)
}

/// What a product with the identity, or a convolution by it, and then an activation make of `values`, 64 a row.
pub fn of_identity(activation: Activation, values: &[f64], by_convolution: bool) -> Case {
    const WIDTH: usize = 64;
    let mut bench = Bench::new();
    let rows = values.len() / WIDTH;
    // Channels of an image lie behind each other; which number is whose does not matter.
    let shape = if by_convolution { vec![1, WIDTH, rows / WIDTH, WIDTH] } else { vec![rows, WIDTH] };
    let numbers = values.iter().map(|&value| value as f32).collect();
    let x = bench.given("x", Tensor::from_vec(shape.clone(), numbers).expect("as many values as the shape says"));
    let mut identity = vec![0f32; WIDTH * WIDTH];
    (0..WIDTH).for_each(|at| identity[at * (WIDTH + 1)] = 1.0);
    let weights = if by_convolution { vec![WIDTH, WIDTH, 1, 1] } else { vec![WIDTH; 2] };
    let weights = Tensor::from_vec(weights, identity).expect("as many values as the shape says");
    let weights = Some(bench.graph.add_constant("w", weights));
    let bias = Tensor::from_vec(vec![WIDTH], vec![0f32; WIDTH]).expect("as many values as the shape says");
    let bias = Some(bench.graph.add_constant("bias", bias));
    let op = match by_convolution {
        true => pointwise(Some(activation)),
        false => Op::MatMul(MatMul { epilogue: Epilogue { activation: Some(activation) }, ..MatMul::default() }),
    };
    let y = bench.node(op, vec![x, weights, bias], &shape);
    bench.finish(y)
}

/// A batch of products; where one factor has a single batch, all share it.
pub fn repeated(a: [usize; 3], b: [usize; 3]) -> Case {
    let mut bench = Bench::new();
    let inputs = vec![bench.input("a", &a), bench.input("b", &b)];
    let y = bench.node(Op::MatMul(MatMul::default()), inputs, &[a[0].max(b[0]), a[1], b[2]]);
    bench.finish(y)
}

/// Of a mask a third of the keys is hidden, the last ones of all among them.
pub fn attention(
    batch: usize,
    heads: usize,
    [queries, keys]: [usize; 2],
    size: usize,
    mask: Option<Vec<usize>>,
) -> Case {
    let mut bench = Bench::new();
    let width = heads * size;
    let mut inputs = vec![
        bench.input("q", &[batch, queries, width]),
        bench.input("k", &[batch, keys, width]),
        bench.input("v", &[batch, keys, width]),
    ];
    if let Some(shape) = &mask {
        let mut values = bench.random.tensor(shape, 1.0).to_f64s();
        let count = values.len();
        for (index, value) in values.iter_mut().enumerate() {
            let hidden = *value > 0.4 || (index % keys + 3 > keys && index + 1 < count);
            *value = if hidden { f64::from(f32::NEG_INFINITY) } else { *value };
        }
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        let tensor = Tensor::from_vec(shape.clone(), values).expect("as many values as the shape says");
        inputs.push(bench.given("mask", tensor));
    }
    let op = Op::Attention(Attention { heads, scale: 1.0 / (size as f32).sqrt(), guarded: false });
    let y = bench.node(op, inputs, &[batch, queries, width]);
    bench.finish(y)
}

fn window(kind: PoolKind) -> Op {
    Op::Pool(Pool { kind, kernel: vec![3, 3], strides: vec![1, 1], pads: vec![1; 4], dilations: vec![1, 1] })
}

/// The mean of what a pool made, so that it is an image with its channels last.
pub fn mean(shape: [usize; 4]) -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", &shape);
    let pooled = bench.node(window(PoolKind::Max), vec![x], &shape);
    let op = Op::Reduce { kind: ReduceKind::Mean, axes: vec![2, 3], keep: true };
    let y = bench.node(op, vec![Some(pooled)], &[shape[0], shape[1], 1, 1]);
    bench.finish(y)
}

/// Layer normalisation, then softmax.
pub fn rows(length: usize) -> Case {
    let mut bench = Bench::new();
    let shape = [3, 4, length];
    let x = bench.input("x", &shape);
    let (scale, bias) = (bench.constant("s", &[length], 1.0), bench.constant("b", &[length], 0.5));
    let normal = bench.node(Op::LayerNorm { axis: 2, epsilon: 1e-5 }, vec![x, scale, bias], &shape);
    let y = bench.node(Op::Softmax { axis: 2, log: false }, vec![Some(normal)], &shape);
    bench.finish(y)
}

pub fn enlarged_and_joined() -> Case {
    let mut bench = Bench::new();
    let (a, b) = (bench.input("a", &[2, 16, 5, 6]), bench.input("b", &[2, 24, 10, 12]));
    let average = || window(PoolKind::Average { count_pad: false });
    let a = bench.node(average(), vec![a], &[2, 16, 5, 6]);
    let b = bench.node(average(), vec![b], &[2, 24, 10, 12]);
    let resize = Resize {
        mode: ResizeMode::Nearest(ResizeNearest::Floor),
        coordinates: ResizeCoordinates::Asymmetric,
        scales: vec![1.0, 1.0, 2.0, 2.0],
    };
    let large = bench.node(Op::Resize(resize), vec![Some(a)], &[2, 16, 10, 12]);
    let joined = bench.node(Op::Concat { axis: 1 }, vec![Some(large), Some(b)], &[2, 40, 10, 12]);
    let y = bench.node(Op::Activation(Activation::Sigmoid), vec![Some(joined)], &[2, 40, 10, 12]);
    bench.finish(y)
}

/// A detector's head: three anchors of 85 values at each of `h` by `w` places, to rows.
pub fn anchors(h: usize, w: usize) -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", &[3, 16, h, w]);
    let weights = bench.constant("w", &[255, 16, 1, 1], 0.5);
    let head = bench.node(pointwise(None), vec![x, weights], &[3, 255, h, w]);
    let split = bench.node(Op::Reshape, vec![Some(head)], &[3, 3, 85, h, w]);
    let turned = bench.node(Op::Transpose { perm: vec![0, 1, 3, 4, 2] }, vec![Some(split)], &[3, 3, h, w, 85]);
    let sigmoid = bench.node(Op::Activation(Activation::Sigmoid), vec![Some(turned)], &[3, 3, h, w, 85]);
    let y = bench.node(Op::Reshape, vec![Some(sigmoid)], &[3, 3 * h * w, 85]);
    bench.finish(y)
}

/// Few channels between many.
pub fn squeezed() -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", &[2, 96, 1, 1]);
    let (w, b) = (bench.constant("w", &[10, 96, 1, 1], 0.2), bench.constant("b", &[10], 0.5));
    let few = bench.node(pointwise(Some(Activation::Sigmoid)), vec![x, w, b], &[2, 10, 1, 1]);
    let (w, b) = (bench.constant("v", &[96, 10, 1, 1], 0.5), bench.constant("c", &[96], 0.5));
    let y = bench.node(pointwise(Some(Activation::Silu)), vec![Some(few), w, b], &[2, 96, 1, 1]);
    bench.finish(y)
}

/// A depthwise convolution of the first channels of a wider image, to which channels from `from` on of it are added.
pub fn sliced(from: usize, channels: usize) -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", &[2, 24, 14, 15]);
    let w = bench.constant("w", &[40, 24, 1, 1], 0.3);
    let wide = bench.node(pointwise(None), vec![x, w], &[2, 40, 14, 15]);
    let depthwise = Conv2d::depthwise([2, channels, 14, 15], 3, 1);
    let part = |from: usize| Op::Slice { starts: vec![0, from, 0, 0], steps: vec![1; 4] };
    let first = bench.node(part(0), vec![Some(wide)], &depthwise.x);
    let second = bench.node(part(from), vec![Some(wide)], &depthwise.x);
    let (w, b) = (bench.constant("v", &[channels, 1, 3, 3], 0.5), bench.constant("b", &[channels], 0.5));
    let y = bench.node(depthwise.op(), vec![Some(first), w, b, Some(second)], &depthwise.x);
    bench.finish(y)
}

/// Two by four rows along `axis`, some more than once, of columns from `from` on of a wider table.
pub fn gathered(axis: usize, from: usize) -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", &[6, 9, 40]);
    let taken = [6, 9, 24];
    let op = Op::Slice { starts: vec![0, 0, from], steps: vec![1; 3] };
    let slice = bench.node(op, vec![x], &taken);
    let last = taken[axis] as i64 - 1;
    let rows = Tensor::from_vec(vec![2, 4], vec![last, 0, 3, 1, 1, last, 2, 5]).expect("eight of them");
    let rows = Some(bench.graph.add_constant("rows", rows));
    let mut shape = taken.to_vec();
    shape.splice(axis..=axis, [2, 4]);
    let y = bench.node(Op::Gather { axis }, vec![Some(slice), rows], &shape);
    bench.finish(y)
}

/// One reduction of a value whose last two dimensions are swapped where it is read.
fn reduced(kind: ReduceKind, shape: &[usize], axes: &[usize], keep: bool) -> Case {
    let mut bench = Bench::new();
    let (last, rank) = (shape.len() - 1, shape.len());
    let mut stored = shape.to_vec();
    let mut perm: Vec<usize> = (0..rank).collect();
    stored.swap(last, last - 1);
    perm.swap(last, last - 1);
    let x = bench.input("x", &stored);
    let turned = bench.node(Op::Transpose { perm }, vec![x], shape);
    // Positive, so that logarithms exist.
    let positive = bench.node(Op::Activation(Activation::Sigmoid), vec![Some(turned)], shape);
    let op = Op::Reduce { kind, axes: axes.to_vec(), keep };
    let size = |(axis, size): (usize, &usize)| match (axes.contains(&axis), keep) {
        (true, true) => Some(1),
        (true, false) => None,
        _ => Some(*size),
    };
    let out: Vec<usize> = shape.iter().enumerate().filter_map(size).collect();
    let y = bench.node(op, vec![Some(positive)], &out);
    bench.finish(y)
}

/// The place of an extreme, told as a number, of values of which some are equal.
fn place_of(largest: bool, last: bool, shape: &[usize], axis: usize) -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", shape);
    let scale = bench.graph.add_constant("scale", Tensor::scalar(4.0f32));
    let large = bench.node(Op::Binary(Binary::Mul), vec![x, Some(scale)], shape);
    let round = bench.node(Op::Unary(Unary::Round), vec![Some(large)], shape);
    let mut out = shape.to_vec();
    out[axis] = 1;
    let op = Op::ArgReduce(ArgReduce { largest, axis, keep: true, last });
    let place = bench.graph.add_value("place", ElementType::I64, &out);
    let origins = vec!["place".into()];
    bench.graph.nodes.push(Node { op, inputs: vec![Some(round)], outputs: vec![place], origins });
    let y = bench.node(Op::Cast { to: ElementType::F32 }, vec![Some(place)], &out);
    bench.finish(y)
}

/// Softmax along a dimension that is not the last, then normalisation of several dimensions at once.
fn normalised_along(shape: &[usize], axis: usize, log: bool) -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", shape);
    let soft = bench.node(Op::Softmax { axis, log }, vec![x], shape);
    let (scale, bias) = (bench.constant("s", &shape[axis..], 1.0), bench.constant("b", &shape[axis..], 0.5));
    let y = bench.node(Op::LayerNorm { axis, epsilon: 1e-5 }, vec![Some(soft), scale, bias], shape);
    bench.finish(y)
}

/// Operators that move elements or mix two of them, of one image, each with its name.
pub fn moves() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    let mut case = |what: String, op: Op, shape: &[usize]| {
        let mut bench = Bench::new();
        let x = bench.input("x", &[2, 8, 5, 6]);
        let pooled = bench.node(window(PoolKind::Max), vec![x], &[2, 8, 5, 6]);
        let y = bench.node(op, vec![Some(pooled)], shape);
        cases.push((what, bench.finish(y)));
    };
    for mode in [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
        case(format!("{mode:?} padding"), Op::Pad { mode, begins: vec![0, 1, 2, 3] }, &[2, 11, 8, 10]);
        // Elements are cut off in front, and added behind.
        case(format!("{mode:?} padding by less"), Op::Pad { mode, begins: vec![0, 0, -2, 0] }, &[2, 8, 4, 7]);
    }
    for coordinates in [ResizeCoordinates::HalfPixel, ResizeCoordinates::AlignCorners, ResizeCoordinates::Asymmetric] {
        for mode in [ResizeMode::Linear, ResizeMode::Nearest(ResizeNearest::Ceil)] {
            let resize = Resize { mode, coordinates, scales: vec![1.0, 1.0, 2.0, 1.5] };
            case(format!("{mode:?} resize by {coordinates:?}"), Op::Resize(resize), &[2, 8, 10, 9]);
        }
    }
    for (upper, k) in [(true, 1), (false, -1)] {
        case(format!("a triangle from diagonal {k}"), Op::Trilu { upper, k }, &[2, 8, 5, 6]);
    }
    for (axis, exclusive, reverse) in [(3, false, false), (1, true, false), (2, false, true), (0, true, true)] {
        let what = format!("running sums along {axis}, exclusive {exclusive}, reverse {reverse}");
        case(what, Op::CumSum { axis, exclusive, reverse }, &[2, 8, 5, 6]);
    }
    case("tiles".into(), Op::Tile, &[4, 8, 15, 6]);
    for column_row in [false, true] {
        case("depth to space".into(), Op::DepthToSpace { block: 2, column_row }, &[2, 2, 10, 12]);
    }
    cases
}

/// Every element of the result has an index of its own along the last dimension.
pub fn gathered_elements() -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", &[3, 4, 7]);
    let places = (0..3 * 4 * 5).map(|at| at * 3 % 7 - if at % 4 == 0 { 7 } else { 0 }).collect::<Vec<i64>>();
    let places = Tensor::from_vec(vec![3, 4, 5], places).expect("sixty of them");
    let places = Some(bench.graph.add_constant("places", places));
    let y = bench.node(Op::GatherElements { axis: 2 }, vec![x, places], &[3, 4, 5]);
    bench.finish(y)
}

pub fn group_norm(groups: Option<usize>, shape: [usize; 4]) -> Case {
    let mut bench = Bench::new();
    let x = bench.input("x", &shape);
    let (scale, bias) = (bench.constant("s", &[shape[1]], 1.0), bench.constant("b", &[shape[1]], 0.5));
    let epsilon = 1e-5;
    let op = groups.map_or(Op::InstanceNorm { epsilon }, |groups| Op::GroupNorm { groups, epsilon });
    let y = bench.node(op, vec![x, scale, bias], &shape);
    bench.finish(y)
}

/// Every way to reduce these shapes over these axes, places of extremes, softmax and normalisation along any dimension,
/// each with its name and the types that it is tried in.
pub fn reductions(shapes: &[(&[usize], &[usize])]) -> Vec<(String, Case, &'static [Kind])> {
    const TWO: &[Kind] = &[Kind::F16, Kind::F32];
    const ALL: &[Kind] = &[Kind::F16, Kind::Bf16, Kind::F32];
    use ReduceKind::{L1, L2, LogSum, LogSumExp, Max, Mean, Min, Prod, Sum, SumSquare};
    let mut cases = Vec::new();
    for (number, kind) in [Sum, Mean, Max, Min, L1, L2, SumSquare, LogSum, LogSumExp].into_iter().enumerate() {
        for (shape, axes) in shapes {
            let what = format!("{kind:?} over {axes:?} of {shape:?}");
            cases.push((what, reduced(kind, shape, axes, number % 2 == 0), TWO));
        }
    }
    cases.push(("products of 9".into(), reduced(Prod, &[9, 4, 5], &[0], false), ALL));
    for (largest, last) in [(true, false), (true, true), (false, false), (false, true)] {
        for (shape, axis) in [(&[4, 50, 6][..], 1), (&[3, 90], 1), (&[2, 3000], 1)] {
            let what = format!("the place of an extreme along {axis} of {shape:?}");
            cases.push((what, place_of(largest, last, shape, axis), &[Kind::F32]));
        }
    }
    cases.push(("softmax along 1 of 3".into(), normalised_along(&[3, 5, 8], 1, false), ALL));
    cases.push(("log of softmax along 0 of 3".into(), normalised_along(&[6, 3, 5], 0, true), ALL));
    cases
}
