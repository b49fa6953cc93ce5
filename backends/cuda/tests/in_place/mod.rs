//! Activations are right to a unit in the last place for every number that fp16 and bf16 hold, run on the host; what the
//! device's own exponential adds to that is `kernels_on_a_device`'s.

use crate::{
    emulator::{As, Emulator, Range},
    every_number::{self, ACTIVATIONS, expected, numbers, own_slack, worst},
};
use planforge_cuda::{
    codegen::{candidates::after, pointwise},
    program::{ProductWork, Work},
    view::{BufferId, Kind, View},
};
use planforge_graph::ir::{Activation, GeluForm};

/// The product whose activation a kernel makes in place.
fn product(y: View, activation: Activation) -> Work {
    let [m, n] = [y.dims[1], y.dims[2]];
    let rows = |dims: &[u64]| View::rows(BufferId(0), y.kind, dims);
    let (a, b) = (rows(&[1, m, 8]), rows(&[1, 8, n]));
    Work::Product(ProductWork {
        a,
        b,
        bias: None,
        residual: None,
        y,
        alpha: 1.0,
        activation: Some(activation),
        norm: None,
    })
}

/// Runs a kernel on `bytes` in place.
fn run(emulator: &Emulator, kernel: &planforge_cuda::codegen::Generated, bytes: &[u8]) -> Vec<u8> {
    // Whole vectors, wherever the allocator puts them.
    let mut memory = vec![0u128; bytes.len().div_ceil(16)];
    let base = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: the memory is at least as long as the bytes.
    unsafe { base.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    let range = Range { begin: base as usize, end: base as usize + bytes.len() };
    // SAFETY: the memory lives until the kernel has ended, and nothing else uses it.
    unsafe { emulator.run(kernel, As::Ampere, &[base.cast()], &[range]) }.expect("the kernel runs");
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(base, bytes.len()) }.to_vec()
}

#[test]
fn every_number_of_16_bits() {
    let Some(emulator) = Emulator::new() else { return };
    let mut wrong = Vec::new();
    for kind in [Kind::F16, Kind::Bf16] {
        let bytes = every_number::bytes();
        let x = numbers(kind, &bytes);
        for activation in ACTIVATIONS {
            let kernel = after(&product(every_number::view(kind), activation)).expect("it has a kernel");
            let got = run(&emulator, &kernel, &bytes);
            let worst = worst(kind, activation, &x, &got, &expected(activation, &x), own_slack(kind, activation));
            eprintln!("{activation:?} {kind:?}: {worst}");
            if worst.ulps > 1 {
                wrong.push(format!("{activation:?} {kind:?}: {worst}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Of f32 a sample: exponents that matter, and what lies between.
#[test]
fn single_precision() {
    let Some(emulator) = Emulator::new() else { return };
    let magnitudes = (0..8192u32).map(|step| f32::from_bits(0x3000_0000 + step * 17_001)).filter(|x| *x < 90.0);
    let x: Vec<f32> = magnitudes.flat_map(|x| [x, -x]).collect();
    let x = &x[..x.len() / 64 * 64];
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let view = View::rows(BufferId(0), Kind::F32, &[1, x.len() as u64 / 64, 64]);
    for activation in ACTIVATIONS {
        let kernel = after(&product(view.clone(), activation)).expect("it has a kernel");
        let got = numbers(Kind::F32, &run(&emulator, &kernel, &bytes));
        let mut worst = (0.0, 0.0, 0.0, 0.0);
        for ((&x, got), want) in wide.iter().zip(got).zip(expected(activation, &wide)) {
            // Sums of one and next to nothing may round the latter away: what the formula itself has.
            let floor = match activation {
                Activation::Gelu(_) | Activation::Silu | Activation::Mish | Activation::Sigmoid => 1e-36,
                _ => 1e-7,
            };
            let error = ((got - want).abs() - floor).max(0.0) / want.abs().max(f64::MIN_POSITIVE);
            if error > worst.0 {
                worst = (error, x, got, want);
            }
        }
        let (error, x, got, want) = worst;
        eprintln!("{activation:?}: {error:.1e} of {x}: {got:e} for {want:e}");
        assert!(error < 3e-6, "{activation:?} of {x}: {got:e} for {want:e}");
    }
}

/// Rows of a wider tensor, several of a batch, more than a thread takes at once, and what no vectors fit.
#[test]
fn results_change_where_they_lie() {
    let Some(emulator) = Emulator::new() else { return };
    let wide = |dims: &[u64]| View::rows(BufferId(0), Kind::F16, dims);
    let part = View { offset: 8, dims: vec![3, 5, 16], strides: vec![200, 40, 1], ..wide(&[3, 5, 40]) };
    let odd = View { offset: 3, dims: vec![2, 5, 7], strides: vec![45, 9, 1], ..wide(&[2, 5, 9]) };
    // Past the last whole block too.
    let long = wide(&[1, 32_771, 128]);
    for (view, two_at_once) in [(part, false), (odd, false), (long, true)] {
        let kernel = pointwise::in_place(Activation::Gelu(GeluForm::Erf), &view).expect("it has code");
        assert_eq!(kernel.source.text.contains("r[2]"), two_at_once, "{}", kernel.source.text);
        let count = view.end_bytes().expect("it has an end") as usize / 2;
        let bytes: Vec<u8> = (0..count).flat_map(|at| (0xc000u16 - (at % 4000) as u16).to_le_bytes()).collect();
        // Addresses begin at the view.
        let begin = view.offset as usize * 2;
        let got = run(&emulator, &kernel, &bytes[begin..]);
        let mut touched = vec![false; count];
        for row in 0..view.dims[0] * view.dims[1] {
            let at = view.offset + row / view.dims[1] * view.strides[0] + row % view.dims[1] * view.strides[1];
            touched[at as usize..][..view.dims[2] as usize].fill(true);
        }
        let x = numbers(Kind::F16, &bytes);
        let want = expected(Activation::Gelu(GeluForm::Erf), &x);
        let all: Vec<u8> = bytes[..begin].iter().chain(&got).copied().collect();
        let got = numbers(Kind::F16, &all);
        for index in 0..count {
            let right = if touched[index] { want[index] } else { x[index] };
            let (got, is_part) = (got[index], touched[index]);
            assert!((got - right).abs() <= 1e-3 * right.abs() + 1e-7, "{index}, in it: {is_part}: {got} for {right}");
        }
    }
}
