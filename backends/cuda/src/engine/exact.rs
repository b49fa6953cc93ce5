//! Graphs of shapes that no profile was captured at, made from the model in the plan when they are first met.
//!
//! Their kernels are compiled here (which takes NVRTC) and their tactics searched as quickly as can be; constants that
//! the engine holds already are shared.

use super::{Captured, Shapes, shapes};
use crate::{
    build,
    failure::model,
    plan::{self, CheckedPlan, weights::Pool},
    runtime::{Device, RuntimeError},
    tune::{Effort, Times, tune},
};
use bytes::Bytes;
use planforge_kernels_cuda::device::Buffer;
use planforge_onnx::Model;
use planforge_passes::frontend::{self, Optimized};
use planforge_report::Finding;
use planforge_types::{BackendError, OptimizationProfile};
use std::{rc::Rc, time::Instant};

/// Graphs that are kept: each has its own activations. The one that was not used for longest goes first.
const KEPT_GRAPHS: usize = 8;

/// First proposals only, and nothing that takes compiling where anything else works: someone waits.
const EFFORT: Effort = Effort { compiled: 0, algorithms: 2, tiles: 2, compares: false, tries_late: false };

/// Graphs by their shapes, the one used last at the end.
#[derive(Debug, Default)]
pub(super) struct ExactGraphs {
    kept: Vec<(Shapes, Captured)>,
    times: Times,
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
        profile: usize,
        weights: &Rc<Buffer>,
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
        let captured = self.make(device, plan, profile, weights, shapes)?;
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
        profile: usize,
        weights: &Rc<Buffer>,
        shapes: &Shapes,
    ) -> Result<Captured, BackendError> {
        let manifest = &plan.manifest;
        let bytes = plan.model().ok_or_else(|| {
            model(
                format!("the plan holds no model, so there is no graph for {shapes:?}"),
                "build the model with a profile whose usual shapes are these",
            )
        })?;
        let file =
            Model::from_bytes(Bytes::copy_from_slice(bytes)).map_err(|error| model(error.to_string(), error.hint()))?;
        let fixed = OptimizationProfile::of_shapes(shapes.iter().map(|(name, shape)| (name.as_str(), &shape[..])));
        let Optimized { graph, .. } = frontend::optimize(frontend::import(&file, Some(&fixed))?)?;
        let mut pool = Pool::of(&manifest.programs[profile].program, plan.weights().to_vec());
        let known = pool.len_bytes();
        let mut program = build::lowered(&graph, &manifest.spec, &mut pool)?;
        program.weight_bytes = pool.len_bytes();
        debug_assert_eq!(shapes::of_program(&program), *shapes);
        let weights = match pool.tail(known) {
            [] => weights.clone(),
            // Some constants depend on the shapes: this graph has all of its own.
            _ => {
                let bytes = pool.into_bytes(std::slice::from_mut(&mut program));
                Rc::new(device.gpu.upload(&bytes).map_err(RuntimeError::from)?)
            }
        };
        device.compile_all(&program.sources)?;
        tune(device, &mut program, &weights, EFFORT, &mut self.times, &mut |_, _, _| true)?;
        plan::drop_unused_sources(&mut program);
        Ok(Captured::new(device, program, weights)?)
    }
}
