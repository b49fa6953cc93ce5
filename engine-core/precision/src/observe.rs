//! What values a model's tensors take on data: a histogram of each, and of some their channels apart.

use crate::{
    error::PrecisionError,
    net::Net,
    ranges::{Extent, Histogram},
    run::Runner,
    samples::Samples,
};
use planforge_graph::ir::Tensor;
use rayon::prelude::*;
use std::{borrow::Cow, collections::BTreeMap};

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

    /// `all_finite`: none of the values is left out.
    fn add(&mut self, shape: &[usize], values: &[f32], all_finite: bool) {
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
            let (largest, sum) = match all_finite {
                true => largest_and_sum(values),
                false => values
                    .iter()
                    .filter(|value| value.is_finite())
                    .fold((0.0_f32, 0.0), |(largest, sum), value| (largest.max(value.abs()), sum + f64::from(*value))),
            };
            self.largest[channel] = self.largest[channel].max(largest.into());
            self.sum[channel] += sum;
        }
        self.count += (values.len() / count) as u64;
    }
}

/// The greatest magnitude of finite values, and their sum.
fn largest_and_sum(values: &[f32]) -> (f32, f64) {
    const LANES: usize = 8;
    let (whole, rest) = values.as_chunks::<LANES>();
    let (mut largest, mut sum) = ([0.0_f32; LANES], [0.0_f64; LANES]);
    for values in whole {
        for lane in 0..LANES {
            let size = values[lane].abs();
            largest[lane] = if size > largest[lane] { size } else { largest[lane] };
            sum[lane] += f64::from(values[lane]);
        }
    }
    rest.iter().zip(0..).for_each(|(value, lane): (_, usize)| {
        largest[lane] = largest[lane].max(value.abs());
        sum[lane] += f64::from(*value);
    });
    (largest.into_iter().fold(0.0, f32::max), sum.into_iter().sum())
}

/// One value as it was seen.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub histogram: Histogram,
    pub channels: Option<Channels>,
}

impl Observed {
    fn add(&mut self, tensor: &Tensor) {
        let values = tensor.values::<f32>().unwrap_or_else(|_| {
            let all = tensor.to_f64s();
            Cow::Owned(all.into_iter().map(|value| value as f32).collect())
        });
        let extent = Extent::of(&values);
        self.histogram.add(&values, &extent);
        if let Some(channels) = &mut self.channels {
            channels.add(tensor.shape(), &values, extent.count == values.len() as u64);
        }
    }
}

/// A value of the model as it was, which is another one's now, each channel multiplied and moved.
#[derive(Clone, Debug)]
pub struct Former {
    pub name: String,
    /// What it is made of, and the axis of that one's channels.
    pub value: String,
    pub axis: usize,
    /// `former = value * factor + shift`. Of channels without a factor nothing is known.
    pub factors: Vec<f32>,
    pub shifts: Vec<f32>,
}

impl Former {
    /// Its numbers from those of the value.
    fn of(&self, tensor: &Tensor) -> Option<Vec<f32>> {
        let (shape, values) = (tensor.shape(), tensor.values::<f32>().ok()?);
        let size = *shape.get(self.axis)?;
        let run = size.checked_div(self.factors.len()).filter(|run| *run > 0)?;
        let inner: usize = shape[self.axis + 1..].iter().product();
        let mut former = Vec::with_capacity(values.len());
        for (at, values) in values.chunks_exact(inner.max(1)).enumerate() {
            let channel = (at % size / run).min(self.factors.len() - 1);
            let (factor, shift) = (self.factors[channel], self.shifts[channel]);
            if factor.is_finite() {
                former.extend(values.iter().map(|value| value * factor + shift));
            }
        }
        Some(former)
    }
}

/// What was seen, by value.
pub type Observations = BTreeMap<String, Observed>;

/// Runs the model on all samples. `wanted`: the values to look at, and the axis of those whose channels matter; `formers`: the
/// values of a model before that are counted by the way, whose histograms come second.
///
/// # Errors
///
/// When the model does not run.
pub fn observe(
    net: &Net,
    runner: &dyn Runner,
    samples: &Samples,
    wanted: &BTreeMap<String, Option<usize>>,
    formers: &[Former],
) -> Result<(Observations, BTreeMap<String, Observed>), PrecisionError> {
    let mut seen: Observations = wanted
        .iter()
        .map(|(name, axis)| {
            let channels = axis.map(|axis| Channels { axis, largest: Vec::new(), sum: Vec::new(), count: 0 });
            (name.clone(), Observed { histogram: Histogram::default(), channels })
        })
        .collect();
    let mut before: Vec<(&Former, Observed)> = formers.iter().map(|former| (former, Observed::default())).collect();
    let mut session = runner.open(&net.model()?, samples.profile().as_ref(), &wanted.keys().cloned().collect())?;
    for index in 0..samples.batches() {
        let inputs = samples.inputs(index);
        // Counted once the run is over, on all processors, which the run would want, too.
        let mut told: BTreeMap<String, Tensor> = BTreeMap::new();
        for (name, tensor) in inputs.iter().filter(|(name, _)| wanted.contains_key(*name)) {
            if let Ok(tensor) = Tensor::try_from(tensor.clone()) {
                told.insert(name.clone(), tensor);
            }
        }
        session.run(&inputs, &mut |name, tensor| {
            told.insert(name.to_owned(), tensor.clone());
        })?;
        before.par_iter_mut().for_each(|(former, observed)| {
            if let Some(values) = told.get(&former.value).and_then(|tensor| former.of(tensor)) {
                observed.histogram.add(&values, &Extent::of(&values));
            }
        });
        let observed: Vec<(&mut Observed, Tensor)> =
            seen.iter_mut().filter_map(|(name, observed)| Some((observed, told.remove(name)?))).collect();
        observed.into_par_iter().for_each(|(observed, tensor)| observed.add(&tensor));
    }
    Ok((seen, before.into_iter().map(|(former, observed)| (former.name.clone(), observed)).collect()))
}
