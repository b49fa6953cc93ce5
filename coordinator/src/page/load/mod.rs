//! What a page shows, made of the farm's answers: the same for the first answer, for its updates, and as JSON.

mod activity;
mod coverage;
mod engines;
mod farm;
mod jobs;
mod json;
mod kept;

use super::topic::{Kind, Topic};
use crate::{
    app::App,
    auth::{Actor, Role},
};
use planforge_page::{layers, view::View};
use planforge_proto::{ApiError, ErrorCode, v1};
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) use coverage::home;
pub(super) use engines::{builds_of, engine_of, engines_of};
pub(super) use jobs::{jobs, jobs_of_request, shows_live};
pub(super) use json::json;
pub(super) use kept::Kept;

/// Rows per list: what a person looks through before a filter is quicker.
pub(super) const MAX_ROWS: u32 = 60;
/// Engines that a model's page is made of.
const MAX_KNOWN: u32 = 400;
const LIVE: [v1::JobState; 5] = [
    v1::JobState::Running,
    v1::JobState::Leased,
    v1::JobState::Queued,
    v1::JobState::Blocked,
    v1::JobState::Unplaceable,
];
pub(super) const ENDED: [v1::JobState; 4] =
    [v1::JobState::Succeeded, v1::JobState::Failed, v1::JobState::Cancelled, v1::JobState::Skipped];

/// A page with its title.
pub(super) struct Shown {
    pub(super) title: String,
    pub(super) view: View,
}

fn shown(heading: &str, view: View) -> Shown {
    Shown { title: heading.into(), view: View { heading: heading.into(), ..view } }
}

fn may_submit(actor: &Actor) -> bool {
    matches!(actor.role, Role::Submit | Role::Admin)
}

/// What a page shows to one caller.
pub(super) async fn view(app: &App, actor: &Actor, topic: &Topic, server: &str) -> Result<Shown, ApiError> {
    match topic.kind {
        Kind::Home => coverage::home(app, actor, topic, server, &mut Kept::default()).await,
        Kind::Jobs => jobs::jobs(app, actor, topic, &mut Kept::default()).await,
        Kind::Job => jobs::job(app, actor, topic, server).await,
        Kind::Clone => jobs::clone(app, actor, topic).await,
        Kind::Request => jobs::request(app, actor, topic).await,
        Kind::Engines => engines::engines(app, actor, topic, server).await,
        Kind::Plan => engines::plan(app, actor, topic, server).await,
        Kind::Model => engines::model(app, actor, topic, server).await,
        Kind::Compare => Ok(shown("Compare", super::compare::view(app, actor, topic, server).await?)),
        Kind::Devices => farm::devices(app, actor, topic, server).await,
        Kind::Farm => farm::farm(app, actor).await,
        Kind::Activity => activity::activity(app, actor, topic).await,
        Kind::Api => Ok(activity::api()),
    }
}

pub(super) fn invalid(message: String, hint: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidArgument, message).with_hint(hint)
}

/// Which layers of an engine a page shows; `address` is its own.
pub(super) fn layers_of(query: impl Fn(&str) -> Option<String>, address: String) -> Result<layers::Asked, ApiError> {
    let name = query("layers").unwrap_or_default();
    let by = layers::By::named(&name).ok_or_else(|| {
        let hint = format!("layers sort by {}", layers::By::NAMES.join(", "));
        invalid(format!("layers do not sort by '{}'", name.escape_debug()), &hint)
    })?;
    let from = match query("from").as_deref() {
        None | Some("") => 0,
        Some(text) => text.parse().map_err(|_| {
            invalid(format!("'{}' is no number of a layer", text.escape_debug()), "from counts layers, from 0")
        })?,
    };
    Ok(layers::Asked { by, from, find: query("find").unwrap_or_default(), address })
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn states(states: &[v1::JobState]) -> Vec<i32> {
    states.iter().map(|state| i32::from(*state)).collect()
}
