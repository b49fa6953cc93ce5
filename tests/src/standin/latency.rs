//! What a run would have taken: every query's times, drawn from the scenario's distribution.

use super::{Run, plan::Plan};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

/// Most queries of one run; a longer duration is cut there.
const MAX_QUERIES: usize = 200_000;

/// One query, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query {
    pub start: f64,
    pub enqueue: f64,
    pub h2d: f64,
    pub compute: f64,
    pub d2h: f64,
}

impl Query {
    pub fn latency(&self) -> f64 {
        self.h2d + self.compute + self.d2h
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Trace {
    pub queries: Vec<Query>,
    pub wall_ms: f64,
    pub warm_up_queries: usize,
    pub warm_up_ms: f64,
}

/// Draws the run of `plan` at shapes of `volume` times the usual size.
pub fn draw(run: &Run, plan: &Plan, volume: f64) -> Trace {
    let timing = &run.scenario.timing;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(timing.seed ^ plan.build_seed ^ (run.call << 32));
    let mut of_build = Xoshiro256PlusPlus::seed_from_u64(plan.build_seed);
    let streams = f64::from(run.streams());
    let useful = streams.min(f64::from(timing.stream_knee.max(1)));
    let usual = timing.compute_ms
        * precision_factor(&plan.precision)
        * compatibility_factor(plan)
        * (0.25 + 0.75 * volume)
        * (1.0 + timing.between_builds * normal(&mut of_build)).max(0.5);
    // More streams than are useful only wait for each other.
    let per_query = usual * (streams / useful);
    let gap = usual / useful;
    let transfers = if run.transfers() { volume } else { 0.0 };
    let enqueue = timing.enqueue_ms * if run.cuda_graph() { 0.1 } else { 1.0 };
    let (warm_up_ms, duration_ms) = (run.options.number("warmUp", 200.0), run.options.number("duration", 3.0) * 1e3);
    let least = run.options.integer("iterations", 10).max(1) as usize;
    let mut queries = Vec::new();
    let mut now = warm_up_ms.max(0.0);
    let begin = now;
    while queries.len() < MAX_QUERIES && (queries.len() < least || now - begin < duration_ms) {
        let slow = if random.random::<f64>() < timing.outliers { 1.5 } else { 1.0 };
        let mut jitter = |spread: f64| (1.0 + spread * normal(&mut random)).max(0.2);
        let compute = per_query * jitter(timing.spread) * slow;
        let (h2d, d2h) = (timing.h2d_ms * transfers * jitter(0.02), timing.d2h_ms * transfers * jitter(0.02));
        queries.push(Query { start: now, enqueue: enqueue * jitter(0.05), h2d, compute, d2h });
        now += gap * compute / per_query;
    }
    let warm_up_queries = (warm_up_ms / gap).max(0.0) as usize;
    Trace { queries, wall_ms: now - begin, warm_up_queries, warm_up_ms }
}

fn precision_factor(precision: &str) -> f64 {
    match precision {
        "fp16" | "bf16" => 0.55,
        "int8" | "fp8" | "best" => 0.40,
        "fp32" => 1.15,
        _ => 1.0,
    }
}

/// Plans that run in more places are slower.
fn compatibility_factor(plan: &Plan) -> f64 {
    let hardware = match plan.hardware_compatibility.as_str() {
        "ampere+" => 1.12,
        "sameComputeCapability" => 1.04,
        _ => 1.0,
    };
    hardware * if plan.version_compatible { 1.05 } else { 1.0 }
}

/// Standard normal, by the polar method's simpler sibling.
fn normal(random: &mut Xoshiro256PlusPlus) -> f64 {
    let (u, v): (f64, f64) = (random.random::<f64>().max(f64::MIN_POSITIVE), random.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}
