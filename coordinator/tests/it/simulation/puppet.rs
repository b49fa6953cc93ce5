//! A simulated agent: works, fails, stalls, repeats itself, and comes back with what it still holds.

use super::rpc;
use crate::support::{
    SKU,
    agent::{device, success},
    blobs::MemBlobs,
};
use futures::StreamExt as _;
use planforge_proto::v1::{self, agent_message::Kind as Say, coordinator_message::Kind, fleet_client::FleetClient};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{collections::BTreeMap, time::Duration};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

const BEAT: Duration = Duration::from_millis(200);

struct Work {
    assign: v1::Assign,
    ends: Instant,
}

pub struct Puppet {
    index: usize,
    incarnation: u64,
    random: StdRng,
    blobs: MemBlobs,
    tries: usize,
    coordinators: usize,
    /// By device.
    work: BTreeMap<String, Work>,
    /// Ended and not yet acknowledged.
    ended: Vec<v1::Finished>,
}

impl Puppet {
    pub fn new(index: usize, incarnation: u64, seed: u64, blobs: MemBlobs, coordinators: usize) -> Self {
        let random = StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(index as u64 * 1_000 + incarnation));
        let (work, ended) = (BTreeMap::new(), Vec::new());
        Self { index, incarnation, random, blobs, tries: index, coordinators, work, ended }
    }

    pub async fn run(mut self) -> turmoil::Result {
        loop {
            self.session().await;
            let pause_ms = self.random.random_range(20..400);
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }

    fn hello(&self) -> v1::Hello {
        let mut cpu = device("cpu0", "cpu-x86-64-v2", "native 1");
        cpu.skus.push(SKU.into());
        let toolchain =
            |components: &str| format!(r#"{{"backend":"native","version":"1","components":{{{components}}}}}"#);
        if self.index == 0 {
            // It prepares for the GPU of the last one.
            cpu.prepares_json.push(toolchain(r#""cuda":"12.9""#));
        }
        if self.index < 2 {
            cpu.prepares_json.push(r#"{"backend":"precision","version":"1"}"#.into());
        }
        let mut devices = vec![cpu];
        if self.index == 2 {
            devices.push(device("cpu1", SKU, "native 1"));
            let mut gpu = device("gpu0", "t4", "native 1");
            gpu.offers[0].toolchain_json = toolchain(r#""cuda":"12.9","cudnn":"9.19""#);
            gpu.threads = 0;
            devices.push(gpu);
        }
        v1::Hello {
            agent_id: format!("agent{}", self.index),
            incarnation: self.incarnation.to_string(),
            name: format!("host{}", self.index),
            version: planforge_proto::protocol::RELEASE.into(),
            protocol: planforge_proto::protocol::PROTOCOL,
            devices,
            leases: self.leases(),
            finished: self.ended.clone(),
            ..v1::Hello::default()
        }
    }

    fn leases(&self) -> Vec<v1::Lease> {
        self.work.values().filter_map(|work| work.assign.lease.clone()).collect()
    }

    async fn session(&mut self) -> Option<()> {
        let channel = rpc::connect(&mut self.tries, self.coordinators).await?;
        let (out, messages) = mpsc::channel(64);
        let say = |kind| v1::AgentMessage { kind: Some(kind) };
        out.send(say(Say::Hello(self.hello()))).await.ok()?;
        let opening = FleetClient::new(channel);
        let mut opening = opening;
        let session = opening.session(ReceiverStream::new(messages));
        let mut inbound = tokio::time::timeout(Duration::from_secs(1), session).await.ok()?.ok()?.into_inner();
        let mut beat = tokio::time::interval(BEAT);
        loop {
            let next = self.work.values().map(|work| work.ends).min();
            tokio::select! {
                biased;
                message = inbound.next() => self.hear(message?.ok()?.kind?)?,
                _ = beat.tick() => {
                    if self.random.random_bool(0.02) {
                        // Stopped for longer than a lease, then it goes on as if nothing had been.
                        let stall_ms = self.random.random_range(1_200..3_000);
                        tokio::time::sleep(Duration::from_millis(stall_ms)).await;
                    }
                    let beat = v1::Heartbeat { leases: self.leases(), telemetry: Vec::new() };
                    out.try_send(say(Say::Heartbeat(beat))).ok()?;
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    for kind in self.end_next() {
                        out.try_send(say(kind)).ok()?;
                    }
                }
            }
        }
    }

    /// Ends the work that is due; the same message may go out twice.
    fn end_next(&mut self) -> Vec<Say> {
        let now = Instant::now();
        let Some(due) = self.work.iter().find(|(_, work)| work.ends <= now).map(|(device, _)| device.clone()) else {
            return Vec::new();
        };
        let Some(Work { assign, .. }) = self.work.remove(&due) else { return Vec::new() };
        let mut finished = success(&self.blobs, &assign);
        let mut said = vec![Say::Started(v1::Started { lease: assign.lease.clone() })];
        if self.random.random_bool(0.5) {
            said.push(Say::Built(v1::Built {
                lease: assign.lease.clone(),
                plan_digest: finished.plan_digest.clone(),
                plan_bytes: finished.plan_bytes,
                card_digest: finished.card_digest.clone(),
                builds: finished.builds,
            }));
        }
        let class = match self.random.random_range(0..20) {
            0 | 1 => v1::FailureClass::Infrastructure,
            2 => v1::FailureClass::Model,
            3 => v1::FailureClass::Resource,
            4 | 5 => v1::FailureClass::Unstable,
            _ => v1::FailureClass::Unspecified,
        };
        if class != v1::FailureClass::Unspecified {
            finished.outcome = "failed".into();
            finished.failure =
                Some(v1::Failure { class: class.into(), message: "scripted".into(), ..Default::default() });
        }
        self.ended.push(finished.clone());
        if self.random.random_bool(0.2) {
            said.push(Say::Finished(finished.clone()));
        }
        said.push(Say::Finished(finished));
        said
    }

    fn drop_lease(&mut self, lease: &v1::Lease) {
        self.work.retain(|_, work| work.assign.lease.as_ref() != Some(lease));
    }

    fn hear(&mut self, message: Kind) -> Option<()> {
        match message {
            Kind::Assign(assign) => {
                let device = assign.lease.as_ref().expect("a lease").device.clone();
                let ends = Instant::now() + Duration::from_millis(self.random.random_range(30..2_500));
                let compiles = |assign: &v1::Assign| {
                    matches!(assign.job.as_ref().unwrap().kind(), v1::JobKind::Compile | v1::JobKind::Prepare)
                };
                let mut beside = self.work.values().filter(|work| compiles(&work.assign) || compiles(&assign));
                assert!(beside.next().is_none(), "a job that fills its host runs beside another");
                let other = self.work.insert(device, Work { assign, ends });
                assert!(other.is_none(), "a device was given two jobs");
            }
            Kind::Welcome(welcome) => welcome.lost.iter().for_each(|lease| self.drop_lease(lease)),
            Kind::LeaseLost(lost) => self.drop_lease(&lost.lease?),
            Kind::FinishedAck(ack) => self.ended.retain(|finished| finished.lease != ack.lease),
            Kind::Cancel(cancel) => {
                let lease = cancel.lease?;
                if self.work.contains_key(&lease.device) {
                    self.drop_lease(&lease);
                    let outcome = "cancelled".into();
                    // Said with the next hello: the session ends here, which is one more way to be slow.
                    self.ended.push(v1::Finished { lease: Some(lease), outcome, ..v1::Finished::default() });
                    return None;
                }
            }
            Kind::Refused(_) => return None,
        }
        Some(())
    }
}
