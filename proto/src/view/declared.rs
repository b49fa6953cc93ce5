//! What projects say should exist, and what they want kept.

use super::{EngineView, some_json, some_text};
use crate::v1;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Somebody of a project wants a plan kept until a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PinView {
    pub plan_digest: String,
    pub project: String,
    /// Name of the token, or `local`.
    pub owner: String,
    pub engine_key: String,
    pub model: String,
    pub sku: String,
    pub reason: Option<String>,
    pub created_ms: u64,
    /// From then on the pin is gone.
    pub expires_ms: u64,
}

impl From<v1::Pin> for PinView {
    fn from(pin: v1::Pin) -> Self {
        Self {
            plan_digest: pin.plan_digest,
            project: pin.project,
            owner: pin.owner,
            engine_key: pin.engine_key,
            model: pin.model_name,
            sku: pin.sku,
            reason: some_text(pin.reason),
            created_ms: pin.created_ms,
            expires_ms: pin.expires_ms,
        }
    }
}

/// A spec by its name in a declaration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeclaredSpecView {
    pub name: String,
    /// `null`: what a request without a spec builds.
    pub spec: Option<Value>,
    /// Range; empty: any.
    pub toolchain: String,
}

/// An engine that should exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeclaredCellView {
    /// Name in the declaration.
    pub model: String,
    pub model_digest: String,
    pub sku: String,
    /// The word that means this device kind: the kind itself, or a class.
    pub target: String,
    /// Name of one of the specs.
    pub spec: String,
    /// That was locked for it; `null`: none yet.
    pub plan_digest: Option<String>,
}

/// What one repository of a project declares, as its last sync said it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclarationView {
    pub project: String,
    /// Of the repository.
    pub name: String,
    pub actor: String,
    pub declared_ms: u64,
    pub specs: Vec<DeclaredSpecView>,
    pub cells: Vec<DeclaredCellView>,
}

impl From<v1::Declaration> for DeclarationView {
    fn from(declaration: v1::Declaration) -> Self {
        let spec = |spec: v1::DeclaredSpec| DeclaredSpecView {
            name: spec.name,
            spec: some_json(spec.spec_json),
            toolchain: spec.toolchain,
        };
        let cell = |cell: v1::DeclaredCell| DeclaredCellView {
            model: cell.model,
            model_digest: cell.model_digest,
            sku: cell.sku,
            target: cell.target,
            spec: cell.spec,
            plan_digest: some_text(cell.plan_digest),
        };
        Self {
            project: declaration.project,
            name: declaration.name,
            actor: declaration.actor,
            declared_ms: declaration.declared_ms,
            specs: declaration.specs.into_iter().map(spec).collect(),
            cells: declaration.cells.into_iter().map(cell).collect(),
        }
    }
}

/// What a repository declares from now on; without cells it is forgotten.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeclareView {
    pub project: String,
    pub name: String,
    pub specs: Vec<DeclaredSpecView>,
    pub cells: Vec<DeclaredCellView>,
}

impl From<DeclareView> for v1::DeclareEnginesRequest {
    fn from(view: DeclareView) -> Self {
        let spec = |spec: DeclaredSpecView| v1::DeclaredSpec {
            name: spec.name,
            spec_json: spec.spec.map(|spec| spec.to_string()).unwrap_or_default(),
            toolchain: spec.toolchain,
        };
        let cell = |cell: DeclaredCellView| v1::DeclaredCell {
            model: cell.model,
            model_digest: cell.model_digest,
            sku: cell.sku,
            target: cell.target,
            spec: cell.spec,
            plan_digest: cell.plan_digest.unwrap_or_default(),
        };
        Self {
            project: view.project,
            name: view.name,
            specs: view.specs.into_iter().map(spec).collect(),
            cells: view.cells.into_iter().map(cell).collect(),
        }
    }
}

/// What is to be built again; see `RefreshRequest` of the contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RefreshView {
    pub project: String,
    pub models: Vec<String>,
    pub skus: Vec<String>,
    pub reasons: Vec<String>,
    pub older_than_s: u64,
    pub slower_percent: f64,
    pub no_canary: bool,
    pub dry_run: bool,
}

impl From<RefreshView> for v1::RefreshRequest {
    fn from(view: RefreshView) -> Self {
        let RefreshView { project, models, skus, reasons, older_than_s, slower_percent, no_canary, dry_run } = view;
        Self { project, models, skus, reasons, older_than_s, slower_percent, no_canary, dry_run }
    }
}

/// An engine that is stale, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefreshedView {
    pub engine: EngineView,
    /// By name: toolchain, driver, model, disturbed, unmeasured, age.
    pub reasons: Vec<String>,
    /// In words, one for each reason.
    pub details: Vec<String>,
    /// That it would be built with now.
    pub toolchain: Option<Value>,
    /// It goes first, and is held against the engine of before.
    pub canary: bool,
    /// It is built where the canary succeeds.
    pub follows_canary: bool,
    pub job: Option<String>,
    /// The job was there before.
    pub under_way: bool,
    pub refusal: Option<String>,
}

impl From<v1::RefreshedCell> for RefreshedView {
    fn from(cell: v1::RefreshedCell) -> Self {
        Self {
            engine: cell.engine.unwrap_or_default().into(),
            reasons: cell.reasons,
            details: cell.details,
            toolchain: some_json(cell.toolchain_json),
            canary: cell.canary,
            follows_canary: cell.follows_canary,
            job: some_text(cell.job),
            under_way: cell.under_way,
            refusal: some_text(cell.refusal),
        }
    }
}
