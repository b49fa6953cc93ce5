//! Lists of requests and of events as JSON.

use super::api::{JsonAnswer, Params, counted, words};
use crate::app::{App, Caller};
use axum::extract::State;
use planforge_proto::{
    ApiError, ErrorCode, v1,
    view::{EventView, RequestView, request_state_from_name},
};
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RequestsQuery {
    project: String,
    /// Names, separated by commas.
    state: String,
    since_ms: u64,
    until_ms: u64,
    limit: u32,
    cursor: String,
}

pub(super) async fn list_requests(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<RequestsQuery>,
) -> JsonAnswer {
    let state = |name: &str| {
        let unknown = || {
            ApiError::new(ErrorCode::InvalidArgument, format!("'{name}' is no state of requests"))
                .with_hint("states are open, succeeded, failed")
        };
        request_state_from_name(name).map(i32::from).ok_or_else(unknown)
    };
    let request = v1::ListRequestsRequest {
        states: words(&query.state).map(state).collect::<Result<_, _>>()?,
        project: query.project,
        since_ms: query.since_ms,
        until_ms: query.until_ms,
        limit: query.limit,
        cursor: query.cursor,
        with_total: true,
    };
    let reply = app.farm.list_requests(&caller, request).await?;
    let total = (reply.total, reply.more_than_total);
    Ok(counted::<_, RequestView>("requests", reply.requests, reply.next_cursor, total))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventsQuery {
    project: String,
    /// Ids or unique prefixes, separated by commas.
    job: String,
    /// As `what` says them, separated by commas.
    kind: String,
    /// Only later ones than the event of this number.
    after: u64,
    limit: u32,
    cursor: String,
}

pub(super) async fn list_events(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<EventsQuery>,
) -> JsonAnswer {
    let request = v1::ListEventsRequest {
        project: query.project,
        jobs: words(&query.job).map(str::to_owned).collect(),
        kinds: words(&query.kind).map(str::to_owned).collect(),
        after: query.after,
        limit: query.limit,
        cursor: query.cursor,
        with_total: true,
    };
    let reply = app.farm.list_events(&caller, request).await?;
    let total = (reply.total, reply.more_than_total);
    Ok(counted::<_, EventView>("events", reply.events, reply.next_cursor, total))
}
