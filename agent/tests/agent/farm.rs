//! The coordinator's side of a test, and the agent under test.

use crate::server::Store;
use planforge_agent::{AgentConfig, AgentError, DeviceError, DeviceSource, Limits, host::proc::ProcessId};
use planforge_client::Endpoint;
use planforge_identity::model::model_digest;
use planforge_proto::v1::{
    self,
    agent_message::Kind as Said,
    coordinator_message::Kind as Say,
    fleet_server::{Fleet, FleetServer},
};
use planforge_types::{
    Digest, Sku,
    fingerprint::{DeviceFingerprint, DeviceKind, DiscoveredDevice, HostFacts},
    telemetry::TelemetrySample,
};
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// Longest wait for a condition; generous because the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
pub async fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let waited = tokio::time::timeout(DEADLINE, async {
        loop {
            if let Some(value) = condition() {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("did not happen: {what}"))
}

/// How the coordinator behaves.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// Finished attempts are not acknowledged.
    pub holds_acks: bool,
    /// Every agent is refused.
    pub refuses: bool,
    /// Trying again is said to be of no use.
    pub lasting: bool,
    /// Protocol that agents are welcomed with.
    pub protocol: u32,
}

#[derive(Clone, Default)]
pub struct Farm {
    pub store: Store,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    said: Mutex<Vec<Said>>,
    manner: Mutex<Manner>,
    session: Mutex<Option<mpsc::Sender<Result<v1::CoordinatorMessage, Status>>>>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

#[tonic::async_trait]
impl Fleet for Farm {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::CoordinatorMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut incoming = request.into_inner();
        let (sender, outgoing) = mpsc::channel(64);
        *self.inner.session.lock().unwrap() = Some(sender);
        let farm = self.clone();
        let reader = tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                let kind = message.kind.unwrap();
                farm.inner.said.lock().unwrap().push(kind.clone());
                farm.answer(kind).await;
            }
        });
        *self.inner.reader.lock().unwrap() = Some(reader);
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}

impl Farm {
    async fn answer(&self, said: Said) {
        let manner = self.inner.manner.lock().unwrap().clone();
        let ended = match said {
            Said::Hello(_) if manner.refuses => {
                self.say(Say::Refused(v1::Refused {
                    reason: "this agent is connected already".into(),
                    hint: "end it".into(),
                    lasting: manner.lasting,
                }))
                .await;
                self.cut();
                Vec::new()
            }
            Said::Hello(hello) => {
                let welcome = v1::Welcome {
                    epoch: 1,
                    heartbeat_ms: 50,
                    lease_ms: 15_000,
                    resumed: hello.leases,
                    lost: Vec::new(),
                    protocol: manner.protocol,
                };
                self.say(Say::Welcome(welcome)).await;
                hello.finished
            }
            Said::Finished(finished) => vec![finished],
            Said::Goodbye(_) => {
                self.inner.session.lock().unwrap().take();
                Vec::new()
            }
            _ => Vec::new(),
        };
        if !manner.holds_acks {
            for finished in ended {
                let ack = v1::FinishedAck { lease: finished.lease, accepted: true, reason: String::new() };
                self.say(Say::FinishedAck(ack)).await;
            }
        }
    }

    pub async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let fleet = tonic::service::Routes::new(FleetServer::new(self.clone())).into_axum_router();
        let router = fleet.merge(self.store.router());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        address
    }

    pub fn behave(&self, manner: Manner) {
        *self.inner.manner.lock().unwrap() = manner;
    }

    pub async fn say(&self, kind: Say) {
        let session = self.inner.session.lock().unwrap().clone();
        if let Some(session) = session {
            let _ = session.send(Ok(v1::CoordinatorMessage { kind: Some(kind) })).await;
        }
    }

    /// Ends the stream from this side.
    pub fn cut(&self) {
        self.inner.session.lock().unwrap().take();
        if let Some(reader) = self.inner.reader.lock().unwrap().take() {
            reader.abort();
        }
    }

    pub fn said(&self) -> Vec<Said> {
        self.inner.said.lock().unwrap().clone()
    }

    /// The first thing the agent says, now or later, that `pick` takes.
    pub async fn hear<T>(&self, what: &str, mut pick: impl FnMut(&Said) -> Option<T>) -> T {
        eventually(what, || self.inner.said.lock().unwrap().iter().find_map(&mut pick)).await
    }

    pub async fn hello(&self, number: usize) -> v1::Hello {
        let nth = || {
            let said = self.said();
            said.into_iter().filter_map(|s| if let Said::Hello(hello) = s { Some(hello) } else { None }).nth(number)
        };
        eventually("a hello", nth).await
    }

    pub async fn started(&self, job: &str) {
        self.hear("started", |s| matches!(s, Said::Started(s) if s.lease.as_ref().unwrap().job == job).then_some(()))
            .await;
    }

    pub async fn finished(&self, job: &str) -> v1::Finished {
        self.hear("finished", |s| match s {
            Said::Finished(finished) if finished.lease.as_ref().unwrap().job == job => Some(finished.clone()),
            _ => None,
        })
        .await
    }

    /// Gives the agent a job whose model is stored here.
    pub async fn assign(&self, job: &str) -> v1::Lease {
        self.assign_with(job, |_| ()).await
    }

    /// As [`Farm::assign`], with what `change` makes of it.
    pub async fn assign_with(&self, job: &str, change: impl FnOnce(&mut v1::Assign)) -> v1::Lease {
        let model = format!("model of {job}");
        let digest = Digest::of(model.as_bytes());
        self.store.put(digest, model.as_bytes());
        let weights = Digest::of(b"weights");
        self.store.put(weights, b"weights");
        let file = |name: &str, digest: Digest, size_bytes: usize| v1::ModelFile {
            name: name.into(),
            digest: digest.to_string(),
            size_bytes: size_bytes as u64,
        };
        let files = vec![file("m.onnx", digest, model.len()), file("data/weights.bin", weights, 7)];
        let whole = model_digest([("m.onnx", digest, model.len() as u64), ("data/weights.bin", weights, 7)]);
        let lease = v1::Lease { job: job.into(), attempt: 1, device: "cpu0".into() };
        let job = v1::Job {
            id: job.into(),
            kind: v1::JobKind::Build.into(),
            engine_key: Digest::of(b"key").to_string(),
            model: Some(v1::Model { digest: whole.to_string(), name: "m.onnx".into(), files, ..v1::Model::default() }),
            sku: "cpu-x86-64-v3".into(),
            toolchain_json: r#"{"backend":"native","version":"1"}"#.into(),
            spec_json: "{}".into(),
            ..v1::Job::default()
        };
        let mut assign = v1::Assign { lease: Some(lease.clone()), job: Some(job), ..v1::Assign::default() };
        change(&mut assign);
        self.say(Say::Assign(assign)).await;
        lease
    }

    pub async fn log_of(&self, finished: &v1::Finished) -> String {
        String::from_utf8(self.store.get(finished.log_digest.parse().unwrap()).unwrap()).unwrap()
    }
}

/// One scripted CPU.
pub struct OneCpu;

impl DeviceSource for OneCpu {
    fn devices(&self) -> Result<Vec<DiscoveredDevice>, DeviceError> {
        let fingerprint = DeviceFingerprint {
            kind: DeviceKind::Cpu,
            name: "scripted".into(),
            memory_mib: 1024,
            gpu: None,
            cpu: None,
            host: HostFacts::default(),
        };
        let skus = vec!["cpu-x86-64-v3".parse().unwrap()];
        Ok(vec![DiscoveredDevice {
            id: "cpu0".into(),
            fingerprint,
            skus,
            threads: 1,
            offers: Vec::new(),
            simulated: true,
        }])
    }

    fn telemetry(&self, device: &str) -> Option<TelemetrySample> {
        assert_eq!(device, "cpu0");
        Some(TelemetrySample { load_1m: Some(0.5), ..TelemetrySample::default() })
    }

    /// Behind one another; of what is torn nothing is taken.
    fn join_caches(&self, _: &str, _: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        let other = std::fs::read(from)?;
        if other == b"torn" {
            return Err(io::ErrorKind::InvalidData.into());
        }
        std::fs::write(into, [std::fs::read(into)?, other].concat())?;
        Ok(true)
    }
}

/// The agent under test; dropping it is what a crash is to its workers.
pub struct Running {
    task: JoinHandle<Result<(), AgentError>>,
    shutdown: Option<oneshot::Sender<()>>,
}

impl Running {
    /// Asks it to end.
    pub fn shut_down(&mut self) {
        let _ = self.shutdown.take().unwrap().send(());
    }

    pub async fn ended(self) -> Result<(), AgentError> {
        tokio::time::timeout(DEADLINE, self.task).await.expect("the agent ends").unwrap()
    }

    /// Ends it without a word.
    pub async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A test's own folder, coordinator and agent set-up.
pub struct Bench {
    pub folder: tempfile::TempDir,
    pub farm: Farm,
    pub config: AgentConfig,
}

impl Bench {
    /// An agent whose worker is `script`, run by the shell in the attempt's scratch folder; `$OUT` is the test's folder.
    pub async fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let farm = Farm::default();
        let address = farm.serve().await;
        let config = Self::config(folder.path(), address.port(), script);
        Self { folder, farm, config }
    }

    /// The set-up of an agent whose folders lie in `folder`.
    pub fn config(folder: &Path, port: u16, script: &str) -> AgentConfig {
        let script = format!("OUT={}\n{PRELUDE}\n{script}", folder.display());
        AgentConfig {
            endpoint: Endpoint::Http { host: "127.0.0.1".into(), port },
            token: None,
            enrolled: None,
            state_dir: folder.join("state"),
            name: "bench".into(),
            labels: vec!["zone=b".parse().unwrap()],
            worker_command: ["sh", "-c", &script].map(Into::into).to_vec(),
            check_command: vec!["true".into()],
            lock_dir: folder.join("locks"),
            devices: Arc::new(OneCpu),
            limits: Limits {
                kill_grace_ms: 200,
                reconnect_first_ms: 10,
                reconnect_longest_ms: 50,
                ..Limits::default()
            },
            refuse_plugins: false,
            baselines: None,
            embedded: false,
        }
    }

    pub fn start(&self) -> Running {
        let (shutdown, asked) = oneshot::channel();
        let config = self.config.clone();
        let task = tokio::spawn(planforge_agent::run(config, async move {
            if asked.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        Running { task, shutdown: Some(shutdown) }
    }

    pub async fn start_and_assign(&self, job: &str) -> Running {
        let agent = self.start();
        self.farm.hello(0).await;
        self.farm.assign(job).await;
        agent
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A process number that a script wrote to `$OUT/NAME`.
    pub async fn process(&self, name: &str) -> ProcessId {
        let path = self.path(name);
        eventually(name, || ProcessId::of(std::fs::read_to_string(&path).ok()?.trim().parse().ok()?)).await
    }

    pub fn files_in(&self, name: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| !is_hidden(path)).collect()
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with('.')
}

/// What scripts are written with. `plan-bytes` is the plan of every script.
const PRELUDE: &str = r#"
IFS= read -r order
say() { printf '%s\n' "$1"; }
build() {
  printf plan-bytes > plan
  printf '{"card":1}' > card.json
  say '{"event":"built","plan":"'$PWD'/plan","plan_digest":"'$(sha256sum plan | cut -d' ' -f1)'","plan_bytes":10,"card":"'$PWD'/card.json"}'
  IFS= read -r answer
}
finish() {
  printf '{"report":1}' > report.json
  say '{"event":"done","report":"'$PWD'/report.json","accurate":true}'
}
"#;
