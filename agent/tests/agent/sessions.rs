use crate::farm::{Bench, Manner, eventually};
use planforge_agent::{
    AgentError,
    host::{
        lock::{self, Holder, Taken},
        proc::{MARKER_VARIABLE, ProcessId},
        state::StateError,
    },
};
use planforge_proto::{
    protocol,
    v1::{self, FailureClass, agent_message::Kind as Said, coordinator_message::Kind as Say},
};
use std::{path::Path, process::Command};

/// Builds once told to.
const WAITS: &str = r#"
    echo $$ > "$OUT/worker"
    echo x >> "$OUT/runs"
    echo "line one" >&2
    while [ ! -e "$OUT/go" ]; do sleep 0.01; done
    build
    finish
"#;

#[tokio::test]
async fn a_cut_stream_is_resumed_and_the_job_goes_on() {
    let bench = Bench::new(WAITS).await;
    let _agent = bench.start_and_assign("j1").await;
    bench.farm.started("j1").await;
    bench.farm.cut();
    let hello = bench.farm.hello(1).await;
    assert_eq!(hello.leases.iter().map(|l| (l.job.as_str(), l.attempt)).collect::<Vec<_>>(), [("j1", 1)]);
    assert_eq!(hello.incarnation, bench.farm.hello(0).await.incarnation);
    // What the coordinator may have missed is told again.
    let starts = || bench.farm.said().iter().filter(|s| matches!(s, Said::Started(_))).count();
    eventually("started is told again", || (starts() == 2).then_some(())).await;
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(bench.farm.finished("j1").await.outcome, "succeeded");
    assert_eq!(std::fs::read_to_string(bench.path("runs")).unwrap(), "x\n", "it ran once");
}

#[tokio::test]
async fn a_result_is_kept_until_it_is_acknowledged() {
    let mut bench = Bench::new("build\nfinish").await;
    bench.config.embedded = true; // ends without waiting long for the acknowledgement
    bench.farm.behave(Manner { holds_acks: true, ..Manner::default() });
    let mut agent = bench.start_and_assign("j1").await;
    let finished = bench.farm.finished("j1").await;
    // The next stream tells it, and so does the next process.
    bench.farm.cut();
    assert_eq!(bench.farm.hello(1).await.finished, std::slice::from_ref(&finished));
    agent.shut_down();
    agent.ended().await.unwrap();
    assert_eq!(bench.files_in("state/outbox").len(), 1);
    bench.farm.behave(Manner::default());
    let _agent = bench.start();
    let hello = bench.farm.hello(2).await;
    assert_eq!(hello.finished, [finished]);
    assert_eq!(hello.agent_id, bench.farm.hello(0).await.agent_id);
    assert_ne!(hello.incarnation, bench.farm.hello(0).await.incarnation);
    eventually("acknowledged and forgotten", || bench.files_in("state/outbox").is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_crashed_agents_worker_dies_and_its_job_is_reported() {
    let bench = Bench::new(WAITS).await;
    let agent = bench.start_and_assign("j1").await;
    let worker = bench.process("worker").await;
    bench.farm.started("j1").await;
    agent.crash().await;
    eventually("the worker died with its agent", || (!worker.is_alive()).then_some(())).await;
    let _agent = bench.start();
    let hello = bench.farm.hello(1).await;
    assert!(hello.leases.is_empty());
    let failure = hello.finished[0].failure.clone().unwrap();
    assert_eq!(failure.class(), FailureClass::Infrastructure);
    assert!(failure.message.contains("agent bench ended while the job ran"), "{failure:?}");
    eventually("its scratch is gone", || bench.files_in("state/scratch").is_empty().then_some(())).await;
}

/// Names the agent's folder and coordinator to a process of this test program that is to be an agent.
const AGENT_PROCESS: &str = "PLANFORGE_TEST_AGENT";

/// Not a test by itself: the agent that [`a_killed_agents_family_is_killed_by_the_next_one`] starts and kills.
#[tokio::test]
async fn agent_process() {
    let Ok(setup) = std::env::var(AGENT_PROCESS) else { return };
    let (folder, port) = setup.split_once('|').unwrap();
    let config = Bench::config(Path::new(folder), port.parse().unwrap(), FAMILY_AND_WAIT);
    planforge_agent::run(config, std::future::pending()).await.unwrap();
}

const FAMILY_AND_WAIT: &str = r#"
    export OUT
    [ -e "$OUT/again" ] && { build; finish; exit; }
    sh -c 'trap "" TERM; while :; do sleep 0.1; done' & echo $! > "$OUT/deaf"
    setsid sh -c 'echo $$ > "$OUT/gone"; sleep 1000' &
    echo $$ > "$OUT/worker"
    while :; do sleep 0.1; done
"#;

#[tokio::test]
async fn a_killed_agents_family_is_killed_by_the_next_one() {
    let bench = Bench::new(FAMILY_AND_WAIT).await;
    let planforge_client::Endpoint::Http { port, .. } = &bench.config.endpoint else { unreachable!() };
    let mut first = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sessions::agent_process", "--nocapture"])
        .env(AGENT_PROCESS, format!("{}|{port}", bench.folder.path().display()))
        .spawn()
        .unwrap();
    bench.farm.hello(0).await;
    bench.farm.assign("j1").await;
    let (worker, deaf, gone) =
        (bench.process("worker").await, bench.process("deaf").await, bench.process("gone").await);
    bench.farm.started("j1").await;
    first.kill().unwrap();
    first.wait().unwrap();
    eventually("the worker dies with its agent", || (!worker.is_alive()).then_some(())).await;
    // Its children do not, and they keep the device.
    assert!(deaf.is_alive() && gone.is_alive());
    assert!(
        matches!(lock::try_take(&bench.config.lock_dir, "cpu0").unwrap(), Taken::Busy(busy) if busy.holder.as_ref().unwrap().job == "j1")
    );
    std::fs::write(bench.path("again"), "").unwrap();
    let _second = bench.start();
    let hello = bench.farm.hello(1).await;
    assert!(!deaf.is_alive() && !gone.is_alive(), "dead before the device is offered");
    assert_eq!(hello.finished[0].lease.as_ref().unwrap().job, "j1");
    bench.farm.assign("j2").await;
    assert_eq!(bench.farm.finished("j2").await.outcome, "succeeded");
}

#[tokio::test]
async fn an_orphan_on_a_device_is_killed_before_the_device_is_offered() {
    let bench = Bench::new("build\nfinish").await;
    std::fs::create_dir(&bench.config.lock_dir).unwrap();
    let Taken::Ours(lock) = lock::try_take(&bench.config.lock_dir, "cpu0").unwrap() else { panic!("free") };
    // A process that holds the lock as a worker does, of an agent that is dead.
    // SAFETY: the descriptor is open: `lock` lives until after the process was started.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(lock.raw_fd()) };
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).unwrap();
    let mut orphan = Command::new("sleep").arg("1000").env(MARKER_VARIABLE, "old-1.x").spawn().unwrap();
    let dead = ProcessId { started_ticks: 1, ..ProcessId::current().unwrap() };
    let holder = Holder {
        agent: dead,
        agent_name: "dead".into(),
        job: "old".into(),
        marker: "old-1.x".into(),
        worker: None,
        pid_namespace: None,
    };
    lock.name_holder(&holder).unwrap();
    drop(lock);
    assert!(
        matches!(lock::try_take(&bench.config.lock_dir, "cpu0").unwrap(), Taken::Busy(busy) if busy.holder.as_ref() == Some(&holder))
    );
    let _agent = bench.start_and_assign("j1").await;
    assert_eq!(bench.farm.finished("j1").await.outcome, "succeeded");
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(orphan.wait().unwrap().signal(), Some(9));
}

#[tokio::test]
async fn a_lost_lease_stops_the_work_and_publishes_nothing() {
    let bench = Bench::new(WAITS).await;
    let agent = bench.start();
    bench.farm.hello(0).await;
    let lease = bench.farm.assign("j1").await;
    let worker = bench.process("worker").await;
    bench.farm.say(Say::LeaseLost(v1::LeaseLost { lease: Some(lease), reason: "it took too long".into() })).await;
    eventually("the worker is dead", || (!worker.is_alive()).then_some(())).await;
    eventually("nothing is kept", || bench.files_in("state/outbox").is_empty().then_some(())).await;
    // The device takes another job, and only that one is reported.
    std::fs::write(bench.path("go"), "").unwrap();
    bench.farm.assign("j2").await;
    bench.farm.finished("j2").await;
    let reported = |s: &Said| matches!(s, Said::Finished(f) if f.lease.as_ref().unwrap().job == "j1");
    assert!(!bench.farm.said().iter().any(reported));
    drop(agent);
}

#[tokio::test]
async fn a_drained_agent_finishes_what_runs_and_says_goodbye() {
    let bench = Bench::new(WAITS).await;
    let mut agent = bench.start_and_assign("j1").await;
    bench.farm.started("j1").await;
    agent.shut_down();
    let draining = |s: &Said| matches!(s, Said::Inventory(i) if i.devices.iter().all(|d| d.draining)).then_some(());
    bench.farm.hear("it says that it drains", draining).await;
    bench.farm.assign("j2").await;
    let refused = bench.farm.finished("j2").await;
    assert!(refused.failure.unwrap().message.contains("being shut down"));
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(bench.farm.finished("j1").await.outcome, "succeeded");
    agent.ended().await.unwrap();
    bench.farm.hear("goodbye", |s| matches!(s, Said::Goodbye(_)).then_some(())).await;
}

#[tokio::test]
async fn a_drain_that_takes_too_long_gives_the_job_back() {
    let mut bench = Bench::new(WAITS).await;
    bench.config.limits.drain_ms = 50;
    let mut agent = bench.start_and_assign("j1").await;
    let worker = bench.process("worker").await;
    agent.shut_down();
    let finished = bench.farm.finished("j1").await;
    assert_eq!(finished.failure.unwrap().class(), FailureClass::Infrastructure);
    agent.ended().await.unwrap();
    assert!(!worker.is_alive());
}

#[tokio::test]
async fn a_refused_agent_gives_up_with_the_reason() {
    let mut bench = Bench::new("").await;
    bench.config.limits.refusal_patience_ms = 100;
    bench.farm.behave(Manner { refuses: true, ..Manner::default() });
    match bench.start().ended().await {
        Err(AgentError::Refused { reason, hint }) => {
            assert_eq!((reason.as_str(), hint.as_str()), ("this agent is connected already", "end it"));
        }
        other => panic!("{other:?}"),
    }
    assert!(bench.farm.hello(1).await.leases.is_empty(), "it tried more than once");
}

#[tokio::test]
async fn a_refusal_that_lasts_ends_the_agent_at_once() {
    let mut bench = Bench::new("").await;
    bench.config.limits.refusal_patience_ms = 24 * 60 * 60 * 1_000;
    bench.farm.behave(Manner { refuses: true, lasting: true, ..Manner::default() });
    assert!(matches!(bench.start().ended().await, Err(AgentError::Refused { hint, .. }) if hint == "end it"));
}

#[tokio::test]
async fn an_agent_says_its_labels_and_which_protocols_it_speaks_and_ends_where_a_coordinator_speaks_another() {
    let bench = Bench::new("").await;
    // Of before protocols were numbered.
    let mut agent = bench.start();
    let hello = bench.farm.hello(0).await;
    assert_eq!((hello.oldest_protocol, hello.protocol), (protocol::OLDEST_PROTOCOL, protocol::PROTOCOL));
    assert_eq!((hello.version.as_str(), hello.labels), (protocol::RELEASE, vec!["zone=b".to_owned()]));
    agent.shut_down();
    agent.ended().await.unwrap();
    bench.farm.behave(Manner { protocol: protocol::PROTOCOL + 1, ..Manner::default() });
    match bench.start().ended().await {
        Err(AgentError::Refused { reason, hint }) => {
            assert!(reason.contains("too new") && !hint.is_empty(), "{reason}: {hint}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn two_agents_never_share_a_state_folder() {
    let bench = Bench::new("").await;
    let _first = bench.start();
    bench.farm.hello(0).await;
    assert!(matches!(bench.start().ended().await, Err(AgentError::State(StateError::Busy { .. }))));
}

#[tokio::test]
async fn an_agent_waits_for_its_coordinator() {
    let mut bench = Bench::new("build\nfinish").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    bench.config.endpoint = planforge_client::Endpoint::Http { host: "127.0.0.1".into(), port: address.port() };
    let mut agent = bench.start();
    eventually("it has its folder", || bench.path("state/agent-id").exists().then_some(())).await;
    agent.shut_down();
    agent.ended().await.unwrap();
}
