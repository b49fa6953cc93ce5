//! Where everything lies, and what runs there.

use nix::sys::signal::Signal;
use planforge_postgres_server::Server;
use planforge_s3_server::{Fault, Proxy as StoreProxy, S3Server};
use planforge_skipped::skipped;
use planforge_tests::{
    eventually,
    machine::{Clock, Disks},
    models,
    process::{self, Process},
};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const LEASE: [&str; 4] = ["--heartbeat-ms", "200", "--lease-ms", "1500"];
/// Longer than a lease, of an agent and of a leader.
pub const STOPPED: Duration = Duration::from_millis(2_500);
/// Of each disk: room for the models and plans here, many times over.
const DISK_MIB: u32 = 64;
/// Whose disks are full, and whose clocks are set: each coordinator's, and each half of the agents'.
pub const MACHINES: usize = 4;

/// A program that comes back whatever happens to it.
pub struct Member {
    pub process: Process,
    /// Stopped until then.
    pub until: Option<Instant>,
}

impl Member {
    pub fn go_on_when_due(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now >= until) {
            self.process.signal(Signal::SIGCONT);
            self.until = None;
        }
    }

    pub fn stop(&mut self) -> bool {
        let may = self.until.is_none() && self.process.is_running();
        if may {
            self.process.signal(Signal::SIGSTOP);
            self.until = Some(Instant::now() + STOPPED);
        }
        may
    }
}

/// Where everything lies.
pub struct World {
    pub folder: TempDir,
    /// Whose rows count; the one that was before it stays until the end.
    pub database: Server,
    replica: Option<Server>,
    former: Option<Server>,
    /// How coordinators reach the database: its folder is a link, which leads elsewhere after the promotion.
    store: String,
    pub s3: S3Server,
    pub to_s3: StoreProxy,
    ports: [u16; 2],
    pub disks: Option<Disks>,
    pub clocks: Vec<Clock>,
}

/// On which machine an agent runs.
fn machine_of(agent: usize) -> usize {
    2 + agent % 2
}

impl World {
    pub fn new() -> Option<Self> {
        let database = Server::start()?;
        let folder = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
        let named = |path: &Path| path.to_string_lossy().replace('/', "%2F");
        let (way, socket) = (folder.path().join("database"), database.socket_folder().to_owned());
        symlink(&socket, &way).expect("a link");
        let store = database.database("farm").replace(&named(&socket), &named(&way));
        let replica = database.replica();
        database.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        database.sql("postgres", "SELECT pg_reload_conf()");
        eventually("the replica is waited for", || {
            let state = "SELECT COALESCE(MAX(sync_state), 'none') FROM pg_stat_replication";
            match database.sql("postgres", state).as_str() {
                "sync" | "quorum" => Ok(()),
                other => Err(other.to_owned()),
            }
        });
        let s3 = S3Server::start();
        let to_s3 = StoreProxy::before(s3.address());
        let ports = [free_port(), free_port()];
        let folders: Vec<PathBuf> = (0..MACHINES).map(|at| folder.path().join(format!("disk-{at}"))).collect();
        folders.iter().for_each(|disk| fs::create_dir(disk).expect("a folder"));
        let disks = Disks::mount(&folders, DISK_MIB);
        let disks = disks.map_err(|why| skipped(format_args!("no disk is full: none can be mounted here: {why}"))).ok();
        let clocks =
            (0..MACHINES).map(|at| Clock::new(folder.path(), &format!("clock-{at}"))).collect::<Result<_, _>>();
        let clocks = clocks.map_err(|why| skipped(format_args!("no clock is set: {why}"))).unwrap_or_default();
        Some(Self { folder, database, replica: Some(replica), former: None, store, s3, to_s3, ports, disks, clocks })
    }

    pub fn disk(&self, machine: usize) -> PathBuf {
        self.path(&format!("disk-{machine}"))
    }

    /// Has a program run on a machine: on its disk, and by its clock.
    fn on(&self, machine: usize, mut command: Command) -> Command {
        if let Some(clock) = self.clocks.get(machine) {
            clock.give(&mut command);
        }
        match &self.disks {
            Some(disks) => disks.enter(&command),
            None => command,
        }
    }

    /// All disks have room, and all clocks are right.
    pub fn mend_machines(&self) {
        (0..MACHINES).for_each(|at| self.mend_machine(at));
    }

    pub fn mend_machine(&self, machine: usize) {
        if let Some(disks) = &self.disks {
            disks.free(&self.disk(machine));
        }
        if let Some(clock) = self.clocks.get(machine) {
            clock.set(0);
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn home(&self, name: &str) -> PathBuf {
        let home = self.path(name);
        fs::create_dir_all(&home).expect("a home folder");
        home
    }

    pub fn url(&self, at: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[at])
    }

    pub fn coordinator(&self, at: usize) -> Process {
        let name = format!("coordinator-{at}");
        let mut command = process::command(&self.home(&name));
        command.env("PLANFORGE_STORE", &self.store).args(["coordinator", "--data"]).arg(self.disk(at).join("data"));
        command.args(["--listen", &format!("127.0.0.1:{}", self.ports[at]), "--blobs", "s3://farm/blobs"]).args(LEASE);
        command.args(["--blobs-endpoint", &self.to_s3.endpoint(), "--blobs-direct", "60", "--blobs-keys"]);
        command.arg(self.s3.keys_file());
        Process::start(&name, self.folder.path(), self.on(at, command))
    }

    /// Waits until it answers, leading or standing by.
    pub fn wait_up(&self, at: usize) {
        eventually("a coordinator answers", || self.answers(at));
    }

    pub fn answers(&self, at: usize) -> Result<(), String> {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "5", &format!("{}/readyz", self.url(at))]);
        let said = String::from_utf8_lossy(&process::run(curl).stdout).into_owned();
        if said.starts_with("ready") || said.starts_with("forwards") { Ok(()) } else { Err(said) }
    }

    pub fn agent(&self, at: usize, url: &str, token: &str) -> Process {
        let name = format!("agent-{at}");
        let home = self.home(&name);
        let mut command = process::command(&home);
        command.env("PLANFORGE_SERVER", url).env("PLANFORGE_TOKEN", token);
        command.args(["agent", "--measure-budget-s", "2", "--name", &name, "--state"]);
        command.arg(self.disk(machine_of(at)).join(&name));
        command.arg("--lock-dir").arg(self.home(&format!("locks-{at}")));
        Process::start(&name, self.folder.path(), self.on(machine_of(at), command))
    }

    pub fn cli(&self, url: &str, arguments: &[&str]) -> Command {
        let file = self.disk(0).join("data/admin.token");
        let file = self.disks.as_ref().map_or(file.clone(), |disks| disks.seen(&file));
        let admin = fs::read_to_string(file).expect("an admin token");
        let mut command = process::command(&self.home("user"));
        command.env("PLANFORGE_SERVER", url).env("PLANFORGE_TOKEN", admin.trim()).args(arguments);
        command
    }

    /// Lines of all programs' output that hold the words.
    pub fn lines_with(&self, words: &str) -> usize {
        let logs = fs::read_dir(self.folder.path()).expect("the test's folder").flatten();
        let logs = logs.filter(|entry| entry.path().extension().is_some_and(|end| end == "log"));
        let texts = logs.map(|log| fs::read(log.path()).unwrap_or_default());
        texts.map(|text| String::from_utf8_lossy(&text).lines().filter(|line| line.contains(words)).count()).sum()
    }

    /// A number that the database says; `None` while it is away.
    pub fn number(&self, sql: &str) -> Option<u64> {
        self.database.try_sql("farm", sql)?.parse().ok()
    }

    pub fn promote(&mut self) {
        let Some(replica) = self.replica.take() else { return };
        self.database.crash();
        replica.sql("postgres", "SELECT pg_promote()");
        let way = self.path("database");
        fs::remove_file(&way).expect("the link");
        symlink(replica.socket_folder(), &way).expect("a link");
        self.former = Some(std::mem::replace(&mut self.database, replica));
    }

    pub fn submit(&self, url: &str, seed: u32) -> Child {
        let model = models::convolutions(&self.path(&format!("chaos-{seed}.onnx")), 1, 8, 8, seed);
        let mut command = self.cli(url, &["submit", model.to_str().expect("UTF-8"), "--wait-for-device", "--json"]);
        command.args(["--sku", "cpu-x86-64-v2", "--threads", "1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary runs")
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.expect("a port of loopback").port()
}

/// What a busy and failing store does to requests, by chance.
pub fn trouble(seed: u32) -> impl Fn(&planforge_s3_server::Seen) -> Fault + Send + Sync + 'static {
    let state = AtomicU32::new(seed | 1);
    move |_| {
        let next = |state: u32| state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let drawn = state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| Some(next(state))).unwrap_or(seed);
        match (drawn >> 16) % 10 {
            0 => Fault::Refused,
            1 => Fault::Answered(503, "SlowDown"),
            2 => Fault::Answered(500, "InternalError"),
            3 => Fault::AnswerLost,
            4 | 5 => Fault::Slow(Duration::from_millis(300)),
            _ => Fault::None,
        }
    }
}
