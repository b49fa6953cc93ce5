//! How fast builds were, kept as they and their reports come.

use super::Tables;
use crate::{
    core::{Engine, Report},
    store::{HistoryFilter, Part, PastBuild, PastPlace, past::part_of},
};
use planforge_report::figures::Figures;
use std::ops::Bound;

impl Tables {
    /// Keeps how fast a build is, where a report says so.
    pub(super) fn remember(&mut self, engine: &Engine) {
        let own = |report: &&Report| {
            report.plan == engine.plan.digest
                && report.sku == engine.sku
                && (report.job == engine.job || report.created_ms >= engine.created_ms)
        };
        let order = |report: &&Report| {
            let of_given = report.measure.inputs.is_some() || report.measure.time_inputs;
            (of_given, report.job != engine.job, report.created_ms, report.digest)
        };
        let Some(report) = self.reports.values().filter(own).min_by_key(order) else { return };
        let Ok(figures) = Figures::parse(&report.document) else { return };
        let Some(median_ms) = figures.latency_ms.median.filter(|_| !engine.simulated && !figures.simulated) else {
            return;
        };
        let digest = engine.model.digest.to_string();
        let build = PastBuild {
            model: if engine.model.name.is_empty() { digest[..12].to_owned() } else { engine.model.name.clone() },
            model_digest: digest,
            sku: engine.sku.to_string(),
            project: engine.project.clone(),
            job: engine.job.to_string(),
            key: engine.key.to_string(),
            plan: engine.plan.digest.to_string(),
            created_ms: engine.created_ms,
            spec_json: serde_json::to_string(&engine.spec).unwrap_or_default(),
            toolchain_json: serde_json::to_string(&engine.toolchain).unwrap_or_default(),
            median_ms,
            disturbed: figures.wholly_disturbed().is_some(),
        };
        self.past.insert(build.place(), build);
    }

    pub(super) fn history_of(&self, filter: &HistoryFilter) -> Part<PastBuild, PastPlace> {
        let sees = |build: &PastBuild, project: &String| {
            build.project == *project
                || self.engine_projects.iter().any(|(key, of)| of == project && key.to_string() == build.key)
        };
        let calls = |build: &PastBuild, project: &String| {
            let own = self.jobs.values().filter(|job| self.job_projects.contains(&(job.id.clone(), project.clone())));
            let named =
                own.filter(|job| job.model.digest.to_string() == build.model_digest && !job.model.name.is_empty());
            named.max_by_key(|job| job.created_ms).is_some_and(|job| job.model.name == filter.model)
        };
        let is_model = |build: &PastBuild| {
            let named = build.model == filter.model;
            (!filter.model.is_empty() && build.model_digest.starts_with(filter.model.as_str()))
                || match filter.project.as_ref().filter(|_| filter.own_names) {
                    Some(project) => named && build.project == *project || calls(build, project),
                    None => named,
                }
        };
        let behind = filter.behind.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let found = self.past.range((Bound::Unbounded, behind)).map(|(_, build)| build);
        let found = found
            .filter(|build| filter.sku.as_ref().is_none_or(|sku| build.sku == *sku))
            .filter(|build| filter.project.as_ref().is_none_or(|project| sees(build, project)))
            .filter(|build| is_model(build));
        part_of(found.cloned().collect(), filter.limit)
    }
}
