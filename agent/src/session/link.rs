//! One stream to the coordinator, from opening to its end.

use futures::StreamExt as _;
use planforge_client::Client;
use planforge_proto::{ApiError, v1};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Messages that may wait for the network. A stream that lags by more is as good as cut.
pub const OUTGOING: usize = 1024;
/// Longest wait for the coordinator to take the stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// What a stream tells the agent; `generation` tells streams apart.
#[derive(Debug)]
pub struct LinkEvent {
    pub generation: u64,
    pub kind: LinkEventKind,
}

/// What happened on a stream.
#[derive(Debug)]
pub enum LinkEventKind {
    Message(Box<v1::coordinator_message::Kind>),
    /// The coordinator does not take this agent; the stream ends after it.
    Refused(v1::Refused),
    /// The last event of a stream.
    Down(ApiError),
}

/// The agent's end of a stream.
#[derive(Debug)]
pub struct Link {
    pub generation: u64,
    pub outgoing: mpsc::Sender<v1::AgentMessage>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Lets what was sent leave, then ends the stream; waits at most `longest` for the coordinator to end its side.
    pub async fn finish(mut self, longest: Duration) {
        self.outgoing = mpsc::channel(1).0;
        let _ = tokio::time::timeout(longest, &mut self.task).await;
    }

    /// Opens a stream whose first message is `hello`.
    pub fn open(client: &Client, hello: v1::Hello, generation: u64, events: mpsc::Sender<LinkEvent>) -> Self {
        let (outgoing, queue) = mpsc::channel(OUTGOING);
        let first = v1::AgentMessage { kind: Some(v1::agent_message::Kind::Hello(hello)) };
        outgoing.try_send(first).expect("a new queue has room");
        let client = client.clone();
        let task = tokio::spawn(async move {
            let error = carry(client, queue, generation, &events).await;
            let _ = events.send(LinkEvent { generation, kind: LinkEventKind::Down(error) }).await;
        });
        Self { generation, outgoing, task }
    }
}

/// Carries messages until the stream ends, and says why it did.
async fn carry(
    client: Client,
    queue: mpsc::Receiver<v1::AgentMessage>,
    generation: u64,
    events: &mpsc::Sender<LinkEvent>,
) -> ApiError {
    let mut fleet = client.fleet();
    let opening = fleet.session(ReceiverStream::new(queue));
    let mut incoming = match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return client.error(status),
        Err(_) => {
            let message = format!("the coordinator at {} did not take the session", client.endpoint());
            return ApiError::new(planforge_proto::ErrorCode::Unavailable, message);
        }
    };
    loop {
        match incoming.next().await {
            Some(Ok(message)) => {
                let kind = match message.kind {
                    None => continue,
                    Some(v1::coordinator_message::Kind::Refused(refused)) => LinkEventKind::Refused(refused),
                    Some(kind) => LinkEventKind::Message(Box::new(kind)),
                };
                if events.send(LinkEvent { generation, kind }).await.is_err() {
                    return ApiError::new(planforge_proto::ErrorCode::Unavailable, "the agent has ended");
                }
            }
            Some(Err(status)) => return client.error(status),
            None => {
                return ApiError::new(planforge_proto::ErrorCode::Unavailable, "the coordinator ended the session");
            }
        }
    }
}
