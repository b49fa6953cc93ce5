//! What may go, and taking it away: rows first, in transactions; bytes that no row names any more are swept later, from
//! the blob store itself (`farm/gc.rs`). So whatever a crash leaves behind is bytes without a name, which the next sweep
//! finds.

use super::{
    StoreError,
    sql::{Select, Statement, Value},
    tables::{Row, Tables, number, plain, text},
};
use crate::core::{Held, Job, Model, Tenure};
use planforge_retention::Build;
use planforge_types::{Digest, EngineKey};
use std::collections::BTreeSet;

/// A build as the store names it.
pub type BuildName = (EngineKey, Digest);

/// Digests of one statement.
const DIGESTS_AT_ONCE: usize = 256;
/// Bytes of the plan of an engine `e`.
const PLAN_BYTES: &str = "CAST(json_extract(e.doc, '$.plan.size_bytes') AS BIGINT)";

fn parsed<T: std::str::FromStr>(what: &'static str, text: &str) -> Result<T, StoreError>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| StoreError::Corrupt { what, detail: error.to_string() })
}

impl Tables {
    /// Builds last used before `before_ms`, those first that were not used for longest, behind a place of this list.
    pub(super) async fn builds_unused_since(
        &self,
        before_ms: u64,
        behind: Option<(u64, BuildName)>,
        limit: usize,
        now_ms: u64,
    ) -> Result<Vec<Build<BuildName>>, StoreError> {
        let mut values: Vec<Value> = vec![before_ms.into(), now_ms.into()];
        let pinned = "EXISTS (SELECT 1 FROM pins AS p WHERE p.plan_digest = e.plan_digest AND p.expires_ms > $2)";
        let rest = match behind {
            Some((last_ms, (key, plan))) => {
                values.extend([last_ms.into(), key.to_string().into(), plan.to_string().into()]);
                "AND (last_ms, engine_key, plan_digest) > ($3, $4, $5)"
            }
            None => "",
        };
        values.push((limit as u64).into());
        let sql = format!(
            "SELECT engine_key, plan_digest, created_ms, last_ms, {PLAN_BYTES} AS bytes, {pinned} AS pinned, \
             COALESCE((SELECT MIN(n.created_ms) FROM engines AS n WHERE n.engine_key = e.engine_key AND \
             (n.seq, n.created_ms, n.plan_digest) > (e.seq, e.created_ms, e.plan_digest)), 0) AS superseded_ms, \
             COALESCE((SELECT CASE WHEN COUNT(*) = 1 THEN MIN(project) END FROM engine_projects AS p \
             WHERE p.engine_key = e.engine_key), '') AS project \
             FROM engines AS e INDEXED BY engines_last WHERE last_ms < $1 {rest} \
             ORDER BY last_ms, engine_key, plan_digest LIMIT ${}",
            values.len()
        );
        let old = |row: &Row| {
            Ok(Build {
                name: (
                    parsed("an engine", &text(row, "engine_key")?)?,
                    parsed("an engine", &text(row, "plan_digest")?)?,
                ),
                bytes: number(row, "bytes")?,
                built_ms: number(row, "created_ms")?,
                used_ms: number(row, "last_ms")?,
                superseded_ms: Some(number(row, "superseded_ms")?).filter(|at_ms| *at_ms > 0),
                project: Some(text(row, "project")?).filter(|project| !project.is_empty()),
                is_pinned: number(row, "pinned")? != 0,
            })
        };
        self.rows(Statement { sql, values }).await?.iter().map(old).collect()
    }

    /// Bytes of all plans.
    pub(super) async fn plan_bytes(&self) -> Result<u64, StoreError> {
        let sql = format!("SELECT CAST(COALESCE(SUM({PLAN_BYTES}), 0) AS BIGINT) AS bytes FROM engines AS e");
        self.rows(plain(&sql)).await?.first().map_or(Ok(0), |row| number(row, "bytes"))
    }

    /// Bytes of the plans of engines that no other project may see.
    pub(super) async fn plan_bytes_of(&self, project: &str) -> Result<u64, StoreError> {
        let sql = format!(
            "SELECT CAST(COALESCE(SUM({PLAN_BYTES}), 0) AS BIGINT) AS bytes \
                   FROM engine_projects AS p INDEXED BY engine_projects_project \
                   JOIN engines AS e ON e.engine_key = p.engine_key WHERE p.project = $1 AND NOT EXISTS \
                   (SELECT 1 FROM engine_projects AS o WHERE o.engine_key = p.engine_key AND o.project <> p.project)"
        );
        self.rows(statement(&sql, vec![project.into()])).await?.first().map_or(Ok(0), |row| number(row, "bytes"))
    }

    /// Jobs that ended before, the first that ended first.
    pub(super) async fn jobs_ended_before(&self, before_ms: u64, limit: usize) -> Result<Vec<Job>, StoreError> {
        let mut select = Select::new("SELECT doc FROM jobs INDEXED BY jobs_ended");
        select.always("ended_ms <> 0").filter("ended_ms < #", Some(before_ms));
        self.docs("a job", select.order("ended_ms, id", limit)).await
    }

    pub(super) async fn count_jobs_ended_before(&self, before_ms: u64) -> Result<u64, StoreError> {
        let sql = "SELECT COUNT(*) AS n FROM jobs INDEXED BY jobs_ended WHERE ended_ms <> 0 AND ended_ms < $1";
        let statement = Statement { sql: sql.to_owned(), values: vec![before_ms.into()] };
        self.rows(statement).await?.first().map_or(Ok(0), |row| number(row, "n"))
    }

    /// Requests submitted before, of which no job is kept.
    pub(super) async fn requests_without_jobs(&self, before_ms: u64, limit: usize) -> Result<Vec<String>, StoreError> {
        let mut select = Select::new("SELECT id FROM requests AS r INDEXED BY requests_created");
        select
            .filter("created_ms < #", Some(before_ms))
            .always("NOT EXISTS (SELECT 1 FROM json_each(r.doc, '$.jobs') AS n JOIN jobs AS j ON j.id = n.value)");
        let rows = self.rows(select.order("created_ms, id", limit)).await?;
        rows.iter().map(|row| text(row, "id")).collect()
    }

    pub(super) async fn held_since_before(
        &self,
        tenure: Tenure,
        before_ms: u64,
        limit: usize,
    ) -> Result<Vec<Held>, StoreError> {
        let mut select = Select::new("SELECT digest, project FROM blob_refs INDEXED BY blob_refs_age");
        select.always("tenure <> 0").filter("tenure = #", Some(tenure as u64)).filter("since_ms < #", Some(before_ms));
        let rows = self.rows(select.order("since_ms, digest, project", limit)).await?;
        let held = |row: &Row| {
            let digest = parsed("a blob's name", &text(row, "digest")?)?;
            Ok(Held { digest, project: text(row, "project")?, tenure })
        };
        rows.iter().map(held).collect()
    }

    pub(super) async fn count_held_since_before(&self, tenure: Tenure, before_ms: u64) -> Result<u64, StoreError> {
        let sql = "SELECT COUNT(*) AS n FROM blob_refs INDEXED BY blob_refs_age \
                   WHERE tenure <> 0 AND tenure = $1 AND since_ms < $2";
        let rows = self.rows(statement(sql, vec![(tenure as u64).into(), before_ms.into()])).await?;
        rows.first().map_or(Ok(0), |row| number(row, "n"))
    }

    pub(super) async fn events_before(&self, before_ms: u64, limit: usize) -> Result<Option<(u64, u64)>, StoreError> {
        let sql = "SELECT COUNT(*) AS n, COALESCE(MAX(seq), 0) AS last FROM \
                   (SELECT seq, at_ms FROM events ORDER BY seq LIMIT $2) AS oldest \
                   WHERE at_ms < $1 AND seq < (SELECT MAX(seq) FROM events)";
        let rows = self.rows(statement(sql, vec![before_ms.into(), (limit as u64).into()])).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let found = (number(row, "n")?, number(row, "last")?);
        Ok(Some(found).filter(|(count, _)| *count > 0))
    }

    pub(super) async fn older_reports(
        &self,
        before_ms: u64,
        behind: Option<(u64, Digest)>,
        limit: usize,
    ) -> Result<Vec<(u64, Digest)>, StoreError> {
        let mut values: Vec<Value> = vec![before_ms.into(), (limit as u64).into()];
        let rest = behind.map_or("", |(at_ms, digest)| {
            values.extend([at_ms.into(), digest.to_string().into()]);
            "AND (created_ms, digest) > ($3, $4)"
        });
        let sql = format!(
            "SELECT created_ms, digest FROM reports AS r INDEXED BY reports_age WHERE created_ms < $1 {rest} \
             AND EXISTS (SELECT 1 FROM reports AS n WHERE n.plan_digest = r.plan_digest AND n.sku = r.sku \
             AND n.eval_digest = r.eval_digest AND (n.created_ms, n.digest) > (r.created_ms, r.digest)) \
             AND NOT EXISTS (SELECT 1 FROM engines AS e WHERE e.plan_digest = r.plan_digest \
             AND json_extract(e.doc, '$.job') = r.job) ORDER BY created_ms, digest LIMIT $2"
        );
        let rows = self.rows(Statement { sql, values }).await?;
        let report = |row: &Row| Ok((number(row, "created_ms")?, parsed("a report", &text(row, "digest")?)?));
        rows.iter().map(report).collect()
    }

    /// Those of the digests that no record names.
    pub(super) async fn unnamed_blobs(&self, digests: Vec<Digest>) -> Result<Vec<Digest>, StoreError> {
        let mut named = BTreeSet::new();
        for digests in digests.chunks(DIGESTS_AT_ONCE) {
            let names = || digests.iter().map(Digest::to_string);
            for (table, column) in [("blob_refs", "digest"), ("plugins", "digest")] {
                let mut select = Select::new(&format!("SELECT DISTINCT {column} AS digest FROM {table}"));
                let statement = select.one_of(column, names()).order("1", usize::MAX);
                for row in self.rows(statement).await? {
                    named.insert(parsed::<Digest>("a blob's name", &text(&row, "digest")?)?);
                }
            }
        }
        Ok(digests.into_iter().filter(|digest| !named.contains(digest)).collect())
    }
}

fn statement(sql: &str, values: Vec<Value>) -> Statement {
    Statement { sql: sql.to_owned(), values }
}

/// Bytes of a model that neither a job nor an engine is of any more, nor what was prepared, belong to nobody; `document`
/// says how it was prepared.
fn forget_model(model: &Model, document: Option<Digest>) -> impl Iterator<Item = Statement> + '_ {
    model.files.iter().map(|file| file.digest).chain(document).map(|digest| {
        statement(
            "DELETE FROM blob_refs WHERE digest = $1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE model_digest = $2) \
             AND NOT EXISTS (SELECT 1 FROM engines WHERE model_digest = $2) \
             AND NOT EXISTS (SELECT 1 FROM preparations WHERE model_digest = $2)",
            vec![digest.to_string().into(), model.digest.to_string().into()],
        )
    })
}

/// Takes an ended job away with its events, its log, and what only it named. What is of an engine stays with the engine;
/// given inputs stay, because other models' jobs may name them.
pub(super) fn forget_job(job: &Job) -> Vec<Statement> {
    let id = || Value::from(job.id.as_str());
    let mut all = vec![
        // The newest event of all stays: the next one's number follows it.
        statement("DELETE FROM events WHERE job = $1 AND seq < (SELECT MAX(seq) FROM events)", vec![id()]),
        statement(
            "DELETE FROM reports WHERE job = $1 AND NOT EXISTS \
             (SELECT 1 FROM engines AS e WHERE e.plan_digest = reports.plan_digest)",
            vec![id()],
        ),
        statement("DELETE FROM jobs WHERE id = $1 AND ended_ms <> 0", vec![id()]),
        statement("DELETE FROM preparations WHERE job = $1", vec![id()]),
    ];
    if let Some(key) = job.key {
        all.push(statement(
            "DELETE FROM refusals WHERE engine_key = $1 AND json_extract(doc, '$.job') = $2",
            vec![key.to_string().into(), id()],
        ));
    }
    let logs = job.attempts.iter().filter_map(|attempt| attempt.log);
    all.extend(logs.map(|log| {
        statement("DELETE FROM blob_refs WHERE digest = $1 AND engine_key = ''", vec![log.to_string().into()])
    }));
    if let Some(plan) = &job.plan {
        let of_plan = [Some(plan.digest), plan.card, job.report].into_iter().flatten();
        all.extend(of_plan.map(|digest| {
            statement(
                "DELETE FROM blob_refs WHERE digest = $1 AND NOT EXISTS (SELECT 1 FROM engines WHERE plan_digest = $2)",
                vec![digest.to_string().into(), plan.digest.to_string().into()],
            )
        }));
    }
    all.extend(forget_model(&job.model, job.from.as_ref().and_then(|from| from.document)));
    all.extend(job.made.iter().flat_map(|made| forget_model(&made.model, Some(made.document))));
    all
}

/// Takes a build away with its reports, and with the model where nothing else is of it. Jobs that it answered remember
/// that they were.
pub(super) fn forget_build(key: &EngineKey, plan: Digest) -> Vec<Statement> {
    let values = || vec![Value::from(key.to_string()), Value::from(plan.to_string())];
    let this = "engine_key = $1 AND plan_digest = $2";
    // The same bytes may be the plan of another key.
    let alone = "NOT EXISTS (SELECT 1 FROM engines WHERE plan_digest = $2 AND engine_key <> $1)";
    let named = [
        "SELECT digest FROM reports WHERE plan_digest = $2".to_owned(),
        "SELECT json_extract(a.value, '$.digest') FROM reports AS r, json_each(r.artifacts) AS a WHERE r.plan_digest = $2"
            .to_owned(),
        format!("SELECT json_extract(doc, '$.plan.card') FROM engines WHERE {this}"),
        "SELECT $2".to_owned(),
    ];
    let of_plan = named.iter().map(|named| format!("DELETE FROM blob_refs WHERE digest IN ({named}) AND {alone}"));
    let model = format!("(SELECT model_digest FROM engines WHERE {this})");
    let of_model = format!(
        "DELETE FROM blob_refs WHERE digest IN (SELECT json_extract(f.value, '$.digest') FROM engines AS e, \
         json_each(e.doc, '$.model.files') AS f WHERE e.engine_key = $1 AND e.plan_digest = $2 \
         UNION ALL SELECT json_extract(doc, '$.from.document') FROM engines WHERE {this}) \
         AND NOT EXISTS (SELECT 1 FROM jobs WHERE model_digest = {model}) \
         AND NOT EXISTS (SELECT 1 FROM preparations WHERE model_digest = {model}) \
         AND NOT EXISTS (SELECT 1 FROM engines WHERE model_digest = {model} AND NOT ({this}))"
    );
    let reports = format!("DELETE FROM reports WHERE plan_digest = $2 AND {alone}");
    let engine = format!("DELETE FROM engines WHERE {this}");
    of_plan.chain([of_model, reports, engine]).map(|sql| statement(&sql, values())).collect()
}

pub(super) fn forget_held(held: &Held, before_ms: u64) -> Statement {
    statement(
        "DELETE FROM blob_refs WHERE digest = $1 AND project = $2 AND engine_key = '' AND tenure = $3 AND since_ms < $4",
        vec![
            held.digest.to_string().into(),
            held.project.as_str().into(),
            (held.tenure as u64).into(),
            before_ms.into(),
        ],
    )
}

pub(super) fn forget_events(until: u64) -> Statement {
    statement("DELETE FROM events WHERE seq <= $1 AND seq < (SELECT MAX(seq) FROM events)", vec![until.into()])
}

/// Takes a measurement away with what it left beside it.
pub(super) fn forget_report(report: Digest) -> Vec<Statement> {
    let artifacts = "SELECT json_extract(a.value, '$.digest') FROM reports AS r, json_each(r.artifacts) AS a \
                     WHERE r.digest = $1";
    let all = [
        format!("DELETE FROM blob_refs WHERE digest = $1 OR digest IN ({artifacts})"),
        "DELETE FROM reports WHERE digest = $1".to_owned(),
    ];
    all.iter().map(|sql| statement(sql, vec![report.to_string().into()])).collect()
}

pub(super) fn forget_request(id: &str) -> Statement {
    statement("DELETE FROM requests WHERE id = $1", vec![id.into()])
}

/// An engine was fetched, answered with or measured: the newest build of its key.
pub(super) fn engine_used(key: &EngineKey, at_ms: u64) -> Statement {
    statement(
        "UPDATE engines AS e SET last_ms = $1 WHERE engine_key = $2 AND last_ms < $1 AND NOT EXISTS \
         (SELECT 1 FROM engines AS n WHERE n.engine_key = e.engine_key AND \
         (n.seq, n.created_ms, n.plan_digest) > (e.seq, e.created_ms, e.plan_digest))",
        vec![at_ms.into(), key.to_string().into()],
    )
}
