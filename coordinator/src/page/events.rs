//! Updates of open pages: what changed, as the same parts that the page was made of.
//!
//! `GET /events?topic=ADDRESS&state=TAG&topic=...` follows one page or several (all tabs of a browser share one stream).
//! Each event is called `update`, and its data is `{"t","s","parts"}`: which of the topics it is of, the tag of the state
//! that the page has with it, and what to replace. A part is `{"id","html"}`, or of a list the rows that changed and, where
//! it changed, the order of all: `{"id","rows","order"}`. A page that has the newest state by its tag is sent nothing.
//!
//! However many look at a page, it is made once: callers who see the same share its states, and what changed from one to
//! the next is written once for all of them.

use super::{
    Base, load,
    sent::{self, Made},
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
    response::Response,
};
use planforge_page::view::{Snapshot, View};
use planforge_proto::{ApiError, ErrorCode, v1};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{
        broadcast::{
            self,
            error::{RecvError, TryRecvError},
        },
        watch,
    },
    time::Instant,
};

/// Changes within this time are sent as one: four updates a second are as many as a person follows.
const GATHER: Duration = Duration::from_millis(250);
/// What comes together is sent together, however long nothing came before.
const TOGETHER: Duration = Duration::from_millis(20);
/// A page takes at most this part of the time to be made: one that takes long is made less often, though never as seldom
/// as one that waited for a busy database would be.
const SHARE: u32 = 10;
/// A page is made anew at least this often, because telemetry makes no events.
const REFRESH: Duration = Duration::from_secs(5);
/// Events of a job that goes on with what it does.
const STEPS: [&str; 2] = ["progress", "phase"];
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

    async fn view(&self, app: &App, kept: &mut load::Kept) -> Result<View, ApiError> {
        match self {
            Self::Page { topic, actor, .. } if topic.kind == Kind::Jobs => {
                Ok(load::jobs(app, actor, topic, kept).await?.view)
            }
            Self::Page { topic, actor, server } if topic.kind == Kind::Home => {
                Ok(load::home(app, actor, topic, server, kept).await?.view)
            }
            Self::Page { topic, actor, server } => Ok(load::view(app, actor, topic, server).await?.view),
            Self::Link { secret, place, how } => shared::view_of(app, secret, place, how).await,
        }
    }

    /// Whether an event shows on the page, which is made anew at once then; for all else it is every few seconds. `now`: the
    /// page as it stands.
    fn hears(&self, event: &FarmEvent, now: &Snapshot) -> bool {
        let Some(job) = &event.job else { return true };
        let ends = load::ENDED.contains(&job.state());
        let goes_on = !ends && STEPS.contains(&event.what.as_str());
        let names_it = || now.parts.iter().flat_map(|part| &part.rows).any(|row| row.key == job.id);
        let topic = match self {
            Self::Page { topic, .. } => topic,
            Self::Link { place: Place::Job(id), .. } => return job.id.starts_with(id),
            Self::Link { .. } => return ends || names_it(),
        };
        let of_model = || {
            let is_it = |model: &v1::Model| model.name == topic.of || model.digest.starts_with(&topic.of);
            job.model.as_ref().is_some_and(is_it)
        };
        match topic.kind {
            Kind::Home => !goes_on,
            Kind::Jobs => ends || load::shows_live(topic),
            Kind::Job => job.id.starts_with(&topic.of),
            Kind::Request => job.request_id == topic.of || names_it(),
            // What was never on a device is on none.
            Kind::Devices => ends || (job.attempt > 0 && !goes_on),
            // Beside its engines its jobs are listed.
            Kind::Model => ends || names_it() || of_model(),
            Kind::Engines | Kind::Plan | Kind::Compare | Kind::Farm | Kind::Activity => ends,
            Kind::Clone | Kind::Api => false,
        }
    }

    /// Whether a page that could not be made ends what follows it: a link that is good no more opens nothing.
    fn ends_with(&self, error: &ApiError) -> bool {
        matches!(self, Self::Link { .. }) && error.code == ErrorCode::NotFound
    }
}

type Page = watch::Sender<Arc<Made>>;

/// The pages that somebody follows now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hub(Arc<Mutex<BTreeMap<Key, Arc<Page>>>>);

impl Hub {
    fn pages(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Page>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a page that whoever asks may see, and has in the state of this tag.
    async fn follow(
        &self,
        app: &App,
        source: Source,
        tag: Option<u64>,
    ) -> Result<watch::Receiver<Arc<Made>>, ApiError> {
        let key = source.key();
        // Who sees the same follows it already, and there is nothing newer than what the browser has.
        if let Some(page) = self.pages().get(&key)
            && tag == Some(page.borrow().snapshot.tag)
        {
            return Ok(page.subscribe());
        }
        // Who may not have the page may not have its updates.
        let first = Snapshot::of(&source.view(app, &mut load::Kept::default()).await?);
        let mut pages = self.pages();
        if let Some(page) = pages.get(&key) {
            let states = page.subscribe();
            page.send_if_modified(|now| Made::replace(now, first));
            return Ok(states);
        }
        let (page, states) = watch::channel(Arc::new(Made::first(first)));
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

/// Makes a page anew whenever the farm says that something happened that shows on it.
async fn feed(app: App, source: Source, page: Arc<Page>, mut events: broadcast::Receiver<FarmEvent>) {
    // When the page may be made again: what comes after a pause is sent at once, and neither how long it takes to make one
    // nor how late a timer is keeps those after it back.
    let mut next = Instant::now();
    let (mut kept, mut made) = (load::Kept::default(), 0);
    loop {
        let due = Instant::now() + REFRESH;
        loop {
            match tokio::time::timeout_at(due, events.recv()).await {
                Ok(Ok(event)) => {
                    kept.note(&event);
                    if source.hears(&event, &page.borrow().snapshot) {
                        break;
                    }
                }
                Ok(Err(RecvError::Lagged(_))) | Err(_) => {
                    kept.forget();
                    break;
                }
                Ok(Err(RecvError::Closed)) => return,
            }
        }
        let now = Instant::now();
        let begins = if next > now { next } else { now + TOGETHER };
        tokio::time::sleep_until(begins).await;
        // What came meanwhile is part of this round.
        loop {
            match events.try_recv() {
                Ok(event) => kept.note(&event),
                Err(TryRecvError::Lagged(_)) => kept.forget(),
                Err(_) => break,
            }
        }
        // Whoever came meanwhile read all of it anew.
        if page.borrow().snapshot.tag != made {
            kept.forget();
        }
        let began = Instant::now();
        match source.view(&app, &mut kept).await {
            Ok(view) => drop(page.send_if_modified(|now| Made::replace(now, Snapshot::of(&view)))),
            Err(error) if source.ends_with(&error) => return,
            Err(error) => tracing::debug!(%error, "cannot refresh a page"),
        }
        made = page.borrow().snapshot.tag;
        next = begins + GATHER.max((began.elapsed() * SHARE).min(REFRESH));
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
    let mut of_pages = Vec::new();
    for (source, tag) in pages {
        let tag = u64::from_str_radix(&tag, 16).ok();
        of_pages.push((hub.follow(app, source, tag).await?, tag));
    }
    Ok(sent::answer(of_pages, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_page::{
        table::{Cell, Table, words},
        view::Section,
    };

    fn page(address: &str) -> Source {
        let topic = Topic::read(&address.parse().unwrap()).unwrap().topic;
        Source::Page { topic, actor: Actor::local(), server: String::new() }
    }

    fn event(what: &str, state: v1::JobState, attempt: u32) -> FarmEvent {
        let job = v1::Job {
            id: "01job".into(),
            request_id: "01own".into(),
            attempt,
            state: state.into(),
            model: Some(v1::Model { name: "digits.onnx".into(), digest: "d1".repeat(32), ..Default::default() }),
            ..Default::default()
        };
        Arc::new(v1::JobEvent { what: what.into(), job: Some(job), ..Default::default() })
    }

    #[test]
    fn a_page_is_made_anew_for_what_shows_on_it() {
        use v1::JobState::{Queued, Running, Succeeded};
        let (submitted, progress) = (event("submitted", Queued, 0), event("progress", Running, 1));
        let (leased, ended) = (event("leased", Running, 1), event("succeeded", Succeeded, 1));
        let nothing = Snapshot::default();
        let hears = |address: &str| {
            let page = page(address);
            [&submitted, &leased, &progress, &ended].map(|event| page.hears(event, &nothing))
        };
        assert_eq!(hears("/"), [true, true, false, true]);
        for live in ["/jobs", "/jobs?sort=newest", "/jobs?state=queued,failed", "/jobs/01job", "/requests/01own"] {
            assert_eq!(hears(live), [true; 4], "{live}");
        }
        assert_eq!([hears("/models/d1d1"), hears("/models/digits.onnx")], [[true; 4]; 2], "its jobs are listed");
        assert_eq!(hears("/models/e2"), [false, false, false, true]);
        let link = |id: &str| Source::Link { secret: String::new(), place: Place::Job(id.into()), how: How::default() };
        assert!(link("01job").hears(&progress, &nothing) && !link("01other").hears(&ended, &nothing));
        for over in ["/jobs?state=ended&sort=ended", "/jobs?state=failed,succeeded", "/engines", "/farm", "/activity"] {
            assert_eq!(hears(over), [false, false, false, true], "{over}");
        }
        assert_eq!(hears("/devices"), [false, true, false, true]);
        assert_eq!([hears("/jobs/01other"), hears("/requests/01other"), hears("/api")], [[false; 4]; 3]);
        // A job that somebody else asked for first.
        let mut table = Table::new("jobs", "Jobs", &[words("Job")]);
        table.push("01job", "", [Cell::text("joined")]);
        let shown = Snapshot::of(&View { sections: vec![Section::table("Jobs", table)], ..View::default() });
        assert!(page("/requests/01other").hears(&progress, &shown));
    }
}
