//! What every way of preparing shares: the options, what losses are measured on, the report on its way.

use crate::{
    budget::{Cost, Settled, settle},
    error::{Finding, PrecisionError},
    layers::Layer,
    net::{Net, bytes_by_type},
    report::{Coverage, LayerReport, Measured, Preparation, SCHEMA, answers},
    run::Runner,
    samples::Samples,
    truth::{Agreement, Truth},
};
use planforge_onnx::proto::{ModelProto, StringStringEntryProto};
use planforge_types::preparation::{Budget, Kind, Method, PrepareAsk, Target};
use std::collections::{BTreeMap, BTreeSet};

/// Rows that errors of single layers, and channels, are measured on.
pub(crate) const FEW_ROWS: usize = 64;
/// Rows that accuracy is measured on, once for each step of a budget; without labels there is nothing that many would say
/// better than few.
pub(crate) const MOST_ROWS: usize = 2048;

/// How a model is prepared.
#[derive(Clone, Debug)]
pub struct Options {
    pub kind: Kind,
    pub target: Target,
    pub method: Method,
    /// One scale for all weights of a layer.
    pub per_tensor: bool,
    pub equalize: bool,
    pub correct_bias: bool,
    pub budget: Option<Budget>,
    /// Layers that stay as they are, by name.
    pub keep: Vec<String>,
    /// Weights that share a scale, along the inputs of a layer; `None`: all of an output (int8) or 32 (int4).
    pub group: Option<usize>,
}

impl Options {
    /// The usual way: least squared error, a scale for each output, channels evened out, biases corrected.
    pub fn new(kind: Kind, target: Target) -> Self {
        Self {
            kind,
            target,
            method: Method::Mse,
            per_tensor: false,
            equalize: true,
            correct_bias: true,
            budget: None,
            keep: Vec::new(),
            group: None,
        }
    }
}

impl From<&PrepareAsk> for Options {
    fn from(ask: &PrepareAsk) -> Self {
        Self {
            kind: ask.precision,
            target: ask.target,
            method: ask.method,
            per_tensor: ask.per_tensor,
            equalize: ask.equalize,
            correct_bias: ask.correct_bias,
            budget: ask.budget,
            keep: ask.keep.clone(),
            group: ask.group.map(|group| group as usize),
        }
    }
}

/// A prepared model.
#[derive(Debug)]
pub struct Prepared {
    pub proto: ModelProto,
    pub report: Preparation,
    /// Scale of every tensor that was observed, symmetric; what a calibration cache holds.
    pub scales: BTreeMap<String, f32>,
}

/// What losses are measured on.
pub(crate) struct Judge<'a> {
    pub runner: &'a dyn Runner,
    pub whole: (Samples, Truth),
    /// The rows of single layers.
    pub few: (Samples, Truth),
}

impl<'a> Judge<'a> {
    /// Of what the model says of data that judges, else of what it is prepared with; `None` without either.
    pub fn of(
        net: &Net,
        samples: Option<&Samples>,
        judged: Option<&Samples>,
        runner: &'a dyn Runner,
    ) -> Result<Option<Self>, PrecisionError> {
        let Some(data) = judged.or(samples) else { return Ok(None) };
        let whole = data.thinned(if data.has_labels() { MOST_ROWS } else { FEW_ROWS });
        let few = data.thinned(FEW_ROWS);
        let of_few = Truth::of(net, runner, &few)?;
        // As many rows are the same ones.
        let truth = match few.rows() == whole.rows() {
            true => of_few.clone(),
            false => Truth::of(net, runner, &whole)?,
        };
        Ok(Some(Self { runner, whole: (whole, truth), few: (few, of_few) }))
    }

    fn whole(&self, net: &Net) -> Result<Agreement, PrecisionError> {
        self.whole.1.compare(net, self.runner, &self.whole.0)
    }

    fn few(&self, net: &Net) -> Result<Agreement, PrecisionError> {
        self.few.1.compare(net, self.runner, &self.few.0)
    }

    pub fn own(&self) -> Agreement {
        self.whole.1.own()
    }

    /// Which units go back so that the budget holds of what `make` makes without them.
    pub fn settle(
        &self,
        budget: Option<Budget>,
        mut costs: impl FnMut() -> Vec<Cost>,
        names: &[&str],
        make: impl Fn(&BTreeSet<usize>) -> Net,
    ) -> Result<Settled, PrecisionError> {
        let mut whole = |returned: &BTreeSet<usize>| self.whole(&make(returned));
        let mut few = |returned: &BTreeSet<usize>| self.few(&make(returned));
        settle(budget, &self.own(), &mut costs, names, &mut whole, &mut few)
    }

    /// As the report has it.
    pub fn measured(&self, reached: &Agreement, evaluations: usize) -> Measured {
        Measured {
            rows: reached.rows as u64,
            relative_rms: reached.relative_rms,
            top1_before: self.own().top1(),
            top1_after: reached.top1(),
            evaluations: evaluations as u64,
        }
    }
}

/// A report on its way.
pub(crate) struct Draft<'a> {
    pub options: &'a Options,
    pub runner: &'a dyn Runner,
    pub samples: Option<&'a Samples>,
    pub findings: Vec<Finding>,
}

impl Draft<'_> {
    /// The report and the model, once all is known.
    pub fn finish(
        mut self,
        before: &Net,
        after: Net,
        layers: Vec<LayerReport>,
        measured: Option<Measured>,
    ) -> Prepared {
        let Options { kind, target, method, budget, .. } = self.options;
        let coverage = Coverage::of(&layers, kind.name());
        if let Some(measured) = measured.as_ref().filter(|measured| measured.relative_rms > 0.5) {
            let text = format!(
                "the outputs differ by {:.0} % of their size from those of the model as it was",
                100.0 * measured.relative_rms
            );
            self.findings.push(Finding::new("large-error", text));
        }
        let report = Preparation {
            schema: SCHEMA,
            precision: *kind,
            target: *target,
            method: (*kind == Kind::Int8).then_some(*method),
            runner: self.runner.name(),
            samples: self.samples.map_or(0, |samples| samples.rows() as u64),
            coverage,
            measured,
            budget: *budget,
            bytes_before: bytes_by_type(before.graph()),
            bytes_after: bytes_by_type(after.graph()),
            answers: answers(before, &after, *kind, &layers),
            findings: self.findings,
            folded: Vec::new(),
            equalized: Vec::new(),
            layers,
        };
        let mut proto = after.proto;
        mark(&mut proto, *kind);
        Prepared { proto, report, scales: BTreeMap::new() }
    }
}

/// Says in the file what was done to it.
fn mark(proto: &mut ModelProto, kind: Kind) {
    let key = "planforge.precision".to_owned();
    proto.metadata_props.retain(|entry| entry.key != key);
    proto.metadata_props.push(StringStringEntryProto { key, value: kind.name().to_owned() });
}

/// What is said of one layer.
pub(crate) fn layer_report(layer: &Layer, net: &Net, precision: &str, why: String, harm: Option<f64>) -> LayerReport {
    // The weights, or the integers that they are dequantised from.
    let read = net.graph().node.iter().find(|node| node.name == layer.name).and_then(|node| node.input.get(1));
    let stored = read.and_then(|name| {
        let source =
            net.graph().node.iter().find(|node| node.output.contains(name)).map_or(name, |node| &node.input[0]);
        net.initializer(source)
    });
    LayerReport {
        name: layer.name.clone(),
        op: layer.op_type.clone(),
        precision: precision.to_owned(),
        why,
        weights: layer.weights() as u64,
        weight_bytes: stored.map_or(0, |tensor| tensor.raw_data.len() as u64),
        macs: layer.macs,
        harm,
        saved_us: None,
    }
}
