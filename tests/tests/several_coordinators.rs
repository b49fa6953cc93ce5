//! Several coordinators over one PostgreSQL database and one folder of blobs: one leads, the others pass on to it what they
//! are asked, whoever dies; and none that was paused past its lease writes anything.

use nix::sys::signal::Signal;
use planforge_postgres_server::Server;
use planforge_tests::{
    eventually,
    farm::{id_of, is_ended, write_certificates},
    models,
    process::{self, Process},
    proxy::Proxy,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Instant,
};
use tempfile::TempDir;

struct Fleet {
    server: Server,
    store: String,
    folder: TempDir,
    /// Further flags of every coordinator.
    flags: Vec<String>,
    /// Whom callers believe, where coordinators have certificates.
    ca: Option<PathBuf>,
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
        Some(Self { server, store, folder, flags: Vec::new(), ca: None })
    }

    /// Coordinators with one certificate, which certify agents, and let in none that shows no certificate.
    fn encrypted() -> Option<Self> {
        let mut fleet = Self::new()?;
        write_certificates(fleet.folder.path());
        let file = |name: &str| fleet.folder.path().join(name).display().to_string();
        let (certificate, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
        let flags =
            ["--tls-cert", &certificate, "--tls-key", &key, "--peers-ca", &ca, "--agent-certificates", "require"];
        fleet.flags = flags.map(str::to_owned).to_vec();
        fleet.ca = Some(ca.into());
        Some(fleet)
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
        command.arg("--blobs").arg(self.folder.path().join("blobs")).args(&self.flags);
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
        command.envs(self.ca.iter().map(|ca| ("PLANFORGE_CA", ca)));
        command
    }

    fn json(&self, url: &str, arguments: &[&str]) -> Value {
        process::run_json(self.cli(url, arguments))
    }

    /// An agent that knows one way to the farm.
    fn agent(&self, url: &str) -> Process {
        let home = self.home("agent");
        let mut command = process::command(&home);
        command.env("PLANFORGE_SERVER", url).env("PLANFORGE_TOKEN", self.admin());
        command.args(["agent", "--measure-budget-s", "1", "--name", "one", "--state"]).arg(home.join("state"));
        command.arg("--lock-dir").arg(self.home("locks"));
        let agent = Process::start("agent", self.folder.path(), command);
        self.wait_agent(url);
        agent
    }

    fn wait_agent(&self, url: &str) {
        eventually("the agent is there", || {
            let devices = self.json(url, &["devices", "--json"]);
            let online = devices["devices"].as_array().is_some_and(|all| all.iter().any(|one| one["online"] == true));
            if online { Ok(()) } else { Err(devices.to_string()) }
        });
    }

    /// Submits a job that takes some seconds, and its model with it.
    fn submit(&self, url: &str, seed: u32) -> String {
        let model = models::convolutions(&self.folder.path().join(format!("m{seed}.onnx")), 6, 64, 28, seed);
        let model = model.display().to_string();
        let reply = self.json(url, &["submit", &model, "--sku", "cpu-x86-64-v2", "--threads", "1", "--json"]);
        id_of(&reply["jobs"][0])
    }

    fn job(&self, url: &str, id: &str) -> Option<Value> {
        let output = process::run(self.cli(url, &["jobs", id, "--json"]));
        let reply: Value = serde_json::from_slice(&output.stdout).ok()?;
        reply["jobs"].as_array()?.first().cloned()
    }

    fn wait_job(&self, url: &str, id: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("job {id} {what}"), || match self.job(url, id) {
            Some(job) if condition(&job) => Ok(job),
            other => Err(format!("{other:?}")),
        })
    }

    /// Watches a job to its end.
    fn watch(&self, url: &str, id: &str) -> Process {
        Process::start("watch", self.folder.path(), self.cli(url, &["watch", id]))
    }

    /// The job has succeeded, its end was told once, and its plan comes whole.
    fn check_success(&self, url: &str, id: &str) {
        let job = self.wait_job(url, id, "ends", is_ended);
        assert_eq!(job["state"], "succeeded", "{job}");
        let ends = format!("SELECT COUNT(*) FROM events WHERE what = 'succeeded' AND job = '{id}'");
        assert_eq!(self.server.sql("farm", &ends), "1", "it ended once");
        let digest = job["plan_digest"].as_str().expect("a plan digest");
        let plan = self.folder.path().join(format!("{id}.plan"));
        let _ = fs::remove_file(&plan);
        let mut fetch = self.cli(url, &["fetch", digest, "-o"]);
        fetch.arg(&plan);
        let output = process::run(fetch);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(hex::encode(Sha256::digest(fs::read(&plan).expect("the plan"))), digest);
    }

    fn tokens(&self, url: &str) -> Vec<String> {
        let listed = process::run_json(self.cli(url, &["token", "list", "--json"]));
        let tokens = listed["tokens"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tokens.iter().filter_map(|token| token["name"].as_str().map(str::to_owned)).collect()
    }
}

fn url_in(line: &str) -> String {
    let at = line.find("http").unwrap_or_else(|| panic!("no URL in '{line}'"));
    line[at..].split_whitespace().next().unwrap_or_default().to_owned()
}

fn curl(url: &str) -> Output {
    curl_with(url, &[])
}

fn curl_with(url: &str, flags: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["-s", "-w", "\n%{http_code}"]).args(flags).arg(url);
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
fn a_standby_passes_on_what_it_is_asked_and_takes_over_after_a_kill() {
    let Some(fleet) = Fleet::new() else { return };
    let mut first = fleet.leader("first");
    process::run_json(fleet.cli(&first.url, &["token", "create", "before", "--role", "agent", "--json"]));
    let mut second = fleet.standby("second");
    assert_eq!(said(&curl(&format!("{}/healthz", second.url))), "standby\n\n200");
    let ready = said(&curl(&format!("{}/readyz", second.url)));
    assert_eq!(ready, format!("forwards to {}\n\n200", first.url));
    assert!(fleet.tokens(&second.url).contains(&"before".to_owned()), "asked by the way of the standby");
    // What is paused by the one way is seen by the other.
    let asked = ["pause", "project", "nightly", "--for", "2h", "--reason", "moves", "--json"];
    let made = fleet.json(&second.url, &asked);
    assert_eq!((&made["pause"]["name"], &made["pause"]["holds"]), (&"nightly".into(), &true.into()), "{made}");
    let listed = fleet.json(&first.url, &["pause", "list", "--json"]);
    assert_eq!(listed["pauses"], serde_json::json!([made["pause"]]));
    fleet.json(&first.url, &["resume", "project", "nightly", "--json"]);
    assert_eq!(fleet.json(&second.url, &["pause", "list", "--json"])["pauses"], serde_json::json!([]));
    // The owner of the standby's folder needs no token there; whoever else shows none, or a wrong one, stays out.
    let mut own = process::command(&fleet.home("user"));
    own.args(["--data"]).arg(fleet.data("second")).args(["token", "list", "--json"]);
    assert!(process::run_json(own)["tokens"].as_array().is_some_and(|tokens| tokens.len() == 2));
    let api = format!("{}/api/v1/jobs", second.url);
    assert!(said(&curl(&api)).ends_with("401"), "{}", said(&curl(&api)));
    // Nobody makes itself somebody else, and nothing is passed on twice.
    for header in ["planforge-peer: guessed eyJvd25lciI6dHJ1ZX0=", "planforge-hops: 1"] {
        let passed_on = said(&curl_with(&api, &["-i", "-H", header]));
        assert!(passed_on.ends_with("503") && passed_on.contains("retry-after: 1"), "{header}: {passed_on}");
    }
    let forged =
        curl_with(&format!("{}/api/v1/jobs", first.url), &["-H", "planforge-peer: guessed eyJvd25lciI6dHJ1ZX0="]);
    assert!(said(&forged).ends_with("503"), "{}", said(&forged));
    // The page: signed in by the form, and read, by the way of the standby.
    let jar = fleet.folder.path().join("cookies").display().to_string();
    let token = format!("token={}", fleet.admin());
    let form = ["-c", &jar, "-d", &token, "-H", &format!("origin: {}", second.url)];
    let signed_in = said(&curl_with(&format!("{}/login", second.url), &form));
    assert!(signed_in.ends_with("303"), "{signed_in}");
    let page = said(&curl_with(&format!("{}/", second.url), &["-b", &jar, "-H", "accept: text/html"]));
    assert!(page.ends_with("200") && page.contains("<html"), "{page}");

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
fn a_job_that_runs_by_the_way_of_a_standby_ends_once_when_the_leader_is_killed() {
    let Some(fleet) = Fleet::new() else { return };
    let mut first = fleet.leader("first");
    let mut second = fleet.standby("second");
    let _agent = fleet.agent(&second.url);
    let id = fleet.submit(&second.url, 1);
    let mut watch = fleet.watch(&second.url, &id);
    fleet.wait_job(&second.url, &id, "runs", |job| job["state"] == "running" || is_ended(job));
    watch.wait_for_line("running");
    first.process.kill_9();
    leads(&mut second, Instant::now(), "a kill");
    let status = watch.wait();
    assert!(status.success() && watch.log().contains("succeeded"), "{status}: {}", watch.log());
    fleet.check_success(&second.url, &id);
    // By the way of the one that came back, too.
    let first = fleet.standby("first");
    fleet.check_success(&first.url, &id);
}

#[test]
fn agents_and_watchers_go_on_by_another_way_when_the_standby_is_killed() {
    let Some(fleet) = Fleet::new() else { return };
    let first = fleet.leader("first");
    let mut second = fleet.standby("second");
    let way = Proxy::to(&second.url);
    let _agent = fleet.agent(&way.url());
    let id = fleet.submit(&way.url(), 2);
    let mut watch = fleet.watch(&way.url(), &id);
    fleet.wait_job(&way.url(), &id, "runs", |job| job["state"] == "running" || is_ended(job));
    watch.wait_for_line("running");
    second.process.kill_9();
    way.point_at(&first.url);
    let status = watch.wait();
    assert!(status.success() && watch.log().contains("succeeded"), "{status}: {}", watch.log());
    fleet.check_success(&way.url(), &id);
}

#[test]
fn an_agents_certificate_and_its_owner_are_known_by_the_way_of_a_standby() {
    let Some(fleet) = Fleet::encrypted() else { return };
    let first = fleet.leader("first");
    fs::create_dir_all(fleet.data("second")).expect("a data folder");
    fs::copy(fleet.data("first").join("agent-ca.key"), fleet.data("second").join("agent-ca.key"))
        .expect("one authority");
    let second = fleet.standby("second");
    assert!(first.url.starts_with("https://") && second.url.starts_with("https://"), "{} {}", first.url, second.url);
    let file = fleet.folder.path().join("rack-1.once");
    let create = ["token", "create", "rack-1", "--role", "enroll", "-o", file.to_str().expect("UTF-8"), "--json"];
    fleet.json(&second.url, &create);
    // Enrolled, joined and at work by the way of the standby, which alone has seen the certificate.
    let home = fleet.home("agent");
    let mut command = process::command(&home);
    command.env("PLANFORGE_SERVER", &second.url).envs(fleet.ca.iter().map(|ca| ("PLANFORGE_CA", ca)));
    command.args(["agent", "--measure-budget-s", "1", "--name", "rack-1", "--enroll"]).arg(&file);
    command.arg("--state").arg(home.join("state")).arg("--lock-dir").arg(fleet.home("locks"));
    let _agent = Process::start("agent", fleet.folder.path(), command);
    fleet.wait_agent(&second.url);
    let id = fleet.submit(&second.url, 3);
    fleet.check_success(&second.url, &id);
    // A token of role agent alone is worth nothing, there as here.
    let token = fleet.folder.path().join("bare.token");
    let create = ["token", "create", "bare", "--role", "agent", "-o", token.to_str().expect("UTF-8"), "--json"];
    fleet.json(&second.url, &create);
    let secret = fs::read_to_string(&token).expect("the token");
    for url in [&first.url, &second.url] {
        let bearer = format!("authorization: Bearer {}", secret.trim());
        let refused = said(&curl_with(&format!("{url}/api/v1/devices"), &["-k", "-H", &bearer]));
        assert!(refused.ends_with("401") && refused.contains("client certificate"), "{refused}");
    }
}

#[test]
fn a_replica_that_is_promoted_while_a_job_runs_loses_nothing_that_was_acknowledged() {
    let Some(mut fleet) = Fleet::new() else { return };
    // The database's address is a folder's name, which leads elsewhere once the replica is promoted.
    let (way, folder) = (fleet.folder.path().join("database"), fleet.server.socket_folder().to_owned());
    symlink(&folder, &way).expect("a link");
    let named = |path: &Path| path.to_string_lossy().replace('/', "%2F");
    fleet.store = fleet.store.replace(&named(&folder), &named(&way));
    let replica = fleet.server.replica();
    fleet.server.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    fleet.server.sql("postgres", "SELECT pg_reload_conf()");
    eventually("the replica is waited for", || {
        match fleet.server.sql("postgres", "SELECT COALESCE(MAX(sync_state), 'none') FROM pg_stat_replication").as_str()
        {
            "sync" | "quorum" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    let first = fleet.leader("first");
    let second = fleet.standby("second");
    let balanced = Proxy::to(&second.url);
    let _agent = fleet.agent(&balanced.url());
    let id = fleet.submit(&balanced.url(), 4);
    let mut watch = fleet.watch(&balanced.url(), &id);
    fleet.wait_job(&balanced.url(), &id, "runs", |job| job["state"] == "running" || is_ended(job));
    process::run_json(fleet.cli(&second.url, &["token", "create", "before", "--role", "agent", "--json"]));

    fleet.server.crash();
    replica.sql("postgres", "SELECT pg_promote()");
    fs::remove_file(&way).expect("the link");
    symlink(replica.socket_folder(), &way).expect("a link");
    let old = std::mem::replace(&mut fleet.server, replica);
    let status = watch.wait();
    assert!(status.success() && watch.log().contains("succeeded"), "{status}: {}", watch.log());
    fleet.check_success(&balanced.url(), &id);
    process::run_json(fleet.cli(&balanced.url(), &["token", "create", "after", "--role", "agent", "--json"]));
    let tokens = fleet.tokens(&balanced.url());
    assert!(["before", "after"].iter().all(|name| tokens.iter().any(|token| token == name)), "{tokens:?}");
    drop((first, second, old));
}

/// What a newer coordinator does to the schema when it starts: it adds to it, in one transaction.
const NEWER: &str = "DO $$ DECLARE name TEXT; BEGIN \
    PERFORM pg_advisory_xact_lock(hashtext('planforge'), hashtext(current_schema())); \
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename <> 'schema_versions' LOOP \
        EXECUTE format('ALTER TABLE %I ADD COLUMN of_the_next_release TEXT NOT NULL DEFAULT %L', name, 'x'); \
    END LOOP; \
    CREATE TABLE of_the_next_release (id BIGINT PRIMARY KEY); \
    INSERT INTO schema_versions (version, applied_ms) VALUES (9000, 0); \
END $$";

#[test]
fn a_newer_release_migrates_while_older_ones_serve_and_they_go_on_until_they_are_started_anew() {
    let Some(fleet) = Fleet::new() else { return };
    let mut first = fleet.leader("first");
    let mut second = fleet.standby("second");
    let way = Proxy::to(&second.url);
    let _agent = fleet.agent(&way.url());
    let before = fleet.submit(&way.url(), 5);
    let mut watch = fleet.watch(&way.url(), &before);
    fleet.wait_job(&way.url(), &before, "runs", |job| job["state"] == "running" || is_ended(job));
    fleet.server.sql("farm", NEWER);
    let status = watch.wait();
    assert!(status.success() && watch.log().contains("succeeded"), "{status}: {}", watch.log());
    fleet.check_success(&way.url(), &before);
    let after = fleet.submit(&first.url, 6);
    fleet.check_success(&way.url(), &after);
    process::run_json(fleet.cli(&way.url(), &["token", "create", "after", "--role", "agent", "--json"]));
    // One that stood by since before takes over.
    first.process.kill_9();
    leads(&mut second, Instant::now(), "a kill, on a newer schema");
    let later = fleet.submit(&way.url(), 7);
    fleet.check_success(&way.url(), &later);
    assert!(fleet.tokens(&way.url()).contains(&"after".to_owned()));
    // Started anew it says what is to be done, and touches nothing.
    let mut again = fleet.start("first");
    assert!(!again.wait().success());
    let log = again.log();
    assert!(log.contains("newer") && log.contains("9000"), "{log}");
    let unlike = "SELECT COUNT(*) FROM jobs WHERE of_the_next_release <> 'x'";
    assert_eq!(fleet.server.sql("farm", unlike), "0", "what older ones write has the newer one's default");
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
    for address in ["farm:7400", "http://farm/behind", "ftp://farm"] {
        let words = refused(&fleet.store, &fleet.data("first"), &["--blobs", &blobs, "--advertise", address]);
        assert!(words.contains("--advertise") && words.contains("is none of http://HOST:PORT"), "{words}");
    }
    let missing = fleet.folder.path().join("nobody.pem").display().to_string();
    let words = refused(&fleet.store, &fleet.data("first"), &["--blobs", &blobs, "--peers-ca", &missing]);
    assert!(words.contains("nobody.pem"), "{words}");
    let words = refused("", &fleet.data("third"), &["--store", "postgres://me:secret@localhost/farm"]);
    assert!(words.contains("--store holds a password") && !words.contains("secret@"), "{words}");
}
