//! Everything at once for a while, for a farm of two coordinators over PostgreSQL and S3 with eight agents: agents and
//! coordinators killed and stopped beyond their leases, ways cut and led nowhere, the database ended and begun again and
//! its replica promoted, the store refusing, slow, and losing what it answers; disks of coordinators and agents full, and
//! their clocks set by minutes or hours; jobs submitted all the while. Then every job has ended, once; of every key there
//! is one artifact; no device was leased twice at a time; no event is missing, neither in the database nor in a watch that
//! went on meanwhile.
//!
//! `PLANFORGE_CHAOS_S` says for how long, 20 seconds otherwise; `PROPTEST_RNG_SEED` what happens in which order. Where no
//! disk can be mounted, or no clock be compiled, these stay as they are, and that is told.

#![expect(clippy::print_stdout, reason = "what happened, and with which seed, for whoever reads the log")]

mod checks;
mod machines;
mod world;

use planforge_s3_server::Fault;
use planforge_tests::{eventually, pause, process, proxy::Proxy};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    env,
    fs::File,
    process::{Child, Stdio},
    time::{Duration, Instant},
};
use world::{MACHINES, Member, STOPPED, World, trouble};

const AGENTS: usize = 8;
/// How long a way leads nowhere, and the store is in trouble.
const TROUBLE: Duration = Duration::from_millis(1_500);
/// Jobs that may wait or run before more are submitted.
const LIVE_MAX: u64 = 6;
/// By how many seconds clocks are set.
const JUMPS_S: [i64; 6] = [-7_200, -600, -5, 5, 600, 7_200];
/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:9";

/// What happened, for whoever reads the log.
#[derive(Debug, Default)]
struct Told {
    agent_kills: u32,
    agent_stops: u32,
    coordinator_kills: u32,
    coordinator_stops: u32,
    cuts: u32,
    partitions: u32,
    store_troubles: u32,
    database_ends: u32,
    promotions: u32,
    full_disks: u32,
    set_clocks: u32,
}

#[test]
fn a_fleet_over_postgres_and_s3_keeps_every_promise_while_everything_goes_wrong() {
    let seed = env::var("PROPTEST_RNG_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let lasts_s: u64 = env::var("PLANFORGE_CHAOS_S").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    println!("PROPTEST_RNG_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let Some(mut world) = World::new() else { return };
    let mut coordinators: Vec<Member> = Vec::new();
    for at in 0..2 {
        coordinators.push(Member { process: world.coordinator(at), until: None });
        world.wait_up(at);
    }
    // Each way is a load balancer's, to one of the two.
    let ways = [Proxy::to(&world.url(0)), Proxy::to(&world.url(1))];
    let mut lost_ways: [Option<Instant>; 2] = [None, None];
    let tokens: Vec<String> = (0..AGENTS)
        .map(|at| {
            let made = ["token", "create", &format!("agent-{at}"), "--role", "agent", "--json"];
            let made = process::run_json(world.cli(&world.url(0), &made));
            made["secret"].as_str().expect("a secret").to_owned()
        })
        .collect();
    let start = |world: &World, at: usize| world.agent(at, &ways[at % 2].url(), &tokens[at]);
    let mut agents: Vec<Member> = (0..AGENTS).map(|at| Member { process: start(&world, at), until: None }).collect();
    let watched = world.path("watch.jsonl");
    let mut watch = world.cli(&ways[0].url(), &["watch", "--since", "0", "--json"]);
    watch.stdin(Stdio::null()).stdout(File::create(&watched).expect("a file"));
    watch.stderr(File::create(world.path("watch.err")).expect("a file"));
    let mut watch = watch.spawn().expect("the binary runs");

    let (begin, end) = (Instant::now(), Instant::now() + Duration::from_secs(lasts_s));
    let mut told = Told::default();
    let (mut submitting, mut acknowledged, mut refused): (Vec<Child>, _, _) = (Vec::new(), BTreeSet::new(), Vec::new());
    let (mut submitted, mut store_until) = (0, None);
    let mut mended: [Option<Instant>; MACHINES] = [None; MACHINES];
    while Instant::now() < end {
        pause(Duration::from_millis(random.random_range(100..500)));
        let now = Instant::now();
        agents.iter_mut().chain(&mut coordinators).for_each(|member| member.go_on_when_due(now));
        for at in 0..2 {
            // One that was paused past its lease ends by itself.
            if !coordinators[at].process.is_running() {
                let log = coordinators[at].process.log();
                println!("coordinator-{at} ended by itself: {}", log.lines().last().unwrap_or_default());
                coordinators[at] = Member { process: world.coordinator(at), until: None };
            }
            if lost_ways[at].is_some_and(|until| now >= until) {
                ways[at].point_at(&world.url(at));
                lost_ways[at] = None;
            }
        }
        if store_until.is_some_and(|until| now >= until) {
            world.to_s3.decide(|_| Fault::None);
            store_until = None;
        }
        for (at, due) in mended.iter_mut().enumerate().filter(|(_, due)| due.is_some_and(|due| now >= due)) {
            world.mend_machine(at);
            *due = None;
        }
        // One whose disk was full when it was started has ended.
        for (at, agent) in agents.iter_mut().enumerate() {
            if !agent.process.is_running() {
                let log = agent.process.log();
                println!("agent-{at} ended by itself: {}", log.lines().last().unwrap_or_default());
                *agent = Member { process: start(&world, at), until: None };
            }
        }
        let live = world.number("SELECT COUNT(*) FROM jobs WHERE ended_ms = 0");
        if submitting.len() < 3 && live.is_none_or(|live| live < LIVE_MAX) {
            submitting.push(world.submit(&ways[random.random_range(0..2)].url(), submitted));
            submitted += 1;
        }
        let (agent, one) = (random.random_range(0..AGENTS), random.random_range(0..2_usize));
        let (machine, off_s) = (random.random_range(0..MACHINES), JUMPS_S[random.random_range(0..JUMPS_S.len())]);
        match random.random_range(0..100) {
            0..10 => {
                agents[agent].process.kill_9();
                agents[agent] = Member { process: start(&world, agent), until: None };
                told.agent_kills += 1;
            }
            10..18 => told.agent_stops += u32::from(agents[agent].stop()),
            18..28 => {
                coordinators[one].process.kill_9();
                coordinators[one] = Member { process: world.coordinator(one), until: None };
                told.coordinator_kills += 1;
            }
            28..36 => told.coordinator_stops += u32::from(coordinators[one].stop()),
            36..46 => {
                ways[one].cut();
                told.cuts += 1;
            }
            46..54 => {
                ways[one].point_at(NOWHERE);
                ways[one].cut();
                lost_ways[one] = Some(now + TROUBLE);
                told.partitions += 1;
            }
            54..66 => {
                world.to_s3.decide(trouble(random.random_range(0..u32::MAX)));
                store_until = Some(now + TROUBLE);
                told.store_troubles += 1;
            }
            66..70 => {
                world.database.crash();
                world.database.begin();
                told.database_ends += 1;
            }
            70..80 => {
                if let Some(disks) = &world.disks {
                    disks.fill(&world.disk(machine));
                    mended[machine] = Some(now + TROUBLE);
                    told.full_disks += 1;
                }
            }
            80..90 => {
                if let Some(clock) = world.clocks.get(machine) {
                    clock.set(off_s);
                    mended[machine] = Some(now + TROUBLE);
                    told.set_clocks += 1;
                }
            }
            _ => {}
        }
        if told.promotions == 0 && begin.elapsed() > Duration::from_secs(lasts_s) / 2 {
            world.promote();
            told.promotions += 1;
        }
        submitting.retain_mut(|child| match child.try_wait() {
            Ok(Some(_)) => {
                take(child, &mut acknowledged, &mut refused);
                false
            }
            _ => true,
        });
    }
    println!("{submitted} submissions; {told:?}");

    // Quiet again.
    world.to_s3.decide(|_| Fault::None);
    world.mend_machines();
    for at in 0..2 {
        coordinators[at].go_on_when_due(Instant::now() + STOPPED);
        ways[at].point_at(&world.url(at));
    }
    agents.iter_mut().for_each(|agent| agent.go_on_when_due(Instant::now() + STOPPED));
    eventually("both coordinators serve", || {
        // One that began while its clock was wrong, or its disk full, has ended since.
        for (at, coordinator) in coordinators.iter_mut().enumerate() {
            if !coordinator.process.is_running() {
                *coordinator = Member { process: world.coordinator(at), until: None };
            }
        }
        let lead = world.number("SELECT COUNT(*) FROM leader WHERE expires_at > now()");
        if lead == Some(1) { (0..2).try_for_each(|at| world.answers(at)) } else { Err(format!("{lead:?}")) }
    });
    for mut child in submitting {
        eventually("a submission ends", || match child.try_wait() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        take(&mut child, &mut acknowledged, &mut refused);
    }
    let told_of = |words: &str| world.lines_with(words);
    println!(
        "{} lines tell of full disks, {} of clocks set back, {} of a store whose clock is another",
        told_of("No space left on device"),
        told_of("the clock was set back"),
        told_of("its clock and that of this machine differ")
    );
    println!("{} jobs acknowledged, {} submissions told of a failure: {refused:?}", acknowledged.len(), refused.len());
    assert!(acknowledged.len() >= refused.len(), "most were taken");
    eventually("every job ends", || {
        for (at, agent) in agents.iter_mut().enumerate() {
            if !agent.process.is_running() {
                *agent = Member { process: start(&world, at), until: None };
            }
        }
        match world.number("SELECT COUNT(*) FROM jobs WHERE ended_ms = 0") {
            Some(0) => Ok(()),
            other => Err(format!("{other:?} are live")),
        }
    });
    checks::check(&world, &acknowledged);
    checks::check_watch(&world, &watched);
    // It ends when it is told to.
    let _ = watch.kill();
    let _ = watch.wait();
}

/// Notes what a submission that has ended was told.
fn take(child: &mut Child, acknowledged: &mut BTreeSet<String>, refused: &mut Vec<String>) {
    use std::io::Read as _;
    let (mut out, mut err) = (String::new(), String::new());
    let _ = child.stdout.take().map(|mut stream| stream.read_to_string(&mut out));
    let _ = child.stderr.take().map(|mut stream| stream.read_to_string(&mut err));
    let reply: Value = serde_json::from_str(&out).unwrap_or_default();
    match reply["jobs"].as_array() {
        Some(jobs) => acknowledged.extend(jobs.iter().filter_map(|job| Some(job["id"].as_str()?.to_owned()))),
        None => refused.push(err.lines().next().unwrap_or_default().to_owned()),
    }
}
