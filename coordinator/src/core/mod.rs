//! The scheduling core: which job runs where, decided without clocks, sockets or a database.
//!
//! [`State::apply`] takes one [`Input`] and the time and returns [`Effects`]: changes to make durable, messages to
//! release once they are, and the answer to the caller. Same inputs, same effects: ids come in with the input, every
//! map is ordered, and no clock is read.
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | jobs, attempts, agents, engines, events and the changes made of them |
//! | [`state`] | the state, what goes in and what comes out |
//! | `ask` | what a request asks for, one combination at a time |
//! | `judge` | what is to happen to a combination: answered, joined, run, refused, kept waiting |
//! | `submit` | requests: admission, merging, answers from the store |
//! | `fleet` | agents: sessions, inventories, heartbeats, revival, the sweep |
//! | `attempts` | leases and how attempts end: success, failure classes, requeue, expiry |
//! | `cancel` | withdrawal of requests |
//! | `caches` | timing and tactic caches: what a build begins with, whose result is kept |
//! | `plugins` | which native code workers may load |
//! | `waiting` | why a job is not running yet, in words |
//! | `queue` | the order in which waiting jobs are served |
//! | `resolve` | from what is asked for to one exact toolchain and spec |
//! | [`invariants`] | what must hold after every input, and over every history of events |
//!
//! Invariant: nothing here knows tokio, SQL or gRPC streams.

mod ask;
mod attempts;
mod caches;
mod cancel;
mod fleet;
pub mod invariants;
mod judge;
pub mod model;
mod plugins;
mod queue;
mod resolve;
pub mod state;
mod submit;
mod waiting;

pub use fleet::DeviceView;
pub use model::{
    Agent, ArtifactRef, Attempt, CacheRecord, CacheRef, Change, Covered, Device, Engine, EngineRef, Event, Failure,
    Job, JobId, JobKind, JobState, Model, ModelFile, Outcome, PlanRef, PluginRecord, Refusal, Report, RequestRecord,
    TokenRecord, Told, Want,
};
pub use state::{
    CacheUpdate, Cancel, CoreConfig, Counters, Effects, FinishedIn, FinishedOutcome, HelloIn, Input, JobRef, LeaseRef,
    Now, Reply, ReportIn, SessionId, Snapshot, State, Submit, SubmitWhat, Submitted, ToAgent,
};
pub use submit::{JOBS_PER_REQUEST_MAX, repeat};
