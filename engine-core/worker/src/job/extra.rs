//! What is measured beside the headline, apart from its samples: layers and what they are held against, latency parts,
//! other shapes, streams, batches, timeline.
//!
//! None of it can fail a job, the loss of its device apart: an engine that cannot tell one of these is measured all the same, and the report says
//! what is missing.

use super::{
    document,
    outlet::log,
    run::{Job, Loaded, reference_inputs},
};
use crate::measure::{Clock as _, Measurement, sweep};
use planforge_backend::Meter;
use planforge_device::telemetry::Telemetry;
use planforge_report::{
    Baseline, BatchSweep, Ceilings, Finding, LatencySplit, LayerTime, PartStats, ProfilePoint, ProfileSwitch,
    ShapePoint, StreamSweep,
};
use planforge_types::{BackendError, DimRange, NamedTensors, OptimizationProfile};
use std::{collections::BTreeMap, path::Path};

/// Profiled executions from which per-layer times are taken.
const LAYER_ITERATIONS: u32 = 20;

/// Changes of profile, and executions after one, that are timed beside the first.
const SWITCHES: usize = 10;

/// Longest the profiled executions may take, as far as the measured latency tells.
const LAYER_BUDGET_MS: f64 = 3_000.0;

/// What is measured besides the headline.
#[derive(Default)]
pub(super) struct ExtraMeasurements {
    pub layers: Vec<LayerTime>,
    pub precision_time: BTreeMap<String, f64>,
    pub weight_bytes: BTreeMap<String, u64>,
    pub gelu: BTreeMap<String, u64>,
    pub split: Option<LatencySplit>,
    pub points: Vec<ProfilePoint>,
    pub switches: Vec<ProfileSwitch>,
    pub streams: Option<StreamSweep>,
    pub batches: Option<BatchSweep>,
    pub ceilings: Option<Ceilings>,
    pub baselines: Vec<Baseline>,
    pub findings: Vec<Finding>,
}

impl ExtraMeasurements {
    /// The value, or a finding that says why there is none.
    fn take<T>(&mut self, code: &str, what: &str, result: Result<T, BackendError>) -> Option<T> {
        result
            .map_err(|error| {
                log(&format!("{what}: {error}"));
                self.findings.push(Finding::note(code, format!("{what}: {error}")));
            })
            .ok()
    }
}

impl Job<'_> {
    /// Measures all of it; only cancellation and the loss of the device are errors.
    pub fn measure_extra(
        &self,
        loaded: &mut Loaded,
        plan: &Path,
        headline: &Measurement,
        telemetry: &mut dyn Telemetry,
    ) -> Result<ExtraMeasurements, BackendError> {
        let order = self.order;
        let mut extra = ExtraMeasurements::default();
        let split = loaded.meter.split();
        extra.split = extra.take("no-split", "the parts of the latency are not known", split).flatten();
        self.may_go_on("the layers' times")?;
        let fits = (LAYER_BUDGET_MS / headline.stats.median.max(1e-6)) as u32;
        let layers = loaded.meter.layers(LAYER_ITERATIONS.min(fits).max(1));
        extra.layers = extra.take("no-layers", "the backend gave no per-layer times", layers).unwrap_or_default();
        extra.precision_time = precision_time(&extra.layers);
        extra.weight_bytes = loaded.meter.weight_bytes();
        extra.gelu = loaded.meter.gelus();
        self.may_go_on("the other shapes")?;
        let (points, mut bound) = self.points(loaded, plan, headline, telemetry, &mut extra.findings)?;
        extra.points = points;
        if bound {
            let switches = self.switches(loaded);
            self.may_go_on("the change of profiles")?;
            bound = switches.is_ok() || self.bind_again(loaded, &mut extra.findings)?;
            let switches = extra.take("no-switch", "a change of profiles was not timed", switches);
            extra.switches = switches.unwrap_or_default();
        }
        if !bound {
            return Ok(extra);
        }
        if !order.measure.streams.is_empty() {
            let batch = document::batch_of(&loaded.inputs);
            let budget_ms = order.measure_budget_ms as f64;
            let swept =
                sweep::measure(&mut *loaded.meter, &order.measure.streams, batch, &self.clock, budget_ms, self.cancel);
            let (swept, ended) = match swept {
                Ok(sweep::Swept { points, ended }) => (points, ended),
                Err(error) => (None, Some(error)),
            };
            if let Some(error) = ended {
                let what = match &swept {
                    Some(sweep) => format!("the sweep ended after {} streams", sweep.points.len()),
                    None => "parallel streams were not measured".to_owned(),
                };
                extra.findings.push(Finding::warning("no-streams", format!("{what}: {error}")));
            } else if swept.is_none() {
                let message = format!("backend {} has no parallel streams to sweep", order.toolchain.backend);
                extra.findings.push(Finding::note("no-streams", message));
            }
            extra.streams = swept;
        }
        if !order.measure.batches.is_empty() {
            let (batches, bound) = self.batches(loaded, headline, telemetry, &mut extra.findings)?;
            extra.batches = batches;
            if !bound {
                return Ok(extra);
            }
        }
        self.may_go_on("the timeline")?;
        if order.measure.trace {
            let traced = loaded.meter.trace();
            if let Some(None) = extra.take("no-trace", "no timeline was recorded", traced) {
                let message = format!("backend {} records no timelines", order.toolchain.backend);
                extra.findings.push(Finding::note("no-trace", message));
            }
            self.may_go_on("the device's counters")?;
            let counted = loaded.meter.counters();
            let counted = extra.take("no-counters", "nothing was counted on the device", counted).flatten();
            for (layer, counters) in extra.layers.iter_mut().zip(counted.unwrap_or_default()) {
                layer.counters = counters;
            }
        }
        self.may_go_on("the device's ceilings")?;
        if extra.layers.iter().any(|layer| layer.flops > 0 || layer.bytes > 0) {
            let ceilings = self.ceilings(&mut *loaded.meter, &extra.layers, telemetry);
            extra.ceilings = extra.take("no-ceilings", "what the device reaches was not measured", ceilings).flatten();
            let told = extra.ceilings.as_ref().map(|ceilings| ceilings.findings(&extra.layers));
            extra.findings.extend(told.unwrap_or_default());
        }
        extra.baselines = self.baselines(loaded, telemetry, &mut extra.findings)?;
        self.may_go_on("the report")?;
        Ok(extra)
    }

    /// Binds the headline's inputs again and says whether they are bound. Where they are not, what would be measured on
    /// them is given up, and the headline stands.
    pub(super) fn bind_again(&self, loaded: &mut Loaded, findings: &mut Vec<Finding>) -> Result<bool, BackendError> {
        let Err(error) = loaded.meter.bind(&loaded.inputs) else { return Ok(true) };
        self.may_go_on("the other measurements")?;
        log(&format!("the headline's inputs cannot be bound again: {error}"));
        let message = format!("the usual inputs could not be bound again, so the rest was not measured: {error}");
        findings.push(Finding::warning("not-bound-again", message));
        Ok(false)
    }

    /// Every optimization profile at its smallest, usual and largest shapes, and whether the usual inputs are bound again
    /// afterwards. The headline is profile 0 at the usual ones and is not measured again, unless given inputs were timed; points of equal shapes are measured once.
    fn points(
        &self,
        loaded: &mut Loaded,
        plan: &Path,
        headline: &Measurement,
        telemetry: &mut dyn Telemetry,
        findings: &mut Vec<Finding>,
    ) -> Result<(Vec<ProfilePoint>, bool), BackendError> {
        let varies = loaded.meter.inputs().iter().any(|port| port.shape.contains(&None));
        let profiles = &self.order.spec.profiles;
        if !varies || profiles.is_empty() {
            return Ok((Vec::new(), true));
        }
        let wanted: Vec<(usize, ShapePoint, OptimizationProfile)> = profiles
            .iter()
            .enumerate()
            .flat_map(|(index, profile)| distinct(profile).into_iter().map(move |(at, fixed)| (index, at, fixed)))
            .collect();
        // All of them together may take as long as the headline did at most.
        let budget_ms = self.order.measure_budget_ms as f64 / wanted.len().max(1) as f64;
        let mut points = Vec::new();
        let mut other: Option<(usize, Box<dyn Meter>)> = None;
        for (index, at, fixed) in wanted {
            self.may_go_on("the other shapes")?;
            let mut point = described(index, at, &fixed);
            if (index, at) == (0, ShapePoint::Opt) && !self.times_given() {
                point.headline = true;
                fill(&mut point, headline);
                points.push(point);
                continue;
            }
            self.outlet.progress("points", points.len() as f32 / (3 * profiles.len()) as f32, &point_name(&point));
            let result = match (index, &mut other) {
                (0, _) => self.point(&mut *loaded.meter, &fixed, budget_ms, telemetry),
                (_, Some((held, meter))) if *held == index => self.point(&mut **meter, &fixed, budget_ms, telemetry),
                _ => {
                    // One engine at a time beside the headline's.
                    drop(other.take());
                    self.load(plan, index).and_then(|meter| {
                        let (_, meter) = other.insert((index, meter));
                        self.point(&mut **meter, &fixed, budget_ms, telemetry)
                    })
                }
            };
            match result {
                Ok(measurement) => fill(&mut point, &measurement),
                Err(error) => {
                    self.may_go_on("the other shapes")?;
                    let message = format!("{} was not measured: {error}", point_name(&point));
                    findings.push(Finding::warning("point-failed", message));
                    point.problem = Some(error.to_string());
                }
            }
            points.push(point);
        }
        if let Some((_, mut meter)) = other {
            document::add_once(findings, meter.aside().findings);
        }
        let bound = self.bind_again(loaded, findings)?;
        Ok((points, bound))
    }

    /// What a change to each profile after the first takes an engine that can. The headline's is current at the end.
    fn switches(&self, loaded: &mut Loaded) -> Result<Vec<ProfileSwitch>, BackendError> {
        let mut switches = Vec::new();
        for (index, profile) in self.order.spec.profiles.iter().enumerate().skip(1) {
            let switch = self.switch(&mut *loaded.meter, index, &fixed(profile, ShapePoint::Opt));
            if let Ok(None) = switch {
                break;
            }
            loaded.meter.switch_profile(0)?;
            loaded.meter.bind(&loaded.inputs)?;
            switches.extend(switch?);
        }
        Ok(switches)
    }

    fn switch(
        &self,
        meter: &mut dyn Meter,
        index: usize,
        usual: &OptimizationProfile,
    ) -> Result<Option<ProfileSwitch>, BackendError> {
        let switch_ms = |meter: &mut dyn Meter| {
            let began_ms = self.clock.now_ms();
            Ok::<_, BackendError>(meter.switch_profile(index)?.map(|()| self.clock.now_ms() - began_ms))
        };
        let Some(first_ms) = switch_ms(meter)? else { return Ok(None) };
        let mut again_ms = Vec::new();
        for _ in 0..SWITCHES {
            meter.switch_profile(0)?;
            again_ms.extend(switch_ms(meter)?);
        }
        let graph = self.reference_graph(Some(usual));
        let inputs = reference_inputs(graph.as_ref().ok(), meter, Some(usual));
        let run_ms = |meter: &mut dyn Meter| {
            let began_ms = self.clock.now_ms();
            meter.run().map(|_| self.clock.now_ms() - began_ms)
        };
        meter.bind(&inputs)?;
        let first_run_ms = run_ms(meter)?;
        let later_ms = (0..SWITCHES).map(|_| run_ms(meter)).collect::<Result<Vec<f64>, _>>()?;
        Ok(Some(ProfileSwitch {
            profile: index,
            first_ms,
            again_ms: PartStats::of(&again_ms).unwrap_or_default(),
            first_run_ms,
            run_ms: PartStats::of(&later_ms).unwrap_or_default(),
        }))
    }

    /// The engine at one set of shapes.
    pub(super) fn point(
        &self,
        meter: &mut dyn Meter,
        fixed: &OptimizationProfile,
        budget_ms: f64,
        telemetry: &mut dyn Telemetry,
    ) -> Result<Measurement, BackendError> {
        let graph = self.reference_graph(Some(fixed));
        let made: NamedTensors = reference_inputs(graph.as_ref().ok(), meter, Some(fixed));
        meter.bind(&if self.times_given() { self.with_controls(made) } else { made })?;
        self.measure_extras(meter, budget_ms, telemetry)
    }
}

fn fill(point: &mut ProfilePoint, measurement: &Measurement) {
    point.latency_ms = Some(measurement.stats);
    let mean_ms = measurement.stats.mean.max(f64::MIN_POSITIVE);
    point.throughput_per_s = Some(point.batch as f64 * 1e3 / mean_ms);
    point.disturbed = measurement.wholly_disturbed();
}

fn point_name(point: &ProfilePoint) -> String {
    format!("profile {} at {} shapes", point.profile, point.at.name())
}

fn described(profile: usize, at: ShapePoint, fixed: &OptimizationProfile) -> ProfilePoint {
    let shape = |dims: &Vec<DimRange>| dims.iter().map(|range| range.opt).collect();
    let shapes: BTreeMap<String, Vec<u64>> =
        fixed.inputs.iter().map(|(name, dims)| (name.clone(), shape(dims))).collect();
    let batch = document::shared_first(shapes.values().map(|shape| shape.first().copied()));
    ProfilePoint {
        profile,
        at,
        shapes,
        batch,
        latency_ms: None,
        throughput_per_s: None,
        disturbed: false,
        headline: false,
        problem: None,
    }
}

/// The profile with every dimension fixed at its size there.
fn fixed(profile: &OptimizationProfile, at: ShapePoint) -> OptimizationProfile {
    profile.fixed(|range| match at {
        ShapePoint::Min => range.min,
        ShapePoint::Opt => range.opt,
        ShapePoint::Max => range.max,
    })
}

/// The points whose shapes differ; of equal ones the usual shapes stay.
pub(super) fn distinct(profile: &OptimizationProfile) -> Vec<(ShapePoint, OptimizationProfile)> {
    let usual = fixed(profile, ShapePoint::Opt);
    let differs = |(at, shapes): &(ShapePoint, OptimizationProfile)| *at == ShapePoint::Opt || *shapes != usual;
    ShapePoint::ALL.into_iter().map(|at| (at, fixed(profile, at))).filter(differs).collect()
}

/// Share of the layers' time by the type they compute in; empty when no layer tells its type.
fn precision_time(layers: &[LayerTime]) -> BTreeMap<String, f64> {
    let total_ms: f64 = layers.iter().map(|layer| layer.median_ms).sum();
    if total_ms <= 0.0 || layers.iter().all(|layer| layer.precision.is_none()) {
        return BTreeMap::new();
    }
    let mut shares = BTreeMap::new();
    for layer in layers {
        let precision = layer.precision.as_deref().unwrap_or("unknown");
        *shares.entry(precision.to_owned()).or_insert(0.0) += layer.median_ms / total_ms;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(min: u64, opt: u64, max: u64) -> OptimizationProfile {
        OptimizationProfile { inputs: BTreeMap::from([("x".to_owned(), vec![DimRange { min, opt, max }])]) }
    }

    #[test]
    fn equal_points_are_measured_once() {
        let points =
            |min, opt, max| distinct(&profile(min, opt, max)).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!(points(1, 4, 8), ShapePoint::ALL);
        assert_eq!(points(4, 4, 8), [ShapePoint::Opt, ShapePoint::Max]);
        assert_eq!(points(1, 8, 8), [ShapePoint::Min, ShapePoint::Opt]);
        assert_eq!(points(4, 4, 4), [ShapePoint::Opt]);
    }

    #[test]
    fn time_is_shared_out_by_precision() {
        let layer = |precision: Option<&str>, median_ms| LayerTime {
            precision: precision.map(str::to_owned),
            median_ms,
            ..LayerTime::default()
        };
        let shares = precision_time(&[layer(Some("fp16"), 3.0), layer(None, 0.5), layer(Some("fp32"), 0.5)]);
        assert_eq!(
            shares.into_iter().collect::<Vec<_>>(),
            [("fp16".to_owned(), 0.75), ("fp32".to_owned(), 0.125), ("unknown".to_owned(), 0.125)]
        );
        assert!(precision_time(&[layer(None, 1.0)]).is_empty() && precision_time(&[]).is_empty());
    }
}
