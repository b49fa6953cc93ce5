//! Running models on samples: whoever has a quicker engine than the reference implements [`Runner`].

use crate::{error::PrecisionError, net::Net, observe::Observer, samples::Samples};
use bytes::Bytes;
use planforge_graph::{
    interpreter::{self, execute_observed},
    ir::{Graph, Tensor},
};
use planforge_import::import;
use planforge_onnx::Model;
use planforge_types::{ElementType, HostTensor, NamedTensors, OptimizationProfile};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

/// A watched value of a run, lent while it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub name: &'a str,
    pub element: ElementType,
    /// Sizes of the axes as they lie.
    pub shape: &'a [usize],
    /// The model's second axis lies behind all others: an image as engines have it.
    pub channels_last: bool,
    pub bytes: &'a [u8],
}

impl<'a> Seen<'a> {
    /// A value as the model has it.
    pub fn plain(name: &'a str, tensor: &'a HostTensor) -> Self {
        Self { name, element: tensor.element, shape: &tensor.shape, channels_last: false, bytes: &tensor.bytes }
    }

    /// Where one of the model's axes lies.
    pub fn axis(&self, of_model: usize) -> usize {
        match (self.channels_last, of_model) {
            (true, 1) => self.shape.len() - 1,
            (true, axis) if axis > 1 => axis - 1,
            (_, axis) => axis,
        }
    }

    /// Its numbers, as they lie.
    pub fn values(&self) -> Cow<'a, [f32]> {
        if self.element == ElementType::F32
            && let Ok(values) = bytemuck::try_cast_slice(self.bytes)
        {
            return Cow::Borrowed(values);
        }
        Cow::Owned(self.to_f64s().into_iter().map(|value| value as f32).collect())
    }

    fn to_f64s(self) -> Vec<f64> {
        let tensor = Tensor::new(self.element, self.shape.to_vec(), Bytes::copy_from_slice(self.bytes));
        tensor.map(|tensor| tensor.to_f64s()).unwrap_or_default()
    }

    /// Its numbers in the order of the model's axes.
    pub fn in_order(&self) -> Vec<f64> {
        let values = self.to_f64s();
        let (Some((&images, rest)), true) = (self.shape.split_first(), self.channels_last) else { return values };
        let Some((&channels, pixels)) = rest.split_last() else { return values };
        let pixels: usize = pixels.iter().product();
        let of = |image: usize, channel: usize| {
            let values = &values;
            (0..pixels).map(move |pixel| values[(image * pixels + pixel) * channels + channel])
        };
        (0..images).flat_map(|image| (0..channels).flat_map(move |channel| of(image, channel))).collect()
    }
}

/// What is handed the watched values of a run, all at once.
pub type See<'a> = dyn FnMut(&[Seen<'_>]) + 'a;

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
    /// Runs once, lends every watched value, and gives the outputs.
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
        let mut told: Vec<(&str, Tensor)> = Vec::new();
        let outputs = execute_observed(&self.graph, &bound, &mut |id, tensor| {
            if let Some(name) = self.watched.get(&id.index()) {
                told.push((name, tensor.clone()));
            }
            ControlFlow::Continue(())
        });
        let outputs = outputs.map_err(|error| failed(error.to_string()))?;
        let seen = told.iter().map(|(name, tensor)| Seen {
            name,
            element: tensor.element(),
            shape: tensor.shape(),
            channels_last: false,
            bytes: tensor.bytes(),
        });
        see(&seen.collect::<Vec<_>>());
        Ok(outputs.into_iter().map(|(name, tensor)| (name, HostTensor::from(&tensor))).collect())
    }
}

/// What a model says of samples before anything is done to it: what everything later is compared with.
#[derive(Clone, Debug)]
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
    /// Runs the model as it is, before the eyes of an observer where there is one.
    ///
    /// # Errors
    ///
    /// When it does not run, or labels are given and its output has no scores.
    pub fn of(
        net: &Net,
        runner: &dyn Runner,
        samples: &Samples,
        observer: Option<&mut Observer<'_>>,
    ) -> Result<Self, PrecisionError> {
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
        let (values, correct) = truth.run(net, runner, samples, observer)?;
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
        let (values, correct) = self.run(net, runner, samples, None)?;
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
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<(Vec<BTreeMap<String, Vec<f64>>>, Option<usize>), PrecisionError> {
        let mut watched = self.watched.clone();
        watched.extend(observer.iter().flat_map(|observer| observer.wanted().cloned()));
        let mut session = runner.open(&net.model()?, samples.profile().as_ref(), &watched)?;
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
            let inputs = samples.inputs(index);
            let outputs = session.run(&inputs, &mut |all| {
                if let Some(observer) = &mut observer {
                    observer.look(&inputs, all);
                }
                for seen in all.iter().filter(|seen| self.watched.contains(seen.name)) {
                    values.insert(seen.name.to_owned(), counted(seen.shape, seen.in_order()));
                }
            })?;
            for (name, tensor) in &outputs {
                if self.watched.contains(name) && !values.contains_key(name) {
                    values.insert(name.clone(), counted(&tensor.shape, Seen::plain(name, tensor).in_order()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_with_channels_last_is_told_in_the_models_order() {
        // Two images of three channels, each of two rows of four pixels.
        let shape = [2, 3, 2, 4];
        let values: Vec<f64> = (0..48).map(f64::from).collect();
        let place = |image: usize, channel: usize, pixel: usize| (image * 3 + channel) * 8 + pixel;
        let last: Vec<f32> = (0..2)
            .flat_map(|image| {
                (0..8).flat_map(move |pixel| (0..3).map(move |channel| place(image, channel, pixel) as f32))
            })
            .collect();
        let seen = Seen {
            name: "x",
            element: ElementType::F32,
            shape: &[2, 2, 4, 3],
            channels_last: true,
            bytes: bytemuck::cast_slice(&last),
        };
        assert_eq!(seen.in_order(), values);
        for (axis, size) in shape.into_iter().enumerate() {
            assert_eq!(seen.shape[seen.axis(axis)], size, "{axis}");
        }
    }
}
