//! A store over any SQL database: tables that are read, and one writer that everything to be written is sent to.

use super::{
    Answer, AuditFilter, BuildName, Count, Coverage, CoverageFilter, CoveredModels, DeclarationFilter, EngineFilter,
    EventFilter, EventListFilter, Heap, HistoryFilter, JobFilter, LATEST_MAX, ListedRequest, Part, PastBuild,
    PastPlace, PinFilter, ReportFilter, RequestFilter, Store, StoreError,
    lists::NAMED_AT_ONCE,
    sql::{Select, Statement},
    tables::{Row, Tables, audit_line, number, plain, report, share, text, token},
};
use crate::core::{
    Agent, AuditLine, CacheRecord, Change, DeclarationId, DeclarationRecord, Engine, Event, Held, Job, JobId, JobState,
    PauseRecord, PinId, PinRecord, PluginRecord, ProjectRecord, Report, RequestRecord, ShareRecord, Snapshot, Stored,
    Tenure, TokenRecord,
};
use futures::future::BoxFuture;
use planforge_blobs::Note;
use planforge_retention::Build;
use planforge_types::{Digest, EngineKey};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::{mpsc, oneshot};

/// Reports with all that is kept of them.
const REPORTS: &str = "SELECT digest, plan_digest, engine_key, job, sku, eval_digest, created_ms, document, measure, artifacts \
                       FROM reports";
/// Commits that may wait for a writer.
pub(super) const WRITER_QUEUE: usize = 1_024;
/// Commits that join one transaction; bounds how much is lost time when it fails.
pub(super) const GROUP_MAX: usize = 512;

/// What the writer is asked for.
#[derive(Debug)]
pub enum Write {
    Commit {
        /// `None`: the one in which this process leads.
        epoch: Option<u64>,
        changes: Vec<Change>,
        done: oneshot::Sender<Result<(), StoreError>>,
    },
    Acquire {
        owner: String,
        now_ms: u64,
        done: oneshot::Sender<Result<u64, StoreError>>,
    },
    /// Whether commits are taken: writes without changing anything.
    Check {
        epoch: u64,
        done: oneshot::Sender<Result<(), StoreError>>,
    },
    /// Waits until no commit is under way of which nobody knows how it went.
    Settle {
        done: oneshot::Sender<Result<(), StoreError>>,
    },
    Close {
        done: oneshot::Sender<()>,
    },
}

/// One commit that waits for the transaction it joined.
pub(super) struct Waiting {
    /// `None`: the one that leads here.
    pub epoch: Option<u64>,
    pub changes: Vec<Change>,
    pub done: oneshot::Sender<Result<(), StoreError>>,
}

/// Of the commits that wait in one transaction: the changes of those of the leader that leads, and who is to hear how it
/// went. The others are refused at once.
pub(super) fn of_epoch(
    group: Vec<Waiting>,
    current: u64,
) -> (Vec<Change>, Vec<oneshot::Sender<Result<(), StoreError>>>) {
    let (mut changes, mut acknowledged) = (Vec::new(), Vec::with_capacity(group.len()));
    for waiting in group {
        match waiting.epoch {
            Some(mine) if mine != current => {
                let _ = waiting.done.send(Err(StoreError::Fenced { mine, current }));
            }
            _ => {
                changes.extend(waiting.changes);
                acknowledged.push(waiting.done);
            }
        }
    }
    (changes, acknowledged)
}

/// What a store over an SQL database is made of.
pub trait SqlStore: Send + Sync + 'static {
    fn tables(&self) -> &Tables;

    fn writer(&self) -> &mpsc::Sender<Write>;

    /// As [`Store::superseded`].
    fn superseded(&self, _epoch: u64) -> BoxFuture<'_, StoreError> {
        Box::pin(std::future::pending())
    }
}

impl<S: SqlStore> Store for S {
    fn acquire<'a>(&'a self, owner: &'a str, now_ms: u64) -> Answer<'a, u64> {
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            let write = Write::Acquire { owner: owner.to_owned(), now_ms, done };
            self.writer().send(write).await.map_err(|_| StoreError::Closed)?;
            answer.await.map_err(|_| StoreError::Closed)?
        })
    }

    fn superseded(&self, epoch: u64) -> BoxFuture<'_, StoreError> {
        SqlStore::superseded(self, epoch)
    }

    fn load(&self) -> Answer<'_, Snapshot> {
        Box::pin(async move {
            let (done, settled) = oneshot::channel();
            self.writer().send(Write::Settle { done }).await.map_err(|_| StoreError::Closed)?;
            settled.await.map_err(|_| StoreError::Closed)??;
            let jobs = self.tables().docs_in_pieces("a job", "SELECT doc FROM jobs WHERE ended_ms = 0").await?;
            let latest = format!(
                "SELECT doc FROM jobs INDEXED BY jobs_ended WHERE ended_ms <> 0 ORDER BY ended_ms DESC, id DESC LIMIT \
                 {LATEST_MAX}"
            );
            let mut latest: Vec<Job> = self.tables().docs_in_pieces("a job", &latest).await?;
            latest.reverse();
            let agents: Vec<Agent> = self.tables().docs("an agent", plain("SELECT doc FROM agents")).await?;
            let caches: Vec<CacheRecord> =
                self.tables().docs("a timing cache", plain("SELECT doc FROM caches")).await?;
            let projects: Vec<ProjectRecord> =
                self.tables().docs("a project", plain("SELECT doc FROM projects")).await?;
            let plugins: Vec<PluginRecord> = self.tables().docs("a plugin", plain("SELECT doc FROM plugins")).await?;
            let pauses: Vec<PauseRecord> =
                self.tables().docs("a pause", plain("SELECT doc FROM pauses ORDER BY id")).await?;
            let last = self.tables().rows(plain("SELECT COALESCE(MAX(seq), 0) AS last FROM events")).await?;
            let last_event = last.first().map_or(Ok(0), |row| number(row, "last"))?;
            Ok(Snapshot { jobs, latest, agents, caches, plugins, pauses, projects, last_event })
        })
    }

    fn commit(&self, epoch: u64, changes: Vec<Change>) -> Answer<'_, ()> {
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            self.writer()
                .send(Write::Commit { epoch: Some(epoch), changes, done })
                .await
                .map_err(|_| StoreError::Closed)?;
            answer.await.map_err(|_| StoreError::Closed)?
        })
    }

    fn check(&self, epoch: u64) -> Answer<'_, ()> {
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            self.writer().send(Write::Check { epoch, done }).await.map_err(|_| StoreError::Closed)?;
            answer.await.map_err(|_| StoreError::Closed)?
        })
    }

    fn job<'a>(&'a self, id: &'a JobId) -> Answer<'a, Option<Job>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM jobs");
            let statement = select.filter("id = #", Some(id.as_str())).order("id", 1);
            self.tables().doc("a job", statement).await
        })
    }

    fn job_ids<'a>(&'a self, prefix: &'a str, project: Option<&'a str>, limit: usize) -> Answer<'a, Vec<JobId>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT id FROM jobs");
            // '~' sorts behind every character of an id.
            select
                .filter("(id >= # AND id < # || '~')", Some(prefix))
                .filter("EXISTS (SELECT 1 FROM job_projects AS p INDEXED BY job_projects_job WHERE p.job = jobs.id AND p.project = #)", project);
            let statement = select.order("id", limit);
            self.tables().rows(statement).await?.iter().map(|row| text(row, "id").map(JobId::from)).collect()
        })
    }

    fn stored(&self, keys: Vec<EngineKey>) -> Answer<'_, BTreeMap<EngineKey, Stored>> {
        Box::pin(self.tables().stored_under(keys))
    }

    fn part_of_jobs(&self, filter: JobFilter) -> Answer<'_, Part<Job, (u64, JobId)>> {
        Box::pin(self.tables().part_of_jobs(filter))
    }

    fn count_jobs(&self, filter: JobFilter) -> Answer<'_, Count> {
        Box::pin(self.tables().count_of_jobs(filter))
    }

    fn job_counts<'a>(&'a self, project: Option<&'a str>) -> Answer<'a, BTreeMap<(String, JobState), u64>> {
        Box::pin(self.tables().job_counts(project))
    }

    fn oldest_waiting<'a>(&'a self, skus: Vec<String>, states: &'a [JobState]) -> Answer<'a, BTreeMap<String, u64>> {
        Box::pin(self.tables().oldest_waiting(skus, states))
    }

    fn events(&self, filter: EventFilter) -> Answer<'_, Vec<Event>> {
        Box::pin(self.tables().events_after(filter))
    }

    fn part_of_events(&self, filter: EventListFilter) -> Answer<'_, Part<Event, u64>> {
        Box::pin(self.tables().part_of_events(filter))
    }

    fn count_events(&self, filter: EventListFilter) -> Answer<'_, Count> {
        Box::pin(self.tables().count_of_events(filter))
    }

    fn part_of_requests(&self, filter: RequestFilter) -> Answer<'_, Part<ListedRequest, (u64, String)>> {
        Box::pin(self.tables().part_of_requests(filter))
    }

    fn count_requests(&self, filter: RequestFilter) -> Answer<'_, Count> {
        Box::pin(self.tables().count_of_requests(filter))
    }

    fn part_of_engines(&self, filter: EngineFilter) -> Answer<'_, Part<Engine, (u64, EngineKey, Digest)>> {
        Box::pin(self.tables().part_of_engines(filter))
    }

    fn count_engines(&self, filter: EngineFilter) -> Answer<'_, Count> {
        Box::pin(self.tables().count_of_engines(filter))
    }

    fn covered_models(&self, filter: CoverageFilter, from: u64, limit: usize) -> Answer<'_, CoveredModels> {
        Box::pin(async move { self.tables().covered_models(&filter, from, limit).await })
    }

    fn covered_among(&self, filter: CoverageFilter, names: Vec<String>) -> Answer<'_, BTreeSet<String>> {
        Box::pin(async move { self.tables().covered_among(&filter, &names).await })
    }

    fn model_names(&self, project: Option<String>, digests: Vec<String>) -> Answer<'_, BTreeMap<String, String>> {
        Box::pin(async move { self.tables().model_names(project.as_deref(), &digests).await })
    }

    fn coverage(&self, filter: CoverageFilter, models: Vec<String>, apart: bool) -> Answer<'_, Coverage> {
        Box::pin(async move { self.tables().coverage(&filter, &models, apart).await })
    }

    fn history(&self, filter: HistoryFilter) -> Answer<'_, Part<PastBuild, PastPlace>> {
        Box::pin(self.tables().part_of_history(filter))
    }

    fn reports(&self, filter: ReportFilter) -> Answer<'_, Vec<Report>> {
        Box::pin(async move {
            let mut select = Select::new(REPORTS);
            select
                .filter("digest = #", filter.digest.map(|digest| digest.to_string()))
                .filter("plan_digest = #", filter.plan.map(|plan| plan.to_string()))
                .filter("engine_key = #", filter.key.map(|key| key.to_string()))
                .filter("job = #", filter.job.map(String::from))
                .filter("sku = #", filter.sku)
                .behind(
                    "created_ms, digest",
                    filter.behind.map(|(at_ms, digest)| vec![at_ms.into(), digest.to_string().into()]),
                );
            self.tables().page(&select, "created_ms DESC, digest DESC", filter.limit, report).await
        })
    }

    fn newest_reports(&self, jobs: Vec<JobId>) -> Answer<'_, Vec<Report>> {
        Box::pin(async move {
            let mut found = Vec::new();
            for jobs in jobs.chunks(NAMED_AT_ONCE) {
                let mut select = Select::new(REPORTS);
                select.one_of("job", jobs.iter().map(|job| job.as_str().to_owned()));
                select.always(
                    "NOT EXISTS (SELECT 1 FROM reports AS r WHERE r.job = reports.job AND (r.created_ms, r.digest) > \
                     (reports.created_ms, reports.digest))",
                );
                found.extend(self.tables().page(&select, "job", NAMED_AT_ONCE, report).await?);
            }
            Ok(found)
        })
    }

    fn request<'a>(&'a self, project: &'a str, idempotency_key: &'a str) -> Answer<'a, Option<RequestRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM requests");
            select.filter("project = #", Some(project)).filter("idempotency_key = #", Some(idempotency_key));
            // Repeats the condition of the partial index, which is used only then.
            select.always("idempotency_key <> ''");
            // Taken for one that is not there, the request would be made twice.
            self.tables().doc("a request", select.order("id", 1)).await
        })
    }

    fn request_of_id<'a>(&'a self, id: &'a str) -> Answer<'a, Option<RequestRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM requests");
            self.tables().doc("a request", select.filter("id = #", Some(id)).order("id", 1)).await
        })
    }

    fn tokens(&self) -> Answer<'_, Vec<TokenRecord>> {
        Box::pin(async move {
            let rows =
                self.tables().rows(plain("SELECT doc, revoked, last_used_ms, agent FROM tokens ORDER BY id")).await?;
            self.tables().records(&rows, token)
        })
    }

    fn may_see_blob<'a>(&'a self, project: &'a str, digest: Digest) -> Answer<'a, bool> {
        Box::pin(async move {
            let sql = "SELECT 1 AS found FROM blob_refs AS b WHERE b.digest = $1 AND (b.project = $2 OR EXISTS \
                       (SELECT 1 FROM engine_projects AS e WHERE e.engine_key = b.engine_key AND e.project = $2)) LIMIT 1";
            let values = vec![digest.to_string().into(), project.into()];
            Ok(!self.tables().rows(Statement { sql: sql.to_owned(), values }).await?.is_empty())
        })
    }

    fn stored_bytes<'a>(&'a self, project: &'a str) -> Answer<'a, u64> {
        Box::pin(async move {
            // The condition is the one of the index.
            let sql = "SELECT CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) AS bytes FROM blob_refs WHERE project = $1 AND project <> ''";
            let statement = Statement { sql: sql.to_owned(), values: vec![project.into()] };
            self.tables().rows(statement).await?.first().map_or(Ok(0), |row| number(row, "bytes"))
        })
    }

    fn project_names(&self) -> Answer<'_, Vec<String>> {
        Box::pin(self.tables().counted_projects())
    }

    fn audit(&self, filter: AuditFilter) -> Answer<'_, Vec<AuditLine>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT seq, doc FROM audit");
            select
                .filter("seq < #", filter.before)
                .filter("at_ms >= #", filter.since_ms)
                .filter("at_ms <= #", filter.until_ms)
                .filter("project = #", filter.project)
                .filter("actor = #", filter.actor)
                // '~' sorts behind every character of what was done.
                .filter("(what >= # AND what < # || '~')", filter.what);
            self.tables().page(&select, "seq DESC", filter.limit, audit_line).await
        })
    }

    fn heaps(&self) -> Answer<'_, Vec<Heap>> {
        Box::pin(async move {
            let sql = "SELECT b.project, CASE b.tenure WHEN 3 THEN 'logs' WHEN 2 THEN 'uploads' WHEN 1 THEN 'inputs' ELSE \
                       CASE WHEN EXISTS (SELECT 1 FROM engines AS e WHERE e.plan_digest = b.digest) THEN 'plans' \
                       WHEN EXISTS (SELECT 1 FROM reports AS r WHERE r.digest = b.digest) THEN 'reports' \
                       ELSE 'models and cards' END END AS kind, COUNT(*) AS blobs, CAST(SUM(b.size_bytes) AS BIGINT) AS bytes \
                       FROM blob_refs AS b WHERE b.project <> '' GROUP BY 1, 2 ORDER BY 1, 2";
            let heap = |row: &Row| {
                Ok(Heap {
                    project: text(row, "project")?,
                    kind: text(row, "kind")?,
                    blobs: number(row, "blobs")?,
                    bytes: number(row, "bytes")?,
                })
            };
            self.tables().rows(plain(sql)).await?.iter().map(heap).collect()
        })
    }

    fn pins(&self, filter: PinFilter) -> Answer<'_, Vec<PinRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM pins");
            select
                .filter("expires_ms > #", Some(filter.now_ms))
                .filter("project = #", filter.project)
                .filter("owner = #", filter.owner)
                .one_of("plan_digest", filter.plans.iter().map(Digest::to_string))
                .behind(
                    "created_ms, plan_digest, project, owner",
                    filter.behind.map(|(at_ms, PinId { plan, project, owner })| {
                        vec![at_ms.into(), plan.to_string().into(), project.into(), owner.into()]
                    }),
                );
            let order = "created_ms DESC, plan_digest DESC, project DESC, owner DESC";
            self.tables().docs("a pin", select.order(order, filter.limit)).await
        })
    }

    fn shares<'a>(&'a self, project: Option<&'a str>) -> Answer<'a, Vec<ShareRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc, opened_ms FROM shares");
            select.filter("project = #", project);
            self.tables().rows(select.order("created_ms DESC, id DESC", usize::MAX)).await?.iter().map(share).collect()
        })
    }

    fn blob_notes(&self, kind: &'static str) -> Answer<'_, Vec<Note>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT name, text, at_ms FROM blob_notes");
            let note = |row: &Row| {
                Ok(Note { kind, name: text(row, "name")?, text: text(row, "text")?, at_ms: number(row, "at_ms")? })
            };
            let statement = select.filter("kind = #", Some(kind)).order("name", usize::MAX);
            self.tables().rows(statement).await?.iter().map(note).collect()
        })
    }

    fn commit_notes(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            self.writer().send(Write::Commit { epoch: None, changes, done }).await.map_err(|_| StoreError::Closed)?;
            answer.await.map_err(|_| StoreError::Closed)?
        })
    }

    fn share_of(&self, secret_hash: Digest) -> Answer<'_, Option<ShareRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc, opened_ms FROM shares");
            select.filter("secret_hash = #", Some(secret_hash.to_string()));
            self.tables().rows(select.order("id", 1)).await?.first().map(share).transpose()
        })
    }

    fn pin_count<'a>(&'a self, project: &'a str, now_ms: u64) -> Answer<'a, u64> {
        Box::pin(async move {
            let sql = "SELECT COUNT(*) AS pins FROM pins WHERE project = $1 AND expires_ms > $2";
            let statement = Statement { sql: sql.to_owned(), values: vec![project.into(), now_ms.into()] };
            self.tables().rows(statement).await?.first().map_or(Ok(0), |row| number(row, "pins"))
        })
    }

    fn is_pinned(&self, plan: Digest, now_ms: u64) -> Answer<'_, bool> {
        Box::pin(async move {
            let sql = "SELECT 1 AS found FROM pins WHERE plan_digest = $1 AND expires_ms > $2 LIMIT 1";
            let values = vec![plan.to_string().into(), now_ms.into()];
            Ok(!self.tables().rows(Statement { sql: sql.to_owned(), values }).await?.is_empty())
        })
    }

    fn declarations(&self, filter: DeclarationFilter) -> Answer<'_, Vec<DeclarationRecord>> {
        Box::pin(async move {
            let mut select = Select::new("SELECT doc FROM declarations");
            select.filter("project = #", filter.project).filter("name = #", filter.name).behind(
                "declared_ms, project, name",
                filter.behind.map(|(at_ms, id)| vec![at_ms.into(), id.project.into(), id.name.into()]),
            );
            let order = "declared_ms DESC, project DESC, name DESC";
            self.tables().docs("a declaration", select.order(order, filter.limit)).await
        })
    }

    fn other_declarations<'a>(&'a self, id: &'a DeclarationId) -> Answer<'a, u64> {
        Box::pin(async move {
            let sql = "SELECT COUNT(*) AS others FROM declarations WHERE project = $1 AND name <> $2";
            let values = vec![id.project.as_str().into(), id.name.as_str().into()];
            let statement = Statement { sql: sql.to_owned(), values };
            self.tables().rows(statement).await?.first().map_or(Ok(0), |row| number(row, "others"))
        })
    }

    fn builds_unused_since(
        &self,
        before_ms: u64,
        behind: Option<(u64, BuildName)>,
        limit: usize,
        now_ms: u64,
    ) -> Answer<'_, Vec<Build<BuildName>>> {
        Box::pin(self.tables().builds_unused_since(before_ms, behind, limit, now_ms))
    }

    fn plan_bytes(&self) -> Answer<'_, u64> {
        Box::pin(self.tables().plan_bytes())
    }

    fn plan_bytes_of<'a>(&'a self, project: &'a str) -> Answer<'a, u64> {
        Box::pin(self.tables().plan_bytes_of(project))
    }

    fn jobs_ended_before(&self, before_ms: u64, limit: usize) -> Answer<'_, Vec<Job>> {
        Box::pin(self.tables().jobs_ended_before(before_ms, limit))
    }

    fn count_jobs_ended_before(&self, before_ms: u64) -> Answer<'_, u64> {
        Box::pin(self.tables().count_jobs_ended_before(before_ms))
    }

    fn requests_without_jobs(&self, before_ms: u64, limit: usize) -> Answer<'_, Vec<String>> {
        Box::pin(self.tables().requests_without_jobs(before_ms, limit))
    }

    fn unnamed_blobs(&self, digests: Vec<Digest>) -> Answer<'_, Vec<Digest>> {
        Box::pin(self.tables().unnamed_blobs(digests))
    }

    fn held_since_before(&self, tenure: Tenure, before_ms: u64, limit: usize) -> Answer<'_, Vec<Held>> {
        Box::pin(self.tables().held_since_before(tenure, before_ms, limit))
    }

    fn count_held_since_before(&self, tenure: Tenure, before_ms: u64) -> Answer<'_, u64> {
        Box::pin(self.tables().count_held_since_before(tenure, before_ms))
    }

    fn events_before(&self, before_ms: u64, limit: usize) -> Answer<'_, Option<(u64, u64)>> {
        Box::pin(self.tables().events_before(before_ms, limit))
    }

    fn older_reports(
        &self,
        before_ms: u64,
        behind: Option<(u64, Digest)>,
        limit: usize,
    ) -> Answer<'_, Vec<(u64, Digest)>> {
        Box::pin(self.tables().older_reports(before_ms, behind, limit))
    }

    fn unreadable_rows(&self) -> u64 {
        self.tables().unreadable_rows()
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let (done, closed) = oneshot::channel();
            if self.writer().send(Write::Close { done }).await.is_ok() {
                let _ = closed.await;
            }
            self.tables().close().await;
            Ok(())
        })
    }
}
