//! Running models on samples: whoever has a quicker engine than the reference implements [`Runner`].

use crate::error::PrecisionError;
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
        axis_as_it_lies(self.shape.len(), self.channels_last, of_model)
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

/// Where one of the model's axes lies in a value of so many.
pub(crate) fn axis_as_it_lies(axes: usize, channels_last: bool, of_model: usize) -> usize {
    match (channels_last, of_model) {
        (true, 1) => axes - 1,
        (true, axis) if axis > 1 => axis - 1,
        (_, axis) => axis,
    }
}

/// What is handed the watched values of a run, each once, some or all of them at a time.
pub type See<'a> = dyn FnMut(&[Seen<'_>]) + 'a;

/// Something that runs models.
pub trait Runner {
    /// As reports call it.
    fn name(&self) -> String;

    /// Makes `model` ready to run so many times at the shapes of `profile`, with an eye on the values named in `watched`.
    ///
    /// # Errors
    ///
    /// When it cannot be run.
    fn open(
        &self,
        model: &Model,
        profile: Option<&OptimizationProfile>,
        watched: &BTreeSet<String>,
        runs: usize,
    ) -> Result<Box<dyn Session>, PrecisionError>;

    /// Microseconds that every node of `model` takes on this machine, by name; of nodes that run as one, each has the time
    /// of all. `None` where that cannot be told.
    fn node_us(
        &self,
        _model: &Model,
        _profile: Option<&OptimizationProfile>,
        _inputs: &NamedTensors,
    ) -> Option<BTreeMap<String, f64>> {
        None
    }
}

/// A model that is ready to run.
pub trait Session {
    /// Runs once, lends every watched value while it is there, and gives the outputs.
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
        _: usize,
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
