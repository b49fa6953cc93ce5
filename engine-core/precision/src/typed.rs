//! Typed models: fp16 or bf16 with islands of single precision, and a cast wherever one meets the other.
//!
//! A node is an island by rule (its sums or exponentials need the range), by its weights (they do not fit), by the data
//! (its values reach what fp16 cannot hold) or by the budget (its error). Inputs and outputs of the model keep their type.

use crate::{
    budget::Cost,
    draft::{Draft, Judge, Prepared},
    error::{Finding, PrecisionError},
    fold,
    layers::layers,
    net::{Net, bodies, floats, int, is_standard, node},
    observe::{Observations, Observer, observe},
    opset,
    report::LayerReport,
    samples::Samples,
};
use half::{bf16, f16};
use planforge_onnx::proto::{NodeProto, TensorProto, tensor_proto::DataType};
use planforge_types::preparation::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// Operators that compute well in sixteen bits.
const COMPUTES: [&str; 38] = [
    "Abs",
    "Add",
    "AveragePool",
    "Ceil",
    "Clip",
    "Conv",
    "ConvTranspose",
    "Cos",
    "Div",
    "Elu",
    "Erf",
    "Floor",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "MatMul",
    "Max",
    "Min",
    "Mish",
    "Mul",
    "Neg",
    "PRelu",
    "ReduceMax",
    "ReduceMin",
    "Relu",
    "Resize",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sub",
    "Tanh",
];
/// Operators that move numbers: they follow what they are given.
const MOVES: [&str; 19] = [
    "Concat",
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "MaxPool",
    "Pad",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// The largest number of fp16.
const LARGEST: f64 = 65504.0;
/// Values on data must stay below this share of it: other data goes further.
const MARGIN: f64 = 0.5;
/// The smallest number of fp16 that is not zero.
const SMALLEST: f32 = 5.960_464_5e-8;
/// More of a layer's weights must not become zero.
const LOST_WEIGHTS: f64 = 0.01;

/// What one node is, and why.
#[derive(Clone, Debug)]
struct Choice {
    low: bool,
    why: String,
}

pub(crate) fn prepare(
    mut net: Net,
    samples: Option<&Samples>,
    judge: Option<&Judge<'_>>,
    mut draft: Draft<'_>,
) -> Result<Prepared, PrecisionError> {
    let options = draft.options;
    let before = net.clone();
    let folded = fold::batch_norms(&mut net);
    if options.kind == Kind::Bf16
        && let Err(error) = opset::raise(&mut net, 22)
    {
        let text = format!(
            "{error}: some of its operators know no bf16 by that opset's letter, and strict readers refuse them"
        );
        draft.findings.push(Finding::new("opset-kept", text));
    }
    let seen = match samples {
        Some(samples) => {
            let graph = net.graph();
            let values =
                graph.input.iter().map(|input| &input.name).chain(graph.node.iter().flat_map(|node| &node.output));
            let wanted = values.filter(|name| net.is_single(name)).map(|name| (name.clone(), None)).collect();
            let mut observer = Observer::of(&wanted);
            let watched = observer.wanted().cloned().collect();
            let mut session =
                draft.runner.open(&net.model()?, samples.profile().as_ref(), &watched, samples.batches())?;
            observe(session.as_mut(), samples, &mut observer)?;
            Some(observer.into_seen().0)
        }
        None => None,
    };
    if seen.is_none() && options.kind == Kind::Fp16 {
        let text = "no data was given: whether values go beyond what fp16 holds was not looked at".to_owned();
        draft.findings.push(Finding::new("overflow-unknown", text));
    }
    let choices: Vec<Option<Choice>> =
        (0..net.graph().node.len()).map(|at| choose(&net, at, seen.as_ref(), options)).collect();
    let units: Vec<usize> =
        (0..choices.len()).filter(|at| choices[*at].as_ref().is_some_and(|choice| choice.low)).collect();
    if units.is_empty() {
        let why = "every operator is computed in single precision, by rule or by its values".to_owned();
        return Err(PrecisionError::Nothing { precision: options.kind.name().to_owned(), why });
    }
    let make = |returned: &BTreeSet<usize>| {
        let low = units.iter().enumerate().filter(|(at, _)| !returned.contains(at)).map(|(_, node)| *node).collect();
        typed(&net, low, options.kind)
    };
    let macs: BTreeMap<usize, (u64, u64)> =
        layers(&net).into_iter().map(|layer| (layer.node, (layer.macs, layer.weights() as u64))).collect();
    let of = |at: usize| macs.get(&at).copied().unwrap_or_default();
    let costs: Vec<Cost> = units.iter().map(|at| Cost { saved: of(*at).0 as f64 }).collect();
    let names: Vec<&str> = units.iter().map(|at| net.graph().node[*at].name.as_str()).collect();
    let settled = judge.map(|judge| judge.settle(options.budget, || costs.clone(), &names, make)).transpose()?;
    let returned = settled.as_ref().map(|settled| settled.returned.clone()).unwrap_or_default();
    let made = make(&returned);
    let mut report = Vec::new();
    for (at, choice) in choices.iter().enumerate() {
        let Some(choice) = choice else { continue };
        let unit = units.iter().position(|unit| *unit == at);
        let harm = unit.and_then(|unit| settled.as_ref()?.harm.get(unit).copied());
        let back = unit.is_some_and(|unit| returned.contains(&unit));
        let low = choice.low && !back;
        let node = &net.graph().node[at];
        let why = match back {
            true => {
                format!("returned by the budget: alone it makes a relative error of {:.2e}", harm.unwrap_or_default())
            }
            false => choice.why.clone(),
        };
        report.push(LayerReport {
            name: node.name.clone(),
            op: node.op_type.clone(),
            precision: if low { options.kind.name() } else { "fp32" }.to_owned(),
            why,
            weights: of(at).1,
            weight_bytes: of(at).1 * if low { 2 } else { 4 },
            macs: of(at).0,
            harm,
            saved_us: None,
        });
    }
    let measured =
        judge.zip(settled.as_ref()).map(|(judge, settled)| judge.measured(&settled.reached, settled.evaluations));
    let mut prepared = draft.finish(&before, made, report, measured);
    prepared.report.folded = folded;
    Ok(prepared)
}

/// What a node that computes floats is to be; `None` for one that moves them, or has none.
fn choose(net: &Net, at: usize, seen: Option<&Observations>, options: &crate::draft::Options) -> Option<Choice> {
    let node = &net.graph().node[at];
    let op = node.op_type.as_str();
    if MOVES.contains(&op) && is_standard(&node.domain) || !node.output.iter().any(|name| net.is_single(name)) {
        return None;
    }
    let island = |why: String| Some(Choice { low: false, why });
    if options.keep.contains(&node.name) {
        return island("it was asked to stay".to_owned());
    }
    if !COMPUTES.contains(&op) || !is_standard(&node.domain) || bodies(node).next().is_some() {
        return island(format!("by rule: {op} is computed in single precision"));
    }
    if options.kind == Kind::Bf16 {
        return Some(Choice { low: true, why: "bf16 has the range of single precision".to_owned() });
    }
    for name in node.input.iter().filter(|name| net.initializer(name).is_some()) {
        let weights = net.floats(name).unwrap_or_default();
        let largest = weights.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
        if f64::from(largest) > LARGEST || weights.iter().any(|weight| weight.is_nan()) {
            return island(format!("its stored '{name}' reaches {largest:e}, more than the {LARGEST} of fp16"));
        }
        let lost = weights.iter().filter(|weight| **weight != 0.0 && weight.abs() < SMALLEST / 2.0).count();
        if lost as f64 > LOST_WEIGHTS * weights.len() as f64 {
            return island(format!("{lost} of the {} numbers in '{name}' would become zero", weights.len()));
        }
    }
    let Some(seen) = seen else {
        return Some(Choice {
            low: true,
            why: "nothing says that its values go beyond fp16; no data was looked at".to_owned(),
        });
    };
    let mut largest = 0.0_f64;
    for name in node.input.iter().chain(&node.output) {
        let Some(observed) = seen.get(name) else { continue };
        largest = largest.max(observed.histogram.largest());
        if observed.histogram.largest() > LARGEST * MARGIN || observed.histogram.not_finite > 0 {
            let reach = observed.histogram.largest();
            return island(format!("overflow: '{name}' reaches {reach:.4e} on the data, and fp16 ends at {LARGEST}"));
        }
    }
    Some(Choice { low: true, why: format!("its values reach {largest:.3e} on the data") })
}

/// The model with the nodes of `low` in sixteen bits.
fn typed(net: &Net, low: BTreeSet<usize>, kind: Kind) -> Net {
    let mut made = net.clone();
    let fixed = net.fixed_names();
    let mut typing = Typing {
        kind,
        low_names: BTreeMap::new(),
        single_names: BTreeMap::new(),
        made_low: BTreeSet::new(),
        nodes: Vec::new(),
    };
    let graph_nodes = std::mem::take(&mut made.graph_mut().node);
    for (at, mut node) in graph_nodes.into_iter().enumerate() {
        let first = node.input.iter().find(|name| net.is_single(name) && net.initializer(name).is_none());
        // Moved numbers stay what they are.
        let moves = MOVES.contains(&node.op_type.as_str()) && is_standard(&node.domain);
        let is_low = low.contains(&at) || moves && first.is_some_and(|first| typing.is_low(first));
        for (position, input) in node.input.iter_mut().enumerate() {
            if input.is_empty()
                || !net.is_single(input)
                    && net.initializer(input).is_none_or(|of| of.data_type != DataType::Float as i32)
            {
                continue;
            }
            // Sizes and regions of a resize are single precision in any type.
            let wants_low = is_low && !(node.op_type == "Resize" && position > 0);
            *input = if wants_low { typing.low(&mut made, input) } else { typing.single(&mut made, input) };
        }
        let mut casts = Vec::new();
        if is_low {
            for output in node.output.iter_mut().filter(|name| !name.is_empty() && net.is_single(name)) {
                let value = output.clone();
                if fixed.contains(&value) {
                    *output = made.fresh(&format!("{value}_{}", kind.name()));
                    let name = made.fresh(&format!("{value}_to_fp32"));
                    casts.push(cast(name, output, &value, DataType::Float));
                    typing.single_names.insert(value.clone(), value.clone());
                }
                typing.made_low.insert(value.clone());
                typing.low_names.insert(value, output.clone());
            }
        }
        typing.nodes.push(node);
        typing.nodes.append(&mut casts);
    }
    made.graph_mut().node = typing.nodes;
    made.graph_mut().value_info.clear();
    made.drop_unread();
    made
}

struct Typing {
    kind: Kind,
    /// Under which name a value is there in sixteen bits; and in single precision, where it is not under its own.
    low_names: BTreeMap<String, String>,
    single_names: BTreeMap<String, String>,
    /// Values that are made in sixteen bits.
    made_low: BTreeSet<String>,
    nodes: Vec<NodeProto>,
}

impl Typing {
    /// Whether a value is made in sixteen bits.
    fn is_low(&self, value: &str) -> bool {
        self.made_low.contains(value)
    }

    fn low(&mut self, net: &mut Net, value: &str) -> String {
        if let Some(name) = self.low_names.get(value) {
            return name.clone();
        }
        let name = match net.initializer(value).cloned() {
            Some(tensor) => {
                let name = net.fresh(&format!("{value}_{}", self.kind.name()));
                net.graph_mut().initializer.push(TensorProto { name: name.clone(), ..lowered(&tensor, self.kind) });
                name
            }
            None => {
                let name = net.fresh(&format!("{value}_{}", self.kind.name()));
                let node = net.fresh(&format!("{value}_to_{}", self.kind.name()));
                self.nodes.push(cast(node, value, &name, data_type(self.kind)));
                name
            }
        };
        self.low_names.insert(value.to_owned(), name.clone());
        name
    }

    fn single(&mut self, net: &mut Net, value: &str) -> String {
        if let Some(name) = self.single_names.get(value) {
            return name.clone();
        }
        // Made in single precision, or stored so.
        if self.low_names.get(value).is_none_or(|name| name != value) {
            return value.to_owned();
        }
        let name = net.fresh(&format!("{value}_fp32"));
        let node = net.fresh(&format!("{value}_to_fp32"));
        self.nodes.push(cast(node, value, &name, DataType::Float));
        self.single_names.insert(value.to_owned(), name.clone());
        name
    }
}

fn data_type(kind: Kind) -> DataType {
    if kind == Kind::Bf16 { DataType::Bfloat16 } else { DataType::Float16 }
}

/// A stored tensor in sixteen bits, each number to the nearest.
fn lowered(tensor: &TensorProto, kind: Kind) -> TensorProto {
    let values = floats(tensor);
    let bytes: Vec<u8> = match kind {
        Kind::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
    };
    TensorProto { data_type: data_type(kind) as i32, raw_data: bytes.into(), ..tensor.clone() }
}

fn cast(name: String, input: &str, output: &str, to: DataType) -> NodeProto {
    node(name, "Cast", &[input], output, vec![int("to", to as i64)])
}
