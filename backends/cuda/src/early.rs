//! Which kernels let the ones behind them begin early: decided here, held to in `runtime/context`.

use crate::{
    program::{Program, Step, Work},
    schedule::Schedule,
};

/// First architecture on which a kernel can begin before the one ahead of it ends.
pub const EARLY_SINCE: u32 = 90;

/// How a step behaves behind a kernel that lets it begin early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Waits by itself for what is ahead of it.
    pub waits: bool,
    pub is_library: bool,
}

impl Behind {
    /// As the step's tactic says.
    pub fn of(step: &Step) -> Self {
        match (&step.work, &step.tactic) {
            (Work::Kernel(_), _) | (_, None) => Self { waits: true, is_library: false },
            (_, Some(tactic)) => Self { waits: tactic.waits(), is_library: tactic.is_library() },
        }
    }
}

/// By step: whether its kernel lets none behind it begin before it has ended; `None` where none could, on devices of
/// earlier compute capabilities (times ten).
///
/// Own kernels let those behind them begin early, unless one of these, the next on their stream or one that waits on
/// another, is a library's that was not seen to wait by itself: some of cuDNN's kernels do begin early and read what is
/// not written yet. One that follows several streams counts as such: it was tried behind one.
pub fn kept_alone(capability: u32, program: &Program, steps: &[Behind]) -> Option<Vec<bool>> {
    if capability < EARLY_SINCE {
        return None;
    }
    let schedule = Schedule::of(program);
    let hasty: Vec<bool> = steps
        .iter()
        .zip(&schedule.waits)
        .map(|(step, others)| !step.waits || (step.is_library && !others.is_empty()))
        .collect();
    Some(schedule.ahead_of(&program.steps, &hasty))
}
