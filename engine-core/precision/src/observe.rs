//! What values a model's tensors take on data: a histogram of each, and of some their channels apart.

use crate::{error::PrecisionError, net::Net, ranges::Histogram, run::Runner, samples::Samples};
use planforge_graph::ir::Tensor;
use std::collections::BTreeMap;

/// Channels of one value.
#[derive(Clone, Debug)]
pub struct Channels {
    axis: usize,
    /// Greatest magnitude of each.
    pub largest: Vec<f64>,
    sum: Vec<f64>,
    count: u64,
}

impl Channels {
    /// Mean of each.
    pub fn means(&self) -> Vec<f64> {
        self.sum.iter().map(|sum| sum / self.count.max(1) as f64).collect()
    }

    fn add(&mut self, shape: &[usize], values: &[f64]) {
        let Some(&count) = shape.get(self.axis) else { return };
        if count == 0 || values.is_empty() {
            return;
        }
        if self.largest.len() != count {
            (self.largest, self.sum, self.count) = (vec![0.0; count], vec![0.0; count], 0);
        }
        let inner: usize = shape[self.axis + 1..].iter().product();
        for (run, values) in values.chunks_exact(inner.max(1)).enumerate() {
            let channel = run % count;
            for value in values.iter().filter(|value| value.is_finite()) {
                self.largest[channel] = self.largest[channel].max(value.abs());
                self.sum[channel] += value;
            }
        }
        self.count += (values.len() / count) as u64;
    }
}

/// One value as it was seen.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub histogram: Histogram,
    pub channels: Option<Channels>,
}

/// What was seen, by value.
pub type Observations = BTreeMap<String, Observed>;

/// Runs the model on all samples. `wanted`: the values to look at, and the axis of those whose channels matter.
///
/// # Errors
///
/// When the model does not run.
pub fn observe(
    net: &Net,
    runner: &dyn Runner,
    samples: &Samples,
    wanted: &BTreeMap<String, Option<usize>>,
) -> Result<Observations, PrecisionError> {
    let mut seen: Observations = wanted
        .iter()
        .map(|(name, axis)| {
            let channels = axis.map(|axis| Channels { axis, largest: Vec::new(), sum: Vec::new(), count: 0 });
            (name.clone(), Observed { histogram: Histogram::default(), channels })
        })
        .collect();
    let mut session = runner.open(&net.model()?, samples.profile().as_ref(), &wanted.keys().cloned().collect())?;
    for index in 0..samples.batches() {
        let inputs = samples.inputs(index);
        let mut see = |name: &str, tensor: &Tensor| {
            if let Some(observed) = seen.get_mut(name) {
                let values = tensor.to_f64s();
                observed.histogram.add(&values);
                if let Some(channels) = &mut observed.channels {
                    channels.add(tensor.shape(), &values);
                }
            }
        };
        for (name, tensor) in inputs.iter().filter(|(name, _)| wanted.contains_key(*name)) {
            if let Ok(tensor) = Tensor::try_from(tensor.clone()) {
                see(name, &tensor);
            }
        }
        session.run(&inputs, &mut see)?;
    }
    Ok(seen)
}
