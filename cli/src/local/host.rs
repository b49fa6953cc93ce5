//! The agent that a host runs beside its coordinator, in the same process.

use crate::{
    backends,
    failure::Failure,
    settings::{AgentBounds, Settings},
};
use planforge_agent::{AgentConfig, AgentError, HostDevices, Limits};
use planforge_client::Endpoint;
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Label;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{sync::oneshot, task::JoinHandle};

/// Where the agent of a data folder keeps its own state.
pub fn state_folder(data: &Path) -> PathBuf {
    data.join("agent")
}

/// Folders where a farm may find what is damaged in its own: those that were named, a backup as its folder or its blobs,
/// and the models that the agent beside it keeps.
pub fn copies(data: &Path, named: &[PathBuf]) -> Vec<PathBuf> {
    let of_agent = planforge_agent::models_folder(&state_folder(data));
    named.iter().flat_map(|folder| [folder.clone(), folder.join("blobs")]).chain([of_agent]).collect()
}

/// Where the agent of the data folder keeps what this machine's devices were measured to reach; `None` without a data
/// folder.
pub fn ceilings_folder(settings: &Settings) -> Option<PathBuf> {
    settings.data_folder().ok().map(|data| state_folder(&data).join(planforge_agent::CEILINGS))
}

/// Where it keeps what independent runtimes said of models.
pub fn oracles_folder(settings: &Settings) -> Option<PathBuf> {
    settings.data_folder().ok().map(|data| state_folder(&data).join(planforge_agent::ORACLES))
}

/// Has an agent keep to what was asked of it.
pub fn bound(limits: &mut Limits, bounds: AgentBounds) {
    limits.cache_bytes = bounds.cache_bytes.unwrap_or(limits.cache_bytes);
    if let Some(asked_ms) = bounds.measure_budget_ms {
        (limits.measure_budget_ms, limits.strict_measure_budget) = (asked_ms, true);
    }
}

/// An agent at work in this process.
#[derive(Debug)]
pub struct Agent {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), AgentError>>,
}

impl Agent {
    /// Starts the agent of this host, embedded: it ends at once when asked to, and its workers with it.
    pub fn start(endpoint: Endpoint, state: &Path, bounds: AgentBounds, labels: Vec<Label>) -> Result<Self, Failure> {
        let devices = Arc::new(HostDevices::new(backends::compilers(), Some(state.to_owned())));
        let mut config = AgentConfig::new(endpoint, None, state.to_owned(), devices)?;
        config.embedded = true;
        config.labels = labels;
        bound(&mut config.limits, bounds);
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            // Dropping the sender asks for the end too.
            let _ = stopped.await;
        };
        Ok(Self { stop: Some(stop), task: tokio::spawn(planforge_agent::run(config, shutdown)) })
    }

    /// The failure of an agent that ended by itself.
    pub async fn check(&mut self) -> Result<(), Failure> {
        if !self.task.is_finished() {
            return Ok(());
        }
        match (&mut self.task).await {
            Ok(Ok(())) => Err(Failure::new(ErrorCode::Internal, "the agent ended by itself")),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(Failure::new(ErrorCode::Internal, format!("the agent ended badly: {error}"))),
        }
    }

    /// Asks the agent to end and waits until it has.
    pub async fn stop(mut self) {
        self.stop.take();
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the agent ended badly");
        }
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        ApiError::from(error).into()
    }
}
