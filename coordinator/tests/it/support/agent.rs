//! An agent that speaks the session protocol as its test tells it to.

use super::{DEADLINE, SKU, blobs::MemBlobs};
use futures::StreamExt as _;
use planforge_coordinator::{
    auth::{Actor, Proof},
    farm::{Farm, Reply},
};
use planforge_plan::container;
use planforge_proto::{
    ApiError, protocol,
    v1::{self, agent_message, coordinator_message::Kind},
};
use planforge_types::Digest;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

pub struct Agent {
    pub id: String,
    out: mpsc::Sender<Result<v1::AgentMessage, ApiError>>,
    inbound: Reply<v1::CoordinatorMessage>,
}

/// A CPU with one SKU and one toolchain.
pub fn device(id: &str, sku: &str, toolchain: &str) -> v1::Device {
    let (backend, version) = toolchain.split_once(' ').expect("backend and version");
    let toolchain_json = format!(r#"{{"backend":"{backend}","version":"{version}"}}"#);
    v1::Device {
        id: id.into(),
        skus: vec![sku.into()],
        fingerprint_json: "{}".into(),
        offers: vec![v1::Offer { toolchain_json, ..v1::Offer::default() }],
        threads: 2,
        simulated: true,
        ..v1::Device::default()
    }
}

pub fn hello(id: &str, devices: Vec<v1::Device>) -> v1::Hello {
    v1::Hello {
        agent_id: id.into(),
        incarnation: format!("{id}-1"),
        name: format!("host-{id}"),
        version: protocol::RELEASE.into(),
        protocol: protocol::PROTOCOL,
        oldest_protocol: protocol::OLDEST_PROTOCOL,
        devices,
        ..v1::Hello::default()
    }
}

impl Agent {
    /// Connects and says `hello`; the first answer is still to be read.
    pub async fn connect(farm: &Farm, hello: v1::Hello) -> Self {
        let id = &hello.agent_id;
        let actor = Actor::named(format!("token-{id}"), planforge_coordinator::auth::Role::Agent, None);
        Self::open(farm, &actor, Proof::Owner, hello).await.expect("the session begins")
    }

    /// Connects as the holder of a token and says `hello`; the first answer is still to be read.
    pub async fn with_token(farm: &Farm, secret: &str, hello: v1::Hello) -> Result<Self, ApiError> {
        let actor = farm.authenticate(secret).await?;
        let refused = || ApiError::new(planforge_proto::ErrorCode::Unauthenticated, "the token is worth nothing");
        Self::open(farm, &actor.ok_or_else(refused)?, Proof::Token(Digest::of(secret.as_bytes())), hello).await
    }

    async fn open(farm: &Farm, actor: &Actor, proof: Proof, hello: v1::Hello) -> Result<Self, ApiError> {
        let (out, messages) = mpsc::channel(16);
        let id = hello.agent_id.clone();
        let inbound = farm.session(actor, proof, ReceiverStream::new(messages).boxed()).await?;
        let agent = Self { id, out, inbound };
        agent.say(agent_message::Kind::Hello(hello)).await;
        Ok(agent)
    }

    /// A connected agent with one device of the usual kind, already welcomed.
    pub async fn usual(farm: &Farm, id: &str) -> Self {
        let mut agent = Self::connect(farm, hello(id, vec![device("cpu0", SKU, "native 1")])).await;
        assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
        agent
    }

    pub fn say(&self, kind: agent_message::Kind) -> impl Future<Output = ()> + Send + use<> {
        let out = self.out.clone();
        async move {
            // The session may be over; then the test sees it in what it hears.
            let _ = out.send(Ok(v1::AgentMessage { kind: Some(kind) })).await;
        }
    }

    /// The next message; `None` when the session is over.
    pub async fn next(&mut self) -> Option<Kind> {
        let message = tokio::time::timeout(DEADLINE, self.inbound.next()).await.expect("an agent waits for a message");
        message.map(|message| message.expect("no error").kind.expect("a kind"))
    }

    /// Waits for the next job.
    pub async fn assigned(&mut self) -> v1::Assign {
        match self.next().await {
            Some(Kind::Assign(assign)) => assign,
            other => panic!("agent {} waited for a job and heard {other:?}", self.id),
        }
    }

    pub async fn started(&self, assign: &v1::Assign) {
        self.say(agent_message::Kind::Started(v1::Started { lease: assign.lease.clone() })).await;
    }

    pub async fn beat(&self, leases: &[&v1::Assign]) {
        let leases = leases.iter().filter_map(|assign| assign.lease.clone()).collect();
        self.say(agent_message::Kind::Heartbeat(v1::Heartbeat { leases, telemetry: Vec::new() })).await;
    }

    /// Stores a plan, a card, a report and a log, and says that the job succeeded.
    pub async fn succeed(&self, blobs: &MemBlobs, assign: &v1::Assign) {
        self.say(agent_message::Kind::Finished(success(blobs, assign))).await;
    }

    pub async fn fail(&self, assign: &v1::Assign, class: v1::FailureClass, message: &str) {
        let failure = v1::Failure { class: class.into(), message: message.into(), ..Default::default() };
        let finished = v1::Finished {
            lease: assign.lease.clone(),
            outcome: "failed".into(),
            failure: Some(failure),
            ..v1::Finished::default()
        };
        self.say(agent_message::Kind::Finished(finished)).await;
    }

    /// Waits for the answer to `Finished`.
    pub async fn acknowledged(&mut self) -> v1::FinishedAck {
        loop {
            match self.next().await {
                Some(Kind::FinishedAck(ack)) => return ack,
                Some(_) => {}
                None => panic!("agent {} was not answered", self.id),
            }
        }
    }
}

/// A plan of the native backend with nothing in it but what it says of itself; plans of different lots differ.
pub fn native_plan(model_digest: &str, sku: &str, toolchain_json: &str, spec_json: &str, lot: &str) -> Vec<u8> {
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let manifest = serde_json::json!({
        "model_digest": model_digest,
        "sku": sku,
        "toolchain": json(toolchain_json),
        "spec": json(spec_json),
        "lot": lot,
    });
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan");
    let kind = if sku.starts_with("cpu-") { container::KIND_MANIFEST } else { container::KIND_CUDA_MANIFEST };
    let mut writer = container::Writer::create(&path, 1).expect("a plan");
    writer.section::<std::io::Error>(kind, |out| out.write_all(manifest.to_string().as_bytes())).expect("a section");
    writer.finish().expect("a plan");
    std::fs::read(&path).expect("a plan")
}

/// Of an attempt's job.
pub fn plan_of(assign: &v1::Assign, lot: &str) -> Vec<u8> {
    let job = assign.job.as_ref().expect("a job");
    let model = job.model.as_ref().expect("a model");
    let toolchain: planforge_types::Toolchain = serde_json::from_str(&job.toolchain_json).expect("a toolchain");
    match toolchain.backend.as_str() {
        "native" => native_plan(&model.digest, &job.sku, &job.toolchain_json, &job.spec_json, lot),
        // Of before 8.6: a magic and a number, and whatever comes then.
        _ => [b"ptrt\xe8\0\0\0", lot.as_bytes()].concat(),
    }
}

pub fn success(blobs: &MemBlobs, assign: &v1::Assign) -> v1::Finished {
    let job = assign.job.as_ref().expect("a job");
    let lease = assign.lease.clone().expect("a lease");
    let measured = if job.kind() == v1::JobKind::Benchmark { job.plan_digest.clone() } else { String::new() };
    let plan = plan_of(assign, &format!("{} by attempt {}", job.engine_key, lease.attempt));
    let plan_digest = if measured.is_empty() { blobs.insert(&plan).to_string() } else { measured };
    let plan_bytes = if job.plan_bytes > 0 { job.plan_bytes } else { plan.len() as u64 };
    let accuracy = if job.eval_digest.is_empty() { "null" } else { r#"{"rows":2,"correct":1,"top1":0.5}"# };
    let asked = job.measure.as_ref().map(|measure| measure.inputs_digest.as_str()).unwrap_or_default();
    let given = if asked.is_empty() { "null".to_owned() } else { format!(r#"{{"digest":"{asked}"}}"#) };
    let report = format!(
        r#"{{"schema_version":1,"simulated":true,"job":"{}","attempt":{},"latency_ms":{{"median":1.5}},"accuracy":{accuracy},"given_inputs":{given}}}"#,
        lease.job, lease.attempt
    );
    if job.kind() == v1::JobKind::Prepare {
        return prepared(blobs, lease, job);
    }
    if job.kind() == v1::JobKind::Compile {
        let prepared = if assign.made_for_json.is_empty() { "" } else { "kernels" };
        return compiled(blobs, lease, &plan, prepared);
    }
    v1::Finished {
        lease: Some(lease),
        outcome: "succeeded".into(),
        plan_digest,
        plan_bytes,
        card_digest: blobs.insert(b"card").to_string(),
        report_digest: blobs.insert(report.as_bytes()).to_string(),
        log_digest: blobs.insert(b"log\n").to_string(),
        accurate: true,
        builds: if job.kind() == v1::JobKind::Build { job.builds } else { 0 },
        ..v1::Finished::default()
    }
}

/// The end of a prepare job: the same in the same way comes to the same, whoever does it.
fn prepared(blobs: &MemBlobs, lease: v1::Lease, job: &v1::Job) -> v1::Finished {
    let (source, ask) = (job.model.clone().unwrap_or_default(), job.preparation.clone().unwrap_or_default().ask_json);
    let made = format!("{} as {ask}", source.digest);
    let digest = blobs.insert(made.as_bytes()).to_string();
    let file = v1::ModelFile { name: "model.onnx".into(), digest: digest.clone(), size_bytes: made.len() as u64 };
    v1::Finished {
        lease: Some(lease),
        outcome: "succeeded".into(),
        log_digest: blobs.insert(b"log\n").to_string(),
        made: Some(v1::Model {
            digest,
            name: format!("{}.prepared", source.name),
            files: vec![file],
            ..v1::Model::default()
        }),
        made_document_digest: blobs.insert(b"what became of it").to_string(),
        ..v1::Finished::default()
    }
}

/// The end of a compile job: a plan that nobody measured, or what was prepared for a device elsewhere.
fn compiled(blobs: &MemBlobs, lease: v1::Lease, plan: &[u8], prepared: &str) -> v1::Finished {
    let ended = v1::Finished {
        lease: Some(lease),
        outcome: "succeeded".into(),
        log_digest: blobs.insert(b"log\n").to_string(),
        accurate: true,
        ..v1::Finished::default()
    };
    if prepared.is_empty() {
        let plan_digest = blobs.insert(plan).to_string();
        let card_digest = blobs.insert(b"card").to_string();
        return v1::Finished { plan_digest, plan_bytes: plan.len() as u64, card_digest, builds: 1, ..ended };
    }
    let prepared_digest = blobs.insert(prepared.as_bytes()).to_string();
    v1::Finished { prepared_digest, prepared_bytes: prepared.len() as u64, ..ended }
}
