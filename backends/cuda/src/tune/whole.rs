//! All steps of a program as one graph, in which groups of equal steps exchange candidates.

use super::{
    Timed, Times, Tuned,
    climb::{Exchange, Look},
};
use crate::{
    program::{Program, Work},
    runtime::{
        Device, Kernels, Memory, Ready, Result, RuntimeError, capture, graph_ms, keep_libraries_behind, prepare_all,
        prepare_step,
    },
    schedule::Schedule,
    signature::signature,
};
use planforge_kernels_cuda::device::{DeviceError, Stream};
use std::collections::BTreeMap;

/// Launches of a graph whose steps were drawn or that is looked at roughly, and of those that are compared with care.
pub const LAUNCHES: usize = 5;
pub const LAUNCHES_AT_LAST: usize = 25;
/// A step whose share of the whole is less is not worth a comparison.
const LEAST_SHARE: f64 = 0.001;

/// Steps that are computed alike.
pub struct Group {
    pub signature: String,
    pub steps: Vec<usize>,
    pub candidates: Vec<Timed>,
    /// How many of them, the first ones, are compared at once.
    pub compared: usize,
    pub us: f64,
    /// The candidate in use, and those that are not, ready for each of the steps.
    now: usize,
    spare: Vec<Vec<Ready>>,
}

impl Group {
    /// The groups of a program that have a choice and some share of the whole; `candidates`: which of what was tried.
    pub fn all(
        program: &Program,
        tried: &BTreeMap<String, Vec<Timed>>,
        candidates: &dyn Fn(&[Timed]) -> Vec<Timed>,
        whole_ms: f64,
    ) -> Vec<Self> {
        let mut groups: BTreeMap<String, Self> = BTreeMap::new();
        for (index, step) in program.steps.iter().enumerate() {
            if matches!(step.work, Work::Kernel(_)) {
                continue;
            }
            let Some(tried) = tried.get(&step.name) else { continue };
            let signature = signature(program, &step.work);
            let group = groups.entry(signature.clone()).or_insert_with(|| Self {
                signature,
                steps: Vec::new(),
                candidates: candidates(tried),
                compared: 0,
                us: 0.0,
                now: 0,
                spare: Vec::new(),
            });
            group.steps.push(index);
            group.us += tried[0].us;
        }
        let has_choice = |group: &Self| group.candidates.len() > 1 && group.us >= whole_ms * 1e3 * LEAST_SHARE;
        groups.into_values().filter(has_choice).collect()
    }

    /// Gives the steps of `program` a candidate.
    pub fn give(&self, program: &mut Program, candidate: usize) {
        let tactic = &self.candidates[candidate].tactic;
        self.steps.iter().for_each(|&step| program.steps[step].tactic = Some(tactic.clone()));
    }

    /// Lets the steps have another candidate where the whole is timed.
    fn take(&mut self, ready: &mut [Ready], candidate: usize) {
        if candidate == self.now {
            return;
        }
        for (spare, &step) in self.spare[candidate].iter_mut().zip(&self.steps) {
            std::mem::swap(spare, &mut ready[step]);
        }
        self.spare.swap(candidate, self.now);
        self.now = candidate;
    }
}

/// Candidates that are not compared at once, those first that take least more by themselves.
pub fn further(groups: &[Group]) -> Vec<Exchange> {
    let slower_us = |group: &Group, candidate: usize| {
        (group.candidates[candidate].us - group.candidates[0].us) * group.steps.len() as f64
    };
    let of = |(at, group): (usize, &Group)| {
        (group.compared..group.candidates.len()).map(move |candidate| (at, candidate)).collect::<Vec<_>>()
    };
    let mut further: Vec<(usize, usize)> = groups.iter().enumerate().flat_map(of).collect();
    further.sort_by(|a, b| slower_us(&groups[a.0], a.1).total_cmp(&slower_us(&groups[b.0], b.1)));
    further.into_iter().map(|one| vec![one]).collect()
}

/// What was tried for the steps of each group, and what is known of it, begins with the candidate of `choice`.
pub fn prefer_all(program: &Program, groups: &[Group], choice: &[usize], tuned: &mut Tuned, known: &mut Times) {
    for (group, &candidate) in groups.iter().zip(choice) {
        let chosen = &group.candidates[candidate];
        for &step in &group.steps {
            if let Some(tried) = tuned.tried.get_mut(&program.steps[step].name) {
                prefer(tried, chosen);
            }
        }
        if let Some(times) = known.get_mut(&group.signature) {
            prefer(times, chosen);
        }
    }
}

/// Puts a candidate first; its source tells a kernel apart, whose index differs between programs.
fn prefer(times: &mut Vec<Timed>, candidate: &Timed) {
    let same = |timed: &Timed| timed.source == candidate.source && timed.tactic.is_like(&candidate.tactic);
    if let Some(at) = times.iter().position(same) {
        let preferred = times.remove(at);
        times.insert(0, preferred);
    }
}

/// All steps as one graph on the program's streams, made anew for each time: tactics change between them.
pub struct Whole<'a> {
    device: &'a Device,
    program: &'a Program,
    schedule: Schedule,
    ready: Vec<Ready>,
    sides: Vec<Stream>,
}

impl<'a> Whole<'a> {
    /// With the tactics that the steps have, in memory that has to outlive it.
    pub fn new(device: &'a Device, program: &'a Program, memory: &Memory, kernels: &mut Kernels) -> Result<Self> {
        let schedule = Schedule::of(program);
        let ready = prepare_all(device, program, &schedule, memory, kernels)?;
        let sides = (1..schedule.streams).map(|_| device.gpu.stream()).collect::<std::result::Result<_, _>>()?;
        Ok(Self { device, program, schedule, ready, sides })
    }

    /// Makes the candidates of a group ready that are not in use; those that cannot be are left out.
    pub fn make_ready(&self, group: &mut Group, memory: &Memory, kernels: &mut Kernels) {
        group.spare.push(Vec::new());
        let others = group.candidates.split_off(1);
        let compared = std::mem::replace(&mut group.compared, 1);
        for (number, candidate) in (1..).zip(others) {
            let mut ready = |&step: &usize| {
                let tactic = Some(&candidate.tactic);
                prepare_step(self.device, self.program, &self.schedule, step, tactic, memory, kernels)
            };
            if let Ok(made) = group.steps.iter().map(&mut ready).collect::<Result<_>>() {
                group.spare.push(made);
                group.candidates.push(candidate);
                group.compared += usize::from(number < compared);
            }
        }
    }

    /// Median time with such candidates, as exchanges are measured; infinite where they do not run.
    pub fn look(&mut self, groups: &mut [Group], choice: &[usize], look: Look) -> Result<f64> {
        let launches = if look == Look::Rough { LAUNCHES } else { LAUNCHES_AT_LAST };
        Ok(self.ms_of(groups, choice, launches)?.unwrap_or(f64::INFINITY))
    }

    /// Median time with such candidates; `None` where they do not run in a graph.
    pub fn ms_of(&mut self, groups: &mut [Group], choice: &[usize], launches: usize) -> Result<Option<f64>> {
        for (group, &candidate) in groups.iter_mut().zip(choice) {
            group.take(&mut self.ready, candidate);
        }
        match self.ms(launches) {
            Ok(ms) => Ok(Some(ms)),
            Err(error @ RuntimeError::Device(DeviceError::Fault { .. })) => Err(error),
            Err(error) => {
                tracing::debug!(%error, "tactics do not run in a graph");
                Ok(None)
            }
        }
    }

    /// Median time with what is chosen now.
    pub fn ms(&mut self, launches: usize) -> Result<f64> {
        // What stands before a library's kernel is another one now.
        keep_libraries_behind(self.device, self.program, &mut self.ready)?;
        let stream = &self.device.stream;
        let graph = capture(self.program, &self.schedule, &self.ready, stream, &self.sides)?;
        // SAFETY: the caller's memory lives.
        unsafe { graph_ms(stream, &graph, launches) }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::program::Tactic;

    pub fn group(steps: &[usize], compared: usize, us: &[f64]) -> Group {
        let candidate = |&us: &f64| {
            let tactic = Tactic::Kernel { source: 0, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
            Timed { tactic, us, source: None }
        };
        let candidates = us.iter().map(candidate).collect();
        let (signature, spare) = (String::new(), Vec::new());
        Group { signature, steps: steps.to_vec(), candidates, compared, us: 0.0, now: 0, spare }
    }

    #[test]
    fn what_was_not_compared_comes_by_what_it_takes_more_in_all_its_steps() {
        let groups = [group(&[0, 1, 2], 2, &[1.0, 1.1, 1.3, 1.4]), group(&[3], 1, &[2.0, 2.5])];
        assert_eq!(further(&groups), [vec![(1, 1)], vec![(0, 2)], vec![(0, 3)]]);
    }
}
