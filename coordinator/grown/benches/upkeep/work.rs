//! A farm that works: one job after the other, timed from the call to the moment the agent holds its lease.

use crate::scripted::{Agent, Authorize, Bench, Trouble, connect, percentile};
use planforge_proto::v1::{coordinator_message::Kind, farm_client::FarmClient};
use std::time::{Duration, Instant};
use tonic::{service::interceptor::InterceptedService, transport::Channel};

/// Callers wait between two jobs, as they do on a farm that is not overloaded.
const BETWEEN: Duration = Duration::from_millis(2);

/// A caller and an agent.
pub struct Work {
    farm: FarmClient<InterceptedService<Channel, Authorize>>,
    agent: Agent,
}

impl Work {
    pub async fn begin(bench: &Bench) -> Result<Self, Trouble> {
        let agent = connect(&bench.way, 0).await?;
        Ok(Self { farm: bench.way.farm().await?, agent })
    }

    /// Works for a while; adds the time of each claim in milliseconds.
    pub async fn go(&mut self, bench: &Bench, window: Duration, claims: &mut Vec<f64>) -> Result<(), Trouble> {
        let until = Instant::now() + window;
        while Instant::now() < until {
            let begin = Instant::now();
            let (submitted, assigned) = tokio::join!(self.farm.submit(bench.request.clone()), async {
                let assign = self.agent.assigned().await;
                (assign, begin.elapsed().as_secs_f64() * 1e3)
            });
            submitted?;
            claims.push(assigned.1);
            self.agent.finish(assigned.0?, bench.plan).await?;
            while !matches!(self.agent.next().await?, Kind::FinishedAck(_)) {}
            tokio::time::sleep(BETWEEN).await;
        }
        Ok(())
    }
}

/// Count, p50, p99 and the longest, sorted on the way.
pub struct Claims {
    pub count: usize,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Claims {
    pub fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(&times, share));
        Self { count: times.len(), p50, p99, max }
    }

    pub fn row(&self, name: &str, beside: &Self) {
        println!(
            "{name:<36} {:>7} claims, p50 {:>6.2} ms ({:.2}), p99 {:>6.2} ms ({:.2}), max {:>6.1} ms",
            self.count,
            self.p50,
            self.p50 / beside.p50,
            self.p99,
            self.p99 / beside.p99,
            self.max
        );
    }
}
