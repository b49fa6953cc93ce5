//! Models that ONNX Runtime's own quantizer made (`tests/quantized/generate.py`): what rounds otherwise is right, and
//! what computes something else is refused.

use super::*;
use crate::measure::MonotonicClock;
use planforge_backend::{Window, WindowSamples};
use planforge_graph::{
    interpreter::{execute_by, run},
    ir::{Node, Op, Unary, ValueId},
    shape::TensorType,
};
use planforge_report::LayerTime;
use planforge_types::Port;
use std::fs;

/// An engine whose outputs are known already.
struct Answers(NamedTensors);

impl Meter for Answers {
    fn inputs(&self) -> Vec<Port> {
        Vec::new()
    }
    fn outputs(&self) -> Vec<Port> {
        Vec::new()
    }
    fn bind(&mut self, _: &NamedTensors) -> Result<(), BackendError> {
        Ok(())
    }
    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        Ok(self.0.clone())
    }
    fn window(&mut self, _: Window) -> Result<WindowSamples, BackendError> {
        Ok(WindowSamples::default())
    }
    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        Ok(Vec::new())
    }
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// What changes a node's results, told the node's place and inputs.
type Fault<'a> = &'a mut dyn FnMut(usize, &Node, &[Option<&Tensor>], &mut Vec<Tensor>);

struct Model {
    name: String,
    graph: Graph,
    inputs: NamedTensors,
}

impl Model {
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quantized");
        let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let read = |path: &std::path::PathBuf| {
            let graph = planforge_import::import(&planforge_onnx::Model::open(path).unwrap(), None).unwrap();
            let inputs = inputs::generate(&inputs::of_graph(&graph).unwrap(), inputs::REFERENCE_SEED);
            Self { name: path.file_stem().unwrap().to_str().unwrap().into(), graph, inputs }
        };
        files.iter().map(read).collect()
    }

    fn tensors(&self) -> BTreeMap<String, Tensor> {
        let tensor = |tensor: &HostTensor| Tensor::try_from(tensor.clone()).unwrap();
        self.inputs.iter().map(|(name, given)| (name.clone(), tensor(given))).collect()
    }

    fn verdict(&self, answers: NamedTensors) -> Verdict {
        let check = Check {
            graph: Ok(&self.graph),
            independent: None,
            second: None,
            inputs: &self.inputs,
            eval: None,
            precision: Precision::Fp32,
            budget_ms: ORACLE_BUDGET_MS,
            clock: &MonotonicClock::default(),
            cancel: &Cancel::default(),
        };
        check.run(&mut Answers(answers)).unwrap()
    }

    /// The reference with a fault, which may change any node's results; it is told their places.
    fn with_fault(&self, fault: Fault<'_>) -> NamedTensors {
        let mut at = 0;
        let mut compute = |node: &Node, tensors: &[Option<&Tensor>], types: &[TensorType]| {
            let mut results = run(&node.op, tensors, types)?;
            fault(at, node, tensors, &mut results);
            at += 1;
            Ok(results)
        };
        let outputs = execute_by(&self.graph, &self.tensors(), &mut compute).unwrap();
        outputs.iter().map(|(name, tensor)| (name.clone(), HostTensor::from(tensor))).collect()
    }

    /// Places of the nodes that `wanted` picks, those that follow from constants left out.
    fn nodes(&self, wanted: &dyn Fn(&Op) -> bool) -> Vec<usize> {
        let varies = |node: &Node| node.input(0).is_some_and(|id| self.graph.constant(id).is_none());
        let nodes = self.graph.nodes.iter().enumerate();
        nodes.filter(|(_, node)| wanted(&node.op) && varies(node)).map(|(at, _)| at).collect()
    }
}

fn of_values(like: &Tensor, values: &[f64]) -> Tensor {
    Tensor::try_from(HostTensor::of_values(like.element(), like.shape().to_vec(), values)).unwrap()
}

/// The second channel of a product holds what the first does.
fn wrong_channel(node: &Node, result: &mut Tensor) {
    let shape = result.shape().to_vec();
    let axis = if matches!(node.op, Op::Conv(_)) { 1 } else { shape.len() - 1 };
    let inner: usize = shape[axis + 1..].iter().product();
    let mut values = result.to_f64s();
    for block in values.chunks_mut(shape[axis] * inner) {
        let first = block[..inner].to_vec();
        block[inner..2 * inner].copy_from_slice(&first);
    }
    *result = of_values(result, &values);
}

/// Every element is some steps too high.
fn wrong_zero_point(steps: f64, result: &mut Tensor) {
    let values: Vec<f64> = result.to_f64s().iter().map(|value| value + steps).collect();
    *result = of_values(result, &values);
}

/// What the quantization at one place is given comes out of the next dequantization as if no integer had bounds.
fn without_bounds(model: &Model, at: usize) -> NamedTensors {
    let mut given: Option<(ValueId, Vec<f64>)> = None;
    model.with_fault(&mut |place, node, tensors, results| match (&node.op, &given) {
        (Op::Quantize(_), _) if place == at => {
            let scale = tensors[1].unwrap().to_f64s();
            let x = tensors[0].unwrap().to_f64s().into_iter();
            given = Some((node.outputs[0], x.map(|x| (x / scale[0]).round_ties_even() * scale[0]).collect()));
        }
        (Op::Dequantize(_), Some((id, values))) if node.input(0) == Some(*id) => {
            results[0] = of_values(&results[0], values);
        }
        _ => {}
    })
}

#[test]
fn an_engine_that_rounds_otherwise_is_right() {
    let mut beyond = 0;
    for model in Model::all() {
        for seed in 100..116 {
            let answers =
                rounding::outputs(&model.graph, &model.tensors(), Precision::Fp32, false, seed, &|| false).unwrap();
            let verdict = model.verdict(answers);
            let numerics = verdict.numerics.as_ref().unwrap();
            assert!(verdict.accurate, "{} {seed}: {:?}", model.name, verdict.findings);
            let allowed = numerics.outputs.iter().filter_map(|output| output.allowed.as_ref());
            assert_eq!(allowed.map(|allowed| allowed.unjudged).sum::<u64>(), 0, "{}", model.name);
            beyond += u32::from(numerics.max_error > numerics.threshold);
        }
    }
    assert!(beyond > 20, "{beyond} of 96 engines are right only because of their roundings");
}

/// By how many steps a zero point is wrong: of a single step the outputs show no more than of a few roundings.
const WRONG_BY: f64 = 16.0;

#[test]
fn wrong_channels_zero_points_and_bounds_are_refused() {
    let products = |op: &Op| matches!(op, Op::Conv(_) | Op::MatMul(_));
    let roundings = |op: &Op| matches!(op, Op::Quantize(_) | Op::FakeQuantize(_) | Op::Unary(Unary::Round));
    // By fault: how many were tried that matter, and which of them passed.
    let mut tried: BTreeMap<&str, (u32, Vec<String>)> = BTreeMap::new();
    for model in Model::all() {
        let right = model.with_fault(&mut |_, _, _, _| {});
        let mut try_out = |what: &'static str, at: usize, answers: NamedTensors| {
            // What single precision explains is no fault, whatever was done.
            if numerics::passes(&numerics::compare(&answers, &right, &BTreeMap::new()), 1e-3) {
                return;
            }
            let verdict = model.verdict(answers);
            let (count, passed) = tried.entry(what).or_default();
            *count += 1;
            passed.extend(verdict.accurate.then(|| format!("{} at {at}: {:?}", model.name, verdict.findings)));
        };
        for at in model.nodes(&products).into_iter().step_by(3) {
            let fault: Fault<'_> = &mut |place, node, _, results| {
                if place == at {
                    wrong_channel(node, &mut results[0]);
                }
            };
            try_out("channel", at, model.with_fault(fault));
        }
        for at in model.nodes(&roundings).into_iter().step_by(5) {
            // Of a single number, which all the others are then counted from, nothing goes wrong.
            let single = model.graph.static_shape(model.graph.nodes[at].outputs[0]).unwrap().is_empty();
            let fault: Fault<'_> = &mut |place, _, _, results| {
                if place == at && !single {
                    wrong_zero_point(WRONG_BY, &mut results[0]);
                }
            };
            try_out("zero point", at, model.with_fault(fault));
            try_out("bounds", at, without_bounds(&model, at));
        }
    }
    // A softmax takes a shift of all its keys out again.
    tried.values_mut().for_each(|(_, passed)| passed.retain(|line| !line.starts_with("tokens-qoperator")));
    assert!(tried.values().all(|(_, passed)| passed.is_empty()), "{tried:#?}");
    let counts = ["channel", "zero point", "bounds"].map(|what| tried.get(what).map_or(0, |(count, _)| *count));
    assert!(counts[0] >= 15 && counts[1] >= 15 && counts[2] >= 1, "{counts:?}");
}
