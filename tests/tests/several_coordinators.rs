//! Several coordinators over one PostgreSQL database and one folder of blobs: one leads, the others stand by and say who
//! does, and none that was paused past its lease writes anything.

use nix::sys::signal::Signal;
use planforge_postgres_server::Server;
use planforge_tests::{
    eventually,
    process::{self, Process},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Instant,
};
use tempfile::TempDir;

struct Fleet {
    server: Server,
    store: String,
    folder: TempDir,
}

/// A coordinator, started.
struct Coordinator {
    process: Process,
    url: String,
}

impl Fleet {
    fn new() -> Option<Self> {
        let server = Server::start()?;
        let store = server.database("farm");
        let folder = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
        Some(Self { server, store, folder })
    }

    fn home(&self, name: &str) -> PathBuf {
        let home = self.folder.path().join(name);
        fs::create_dir_all(&home).expect("a home folder");
        home
    }

    fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}-data"))
    }

    fn start(&self, name: &str) -> Process {
        let mut command = process::command(&self.home(name));
        command.env("PLANFORGE_STORE", &self.store);
        command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]).arg(self.data(name));
        command.arg("--blobs").arg(self.folder.path().join("blobs"));
        Process::start(name, self.folder.path(), command)
    }

    fn leader(&self, name: &str) -> Coordinator {
        let mut process = self.start(name);
        let url = url_in(&process.wait_for_line("url "));
        Coordinator { process, url }
    }

    fn standby(&self, name: &str) -> Coordinator {
        let mut process = self.start(name);
        let url = url_in(process.wait_for_line("listening at").rsplit("listening at").next().unwrap_or_default());
        Coordinator { process, url }
    }

    /// The first administrator's token, which the first coordinator wrote.
    fn admin(&self) -> String {
        fs::read_to_string(self.data("first").join("admin.token")).expect("an admin token").trim().to_owned()
    }

    fn cli(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = process::command(&self.home("user"));
        command.env("PLANFORGE_SERVER", url).env("PLANFORGE_TOKEN", self.admin()).args(arguments);
        command
    }

    fn tokens(&self, url: &str) -> Vec<String> {
        let listed = process::run_json(self.cli(url, &["token", "list", "--json"]));
        let tokens = listed["tokens"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tokens.iter().filter_map(|token| token["name"].as_str().map(str::to_owned)).collect()
    }
}

fn url_in(line: &str) -> String {
    let at = line.find("http://").unwrap_or_else(|| panic!("no URL in '{line}'"));
    line[at..].split_whitespace().next().unwrap_or_default().to_owned()
}

fn curl(url: &str) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["-s", "-w", "\n%{http_code}", url]);
    process::run(curl)
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits until a coordinator leads, and says how long that took.
#[expect(clippy::print_stderr, reason = "a figure for whoever reads the log")]
fn leads(coordinator: &mut Coordinator, since: Instant, after: &str) {
    let ready = format!("{}/readyz", coordinator.url);
    eventually("the standby leads", || match said(&curl(&ready)) {
        answer if answer.starts_with("ready") => Ok(()),
        answer => Err(answer),
    });
    eprintln!("took over {} ms after {after}", since.elapsed().as_millis());
}

#[test]
fn a_standby_says_who_leads_and_takes_over_after_a_kill() {
    let Some(fleet) = Fleet::new() else { return };
    let mut first = fleet.leader("first");
    process::run_json(fleet.cli(&first.url, &["token", "create", "before", "--role", "agent", "--json"]));
    let mut second = fleet.standby("second");
    assert_eq!(said(&curl(&format!("{}/healthz", second.url))), "standby\n\n200");
    let ready = said(&curl(&format!("{}/readyz", second.url)));
    assert!(ready.ends_with("503") && ready.contains(&format!("leads, at {}", first.url)), "{ready}");
    let refused = process::run(fleet.cli(&second.url, &["jobs"]));
    let words = said(&refused);
    assert!(!refused.status.success() && words.contains(&format!("leads, at {}", first.url)), "{words}");

    first.process.kill_9();
    leads(&mut second, Instant::now(), "a kill");
    assert!(fleet.tokens(&second.url).contains(&"before".to_owned()), "what was acknowledged is there");
    process::run_json(fleet.cli(&second.url, &["token", "create", "after", "--role", "agent", "--json"]));

    // The first one comes back and stands by; asked to end, the second gives the lease back.
    let mut first = fleet.standby("first");
    second.process.signal(Signal::SIGTERM);
    let begin = Instant::now();
    leads(&mut first, begin, "a good end");
    assert!(second.process.wait().success());
    let tokens = fleet.tokens(&first.url);
    assert!(["before", "after"].iter().all(|name| tokens.iter().any(|token| token == name)), "{tokens:?}");
}

#[test]
fn a_leader_that_was_paused_past_its_lease_writes_nothing_and_steps_down() {
    let Some(fleet) = Fleet::new() else { return };
    let mut first = fleet.leader("first");
    let mut second = fleet.standby("second");
    first.process.signal(Signal::SIGSTOP);
    // Asked while it is paused: the call waits in its socket.
    let mut late = fleet.cli(&first.url, &["token", "create", "late", "--role", "agent"]);
    let mut late =
        late.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().expect("a command");
    leads(&mut second, Instant::now(), "a pause");
    process::run_json(fleet.cli(&second.url, &["token", "create", "in time", "--role", "agent", "--json"]));
    let epoch = fleet.server.sql("farm", "SELECT epoch FROM leader");
    first.process.signal(Signal::SIGCONT);
    let status = first.process.wait();
    assert!(!status.success(), "{status}");
    let log = first.process.log();
    assert!(log.contains("this coordinator stopped leading: another coordinator leads"), "{log}");
    assert!(!late.wait().expect("it ends").success(), "nobody was told that it holds");
    let tokens = fleet.tokens(&second.url);
    assert!(tokens.contains(&"in time".to_owned()) && !tokens.contains(&"late".to_owned()), "{tokens:?}");
    assert_eq!(fleet.server.sql("farm", "SELECT epoch FROM leader"), epoch);
}

#[test]
fn folders_and_stores_that_do_not_belong_together_are_refused() {
    let Some(fleet) = Fleet::new() else { return };
    let mut first = fleet.leader("first");
    first.process.signal(Signal::SIGTERM);
    assert!(first.process.wait().success());
    let refused = |store: &str, data: &Path, flags: &[&str]| {
        let mut command = process::command(&fleet.home("user"));
        command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(flags);
        if !store.is_empty() {
            command.env("PLANFORGE_STORE", store);
        }
        let output = process::run(command);
        assert!(!output.status.success(), "{output:?}");
        said(&output)
    };
    let blobs = fleet.folder.path().join("blobs").display().to_string();
    let other = fleet.server.database("other");
    let words = refused(&other, &fleet.data("first"), &[]);
    assert!(words.contains("it is empty, and the folders of this coordinator are a farm's"), "{words}");
    assert_eq!(fleet.server.sql("other", "SELECT COUNT(*) FROM pg_class WHERE relname = 'jobs'"), "0");
    let words = refused("", &fleet.data("first"), &[]);
    assert!(words.contains("is of a farm whose store is PostgreSQL"), "{words}");
    // Another farm on the same blobs.
    let mut begun = process::command(&fleet.home("other"));
    begun.env("PLANFORGE_STORE", &other).args(["coordinator", "--listen", "127.0.0.1:0", "--data"]);
    begun.arg(fleet.data("other"));
    let mut begun = Process::start("other", fleet.folder.path(), begun);
    begun.wait_for_line("url ");
    begun.signal(Signal::SIGTERM);
    assert!(begun.wait().success());
    let words = refused(&other, &fleet.data("other"), &["--blobs", &blobs]);
    assert!(words.contains("is of the farm"), "{words}");
    let words = refused("", &fleet.data("third"), &["--store", "postgres://me:secret@localhost/farm"]);
    assert!(words.contains("--store holds a password") && !words.contains("secret@"), "{words}");
}
