use super::*;

/// A run of 10.x in short, as its two streams are merged in a terminal.
const RUN_10: &str = "\
&&&& RUNNING TensorRT.trtexec [TensorRT v101601] [b11] # trtexec --onnx=net.onnx --verbose
[01/02/2026-03:04:05] [I] === Device Information ===
[01/02/2026-03:04:05] [I] Available Devices:
[01/02/2026-03:04:05] [I]   Device 0: \"NVIDIA T\" UUID: GPU-00000000-0000-0000-0000-000000000001
[01/02/2026-03:04:05] [I] Selected Device: NVIDIA T
[01/02/2026-03:04:05] [I] Selected Device ID: 0
[01/02/2026-03:04:05] [I] Selected Device UUID: GPU-00000000-0000-0000-0000-000000000001
[01/02/2026-03:04:05] [I] Compute Capability: 12.1
[01/02/2026-03:04:05] [I] SMs: 20
[01/02/2026-03:04:05] [I] Device Global Memory: 16000 MiB
[01/02/2026-03:04:05] [I] Shared Memory per SM: 100 KiB
[01/02/2026-03:04:05] [I] Memory Bus Width: 256 bits (ECC enabled)
[01/02/2026-03:04:05] [I] Application Compute Clock Rate: 1.5 GHz
[01/02/2026-03:04:05] [I] Application Memory Clock Rate: 5.25 GHz
[01/02/2026-03:04:05] [I] Note: The application clock rates do not reflect the actual clock rates that the GPU is currently running at.
[01/02/2026-03:04:05] [I] TensorRT version: 10.16.1
[01/02/2026-03:04:05] [I] [TRT] Loaded 1234 bytes of cache from file: t.cache
[01/02/2026-03:04:05] [I] Finished parsing network model. Parse time: 0.25
[01/02/2026-03:04:09] [I] [TRT] Engine generation completed in 3.75 seconds.
[01/02/2026-03:04:09] [I] [TRT] Total Host Persistent Memory: 4032 bytes
[01/02/2026-03:04:09] [I] Created engine with size: 0.5 MiB
[01/02/2026-03:04:09] [I] [TRT] Saved 2048 bytes of timing cache to t.cache
[01/02/2026-03:04:09] [I] Engine built in 4 sec.
[01/02/2026-03:04:09] [I] Engine deserialized in 1.2e-05 sec.
[01/02/2026-03:04:12] [I] Warmup completed 10 queries over 200 ms
[01/02/2026-03:04:12] [I] Timing trace has 100 queries over 3.5 s
[01/02/2026-03:04:12] [I] Average on 10 runs - GPU latency: 1.5 ms - Host latency: 1.75 ms (enqueue 0.25 ms)
[01/02/2026-03:04:12] [I] === Performance summary ===
[01/02/2026-03:04:12] [I] Throughput: 28.5 qps
[01/02/2026-03:04:12] [I] Latency: min = 1 ms, max = inf ms, mean = 2 ms, median = 1.75 ms, percentile(90%) = 2 ms, percentile(99.9%) = nan ms
[01/02/2026-03:04:12] [I] Enqueue Time: min = 0.1 ms, max = 0.5 ms, mean = 0.2 ms, median = 0.25 ms, percentile(90%) = 0.3 ms
[01/02/2026-03:04:12] [I] Total Host Walltime: 3.5 s
[01/02/2026-03:04:12] [I] Total GPU Compute Time: 3.25 s
[01/02/2026-03:04:12] [W] * GPU compute time is unstable, with coefficient of variance = 12.5%.
[01/02/2026-03:04:12] [W]   If not already in use, locking GPU clock frequency or adding --useSpinWait may improve the stability.
[01/02/2026-03:04:12] [I] Explanations of the performance metrics are printed in the verbose logs.
[01/02/2026-03:04:12] [V] Throughput: 99 qps
[01/02/2026-03:04:12] [V] Total Host Walltime: 99 s
[01/02/2026-03:04:12] [V] Latency: min = 9 ms, max = 9 ms, mean = 9 ms, median = 9 ms
&&&& PASSED TensorRT.trtexec [TensorRT v101601] [b11] # trtexec --onnx=net.onnx --verbose
";

fn read(text: &str) -> LogFacts {
    let mut reader = LogReader::new();
    reader.feed(Stream::Merged, text.as_bytes());
    reader.finish()
}

fn codes(facts: &LogFacts) -> Vec<&str> {
    facts.findings.iter().map(|finding| finding.code.as_str()).collect()
}

#[test]
fn a_run_is_read_whole() {
    let facts = read(RUN_10);
    assert!(facts.passed());
    assert_eq!((facts.version_code(), facts.build_number()), (Some(101601), Some(11)));
    assert_eq!(facts.running.as_ref().unwrap().command, "trtexec --onnx=net.onnx --verbose");
    let device = &facts.device;
    assert_eq!(device.name.as_deref(), Some("NVIDIA T"));
    assert_eq!(device.available[0].uuid, device.uuid.clone().unwrap());
    assert_eq!((device.id, device.compute_capability, device.sm_count), (Some(0), Some((12, 1)), Some(20)));
    assert_eq!((device.memory_bus_bits, device.ecc), (Some(256), Some(true)));
    assert_eq!((device.compute_clock_ghz, device.memory_clock_ghz), (Some(1.5), Some(5.25)));
    assert_eq!((device.global_memory_mib, device.shared_memory_per_sm_kib), (Some(16000), Some(100)));
    assert_eq!(facts.tensorrt_version.as_deref(), Some("10.16.1"));
    let engine = &facts.engine;
    assert_eq!((engine.parse_s, engine.generation_s, engine.built_s), (Some(0.25), Some(3.75), Some(4.0)));
    assert_eq!((engine.deserialized_s, engine.size_mib, engine.loaded_s), (Some(1.2e-5), Some(0.5), None));
    assert_eq!((facts.timing_cache.loaded_bytes, facts.timing_cache.saved_bytes), (Some(1234), Some(2048)));
    assert_eq!((facts.run.warm_up_queries, facts.run.trace_s), (Some(10), Some(3.5)));
    assert_eq!(facts.run.averages, [Average { runs: 10, gpu_ms: 1.5, host_ms: 1.75, enqueue_ms: 0.25 }]);
    let summary = &facts.summary;
    assert_eq!((summary.throughput_qps, summary.host_walltime_s), (Some(28.5), Some(3.5)));
    assert_eq!(summary.gpu_compute_s, Some(3.25));
    assert_eq!(summary.coefficient_of_variance_percent, Some(12.5));
    let latency = &summary.rows[Summary::LATENCY];
    assert_eq!((latency.min_ms, latency.max_ms, latency.median_ms), (1.0, f64::INFINITY, 1.75));
    assert_eq!(latency.percentiles[0], (90.0, 2.0));
    assert!(latency.percentiles[1].0 == 99.9 && latency.percentiles[1].1.is_nan());
    assert_eq!(summary.rows.len(), 2);
    assert_eq!(codes(&facts), ["application-clocks", "unstable-compute"]);
    assert_eq!(facts.warnings.seen(), 2);
}

#[test]
fn pieces_carriage_returns_and_colours_change_nothing() {
    let plain = read(RUN_10);
    for size in [1, 7, 64, 4096] {
        let mut reader = LogReader::new();
        RUN_10.as_bytes().chunks(size).for_each(|piece| reader.feed(Stream::Merged, piece));
        assert_eq!(format!("{:?}", reader.finish()), format!("{plain:?}"), "pieces of {size}");
    }
    let dressed: String = RUN_10.lines().map(|line| format!("\u{1b}[32m{line}\u{1b}[0m\r\n")).collect();
    // A colour hides the ampersands' place at the line's start only if it is not taken off first.
    let dressed = read(&dressed);
    assert_eq!(format!("{:?}", dressed.summary), format!("{:?}", plain.summary));
    assert_eq!(dressed.device, plain.device);
    assert!(dressed.passed());
}

#[test]
fn streams_do_not_mix() {
    let mut reader = LogReader::new();
    reader.feed(Stream::Stdout, b"[I] Throughput: 1");
    reader.feed(Stream::Stderr, b"[E] broken\nmore\n&&&& PASSED TensorRT.trtexec [TensorRT v8601] # x\n");
    reader.feed(Stream::Stdout, b"2 qps\n");
    let facts = reader.finish();
    assert_eq!(facts.summary.throughput_qps, Some(12.0));
    assert_eq!(facts.errors.iter().next().unwrap().text, "broken\nmore");
    assert_eq!(facts.verdict, None);
}

#[test]
fn a_verdict_belongs_to_the_run_it_ends() {
    let facts = read(
        "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=a\n\
         &&&& PASSED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=b\n\
         [I] &&&& PASSED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=a\n\
         text &&&& PASSED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=a\n",
    );
    assert_eq!(facts.verdict, None);
    let facts = read("&&&& FAILED TensorRT.trtexec [TensorRT v8401] # trtexec  \n");
    let end = facts.verdict.unwrap();
    assert_eq!((end.verdict, end.banner.version_code, end.banner.build_number), (Verdict::Failed, 8401, None));
    assert_eq!(end.banner.command, "trtexec");
}

#[test]
fn tables_of_both_orders_are_read_from_the_log() {
    let facts = read(
        "[I] === Profile (12 iterations ) ===\n\
         [I]         Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %\n\
         [I]          conv        3.00           0.2500             0.2400     75.0\n\
         [I]         Total        3.00           0.2500             0.2400    100.0\n\
         [I] Throughput: 5 qps\n",
    );
    let table = facts.profile.unwrap();
    assert_eq!((table.iterations, table.rows.len()), (Some(12), 1));
    assert_eq!(facts.summary.throughput_qps, Some(5.0));
    let cut_off =
        read("[I] === Profile (12 iterations ) ===\n[I]    Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer\n");
    assert_eq!(cut_off.profile.unwrap().total, None);
}

#[test]
fn a_row_under_its_title_beats_one_that_a_name_faked() {
    let facts = read("[I] Throughput: 1 qps\n[I] === Performance summary ===\n[I] Throughput: 2 qps\n");
    assert_eq!(facts.summary.throughput_qps, Some(2.0));
}

#[test]
fn warnings_about_shapes_and_workspace_become_findings() {
    let facts = read(
        "[W] Dynamic dimensions required for input: x, but no shapes were provided. Automatically overriding shape to: 1x3\n\
         [I] [TRT] Some tactics do not have sufficient workspace memory to run. Increasing workspace size will enable more tactics, please check verbose output for requested sizes.\n\
         [W] * Throughput may be bound by Enqueue Time rather than GPU Compute and the GPU may be under-utilized.\n\
         [W]   If not already in use, --useCudaGraph may increase the throughput.\n",
    );
    assert_eq!(codes(&facts), ["shape-assumed", "workspace-too-small", "enqueue-bound"]);
}

#[test]
fn the_timing_cache_of_old_and_new_versions() {
    let facts = read(
        "[W] [TRT] Could not read timing cache from: t.cache. A new timing cache will be generated and written.\n",
    );
    assert!(facts.timing_cache.missing);
    let facts = read("[I] [TRT] Loaded 77 bytes of timing cache from t.cache\n[E] [TRT] TimingCache creation failed\n");
    assert_eq!(facts.timing_cache.loaded_bytes, Some(77));
    assert!(facts.timing_cache.problem.is_some());
}

#[test]
fn a_log_without_end_costs_bounded_memory() {
    let mut reader = LogReader::new();
    let long = vec![b'x'; 3 << 20];
    reader.feed(Stream::Stdout, &long);
    assert!(reader.partial_bytes() <= reader::MAX_LINE_BYTES);
    reader.feed(Stream::Stdout, b"\n");
    assert_eq!(reader.facts().cut_lines, 1);
    for count in 0..20_000 {
        reader.line(Stream::Stderr, format!("[E] problem {count}").as_bytes());
        reader.line(Stream::Stderr, &long[..20_000]);
        reader.line(Stream::Stdout, b"[I] Average on 1 runs - GPU latency: 1 ms - Host latency: 1 ms (enqueue 1 ms)");
    }
    let facts = reader.finish();
    assert_eq!((facts.errors.seen(), facts.run.averages_seen), (20_000, 20_000));
    let kept: usize = facts.errors.iter().map(|message| message.text.len()).sum();
    assert!(kept < 2 << 20, "{kept} bytes kept");
    assert!(facts.run.averages.len() < 5_000);
}

#[test]
fn the_dynamic_linker_and_aborts_are_heard() {
    let mut reader = LogReader::new();
    reader.line(
        Stream::Stderr,
        b"trtexec: error while loading shared libraries: libnvinfer.so.10: cannot open shared object file",
    );
    reader.line(Stream::Stderr, b"[E] first");
    reader.line(Stream::Stderr, b"terminate called after throwing an instance of 'std::bad_alloc'");
    let facts = reader.finish();
    assert_eq!(facts.loose.seen(), 2);
    assert_eq!(facts.errors.iter().next().unwrap().text, "first");
}
