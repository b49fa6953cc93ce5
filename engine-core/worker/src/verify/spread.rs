//! What outputs may be off beyond what the precision explains, told by a reference that was rounded in several ways.
//!
//! Two kinds of models, judged apart. Where nothing is rounded to steps, the same elements are badly conditioned in every
//! run: each is allowed what it was seen to move by, and all others nothing. In a quantized model it is chance which
//! rounding falls the other way, and so which elements move: an output is allowed as much on the whole, and at its worst
//! element, as whole runs were seen to be off. A wrong channel, zero point or bound moves more, or more of the elements.

use super::numerics::{self, Differences};
use planforge_report::{Allowed, OutputNumerics};
use planforge_types::NamedTensors;
use std::collections::BTreeMap;

/// Runs of the reference that are aimed at.
pub(super) const RUNS: u64 = 8;

/// Fewest runs that anything is allowed for.
pub(super) const RUNS_MIN: u64 = 3;

/// How much more than in the worst of the runs an engine may be off: of nine runs of equal standing, the engine's being
/// the ninth, one in nine is the worst; twice that is another matter.
const FACTOR: f64 = 2.0;

/// As [`FACTOR`], for single elements, of which there are many and each was seen in a few runs only.
const ELEMENT_FACTOR: f64 = 4.0;

/// By how much of the output's scale an element may move until it says nothing about the engine.
const UNJUDGED: f64 = 0.1;

/// As [`UNJUDGED`], of a quantized output's root mean square.
const UNJUDGED_RMS: f64 = 0.25;

/// What the runs showed of one output.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Largest difference of every element; infinite where a run gave no number, or another.
    elements: Vec<f64>,
    worst: f64,
    /// Largest of the runs, as `OutputNumerics::relative_rms`.
    relative_rms: f64,
    /// Largest share of differing elements of a run.
    share: f64,
}

/// What the runs showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    runs: u64,
    /// Something on the way is rounded to steps.
    quantized: bool,
    /// What was done in those runs, for people.
    how: &'static str,
    /// Size of a step of outputs that come right out of a quantization.
    steps: BTreeMap<String, f64>,
    outputs: BTreeMap<String, Seen>,
}

impl Spread {
    /// What nothing was seen of yet.
    pub fn new(how: &'static str, quantized: bool, steps: BTreeMap<String, f64>) -> Self {
        Self { how, quantized, steps, ..Self::default() }
    }

    /// Adds a run's outputs, held against the reference's.
    pub fn add(&mut self, run: &NamedTensors, reference: &NamedTensors, softmaxes: &BTreeMap<String, usize>) {
        self.runs += 1;
        for (name, expected) in reference {
            let softmax = softmaxes.get(name).copied();
            let difference = run.get(name).and_then(|run| Differences::between(run, expected, softmax).ok());
            // A run whose outputs have another shape says nothing.
            let Some(difference) = difference else { continue };
            let seen = self.outputs.entry(name.clone()).or_default();
            seen.elements.resize(difference.elements, 0.0);
            difference.not_finite.iter().for_each(|at| seen.elements[*at] = f64::INFINITY);
            difference.errors.iter().for_each(|(at, error)| seen.elements[*at] = seen.elements[*at].max(*error));
            seen.worst = seen.worst.max(difference.worst());
            seen.share = seen.share.max(difference.errors.len() as f64 / difference.elements.max(1) as f64);
            let rms = difference.relative_rms(difference.errors.iter().map(|(_, error)| *error));
            seen.relative_rms = seen.relative_rms.max(rms);
        }
    }

    /// Judges anew, by what the runs showed, every output that is not right within `threshold` alone.
    pub fn judge(
        &self,
        outputs: &mut [OutputNumerics],
        plan: &NamedTensors,
        reference: &NamedTensors,
        softmaxes: &BTreeMap<String, usize>,
        threshold: f64,
    ) {
        if self.runs < RUNS_MIN {
            return;
        }
        for output in outputs.iter_mut().filter(|output| !numerics::passes(std::slice::from_ref(*output), threshold)) {
            let (Some(seen), Some(plan), Some(expected)) =
                (self.outputs.get(&output.name), plan.get(&output.name), reference.get(&output.name))
            else {
                continue;
            };
            let softmax = softmaxes.get(&output.name).copied();
            let Ok(difference) = Differences::between(plan, expected, softmax) else { continue };
            match (difference.whole, self.quantized) {
                (true, quantized) => self.whole(output, &difference, seen, quantized),
                (false, true) => self.quantized(output, &difference, seen, threshold),
                (false, false) => self.smooth(output, &difference, seen, threshold),
            }
        }
    }

    /// Floats of a model that rounds to no steps.
    fn smooth(&self, output: &mut OutputNumerics, difference: &Differences, seen: &Seen, threshold: f64) {
        let unit = difference.unit();
        let judged = |at: usize| ELEMENT_FACTOR * seen.elements[at] <= UNJUDGED * unit;
        let kept: Vec<(usize, f64)> = difference.errors.iter().copied().filter(|(at, _)| judged(*at)).collect();
        // The part of the errors that conditioning does not explain is judged as any other.
        let beyond = |(at, error): &(usize, f64)| (error - ELEMENT_FACTOR * seen.elements[*at]).max(0.0);
        let worst = kept.iter().map(beyond).fold(0.0, f64::max) / unit;
        let rms = difference.relative_rms(kept.iter().map(beyond));
        let most = kept.iter().map(|(at, _)| seen.elements[*at]).fold(0.0, f64::max);
        output.not_finite = difference.not_finite.iter().filter(|at| judged(**at)).count() as u64;
        output.max_error = kept.iter().map(|(_, error)| error / unit).fold(0.0, f64::max);
        output.relative_rms = difference.relative_rms(kept.iter().map(|(_, error)| *error));
        let unjudged = seen.elements.iter().filter(|seen| ELEMENT_FACTOR * **seen > UNJUDGED * unit).count() as u64;
        let how = format!("{} runs of {} move elements by up to {:.1e} of the scale", self.runs, self.how, most / unit);
        output.allowed = Some(Allowed {
            max_error: (threshold + ELEMENT_FACTOR * most / unit).min(f64::MAX),
            relative_rms: (threshold + ELEMENT_FACTOR * seen.relative_rms).min(f64::MAX),
            within: numerics::near(worst, rms, threshold),
            unjudged,
            reason: how,
            steps: None,
        });
    }

    /// Floats of a quantized model.
    fn quantized(&self, output: &mut OutputNumerics, difference: &Differences, seen: &Seen, threshold: f64) {
        let max_error = threshold + FACTOR * seen.worst / difference.unit();
        let relative_rms = threshold + FACTOR * seen.relative_rms;
        let within = output.max_error <= max_error && output.relative_rms <= relative_rms;
        let step = self.steps.get(&output.name).copied().filter(|step| *step > 0.0);
        let in_steps = |error: f64| step.map_or(String::new(), |step| format!(" ({:.1} steps)", error / step));
        let reason = format!(
            "roundings that fall the other way move an element by up to {:.1e} of the scale{} and the whole by {:.1e}, in \
             {} runs of {}",
            seen.worst / difference.unit(),
            in_steps(seen.worst),
            seen.relative_rms,
            self.runs,
            self.how
        );
        // So far off on the whole that right and wrong look alike; what is further off still is wrong.
        let blind = within && relative_rms > UNJUDGED_RMS;
        output.allowed = Some(Allowed {
            max_error: max_error.min(f64::MAX),
            relative_rms: relative_rms.min(f64::MAX),
            within,
            unjudged: if blind { output.elements } else { 0 },
            reason,
            steps: step.map(|step| (threshold * difference.unit() + FACTOR * seen.worst) / step),
        });
    }

    /// Integers and bools: equal, or as other runs had them.
    fn whole(&self, output: &mut OutputNumerics, difference: &Differences, seen: &Seen, quantized: bool) {
        let unexplained = difference.errors.iter().filter(|(at, error)| match quantized {
            true => *error > FACTOR * seen.worst,
            false => *error > seen.elements[*at],
        });
        let unexplained = unexplained.count();
        // One more than was seen where it is chance which elements differ.
        let one = if quantized && seen.share > 0.0 { 1.0 / difference.elements.max(1) as f64 } else { 0.0 };
        let share = if quantized { FACTOR * seen.share + one } else { seen.share_of_all() };
        let reason = format!(
            "{:.2} % of the elements differ by up to {} between {} runs of {}",
            seen.share * 100.0,
            seen.worst,
            self.runs,
            self.how
        );
        output.allowed = Some(Allowed {
            max_error: share,
            relative_rms: 0.0,
            within: unexplained == 0 && output.max_error <= share,
            unjudged: 0,
            reason,
            steps: None,
        });
    }
}

impl Seen {
    /// Share of the elements that differ in any run.
    fn share_of_all(&self) -> f64 {
        let moved = self.elements.iter().filter(|seen| **seen > 0.0).count();
        moved as f64 / self.elements.len().max(1) as f64
    }
}
