//! How fast a model's builds were, one after the other.

use super::{
    Farm,
    convert::invalid,
    pages::{Cursor, Page, bad_cursor},
    requests::visible_project,
};
use crate::{
    auth::Actor,
    store::{HistoryFilter, Part, PastBuild, PastPlace},
};
use planforge_proto::{ApiError, v1};
use planforge_types::{Digest, EngineKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Builds that one reply looks through at most.
const BUILDS_MAX: usize = 16_384;

impl Farm {
    /// Builds of a model that were measured, newest first, by what stays comparable from one to the next.
    ///
    /// # Errors
    /// For an agent's token, for another project than the caller's, without a model, for a cursor that is none, or when the
    /// store cannot be asked.
    pub async fn get_history(
        &self,
        actor: &Actor,
        request: v1::GetHistoryRequest,
    ) -> Result<v1::GetHistoryReply, ApiError> {
        let project = visible_project(actor, &request.project)?;
        if request.model.is_empty() {
            return Err(invalid("a history is of one model").with_hint("give its name or the beginning of its digest"));
        }
        let confined = self.confined_to(actor);
        let filter = HistoryFilter {
            model: request.model,
            sku: Some(request.sku).filter(|sku| !sku.is_empty()),
            project,
            own_names: confined.is_some(),
            behind: read(&request.cursor)?,
            limit: if request.limit == 0 { BUILDS_MAX } else { BUILDS_MAX.min(request.limit as usize) },
        };
        let Part { items, rest } = self.timed("history", self.store().history(filter)).await?;
        let mut page = Page::new();
        let mut is_whole = true;
        for build in items {
            if !page.push(build) {
                is_whole = false;
                break;
            }
        }
        let mut builds = page.into_items();
        let next = if is_whole { rest } else { builds.last().map(PastBuild::place) };
        if let Some(project) = confined {
            self.as_its_own_builds(project, &mut builds).await?;
        }
        let next_cursor = next.map(|(created_ms, key, plan)| Cursor { created_ms, names: [&key, &plan] }.write());
        Ok(v1::GetHistoryReply { lines: lines(builds), next_cursor: next_cursor.unwrap_or_default() })
    }

    /// Builds as a project knows them: what others that had them built call the model, and by which job, is theirs.
    async fn as_its_own_builds(&self, project: &str, builds: &mut [PastBuild]) -> Result<(), ApiError> {
        let foreign = || builds.iter().filter(|build| build.project != project);
        let digests: BTreeSet<String> = foreign().map(|build| build.model_digest.clone()).collect();
        if digests.is_empty() {
            return Ok(());
        }
        let names = self.store().model_names(Some(project.to_owned()), digests.into_iter().collect());
        let names: BTreeMap<String, String> = self.timed("model_names", names).await?;
        for build in builds.iter_mut().filter(|build| build.project != project) {
            let short = || build.model_digest.get(..12).unwrap_or_default().to_owned();
            build.model = names.get(&build.model_digest).cloned().unwrap_or_else(short);
            build.job.clear();
        }
        Ok(())
    }
}

fn read(cursor: &str) -> Result<Option<PastPlace>, ApiError> {
    let Some(Cursor { created_ms, names: [key, plan] }) = Cursor::read(cursor)? else { return Ok(None) };
    let key: EngineKey = key.parse().map_err(|_| bad_cursor())?;
    let plan: Digest = plan.parse().map_err(|_| bad_cursor())?;
    Ok(Some((created_ms, key.to_string(), plan.to_string())))
}

/// Builds by the model's name, the device kind and the spec, each line as it first comes.
fn lines(builds: Vec<PastBuild>) -> Vec<v1::HistoryLine> {
    let mut lines: Vec<v1::HistoryLine> = Vec::new();
    let mut places: HashMap<(String, String, String), usize> = HashMap::new();
    for build in builds {
        let name = (build.model, build.sku, build.spec_json);
        let place = places.get(&name).copied().unwrap_or_else(|| {
            let (model, sku, spec_json) = name.clone();
            lines.push(v1::HistoryLine { model, sku, spec_json, ..v1::HistoryLine::default() });
            places.insert(name, lines.len() - 1);
            lines.len() - 1
        });
        let line = &mut lines[place];
        // Neighbours are mostly of one toolchain, and a line of few.
        let known = line.toolchains_json.iter().rposition(|known| *known == build.toolchain_json);
        let toolchain = known.unwrap_or_else(|| {
            line.toolchains_json.push(build.toolchain_json);
            line.toolchains_json.len() - 1
        });
        line.builds.push(v1::HistoryBuild {
            job: build.job,
            created_ms: build.created_ms,
            median_ms: build.median_ms,
            disturbed: build.disturbed,
            plan_digest: build.plan,
            model_digest: build.model_digest,
            toolchain: u32::try_from(toolchain).unwrap_or(u32::MAX),
        });
    }
    lines
}
