//! What is stored under engine keys, as far as requests are answered by it: read when somebody asks, never all at once.

use super::{
    StoreError,
    sql::{Select, Statement, Value},
    tables::{Tables, digest, digest_or_none, number, parse, text},
};
use crate::core::{Covered, Engine, EngineRef, JobId, PreparationRecord, Refusal, Stored};
use planforge_types::{Digest, EngineKey, Sku};
use std::collections::BTreeMap;

/// Keys of one statement.
const KEYS_AT_ONCE: usize = 128;

/// What the core must know of a plan's report.
#[derive(Clone)]
pub(super) struct ReportOf {
    pub digest: Digest,
    pub covered: Covered,
    /// As its document says.
    pub accurate: bool,
    pub sku: Sku,
    pub job: JobId,
}

/// What the core must know of an engine and its reports, given oldest first. Its own is that of the job that built it.
pub(super) fn engine_ref(engine: &Engine, reports: impl Iterator<Item = ReportOf>) -> EngineRef {
    let Engine { plan, accurate, inputs, unmeasured, .. } = engine.clone();
    let mut known = EngineRef { plan, accurate, inputs, report: None, reports: BTreeMap::new(), unmeasured };
    let (mut own, mut first) = (None, None);
    for report in reports.filter(|report| report.sku == engine.sku) {
        if report.job == engine.job {
            own.get_or_insert(report.digest);
        }
        if report.covered.measure.inputs.is_none() {
            first.get_or_insert(report.digest);
        }
        known.learn(report.covered, report.digest, report.accurate);
    }
    known.report = own.or(first);
    known
}

impl Tables {
    /// What is stored under each of these keys.
    pub(super) async fn stored_under(&self, keys: Vec<EngineKey>) -> Result<BTreeMap<EngineKey, Stored>, StoreError> {
        let mut all = BTreeMap::new();
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let names = || keys.iter().map(EngineKey::to_string);
            // Oldest first, so that the newest of a key stays.
            let statement = Select::new("SELECT doc FROM engines")
                .one_of("engine_key", names())
                .order("seq, created_ms, plan_digest", usize::MAX);
            let engines: BTreeMap<EngineKey, Engine> = self
                .docs::<Engine>("an engine", statement)
                .await?
                .into_iter()
                .map(|engine| (engine.key, engine))
                .collect();
            let mut reports = self.reports_of(engines.values()).await?;
            let statement =
                Select::new("SELECT doc FROM refusals").one_of("engine_key", names()).order("engine_key", usize::MAX);
            let mut refusals: BTreeMap<EngineKey, Refusal> = self
                .docs::<Refusal>("a refusal", statement)
                .await?
                .into_iter()
                .map(|refusal| (refusal.key, refusal))
                .collect();
            let statement = Select::new("SELECT doc FROM preparations")
                .one_of("prepare_key", names())
                .order("prepare_key", usize::MAX);
            let mut preparations: BTreeMap<EngineKey, PreparationRecord> = self
                .docs::<PreparationRecord>("a preparation", statement)
                .await?
                .into_iter()
                .map(|record| (record.key, record))
                .collect();
            for key in keys {
                let known = |engine: &Engine| {
                    let reports = reports.remove(&engine.plan.digest).unwrap_or_default();
                    engine_ref(engine, reports.into_iter())
                };
                let engine = engines.get(key).map(known);
                let (refusal, preparation) = (refusals.remove(key), preparations.remove(key));
                all.insert(*key, Stored { engine, refusal, preparation });
            }
        }
        Ok(all)
    }

    /// Reports of the engines' plans, by plan, oldest first.
    async fn reports_of(
        &self,
        engines: impl Iterator<Item = &Engine>,
    ) -> Result<BTreeMap<Digest, Vec<ReportOf>>, StoreError> {
        let mut found: BTreeMap<Digest, Vec<ReportOf>> = BTreeMap::new();
        let (mut plans, mut given) = (Vec::new(), Vec::new());
        for engine in engines {
            let plan = engine.plan.digest.to_string();
            given.extend(engine.inputs.map(|_| plan.clone()));
            plans.push(plan);
        }
        if plans.is_empty() {
            return Ok(found);
        }
        let mut values: Vec<Value> = Vec::new();
        let mut listed = |digests: &[String]| {
            let places = digests.iter().map(|digest| {
                values.push(digest.as_str().into());
                format!("${}", values.len())
            });
            // A list of nothing is SQLite's alone: it takes nothing in, as NULL does.
            Some(places.collect::<Vec<_>>().join(", ")).filter(|list| !list.is_empty()).unwrap_or("NULL".into())
        };
        // What usual reports of usual builds found stands in their engines: other documents alone are looked into.
        let sql = format!(
            "SELECT digest, plan_digest, eval_digest, sku, measure, job, \
             CASE WHEN (eval_digest <> '' OR measure LIKE '%\"inputs\":%' OR plan_digest IN ({})) AND json_valid(document) \
             THEN CASE WHEN CAST(json_extract(document, '$.accurate') AS TEXT) = '0' THEN 0 ELSE 1 END ELSE 1 END AS accurate \
             FROM reports WHERE plan_digest IN ({}) AND engine_key <> '' ORDER BY created_ms, digest",
            listed(&given),
            listed(&plans),
        );
        for row in self.rows(Statement { sql, values }).await? {
            let sku = text(&row, "sku")?;
            let sku =
                sku.parse().map_err(|error| StoreError::Corrupt { what: "a report", detail: format!("{error}") })?;
            let report = ReportOf {
                digest: digest("a report", &text(&row, "digest")?)?,
                covered: Covered {
                    eval: digest_or_none("a report", &text(&row, "eval_digest")?)?,
                    measure: parse("a report", &text(&row, "measure")?)?,
                },
                accurate: number(&row, "accurate")? != 0,
                sku,
                job: text(&row, "job")?.into(),
            };
            found.entry(digest("a report", &text(&row, "plan_digest")?)?).or_default().push(report);
        }
        Ok(found)
    }
}
