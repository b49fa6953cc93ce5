//! What values a model's tensors take on data: a histogram of each, and of some their channels apart.

use crate::{
    error::PrecisionError,
    net::Net,
    ranges::Histogram,
    run::{Runner, Seen},
    samples::Samples,
};
use planforge_types::NamedTensors;
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

    /// `axis`: where its channels lie in `shape`; `all_finite`: none of the values is left out.
    fn add(&mut self, shape: &[usize], axis: usize, values: &[f32], all_finite: bool) {
        let Some(&count) = shape.get(axis) else { return };
        if count == 0 || values.is_empty() {
            return;
        }
        if self.largest.len() != count {
            (self.largest, self.sum, self.count) = (vec![0.0; count], vec![0.0; count], 0);
        }
        self.count += (values.len() / count) as u64;
        let inner: usize = shape[axis + 1..].iter().product();
        if inner == 1 && all_finite {
            return self.add_rows(values);
        }
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
    }

    /// Of finite values whose channels lie next to one another.
    fn add_rows(&mut self, values: &[f32]) {
        let mut largest = vec![0.0_f32; self.largest.len()];
        for row in values.chunks_exact(largest.len()) {
            for ((largest, sum), value) in largest.iter_mut().zip(&mut self.sum).zip(row) {
                let size = value.abs();
                *largest = if size > *largest { size } else { *largest };
                *sum += f64::from(*value);
            }
        }
        self.largest.iter_mut().zip(largest).for_each(|(all, largest)| *all = all.max(largest.into()));
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

/// Numbers of one value that are counted before any is passed over: many for each bin of its histogram.
const ENOUGH: usize = 1 << 24;
/// Shorter runs of numbers are not worth picking out.
const RUN: usize = 16;

/// Which numbers of a value are looked at in a run.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// About so many, or all.
    most: usize,
    run: usize,
}

impl Share {
    /// Its numbers, or those of every so many-th place along its last axis, of others in each run. Where channels count
    /// (`channels` is their axis), all of them or none are picked out of a place.
    fn of<'a>(self, seen: &Seen<'a>, channels: Option<usize>) -> Cow<'a, [f32]> {
        let values = seen.values();
        let row = seen.shape.last().copied().unwrap_or(1);
        let every = values.len().div_ceil(self.most.max(1));
        let whole = channels.is_none_or(|axis| axis + 1 == seen.shape.len());
        if every <= 1 || row < RUN || !whole {
            return values;
        }
        let mut picked = Vec::with_capacity(values.len() / every + row);
        let places = values.chunks_exact(row).skip(self.run % every).step_by(every);
        places.for_each(|place| picked.extend_from_slice(place));
        Cow::Owned(picked)
    }
}

/// One value as it was seen.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub histogram: Histogram,
    pub channels: Option<Channels>,
}

impl Observed {
    fn add(&mut self, seen: &Seen<'_>, share: Share) {
        let axis = self.channels.as_ref().map(|channels| seen.axis(channels.axis));
        let values = share.of(seen, axis);
        let extent = self.histogram.add(&values);
        if let (Some(channels), Some(axis)) = (&mut self.channels, axis) {
            channels.add(seen.shape, axis, &values, extent.count == values.len() as u64);
        }
    }
}

/// A value as it was in the model before: what it is now, each channel multiplied.
#[derive(Clone, Debug)]
pub struct Former {
    pub value: String,
    /// Axis of its channels.
    pub axis: usize,
    /// Of each channel; the axis holds equally long runs of them.
    pub factors: Vec<f32>,
}

impl Former {
    /// Its numbers from those of the value.
    fn of(&self, seen: &Seen<'_>, share: Share) -> Option<Vec<f32>> {
        let (shape, axis) = (seen.shape, seen.axis(self.axis));
        let values = share.of(seen, Some(axis));
        let size = *shape.get(axis)?;
        let run = size.checked_div(self.factors.len()).filter(|run| *run > 0)?;
        let inner: usize = shape[axis + 1..].iter().product();
        let factors: Vec<f32> = (0..size).map(|at| self.factors[(at / run).min(self.factors.len() - 1)]).collect();
        let mut former = Vec::with_capacity(values.len());
        match inner {
            1 => values
                .chunks_exact(size)
                .for_each(|row| former.extend(row.iter().zip(&factors).map(|(value, factor)| value * factor))),
            _ => values
                .chunks_exact(inner.max(1))
                .zip(factors.iter().cycle())
                .for_each(|(values, factor)| former.extend(values.iter().map(|value| value * factor))),
        }
        Some(former)
    }
}

/// What was seen, by value.
pub type Observations = BTreeMap<String, Observed>;

/// Looks at values of runs.
#[derive(Debug)]
pub struct Observer<'a> {
    seen: Observations,
    before: Vec<(&'a Former, Observed)>,
    share: Share,
}

impl<'a> Observer<'a> {
    /// `wanted`: the values to look at, and the axis of those whose channels matter; `formers`: the values of a model before
    /// that are counted by the way.
    pub fn of(wanted: &BTreeMap<String, Option<usize>>, formers: &'a [Former]) -> Self {
        let seen = wanted.iter().map(|(name, axis)| {
            let channels = axis.map(|axis| Channels { axis, largest: Vec::new(), sum: Vec::new(), count: 0 });
            (name.clone(), Observed { histogram: Histogram::default(), channels })
        });
        let before = formers.iter().map(|former| (former, Observed::default()));
        Self { seen: seen.collect(), before: before.collect(), share: Share { most: usize::MAX, run: 0 } }
    }

    /// The same for so many runs in which it does not look at every number, where values have more than enough.
    #[must_use]
    pub fn sparing(self, runs: usize) -> Self {
        let most = (ENOUGH / runs.max(1)).max(1 << 12);
        Self { share: Share { most, run: 0 }, ..self }
    }

    /// The values that it has to be shown.
    pub fn wanted(&self) -> impl Iterator<Item = &String> {
        self.seen.keys()
    }

    /// Counts what one run took and gave.
    pub fn look(&mut self, inputs: &NamedTensors, all: &[Seen<'_>]) {
        let plain = inputs.iter().map(|(name, tensor)| Seen::plain(name, tensor));
        let told: BTreeMap<&str, Seen<'_>> = plain.chain(all.iter().copied()).map(|seen| (seen.name, seen)).collect();
        let now = self.seen.iter_mut().filter_map(|(name, observed)| Some((observed, told.get(name.as_str())?, None)));
        let formers = self
            .before
            .iter_mut()
            .filter_map(|(former, observed)| Some((observed, told.get(former.value.as_str())?, Some(*former))));
        let mut counts: Vec<(&mut Observed, &Seen<'_>, Option<&Former>)> = now.chain(formers).collect();
        // The largest first, so that no processor is left with one of them at the end.
        counts.sort_by_key(|(_, seen, _)| std::cmp::Reverse(seen.bytes.len()));
        let share = self.share;
        counts.into_par_iter().with_max_len(1).for_each(|(observed, seen, former)| match former {
            None => observed.add(seen, share),
            Some(former) => {
                if let Some(values) = former.of(seen, share) {
                    observed.histogram.add(&values);
                }
            }
        });
        self.share.run += 1;
    }

    /// What was seen, and of the values of the model before.
    pub fn into_seen(self) -> (Observations, Observations) {
        let before = self.before.into_iter().map(|(former, observed)| (former.value.clone(), observed));
        (self.seen, before.collect())
    }
}

/// Runs the model on all samples, before the eyes of `observer`.
///
/// # Errors
///
/// When the model does not run.
pub fn observe(
    net: &Net,
    runner: &dyn Runner,
    samples: &Samples,
    observer: &mut Observer<'_>,
) -> Result<(), PrecisionError> {
    let watched = observer.wanted().cloned().collect();
    let mut session = runner.open(&net.model()?, samples.profile().as_ref(), &watched)?;
    for index in 0..samples.batches() {
        let inputs = samples.inputs(index);
        // Counted once the run is over, on all processors, which the run would want, too.
        session.run(&inputs, &mut |all| observer.look(&inputs, all))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::ElementType;

    #[test]
    fn a_share_is_of_whole_places_and_of_others_in_each_run() {
        // Forty pixels of thirty-two channels.
        let values: Vec<f32> = (0..40 * 32).map(|at| at as f32).collect();
        let seen = |channels_last| Seen {
            name: "x",
            element: ElementType::F32,
            shape: &[1, 5, 8, 32],
            channels_last,
            bytes: bytemuck::cast_slice(&values),
        };
        let all = Share { most: usize::MAX, run: 3 };
        assert_eq!(all.of(&seen(true), Some(3)), values);
        let mut met = vec![0; values.len()];
        for run in 0..4 {
            let share = Share { most: values.len() / 4, run }.of(&seen(true), Some(3)).into_owned();
            assert_eq!(share.len(), values.len() / 4);
            assert!(share.chunks_exact(32).all(|place| place[0] % 32.0 == 0.0), "whole places");
            share.into_iter().for_each(|value| met[value as usize] += 1);
        }
        assert!(met.into_iter().all(|times| times == 1), "four runs meet each place once");
        // Channels that do not lie last would be picked unevenly.
        assert_eq!(Share { most: 10, run: 0 }.of(&seen(false), Some(1)), values);
        assert_eq!(Share { most: values.len() / 4, run: 0 }.of(&seen(false), None).len(), values.len() / 4);
    }
}
