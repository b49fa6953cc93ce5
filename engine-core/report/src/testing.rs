//! Made-up reports for the tests of whoever reads them.

use crate::{
    Accuracy, BatchPoint, BatchSweep, Ceilings, Experiment, LayerTime, ModelRef, Numerics, OutputNumerics, PlanRef,
    Provenance, REPORT_SCHEMA_VERSION, Rates, Report, Samples, StopReason, TelemetryPair, WindowRecord, samples,
};
use planforge_stats::latency_stats;
use planforge_types::{
    BuildSpec, Digest, ElementType, EngineKey, Port, Sku, Toolchain,
    fingerprint::{CpuFacts, DeviceFingerprint, DeviceKind, HostFacts},
};
use std::collections::BTreeMap;

/// Windows, and samples of each, as a usual measurement of an engine of a millisecond leaves them.
const USUAL_WINDOWS: usize = 24;
const USUAL_IN_WINDOW: usize = 200;

/// A report as long as usual ones are, of noise within 2 % above `centre_ms` that `seed` decides.
pub fn usual_report(seed: u64, centre_ms: f64) -> Report {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let count = USUAL_WINDOWS * USUAL_IN_WINDOW;
    let latencies: Vec<f64> = (0..count).map(|_| samples::whole_ns_ms(centre_ms * (1.0 + 0.02 * noise()))).collect();
    let mut report = sample_report(centre_ms);
    let template = report.windows[0].clone();
    let window = |window: &[f64]| WindowRecord {
        iterations: USUAL_IN_WINDOW as u32,
        duration_ms: window.iter().sum(),
        median_ms: planforge_stats::median(window),
        ..template.clone()
    };
    report.windows = latencies.chunks(USUAL_IN_WINDOW).map(window).collect();
    report.samples = Samples::encode(&latencies);
    report.latency_ms = latency_stats(&latencies, &[USUAL_IN_WINDOW; USUAL_WINDOWS]).unwrap();
    report.throughput_per_s = 1e3 / report.latency_ms.mean;
    report
}

/// A report of made-up but consistent numbers around `centre_ms`.
pub fn sample_report(centre_ms: f64) -> Report {
    let samples: Vec<f64> =
        (0..200u32).map(|i| samples::whole_ns_ms(centre_ms * (1.0 + f64::from(i * 7919 % 101) / 5000.0))).collect();
    let window = |index: usize| WindowRecord {
        iterations: 40,
        duration_ms: samples[index * 40..][..40].iter().sum(),
        median_ms: planforge_stats::median(&samples[index * 40..][..40]),
        tainted: Vec::new(),
        kept_tainted: false,
        thinned_from: None,
        pace_ns: None,
        energy_uj: None,
    };
    let windows: Vec<WindowRecord> = (0..5).map(window).collect();
    let latency_ms = latency_stats(&samples, &[40; 5]).unwrap();
    let model = ModelRef {
        name: "digits.onnx".into(),
        digest: Digest::of(b"model"),
        graph_digest: None,
        structure_digest: None,
    };
    let sku: Sku = "cpu-x86-64-v3".parse().unwrap();
    let toolchain = Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() };
    let spec = BuildSpec { threads: Some(2), ..BuildSpec::default() };
    Report {
        schema_version: REPORT_SCHEMA_VERSION,
        simulated: false,
        provenance: Provenance {
            job: "job-1".into(),
            attempt: 1,
            agent: "host-a".into(),
            planforge_version: "0.1.0".into(),
            measured_unix_ms: 1_700_000_000_000,
        },
        engine_key: EngineKey::new(&model.digest, &sku, &toolchain, &spec),
        model,
        plan: PlanRef { digest: Digest::of(b"plan"), bytes: 156_000 },
        sku,
        device: DeviceFingerprint {
            kind: DeviceKind::Cpu,
            name: "Some CPU".into(),
            memory_mib: 8192,
            gpu: None,
            cpu: Some(CpuFacts { architecture: "x86_64".into(), usable_cores: 2, ..CpuFacts::default() }),
            host: HostFacts { os: "Linux".into(), kernel: "6.1".into() },
        },
        toolchain,
        spec,
        foreign: None,
        inputs: vec![Port { name: "image".into(), element: ElementType::F32, shape: vec![Some(1), Some(64)] }],
        given_inputs: None,
        batch: 1,
        latency_ms,
        throughput_per_s: 1e3 / latency_ms.mean,
        experiment: Experiment {
            warm_up_iterations: 100,
            warm_up_ms: 200.0,
            min_samples: 20,
            min_duration_ms: 1000.0,
            min_warm_up_ms: Some(200.0),
            min_windows: Some(5),
            target_relative_ci: 0.01,
            budget_ms: 10_000.0,
            elapsed_ms: 1500.0,
            stop: StopReason::Confident,
        },
        windows,
        samples: Samples::encode(&samples),
        layers: vec![
            LayerTime {
                name: "conv1+relu".into(),
                kind: "conv".into(),
                tactic: "direct-8".into(),
                median_ms: 0.75,
                flops: 100,
                bytes: 10,
                ..LayerTime::default()
            },
            LayerTime {
                name: "fc".into(),
                kind: "gemm".into(),
                tactic: "packed".into(),
                median_ms: 0.25,
                flops: 50,
                bytes: 20,
                ..LayerTime::default()
            },
        ],
        ceilings: None,
        precision_time: BTreeMap::new(),
        weight_bytes: BTreeMap::new(),
        gelu: BTreeMap::new(),
        split: None,
        points: Vec::new(),
        switches: Vec::new(),
        streams: None,
        batches: None,
        baselines: Vec::new(),
        selection: None,
        cache: None,
        artifacts: Vec::new(),
        build_ms: Some(1234.0),
        phases_ms: BTreeMap::from([("compile".to_owned(), 1234.0), ("measure".to_owned(), 1500.0)]),
        peak_memory_bytes: Some(40 << 20),
        build_memory_bytes: Some(40 << 20),
        run_memory_bytes: Some(24 << 20),
        engine_memory_bytes: 1 << 20,
        numerics: Some(Numerics {
            oracle: "reference operators".into(),
            skipped: None,
            seed: 1,
            outputs: vec![OutputNumerics {
                name: "scores".into(),
                elements: 10,
                max_error: 3e-7,
                relative_rms: 1e-7,
                scale: 12.0,
                before_softmax: true,
                total_error: 0.0,
                not_finite: 0,
                ..OutputNumerics::default()
            }],
            max_error: 3e-7,
            threshold: 1e-3,
            passed: true,
            oracle_ms: 5.0,
            independent: None,
        }),
        accuracy: Some(Accuracy { rows: 450, correct: 445, top1: 445.0 / 450.0, reference_top1: Some(445.0 / 450.0) }),
        accurate: true,
        telemetry: TelemetryPair::default(),
        host: None,
        build_argv: Vec::new(),
        findings: Vec::new(),
    }
}

/// The report with every window kept although it was disturbed.
pub fn disturbed(mut report: Report) -> Report {
    for window in &mut report.windows {
        window.tainted.push("other processes used: 60 % of the processors".into());
        window.kept_tainted = true;
    }
    report
}

/// Ceilings, and a sweep of three batches of which one is not possible.
pub fn with_ceilings_and_batches(mut report: Report) -> Report {
    let tflop_s = BTreeMap::from([("fp32".to_owned(), 0.25)]);
    report.ceilings = Some(Ceilings {
        measured_unix_ms: 1_763_600_000_000,
        conditions: BTreeMap::from([("threads".to_owned(), "2".to_owned())]),
        rates: Rates { copy_gb_s: 20.0, tflop_s },
        ..Ceilings::default()
    });
    report.layers[0].flops = 150_000_000;
    report.layers[1].bytes = 2_500_000;
    let point = |batch: u32, problem: Option<&str>| BatchPoint {
        batch,
        latency_ms: problem.is_none().then_some(report.latency_ms),
        throughput_per_s: problem.is_none().then_some(f64::from(batch) * 1e3 / report.latency_ms.mean),
        disturbed: false,
        headline: batch == 1,
        problem: problem.map(str::to_owned),
    };
    let points = vec![point(1, None), point(8, None), point(32, Some("the profile allows 1 to 8"))];
    report.batches = Some(BatchSweep { knee: Some(8), best: Some(8), points });
    report
}
