//! Rules about shapes, batches and streams.

use crate::{
    bound::{Bottleneck, of_engine},
    rule::{Advice, Case, Evidence, Rule, percent, times},
};
use planforge_report::{Report, Severity, format::per_second};
use planforge_types::OptimizationProfile;

pub(crate) const RULES: &[Rule] = &[dynamic_shapes, batches_saturate, streams_cost];

/// Dynamic shapes that cost this much are worth an engine of their own.
const DYNAMIC: f64 = 1.05;

/// A batch this many times the knee's has been tried.
const BEYOND_KNEE: f64 = 2.0;

/// Streams beyond the knee that make the latency this many times as long.
const STREAMS_COST: f64 = 1.5;

fn varies(report: &Report) -> bool {
    report.spec.profiles.iter().any(OptimizationProfile::varies)
}

fn dynamic_shapes(case: &Case<'_>) -> Option<Advice> {
    if !varies(case.report) {
        return None;
    }
    let is_static = |other: &&Report| {
        !varies(other)
            && other.inputs == case.report.inputs
            && other.toolchain == case.report.toolchain
            && other.spec.precision == case.report.spec.precision
    };
    let base = case.alike().find(is_static)?;
    let (ratio, sure) = times(base, case.report)?;
    (sure && ratio >= DYNAMIC).then(|| Advice {
        code: "dynamic-shapes",
        severity: Severity::Note,
        message: format!("dynamic shapes cost {} against the engine of fixed shapes", percent(ratio - 1.0)),
        evidence: Evidence::measured("time over that with fixed shapes", ratio, DYNAMIC),
        advice: "where one shape serves most requests, build it by itself, or give it a profile of its own".into(),
    })
}

fn batches_saturate(case: &Case<'_>) -> Option<Advice> {
    let sweep = case.report.batches.as_ref()?;
    let knee = sweep.knee?;
    let rate = |batch: u32| sweep.points.iter().find(|point| point.batch == batch)?.throughput_per_s;
    let largest =
        sweep.points.iter().filter(|point| point.throughput_per_s.is_some()).map(|point| point.batch).max()?;
    let beyond = f64::from(largest) / f64::from(knee.max(1));
    if beyond < BEYOND_KNEE {
        return None;
    }
    let because = of_engine(case.report).map(|bound| match bound.bottleneck {
        Bottleneck::Compute | Bottleneck::Memory => {
            format!(" because the device's {} is used up", bound.bottleneck.words())
        }
        other => format!(" while {} bind it", other.words()),
    });
    Some(Advice {
        code: "batch-saturates",
        severity: Severity::Note,
        message: format!(
            "throughput saturates at batch {knee} ({}); {largest} gives {}{}",
            per_second(rate(knee)?),
            per_second(rate(largest)?),
            because.unwrap_or_default()
        ),
        evidence: Evidence::estimated("largest batch over the knee's", beyond, BEYOND_KNEE),
        advice: format!("serve with batches up to {knee}: larger ones add latency alone"),
    })
}

fn streams_cost(case: &Case<'_>) -> Option<Advice> {
    let sweep = case.report.streams.as_ref()?;
    let knee = sweep.knee?;
    let at = |streams: u32| sweep.points.iter().find(|point| point.streams == streams);
    let (first, best, last) = (sweep.points.first()?, at(knee)?, sweep.points.last()?);
    let ratio = last.median_ms / best.median_ms;
    if last.streams <= knee || ratio < STREAMS_COST {
        return None;
    }
    let gain = best.throughput_per_s / first.throughput_per_s;
    let helped = if knee > first.streams {
        format!("streams help until {knee} ({gain:.2} times the throughput)")
    } else {
        "more streams help nothing".into()
    };
    Some(Advice {
        code: "streams-cost",
        severity: Severity::Note,
        message: format!("{helped}; {} make an execution take {ratio:.2} times as long", last.streams),
        evidence: Evidence::measured("latency over that at the knee", ratio, STREAMS_COST),
        advice: format!("serve with {knee} streams"),
    })
}
