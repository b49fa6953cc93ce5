//! Candidates of one step must agree: one that computes something else than the others, or less precisely than its type
//! promises, is left out, whatever its time. Without a majority there is no verdict: then all stay, and the check of the
//! whole engine's outputs decides.

use super::Timed;
use crate::{
    program::{Program, Step, Tactic},
    runtime::{Device, Memory, RuntimeError},
    view::Kind,
};
use planforge_graph::ir::Tensor;
use planforge_kernels_cuda::device::DeviceError;

/// Parts of a result that are compared, evenly from its begin to its end, and elements of each: a tactic can be wrong
/// in some rows only.
const PARTS: u64 = 32;
const PART_ELEMENTS: u64 = 256;

/// Candidates in the making.
pub(super) struct Trial<'a> {
    device: &'a Device,
    step: &'a Step,
    timed: Vec<(Timed, Vec<f64>)>,
}

impl<'a> Trial<'a> {
    pub fn new(device: &'a Device, step: &'a Step) -> Self {
        Self { device, step, timed: Vec::new() }
    }

    /// Notes a time and what was computed; a candidate that failed is none, unless it broke the device.
    pub fn keep(
        &mut self,
        program: &Program,
        memory: &Memory,
        tactic: Tactic,
        time: Result<f64, RuntimeError>,
    ) -> Result<(), RuntimeError> {
        match time {
            Ok(us) => {
                let sample = sample(self.device, program, memory, self.step)?;
                self.timed.push((Timed { tactic, us, source: None }, sample));
            }
            Err(error @ RuntimeError::Device(DeviceError::Fault { .. })) => return Err(error),
            Err(error) => tracing::debug!(tactic = tactic.name(), %error, "a tactic does not run here"),
        }
        Ok(())
    }

    /// Those near the middle of all.
    pub fn agreed(self, tf32: bool) -> Vec<Timed> {
        let count = self.timed.iter().map(|(_, sample)| sample.len()).min().unwrap_or(0);
        let middle: Vec<f64> = (0..count)
            .map(|index| {
                let mut values: Vec<f64> = self.timed.iter().map(|(_, sample)| sample[index]).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            })
            .collect();
        let squares: f64 = middle.iter().map(|x| x * x).sum();
        // Nothing to compare with: fewer than three opinions, or numbers that are none.
        let judged = self.timed.len() > 2 && squares.is_normal();
        let bound = bound(self.step.work.views().1.kind, tf32);
        let agrees = |timed: &Timed, sample: &[f64]| {
            let differences: f64 = middle.iter().zip(sample).map(|(a, b)| (a - b) * (a - b)).sum();
            let error = (differences / squares).sqrt();
            if judged && (error > bound || error.is_nan()) {
                let (step, tactic) = (&self.step.name, timed.tactic.name());
                tracing::warn!(step, tactic, error, "a tactic computes something else than the others and is left out");
                return false;
            }
            true
        };
        let mut keep: Vec<bool> = self.timed.iter().map(|(timed, sample)| agrees(timed, sample)).collect();
        if !keep.is_empty() && !majority(&keep) {
            tracing::warn!(step = self.step.name, "no majority of its tactics computes the same: none is left out");
            keep.fill(true);
        }
        self.timed.into_iter().zip(keep).filter_map(|((timed, _), keep)| keep.then_some(timed)).collect()
    }
}

/// Whether more than half agree with the middle.
fn majority(agree: &[bool]) -> bool {
    agree.iter().filter(|agrees| **agrees).count() * 2 > agree.len()
}

/// Largest difference from the middle, relative to its root mean square: a few roundings of the type.
pub(super) fn bound(kind: Kind, tf32: bool) -> f64 {
    match kind {
        Kind::Bf16 => 3e-2,
        Kind::F32 if !tf32 => 5e-5,
        _ => 1e-2,
    }
}

/// Some elements of what the step has just written.
fn sample(device: &Device, program: &Program, memory: &Memory, step: &Step) -> Result<Vec<f64>, RuntimeError> {
    let view = step.work.views().1;
    let (size, end) = (view.kind.bytes(), view.end_bytes().unwrap_or(0));
    device.stream.synchronize()?;
    let mut sample = Vec::new();
    for (first, count) in parts(view.offset, end / size) {
        let mut bytes = vec![0; (count * size) as usize];
        memory.read(program, view.buffer, first * size, &mut bytes)?;
        let values = Tensor::new(view.kind.element(), vec![count as usize], bytes.into());
        sample.extend(values.map(|tensor| tensor.to_f64s()).unwrap_or_default());
    }
    Ok(sample)
}

/// Where the parts of elements `begin..end` begin, and how long they are; all of it as one where it is short.
fn parts(begin: u64, end: u64) -> Vec<(u64, u64)> {
    let all = end.saturating_sub(begin);
    if all <= PARTS * PART_ELEMENTS {
        return vec![(begin, all)];
    }
    // The last part ends where the result does.
    (0..PARTS).map(|part| (begin + (all - PART_ELEMENTS) * part / (PARTS - 1), PART_ELEMENTS)).collect()
}

#[cfg(test)]
mod tests {
    use super::{PART_ELEMENTS, PARTS, majority, parts};

    #[test]
    fn half_is_no_majority() {
        assert!(majority(&[true, true, false]));
        assert!(!majority(&[true, false]));
        assert!(!majority(&[false, false, false]));
    }

    #[test]
    fn parts_reach_from_the_begin_to_the_end() {
        assert_eq!(parts(7, 107), [(7, 100)]);
        let spread = parts(64, 1_000_000);
        assert_eq!(spread.len() as u64, PARTS);
        assert_eq!(spread[0], (64, PART_ELEMENTS));
        assert_eq!(spread.last().map(|(first, count)| first + count), Some(1_000_000));
        assert!(spread.windows(2).all(|two| two[0].0 + PART_ELEMENTS <= two[1].0));
    }
}
