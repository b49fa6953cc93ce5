//! Every tactic of every kind of step gives what the reference operators give, on the GPU that is there; where there is
//! none, nothing is tested and that is said. The executable runs by itself, so it can be carried to a GPU host.
#![expect(clippy::print_stderr, reason = "says loudly when there is nothing to test on, and what was tested")]

use planforge_engine_core::{
    ir::{
        Activation, Attention, Conv, ElementType, Epilogue, GeluForm, Graph, MatMul, Node, Op, Output, Pool, PoolKind,
        ReduceKind, Resize, ResizeCoordinates, ResizeMode, ResizeNearest, Tensor, ValueId,
    },
    ops,
};
use planforge_engine_cuda::{
    lower::lower,
    program::Program,
    runtime::{Context, Device, Kernels},
    tune::{Effort, Times, tune},
    view::Kind,
};
use planforge_kernels::cuda::device::Buffer;
use std::{
    collections::BTreeMap,
    ops::Deref,
    rc::Rc,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Largest error of a result relative to its root mean square, for storage in 11 and in 8 bits of precision.
fn bound(kind: Kind) -> f64 {
    match kind {
        Kind::F16 => 2e-3,
        Kind::Bf16 => 1.6e-2,
        _ => 1e-4,
    }
}

/// Random numbers of one test, the same every time.
struct Random(u64);

impl Random {
    fn tensor(&mut self, shape: &[usize], scale: f32) -> Tensor {
        let values = (0..shape.iter().product::<usize>()).map(|_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * scale
        });
        Tensor::from_vec(shape.to_vec(), values.collect()).expect("as many values as the shape says")
    }
}

/// A graph of one operator in the making.
struct Bench {
    graph: Graph,
    inputs: BTreeMap<String, Tensor>,
    random: Random,
}

impl Bench {
    fn new() -> Self {
        Self { graph: Graph::default(), inputs: BTreeMap::new(), random: Random(42) }
    }

    fn input(&mut self, name: &str, shape: &[usize]) -> Option<ValueId> {
        let tensor = self.random.tensor(shape, 1.0);
        self.given(name, tensor)
    }

    fn given(&mut self, name: &str, tensor: Tensor) -> Option<ValueId> {
        let id = self.graph.add_value(name, tensor.element(), tensor.shape());
        self.graph.inputs.push(id);
        self.inputs.insert(name.into(), tensor);
        Some(id)
    }

    fn constant(&mut self, name: &str, shape: &[usize], scale: f32) -> Option<ValueId> {
        let tensor = self.random.tensor(shape, scale);
        Some(self.graph.add_constant(name, tensor))
    }

    fn node(&mut self, op: Op, inputs: Vec<Option<ValueId>>, shape: &[usize]) -> ValueId {
        let out = self.graph.add_value(format!("value{}", self.graph.values.len()), ElementType::F32, shape);
        let origins = vec![format!("node{}", self.graph.nodes.len())];
        self.graph.nodes.push(Node { op, inputs, outputs: vec![out], origins });
        out
    }

    /// Compares every tactic of every step.
    fn finish(mut self, device: &Device, what: &str, out: ValueId, kinds: &[Kind]) {
        self.graph.outputs.push(Output { name: "out".into(), value: out });
        self.graph.check().expect("the test's graph is one");
        let expected = ops::execute(&self.graph, &self.inputs).expect("the reference computes it").remove("out");
        let expected = expected.expect("the graph has this output").to_f64s();
        for &kind in kinds {
            if kind == Kind::Bf16 && device.gpu.properties().arch.capability < 80 {
                continue;
            }
            let lowered = lower(&self.graph, kind).expect("the operator has device code");
            let mut program = lowered.program;
            let weights = Rc::new(device.gpu.upload(&lowered.weights).expect("weights fit"));
            let effort = Effort { compiled: 3, compares: false, ..Effort::of_level(3) };
            let tuned = tune(device, &mut program, &weights, effort, &mut Times::new(), &mut |_, _, _| true);
            let tuned = tuned.unwrap_or_else(|error| panic!("{what} {kind:?}: {error}"));
            let mut judge = Judge { device, weights, inputs: &self.inputs, expected: &expected, what, kind };
            let mut worst = judge.run(&program, "as tuned");
            let mut count = 0;
            for step in 0..program.steps.len() {
                let Some(tried) = tuned.tried.get(&program.steps[step].name) else { continue };
                let chosen = program.steps[step].tactic.clone();
                for timed in tried {
                    program.steps[step].tactic = Some(timed.tactic.clone());
                    worst = worst.max(judge.run(&program, &timed.tactic.name()));
                    count += 1;
                }
                program.steps[step].tactic = chosen;
                let show =
                    |timed: &planforge_engine_cuda::tune::Timed| format!("{:.1} us {}", timed.us, timed.tactic.name());
                let own = tried.iter().find(|timed| timed.source.is_some()).map(show);
                eprintln!("    best {}; own {}", show(&tried[0]), own.unwrap_or_default());
            }
            eprintln!("{what} {kind:?}: {count} tactics, worst relative error {worst:.1e}");
        }
    }
}

struct Judge<'a> {
    device: &'a Device,
    weights: Rc<Buffer>,
    inputs: &'a BTreeMap<String, Tensor>,
    expected: &'a [f64],
    what: &'a str,
    kind: Kind,
}

impl Judge<'_> {
    fn run(&mut self, program: &Program, tactic: &str) -> f64 {
        let Self { device, what, kind, .. } = *self;
        let context = Context::new(device, program, self.weights.clone(), &mut Kernels::new());
        let context = context.unwrap_or_else(|error| panic!("{what} {kind:?} by {tactic}: {error}"));
        for (edge, buffer) in program.inputs.iter().zip(&context.memory.inputs) {
            buffer.write(0, self.inputs[&edge.name].bytes()).expect("an input is written");
        }
        // What is left from before must not pass for a result.
        context.memory.outputs[0].fill(0xff).expect("an output is filled");
        device.gpu.synchronize().expect("the fill is done");
        context.launch().expect("the graph is launched");
        context.stream().synchronize().expect("the graph runs");
        let mut bytes = vec![0; self.expected.len() * 4];
        context.memory.outputs[0].read(0, &mut bytes).expect("an output is read");
        let got = bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        let squares: f64 = self.expected.iter().map(|x| x * x).sum();
        let differences: f64 = got.zip(self.expected).map(|(a, b)| (a - b) * (a - b)).sum();
        let error = (differences / squares.max(1e-30)).sqrt();
        let tactics =
            || -> Vec<_> { program.steps.iter().filter_map(|step| step.tactic.as_ref()).map(|t| t.name()).collect() };
        assert!(error < bound(kind), "{what} {kind:?} by {tactic}: relative error {error:e} ({:?})", tactics());
        error
    }
}

/// The device, for one test at a time: nothing may be waited for while another thread captures.
fn device() -> Option<Turn> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Device::open(None, None) {
        Ok(device) => Some(Turn { device, _turn: turn }),
        Err(error) => {
            assert!(std::env::var_os("PLANFORGE_NEED_GPU").is_none(), "{error}");
            eprintln!("SKIPPED, nothing was tested: {error}");
            None
        }
    }
}

struct Turn {
    device: Device,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Turn {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

const HALVES: [Kind; 2] = [Kind::F16, Kind::Bf16];
const ALL: [Kind; 3] = [Kind::F16, Kind::Bf16, Kind::F32];

/// One convolution of a test; sizes are height, then width.
struct Case {
    x: [usize; 4],
    out: usize,
    taps: [usize; 2],
    strides: [usize; 2],
    pads: [usize; 4],
    dilation: usize,
    groups: usize,
    activation: Option<Activation>,
    residual: bool,
}

const CASE: Case = Case {
    x: [2, 64, 17, 19],
    out: 72,
    taps: [3, 3],
    strides: [1, 1],
    pads: [1, 1, 1, 1],
    dilation: 1,
    groups: 1,
    activation: Some(Activation::Relu),
    residual: false,
};

fn convolution(device: &Device, what: &str, case: Case, kinds: &[Kind]) {
    let mut bench = Bench::new();
    let Case { x: [n, c, h, w], out, taps, strides, pads, dilation, groups, .. } = case;
    let size = |axis: usize, size: usize| {
        (size + pads[axis] + pads[axis + 2] - dilation * (taps[axis] - 1) - 1) / strides[axis] + 1
    };
    let shape = [n, out, size(0, h), size(1, w)];
    let x = bench.input("x", &case.x);
    let fan = c / groups * taps[0] * taps[1];
    let weights = bench.constant("w", &[out, c / groups, taps[0], taps[1]], (3.0 / fan as f32).sqrt());
    let bias = bench.constant("b", &[out], 0.5);
    let mut inputs = vec![x, weights, bias];
    if case.residual {
        inputs.push(bench.input("z", &shape));
    }
    let conv = Conv {
        strides: strides.to_vec(),
        pads: pads.to_vec(),
        dilations: vec![dilation; 2],
        groups,
        epilogue: Epilogue { activation: case.activation },
    };
    let y = bench.node(Op::Conv(conv), inputs, &shape);
    bench.finish(device, what, y, kinds);
}

#[test]
fn convolutions() {
    let Some(device) = device() else { return };
    convolution(&device, "3x3 with residual", Case { residual: true, ..CASE }, &ALL);
    let odd = Case { x: [1, 40, 15, 13], out: 24, taps: [1, 1], strides: [2, 2], pads: [0; 4], ..CASE };
    convolution(&device, "1x1 by two", Case { activation: Some(Activation::HardSwish), ..odd }, &HALVES);
    let few = Case { x: [1, 512, 7, 7], out: 512, ..CASE };
    convolution(&device, "3x3 of few pixels", few, &HALVES);
    let wide = Case { x: [1, 32, 20, 21], out: 64, pads: [2, 1, 3, 2], dilation: 2, ..CASE };
    convolution(&device, "3x3 dilated, padded unevenly", wide, &HALVES);
    let pixel = Case { x: [3, 960, 1, 1], out: 240, taps: [1, 1], pads: [0; 4], ..CASE };
    convolution(&device, "one pixel", Case { activation: Some(Activation::Silu), ..pixel }, &HALVES);
    let plain = Case { x: [1, 256, 14, 14], out: 1024, taps: [1, 1], pads: [0; 4], residual: true, ..CASE };
    convolution(&device, "1x1 with residual", plain, &HALVES);
    let linear = Case { x: [2, 48, 9, 33], out: 40, activation: None, taps: [5, 3], ..CASE };
    convolution(&device, "5x3 without activation", linear, &ALL);
    let grouped = Case { x: [2, 12, 11, 10], out: 18, groups: 3, residual: true, ..CASE };
    convolution(&device, "3x3 of three groups", grouped, &ALL);
}

#[test]
fn stems() {
    let Some(device) = device() else { return };
    let case = |taps: usize, pad: usize, width: usize, out: usize| Case {
        x: [2, 3, 30, width],
        out,
        taps: [taps; 2],
        strides: [2, 2],
        pads: [pad; 4],
        activation: Some(Activation::Silu),
        ..CASE
    };
    convolution(&device, "7x7 by two", case(7, 3, 36, 64), &HALVES);
    convolution(&device, "6x6 by two", case(6, 2, 64, 32), &HALVES);
    convolution(&device, "3x3 by two, odd", case(3, 1, 35, 16), &ALL);
    convolution(&device, "3x3 by two, unpadded", case(3, 0, 33, 24), &HALVES);
    let patches = Case { x: [2, 3, 48, 64], out: 96, taps: [16; 2], strides: [16; 2], pads: [0; 4], ..CASE };
    convolution(&device, "patches", Case { activation: None, ..patches }, &ALL);
}

#[test]
fn depthwise_convolutions() {
    let Some(device) = device() else { return };
    let case = |channels: usize, taps: usize, stride: usize| Case {
        x: [2, channels, 14, 15],
        out: channels,
        taps: [taps; 2],
        strides: [stride; 2],
        pads: [taps / 2; 4],
        groups: channels,
        activation: Some(Activation::HardSwish),
        ..CASE
    };
    convolution(&device, "depthwise 3x3", case(72, 3, 1), &ALL);
    convolution(&device, "depthwise 5x5 by two", case(96, 5, 2), &HALVES);
    convolution(&device, "depthwise of odd channels", case(7, 3, 1), &HALVES);
}

#[test]
fn products() {
    let Some(device) = device() else { return };
    for (m, n, k, activation, residual) in [
        (70, 40, 256, None, false),
        (1, 1000, 1280, None, false),
        (128, 768, 3072, None, true),
        (197, 104, 72, Some(Activation::Gelu(GeluForm::Erf)), false),
        (33, 64, 64, Some(Activation::HardSwish), true),
    ] {
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
        bench.finish(&device, &format!("product {m}x{n}x{k}"), y, &ALL);
    }
}

#[test]
fn attention() {
    let Some(device) = device() else { return };
    for (batch, heads, queries, keys, size, mask) in [
        (2, 4, 128, 128, 64, Some(vec![2, 1, 1, 128])),
        (1, 12, 197, 197, 64, None),
        (2, 3, 77, 77, 40, Some(vec![1, 1, 77, 77])),
        (1, 2, 33, 50, 128, Some(vec![2, 33, 50])),
        (1, 2, 5, 9, 16, None),
        (2, 3, 33, 35, 12, None),
    ] {
        let mut bench = Bench::new();
        let width = heads * size;
        let mut inputs = vec![
            bench.input("q", &[batch, queries, width]),
            bench.input("k", &[batch, keys, width]),
            bench.input("v", &[batch, keys, width]),
        ];
        if let Some(shape) = &mask {
            // A third of the keys is masked, the last ones of all among them.
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
        let what = format!("attention of {heads} heads of {size}, {queries} by {keys}");
        bench.finish(&device, &what, y, &ALL);
    }
}

#[test]
fn reductions() {
    let Some(device) = device() else { return };
    for shape in [[1, 32, 112, 112], [2, 40, 7, 9], [1, 1280, 7, 7], [1, 5, 30, 31], [9, 96, 56, 56]] {
        let mut bench = Bench::new();
        let x = bench.input("x", &shape);
        // A pool first, so that the mean reads an image with its channels last.
        let window = Pool {
            kind: PoolKind::Max,
            kernel: vec![3, 3],
            strides: vec![1, 1],
            pads: vec![1; 4],
            dilations: vec![1, 1],
        };
        let pooled = bench.node(Op::Pool(window), vec![x], &shape);
        let op = Op::Reduce { kind: ReduceKind::Mean, axes: vec![2, 3], keep: true };
        let y = bench.node(op, vec![Some(pooled)], &[shape[0], shape[1], 1, 1]);
        bench.finish(&device, &format!("mean of {shape:?}"), y, &ALL);
    }
    for length in [768, 77, 5000] {
        let mut bench = Bench::new();
        let x = bench.input("x", &[3, 4, length]);
        let (scale, bias) = (bench.constant("s", &[length], 1.0), bench.constant("b", &[length], 0.5));
        let normal = bench.node(Op::LayerNorm { axis: 2, epsilon: 1e-5 }, vec![x, scale, bias], &[3, 4, length]);
        let y = bench.node(Op::Softmax { axis: 2, log: false }, vec![Some(normal)], &[3, 4, length]);
        bench.finish(&device, &format!("rows of {length}"), y, &ALL);
    }
}

#[test]
fn images_are_enlarged_and_joined() {
    let Some(device) = device() else { return };
    let mut bench = Bench::new();
    let (a, b) = (bench.input("a", &[2, 16, 5, 6]), bench.input("b", &[2, 24, 10, 12]));
    let window = |strides: usize| Pool {
        kind: PoolKind::Average { count_pad: false },
        kernel: vec![3, 3],
        strides: vec![strides; 2],
        pads: vec![1; 4],
        dilations: vec![1, 1],
    };
    let a = bench.node(Op::Pool(window(1)), vec![a], &[2, 16, 5, 6]);
    let b = bench.node(Op::Pool(window(1)), vec![b], &[2, 24, 10, 12]);
    let resize = Resize {
        mode: ResizeMode::Nearest(ResizeNearest::Floor),
        coordinates: ResizeCoordinates::Asymmetric,
        scales: vec![1.0, 1.0, 2.0, 2.0],
    };
    let large = bench.node(Op::Resize(resize), vec![Some(a)], &[2, 16, 10, 12]);
    let joined = bench.node(Op::Concat { axis: 1 }, vec![Some(large), Some(b)], &[2, 40, 10, 12]);
    let y = bench.node(Op::Activation(Activation::Sigmoid), vec![Some(joined)], &[2, 40, 10, 12]);
    bench.finish(&device, "an enlarged image joined with another", y, &ALL);
}

#[test]
fn anchors_are_taken_apart() {
    let Some(device) = device() else { return };
    let mut bench = Bench::new();
    let x = bench.input("x", &[3, 16, 80, 70]);
    let weights = bench.constant("w", &[255, 16, 1, 1], 0.5);
    let conv = Conv {
        strides: vec![1, 1],
        pads: vec![0; 4],
        dilations: vec![1, 1],
        groups: 1,
        epilogue: Epilogue { activation: None },
    };
    let head = bench.node(Op::Conv(conv), vec![x, weights], &[3, 255, 80, 70]);
    let split = bench.node(Op::Reshape, vec![Some(head)], &[3, 3, 85, 80, 70]);
    let turned = bench.node(Op::Transpose { perm: vec![0, 1, 3, 4, 2] }, vec![Some(split)], &[3, 3, 80, 70, 85]);
    let sigmoid = bench.node(Op::Activation(Activation::Sigmoid), vec![Some(turned)], &[3, 3, 80, 70, 85]);
    let y = bench.node(Op::Reshape, vec![Some(sigmoid)], &[3, 3 * 5600, 85]);
    bench.finish(&device, "anchors of a detector", y, &HALVES);
}

/// A convolution of channels that were padded reads them as they lie.
#[test]
fn squeezed_channels() {
    let Some(device) = device() else { return };
    let mut bench = Bench::new();
    let x = bench.input("x", &[2, 96, 1, 1]);
    let conv = |activation: Activation| {
        Op::Conv(Conv {
            strides: vec![1, 1],
            pads: vec![0; 4],
            dilations: vec![1, 1],
            groups: 1,
            epilogue: Epilogue { activation: Some(activation) },
        })
    };
    let (w, b) = (bench.constant("w", &[10, 96, 1, 1], 0.2), bench.constant("b", &[10], 0.5));
    let few = bench.node(conv(Activation::Sigmoid), vec![x, w, b], &[2, 10, 1, 1]);
    let (w, b) = (bench.constant("v", &[96, 10, 1, 1], 0.5), bench.constant("c", &[96], 0.5));
    let y = bench.node(conv(Activation::Silu), vec![Some(few), w, b], &[2, 96, 1, 1]);
    bench.finish(&device, "few channels between many", y, &HALVES);
}

/// Parts of wider values are read as they lie, whatever their rows begin with.
#[test]
fn slices_are_read_in_place() {
    let Some(device) = device() else { return };
    let part = |from: usize| Op::Slice { starts: vec![0, from, 0, 0], steps: vec![1; 4] };
    for (from, channels) in [(16, 16), (17, 16), (3, 7)] {
        let mut bench = Bench::new();
        let x = bench.input("x", &[2, 24, 14, 15]);
        let conv = |taps: usize, groups: usize, activation: Option<Activation>| {
            Op::Conv(Conv {
                strides: vec![1, 1],
                pads: vec![taps / 2; 4],
                dilations: vec![1, 1],
                groups,
                epilogue: Epilogue { activation },
            })
        };
        let w = bench.constant("w", &[40, 24, 1, 1], 0.3);
        let wide = bench.node(conv(1, 1, None), vec![x, w], &[2, 40, 14, 15]);
        let shape = [2, channels, 14, 15];
        let first = bench.node(part(0), vec![Some(wide)], &shape);
        let second = bench.node(part(from), vec![Some(wide)], &shape);
        let (w, b) = (bench.constant("v", &[channels, 1, 3, 3], 0.5), bench.constant("b", &[channels], 0.5));
        let op = conv(3, channels, Some(Activation::HardSwish));
        let y = bench.node(op, vec![Some(first), w, b, Some(second)], &shape);
        bench.finish(&device, &format!("depthwise with channels {from} and on of 40 added"), y, &ALL);
    }
}

#[test]
fn rows_and_columns_are_gathered() {
    let Some(device) = device() else { return };
    for axis in 0..3 {
        for from in [0, 5, 8] {
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
            bench.finish(&device, &format!("gathered along axis {axis}, from column {from} of 40"), y, &ALL);
        }
    }
}

/// A factor that all batches share is not copied for each.
#[test]
fn factors_are_repeated() {
    let Some(device) = device() else { return };
    for (a, b) in [([1, 37, 64], [3, 64, 48]), ([3, 37, 64], [1, 64, 48]), ([4, 16, 72], [4, 72, 8])] {
        let mut bench = Bench::new();
        let inputs = vec![bench.input("a", &a), bench.input("b", &b)];
        let shape = [a[0].max(b[0]), a[1], b[2]];
        let y = bench.node(Op::MatMul(MatMul::default()), inputs, &shape);
        bench.finish(&device, &format!("product of {a:?} and {b:?}"), y, &ALL);
    }
}
