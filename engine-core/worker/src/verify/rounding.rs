//! How far outputs may lie apart that are all right: the reference operators again, every result rounded another way.
//!
//! This is Monte Carlo arithmetic (D. S. Parker, *Monte Carlo Arithmetic*, 1997; before it CESTAC, J. Vignes, 1993): each
//! operator's result is moved by as little as the precision moves it, at random, and the outputs of several runs show
//! what becomes of that. A well conditioned model hides it in the last digits; a norm of values that hardly differ makes
//! it large, and a quantized tensor turns it into whole steps, of which each travels on as the model lets it.
//!
//! A result is moved by as much of itself, and where it is a sum, each of its terms by as much of itself too: of terms that
//! take each other away the sum says nothing of how they were rounded.
//!
//! What is exact in every engine is left alone: whole numbers and sums of them, results that only move elements, and
//! whatever follows from constants.

use planforge_graph::{
    interpreter::{self, run},
    ir::{ElementType, Graph, Node, Op, Output, PoolKind, ReduceKind, Tensor, Unary, ValueId},
    reference::{OpError, steps},
    shape::TensorType,
};
use planforge_types::{HostTensor, NamedTensors, Precision};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};
use std::collections::BTreeMap;

/// How near to a half a rounding must be to fall the other way although no noise of a run took it there, as a multiple
/// of what one result is moved by: an engine's sums take more than one rounding.
const CLOSE: f64 = 16.0;

/// As [`CLOSE`], in steps, whatever the noise.
const CLOSE_STEPS_MAX: f64 = 1.0 / 32.0;

/// Most roundings of one tensor that are made to fall the other way in one run.
const FORCED_MAX: usize = 2;

/// How far beyond the half such an element is put, in steps, so that no type's last digit takes it back.
const BEYOND_STEPS: f64 = 0.01;

/// Largest float below which every whole number is one, whatever the type.
const WHOLE_MAX: f64 = 16_777_216.0;

/// By how much of itself a result may differ from another that is as right: a few units of the last place of what is
/// stored or multiplied, sums of products being kept in single precision everywhere.
pub(super) fn noise(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 => (-20f64).exp2(),
        Precision::Tf32 | Precision::Fp16 | Precision::Int8 | Precision::Fp8 | Precision::Best => (-10f64).exp2(),
        Precision::Bf16 => (-7f64).exp2(),
    }
}

/// Whether the node rounds to whole steps.
fn is_rounding(op: &Op) -> bool {
    matches!(op, Op::Quantize(_) | Op::FakeQuantize(_) | Op::Unary(Unary::Round))
}

/// Whether the node gives elements as they were given to it.
fn only_moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Identity
            | Op::Reshape
            | Op::Transpose { .. }
            | Op::Expand
            | Op::Concat { .. }
            | Op::Split { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Tile
            | Op::Where
            | Op::TopK { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::DepthToSpace { .. }
            | Op::SpaceToDepth { .. }
            | Op::Trilu { .. }
            | Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. }
    )
}

/// Whether the node adds up terms that follow from its first two inputs.
fn adds_up(op: &Op) -> bool {
    match op {
        Op::Conv(_)
        | Op::ConvTranspose(_)
        | Op::MatMul(_)
        | Op::BatchNorm { .. }
        | Op::Lrn { .. }
        | Op::CumSum { .. }
        | Op::Resize(_)
        | Op::Attention(_)
        | Op::Named(_) => true,
        Op::Pool(pool) => matches!(pool.kind, PoolKind::Average { .. }),
        Op::Reduce { kind, .. } => !matches!(kind, ReduceKind::Max | ReduceKind::Min),
        _ => false,
    }
}

/// Whether every element is a whole number: sums of products of such numbers are exact everywhere.
fn is_whole(tensor: &Tensor) -> bool {
    match tensor.values::<f32>() {
        Ok(values) => values.iter().all(|value| *value == value.trunc() && f64::from(value.abs()) <= WHOLE_MAX),
        Err(_) => tensor.to_f64s().iter().all(|value| *value == value.trunc() && value.abs() <= WHOLE_MAX),
    }
}

/// Whether the node computes a mean on its way, which is no whole number even where everything it is made of is.
fn has_a_mean(op: &Op) -> bool {
    matches!(
        op,
        Op::LayerNorm { .. }
            | Op::InstanceNorm { .. }
            | Op::GroupNorm { .. }
            | Op::Reduce { kind: ReduceKind::Mean | ReduceKind::L2 | ReduceKind::LogSum | ReduceKind::LogSumExp, .. }
    )
}

/// Which values follow from the inputs, rather than from constants alone.
fn varying(graph: &Graph) -> Vec<bool> {
    let mut varies = vec![false; graph.values.len()];
    graph.inputs.iter().for_each(|id| varies[id.index()] = true);
    for node in &graph.nodes {
        if node.inputs.iter().flatten().any(|id| varies[id.index()]) {
            node.outputs.iter().for_each(|id| varies[id.index()] = true);
        }
    }
    varies
}

/// Whether anything that follows from the inputs is rounded to steps on its way to the outputs.
pub(super) fn is_quantized(graph: &Graph) -> bool {
    let varies = varying(graph);
    let rounded = |node: &Node| is_rounding(&node.op) && node.input(0).is_some_and(|id| varies[id.index()]);
    graph.nodes.iter().any(rounded)
}

/// Which values are what a softmax gave, moved at most.
fn probabilities(graph: &Graph) -> Vec<bool> {
    let mut of_softmax = vec![false; graph.values.len()];
    for node in &graph.nodes {
        let moved = only_moves(&node.op) && node.input(0).is_some_and(|id| of_softmax[id.index()]);
        if moved || matches!(node.op, Op::Softmax { log: false, .. }) {
            node.outputs.iter().for_each(|id| of_softmax[id.index()] = true);
        }
    }
    of_softmax
}

/// Size of a step of every output that comes right out of a quantization by one scale.
pub(super) fn output_steps(graph: &Graph) -> BTreeMap<String, f64> {
    let definitions = graph.def_use().definition;
    let step = |output: &Output| {
        let mut value = output.value;
        loop {
            let node = &graph.nodes[definitions[value.index()]?];
            match &node.op {
                Op::Identity | Op::Reshape | Op::Transpose { .. } | Op::Expand => value = node.input(0)?,
                Op::Dequantize(_) | Op::FakeQuantize(_) => {
                    let scale = graph.constant(node.input(1)?)?.to_f64s();
                    let &[scale] = &scale[..] else { return None };
                    return Some((output.name.clone(), scale.abs()));
                }
                _ => return None,
            }
        }
    };
    graph.outputs.iter().filter_map(step).collect()
}

/// One run of the reference, rounded in the way that `seed` says; [`OpError::Stopped`] as soon as `stop` says so.
/// `integer_softmax`: half of the runs compute a softmax that is rounded to steps at once as runtimes on integers do (ONNX
/// Runtime's `QLinearSoftmax` multiplies by the scale's reciprocal, cut to a whole number, and is up to a step low).
pub(super) fn outputs(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    precision: Precision,
    integer_softmax: bool,
    seed: u64,
    stop: &dyn Fn() -> bool,
) -> Result<NamedTensors, OpError> {
    let mut shaker = Shaker {
        noise: noise(precision),
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        varies: varying(graph),
        probabilities: if integer_softmax { probabilities(graph) } else { vec![false; graph.values.len()] },
    };
    let inputs: BTreeMap<String, Tensor> = inputs
        .iter()
        .map(|(name, tensor)| Ok((name.clone(), shaker.nudged(tensor, false)?)))
        .collect::<Result<_, OpError>>()?;
    let mut compute = |node: &Node, tensors: &[Option<&Tensor>], types: &[TensorType]| match stop() {
        true => Err(OpError::Stopped),
        false => shaker.node(node, tensors, types),
    };
    let outputs = interpreter::execute_by(graph, &inputs, &mut compute)?;
    Ok(outputs.iter().map(|(name, tensor)| (name.clone(), HostTensor::from(tensor))).collect())
}

/// The same inputs, floats moved by a few units of their last place.
pub(super) fn nudged(inputs: &NamedTensors, noise: f64, seed: u64) -> Result<NamedTensors, OpError> {
    let random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut shaker = Shaker { noise, random, varies: Vec::new(), probabilities: Vec::new() };
    let nudge = |(name, tensor): (&String, &HostTensor)| {
        let tensor = shaker.nudged(&Tensor::try_from(tensor.clone())?, false)?;
        Ok((name.clone(), HostTensor::from(&tensor)))
    };
    inputs.iter().map(nudge).collect()
}

struct Shaker {
    noise: f64,
    random: Xoshiro256PlusPlus,
    varies: Vec<bool>,
    probabilities: Vec<bool>,
}

impl Shaker {
    fn node(&mut self, node: &Node, tensors: &[Option<&Tensor>], types: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
        let varies = |id: Option<ValueId>| id.is_some_and(|id| self.varies[id.index()]);
        if !node.outputs.iter().any(|id| self.varies[id.index()]) {
            return run(&node.op, tensors, types);
        }
        let varying =
            |position: usize| tensors.get(position).copied().flatten().filter(|_| varies(node.input(position)));
        let (at, other) = match (varying(0), varying(1)) {
            (Some(first), _) if is_rounding(&node.op) => {
                let integer_softmax = node.input(0).is_some_and(|id| self.probabilities[id.index()]);
                (0, self.rounded_otherwise(&node.op, first, tensors, integer_softmax)?)
            }
            (Some(first), _) if has_a_mean(&node.op) => (0, self.nudged(first, true)?),
            (first, second) if adds_up(&node.op) && (first.is_some() || second.is_some()) => {
                let exact = tensors.iter().take(2).flatten().all(|tensor| is_whole(tensor));
                let (at, terms) = first.map_or((1, second), |first| (0, Some(first)));
                let Some(terms) = terms.filter(|_| !exact) else {
                    return self.nudged_all(&node.op, run(&node.op, tensors, types)?);
                };
                (at, self.nudged(terms, true)?)
            }
            _ => return self.nudged_all(&node.op, run(&node.op, tensors, types)?),
        };
        let mut tensors = tensors.to_vec();
        tensors[at] = Some(&other);
        let results = run(&node.op, &tensors, types)?;
        // What was rounded to steps is exactly that.
        if is_rounding(&node.op) { Ok(results) } else { self.nudged_all(&node.op, results) }
    }

    fn nudged_all(&mut self, op: &Op, results: Vec<Tensor>) -> Result<Vec<Tensor>, OpError> {
        if only_moves(op) {
            return Ok(results);
        }
        results.iter().map(|tensor| self.nudged(tensor, has_a_mean(op))).collect()
    }

    /// By how much of itself an element of this type is moved; doubles are as good as exact.
    fn noise_of(&self, element: ElementType) -> Option<f64> {
        match element {
            ElementType::F32 => Some(self.noise),
            ElementType::F16 => Some(self.noise.max((-10f64).exp2())),
            ElementType::Bf16 => Some(self.noise.max((-7f64).exp2())),
            _ => None,
        }
    }

    /// From -1 to 1.
    fn sway(&mut self) -> f64 {
        self.random.random::<f64>() * 2.0 - 1.0
    }

    fn nudged(&mut self, tensor: &Tensor, also_whole: bool) -> Result<Tensor, OpError> {
        let Some(noise) = self.noise_of(tensor.element()) else { return Ok(tensor.clone()) };
        let mut values = tensor.to_f64s();
        for value in &mut values {
            let exact = *value == value.trunc() && value.abs() <= WHOLE_MAX && !also_whole;
            if !exact && value.is_finite() {
                *value *= 1.0 + noise * self.sway();
            }
        }
        of_values(tensor, &values)
    }

    /// `x` such that it rounds as it might elsewhere: moved by noise, and a few elements that lie next to a half on the
    /// other side of it; of an integer softmax with a whole number of steps to 1, or not.
    fn rounded_otherwise(
        &mut self,
        op: &Op,
        x: &Tensor,
        tensors: &[Option<&Tensor>],
        integer_softmax: bool,
    ) -> Result<Tensor, OpError> {
        let steps = match op {
            Op::Quantize(how) | Op::FakeQuantize(how) => steps(*how, tensors)?,
            _ => vec![1.0; x.len()],
        };
        let mut values = x.to_f64s();
        if integer_softmax && self.random.random::<bool>() {
            let whole = |step: f64| (1.0 / step).floor() * step;
            values
                .iter_mut()
                .zip(&steps)
                .filter(|(_, step)| **step < 1.0)
                .for_each(|(value, step)| *value *= whole(*step));
        }
        let noise = self.noise_of(x.element()).unwrap_or(self.noise);
        let mut close: Vec<(f64, usize)> = Vec::new();
        for (index, (value, step)) in values.iter_mut().zip(&steps).enumerate() {
            let quotient = *value / step;
            if !quotient.is_finite() {
                continue;
            }
            let to_half = quotient.floor() + 0.5 - quotient;
            // A whole number of steps is that many in every engine.
            if quotient != quotient.trunc() {
                *value *= 1.0 + noise * self.sway();
            }
            if to_half.abs() <= (CLOSE * noise * quotient.abs()).min(CLOSE_STEPS_MAX) {
                close.push((to_half, index));
            }
        }
        close.sort_by(|(a, _), (b, _)| a.abs().total_cmp(&b.abs()));
        for (to_half, index) in close.into_iter().take(FORCED_MAX) {
            if self.random.random::<bool>() {
                let beyond = to_half + BEYOND_STEPS * if to_half > 0.0 { 1.0 } else { -1.0 };
                values[index] += beyond * steps[index];
            }
        }
        of_values(x, &values)
    }
}

/// A tensor like this one with other values.
fn of_values(like: &Tensor, values: &[f64]) -> Result<Tensor, OpError> {
    Ok(Tensor::try_from(HostTensor::of_values(like.element(), like.shape().to_vec(), values))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_graph::ir::{Binary, Quantization};

    fn node(op: Op, inputs: &[ValueId], output: ValueId) -> Node {
        Node { op, inputs: inputs.iter().map(|id| Some(*id)).collect(), outputs: vec![output], origins: Vec::new() }
    }

    /// x -> op -> y
    fn single(op: Op, shape: &[usize], element: ElementType, more: Option<Tensor>) -> Graph {
        let mut graph = Graph::default();
        let x = graph.add_value("x", ElementType::F32, shape);
        let more = more.map(|tensor| graph.add_constant("c", tensor));
        let y = graph.add_value("y", element, shape);
        graph.inputs = vec![x];
        graph.outputs = vec![Output { name: "y".into(), value: y }];
        graph.nodes = vec![node(op, &[Some(x), more].into_iter().flatten().collect::<Vec<_>>(), y)];
        graph
    }

    fn shaken(graph: &Graph, x: &[f32], seed: u64) -> Vec<f64> {
        shaken_by(graph, x, false, seed)
    }

    fn shaken_by(graph: &Graph, x: &[f32], integer_softmax: bool, seed: u64) -> Vec<f64> {
        let x = Tensor::from_vec(vec![x.len()], x.to_vec()).unwrap();
        let outputs =
            outputs(graph, &[("x".to_owned(), x)].into(), Precision::Fp32, integer_softmax, seed, &|| false).unwrap();
        Tensor::try_from(outputs["y"].clone()).unwrap().to_f64s()
    }

    #[test]
    fn only_roundings_next_to_a_half_fall_the_other_way() {
        let how = Quantization { element: ElementType::I8, axis: None };
        let graph = single(Op::Quantize(how), &[5], ElementType::I8, Some(Tensor::scalar(0.5f32)));
        assert!(is_quantized(&graph));
        // In steps: 2.50001, -3.49999, 1.0, 7.3, 300: saturated.
        let x = [1.250_005, -1.749_995, 0.5, 3.65, 150.0];
        let runs: Vec<Vec<f64>> = (0..32).map(|seed| shaken(&graph, &x, seed)).collect();
        let seen = |at: usize| {
            let mut seen: Vec<f64> = runs.iter().map(|run| run[at]).collect();
            seen.sort_by(f64::total_cmp);
            seen.dedup();
            seen
        };
        assert_eq!((seen(0), seen(1)), (vec![2.0, 3.0], vec![-4.0, -3.0]));
        assert_eq!((seen(2), seen(3), seen(4)), (vec![1.0], vec![7.0], vec![127.0]));
    }

    #[test]
    fn a_softmax_on_integers_may_take_a_whole_number_of_steps() {
        let how = Quantization { element: ElementType::U8, axis: None };
        let graph = |scale: f32| {
            let mut graph = single(Op::Softmax { axis: 0, log: false }, &[2], ElementType::F32, None);
            let scale = graph.add_constant("s", Tensor::scalar(scale));
            let (soft, q) = (graph.outputs[0].value, graph.add_value("q", ElementType::U8, &[2]));
            graph.nodes.push(node(Op::Quantize(how), &[soft, scale], q));
            graph.outputs = vec![Output { name: "y".into(), value: q }];
            graph
        };
        let seen = |scale: f32, integers: bool| -> Vec<Vec<f64>> {
            // 0.88 and 0.12 of 1.
            let mut seen: Vec<Vec<f64>> =
                (0..32).map(|seed| shaken_by(&graph(scale), &[2.0, 0.0], integers, seed)).collect();
            seen.sort_by(|a, b| a.partial_cmp(b).unwrap());
            seen.dedup();
            seen
        };
        // 254.99998 steps to 1, which is cut to 254; 256 stay.
        assert_eq!(seen(1.0 / 255.0, true), [[224.0, 30.0], [225.0, 30.0]]);
        assert_eq!(seen(1.0 / 256.0, true), [[225.0, 31.0]]);
        assert_eq!(seen(1.0 / 255.0, false), [[225.0, 30.0]], "an engine is not excused by it");
    }

    #[test]
    fn whole_numbers_stay_and_others_move_by_noise() {
        let graph = single(Op::Binary(Binary::Add), &[3], ElementType::F32, Some(Tensor::scalar(1.0f32)));
        assert!(!is_quantized(&graph));
        let y = shaken(&graph, &[1.0, 0.0, 0.3], 1);
        assert_eq!(y[..2], [2.0, 1.0]);
        let error = (y[2] / f64::from(1.3f32) - 1.0).abs();
        assert!(error > 0.0 && error < 4.0 * noise(Precision::Fp32), "{error}");
    }

    #[test]
    fn terms_that_take_each_other_away_leave_their_roundings() {
        let reduce = |kind| Op::Reduce { kind, axes: vec![0], keep: false };
        let of = |op: Op, weights: Option<&[f32]>, x: &[f32]| -> Vec<f64> {
            let mut graph = Graph::default();
            let input = graph.add_value("x", ElementType::F32, &[x.len()]);
            let weights =
                weights.map(|w| graph.add_constant("w", Tensor::from_vec(vec![w.len()], w.to_vec()).unwrap()));
            let y = graph.add_value("y", ElementType::F32, &[]);
            graph.inputs = vec![input];
            graph.outputs = vec![Output { name: "y".into(), value: y }];
            graph.nodes = vec![node(op, &[Some(input), weights].into_iter().flatten().collect::<Vec<_>>(), y)];
            (0..16).flat_map(|seed| shaken(&graph, x, seed)).collect()
        };
        let largest = |y: Vec<f64>| y.into_iter().fold(0.0, |most: f64, y| most.max(y.abs()));
        let product = || Op::MatMul(planforge_graph::ir::MatMul::default());
        let ones = [1.0f32; 4];
        // Exact, or nearly so, by what is left; not by what it is left of.
        let weights = [1000.1f32, -1000.1, 700.3, -700.3];
        let off = largest(of(product(), Some(&weights), &ones));
        assert!((1e-4..1e-1).contains(&off), "{off}");
        let sum = largest(of(reduce(ReduceKind::Sum), None, &weights));
        assert!((1e-4..1e-1).contains(&sum), "{sum}");
        // Whole numbers add up to what they are, and the largest of some is one of them.
        assert_eq!(largest(of(product(), Some(&[3.0, -3.0, 2.0, -2.0]), &ones)), 0.0);
        assert_eq!(largest(of(reduce(ReduceKind::Sum), None, &[3.0, -3.0, 2.0, -2.0])), 0.0);
        assert_eq!(of(reduce(ReduceKind::Max), None, &[3.0, 1.0]), [3.0; 16]);
    }

    #[test]
    fn constants_are_rounded_as_everywhere() {
        let how = Quantization { element: ElementType::I8, axis: None };
        let mut graph = single(Op::Binary(Binary::Add), &[1], ElementType::F32, None);
        let weights = graph.add_constant("w", Tensor::from_vec(vec![1], vec![0.25f32]).unwrap());
        let scale = graph.add_constant("s", Tensor::scalar(0.5f32));
        let kept = graph.add_value("kept", ElementType::F32, &[1]);
        graph.nodes[0].inputs.push(Some(kept));
        graph.nodes.insert(0, node(Op::FakeQuantize(how), &[weights, scale], kept));
        assert!(!is_quantized(&graph));
        assert!((0..16).all(|seed| shaken(&graph, &[1.0], seed) == [1.0]));
    }

    #[test]
    fn a_norm_of_equal_values_shows_how_badly_it_is_conditioned() {
        let spread = |x: &[f32], epsilon: f32| {
            let graph = single(Op::LayerNorm { axis: 0, epsilon }, &[4], ElementType::F32, None);
            let runs: Vec<f64> = (0..8).flat_map(|seed| shaken(&graph, x, seed)).collect();
            runs.iter().copied().fold(f64::MIN, f64::max) - runs.iter().copied().fold(f64::MAX, f64::min)
        };
        assert!(spread(&[1.0, 1.0, 1.0, 1.0], 1e-12) > 0.1);
        assert!(spread(&[1.0, 1.0, 1.0, 1.0], 1e-5) < 1e-3);
    }
}
