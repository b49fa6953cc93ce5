//! Running models on samples: whoever has a quicker engine than the reference implements [`Runner`].

use crate::{error::PrecisionError, net::Net, samples::Samples};
use planforge_graph::{
    interpreter::{self, execute_observed},
    ir::{Graph, Tensor},
};
use planforge_import::import;
use planforge_onnx::Model;
use planforge_types::{HostTensor, NamedTensors, OptimizationProfile};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

/// What is handed every watched value of a run.
pub type See<'a> = dyn FnMut(&str, &Tensor) + 'a;

/// Something that runs models.
pub trait Runner {
    /// As reports call it.
    fn name(&self) -> String;

    /// Makes `model` ready to run at the shapes of `profile`, with an eye on the values named in `watched`.
    ///
    /// # Errors
    ///
    /// When it cannot be run.
    fn open(
        &self,
        model: &Model,
        profile: Option<&OptimizationProfile>,
        watched: &BTreeSet<String>,
    ) -> Result<Box<dyn Session>, PrecisionError>;
}

/// A model that is ready to run.
pub trait Session {
    /// Runs once, hands over every watched value, and gives the outputs.
    ///
    /// # Errors
    ///
    /// When the run fails.
    fn run(&mut self, inputs: &NamedTensors, see: &mut See<'_>) -> Result<NamedTensors, PrecisionError>;
}

/// Runs models with the plain interpreter: slow, and right about every operator that is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

struct Interpreted {
    graph: Graph,
    /// Watched values, by index of the graph's.
    watched: BTreeMap<usize, String>,
}

impl Runner for Reference {
    fn name(&self) -> String {
        "reference".to_owned()
    }

    fn open(
        &self,
        model: &Model,
        profile: Option<&OptimizationProfile>,
        watched: &BTreeSet<String>,
    ) -> Result<Box<dyn Session>, PrecisionError> {
        let mut graph = import(model, profile)?;
        compute_constants(&mut graph);
        let names = graph.values.iter().enumerate().map(|(at, value)| (at, value.name.clone()));
        let watched = names.filter(|(_, name)| watched.contains(name)).collect();
        Ok(Box::new(Interpreted { graph, watched }))
    }
}

/// Computes once what would be computed in every run: weights that are stored as integers.
fn compute_constants(graph: &mut Graph) {
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        let constants: Option<Vec<Option<&Tensor>>> =
            node.inputs.iter().map(|id| id.map_or(Some(None), |id| graph.constant(id).map(Some))).collect();
        let results = constants.filter(|constants| constants.iter().any(Option::is_some)).and_then(|constants| {
            let types = interpreter::output_types(graph, &node).ok()?;
            interpreter::run(&node.op, &constants, &types).ok()
        });
        match results {
            Some(results) => graph.constants.extend(node.outputs.iter().copied().zip(results)),
            None => graph.nodes.push(node),
        }
    }
}

impl Session for Interpreted {
    fn run(&mut self, inputs: &NamedTensors, see: &mut See<'_>) -> Result<NamedTensors, PrecisionError> {
        let failed = |message: String| PrecisionError::Run { message };
        let bound: Result<BTreeMap<String, Tensor>, _> = inputs
            .iter()
            .map(|(name, tensor)| Tensor::try_from(tensor.clone()).map(|tensor| (name.clone(), tensor)))
            .collect();
        let bound = bound.map_err(|error| failed(error.to_string()))?;
        let outputs = execute_observed(&self.graph, &bound, &mut |id, tensor| {
            if let Some(name) = self.watched.get(&id.index()) {
                see(name, tensor);
            }
            ControlFlow::Continue(())
        });
        let outputs = outputs.map_err(|error| failed(error.to_string()))?;
        let host = |tensor: Tensor| HostTensor {
            element: tensor.element(),
            shape: tensor.shape().to_vec(),
            bytes: tensor.bytes().to_vec(),
        };
        Ok(outputs.into_iter().map(|(name, tensor)| (name, host(tensor))).collect())
    }
}

/// What a model says of samples before anything is done to it: what everything later is compared with.
#[derive(Debug)]
pub struct Truth {
    /// Values compared, by batch: every output that is a float, or what its softmax reads.
    values: Vec<BTreeMap<String, Vec<f64>>>,
    watched: BTreeSet<String>,
    /// The output that scores are read from.
    scores: String,
    /// Rows whose label had the highest score; `None` without labels.
    correct: Option<usize>,
    rows: usize,
}

/// How near a model's results are to the truth's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Root of the mean squared difference over that of the values themselves; of the output that differs most.
    pub relative_rms: f64,
    /// Rows whose label had the highest score; `None` without labels.
    pub correct: Option<usize>,
    pub rows: usize,
}

impl Agreement {
    /// Share of rows that are right.
    pub fn top1(&self) -> Option<f64> {
        self.correct.map(|correct| correct as f64 / self.rows.max(1) as f64)
    }
}

impl Truth {
    /// Runs the model as it is.
    ///
    /// # Errors
    ///
    /// When it does not run, or labels are given and its output has no scores.
    pub fn of(net: &Net, runner: &dyn Runner, samples: &Samples) -> Result<Self, PrecisionError> {
        let graph = net.graph();
        let makers = net.makers();
        let compared = graph.output.iter().map(|output| match makers.get(output.name.as_str()) {
            Some(&at) if matches!(graph.node[at].op_type.as_str(), "Softmax" | "LogSoftmax") => {
                graph.node[at].input[0].clone()
            }
            _ => output.name.clone(),
        });
        let watched: BTreeSet<String> = compared.filter(|name| net.is_single(name)).collect();
        let scores = graph.output.first().map(|output| output.name.clone()).unwrap_or_default();
        let mut truth = Self { values: Vec::new(), watched, scores, correct: None, rows: samples.rows() };
        let (values, correct) = truth.run(net, runner, samples)?;
        (truth.values, truth.correct) = (values, correct);
        Ok(truth)
    }

    /// What the model itself reaches.
    pub fn own(&self) -> Agreement {
        Agreement { relative_rms: 0.0, correct: self.correct, rows: self.rows }
    }

    /// Runs a changed model on the same samples and compares.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn compare(&self, net: &Net, runner: &dyn Runner, samples: &Samples) -> Result<Agreement, PrecisionError> {
        let (values, correct) = self.run(net, runner, samples)?;
        let mut relative_rms = 0.0_f64;
        for name in &self.watched {
            let (mut squares, mut differences) = (0.0, 0.0);
            for (true_values, values) in self.values.iter().zip(&values) {
                let (Some(true_values), Some(values)) = (true_values.get(name), values.get(name)) else { continue };
                for (a, b) in true_values.iter().zip(values) {
                    squares += a * a;
                    differences += (a - b) * (a - b);
                }
            }
            let relative = if differences == 0.0 { 0.0 } else { (differences / squares).sqrt() };
            // What is no number is as wrong as can be.
            relative_rms = if relative.is_nan() { f64::INFINITY } else { relative_rms.max(relative) };
        }
        Ok(Agreement { relative_rms, correct, rows: self.rows })
    }

    #[expect(clippy::type_complexity, reason = "both of its parts, once")]
    fn run(
        &self,
        net: &Net,
        runner: &dyn Runner,
        samples: &Samples,
    ) -> Result<(Vec<BTreeMap<String, Vec<f64>>>, Option<usize>), PrecisionError> {
        let mut session = runner.open(&net.model()?, samples.profile().as_ref(), &self.watched)?;
        let (mut all, mut correct) = (Vec::new(), 0);
        for index in 0..samples.batches() {
            let rows = samples.rows_of(index);
            let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            // Rows that only fill a batch do not count.
            let counted = |shape: &[usize], mut all: Vec<f64>| {
                if shape.first() == Some(&samples.batch()) {
                    all.truncate(all.len() / samples.batch() * rows);
                }
                all
            };
            let outputs = session.run(&samples.inputs(index), &mut |name, tensor| {
                values.insert(name.to_owned(), counted(tensor.shape(), tensor.to_f64s()));
            })?;
            for (name, tensor) in &outputs {
                if self.watched.contains(name) && !values.contains_key(name) {
                    let own = Tensor::try_from(tensor.clone()).map(|tensor| tensor.to_f64s()).unwrap_or_default();
                    values.insert(name.clone(), counted(&tensor.shape, own));
                }
            }
            if samples.labels().is_some()
                && let Some(scores) = outputs.get(&self.scores)
            {
                correct += samples.correct(index, &self.scores, scores, 1)?;
            }
            all.push(values);
        }
        Ok((all, samples.labels().map(|_| correct)))
    }
}
