//! How models stand on device kinds: asked of tables that are kept for it (migration 0021), a page of models at a time.

use super::{
    StoreError,
    lists::NAMED_AT_ONCE,
    sql::{Statement, Value},
    tables::{Row, Tables, number, real_or_none, text},
};
use crate::core::{JobId, JobState};
use futures::future::{try_join, try_join3};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs that are looked at where rows are told apart by more than the model.
const APART_MAX: usize = 4_096;

/// Of which models, device kinds and projects. `None` means any.
#[derive(Clone, Debug, Default)]
pub struct CoverageFilter {
    pub project: Option<String>,
    /// Name, or prefix of the digest.
    pub model: Option<String>,
    /// A device kind, or, with a star behind its beginning, a family of them.
    pub sku: Option<String>,
}

impl CoverageFilter {
    /// Whether it is one of the device kinds.
    pub fn is_of_sku(&self, sku: &str) -> bool {
        self.sku.as_deref().is_none_or(|asked| match asked.strip_suffix('*') {
            Some(family) => sku.starts_with(family),
            None => sku == asked,
        })
    }

    /// Whether it is the model, by its name or digest.
    pub fn is_of_model(&self, name: &str, digest: &str) -> bool {
        self.model.as_deref().is_none_or(|asked| asked == name || (!asked.is_empty() && digest.starts_with(asked)))
    }
}

/// Part of the models of which something stands anywhere, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoveredModels {
    pub names: Vec<String>,
    /// How many there are.
    pub count: u64,
    /// Device kinds on which something of any of them stands.
    pub skus: Vec<String>,
}

/// The newest build of a key, with the figures of the report that is shown of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// As the project that asks calls it.
    pub model: String,
    pub model_digest: String,
    pub sku: String,
    pub plan: String,
    pub created_ms: u64,
    pub spec_json: String,
    pub toolchain_json: String,
    pub accurate: bool,
    pub simulated: bool,
    pub median_ms: Option<f64>,
    /// Every window that counts was.
    pub disturbed: bool,
}

/// A job that lives, or one that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingJob {
    pub id: JobId,
    pub model: String,
    pub sku: String,
    pub state: JobState,
    /// When it was submitted or, failed, ended.
    pub at_ms: u64,
    /// What it does or how it failed.
    pub why: String,
    /// Empty where rows are told apart by the model alone.
    pub spec_json: String,
    pub toolchain_json: String,
    pub constraint: String,
}

/// How models stand, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    pub engines: Vec<Standing>,
    pub live: Vec<StandingJob>,
    pub failed: Vec<StandingJob>,
    /// There are more jobs than were looked at.
    pub is_cut: bool,
}

/// Conditions on rows, with what is bound to them.
struct Conditions {
    sql: String,
    values: Vec<Value>,
}

impl Conditions {
    fn new() -> Self {
        Self { sql: String::from("TRUE"), values: Vec::new() }
    }

    fn place(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    /// `condition` has `#` where the value stands.
    fn and(&mut self, condition: &str, value: impl Into<Value>) -> &mut Self {
        let place = self.place(value);
        self.sql.push_str(" AND ");
        self.sql.push_str(&condition.replace('#', &place));
        self
    }

    fn one_of(&mut self, column: &str, values: &[String]) -> &mut Self {
        let places: Vec<String> = values.iter().map(|value| self.place(value.as_str())).collect();
        self.sql.push_str(&format!(" AND {column} IN ({})", places.join(", ")));
        self
    }

    fn sku(&mut self, column: &str, filter: &CoverageFilter) -> &mut Self {
        match filter.sku.as_deref().map(|sku| (sku, sku.strip_suffix('*'))) {
            None => self,
            // '~' sorts behind every character of a device kind.
            Some((_, Some(family))) => self.and(&format!("{column} >= # AND {column} < # || '~'"), family),
            Some((sku, None)) => self.and(&format!("{column} = #"), sku),
        }
    }

    /// Of models that were found by a digest, those of that digest.
    fn model(&mut self, name: &str, digest: &str, filter: &CoverageFilter) -> &mut Self {
        match filter.model.as_deref() {
            None => self,
            Some(model) => {
                self.and(&format!("({name} = # OR (# <> '' AND {digest} >= # AND {digest} < # || 'g'))"), model)
            }
        }
    }

    fn own_job(&mut self, project: Option<&str>) -> &mut Self {
        match project {
            None => self,
            Some(project) => self.and(
                "EXISTS (SELECT 1 FROM job_projects AS o WHERE o.project = # AND o.created_ms = j.created_ms AND \
                 o.job = j.id)",
                project,
            ),
        }
    }

    fn statement(self, sql: impl FnOnce(&str) -> String) -> Statement {
        Statement { sql: sql(&self.sql), values: self.values }
    }
}

fn project(filter: &CoverageFilter) -> &str {
    filter.project.as_deref().unwrap_or_default()
}

impl Tables {
    /// Models from the one of number `from`, and how many there are.
    pub(super) async fn covered_models(
        &self,
        filter: &CoverageFilter,
        from: u64,
        limit: usize,
    ) -> Result<CoveredModels, StoreError> {
        let named = match &filter.model {
            Some(model) => Some(self.names_of(model).await?),
            None => None,
        };
        let [count, names, skus] = of_places(filter, named.as_deref(), from, limit);
        let (count, names, skus) = try_join3(self.rows(count), self.rows(names), self.rows(skus)).await?;
        Ok(CoveredModels {
            names: names.iter().map(|row| text(row, "model_name")).collect::<Result<_, _>>()?,
            count: count.first().map_or(Ok(0), |row| number(row, "n"))?,
            skus: skus.iter().map(|row| text(row, "sku")).collect::<Result<_, _>>()?,
        })
    }

    /// Names under which a model is known that was asked for by its name or by a beginning of its digest.
    async fn names_of(&self, model: &str) -> Result<Vec<String>, StoreError> {
        let mut names = BTreeSet::from([model.to_owned()]);
        let digests: BTreeSet<String> =
            self.digests_of("engines", model).await?.into_iter().chain(self.digests_of("jobs", model).await?).collect();
        for digest in digests {
            let statement = Statement {
                sql: "SELECT DISTINCT c.model_name FROM engine_facts AS f JOIN coverage_engines AS c \
                      ON c.engine_key = f.engine_key WHERE f.model_digest = $1 \
                      UNION SELECT DISTINCT model_name FROM jobs INDEXED BY jobs_model WHERE model_digest = $1 \
                      AND state NOT IN ('succeeded', 'cancelled', 'skipped')"
                    .into(),
                values: vec![digest.into()],
            };
            for row in self.rows(statement).await? {
                names.insert(text(&row, "model_name")?);
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Those of the names under which something stands.
    pub(super) async fn covered_among(
        &self,
        filter: &CoverageFilter,
        names: &[String],
    ) -> Result<BTreeSet<String>, StoreError> {
        let mut found = BTreeSet::new();
        for names in names.chunks(NAMED_AT_ONCE) {
            let mut places = Conditions::new();
            places.and("project = #", project(filter)).one_of("model_name", names).sku("sku", filter);
            let statement =
                places.statement(|places| format!("SELECT DISTINCT model_name FROM coverage_places WHERE {places}"));
            for row in self.rows(statement).await? {
                found.insert(text(&row, "model_name")?);
            }
        }
        Ok(found)
    }

    /// What the newest engine of each of these models calls it.
    pub(super) async fn model_names(
        &self,
        project: Option<&str>,
        digests: &[String],
    ) -> Result<BTreeMap<String, String>, StoreError> {
        let mut names = BTreeMap::new();
        for digests in digests.chunks(NAMED_AT_ONCE) {
            let mut facts = Conditions::new();
            facts.and("c.project = #", project.unwrap_or_default()).one_of("f.model_digest", digests);
            // The last of a digest stays.
            let statement = facts.statement(|facts| {
                format!(
                    "SELECT f.model_digest, c.model_name FROM engine_facts AS f JOIN coverage_engines AS c \
                     ON c.engine_key = f.engine_key WHERE {facts} ORDER BY f.created_ms"
                )
            });
            for row in self.rows(statement).await? {
                names.insert(text(&row, "model_digest")?, text(&row, "model_name")?);
            }
        }
        Ok(names)
    }

    /// How these models stand. `apart`: rows are told apart by more than the model, so that the newest job of one does not
    /// say how the others stand.
    pub(super) async fn coverage(
        &self,
        filter: &CoverageFilter,
        models: &[String],
        apart: bool,
    ) -> Result<Coverage, StoreError> {
        if models.is_empty() {
            return Ok(Coverage::default());
        }
        let (engines, (live, failed)) = try_join(self.standings(filter, models), async {
            match apart {
                true => try_join(self.jobs_apart(filter, models, true), self.jobs_apart(filter, models, false)).await,
                false => {
                    try_join(self.newest_jobs(filter, models, true), self.newest_jobs(filter, models, false)).await
                }
            }
        })
        .await?;
        let is_cut = live.len().max(failed.len()) > APART_MAX;
        let mut coverage = Coverage { engines, live, failed, is_cut };
        if !apart {
            without_rebuilt(&mut coverage);
        }
        Ok(coverage)
    }

    async fn standings(&self, filter: &CoverageFilter, models: &[String]) -> Result<Vec<Standing>, StoreError> {
        let statement = of_engines(filter, models);
        let mut standings = self.records(&self.rows(statement).await?, standing)?;
        standings.sort_by(|one, other| (other.created_ms, &other.plan).cmp(&(one.created_ms, &one.plan)));
        Ok(standings)
    }

    /// The newest job that lives, or failed, of each of the models on each device kind: a step along an index for each.
    async fn newest_jobs(
        &self,
        filter: &CoverageFilter,
        models: &[String],
        lives: bool,
    ) -> Result<Vec<StandingJob>, StoreError> {
        let statement = of_newest_jobs(filter, models, lives);
        self.records(&self.rows(statement).await?, standing_job)
    }

    /// As [`Self::newest_jobs`], all of them up to a bound, with what tells their rows apart.
    async fn jobs_apart(
        &self,
        filter: &CoverageFilter,
        models: &[String],
        lives: bool,
    ) -> Result<Vec<StandingJob>, StoreError> {
        let statement = of_jobs_apart(filter, models, lives);
        let apart = |row: &Row| {
            Ok(StandingJob {
                spec_json: text(row, "spec")?,
                toolchain_json: text(row, "toolchain")?,
                constraint: text(row, "toolchain_constraint")?,
                ..standing_job(row)?
            })
        };
        self.records(&self.rows(statement).await?, apart)
    }
}

/// Leaves out failed jobs that an engine came after.
fn without_rebuilt(coverage: &mut Coverage) {
    let mut built: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for engine in &coverage.engines {
        let newest = built.entry((&engine.model, &engine.sku)).or_default();
        *newest = engine.created_ms.max(*newest);
    }
    coverage.failed.retain(|job| built.get(&(&*job.model, &*job.sku)).is_none_or(|built| *built < job.at_ms));
}

/// How many models there are, their names from number `from`, and their device kinds. `named`: of these models alone.
fn of_places(filter: &CoverageFilter, named: Option<&[String]>, from: u64, limit: usize) -> [Statement; 3] {
    let mut places = Conditions::new();
    places.and("project = #", project(filter));
    if let Some(names) = named {
        places.one_of("model_name", names);
    }
    places.sku("sku", filter);
    let Conditions { sql: places, values } = places;
    let is_whole = named.is_none() && filter.sku.is_none();
    let (models, all) = match is_whole {
        true => ("coverage_models", "COUNT(*)"),
        false => ("coverage_places", "COUNT(DISTINCT model_name)"),
    };
    let count = format!("SELECT {all} AS n FROM {models} WHERE {places}");
    let part = [values.clone(), vec![(limit as u64).into(), from.into()]].concat();
    let names = format!(
        "SELECT DISTINCT model_name FROM {models} WHERE {places} ORDER BY model_name LIMIT ${} OFFSET ${}",
        part.len() - 1,
        part.len()
    );
    [
        Statement { sql: count, values: values.clone() },
        Statement { sql: names, values: part },
        Statement { sql: skus_of(&places, is_whole), values },
    ]
}

/// The newest builds of these models' keys. A model's engines are one range, and what is known of each is found by its key.
fn of_engines(filter: &CoverageFilter, models: &[String]) -> Statement {
    let mut seen = Conditions::new();
    seen.and("c.project = #", project(filter)).one_of("c.model_name", models).sku("c.sku", filter);
    seen.model("c.model_name", "f.model_digest", filter);
    seen.statement(|seen| {
        format!(
            "SELECT c.model_name, c.sku, f.model_digest, f.plan_digest, f.created_ms, f.spec, f.toolchain, f.accurate, \
             f.simulated, f.median_ms, f.disturbed FROM coverage_engines AS c CROSS JOIN engine_facts AS f \
             ON f.engine_key = c.engine_key WHERE {seen}"
        )
    })
}

/// The newest job that lives, or failed, of each of the models on each device kind; none of the failed whose place another
/// one took.
fn of_newest_jobs(filter: &CoverageFilter, models: &[String], lives: bool) -> Statement {
    let (index, only, at) = of_kind(lives);
    let (tells, why, stands) = match lives {
        true => ("n.state IN ('leased', 'running') AND json_valid(n.doc)", "$.phase", "TRUE"),
        false => (
            "json_valid(n.doc)",
            "$.failure.message",
            "CASE WHEN json_valid(n.doc) THEN json_extract(n.doc, '$.fallback') IS NULL ELSE TRUE END",
        ),
    };
    let mut job = Conditions::new();
    job.own_job(filter.project.as_deref()).model("j.model_name", "j.model_digest", filter);
    let newest = format!(
        "(SELECT j.id FROM jobs AS j INDEXED BY {index} WHERE j.{only} AND j.model_name = p.model_name \
         AND j.sku = p.sku AND {} ORDER BY j.{at} DESC, j.id DESC LIMIT 1)",
        job.sql
    );
    let mut places = Conditions { sql: "TRUE".into(), values: job.values };
    places.and("p.project = #", project(filter)).one_of("p.model_name", models).sku("p.sku", filter);
    places.statement(|places| {
        format!(
            "SELECT p.model_name, p.sku, n.id, n.state, n.{at} AS at_ms, CASE WHEN {tells} \
             THEN COALESCE(json_extract(n.doc, '{why}'), '') ELSE '' END AS why \
             FROM coverage_places AS p CROSS JOIN jobs AS n ON n.id = {newest} WHERE {places} AND {stands} \
             ORDER BY n.{at} DESC, n.id DESC"
        )
    })
}

/// All jobs of the models that live, or failed, up to a bound, with what tells their rows apart.
fn of_jobs_apart(filter: &CoverageFilter, models: &[String], lives: bool) -> Statement {
    let (index, only, at) = of_kind(lives);
    let mut jobs = Conditions::new();
    jobs.one_of("j.model_name", models).sku("j.sku", filter).own_job(filter.project.as_deref());
    jobs.model("j.model_name", "j.model_digest", filter);
    let limit = jobs.place((APART_MAX + 1) as u64);
    let why = if lives { "$.phase" } else { "$.failure.message" };
    jobs.statement(|jobs| {
        format!(
            "SELECT j.model_name, j.sku, j.id, j.state, j.{at} AS at_ms, \
             COALESCE(json_extract(j.doc, '{why}'), '') AS why, \
             COALESCE(json_extract(j.doc, '$.spec'), '') AS spec, \
             COALESCE(json_extract(j.doc, '$.toolchain'), '') AS toolchain, \
             COALESCE(json_extract(j.doc, '$.constraint'), '') AS toolchain_constraint \
             FROM jobs AS j INDEXED BY {index} WHERE j.{only} AND j.sku <> 'anywhere' AND json_valid(j.doc) AND {jobs} \
             ORDER BY j.{at} DESC, j.id DESC LIMIT {limit}"
        )
    })
}

/// Which index jobs that live, or failed, stand in, what each of its rows has, and its time.
fn of_kind(lives: bool) -> (&'static str, &'static str, &'static str) {
    match lives {
        true => ("jobs_live_places", "ended_ms = 0", "created_ms"),
        false => ("jobs_failed_places", "state = 'failed'", "ended_ms"),
    }
}

/// The device kinds of places; of all places a step along an index for each of them.
fn skus_of(places: &str, is_whole: bool) -> String {
    if !is_whole {
        return format!("SELECT DISTINCT sku FROM coverage_places WHERE {places} ORDER BY sku");
    }
    format!(
        "WITH RECURSIVE known(sku) AS (SELECT MIN(sku) FROM coverage_places WHERE {places} UNION ALL \
         SELECT (SELECT MIN(p.sku) FROM coverage_places AS p WHERE {places} AND p.sku > known.sku) \
         FROM known WHERE known.sku IS NOT NULL) SELECT sku FROM known WHERE sku IS NOT NULL ORDER BY sku"
    )
}

fn standing(row: &Row) -> Result<Standing, StoreError> {
    Ok(Standing {
        model: text(row, "model_name")?,
        model_digest: text(row, "model_digest")?,
        sku: text(row, "sku")?,
        plan: text(row, "plan_digest")?,
        created_ms: number(row, "created_ms")?,
        spec_json: text(row, "spec")?,
        toolchain_json: text(row, "toolchain")?,
        accurate: number(row, "accurate")? != 0,
        simulated: number(row, "simulated")? != 0,
        median_ms: real_or_none(row, "median_ms")?,
        disturbed: number(row, "disturbed")? != 0,
    })
}

fn standing_job(row: &Row) -> Result<StandingJob, StoreError> {
    let state = text(row, "state")?;
    let unknown = || StoreError::Corrupt { what: "a job", detail: format!("unknown state '{state}'") };
    Ok(StandingJob {
        id: text(row, "id")?.into(),
        model: text(row, "model_name")?,
        sku: text(row, "sku")?,
        state: JobState::from_name(&state).ok_or_else(unknown)?,
        at_ms: number(row, "at_ms")?,
        why: text(row, "why")?,
        spec_json: String::new(),
        toolchain_json: String::new(),
        constraint: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{SqliteStore, Store as _, lists::tests::assert_along_indexes, sql_store::SqlStore as _},
        *,
    };

    #[tokio::test]
    async fn coverage_is_read_along_indexes() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
        let models = ["a.onnx".to_owned(), "b.onnx".to_owned()];
        let some = |text: &str| Some(text.to_owned());
        let any = CoverageFilter::default;
        for filter in [
            any(),
            CoverageFilter { project: some("vision"), ..any() },
            CoverageFilter { sku: some("t4"), ..any() },
            CoverageFilter { sku: some("a100-*"), project: some("vision"), ..any() },
            CoverageFilter { model: some("0123abcd"), ..any() },
        ] {
            let named = filter.model.as_ref().map(|_| &models[..]);
            let jobs = |lives| [of_newest_jobs(&filter, &models, lives), of_jobs_apart(&filter, &models, lives)];
            let statements = of_places(&filter, named, 60, 60).into_iter().chain([of_engines(&filter, &models)]);
            for Statement { sql, values } in statements.chain(jobs(true)).chain(jobs(false)) {
                let explain = Statement { sql: format!("EXPLAIN QUERY PLAN {sql}"), values };
                let rows = store.tables().rows(explain).await.unwrap();
                let plan: Vec<String> = rows.iter().map(|row| text(row, "detail").unwrap()).collect();
                assert_along_indexes(&plan, &sql);
                assert!(
                    !plan.iter().any(|line| line.starts_with("SCAN ") && !line.contains("known")),
                    "{sql}: {plan:#?}"
                );
            }
        }
        store.close().await.unwrap();
    }
}
