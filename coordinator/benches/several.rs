//! What a second coordinator costs and is good for, over PostgreSQL: durable cycles by the ways of two beside those of one
//! alone, what a job table by hand does on the same server, how long nothing is taken after the leader was killed, and
//! whether it keeps its lease on a machine that has far too much to do.
//!
//! `cargo bench -p planforge-coordinator --bench several [-- cycles|failover|lease]`. The server is one of its own in the
//! folder for temporary files; every coordinator is a process of its own, and callers and agents are this one.
//! `PLANFORGE_BENCH_ROUNDS` sets how often one and two take turns (3), `PLANFORGE_BENCH_KILLS` how often the leader is killed
//! (10), `PLANFORGE_BENCH_LEASE_S` how long the lease is watched (60), and `PLANFORGE_BENCH_BUSY` how many threads do nothing
//! but keep processors busy meanwhile (eight for each).

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(dead_code, reason = "benchmarks share what is scripted, and each uses a part")]

mod scripted;

use planforge_coordinator::{
    server::{Coordinator, CoordinatorConfig},
    store::PostgresConfig,
};
use planforge_postgres_server::Server;
use planforge_proto::v1;
use planforge_types::Digest;
use scripted::{Bench, CALLERS, Outcome, Trouble, Way, cycles, fsyncs, percentile, setting};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Brings the database to a coordinator.
const STORE: &str = "PLANFORGE_BENCH_STORE";
const WINDOW: Duration = Duration::from_secs(8);
/// Which nobody waits for in vain.
const COMES_WITHIN: Duration = Duration::from_secs(60);
/// Between tries of a call that nobody took.
const TRIES_AGAIN: Duration = Duration::from_millis(10);
/// Between looks at the lease.
const LOOKS: Duration = Duration::from_millis(100);
/// Times that the table by hand takes 64 jobs through their cycle.
const BATCHES: usize = 400;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if let [role, data, blobs, port] = words.as_slice()
        && role == "coordinate"
    {
        return runtime.block_on(coordinate(data, blobs, port.parse()?));
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let Some(server) = Server::start() else { return Err("there is no PostgreSQL".into()) };
    runtime.block_on(async {
        let farm = Farm::new(server).await?;
        if wanted("cycles") {
            farm.cycles().await?;
        }
        if wanted("failover") {
            farm.failover().await?;
        }
        if wanted("lease") {
            farm.lease().await?;
        }
        Outcome::Ok(())
    })
}

/// A coordinator, until it is killed.
async fn coordinate(data: &str, blobs: &str, port: u16) -> Outcome {
    let mut config = CoordinatorConfig::new(data);
    config.postgres = Some(PostgresConfig { url: std::env::var(STORE)?, may_begin: true, ..PostgresConfig::default() });
    config.blobs_dir = Some(blobs.into());
    config.listen = Some((Ipv4Addr::LOCALHOST, port).into());
    let error = Coordinator::start(config).await?.ended().await;
    Err(error.to_string().into())
}

struct Farm {
    server: Server,
    store: String,
    folder: TempDir,
    secret: String,
    request: v1::SubmitRequest,
    plan: (Digest, u64),
}

/// A coordinator in a process of its own.
struct Stood {
    process: Child,
    way: Way,
}

impl Farm {
    /// With a model and a plan stored, and a token.
    async fn new(server: Server) -> Result<Self, Trouble> {
        let folder = tempfile::tempdir_in(".")?;
        let store = server.database("bench_several");
        let (data, mut config) = (folder.path().join("begun"), CoordinatorConfig::new(folder.path().join("begun")));
        config.postgres = Some(PostgresConfig { url: store.clone(), may_begin: true, ..PostgresConfig::default() });
        config.blobs_dir = Some(folder.path().join("blobs"));
        let bench = Bench::start_with(config, &data).await?;
        let Bench { coordinator, way, request, plan } = bench;
        // Submissions show that somebody leads, too, before agents are there.
        let request = v1::SubmitRequest { wait_for_device: true, ..request };
        coordinator.shutdown().await;
        Ok(Self { server, store, folder, secret: way.secret, request, plan })
    }

    fn blobs(&self) -> PathBuf {
        self.folder.path().join("blobs")
    }

    /// Starts a coordinator and waits until it takes calls: as the leader, or by passing them on.
    async fn start(&self, name: &str) -> Result<Stood, Trouble> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let process = Command::new(std::env::current_exe()?)
            .arg("coordinate")
            .args([&self.folder.path().join(name), &self.blobs()])
            .arg(port.to_string())
            .env(STORE, &self.store)
            .kill_on_drop(true)
            .spawn()?;
        let way = Way { url: format!("http://127.0.0.1:{port}"), secret: self.secret.clone() };
        taken(&way, &self.request).await?;
        Ok(Stood { process, way })
    }

    async fn cycles(&self) -> Outcome {
        let (mut ones, mut twos, mut shares, mut ratios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..setting("PLANFORGE_BENCH_ROUNDS", 3) {
            let (fsync_rate, _) = fsyncs(self.server.socket_folder())?;
            let by_hand = self.by_hand(round);
            // Rates fall as the database fills: two are held against one before them and one after them.
            let mut first = self.start("first").await?;
            let one = async || cycles(std::slice::from_ref(&first.way), &self.request, self.plan, WINDOW).await;
            let before = one().await?;
            let mut second = self.start("second").await?;
            let ways = [first.way.clone(), second.way.clone()];
            let two = cycles(&ways, &self.request, self.plan, WINDOW).await?;
            second.process.kill().await?;
            let after = one().await?;
            first.process.kill().await?;
            println!(
                "cycles: one coordinator {before:.0}/s, two {two:.0}/s, one again {after:.0}/s with {CALLERS} callers; a table by hand {by_hand:.0}/s; {fsync_rate:.0} fsync/s; {:.2} of the table (asked 0.3), two {:.2} of one (asked 0.9)",
                before / by_hand,
                two * 2.0 / (before + after)
            );
            ones.push(before);
            twos.push(two);
            shares.push(before / by_hand);
            ratios.push(two * 2.0 / (before + after));
        }
        for rates in [&mut ones, &mut twos, &mut shares, &mut ratios] {
            rates.sort_by(f64::total_cmp);
        }
        let [one, two, share, ratio] = [ones, twos, shares, ratios].map(|rates| percentile(&rates, 0.5));
        println!(
            "cycles, medians: one {one:.0}/s (asked 1000, goal 2000), two {two:.0}/s; {share:.2} of the table (asked 0.3), two {ratio:.2} of one (asked 0.9)"
        );
        Ok(())
    }

    /// Cycles a second of a table written for it: 64 jobs a statement, with a document and an event each, three commits for
    /// the 64, in the server itself, so that nothing goes to and fro.
    fn by_hand(&self, round: usize) -> f64 {
        let database = format!("bench_by_hand_{round}");
        self.server.database(&database);
        self.server.sql(
            &database,
            "CREATE TABLE jobs (id BIGINT PRIMARY KEY, state INT NOT NULL, doc TEXT NOT NULL); \
             CREATE INDEX jobs_waiting ON jobs (id) WHERE state = 0; \
             CREATE TABLE events (id BIGSERIAL PRIMARY KEY, job BIGINT NOT NULL, what TEXT NOT NULL)",
        );
        let step = |which: &str, to: usize| {
            format!(
                "UPDATE jobs SET state = {to} WHERE id IN (SELECT id FROM jobs WHERE {which} ORDER BY id LIMIT {CALLERS}); \
                 INSERT INTO events (job, what) SELECT at * {CALLERS} + i, 'to {to}' \
                 FROM generate_series(1, {CALLERS}) AS i; COMMIT;"
            )
        };
        let begin = Instant::now();
        self.server.sql(
            &database,
            &format!(
                "DO $$ BEGIN FOR at IN 1..{BATCHES} LOOP \
                 INSERT INTO jobs SELECT at * {CALLERS} + i, 0, repeat(md5(i::text), 40) \
                 FROM generate_series(1, {CALLERS}) AS i; \
                 INSERT INTO events (job, what) SELECT at * {CALLERS} + i, 'to 0' \
                 FROM generate_series(1, {CALLERS}) AS i; COMMIT; {} {} END LOOP; END $$",
                step("state = 0", 1),
                step(&format!("id > at * {CALLERS}"), 2)
            ),
        );
        (BATCHES * CALLERS) as f64 / begin.elapsed().as_secs_f64()
    }

    /// How long callers are without an answer when the leader is killed, by the way of the one that stood by.
    async fn failover(&self) -> Outcome {
        let (mut leads, mut times) = (self.start("first").await?, Vec::new());
        let mut stands_by = self.start("second").await?;
        for kill in 0..setting("PLANFORGE_BENCH_KILLS", 10) {
            leads.process.kill().await?;
            times.push(taken(&stands_by.way, &self.request).await?.as_secs_f64());
            leads = std::mem::replace(&mut stands_by, self.start(["first", "second"][kill % 2]).await?);
        }
        times.sort_by(f64::total_cmp);
        println!(
            "failover: {} kills, a submission is taken again after {:.2} s (median), {:.2} to {:.2} s; asked 3 s",
            times.len(),
            percentile(&times, 0.5),
            percentile(&times, 0.0),
            percentile(&times, 1.0)
        );
        Ok(())
    }
}

impl Farm {
    /// How often somebody else came to lead, and what was left of the lease at the worst, while two coordinators serve all
    /// they can beside threads that leave them no processor.
    async fn lease(&self) -> Outcome {
        let (mut first, mut second) = (self.start("first").await?, self.start("second").await?);
        let processors = std::thread::available_parallelism()?.get();
        let busy = setting("PLANFORGE_BENCH_BUSY", 8 * processors);
        let window = Duration::from_secs(setting("PLANFORGE_BENCH_LEASE_S", 60) as u64);
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..busy {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let begin = Instant::now();
        let ways = [first.way.clone(), second.way.clone()];
        let (rate, seen) = tokio::join!(cycles(&ways, &self.request, self.plan, window), async {
            let (mut epochs, mut left_s) = (BTreeSet::new(), Vec::new());
            while begin.elapsed() < window {
                // By the database's own clock, as those who would take it over judge it.
                let sql = "SELECT epoch || ' ' || extract(epoch FROM expires_at - clock_timestamp()) FROM leader";
                let row = tokio::task::block_in_place(|| self.server.sql("bench_several", sql));
                let (epoch, left) = row.trim().split_once(' ').ok_or("the lease has no row")?;
                epochs.insert(epoch.to_owned());
                left_s.push(left.parse::<f64>()?);
                tokio::time::sleep(LOOKS).await;
            }
            Ok::<_, Trouble>((epochs.len(), left_s))
        });
        stop.store(true, Ordering::Relaxed);
        let (leaders, mut left_s) = seen?;
        // Callers end when nobody leads.
        let rate = rate.map_or_else(|error| error.to_string(), |rate| format!("{rate:.0} cycles/s"));
        left_s.sort_by(f64::total_cmp);
        println!(
            "lease: {leaders} led within {:.0} s beside {busy} busy threads on {processors} processors, {rate}; of 2 s there were {:.2} s left at the least and {:.2} s in the median of {} looks",
            begin.elapsed().as_secs_f64(),
            percentile(&left_s, 0.0),
            percentile(&left_s, 0.5),
            left_s.len()
        );
        for stood in [&mut second, &mut first] {
            stood.process.kill().await?;
        }
        Ok(())
    }
}

/// Until a submission is taken.
async fn taken(way: &Way, request: &v1::SubmitRequest) -> Result<Duration, Trouble> {
    let begin = Instant::now();
    loop {
        let submitted = async { Ok::<_, Trouble>(way.farm().await?.submit(request.clone()).await?) };
        match tokio::time::timeout(COMES_WITHIN, submitted).await? {
            Ok(_) => return Ok(begin.elapsed()),
            Err(error) if begin.elapsed() > COMES_WITHIN => return Err(error),
            Err(_) => tokio::time::sleep(TRIES_AGAIN).await,
        }
    }
}
