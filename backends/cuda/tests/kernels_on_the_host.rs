//! Every generated kernel gives what the reference operators give, run on the host thread by thread: what lowering,
//! packing and code generation get wrong is seen without a GPU. What only a GPU shows is `kernels_on_a_device`'s.
#![expect(clippy::print_stderr, reason = "says what was tested")]

mod emulator;
mod every_number;
mod in_place;
mod operators;

use emulator::{
    As, Emulator,
    host::{Host, kernels},
};
use operators::{Case, Conv2d, bound};
use planforge_cuda::{codegen::Generated, lower::lower, view::Kind};
use planforge_graph::ir::{Activation, GeluForm};
use planforge_types::HostTensor;

/// Compares every kernel of every step.
fn check(emulator: &Emulator, what: &str, case: &Case, kinds: &[Kind]) {
    for &kind in kinds {
        let lowered = lower(&case.graph, kind).expect("the operator has device code");
        let program = lowered.program;
        program.check().expect("every view lies inside its buffer");
        let choices: Vec<Vec<(Generated, As)>> = program.steps.iter().map(|step| kernels(&program, step)).collect();
        for (step, choice) in program.steps.iter().zip(&choices) {
            assert!(!choice.is_empty(), "{what} {kind:?}: no kernel of ours computes {}", step.name);
        }
        let mut worst: f64 = 0.0;
        let most = choices.iter().map(Vec::len).max().unwrap_or(0);
        for number in 0..most {
            let mut host = Host::new(emulator, &program, &lowered.weights, &case.inputs);
            let mut chosen = Vec::new();
            for (step, choice) in program.steps.iter().zip(&choices) {
                let (kernel, as_) = &choice[number.min(choice.len() - 1)];
                let done = host.run(step, kernel, *as_);
                let name = || format!("{} {:?}x{:?}", kernel.source.name, kernel.grid, kernel.block);
                done.unwrap_or_else(|error| panic!("{what} {kind:?}, {} by {}: {error}", step.name, name()));
                chosen.push(name());
            }
            let error = case.error(host.output(0).bytes());
            assert!(error < bound(kind), "{what} {kind:?}: relative error {error:e} by {chosen:?}");
            worst = worst.max(error);
        }
        eprintln!("{what} {kind:?}: {most} choices, worst relative error {worst:.1e}");
    }
}

const HALVES: [Kind; 2] = [Kind::F16, Kind::Bf16];
const ALL: [Kind; 3] = [Kind::F16, Kind::Bf16, Kind::F32];

#[test]
fn convolutions() {
    let Some(emulator) = Emulator::new() else { return };
    let convolution = |what: &str, conv: Conv2d, kinds: &[Kind]| check(&emulator, what, &conv.case(), kinds);
    let usual = || Conv2d { x: [2, 24, 7, 9], out: 40, ..Conv2d::default() };
    convolution("3x3 with residual", Conv2d { residual: true, ..usual() }, &ALL);
    let odd = Conv2d { x: [1, 40, 7, 5], out: 24, taps: [1, 1], strides: [2, 2], pads: [0; 4], ..usual() };
    convolution("1x1 by two", Conv2d { activation: Some(Activation::HardSwish), ..odd }, &[Kind::F16, Kind::F32]);
    // Few pixels and many channels: blocks share the sum.
    convolution("3x3 of few pixels", Conv2d { x: [1, 128, 4, 4], out: 64, ..usual() }, &HALVES);
    // In f32 rows up to sixteen go to plain loops.
    convolution("3x3 of 36 pixels", Conv2d { x: [1, 128, 6, 6], out: 64, ..usual() }, &[Kind::F32]);
    // Multiples of four channels, which f32 copies at once and halves do not.
    convolution("3x3 of 12 channels", Conv2d { x: [2, 12, 9, 8], out: 20, ..usual() }, &[Kind::F32]);
    let wide = Conv2d { x: [1, 16, 10, 11], out: 32, pads: [2, 1, 3, 2], dilation: 2, ..usual() };
    convolution("3x3 dilated, padded unevenly", wide, &[Kind::F16, Kind::F32]);
    let pixel = Conv2d { x: [3, 96, 1, 1], out: 40, taps: [1, 1], pads: [0; 4], ..usual() };
    convolution("one pixel", Conv2d { activation: Some(Activation::Silu), ..pixel }, &[Kind::F16]);
    let linear = Conv2d { x: [2, 48, 5, 7], activation: None, taps: [5, 3], ..usual() };
    convolution("5x3 without activation", linear, &[Kind::F16, Kind::F32]);
    let grouped = Conv2d { x: [2, 12, 6, 5], out: 18, groups: 3, residual: true, ..usual() };
    convolution("3x3 of three groups", grouped, &ALL);
    let few = Conv2d { x: [1, 5, 6, 7], out: 6, ..usual() };
    convolution("3x3 of odd channels", few, &[Kind::F16, Kind::F32]);
}

#[test]
fn stems() {
    let Some(emulator) = Emulator::new() else { return };
    for (taps, pad, width, out) in [(7, 3, 20, 16), (6, 2, 24, 8), (3, 1, 19, 16), (3, 0, 17, 24)] {
        let case = Conv2d::stem([2, 3, 14, width], out, taps, pad).case();
        check(&emulator, &format!("{taps}x{taps} by two, padded by {pad}"), &case, &[Kind::F16]);
    }
    check(&emulator, "patches", &Conv2d::patches([1, 3, 16, 24], 32, 8).case(), &[Kind::F16, Kind::F32]);
}

#[test]
fn depthwise_convolutions() {
    let Some(emulator) = Emulator::new() else { return };
    for (channels, taps, stride, kinds) in [(24, 3, 1, &ALL[..]), (16, 5, 2, &[Kind::F16]), (7, 3, 1, &[Kind::F16])] {
        let case = Conv2d::depthwise([2, channels, 6, 7], taps, stride).case();
        check(&emulator, &format!("depthwise {taps}x{taps} of {channels}"), &case, kinds);
    }
}

#[test]
fn products() {
    let Some(emulator) = Emulator::new() else { return };
    for (m, n, k, activation, residual, kinds) in [
        (70, 40, 128, None, false, &ALL[..]),
        (1, 100, 96, None, false, &ALL),
        (37, 56, 72, Some(Activation::Gelu(GeluForm::Erf)), false, &[Kind::F16, Kind::F32]),
        (33, 64, 64, Some(Activation::HardSwish), true, &[Kind::F16, Kind::F32]),
        (5, 7, 11, Some(Activation::Silu), true, &[Kind::F16, Kind::F32]),
    ] {
        let case = operators::product([m, n, k], activation, residual);
        check(&emulator, &format!("product {m}x{n}x{k}"), &case, kinds);
    }
    for (a, b) in [([1, 17, 32], [3, 32, 24]), ([3, 17, 32], [1, 32, 24]), ([2, 16, 40], [2, 40, 8])] {
        let what = format!("product of {a:?} and {b:?}");
        check(&emulator, &what, &operators::repeated(a, b), &[Kind::F16, Kind::F32]);
    }
}

/// Products with the identity and convolutions by it, whose sums are the numbers themselves: all that fp16 and bf16 hold.
#[test]
fn ends_of_products_of_every_number() {
    let Some(emulator) = Emulator::new() else { return };
    let gelu = Activation::Gelu(GeluForm::Erf);
    for (kind, by_convolution) in [(Kind::F16, false), (Kind::F16, true), (Kind::Bf16, false)] {
        let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
        let x: Vec<f64> = every_number::numbers(kind, &every_number::bytes()).into_iter().map(finite).collect();
        let case = operators::of_identity(gelu, &x, by_convolution);
        let lowered = lower(&case.graph, kind).expect("the operator has device code");
        let mut host = Host::new(&emulator, &lowered.program, &lowered.weights, &case.inputs);
        for step in &lowered.program.steps {
            let (kernel, as_) = kernels(&lowered.program, step).swap_remove(0);
            host.run(step, &kernel, as_).expect("the kernel runs");
        }
        // The result was stored in 16 bits before it became f32.
        let got = HostTensor::of_values(kind.element(), vec![x.len()], &host.output(0).to_f64s()).bytes;
        let worst = every_number::worst(kind, gelu, &case.inputs["x"].to_f64s(), &got, &case.expected, |_, _| 0.0);
        eprintln!("{kind:?}, by convolution: {by_convolution}: {worst}");
        assert!(worst.ulps <= 1, "{kind:?}, by convolution: {by_convolution}: {worst}");
    }
}

#[test]
fn attention() {
    let Some(emulator) = Emulator::new() else { return };
    for (batch, heads, queries, keys, size, mask, kinds) in [
        (2, 2, 33, 40, 16, Some(vec![2, 1, 1, 40]), &HALVES[..]),
        (1, 3, 70, 70, 24, None, &[Kind::F16]),
        (2, 2, 17, 17, 40, Some(vec![1, 1, 17, 17]), &[Kind::F16]),
        (1, 2, 19, 50, 128, Some(vec![2, 19, 50]), &[Kind::F16]),
        (1, 2, 5, 9, 16, None, &HALVES),
    ] {
        let case = operators::attention(batch, heads, [queries, keys], size, mask);
        check(&emulator, &format!("attention of {heads} heads of {size}, {queries} by {keys}"), &case, kinds);
    }
}

#[test]
fn reductions() {
    let Some(emulator) = Emulator::new() else { return };
    for shape in [[1, 32, 17, 16], [2, 40, 7, 9], [1, 5, 6, 7]] {
        check(&emulator, &format!("mean of {shape:?}"), &operators::mean(shape), &ALL);
    }
    for length in [768, 77, 1100, 2048] {
        check(&emulator, &format!("rows of {length}"), &operators::rows(length), &ALL);
    }
}

#[test]
fn moves() {
    let Some(emulator) = Emulator::new() else { return };
    check(&emulator, "an enlarged image joined with another", &operators::enlarged_and_joined(), &ALL);
    check(&emulator, "anchors of a detector", &operators::anchors(5, 4), &[Kind::F16]);
    check(&emulator, "few channels between many", &operators::squeezed(), &HALVES);
    for (from, channels) in [(16, 16), (17, 16), (3, 7)] {
        let what = format!("depthwise with channels {from} and on of 40 added");
        check(&emulator, &what, &operators::sliced(from, channels), &ALL);
    }
    for (axis, from) in [(0, 0), (0, 5), (1, 8), (1, 4), (2, 0), (2, 5)] {
        let what = format!("gathered along axis {axis}, from column {from} of 40");
        check(&emulator, &what, &operators::gathered(axis, from), &ALL);
    }
}

#[test]
fn any_dimensions_are_reduced() {
    let Some(emulator) = Emulator::new() else { return };
    let shapes: [(&[usize], &[usize]); 5] =
        [(&[3, 5, 7], &[1]), (&[2, 3, 40], &[2]), (&[4, 30, 20], &[0, 2]), (&[5, 600, 5], &[1, 2]), (&[6, 7], &[0, 1])];
    for (what, case, kinds) in operators::reductions(&shapes) {
        check(&emulator, &what, &case, kinds);
    }
}

#[test]
fn elements_are_moved_and_mixed() {
    let Some(emulator) = Emulator::new() else { return };
    for (what, case) in operators::moves() {
        check(&emulator, &what, &case, &[Kind::F16, Kind::F32]);
    }
    check(&emulator, "elements by indices of their own", &operators::gathered_elements(), &ALL);
    check(&emulator, "normalisation of four groups", &operators::group_norm(Some(4), [2, 24, 5, 7]), &ALL);
    check(&emulator, "normalisation of every channel", &operators::group_norm(None, [2, 6, 12, 10]), &ALL);
}

#[test]
fn convolutions_of_any_channels_and_dimensions() {
    let Some(emulator) = Emulator::new() else { return };
    for (what, case) in operators::loops::convolutions() {
        check(&emulator, &what, &case, &[Kind::F16, Kind::F32]);
    }
}

#[test]
fn what_is_computed_by_loops() {
    let Some(emulator) = Emulator::new() else { return };
    use operators::loops::{cells, indexed, long_rows, numbers, regions, windows};
    for (what, case) in [windows(), indexed(), regions(), long_rows()].into_iter().flatten() {
        check(&emulator, &what, &case, &[Kind::F16, Kind::F32]);
    }
    for (what, case) in [numbers(), cells()].into_iter().flatten() {
        check(&emulator, &what, &case, &[Kind::F32]);
    }
}
