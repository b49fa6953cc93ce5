//! Server-sent events: what changed on a page, as the same fragments that the page was made of.
//!
//! | event | data | meaning |
//! |---|---|---|
//! | `fragment` | `{"id","html"}` | replace the element of that id |
//! | `append` | `{"id","html"}` | add to the end of the element of that id |
//!
//! Event ids are numbers of the farm's durable events. A browser that comes back with `Last-Event-ID` gets, on a job's
//! page, every event since then; on the overview, whose fragments are whole states, only the newest state.

use super::{Base, JobAttempts, JobHead, JobResult, Overview};
use crate::{
    app::{App, Caller, Refusal},
    auth::Actor,
    farm::FarmEvent,
};
use askama::Template;
use axum::{
    extract::{Path, State},
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::{Stream, StreamExt, stream};
use planforge_page::rows::{EventRow, JobDetail};
use planforge_proto::{ApiError, v1};
use std::{
    collections::HashMap,
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};
use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc,
};
use tokio_stream::wrappers::ReceiverStream;

/// Changes within this time are sent as one: a person sees no difference, and a busy farm renders less.
const GATHER: Duration = Duration::from_millis(300);
/// The overview is rendered anew at least this often, because telemetry makes no events.
const REFRESH: Duration = Duration::from_secs(5);
/// Comments that keep proxies from closing a quiet stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events on their way to one browser; a slower one holds its own stream back, nobody else's.
const IN_FLIGHT: usize = 16;

/// The other end is gone.
struct Closed;

/// Sends fragments that differ from what this browser has.
struct Sender {
    to: mpsc::Sender<Event>,
    /// Hash of each fragment as it was last sent.
    sent: HashMap<&'static str, u64>,
    /// Number of the newest farm event that was told.
    seq: u64,
}

impl Sender {
    async fn fragment(&mut self, id: &'static str, template: &impl Template) -> Result<(), Closed> {
        let Some(html) = render(template) else { return Ok(()) };
        let mut hasher = DefaultHasher::new();
        html.hash(&mut hasher);
        let hash = hasher.finish();
        if self.sent.insert(id, hash) == Some(hash) {
            return Ok(());
        }
        self.send("fragment", id, &html).await
    }

    async fn append(&mut self, id: &'static str, template: &impl Template) -> Result<(), Closed> {
        let Some(html) = render(template) else { return Ok(()) };
        self.send("append", id, &html).await
    }

    async fn send(&self, kind: &'static str, id: &str, html: &str) -> Result<(), Closed> {
        let data = serde_json::json!({ "id": id, "html": html }).to_string();
        let event = Event::default().event(kind).id(self.seq.to_string()).data(data);
        self.to.send(event).await.map_err(|_| Closed)
    }
}

fn render(template: &impl Template) -> Option<String> {
    template.render().inspect_err(|error| tracing::error!(%error, "cannot render a fragment")).ok()
}

/// Runs `feed` until it ends, the browser goes or is not the caller's any more, or the server closes.
fn respond<F: Future<Output = Result<(), Closed>> + Send + 'static>(
    app: &App,
    caller: &Caller,
    seq: u64,
    feed: impl FnOnce(Sender) -> F,
) -> Response {
    let (to, events) = mpsc::channel(IN_FLIGHT);
    let feed = feed(Sender { to: to.clone(), sent: HashMap::new(), seq });
    let end = caller.stream_end(app);
    tokio::spawn(async move {
        tokio::select! {
            _ = feed => {}
            () = to.closed() => {}
            () = end => {}
        }
    });
    let events = ReceiverStream::new(events).map(Ok::<_, Infallible>).take_until(app.closing.clone().cancelled_owned());
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(events).keep_alive(keep_alive).into_response()
}

fn last_event_id(headers: &HeaderMap) -> u64 {
    headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// `GET /events`: the overview.
pub(super) async fn overview(
    State(app): State<App>,
    caller: Caller,
    Base(server): Base,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    // Who may not have the page may not have its events.
    Overview::load(&app, &caller, &server).await?;
    let events = app.farm.subscribe();
    let (actor, last) = (caller.actor.clone(), last_event_id(&headers));
    Ok(respond(&app, &caller, last, |sender| feed_overview(app.clone(), actor, server, events, sender)))
}

async fn feed_overview(
    app: App,
    actor: Actor,
    server: String,
    mut events: broadcast::Receiver<FarmEvent>,
    mut sender: Sender,
) -> Result<(), Closed> {
    loop {
        // The page was rendered before it subscribed: the first round brings what happened in between.
        match Overview::load(&app, &actor, &server).await {
            Ok(now) => {
                sender.fragment("counts", &now.counts).await?;
                sender.fragment("projects", &now.projects).await?;
                sender.fragment("jobs", &now.jobs).await?;
                sender.fragment("devices", &now.devices).await?;
                sender.fragment("engines", &now.engines).await?;
            }
            Err(error) => tracing::debug!(%error, "cannot refresh a page"),
        }
        match tokio::time::timeout(REFRESH, events.recv()).await {
            Ok(Ok(event)) => sender.seq = sender.seq.max(event.seq),
            Ok(Err(RecvError::Lagged(_))) | Err(_) => {}
            Ok(Err(RecvError::Closed)) => return Ok(()),
        }
        tokio::time::sleep(GATHER).await;
        // What came meanwhile is part of the next round.
        while let Ok(event) = events.try_recv() {
            sender.seq = sender.seq.max(event.seq);
        }
    }
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventItem {
    event: EventRow,
}

/// `GET /jobs/ID/events`: one job with its history.
pub(super) async fn job(
    State(app): State<App>,
    caller: Caller,
    Base(server): Base,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let after_event = last_event_id(&headers);
    let job = app.farm.get_job(&caller, &id).await?;
    let request = v1::WatchJobsRequest { ids: vec![job.id.clone()], after_event, ..Default::default() };
    let events = app.farm.watch(&caller, request).await?;
    let actor = caller.actor.clone();
    Ok(respond(&app, &caller, after_event, |sender| feed_job(app.clone(), actor, server, job.id, events, sender)))
}

async fn feed_job(
    app: App,
    actor: Actor,
    server: String,
    id: String,
    events: impl Stream<Item = Result<v1::JobEvent, ApiError>> + Send + Unpin,
    mut sender: Sender,
) -> Result<(), Closed> {
    // A first empty batch brings what happened between the page and this stream.
    let mut batches = stream::iter([Vec::new()]).chain(gather(events));
    while let Some(batch) = batches.next().await {
        for event in batch {
            // Progress inside a phase comes under the number of the last durable event: no new line of history.
            if event.seq > sender.seq {
                sender.seq = event.seq;
                sender.append("history", &EventItem { event: EventRow::new(&event) }).await?;
            }
        }
        let now = async {
            let job = app.farm.get_job(&actor, &id).await?;
            let portability = app.farm.portability(&actor, &job).await?;
            Ok::<_, ApiError>(JobDetail::new(&job, portability.as_ref(), &server))
        };
        match now.await {
            Ok(job) => {
                sender.fragment("job-head", &JobHead { job: job.clone() }).await?;
                sender.fragment("job-result", &JobResult { job: job.clone() }).await?;
                sender.fragment("job-attempts", &JobAttempts { job }).await?;
            }
            Err(error) => tracing::debug!(%error, "cannot refresh a job's page"),
        }
    }
    Ok(())
}

/// Events as they come, at most one batch per [`GATHER`]; ends with the first error.
fn gather(
    events: impl Stream<Item = Result<v1::JobEvent, ApiError>> + Send + Unpin,
) -> impl Stream<Item = Vec<v1::JobEvent>> + Send + Unpin {
    Box::pin(stream::unfold(Some(events), |events| async move {
        let mut events = events?;
        let mut batch = match events.next().await {
            Some(Ok(event)) => vec![event],
            _ => return None,
        };
        let gathering = tokio::time::sleep(GATHER);
        tokio::pin!(gathering);
        loop {
            tokio::select! {
                biased;
                next = events.next() => match next {
                    Some(Ok(event)) => batch.push(event),
                    _ => return Some((batch, None)),
                },
                () = &mut gathering => return Some((batch, Some(events))),
            }
        }
    }))
}
