//! Which of a step's tactics is fastest here.
//!
//! Candidates of one step are timed side by side on made-up operands, in the state a running engine has: activations
//! just written. Every candidate gets a few runs, then the best ones take turns, so that noise of a moment meets all
//! of them alike, each run at another place of the stack. The quickest run of each counts: whatever else happens on the
//! machine only ever slows a run down.

use super::{
    cache::{Signature, TacticCache},
    draft::{Draft, DraftStep},
    engine::Engine,
    error::EngineError,
    memory::{AlignedBytes, OutOfMemory, Weights},
    program::{ALIGNMENT, Buffer, BufferId, Place, Program, Step, Tactic, TimedTactic},
    steps::{candidates, packed_bytes, scratch_bytes},
};
use bytes::Bytes;
use planforge_backend::{Cancel, Events, stack::Places};
use planforge_kernels_cpu::{gemm::Factors, isa::Isa, pool::ThreadPool};
use planforge_passes::memory::{Lifetime, place};
use std::{ops::Range, sync::Arc, time::Instant};

/// How long candidates are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Kernels of which more than the first candidate is timed: those whose first ones are the quickest.
    kernels: usize,
    /// Runs of every candidate before the best are chosen; the quickest counts.
    screen_runs: usize,
    /// One that takes so many percent more than another is not run again.
    behind_percent: u64,
    /// Candidates that are timed again.
    finalists: usize,
    /// Runs of each finalist.
    final_runs: usize,
}

impl Effort {
    /// For engines that are kept.
    pub(crate) const FULL: Self =
        Self { kernels: usize::MAX, screen_runs: 2, behind_percent: 100, finalists: 3, final_runs: 9 };
    /// For an engine that runs some hundred times: what is lost by a tactic that is not quite the best is less than what
    /// it would take to find that one.
    pub(crate) const BRIEF: Self = Self { kernels: 2, screen_runs: 2, behind_percent: 20, finalists: 2, final_runs: 4 };
}

fn signature(draft: &DraftStep) -> Signature<'_> {
    let kind = &draft.step.kind;
    let residual = draft.step.inputs.len() > kind.operands();
    Signature { kind: kind.as_timed(), bias: draft.bias.is_some(), residual }
}

/// How tactics are chosen.
pub(crate) struct Tuner<'a> {
    pub isa: Isa,
    /// What products with weights may be rounded to.
    pub factors: Factors,
    pub pool: Arc<ThreadPool>,
    /// 0: the first tactic, untimed.
    pub level: u8,
    pub effort: Effort,
    /// Only tactics whose name contains this, where there are any.
    pub force: Option<&'a str>,
    pub cache: &'a mut TacticCache,
    /// What stands for the weights of any step; as long as those of the largest one so far.
    pub made_up: MadeUp,
    pub events: &'a dyn Events,
    pub cancel: &'a Cancel,
}

/// Weights of no model, which nobody writes.
#[derive(Debug, Default)]
pub(crate) struct MadeUp(Bytes);

impl MadeUp {
    fn weights(&mut self, bytes: usize) -> Result<Weights, OutOfMemory> {
        if self.0.len() < bytes {
            let mut data = AlignedBytes::zeroed(bytes)?;
            fill(data.bytes_mut());
            self.0 = Bytes::from_owner(data);
        }
        Ok(Weights::new(self.0.slice(..bytes)))
    }
}

/// Why tactics could not be timed.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error("the build was cancelled")]
    Cancelled,
    #[error("tactic {tactic} could not be timed")]
    Run {
        tactic: String,
        #[source]
        source: EngineError,
    },
}

impl Tuner<'_> {
    /// Chooses a tactic for every step that has a choice.
    pub(crate) fn tune(&mut self, draft: &mut Draft) -> Result<(), TuneError> {
        let pool = Arc::clone(&self.pool);
        let _pinned = pool.pin_caller();
        let total = draft.steps.iter().filter(|draft| draft.step.kind.is_tuned()).count().max(1);
        let mut done = 0;
        for index in 0..draft.steps.len() {
            if !draft.steps[index].step.kind.is_tuned() {
                continue;
            }
            if self.cancel.is_cancelled() {
                return Err(TuneError::Cancelled);
            }
            let step = &draft.steps[index];
            let mut tactics = candidates(&step.step.kind, self.isa, self.factors, self.pool.threads());
            if let Some(wanted) = self.force
                && tactics.iter().any(|tactic| tactic.name().contains(wanted))
            {
                tactics.retain(|tactic| tactic.name().contains(wanted));
            }
            let tried = if self.level == 0 || tactics.len() == 1 {
                tactics.into_iter().take(1).map(|tactic| TimedTactic { tactic, best_ns: None }).collect()
            } else {
                let key = self.cache.key(&signature(step), &tactics);
                // What was timed at length is taken for all; what was timed briefly, for nobody who has more time.
                let brief = (self.effort != Effort::FULL).then(|| format!("{key} timed briefly"));
                match self.cache.get(&key, brief.as_deref()) {
                    Some(known) => known,
                    None => {
                        let timed = self.time(draft, index, tactics)?;
                        self.cache.put(brief.unwrap_or(key), timed.clone());
                        timed
                    }
                }
            };
            let step = &mut draft.steps[index].step;
            step.tactic = tried.first().map(|timed| timed.tactic.clone());
            step.tried = tried;
            done += 1;
            let name = step.tactic.as_ref().map(Tactic::name).unwrap_or_default();
            let detail = format!("{}: {name}", step.origins.first().map_or("", String::as_str));
            self.events.progress("tune", done as f32 / total as f32, &detail);
        }
        Ok(())
    }

    /// Times `tactics` of one step, fastest first in the result; those that are not worth a run are left out.
    fn time(&mut self, draft: &Draft, index: usize, tactics: Vec<Tactic>) -> Result<Vec<TimedTactic>, TuneError> {
        let step = &draft.steps[index];
        let mut names: Vec<&str> = tactics.iter().map(|tactic| tactic.kernel.as_str()).collect();
        names.dedup();
        let mut engines: Vec<(Engine, Vec<usize>)> = Vec::new();
        for name in names {
            let own: Vec<usize> = (0..tactics.len()).filter(|&at| tactics[at].kernel == name).collect();
            let own_tactics: Vec<&Tactic> = own.iter().map(|&at| &tactics[at]).collect();
            let (isa, pool) = (self.isa, Arc::clone(&self.pool));
            let engine = trial(draft, step, name, &own_tactics, isa, pool, &mut self.made_up)
                .map_err(|source| TuneError::Run { tactic: name.to_owned(), source })?;
            engines.push((engine, own));
        }
        let mut places = Places::default();
        let mut best_ns = vec![u64::MAX; tactics.len()];
        let mut quickest_ns = u64::MAX;
        let mut screen = |(engine, own): &mut (Engine, Vec<usize>), positions: Range<usize>| {
            for position in positions {
                if self.cancel.is_cancelled() {
                    return Err(TuneError::Cancelled);
                }
                let at = own[position];
                for _ in 0..self.effort.screen_runs {
                    best_ns[at] = best_ns[at].min(run_ns(engine, position, &tactics[at], &mut places)?);
                    if best_ns[at] / (100 + self.effort.behind_percent) > quickest_ns / 100 {
                        break;
                    }
                }
                quickest_ns = quickest_ns.min(best_ns[at]);
            }
            Ok(own.first().map_or(u64::MAX, |&first| best_ns[first]))
        };
        let mut by_first = Vec::with_capacity(engines.len());
        for (index, engine) in engines.iter_mut().enumerate() {
            by_first.push((screen(engine, 0..1)?, index));
        }
        by_first.sort_unstable();
        for &(_, index) in by_first.iter().take(self.effort.kernels) {
            let count = engines[index].1.len();
            screen(&mut engines[index], 1..count)?;
        }
        let mut order: Vec<usize> = (0..tactics.len()).collect();
        order.sort_by_key(|&at| (best_ns[at], at));
        let finalists = &order[..self.effort.finalists.min(order.len())];
        let mut samples = vec![Vec::new(); tactics.len()];
        for _ in 0..self.effort.final_runs {
            for &at in finalists {
                for (engine, own) in &mut engines {
                    if let Some(position) = own.iter().position(|&other| other == at) {
                        samples[at].push(run_ns(engine, position, &tactics[at], &mut places)?);
                    }
                }
            }
        }
        let mut timed: Vec<(bool, TimedTactic)> = tactics
            .into_iter()
            .enumerate()
            .map(|(at, tactic)| {
                let quickest = samples[at].iter().min().copied();
                (quickest.is_none(), TimedTactic { tactic, best_ns: quickest.or(Some(best_ns[at])) })
            })
            .filter(|(_, timed)| timed.best_ns != Some(u64::MAX))
            .collect();
        // A tactic that was only screened never wins over one that was timed well.
        timed.sort_by_key(|(screened, timed)| (*screened, timed.best_ns));
        Ok(timed.into_iter().map(|(_, timed)| timed).collect())
    }
}

fn run_ns(engine: &mut Engine, position: usize, tactic: &Tactic, places: &mut Places) -> Result<u64, TuneError> {
    places.run(|| {
        let start = Instant::now();
        engine.step(position).map_err(|source| TuneError::Run { tactic: tactic.name(), source })?;
        Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    })
}

/// An engine whose steps are one step of `draft` under several tactics of one kernel, on made-up operands.
fn trial(
    draft: &Draft,
    of: &DraftStep,
    kernel: &str,
    tactics: &[&Tactic],
    isa: Isa,
    pool: Arc<ThreadPool>,
    made_up: &mut MadeUp,
) -> Result<Engine, EngineError> {
    let mut program = Program::default();
    let mut lives = Vec::new();
    let mut add = |program: &mut Program, bytes: u64| {
        lives.push(Lifetime { bytes, first: 0, last: 0 });
        let id = BufferId(program.buffers.len() as u32);
        program.buffers.push(Buffer { name: String::new(), bytes, place: Place::Arena(0) });
        id
    };
    let inputs: Vec<Option<BufferId>> =
        of.step.inputs.iter().map(|id| id.map(|id| add(&mut program, draft.buffers[id.index()].bytes))).collect();
    let outputs: Vec<BufferId> =
        of.step.outputs.iter().map(|id| add(&mut program, draft.buffers[id.index()].bytes)).collect();
    let scratch_bytes: Vec<Option<u64>> = tactics.iter().map(|tactic| scratch_bytes(&of.step.kind, tactic)).collect();
    let scratch = scratch_bytes.iter().flatten().max().map(|&bytes| add(&mut program, bytes));
    let (offsets, arena_bytes) = place(&lives, ALIGNMENT);
    for (buffer, offset) in program.buffers.iter_mut().zip(offsets) {
        buffer.place = Place::Arena(offset);
    }
    program.arena_bytes = arena_bytes;
    let constant = |program: &mut Program, bytes: u64| {
        let id = BufferId(program.buffers.len() as u32);
        program.buffers.push(Buffer { name: String::new(), bytes, place: Place::Weights(program.weight_bytes) });
        program.weight_bytes = (program.weight_bytes + bytes).next_multiple_of(ALIGNMENT);
        id
    };
    let (weight_bytes, bias_bytes) = packed_bytes(&of.step.kind, kernel).unwrap_or((0, 0));
    let weights = of.weights.is_some().then(|| constant(&mut program, weight_bytes));
    let bias = of.bias.is_some().then(|| constant(&mut program, bias_bytes));
    program.steps = tactics
        .iter()
        .zip(scratch_bytes)
        .map(|(tactic, scratch_bytes)| Step {
            inputs: inputs.clone(),
            outputs: outputs.clone(),
            weights,
            bias,
            scratch: scratch_bytes.and(scratch),
            tactic: Some((*tactic).clone()),
            tried: Vec::new(),
            ..of.step.clone()
        })
        .collect();
    let weights = made_up.weights(program.weight_bytes as usize)?;
    let mut engine = Engine::new(program, weights, isa, pool)?;
    for id in inputs.into_iter().flatten() {
        fill(engine.buffer_mut(id));
    }
    Ok(engine)
}

/// Small values of both signs, none of them zero or subnormal.
fn fill(bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9u32;
    let whole = bytes.len() - bytes.len() % 4;
    for value in bytemuck::cast_slice_mut::<u8, f32>(&mut bytes[..whole]) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = ((state >> 9) as f32 / (1 << 23) as f32 - 0.5) * 0.25 + 1e-3;
    }
}
