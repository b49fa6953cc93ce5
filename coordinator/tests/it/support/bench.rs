//! A farm in memory and its one agent, which ends jobs with reports of the test's.

use super::{
    SKU,
    agent::{Agent, device, hello, plan_of, success},
    blobs::MemBlobs,
    open,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::v1::{self, JobKind, agent_message::Kind as Say, coordinator_message::Kind};
use std::{sync::Arc, time::Duration};

pub struct Bench {
    pub farm: Farm,
    pub blobs: MemBlobs,
    pub agent: Agent,
}

impl Bench {
    pub async fn new() -> Self {
        let blobs = MemBlobs::default();
        let farm = open(Arc::new(MemStore::new()), &blobs).await;
        let agent = Agent::usual(&farm, "a").await;
        Self { farm, blobs, agent }
    }

    /// The one job of a request that is accepted.
    pub async fn submit(&self, request: v1::SubmitRequest) -> v1::Job {
        self.farm.submit(&Actor::local(), request).await.expect("the request is accepted").jobs.remove(0)
    }

    /// Its agent comes back with another toolchain.
    pub async fn upgrade(&mut self, toolchain: &str) {
        let devices = vec![device("cpu0", SKU, toolchain)];
        let again = v1::Hello { incarnation: toolchain.into(), ..hello("a", devices) };
        self.agent = Agent::connect(&self.farm, again.clone()).await;
        let mut heard = self.agent.next().await;
        while !matches!(heard, Some(Kind::Welcome(_))) {
            // The process of before counts as alive for as long as a lease.
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.agent = Agent::connect(&self.farm, again.clone()).await;
            heard = self.agent.next().await;
        }
    }

    /// What the agent says of a job that it did: a plan of `lot` where it builds one, and the report that the test makes.
    pub fn finished(
        &self,
        assign: &v1::Assign,
        lot: &str,
        report: impl FnOnce(&v1::Finished) -> Vec<u8>,
    ) -> v1::Finished {
        let mut finished = success(&self.blobs, assign);
        if assign.job.as_ref().is_some_and(|job| job.kind() != JobKind::Benchmark) {
            let plan = plan_of(assign, lot);
            finished.plan_bytes = plan.len() as u64;
            finished.plan_digest = self.blobs.insert(&plan).to_string();
        }
        finished.report_digest = self.blobs.insert(&report(&finished)).to_string();
        finished
    }

    /// Says so, and waits until the farm has taken it.
    pub async fn finish(&mut self, finished: v1::Finished) {
        self.agent.say(Say::Finished(finished)).await;
        assert!(self.agent.acknowledged().await.accepted);
    }
}
