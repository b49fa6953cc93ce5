//! Every tactic of every kind of step gives what the reference operators give, on the GPU that is there; where there is
//! none, nothing is tested and that is said. The executable runs by itself, so it can be carried to a GPU host.
#![expect(clippy::print_stderr, reason = "says what was tested")]

mod every_number;
mod operators;

use operators::{Case, Conv2d, bound};
use planforge_cuda::{
    codegen::pointwise,
    early::EARLY_SINCE,
    lower::lower,
    program::{Program, Tactic},
    runtime::{Constants, Context, Device, Kernels, Memory, Ready, prepare},
    source::Source,
    tune::{Effort, Times, tune, waits},
    view::Kind,
};
use planforge_graph::ir::{Activation, GeluForm};
use planforge_kernels_cuda::device::{Arg, Launch};
use planforge_types::HostTensor;
use std::{
    ops::Deref,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Compares every tactic of every step.
fn check(device: &Device, what: &str, case: &Case, kinds: &[Kind]) {
    for &kind in kinds {
        if kind == Kind::Bf16 && device.gpu.properties().arch.capability < 80 {
            continue;
        }
        let lowered = lower(&case.graph, kind).expect("the operator has device code");
        let mut program = lowered.program;
        let weights = Constants::upload(device, &lowered.weights).expect("weights fit");
        let effort = Effort { compiled: 3, compares: false, ..Effort::of_level(3) };
        let tuned = tune(device, &mut program, &weights, effort, &mut Times::new(), &mut |_, _, _| true);
        let tuned = tuned.unwrap_or_else(|error| panic!("{what} {kind:?}: {error}"));
        let mut judge = Judge { device, weights, case, what, kind };
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
            let show = |timed: &planforge_cuda::tune::Timed| format!("{:.1} us {}", timed.us, timed.tactic.name());
            let own = tried.iter().find(|timed| timed.source.is_some()).map(show);
            eprintln!("    best {}; own {}", show(&tried[0]), own.unwrap_or_default());
            for timed in tried.iter().filter(|timed| timed.tactic.is_library() && !timed.tactic.waits()) {
                eprintln!("    kept behind what is ahead of it: {:?}", timed.tactic);
            }
        }
        eprintln!("{what} {kind:?}: {count} tactics, worst relative error {worst:.1e}");
    }
}

struct Judge<'a> {
    device: &'a Device,
    weights: Constants,
    case: &'a Case,
    what: &'a str,
    kind: Kind,
}

impl Judge<'_> {
    fn run(&mut self, program: &Program, tactic: &str) -> f64 {
        let Self { device, case, what, kind, .. } = *self;
        let context = Context::new(device, program, self.weights.clone(), &mut Kernels::new());
        let context = context.unwrap_or_else(|error| panic!("{what} {kind:?} by {tactic}: {error}"));
        // What is left from before must not pass for a result. Before the inputs, one of which may be the output.
        context.memory.outputs[0].fill(0xff).expect("an output is filled");
        for (edge, buffer) in program.inputs.iter().zip(&context.memory.inputs) {
            buffer.write(0, case.inputs[&edge.name].bytes()).expect("an input is written");
        }
        context.launch().expect("the graph is launched");
        context.stream().synchronize().expect("the graph runs");
        let mut bytes = vec![0; case.expected.len() * 4];
        context.memory.outputs[0].read(0, &mut bytes).expect("an output is read");
        let error = case.error(&bytes);
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
            planforge_skipped::skipped(error);
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

#[test]
fn convolutions() {
    let Some(device) = device() else { return };
    let convolution = |what: &str, conv: Conv2d, kinds: &[Kind]| check(&device, what, &conv.case(), kinds);
    let usual = Conv2d::default;
    convolution("3x3 with residual", Conv2d { residual: true, ..usual() }, &ALL);
    let odd = Conv2d { x: [1, 40, 15, 13], out: 24, taps: [1, 1], strides: [2, 2], pads: [0; 4], ..usual() };
    convolution("1x1 by two", Conv2d { activation: Some(Activation::HardSwish), ..odd }, &HALVES);
    convolution("3x3 of few pixels", Conv2d { x: [1, 512, 7, 7], out: 512, ..usual() }, &HALVES);
    let wide = Conv2d { x: [1, 32, 20, 21], out: 64, pads: [2, 1, 3, 2], dilation: 2, ..usual() };
    convolution("3x3 dilated, padded unevenly", wide, &HALVES);
    let pixel = Conv2d { x: [3, 960, 1, 1], out: 240, taps: [1, 1], pads: [0; 4], ..usual() };
    convolution("one pixel", Conv2d { activation: Some(Activation::Silu), ..pixel }, &HALVES);
    let plain = Conv2d { x: [1, 256, 14, 14], out: 1024, taps: [1, 1], pads: [0; 4], residual: true, ..usual() };
    convolution("1x1 with residual", plain, &HALVES);
    let linear = Conv2d { x: [2, 48, 9, 33], out: 40, activation: None, taps: [5, 3], ..usual() };
    convolution("5x3 without activation", linear, &ALL);
    let grouped = Conv2d { x: [2, 12, 11, 10], out: 18, groups: 3, residual: true, ..usual() };
    convolution("3x3 of three groups", grouped, &ALL);
}

#[test]
fn stems() {
    let Some(device) = device() else { return };
    let stem = |what: &str, taps: usize, pad: usize, width: usize, out: usize, kinds: &[Kind]| {
        check(&device, what, &Conv2d::stem([2, 3, 30, width], out, taps, pad).case(), kinds);
    };
    stem("7x7 by two", 7, 3, 36, 64, &HALVES);
    stem("6x6 by two", 6, 2, 64, 32, &HALVES);
    stem("3x3 by two, odd", 3, 1, 35, 16, &ALL);
    stem("3x3 by two, unpadded", 3, 0, 33, 24, &HALVES);
    check(&device, "patches", &Conv2d::patches([2, 3, 48, 64], 96, 16).case(), &ALL);
}

#[test]
fn depthwise_convolutions() {
    let Some(device) = device() else { return };
    let depthwise = |what: &str, channels: usize, taps: usize, stride: usize, kinds: &[Kind]| {
        check(&device, what, &Conv2d::depthwise([2, channels, 14, 15], taps, stride).case(), kinds);
    };
    depthwise("depthwise 3x3", 72, 3, 1, &ALL);
    depthwise("depthwise 5x5 by two", 96, 5, 2, &HALVES);
    depthwise("depthwise of odd channels", 7, 3, 1, &HALVES);
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
        let what = format!("product {m}x{n}x{k}");
        check(&device, &what, &operators::product([m, n, k], activation, residual), &ALL);
    }
}

/// A kernel that begins before what it reads is written is told from one that waits, whoever made it.
#[test]
fn kernels_that_do_not_wait_are_seen() {
    let Some(device) = device() else { return };
    if device.gpu.properties().arch.capability < EARLY_SINCE {
        return planforge_skipped::skipped("no kernel begins early on this device");
    }
    let case = operators::product([70, 40, 256], None, false);
    let lowered = lower(&case.graph, Kind::F16).expect("the operator has device code");
    let mut program = lowered.program;
    let weights = Constants::upload(&device, &lowered.weights).expect("weights fit");
    let tuned = tune(&device, &mut program, &weights, Effort::of_level(0), &mut Times::new(), &mut |_, _, _| true);
    let tried = tuned.expect("tuned").tried;
    let memory = Memory::new(&device, &program, weights, &[1 << 20]).expect("memory");
    memory.fill_with_noise().expect("noise");
    let step = program.steps.iter().find(|step| step.work.kind() == "gemm").expect("a product");
    let own = tried[&step.name].iter().find(|timed| !timed.tactic.is_library()).expect("a kernel of ours");
    let (read, written) = step.work.views();
    let (last, count) = (read.len(), written.dims.iter().product::<u64>());
    let parameters: Vec<String> = (0..=last).map(|number| format!("unsigned short* p{number}")).collect();
    let parameters = parameters.join(", ");
    let verdict = |begin: &str| {
        let text = format!(
            "extern \"C\" __global__ void copies({parameters}) {{\n{begin}\n\
             for (int i = blockIdx.x * 256 + threadIdx.x; i < {count}; i += gridDim.x * 256) p{last}[i] = p0[i];\n}}"
        );
        let kernel = device.kernel(&Source { name: "copies".into(), text }).expect("it compiles and loads");
        let ready = prepare(&device, &program, step, Some(&own.tactic), &memory, &mut Kernels::new());
        let Ok(Ready::Kernel { args, .. }) = ready else { panic!("no kernel of ours: {ready:?}") };
        let launch = Launch { grid: [11, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
        let ready = Ready::Kernel { kernel: kernel.beginning_early(), launch, args };
        waits(&device, &program, step, &memory, &ready).expect("it is tried")
    };
    let wait = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");";
    assert_eq!(verdict(wait), Some(true), "it waits before it reads");
    assert_eq!(verdict(""), Some(false), "it reads at once");
    assert_eq!(verdict("return;"), None, "its result says nothing of what it reads");
    assert_eq!(verdict(&format!("if (blockIdx.x > 5) {wait}")), Some(false), "some of its blocks read at once");
}

/// A factor that all batches share is not copied for each.
#[test]
fn factors_are_repeated() {
    let Some(device) = device() else { return };
    for (a, b) in [([1, 37, 64], [3, 64, 48]), ([3, 37, 64], [1, 64, 48]), ([4, 16, 72], [4, 72, 8])] {
        check(&device, &format!("product of {a:?} and {b:?}"), &operators::repeated(a, b), &ALL);
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
        let what = format!("attention of {heads} heads of {size}, {queries} by {keys}");
        check(&device, &what, &operators::attention(batch, heads, [queries, keys], size, mask), &ALL);
    }
}

#[test]
fn reductions() {
    let Some(device) = device() else { return };
    for shape in [[1, 32, 112, 112], [2, 40, 7, 9], [1, 1280, 7, 7], [1, 5, 30, 31], [9, 96, 56, 56]] {
        check(&device, &format!("mean of {shape:?}"), &operators::mean(shape), &ALL);
    }
    for length in [768, 77, 5000] {
        check(&device, &format!("rows of {length}"), &operators::rows(length), &ALL);
    }
}

#[test]
fn images_are_enlarged_and_joined() {
    let Some(device) = device() else { return };
    check(&device, "an enlarged image joined with another", &operators::enlarged_and_joined(), &ALL);
}

#[test]
fn anchors_are_taken_apart() {
    let Some(device) = device() else { return };
    check(&device, "anchors of a detector", &operators::anchors(80, 70), &HALVES);
}

/// A convolution of channels that were padded reads them as they lie.
#[test]
fn squeezed_channels() {
    let Some(device) = device() else { return };
    check(&device, "few channels between many", &operators::squeezed(), &HALVES);
}

/// Parts of wider values are read as they lie, whatever their rows begin with.
#[test]
fn slices_are_read_in_place() {
    let Some(device) = device() else { return };
    for (from, channels) in [(16, 16), (17, 16), (3, 7)] {
        let what = format!("depthwise with channels {from} and on of 40 added");
        check(&device, &what, &operators::sliced(from, channels), &ALL);
    }
}

#[test]
fn rows_and_columns_are_gathered() {
    let Some(device) = device() else { return };
    for (axis, from) in [(0, 0), (0, 5), (1, 8), (1, 4), (2, 0), (2, 5)] {
        let what = format!("gathered along axis {axis}, from column {from} of 40");
        check(&device, &what, &operators::gathered(axis, from), &ALL);
    }
}

#[test]
fn any_dimensions_are_reduced() {
    let Some(device) = device() else { return };
    let shapes: [(&[usize], &[usize]); 5] = [
        (&[3, 5, 7], &[1]),
        (&[64, 3, 400], &[2]),
        (&[4, 300, 200], &[0, 2]),
        (&[5, 6000, 50], &[1, 2]),
        (&[600, 700], &[0, 1]),
    ];
    for (what, case, kinds) in operators::reductions(&shapes) {
        check(&device, &what, &case, kinds);
    }
}

#[test]
fn elements_are_moved_and_mixed() {
    let Some(device) = device() else { return };
    for (what, case) in operators::moves() {
        check(&device, &what, &case, &[Kind::F16, Kind::F32]);
    }
    check(&device, "elements by indices of their own", &operators::gathered_elements(), &ALL);
    check(&device, "normalisation of four groups", &operators::group_norm(Some(4), [2, 24, 5, 7]), &ALL);
    check(&device, "normalisation of every channel", &operators::group_norm(None, [2, 6, 12, 10]), &ALL);
}

/// By kernels of ours alone, without a product: every activation of every number that 16 bits hold.
#[test]
fn activations_of_every_number() {
    let Some(device) = device() else { return };
    let mut wrong = Vec::new();
    for kind in HALVES {
        let bytes = every_number::bytes();
        let x = every_number::numbers(kind, &bytes);
        for activation in every_number::ACTIVATIONS {
            let generated = pointwise::in_place(activation, &every_number::view(kind)).expect("it has code");
            let kernel = device.kernel(&generated.source).expect("it compiles and loads");
            let buffer = device.gpu.upload(&bytes).expect("it fits");
            // SAFETY: the buffer lives, and is as large as the view that the kernel was made for.
            unsafe { kernel.launch(&device.stream, generated.launch(), &[Arg::Address(buffer.address())]) }
                .expect("queued");
            device.stream.synchronize().expect("it runs");
            let mut got = vec![0; bytes.len()];
            buffer.read(0, &mut got).expect("it is read");
            let want = every_number::expected(activation, &x);
            let worst =
                every_number::worst(kind, activation, &x, &got, &want, every_number::own_slack(kind, activation));
            eprintln!("{activation:?} {kind:?}: {worst}");
            if worst.ulps > 1 {
                wrong.push(format!("{activation:?} {kind:?}: {worst}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What f32 rounds off where a library takes GELU by erf from `1 + erf`: relative to the number itself.
const ONE_AND_ERF: f64 = 1.2e-7;
/// Most units in the last place that a library's other activations may be off.
const LIBRARY_ULPS: u64 = 4;

/// By every tactic that the tuner proposes, libraries' among them: products with the identity and convolutions by it,
/// whose sums are the numbers themselves. What libraries make of GELU by tanh is said and not judged: the graph asks for
/// an approximation.
#[test]
fn ends_of_products_of_every_number() {
    let Some(device) = device() else { return };
    let gelu = [GeluForm::Erf, GeluForm::Tanh].map(Activation::Gelu);
    let others = [Activation::Silu, Activation::Sigmoid, Activation::Tanh];
    let of_products = gelu.into_iter().chain(others).map(|activation| (activation, false));
    let of_convolutions = gelu.into_iter().chain(others).map(|activation| (activation, true));
    let mut wrong = Vec::new();
    for (activation, by_convolution) in of_products.chain(of_convolutions) {
        for kind in HALVES {
            let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
            let all = every_number::numbers(kind, &every_number::bytes());
            let case =
                operators::of_identity(activation, &all.into_iter().map(finite).collect::<Vec<_>>(), by_convolution);
            let what =
                format!("{activation:?} of a {} {kind:?}", if by_convolution { "convolution" } else { "product" });
            let mut program = lower(&case.graph, kind).expect("the operator has device code");
            let weights = Constants::upload(&device, &program.weights).expect("weights fit");
            let program = &mut program.program;
            let effort = Effort { compares: false, ..Effort::of_level(3) };
            let tuned =
                tune(&device, program, &weights, effort, &mut Times::new(), &mut |_, _, _| true).expect("tuned");
            let step = program.steps.iter().position(|step| step.work.activation().is_some()).expect("it ends so");
            for timed in &tuned.tried[&program.steps[step].name] {
                program.steps[step].tactic = Some(timed.tactic.clone());
                let worst = Ends { device: &device, weights: &weights, case: &case, kind, activation }.worst(program);
                let (tactic, us) = (timed.tactic.name(), timed.us);
                eprintln!("{what} by {tactic} ({us:.1} us): {worst}");
                let approximate = activation == gelu[1] && matches!(timed.tactic.library(), "cudnn" | "cublaslt");
                let most = if timed.tactic.library() == "cudnn" && activation != gelu[0] { LIBRARY_ULPS } else { 1 };
                if worst.ulps > most && !approximate {
                    wrong.push(format!("{what} by {tactic}: {worst}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A product or convolution whose end is looked at.
struct Ends<'a> {
    device: &'a Device,
    weights: &'a Constants,
    case: &'a Case,
    kind: Kind,
    activation: Activation,
}

impl Ends<'_> {
    fn worst(&self, program: &Program) -> every_number::Worst {
        let Self { device, weights, case, kind, activation } = *self;
        let context = Context::new(device, program, weights.clone(), &mut Kernels::new()).expect("it is captured");
        let x = &case.inputs["x"];
        context.memory.outputs[0].fill(0xff).expect("the output is filled");
        context.memory.inputs[0].write(0, x.bytes()).expect("the input is written");
        context.launch().expect("the graph is launched");
        context.stream().synchronize().expect("the graph runs");
        let mut got = vec![0; case.expected.len() * 4];
        context.memory.outputs[0].read(0, &mut got).expect("the output is read");
        // The result was stored in 16 bits before it became f32.
        let got =
            HostTensor::of_values(kind.element(), vec![case.expected.len()], &every_number::numbers(Kind::F32, &got));
        let by_cudnn = program.steps.iter().any(|step| matches!(step.tactic, Some(Tactic::Dnn { .. })));
        let own = every_number::own_slack(kind, activation);
        // cuDNN makes zeros of bf16's smallest numbers, as an H200 showed.
        let smallest = f64::from(f32::MIN_POSITIVE);
        let slack = |x: f64, want: f64| if by_cudnn { ONE_AND_ERF * x.abs() + smallest } else { own(x, want) };
        every_number::worst(kind, activation, &x.to_f64s(), &got.bytes, &case.expected, slack)
    }
}

#[test]
fn convolutions_of_any_channels_and_dimensions() {
    let Some(device) = device() else { return };
    for (what, case) in operators::loops::convolutions() {
        check(&device, &what, &case, &[Kind::F16, Kind::F32]);
    }
}

#[test]
fn what_is_computed_by_loops() {
    let Some(device) = device() else { return };
    use operators::loops::{cells, indexed, long_rows, numbers, regions, windows};
    for (what, case) in [windows(), indexed(), regions(), long_rows()].into_iter().flatten() {
        check(&device, &what, &case, &[Kind::F16, Kind::F32]);
    }
    for (what, case) in [numbers(), cells()].into_iter().flatten() {
        check(&device, &what, &case, &[Kind::F32]);
    }
}
