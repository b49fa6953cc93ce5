//! One connection: HTTP/1.1 or HTTP/2 over whatever stream, and the answers on it.

use super::{Behind, Shared};
use crate::{
    app::Peer,
    doors::{Activity, Ending, Place},
};
use axum::body::Body;
use hyper::{
    Request,
    body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::sleep,
};
use tower::ServiceExt;

/// Longest from one request of a kept-alive connection to the headers of the next; places have limits of their own.
const NEXT_REQUEST_WITHIN: Duration = Duration::from_secs(75);
/// How often an HTTP/2 peer is asked whether it still lives, and how long it may take to answer.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Largest read from an HTTP/1.1 connection: blobs arrive in pieces of up to this size.
pub(super) const HTTP1_BUFFER_BYTES: usize = 512 * 1024;
/// Flow-control windows of HTTP/2: small messages are the rule there, blobs travel over HTTP/1.1.
pub(super) const HTTP2_STREAM_WINDOW_BYTES: u32 = 1 << 20;
pub(super) const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// How long a connection that is asked to end may take for what is on its way.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);

impl Shared {
    /// Why the connection in that place has to end, once it has.
    pub(super) async fn ending(&self, place: &Place) -> Ending {
        let ending = place.ending(|proof| self.behind.stands(proof)).await;
        self.metrics.connection_ended(ending);
        tracing::debug!(?ending, "ending a connection");
        ending
    }

    pub(super) async fn connection(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        place: Arc<Place>,
    ) {
        let (router, taken) = (self.router.clone(), place.clone());
        let link = match &self.behind {
            Behind::Leader(forward) => Some(forward.link(peer.clone())),
            Behind::Farm(_) => None,
        };
        let service = service_fn(move |request: Request<Incoming>| {
            let activity = taken.begin();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(taken.clone());
            if let Some(link) = &link {
                request.extensions_mut().insert(link.clone());
            }
            let answer = router.clone().oneshot(request);
            async move { answer.await.map(|answer| answer.map(|body| Body::new(Answer { body, activity }))) }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(NEXT_REQUEST_WITHIN)
            .max_buf_size(HTTP1_BUFFER_BYTES)
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            ending = self.ending(&place) => {
                if ending.is_gentle() {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection.as_mut() => ended,
                        () = sleep(LEAVES_WITHIN) => Ok(()),
                        () = place.displaced() => Ok(()),
                    }
                } else {
                    Ok(())
                }
            }
            () = self.closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = self.force.cancelled() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            // Peers break off all the time; whoever was in the middle of something has logged it there.
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// The body of an answer, which tells its connection's place how its reader takes it.
struct Answer {
    body: Body,
    activity: Activity,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let answer = self.get_mut();
        answer.activity.asked_for_more();
        let polled = Pin::new(&mut answer.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(_))) = &polled {
            answer.activity.handed_on();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
