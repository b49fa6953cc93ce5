//! Graphs of shapes that no profile was captured at, made from the model in the plan when they are first met.
//!
//! Their kernels are compiled here (which takes NVRTC) and their tactics searched as quickly as can be. Constants that
//! the engine holds already are shared; those that depend on the shapes lie behind them.

use super::{Captured, Shapes, shapes};
use crate::{
    build,
    failure::model,
    plan::{
        CheckedPlan,
        weights::{self, Places, Pool},
    },
    runtime::{Constants, Device},
    tune::{Effort, Times, tune},
};
use planforge_onnx::Model;
use planforge_report::Finding;
use planforge_types::{BackendError, failure::chain};
use std::time::Instant;

/// Graphs that are kept: each has its own activations. The one that was not used for longest goes first.
const KEPT_GRAPHS: usize = 8;

/// First proposals only, and nothing that takes compiling where anything else works: someone waits.
const EFFORT: Effort =
    Effort { compiled: 0, algorithms: 2, libraries: true, tiles: 2, compares: false, tries_late: false };

/// Graphs by their shapes, the one used last at the end.
#[derive(Debug, Default)]
pub(super) struct ExactGraphs {
    kept: Vec<(Shapes, Captured)>,
    times: Times,
    /// The plan's model, and where its constants lie: read when a shape asks for them first.
    origin: Option<(Model, Places)>,
}

impl ExactGraphs {
    pub fn get(&self, shapes: &Shapes) -> Option<&Captured> {
        self.kept.iter().find(|(kept, _)| kept == shapes).map(|(_, captured)| captured)
    }

    pub fn own_bytes(&self) -> u64 {
        self.kept.iter().map(|(_, captured)| captured.own_bytes()).sum()
    }

    /// Makes sure that there is a graph of `shapes`; says so when it had to be made.
    pub fn ready(
        &mut self,
        device: &Device,
        plan: &CheckedPlan,
        weights: &Constants,
        shapes: &Shapes,
    ) -> Result<Option<Finding>, BackendError> {
        if let Some(place) = self.kept.iter().position(|(kept, _)| kept == shapes) {
            let used = self.kept.remove(place);
            self.kept.push(used);
            return Ok(None);
        }
        let began = Instant::now();
        if self.kept.len() >= KEPT_GRAPHS {
            self.kept.remove(0);
        }
        let captured = self.make(device, plan, weights, shapes)?;
        self.kept.push((shapes.clone(), captured));
        let named: Vec<String> = shapes.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect();
        Ok(Some(Finding::note(
            "exact-graph",
            format!(
                "a graph for {} was made in {:.1} s, with the first tactics that work; a profile at these shapes would be tuned",
                named.join(", "),
                began.elapsed().as_secs_f64()
            ),
        )))
    }

    fn make(
        &mut self,
        device: &Device,
        plan: &CheckedPlan,
        weights: &Constants,
        shapes: &Shapes,
    ) -> Result<Captured, BackendError> {
        let (origin, places) = match &mut self.origin {
            Some(origin) => origin,
            none => none.insert(origin(plan, shapes)?),
        };
        let mut pool = Pool::behind(plan.weights().len() as u64, places.clone());
        let mut program = build::at_shapes(origin, shapes, &plan.manifest.spec, &mut pool)?;
        debug_assert_eq!(shapes::of_program(&program), *shapes);
        let own = pool.into_bytes(std::slice::from_mut(&mut program));
        let weights = if own.is_empty() { weights.clone() } else { weights.with(device, &own)? };
        device.compile_all(&program.sources)?;
        tune(device, &mut program, &weights, EFFORT, &mut self.times, &mut |_, _, _| true)?;
        program.drop_unused_sources();
        Ok(Captured::new(device, program, weights)?)
    }
}

/// The model of a plan, and where the plan's constants lie.
fn origin(plan: &CheckedPlan, shapes: &Shapes) -> Result<(Model, Places), BackendError> {
    let held = plan.model().map_err(|error| {
        let what = format!("the plan's model cannot be read: {}", chain(&error));
        model(what, "fetch or build the plan again")
    })?;
    let held = held.ok_or_else(|| {
        let asked: Vec<String> = shapes.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect();
        let what = match plan.manifest.spec.varies() {
            // Revision 6 and before held no model whose weights lay beside it.
            true => "the plan is of a compiler that kept no model with weights in files of their own",
            false => "the engine was built for one shape of each profile",
        };
        model(
            format!("there is no graph for {}: {what}", asked.join(", ")),
            "build the model again, with a profile that covers these shapes",
        )
    })?;
    let programs = plan.manifest.programs.iter().map(|profile| &profile.program);
    Ok((held, weights::places(programs, plan.weights())))
}
