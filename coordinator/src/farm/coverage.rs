//! What the first page asks: how models stand on device kinds, and how much there is of everything.

use super::{Farm, requests::visible_project};
use crate::{
    auth::Actor,
    core::DeviceCounts,
    store::{Count, Coverage, CoverageFilter, CoveredModels, EngineFilter},
};
use planforge_proto::ApiError;
use std::collections::{BTreeMap, BTreeSet};

/// The filter within what the caller may see.
fn own(actor: &Actor, filter: &CoverageFilter) -> Result<CoverageFilter, ApiError> {
    let project = visible_project(actor, filter.project.as_deref().unwrap_or_default())?;
    Ok(CoverageFilter { project, ..filter.clone() })
}

impl Farm {
    /// Models of which something stands anywhere, from the one of number `from`.
    ///
    /// # Errors
    /// For an agent's token, for another project than the caller's, or when the store cannot be asked.
    pub async fn covered_models(
        &self,
        actor: &Actor,
        filter: &CoverageFilter,
        from: u64,
        limit: usize,
    ) -> Result<CoveredModels, ApiError> {
        self.timed("covered_models", self.store().covered_models(own(actor, filter)?, from, limit)).await
    }

    /// Those of the names under which something stands.
    ///
    /// # Errors
    /// As [`Self::covered_models`].
    pub async fn covered_among(
        &self,
        actor: &Actor,
        filter: &CoverageFilter,
        names: Vec<String>,
    ) -> Result<BTreeSet<String>, ApiError> {
        self.timed("covered_models", self.store().covered_among(own(actor, filter)?, names)).await
    }

    /// What the newest engine of each of these models calls it, by the model's digest.
    ///
    /// # Errors
    /// As [`Self::covered_models`].
    pub async fn model_names(
        &self,
        actor: &Actor,
        filter: &CoverageFilter,
        digests: Vec<String>,
    ) -> Result<BTreeMap<String, String>, ApiError> {
        self.timed("covered_models", self.store().model_names(own(actor, filter)?.project, digests)).await
    }

    /// How these models stand on each device kind.
    ///
    /// # Errors
    /// As [`Self::covered_models`].
    pub async fn coverage(
        &self,
        actor: &Actor,
        filter: &CoverageFilter,
        models: Vec<String>,
        apart: bool,
    ) -> Result<Coverage, ApiError> {
        self.timed("coverage", self.store().coverage(own(actor, filter)?, models, apart)).await
    }

    /// How many engines the caller sees.
    ///
    /// # Errors
    /// For an agent's token, or when the store cannot be asked.
    pub async fn engine_count(&self, actor: &Actor) -> Result<Count, ApiError> {
        let filter = EngineFilter { project: visible_project(actor, "")?, ..EngineFilter::default() };
        self.timed("count_engines", self.store().count_engines(filter)).await
    }

    /// How many devices there are, on line and at work.
    ///
    /// # Errors
    /// When the coordinator is shutting down.
    pub async fn device_counts(&self) -> Result<DeviceCounts, ApiError> {
        self.ask(|state, _| state.device_counts()).await
    }
}
