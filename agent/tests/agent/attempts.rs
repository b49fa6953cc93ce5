use crate::farm::{Bench, eventually};
use planforge_agent::host::lock::{self, Taken};
use planforge_proto::v1::{self, FailureClass, agent_message::Kind as Said, coordinator_message::Kind as Say};
use planforge_types::{
    Digest,
    order::{WorkKind, WorkOrder},
};

fn failure(finished: &v1::Finished, class: FailureClass) -> &v1::Failure {
    assert_eq!(finished.outcome, "failed");
    let failure = finished.failure.as_ref().unwrap();
    assert_eq!(failure.class(), class, "{failure:?}");
    failure
}

#[tokio::test]
async fn a_job_is_built_uploaded_measured_and_reported() {
    let bench = Bench::new(
        r#"
        cp "$(printf %s "$order" | sed 's/.*"model":"\([^"]*\)".*/\1/')" "$OUT/model"
        cat ../inputs/model/data/weights.bin > "$OUT/weights"
        echo "compiling" >&2
        say '{"event":"progress","phase":"compile","fraction":0.5,"detail":"half"}'
        say 'a library talks'
        build
        printf %s "$answer" > "$OUT/answer"
        say '{"event":"window_begin"}'
        say '{"event":"window_end"}'
        finish
        "#,
    )
    .await;
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    assert_eq!((finished.outcome.as_str(), finished.accurate), ("succeeded", true), "{finished:?}");
    assert_eq!(std::fs::read(bench.path("model")).unwrap(), b"model of j1");
    assert_eq!(std::fs::read(bench.path("weights")).unwrap(), b"weights");
    assert_eq!(std::fs::read_to_string(bench.path("answer")).unwrap(), r#"{"command":"continue"}"#);

    let store = &bench.farm.store;
    let stored = |digest: &str| store.get(digest.parse().unwrap());
    assert_eq!(stored(&finished.plan_digest).unwrap(), b"plan-bytes");
    assert_eq!(stored(&finished.card_digest).unwrap(), b"{\"card\":1}");
    assert_eq!(stored(&finished.report_digest).unwrap(), b"{\"report\":1}");
    let log = bench.farm.log_of(&finished).await;
    assert!(log.contains("compiling\n") && log.contains("a library talks\n"), "{log}");

    let said = bench.farm.said();
    let position = |what: &str, is: fn(&Said) -> bool| said.iter().position(is).unwrap_or_else(|| panic!("no {what}"));
    let built = position("built", |s| matches!(s, Said::Built(_)));
    let progress =
        position("progress", |s| matches!(s, Said::Progress(p) if p.phase == "compile" && p.fraction == 0.5));
    assert!(position("started", |s| matches!(s, Said::Started(_))) < progress);
    assert!(progress < built && built < position("finished", |s| matches!(s, Said::Finished(_))));
    let mut streamed = Vec::new();
    for lines in said.iter().filter_map(|s| if let Said::Log(lines) = s { Some(lines) } else { None }) {
        assert_eq!(lines.offset_bytes, streamed.len() as u64);
        streamed.extend(&lines.data);
    }
    assert_eq!(String::from_utf8(streamed).unwrap(), log);

    eventually("the acknowledged end is forgotten", || bench.files_in("state/outbox").is_empty().then_some(())).await;
    assert!(bench.files_in("state/scratch").is_empty());
    assert_eq!(bench.files_in("state/models").len(), 2);
}

/// Leaves a child, one that ignores SIGTERM, and one that left the process group.
const FAMILY: &str = r#"
    sleep 1000 & echo $! > "$OUT/child"
    sh -c 'trap "" TERM; while :; do sleep 0.1; done' & echo $! > "$OUT/deaf"
    setsid sh -c 'echo $$ > "$OUT/gone"; sleep 1000' &
    echo $$ > "$OUT/worker"
"#;

async fn family_is_dead(bench: &Bench, family: &[planforge_agent::host::proc::ProcessId]) {
    eventually("the whole family is dead", || family.iter().all(|process| !process.is_alive()).then_some(())).await;
    let taken = lock::try_take(&bench.config.lock_dir, "cpu0").unwrap();
    assert!(matches!(taken, Taken::Ours(_)), "the device is free: {taken:?}");
}

async fn family(bench: &Bench) -> Vec<planforge_agent::host::proc::ProcessId> {
    let mut family = Vec::new();
    for name in ["child", "deaf", "gone", "worker"] {
        family.push(bench.process(name).await);
    }
    family
}

#[tokio::test]
async fn cancelling_kills_everything_the_attempt_started() {
    let bench = Bench::new(&format!("export OUT\n{FAMILY}\ntrap '' TERM\nwhile :; do sleep 0.1; done")).await;
    let agent = bench.start();
    bench.farm.hello(0).await;
    let lease = bench.farm.assign("j1").await;
    let family = family(&bench).await;
    assert!(
        matches!(lock::try_take(&bench.config.lock_dir, "cpu0").unwrap(), Taken::Busy(busy) if busy.holder.as_ref().unwrap().job == "j1")
    );
    bench.farm.say(Say::Cancel(v1::CancelLease { lease: Some(lease), reason: "nobody wants it".into() })).await;
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.outcome, "cancelled");
    assert!(bench.farm.log_of(&finished).await.contains("cancelled: nobody wants it"));
    family_is_dead(&bench, &family).await;
    drop(agent);
}

#[tokio::test]
async fn a_worker_that_ends_leaves_nothing_behind() {
    let bench =
        Bench::new(&format!("export OUT\n{FAMILY}\nwhile [ ! -e \"$OUT/gone\" ]; do sleep 0.01; done\nbuild\nfinish"))
            .await;
    let _agent = bench.start_and_assign("j1").await;
    let family = family(&bench).await;
    assert_eq!(bench.farm.finished("j1").await.outcome, "succeeded");
    family_is_dead(&bench, &family).await;
}

#[tokio::test]
async fn a_hanging_worker_is_killed_at_its_limit() {
    let mut bench = Bench::new("echo 'stuck here' >&2; while :; do sleep 0.1; done").await;
    bench.config.limits.job_ms = 300;
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    let failure = failure(&finished, FailureClass::Resource);
    assert!(failure.message.contains("took longer than the limit"), "{failure:?}");
    assert!(bench.farm.log_of(&finished).await.contains("stuck here"));
}

/// The order is longer than a pipe holds: writing it waits for ever for a worker that does not read.
#[tokio::test]
async fn a_worker_that_never_reads_its_order_is_killed_at_its_limit() {
    let mut bench = Bench::new("").await;
    bench.config.worker_command = ["sleep", "600"].map(Into::into).to_vec();
    bench.config.limits.job_ms = 300;
    let _agent = bench.start();
    bench.farm.hello(0).await;
    let text = "x".repeat(1000);
    let options: Vec<String> = (0..64).map(|n| format!("\"option-{n:02}-{text}\":\"{text}\"")).collect();
    let spec = format!("{{\"options\":{{{}}}}}", options.join(","));
    assert!(spec.len() > 2 * 65_536 - 4_096);
    bench.farm.assign_with("j1", |assign| assign.job.as_mut().unwrap().spec_json = spec).await;
    let finished = bench.farm.finished("j1").await;
    let failure = failure(&finished, FailureClass::Resource);
    assert!(failure.message.contains("took longer than the limit"), "{failure:?}");
}

#[tokio::test]
async fn a_crash_is_told_with_the_last_words() {
    let bench = Bench::new("echo 'about to fall' >&2; kill -SEGV $$").await;
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    let failure = failure(&finished, FailureClass::Infrastructure);
    assert!(failure.message.contains("SIGSEGV") && failure.message.contains("about to fall"), "{failure:?}");
    assert!(bench.farm.log_of(&finished).await.starts_with("about to fall"));
}

#[tokio::test]
async fn a_worker_that_ends_without_a_result_failed() {
    let bench = Bench::new("exit 0").await;
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    assert!(failure(&finished, FailureClass::Infrastructure).message.contains("ended without a result"));
}

#[tokio::test]
async fn a_workers_own_failure_keeps_its_class() {
    let bench = Bench::new(
        r#"say '{"event":"failed","class":"model","message":"no such operator Foo","hint":"export again"}'"#,
    )
    .await;
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    let failure = failure(&finished, FailureClass::Model);
    assert_eq!((failure.message.as_str(), failure.hint.as_str()), ("no such operator Foo", "export again"));
}

#[tokio::test]
async fn a_host_that_lacks_disk_or_memory_says_so() {
    for (script, lacked, words) in [
        (
            r#"say '{"event":"failed","class":"resource","message":"cannot write x: No space left on device (os error 28)","hint":""}'"#,
            "disk",
            "No space left",
        ),
        ("echo 'memory allocation of 123456 bytes failed' >&2; kill -ABRT $$", "memory", "123456 bytes"),
    ] {
        let bench = Bench::new(script).await;
        let _agent = bench.start_and_assign("j1").await;
        let finished = bench.farm.finished("j1").await;
        let failure = failure(&finished, FailureClass::Resource);
        assert_eq!(failure.lacked, lacked);
        assert!(failure.message.contains(words), "{failure:?}");
    }
    // What is missing elsewhere, or is the job's own fault, says nothing about the host.
    let bench = Bench::new("kill -KILL $$").await;
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    assert_eq!(failure(&finished, FailureClass::Infrastructure).lacked, "");
}

#[tokio::test]
async fn what_a_worker_claims_is_checked() {
    let wrong_digest = r#"printf other > plan; printf '{}' > card; say '{"event":"built","plan":"'$PWD'/plan","plan_digest":"'$(printf x | sha256sum | cut -d' ' -f1)'","plan_bytes":5,"card":"'$PWD'/card"}'; read -r answer"#;
    let foreign_file = r#"say '{"event":"done","report":"/etc/hostname","accurate":true}'; read -r never"#;
    let long_line = "head -c 3000000 /dev/zero | tr '\\0' x; read -r never";
    for (script, message) in [
        (wrong_digest, "was refused"),
        (foreign_file, "not in its scratch folder"),
        (long_line, "output cannot be read"),
    ] {
        let bench = Bench::new(script).await;
        let _agent = bench.start_and_assign("j1").await;
        let finished = bench.farm.finished("j1").await;
        let failure = failure(&finished, FailureClass::Infrastructure);
        assert!(failure.message.contains(message), "{failure:?}");
        assert_eq!(bench.farm.store.get(Digest::of(b"x")), None);
    }
}

#[tokio::test]
async fn a_store_that_stays_full_is_a_matter_of_resources() {
    let mut bench = Bench::new("build\nfinish").await;
    bench.config.limits.store_patience_ms = 100;
    bench.farm.store.set_full(true);
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    let failure = failure(&finished, FailureClass::Resource);
    assert!(failure.message.contains("no room") && failure.hint == "free some", "{failure:?}");
}

#[tokio::test]
async fn a_store_that_has_room_again_costs_nothing() {
    let bench = Bench::new("echo compiling >&2\nbuild\nfinish").await;
    bench.farm.store.set_full(true);
    let _agent = bench.start_and_assign("j1").await;
    bench.farm.started("j1").await;
    eventually("the plan is refused", || (bench.farm.store.refused() > 0).then_some(())).await;
    bench.farm.store.set_full(false);
    bench.farm.hear("built", |said| matches!(said, Said::Built(_)).then_some(())).await;
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.outcome, "succeeded", "{finished:?}");
    for digest in [&finished.plan_digest, &finished.card_digest, &finished.report_digest, &finished.log_digest] {
        assert!(bench.farm.store.get(digest.parse().unwrap()).is_some());
    }
}

#[tokio::test]
async fn a_coordinator_that_knows_no_upload_for_a_while_costs_nothing() {
    let bench = Bench::new("build\nfinish").await;
    bench.farm.store.forget(u64::MAX);
    let _agent = bench.start_and_assign("j1").await;
    // More often than an upload is tried: it is asked for again.
    eventually("the upload is given up once", || (bench.farm.store.opened() > 7).then_some(())).await;
    bench.farm.store.forget(0);
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.outcome, "succeeded", "{finished:?}");
    assert!(bench.farm.store.get(finished.plan_digest.parse().unwrap()).is_some());
}

#[tokio::test]
async fn a_report_and_a_log_wait_for_room_too() {
    // The worker goes on only when the test's folder says so.
    let bench = Bench::new("build\nwhile [ ! -e \"$OUT/go\" ]; do sleep 0.01; done\nfinish").await;
    let _agent = bench.start_and_assign("j1").await;
    bench.farm.hear("built", |said| matches!(said, Said::Built(_)).then_some(())).await;
    bench.farm.store.set_full(true);
    std::fs::write(bench.path("go"), "").unwrap();
    eventually("the report is refused", || (bench.farm.store.refused() > 0).then_some(())).await;
    bench.farm.store.set_full(false);
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.outcome, "succeeded", "{finished:?}");
    for digest in [&finished.report_digest, &finished.log_digest] {
        assert!(bench.farm.store.get(digest.parse().unwrap()).is_some());
    }
}

#[tokio::test]
async fn limits_hold() {
    let mut bench = Bench::new("ulimit -c >&2; head -c 2000000 /dev/zero | tr '\\0' x >&2; echo end >&2; head -c 200000 /dev/zero > big; finish").await;
    bench.config.limits.log_bytes = 100_000;
    bench.config.limits.file_bytes = 150_000;
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    let log = bench.farm.log_of(&finished).await;
    assert!(log.starts_with("0\n"), "no core dumps: {}", &log[..20]);
    assert!(log.len() < 101_000 && log.contains("bytes of log left out") && log.contains("end\n"), "{}", log.len());
    // The shell's child dies of the file limit, not the shell: it still finishes.
    assert_eq!(finished.outcome, "succeeded");
    assert!(!log.contains("200000"));
}

#[tokio::test]
async fn one_device_runs_one_job_at_a_time() {
    let bench = Bench::new(
        r#"
        mkdir "$OUT/busy" || exit 1
        echo x >> "$OUT/runs"
        while [ ! -e "$OUT/go" ]; do sleep 0.01; done
        build
        rmdir "$OUT/busy"
        finish
        "#,
    )
    .await;
    let _agent = bench.start_and_assign("j1").await;
    bench.farm.assign("j2").await;
    bench.farm.assign("j1").await; // told twice: runs once
    bench
        .farm
        .hear("both leases beat", |s| matches!(s, Said::Heartbeat(beat) if beat.leases.len() == 2).then_some(()))
        .await;
    std::fs::write(bench.path("go"), "").unwrap();
    for job in ["j1", "j2"] {
        assert_eq!(bench.farm.finished(job).await.outcome, "succeeded");
    }
    assert_eq!(std::fs::read_to_string(bench.path("runs")).unwrap(), "x\nx\n");
}

#[tokio::test]
async fn a_device_that_another_agent_holds_is_waited_for() {
    let mut bench = Bench::new("build\nfinish").await;
    bench.config.limits.device_wait_told_ms = 0;
    std::fs::create_dir(&bench.config.lock_dir).unwrap();
    let Taken::Ours(held) = lock::try_take(&bench.config.lock_dir, "cpu0").unwrap() else { panic!("free") };
    let _agent = bench.start_and_assign("j1").await;
    // It left no note, as another program would: it is named by what the kernel knows.
    let (pid, uid) = (std::process::id(), rustix::process::getuid().as_raw());
    let waits = |s: &Said| match s {
        Said::Progress(p) if p.phase == "wait" => Some(p.detail.clone()),
        _ => None,
    };
    let detail = bench.farm.hear("it says that it waits", waits).await;
    for part in ["cpu0", &format!("process {pid} ("), &format!("uid {uid}"), "locks/device-cpu0.lock"] {
        assert!(detail.contains(part), "{part} in: {detail}");
    }
    assert!(!bench.farm.said().iter().any(|s| matches!(s, Said::Started(_))));
    drop(held);
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.outcome, "succeeded");
    let log = bench.farm.log_of(&finished).await;
    assert!(log.contains(&format!("waiting: {detail}")) && log.contains("device cpu0 is free after"), "{log}");
}

#[tokio::test]
async fn workers_claim_cores_where_their_agent_claims_devices() {
    let bench = Bench::new("printf %s \"$PLANFORGE_LOCK_DIR\" > \"$OUT/locks-of-worker\"\nbuild\nfinish").await;
    let _agent = bench.start_and_assign("j1").await;
    assert_eq!(bench.farm.finished("j1").await.outcome, "succeeded");
    let told = std::fs::read_to_string(bench.path("locks-of-worker")).unwrap();
    assert_eq!(std::path::Path::new(&told), bench.config.lock_dir);
}

#[tokio::test]
async fn telemetry_pauses_during_timed_windows() {
    let bench = Bench::new(
        r#"
        build
        while [ ! -e "$OUT/enter" ]; do sleep 0.01; done
        say '{"event":"window_begin"}'
        touch "$OUT/inside"
        while [ ! -e "$OUT/leave" ]; do sleep 0.01; done
        say '{"event":"window_end"}'
        while [ ! -e "$OUT/end" ]; do sleep 0.01; done
        finish
        "#,
    )
    .await;
    let _agent = bench.start_and_assign("j1").await;
    let beats = || -> Vec<v1::Heartbeat> {
        bench.farm.said().into_iter().filter_map(|s| if let Said::Heartbeat(b) = s { Some(b) } else { None }).collect()
    };
    let told = |b: &v1::Heartbeat| b.telemetry.iter().any(|t| t.device == "cpu0" && t.json.contains("load_1m"));
    // Only since when it is measured.
    let silent =
        |b: &v1::Heartbeat| matches!(&b.telemetry[..], [t] if t.json.starts_with(r#"{"measuring_from_unix_ms":"#));
    eventually("telemetry before", || beats().iter().any(told).then_some(())).await;
    std::fs::write(bench.path("enter"), "").unwrap();
    eventually("inside the window", || bench.path("inside").exists().then_some(())).await;
    eventually("a beat without telemetry", || beats().last().is_some_and(silent).then_some(())).await;
    let before = beats().len();
    eventually("more beats", || (beats().len() >= before + 4).then_some(())).await;
    assert!(beats()[before - 1..].iter().all(silent), "none inside the window");
    std::fs::write(bench.path("leave"), "").unwrap();
    let after = beats().len();
    eventually("telemetry again", || beats()[after..].iter().any(told).then_some(())).await;
    std::fs::write(bench.path("end"), "").unwrap();
    bench.farm.finished("j1").await;
}

#[tokio::test]
async fn a_plan_from_elsewhere_is_measured_as_foreign() {
    let bench = Bench::new(
        r#"
        printf %s "$order" > "$OUT/order"
        finish
        "#,
    )
    .await;
    let _agent = bench.start();
    bench.farm.hello(0).await;
    let lease = v1::Lease { job: "j1".into(), attempt: 1, device: "cpu0".into() };
    let store = |bytes: &[u8]| {
        let digest = Digest::of(bytes);
        bench.farm.store.put(digest, bytes);
        digest.to_string()
    };
    let digest = store(b"model");
    let file = v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes: 5 };
    let job = v1::Job {
        id: "j1".into(),
        kind: v1::JobKind::Benchmark.into(),
        engine_key: digest.clone(),
        plan_digest: store(b"plan"),
        model: Some(v1::Model { digest, files: vec![file], ..v1::Model::default() }),
        sku: "cpu-x86-64-v3".into(),
        built_for: "cpu-x86-64-v2".into(),
        toolchain_json: r#"{"backend":"native","version":"1"}"#.into(),
        spec_json: "{}".into(),
        ..v1::Job::default()
    };
    bench.farm.say(Say::Assign(v1::Assign { lease: Some(lease), job: Some(job), ..v1::Assign::default() })).await;
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.outcome, "succeeded", "{finished:?}");
    let order: WorkOrder = serde_json::from_slice(&std::fs::read(bench.path("order")).unwrap()).unwrap();
    assert_eq!((order.kind, order.sku.as_str()), (WorkKind::Benchmark, "cpu-x86-64-v3"));
    assert_eq!(order.built_for.unwrap().as_str(), "cpu-x86-64-v2");
}

#[tokio::test]
async fn jobs_that_cannot_be_prepared_say_why() {
    let bench = Bench::new("build\nfinish").await;
    let _agent = bench.start();
    bench.farm.hello(0).await;
    let lease = v1::Lease { job: "j1".into(), attempt: 1, device: "cpu0".into() };
    // The model is not stored: that is final.
    let digest = Digest::of(b"never stored").to_string();
    let file = v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes: 1 };
    let job = v1::Job {
        id: "j1".into(),
        kind: v1::JobKind::Build.into(),
        engine_key: digest.clone(),
        model: Some(v1::Model { digest, files: vec![file], ..v1::Model::default() }),
        sku: "cpu-x86-64-v3".into(),
        toolchain_json: r#"{"backend":"native","version":"1"}"#.into(),
        spec_json: "{}".into(),
        ..v1::Job::default()
    };
    bench
        .farm
        .say(Say::Assign(v1::Assign { lease: Some(lease), job: Some(job.clone()), ..v1::Assign::default() }))
        .await;
    let finished = bench.farm.finished("j1").await;
    assert!(failure(&finished, FailureClass::Infrastructure).message.contains("does not exist"), "{finished:?}");
    // A job that no agent of this version can read.
    let lease = v1::Lease { job: "j2".into(), attempt: 1, device: "cpu0".into() };
    let unreadable = v1::Job { sku: "NO SKU".into(), ..job.clone() };
    bench
        .farm
        .say(Say::Assign(v1::Assign { lease: Some(lease), job: Some(unreadable), ..v1::Assign::default() }))
        .await;
    let finished = bench.farm.finished("j2").await;
    assert!(failure(&finished, FailureClass::Infrastructure).hint.contains("same version"), "{finished:?}");
    // One more file makes it another model, whose engine would be stored under this one's name.
    let lease = v1::Lease { job: "j3".into(), attempt: 1, device: "cpu0".into() };
    let mut job = job;
    let model = job.model.as_mut().unwrap();
    let weights = Digest::of(b"weights").to_string();
    model.files.push(v1::ModelFile { name: "weights.bin".into(), digest: weights, size_bytes: 7 });
    bench.farm.say(Say::Assign(v1::Assign { lease: Some(lease), job: Some(job), ..v1::Assign::default() })).await;
    let finished = bench.farm.finished("j3").await;
    let message = &failure(&finished, FailureClass::Infrastructure).message;
    assert!(message.contains("its files make it"), "{finished:?}");
}

/// A compile job of the model `model`; of `made_for` where that is a device elsewhere.
fn compile_job(bench: &Bench, made_for: &str) -> v1::Assign {
    let digest = Digest::of(b"model");
    bench.farm.store.put(digest, b"model");
    let digest = digest.to_string();
    let file = v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes: 5 };
    let job = v1::Job {
        id: "j1".into(),
        kind: v1::JobKind::Compile.into(),
        engine_key: digest.clone(),
        model: Some(v1::Model { digest, files: vec![file], ..v1::Model::default() }),
        sku: if made_for.is_empty() { "cpu-x86-64-v3" } else { "t4" }.into(),
        toolchain_json: r#"{"backend":"native","version":"1"}"#.into(),
        spec_json: "{}".into(),
        ..v1::Job::default()
    };
    let lease = v1::Lease { job: "j1".into(), attempt: 1, device: "cpu0".into() };
    v1::Assign { lease: Some(lease), job: Some(job), made_for_json: made_for.into(), ..v1::Assign::default() }
}

#[tokio::test]
async fn what_is_prepared_for_a_device_elsewhere_is_stored_and_told() {
    let bench = Bench::new(
        r#"
        printf %s "$order" > "$OUT/order"
        printf kernels > prepared
        say '{"event":"prepared","file":"'$PWD'/prepared","digest":"'$(sha256sum prepared | cut -d' ' -f1)'","bytes":7}'
        "#,
    )
    .await;
    let _agent = bench.start();
    bench.farm.hello(0).await;
    bench.farm.say(Say::Assign(compile_job(&bench, r#"{"name":"a board elsewhere"}"#))).await;
    let finished = bench.farm.finished("j1").await;
    assert_eq!((finished.outcome.as_str(), finished.prepared_bytes), ("succeeded", 7), "{finished:?}");
    assert_eq!(bench.farm.store.get(finished.prepared_digest.parse().unwrap()).unwrap(), b"kernels");
    assert_eq!((finished.plan_digest.as_str(), finished.report_digest.as_str()), ("", ""));
    let order: WorkOrder = serde_json::from_slice(&std::fs::read(bench.path("order")).unwrap()).unwrap();
    assert_eq!((order.kind, order.cache), (WorkKind::Ahead, None));
    assert_eq!(order.fingerprint["name"], "a board elsewhere", "not the processor that it is compiled on");
}

#[tokio::test]
async fn a_prepared_model_is_stored_with_what_became_of_it_and_told_by_its_identity() {
    let bench = Bench::new(
        r#"
        printf %s "$order" > "$OUT/order"
        mkdir made
        printf model > made/model.onnx; printf weights > made/model.onnx.data; printf '{}' > document
        sum() { sha256sum $1 | cut -d' ' -f1; }
        size() { wc -c < $1 | tr -d ' '; }
        of() { printf '{"name":"%s","path":"%s","digest":"%s","bytes":%s}' $(basename $1) $PWD/$1 $(sum $1) $(size $1); }
        files="$(of made/model.onnx),$(of made/model.onnx.data)"
        digests='"graph_digest":"'$(printf %064d 1)'","structure_digest":"'$(printf %064d 2)'"'
        say '{"event":"made","files":['"$files"'],'"$digests"',"document":'"$(of document)"'}'
        "#,
    )
    .await;
    let _agent = bench.start();
    let hello = bench.farm.hello(0).await;
    assert!(hello.devices[0].prepares_json.is_empty(), "a scripted host prepares what its script says");
    let rows = Digest::of(b"rows");
    bench.farm.store.put(rows, b"rows");
    let mut assign = compile_job(&bench, "");
    let job = assign.job.as_mut().unwrap();
    job.kind = v1::JobKind::Prepare.into();
    job.sku = "anywhere".into();
    job.model.as_mut().unwrap().name = "net.onnx".into();
    job.preparation = Some(v1::Preparation {
        ask_json: format!(r#"{{"precision":"int8","data":["{rows}"]}}"#),
        ..v1::Preparation::default()
    });
    bench.farm.say(Say::Assign(assign)).await;
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.outcome, "succeeded", "{finished:?}");
    let made = finished.made.expect("a model");
    assert_eq!((made.name.as_str(), made.files.len()), ("net.int8.onnx", 2));
    assert_ne!(made.digest, made.files[0].digest, "its external data is part of what it is");
    for (file, bytes) in made.files.iter().zip([&b"model"[..], b"weights"]) {
        assert_eq!(bench.farm.store.get(file.digest.parse().unwrap()).unwrap(), bytes, "{file:?}");
    }
    assert_eq!(bench.farm.store.get(finished.made_document_digest.parse().unwrap()).unwrap(), b"{}");
    let order: WorkOrder = serde_json::from_slice(&std::fs::read(bench.path("order")).unwrap()).unwrap();
    let prepare = order.prepare.unwrap();
    assert_eq!((order.kind, order.cache), (WorkKind::Prepare, None));
    assert_eq!((prepare.ask.data, prepare.data.len(), prepare.eval), (vec![rows], 1, None));
}

#[tokio::test]
async fn a_compile_job_waits_until_no_device_of_its_host_is_used_and_is_waited_for_then() {
    let bench = Bench::new(
        r#"
        build
        while [ ! -e "$OUT/go" ]; do sleep 0.02; done
        say '{"event":"compiled","accurate":true}'
        "#,
    )
    .await;
    // Another agent of this host measures on a device of its own.
    std::fs::create_dir_all(&bench.config.lock_dir).unwrap();
    let Taken::Ours(measuring) = lock::try_take(&bench.config.lock_dir, "GPU-of-another-agent").unwrap() else {
        panic!("nobody has it");
    };
    let _agent = bench.start();
    bench.farm.hello(0).await;
    bench.farm.say(Say::Assign(compile_job(&bench, ""))).await;
    eventually("it says what it waits for", || {
        let waits = |said: &Said| matches!(said, Said::Progress(p) if p.detail.contains("GPU-of-another-agent"));
        bench.farm.said().iter().any(waits).then_some(())
    })
    .await;
    assert!(!bench.farm.said().iter().any(|said| matches!(said, Said::Started(_))), "nothing runs yet");
    drop(measuring);
    eventually("it runs", || bench.farm.said().iter().any(|said| matches!(said, Said::Built(_))).then_some(())).await;
    let taken = lock::try_take(&bench.config.lock_dir, "GPU-of-another-agent").unwrap();
    let Taken::Busy(busy) = taken else { panic!("nothing is measured beside it") };
    assert!(busy.to_string().contains("job j1"), "{busy}");
    std::fs::write(bench.path("go"), b"").unwrap();
    let finished = bench.farm.finished("j1").await;
    assert_eq!((finished.outcome.as_str(), finished.accurate), ("succeeded", true), "{finished:?}");
    assert!(!finished.plan_digest.is_empty() && finished.report_digest.is_empty(), "{finished:?}");
    let taken = lock::try_take(&bench.config.lock_dir, "GPU-of-another-agent").unwrap();
    assert!(matches!(taken, Taken::Ours(_)), "{taken:?}");
}
