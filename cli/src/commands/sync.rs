//! `planforge sync`: builds what is declared and not there, and writes down what every cell has.

use crate::{
    context::Context,
    declared::{Inputs, Project, Row, Survey, farm_name, kept, locked_as, view},
    failure::Failure,
    farm::{Farm, Need},
    request,
    settings::Key,
    signals,
    wait::{self, Patience, Waiting},
};
use planforge_fleet::{CellId, Diff, Lock, State, gate::Judged};
use planforge_proto::{ErrorCode, v1};
use planforge_types::{BuildSpec, Digest};
use std::collections::BTreeMap;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Change nothing: fail where engines.lock is not what is declared; what it names is built again where the farm lost it
    #[arg(long)]
    frozen: bool,
    /// Build outdated engines anew, too: those that a newer toolchain or compiler revision would build now
    #[arg(long, conflicts_with = "frozen")]
    update: bool,
    /// Take the engines as they are: gates hold later ones against them
    #[arg(long, conflicts_with = "frozen")]
    accept: bool,
    /// Higher goes first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-100..=100))]
    priority: Option<i32>,
    #[command(flatten)]
    patience: Patience,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let project = Project::must()?;
    let lock = project.lock()?.unwrap_or_default();
    let inputs = Inputs::of(context, &project)?;
    Farm::with(context, Need::Work, async |farm| {
        let sync = Sync { context, farm, project: &project, args: &args };
        sync.run(lock.clone(), inputs.clone()).await
    })
    .await
}

struct Sync<'a> {
    context: &'a Context<'a>,
    farm: &'a Farm,
    project: &'a Project,
    args: &'a Args,
}

/// A build that a cell needs.
#[derive(Clone, Debug)]
struct Wanted {
    id: CellId,
    constraint: String,
    spec: BuildSpec,
}

/// What came of the builds.
#[derive(Debug, Default)]
struct Built {
    requests: Vec<String>,
    engines: BTreeMap<CellId, v1::Engine>,
    /// With the reason.
    failed: BTreeMap<CellId, String>,
}

impl Sync<'_> {
    async fn survey(&self, lock: &Lock, inputs: &Inputs) -> Result<Survey, Failure> {
        Survey::of(self.context, self.farm, self.project, (lock, self.args.frozen), inputs).await
    }

    async fn run(&self, old: Lock, mut inputs: Inputs) -> Result<(), Failure> {
        let before = self.survey(&old, &inputs).await?;
        if self.args.frozen {
            refuse_changes(&before)?;
        }
        let wanted: Vec<Wanted> = before.rows.iter().filter_map(|row| self.wanted(row, &inputs)).collect();
        let mut built = self.build(wanted, &mut inputs).await?;
        let mut new = self.lock(&before, &mut built)?;
        new.keep_standing(&old);
        let changed = if self.args.frozen { false } else { self.project.write_lock(&new)? };
        let mut after = self.survey(&new, &inputs).await?;
        for row in &mut after.rows {
            if let Some(why) = built.failed.get(&row.cell.id) {
                row.state = State::Failed(why.clone());
            }
        }
        let pinned = kept::pin(self.context, self.farm, self.project, &new).await;
        let registered = kept::register(self.context, self.farm, self.project, (&after, &inputs)).await;
        self.tell((&old, &new), &after, &built, (changed, &pinned, &registered))
    }

    /// The build that a cell needs, if any.
    fn wanted(&self, row: &Row, inputs: &Inputs) -> Option<Wanted> {
        let update = self.args.update && matches!(row.state, State::Outdated(_));
        if !(row.state.wants_build() || update) {
            return None;
        }
        let id = row.cell.id.clone();
        match &row.locked {
            // The very engine that is locked, whatever is newer.
            Some(locked) if self.args.frozen => {
                let constraint = format!("{}={}", locked.toolchain.backend, locked.toolchain.version);
                Some(Wanted { id, constraint, spec: locked.spec.clone() })
            }
            _ => {
                let spec = inputs.specs[&id.spec].clone();
                Some(Wanted { constraint: row.cell.toolchain.to_string(), spec, id })
            }
        }
    }

    /// Submits everything, waits for it and finds the engines.
    async fn build(&self, wanted: Vec<Wanted>, inputs: &mut Inputs) -> Result<Built, Failure> {
        let mut built = Built::default();
        let mut jobs: Vec<(CellId, v1::Job)> = Vec::new();
        // One request for each model and spec: its device kinds are what it asks for at once.
        let mut groups: Vec<Vec<Wanted>> = Vec::new();
        for one in wanted {
            let alike = |other: &Wanted| {
                (&other.id.model, &other.id.spec, &other.constraint) == (&one.id.model, &one.id.spec, &one.constraint)
                    && other.spec == one.spec
            };
            match groups.iter_mut().find(|group| group.iter().all(alike)) {
                Some(group) => group.push(one),
                None => groups.push(vec![one]),
            }
        }
        // Refused as a whole, a request is made again for each device kind by itself.
        groups.reverse();
        while let Some(group) = groups.pop() {
            match self.submit(&group, inputs).await {
                Ok(reply) => {
                    built.requests.push(reply.request_id);
                    for job in reply.jobs {
                        if let Some(one) = group.iter().find(|one| one.id.sku.as_str() == job.sku) {
                            jobs.push((one.id.clone(), job));
                        }
                    }
                }
                Err(failure) if failure.name == ErrorCode::Refused.name() && group.len() > 1 => {
                    groups.extend(group.into_iter().rev().map(|one| vec![one]));
                }
                Err(failure) if failure.name == ErrorCode::Refused.name() => {
                    built.failed.insert(group[0].id.clone(), failure.to_string());
                }
                Err(failure) => return Err(failure),
            }
        }
        let live: Vec<v1::Job> = jobs.iter().map(|(_, job)| job.clone()).collect();
        self.wait(&live).await?;
        let ids: Vec<String> = live.iter().map(|job| job.id.clone()).collect();
        let ended = Waiting::results(self.farm, &ids).await?;
        wait::tell_failures(self.context.printer, &ended);
        for ((id, _), job) in jobs.into_iter().zip(ended) {
            if job.state() != v1::JobState::Succeeded {
                let why =
                    job.failure.map_or_else(|| format!("job {} did not succeed", job.id), |failure| failure.message);
                built.failed.insert(id, why);
                continue;
            }
            match self.engine(&job.engine_key).await {
                Ok(engine) => drop(built.engines.insert(id, engine)),
                Err(failure) if failure.is_unavailable() => return Err(failure),
                Err(failure) => drop(built.failed.insert(id, failure.to_string())),
            }
        }
        Ok(built)
    }

    async fn submit(&self, group: &[Wanted], inputs: &mut Inputs) -> Result<v1::SubmitReply, Failure> {
        let Wanted { id, constraint, spec } = &group[0];
        let (local, files) = inputs.local(self.context, self.project, &id.model).await?;
        let request = v1::SubmitRequest {
            idempotency_key: ulid::Ulid::generate().to_string(),
            project: self.project_name(),
            models: vec![local.model],
            skus: group.iter().map(|one| one.id.sku.to_string()).collect(),
            specs_json: request::spec_documents(std::slice::from_ref(spec))?,
            toolchains: Some(constraint.clone()).filter(|text| !text.is_empty()).into_iter().collect(),
            priority: self.args.priority.unwrap_or(0),
            kind: v1::JobKind::Build.into(),
            builds: 1,
            ..Default::default()
        };
        request::submit(self.context, self.farm, &request, &files).await
    }

    async fn wait(&self, jobs: &[v1::Job]) -> Result<(), Failure> {
        let mut waiting = Waiting::new(self.context.printer, jobs);
        let live = waiting.live();
        if live.is_empty() {
            return Ok(());
        }
        let hint = format!(
            "the jobs go on, and the next planforge sync finds what they built; planforge cancel {} ends them",
            live.join(" ")
        );
        let ended = async {
            match self.farm.comes_back() {
                true => waiting.until_ended(self.farm).await,
                false => waiting.follow(self.farm).await,
            }
        };
        tokio::select! {
            result = ended => result,
            () = signals::interrupted() => Err(Failure::interrupted().hint(hint)),
            failure = self.args.patience.over() => Err(failure.hint(hint)),
        }
    }

    fn project_name(&self) -> String {
        self.context.settings.get(Key::Project).unwrap_or_default().into()
    }

    async fn engine(&self, key: &str) -> Result<v1::Engine, Failure> {
        let request =
            v1::FindEngineRequest { engine_key: key.to_owned(), project: self.project_name(), ..Default::default() };
        Ok(self.farm.rpc().find_engine(request).await.map_err(|e| self.farm.error(e))?.into_inner())
    }

    /// The lock as it is now: what stays, what was built, and nothing that is declared no more.
    fn lock(&self, before: &Survey, built: &mut Built) -> Result<Lock, Failure> {
        let here = farm_name(self.context)?;
        let mut lock = Lock::default();
        for row in &before.rows {
            let id = &row.cell.id;
            let mut entry = row.locked.clone();
            if let Some(engine) = built.engines.get(id) {
                let now = locked_as(engine, &here, None)?;
                match &entry {
                    Some(locked) if locked.plan == now.plan && locked.engine_key == now.engine_key => {}
                    Some(locked) if self.args.frozen => {
                        let (plan, locked) = (now.plan.short(), locked.plan.short());
                        let why = format!("built again it is another plan, sha256:{plan}; sha256:{locked} is locked");
                        built.failed.insert(id.clone(), why);
                    }
                    _ => entry = Some(planforge_fleet::Locked { base_plan: self.base(row), ..now }),
                }
            }
            if let Some(mut locked) = entry {
                if self.args.accept {
                    locked.base_plan = None;
                }
                lock.cells.insert(id.clone(), locked);
            }
        }
        Ok(lock)
    }

    /// What a new engine of the cell is held against: the one it replaces, unless that failed its own gate.
    fn base(&self, row: &Row) -> Option<Digest> {
        if self.project.declaration.gates.limits.is_empty() {
            return None;
        }
        let locked = row.locked.as_ref()?;
        match row.gate.as_ref().is_none_or(Judged::passes) {
            true => Some(locked.plan),
            false => locked.base_plan,
        }
    }

    fn tell(
        &self,
        (old, new): (&Lock, &Lock),
        after: &Survey,
        built: &Built,
        (changed, pinned, registered): (bool, &kept::Pinned, &kept::Registered),
    ) -> Result<(), Failure> {
        let printer = self.context.printer;
        let views = after.views(new);
        let diff = Diff::of(old, new);
        printer.data(&view::table(&views))?;
        let file = self.project.lock_path();
        match changed {
            true => printer.note(&format!("{} is written: {}; commit it", file.display(), diff.summary())),
            false => printer.note(&format!("{} stays as it is", file.display())),
        }
        let outdated = views.iter().filter(|cell| matches!(cell.state, State::Outdated(_))).count();
        if outdated > 0 {
            printer.note(&format!("{outdated} engines are outdated: planforge sync --update builds them anew"));
        }
        let red: Vec<&view::CellView> = views.iter().filter(|cell| !cell.state.is_fine(false)).collect();
        for cell in &red {
            printer.problem(&format!("{}: {}: {}", cell.id, cell.state.name(), cell.state.why()));
        }
        if red.iter().any(|cell| matches!(cell.state, State::GateFailed(_))) {
            printer.hint("planforge sync --accept takes them as they are");
        }
        if let (Some(request), false) = (built.requests.first(), built.failed.is_empty()) {
            printer.hint(&format!("planforge retry {request} tries its failed jobs again"));
        }
        printer.object(&serde_json::json!({
            "ok": red.is_empty(),
            "lock": file,
            "written": changed,
            "requests": built.requests,
            "diff": diff,
            "pinned": pinned,
            "registered": registered,
            "cells": views,
        }))?;
        view::verdict(red.into_iter().map(|cell| &cell.state))
    }
}

/// Refuses a lock that is not what is declared, before anything is built.
fn refuse_changes(survey: &Survey) -> Result<(), Failure> {
    let differs = |row: &&Row| row.locked.is_none() || matches!(row.state, State::Stale(_));
    let mut why: Vec<String> =
        survey.rows.iter().filter(differs).map(|row| format!("{}: {}", row.cell.id, row.state.why())).collect();
    why.extend(survey.undeclared.iter().map(|id| format!("{id}: planforge.toml declares it no more")));
    if why.is_empty() {
        return Ok(());
    }
    let message = format!("engines.lock is not what is declared, and --frozen leaves it alone:\n{}", why.join("\n"));
    Err(Failure::new(ErrorCode::Conflict, message).hint("run planforge sync without --frozen, and commit engines.lock"))
}
