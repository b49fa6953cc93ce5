//! Lists of jobs and engines in SQL databases: which index a list is read along, and what is asked of its rows beside.

use super::{
    Count, EngineFilter, JobFilter, JobOrder, Part, StoreError,
    sql::{Select, Statement, Value},
    tables::{Row, Tables, number, plain, text, text_or_none},
    walk::{Place, Step, Stream, Walk, Walked},
};
use crate::core::{Engine, Job, JobId, JobState};
use planforge_types::{Digest, EngineKey};
use std::collections::BTreeMap;

/// Rows up to which a list is counted one by one, where no table has its count.
pub(super) const COUNTED_MAX: usize = 1_000;
/// Models whose digests begin as was asked that are looked at.
const MODELS_MAX: usize = 16;
/// Records that one statement reads by name.
pub(super) const NAMED_AT_ONCE: usize = 256;
/// Builds that one statement reads by their plans, which other keys may have, too.
const BUILDS_AT_ONCE: usize = 64;
/// Device kinds whose oldest jobs one statement finds.
const KINDS_AT_ONCE: usize = 16;

/// Collects conditions on a row and what is bound to them.
#[derive(Default)]
struct Fits {
    conditions: Vec<String>,
    values: Vec<Value>,
}

impl Fits {
    /// `condition` has one `#` for each of the values.
    fn add(&mut self, condition: impl Into<String>, values: impl IntoIterator<Item = Value>) {
        self.conditions.push(condition.into());
        self.values.extend(values);
    }

    fn all(self, of_row: impl FnOnce(String) -> String) -> (String, Vec<Value>) {
        if self.conditions.is_empty() {
            return (String::new(), Vec::new());
        }
        (of_row(self.conditions.join(" AND ")), self.values)
    }
}

fn one_of(column: &str, count: usize) -> String {
    format!("{column} IN ({})", vec!["#"; count].join(", "))
}

fn names(states: &[JobState]) -> impl Iterator<Item = Value> + '_ {
    states.iter().map(|state| state.name().into())
}

impl Tables {
    pub(super) async fn part_of_jobs(&self, filter: JobFilter) -> Result<Part<Job, (u64, JobId)>, StoreError> {
        if !filter.ids.is_empty() {
            return self.named_jobs(filter).await;
        }
        let walk = self.walk_of_jobs(&filter).await?;
        let behind = filter.behind.map(|(at_ms, id)| Place { at_ms, names: vec![id.into()] });
        let Walked { places, rest } = self.walked(&walk, behind, filter.limit).await?;
        let mut found = BTreeMap::new();
        for ids in places.chunks(NAMED_AT_ONCE) {
            let ids = ids.iter().filter_map(|place| place.names.first().cloned());
            let statement = Select::new("SELECT doc FROM jobs").one_of("id", ids).order("id", NAMED_AT_ONCE);
            found.extend(self.docs::<Job>("a job", statement).await?.into_iter().map(|job| (job.id.clone(), job)));
        }
        let id = |place: Place| JobId::from(place.names.into_iter().next().unwrap_or_default());
        let items = places.into_iter().filter_map(|place| found.remove(&id(place))).collect();
        Ok(Part { items, rest: rest.map(|rest| (rest.at_ms, id(rest))) })
    }

    /// Of jobs that are named there are few: they are read and then told apart.
    async fn named_jobs(&self, filter: JobFilter) -> Result<Part<Job, (u64, JobId)>, StoreError> {
        let mut found = Vec::new();
        for ids in filter.ids.chunks(NAMED_AT_ONCE) {
            let mut select = Select::new("SELECT doc FROM jobs AS j");
            select.one_of("id", ids.iter().map(|id| id.as_str().to_owned()));
            let own = "EXISTS (SELECT 1 FROM job_projects AS p WHERE p.project = # AND p.created_ms = j.created_ms \
                       AND p.job = j.id)";
            select.filter(own, filter.project.clone());
            for tag in &filter.tags {
                let tagged = "EXISTS (SELECT 1 FROM job_tags AS t WHERE t.job = j.id AND t.tag = #)";
                select.filter(tagged, Some(tag.clone()));
            }
            found.extend(self.docs::<Job>("a job", select.order("id", NAMED_AT_ONCE)).await?);
        }
        Ok(filter.part_of(found.iter()))
    }

    pub(super) async fn count_of_jobs(&self, filter: JobFilter) -> Result<Count, StoreError> {
        let is_kept = filter.ids.is_empty()
            && filter.tags.is_empty()
            && filter.model.is_none()
            && filter.since_ms.is_none()
            && filter.until_ms.is_none();
        if is_kept {
            let count = self.counted(filter.project.as_deref(), filter.sku.as_deref(), &filter.states).await?;
            return Ok(Count { count, is_exact: true });
        }
        let filter = JobFilter { limit: COUNTED_MAX, behind: None, ..filter };
        if !filter.ids.is_empty() {
            let part = self.named_jobs(JobFilter { limit: usize::MAX, ..filter }).await?;
            return Ok(Count { count: part.items.len() as u64, is_exact: true });
        }
        let walked = self.walked(&self.walk_of_jobs(&filter).await?, None, filter.limit).await?;
        Ok(Count { count: walked.places.len() as u64, is_exact: walked.rest.is_none() })
    }

    /// Jobs by what the counts are kept for.
    async fn counted(&self, project: Option<&str>, sku: Option<&str>, states: &[JobState]) -> Result<u64, StoreError> {
        let mut select = Select::new("SELECT CAST(COALESCE(SUM(n), 0) AS BIGINT) AS n FROM job_counts");
        select
            .filter("project = #", Some(project.unwrap_or_default()))
            .filter("sku = #", sku)
            .one_of("state", states.iter().map(|state| state.name().to_owned()));
        self.rows(select.order("1", 1)).await?.first().map_or(Ok(0), |row| number(row, "n"))
    }

    pub(super) async fn job_counts(
        &self,
        project: Option<&str>,
    ) -> Result<BTreeMap<(String, JobState), u64>, StoreError> {
        let mut select = Select::new("SELECT sku, state, n FROM job_counts");
        let statement = select.filter("project = #", Some(project.unwrap_or_default())).order("sku, state", usize::MAX);
        let mut counts = BTreeMap::new();
        for row in self.rows(statement).await? {
            if let (Some(state), n @ 1..) = (JobState::from_name(&text(&row, "state")?), number(&row, "n")?) {
                counts.insert((text(&row, "sku")?, state), n);
            }
        }
        Ok(counts)
    }

    /// The shortest of the index ranges that hold the whole list.
    async fn walk_of_jobs(&self, filter: &JobFilter) -> Result<Walk, StoreError> {
        let JobFilter { project, states, sku, model, tags, .. } = filter;
        let mut fits = Fits::default();
        let by_end = filter.order == JobOrder::Ended;
        let mut tags = tags.iter();
        let (mut by_project, mut by_sku, mut by_model, mut by_state) = (false, false, false, false);
        let each_state = if states.is_empty() { &JobState::ALL[..] } else { states.as_slice() };
        let stream = |from, equal| Stream { from, only: "", equal, at: "created_ms", names: &["id"] };
        let streams = if by_end {
            let only = "ended_ms <> 0";
            let from = "jobs INDEXED BY jobs_ended";
            vec![Stream { from, only, equal: Vec::new(), at: "ended_ms", names: &["id"] }]
        } else if let Some(tag) = tags.next() {
            // Tags are a project's: those of the one asked for, or all.
            by_project = project.is_none();
            let owner = project.clone().unwrap_or_default();
            let equal = vec![("project", owner.into()), ("tag", tag.clone().into())];
            vec![Stream { from: "job_tags", only: "", equal, at: "created_ms", names: &["job"] }]
        } else if let Some(model) = model {
            (by_model, by_state) = (true, true);
            let mut keys = vec![("jobs INDEXED BY jobs_model_name", "model_name", model.clone())];
            for digest in self.digests_of("jobs", model).await? {
                keys.push(("jobs INDEXED BY jobs_model", "model_digest", digest));
            }
            let of_state = |state: &JobState| {
                let equal = |column, key: &String| vec![(column, key.clone().into()), ("state", state.name().into())];
                keys.iter().map(|(from, column, key)| stream(from, equal(*column, key))).collect::<Vec<_>>()
            };
            each_state.iter().flat_map(of_state).collect()
        } else {
            let whole = self.counted(None, None, states).await?;
            let of_sku = match sku {
                Some(sku) => self.counted(None, Some(sku), states).await?,
                None => u64::MAX,
            };
            if let (Some(project), Some(sku)) = (project, sku) {
                (by_project, by_sku, by_state) = (true, true, true);
                let equal = |state: &JobState| {
                    vec![
                        ("project", project.clone().into()),
                        ("sku", sku.clone().into()),
                        ("state", state.name().into()),
                    ]
                };
                let from = "job_projects INDEXED BY job_projects_sku";
                let stream = |state| Stream { from, only: "", equal: equal(state), at: "created_ms", names: &["job"] };
                each_state.iter().map(stream).collect()
            } else if let Some(project) = project {
                (by_project, by_state) = (true, true);
                let stream = |state: Option<&JobState>| {
                    let mut equal = vec![("project", project.clone().into())];
                    equal.extend(state.map(|state| ("state", state.name().into())));
                    let from =
                        if state.is_some() { "job_projects INDEXED BY job_projects_state" } else { "job_projects" };
                    Stream { from, only: "", equal, at: "created_ms", names: &["job"] }
                };
                if states.is_empty() { vec![stream(None)] } else { states.iter().map(|s| stream(Some(s))).collect() }
            } else if of_sku <= whole
                && let Some(sku) = sku
            {
                (by_sku, by_state) = (true, true);
                let equal = |state: &JobState| vec![("sku", sku.clone().into()), ("state", state.name().into())];
                each_state.iter().map(|state| stream("jobs INDEXED BY jobs_sku", equal(state))).collect()
            } else if states.is_empty() {
                vec![stream("jobs INDEXED BY jobs_newest", Vec::new())]
            } else {
                by_state = true;
                let equal = |state: &JobState| vec![("state", state.name().into())];
                states.iter().map(|state| stream("jobs INDEXED BY jobs_state", equal(state))).collect()
            }
        };
        if !states.is_empty() && !by_state {
            fits.add(one_of("j.state", states.len()), names(states));
        }
        if let Some(sku) = sku.as_ref().filter(|_| !by_sku) {
            fits.add("j.sku = #", [sku.clone().into()]);
        }
        if let Some(model) = model.as_ref().filter(|_| !by_model) {
            fits.add(model_condition("j"), model_values(model));
        }
        if let Some(project) = project.as_ref().filter(|_| !by_project) {
            let own = "EXISTS (SELECT 1 FROM job_projects AS p WHERE p.project = # AND p.created_ms = j.created_ms \
                       AND p.job = j.id)";
            fits.add(own, [project.clone().into()]);
        }
        for tag in tags {
            let tagged = "EXISTS (SELECT 1 FROM job_tags AS t WHERE t.project = # AND t.tag = # AND \
                          t.created_ms = j.created_ms AND t.job = j.id)";
            fits.add(tagged, [project.clone().unwrap_or_default().into(), tag.clone().into()]);
        }
        if by_end {
            for (bound, condition) in [(filter.since_ms, "j.created_ms >= #"), (filter.until_ms, "j.created_ms <= #")] {
                if let Some(bound) = bound {
                    fits.add(condition, [bound.into()]);
                }
            }
        }
        let bounds = if by_end { (None, None) } else { (filter.since_ms, filter.until_ms) };
        let of_job = |conditions| format!("EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = w.b AND {conditions})");
        let (fits, fits_values) = fits.all(of_job);
        let newest_first = filter.order != JobOrder::Oldest;
        Ok(Walk { streams, newest_first, since_ms: bounds.0, until_ms: bounds.1, fits, fits_values })
    }

    /// Digests of models that begin as was asked.
    pub(super) async fn digests_of(&self, table: &'static str, model: &str) -> Result<Vec<String>, StoreError> {
        let mut digests: Vec<String> = Vec::new();
        if model.is_empty() || !model.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Ok(digests);
        }
        while digests.len() < MODELS_MAX {
            // Hex digits sort before `g`.
            let (after, from) = match digests.last() {
                Some(last) => (">", last.clone()),
                None => (">=", model.to_owned()),
            };
            let sql = format!(
                "SELECT MIN(model_digest) AS digest FROM {table} WHERE model_digest {after} $1 AND model_digest < $2 || 'g'"
            );
            let rows = self.rows(Statement { sql, values: vec![from.into(), model.into()] }).await?;
            match rows.first().map(|row| text_or_none(row, "digest")).transpose()?.flatten() {
                Some(digest) => digests.push(digest),
                None => break,
            }
        }
        Ok(digests)
    }

    pub(super) async fn part_of_engines(
        &self,
        filter: EngineFilter,
    ) -> Result<Part<Engine, (u64, EngineKey, Digest)>, StoreError> {
        let corrupt = |detail: String| StoreError::Corrupt { what: "an engine", detail };
        let unnamed = |names: Vec<String>| corrupt(format!("its place in the list is {}", names.join(" ")));
        let behind = filter.behind.map(|(at_ms, key, plan)| {
            let names = vec![key.to_string(), plan.to_string()];
            Place { at_ms, names }
        });
        let walk = self.walk_of_engines(&filter).await?;
        let Walked { places, rest } = self.walked(&walk, behind, filter.limit).await?;
        let mut builds = Vec::with_capacity(places.len());
        for Place { names, .. } in places {
            let [key, plan] = names.try_into().map_err(unnamed)?;
            builds.push((key, plan));
        }
        let items = self.engines_of(&builds).await?;
        let rest = match rest {
            Some(Place { at_ms, names }) => {
                let [key, plan] = names.try_into().map_err(unnamed)?;
                let key: EngineKey = key.parse().map_err(|error| corrupt(format!("{error}")))?;
                Some((at_ms, key, plan.parse().map_err(|error| corrupt(format!("{error}")))?))
            }
            None => None,
        };
        Ok(Part { items, rest })
    }

    /// These builds' engines in this order; of one that is not there any more, nothing.
    async fn engines_of(&self, builds: &[(String, String)]) -> Result<Vec<Engine>, StoreError> {
        let mut items = Vec::with_capacity(builds.len());
        for builds in builds.chunks(BUILDS_AT_ONCE) {
            let mut select = Select::new("SELECT doc FROM engines");
            select.one_of("plan_digest", builds.iter().map(|(_, plan)| plan.clone()));
            let found = self.docs::<Engine>("an engine", select.order("plan_digest", NAMED_AT_ONCE)).await?;
            let name = |engine: Engine| ((engine.key.to_string(), engine.plan.digest.to_string()), engine);
            let mut found: BTreeMap<(String, String), Engine> = found.into_iter().map(name).collect();
            for build in builds {
                if let Some(engine) = found.remove(build) {
                    items.push(engine);
                    continue;
                }
                // Of a plan that so many keys have that not all of them were read.
                let mut select = Select::new("SELECT doc FROM engines");
                select.filter("engine_key = #", Some(build.0.clone())).filter("plan_digest = #", Some(build.1.clone()));
                items.extend(self.docs::<Engine>("an engine", select.order("engine_key", 1)).await?);
            }
        }
        Ok(items)
    }

    pub(super) async fn count_of_engines(&self, filter: EngineFilter) -> Result<Count, StoreError> {
        if filter.key.is_none() && filter.plan.is_none() && filter.model.is_none() {
            let mut select = Select::new("SELECT CAST(COALESCE(SUM(n), 0) AS BIGINT) AS n FROM engine_counts");
            select.filter("project = #", Some(filter.project.unwrap_or_default())).filter("sku = #", filter.sku);
            let count = self.rows(select.order("1", 1)).await?.first().map_or(Ok(0), |row| number(row, "n"))?;
            return Ok(Count { count, is_exact: true });
        }
        let walked = self.walked(&self.walk_of_engines(&filter).await?, None, COUNTED_MAX).await?;
        Ok(Count { count: walked.places.len() as u64, is_exact: walked.rest.is_none() })
    }

    async fn walk_of_engines(&self, filter: &EngineFilter) -> Result<Walk, StoreError> {
        let EngineFilter { key, plan, model, sku, project, .. } = filter;
        let stream =
            |from, equal| Stream { from, only: "", equal, at: "created_ms", names: &["engine_key", "plan_digest"] };
        let (mut by_model, mut by_sku) = (false, false);
        let streams = if let Some(key) = key {
            vec![stream("engines", vec![("engine_key", key.to_string().into())])]
        } else if let Some(plan) = plan {
            vec![stream("engines INDEXED BY engines_plan", vec![("plan_digest", plan.to_string().into())])]
        } else if let Some(model) = model {
            by_model = true;
            let mut streams =
                vec![stream("engines INDEXED BY engines_model_name", vec![("model_name", model.clone().into())])];
            for digest in self.digests_of("engines", model).await? {
                streams.push(stream("engines INDEXED BY engines_model", vec![("model_digest", digest.into())]));
            }
            streams
        } else if let Some(sku) = sku {
            by_sku = true;
            vec![stream("engines INDEXED BY engines_sku", vec![("sku", sku.clone().into())])]
        } else {
            vec![stream("engines INDEXED BY engines_newest", Vec::new())]
        };
        let mut fits = Fits::default();
        if filter.plan.is_none() {
            let newest = "NOT EXISTS (SELECT 1 FROM engines AS n WHERE n.engine_key = e.engine_key AND \
                          (n.seq, n.created_ms, n.plan_digest) > (e.seq, e.created_ms, e.plan_digest))";
            fits.add(newest, []);
        }
        if let (Some(plan), Some(_)) = (plan, key) {
            fits.add("e.plan_digest = #", [plan.to_string().into()]);
        }
        if let Some(sku) = sku.as_ref().filter(|_| !by_sku) {
            fits.add("e.sku = #", [sku.clone().into()]);
        }
        if let Some(model) = model.as_ref().filter(|_| !by_model) {
            fits.add(model_condition("e"), model_values(model));
        }
        if let Some(project) = project {
            let own = "EXISTS (SELECT 1 FROM engine_projects AS p WHERE p.engine_key = e.engine_key AND p.project = #)";
            fits.add(own, [project.clone().into()]);
        }
        let of_engine = |conditions| {
            format!(
                "EXISTS (SELECT 1 FROM engines AS e WHERE e.engine_key = w.b AND e.plan_digest = w.c AND {conditions})"
            )
        };
        let (fits, fits_values) = fits.all(of_engine);
        Ok(Walk { streams, newest_first: true, since_ms: None, until_ms: None, fits, fits_values })
    }

    pub(super) async fn walked(&self, walk: &Walk, behind: Option<Place>, limit: usize) -> Result<Walked, StoreError> {
        let count = walk.names();
        let read = |statement| async move {
            let rows = self.rows(statement).await?;
            rows.iter().map(|row| step(row, count)).collect()
        };
        walk.go(behind, limit, read).await
    }

    /// When the oldest job of each device kind that is in one of these states was submitted.
    pub(super) async fn oldest_waiting(
        &self,
        skus: Vec<String>,
        states: &[JobState],
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut oldest: BTreeMap<String, u64> = BTreeMap::new();
        for skus in skus.chunks(KINDS_AT_ONCE) {
            let asked: Vec<(&String, JobState)> =
                skus.iter().flat_map(|sku| states.iter().map(move |state| (sku, *state))).collect();
            // A select of its own for each, because of a union in some order SQLite reads every row.
            let one = |at: usize| {
                let (sku, state) = (at * 2 + 1, at * 2 + 2);
                format!(
                    "SELECT CAST({at} AS BIGINT) AS at, COALESCE((SELECT created_ms FROM jobs INDEXED BY jobs_sku \
                     WHERE sku = ${sku} AND state = ${state} ORDER BY created_ms, id LIMIT 1), 0) AS created_ms"
                )
            };
            let sql = (0..asked.len()).map(one).collect::<Vec<_>>().join(" UNION ALL ");
            let values = asked.iter().flat_map(|(sku, state)| [sku.as_str().into(), state.name().into()]).collect();
            for row in self.rows(Statement { sql, values }).await? {
                let (at, at_ms) = (number(&row, "at")? as usize, number(&row, "created_ms")?);
                if let (Some((sku, _)), 1..) = (asked.get(at), at_ms) {
                    let known = oldest.entry((*sku).clone()).or_insert(at_ms);
                    *known = at_ms.min(*known);
                }
            }
        }
        Ok(oldest)
    }

    /// Every project that has, or had, a job.
    pub(super) async fn counted_projects(&self) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT DISTINCT project FROM job_counts WHERE project <> '' ORDER BY project";
        self.rows(plain(sql)).await?.iter().map(|row| text(row, "project")).collect()
    }
}

fn step(row: &Row, count: usize) -> Result<Step, StoreError> {
    let names = ["b", "c"][..count.min(2)].iter().map(|column| text(row, column)).collect::<Result<_, _>>()?;
    let place = Place { at_ms: number(row, "a")?, names };
    Ok(Step { place, fits: number(row, "fits")? != 0 })
}

/// A model by its name or by a prefix of its digest; hex digits sort before `g`.
fn model_condition(row: &str) -> String {
    format!("({row}.model_name = # OR (# <> '' AND {row}.model_digest >= # AND {row}.model_digest < # || 'g'))")
}

fn model_values(model: &str) -> [Value; 4] {
    std::array::from_fn(|_| model.into())
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{SqliteStore, Store as _, sql_store::SqlStore as _},
        *,
    };

    /// What SQLite says of how it reads a list's first part.
    pub(in super::super) async fn plan(tables: &Tables, walk: &Walk) -> Vec<String> {
        let Statement { sql, values } = walk.statement(None, 10);
        let rows = tables.rows(Statement { sql: format!("EXPLAIN QUERY PLAN {sql}"), values }).await.unwrap();
        rows.iter().map(|row| text(row, "detail").unwrap()).collect()
    }

    /// No row of a table is looked at but along an index or by its key.
    pub(in super::super) fn assert_along_indexes(plan: &[String], of: &str) {
        for line in plan {
            let of_table =
                ["jobs", "engines", "requests", "job_projects", "job_tags", "e", "j", "n", "o", "p", "t", "v"]
                    .iter()
                    .any(|table| {
                        [format!("SCAN {table}"), format!("SEARCH {table}")].iter().any(|way| {
                            line.strip_prefix(way.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
                        })
                    });
            assert!(!of_table || line.contains(" USING "), "{of}: {line}");
        }
    }

    #[tokio::test]
    async fn every_list_is_read_along_an_index_and_asks_for_newer_builds_along_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
        let some = |text: &str| Some(text.to_owned());
        let any = EngineFilter::default;
        for filter in [
            any(),
            EngineFilter { model: some("m.onnx"), ..any() },
            EngineFilter { sku: some("t4"), ..any() },
            EngineFilter { project: some("vision"), ..any() },
        ] {
            let plan = plan(store.tables(), &store.tables().walk_of_engines(&filter).await.unwrap()).await;
            assert_along_indexes(&plan, &format!("{filter:?}"));
            let newer = "USING COVERING INDEX engines_builds (engine_key=? AND ";
            assert!(plan.iter().any(|line| line.contains(newer)), "{filter:?}: {plan:#?}");
        }
        let any = JobFilter::default;
        for filter in [
            any(),
            JobFilter { order: JobOrder::Ended, ..any() },
            JobFilter { states: vec![JobState::Queued], order: JobOrder::Oldest, ..any() },
            JobFilter { states: vec![JobState::Failed, JobState::Cancelled], project: some("vision"), ..any() },
            JobFilter { sku: some("t4"), project: some("vision"), ..any() },
            JobFilter { model: some("m.onnx"), since_ms: Some(1), ..any() },
            JobFilter { tags: vec!["nightly".into(), "a=b".into()], project: some("vision"), ..any() },
        ] {
            let plan = plan(store.tables(), &store.tables().walk_of_jobs(&filter).await.unwrap()).await;
            assert_along_indexes(&plan, &format!("{filter:?}"));
            // Of a project's jobs on one device kind nothing else is looked at.
            let narrow = "INDEX job_projects_sku (project=? AND sku=? AND state=?)";
            let is_narrow = plan.iter().any(|line| line.contains(narrow));
            assert_eq!(is_narrow, filter.sku.is_some() && filter.project.is_some(), "{filter:?}: {plan:#?}");
        }
        store.close().await.unwrap();
    }

    /// What a statement is planned for holds for whatever is bound to it; SQLite would plan those that read tables with
    /// partial indexes again for every value, a quarter of the time that lists take.
    #[tokio::test]
    async fn statements_are_planned_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
        let sql = "SELECT sqlite_compileoption_used('ENABLE_QPSG') AS n".to_owned();
        let rows = store.tables().rows(Statement { sql, values: Vec::new() }).await.unwrap();
        assert_eq!(number(&rows[0], "n").unwrap(), 1, "SQLite is built with the flags of .cargo/config.toml");
        store.close().await.unwrap();
    }
}
