//! What a project tells the farm beside its requests: that the engines of its lock are to be kept, and which should exist.
//!
//! Nothing of this decides whether a pipeline is green: a token that may only read, or a farm of an earlier release, is
//! told of and goes no further.

use super::{Inputs, Project, Survey};
use crate::{context::Context, farm::Farm, settings::Key};
use planforge_fleet::{CellId, Lock};
use planforge_proto::{ErrorCode, v1};
use serde::Serialize;
use std::collections::BTreeSet;

/// Plans that one call names.
const NAMED_MAX: usize = 1_000;

/// What became of the pins, for `--json`.
#[derive(Debug, Default, Serialize)]
pub struct Pinned {
    /// Engines that are kept.
    pub engines: usize,
    /// The first time at which one is kept no more.
    pub until_ms: Option<u64>,
    /// Why not all are.
    pub problem: Option<String>,
}

/// Pins every engine that the lock names, and those that gates hold them against, for the usual time from now on.
pub async fn pin(context: &Context<'_>, farm: &Farm, project: &Project, lock: &Lock) -> Pinned {
    let plans: BTreeSet<String> = lock
        .cells
        .values()
        .flat_map(|locked| [Some(locked.plan), locked.base_plan])
        .flatten()
        .map(|plan| plan.to_string())
        .collect();
    let plans: Vec<String> = plans.into_iter().collect();
    let mut pinned = Pinned::default();
    for plans in plans.chunks(NAMED_MAX) {
        let request = v1::PinEnginesRequest {
            project: context.settings.get(Key::Project).unwrap_or_default().into(),
            plan_digests: plans.to_vec(),
            reason: format!("engines.lock of {}", project.name()),
            ttl_s: 0,
        };
        match farm.rpc().pin_engines(request).await.map_err(|e| farm.error(e)) {
            Ok(reply) => {
                let pins = reply.into_inner().pins;
                pinned.engines += pins.len();
                pinned.until_ms = pins.iter().map(|pin| pin.expires_ms).chain(pinned.until_ms).min();
            }
            // What the farm does not have is told of as missing.
            Err(failure) if failure.name == ErrorCode::NotFound.name() => {}
            Err(failure) => {
                pinned.problem = Some(failure.to_string());
                context.printer.warn(&format!("the engines of engines.lock are not pinned: {failure}"));
                break;
            }
        }
    }
    pinned
}

/// What became of the declaration, for `--json`.
#[derive(Debug, Serialize)]
pub struct Registered {
    /// What the farm knows the repository by.
    pub name: String,
    pub engines: usize,
    /// Why the farm does not know it.
    pub problem: Option<String>,
}

/// Tells the farm which engines should exist, with those that are locked for them, in place of what it was told before.
pub async fn register(
    context: &Context<'_>,
    farm: &Farm,
    project: &Project,
    (survey, inputs): (&Survey, &Inputs),
) -> Registered {
    let declaration = &project.declaration;
    let ids = survey.rows.iter().map(|row| &row.cell.id);
    let skus = ids.clone().map(|id| id.sku.clone()).collect();
    let target = |id: &CellId| declaration.target_of(id, &skus, &project.boards).map(ToString::to_string);
    let cells = survey.rows.iter().map(|row| v1::DeclaredCell {
        model: row.cell.id.model.clone(),
        model_digest: row.cell.model.to_string(),
        sku: row.cell.id.sku.to_string(),
        target: target(&row.cell.id).unwrap_or_default(),
        spec: row.cell.id.spec.clone(),
        plan_digest: row.locked.as_ref().map(|locked| locked.plan.to_string()).unwrap_or_default(),
    });
    let used: BTreeSet<&str> = ids.map(|id| id.spec.as_str()).collect();
    let specs = inputs.specs.iter().filter(|(name, _)| used.contains(name.as_str())).map(|(name, spec)| {
        let toolchain = declaration.specs.get(name).map(|spec| spec.toolchain.to_string()).unwrap_or_default();
        let spec_json = serde_json::to_string(spec).unwrap_or_default();
        v1::DeclaredSpec { name: name.clone(), spec_json, toolchain }
    });
    let request = v1::DeclareEnginesRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        name: project.name(),
        specs: specs.collect(),
        cells: cells.collect(),
    };
    let mut registered = Registered { name: project.name(), engines: request.cells.len(), problem: None };
    if let Err(failure) = farm.rpc().declare_engines(request).await.map_err(|e| farm.error(e)) {
        context.printer.warn(&format!("the farm does not know what is declared here: {failure}"));
        registered.problem = Some(failure.to_string());
    }
    registered
}
