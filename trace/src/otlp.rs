//! Spans as OpenTelemetry's protocol has them (OTLP 1, `ExportTraceServiceRequest`), and the thread that hands them over.
//!
//! A collector that is away costs its spans and one line of the log; whoever emits spans never waits, and only a process
//! that ends while the collector works waits for it, for `AT_THE_END` at most.

mod messages;

use crate::{
    Part, Span,
    sink::{self, Word},
};
use messages::{ExportTraceServiceRequest, Resource, ResourceSpans, ScopeSpans, attribute};
use prost::Message as _;
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Spans that are handed over at once.
const BATCH_MAX: usize = 512;
/// How long a span may wait for others.
const BATCH_AGE: Duration = Duration::from_secs(1);
/// How long the end of the process waits for what is still to be handed over.
const AT_THE_END: Duration = Duration::from_secs(3);

/// Hands over the bytes of one request; the error says why they were not taken.
pub type Deliver = Box<dyn FnMut(Vec<u8>) -> Result<(), String> + Send>;

/// Tells people, once, why no collector takes spans.
pub type Tell = Box<dyn Fn(&str) + Send>;

/// Takes this process's spans until it is dropped, which hands over the last of them.
#[derive(Debug)]
pub struct Exporter {
    /// The collector took what it was given last.
    is_heard: Arc<AtomicBool>,
}

impl Exporter {
    /// Begins to take this process's spans. `deliver` is made by `open` on the thread that uses it; `service` names
    /// whoever emits them, in place of `planforge-` and the part.
    ///
    /// # Errors
    /// No thread can be started, or somebody takes the spans already.
    pub fn start(
        service: Option<String>,
        tell: Tell,
        open: impl FnOnce() -> Result<Deliver, String> + Send + 'static,
    ) -> io::Result<Self> {
        let words = sink::take().ok_or_else(|| io::Error::other("this process's spans are taken already"))?;
        let is_heard = Arc::new(AtomicBool::new(true));
        let heard = is_heard.clone();
        thread::Builder::new().name("spans".into()).spawn(move || {
            let deliver = open().unwrap_or_else(|why| Box::new(move |_| Err(why.clone())));
            Batches { service, deliver, tell, heard, dropped: 0 }.run(&words);
        })?;
        Ok(Self { is_heard })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if !self.is_heard.load(Ordering::Relaxed) {
            return;
        }
        let (done, is_done) = mpsc::sync_channel(1);
        if sink::say(Word::Flush(done)) {
            let _ = is_done.recv_timeout(AT_THE_END);
        }
    }
}

struct Batches {
    service: Option<String>,
    deliver: Deliver,
    tell: Tell,
    heard: Arc<AtomicBool>,
    /// Spans that were lost since the collector was last heard.
    dropped: u64,
}

impl Batches {
    fn run(mut self, words: &Receiver<Word>) {
        while let Ok(first) = words.recv() {
            let until = Instant::now() + BATCH_AGE;
            let (mut spans, mut asked) = (Vec::new(), None);
            let mut next = Ok(first);
            loop {
                match next {
                    Ok(Word::Span(span)) => spans.push(*span),
                    Ok(Word::Flush(done)) => asked = Some(done),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
                if asked.is_some() || spans.len() >= BATCH_MAX {
                    break;
                }
                next = words.recv_timeout(until.saturating_duration_since(Instant::now()));
            }
            self.hand_over(&spans);
            if let Some(done) = asked {
                let _ = done.send(());
            }
        }
    }

    fn hand_over(&mut self, spans: &[Span]) {
        self.dropped += sink::left_out();
        if spans.is_empty() {
            return;
        }
        let was_heard = self.heard.load(Ordering::Relaxed);
        match (self.deliver)(encode(spans, self.service.as_deref())) {
            Ok(()) => {
                if !was_heard {
                    tracing::info!(lost = self.dropped, "the collector of traces takes spans again");
                }
                self.dropped = 0;
                self.heard.store(true, Ordering::Relaxed);
            }
            Err(error) => {
                self.dropped += spans.len() as u64;
                self.heard.store(false, Ordering::Relaxed);
                if was_heard {
                    (self.tell)(&error);
                }
            }
        }
    }
}

/// One request that holds `spans`, those of each part under a service of their own.
pub fn encode(spans: &[Span], service: Option<&str>) -> Vec<u8> {
    let mut parts: BTreeMap<Part, Vec<messages::Span>> = BTreeMap::new();
    for span in spans {
        parts.entry(span.part).or_default().push(span.into());
    }
    let resource_spans = parts.into_iter().map(|(part, spans)| {
        let own = format!("planforge-{}", part.name());
        let attributes = [
            ("service.name", service.unwrap_or(&own)),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("planforge.part", part.name()),
        ];
        let attributes = attributes.into_iter().map(|(name, value)| attribute(name, value)).collect();
        ResourceSpans { resource: Some(Resource { attributes }), scope_spans: vec![ScopeSpans { spans }] }
    });
    ExportTraceServiceRequest { resource_spans: resource_spans.collect() }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, fresh};
    use std::sync::{Mutex, atomic::AtomicUsize};

    fn span(part: Part, name: &str) -> Span {
        Span {
            part,
            name: name.into(),
            kind: Kind::Server,
            context: fresh(),
            parent: Some(fresh()),
            start_unix_ns: 5,
            end_unix_ns: 4,
            attributes: vec![("planforge.job", "j1".into())],
            error: Some("it broke".into()),
        }
    }

    #[test]
    fn what_is_handed_over_has_a_service_for_each_part_or_the_one_that_was_named() {
        let spans = [span(Part::Agent, "attempt"), span(Part::Worker, "compile"), span(Part::Agent, "upload")];
        let names = |service| {
            let request = ExportTraceServiceRequest::decode(&encode(&spans, service)[..]).unwrap();
            let resources = request.resource_spans.into_iter().map(|told| {
                let service = told.resource.unwrap().attributes[0].value.clone().unwrap().text.unwrap();
                (service, told.scope_spans[0].spans.len())
            });
            resources.collect::<Vec<_>>()
        };
        let own = |part: &str| format!("planforge-{part}");
        assert_eq!(names(None), [(own("agent"), 2), (own("worker"), 1)]);
        assert_eq!(names(Some("farm")), [("farm".to_owned(), 2), ("farm".to_owned(), 1)]);
        let told = messages::Span::from(&spans[0]);
        assert_eq!((told.kind, told.status.unwrap().code), (2, 2), "a server's, and an error");
        assert_eq!((told.start_time_unix_nano, told.end_time_unix_nano), (5, 5), "no span ends before it began");
    }

    #[test]
    fn a_collector_that_is_away_is_told_of_once_until_it_was_there_again() {
        let is_away = Arc::new(AtomicBool::new(true));
        let (away, told, tries) = (is_away.clone(), Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (says, counted) = (told.clone(), tries.clone());
        let mut batches = Batches {
            service: None,
            deliver: Box::new(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                if away.load(Ordering::Relaxed) { Err("nobody listens".into()) } else { Ok(()) }
            }),
            tell: Box::new(move |why| says.lock().unwrap().push(why.to_owned())),
            heard: Arc::new(AtomicBool::new(true)),
            dropped: 0,
        };
        let spans = [span(Part::Client, "submit")];
        let mut hand_over = |away: bool| {
            is_away.store(away, Ordering::Relaxed);
            batches.hand_over(&spans);
            batches.dropped
        };
        assert_eq!([true, true, false, true].map(&mut hand_over), [1, 2, 0, 1]);
        assert_eq!(*told.lock().unwrap(), ["nobody listens", "nobody listens"]);
        batches.hand_over(&[]);
        assert_eq!(tries.load(Ordering::Relaxed), 4, "nothing is no request");
    }
}
