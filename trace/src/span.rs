//! One thing that took time.

use planforge_types::TraceContext;
use std::time::{SystemTime, UNIX_EPOCH};

/// Who did it: what `service.name` is made of where nobody gave a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Client,
    Coordinator,
    Agent,
    Worker,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Coordinator => "coordinator",
            Self::Agent => "agent",
            Self::Worker => "worker",
        }
    }
}

/// How it stands to what caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Internal,
    /// Answers a call of another process.
    Server,
    /// Calls another process.
    Client,
}

/// One thing that took time, told when it has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub part: Part,
    pub name: String,
    pub kind: Kind,
    /// Its place.
    pub context: TraceContext,
    /// The place that it is below; `None`: the trace begins with it.
    pub parent: Option<TraceContext>,
    pub start_unix_ns: u64,
    pub end_unix_ns: u64,
    pub attributes: Vec<(&'static str, String)>,
    /// Why it did not come to what it was for.
    pub error: Option<String>,
}

/// A trace of its own, to be recorded.
pub fn fresh() -> TraceContext {
    // All zeros would be no id; that one bit is not random costs nothing.
    let mut context = TraceContext { trace: rand::random(), span: rand::random(), sampled: true };
    context.trace[0] |= 1;
    context.span[0] |= 1;
    context
}

/// The time of day.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
