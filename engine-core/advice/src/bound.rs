//! What bounds an engine, and each of its layers.
//!
//! A layer is bound by what it comes near to: half of the measured rate of products, or of copies. One that comes near to
//! neither and is over in a few microseconds is bound by its launch. All of that is estimated, for operations and bytes
//! are counted from shapes. What bounds the engine as a whole is looked for outside of the layers first: copies over the
//! bus, launches that the device waits for, waiting for the end, time in which nothing ran; then it is what bounds most of
//! the layers' time.

use planforge_report::{Bound, LayerCounters, LayerTime, ModeSplit, Report, Roofline};
use planforge_types::fingerprint::DeviceKind;
use serde::Serialize;

/// What an engine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    Compute,
    Memory,
    /// Copies between host and device.
    Pcie,
    Launch,
    /// The host waits for the device beyond its work.
    Synchronisation,
    /// Nothing ran between the layers.
    Idle,
}

impl Bottleneck {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory bandwidth",
            Self::Pcie => "copies between host and device",
            Self::Launch => "launches",
            Self::Synchronisation => "synchronisation",
            Self::Idle => "gaps between layers",
        }
    }
}

/// From this share of a ceiling on, the ceiling binds.
pub const NEAR: f64 = 0.5;

/// Layers of GPUs that are over before this are mostly launch.
pub const LAUNCH_MS: f64 = 0.005;

/// Copies that take this share of the work on the device are what to look at first; enqueuing, waiting and gaps are
/// named from [`ENQUEUE`] and [`REST`] on.
pub const TRANSFERS: f64 = 0.5;
pub const ENQUEUE: f64 = 0.8;
pub const REST: f64 = 0.2;

/// From this percentage of what a part of the device reaches on, the part binds: what NVIDIA's profiler itself goes by.
pub const COUNTED_PERCENT: f64 = 60.0;

/// What bounds a layer; `None` where nothing was counted and no ceiling is known, or it comes near to none.
pub fn of_layer(layer: &LayerTime, report: &Report) -> Option<Bottleneck> {
    if let Some(counters) = &layer.counters {
        return of_counters(counters, layer.median_ms);
    }
    let (bound, share) = Roofline::of(layer, report.ceilings.as_ref())?.ceiling?;
    match (bound, share >= NEAR) {
        (Bound::Compute, true) => Some(Bottleneck::Compute),
        (Bound::Memory, true) => Some(Bottleneck::Memory),
        (_, false) if report.device.kind == DeviceKind::Gpu && layer.median_ms < LAUNCH_MS => Some(Bottleneck::Launch),
        (_, false) => None,
    }
}

/// By what the device itself counted: the busier of multiprocessors and memory, where one of them is busy.
fn of_counters(counters: &LayerCounters, median_ms: f64) -> Option<Bottleneck> {
    let (sm, memory) = (counters.sm_percent?, counters.memory_percent?);
    match sm.max(memory) >= COUNTED_PERCENT {
        true if sm >= memory => Some(Bottleneck::Compute),
        true => Some(Bottleneck::Memory),
        false => (median_ms < LAUNCH_MS).then_some(Bottleneck::Launch),
    }
}

/// What bounds an engine, and by which number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineBound {
    pub bottleneck: Bottleneck,
    /// Of the latency, or of the layers' time.
    pub share: f64,
    /// Counted from shapes, not measured.
    pub estimated: bool,
    /// In words, with the number.
    pub words: String,
}

impl EngineBound {
    fn of(bottleneck: Bottleneck, share: f64, estimated: bool, of_what: &str) -> Self {
        let basis = if estimated { "estimated" } else { "measured" };
        let words = format!("{}: {} of {of_what} ({basis})", bottleneck.words(), crate::rule::percent(share));
        Self { bottleneck, share, estimated, words }
    }
}

/// What bounds the engine; `None` where nothing tells.
pub fn of_engine(report: &Report) -> Option<EngineBound> {
    let headline = report.split.as_ref().and_then(|split| split.modes.first());
    headline.and_then(of_mode).or_else(|| gaps(report)).or_else(|| of_layers(report))
}

fn of_mode(mode: &ModeSplit) -> Option<EngineBound> {
    let compute = mode.compute.median;
    if !(compute > 0.0 && compute.is_finite()) {
        return None;
    }
    let median = |part: Option<planforge_report::PartStats>| part.map_or(0.0, |part| part.median);
    let copies = median(mode.h2d) + median(mode.d2h);
    if mode.transfers && copies >= TRANSFERS * compute {
        return Some(EngineBound::of(Bottleneck::Pcie, copies / (copies + compute), false, "copies and work"));
    }
    let enqueue = median(mode.enqueue);
    if !mode.cuda_graph && enqueue >= ENQUEUE * compute {
        return Some(EngineBound::of(
            Bottleneck::Launch,
            enqueue / compute,
            false,
            "the work's time goes to enqueuing",
        ));
    }
    let host = median(mode.host);
    let rest = (host - copies - compute) / host;
    (host > 0.0 && rest >= REST).then(|| EngineBound::of(Bottleneck::Synchronisation, rest, false, "the latency"))
}

/// Layers are profiled apart, which makes them slower rather than quicker: what their times leave of the latency is idle.
fn gaps(report: &Report) -> Option<EngineBound> {
    let layers: f64 = report.layers.iter().map(|layer| layer.median_ms).sum();
    let median = report.latency_ms.median;
    let rest = 1.0 - layers / median;
    (layers > 0.0 && rest >= REST).then(|| EngineBound::of(Bottleneck::Idle, rest, true, "the latency"))
}

fn of_layers(report: &Report) -> Option<EngineBound> {
    let total: f64 = report.layers.iter().map(|layer| layer.median_ms).sum();
    let time = |bottleneck: Bottleneck| {
        let layers = report.layers.iter().filter(|layer| of_layer(layer, report) == Some(bottleneck));
        (bottleneck, layers.map(|layer| layer.median_ms).sum::<f64>() / total)
    };
    let kinds = [Bottleneck::Compute, Bottleneck::Memory, Bottleneck::Launch].map(time);
    let (bottleneck, share) = kinds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let estimated = report.layers.iter().any(|layer| layer.counters.is_none());
    (total > 0.0 && share > 1.0 / 3.0).then(|| EngineBound::of(bottleneck, share, estimated, "the layers' time"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::{
        LatencySplit, PartStats,
        testing::{sample_report, with_ceilings_and_batches},
    };

    fn part(median: f64) -> PartStats {
        PartStats { median, ..PartStats::default() }
    }

    /// A GPU's report whose layers fill the latency.
    fn report(mode: Option<ModeSplit>) -> Report {
        let mut report = with_ceilings_and_batches(sample_report(1.0));
        report.device.kind = DeviceKind::Gpu;
        report.layers[0].median_ms = 0.75;
        report.layers[1].median_ms = 0.25;
        report.split = mode.map(|mode| LatencySplit { modes: vec![mode] });
        report
    }

    fn found(mode: ModeSplit) -> Option<Bottleneck> {
        of_engine(&report(Some(mode))).map(|bound| bound.bottleneck)
    }

    #[test]
    fn layers_are_bound_by_what_they_come_near_to() {
        let mut report = report(None);
        let of = |report: &Report, index: usize| of_layer(&report.layers[index], report);
        // 150 MFLOP in 0.75 ms are 80 % of 0.25 TFLOP/s; 2.5 MB in 0.25 ms are half of 20 GB/s.
        assert_eq!((of(&report, 0), of(&report, 1)), (Some(Bottleneck::Compute), Some(Bottleneck::Memory)));
        report.layers[1].bytes = 2_400_000;
        assert_eq!(of(&report, 1), None, "less than half is near to nothing");
        report.layers[1].median_ms = 0.004;
        report.layers[1].bytes = 100;
        assert_eq!(of(&report, 1), Some(Bottleneck::Launch));
        report.device.kind = DeviceKind::Cpu;
        assert_eq!(of(&report, 1), None, "a CPU launches nothing");
        report.ceilings = None;
        assert_eq!(of(&report, 0), None);
    }

    #[test]
    fn what_the_device_counted_decides_before_what_shapes_tell() {
        let mut report = report(None);
        let counted = |sm: f64, memory: f64| {
            Some(LayerCounters { sm_percent: Some(sm), memory_percent: Some(memory), ..LayerCounters::default() })
        };
        report.layers[0].counters = counted(20.0, 60.0);
        assert_eq!(of_layer(&report.layers[0], &report), Some(Bottleneck::Memory), "shapes say compute");
        assert!(of_engine(&report).unwrap().estimated, "the other layer was not counted");
        report.layers[1].counters = counted(59.0, 59.9);
        assert_eq!(of_layer(&report.layers[1], &report), None, "neither is busy");
        let bound = of_engine(&report).unwrap();
        assert_eq!((bound.bottleneck, bound.estimated), (Bottleneck::Memory, false));
        report.layers[1].median_ms = 0.004;
        assert_eq!(of_layer(&report.layers[1], &report), Some(Bottleneck::Launch));
    }

    #[test]
    fn an_engine_is_bound_by_what_is_outside_of_its_layers_first() {
        let plain = ModeSplit { compute: part(1.0), ..ModeSplit::default() };
        let copies =
            |each: f64| ModeSplit { transfers: true, h2d: Some(part(each)), d2h: Some(part(each)), ..plain.clone() };
        assert_eq!(found(copies(0.25)), Some(Bottleneck::Pcie));
        assert_eq!(found(copies(0.24)), Some(Bottleneck::Compute));
        let enqueue = |ms: f64, cuda_graph: bool| ModeSplit { enqueue: Some(part(ms)), cuda_graph, ..plain.clone() };
        assert_eq!(found(enqueue(0.8, false)), Some(Bottleneck::Launch));
        assert_eq!(found(enqueue(0.79, false)), Some(Bottleneck::Compute));
        assert_eq!(found(enqueue(0.8, true)), Some(Bottleneck::Compute));
        let host = |ms: f64| ModeSplit { host: Some(part(ms)), ..plain.clone() };
        assert_eq!(found(host(1.26)), Some(Bottleneck::Synchronisation));
        assert_eq!(found(host(1.2)), Some(Bottleneck::Compute));
    }

    #[test]
    fn what_the_layers_leave_is_idle_and_estimated() {
        let mut report = report(None);
        report.layers[0].median_ms = 0.5;
        let bound = of_engine(&report).unwrap();
        assert_eq!((bound.bottleneck, bound.estimated), (Bottleneck::Idle, true));
        assert!(bound.words.ends_with("of the latency (estimated)"), "{}", bound.words);
        report.layers[0].median_ms = 0.6;
        assert_ne!(of_engine(&report).map(|bound| bound.bottleneck), Some(Bottleneck::Idle));
        report.layers.clear();
        assert_eq!(of_engine(&report), None);
    }
}
