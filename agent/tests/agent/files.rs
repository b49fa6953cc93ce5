//! What an attempt brings to its worker and takes from it beside the plan: timing caches, artifacts, calibration,
//! plugins.

use crate::farm::{Bench, OneCpu, eventually};
use planforge_agent::DeviceSource as _;
use planforge_proto::v1::{self, FailureClass, coordinator_message::Kind as Say};
use planforge_types::{Digest, Toolchain, order::WorkOrder};
use std::collections::BTreeMap;

/// Learns something in every build, and tells what it began with.
const LEARNS: &str = r#"
    [ -e tuning.cache ] && cp tuning.cache "$OUT/before"
    printf %s "$order" > "$OUT/order"
    printf learnt, >> tuning.cache
    build
    finish
"#;

fn scope() -> String {
    let device = OneCpu.devices().unwrap().remove(0);
    let toolchain = Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() };
    device.fingerprint.tuning_scope(&device.skus[0], &toolchain, device.simulated).to_string()
}

fn newest(digest: &str, size_bytes: u64) -> v1::TuningCache {
    v1::TuningCache {
        scope: scope(),
        digest: digest.into(),
        size_bytes,
        job: "j0".into(),
        agent: "elsewhere".into(),
        published_ms: 7,
        ..v1::TuningCache::default()
    }
}

fn stored(bench: &Bench, bytes: &[u8]) -> String {
    let digest = Digest::of(bytes);
    bench.farm.store.put(digest, bytes);
    digest.to_string()
}

fn before(bench: &Bench) -> Option<String> {
    let text = std::fs::read_to_string(bench.path("before")).ok();
    // For the next job of the same test.
    let _ = std::fs::remove_file(bench.path("before"));
    text
}

fn order(bench: &Bench) -> WorkOrder {
    serde_json::from_slice(&std::fs::read(bench.path("order")).unwrap()).unwrap()
}

#[tokio::test]
async fn what_a_build_learnt_is_published_after_it_and_handed_to_the_next() {
    let bench = Bench::new(LEARNS).await;
    let _agent = bench.start_and_assign("j1").await;
    let first = bench.farm.finished("j1").await;
    assert_eq!(before(&bench), None, "the first build is cold");
    assert_eq!(order(&bench).cache_origin, None);
    let published = first.cache.unwrap();
    assert_eq!((published.scope, published.previous_digest.as_str()), (scope(), ""));
    assert_eq!(bench.farm.store.get(published.digest.parse().unwrap()).unwrap(), b"learnt,");

    // The farm's newest, which another host published, takes the place of this host's own.
    let elsewhere = stored(&bench, b"elsewhere,");
    bench.farm.assign_with("j2", |assign| assign.cache = Some(newest(&elsewhere, 10))).await;
    let second = bench.farm.finished("j2").await.cache.unwrap();
    assert_eq!(before(&bench).unwrap(), "elsewhere,");
    let origin = order(&bench).cache_origin.unwrap();
    assert_eq!((origin.agent.as_str(), origin.bytes, origin.published_unix_ms), ("elsewhere", 10, 7));
    assert_eq!(second.previous_digest, elsewhere);
    assert_eq!(bench.farm.store.get(second.digest.parse().unwrap()).unwrap(), b"elsewhere,learnt,");

    // Known to nobody else: this host's own copy is good enough.
    bench.farm.assign("j3").await;
    let third = bench.farm.finished("j3").await.cache.unwrap();
    assert_eq!(before(&bench).unwrap(), "elsewhere,learnt,");
    assert_eq!(third.previous_digest, "");

    // Dropped by an administrator: that copy is worth nothing any more.
    bench.farm.assign_with("j4", |assign| assign.cache = Some(newest("", 0))).await;
    assert!(bench.farm.finished("j4").await.cache.is_some());
    assert_eq!(before(&bench), None);
    assert!(bench.files_in("state/scratch").is_empty());
}

/// Another host published while this one built: what waits beside that is part of what the next build begins with.
#[tokio::test]
async fn what_was_learnt_at_once_on_two_hosts_is_joined_by_the_next_build() {
    let bench = Bench::new(LEARNS).await;
    let common = stored(&bench, b"common,");
    let beside = |content: &[u8]| v1::CacheBeside {
        digest: Digest::of(content).to_string(),
        size_bytes: content.len() as u64,
        job: "j0".into(),
        agent: "elsewhere".into(),
    };
    let all = [&b"one,"[..], b"never stored", b"torn", b"two,"].map(beside);
    for content in ["one,", "torn", "two,"] {
        stored(&bench, content.as_bytes());
    }
    let told = |these: &[usize]| these.iter().map(|&at| all[at].digest.clone()).collect::<Vec<_>>();
    let offered = v1::TuningCache { beside: all.to_vec(), ..newest(&common, 7) };
    let _agent = bench.start();
    bench.farm.hello(0).await;
    bench.farm.assign_with("j1", |assign| assign.cache = Some(offered.clone())).await;
    let finished = bench.farm.finished("j1").await;
    let learnt = finished.cache.clone().unwrap();
    assert_eq!(before(&bench).unwrap(), "common,one,two,");
    assert_eq!(bench.farm.store.get(learnt.digest.parse().unwrap()).unwrap(), b"common,one,two,learnt,");
    assert_eq!((learnt.previous_digest, learnt.beside_digests), (common.clone(), told(&[0, 2, 3])));
    let log = bench.farm.log_of(&finished).await;
    assert!(log.contains("joined with that of job j0") && log.contains("could not be fetched"), "{log}");

    // What has to begin from nothing takes the place of those too.
    let cold = |assign: &mut v1::Assign| {
        assign.cache = Some(offered.clone());
        assign.without_cache = true;
    };
    bench.farm.assign_with("j2", cold).await;
    let learnt = bench.farm.finished("j2").await.cache.unwrap();
    assert_eq!(before(&bench), None);
    assert_eq!((learnt.previous_digest, learnt.beside_digests), (common, told(&[0, 1, 2, 3])));
}

/// A blob store that never answers keeps neither the attempt nor, afterwards, the next one of its kind.
#[tokio::test]
async fn a_cache_that_does_not_get_through_can_be_given_up() {
    let bench = Bench::new(LEARNS).await;
    let stuck = Digest::of(b"learnt,");
    bench.farm.store.hang(stuck);
    let _agent = bench.start();
    bench.farm.hello(0).await;
    let lease = bench.farm.assign("j1").await;
    eventually("its cache is being uploaded", || (bench.farm.store.hanging() > 0).then_some(())).await;
    // Of the same scope: it waits until the one before has kept and published its own.
    bench.farm.assign("j2").await;
    bench.farm.started("j2").await;
    let reason = "nobody wants it any more".to_owned();
    bench.farm.say(Say::Cancel(v1::CancelLease { lease: Some(lease), reason })).await;
    let cancelled = bench.farm.finished("j1").await;
    assert_eq!((cancelled.outcome.as_str(), cancelled.cache.as_ref()), ("cancelled", None));
    // It began with what the first one kept here, and has its turn now.
    let second = bench.farm.finished("j2").await;
    assert_eq!(second.outcome, "succeeded");
    assert_eq!(second.cache.unwrap().digest, Digest::of(b"learnt,learnt,").to_string());
}

#[tokio::test]
async fn a_cache_that_cannot_be_used_costs_time_and_no_build() {
    let bench = Bench::new(LEARNS).await;
    let _agent = bench.start();
    bench.farm.hello(0).await;
    let good = stored(&bench, b"good");
    let absent = Digest::of(b"never stored").to_string();
    let foreign = v1::TuningCache { scope: Digest::of(b"another").to_string(), ..newest(&good, 4) };
    let cases = [
        ("absent", newest(&absent, 12), "could not be fetched"),
        ("foreign", foreign, "another kind of device"),
        ("huge", newest(&good, 1 << 40), "left alone"),
        ("nonsense", newest("nonsense", 4), "left alone"),
    ];
    for (job, cache, said) in cases {
        std::fs::remove_dir_all(bench.path("state/caches")).unwrap();
        std::fs::create_dir(bench.path("state/caches")).unwrap();
        bench.farm.assign_with(job, |assign| assign.cache = Some(cache)).await;
        let finished = bench.farm.finished(job).await;
        assert_eq!(finished.outcome, "succeeded", "{job}: {finished:?}");
        assert_eq!(before(&bench), None, "{job}");
        // It did not grow from what the farm has.
        assert_eq!(finished.cache, None, "{job}");
        let log = bench.farm.log_of(&finished).await;
        assert!(log.contains(said), "{job}: {log}");
    }
}

#[tokio::test]
async fn a_breakdown_publishes_nothing_and_casts_suspicion_on_the_cache() {
    let bench = Bench::new(
        r#"
        printf learnt, >> tuning.cache
        case "$order" in
        *crash*) kill -SEGV $$ ;;
        *model*) say '{"event":"failed","class":"model","message":"no such operator","hint":""}' ;;
        esac
        "#,
    )
    .await;
    let _agent = bench.start();
    bench.farm.hello(0).await;
    let digest = stored(&bench, b"kept");
    for (job, suspects) in [("crash-1", true), ("model-1", false)] {
        bench
            .farm
            .assign_with(job, |assign| {
                assign.cache = Some(newest(&digest, 4));
                assign.job.as_mut().unwrap().model.as_mut().unwrap().name = "m.onnx".into();
            })
            .await;
        let finished = bench.farm.finished(job).await;
        assert_eq!(finished.outcome, "failed");
        assert_eq!((finished.cache, finished.suspects_cache), (None, suspects), "{job}");
    }
    // The next attempt is told to go without, and a crash of it says nothing about the cache.
    bench
        .farm
        .assign_with("crash-2", |assign| {
            assign.cache = Some(newest(&digest, 4));
            assign.without_cache = true;
        })
        .await;
    let finished = bench.farm.finished("crash-2").await;
    assert!(!finished.suspects_cache);
    assert!(bench.farm.log_of(&finished).await.contains("begins without the timing cache"));
}

#[tokio::test]
async fn artifacts_are_stored_and_those_that_may_not_be_are_named_in_the_log() {
    let bench = Bench::new(
        r#"
        build
        printf 'a timeline' > t.nsys-rep
        digest=$(sha256sum t.nsys-rep | cut -d' ' -f1)
        artifact() { printf '{"name":"%s","path":"%s","digest":"%s","bytes":1}' "$1" "$2" "$3"; }
        printf '{"report":1}' > report.json
        say '{"event":"done","report":"'$PWD'/report.json","accurate":true,"artifacts":['"$(
            artifact t.nsys-rep "$PWD/t.nsys-rep" "$digest"),$(
            artifact t.nsys-rep "$PWD/t.nsys-rep" "$digest"),$(
            artifact ../up "$PWD/t.nsys-rep" "$digest"),$(
            artifact outside /etc/hostname "$digest"),$(
            artifact wrong "$PWD/report.json" "$digest")"']}'
        "#,
    )
    .await;
    let _agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.outcome, "succeeded", "{finished:?}");
    let digest = Digest::of(b"a timeline");
    let kept = v1::Artifact { name: "t.nsys-rep".into(), digest: digest.to_string(), size_bytes: 10 };
    assert_eq!(finished.artifacts[0], kept);
    assert_eq!(bench.farm.store.get(digest).unwrap(), b"a timeline");
    let log = bench.farm.log_of(&finished).await;
    assert_eq!(log.matches("is not kept").count(), 3, "{log}");
    assert!(log.contains("not in its scratch folder"), "{log}");
}

#[tokio::test]
async fn calibration_and_plugins_are_laid_out_in_the_order_of_the_spec() {
    let mut bench = Bench::new(
        r#"
        printf %s "$order" > "$OUT/order"
        cat ../inputs/calibration.cache > "$OUT/calibration"
        cat ../inputs/plugin-0.so ../inputs/plugin-1.so > "$OUT/plugins"
        build
        finish
        "#,
    )
    .await;
    let mut plugins = [stored(&bench, b"one."), stored(&bench, b"two.")];
    plugins.sort();
    let calibration = stored(&bench, b"scales");
    let inputs_digest = stored(&bench, b"inputs");
    let module_digest = stored(&bench, b"module");
    let spec = format!(r#"{{"calibration":"{calibration}","plugins":["{}","{}"]}}"#, plugins[0], plugins[1]);
    let assign = |bench: &Bench, job: &str, spec: String| {
        let (farm, job, inputs_digest) = (bench.farm.clone(), job.to_owned(), inputs_digest.clone());
        let module_digest = module_digest.clone();
        async move {
            let change = |assign: &mut v1::Assign| {
                let job = assign.job.as_mut().unwrap();
                (job.spec_json, job.builds) = (spec, 3);
                let (streams, batches) = (vec![1, 4], vec![1, 8]);
                let ask = v1::MeasureAsk {
                    streams,
                    trace: true,
                    batches,
                    warm_up_ms: 500,
                    min_windows: 20,
                    inputs_digest,
                    time_inputs: true,
                    baselines: vec![v1::Baseline { name: "jax".into(), module_digest }],
                };
                job.measure = Some(ask);
            };
            farm.assign_with(&job, change).await
        }
    };
    {
        let _agent = bench.start();
        bench.farm.hello(0).await;
        assign(&bench, "j1", spec.clone()).await;
        let finished = bench.farm.finished("j1").await;
        assert_eq!((finished.outcome.as_str(), finished.builds), ("succeeded", 3), "{finished:?}");
    }
    let read = |name: &str| std::fs::read_to_string(bench.path(name)).unwrap();
    assert_eq!(read("calibration"), "scales");
    let mut laid_out = read("plugins");
    if plugins[0] == Digest::of(b"two.").to_string() {
        laid_out = laid_out.replace("two.one.", "one.two.");
    }
    assert_eq!(laid_out, "one.two.");
    let order = order(&bench);
    assert_eq!((order.builds, order.limit_ms), (3, 3 * bench.config.limits.job_ms));
    assert_eq!((order.measure.streams.as_slice(), order.measure.trace), ([1, 4].as_slice(), true));
    assert_eq!(order.measure.batches, [1, 8]);
    assert_eq!((order.measure.warm_up_ms, order.measure.min_windows), (500, 20));
    assert_eq!((order.measure.inputs, order.measure.time_inputs), (Some(Digest::of(b"inputs")), true));
    assert!(order.inputs.is_some_and(|path| path.ends_with("inputs.npz")), "the file lies beside the model");
    let [beside] = &order.baselines[..] else { panic!("{:?}", order.baselines) };
    assert_eq!((beside.name.as_str(), &beside.program, &beside.problem), ("jax", &None, &None));
    assert!(beside.module.as_ref().is_some_and(|path| path.ends_with("baseline-jax.module")), "{beside:?}");

    // Another host's operator wants no native code from anybody.
    let other = Bench::new("build\nfinish").await;
    bench = other;
    bench.config.refuse_plugins = true;
    stored(&bench, b"one.");
    let _agent = bench.start();
    bench.farm.hello(0).await;
    assign(&bench, "j2", spec).await;
    let finished = bench.farm.finished("j2").await;
    let failure = finished.failure.unwrap();
    assert_eq!(failure.class(), FailureClass::Resource);
    assert!(failure.message.contains("loads no plugins"), "{failure:?}");
}

#[tokio::test]
async fn the_worker_is_told_to_which_trace_its_lease_belongs() {
    let bench = Bench::new(LEARNS).await;
    let _agent = bench.start_and_assign("j1").await;
    bench.farm.finished("j1").await;
    assert_eq!(order(&bench).trace, None);
    for (job, traceparent) in [
        ("j2", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        // What makes no sense is no reason not to work.
        ("j3", "00-nonsense"),
    ] {
        bench.farm.assign_with(job, |assign| assign.traceparent = traceparent.into()).await;
        assert_eq!(bench.farm.finished(job).await.outcome, "succeeded");
        assert_eq!(order(&bench).trace, traceparent.parse().ok(), "{job}");
    }
}
