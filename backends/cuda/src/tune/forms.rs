//! Forms of one program, which compute the same by other steps: each is tuned, and the quickest whole is taken.

use super::{Effort, GoOn, Knowledge, Tuned, again, choose_streams, target_of, tune_rest};
use crate::{
    codegen::gemm,
    lower::{chain, heads},
    program::Program,
    runtime::{Constants, Context, Device, RuntimeError},
};
use std::time::Instant;

/// A program with its tactics, ready to run.
#[derive(Debug)]
pub struct ReadyProgram {
    pub program: Program,
    pub tuned: Tuned,
    pub context: Context,
    /// Device time of a run of each form that there is.
    pub forms_ms: Vec<f64>,
}

/// The forms that a program without tactics has on a device, the one of fewest steps last. Where nothing is compared,
/// there is that one only.
pub fn forms(program: &Program, device: gemm::Device, effort: Effort) -> Vec<Program> {
    let heads = heads::fused(program, device);
    let fewest = chain::fused(heads.as_ref().unwrap_or(program), device).or(heads);
    match fewest {
        Some(fewest) if effort.compares => vec![program.clone(), fewest],
        Some(fewest) => vec![fewest],
        None => vec![program.clone()],
    }
}

/// The quickest form of a program, with the fastest tactics of its steps.
pub fn quickest(
    device: &Device,
    program: &Program,
    weights: &Constants,
    effort: Effort,
    known: &mut Knowledge,
    go_on: &mut GoOn<'_>,
) -> Result<ReadyProgram, RuntimeError> {
    let Knowledge { times, streams, apart } = known;
    let mut best: Option<ReadyProgram> = None;
    let (mut timed, mut known, mut forms_ms) = (0, 0, Vec::new());
    for mut program in forms(program, target_of(device), effort) {
        let began = Instant::now();
        device.compile_all(&program.sources)?;
        let (kernels, seconds) = (program.sources.len(), began.elapsed().as_secs_f32());
        tracing::info!(kernels, seconds, "kernels without a choice are compiled");
        let mut tuned = tune_rest(device, &mut program, weights, effort, times, apart, go_on)?;
        program.drop_unused_sources();
        // Tactics that were known are not compiled yet: all at once, not each when its step is made ready.
        device.compile_all(&program.sources)?;
        // Made ready here rather than at the first load, and what cuDNN compiles for it is kept.
        let step_us = tuned.tried.iter().filter_map(|(step, timed)| Some((step.as_str(), timed.first()?.us))).collect();
        let single = program.clone();
        let mut context = choose_streams(device, &mut program, weights, &step_us, effort.compares, streams)?;
        if effort.compares && tuned.timed > 0 {
            let learn = again::Learn { tuned: &mut tuned, times, streams };
            context = again::exchange(device, &single, &mut program, context, weights, learn)?;
        }
        timed += tuned.timed;
        known += tuned.known;
        let ms = context.time_ms()?;
        tracing::info!(steps = program.steps.len(), ms, "a form of the program is tuned");
        if forms_ms.iter().all(|other| ms < *other) {
            best = Some(ReadyProgram { program, tuned, context, forms_ms: Vec::new() });
        }
        forms_ms.push(ms);
    }
    let mut best = best.expect("a program has at least one form");
    (best.tuned.timed, best.tuned.known, best.forms_ms) = (timed, known, forms_ms);
    Ok(best)
}
