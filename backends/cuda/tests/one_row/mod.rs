//! Products of one row by kernels of ours, run on the host thread by thread, beside sums in f64.

mod chain;
mod heads;

use crate::emulator::{
    As, Emulator,
    host::{Host, stays},
};
use planforge_cuda::{
    codegen::{Generated, gemm::Device, matvec, staged},
    program::{Buffer, Edge, Norm, Place, ProductWork, Program, Step, Work},
    view::{BufferId, Kind, View},
};
use planforge_graph::ir::{Activation, Tensor};
use planforge_types::HostTensor;
use std::collections::BTreeMap;

/// What a product has beside its row and its matrix.
#[derive(Clone, Copy, Debug, Default)]
struct With {
    norm: bool,
    centred: bool,
    scale: bool,
    shift: bool,
    bias: bool,
    residual: bool,
    relu: bool,
    /// How far a row's elements lie from zero.
    mean: f64,
}

const EPSILON: f32 = 1e-5;
const ALPHA: f32 = 0.5;

/// One product, its memory and what comes out of it.
struct Case {
    program: Program,
    weights: Vec<u8>,
    inputs: BTreeMap<String, Tensor>,
    expected: Vec<f64>,
}

/// Numbers between -1 and 1, the same every time, as `kind` stores them.
struct Numbers(u64, Kind);

impl Numbers {
    fn next(&mut self, count: u64, scale: f64, mean: f64) -> (HostTensor, Vec<f64>) {
        let values: Vec<f64> = (0..count)
            .map(|_| {
                self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((self.0 >> 40) as f64 / f64::from(1u32 << 23) - 1.0) * scale + mean
            })
            .collect();
        let tensor = HostTensor::of_values(self.1.element(), vec![count as usize], &values);
        let values = Tensor::new(tensor.element, tensor.shape.clone(), tensor.bytes.clone().into()).unwrap().to_f64s();
        (tensor, values)
    }
}

fn case(kind: Kind, n: u64, k: u64, with: With) -> Case {
    let mut numbers = Numbers(n * 1000 + k, kind);
    let mut program = Program::default();
    let (mut weights, mut inputs) = (Vec::new(), BTreeMap::new());
    let mut input = |program: &mut Program, name: &str, count: u64, mean: f64| {
        let (tensor, values) = numbers.next(count, 1.0, mean);
        let buffer = BufferId(program.buffers.len() as u32);
        let place = Place::Input(program.inputs.len() as u32);
        program.buffers.push(Buffer { name: name.into(), bytes: (count * 2).next_multiple_of(256), place });
        program.inputs.push(Edge { name: name.into(), element: kind.element(), shape: vec![count], buffer });
        inputs.insert(name.to_owned(), Tensor::new(tensor.element, tensor.shape, tensor.bytes.into()).unwrap());
        (View::rows(buffer, kind, &[1, 1, count]), values)
    };
    let (a, row) = input(&mut program, "x", k, with.mean);
    let residual = with.residual.then(|| input(&mut program, "residual", n, 0.0));
    let mut numbers = Numbers(n * 77 + k, kind);
    let mut constant = |program: &mut Program, name: &str, dims: &[u64], scale: f64, mean: f64| {
        let (tensor, values) = numbers.next(dims.iter().product(), scale, mean);
        let at = weights.len() as u64;
        weights.extend_from_slice(&tensor.bytes);
        weights.resize(weights.len().next_multiple_of(256), 0);
        let buffer = BufferId(program.buffers.len() as u32);
        let bytes = weights.len() as u64 - at;
        program.buffers.push(Buffer { name: name.into(), bytes, place: Place::Weights(at) });
        (View::rows(buffer, kind, dims), values)
    };
    let (b, matrix) = constant(&mut program, "w", &[1, n, k], 0.2, 0.0);
    let bias = with.bias.then(|| constant(&mut program, "bias", &[n], 1.0, 0.0));
    let scale = with.scale.then(|| constant(&mut program, "scale", &[k], 0.2, 1.0));
    let shift = with.shift.then(|| constant(&mut program, "shift", &[k], 0.2, 0.0));
    program.weight_bytes = weights.len() as u64;
    let buffer = BufferId(program.buffers.len() as u32);
    let bytes = (n * 2).next_multiple_of(256);
    program.buffers.push(Buffer { name: "y".into(), bytes, place: Place::Output(0) });
    program.outputs.push(Edge { name: "y".into(), element: kind.element(), shape: vec![n], buffer });

    let mean = if with.centred { row.iter().sum::<f64>() / k as f64 } else { 0.0 };
    let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / k as f64;
    let normal = |at: usize| {
        let x = if with.norm { (row[at] - mean) / (variance + f64::from(EPSILON)).sqrt() } else { row[at] };
        x * scale.as_ref().map_or(1.0, |(_, scale)| scale[at]) + shift.as_ref().map_or(0.0, |(_, shift)| shift[at])
    };
    let normal: Vec<f64> = (0..k as usize).map(normal).collect();
    let of_column = |column: usize| {
        let own = &matrix[column * k as usize..][..k as usize];
        let sum: f64 = own.iter().zip(&normal).map(|(w, x)| w * x).sum();
        let more = [&bias, &residual].into_iter().flatten().map(|(_, values)| values[column]).sum::<f64>();
        let y = sum * f64::from(ALPHA) + more;
        if with.relu { y.max(0.0) } else { y }
    };
    let expected = (0..n as usize).map(of_column).collect();
    let norm = with.norm.then(|| Norm {
        epsilon: EPSILON,
        centred: with.centred,
        scale: scale.map(|(view, _)| view),
        bias: shift.map(|(view, _)| view),
    });
    let work = ProductWork {
        a,
        b: b.permuted(&[0, 2, 1]),
        bias: bias.map(|(view, _)| view),
        residual: residual.map(|(view, _)| view),
        y: View::rows(buffer, kind, &[1, 1, n]),
        alpha: ALPHA,
        activation: with.relu.then_some(Activation::Relu),
        norm,
    };
    let step = Step {
        name: "product".into(),
        origins: Vec::new(),
        work: Work::Product(work),
        tactic: None,
        stream: 0,
        flops: 0,
        bytes: 0,
    };
    program.steps.push(step);
    program.check().expect("the program holds together");
    Case { program, weights, inputs, expected }
}

/// Relative to the root mean square of what is expected.
fn error(emulator: &Emulator, case: &Case, kernel: &Generated, as_: As) -> f64 {
    let mut host = Host::new(emulator, &case.program, &case.weights, &case.inputs);
    host.run(&case.program.steps[0], kernel, as_).expect("it runs");
    let got = host.output(0).to_f64s();
    relative_error(&case.expected, &got)
}

fn relative_error(expected: &[f64], got: &[f64]) -> f64 {
    let squares: f64 = expected.iter().map(|x| x * x).sum();
    let off: f64 = expected.iter().zip(got).map(|(x, y)| (x - y) * (x - y)).sum();
    (off / squares).sqrt()
}

#[test]
fn columns_that_are_staged_give_what_sums_in_f64_give() {
    let Some(emulator) = Emulator::new() else { return };
    let all = With { norm: true, centred: true, scale: true, shift: true, bias: true, ..With::default() };
    let root = With { norm: true, scale: true, ..With::default() };
    let plain = With { bias: true, residual: true, ..With::default() };
    let bare = With { norm: true, centred: true, relu: true, ..With::default() };
    // Far off zero, where a mean that is taken out behind the product would leave no digits.
    let far = With { mean: 60.0, ..all };
    let cases = [
        (Kind::F16, 6, 768, plain),
        (Kind::F16, 18, 768, all),
        (Kind::F16, 24, 192, far),
        (Kind::F16, 1, 64, root),
        (Kind::Bf16, 8, 320, all),
        (Kind::Bf16, 9, 128, bare),
        (Kind::F16, 32, 448, root),
        (Kind::F16, 17, 2048, With { relu: true, ..plain }),
        (Kind::F16, 7, 4096, With::default()),
        (Kind::Bf16, 5, 2112, far),
        // More than a block for each multiprocessor has, so that blocks stay.
        (Kind::F16, 130, 128, all),
        (Kind::Bf16, 140, 64, With { relu: true, ..plain }),
    ];
    let mut stay = 0;
    for (kind, columns, k, with) in cases {
        // Three blocks, the last of which has a column less.
        let n = columns * 3 - u64::from(columns > 1);
        let case = case(kind, n, k, with);
        let Work::Product(work) = &case.program.steps[0].work else { unreachable!("it is a product") };
        let problem = matvec::Problem::of(work, |view| case.program.is_constant(view)).expect("it is one row");
        let device = Device { capability: 90, sm_count: 3, shared_block_bytes: 227 * 1024 };
        let tiles = staged::tiles(&problem, device);
        assert!(!tiles.is_empty(), "{n} columns of {k}");
        // Of such as ask for more memory alone one is enough.
        let mut known = Vec::new();
        for kernel in tiles.into_iter().map(|tile| staged::generate(&problem, tile)) {
            if known.contains(&kernel.source) {
                continue;
            }
            let bound = if kind == Kind::F16 { 1e-3 } else { 8e-3 };
            stay += usize::from(stays(&kernel));
            for as_ in [As::Ampere, As::Hopper].into_iter().skip(usize::from(stays(&kernel))) {
                let error = error(&emulator, &case, &kernel, as_);
                let what = format!("{kind:?}, {n} columns of {k}, {with:?}, {:?}", kernel.block);
                assert!(error < bound, "{what}: {error:.1e}");
            }
            known.push(kernel.source);
        }
    }
    assert!(stay >= 6, "{stay} kernels whose blocks stay");
}

#[test]
fn what_cannot_be_staged_has_no_such_tile() {
    let tiles = |kind: Kind, n: u64, k: u64, capability: u32, shared_block_bytes: u32| {
        let case = case(kind, n, k, With::default());
        let Work::Product(work) = &case.program.steps[0].work else { unreachable!("it is a product") };
        let device = Device { capability, sm_count: 4, shared_block_bytes };
        let problem = |constant: bool| matvec::Problem::of(work, |_| constant).expect("it is one row");
        assert!(staged::tiles(&problem(false), device).is_empty(), "a matrix that steps compute");
        staged::tiles(&problem(true), device).len()
    };
    assert!(tiles(Kind::F16, 24, 256, 75, 64 * 1024) > 0);
    assert_eq!(tiles(Kind::Bf16, 24, 256, 75, 64 * 1024), 0, "no tensor cores for bf16");
    assert_eq!(tiles(Kind::F16, 24, 96, 90, 227 * 1024), 0, "no whole pieces in a half");
    assert_eq!(tiles(Kind::F16, 128, 2048, 75, 64 * 1024), 0, "more than a block has room for");
}
