//! How fast a model's builds were, one after the other: read along an index of a table that is kept for it (migration 0022),
//! without a document.

use super::{
    Part, StoreError,
    sql::{Select, Statement},
    tables::{Row, Tables, number, real_or_none, text, text_or_none},
};
use std::borrow::Cow;

/// Models of one name that are looked at, where a project calls them so and others had their engines built.
const NAMED_MAX: usize = 16;

/// Where a build stands in a history: its time, key and plan.
pub type PastPlace = (u64, String, String);

/// Builds of which model; newest first. `None` means any.
#[derive(Clone, Debug, Default)]
pub struct HistoryFilter {
    /// Name, or prefix of the digest.
    pub model: String,
    pub sku: Option<String>,
    pub project: Option<String>,
    /// The name is what the project's own jobs call the model; what another project that had it built calls it does not
    /// count.
    pub own_names: bool,
    /// Only what stands behind the build of this place: the rest of a history.
    pub behind: Option<PastPlace>,
    pub limit: usize,
}

/// A build, and how fast it was.
#[derive(Clone, Debug, PartialEq)]
pub struct PastBuild {
    /// As the project that had it built calls it.
    pub model: String,
    pub model_digest: String,
    pub sku: String,
    /// That had it built.
    pub project: String,
    /// That built it.
    pub job: String,
    pub key: String,
    pub plan: String,
    pub created_ms: u64,
    pub spec_json: String,
    pub toolchain_json: String,
    pub median_ms: f64,
    /// Every window that counts was.
    pub disturbed: bool,
}

impl PastBuild {
    pub fn place(&self) -> PastPlace {
        (self.created_ms, self.key.clone(), self.plan.clone())
    }

    fn order(&self) -> (u64, &str, &str) {
        (self.created_ms, &self.key, &self.plan)
    }
}

/// The newest of builds that were found by several names, each once.
pub(super) fn part_of(mut found: Vec<PastBuild>, limit: usize) -> Part<PastBuild, PastPlace> {
    found.sort_by(|one, other| other.order().cmp(&one.order()));
    found.dedup_by(|one, other| one.order() == other.order());
    let rest = match found.len() > limit {
        true => limit.checked_sub(1).and_then(|last| found.get(last)).map(PastBuild::place),
        false => None,
    };
    found.truncate(limit);
    Part { items: found, rest }
}

impl Tables {
    pub(super) async fn part_of_history(
        &self,
        filter: HistoryFilter,
    ) -> Result<Part<PastBuild, PastPlace>, StoreError> {
        let mut found = Vec::new();
        for statement in self.histories(&filter).await? {
            found.extend(match self.in_blocks(&statement).await {
                Some(builds) => builds,
                // One by one, so that a row that cannot be read hides nothing but itself.
                None => self.records(&self.rows(statement).await?, past_build)?,
            });
        }
        Ok(part_of(found, filter.limit))
    }

    /// The builds of a statement as one JSON document, which the database writes: rows that are handed over one by one cost
    /// several times what is in them. `None` where anything of it cannot be read.
    async fn in_blocks(&self, statement: &Statement) -> Option<Vec<PastBuild>> {
        let sql =
            format!("SELECT CAST(json_group_array({BUILD_AS_JSON}) AS TEXT) AS builds FROM ({}) AS b", statement.sql);
        let rows = self.rows(Statement { sql, values: statement.values.clone() }).await.ok()?;
        // Of no rows PostgreSQL makes nothing rather than an empty list.
        let Some(builds) = text_or_none(rows.first()?, "builds").ok()? else { return Some(Vec::new()) };
        let builds: Vec<BuildAsJson<'_>> = serde_json::from_str(&builds).ok()?;
        builds.into_iter().map(PastBuild::of_json).collect()
    }

    /// A statement for the model's name, and one for each digest that it may be.
    async fn histories(&self, filter: &HistoryFilter) -> Result<Vec<Statement>, StoreError> {
        let mut digests = self.digests_of("history_builds", &filter.model).await?;
        if let Some(project) = filter.project.as_ref().filter(|_| filter.own_names) {
            let mut select = Select::new("SELECT model_digest FROM project_models");
            select.filter("project = #", Some(project.as_str())).filter("model_name = #", Some(filter.model.as_str()));
            for row in self.rows(select.order("model_digest", NAMED_MAX)).await? {
                digests.push(text(&row, "model_digest")?);
            }
        }
        let mut statements = vec![of_builds(filter, "model_name = #", &filter.model, filter.own_names)];
        statements.extend(digests.iter().map(|digest| of_builds(filter, "model_digest = #", digest, false)));
        Ok(statements)
    }
}

/// The newest builds of a name or a digest. `built_by_it`: by the project alone, for only its own names count.
fn of_builds(filter: &HistoryFilter, model: &str, value: &str, built_by_it: bool) -> Statement {
    let mut select = Select::new(
        "SELECT model_name, model_digest, sku, project, job, engine_key, plan_digest, created_ms, spec, toolchain, \
         median_ms, disturbed FROM history_builds AS h",
    );
    select.filter(model, Some(value)).filter("sku = #", filter.sku.as_deref());
    let sees = match built_by_it {
        true => "project = #",
        false => {
            "(project = # OR EXISTS (SELECT 1 FROM engine_projects AS p WHERE p.engine_key = h.engine_key \
             AND p.project = #))"
        }
    };
    select.filter(sees, filter.project.as_deref());
    let behind = filter.behind.clone();
    select.behind(
        "created_ms, engine_key, plan_digest",
        behind.map(|(at_ms, key, plan)| vec![at_ms.into(), key.into(), plan.into()]),
    );
    // One more than asked for, which tells that there is a rest.
    select.order("created_ms DESC, engine_key DESC, plan_digest DESC", filter.limit.saturating_add(1))
}

/// A build as the database writes it; the median in as many digits as tell it from every other.
const BUILD_AS_JSON: &str = "json_array(model_name, model_digest, sku, project, job, engine_key, plan_digest, created_ms, \
                             spec, toolchain, printf('%!.17g', median_ms), disturbed)";

/// In the order of [`BUILD_AS_JSON`].
type BuildAsJson<'a> =
    (String, String, String, String, String, String, String, u64, Cow<'a, str>, Cow<'a, str>, Cow<'a, str>, i64);

impl PastBuild {
    fn of_json(build: BuildAsJson<'_>) -> Option<Self> {
        let (model, model_digest, sku, project, job, key, plan, created_ms, spec, toolchain, median_ms, disturbed) =
            build;
        Some(Self {
            model,
            model_digest,
            sku,
            project,
            job,
            key,
            plan,
            created_ms,
            spec_json: spec.into_owned(),
            toolchain_json: toolchain.into_owned(),
            median_ms: median_ms.parse().ok()?,
            disturbed: disturbed != 0,
        })
    }
}

fn past_build(row: &Row) -> Result<PastBuild, StoreError> {
    Ok(PastBuild {
        model: text(row, "model_name")?,
        model_digest: text(row, "model_digest")?,
        sku: text(row, "sku")?,
        project: text(row, "project")?,
        job: text(row, "job")?,
        key: text(row, "engine_key")?,
        plan: text(row, "plan_digest")?,
        created_ms: number(row, "created_ms")?,
        spec_json: text(row, "spec")?,
        toolchain_json: text(row, "toolchain")?,
        median_ms: real_or_none(row, "median_ms")?.unwrap_or_default(),
        disturbed: number(row, "disturbed")? != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{SqliteStore, Store as _, sql_store::SqlStore as _};

    #[tokio::test]
    async fn a_history_is_read_along_an_index_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
        let any = || HistoryFilter { model: "0123abcd".into(), limit: 10, ..HistoryFilter::default() };
        let project = || Some("vision".to_owned());
        for filter in [
            any(),
            HistoryFilter { sku: Some("t4".into()), behind: Some((7, "aa".into(), "bb".into())), ..any() },
            HistoryFilter { project: project(), ..any() },
            HistoryFilter { project: project(), own_names: true, ..any() },
        ] {
            let mut statements = store.tables().histories(&filter).await.unwrap();
            statements.push(of_builds(&filter, "model_digest = #", "0123", false));
            for Statement { sql, values } in statements {
                let explain = Statement { sql: format!("EXPLAIN QUERY PLAN {sql}"), values };
                let rows = store.tables().rows(explain).await.unwrap();
                let plan: Vec<String> = rows.iter().map(|row| text(row, "detail").unwrap()).collect();
                let is_along = |line: &String| line.starts_with("SEARCH ") && line.contains(" USING ");
                assert!(plan.iter().all(|line| is_along(line) || line.starts_with("CORRELATED ")), "{sql}: {plan:#?}");
            }
        }
        store.close().await.unwrap();
    }
}
