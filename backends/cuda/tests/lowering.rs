//! Small graphs become steps that the kernels and libraries behind them can compute, without a GPU.

use planforge_cuda::{
    lower::{LowerError, lower},
    program::{ConvWork, ProductWork, Program, Step, Work},
    view::Kind,
};
use planforge_graph::ir::{
    Activation, Conv, ElementType, Epilogue, Graph, MatMul, Node, Op, Output, Pool, PoolKind, Resize,
    ResizeCoordinates, ResizeMode, ResizeNearest, Tensor, ValueId,
};
use std::collections::BTreeSet;

/// A graph in the making; values are f32.
#[derive(Default)]
struct Sketch(Graph);

impl Sketch {
    fn input(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let id = self.0.add_value(name, ElementType::F32, shape);
        self.0.inputs.push(id);
        id
    }

    fn constant(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let values = (0..shape.iter().product::<usize>()).map(|at| at as f32).collect();
        self.0.add_constant(name, Tensor::from_vec(shape.to_vec(), values).expect("as many values as the shape says"))
    }

    fn node(&mut self, op: Op, inputs: &[ValueId], shape: &[usize]) -> ValueId {
        let out = self.0.add_value(format!("value{}", self.0.values.len()), ElementType::F32, shape);
        let origins = vec![format!("node{}", self.0.nodes.len())];
        let inputs = inputs.iter().copied().map(Some).collect();
        self.0.nodes.push(Node { op, inputs, outputs: vec![out], origins });
        out
    }

    fn output(&mut self, value: ValueId) {
        self.0.outputs.push(Output { name: format!("out{}", self.0.outputs.len()), value });
    }

    fn lowered(&self) -> Result<Program, LowerError> {
        self.0.check().expect("the test's graph is one");
        let program = lower(&self.0, Kind::F16)?.program;
        program.check().expect("every view lies inside its buffer");
        Ok(program)
    }
}

fn products(program: &Program) -> Vec<&ProductWork> {
    let found = program.steps.iter().filter_map(|step| match &step.work {
        Work::Product(product) => Some(product),
        _ => None,
    });
    found.collect()
}

fn convolutions(program: &Program) -> Vec<&ConvWork> {
    let found = program.steps.iter().filter_map(|step| match &step.work {
        Work::Conv(conv) => Some(conv),
        _ => None,
    });
    found.collect()
}

fn conv(stride: usize, pad: usize) -> Op {
    Op::Conv(Conv {
        strides: vec![stride; 2],
        pads: vec![pad; 4],
        dilations: vec![1, 1],
        groups: 1,
        epilogue: Epilogue::default(),
    })
}

/// Kernels and libraries write 16 bytes at once: what begins between is computed elsewhere and copied there.
#[test]
fn a_product_is_written_where_vectors_are_aligned() {
    for (before, copies) in [(3, 1), (8, 0)] {
        let mut sketch = Sketch::default();
        let (x, a) = (sketch.input("x", &[1, before]), sketch.input("a", &[1, 8]));
        let w = sketch.constant("w", &[8, 16]);
        let product = sketch.node(Op::MatMul(MatMul::default()), &[a, w], &[1, 16]);
        let joined = sketch.node(Op::Concat { axis: 1 }, &[x, product], &[1, before + 16]);
        let y = sketch.node(Op::Activation(Activation::Sigmoid), &[joined], &[1, before + 16]);
        sketch.output(y);
        let program = sketch.lowered().expect("all of it has device code");
        let [product] = products(&program)[..] else { panic!("one product") };
        assert!(product.y.offset.is_multiple_of(8), "{:?}", product.y);
        let copied = |step: &&Step| {
            step.work.kind() == "copy" && step.work.views().0.iter().any(|read| read.buffer == product.y.buffer)
        };
        assert_eq!(program.steps.iter().filter(copied).count(), copies);
    }
}

/// Every layer of a dense block reads all before it: each of those lies in one place, that of the longest concatenation.
#[test]
fn concatenations_of_what_a_longer_one_holds_lie_inside_of_it() {
    let (channels, grown, layers) = (16, 8, 5);
    let mut sketch = Sketch::default();
    let x = sketch.input("x", &[1, channels, 4, 4]);
    let w = sketch.constant("w", &[channels, channels, 3, 3]);
    let mut parts = vec![sketch.node(conv(1, 1), &[x, w], &[1, channels, 4, 4])];
    for layer in 0..layers {
        let count = channels + layer * grown;
        let joined = match &parts[..] {
            [only] => *only,
            parts => sketch.node(Op::Concat { axis: 1 }, parts, &[1, count, 4, 4]),
        };
        let active = sketch.node(Op::Activation(Activation::Relu), &[joined], &[1, count, 4, 4]);
        let w = sketch.constant(&format!("w{layer}"), &[grown, count, 3, 3]);
        parts.push(sketch.node(conv(1, 1), &[active, w], &[1, grown, 4, 4]));
    }
    let all = channels + layers * grown;
    // Neither its beginning nor all of it.
    let middle = sketch.node(Op::Concat { axis: 1 }, &parts[2..4], &[1, 2 * grown, 4, 4]);
    let whole = sketch.node(Op::Concat { axis: 1 }, &parts, &[1, all, 4, 4]);
    for joined in [middle, whole] {
        let shape = sketch.0.static_shape(joined).expect("a known shape");
        let y = sketch.node(Op::Activation(Activation::Sigmoid), &[joined], &shape);
        sketch.output(y);
    }
    let program = sketch.lowered().expect("all of it has device code");
    let copies = program.steps.iter().filter(|step| step.work.kind() == "copy").count();
    // The image, to where its channels are last.
    assert_eq!(copies, 1, "{:?}", program.steps.iter().map(|step| &step.name).collect::<Vec<_>>());
    let places: BTreeSet<_> = convolutions(&program).iter().map(|conv| conv.y.buffer).collect();
    assert_eq!(places.len(), 1);
}

/// What is no part of a concatenation's memory is copied there once, however many concatenations lie in it.
#[test]
fn an_input_is_copied_once_into_concatenations_that_share_memory() {
    let mut sketch = Sketch::default();
    let (x, z) = (sketch.input("x", &[1, 8]), sketch.input("z", &[1, 8]));
    let mut parts = vec![x];
    for count in [16, 24] {
        parts.push(sketch.node(Op::Activation(Activation::Sigmoid), &[z], &[1, 8]));
        let joined = sketch.node(Op::Concat { axis: 1 }, &parts, &[1, count]);
        let y = sketch.node(Op::Activation(Activation::Sigmoid), &[joined], &[1, count]);
        sketch.output(y);
    }
    let program = sketch.lowered().expect("all of it has device code");
    assert_eq!(program.steps.iter().filter(|step| step.work.kind() == "copy").count(), 1);
}

#[test]
fn a_bias_is_read_where_vectors_are_aligned() {
    let mut sketch = Sketch::default();
    let (a, p) = (sketch.input("a", &[1, 8]), sketch.input("p", &[20]));
    let w = sketch.constant("w", &[8, 16]);
    let computed = sketch.node(Op::Activation(Activation::Sigmoid), &[p], &[20]);
    let bias = sketch.node(Op::Slice { starts: vec![4], steps: vec![1] }, &[computed], &[16]);
    let y = sketch.node(Op::MatMul(MatMul::default()), &[a, w, bias], &[1, 16]);
    sketch.output(y);
    let program = sketch.lowered().expect("all of it has device code");
    let [product] = products(&program)[..] else { panic!("one product") };
    let bias = product.bias.as_ref().expect("it has a bias");
    assert!(bias.offset.is_multiple_of(8), "{bias:?}");
}

/// The same weights, for an image whose channels are padded and for one whose channels are not.
#[test]
fn weights_are_arranged_for_each_padding() {
    let mut sketch = Sketch::default();
    let x = sketch.input("x", &[1, 3, 6, 6]);
    let w = sketch.constant("w", &[8, 3, 3, 3]);
    let window =
        Pool { kind: PoolKind::Max, kernel: vec![3; 2], strides: vec![1; 2], pads: vec![1; 4], dilations: vec![1; 2] };
    let pooled = sketch.node(Op::Pool(window), &[x], &[1, 3, 6, 6]);
    for image in [x, pooled] {
        let y = sketch.node(conv(1, 1), &[image, w], &[1, 8, 6, 6]);
        sketch.output(y);
    }
    let program = sketch.lowered().expect("all of it has device code");
    let channels: Vec<_> = convolutions(&program).iter().map(|conv| (conv.x.dims[1], conv.w.dims[1])).collect();
    assert_eq!(channels, [(8, 8), (3, 3)]);
}

/// Weights over pairs of columns begin in the first column of a pair, or in the second, by the padding.
#[test]
fn weights_over_pairs_are_arranged_for_each_shift() {
    let mut sketch = Sketch::default();
    let x = sketch.input("x", &[1, 3, 9, 9]);
    let w = sketch.constant("w", &[8, 3, 3, 3]);
    for (pad, size) in [(0, 4), (1, 5)] {
        let y = sketch.node(conv(2, pad), &[x, w], &[1, 8, size, size]);
        sketch.output(y);
    }
    let program = sketch.lowered().expect("all of it has device code");
    let [even, odd] = convolutions(&program)[..] else { panic!("two convolutions") };
    assert_eq!(even.w.dims, odd.w.dims);
    assert_ne!(even.w.buffer, odd.w.buffer);
}

/// Steps of a nearest resize of an image by a whole factor.
fn resize_steps(coordinates: ResizeCoordinates, rule: ResizeNearest, factor: usize) -> usize {
    let mut sketch = Sketch::default();
    let x = sketch.input("x", &[1, 8, 4, 4]);
    let scales = vec![1.0, 1.0, factor as f32, factor as f32];
    let resize = Resize { mode: ResizeMode::Nearest(rule), coordinates, scales };
    let y = sketch.node(Op::Resize(resize), &[x], &[1, 8, 4 * factor, 4 * factor]);
    sketch.output(y);
    sketch.lowered().expect("it has device code").steps.len()
}

#[test]
fn a_nearest_resize_that_only_repeats_is_one_copy() {
    use ResizeCoordinates::{AlignCorners, Asymmetric, HalfPixel};
    use ResizeNearest::{Ceil, Floor, RoundPreferFloor};
    // Others take each place of an axis by index, one axis after the other.
    assert_eq!(resize_steps(Asymmetric, Floor, 2), 1);
    assert_eq!(resize_steps(HalfPixel, RoundPreferFloor, 4), 1);
    assert_eq!(resize_steps(Asymmetric, RoundPreferFloor, 4), 2);
    assert_eq!(resize_steps(HalfPixel, Floor, 2), 2);
    assert_eq!(resize_steps(Asymmetric, Ceil, 2), 2);
    assert_eq!(resize_steps(AlignCorners, Floor, 2), 2);
}
