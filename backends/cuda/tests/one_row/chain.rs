//! Links of a chain over one row, one after the other on the same sums, beside sums in f64.

use super::{Numbers, relative_error};
use crate::emulator::{
    Emulator,
    host::{Host, kernels},
};
use planforge_cuda::{
    codegen::chain,
    lower::chain::fused,
    program::{Buffer, Edge, Norm, Place, ProductWork, Program, Step, Work},
    view::{BufferId, Kind, View},
};
use planforge_graph::ir::{Activation, Tensor};
use std::collections::BTreeMap;

const EPSILON: f32 = 1e-5;
const DEVICE: planforge_cuda::codegen::gemm::Device =
    planforge_cuda::codegen::gemm::Device { capability: 90, sm_count: 132, shared_block_bytes: 227 * 1024 };

/// What the links have.
#[derive(Clone, Copy, Debug)]
struct With {
    width: u64,
    hidden: u64,
    columns: u64,
    centred: bool,
    /// Biases, scales and shifts.
    rest: bool,
    /// How far the row's elements lie from zero, and how large the second matrix is.
    mean: f64,
    scale: f64,
}

struct Case {
    program: Program,
    weights: Vec<u8>,
    inputs: BTreeMap<String, Tensor>,
    expected: Vec<f64>,
}

/// Two pairs of products that add to a row, and a product that reads what comes out.
fn case(with: With) -> Case {
    let With { width, hidden, columns, centred, rest, mean, scale } = with;
    let kind = Kind::F16;
    let mut numbers = Numbers(width * 31 + hidden, kind);
    let (mut program, mut weights) = (Program::default(), Vec::new());
    let buffer = |program: &mut Program, name: &str, bytes: u64, place: Place| {
        program.buffers.push(Buffer { name: name.into(), bytes: bytes.next_multiple_of(256), place });
        BufferId(program.buffers.len() as u32 - 1)
    };
    let (tensor, mut row) = numbers.next(width, 1.0, mean);
    let of_x = buffer(&mut program, "x", 2 * width, Place::Input(0));
    program.inputs.push(Edge { name: "x".into(), element: kind.element(), shape: vec![width], buffer: of_x });
    let given = Tensor::new(tensor.element, tensor.shape, tensor.bytes.into()).unwrap();
    let mut constant = |program: &mut Program, dims: &[u64], scale: f64, mean: f64| {
        let (tensor, values) = numbers.next(dims.iter().product(), scale, mean);
        let at = Place::Weights(weights.len() as u64);
        weights.extend_from_slice(&tensor.bytes);
        weights.resize(weights.len().next_multiple_of(256), 0);
        (View::rows(buffer(program, "constant", tensor.bytes.len() as u64, at), kind, dims), values)
    };
    let mut x = View::rows(of_x, kind, &[1, 1, width]);
    let step = |program: &mut Program, name: &str, work: ProductWork| {
        let work = Work::Product(work);
        program.steps.push(Step {
            name: format!("{name} {}", program.steps.len()),
            origins: vec![name.into()],
            work,
            tactic: None,
            stream: 0,
            flops: 0,
            bytes: 0,
        });
    };
    let mut expected = Vec::new();
    for link in 0..3 {
        let is_last = link == 2;
        let n = if is_last { columns } else { hidden };
        let (w, matrix) = constant(&mut program, &[1, n, width], 0.2, 0.0);
        let mut vector =
            |program: &mut Program, count: u64, mean: f64| rest.then(|| constant(program, &[count], 0.3, mean)).unzip();
        let (gamma, by) = vector(&mut program, width, 1.0);
        let (beta, more) = vector(&mut program, width, 0.0);
        let (bias, biases) = vector(&mut program, n, 0.0);
        let average = if centred { row.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let variance = row.iter().map(|x| (x - average) * (x - average)).sum::<f64>() / width as f64;
        let at = |values: &Option<Vec<f64>>, index: usize, none: f64| values.as_ref().map_or(none, |all| all[index]);
        let normal = |i: usize| {
            (row[i] - average) / (variance + f64::from(EPSILON)).sqrt() * at(&by, i, 1.0) + at(&more, i, 0.0)
        };
        let normal: Vec<f64> = (0..width as usize).map(normal).collect();
        let column = |n: usize| {
            let own = &matrix[n * width as usize..][..width as usize];
            let sum = own.iter().zip(&normal).map(|(w, x)| w * x).sum::<f64>() + at(&biases, n, 0.0);
            if is_last { sum } else { sum.max(0.0) }
        };
        let given: Vec<f64> = (0..n as usize).map(column).collect();
        let place = if is_last { Place::Output(0) } else { Place::Arena(0) };
        let between = buffer(&mut program, "between", 2 * n, place);
        let norm = Norm { epsilon: EPSILON, centred, scale: gamma, bias: beta };
        step(
            &mut program,
            "first",
            ProductWork {
                a: x.clone(),
                b: w.permuted(&[0, 2, 1]),
                bias,
                residual: None,
                y: View::rows(between, kind, &[1, 1, n]),
                alpha: 1.0,
                activation: (!is_last).then_some(Activation::Relu),
                norm: Some(norm),
            },
        );
        if is_last {
            program.outputs.push(Edge { name: "y".into(), element: kind.element(), shape: vec![n], buffer: between });
            expected = given;
            break;
        }
        let (w, matrix) = constant(&mut program, &[1, width, hidden], scale, 0.0);
        let (bias, biases) = rest.then(|| constant(&mut program, &[width], 0.3, 0.0)).unzip();
        let next = buffer(&mut program, "row", 2 * width, Place::Arena(0));
        let y = View::rows(next, kind, &[1, 1, width]);
        for (n, value) in row.iter_mut().enumerate() {
            let own = &matrix[n * hidden as usize..][..hidden as usize];
            *value += own.iter().zip(&given).map(|(w, x)| w * x).sum::<f64>();
            *value += biases.as_ref().map_or(0.0, |all| all[n]);
        }
        step(
            &mut program,
            "second",
            ProductWork {
                a: View::rows(between, kind, &[1, 1, hidden]),
                b: w.permuted(&[0, 2, 1]),
                bias,
                residual: Some(x),
                y: y.clone(),
                alpha: 1.0,
                activation: None,
                norm: None,
            },
        );
        x = y;
    }
    program.weight_bytes = weights.len() as u64;
    Case { program, weights, inputs: [("x".to_owned(), given)].into(), expected }
}

/// What comes out of the chain, by so many runs on the same memory.
fn run(emulator: &Emulator, case: &Case, runs: usize) -> Vec<f64> {
    let program = fused(&case.program, DEVICE).expect("it is a chain");
    program.check().expect("the program holds together");
    let kinds: Vec<&str> = program.steps.iter().map(|step| step.work.kind()).collect();
    assert_eq!(kinds, ["clear_sums", "gemm_pair", "gemm_pair", "gemm_of_sums"]);
    let mut host = Host::new(emulator, &program, &case.weights, &case.inputs);
    for step in (0..runs).flat_map(|_| &program.steps) {
        let (kernel, as_) = &kernels(&program, step)[0];
        host.run(step, kernel, *as_).unwrap_or_else(|error| panic!("{}: {error}", step.name));
    }
    host.output(0).to_f64s()
}

const WITH: With = With { width: 64, hidden: 256, columns: 40, centred: true, rest: true, mean: 0.0, scale: 0.1 };

#[test]
fn chains_give_what_sums_in_f64_give() {
    let Some(emulator) = Emulator::new() else { return };
    for with in [
        WITH,
        // Not whole tiles for each block, and blocks without any.
        With { width: 192, hidden: 768, columns: 50, ..WITH },
        With { width: 320, hidden: 1280, rest: false, ..WITH },
        With { width: 768, hidden: 3072, centred: false, ..WITH },
        // Few clusters, each with many columns; sums far from zero.
        With { width: 128, hidden: 48, mean: 30.0, ..WITH },
    ] {
        let case = case(with);
        // Again on the same memory, where that takes no time.
        let runs = if with.width < 300 { 2 } else { 1 };
        let error = relative_error(&case.expected, &run(&emulator, &case, runs));
        assert!(error < 1.5e-3, "{with:?}: {error:.1e}");
    }
}

#[test]
fn what_sums_cannot_hold_is_no_number() {
    let Some(emulator) = Emulator::new() else { return };
    let case = case(With { scale: 60000.0, width: 128, hidden: 512, ..WITH });
    assert!(run(&emulator, &case, 1).iter().all(|value| value.is_nan()));
}

#[test]
fn what_others_read_or_no_kernel_holds_is_no_chain() {
    let with = |change: &dyn Fn(&mut Program)| {
        let mut case = case(WITH);
        change(&mut case.program);
        let steps = fused(&case.program, DEVICE).map_or_else(Vec::new, |fused| fused.steps);
        steps.iter().filter(|step| step.work.kind() == "gemm_pair").count()
    };
    let product = |program: &mut Program, step: usize, change: &dyn Fn(&mut ProductWork)| {
        let Work::Product(product) = &mut program.steps[step].work else { unreachable!("all are products") };
        change(product);
    };
    let row = |program: &Program| program.steps[1].work.views().1.clone();
    assert_eq!(with(&|_| {}), 2);
    assert_eq!(with(&|program| product(program, 1, &|second| second.alpha = 2.0)), 1, "not what is added");
    assert_eq!(with(&|program| product(program, 2, &|first| first.norm = None)), 0, "not normalised");
    assert_eq!(with(&|program| product(program, 3, &|second| second.residual = None)), 1, "the chain ends ahead of it");
    assert_eq!(
        with(&|program| {
            let (edge, row) = (program.outputs[0].clone(), row(program));
            program.outputs.push(Edge { name: "row".into(), buffer: row.buffer, ..edge });
            program.buffers[row.buffer.0 as usize].place = Place::Output(1);
        }),
        1,
        "a row is an output"
    );
    assert_eq!(
        with(&|program| {
            let (mut other, row) = (program.steps[4].clone(), row(program));
            if let Work::Product(product) = &mut other.work {
                product.residual = Some(View { dims: vec![1, 1, 40], ..row });
            }
            program.steps.push(other);
        }),
        0,
        "another step reads both rows"
    );
    let older = planforge_cuda::codegen::gemm::Device { capability: 80, ..DEVICE };
    assert!(fused(&case(WITH).program, older).is_none(), "no clusters");
    let small = planforge_cuda::codegen::gemm::Device { shared_block_bytes: 2 * 1024, ..DEVICE };
    assert!(fused(&case(WITH).program, small).is_none(), "no room");
    let program = fused(&case(WITH).program, DEVICE).expect("it is a chain");
    let Work::Chain(link) = &program.steps[1].work else { unreachable!("a link comes behind what clears sums") };
    assert!(chain::kernels(link, older).is_empty());
    // Operands that say something else than each other.
    let mut wrong = link.clone();
    wrong.tail.as_mut().expect("it adds to a row").y.kind = Kind::F32;
    let mut broken = program.clone();
    broken.steps[1].work = Work::Chain(wrong);
    assert!(broken.check().is_err(), "sums of another type");
}
