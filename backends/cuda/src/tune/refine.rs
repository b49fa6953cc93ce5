//! The best candidates once more, inside of the whole captured graph: there, weights come from memory instead of a
//! cache that repeating one step keeps warm, and kernels overlap with their neighbours.

use super::{Timed, Tuned};
use crate::{
    program::{Program, Work},
    runtime::{Device, Kernels, Memory, Ready, Result, RuntimeError, keep_libraries_behind, median_ms, prepare},
    signature::signature,
};
use planforge_kernels_cuda::device::DeviceError;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Candidates of a step that are compared, the best included.
const FINALISTS: usize = 3;
/// How much slower by itself a finalist may be.
const SLACK: f64 = 1.3;
/// The same where the whole is one row: its matrices come from memory, whatever they take from a warm cache.
const FINALISTS_OF_ROWS: usize = 10;
const SLACK_OF_ROWS: f64 = 2.0;
/// What counts as quicker: more than the noise of a median.
const GAIN: f64 = 0.998;
/// A step whose share of the whole is less is not worth a comparison.
const LEAST_SHARE: f64 = 0.002;
/// All of it ends after this time; what was not compared keeps its best.
const LONGEST: Duration = Duration::from_secs(8);

/// Steps that are computed alike.
struct Group {
    steps: Vec<usize>,
    candidates: Vec<Timed>,
    us: f64,
}

/// Exchanges tactics of `program` while that makes the whole quicker. `known` learns the order that was found.
pub(super) fn refine(
    device: &Device,
    program: &mut Program,
    memory: &Memory,
    tuned: &mut Tuned,
    known: &mut super::Times,
    kernels: &mut Kernels,
) -> Result<()> {
    let mut ready = Vec::with_capacity(program.steps.len());
    for step in &program.steps {
        ready.push(prepare(device, program, step, step.tactic.as_ref(), memory, kernels)?);
    }
    let (finalists, slack) = match program.states.is_empty() {
        true => (FINALISTS, SLACK),
        false => (FINALISTS_OF_ROWS, SLACK_OF_ROWS),
    };
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for (index, step) in program.steps.iter().enumerate() {
        if matches!(step.work, Work::Kernel(_)) {
            continue;
        }
        let Some(tried) = tuned.tried.get(&step.name) else { continue };
        let finalist = |timed: &&Timed| timed.us <= tried[0].us * slack;
        let candidates = || tried.iter().filter(finalist).take(finalists).cloned().collect();
        let group = groups.entry(signature(program, &step.work)).or_insert_with(|| Group {
            steps: Vec::new(),
            candidates: candidates(),
            us: 0.0,
        });
        group.steps.push(index);
        group.us += tried[0].us;
    }
    let began = Instant::now();
    let mut best_ms = graph_ms(device, program, &mut ready)?;
    let mut order: Vec<(String, Group)> = groups.into_iter().collect();
    order.sort_by(|(_, a), (_, b)| b.us.total_cmp(&a.us));
    for (signature, group) in order {
        if group.us / 1e3 < best_ms * LEAST_SHARE || began.elapsed() > LONGEST {
            break;
        }
        for candidate in group.candidates.iter().skip(1) {
            let mut others = Vec::with_capacity(group.steps.len());
            for &index in &group.steps {
                let made = prepare(device, program, &program.steps[index], Some(&candidate.tactic), memory, kernels);
                others.extend(made.map(|made| (index, made)));
            }
            if others.len() < group.steps.len() {
                continue;
            }
            exchange(&mut ready, &mut others);
            let ms = match graph_ms(device, program, &mut ready) {
                Ok(ms) => ms,
                Err(error @ RuntimeError::Device(DeviceError::Fault { .. })) => return Err(error),
                Err(error) => {
                    tracing::debug!(tactic = candidate.tactic.name(), %error, "a tactic does not run in a graph");
                    f64::INFINITY
                }
            };
            if ms < best_ms * GAIN {
                best_ms = ms;
                for &index in &group.steps {
                    program.steps[index].tactic = Some(candidate.tactic.clone());
                    if let Some(tried) = tuned.tried.get_mut(&program.steps[index].name) {
                        prefer(tried, candidate);
                    }
                }
                if let Some(times) = known.get_mut(&signature) {
                    prefer(times, candidate);
                }
            } else {
                exchange(&mut ready, &mut others);
            }
        }
    }
    Ok(())
}

fn exchange(ready: &mut [Ready], others: &mut [(usize, Ready)]) {
    for (index, other) in others {
        std::mem::swap(&mut ready[*index], other);
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

/// Median time of all steps as one graph.
fn graph_ms(device: &Device, program: &Program, ready: &mut [Ready]) -> Result<f64> {
    // Tactics change between calls, and with them what stands before a library's kernel.
    keep_libraries_behind(device, program, ready)?;
    let stream = &device.stream;
    // SAFETY: the caller's memory lives.
    let graph = stream.capture(|| ready.iter().try_for_each(|step| unsafe { step.run(stream) }))?;
    // SAFETY: as above.
    unsafe { median_ms(stream, &graph) }
}
