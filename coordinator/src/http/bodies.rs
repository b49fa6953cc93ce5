//! How slowly the body of a request may come.
//!
//! Who sends nothing, or a byte now and then, holds a connection and whoever reads it. So a body brings at least
//! [`LEAST_BYTES`] in every [`WINDOW`] that is waited for it, and is whole within a time that its route gives; what the
//! reader itself takes, a disk for instance, does not count. Only an agent's session is as long as it likes: who says
//! nothing on it is found out by its heartbeats.
//!
//! | body | whole within | at most |
//! |---|---|---|
//! | forms, which anybody may send (`/login`) | as long as a first request may take (10 s) | 16 KiB |
//! | JSON, gRPC calls | 5 min | 8 MiB, 16 MiB |
//! | bytes of an upload | any time | what was announced |

use crate::app::App;
use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep};

/// Waiting that is looked at together, and what has to come in it.
const WINDOW: Duration = Duration::from_secs(30);
const LEAST_BYTES: u64 = 16 * 1024;
/// JSON and calls: many specs, over a slow link.
const MESSAGE_WITHIN: Duration = Duration::from_secs(300);
/// Largest form: a token or a link, and a path.
pub(super) const MAX_FORM_BYTES: usize = 16 * 1024;

/// How one body has to come; `None`: as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    whole_within: Option<Duration>,
}

fn pace(path: &str, form_within: Duration) -> Option<Pace> {
    match path {
        "/planforge.v1.Fleet/Session" => None,
        "/login" | "/logout" => Some(Pace { whole_within: Some(form_within) }),
        _ if path.starts_with("/v1/uploads/") => Some(Pace { whole_within: None }),
        _ => Some(Pace { whole_within: Some(MESSAGE_WITHIN) }),
    }
}

/// Holds every body to its pace.
pub(super) async fn keep_pace(State(app): State<App>, request: Request, next: Next) -> Response {
    let pace = pace(request.uri().path(), app.options.form_within);
    let request = match pace {
        Some(pace) if !request.body().is_end_stream() => request.map(|body| Body::new(Paced::new(body, pace))),
        _ => request,
    };
    next.run(request).await
}

/// Of a body that is waited for before anything is done, so much is kept meanwhile; a longer one comes while it is read.
const ARRIVED_MAX_BYTES: usize = 64 * 1024;

/// The request once its body is here, or once so much of it is that the rest is certain to be on its way.
pub(super) async fn arrived(request: Request) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    let (head, mut body) = request.into_parts();
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    while bytes <= ARRIVED_MAX_BYTES
        && let Some(piece) = body.frame().await
    {
        bytes += piece.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
        pieces.push(piece);
    }
    let rest = stream::unfold(body, async |mut body| Some((body.frame().await?, body)));
    Request::from_parts(head, Body::new(StreamBody::new(stream::iter(pieces).chain(rest))))
}

/// A body that did not come in time.
#[derive(Debug)]
struct TooSlow {
    waited: Duration,
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body of the request came too slowly: it was waited for {} s", self.waited.as_secs())
    }
}

impl std::error::Error for TooSlow {}

struct Paced {
    body: Body,
    pace: Pace,
    /// Fires when the waiting that is allowed is used up.
    alarm: Pin<Box<Sleep>>,
    /// Since when the next piece is waited for.
    waiting_since: Option<Instant>,
    /// Waited in all, and in this window.
    waited: Duration,
    waited_in_window: Duration,
    bytes_in_window: u64,
}

impl Paced {
    fn new(body: Body, pace: Pace) -> Self {
        let alarm = Box::pin(sleep(WINDOW));
        let none = Duration::ZERO;
        Self { body, pace, alarm, waiting_since: None, waited: none, waited_in_window: none, bytes_in_window: 0 }
    }

    /// Adds up what was waited until now, and looks whether that was too long.
    fn count(&mut self, now: Instant) -> Result<(), TooSlow> {
        if let Some(since) = self.waiting_since.take() {
            self.waited += now - since;
            self.waited_in_window += now - since;
        }
        let too_slow = Err(TooSlow { waited: self.waited });
        if self.pace.whole_within.is_some_and(|most| self.waited >= most) {
            return too_slow;
        }
        if self.waited_in_window >= WINDOW {
            if self.bytes_in_window < LEAST_BYTES {
                return too_slow;
            }
            (self.waited_in_window, self.bytes_in_window) = (Duration::ZERO, 0);
        }
        Ok(())
    }

    /// How much longer may be waited at once.
    fn patience(&self) -> Duration {
        let window = WINDOW - self.waited_in_window;
        self.pace.whole_within.map_or(window, |most| window.min(most.saturating_sub(self.waited)))
    }
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let paced = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut paced.body).poll_frame(cx) {
            if let Some(Ok(frame)) = &frame {
                paced.bytes_in_window += frame.data_ref().map_or(0, |data| data.len() as u64);
                if let Err(slow) = paced.count(Instant::now()) {
                    return Poll::Ready(Some(Err(axum::Error::new(slow))));
                }
            }
            return Poll::Ready(frame);
        }
        loop {
            if paced.waiting_since.is_none() {
                let now = Instant::now();
                paced.waiting_since = Some(now);
                let until = now + paced.patience();
                paced.alarm.as_mut().reset(until);
            }
            ready!(paced.alarm.as_mut().poll(cx));
            if let Err(slow) = paced.count(Instant::now()) {
                return Poll::Ready(Some(Err(axum::Error::new(slow))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPLOAD: &str = "/v1/uploads/1";
    const FORM: Duration = Duration::from_secs(10);

    /// A body of so many pieces, each after a pause; what came of it, and after how many seconds.
    async fn read(path: &str, pieces: usize, bytes: usize, pause_s: u64) -> (Result<usize, String>, u64) {
        let pieces = stream::iter(0..pieces).then(move |_| async move {
            tokio::time::sleep(Duration::from_secs(pause_s)).await;
            Ok::<_, std::io::Error>(Bytes::from(vec![0; bytes]))
        });
        let body = Paced::new(Body::from_stream(pieces.boxed()), pace(path, FORM).unwrap());
        let begin = Instant::now();
        let read = body.collect().await.map(|whole| whole.to_bytes().len()).map_err(|error| error.to_string());
        (read, begin.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_byte_by_byte_ends_and_one_that_comes_steadily_does_not() {
        let (trickle, after_s) = read(UPLOAD, 1_000, 1, 1).await;
        assert!(trickle.unwrap_err().contains("too slowly"));
        assert_eq!(after_s, 30);
        assert_eq!(read(UPLOAD, 1, 1, 3_600).await.1, 30, "silence");
        assert_eq!(read(UPLOAD, 1_000, 16 * 1024, 25).await.0, Ok(1_000 * 16 * 1024), "hours of a slow link");
        assert_eq!(read(UPLOAD, 3, 1, 5).await.0, Ok(3), "few bytes in all");
    }

    #[tokio::test(start_paused = true)]
    async fn forms_and_messages_are_whole_in_their_time() {
        assert_eq!(read("/login", 1_000, 16 * 1024, 1).await.1, 10);
        assert_eq!(read("/api/v1/jobs", 1_000, 64 * 1024, 1).await.1, 300);
        assert_eq!(read("/planforge.v1.Farm/Submit", 1_000, 64 * 1024, 1).await.1, 300);
        assert_eq!(pace("/planforge.v1.Fleet/Session", FORM), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_reader_takes_itself_does_not_count() {
        let pieces = stream::iter(0..20).then(|_| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, std::io::Error>(Bytes::from_static(&[0]))
        });
        let mut body = Paced::new(Body::from_stream(pieces.boxed()), pace(UPLOAD, FORM).unwrap());
        for _ in 0..20 {
            body.frame().await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert!(body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_waited_for_is_the_same_and_a_long_one_is_not_waited_for() {
        let slow = |count: u8, then: Option<&'static str>| {
            let pieces = stream::iter(0..count).then(async |number| {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Bytes::from(vec![number; 1024]))
            });
            let end = stream::iter(then.map(|error| Err(std::io::Error::other(error))));
            Request::new(Body::from_stream(pieces.chain(end).boxed()))
        };
        let begin = Instant::now();
        let short = arrived(slow(3, None)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(3));
        let bytes = short.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(bytes, [[0; 1024], [1; 1024], [2; 1024]].concat());
        // Of a longer one a part is waited for, and nothing is lost or out of order.
        let begin = Instant::now();
        let long = arrived(slow(100, None)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(65));
        let bytes = long.into_body().collect().await.unwrap().to_bytes();
        assert!(bytes.chunks(1024).enumerate().all(|(at, piece)| piece.iter().all(|byte| usize::from(*byte) == at)));
        assert_eq!(bytes.len(), 100 * 1024);
        // What went wrong is the reader's to see.
        let broken = arrived(slow(2, Some("cut"))).await;
        assert!(broken.into_body().collect().await.unwrap_err().to_string().contains("cut"));
    }
}
