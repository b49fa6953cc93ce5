//! How an agent is run.

use crate::host::{baselines, devices::DeviceSource, lock};
use crate::{AgentError, host::lock::LockError};
use planforge_client::{Endpoint, Identity, Token};
use planforge_types::Label;
use std::{ffi::OsString, fmt, path::PathBuf, sync::Arc};

/// Bounds of what an agent does. Every one can be raised where a shop needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest a worker may run. TensorRT builds of large models take up to an hour.
    pub job_ms: u64,
    /// Longest one measurement may take, but for what it needs to be comparable; told to the worker.
    pub measure_budget_ms: u64,
    /// Nor may it take longer to be comparable: somebody asked for just this budget.
    pub strict_measure_budget: bool,
    /// Between SIGTERM and SIGKILL for a worker.
    pub kill_grace_ms: u64,
    /// How long running jobs may go on once the agent is told to end; then they are tried elsewhere.
    pub drain_ms: u64,
    /// Largest log of an attempt.
    pub log_bytes: u64,
    /// Largest file a worker may write: plans and their caches stay well below.
    pub file_bytes: u64,
    /// Address space of a CPU worker; `None`: unlimited. CUDA workers never get one, it breaks CUDA.
    pub cpu_address_space_bytes: Option<u64>,
    /// Models, timing caches and the like that are kept between jobs, all together.
    pub cache_bytes: u64,
    /// How long a finished build waits for a blob store that is away.
    pub store_patience_ms: u64,
    /// How long an attempt waits for a device that another agent of this host uses.
    pub device_wait_ms: u64,
    /// How long it waits before logs name who has it.
    pub device_wait_told_ms: u64,
    /// First and longest wait between tries to reach the coordinator.
    pub reconnect_first_ms: u64,
    pub reconnect_longest_ms: u64,
    /// How long a refusal is retried before the agent gives up: a coordinator may not know yet that the process
    /// before this one is dead.
    pub refusal_patience_ms: u64,
    /// How often devices and toolchains are looked for anew.
    pub device_refresh_ms: u64,
    /// How long a device may take to answer when it is looked at after a failure.
    pub device_check_ms: u64,
    /// How often a device that could not be used is looked at again.
    pub device_retry_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            job_ms: 2 * 60 * 60 * 1000,
            measure_budget_ms: 20_000,
            strict_measure_budget: false,
            kill_grace_ms: 5_000,
            drain_ms: 10 * 60 * 1000,
            log_bytes: 8 << 20,
            file_bytes: 64 << 30,
            cpu_address_space_bytes: None,
            // What a laptop has to spare.
            cache_bytes: 8 << 30,
            store_patience_ms: 10 * 60 * 1000,
            device_wait_ms: 60 * 60 * 1000,
            device_wait_told_ms: 3_000,
            reconnect_first_ms: 100,
            reconnect_longest_ms: 3_000,
            refusal_patience_ms: 30_000,
            device_refresh_ms: 60_000,
            device_check_ms: 30_000,
            device_retry_ms: 60_000,
        }
    }
}

/// How one agent is run.
#[derive(Clone)]
pub struct AgentConfig {
    pub endpoint: Endpoint,
    pub token: Option<Token>,
    /// The identity that the coordinator gave this agent, which it renews.
    pub enrolled: Option<Identity>,
    /// The agent's own folder; two agents never share one.
    pub state_dir: PathBuf,
    /// For people; usually the host's name.
    pub name: String,
    /// What jobs may ask for.
    pub labels: Vec<Label>,
    /// Program and arguments that run one job; must speak the worker protocol.
    pub worker_command: Vec<OsString>,
    /// Program and arguments that look at a device, whose id is added: it succeeds, or says why it cannot be used.
    pub check_command: Vec<OsString>,
    /// Folder of the locks of devices and cores: the same for every agent of the host, whoever runs it, in a container or
    /// not.
    pub lock_dir: PathBuf,
    pub devices: Arc<dyn DeviceSource>,
    pub limits: Limits,
    /// Fails jobs whose spec names plugins, whatever the farm allows: plugins are native code.
    pub refuse_plugins: bool,
    /// Folder of the programs that measure by other runtimes, for requests that ask for one by name; `PLANFORGE_BASELINES`
    /// names it.
    pub baselines: Option<PathBuf>,
    /// Part of another command on this machine: ends at once instead of draining, and says little.
    pub embedded: bool,
}

impl fmt::Debug for AgentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentConfig")
            .field("endpoint", &self.endpoint)
            .field("state_dir", &self.state_dir)
            .field("name", &self.name)
            .field("lock_dir", &self.lock_dir)
            .field("embedded", &self.embedded)
            .finish_non_exhaustive()
    }
}

impl AgentConfig {
    /// An agent of this host with every default: named after the host, workers are `worker` of this very program.
    pub fn new(
        endpoint: Endpoint,
        token: Option<Token>,
        state_dir: PathBuf,
        devices: Arc<dyn DeviceSource>,
    ) -> Result<Self, AgentError> {
        let program = std::env::current_exe().map_err(AgentError::OwnProgram)?;
        Ok(Self {
            endpoint,
            token,
            enrolled: None,
            state_dir,
            name: host_name(),
            labels: Vec::new(),
            worker_command: vec![program.clone().into(), "worker".into()],
            check_command: vec![program.into(), "check-device".into()],
            lock_dir: lock::host_folder()?,
            devices,
            limits: Limits::default(),
            refuse_plugins: false,
            baselines: baselines::of_environment(),
            embedded: false,
        })
    }

    pub(crate) fn prepare_lock_dir(&self) -> Result<(), LockError> {
        lock::prepare_folder(&self.lock_dir)
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
