//! Devices with their agents, and the farm as a whole.

use super::{MAX_ROWS, Shown, may_submit, shown};
use crate::{
    app::App,
    auth::{Actor, Role},
    farm::DeviceName,
    page::topic::Topic,
    store::Heap,
};
use planforge_page::{
    cards::DeviceCard,
    day::Day,
    lists,
    parts::{DeviceList, FarmActs, ProjectForm},
    table::{Cell, Part, Table},
    view::{Section, View},
};
use planforge_proto::{ApiError, protocol, v1};

/// Devices that have a card on one page, and rows of its lists.
const CARDS: usize = 60;
const ROWS: usize = MAX_ROWS as usize;
/// Lines of the audit log that the farm's page has; all of it is under Activity.
const AUDIT_ROWS: u32 = 10;

/// What each device did within a day, in their order.
pub(super) fn days_of(app: &App, devices: &[v1::Device]) -> Vec<Day> {
    let names: Vec<DeviceName> = devices.iter().map(|device| (device.agent.clone(), device.id.clone())).collect();
    app.farm.days_of(&names)
}

pub(super) async fn devices(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    let mut devices = app.farm.list_devices(actor, v1::ListDevicesRequest::default()).await?.devices;
    let count = devices.len();
    // What needs somebody comes first.
    devices.sort_by_key(|device| (!device.quarantined, !device.online));
    let from = topic.number("from")?.min(count.saturating_sub(1) / CARDS * CARDS);
    let shown_now: Vec<v1::Device> = devices.into_iter().skip(from).take(CARDS).collect();
    let days = days_of(app, &shown_now);
    let cards: Vec<DeviceCard> =
        shown_now.iter().zip(&days).map(|(device, day)| DeviceCard::new(device, day)).collect();
    let to = |name: &str, at: usize| match at {
        0 => topic.without(name).address(),
        at => topic.without(name).with(name, &at.to_string()),
    };
    let last = from + cards.len();
    let list = DeviceList {
        place: if count > CARDS { format!("{} to {last} of {count} devices", from + 1) } else { String::new() },
        back: if from > 0 { to("from", from.saturating_sub(CARDS)) } else { String::new() },
        more: if last < count { to("from", last) } else { String::new() },
        cards,
        server: server.into(),
    };
    let mut sections = vec![Section::html("", "devices", &list)];
    if actor.is_farm_admin() {
        let agents = app.farm.list_agents(actor).await?.agents;
        let table = lists::agents(&agents).page(topic.number("agents")?, ROWS, |at| to("agents", at));
        sections.push(Section::table("Agents", table));
    }
    Ok(shown("Devices", View { sections, ..View::default() }))
}

/// What is stored by project and kind, and when that was counted.
pub(super) async fn stored(app: &App, actor: &Actor) -> Result<(Option<u64>, Vec<lists::Stored>), ApiError> {
    let Some((at_ms, heaps)) = app.farm.stored_by_kind(actor).await? else { return Ok((None, Vec::new())) };
    let stored =
        |heap: Heap| lists::Stored { project: heap.project, kind: heap.kind, blobs: heap.blobs, bytes: heap.bytes };
    Ok((Some(at_ms), heaps.into_iter().map(stored).collect()))
}

pub(super) async fn farm(app: &App, actor: &Actor) -> Result<Shown, ApiError> {
    let info = app.farm.server_info(actor);
    let (counted, heaps) = stored(app, actor).await?;
    let mut sections = vec![Section::table("Storage by kind and project", lists::stored(&heaps, counted))];
    if actor.is_farm_admin() {
        sections.push(Section::table("Blob store", storage(app)));
        sections.push(Section::table("What is kept", kept(app)));
        sections.push(Section::fixed("farm-acts", &FarmActs));
    }
    let projects = app.farm.shown_projects(actor).await?;
    let unseen = !projects.next_cursor.is_empty();
    let mut table = lists::quotas(&projects.projects, 0);
    if unseen {
        table.notes.push("There are more: planforge projects list".into());
    }
    sections.push(Section::table("Projects and quotas", table.at_most(ROWS, "planforge projects list")));
    if actor.role == Role::Admin {
        let project = actor.project.clone().unwrap_or_default();
        sections.push(Section::fixed("limits", &ProjectForm { sets_shares: project.is_empty(), project }));
    }
    let pins = app.farm.list_pins(actor, v1::ListPinsRequest { limit: MAX_ROWS, ..Default::default() }).await?;
    let own = (actor.role != Role::Admin).then_some(actor.name.as_str());
    let mut pinned = lists::pins(&pins.pins, own);
    if !may_submit(actor) {
        pinned = pinned.without("Do");
    }
    if !pins.next_cursor.is_empty() {
        pinned.notes.push("There are more: planforge pins list --all tells them.".into());
    }
    sections.push(Section::table("Pins", pinned));
    if actor.role == Role::Admin {
        let tokens = lists::tokens(&app.farm.list_tokens(actor).await?.tokens);
        sections.push(Section::table("Tokens", tokens.at_most(ROWS, "planforge token list")));
    }
    if may_submit(actor) {
        let shares = app.farm.list_shares(actor, v1::ListSharesRequest::default()).await?.shares;
        sections.push(Section::table("Read-only links", lists::shares(&shares).at_most(ROWS, "planforge share list")));
    }
    let caches = app.farm.list_caches(actor, v1::ListCachesRequest::default()).await?.caches;
    sections.push(Section::table("Tuning caches", lists::caches(&caches).at_most(ROWS, "planforge caches list")));
    let plugins = lists::plugins(&app.farm.list_plugins(actor).await?.plugins);
    sections.push(Section::table("Plugins", plugins.at_most(ROWS, "planforge plugins list")));
    let pauses = lists::pauses(&app.farm.list_pauses(actor).await?.pauses);
    sections.push(Section::table("Pauses", pauses.at_most(ROWS, "planforge pause list")));
    sections.push(Section::table("Versions", versions(app, actor).await?));
    if actor.role == Role::Admin {
        let mut audit = lists::audit(&app.farm.list_audit(actor, lately()).await?.records);
        audit.notes.push("The newest; all of it, with filters, is under Activity.".into());
        sections.push(Section::table("Audit log", audit));
    }
    let lead = format!("Planforge {}; you are {} ({}).", info.version, info.actor, info.role);
    Ok(shown("Farm", View { lead, sections, ..View::default() }))
}

/// The newest lines of the audit log.
pub(super) fn lately() -> v1::ListAuditRequest {
    v1::ListAuditRequest { limit: AUDIT_ROWS, ..Default::default() }
}

/// Which releases work together; who sees one project alone is told the coordinator's.
pub(super) async fn versions(app: &App, actor: &Actor) -> Result<Table, ApiError> {
    let agents = if actor.is_farm_admin() { app.farm.list_agents(actor).await?.agents } else { Vec::new() };
    Ok(lists::versions(protocol::spoken().release, protocol::spoken().newest, &agents))
}

/// How long what is kept, and how much of it.
pub(super) fn kept(app: &App) -> Table {
    let policy = app.farm.policy();
    let days = |age_ms: Option<u64>, since: &str| match age_ms {
        Some(age_ms) => format!("{} {since}", planforge_page::format::days(age_ms)),
        None => "for ever".to_owned(),
    };
    let room = policy.room_bytes.map_or_else(|| "no limit".into(), planforge_page::format::bytes);
    let facts = [
        ("Ended jobs", days(policy.jobs_ms, "after their end")),
        ("Engines that nobody asks for", days(policy.unused_ms, "after their last use")),
        ("Builds that a newer one took the place of", days(policy.superseded_ms, "after that")),
        ("Measurements of which there is a newer one", days(policy.reports_ms, "after that")),
        ("Events", days(policy.events_ms, "")),
        ("Logs", days(policy.logs_ms, "")),
        ("Files that no job ever named", days(policy.uploads_ms, "")),
        ("Room for engines", room),
        ("Nothing goes within", format!("{} of its last use", planforge_page::format::days(policy.grace_ms))),
    ];
    let mut table = lists::facts("kept", "What is kept");
    for (name, value) in facts {
        table.push(name, "", [Cell::text(name), Cell::text(value.trim())]);
    }
    table.notes.push("Collected once a day; what is pinned stays whatever its age.".into());
    table
}

/// The blob store: room, damage, and how far it was looked through.
pub(super) fn storage(app: &App) -> Table {
    let mut table = lists::facts("storage", "Blob store");
    let bytes = planforge_page::format::bytes;
    let set_aside = app.blobs.quarantined().unwrap_or_default();
    let scrub = app.blobs.scrub_state();
    let room = match app.blobs.available_bytes() {
        Ok(Some(left)) => bytes(left),
        Ok(None) => "no limit".into(),
        Err(_) => "not known".into(),
    };
    let facts = [
        ("Room left", room),
        ("Damaged blobs set aside", set_aside.len().to_string()),
        ("Blobs looked through", format!("{} ({})", scrub.blobs, bytes(scrub.bytes))),
        ("Found damaged since this folder was made", scrub.damaged_total.to_string()),
    ];
    let when = Cell::time((scrub.ended_ms > 0).then(|| planforge_page::format::iso(scrub.ended_ms)));
    table.push("looked", "", [Cell::text("Last whole look through"), when]);
    for (name, value) in facts {
        table.push(name, "", [Cell::text(name), Cell::of([Part::Text(value)])]);
    }
    table
}
