//! The scheduling core: which job runs where, decided without clocks, sockets or a database.
//!
//! [`State::apply`] takes one [`Input`] and the time and returns [`Effects`]: changes to make durable, messages to
//! release once they are, and the answer to the caller. Same inputs, same effects: ids come in with the input, every
//! map is ordered, and no clock is read.
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | jobs, attempts, agents, engines, events and the changes made of them |
//! | [`state`] | the state, and what goes in |
//! | `declarations` | which engines projects say should exist |
//! | `effects` | what comes out |
//! | `ask` | what a request asks for, one combination at a time |
//! | `known` | what the store has under engine keys, as far as this state changed it |
//! | `judge` | what is to happen to a combination: answered, joined, run, refused, kept waiting |
//! | `submit` | requests: admission, merging, answers from the store |
//! | `forget` | taking away what a policy let go, as long as nobody needs it |
//! | `foresee` | what a submission would come to |
//! | `fleet` | agents: sessions, inventories, heartbeats, revival, the sweep |
//! | `abilities` | what a toolchain can do at all |
//! | `agents` | agents as their administrator sees them, and what ends their stay from outside |
//! | `audit` | one line of the audit log |
//! | `blob_refs` | which blobs records name, and to whom they belong by that |
//! | `attempts` | leases and how attempts end: success, failure classes, requeue, expiry |
//! | `fallback` | the next toolchain, where one cannot build a model |
//! | `requirements` | what jobs ask of their device beside its kind, and which devices have it |
//! | `elsewhere` | what an agent's host lacked, and who may have it |
//! | `graph` | jobs that jobs need, and what follows when they end |
//! | `cancel` | withdrawal of requests |
//! | `compile` | jobs that measure nothing, or need no device, and what they leave to those that do |
//! | `flight` | work in flight by name, so that the same is not done twice |
//! | `preparation` | models of other number types, made by jobs, and the builds that wait for them |
//! | `caches` | timing and tactic caches: what a build begins with, whose result is kept |
//! | `pins` | who wants which plan kept |
//! | `priority` | how urgent jobs are that wait already |
//! | `shares` | links for reading one thing without a token |
//! | `pauses` | device kinds, projects and agents that get no more jobs for a while, or in windows |
//! | `plugins` | which native code workers may load |
//! | `projects` | shares and limits of projects, and who may take how much of the queue |
//! | `waiting` | why a job is not running yet, its place in the queue, when it will likely have ended |
//! | `queue` | the order in which waiting jobs are served |
//! | `ranks` | a line of waiting jobs that knows the place of each |
//! | `resolve` | from what is asked for to one exact toolchain and spec |
//! | [`invariants`] | what must hold after every input, and over every history of events |
//!
//! Must not know: tokio, SQL or gRPC streams.

mod abilities;
mod agents;
mod ask;
mod attempts;
mod audit;
mod blob_refs;
mod caches;
mod cancel;
mod compile;
mod declarations;
mod effects;
mod elsewhere;
mod fallback;
mod fleet;
mod flight;
mod foresee;
mod forget;
mod graph;
pub mod invariants;
mod judge;
mod known;
pub mod model;
mod pauses;
mod pins;
mod plugins;
mod preparation;
mod priority;
mod projects;
mod queue;
mod ranks;
mod requirements;
mod resolve;
mod shares;
pub mod state;
mod submit;
mod waiting;

pub use abilities::Abilities;
pub use agents::{AgentView, Farewell};
pub use audit::{AuditKind, AuditLine};
pub use blob_refs::{BlobHolder, Held, Hold, Tenure};
pub use compile::Prepared;
pub use declarations::{DeclarationId, DeclarationRecord, DeclaredCell, DeclaredSpec};
pub use effects::{Counters, Effects, JobRef, Reply, Submitted, ToAgent};
pub use fallback::Tried;
pub use fleet::{ATTEMPT_REPORTS_MAX, DeviceCounts, DeviceView};
pub use foresee::{Foreseen, Foresight};
pub use forget::Forget;
pub use known::{Lookup, Stored};
pub use model::{
    Agent, ArtifactRef, Attempt, CacheBeside, CacheRecord, CacheRef, Canary, Change, Covered, Device, Engine,
    EngineRef, Event, Failure, Job, JobId, JobKind, JobState, JoinedBy, Made, Model, ModelFile, Outcome, PlanRef,
    PluginRecord, PreparationRecord, Refusal, Report, RequestRecord, TokenRecord, Told, Want,
};
pub use pauses::{PauseId, PauseRecord, PausedKind, Window};
pub use pins::{PinId, PinRecord};
pub use preparation::Preparing;
pub use priority::Prioritize;
pub use projects::{ProjectRecord, ProjectView, SHARE_MAX};
pub use shares::{ShareRecord, Shared};
pub use state::{
    CacheUpdate, Cancel, CoreConfig, FinishedIn, FinishedOutcome, HelloIn, Input, LeaseRef, Need, Now, ReportIn,
    SessionId, Snapshot, SpecAsk, State, Submit, SubmitWhat,
};
pub use submit::{JOBS_PER_REQUEST_MAX, repeat};
pub use waiting::{Eta, Lookout, Outlook};
