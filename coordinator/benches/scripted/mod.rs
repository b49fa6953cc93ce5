//! A coordinator, its callers and scripted agents, for benchmarks.

use planforge_coordinator::server::{Coordinator, CoordinatorConfig, admin_token_file};
use planforge_plan::container;
use planforge_proto::v1::{
    self, agent_message::Kind as Say, coordinator_message::Kind, farm_client::FarmClient, fleet_client::FleetClient,
};
use planforge_types::Digest;
use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

pub type Trouble = Box<dyn std::error::Error + Send + Sync>;
pub type Outcome = Result<(), Trouble>;

pub const SKU: &str = "cpu-x86-64-v3";

/// Who submits at once, and as many agents.
pub const CALLERS: usize = 64;

/// A number that the environment sets.
pub fn setting(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Durable appends of 4 KiB: count per second, and the sorted times.
pub fn fsyncs(folder: &Path) -> Result<(f64, Vec<f64>), std::io::Error> {
    let file = File::create(folder.join("fsync"))?;
    let (begin, mut times, mut at) = (Instant::now(), Vec::new(), 0);
    while begin.elapsed() < Duration::from_secs(2) {
        let one = Instant::now();
        file.write_all_at(&[7; 4096], at)?;
        file.sync_data()?;
        times.push(one.elapsed().as_secs_f64() * 1e3);
        at += 4096;
    }
    times.sort_by(f64::total_cmp);
    Ok((times.len() as f64 / begin.elapsed().as_secs_f64(), times))
}

pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((share * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Where a coordinator is, and its administrator's token.
#[derive(Clone, Debug)]
pub struct Way {
    pub url: String,
    pub secret: String,
}

/// Adds the token to every call.
#[derive(Clone, Debug)]
pub struct Authorize(MetadataValue<Ascii>);

impl Interceptor for Authorize {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

impl Way {
    pub fn authorize(&self) -> Result<Authorize, Trouble> {
        Ok(Authorize(format!("Bearer {}", self.secret).parse()?))
    }

    pub async fn farm(&self) -> Result<FarmClient<InterceptedService<Channel, Authorize>>, Trouble> {
        let channel = Channel::from_shared(self.url.clone())?.connect().await?;
        Ok(FarmClient::with_interceptor(channel, self.authorize()?))
    }
}

pub struct Bench {
    pub coordinator: Coordinator,
    pub way: Way,
    pub request: v1::SubmitRequest,
    /// Digest and bytes.
    pub plan: (Digest, u64),
}

/// A plan of the native backend with nothing in it but what it says of itself.
fn plan(folder: &Path, model_digest: &str) -> Result<Vec<u8>, Trouble> {
    let manifest = serde_json::json!({
        "model_digest": model_digest,
        "sku": SKU,
        "toolchain": { "backend": "native", "version": "1" },
        "spec": { "threads": 2 },
    });
    let path = folder.join("bench.plan");
    let mut writer = container::Writer::create(&path, 1)?;
    writer.section::<std::io::Error>(container::KIND_MANIFEST, |out| out.write_all(manifest.to_string().as_bytes()))?;
    writer.finish()?;
    Ok(std::fs::read(path)?)
}

impl Bench {
    pub async fn start(folder: &Path) -> Result<Self, Trouble> {
        Self::start_with(CoordinatorConfig::new(folder), folder).await
    }

    pub async fn start_with(mut config: CoordinatorConfig, folder: &Path) -> Result<Self, Trouble> {
        config.listen = Some("127.0.0.1:0".parse()?);
        Self::start_at(config, folder).await
    }

    /// The same where the configuration says it listens.
    pub async fn start_at(config: CoordinatorConfig, folder: &Path) -> Result<Self, Trouble> {
        let coordinator = Coordinator::start(config).await?;
        let url = format!("http://{}", coordinator.address().ok_or("the coordinator does not listen")?);
        let secret = std::fs::read_to_string(admin_token_file(folder))?.trim().to_owned();
        let way = Way { url, secret };
        let digest = coordinator.blobs().store("a model".into()).await?.to_string();
        let plan = plan(folder, &digest)?;
        let plan_bytes = plan.len() as u64;
        let plan = (coordinator.blobs().store(plan.into()).await?, plan_bytes);
        let file = v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes: 7 };
        let model = v1::Model { digest, name: "m.onnx".into(), files: vec![file], ..v1::Model::default() };
        // Forced, so that every request is work.
        let request =
            v1::SubmitRequest { models: vec![model], skus: vec![SKU.into()], force: true, ..Default::default() };
        Ok(Self { coordinator, way, request, plan })
    }
}

pub struct Agent {
    pub out: mpsc::Sender<v1::AgentMessage>,
    inbound: tonic::Streaming<v1::CoordinatorMessage>,
}

pub async fn connect(way: &Way, number: usize) -> Result<Agent, Trouble> {
    let (out, messages) = mpsc::channel(64);
    let offer = v1::Offer { toolchain_json: r#"{"backend":"native","version":"1"}"#.into(), ..v1::Offer::default() };
    let device = v1::Device {
        id: "cpu0".into(),
        skus: vec![SKU.into()],
        fingerprint_json: "{}".into(),
        offers: vec![offer],
        threads: 2,
        ..v1::Device::default()
    };
    let hello = v1::Hello {
        agent_id: format!("agent{number}"),
        incarnation: "1".into(),
        name: format!("host{number}"),
        version: planforge_proto::protocol::RELEASE.into(),
        devices: vec![device],
        ..v1::Hello::default()
    };
    out.send(v1::AgentMessage { kind: Some(Say::Hello(hello)) }).await?;
    let channel = Channel::from_shared(way.url.clone())?.connect().await?;
    let mut fleet = FleetClient::with_interceptor(channel, way.authorize()?);
    let inbound = fleet.session(ReceiverStream::new(messages)).await?.into_inner();
    let mut agent = Agent { out, inbound };
    agent.next().await?;
    Ok(agent)
}

impl Agent {
    pub async fn next(&mut self) -> Result<Kind, Trouble> {
        let message = self.inbound.message().await?.ok_or("the session ended")?;
        message.kind.ok_or_else(|| "an empty message".into())
    }

    pub async fn assigned(&mut self) -> Result<v1::Assign, Trouble> {
        loop {
            if let Kind::Assign(assign) = self.next().await? {
                return Ok(assign);
            }
        }
    }

    pub async fn finish(&self, assign: v1::Assign, plan: (Digest, u64)) -> Outcome {
        let finished = v1::Finished {
            lease: assign.lease,
            outcome: "succeeded".into(),
            plan_digest: plan.0.to_string(),
            plan_bytes: plan.1,
            accurate: true,
            ..v1::Finished::default()
        };
        self.out.send(v1::AgentMessage { kind: Some(Say::Finished(finished)) }).await?;
        Ok(())
    }
}

/// Cycles a second (submit, lease, finish) of 64 callers and 64 agents, who go by these ways in turns.
pub async fn cycles(
    ways: &[Way],
    request: &v1::SubmitRequest,
    plan: (Digest, u64),
    window: Duration,
) -> Result<f64, Trouble> {
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut agents = Vec::new();
    for (number, way) in ways.iter().cycle().take(CALLERS).enumerate() {
        let (mut agent, done) = (connect(way, number).await?, done.clone());
        agents.push(tokio::spawn(async move {
            while let Ok(kind) = agent.next().await {
                match kind {
                    Kind::Assign(assign) => agent.finish(assign, plan).await?,
                    Kind::FinishedAck(_) => drop(done.fetch_add(1, Ordering::Relaxed)),
                    _ => {}
                }
            }
            Outcome::Ok(())
        }));
    }
    let begin = Instant::now();
    let mut callers = Vec::new();
    for way in ways.iter().cycle().take(CALLERS) {
        let mut farm = way.farm().await?;
        let (request, stop) = (request.clone(), stop.clone());
        callers.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                farm.submit(request.clone()).await?;
            }
            Outcome::Ok(())
        }));
    }
    tokio::time::sleep(window).await;
    let rate = done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await??;
    }
    agents.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(rate)
}
