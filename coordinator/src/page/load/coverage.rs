//! Coverage, the first page.

use super::{Shown, activity::ended_list, invalid, kept::Kept, shown};
use crate::{
    app::App,
    auth::Actor,
    core::JobState,
    farm::LiveCounts,
    page::topic::Topic,
    store::{CoverageFilter, Standing, StandingJob},
};
use futures::future::try_join3;
use planforge_page::{
    coverage::{self, Built, By, Known, Slot, Window, Work},
    lists,
    parts::Counts,
    view::{Filter, Section, View},
};
use planforge_proto::{ApiError, v1};
use std::collections::{BTreeMap, BTreeSet};

/// Pages of declarations that are read.
const DECLARATION_PAGES_MAX: usize = 8;
/// Names that one model has, which is asked for by its digest.
const NAMES_OF_MODEL_MAX: usize = 1_000;

pub(super) fn by(topic: &Topic) -> Result<By, ApiError> {
    match topic.get("by") {
        "" | "model" => Ok(By::Model),
        "spec" => Ok(By::Spec),
        "toolchain" => Ok(By::Toolchain),
        other => Err(invalid(format!("'{}' tells no rows apart", other.escape_debug()), "by is spec or toolchain")),
    }
}

/// A page of the models, with how each stands.
pub(super) struct Covered {
    pub(super) window: Window,
    pub(super) slots: Vec<Slot>,
    /// There are more jobs than were looked at.
    pub(super) is_cut: bool,
    by: By,
    known: Known,
    filter: CoverageFilter,
    /// Models of the page that must be asked for again.
    stale: BTreeSet<String>,
}

impl Covered {
    /// Takes note of a job that has not ended; whether the page holds but for its model.
    pub(super) fn note(&mut self, job: &v1::Job) -> bool {
        let name = job.model.as_ref().map_or("", |model| &model.name);
        if self.window.names.iter().any(|shown| shown == name) && self.window.skus.contains(&job.sku) {
            self.stale.insert(name.to_owned());
            return true;
        }
        !self.window.may_show(name, &job.sku)
    }

    /// The same, with what became of stale models.
    async fn renewed(mut self, app: &App, actor: &Actor) -> Result<Self, ApiError> {
        let stale = std::mem::take(&mut self.stale);
        if stale.is_empty() {
            return Ok(self);
        }
        let names = stale.iter().cloned().collect();
        let coverage = app.farm.coverage(actor, &self.filter, names, self.by != By::Model).await?;
        let Known { engines, live, failed, .. } = &mut self.known;
        engines.retain(|built| !stale.contains(&built.model));
        engines.extend(coverage.engines.into_iter().map(built));
        engines.sort_by(|one, other| (other.created_ms, &other.plan).cmp(&(one.created_ms, &one.plan)));
        for (known, found, lives) in [(live, coverage.live, true), (failed, coverage.failed, false)] {
            known.retain(|job| !stale.contains(&job.model));
            known.extend(found.into_iter().map(|job| work(job, lives)));
            // Ids sort by when a job was submitted.
            known.sort_by(|one, other| (other.ended_ms, &other.id).cmp(&(one.ended_ms, &one.id)));
        }
        self.is_cut |= coverage.is_cut;
        self.slots = coverage::slots(&self.known, self.by);
        Ok(self)
    }
}

/// How much there is of what changes where a job ends.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    ended: usize,
    failed: usize,
    engines: String,
}

/// How models stand: those of the page that is asked for, of one model or device kind where one is named.
pub(super) async fn covered_now(app: &App, actor: &Actor, topic: &Topic) -> Result<Covered, ApiError> {
    let by = by(topic)?;
    let some = |name: &str| Some(topic.get(name).to_owned()).filter(|value| !value.is_empty());
    let filter = CoverageFilter { project: some("project"), model: some("model"), sku: some("sku") };
    let Declared { declarations, names, models, is_cut, filter } = declared(app, actor, topic, filter).await?;
    let stand = match filter.model {
        None => app.farm.covered_among(actor, &filter, models.iter().cloned().collect()).await?,
        Some(_) => app.farm.covered_models(actor, &filter, 0, NAMES_OF_MODEL_MAX).await?.names.into_iter().collect(),
    };
    let only_declared: BTreeSet<String> = models.difference(&stand).cloned().collect();

    let mut from = topic.number("from")?;
    let read = |from: usize| {
        let (first, limit) = Window::standing(from, only_declared.len());
        app.farm.covered_models(actor, &filter, first as u64, limit)
    };
    let mut stands = read(from).await?;
    let of_cells = declarations.iter().flat_map(|declaration| &declaration.cells).map(|cell| cell.sku.clone());
    let skus: BTreeSet<String> = std::mem::take(&mut stands.skus).into_iter().chain(of_cells).collect();
    let size = Window::size(&skus.iter().map(String::as_str).collect());
    let within = Window::within(from, size, stands.count as usize + only_declared.len());
    if within < from {
        from = within;
        stands = read(from).await?;
    }
    let merged = Window::merged(stands.names, stands.count as usize, only_declared, (from, size));
    let window = Window { skus, ..merged };

    let coverage = app.farm.coverage(actor, &filter, window.names.clone(), by != By::Model).await?;
    let mut known = Known {
        declarations,
        names,
        engines: coverage.engines.into_iter().map(built).collect(),
        live: coverage.live.into_iter().map(|job| work(job, true)).collect(),
        failed: coverage.failed.into_iter().map(|job| work(job, false)).collect(),
    };
    let shown: BTreeSet<&str> = window.names.iter().map(String::as_str).collect();
    for declaration in &mut known.declarations {
        declaration.cells.retain(|cell| shown.contains(Known::name_of(&known.names, cell)));
    }
    let (slots, is_cut) = (coverage::slots(&known, by), is_cut || coverage.is_cut);
    Ok(Covered { slots, window, is_cut, by, known, filter, stale: BTreeSet::new() })
}

/// What is declared, within a filter.
struct Declared {
    declarations: Vec<v1::Declaration>,
    /// What engines call the models, by their digests.
    names: BTreeMap<String, String>,
    /// All of the models.
    models: BTreeSet<String>,
    is_cut: bool,
    /// As engines call the model that is asked for.
    filter: CoverageFilter,
}

async fn declared(app: &App, actor: &Actor, topic: &Topic, mut filter: CoverageFilter) -> Result<Declared, ApiError> {
    let (mut declarations, mut cursor) = (Vec::<v1::Declaration>::new(), String::new());
    for _ in 0..DECLARATION_PAGES_MAX {
        let request =
            v1::ListDeclarationsRequest { project: topic.get("project").into(), cursor, ..Default::default() };
        let reply = app.farm.list_declarations(actor, request).await?;
        declarations.extend(reply.declarations);
        cursor = reply.next_cursor;
        if cursor.is_empty() {
            break;
        }
    }
    for declaration in &mut declarations {
        declaration.cells.retain(|cell| filter.is_of_sku(&cell.sku));
    }
    let cells = || declarations.iter().flat_map(|declaration| &declaration.cells);
    let digests: BTreeSet<&String> = cells().map(|cell| &cell.model_digest).collect();
    let names = app.farm.model_names(actor, &filter, digests.into_iter().cloned().collect()).await?;
    let is_named = |cell: &&v1::DeclaredCell| filter.model.as_ref() == Some(&cell.model);
    let called = cells().find(is_named).map(|cell| Known::name_of(&names, cell).to_owned());
    filter.model = called.or(filter.model);
    let is_asked = |cell: &v1::DeclaredCell| filter.is_of_model(Known::name_of(&names, cell), &cell.model_digest);
    declarations.iter_mut().for_each(|declaration| declaration.cells.retain(&is_asked));
    let cells = declarations.iter().flat_map(|declaration| &declaration.cells);
    let models = cells.map(|cell| Known::name_of(&names, cell).to_owned()).collect();
    Ok(Declared { declarations, names, models, is_cut: !cursor.is_empty(), filter })
}

fn built(standing: Standing) -> Built {
    Built {
        model: standing.model,
        model_digest: standing.model_digest,
        sku: standing.sku,
        spec_json: standing.spec_json,
        toolchain_json: standing.toolchain_json,
        plan: standing.plan,
        created_ms: standing.created_ms,
        median_ms: standing.median_ms,
        disturbed: standing.disturbed,
        accurate: standing.accurate,
        simulated: standing.simulated,
    }
}

fn work(job: StandingJob, lives: bool) -> Work {
    Work {
        id: job.id.to_string(),
        model: job.model,
        sku: job.sku,
        spec_json: job.spec_json,
        toolchain_json: job.toolchain_json,
        constraint: job.constraint,
        runs: matches!(job.state, JobState::Leased | JobState::Running),
        ended_ms: if lives { 0 } else { job.at_ms },
        why: job.why,
    }
}

async fn totals(app: &App, actor: &Actor) -> Result<Totals, ApiError> {
    let ended = app.farm.list_jobs(actor, v1::ListJobsRequest { with_reports: false, ..ended_list() }).await?.jobs;
    let engines = app.farm.engine_count(actor).await?;
    let plus = if engines.is_exact { "" } else { "+" };
    Ok(Totals {
        ended: ended.len(),
        failed: ended.iter().filter(|job| job.state() == v1::JobState::Failed).count(),
        engines: format!("{}{plus}", planforge_page::format::grouped(engines.count)),
    })
}

/// How much there is of everything.
pub(super) async fn counts(app: &App, actor: &Actor) -> Result<Counts, ApiError> {
    counts_with(app, actor, totals(app, actor).await?).await
}

async fn counts_with(app: &App, actor: &Actor, totals: Totals) -> Result<Counts, ApiError> {
    let devices = app.farm.device_counts().await?;
    let LiveCounts { running, waiting } = app.farm.live_counts(actor).await?;
    let Totals { ended, failed, engines } = totals;
    Ok(Counts {
        running,
        waiting,
        failed,
        ended,
        devices_online: devices.online,
        devices_busy: devices.busy,
        devices: devices.known,
        engines,
        set_aside: match actor.project {
            None => app.blobs.quarantined().map_or(0, |set_aside| set_aside.len()),
            Some(_) => 0,
        },
    })
}

/// The first page, of what is kept of it as far as that still holds.
pub(in crate::page) async fn home(
    app: &App,
    actor: &Actor,
    topic: &Topic,
    server: &str,
    kept: &mut Kept,
) -> Result<Shown, ApiError> {
    kept.begin();
    let (covered, totals) = (kept.covered.take(), kept.totals.take());
    let covered = async {
        match covered {
            Some(covered) => covered.renewed(app, actor).await,
            None => covered_now(app, actor, topic).await,
        }
    };
    let counts = async {
        let totals = match totals {
            Some(totals) => totals,
            None => self::totals(app, actor).await?,
        };
        Ok((counts_with(app, actor, totals.clone()).await?, totals))
    };
    let (covered, (counts, totals), busy) = try_join3(covered, counts, app.farm.busy_projects(actor)).await?;
    let Covered { window, slots, is_cut, .. } = &covered;
    let asked = coverage::Asked { row: topic.number("row")?, address: topic.without("from").without("row").address() };
    let mut sections = vec![
        Section::html("", "counts", &counts),
        Section::table("Models by device kind", coverage::table(window, slots, *is_cut, server, &asked)),
    ];
    (kept.covered, kept.totals) = (Some(covered), Some(totals));
    let (projects, unseen) = busy;
    sections.extend(lists::projects(&projects, unseen).map(|table| Section::table("Projects", table)));
    let view = View {
        heading_is_hidden: true,
        above_filters: 1,
        filters: vec![
            Filter::typed("model", "Model", topic.get("model")),
            Filter::typed("sku", "SKU", topic.get("sku")),
            Filter::typed("project", "Project", topic.get("project")),
            Filter::chosen("by", "Apart by", topic.get("by"), &["model", "spec", "toolchain"]),
        ],
        sections,
        ..View::default()
    };
    Ok(Shown { title: "Planforge".into(), ..shown("Coverage", view) })
}
