//! The tables of the page, made from the contract's messages.

use crate::{
    format,
    rows::{Act, EngineRow, EventRow, JobRow, Pill, dash, figures_of, is_marked, median, throughput, time},
    table::{Cell, Empty, Part, Table, column, figures, words},
};
use planforge_proto::v1;
use planforge_report::disturbance;
use std::collections::{BTreeMap, HashMap};

/// What an empty farm is told to do, step by step.
pub fn first_steps(server: &str) -> Empty {
    Empty::new("Nothing is built yet. An agent on a machine with devices, a model, and its first engine:")
        .typing(format!("planforge agent --server {server}"))
        .typing("planforge testmodel digits -o digits.onnx")
        .typing(format!("planforge submit digits.onnx --sku cpu-x86-64-v3 --server {server}"))
}

/// Jobs, in the order they are given.
pub fn jobs(id: &'static str, jobs: &[v1::Job], may_act: bool) -> Table {
    let acts = [column("Do", "acts")];
    let usual = [
        words("State"),
        column("Model", "wide"),
        words("SKU"),
        words("Toolchain"),
        column("Now", "detail"),
        figures("Median"),
        figures("Throughput"),
        column("When", "when"),
    ];
    let columns = if may_act { [&usual[..], &acts].concat() } else { usual.to_vec() };
    let label = if id == "ended" { "Jobs that ended" } else { "Jobs" };
    let mut table = Table::new(id, label, &columns);
    table.empty = Empty::new("No job is like that.");
    let rows: Vec<JobRow> = jobs.iter().map(JobRow::new).collect();
    let legend = disturbance::legend(rows.iter().any(|row| row.is_marked));
    table.notes.extend(Some(legend).filter(|legend| !legend.is_empty()));
    for (row, job) in rows.into_iter().zip(jobs) {
        let (href, ended) = (format!("/jobs/{}", row.id), row.ended);
        let mut state = vec![Part::Pill { href: href.clone(), pill: row.pill }];
        state.extend(row.cached.then(|| Part::tag("from store", "")));
        state.extend(row.simulated.then(|| Part::tag("simulated", "warn")));
        let mut toolchain = vec![Part::Text(row.toolchain)];
        if !row.spec.is_empty() {
            toolchain.extend([Part::Break, Part::Muted(row.spec)]);
        }
        let mut now = vec![Part::Text(row.detail)];
        now.extend(row.progress.map(Part::Progress));
        if let Some(eta) = &job.eta {
            now.extend([Part::Break, Part::Muted(eta_words(eta))]);
        }
        let mut cells = vec![
            Cell::of(state),
            Cell::of([Part::link(href, row.model.clone()), Part::Digest(row.model_digest)]),
            Cell::code(row.sku.clone()),
            Cell::of(toolchain),
            Cell::of(now),
            Cell::text(&*row.median).strong(!row.is_marked && row.median != dash()),
            Cell::text(row.throughput),
            Cell::time(row.when),
        ];
        if may_act {
            let act = Act {
                action: "/do/cancel",
                name: "id",
                value: row.id.clone(),
                text: "Cancel",
                label: format!("{} on {}", row.model, row.sku),
                is_grave: false,
            };
            cells.push(Cell::of((!ended).then_some(Part::Act(act))));
        }
        table.push(row.id, if ended { "ended" } else { "" }, cells);
    }
    table
}

/// When a job will likely have ended, and what that rests on.
pub fn eta_words(eta: &v1::Eta) -> String {
    let begins = match eta.start_in_ms {
        0 => String::new(),
        ms => format!("begins {}, ", format::wait(ms)),
    };
    let factor = match eta.error_factor {
        factor if factor > 0.0 => format!(", usually right within a factor of {factor:.1}"),
        _ => String::new(),
    };
    let jobs = if eta.samples == 1 { "1 job".into() } else { format!("{} jobs", eta.samples) };
    format!("{begins}done {} (from {jobs} like it{factor})", format::wait(eta.end_in_ms))
}

/// How much waits for a device kind.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Depth {
    pub sku: String,
    pub running: u64,
    pub waiting: u64,
    /// When the oldest that waits was submitted; 0: nothing waits.
    pub oldest_ms: u64,
    /// Devices that are online, and those of them that work.
    pub online: u64,
    pub busy: u64,
}

pub fn depths(depths: &[Depth]) -> Table {
    let columns = [words("SKU"), figures("Waiting"), figures("Oldest"), figures("Running"), figures("Devices online")];
    let mut table = Table::new("depths", "Queue by device kind", &columns);
    table.empty = Empty::new("Nothing runs and nothing waits.");
    for depth in depths {
        let href = format!("/jobs?sku={}&state=queued", depth.sku);
        let devices = match depth.online {
            0 => "none".into(),
            online => format!("{online}, {} busy", depth.busy),
        };
        table.push(
            &*depth.sku,
            "",
            [
                Cell::of([Part::link(href, &*depth.sku)]),
                Cell::text(format::grouped(depth.waiting)).strong(depth.waiting > 0),
                Cell::time(time(depth.oldest_ms)),
                Cell::text(format::grouped(depth.running)),
                Cell::text(devices),
            ],
        );
    }
    table
}

pub fn engines(engines: &[v1::Engine], server: &str) -> Table {
    let columns = [
        column("Model", "wide"),
        words("SKU"),
        words("Toolchain"),
        figures("Median"),
        figures("Throughput"),
        figures("Builds"),
        figures("Plan"),
        column("Built", "when"),
        words("Fetch"),
    ];
    let mut table = Table::new("engines", "Engines", &columns);
    table.empty = Empty::new("No engine is built yet. The first finished job puts one here; then this gets it:")
        .typing("planforge fetch MODEL.onnx --sku SKU");
    let rows: Vec<EngineRow> = engines.iter().map(|engine| EngineRow::new(engine, server)).collect();
    let legend = disturbance::legend(rows.iter().any(|row| row.is_marked));
    table.notes.extend(Some(legend).filter(|legend| !legend.is_empty()));
    for (row, engine) in rows.into_iter().zip(engines) {
        let href = format!("/plans/{}", engine.plan_digest);
        let mut model = vec![Part::link(href, row.model), Part::Digest(row.model_digest)];
        model.extend((!row.accurate).then(|| Part::tag("not verified", "bad")));
        model.extend(row.given_inputs.then(|| Part::tag("verified on given inputs", "warn")));
        model.extend(row.simulated.then(|| Part::tag("simulated", "warn")));
        let mut toolchain = vec![Part::Text(row.toolchain)];
        if !row.spec.is_empty() {
            toolchain.extend([Part::Break, Part::Muted(row.spec)]);
        }
        table.push(
            &*engine.engine_key,
            "",
            [
                Cell::of(model),
                Cell::code(row.sku),
                Cell::of(toolchain),
                Cell::text(&*row.median).strong(!row.is_marked && row.median != dash()),
                Cell::text(row.throughput),
                Cell::text(row.builds.to_string()),
                Cell::text(row.size),
                Cell::time(row.created),
                Cell::of([Part::Command(row.fetch)]),
            ],
        );
    }
    table
}

/// The first of engines, with where all of them are.
pub fn engines_in_part(mut list: Vec<v1::Engine>, most: usize, more: String, server: &str) -> Table {
    let unseen = list.len().saturating_sub(most);
    list.truncate(most);
    let mut table = engines(&list, server);
    if unseen > 0 {
        table.notes.push(format!("{} of {}", list.len(), format::grouped((list.len() + unseen) as u64)));
        table.more = more;
    }
    table
}

/// Projects, where there is more than one, or a limit: a farm of one without limits has nothing to say of it.
pub fn projects(projects: &[v1::Project], unseen: usize) -> Option<Table> {
    let is_limited = |project: &v1::Project| {
        let set = [project.max_jobs, project.max_stored_bytes, project.own_max_jobs, project.own_max_stored_bytes];
        project.share != 1 || set.iter().any(|limit| *limit > 0)
    };
    if projects.len() < 2 && !projects.iter().any(is_limited) {
        return None;
    }
    Some(quotas(projects, unseen))
}

/// What each project has and may have.
pub fn quotas(projects: &[v1::Project], unseen: usize) -> Table {
    let columns = [
        column("Project", "wide"),
        figures("Share"),
        figures("Jobs"),
        figures("Running"),
        figures("May have"),
        figures("Stored"),
        figures("May store"),
    ];
    let mut table = Table::new("projects", "Projects", &columns);
    table.empty = Empty::new("No project has jobs or limits yet.");
    if unseen > 0 {
        table.notes.push(format!("{unseen} more: planforge projects list"));
    }
    for project in projects {
        let limits = [project.max_stored_bytes, project.own_max_stored_bytes];
        let limit = limits.into_iter().filter(|bytes| *bytes > 0).min();
        table.push(
            &*project.name,
            "",
            [
                Cell::text(&*project.name),
                Cell::text(project.share.to_string()),
                Cell::text(format::grouped(project.live_jobs)),
                Cell::text(format::grouped(project.running_jobs)),
                Cell::text(format::grouped(project.jobs_limit)),
                Cell::text(format::bytes(project.stored_bytes)),
                Cell::text(limit.map_or_else(|| "no limit".into(), format::bytes)),
            ],
        );
    }
    table
}

pub fn agents(agents: &[v1::Agent]) -> Table {
    let columns = [
        words("State"),
        column("Agent", "wide"),
        words("Version"),
        figures("Devices"),
        column("Labels", "detail"),
        column("Works on", "detail"),
        words("Token"),
        column("Last seen", "when"),
        column("Do", "acts"),
    ];
    let mut table = Table::new("agents", "Agents", &columns);
    table.empty = Empty::new("No agent has joined yet.");
    for agent in agents {
        let pill = match agent {
            agent if !agent.online => Pill::new("offline", "○", "off"),
            agent if agent.drained => Pill::new("drained", "⇣", "warn"),
            agent if agent.draining => Pill::new("shutting down", "⇣", "warn"),
            _ => Pill::new("online", "●", "good"),
        };
        let (action, text) = if agent.drained { ("/do/resume", "Resume") } else { ("/do/drain", "Drain") };
        let act = |action, text, is_grave| {
            Part::Act(Act { action, name: "agent", value: agent.id.clone(), text, label: agent.name.clone(), is_grave })
        };
        // One that is there would join again at once.
        let forget = (!agent.online).then(|| act("/do/forget", "Forget", true));
        let acts = [Some(act(action, text, false)), forget];
        let mut jobs = Vec::new();
        for job in &agent.jobs {
            jobs.extend([Part::link(format!("/jobs/{job}"), &**job), Part::Text(" ".into())]);
        }
        table.push(
            &*agent.id,
            "",
            [
                Cell::of([Part::pill(pill)]),
                Cell::of([Part::Text(agent.name.clone()), Part::Digest(format::short(&agent.id))]),
                Cell::text(&*agent.version),
                Cell::text(agent.devices.to_string()),
                Cell::text(agent.labels.join(" ")),
                Cell::of(jobs),
                Cell::text(&*agent.token),
                Cell::time(time(agent.last_seen_ms)),
                Cell::of(acts.into_iter().flatten()),
            ],
        );
    }
    table
}

pub fn tokens(tokens: &[v1::Token]) -> Table {
    let columns = [
        words("State"),
        column("Token", "wide"),
        words("Role"),
        words("Project"),
        words("Agent"),
        column("Made", "when"),
        column("Last used", "when"),
        column("Good", "when"),
        column("Do", "acts"),
    ];
    let mut table = Table::new("tokens", "Tokens", &columns);
    table.empty = Empty::new("There is no token.").typing("planforge token create NAME --role submit");
    for token in tokens {
        let pill = match token.revoked {
            true => Pill::new("revoked", "⊘", "off"),
            false => Pill::new("good", "✓", "good"),
        };
        let project = if token.project.is_empty() { "all" } else { &token.project };
        let act = Act {
            action: "/do/revoke",
            name: "id",
            value: token.id.clone(),
            text: "Revoke",
            label: format!("the token {}", token.name),
            is_grave: true,
        };
        let until = match token.expires_ms {
            0 => "until revoked".into(),
            at_ms => format!("until {}", &format::iso(at_ms)[..10]),
        };
        table.push(
            &*token.id,
            "",
            [
                Cell::of([Part::pill(pill)]),
                Cell::text(&*token.name),
                Cell::text(&*token.role),
                Cell::text(project),
                Cell::text(&*token.agent_name),
                Cell::time(time(token.created_ms)),
                if token.last_used_ms == 0 { Cell::text("never") } else { Cell::time(time(token.last_used_ms)) },
                Cell::text(until),
                Cell::of((!token.revoked).then_some(Part::Act(act))),
            ],
        );
    }
    table
}

/// Links for reading, with what ends each.
pub fn shares(shares: &[v1::Share]) -> Table {
    let columns = [
        column("Shows", "wide"),
        words("Project"),
        words("Made by"),
        column("Until", "when"),
        column("Last read", "when"),
        column("Do", "acts"),
    ];
    let mut table = Table::new("shares", "Read-only links", &columns);
    table.empty = Empty::new("Nobody has a link. The pages of requests and models make one; or:")
        .typing("planforge share create --request REQUEST");
    for share in shares {
        let (what, href, of) = match share.request_id.as_str() {
            "" => ("model ", format!("/models/{}", share.model_digest), format::short(&share.model_digest)),
            id => ("request ", format!("/requests/{id}"), id.to_owned()),
        };
        let act = Act {
            action: "/do/unshare",
            name: "id",
            value: share.id.clone(),
            text: "Revoke",
            label: format!("the link to {what}{of}"),
            is_grave: false,
        };
        let read = match share.opened_ms {
            0 => Cell::text("never"),
            at_ms => Cell::time(time(at_ms)),
        };
        table.push(
            &*share.id,
            "",
            [
                Cell::of([Part::Text(what.into()), Part::link(href, of)]),
                Cell::text(if share.project.is_empty() { "all" } else { &share.project }),
                Cell::text(&*share.actor),
                Cell::of([Part::Text(format::iso(share.expires_ms)[..10].into())]),
                read,
                Cell::of([Part::Act(act)]),
            ],
        );
    }
    table
}

/// Pins; those of `own` may be taken away by who looks, or all where nobody is named.
pub fn pins(pins: &[v1::Pin], own: Option<&str>) -> Table {
    let columns = [
        column("Model", "wide"),
        words("SKU"),
        words("Project"),
        words("Owner"),
        column("Why", "detail"),
        column("Until", "when"),
        column("Do", "acts"),
    ];
    let mut table = Table::new("pins", "Pins", &columns);
    table.empty = Empty::new("Nobody wants an engine kept.").typing("planforge pins add PLAN");
    for pin in pins {
        let href = format!("/plans/{}", pin.plan_digest);
        let act = Act {
            action: "/do/unpin",
            name: "pin",
            value: format!("{}.{}.{}", pin.plan_digest, pin.project, pin.owner),
            text: "Unpin",
            label: format!("{} on {}", pin.model_name, pin.sku),
            is_grave: false,
        };
        let is_own = own.is_none_or(|own| own == pin.owner);
        table.push(
            format!("{}.{}.{}", pin.plan_digest, pin.project, pin.owner),
            "",
            [
                Cell::of([Part::link(href, &*pin.model_name), Part::Digest(format::short(&pin.plan_digest))]),
                Cell::code(&*pin.sku),
                Cell::text(&*pin.project),
                Cell::text(&*pin.owner),
                Cell::text(&*pin.reason),
                Cell::of([Part::Text(format::iso(pin.expires_ms)[..10].into())]),
                Cell::of(is_own.then_some(Part::Act(act))),
            ],
        );
    }
    table
}

pub fn audit(records: &[v1::AuditRecord]) -> Table {
    let columns = [
        column("When", "when"),
        words("Who"),
        words("Did"),
        column("What", "detail"),
        words("Outcome"),
        words("From"),
        column("More", "detail"),
    ];
    let mut table = Table::new("audit", "Audit log", &columns);
    table.empty = Empty::new("Nothing like that was done.");
    for record in records {
        let who = if record.actor.is_empty() { "a stranger" } else { &record.actor };
        let mut actor = vec![Part::Text(who.into())];
        if !record.project.is_empty() {
            actor.extend([Part::Text(" ".into()), Part::tag(&*record.project, "")]);
        }
        let outcome = match record.outcome.as_str() {
            "ok" => Pill::new("ok", "✓", "good"),
            other => Pill::new(other, "✕", "bad"),
        };
        table.push(
            record.seq.to_string(),
            "",
            [
                Cell::time(time(record.at_ms)),
                Cell::of(actor),
                Cell::text(&*record.what),
                Cell::text(&*record.object),
                Cell::of([Part::pill(outcome)]),
                Cell::text(&*record.from),
                Cell::text(&*record.detail),
            ],
        );
    }
    table
}

/// What happened to a job, oldest first.
pub fn history(events: &[v1::JobEvent]) -> Table {
    let columns = [column("When", "when"), words("What"), column("More", "detail"), words("By")];
    let mut table = Table::new("history", "History", &columns);
    table.empty = Empty::new("Nothing happened yet.");
    for event in events.iter().map(EventRow::new) {
        table.push(
            event.seq.to_string(),
            "",
            [Cell::time(event.at), Cell::text(event.what), Cell::text(event.detail), Cell::text(event.actor)],
        );
    }
    table
}

pub fn pauses(pauses: &[v1::Pause]) -> Table {
    let columns = [
        words("Paused"),
        column("Name", "wide"),
        words("When"),
        words("Now"),
        words("By"),
        column("Why", "wide"),
        column("Since", "when"),
    ];
    let mut table = Table::new("pauses", "Pauses", &columns);
    table.empty = Empty::new("Nothing is paused.");
    for pause in pauses {
        let is_window = pause.window.is_some();
        let when = match (&pause.window, pause.until_ms) {
            (Some(window), _) => Cell::text(window_shown(window)),
            (None, 0) => Cell::text("until it is resumed"),
            (None, until_ms) => Cell::time(time(until_ms)),
        };
        table.push(
            format!("{} {} {is_window}", pause.kind, pause.name),
            "",
            [
                Cell::text(&*pause.kind),
                Cell::text(&*pause.shown),
                when,
                Cell::text(if pause.holds { "paused" } else { "" }),
                Cell::text(&*pause.actor),
                Cell::text(&*pause.reason),
                Cell::time(time(pause.since_ms)),
            ],
        );
    }
    table
}

/// A time that comes again, in words.
fn window_shown(window: &v1::PauseWindow) -> String {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let named = window.days.iter().filter_map(|day| DAYS.get((*day as usize).wrapping_sub(1)).copied());
    let days = if window.days.len() == DAYS.len() { "day".into() } else { named.collect::<Vec<_>>().join(", ") };
    let (hour, minute) = (window.start_minute / 60, window.start_minute % 60);
    format!("every {days} at {hour:02}:{minute:02} UTC for {} min", window.minutes)
}

pub fn plugins(plugins: &[v1::Plugin]) -> Table {
    let columns = [column("Plugin", "wide"), words("Allowed by"), column("Since", "when")];
    let mut table = Table::new("plugins", "Plugins", &columns);
    table.empty = Empty::new("No plugin is allowed.");
    for plugin in plugins {
        let name = [Part::Text(plugin.name.clone()), Part::Digest(format::short(&plugin.digest))];
        table.push(
            &*plugin.digest,
            "",
            [Cell::of(name), Cell::text(&*plugin.actor), Cell::time(time(plugin.allowed_ms))],
        );
    }
    table
}

pub fn caches(caches: &[v1::TuningCache]) -> Table {
    let columns = [
        words("SKU"),
        column("Device", "wide"),
        words("Toolchain"),
        figures("Size"),
        figures("Generation"),
        words("Left by"),
        column("When", "when"),
    ];
    let mut table = Table::new("caches", "Tuning caches", &columns);
    table.empty = Empty::new("No build has left timings yet.");
    for cache in caches {
        let size = if cache.digest.is_empty() { "dropped".into() } else { format::bytes(cache.size_bytes) };
        table.push(
            &*cache.scope,
            "",
            [
                Cell::code(&*cache.sku),
                Cell::text(&*cache.device_name),
                Cell::text(crate::rows::toolchain(&cache.toolchain_json, "")),
                Cell::text(size),
                Cell::text(cache.generation.to_string()),
                Cell::of((!cache.job.is_empty()).then(|| Part::link(format!("/jobs/{}", cache.job), &*cache.job))),
                Cell::time(time(cache.published_ms)),
            ],
        );
    }
    table
}

/// Where a plan was measured.
pub fn reports(facts: &[v1::ReportFacts], reports_json: &[String]) -> Table {
    let columns =
        [words("SKU"), figures("Median"), figures("p99"), figures("Throughput"), words("Job"), column("When", "when")];
    let mut table = Table::new("reports", "Measurements", &columns);
    table.empty = Empty::new("It was not measured yet.");
    for (fact, report) in facts.iter().zip(reports_json) {
        let figures = figures_of(report);
        let marked = figures.as_ref().is_some_and(is_marked);
        let p99 = figures.as_ref().and_then(|figures| figures.latency_ms.p99);
        table.push(
            &*fact.digest,
            "",
            [
                Cell::code(&*fact.sku),
                Cell::text(median(figures.as_ref())).strong(!marked),
                Cell::text(p99.map_or_else(dash, format::milliseconds)),
                Cell::text(throughput(figures.as_ref())),
                Cell::of([Part::link(format!("/jobs/{}", fact.job), &*fact.job)]),
                Cell::time(time(fact.created_ms)),
            ],
        );
    }
    table
}

/// Device kinds in order, and of each the fastest engine first.
pub fn best_first(engines: &mut [v1::Engine]) {
    let median = |engine: &v1::Engine| {
        figures_of(&engine.report_json).and_then(|figures| figures.latency_ms.median).unwrap_or(f64::INFINITY)
    };
    let mut medians: HashMap<String, f64> = HashMap::new();
    for engine in engines.iter() {
        medians.insert(engine.plan_digest.clone(), median(engine));
    }
    engines.sort_by(|left, right| {
        left.sku.cmp(&right.sku).then(medians[&left.plan_digest].total_cmp(&medians[&right.plan_digest]))
    });
}

/// What is stored, of one project and kind.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Stored {
    pub project: String,
    pub kind: String,
    pub blobs: u64,
    pub bytes: u64,
}

/// What is stored by project and kind; `counted`: when, in Unix milliseconds.
pub fn stored(heaps: &[Stored], counted: Option<u64>) -> Table {
    let columns = [column("Kind", "wide"), words("Project"), figures("Blobs"), figures("Bytes")];
    let mut table = Table::new("stored", "Storage by kind and project", &columns);
    table.empty = Empty::new(match counted {
        None => "It is being counted: look again in a while.",
        Some(_) => "Nothing is stored yet.",
    });
    for heap in heaps {
        let bytes = if heap.bytes == 0 { dash() } else { format::bytes(heap.bytes) };
        table.push(
            format!("{}.{}", heap.project, heap.kind),
            "",
            [
                Cell::text(&*heap.kind),
                Cell::text(&*heap.project),
                Cell::text(format::grouped(heap.blobs)),
                Cell::text(&*bytes).strong(bytes != dash()),
            ],
        );
    }
    if let Some(at_ms) = counted.filter(|_| !heaps.is_empty()) {
        let note = "what two projects hold counts for both; of logs only their number is known";
        table.notes.push(format!("Counted {}; {note}.", format::iso(at_ms)));
    }
    table
}

/// Which releases work together here: this coordinator's, and those of agents.
pub fn versions(own: &str, protocol: u32, agents: &[v1::Agent]) -> Table {
    let columns = [column("What", "wide"), words("Version"), figures("Protocol"), figures("Online"), figures("Away")];
    let mut table = Table::new("versions", "Versions", &columns);
    let of_own = [Cell::text("Coordinator"), Cell::text(own), Cell::text(protocol.to_string())];
    table.push("coordinator", "", of_own.into_iter().chain([Cell::text(""), Cell::text("")]));
    let mut counts: BTreeMap<(&str, u32), (u64, u64)> = BTreeMap::new();
    for agent in agents {
        let count = counts.entry((&agent.version, agent.protocol)).or_default();
        *if agent.online { &mut count.0 } else { &mut count.1 } += 1;
    }
    for ((version, protocol), (online, away)) in counts.into_iter().rev() {
        let mut named = vec![Part::Text(version.into())];
        named.extend((version != own).then(|| Part::tag("another release", "warn")));
        let spoken = if protocol == 0 { "not told".into() } else { protocol.to_string() };
        table.push(
            format!("{version} {protocol}"),
            "",
            [
                Cell::text("Agents"),
                Cell::of(named),
                Cell::text(spoken),
                Cell::text(format::grouped(online)),
                Cell::text(format::grouped(away)),
            ],
        );
    }
    table
}

/// What a collection takes away, or took.
pub fn collected(reply: &v1::CollectGarbageReply) -> Table {
    let columns = [column("What", "wide"), figures("Count"), figures("Bytes")];
    let mut table = Table::new("collected", "What goes", &columns);
    let rows = [
        ("Ended jobs", reply.jobs, None),
        ("Engines", reply.engines, Some(reply.engine_bytes)),
        ("Older measurements", reply.reports, None),
        ("Events", reply.events, None),
        ("Logs", reply.logs, None),
        ("Files that no job names", reply.files, None),
    ];
    for (what, count, bytes) in rows {
        let bytes = bytes.map(format::bytes).unwrap_or_default();
        table.push(
            what,
            "",
            [Cell::text(what), Cell::text(format::grouped(count)).strong(count > 0), Cell::text(bytes)],
        );
    }
    table
}

/// The first engines that go, and why.
pub fn gone(reply: &v1::CollectGarbageReply) -> Table {
    let columns = [column("Plan", "wide"), figures("Bytes"), words("Why")];
    let mut table = Table::new("gone", "Engines that go", &columns);
    for engine in &reply.gone {
        let link = Part::link(format!("/plans/{}", engine.plan_digest), format::short(&engine.plan_digest));
        table.push(
            &*engine.plan_digest,
            "",
            [Cell::of([link]), Cell::text(format::bytes(engine.plan_bytes)), Cell::text(&*engine.why)],
        );
    }
    table
}

/// Names and values.
pub fn facts(id: &'static str, label: &'static str) -> Table {
    Table::new(id, label, &[column("What", "wide"), words("Now")])
}

/// The routes of the JSON API: method and path, and what it is for.
pub fn routes(routes: &[(&'static str, &'static str)]) -> Table {
    let mut table = Table::new("routes", "Routes", &[words("Route"), column("For", "detail")]);
    for (route, what) in routes {
        table.push(*route, "", [Cell::code(*route), Cell::text(*what)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use askama::Template as _;

    #[test]
    fn one_project_without_limits_is_not_shown_and_several_are() {
        let project =
            |name: &str| v1::Project { name: name.into(), share: 1, jobs_limit: 80_000, ..Default::default() };
        assert!(projects(&[project("default")], 0).is_none());
        let limited = v1::Project { max_stored_bytes: 3 << 30, own_max_stored_bytes: 2 << 30, ..project("<b>red") };
        let shown = projects(&[limited], 0).unwrap().render().unwrap();
        assert!(shown.contains("80,000") && shown.contains("2.00 GiB") && !shown.contains("<b>"), "{shown}");
        assert!(projects(&[project("red"), project("blue")], 0).unwrap().render().unwrap().contains("blue"));
    }

    #[test]
    fn a_forecast_says_what_it_rests_on() {
        let eta = v1::Eta { start_in_ms: 240_000, end_in_ms: 600_000, error_factor: 1.4, samples: 12 };
        let words = "begins in 4 min, done in 10 min (from 12 jobs like it, usually right within a factor of 1.4)";
        assert_eq!(eta_words(&eta), words);
        assert_eq!(eta_words(&v1::Eta { samples: 1, ..Default::default() }), "done now (from 1 job like it)");
    }
}
