//! Tactics once more, in the program as it will be used: on its streams, where kernels that run at once share
//! multiprocessors and memory, and candidates that make no difference one after the other do so beside others; and in
//! other memory, with what else was compared gone.

use super::{
    Streams, Timed, Times, Tuned,
    climb::{Look, MANY, climb, leap},
    proof::Proof,
    recalled,
    refine::finalists,
    streams,
    whole::{Group, LAUNCHES, Whole, further, prefer_all},
};
use crate::{
    program::{MAX_WORKSPACE_BYTES, Program, Step},
    runtime::{Constants, Context, Device, Kernels, Memory, Result, RuntimeError},
};
use planforge_kernels_cuda::device::DeviceError;
use std::time::{Duration, Instant};

/// Candidates of a step that are exchanged, the best included; more where there are fewer exchanges than that.
const CANDIDATES: usize = 5;
const EXCHANGES: usize = 120;
/// Making them ready ends about after this time, and all of it after this.
const LONGEST_READY: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_millis(1500);
/// What the program made anew has to show beside the one before: another memory alone makes half a percent.
const PROOF: Proof = Proof { gain: 0.997, turns: 2 };

/// What learns of what is found.
pub(super) struct Learn<'a> {
    pub tuned: &'a mut Tuned,
    pub times: &'a mut Times,
    pub streams: &'a mut Streams,
}

/// Exchanges tactics of `program`, which runs in `context`, for those with which it is quickest there. `single` is the same
/// with all steps on one stream.
pub(super) fn exchange(
    device: &Device,
    single: &Program,
    program: &mut Program,
    context: Context,
    weights: &Constants,
    mut learn: Learn<'_>,
) -> Result<Context> {
    match exchanged(device, program, &context, weights, &mut learn) {
        Ok(Some((other, made))) => {
            let key = streams::key(&on_one(single, &other));
            learn.streams.insert(key, other.steps.iter().map(|step| step.stream).collect());
            *program = other;
            Ok(made)
        }
        Ok(None) => Ok(context),
        Err(error @ RuntimeError::Device(DeviceError::Fault { .. })) => Err(error),
        Err(error) => {
            tracing::debug!(%error, "tactics are not exchanged again");
            Ok(context)
        }
    }
}

/// The program with other tactics, where that is quicker, ready to run.
fn exchanged(
    device: &Device,
    program: &Program,
    context: &Context,
    weights: &Constants,
    learn: &mut Learn<'_>,
) -> Result<Option<(Program, Context)>> {
    let began = Instant::now();
    let mut other = program.clone();
    let named = learn.tuned.tried.iter().filter_map(|(step, tried)| Some((step.clone(), recalled(&mut other, tried)?)));
    let tried = named.collect();
    let workspaces_bytes = vec![MAX_WORKSPACE_BYTES; other.workspaces_bytes().len()];
    let memory = Memory::new(device, &other, weights.clone(), &workspaces_bytes)?;
    memory.fill_with_noise()?;
    let mut kernels = Kernels::new();
    let mut whole = Whole::new(device, &other, &memory, &mut kernels)?;
    let first_ms = whole.ms(LAUNCHES)?;
    let of = |tried: &[Timed]| finalists(&other, tried).cloned().collect();
    let mut groups = Group::all(&other, &tried, &of, first_ms);
    groups.sort_by(|a, b| b.us.total_cmp(&a.us));
    let each = candidates_each(groups.len());
    groups.iter_mut().for_each(|group| group.candidates.truncate(each));
    let mut ready = 0;
    while ready < groups.len() && began.elapsed() < LONGEST_READY {
        groups[ready].compared = 1;
        whole.make_ready(&mut groups[ready], &memory, &mut kernels);
        ready += 1;
    }
    groups.truncate(ready);
    let exchanges = further(&groups);
    let mut looks = 0;
    let mut look = |choice: &[usize], look: Look| {
        looks += 1;
        whole.look(&mut groups, choice, look)
    };
    let go_on = || began.elapsed() < LONGEST;
    let begin = vec![0; ready];
    let found_ms = look(&begin, Look::Careful)?;
    let best = climb(begin, &exchanges, MANY, &mut look, &go_on)?;
    let climbed_ms = best.ms;
    let best = leap(best, &exchanges, MANY, &mut look, &go_on)?;
    let (exchanges, seconds) = (exchanges.len(), began.elapsed().as_secs_f32());
    tracing::info!(looks, exchanges, found_ms, climbed_ms, best_ms = best.ms, seconds, "tactics are exchanged again");
    if best.choice.iter().all(|&candidate| candidate == 0) {
        return Ok(None);
    }
    drop(whole);
    for (group, &candidate) in groups.iter().zip(&best.choice) {
        group.give(&mut other, candidate);
    }
    other.drop_unused_sources();
    let made = Context::new(device, &other, weights.clone(), &mut Kernels::new())?;
    let measured = PROOF.in_turns(context, &made, &mut Context::time_ms)?;
    tracing::info!(before_ms = measured.now_ms, ms = measured.other_ms, "the program with those tactics is timed");
    if !measured.is_quicker {
        return Ok(None);
    }
    prefer_all(&other, &groups, &best.choice, learn.tuned, learn.times);
    Ok(Some((other, made)))
}

/// Candidates of each of so many groups.
fn candidates_each(groups: usize) -> usize {
    (1 + EXCHANGES / groups.max(1)).max(CANDIDATES)
}

/// `single` with the tactics of `other`, which is the same program on its streams: what a build makes that knows them.
fn on_one(single: &Program, other: &Program) -> Program {
    let steps = other.steps.iter().map(|step| Step { stream: 0, ..step.clone() }).collect();
    Program { steps, sources: other.sources.clone(), ..single.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        program::{Buffer, Place, ProductWork, Tactic, Work},
        schedule,
        source::Source,
        tune::recall,
        view::{BufferId, Kind, View},
    };

    #[test]
    fn few_groups_exchange_more_candidates() {
        assert_eq!([1, 6, 24, 30, 41, 500].map(candidates_each), [121, 21, 6, 5, 5, 5]);
    }

    /// Two products of one input, each with two candidates of which the first is chosen, as a search leaves it.
    fn tuned() -> (Program, Tuned, Times) {
        let sources = ["a", "b", "c", "d"].map(|name| Source { name: name.into(), text: format!("kernel {name}") });
        let arena = |at: u64| Buffer { name: format!("at {at}"), bytes: 4096, place: Place::Arena(at) };
        let mut program = Program {
            // Two results in one place: on streams they have one each.
            buffers: vec![arena(0), arena(4096), arena(4096)],
            arena_bytes: 8192,
            sources: sources.to_vec(),
            ..Program::default()
        };
        let (mut tuned, mut times) = (Tuned::default(), Times::new());
        for (number, columns) in [(0, 16), (1, 24)] {
            let rows = |buffer: u32, dims: &[u64]| View::rows(BufferId(buffer), Kind::F16, dims);
            let product = ProductWork {
                a: rows(0, &[1, 8, 16]),
                b: rows(0, &[1, 16, columns]),
                bias: None,
                residual: None,
                y: rows(number + 1, &[1, 8, columns]),
                alpha: 1.0,
                activation: None,
                norm: None,
            };
            let candidate = |at: usize| {
                let source = 2 * number as usize + at;
                let tactic = Tactic::Kernel { source, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
                Timed { tactic, us: 1.0 + at as f64, source: Some(sources[source].clone()) }
            };
            let timed = vec![candidate(0), candidate(1)];
            let step = Step {
                name: format!("product {number}"),
                origins: Vec::new(),
                work: Work::Product(product),
                tactic: Some(timed[0].tactic.clone()),
                stream: 0,
                flops: 0,
                bytes: 0,
            };
            times.insert(crate::signature::signature(&program, &step.work), timed.clone());
            tuned.tried.insert(step.name.clone(), timed);
            program.steps.push(step);
        }
        (program, tuned, times)
    }

    /// Or the next build would look for streams again, of tactics that were never beside each other.
    #[test]
    fn a_build_that_knows_what_was_exchanged_finds_its_streams() {
        let (draft, mut tuned, mut times) = tuned();
        let mut single = draft.clone();
        single.drop_unused_sources();
        let spread = schedule::on_streams(&single, &[0, 1]).expect("its steps");
        assert_ne!(spread.buffers, single.buffers);
        let mut other = spread.clone();
        let named = tuned.tried.iter().map(|(step, tried)| (step.clone(), recalled(&mut other, tried).unwrap()));
        let tried = named.collect();
        let groups = Group::all(&other, &tried, &<[Timed]>::to_vec, 1e-3);
        assert_eq!(groups.len(), 2);
        let choice: Vec<usize> = groups.iter().map(|group| usize::from(group.steps == [1])).collect();
        groups.iter().zip(&choice).for_each(|(group, &candidate)| group.give(&mut other, candidate));
        other.drop_unused_sources();
        prefer_all(&other, &groups, &choice, &mut tuned, &mut times);
        let names: Vec<&str> = other.sources.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(names, ["a", "d"]);
        assert_eq!(tuned.tried["product 1"][0].source.as_ref().map(|source| source.name.as_str()), Some("d"));

        let mut again = Program { sources: Vec::new(), ..draft };
        again.steps.iter_mut().for_each(|step| step.tactic = None);
        let mut found = Tuned::default();
        assert!((0..2).all(|step| recall(&mut again, step, &times, &mut found)));
        again.drop_unused_sources();
        assert_eq!(streams::key(&on_one(&single, &other)), streams::key(&again));
        assert_ne!(streams::key(&single), streams::key(&again));
    }
}
