//! The statements, shaped so that another SQL database runs the same ones: `$n` placeholders, `ON CONFLICT`, integers of
//! 64 bits for times. Rows come in chunks of few sizes, or all at once as arrays (`postgres_words`), so that prepared
//! statements are used again.

use super::{history, retained};
use crate::core::{BlobHolder, Change, DeclarationId, Hold, Job, PinId};
use planforge_types::Digest;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

/// A value to bind.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Int(i64),
    Real(Option<f64>),
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// One statement with what is bound to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    pub sql: String,
    pub values: Vec<Value>,
}

/// Rows that one statement inserts; few sizes, so few statements to prepare.
const CHUNKS: [usize; 4] = [64, 16, 4, 1];

/// What is done with rows of values, which stand between the two.
#[derive(Debug)]
pub(super) struct Table {
    pub head: &'static str,
    columns: usize,
    pub tail: &'static str,
    /// More comes of a row than the row: triggers read and write other tables.
    pub moves_others: bool,
}

/// What a commit consists of, in order.
pub(super) enum Written {
    Rows(&'static Table, Vec<Vec<Value>>),
    One(Statement),
}

#[derive(Default)]
struct All(Vec<Written>);

impl All {
    fn push(&mut self, statement: Statement) {
        self.0.push(Written::One(statement));
    }

    fn extend(&mut self, statements: impl IntoIterator<Item = Statement>) {
        self.0.extend(statements.into_iter().map(Written::One));
    }
}

const JOBS: Table = Table {
    head: "INSERT INTO jobs (id, state, sku, model_name, model_digest, created_ms, ended_ms, doc) ",
    columns: 8,
    tail: " ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms, doc = excluded.doc",
    moves_others: true,
};
const JOB_PROJECTS: Table = Table {
    head: "INSERT INTO job_projects (project, created_ms, job) ",
    columns: 3,
    tail: " ON CONFLICT DO NOTHING",
    moves_others: true,
};
const JOB_TAGS: Table = Table {
    head: "INSERT INTO job_tags (project, tag, created_ms, job) ",
    columns: 4,
    tail: " ON CONFLICT DO NOTHING",
    moves_others: false,
};
const EVENTS: Table = Table {
    head: "INSERT INTO events (seq, at_ms, job, actor, what, state, attempt, phase, detail) ",
    columns: 9,
    tail: "",
    moves_others: false,
};
const ENGINES: Table = Table {
    head: "INSERT INTO engines (engine_key, plan_digest, sku, model_name, model_digest, created_ms, seq, doc) ",
    columns: 8,
    tail: " ON CONFLICT (engine_key, plan_digest) DO UPDATE SET created_ms = excluded.created_ms, \
               seq = excluded.seq, doc = excluded.doc",
    moves_others: true,
};
const ENGINE_PROJECTS: Table = Table {
    head: "INSERT INTO engine_projects (engine_key, project) ",
    columns: 2,
    tail: " ON CONFLICT DO NOTHING",
    moves_others: true,
};
const BLOB_REFS: Table = Table {
    head: "INSERT INTO blob_refs (digest, project, engine_key, size_bytes, tenure, since_ms) ",
    columns: 6,
    // The longer tenure and the later time; nothing is written where nothing is new.
    tail: " ON CONFLICT (digest, project, engine_key) DO UPDATE SET \
               tenure = CASE WHEN excluded.tenure < blob_refs.tenure THEN excluded.tenure ELSE blob_refs.tenure END, \
               since_ms = CASE WHEN excluded.since_ms > blob_refs.since_ms THEN excluded.since_ms ELSE blob_refs.since_ms END \
               WHERE blob_refs.tenure <> 0 AND (excluded.tenure < blob_refs.tenure OR excluded.since_ms > blob_refs.since_ms)",
    moves_others: false,
};
const REPORTS: Table = Table {
    head: "INSERT INTO reports (digest, plan_digest, engine_key, job, sku, eval_digest, created_ms, document, measure, \
             artifacts) ",
    columns: 10,
    tail: " ON CONFLICT (digest) DO NOTHING",
    moves_others: true,
};
const AGENTS: Table = Table {
    head: "INSERT INTO agents (id, seen_ms, doc) ",
    columns: 3,
    tail: " ON CONFLICT (id) DO UPDATE SET seen_ms = excluded.seen_ms, doc = excluded.doc",
    moves_others: false,
};
const REQUESTS: Table = Table {
    head: "INSERT INTO requests (id, project, idempotency_key, created_ms, doc) ",
    columns: 5,
    tail: "",
    moves_others: true,
};
const REFUSALS: Table = Table {
    head: "INSERT INTO refusals (engine_key, doc) ",
    columns: 2,
    tail: " ON CONFLICT (engine_key) DO UPDATE SET doc = excluded.doc",
    moves_others: false,
};
const PREPARATIONS: Table = Table {
    head: "INSERT INTO preparations (prepare_key, job, model_digest, doc) ",
    columns: 4,
    tail: " ON CONFLICT (prepare_key) DO UPDATE SET job = excluded.job, model_digest = excluded.model_digest, \
               doc = excluded.doc",
    moves_others: false,
};
const CACHES: Table = Table {
    head: "INSERT INTO caches (scope, sku, published_ms, doc) ",
    columns: 4,
    tail: " ON CONFLICT (scope) DO UPDATE SET published_ms = excluded.published_ms, doc = excluded.doc",
    moves_others: false,
};
const PLUGINS: Table = Table {
    head: "INSERT INTO plugins (digest, doc) ",
    columns: 2,
    tail: " ON CONFLICT (digest) DO UPDATE SET doc = excluded.doc",
    moves_others: false,
};
const PAUSES: Table = Table {
    head: "INSERT INTO pauses (id, doc) ",
    columns: 2,
    tail: " ON CONFLICT (id) DO UPDATE SET doc = excluded.doc",
    moves_others: false,
};
const PROJECTS: Table = Table {
    head: "INSERT INTO projects (name, doc) ",
    columns: 2,
    tail: " ON CONFLICT (name) DO UPDATE SET doc = excluded.doc",
    moves_others: false,
};
const PINS: Table = Table {
    head: "INSERT INTO pins (plan_digest, project, owner, created_ms, expires_ms, doc) ",
    columns: 6,
    tail: " ON CONFLICT (plan_digest, project, owner) DO UPDATE SET created_ms = excluded.created_ms, \
               expires_ms = excluded.expires_ms, doc = excluded.doc",
    moves_others: false,
};
const SHARES: Table = Table {
    head: "INSERT INTO shares (id, secret_hash, project, created_ms, expires_ms, doc) ",
    columns: 6,
    tail: " ON CONFLICT (id) DO NOTHING",
    moves_others: false,
};
const BLOB_NOTES: Table = Table {
    head: "INSERT INTO blob_notes (kind, name, text, at_ms) ",
    columns: 4,
    tail: " ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text, at_ms = excluded.at_ms",
    moves_others: false,
};
const DECLARATIONS: Table = Table {
    head: "INSERT INTO declarations (project, name, declared_ms, doc) ",
    columns: 4,
    tail: " ON CONFLICT (project, name) DO UPDATE SET declared_ms = excluded.declared_ms, doc = excluded.doc",
    moves_others: false,
};
const AUDIT: Table = Table {
    head: "INSERT INTO audit (at_ms, kind, project, actor, what, doc) ",
    columns: 6,
    tail: "",
    moves_others: false,
};
/// A token's document is written once; what happens to it later has columns of its own.
const TOKENS: Table = Table {
    head: "INSERT INTO tokens (id, doc) ",
    columns: 2,
    tail: " ON CONFLICT (id) DO NOTHING",
    moves_others: false,
};

const REFUSALS_GONE: Table =
    Table { head: "DELETE FROM refusals WHERE engine_key IN (", columns: 1, tail: ")", moves_others: false };

/// Every one, for tests.
#[cfg(test)]
pub(super) const TABLES: [&Table; 23] = [
    &JOBS,
    &JOB_PROJECTS,
    &JOB_TAGS,
    &EVENTS,
    &ENGINES,
    &ENGINE_PROJECTS,
    &BLOB_REFS,
    &REPORTS,
    &AGENTS,
    &REQUESTS,
    &REFUSALS,
    &PREPARATIONS,
    &CACHES,
    &PLUGINS,
    &PAUSES,
    &PROJECTS,
    &PINS,
    &SHARES,
    &BLOB_NOTES,
    &DECLARATIONS,
    &AUDIT,
    &TOKENS,
    &REFUSALS_GONE,
];

fn json(record: &impl Serialize) -> Value {
    // Records are plain structs with text keys; their serialization has no way to fail.
    Value::Text(serde_json::to_string(record).expect("records have only JSON types"))
}

fn job_row(job: &Job) -> Vec<Value> {
    vec![
        job.id.as_str().into(),
        job.state.name().into(),
        job.sku.as_str().into(),
        job.model.name.clone().into(),
        job.model.digest.to_string().into(),
        job.created_ms.into(),
        job.ended_ms.into(),
        json(job),
    ]
}

/// A job whose model was prepared meanwhile is of that from then on. Most jobs never are: they are not written twice.
fn renamed(job: &Job) -> Option<Statement> {
    job.from.as_ref().filter(|from| from.document.is_some())?;
    let (name, digest) = (job.model.name.clone(), job.model.digest.to_string());
    Some(Statement {
        sql: "UPDATE jobs SET model_name = $1, model_digest = $2 WHERE id = $3 AND model_digest <> $2".into(),
        values: vec![name.into(), digest.into(), job.id.as_str().into()],
    })
}

/// A job's tags, each as its project's and as one of all projects'.
fn tag_rows(job: &Job) -> impl Iterator<Item = Vec<Value>> + '_ {
    let tags = job.wants.iter().flat_map(|want| want.tags.iter().map(move |tag| (want.project.as_str(), tag)));
    let tags: BTreeSet<(&str, &String)> = tags.flat_map(|(project, tag)| [("", tag), (project, tag)]).collect();
    tags.into_iter()
        .map(|(project, tag)| vec![project.into(), tag.clone().into(), job.created_ms.into(), job.id.as_str().into()])
}

/// To whom blobs belong, each pair once, with all that was said of it.
#[derive(Default)]
struct Blobs(BTreeMap<(Digest, BlobHolder), Hold>);

impl Blobs {
    fn add(&mut self, digest: Digest, holder: &BlobHolder, hold: Hold) {
        self.0.entry((digest, holder.clone())).and_modify(|known| *known = known.and(hold)).or_insert(hold);
    }

    fn add_all(&mut self, blobs: impl IntoIterator<Item = (Digest, Hold)>, projects: &BTreeSet<&str>) {
        for (digest, hold) in blobs {
            for project in projects {
                self.add(digest, &BlobHolder::Project((*project).to_owned()), hold);
            }
        }
    }

    fn rows(self) -> Vec<Vec<Value>> {
        let row = |((digest, holder), hold): ((Digest, BlobHolder), Hold)| {
            let Hold { size_bytes, tenure, since_ms } = hold;
            let (project, key) = match holder {
                BlobHolder::Project(project) => (project, String::new()),
                BlobHolder::Engine(key) => (String::new(), key.to_string()),
            };
            let (digest, tenure) = (digest.to_string(), tenure as u64);
            vec![digest.into(), project.into(), key.into(), size_bytes.into(), tenure.into(), since_ms.into()]
        };
        self.0.into_iter().map(row).collect()
    }
}

fn insert(all: &mut All, table: &'static Table, rows: Vec<Vec<Value>>) {
    if !rows.is_empty() {
        all.0.push(Written::Rows(table, rows));
    }
}

/// The statements that write rows, a few at a time.
fn in_chunks(table: &Table, rows: Vec<Vec<Value>>) -> Vec<Statement> {
    let mut statements = Vec::new();
    let mut rows = rows.into_iter();
    while rows.len() > 0 {
        let size = CHUNKS.into_iter().find(|size| *size <= rows.len()).unwrap_or(1);
        let mut sql = format!("{}VALUES ", table.head);
        for row in 0..size {
            sql.push_str(if row == 0 { "(" } else { ", (" });
            for column in 0..table.columns {
                let comma = if column == 0 { "" } else { ", " };
                let _ = write!(sql, "{comma}${}", row * table.columns + column + 1);
            }
            sql.push(')');
        }
        sql.push_str(table.tail);
        let values = rows.by_ref().take(size).flatten().collect();
        statements.push(Statement { sql, values });
    }
    statements
}

/// The statements that make `changes` durable, for a database that takes rows one by one.
pub(super) fn statements(changes: impl Iterator<Item = Change>) -> Vec<Statement> {
    let all = written(changes).into_iter();
    let statements = all.flat_map(|written| match written {
        Written::Rows(table, rows) => in_chunks(table, rows),
        Written::One(statement) => vec![statement],
    });
    statements.collect()
}

/// What makes `changes` durable. A record that changes several times is written once, as it last stood.
pub(super) fn written(changes: impl Iterator<Item = Change>) -> Vec<Written> {
    let mut jobs: BTreeMap<String, Arc<Job>> = BTreeMap::new();
    let mut engines = BTreeMap::new();
    let mut agents = BTreeMap::new();
    let (mut tokens_made, mut tokens_revoked) = (Vec::new(), BTreeSet::new());
    let mut tokens_bound: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut tokens_used: BTreeMap<String, u64> = BTreeMap::new();
    let mut reports = BTreeMap::new();
    let mut agents_forgotten = BTreeSet::new();
    // `None`: forgotten.
    let mut refusals = BTreeMap::new();
    let mut preparations = BTreeMap::new();
    let (mut plugins, mut pauses) = (BTreeMap::new(), BTreeMap::new());
    let mut caches = BTreeMap::new();
    let (mut job_projects, mut engine_projects) = (Vec::new(), Vec::new());
    let mut joined_jobs = BTreeSet::new();
    let mut blobs = Blobs::default();
    let (mut events, mut requests) = (Vec::new(), Vec::new());
    let mut projects = BTreeMap::new();
    // `None`: taken away.
    let (mut pins, mut pins_expired, mut declarations) = (BTreeMap::new(), None, BTreeMap::new());
    let (mut shares, mut shares_after) = (Vec::new(), Vec::new());
    let (mut audit, mut audit_kept) = (Vec::new(), BTreeMap::new());
    let (mut replaced, mut forgotten) = (Vec::new(), Vec::new());
    let mut blob_notes = BTreeMap::new();
    for change in changes {
        match change {
            Change::Job(job) => drop(jobs.insert(job.id.as_str().to_owned(), job)),
            Change::JobProject { project, job, created_ms } => {
                job_projects.push(vec![project.into(), created_ms.into(), job.as_str().into()]);
                joined_jobs.insert(job.as_str().to_owned());
            }
            Change::Event(event) => events.push(vec![
                event.seq.into(),
                event.at_ms.into(),
                event.job.as_str().into(),
                event.actor.into(),
                event.what.into(),
                event.state.name().into(),
                u64::from(event.attempt).into(),
                event.phase.into(),
                event.detail.into(),
            ]),
            Change::Engine(engine) => drop(engines.insert((engine.key, engine.plan.digest), engine)),
            Change::EngineProject { key, project } => {
                engine_projects.push(vec![key.to_string().into(), project.into()])
            }
            Change::Report(report) => drop(reports.insert(report.digest, report)),
            Change::Agent(agent) => {
                agents_forgotten.remove(&agent.id);
                agents.insert(agent.id.clone(), agent);
            }
            Change::ForgetAgent(id) => {
                agents.remove(&id);
                agents_forgotten.insert(id);
            }
            Change::Request(request) => requests.push(vec![
                request.id.clone().into(),
                request.project.clone().into(),
                request.idempotency_key.clone().into(),
                request.created_ms.into(),
                json(&request),
            ]),
            Change::Blob { digest, holder, hold } => blobs.add(digest, &holder, hold),
            Change::Refusal(refusal) => drop(refusals.insert(refusal.key, Some(refusal))),
            Change::ForgetRefusal(key) => drop(refusals.insert(key, None)),
            Change::Preparation(record) => drop(preparations.insert(record.key, record)),
            Change::Cache(cache) => drop(caches.insert(cache.scope, cache)),
            Change::Plugin(plugin) => drop(plugins.insert(plugin.digest, Some(plugin))),
            Change::ForgetPlugin(digest) => drop(plugins.insert(digest, None)),
            Change::BlobNote { kind, name, text, at_ms } => drop(blob_notes.insert((kind, name), (text, at_ms))),
            Change::Pause(record) => drop(pauses.insert(record.id(), Some(record))),
            Change::Resume(id) => drop(pauses.insert(id, None)),
            Change::Project(record) => drop(projects.insert(record.name.clone(), record)),
            Change::Pin(pin) => drop(pins.insert(pin.id(), Some(pin))),
            Change::Unpin(id) => drop(pins.insert(id, None)),
            Change::PinsExpired { now_ms } => pins_expired = pins_expired.max(Some(now_ms)),
            Change::Declaration(record) => drop(declarations.insert(record.id(), Some(record))),
            Change::ForgetDeclaration(id) => drop(declarations.insert(id, None)),
            Change::Share(share) => shares.push(vec![
                share.id.clone().into(),
                share.secret_hash.to_string().into(),
                share.project.clone().unwrap_or_default().into(),
                share.created_ms.into(),
                share.expires_ms.into(),
                json(&share),
            ]),
            Change::ShareOpened { id, at_ms } => shares_after.push(Statement {
                sql: "UPDATE shares SET opened_ms = $1 WHERE id = $2 AND opened_ms < $1".into(),
                values: vec![at_ms.into(), id.into()],
            }),
            Change::Unshare(id) => {
                shares_after.push(Statement { sql: "DELETE FROM shares WHERE id = $1".into(), values: vec![id.into()] })
            }
            Change::SharesExpired { now_ms } => shares_after.push(Statement {
                sql: "DELETE FROM shares WHERE expires_ms <= $1".into(),
                values: vec![now_ms.into()],
            }),
            Change::Audit(line) => audit.push(vec![
                line.at_ms.into(),
                line.kind.name().into(),
                line.project.clone().into(),
                line.actor.clone().into(),
                line.what.clone().into(),
                json(&line),
            ]),
            Change::EngineUsed { key, at_ms } => forgotten.push(retained::engine_used(&key, at_ms)),
            Change::ForgetJob(job) => forgotten.extend(retained::forget_job(&job)),
            Change::ForgetBuild { key, plan } => forgotten.extend(retained::forget_build(&key, plan)),
            Change::ForgetRequest(id) => forgotten.push(retained::forget_request(&id)),
            Change::Fallback { request, from, to } => replaced.extend(history::replaced(&request, &from, &to)),
            Change::ForgetHeld { held, before_ms } => forgotten.push(retained::forget_held(&held, before_ms)),
            Change::EventsGone { until } => forgotten.push(retained::forget_events(until)),
            Change::ForgetReport(report) => forgotten.extend(retained::forget_report(report)),
            Change::AuditKept { kind, lines } => drop(audit_kept.insert(kind.name(), lines)),
            Change::TokenMade(token) => tokens_made.push(vec![token.id.clone().into(), json(&token)]),
            Change::TokenRevoked { id } => drop(tokens_revoked.insert(id)),
            Change::TokenUsed { id, at_ms } => {
                let newest = tokens_used.entry(id).or_default();
                *newest = at_ms.max(*newest);
            }
            Change::TokenBound { id, agent } => drop(tokens_bound.insert(id, agent)),
        }
    }
    let mut all = All::default();
    insert(&mut all, &JOBS, jobs.values().map(|job| job_row(job)).collect());
    insert(&mut all, &JOB_PROJECTS, job_projects);
    // Behind its projects: they call the model so, too.
    all.extend(jobs.values().filter_map(|job| renamed(job)));
    insert(&mut all, &JOB_TAGS, jobs.values().flat_map(|job| tag_rows(job)).collect());
    for (id, job) in &jobs {
        // Most changes of a job that runs name nothing new.
        if joined_jobs.contains(id) || job.may_name_more() {
            blobs.add_all(job.blobs(), &job.projects());
        }
    }
    for engine in engines.values() {
        engine.blobs().for_each(|(digest, hold)| blobs.add(digest, &BlobHolder::Engine(engine.key), hold));
    }
    for report in reports.values() {
        if let Some(key) = report.key {
            report.blobs().for_each(|(digest, hold)| blobs.add(digest, &BlobHolder::Engine(key), hold));
        }
        if let Some(job) = jobs.get(report.job.as_str()) {
            blobs.add_all(report.blobs(), &job.projects());
        }
    }
    insert(&mut all, &BLOB_REFS, blobs.rows());
    insert(&mut all, &EVENTS, events);
    let engines = engines.values().map(|engine| {
        vec![
            engine.key.to_string().into(),
            engine.plan.digest.to_string().into(),
            engine.sku.as_str().into(),
            engine.model.name.clone().into(),
            engine.model.digest.to_string().into(),
            engine.created_ms.into(),
            engine.seq.into(),
            json(engine),
        ]
    });
    insert(&mut all, &ENGINES, engines.collect());
    insert(&mut all, &ENGINE_PROJECTS, engine_projects);
    let reports = reports.into_values().map(|report| {
        vec![
            report.digest.to_string().into(),
            report.plan.to_string().into(),
            report.key.map(|key| key.to_string()).unwrap_or_default().into(),
            report.job.as_str().into(),
            report.sku.as_str().into(),
            report.eval.map(|eval| eval.to_string()).unwrap_or_default().into(),
            report.created_ms.into(),
            report.document.clone().into(),
            json(&report.measure),
            json(&report.artifacts),
        ]
    });
    insert(&mut all, &REPORTS, reports.collect());
    let agents = agents.values().map(|agent| vec![agent.id.clone().into(), agent.seen_ms.into(), json(agent)]);
    insert(&mut all, &AGENTS, agents.collect());
    all.extend(
        agents_forgotten
            .into_iter()
            .map(|id| Statement { sql: "DELETE FROM agents WHERE id = $1".into(), values: vec![id.into()] }),
    );
    insert(&mut all, &REQUESTS, requests);
    // Behind the jobs and requests that they name.
    all.extend(replaced);
    let mut refused = Vec::new();
    let mut no_more = Vec::new();
    for (key, refusal) in &refusals {
        match refusal {
            Some(refusal) => refused.push(vec![key.to_string().into(), json(refusal)]),
            None => no_more.push(vec![key.to_string().into()]),
        }
    }
    insert(&mut all, &REFUSALS, refused);
    insert(&mut all, &REFUSALS_GONE, no_more);
    let preparations = preparations.values().map(|record| {
        let (job, model) = (record.job.as_str(), record.made.model.digest.to_string());
        vec![record.key.to_string().into(), job.into(), model.into(), json(record)]
    });
    insert(&mut all, &PREPARATIONS, preparations.collect());
    let caches = caches.values().map(|cache| {
        vec![cache.scope.to_string().into(), cache.sku.as_str().into(), cache.published_ms.into(), json(cache)]
    });
    insert(&mut all, &CACHES, caches.collect());
    for (digest, plugin) in &plugins {
        match plugin {
            Some(plugin) => insert(&mut all, &PLUGINS, vec![vec![digest.to_string().into(), json(plugin)]]),
            None => all.push(Statement {
                sql: "DELETE FROM plugins WHERE digest = $1".into(),
                values: vec![digest.to_string().into()],
            }),
        }
    }
    for (id, pause) in &pauses {
        match pause {
            Some(pause) => insert(&mut all, &PAUSES, vec![vec![id.to_string().into(), json(pause)]]),
            None => all.push(Statement {
                sql: "DELETE FROM pauses WHERE id = $1".into(),
                values: vec![id.to_string().into()],
            }),
        }
    }
    let projects = projects.values().map(|record| vec![record.name.clone().into(), json(record)]);
    insert(&mut all, &PROJECTS, projects.collect());
    if let Some(now_ms) = pins_expired {
        all.push(Statement { sql: "DELETE FROM pins WHERE expires_ms <= $1".into(), values: vec![now_ms.into()] });
    }
    let mut pinned = Vec::new();
    for (PinId { plan, project, owner }, pin) in pins {
        let mut values = vec![plan.to_string().into(), project.into(), owner.into()];
        if let Some(pin) = pin {
            values.extend([pin.created_ms.into(), pin.expires_ms.into(), json(&pin)]);
            pinned.push(values);
        } else {
            let sql = "DELETE FROM pins WHERE plan_digest = $1 AND project = $2 AND owner = $3".into();
            all.push(Statement { sql, values });
        }
    }
    insert(&mut all, &PINS, pinned);
    for (DeclarationId { project, name }, record) in declarations {
        let mut values = vec![project.into(), name.into()];
        if let Some(record) = record {
            values.extend([record.declared_ms.into(), json(&record)]);
            insert(&mut all, &DECLARATIONS, vec![values]);
        } else {
            all.push(Statement { sql: "DELETE FROM declarations WHERE project = $1 AND name = $2".into(), values });
        }
    }
    let mut noted = Vec::new();
    for ((kind, name), (text, at_ms)) in blob_notes {
        let mut values = vec![kind.into(), name.into()];
        if let Some(text) = text {
            values.extend([text.into(), at_ms.into()]);
            noted.push(values);
        } else {
            all.push(Statement { sql: "DELETE FROM blob_notes WHERE kind = $1 AND name = $2".into(), values });
        }
    }
    insert(&mut all, &BLOB_NOTES, noted);
    insert(&mut all, &SHARES, shares);
    // A link is made once and never again: what ends it may stand behind that.
    all.extend(shares_after);
    insert(&mut all, &AUDIT, audit);
    all.extend(audit_kept.into_iter().map(|(kind, lines)| {
        Statement {
            sql: "DELETE FROM audit WHERE kind = $1 AND seq <= \
              (SELECT seq FROM audit WHERE kind = $1 ORDER BY seq DESC LIMIT 1 OFFSET $2)"
                .into(),
            values: vec![kind.into(), (lines as u64).into()],
        }
    }));
    insert(&mut all, &TOKENS, tokens_made);
    // Neither undoes the other, and both only ever go one way: their order does not matter.
    all.extend(tokens_used.into_iter().map(|(id, at_ms)| Statement {
        sql: "UPDATE tokens SET last_used_ms = $1 WHERE id = $2 AND last_used_ms < $1".into(),
        values: vec![at_ms.into(), id.into()],
    }));
    all.extend(tokens_bound.into_iter().map(|(id, agent)| Statement {
        sql: "UPDATE tokens SET agent = $1 WHERE id = $2".into(),
        values: vec![agent.unwrap_or_default().into(), id.into()],
    }));
    all.extend(
        tokens_revoked
            .into_iter()
            .map(|id| Statement { sql: "UPDATE tokens SET revoked = 1 WHERE id = $1".into(), values: vec![id.into()] }),
    );
    // Behind what was written: what goes was there before, and was not needed by any of it.
    all.extend(forgotten);
    all.0
}

/// Builds a `SELECT` whose conditions come and go.
#[derive(Clone, Debug)]
pub(super) struct Select {
    statement: Statement,
    conditions: usize,
}

impl Select {
    pub fn new(head: &str) -> Self {
        Self { statement: Statement { sql: head.to_owned(), values: Vec::new() }, conditions: 0 }
    }

    fn bind(&mut self, value: Value) -> usize {
        self.statement.values.push(value);
        self.statement.values.len()
    }

    fn and(&mut self) {
        self.statement.sql.push_str(if self.conditions == 0 { " WHERE " } else { " AND " });
        self.conditions += 1;
    }

    /// `condition` has `#` where the bound value stands, any number of times.
    pub fn filter(&mut self, condition: &str, value: Option<impl Into<Value>>) -> &mut Self {
        if let Some(value) = value {
            self.and();
            let place = format!("${}", self.bind(value.into()));
            self.statement.sql.push_str(&condition.replace('#', &place));
        }
        self
    }

    /// Nothing when `values` is empty: any.
    pub fn one_of(&mut self, column: &str, values: impl Iterator<Item = String>) -> &mut Self {
        self.one_of_values(column, values.map(Value::from))
    }

    /// As [`Self::one_of`], of values of any kind.
    pub fn one_of_values(&mut self, column: &str, values: impl Iterator<Item = Value>) -> &mut Self {
        let places: Vec<String> = values.map(|value| format!("${}", self.bind(value))).collect();
        if !places.is_empty() {
            self.and();
            let _ = write!(self.statement.sql, "{column} IN ({})", places.join(", "));
        }
        self
    }

    /// Rows that sort before `values` in `columns`: what stands behind that row in a list with the newest first.
    pub fn behind(&mut self, columns: &str, values: Option<Vec<Value>>) -> &mut Self {
        if let Some(values) = values {
            let places: Vec<String> = values.into_iter().map(|value| format!("${}", self.bind(value))).collect();
            self.and();
            let _ = write!(self.statement.sql, "({columns}) < ({})", places.join(", "));
        }
        self
    }

    pub fn always(&mut self, condition: &str) -> &mut Self {
        self.and();
        self.statement.sql.push_str(condition);
        self
    }

    pub fn order(&mut self, order: &str, limit: usize) -> Statement {
        let place = self.bind(Value::Int(i64::try_from(limit).unwrap_or(i64::MAX)));
        let mut statement = self.statement.clone();
        let _ = write!(statement.sql, " ORDER BY {order} LIMIT ${place}");
        statement
    }
}
