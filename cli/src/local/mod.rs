//! This machine's own farm: who hosts it, who is its client.
//!
//! The first process on a data folder locks it, runs the coordinator and listens on a socket there; later ones are its
//! clients. When the host ends, however it ends, the kernel frees its lock, and the next client that notices becomes
//! the host and goes on with what the store holds. A host that is done while others wait for its devices goes on until
//! they have what they asked for.
//!
//! A host starts an agent only when something has to run: what is stored is answered without one.

mod folder;
mod host;
mod record;

pub use folder::DataFolder;
pub use host::{Agent, bound, ceilings_folder, copies, oracles_folder, state_folder};
pub use record::{OwnersWay, Record};

use crate::{failure::Failure, printer::Printer, settings::AgentBounds, signals};
use planforge_client::{Client, Endpoint};
use planforge_coordinator::server::{self, Coordinator, CoordinatorConfig, StartError};
use planforge_proto::{ErrorCode, v1};
use planforge_types::Digest;
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long to wait for a host that holds the lock to answer on its socket: a store is opened in far less.
const HOST_START_LIMIT: Duration = Duration::from_secs(30);
/// How long a started agent may take to join with its devices: GPU libraries can take seconds to open.
const AGENT_START_LIMIT: Duration = Duration::from_secs(60);
/// Between tries to become the host, to reach it, or to see its devices.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// How long a command that is done may tidy its farm, once a day.
const TIDY_LIMIT: Duration = Duration::from_secs(5);
/// Between looks at whether others still need this host.
const OTHERS_INTERVAL: Duration = Duration::from_millis(200);

/// What a command needs of this machine's own farm; a coordinator by URL has it all anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Answers from what is stored.
    Answers,
    /// An agent at work for as long as the command runs.
    Work,
    /// A farm that goes on without this command: one that `planforge up` keeps.
    Lasting,
}

/// This process's part in the farm.
#[derive(Debug)]
pub struct Local {
    client: Client,
    folder: DataFolder,
    host: Option<Host>,
    /// Kept by a process that goes on without this one.
    lasting: bool,
    /// Of an agent that is started here.
    bounds: AgentBounds,
}

/// What a host runs.
#[derive(Debug)]
struct Host {
    coordinator: Coordinator,
    agent: Option<Agent>,
}

impl Local {
    /// Becomes the host of the farm in `data`, or the client of the process that is.
    pub async fn join(data: &Path, need: Need, bounds: AgentBounds) -> Result<Self, Failure> {
        let deadline = Instant::now() + AGENT_START_LIMIT;
        loop {
            let folder = DataFolder::open(data)?;
            let (client, host) = match need {
                Need::Lasting => (reach_lasting(&folder).await?, None),
                Need::Answers | Need::Work => host_or_reach(&folder).await?,
            };
            let mut local = Self { client, folder, host, lasting: need == Need::Lasting, bounds };
            if need != Need::Work {
                return Ok(local);
            }
            match local.start_work().await {
                Ok(_) => return Ok(local),
                // The host ended before it had devices for us.
                Err(failure) if failure.is_unavailable() && local.is_guest() && Instant::now() < deadline => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Whether the host is another process that ends when its own command is done.
    pub fn is_guest(&self) -> bool {
        self.host.is_none() && !self.lasting
    }

    pub fn is_lasting(&self) -> bool {
        self.lasting
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where the farm keeps a blob that it has.
    pub fn stored_blob(&self, digest: Digest) -> Option<PathBuf> {
        let path = server::blob_file(self.folder.path(), digest);
        path.is_file().then_some(path)
    }

    /// Has an agent at work with its devices known; whether that is news to this process.
    pub async fn start_work(&mut self) -> Result<bool, Failure> {
        let news = match &mut self.host {
            Some(Host { agent: Some(agent), .. }) => {
                agent.check().await?;
                return Ok(false);
            }
            Some(host) => {
                let (endpoint, state) = (self.client.endpoint().clone(), state_folder(self.folder.path()));
                host.agent = Some(Agent::start(endpoint, &state, self.bounds, Vec::new())?);
                true
            }
            // The host starts its agent when it has something to run; a client only waits for that.
            None => self.online_devices().await?.is_empty(),
        };
        self.wait_for_devices().await?;
        Ok(news)
    }

    async fn wait_for_devices(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + AGENT_START_LIMIT;
        while self.online_devices().await?.is_empty() {
            if let Some(Host { agent: Some(agent), .. }) = &mut self.host {
                agent.check().await?;
            }
            if Instant::now() > deadline {
                let message = format!("no agent joined the farm in {}", self.folder.path().display());
                return Err(Failure::new(ErrorCode::Unavailable, message).hint("try again with -vv to see why"));
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
        Ok(())
    }

    async fn online_devices(&self) -> Result<Vec<v1::Device>, Failure> {
        let reply = self.client.farm().list_devices(v1::ListDevicesRequest { online_only: true }).await;
        Ok(reply.map_err(|e| Failure::from(self.client.error(e)))?.into_inner().devices)
    }

    /// Ends this process's part. A host first finishes what other processes wait for, unless it is interrupted.
    pub async fn close(self, printer: &Printer) {
        if let Some(host) = &self.host {
            let finish = async {
                if host.agent.is_some() {
                    self.others_served(printer).await;
                }
                host.coordinator.tidy_if_due(TIDY_LIMIT).await;
            };
            tokio::select! {
                () = finish => {}
                () = signals::interrupted() => {}
            }
        }
        self.leave().await;
    }

    /// Ends this process's part now; processes that wait for jobs here find the next host among themselves.
    pub async fn leave(self) {
        let Some(host) = self.host else { return };
        if let Some(agent) = host.agent {
            agent.stop().await;
        }
        host.coordinator.shutdown().await;
    }

    async fn others_served(&self, printer: &Printer) {
        let mut told = false;
        loop {
            match (self.folder.others_are_here(), self.live_jobs().await) {
                (Ok(true), Ok(live)) if live > 0 => {
                    if !told {
                        printer.note(&format!(
                            "done; finishing {live} jobs for other planforge processes here (Ctrl-C hands them over)"
                        ));
                        told = true;
                    }
                }
                _ => return,
            }
            tokio::time::sleep(OTHERS_INTERVAL).await;
        }
    }

    async fn live_jobs(&self) -> Result<usize, Failure> {
        use v1::JobState::*;
        let states = [Blocked, Queued, Leased, Running].map(i32::from).to_vec();
        let request = v1::ListJobsRequest { states, limit: 1, with_total: true, ..Default::default() };
        let reply = self.client.farm().list_jobs(request).await;
        let reply = reply.map_err(|e| Failure::from(self.client.error(e)))?.into_inner();
        Ok(usize::try_from(reply.total).unwrap_or(usize::MAX))
    }
}

/// The coordinator of a data folder as its owner's processes use it: only by its socket.
async fn host_or_reach(folder: &DataFolder) -> Result<(Client, Option<Host>), Failure> {
    let deadline = Instant::now() + HOST_START_LIMIT;
    let endpoint = Endpoint::unix(folder.socket_path());
    loop {
        let mut config = CoordinatorConfig::new(folder.path());
        config.unix_socket = Some(folder.socket_path());
        config.blobs.copies = copies(folder.path(), &[]);
        match Coordinator::start(config).await {
            Ok(coordinator) => {
                let client = Client::connect(endpoint, None).await?;
                return Ok((client, Some(Host { coordinator, agent: None })));
            }
            Err(StartError::Locked { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Another process holds the lock: it listens soon, or it ends and leaves the lock to us.
        match Client::connect(endpoint.clone(), None).await {
            Ok(client) => return Ok((client, None)),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}

/// The farm of a process that goes on without us.
async fn reach_lasting(folder: &DataFolder) -> Result<Client, Failure> {
    Client::connect(Endpoint::unix(folder.socket_path()), None).await.map_err(|_| {
        Failure::new(ErrorCode::Unavailable, "no coordinator to leave the jobs with")
            .hint("name one with --server URL, start one with `planforge up`, or build here with `planforge build`")
    })
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let code = match &error {
            StartError::Locked { .. } => ErrorCode::Conflict,
            StartError::DatabaseGone { .. } => ErrorCode::Internal,
            StartError::Farm(inner) => inner.code,
            StartError::Blobs(inner) => inner.code(),
            StartError::Io { source, path, action } => return Self::io(action, path, source).hint(error.hint()),
            _ => ErrorCode::InvalidArgument,
        };
        Self::new(code, error.to_string()).hint(error.hint())
    }
}
