//! Runs one host: finds its devices, takes leases, runs workers, uploads what they make.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | how an agent is run, and its bounds |
//! | [`session`] | the agent itself: its stream to the coordinator and what it holds |
//! | [`attempt`] | one attempt at one job: files, device, worker process, uploads, log |
//! | [`enrollment`] | this agent's own key, and the coordinator's certificate for it |
//! | [`host`] | devices, device locks, processes, the agent's own folder |
//! | `log_fields` | what log lines say, escaped |
//! | [`worker`] | what runs inside the worker process |
//!
//! Invariant: an agent never decides what is built; it runs what it holds a lease for.
//! Invariant: nothing of an attempt runs after its end is reported.

pub mod attempt;
pub mod config;
pub mod enrollment;
pub mod error;
pub mod host;
mod log_fields;
pub mod session;
pub mod worker;

pub use config::{AgentConfig, Limits};
pub use error::AgentError;
pub use host::baselines;
pub use host::devices::{DeviceError, DeviceSource, HostDevices};
pub use host::state::{AttemptKey, CEILINGS, ORACLES, models_folder};
pub use log_fields::log_fields;
pub use session::run;
pub use worker::worker_main;
