//! How jobs, devices, engines and reports look to people: plain tables, one row each, nothing by colour alone.

pub mod advice;
pub mod comparison;
pub mod declared;
pub mod history;
#[cfg(feature = "local")]
pub mod load;
pub mod matrix;
pub mod pauses;
pub mod projects;
pub mod report;
pub mod shares;
pub mod specs;
pub mod story;
pub mod sweep;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets::NOTHING};
pub use pauses::{pause_time, pauses};
use planforge_proto::{v1, view};
pub use planforge_report::format::{bytes, milliseconds};
use planforge_report::{disturbance, figures::Figures};
use planforge_types::{
    BuildSpec, Precision, Toolchain,
    preparation::{Int8Way, Kind, PREPARER, PrepareAsk},
    shown,
};
use serde_json::Value;

/// Digits of a digest that are shown where a unique prefix is enough.
const SHORT_DIGEST: usize = 12;

/// A table without lines, so that columns can be cut and pasted.
pub fn table(columns: &[&str]) -> Table {
    let mut table = headless();
    table.set_header(columns.iter().map(|name| name.to_uppercase()));
    table
}

/// As [`table`], without names over the columns.
fn headless() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// The text of a table without trailing blanks.
///
/// Every cell stays on its line and is escaped before columns are laid out, so that a name can forge neither.
pub fn render(mut table: Table, numeric: &[usize]) -> String {
    for row in table.row_iter_mut() {
        if row.cell_iter().all(|cell| shown::line(&cell.content()) == cell.content()) {
            continue;
        }
        *row = row.cell_iter().map(|cell| Cell::new(shown::line(&cell.content()))).collect::<Vec<_>>().into();
    }
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    for index in numeric {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.to_string().lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `3m12s`, for ages and run times.
pub fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{}.{}s", seconds, ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// The first digits of a digest.
pub fn short(digest: &str) -> &str {
    digest.get(..SHORT_DIGEST).unwrap_or(digest)
}

/// The figures of a report; none where there is no report.
fn figures(report_json: &str) -> Figures {
    Figures::parse(report_json).unwrap_or_default()
}

/// A table with what the mark at a median means below it, where one has it.
pub fn explained(table: String, is_marked: bool) -> String {
    if is_marked { format!("{table}{}\n", disturbance::legend(true)) } else { table }
}

/// Median latency, marked where every window was disturbed, and throughput; dashes where there are none.
fn headline(figures: &Figures) -> [String; 2] {
    let disturbed = figures.wholly_disturbed().is_some();
    let median = figures.latency_ms.median.map(milliseconds).map(|median| disturbance::marked(median, disturbed));
    let median = median.unwrap_or_else(|| "-".into());
    let throughput = figures.throughput_per_s.map_or_else(|| "-".into(), |t| format!("{t:.1}/s"));
    [median, throughput]
}

/// Model name of a job or engine.
pub fn model_name(model: Option<&v1::Model>) -> &str {
    model.map_or("-", |m| if m.name.is_empty() { short(&m.digest) } else { &m.name })
}

/// State and, while a job is under way, what it does or waits for.
pub fn state(job: &v1::Job) -> String {
    let simulated = if figures(&job.report_json).simulated { ", simulated" } else { "" };
    format!("{}{simulated}", plain_state(job))
}

fn plain_state(job: &v1::Job) -> String {
    use v1::JobState::*;
    let name = match job.builds {
        0 | 1 => view::state_name(job.state()),
        builds => format!("{} ({builds} builds)", view::state_name(job.state())),
    };
    match job.state() {
        Running if !job.phase.is_empty() => {
            format!("{name}: {} {:.0}%{}", job.phase, job.progress * 100.0, foretold(job))
        }
        Queued | Blocked | Unplaceable if !job.waiting_reason.is_empty() => {
            format!("{name}: {}{}", job.waiting_reason, foretold(job))
        }
        Succeeded if job.cached && job.kind() != v1::JobKind::Prepare => "cached".into(),
        Succeeded if job.kind() == v1::JobKind::Compile && !job.plan_digest.is_empty() => "built, not measured".into(),
        Succeeded if job.kind() == v1::JobKind::Compile => {
            format!("compiled ahead: {}", bytes(job.prepared_bytes))
        }
        Succeeded if job.kind() == v1::JobKind::Prepare => {
            let made = job.preparation.as_ref().and_then(|preparation| preparation.made.as_ref());
            format!("prepared {}", model_name(made))
        }
        Succeeded if !job.accurate && !job.report_json.is_empty() => "succeeded, inaccurate".into(),
        _ => name,
    }
}

/// From what a model was prepared, and how, in a sentence.
pub fn prepared_from(preparation: &v1::Preparation) -> String {
    let ask = serde_json::from_str::<PrepareAsk>(&preparation.ask_json);
    let ask = ask.map_or_else(|_| preparation.ask_json.clone(), |ask| ask.words());
    let name = if preparation.source_name.is_empty() { "a model" } else { &preparation.source_name };
    let how = if preparation.as_calibration { "calibrated like" } else { "prepared from" };
    format!("{how} {name} (sha256:{}): {ask}", short(&preparation.source_digest))
}

/// When a job will likely have ended, and how wrong that may be; empty where nothing is known of it.
fn foretold(job: &v1::Job) -> String {
    let Some(eta) = job.eta else { return String::new() };
    let within = match eta.error_factor {
        factor if factor >= 1.0 => format!(" (4 of 5 such forecasts were within ×{factor:.1})"),
        _ => String::new(),
    };
    format!("; done in about {}{within}", duration(eta.end_in_ms))
}

/// One row a job.
pub fn jobs(jobs: &[v1::Job], now_ms: u64) -> String {
    let names: Vec<String> = jobs.iter().map(|job| model_name(job.model.as_ref()).to_owned()).collect();
    job_rows(jobs, ("model", names), None, now_ms)
}

/// Jobs as they were submitted from here: one row each, with the `files` that were named and where the page tells of it
/// (`urls`), where there is a page.
pub fn submitted(jobs: &[v1::Job], files: Vec<String>, urls: Option<Vec<String>>, now_ms: u64) -> String {
    job_rows(jobs, ("file", files), urls.map(|urls| ("url", urls)), now_ms)
}

/// The way to int8 of a job's engine among others: of a model whose ranges another of them takes from a preparation, an
/// engine without any has none.
fn way(job: &v1::Job, among: &[v1::Job]) -> Option<Int8Way> {
    let spec: BuildSpec = serde_json::from_str(&job.spec_json).ok()?;
    let of = |preparation: &v1::Preparation| serde_json::from_str::<PrepareAsk>(&preparation.ask_json).ok();
    if job.kind() == v1::JobKind::Prepare {
        return None;
    }
    match &job.preparation {
        Some(from) if from.as_calibration => return Some(Int8Way::Calibrated),
        Some(from) if of(from).is_some_and(|ask| ask.precision == Kind::Int8) => return Some(Int8Way::Qdq),
        _ => {}
    }
    if let Some(way) = Int8Way::of(&spec, None) {
        return Some(way);
    }
    let model = job.model.as_ref().map(|model| model.digest.as_str())?;
    let is_source = |other: &v1::Job| {
        let from = other.preparation.as_ref().filter(|_| other.kind() != v1::JobKind::Prepare);
        from.is_some_and(|from| from.source_digest == model)
    };
    (spec.precision == Precision::Int8 && among.iter().any(is_source)).then_some(Int8Way::Uncalibrated)
}

/// One row a job, with a column of what it is called and perhaps one more at the end.
fn job_rows(jobs: &[v1::Job], name: specs::Column, last: Option<specs::Column>, now_ms: u64) -> String {
    let mut told: Vec<specs::Column> = vec![name, ("sku", jobs.iter().map(|job| job.sku.clone()).collect())];
    told.extend(specs::toolchains(jobs.iter().map(|job| job.toolchain_json.as_str())));
    told.extend(specs::columns_by_way(jobs.iter().map(|job| (job.spec_json.as_str(), way(job, jobs)))));
    if jobs.iter().any(|job| !job.tags.is_empty()) {
        told.push(("tags", jobs.iter().map(|job| job.tags.join(" ")).collect()));
    }
    let figures_at = 1 + told.len();
    let headers = told.iter().map(|(header, _)| *header);
    let headers: Vec<&str> = ["job"]
        .into_iter()
        .chain(headers)
        .chain(["state", "age", "took", "median", "throughput"])
        .chain(last.iter().map(|(header, _)| *header))
        .collect();
    let mut rows = table(&headers);
    let mut is_marked = false;
    for (index, job) in jobs.iter().enumerate() {
        let figures = figures(&job.report_json);
        is_marked |= figures.wholly_disturbed().is_some();
        let [median, throughput] = headline(&figures);
        let age = duration(now_ms.saturating_sub(job.created_ms));
        let took = match (job.started_ms, job.ended_ms) {
            (0, _) => "-".into(),
            (started, 0) => duration(now_ms.saturating_sub(started)),
            (started, ended) => duration(ended.saturating_sub(started)),
        };
        let at = |(_, cells): &specs::Column| cells.get(index).cloned().unwrap_or_default();
        let row = [job.id.clone()].into_iter().chain(told.iter().map(at));
        let row = row.chain([state(job), age, took, median, throughput]).chain(last.iter().map(at));
        rows.add_row(row.collect::<Vec<_>>());
    }
    let numeric: Vec<usize> = (figures_at + 1..figures_at + 5).collect();
    explained(render(rows, &numeric), is_marked)
}

/// What a build gave: one row a job, with where its plan lies.
pub fn built(jobs: &[v1::Job], views: &[view::JobView]) -> String {
    let mut rows = table(&["model", "sku", "state", "median", "p99", "throughput", "top-1", "build", "size", "plan"]);
    let mut is_marked = false;
    for (job, view) in jobs.iter().zip(views) {
        let figures = figures(&job.report_json);
        is_marked |= figures.wholly_disturbed().is_some();
        let [median, throughput] = headline(&figures);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        rows.add_row([
            model_name(job.model.as_ref()).to_owned(),
            job.sku.clone(),
            state(job),
            median,
            or_dash(figures.latency_ms.p99.map(milliseconds)),
            throughput,
            or_dash(
                figures
                    .accuracy
                    .as_ref()
                    .and_then(|accuracy| accuracy.top1)
                    .map(|share| format!("{:.2}%", share * 100.0)),
            ),
            or_dash(figures.build_ms.map(milliseconds)),
            if job.plan_bytes == 0 { "-".into() } else { bytes(job.plan_bytes) },
            view.plan_path.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    explained(render(rows, &[3, 4, 5, 6, 7, 8]), is_marked)
}

/// What a processor prepares: models, or kernels for devices elsewhere.
fn prepares(json: &str) -> String {
    let of_models = serde_json::from_str::<Toolchain>(json).is_ok_and(|toolchain| toolchain.backend == PREPARER);
    if of_models { "prepares models".to_owned() } else { format!("compiles ahead for {}", toolchain(json)) }
}

/// One row a device kind; the last column is the flag to paste. With `embedded` they are those of a farm that commands run
/// among themselves: an idle one has no agent before a command builds.
pub fn devices(devices: &[v1::Device], embedded: bool) -> String {
    let labelled = devices.iter().any(|device| !device.labels.is_empty());
    let labels = labelled.then_some("labels");
    let columns: Vec<_> =
        ["agent", "device", "name", "state"].into_iter().chain(labels).chain(["toolchains", "flag"]).collect();
    let mut rows = table(&columns);
    for device in devices {
        let fingerprint: Value = serde_json::from_str(&device.fingerprint_json).unwrap_or_default();
        let name = fingerprint.get("name").and_then(Value::as_str).unwrap_or("-").to_owned();
        let mut toolchains: Vec<_> = device.offers.iter().map(|o| toolchain(&o.toolchain_json)).collect();
        if toolchains.is_empty() {
            toolchains.push("none: builds nothing".into());
        }
        toolchains.extend(device.prepares_json.iter().map(|json| prepares(json)));
        for sku in &device.skus {
            let known = [device.agent.clone(), device.id.clone(), name.clone(), device_state(device, embedded)];
            let labels = labelled.then(|| if device.labels.is_empty() { "-".into() } else { device.labels.join(" ") });
            let flag = format!("--sku {sku}");
            rows.add_row(known.into_iter().chain(labels).chain([toolchains.join("; "), flag]));
        }
    }
    render(rows, &[])
}

fn device_state(device: &v1::Device, embedded: bool) -> String {
    let mut words = Vec::new();
    if !device.online {
        words.push("offline".to_owned());
    } else if device.quarantined {
        words.push(format!("quarantined: {}", device.quarantine_reason));
    } else if !device.busy_job.is_empty() {
        words.push(format!("busy: {}", device.busy_job));
    } else if device.busy {
        words.push("busy with another project's job".to_owned());
    } else {
        words.push(if embedded { "idle (embedded)" } else { "idle" }.to_owned());
    }
    // Of a farm that commands run among themselves, every agent that has ended says so.
    if device.draining && (device.online || !embedded) {
        words.push("draining".into());
    }
    if device.simulated {
        words.push("simulated".into());
    }
    words.join(", ")
}

/// `native 3` of a toolchain document.
pub fn toolchain(json: &str) -> String {
    serde_json::from_str::<planforge_types::Toolchain>(json)
        .map_or_else(|_| json.to_owned(), |toolchain| toolchain.to_string())
}

/// One row a timing cache.
pub fn caches(caches: &[v1::TuningCache], now_ms: u64) -> String {
    let mut rows = table(&["scope", "sku", "device", "toolchain", "state", "size", "age", "from job", "agent"]);
    for cache in caches {
        let dropped = cache.digest.is_empty();
        rows.add_row([
            short(&cache.scope).to_owned(),
            cache.sku.clone(),
            cache.device_name.clone(),
            toolchain(&cache.toolchain_json),
            match (dropped, cache.beside.len()) {
                (true, _) => "dropped".to_owned(),
                (false, 0) => format!("kept, {}. copy", cache.generation),
                (false, beside) => format!("kept, {}. copy, {beside} to join", cache.generation),
            },
            if dropped { "-".to_owned() } else { bytes(cache.size_bytes) },
            duration(now_ms.saturating_sub(cache.published_ms)),
            cache.job.clone(),
            cache.agent.clone(),
        ]);
    }
    render(rows, &[5, 6])
}

/// One row an engine that went, or would.
pub fn gone(gone: &[v1::GoneEngine]) -> String {
    let mut rows = table(&["key", "plan", "size", "why"]);
    for engine in gone {
        rows.add_row([
            short(&engine.engine_key).to_owned(),
            short(&engine.plan_digest).to_owned(),
            bytes(engine.plan_bytes),
            engine.why.clone(),
        ]);
    }
    render(rows, &[2])
}

/// One row a plugin.
pub fn plugins(plugins: &[v1::Plugin], now_ms: u64) -> String {
    let mut rows = table(&["digest", "name", "allowed by", "age"]);
    for plugin in plugins {
        let age = match plugin.allowed_ms {
            0 => "-".to_owned(),
            since => duration(now_ms.saturating_sub(since)),
        };
        let name = if plugin.name.is_empty() { "-" } else { &plugin.name };
        rows.add_row([plugin.digest.clone(), name.to_owned(), plugin.actor.clone(), age]);
    }
    render(rows, &[3])
}

/// One row an engine.
pub fn engines(engines: &[v1::Engine], now_ms: u64) -> String {
    let told = specs::columns(engines.iter().map(|engine| engine.spec_json.as_str()));
    let headers = ["model", "sku", "toolchain"].into_iter().chain(told.iter().map(|(header, _)| *header));
    let others = ["key", "plan", "builds", "size", "age", "median", "throughput", "accurate"];
    let mut rows = table(&headers.chain(others).collect::<Vec<_>>());
    let numbers_at = 3 + told.len() + 2;
    let mut is_marked = false;
    for (index, engine) in engines.iter().enumerate() {
        let figures = figures(&engine.report_json);
        is_marked |= figures.wholly_disturbed().is_some();
        let [median, throughput] = match engine.unmeasured {
            true => ["not measured".to_owned(), "-".to_owned()],
            false => headline(&figures),
        };
        let named =
            [model_name(engine.model.as_ref()).to_owned(), engine.sku.clone(), toolchain(&engine.toolchain_json)];
        let specs = told.iter().map(|(_, cells)| cells.get(index).cloned().unwrap_or_default());
        let facts = [
            short(&engine.engine_key).to_owned(),
            short(&engine.plan_digest).to_owned(),
            engine.builds.max(1).to_string(),
            bytes(engine.plan_bytes),
            duration(now_ms.saturating_sub(engine.created_ms)),
            median,
            throughput,
            format!(
                "{}{}{}",
                if engine.accurate { "yes" } else { "no" },
                if engine.inputs_digest.is_empty() { "" } else { ", on given inputs" },
                if engine.simulated { ", simulated" } else { "" }
            ),
        ];
        rows.add_row(named.into_iter().chain(specs).chain(facts).collect::<Vec<_>>());
    }
    let numeric: Vec<usize> = (numbers_at..numbers_at + 5).collect();
    explained(render(rows, &numeric), is_marked)
}

/// One row an engine that is stale.
pub fn refreshed(cells: &[v1::RefreshedCell], dry_run: bool) -> String {
    let mut rows = table(&["model", "sku", "toolchain", "why", "what"]);
    for cell in cells {
        let engine = cell.engine.clone().unwrap_or_default();
        let what = match (cell.refusal.is_empty(), cell.job.as_str()) {
            (false, _) => "refused".to_owned(),
            (true, job) if cell.under_way => format!("under way: {job}"),
            (true, job) if cell.canary => format!("goes first {job}").trim_end().to_owned(),
            (true, job) if cell.follows_canary => format!("follows {job}").trim_end().to_owned(),
            (true, _) if dry_run => "would be built".to_owned(),
            (true, job) => job.to_owned(),
        };
        rows.add_row([
            model_name(engine.model.as_ref()).to_owned(),
            engine.sku.clone(),
            toolchain(&engine.toolchain_json),
            cell.details.join("; "),
            what,
        ]);
    }
    render(rows, &[])
}

/// One row an agent.
pub fn agents(agents: &[v1::Agent], now_ms: u64) -> String {
    let mut rows = table(&["id", "name", "release", "state", "devices", "skus", "seen", "token", "labels"]);
    for agent in agents {
        let mut state = vec![match (agent.online, agent.jobs.as_slice()) {
            (_, [_, ..]) => format!("busy: {}", agent.jobs.join(" ")),
            (true, []) => "idle".to_owned(),
            (false, []) => "offline".to_owned(),
        }];
        if !agent.online && !agent.jobs.is_empty() {
            state.push("offline".into());
        }
        if agent.drained || agent.draining {
            state.push(if agent.drained { "drained".into() } else { "ending".into() });
        }
        let seen = match agent.online {
            true => "now".to_owned(),
            false => format!("{} ago", duration(now_ms.saturating_sub(agent.last_seen_ms))),
        };
        rows.add_row([
            agent.id.clone(),
            agent.name.clone(),
            agent.version.clone(),
            state.join(", "),
            agent.devices.to_string(),
            agent.skus.join(" "),
            seen,
            if agent.token.is_empty() { "-".into() } else { agent.token.clone() },
            if agent.labels.is_empty() { "-".into() } else { agent.labels.join(" ") },
        ]);
    }
    render(rows, &[4])
}

/// One row a token; secrets are never shown again.
pub fn tokens(tokens: &[v1::Token], now_ms: u64) -> String {
    let mut rows = table(&["id", "name", "role", "project", "agent", "state", "created", "last used"]);
    for token in tokens {
        let state = match token {
            t if t.revoked => "revoked".to_owned(),
            t if t.expires_ms != 0 && t.expires_ms <= now_ms => "expired".to_owned(),
            t if t.expires_ms != 0 => format!("expires in {}", duration(t.expires_ms - now_ms)),
            _ => "valid".to_owned(),
        };
        let ago =
            |ms: u64| if ms == 0 { "never".into() } else { format!("{} ago", duration(now_ms.saturating_sub(ms))) };
        let works_in_projects = !matches!(token.role.as_str(), "agent" | "enroll");
        let project = match token.project.as_str() {
            "" if works_in_projects => "all, default when none is named",
            "" => "all",
            project => project,
        };
        rows.add_row([
            token.id.clone(),
            token.name.clone(),
            token.role.clone(),
            project.to_owned(),
            match token.agent_name.as_str() {
                "" if token.agent.is_empty() => "-".to_owned(),
                "" => token.agent.clone(),
                name => name.to_owned(),
            },
            state,
            ago(token.created_ms),
            ago(token.last_used_ms),
        ]);
    }
    render(rows, &[])
}

/// Milliseconds since 1970 by this machine's clock, only to show ages.
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::testing::{disturbed, sample_report};

    #[test]
    fn durations_have_two_units() {
        assert_eq!(duration(950), "0.9s");
        assert_eq!(duration(192_000), "3m12s");
        assert_eq!(duration(90_000_000), "1d01h");
    }

    #[test]
    fn ways_to_int8_stand_in_the_place_of_the_precision() {
        let job = |model: &str, from: Option<(bool, &str)>, spec: &str| v1::Job {
            kind: v1::JobKind::Build.into(),
            model: Some(v1::Model { digest: model.into(), ..Default::default() }),
            spec_json: spec.into(),
            preparation: from.map(|(as_calibration, precision)| v1::Preparation {
                as_calibration,
                source_digest: "source".into(),
                ask_json: format!(r#"{{"precision":"{precision}"}}"#),
                ..Default::default()
            }),
            ..Default::default()
        };
        let int8 = r#"{"precision":"int8"}"#;
        let jobs = [
            job("source", None, int8),
            job("source", Some((true, "int8")), int8),
            job("made", Some((false, "int8")), int8),
            job("made-too", Some((false, "fp16")), r#"{"precision":"fp16"}"#),
            job("other", None, int8),
        ];
        let told: Vec<_> = jobs.iter().map(|one| way(one, &jobs)).collect();
        let [uncalibrated, calibrated, qdq] = Int8Way::ALL.map(Some);
        assert_eq!(told, [uncalibrated, calibrated, qdq, None, None]);
        let text = super::jobs(&jobs, 0);
        assert!(
            text.contains("PRECISION") && text.contains("int8-uncalibrated") && text.contains("int8-qdq"),
            "{text}"
        );
    }

    #[test]
    fn a_device_row_ends_in_the_flag_to_paste() {
        let device = v1::Device {
            id: "cpu0".into(),
            agent: "host".into(),
            skus: vec!["cpu-x86-64-v2".into(), "cpu-x86-64-v3".into()],
            online: true,
            ..Default::default()
        };
        assert!(devices(std::slice::from_ref(&device), true).contains("idle (embedded)"));
        assert!(!devices(std::slice::from_ref(&device), false).contains("LABELS"));
        let labelled = v1::Device { labels: vec!["quiet".into(), "zone=b".into()], ..device.clone() };
        let text = devices(&[labelled, device.clone()], false);
        assert!(text.lines().next().unwrap().contains("LABELS") && text.contains("quiet zone=b"), "{text}");
        let text = devices(&[device], false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].ends_with("--sku cpu-x86-64-v2") && lines[2].ends_with("--sku cpu-x86-64-v3"), "{text}");
        assert!(lines[1].contains("idle") && lines[1].contains("none: builds nothing"), "{text}");
    }

    #[test]
    fn every_list_marks_a_median_of_disturbed_windows_alone_and_says_so() {
        let quiet = serde_json::to_string(&sample_report(1.0)).unwrap();
        let disturbed = serde_json::to_string(&disturbed(sample_report(1.5))).unwrap();
        let job = |report: &String| v1::Job { report_json: report.clone(), ..Default::default() };
        let engine = |report: &String| v1::Engine { report_json: report.clone(), ..Default::default() };
        let lists = |reports: &[&String]| {
            let listed: Vec<_> = reports.iter().map(|report| job(report)).collect();
            let views: Vec<_> = listed.iter().cloned().map(view::JobView::from).collect();
            let engines_of: Vec<_> = reports.iter().map(|report| engine(report)).collect();
            [jobs(&listed, 0), built(&listed, &views), engines(&engines_of, 0)]
        };
        for text in lists(&[&quiet, &disturbed]) {
            let marked: Vec<_> = text.lines().filter(|line| line.contains('*')).collect();
            assert!(marked.len() == 2 && marked[0].contains("1.515 ms*"), "{text}");
            assert_eq!(marked[1], disturbance::legend(true));
        }
        for text in lists(&[&quiet]) {
            assert!(!text.contains('*'), "{text}");
        }
    }

    #[test]
    fn a_job_row_says_why_it_waits() {
        let job = v1::Job {
            state: v1::JobState::Queued.into(),
            waiting_reason: "the device is busy".into(),
            ..Default::default()
        };
        assert_eq!(state(&job), "queued: the device is busy");
    }
}
