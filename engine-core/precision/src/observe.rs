//! What values a model's tensors take on data: a histogram of each, and of some their channels apart.

use crate::{
    error::PrecisionError,
    ranges::Histogram,
    run::{Seen, Session, axis_as_it_lies},
    samples::Samples,
};
use planforge_types::NamedTensors;
use rayon::prelude::*;
use std::{borrow::Cow, collections::BTreeMap};

/// Channels of one value.
#[derive(Clone, Debug)]
pub struct Channels {
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
            for (largest, value) in largest.iter_mut().zip(row) {
                let size = value.abs();
                *largest = if size > *largest { size } else { *largest };
            }
            self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
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
const ENOUGH: usize = 1 << 21;
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
    /// (`channels` is their axis), as many are picked out of each.
    fn of<'a>(self, seen: &Seen<'a>, channels: Option<usize>) -> Picked<'a> {
        let (values, channels_last) = (seen.values(), seen.channels_last);
        let axes = seen.shape.len();
        let row = seen.shape.last().copied().unwrap_or(1);
        let every = values.len().div_ceil(self.most.max(1));
        // The axes up to that of channels stay as they are, unless it is the last one.
        let kept = channels.map_or(0, |axis| seen.axis(axis) + 1);
        let kept = if kept < axes { kept } else { 0 };
        let block: usize = seen.shape[kept..].iter().product();
        if every <= 1 || row < RUN || axes < kept + 2 || block / row < every {
            return Picked { values, shape: seen.shape.into(), channels_last };
        }
        let mut picked = Vec::with_capacity(values.len() / every + values.len() / block * row);
        for block in values.chunks_exact(block) {
            let places = block.chunks_exact(row).skip(self.run % every).step_by(every);
            places.for_each(|place| picked.extend_from_slice(place));
        }
        // The places of an image, or rows of anything, one behind the other.
        let mut shape = seen.shape.to_vec();
        shape[kept..].fill(1);
        let blocks = values.len() / block;
        (shape[axes - 2], shape[axes - 1]) = (picked.len() / row / blocks, row);
        Picked { values: picked.into(), shape: shape.into(), channels_last }
    }
}

/// One value as it was seen.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub histogram: Histogram,
    pub channels: Option<Channels>,
}

impl Observed {
    /// `axis`: that of its channels, where they matter.
    fn of(axis: Option<usize>) -> Self {
        let channels = axis.map(|_| Channels { largest: Vec::new(), sum: Vec::new(), count: 0 });
        Self { histogram: Histogram::default(), channels }
    }

    /// Counts `values`, which lie as `picked` does.
    fn add(&mut self, picked: &Picked<'_>, axis: Option<usize>, values: &[f32]) {
        let extent = self.histogram.add(values);
        if let (Some(channels), Some(axis)) = (&mut self.channels, axis) {
            channels.add(&picked.shape, picked.axis(axis), values, extent.count == values.len() as u64);
        }
    }
}

/// What evening out makes of a value: each of its channels divided.
#[derive(Clone, Debug)]
pub struct Divided {
    pub value: String,
    /// Axis of its channels.
    pub axis: usize,
    /// What each is divided by; the axis holds equally long runs of them.
    pub by: Vec<f32>,
}

/// Numbers of one run that were picked out.
#[derive(Debug)]
struct Picked<'a> {
    values: Cow<'a, [f32]>,
    /// Sizes of the axes as they lie.
    shape: Cow<'a, [usize]>,
    channels_last: bool,
}

impl Picked<'_> {
    fn len(&self) -> usize {
        self.values.len()
    }

    /// Where one of the model's axes lies.
    fn axis(&self, of_model: usize) -> usize {
        axis_as_it_lies(self.shape.len(), self.channels_last, of_model)
    }

    fn divided(&self, divided: &Divided) -> Option<Vec<f32>> {
        let axis = self.axis(divided.axis);
        let size = *self.shape.get(axis)?;
        let run = size.checked_div(divided.by.len()).filter(|run| *run > 0)?;
        let inner: usize = self.shape[axis + 1..].iter().product();
        let factors: Vec<f32> = (0..size).map(|at| 1.0 / divided.by[(at / run).min(divided.by.len() - 1)]).collect();
        let mut all = Vec::with_capacity(self.len());
        match inner {
            1 => self
                .values
                .chunks_exact(size)
                .for_each(|row| all.extend(row.iter().zip(&factors).map(|(value, factor)| value * factor))),
            _ => self
                .values
                .chunks_exact(inner.max(1))
                .zip(factors.iter().cycle())
                .for_each(|(values, factor)| all.extend(values.iter().map(|value| value * factor))),
        }
        Some(all)
    }

    fn into_kept(self) -> Picked<'static> {
        let (values, shape) = (self.values.into_owned().into(), self.shape.into_owned().into());
        Picked { values, shape, channels_last: self.channels_last }
    }
}

/// What was seen, by value.
pub type Observations = BTreeMap<String, Observed>;

/// One value that is looked at.
#[derive(Debug, Default)]
struct Watch {
    /// The axis of its channels, where they matter.
    axis: Option<usize>,
    /// The axis of those that it may be divided along.
    along: Option<usize>,
    seen: Observed,
    /// What becomes of it, and what it is as it lies, where that is asked for.
    divided: Option<Divided>,
    undivided: Option<Observed>,
    /// Of the run that goes on, not yet counted.
    picked: Option<Picked<'static>>,
    kept: Vec<Picked<'static>>,
}

impl Watch {
    fn add(&mut self, picked: &Picked<'_>) {
        let divided = self.divided.as_ref().and_then(|divided| picked.divided(divided));
        if let Some(undivided) = &mut self.undivided {
            undivided.add(picked, self.axis, &picked.values);
        }
        self.seen.add(picked, self.axis, divided.as_deref().unwrap_or(&picked.values));
    }
}

/// Looks at values of runs.
#[derive(Debug)]
pub struct Observer {
    watches: BTreeMap<String, Watch>,
    share: Share,
    /// What is seen is kept until it is known what evening out makes of it; bytes of it so far.
    keeps: bool,
    kept_bytes: usize,
}

/// More than this is not kept; then what was seen before has to be looked at again.
const KEPT_BYTES: usize = 512 << 20;

impl Observer {
    /// `wanted`: the values to look at, and the axis of those whose channels matter.
    pub fn of(wanted: &BTreeMap<String, Option<usize>>) -> Self {
        let watch = |axis: Option<usize>| Watch { axis, seen: Observed::of(axis), ..Watch::default() };
        let watches = wanted.iter().map(|(name, axis)| (name.clone(), watch(*axis))).collect();
        Self { watches, share: Share { most: usize::MAX, run: 0 }, keeps: false, kept_bytes: 0 }
    }

    /// The same for so many runs in which it does not look at every number, where values have more than enough.
    #[must_use]
    pub fn sparing(self, runs: usize) -> Self {
        let most = (ENOUGH / runs.max(1)).max(1 << 12);
        Self { share: Share { most, run: 0 }, ..self }
    }

    /// The same, which keeps what it sees of some values until [`Observer::even_out`] tells what becomes of them.
    /// `divisible`: they, and the axis of their channels.
    #[must_use]
    pub fn keeping<'a>(mut self, divisible: impl Iterator<Item = &'a (String, usize)>) -> Self {
        for (name, axis) in divisible {
            if let Some(watch) = self.watches.get_mut(name) {
                watch.along = Some(*axis);
            }
        }
        Self { keeps: true, ..self }
    }

    /// The values that it has to be shown.
    pub fn wanted(&self) -> impl Iterator<Item = &String> {
        self.watches.keys()
    }

    /// Picks its numbers out of values of the run that goes on.
    pub fn look(&mut self, some: &[Seen<'_>]) {
        for seen in some {
            if let Some(watch) = self.watches.get_mut(seen.name) {
                watch.picked = Some(self.share.of(seen, watch.axis.or(watch.along)).into_kept());
            }
        }
    }

    /// Counts what was picked out of a run that is over, and what it took: on all processors, which the run wanted, too.
    pub fn count(&mut self, inputs: &NamedTensors) {
        let watches = self.watches.iter_mut();
        let mut counts: Vec<(&mut Watch, Picked<'_>)> = watches
            .filter_map(|(name, watch)| {
                let picked = watch.picked.take().or_else(|| {
                    let (name, tensor) = inputs.get_key_value(name)?;
                    Some(self.share.of(&Seen::plain(name, tensor), watch.axis.or(watch.along)))
                });
                Some((watch, picked?))
            })
            .collect();
        // The largest first, so that no processor is left with one of them at the end.
        counts.sort_by_key(|(_, picked)| std::cmp::Reverse(picked.len()));
        let keeps = self.keeps;
        let kept = counts.into_par_iter().with_max_len(1).map(|(watch, picked)| {
            watch.add(&picked);
            if !keeps || watch.along.is_none() {
                return 0;
            }
            let bytes = picked.len() * size_of::<f32>();
            watch.kept.push(picked.into_kept());
            bytes
        });
        self.kept_bytes += kept.sum::<usize>();
        if self.kept_bytes > KEPT_BYTES {
            self.keeps = false;
            self.watches.values_mut().for_each(|watch| watch.kept = Vec::new());
        }
        self.share.run += 1;
    }

    /// What was seen so far.
    pub fn seen(&self) -> Observations {
        self.watches.iter().map(|(name, watch)| (name.clone(), watch.seen.clone())).collect()
    }

    /// From now on counts what becomes of the values, which it goes on being shown as they are; also of what it has seen,
    /// where that was kept: `false` where it has to be shown again. `with_undivided`: what they are is counted as well.
    pub fn even_out(&mut self, divided: Vec<Divided>, with_undivided: bool) -> bool {
        let kept = self.keeps;
        for divided in divided {
            if let Some(watch) = self.watches.get_mut(&divided.value) {
                watch.undivided = with_undivided.then(|| watch.seen.clone());
                watch.divided = Some(divided);
            }
        }
        self.keeps = false;
        if !kept {
            self.share.run = 0;
        }
        self.watches.par_iter_mut().for_each(|(_, watch)| {
            let before = std::mem::take(&mut watch.kept);
            if !kept || watch.divided.is_some() {
                watch.seen = Observed::of(watch.axis);
            }
            if !kept {
                watch.undivided = watch.undivided.take().map(|_| Observed::of(None));
            } else if let Some(divided) = &watch.divided {
                for picked in before {
                    let values = picked.divided(divided);
                    watch.seen.add(&picked, watch.axis, values.as_deref().unwrap_or(&picked.values));
                }
            }
        });
        kept
    }

    /// What was seen, and of values that were divided what they are undivided.
    pub fn into_seen(self) -> (Observations, Observations) {
        let mut undivided = Observations::new();
        let mut seen = Observations::new();
        for (name, watch) in self.watches {
            undivided.extend(watch.undivided.map(|observed| (name.clone(), observed)));
            seen.insert(name, watch.seen);
        }
        (seen, undivided)
    }
}

/// Runs a model that is ready on all samples, before the eyes of `observer`.
///
/// # Errors
///
/// When the model does not run.
pub fn observe(session: &mut dyn Session, samples: &Samples, observer: &mut Observer) -> Result<(), PrecisionError> {
    for index in 0..samples.batches() {
        let inputs = samples.inputs(index);
        session.run(&inputs, &mut |some| observer.look(some))?;
        observer.count(&inputs);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::{ElementType, HostTensor, preparation::Method};

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
        assert_eq!(all.of(&seen(true), Some(1)).values, values);
        let mut met = vec![0; values.len()];
        for run in 0..4 {
            let share = Share { most: values.len() / 4, run }.of(&seen(true), Some(1));
            assert_eq!((share.len(), &share.shape[..]), (values.len() / 4, &[1, 1, 10, 32][..]));
            assert!(share.values.chunks_exact(32).all(|place| place[0] % 32.0 == 0.0), "whole places");
            share.values.iter().for_each(|value| met[*value as usize] += 1);
        }
        assert!(met.into_iter().all(|times| times == 1), "four runs meet each place once");
        // Of channels that do not lie last, as many places of each.
        let mut met = vec![0; values.len()];
        for run in 0..4 {
            let share = Share { most: values.len() / 4, run }.of(&seen(false), Some(1));
            assert_eq!((share.len(), &share.shape[..]), (values.len() / 4, &[1, 5, 2, 32][..]));
            share.values.iter().for_each(|value| met[*value as usize] += 1);
        }
        assert!(met.into_iter().all(|times| times == 1), "four runs meet each place once");
        assert_eq!(Share { most: 10, run: 0 }.of(&seen(false), Some(1)).values, values, "fewer places than that");
        assert_eq!(Share { most: values.len() / 4, run: 0 }.of(&seen(false), None).len(), values.len() / 4);
    }

    #[test]
    fn values_may_be_shown_one_at_a_time_and_be_gone_afterwards() {
        let wanted = BTreeMap::from([("x".to_owned(), Some(1)), ("y".to_owned(), None), ("in".to_owned(), None)]);
        let number = |run: usize, at: usize| ((at * 7 + run * 13) % 101) as f32 - 40.0;
        let mut memory = vec![0.0_f32; 4 * 1024];
        let write = |run: usize, value: usize, memory: &mut [f32]| {
            memory.iter_mut().enumerate().for_each(|(at, to)| *to = number(run + 10 * value, at));
        };
        let inputs = |run: usize| {
            let bytes = (0..64).flat_map(|at| number(run, at).to_le_bytes()).collect();
            NamedTensors::from([("in".to_owned(), HostTensor { element: ElementType::F32, shape: vec![1, 64], bytes })])
        };
        fn seen<'a>(name: &'a str, memory: &'a [f32]) -> Seen<'a> {
            let bytes = bytemuck::cast_slice(memory);
            Seen { name, element: ElementType::F32, shape: &[1, 32, 32, 4], channels_last: true, bytes }
        }
        let (mut together, mut apart) = (Observer::of(&wanted), Observer::of(&wanted));
        for run in 0..3 {
            let mut other = memory.clone();
            write(run, 0, &mut memory);
            write(run, 1, &mut other);
            together.look(&[seen("x", &memory), seen("nobody asked", &memory), seen("y", &other)]);
            together.count(&inputs(run));
            for (value, name) in ["x", "y"].into_iter().enumerate() {
                write(run, value, &mut memory);
                apart.look(&[seen(name, &memory)]);
            }
            apart.count(&inputs(run));
        }
        let (together, apart) = (together.seen(), apart.seen());
        assert_eq!(largest(&together), largest(&apart));
        for (name, count) in [("x", 3 * 4096), ("y", 3 * 4096), ("in", 3 * 64)] {
            assert_eq!((together[name].histogram.count, apart[name].histogram.count), (count, count), "{name}");
            for method in [Method::MinMax, Method::Mse] {
                let range = |of: &Observations| of[name].histogram.range(method, false);
                assert_eq!(range(&together), range(&apart), "{name}");
            }
        }
    }

    /// Shows runs of an image of four channels.
    fn show(observer: &mut Observer, runs: std::ops::Range<usize>, channels_last: bool) {
        for run in runs {
            let values: Vec<f32> = (0..4 * 1024).map(|at| ((at * 7 + run * 13) % 101) as f32 - 40.0).collect();
            let shape = if channels_last { [1, 32, 32, 4] } else { [1, 4, 32, 32] };
            let bytes = bytemuck::cast_slice(&values);
            let seen = Seen { name: "x", element: ElementType::F32, shape: &shape, channels_last, bytes };
            observer.look(&[seen]);
            observer.count(&NamedTensors::new());
        }
    }

    /// What the observer finds of each channel once its values are divided by powers of two.
    fn largest(of: &Observations) -> Vec<f64> {
        of["x"].channels.as_ref().expect("channels count").largest.clone()
    }

    #[test]
    fn what_was_kept_counts_as_if_it_had_been_divided_at_once() {
        let wanted = BTreeMap::from([("x".to_owned(), Some(1))]);
        let by = vec![1.0, 2.0, 0.5, 8.0];
        let divided = || vec![Divided { value: "x".to_owned(), axis: 1, by: by.clone() }];
        for channels_last in [false, true] {
            let mut at_once = Observer::of(&wanted);
            at_once.even_out(divided(), true);
            show(&mut at_once, 0..5, channels_last);
            let mut later = Observer::of(&wanted).keeping([("x".to_owned(), 1)].iter());
            show(&mut later, 0..3, channels_last);
            let undivided = largest(&later.seen());
            assert!(later.even_out(divided(), true));
            show(&mut later, 3..5, channels_last);
            let ((at_once, before), (later, before_later)) = (at_once.into_seen(), later.into_seen());
            let expected: Vec<f64> = undivided.iter().zip(&by).map(|(largest, by)| largest / f64::from(*by)).collect();
            assert_eq!(largest(&later), largest(&at_once));
            assert_eq!(largest(&later), expected, "channels last: {channels_last}");
            for method in [Method::MinMax, Method::Mse] {
                let range = |of: &Observations| of["x"].histogram.range(method, true);
                assert_eq!(range(&later), range(&at_once));
                assert_eq!(range(&before_later), range(&before));
                assert_ne!(range(&later), range(&before_later));
            }
        }
    }

    #[test]
    fn what_is_too_much_to_keep_has_to_be_shown_again() {
        let wanted = BTreeMap::from([("x".to_owned(), Some(1))]);
        let mut observer = Observer::of(&wanted).keeping([("x".to_owned(), 1)].iter());
        observer.kept_bytes = KEPT_BYTES;
        show(&mut observer, 0..3, true);
        assert!(!observer.even_out(vec![Divided { value: "x".to_owned(), axis: 1, by: vec![2.0] }], false));
        assert_eq!(observer.seen()["x"].histogram.count, 0);
        show(&mut observer, 0..3, true);
        assert_eq!(observer.seen()["x"].histogram.count, 3 * 4096);
        assert_eq!(observer.seen()["x"].histogram.largest(), 30.0);
    }
}
