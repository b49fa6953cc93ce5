//! Updates of open pages: what changed, as the same parts that the page was made of.
//!
//! `GET /events?topic=ADDRESS&state=TAG&topic=...` follows one page or several (all tabs of a browser share one stream).
//! Each event is called `update`, and its data is `{"t","s","parts"}`: which of the topics it is of, the tag of the state
//! that the page has with it, and what to replace. A part is `{"id","html"}`, or of a list the rows that changed and, where
//! it changed, the order of all: `{"id","rows","order"}`. A page that has the newest state by its tag is sent nothing.
//!
//! However many look at a page, it is made once: callers who see the same share its states.

use super::{
    Base, load,
    shared::{self, How, Place},
    topic::{Kind, Topic},
};
use crate::{
    app::{App, Caller, Refusal},
    auth::{Actor, Role},
    farm::FarmEvent,
};
use axum::{
    Extension,
    extract::{Query, State},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::{StreamExt as _, future};
use planforge_page::view::{Change, Snapshot, View};
use planforge_proto::{ApiError, ErrorCode};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc, watch,
};
use tokio_stream::wrappers::ReceiverStream;

/// Changes within this time are sent as one: four updates a second are as many as a person follows.
const GATHER: Duration = Duration::from_millis(250);
/// What comes together is sent together, however long nothing came before.
const TOGETHER: Duration = Duration::from_millis(20);
/// A page takes at most this part of the time to be made: one that takes long is made less often.
const SHARE: u32 = 10;
/// A page is made anew at least this often, because telemetry makes no events.
const REFRESH: Duration = Duration::from_secs(5);
/// Comments that keep proxies from closing a quiet stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Updates on their way to one browser; a slower one holds its own stream back, nobody else's.
const IN_FLIGHT: usize = 4;
/// Pages that one stream follows: tabs that a person sees at once.
const TOPICS_MAX: usize = 16;

/// A page as somebody sees it.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Page {
        topic: Topic,
        actor: Actor,
        /// How the farm is reached, which commands say.
        server: String,
    },
    /// For who has a link.
    Link { secret: String, place: Place, how: How },
}

/// What tells pages apart: callers who see the same share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Page {
        topic: Topic,
        role: String,
        project: Option<String>,
        /// Who looks, where the page says it.
        name: String,
        server: String,
    },
    Link(String, Place, How),
}

impl Source {
    fn key(&self) -> Key {
        match self {
            Self::Page { topic, actor, server } => Key::Page {
                topic: topic.clone(),
                role: actor.role.to_string(),
                project: actor.project.clone(),
                name: actor.name.clone(),
                server: server.clone(),
            },
            Self::Link { secret, place, how } => Key::Link(secret.clone(), place.clone(), how.clone()),
        }
    }

    async fn view(&self, app: &App) -> Result<View, ApiError> {
        match self {
            Self::Page { topic, actor, server } => Ok(load::view(app, actor, topic, server).await?.view),
            Self::Link { secret, place, how } => shared::view_of(app, secret, place, how).await,
        }
    }

    /// Whether an event may change it before it is made anew all the same: engines come and go where jobs end.
    fn tells_of(&self, event: &FarmEvent) -> bool {
        let only_ends = matches!(self, Self::Page { topic, .. } if topic.kind == Kind::Engines);
        !only_ends || event.job.as_ref().is_none_or(|job| load::ENDED.contains(&job.state()))
    }

    /// Whether a page that could not be made ends what follows it: a link that is good no more opens nothing.
    fn ends_with(&self, error: &ApiError) -> bool {
        matches!(self, Self::Link { .. }) && error.code == ErrorCode::NotFound
    }
}

/// A page at one moment.
#[derive(Debug, Default)]
struct Made {
    snapshot: Snapshot,
    /// Of the state before it, the tag, and what changed since as it is sent: most of who look have that one.
    since: Option<(u64, String)>,
}

type Page = watch::Sender<Arc<Made>>;

/// The pages that somebody follows now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hub(Arc<Mutex<BTreeMap<Key, Arc<Page>>>>);

impl Hub {
    fn pages(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Page>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a page that whoever asks may see.
    async fn follow(&self, app: &App, source: Source) -> Result<watch::Receiver<Arc<Made>>, ApiError> {
        // Who may not have the page may not have its updates.
        let first = Snapshot::of(&source.view(app).await?);
        let key = source.key();
        let mut pages = self.pages();
        if let Some(page) = pages.get(&key) {
            let states = page.subscribe();
            page.send_if_modified(|now| replaced(now, first));
            return Ok(states);
        }
        let (page, states) = watch::channel(Arc::new(Made { snapshot: first, since: None }));
        let page = Arc::new(page);
        pages.insert(key.clone(), page.clone());
        drop(pages);
        let feed = feed(app.clone(), source, page.clone(), app.farm.subscribe());
        let (hub, closing) = (self.clone(), app.closing.clone());
        tokio::spawn(async move {
            let mut feed = std::pin::pin!(feed);
            loop {
                tokio::select! {
                    () = closing.cancelled() => break,
                    () = &mut feed => break,
                    () = page.closed() => {
                        // Whoever comes now finds it, or makes it anew.
                        let mut pages = hub.pages();
                        if page.is_closed() {
                            pages.remove(&key);
                            return;
                        }
                    }
                }
            }
            hub.pages().remove(&key);
        });
        Ok(states)
    }
}

fn replaced(now: &mut Arc<Made>, next: Snapshot) -> bool {
    let before = &now.snapshot;
    let is_new = before.tag != next.tag;
    if is_new {
        let since = Some((before.tag, written(&next.since(Some(before)))));
        *now = Arc::new(Made { snapshot: next, since });
    }
    is_new
}

/// Changes as they are sent; empty: none.
fn written(changes: &[Change]) -> String {
    if changes.is_empty() { String::new() } else { serde_json::to_string(changes).unwrap_or_default() }
}

/// Makes a page anew whenever the farm says that something happened.
async fn feed(app: App, source: Source, page: Arc<Page>, mut events: broadcast::Receiver<FarmEvent>) {
    let mut took = Duration::ZERO;
    // When the page was last begun, so that what comes after a pause is sent at once, and how long it takes to make one
    // does not keep the next back.
    let mut last = Instant::now();
    loop {
        let due = tokio::time::Instant::now() + REFRESH;
        loop {
            match tokio::time::timeout_at(due, events.recv()).await {
                Ok(Ok(event)) if !source.tells_of(&event) => {}
                Ok(Ok(_) | Err(RecvError::Lagged(_))) | Err(_) => break,
                Ok(Err(RecvError::Closed)) => return,
            }
        }
        let since = last.elapsed();
        tokio::time::sleep(GATHER.max(took * SHARE).saturating_sub(since).max(TOGETHER)).await;
        // What came meanwhile is part of this round.
        while matches!(events.try_recv(), Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_))) {}
        let began = Instant::now();
        match source.view(&app).await {
            Ok(view) => drop(page.send_if_modified(|now| replaced(now, Snapshot::of(&view)))),
            Err(error) if source.ends_with(&error) => return,
            Err(error) => tracing::debug!(%error, "cannot refresh a page"),
        }
        took = began.elapsed();
        last = began;
    }
}

/// Sends one page's changes until the browser goes.
async fn send(t: usize, mut states: watch::Receiver<Arc<Made>>, tag: String, to: mpsc::Sender<Event>) {
    let mut has: Option<Arc<Made>> = None;
    loop {
        let now = states.borrow_and_update().clone();
        let s = format!("{:x}", now.snapshot.tag);
        let other;
        let parts = match (&has, &now.since) {
            (None, _) if s == tag => "",
            (Some(has), Some((before, parts))) if has.snapshot.tag == *before => parts,
            (has, _) => {
                other = written(&now.snapshot.since(has.as_ref().map(|has| &has.snapshot)));
                &other
            }
        };
        if !parts.is_empty() {
            let data = format!(r#"{{"t":{t},"s":"{s}","parts":{parts}}}"#);
            if to.send(Event::default().event("update").data(data)).await.is_err() {
                return;
            }
        }
        has = Some(now);
        if states.changed().await.is_err() {
            return;
        }
    }
}

/// `GET /events`
pub(super) async fn follow(
    State(app): State<App>,
    Extension(hub): Extension<Hub>,
    caller: Caller,
    Base(server): Base,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let invalid = |message: &str| ApiError::new(ErrorCode::InvalidArgument, message);
    if caller.role == Role::Agent {
        caller.must_see_everything()?;
    }
    let mut asked: Vec<(Topic, String)> = Vec::new();
    for (name, value) in pairs {
        match (name.as_str(), asked.last_mut()) {
            ("topic", _) => {
                let address = value.parse().map_err(|_| invalid("a topic is the address of a page"))?;
                asked.push((Topic::read(&address)?.topic, String::new()));
            }
            ("state", Some((_, state))) => *state = value,
            _ => return Err(invalid("updates are asked for by topic and state").into()),
        }
    }
    if asked.is_empty() {
        return Err(invalid("a stream follows at least one page: name it as topic").into());
    }
    if asked.len() > TOPICS_MAX {
        return Err(invalid("one stream follows at most 16 pages").into());
    }
    let of = |(topic, tag)| (Source::Page { topic, actor: (*caller).clone(), server: server.clone() }, tag);
    let end = caller.stream_end(&app);
    Ok(stream(&app, &hub, asked.into_iter().map(of).collect(), end).await?)
}

/// A stream of the updates of pages, each with the tag of the state that the browser has, until `end`.
pub(super) async fn stream(
    app: &App,
    hub: &Hub,
    pages: Vec<(Source, String)>,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<Response, ApiError> {
    let (to, events) = mpsc::channel(IN_FLIGHT);
    let mut sending = Vec::new();
    for (t, (source, tag)) in pages.into_iter().enumerate() {
        let states = hub.follow(app, source).await?;
        sending.push(send(t, states, tag, to.clone()));
    }
    tokio::spawn(async move {
        tokio::select! {
            _ = future::join_all(sending) => {}
            () = to.closed() => {}
            () = end => {}
        }
    });
    let events = ReceiverStream::new(events).map(Ok::<_, Infallible>).take_until(app.closing.clone().cancelled_owned());
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(events).keep_alive(keep_alive).into_response())
}
