//! A head in one kernel beside sums in f64, and what it writes into its caches.

use super::{Numbers, relative_error};
use crate::emulator::{As, Emulator, host::Host};
use planforge_cuda::{
    codegen::{gemm::Device, heads},
    program::{
        Append, Buffer, Edge, HeadsWork, Norm, OneTokenWork, Place, ProductWork, Program, Seen, State, Step, Work,
    },
    view::{BufferId, Kind, View},
};
use planforge_graph::ir::Tensor;
use planforge_types::{ElementType, HostTensor};
use std::collections::BTreeMap;

const EPSILON: f32 = 1e-5;
const HEADS: u64 = 2;

/// A program of one step, what it is given, and the same as numbers.
struct Case {
    program: Program,
    weights: Vec<u8>,
    inputs: BTreeMap<String, Tensor>,
    values: BTreeMap<&'static str, Vec<f64>>,
}

fn case(kind: Kind, places: u64, size: u64, place: i64) -> Case {
    let (k, n) = (64, 3 * HEADS * size);
    let mut numbers = Numbers(places * 100 + size, kind);
    let (mut program, mut weights) = (Program::default(), Vec::new());
    let (mut inputs, mut values) = (BTreeMap::new(), BTreeMap::new());
    let buffer = |program: &mut Program, name: &str, bytes: u64, place: Place| {
        program.buffers.push(Buffer { name: name.into(), bytes: bytes.next_multiple_of(256), place });
        BufferId(program.buffers.len() as u32 - 1)
    };
    let mut constant = |program: &mut Program, name: &'static str, dims: &[u64], scale: f64, mean: f64| {
        let (tensor, as_numbers) = numbers.next(dims.iter().product(), scale, mean);
        let at = Place::Weights(weights.len() as u64);
        weights.extend_from_slice(&tensor.bytes);
        weights.resize(weights.len().next_multiple_of(256), 0);
        values.insert(name, as_numbers);
        View::rows(buffer(program, name, tensor.bytes.len() as u64, at), kind, dims)
    };
    let w = constant(&mut program, "w", &[1, n, k], 0.4, 0.0);
    let bias = constant(&mut program, "bias", &[n], 0.2, 0.0);
    let scale = constant(&mut program, "scale", &[k], 0.2, 1.0);
    let shift = constant(&mut program, "shift", &[k], 0.2, 0.0);
    let mut input = |program: &mut Program, name: &'static str, tensor: HostTensor, dims: &[u64]| {
        let at = Place::Input(program.inputs.len() as u32);
        let buffer = buffer(program, name, tensor.bytes.len() as u64, at);
        program.inputs.push(Edge { name: name.into(), element: tensor.element, shape: dims.to_vec(), buffer });
        inputs.insert(name.to_owned(), Tensor::new(tensor.element, tensor.shape, tensor.bytes.into()).unwrap());
        View::rows(buffer, Kind::of(tensor.element), dims)
    };
    let mut numbers = Numbers(places + size, kind);
    let (tensor, row) = numbers.next(k, 1.0, 0.5);
    let x = input(&mut program, "x", tensor, &[1, 1, k]);
    let cache = [1, HEADS, places, size];
    let mut caches = ["keys", "values"].map(|name| (name, numbers.next(cache.iter().product(), 1.0, 0.0)));
    let [keys, stored] = caches.each_mut().map(|(name, (tensor, _))| input(&mut program, name, tensor.clone(), &cache));
    let number = HostTensor { element: ElementType::I64, shape: vec![1], bytes: place.to_le_bytes().to_vec() };
    let at = input(&mut program, "place", number, &[1]);
    values.insert("x", row);
    values.extend(caches.map(|(name, (_, as_numbers))| (name, as_numbers)));
    let between = buffer(&mut program, "between", 4 * n, Place::Arena(0));
    program.arena_bytes = (4 * n).next_multiple_of(256);
    let out = buffer(&mut program, "o", HEADS * size * 2, Place::Output(0));
    let shape = vec![1, HEADS, 1, size];
    program.outputs.push(Edge { name: "o".into(), element: kind.element(), shape: shape.clone(), buffer: out });
    for (number, view) in [(1, &keys), (2, &stored)] {
        let shape = cache.to_vec();
        let (name, output) = (format!("new {number}"), program.outputs.len() as u32);
        program.outputs.push(Edge { name, element: kind.element(), shape, buffer: view.buffer });
        program.states.push(State { input: number, output, places: None, grows: None });
    }
    // Values first, then queries, then keys.
    let part = |number: u64| View { offset: number * HEADS * size, ..View::rows(between, kind, &shape) };
    let product = ProductWork {
        a: x,
        b: w.permuted(&[0, 2, 1]),
        bias: Some(bias),
        residual: None,
        y: View::rows(between, kind, &[1, 1, n]),
        alpha: 1.0,
        activation: None,
        norm: Some(Norm { epsilon: EPSILON, centred: true, scale: Some(scale), bias: Some(shift) }),
    };
    let attention = OneTokenWork {
        q: part(1),
        k: keys,
        v: stored,
        mask: None,
        append: Some(Append { k: part(2), v: part(0), place: at }),
        turn: None,
        seen: Some(Seen { finite: true, early: true }),
        parts: View::rows(between, Kind::F32, &[1, HEADS, 1, size + 2]),
        scale: 0.3,
        keys: places,
        guarded: false,
    };
    let work = Work::Heads(Box::new(HeadsWork { product, attention, o: View::rows(out, kind, &shape) }));
    let (name, origins) = ("head".into(), Vec::new());
    program.steps.push(Step { name, origins, work, tactic: None, stream: 0, flops: 0, bytes: 0 });
    Case { program, weights, inputs, values }
}

/// As `kind` holds a number.
fn rounded(kind: Kind, values: &[f64]) -> Vec<f64> {
    let tensor = HostTensor::of_values(kind.element(), vec![values.len()], values);
    Tensor::new(tensor.element, tensor.shape, tensor.bytes.into()).unwrap().to_f64s()
}

/// The result, and both caches as they are left.
fn expected(case: &Case, kind: Kind, places: usize, size: usize, place: usize) -> [Vec<f64>; 3] {
    let of = |name: &str| &case.values[name];
    let (x, k, width) = (of("x"), of("x").len(), HEADS as usize * size);
    let mean = x.iter().sum::<f64>() / k as f64;
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / k as f64;
    let normal = |i: usize| (x[i] - mean) / (variance + f64::from(EPSILON)).sqrt() * of("scale")[i] + of("shift")[i];
    let column = |n: usize| (0..k).map(|i| of("w")[n * k + i] * normal(i)).sum::<f64>() + of("bias")[n];
    let columns = rounded(kind, &(0..3 * width).map(column).collect::<Vec<_>>());
    let [mut keys, mut stored] = ["keys", "values"].map(|name| of(name).clone());
    let mut out = Vec::new();
    for head in 0..HEADS as usize {
        let begin = |key: usize| (head * places + key) * size;
        let part = |number: usize| &columns[number * width + head * size..][..size];
        keys[begin(place)..][..size].copy_from_slice(part(2));
        stored[begin(place)..][..size].copy_from_slice(part(0));
        let score = |key: usize| 0.3 * part(1).iter().zip(&keys[begin(key)..]).map(|(q, k)| q * k).sum::<f64>();
        let scores: Vec<f64> = (0..=place).map(score).collect();
        let top = scores.iter().copied().fold(f64::MIN, f64::max);
        let shares: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let all: f64 = shares.iter().sum();
        let value =
            |i: usize| shares.iter().enumerate().map(|(key, share)| share * stored[begin(key) + i]).sum::<f64>();
        out.extend((0..size).map(|i| value(i) / all));
    }
    [out, keys, stored]
}

#[test]
fn heads_give_what_sums_in_f64_give_and_write_one_place() {
    let Some(emulator) = Emulator::new() else { return };
    let device = Device { capability: 90, sm_count: 24, shared_block_bytes: 227 * 1024 };
    for (kind, places, size, tokens) in [
        // One tile of keys for each block; some; one for each warp; several, in two passes and four.
        (Kind::F16, 48, 16, vec![0, 7, 47]),
        (Kind::Bf16, 300, 32, vec![0, 131, 299]),
        (Kind::F16, 1024, 64, vec![0, 128, 777, 1023]),
        (Kind::Bf16, 2048, 64, vec![1, 1500]),
        (Kind::F16, 4096, 16, vec![3, 4095]),
    ] {
        for place in tokens {
            let case = case(kind, places, size, place);
            let Work::Heads(work) = &case.program.steps[0].work else { unreachable!("it is a head") };
            let kernels = heads::kernels(work, device);
            assert_eq!(kernels.len(), 1, "{places} places of {size}");
            let mut host = Host::new(&emulator, &case.program, &case.weights, &case.inputs);
            let said = format!("{kind:?}, {places} places of {size} at {place}");
            host.run(&case.program.steps[0], &kernels[0], As::Hopper).unwrap_or_else(|error| panic!("{said}: {error}"));
            let [out, keys, stored] = expected(&case, kind, places as usize, size as usize, place as usize);
            let bound = if kind == Kind::F16 { 1.5e-3 } else { 1e-2 };
            for (what, expected, got) in [
                ("the result", out, host.output(0)),
                ("keys", keys, host.output(1)),
                ("values", stored, host.output(2)),
            ] {
                let error = relative_error(&expected, &got.to_f64s());
                assert!(error < bound, "{said}: {what} is off by {error:.1e}");
            }
        }
    }
}
