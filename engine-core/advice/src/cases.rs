//! For every rule a case in which it speaks, and one just short of it.

use crate::advise;
use planforge_report::{
    BuildSelection, BuildTrial, Finding, Foreign, LatencySplit, LayerTime, ModeSplit, PartStats, Report, Samples,
    StreamPoint, StreamSweep,
    testing::{sample_report, with_ceilings_and_batches},
};
use planforge_types::{
    Digest, DimRange, OptimizationProfile, Precision,
    fingerprint::{DeviceKind, GpuFacts},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    slice::from_ref,
};

/// What is said of a report, by the rule's code.
fn said(report: &Report, others: &[Report], code: &str) -> Option<String> {
    let advice = advise(report, others).into_iter().find(|advice| advice.code == code)?;
    assert!(!advice.advice.is_empty() && advice.evidence.value.is_finite(), "{advice:?}");
    assert!(!advice.message.contains("NaN") && !advice.message.contains('\n'), "{advice:?}");
    Some(advice.message)
}

#[track_caller]
fn speaks(report: &Report, others: &[Report], code: &str, words: &str) {
    let message = said(report, others, code).unwrap_or_else(|| panic!("{code} is silent"));
    assert!(message.contains(words), "{message}");
}

#[track_caller]
fn silent(report: &Report, others: &[Report], code: &str) {
    assert_eq!(said(report, others, code), None);
}

/// Of a GPU with tensor cores.
fn on_gpu(centre_ms: f64, precision: Precision) -> Report {
    let mut report = sample_report(centre_ms);
    report.device.kind = DeviceKind::Gpu;
    report.device.gpu = Some(GpuFacts { compute_capability: "9.0".into(), ..GpuFacts::default() });
    report.sku = "h200".parse().unwrap();
    report.spec.threads = None;
    report.spec.precision = precision;
    report
}

fn layer(name: &str, kind: &str, ms: f64, precision: &str, tactic: &str) -> LayerTime {
    LayerTime {
        name: name.into(),
        kind: kind.into(),
        median_ms: ms,
        precision: Some(precision.into()),
        tactic: tactic.into(),
        ..LayerTime::default()
    }
}

fn with_layers(mut report: Report, layers: &[LayerTime]) -> Report {
    report.layers = layers.to_vec();
    report.precision_time = BTreeMap::new();
    let total: f64 = layers.iter().map(|layer| layer.median_ms).sum();
    for layer in layers {
        let precision = layer.precision.clone().unwrap_or_default();
        *report.precision_time.entry(precision).or_default() += layer.median_ms / total;
    }
    report
}

#[test]
fn int8_that_covers_little() {
    let of = |int8_ms: f64| {
        let mut rest = layer("softmax_3", "softmax", 1.0 - int8_ms, "fp16", "t");
        rest.formats = Some("fp16:NHWC8 -> fp16:linear".into());
        with_layers(on_gpu(1.0, Precision::Int8), &[layer("conv1", "conv", int8_ms, "int8", "t"), rest])
    };
    speaks(
        &of(0.42),
        &[],
        "int8-coverage",
        "int8 covers only 42 % of the layers' time; the slowest others: softmax_3 in fp16 (58 %, tensors fp16:NHWC8",
    );
    silent(&of(0.8), &[], "int8-coverage");
    let asked_otherwise = Report { spec: on_gpu(1.0, Precision::Fp16).spec, ..of(0.42) };
    silent(&asked_otherwise, &[], "int8-coverage");
}

#[test]
fn conversions_that_take_much() {
    let of = |ms: f64| {
        let layers = [
            layer("conv1", "conv", 1.0 - ms, "fp16", "t"),
            layer("Reformatting CopyNode for conv1", "Reformat", ms, "fp16", "t"),
        ];
        with_layers(on_gpu(1.0, Precision::Fp16), &layers)
    };
    speaks(&of(0.05), &[], "reformat-share", "take 5.0 % of the layers' time: Reformatting CopyNode");
    silent(&of(0.049), &[], "reformat-share");
}

#[test]
fn weights_wider_than_asked() {
    let of = |fp32: u64| {
        let mut report = on_gpu(1.0, Precision::Fp16);
        report.weight_bytes =
            BTreeMap::from([("fp32".to_owned(), fp32 << 20), ("fp16".to_owned(), (100 - fp32) << 20)]);
        report
    };
    speaks(&of(50), &[], "wide-weights", "of 100.0 MiB of weights 50.0 MiB in fp32 are wider");
    silent(&of(49), &[], "wide-weights");
    silent(&Report { spec: on_gpu(1.0, Precision::Fp32).spec, ..of(90) }, &[], "wide-weights");
}

#[test]
fn gains_below_the_usual() {
    let base = on_gpu(1.5, Precision::Fp32);
    speaks(
        &on_gpu(1.1, Precision::Fp16),
        from_ref(&base),
        "small-gain",
        "fp16 is 1.36 times as fast as fp32; usual are 1.5",
    );
    silent(&on_gpu(0.98, Precision::Fp16), from_ref(&base), "small-gain");
    // With TF32 below it, less is usual.
    let mut as_tf32 = base.clone();
    as_tf32.precision_time = BTreeMap::from([("tf32".to_owned(), 1.0)]);
    silent(&on_gpu(1.1, Precision::Fp16), from_ref(&as_tf32), "small-gain");
    speaks(&on_gpu(1.3, Precision::Fp16), &[as_tf32], "small-gain", "ran as TF32 on tensor cores already");
    let mut other_model = base.clone();
    other_model.model.digest = Digest::of(b"other");
    silent(&on_gpu(1.1, Precision::Fp16), &[other_model], "small-gain");
    silent(&on_gpu(1.1, Precision::Fp16), &[], "small-gain");
}

#[test]
fn half_precision_that_nobody_tried() {
    let of = |conv: f64| {
        let layers = [layer("conv1", "conv", conv, "fp32", "t"), layer("pool", "pool", 1.0 - conv, "fp32", "t")];
        with_layers(on_gpu(1.0, Precision::Fp32), &layers)
    };
    speaks(&of(0.3), &[], "half-not-enabled", "products take 30 % of the layers' time in fp32");
    silent(&of(0.29), &[], "half-not-enabled");
    silent(&of(0.9), &[on_gpu(0.5, Precision::Fp16)], "half-not-enabled");
    let mut old = of(0.9);
    old.device.gpu.as_mut().unwrap().compute_capability = "6.1".into();
    silent(&old, &[], "half-not-enabled");
}

#[test]
fn products_without_tensor_cores() {
    let of = |ms: f64| {
        let layers = [
            layer("conv1", "conv", ms, "fp16", "sm80_xmma_fprop_implicit_gemm_ffma_f16"),
            layer("conv2", "conv", 1.0 - ms, "fp16", "sm80_xmma_fprop_implicit_gemm_f16f16_tensor16x8x16"),
        ];
        with_layers(on_gpu(1.0, Precision::Fp16), &layers)
    };
    speaks(&of(0.1), &[], "no-tensor-cores", "take 10 % of the layers' time: conv1 by sm80_xmma");
    silent(&of(0.09), &[], "no-tensor-cores");
}

#[test]
fn shapes_that_may_vary_cost() {
    let dynamic = |centre_ms: f64| {
        let mut report = on_gpu(centre_ms, Precision::Fp16);
        let range = DimRange { min: 1, opt: 1, max: 8 };
        report.spec.profiles =
            vec![OptimizationProfile { inputs: BTreeMap::from([("image".to_owned(), vec![range])]) }];
        report
    };
    let fixed = on_gpu(1.0, Precision::Fp16);
    speaks(&dynamic(1.06), from_ref(&fixed), "dynamic-shapes", "dynamic shapes cost 6.0 %");
    silent(&dynamic(1.04), from_ref(&fixed), "dynamic-shapes");
    silent(&dynamic(1.06), &[], "dynamic-shapes");
    let mut other = fixed;
    other.inputs[0].shape[0] = Some(8);
    silent(&dynamic(1.06), &[other], "dynamic-shapes");
}

#[test]
fn batches_beyond_the_knee() {
    let of = |knee: u32| {
        let mut report = with_ceilings_and_batches(sample_report(1.0));
        report.batches.as_mut().unwrap().knee = Some(knee);
        report
    };
    // 8 is the largest that was possible.
    let mut saturated = of(1);
    saturated.layers[0].bytes = 1;
    speaks(&saturated, &[], "batch-saturates", "throughput saturates at batch 1 (");
    silent(&of(8), &[], "batch-saturates");
    let because = said(&saturated, &[], "batch-saturates").unwrap();
    assert!(because.contains("because the device's compute is used up"), "{because}");
}

#[test]
fn streams_beyond_the_knee() {
    let of = |last_ms: f64| {
        let point = |streams: u32, throughput_per_s: f64, median_ms: f64| StreamPoint {
            streams,
            throughput_per_s,
            median_ms,
            p99_ms: median_ms,
            samples: 50,
        };
        let points = vec![point(1, 1000.0, 1.0), point(2, 1600.0, 1.25), point(4, 1610.0, last_ms)];
        let mut report = sample_report(1.0);
        report.streams = Some(StreamSweep { points, knee: Some(2), best: Some(4) });
        report
    };
    speaks(
        &of(2.5),
        &[],
        "streams-cost",
        "streams help until 2 (1.60 times the throughput); 4 make an execution take 2.00",
    );
    silent(&of(1.87), &[], "streams-cost");
}

fn with_mode(mode: ModeSplit) -> Report {
    Report { split: Some(LatencySplit { modes: vec![mode] }), ..on_gpu(1.0, Precision::Fp16) }
}

fn part(median: f64) -> PartStats {
    PartStats { median, ..PartStats::default() }
}

#[test]
fn transfers_that_dominate() {
    let of = |ms: f64| {
        with_mode(ModeSplit {
            transfers: true,
            compute: part(1.0),
            h2d: Some(part(ms)),
            d2h: Some(part(0.1)),
            ..ModeSplit::default()
        })
    };
    speaks(&of(0.4), &[], "transfers-dominate", "take 500.0 us for 1.000 ms of work");
    silent(&of(0.39), &[], "transfers-dominate");
}

#[test]
fn launches_that_the_device_waits_for() {
    let of = |ms: f64, cuda_graph: bool| {
        with_mode(ModeSplit { cuda_graph, compute: part(1.0), enqueue: Some(part(ms)), ..ModeSplit::default() })
    };
    speaks(&of(0.8, false), &[], "launch-bound", "the device waits for launches");
    silent(&of(0.79, false), &[], "launch-bound");
    silent(&of(0.8, true), &[], "launch-bound");
}

#[test]
fn workspace_that_was_too_small() {
    let of = |code: &str| {
        let mut report = on_gpu(1.0, Precision::Fp16);
        report.spec.workspace_mib = Some(64);
        report.findings.push(Finding::note(code, "said by the builder"));
        report
    };
    speaks(&of("tactics-skipped-memory"), &[], "workspace-small", "(64 MiB were allowed)");
    silent(&of("shape-assumed"), &[], "workspace-small");
}

#[test]
fn plans_from_elsewhere() {
    let own = sample_report(1.0);
    let of = |centre_ms: f64| {
        let (built_for, measured_on) = ("cpu-x86-64-v2".parse().unwrap(), own.sku.clone());
        Report { foreign: Some(Foreign { built_for, measured_on }), ..sample_report(centre_ms) }
    };
    speaks(
        &of(1.12),
        from_ref(&own),
        "built-elsewhere",
        "built for cpu-x86-64-v2, it takes 12 % longer on cpu-x86-64-v3",
    );
    silent(&of(1.01), from_ref(&own), "built-elsewhere");
    silent(&of(1.12), &[], "built-elsewhere");
}

#[test]
fn compatibility_that_costs() {
    let of = |centre_ms: f64| {
        let mut report = on_gpu(centre_ms, Precision::Fp16);
        report.spec.hardware_compatibility = Some("ampere+".into());
        report
    };
    let plain = on_gpu(1.0, Precision::Fp16);
    speaks(&of(1.08), from_ref(&plain), "compatibility-costs", "hardware compatibility ampere+ costs 8.0 %");
    silent(&of(1.01), from_ref(&plain), "compatibility-costs");
    silent(&plain, &[of(0.5)], "compatibility-costs");
}

#[test]
fn upgrades_that_are_slower() {
    let of = |version: &str, centre_ms: f64| {
        let mut report = on_gpu(centre_ms, Precision::Fp16);
        report.toolchain.version = version.into();
        report
    };
    let older = of("10.9", 1.0);
    speaks(&of("10.13", 1.05), from_ref(&older), "upgrade-slower", "native 10.13 takes 5.0 % longer here than 10.9");
    silent(&of("10.13", 1.01), from_ref(&older), "upgrade-slower");
    silent(&of("10.8", 1.05), &[older], "upgrade-slower");
}

#[test]
fn windows_that_were_disturbed() {
    let mut report = sample_report(1.0);
    silent(&report, &[], "tainted");
    report.windows[0].tainted.push("throttled: thermal".into());
    report.windows[0].kept_tainted = true;
    speaks(&report, &[], "tainted", "1 of 5 windows");
    let quiet = report.windows[1].clone();
    report.windows.push(quiet);
    silent(&report, &[], "tainted");
}

#[test]
fn builds_that_differ() {
    let trial = BuildTrial {
        plan_digest: Digest::of(b"plan"),
        bytes: 1,
        build_ms: 1.0,
        median_ms: 1.0,
        ci_low_ms: None,
        ci_high_ms: None,
        accurate: true,
        kept: true,
        cache: None,
    };
    let of = |unstable: bool| {
        let builds = vec![trial.clone(), trial.clone()];
        let selection =
            BuildSelection { builds, spread: 0.07, unstable, disturbed: 0, remeasured: false, failed: Vec::new() };
        Report { selection: Some(selection), ..sample_report(1.0) }
    };
    speaks(&of(true), &[], "build-unstable", "2 builds of this engine differ by 7.0 %");
    silent(&of(false), &[], "build-unstable");
}

#[test]
fn latencies_that_grow() {
    let of = |last: f64| {
        let mut report = sample_report(1.0);
        let window = report.windows[0].clone();
        let medians = (0..9).map(|index| 1.0 + (last - 1.0) * f64::from(index / 3) / 2.0);
        report.windows =
            medians.map(|median_ms| planforge_report::WindowRecord { median_ms, ..window.clone() }).collect();
        report.samples = Samples::encode(&[1.0; 360]);
        report
    };
    speaks(&of(1.05), &[], "grows", "latencies grew by 5.0 %");
    silent(&of(1.049), &[], "grows");
    let mut falls_back = of(1.2);
    falls_back.windows[3..6].iter_mut().for_each(|window| window.median_ms = 0.9);
    silent(&falls_back, &[], "grows");
}

#[test]
fn reference_kernels_that_take_time() {
    let of = |ms: f64| {
        let layers =
            [layer("conv1", "conv", 1.0 - ms, "fp32", "avx2_conv"), layer("det", "det", ms, "fp32", "reference_det")];
        with_layers(sample_report(1.0), &layers)
    };
    speaks(&of(0.05), &[], "reference-kernels", "take 5.0 % of the layers' time: det");
    silent(&of(0.04), &[], "reference-kernels");
}

#[test]
fn what_is_said_is_the_same_whatever_it_is_held_against() {
    let report = on_gpu(1.1, Precision::Fp16);
    let others = [report.clone(), on_gpu(1.5, Precision::Fp32)];
    let all = advise(&report, &others);
    let codes: BTreeSet<&str> = all.iter().map(|advice| advice.code).collect();
    assert_eq!(codes.len(), all.len(), "each rule speaks once");
    assert!(all.windows(2).all(|pair| pair[0].severity >= pair[1].severity), "{all:?}");
    let document = serde_json::to_value(&all).unwrap();
    assert_eq!(document[0]["evidence"]["threshold"], 1.5, "{document}");
}
