//! The batch sweep: latency and throughput at several batches of the first optimization profile, every other dimension
//! at its usual size.

use super::{
    document,
    run::{Job, Loaded},
};
use crate::measure::{Measurement, sweep};
use planforge_device::telemetry::Telemetry;
use planforge_report::{BatchPoint, BatchSweep, Finding};
use planforge_types::{BackendError, DimRange, OptimizationProfile, Port};

impl Job<'_> {
    /// `None`, with a finding that says why, where the engine's batch does not vary; and whether the usual inputs are bound
    /// again afterwards. Only cancellation and the loss of the device are errors.
    pub(super) fn batches(
        &self,
        loaded: &mut Loaded,
        headline: &Measurement,
        telemetry: &mut dyn Telemetry,
        findings: &mut Vec<Finding>,
    ) -> Result<(Option<BatchSweep>, bool), BackendError> {
        let asked = &self.order.measure.batches;
        let first = self.order.spec.profiles.first();
        let (profile, range) = match batch_range(&loaded.meter.inputs(), first) {
            Ok(found) => found,
            Err(why) => {
                findings.push(Finding::note("no-batches", format!("no batches were swept: {why}")));
                return Ok((None, true));
            }
        };
        let usual = document::batch_of(&loaded.inputs);
        // All of them together may take as long as the headline did at most.
        let budget_ms = self.order.measure_budget_ms as f64 / asked.len() as f64;
        let mut points = Vec::new();
        for &batch in asked {
            self.may_go_on("the batch sweep")?;
            self.outlet.progress("batches", points.len() as f32 / asked.len() as f32, &format!("batch {batch}"));
            let size = u64::from(batch);
            let is_headline = size == usual && !self.times_given();
            let headline_of = is_headline.then(|| headline.clone());
            let found = match (headline_of, (range.min..=range.max).contains(&size)) {
                (Some(headline), _) => Ok(headline),
                (None, true) => self
                    .point(&mut *loaded.meter, &at_batch(profile, size), budget_ms, telemetry)
                    .map_err(|error| error.to_string()),
                (None, false) => Err(format!("the profile allows {} to {}", range.min, range.max)),
            };
            points.push(point(batch, is_headline, found));
        }
        self.may_go_on("the batch sweep")?;
        let bound = self.bind_again(loaded, findings)?;
        Ok((Some(sweep::judge_batches(points)), bound))
    }
}

fn point(batch: u32, headline: bool, found: Result<Measurement, String>) -> BatchPoint {
    let (measured, disturbed, problem) = match found {
        Ok(measured) => (Some(measured.stats), measured.wholly_disturbed(), None),
        Err(problem) => (None, false, Some(problem)),
    };
    let throughput = |stats: &planforge_stats::LatencyStats| f64::from(batch) * 1e3 / stats.mean.max(f64::MIN_POSITIVE);
    let throughput_per_s = measured.as_ref().map(throughput);
    BatchPoint { batch, latency_ms: measured, throughput_per_s, disturbed, headline, problem }
}

/// The first profile and the batches it allows: the first dimension, where all inputs have one that varies alike.
fn batch_range<'a>(
    inputs: &[Port],
    profile: Option<&'a OptimizationProfile>,
) -> Result<(&'a OptimizationProfile, DimRange), String> {
    let sizes: Vec<_> = inputs.iter().map(|port| port.shape.first()).collect();
    if let Some(Some(Some(fixed))) = sizes.first()
        && sizes.iter().all(|size| matches!(size, Some(Some(_))))
    {
        return Err(format!("the engine's batch is fixed at {fixed}{}", how_to_vary(&inputs[0], *fixed)));
    }
    let profile = profile.ok_or("the engine has no optimization profile")?;
    let ranges = inputs.iter().map(|port| profile.inputs.get(&port.name).and_then(|dims| dims.first()).copied());
    let Some(ranges) = ranges.collect::<Option<Vec<DimRange>>>().filter(|ranges| !ranges.is_empty()) else {
        return Err("not every input has a first dimension that varies".into());
    };
    let ends = |range: &DimRange| (range.min, range.max);
    match ranges.iter().all(|range| ends(range) == ends(&ranges[0])) && ranges[0].min < ranges[0].max {
        true => Ok((profile, ranges[0])),
        false => Err("its inputs do not share a first dimension that varies".into()),
    }
}

/// What to build instead, of an input whose sizes are known.
fn how_to_vary(port: &Port, fixed: u64) -> String {
    let rest: Option<Vec<String>> = port.shape[1..].iter().map(|size| size.map(|size| size.to_string())).collect();
    let Some(rest) = rest else { return String::new() };
    let batch = format!("1..{}..{}", fixed.max(8), fixed.max(8) * 4);
    let shape = [batch].into_iter().chain(rest).collect::<Vec<_>>().join("x");
    format!("; a model whose batch is open is built for a range of them by --shapes {}:{shape}", port.name)
}

fn at_batch(profile: &OptimizationProfile, batch: u64) -> OptimizationProfile {
    let mut fixed = profile.fixed(|range| range.opt);
    for dims in fixed.inputs.values_mut() {
        if let Some(first) = dims.first_mut() {
            *first = DimRange { min: batch, opt: batch, max: batch };
        }
    }
    fixed
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::ElementType;
    use std::collections::BTreeMap;

    fn port(name: &str, shape: &[Option<u64>]) -> Port {
        Port { name: name.into(), element: ElementType::F32, shape: shape.to_vec() }
    }

    fn profile(inputs: &[(&str, u64, u64, u64)]) -> OptimizationProfile {
        let rest = DimRange { min: 4, opt: 6, max: 8 };
        let dims =
            |&(name, min, opt, max): &(&str, u64, u64, u64)| (name.to_owned(), vec![DimRange { min, opt, max }, rest]);
        OptimizationProfile { inputs: inputs.iter().map(dims).collect::<BTreeMap<_, _>>() }
    }

    #[test]
    fn a_batch_is_what_all_inputs_share_and_varies() {
        let open = [port("x", &[None, None]), port("y", &[None, None])];
        let shared = profile(&[("x", 1, 2, 8), ("y", 1, 4, 8)]);
        let (_, range) = batch_range(&open, Some(&shared)).unwrap();
        assert_eq!((range.min, range.max), (1, 8));
        let refused =
            |inputs: &[Port], profile: Option<&OptimizationProfile>| batch_range(inputs, profile).unwrap_err();
        assert!(refused(&open, Some(&profile(&[("x", 1, 2, 8), ("y", 1, 2, 4)]))).contains("do not share"));
        assert!(refused(&open, Some(&profile(&[("x", 1, 2, 8)]))).contains("not every input"));
        assert!(refused(&open, None).contains("no optimization profile"));
        let one_open = [port("x", &[Some(2), None])];
        assert!(refused(&one_open, Some(&profile(&[("x", 2, 2, 2)]))).contains("fixed at 2"));
    }

    #[test]
    fn a_fixed_batch_says_what_would_vary() {
        let why = batch_range(&[port("images", &[Some(16), Some(3), Some(64)])], None).unwrap_err();
        assert!(why.ends_with("--shapes images:1..16..64x3x64"), "{why}");
    }

    #[test]
    fn only_the_batch_moves() {
        let fixed = at_batch(&profile(&[("x", 1, 2, 8)]), 5);
        let sizes: Vec<u64> = fixed.inputs["x"].iter().map(|range| range.opt).collect();
        assert_eq!(sizes, [5, 6]);
    }
}
