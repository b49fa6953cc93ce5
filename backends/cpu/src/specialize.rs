//! Programs of other shapes than the ones whose tactics were timed.
//!
//! Shapes of results follow from data in many models (`Shape`, `Gather`, `Concat`, `Reshape`), and passes may do more
//! where a dimension is 1. So a shape is met the way the compiler meets it: the model, which a plan of varying shapes
//! holds, is imported at that shape, optimised and lowered. Nothing is timed and nothing packed again: each step takes
//! the tactic of its like in the tuned program, as near as its own sizes allow, and with the same kernel, so its packed
//! weights are those that are there.

use super::{
    assemble::{Digests, Shared, WeightPlan, assemble},
    draft::Draft,
    lower::{LowerError, lower},
    memory::{AlignedBytes, OutOfMemory},
    program::{Program, ProgramError, Step, Tactic},
    steps::candidates,
};
use planforge_import::{Bounds, Fragment, ImportError, Imported, import_open};
use planforge_kernels_cpu::{gemm::Factors, isa::Isa};
use planforge_onnx::Model;
use planforge_passes::{PassError, Target};
use planforge_types::{Digest, OptimizationProfile};
use std::{
    collections::BTreeMap,
    io::{self, Cursor},
    sync::Arc,
};

/// Why a program of some shapes cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SpecializeError {
    #[error("the model cannot be built at these shapes")]
    Import(#[from] ImportError),
    #[error("a pass failed")]
    Pass(#[from] PassError),
    #[error("a step has no place")]
    Lower(#[from] LowerError),
    #[error("the program does not hold together")]
    Program(#[from] ProgramError),
    #[error("constants could not be packed")]
    Pack(#[from] io::Error),
    #[error("constants have no room")]
    Memory(#[from] OutOfMemory),
}

/// The steps of `model` at the shapes of `fixed`, their tactics open, and the nodes behind them.
pub(crate) fn draft_at(
    model: &Model,
    fixed: &OptimizationProfile,
    target: Target,
    bounds: &Bounds,
) -> Result<(Draft, Option<Arc<Fragment>>), SpecializeError> {
    let Imported { graph, fragment, .. } = import_open(model, Some(fixed), false, bounds)?;
    let optimized = planforge_passes::pipeline(graph, target)?;
    Ok((lower(&optimized.graph)?, fragment))
}

/// Gives every step of `draft` that has a choice the tactic nearest to that of its like in `tuned`.
pub(crate) fn follow(draft: &mut Draft, tuned: &Program, isa: Isa, threads: usize) {
    let tuned = Tuned::of(tuned);
    let mut seen: BTreeMap<Like<'_>, usize> = BTreeMap::new();
    let mut chosen = Vec::with_capacity(draft.steps.len());
    for of in &draft.steps {
        let step = &of.step;
        if !step.kind.is_tuned() {
            chosen.push(None);
            continue;
        }
        let nth = seen.entry(like(step)).or_default();
        let model = tuned.tactic(step, *nth);
        *nth += 1;
        let all = candidates(&step.kind, isa, tuned.factors, threads);
        chosen.push(match model {
            // The first of equals, which is the one that is taken untimed.
            Some(model) => all.into_iter().rev().max_by_key(|tactic| nearness(tactic, model)),
            None => all.into_iter().next(),
        });
    }
    for (of, tactic) in draft.steps.iter_mut().zip(chosen) {
        of.step.tactic = tactic;
        of.step.tried = Vec::new();
    }
}

/// What makes two steps of different shapes alike: what they compute, and for which nodes.
type Like<'a> = (&'static str, &'a [String]);

fn like(step: &Step) -> Like<'_> {
    (step.kind.name(), &step.origins)
}

/// The tactics of a tuned program.
struct Tuned<'a> {
    /// In order of steps.
    alike: BTreeMap<Like<'a>, Vec<&'a Tactic>>,
    /// The first of a kind, for steps that have nothing alike.
    of_kind: BTreeMap<&'static str, &'a Tactic>,
    /// bf16 where any of its products is rounded to that.
    factors: Factors,
}

impl<'a> Tuned<'a> {
    fn of(program: &'a Program) -> Self {
        let mut tuned = Self { alike: BTreeMap::new(), of_kind: BTreeMap::new(), factors: Factors::F32 };
        for step in &program.steps {
            let Some(tactic) = &step.tactic else { continue };
            if tactic.factors() == Some(Factors::Bf16) {
                tuned.factors = Factors::Bf16;
            }
            tuned.alike.entry(like(step)).or_default().push(tactic);
            tuned.of_kind.entry(step.kind.name()).or_insert(tactic);
        }
        tuned
    }

    fn tactic(&self, step: &Step, nth: usize) -> Option<&'a Tactic> {
        let alike = self.alike.get(&like(step)).and_then(|tactics| tactics.get(nth).or(tactics.last()));
        alike.or_else(|| self.of_kind.get(step.kind.name())).copied()
    }
}

/// How near a tactic is to one that was timed at another size, the most important first. The kernel decides how weights
/// are packed.
fn nearness(tactic: &Tactic, model: &Tactic) -> [bool; 6] {
    [
        tactic.kernel == model.kernel,
        tactic.gather == model.gather,
        tactic.pack_rows == model.pack_rows,
        (tactic.depth_block > 0) == (model.depth_block > 0),
        tactic.column_block == model.column_block,
        tactic.row_block == model.row_block,
    ]
}

/// Makes programs for the shapes of one plan.
#[derive(Debug)]
pub(crate) struct Specializer {
    model: Model,
    isa: Isa,
    target: Target,
    threads: usize,
    bounds: Bounds,
    /// Size of the plan's weights section, and what lies where in it.
    section_bytes: u64,
    shared: Shared,
}

impl Specializer {
    /// `model` as the plan holds it, with its weights in `stable`; `places` as the plan says.
    pub(crate) fn new(
        model: Model,
        stable: bytes::Bytes,
        (section_bytes, places): (u64, BTreeMap<Digest, [u64; 2]>),
        (isa, target): (Isa, Target),
        threads: usize,
        bounds: Bounds,
    ) -> Self {
        let shared = Shared { digests: Digests::over(stable), places };
        Self { model, isa, target, threads, bounds, section_bytes, shared }
    }

    /// The nodes behind the program at the shapes of `fixed`.
    pub(crate) fn fragment(&self, fixed: &OptimizationProfile) -> Result<Option<Arc<Fragment>>, SpecializeError> {
        Ok(import_open(&self.model, Some(fixed), false, &self.bounds)?.fragment)
    }

    /// The program at the shapes of `fixed`, with the tactics of `tuned`, the constants it has beside the plan's, and the
    /// nodes behind it.
    pub(crate) fn program(
        &mut self,
        fixed: &OptimizationProfile,
        tuned: &Program,
    ) -> Result<(Program, AlignedBytes, Option<Arc<Fragment>>), SpecializeError> {
        let (mut draft, fragment) = draft_at(&self.model, fixed, self.target, &self.bounds)?;
        follow(&mut draft, tuned, self.isa, self.threads);
        let mut weights = WeightPlan::sharing(self.section_bytes, std::mem::take(&mut self.shared));
        let program = assemble(draft, &mut weights);
        let mut more = AlignedBytes::zeroed((weights.bytes() - self.section_bytes) as usize)?;
        let written = weights.write(&mut Cursor::new(more.bytes_mut()));
        // What is behind the section is this program's alone.
        if let Some(shared) = weights.shared() {
            self.shared = std::mem::take(shared);
            self.shared.places.retain(|_, [offset, _]| *offset < self.section_bytes);
        }
        written?;
        program.check()?;
        Ok((program, more, fragment))
    }
}
