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
//! | `submit` | requests: expansion, admission, merging, answers from the store |
//! | `fleet` | agents: sessions, inventories, heartbeats, revival, the sweep |
//! | `attempts` | leases and how attempts end: success, failure classes, requeue, expiry |
//! | `cancel` | withdrawal of requests |
//! | `queue` | the order in which waiting jobs are served |
//! | `resolve` | from what is asked for to one exact toolchain and spec |
//! | [`invariants`] | what must hold after every input, and over every history of events |
//!
//! Invariant: nothing here knows tokio, SQL or gRPC streams.

mod attempts;
mod cancel;
mod fleet;
pub mod invariants;
pub mod model;
mod queue;
mod resolve;
pub mod state;
mod submit;

pub use fleet::DeviceView;
pub use model::{
    Agent, Attempt, Change, Device, Engine, EngineRef, Event, Failure, Job, JobId, JobKind, JobState, Model, ModelFile,
    Outcome, PlanRef, Refusal, Report, RequestRecord, TokenRecord, Want,
};
pub use state::{
    Cancel, CoreConfig, Counters, Effects, FinishedIn, FinishedOutcome, HelloIn, Input, JobRef, LeaseRef, Now, Reply,
    ReportIn, SessionId, Snapshot, State, Submit, SubmitWhat, Submitted, ToAgent,
};
pub use submit::{JOBS_PER_REQUEST_MAX, repeat};
