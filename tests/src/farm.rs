//! A coordinator with agents, as processes that share no folder.

use crate::{
    eventually,
    process::{self, Process},
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// How the coordinator is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Plain HTTP on loopback.
    Loopback,
    /// HTTPS with a certificate of the test's own authority.
    Tls,
}

/// A running coordinator and what is needed to start more of the farm.
#[derive(Debug)]
pub struct Farm {
    folder: TempDir,
    link: Link,
    /// Further flags of the coordinator.
    flags: Vec<String>,
    /// What its environment has beside.
    variables: Vec<(String, String)>,
    pub coordinator: Process,
    /// `http://127.0.0.1:port` or `https://localhost:port`; the same after a restart.
    pub url: String,
    /// Secret of the admin token.
    pub admin: String,
    restarts: u32,
}

impl Farm {
    /// Starts a coordinator on a free port and waits until it answers.
    pub fn start(link: Link) -> Self {
        Self::start_with(link, &[])
    }

    /// The same with further flags.
    pub fn start_with(link: Link, flags: &[&str]) -> Self {
        Self::start_on(link, flags, |_| ())
    }

    /// The same with variables in the coordinator's environment.
    pub fn start_among(link: Link, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_whole(link, flags, variables, |_| ())
    }

    /// The same on a data folder that `fill` makes where it is told.
    pub fn start_on(link: Link, flags: &[&str], fill: impl FnOnce(&Path)) -> Self {
        Self::start_whole(link, flags, &[], fill)
    }

    fn start_whole(link: Link, flags: &[&str], variables: &[(&str, &str)], fill: impl FnOnce(&Path)) -> Self {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let variables: Vec<(String, String)> = variables.collect();
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let folder = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
        if link == Link::Tls {
            write_certificates(folder.path());
        }
        fill(&folder.path().join("coordinator"));
        let mut coordinator = start_coordinator(folder.path(), link, (&flags[..], &variables[..]), 0, 0);
        let url = url_of(&mut coordinator, link);
        let mut farm = Self { folder, link, flags, variables, coordinator, url, admin: String::new(), restarts: 0 };
        let file = farm.data().join("admin.token");
        let secret = eventually("the coordinator writes its admin token", || {
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))
        });
        farm.admin = secret.trim().to_owned();
        farm
    }

    /// The test's own folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The coordinator's data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("coordinator")
    }

    /// SIGKILL to the coordinator.
    pub fn kill_coordinator(&mut self) {
        self.coordinator.kill_9();
    }

    /// Starts the coordinator again on its folder and port.
    pub fn restart_coordinator(&mut self) {
        self.restarts += 1;
        let port: u16 = self.url.rsplit(':').next().and_then(|p| p.trim_end_matches('/').parse().ok()).expect("a port");
        let set = (&self.flags[..], &self.variables[..]);
        self.coordinator = start_coordinator(self.folder.path(), self.link, set, port, self.restarts);
        url_of(&mut self.coordinator, self.link);
    }

    /// Starts an agent that shares nothing with the coordinator but URL, CA file and token; without one, the admin's.
    /// `locks` names the host: two
    /// agents with the same lock folder are on one host and guard the same devices.
    pub fn start_agent(&self, name: &str, host: &str, token: Option<&str>) -> Process {
        let url = self.url.clone();
        self.start_agent_at(&url, name, host, token)
    }

    /// The same by another way to the coordinator.
    pub fn start_agent_at(&self, url: &str, name: &str, host: &str, token: Option<&str>) -> Process {
        Process::start(&format!("agent-{name}"), self.folder.path(), self.agent_command(url, name, host, token))
    }

    /// What starts such an agent.
    pub fn agent_command(&self, url: &str, name: &str, host: &str, token: Option<&str>) -> Command {
        let home = self.home(&format!("agent-{name}"));
        let locks = self.folder.path().join(format!("locks-{host}"));
        fs::create_dir_all(&locks).expect("a lock folder");
        let mut command = self.command_as(&home, Some(token.unwrap_or(&self.admin)));
        command
            .env("PLANFORGE_SERVER", url)
            .args(["agent", "--measure-budget-s", "1", "--name", name, "--state"])
            .arg(home.join("state"))
            .arg("--lock-dir")
            .arg(locks);
        command
    }

    /// A home folder of its own for one process.
    pub fn home(&self, name: &str) -> PathBuf {
        let home = self.folder.path().join(name);
        fs::create_dir_all(&home).expect("a home folder");
        home
    }

    /// A command of the binary as somebody with `token`, or with none, with the coordinator's URL and CA in its environment.
    pub fn command_as(&self, home: &Path, token: Option<&str>) -> Command {
        let mut command = process::command(home);
        command.env("PLANFORGE_SERVER", &self.url);
        if self.link == Link::Tls {
            command.env("PLANFORGE_CA", self.folder.path().join("ca.pem"));
        }
        if let Some(token) = token {
            command.env("PLANFORGE_TOKEN", token);
        }
        command
    }

    /// A command of the binary as the admin.
    pub fn cli(&self, arguments: &[&str]) -> Command {
        let mut command = self.command_as(&self.home("user"), Some(&self.admin));
        command.args(arguments);
        command
    }

    /// What the coordinator answers to the admin at `path`, as text.
    pub fn page(&self, path: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "-H", &format!("Authorization: Bearer {}", self.admin), &format!("{}/{path}", self.url)]);
        let output = process::run(curl);
        assert!(output.status.success(), "{path}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command that prints JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut command = self.cli(arguments);
        command.arg("--json");
        process::run_json(command)
    }

    /// A new token of `role`.
    pub fn token(&self, name: &str, role: &str) -> String {
        let made = self.json(&["token", "create", name, "--role", role]);
        made["secret"].as_str().unwrap_or_else(|| panic!("no secret in {made}")).to_owned()
    }

    /// One job as it stands now; `None` while the coordinator is away.
    pub fn job(&self, id: &str) -> Option<Value> {
        let mut command = self.cli(&["jobs", id, "--json"]);
        let output = command.output().ok()?;
        let document: Value = serde_json::from_slice(&output.stdout).ok()?;
        document["jobs"].as_array()?.iter().find(|job| job["id"].as_str() == Some(id)).cloned()
    }

    /// Waits until `condition` holds for a job.
    pub fn wait_job(&self, id: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("job {id} {what}"), || match self.job(id) {
            Some(job) if condition(&job) => Ok(job),
            Some(job) => Err(job.to_string()),
            None => Err("the coordinator gives no answer".into()),
        })
    }

    /// Waits until a job has ended.
    pub fn wait_ended(&self, id: &str) -> Value {
        self.wait_job(id, "ends", is_ended)
    }

    /// Waits until `count` agents are online.
    pub fn wait_agents(&self, count: usize) {
        eventually(&format!("{count} agents are online"), || {
            let devices = self.json(&["devices"]);
            let mut agents: Vec<&str> = devices["devices"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|device| device["online"].as_bool() == Some(true))
                .filter_map(|device| device["agent"].as_str())
                .collect();
            agents.sort_unstable();
            agents.dedup();
            if agents.len() >= count { Ok(()) } else { Err(devices.to_string()) }
        });
    }

    /// Submits and returns the jobs.
    pub fn submit(&self, model: &Path, extra: &[&str]) -> Vec<Value> {
        let mut arguments = vec!["submit", model.to_str().expect("a UTF-8 path")];
        arguments.extend(extra);
        let reply = self.json(&arguments);
        reply["jobs"].as_array().unwrap_or_else(|| panic!("no jobs in {reply}")).clone()
    }
}

/// Whether a job will never change again.
pub fn is_ended(job: &Value) -> bool {
    matches!(job["state"].as_str(), Some("succeeded" | "failed" | "cancelled" | "skipped"))
}

/// The id of a job document.
pub fn id_of(job: &Value) -> String {
    job["id"].as_str().unwrap_or_else(|| panic!("no id in {job}")).to_owned()
}

fn start_coordinator(
    folder: &Path,
    link: Link,
    (flags, variables): (&[String], &[(String, String)]),
    port: u16,
    restart: u32,
) -> Process {
    let home = folder.join("coordinator-home");
    fs::create_dir_all(&home).expect("a home folder");
    let mut command = process::command(&home);
    command.args(["coordinator", "--listen", &format!("127.0.0.1:{port}"), "--data"]).arg(folder.join("coordinator"));
    command.args(flags).envs(variables.iter().cloned());
    if link == Link::Tls {
        command.arg("--tls-cert").arg(folder.join("server.pem")).arg("--tls-key").arg(folder.join("server.key"));
    }
    Process::start(&format!("coordinator-{restart}"), folder, command)
}

/// Reads the port from the line that says where the coordinator listens.
fn url_of(coordinator: &mut Process, link: Link) -> String {
    let line = coordinator.wait_for_line("://127.0.0.1:");
    let port: String = line.split("127.0.0.1:").nth(1).unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
    match link {
        Link::Loopback => format!("http://127.0.0.1:{port}"),
        Link::Tls => format!("https://localhost:{port}"),
    }
}

/// An authority, and a certificate it signed for localhost.
pub fn write_certificates(folder: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let ca_key = KeyPair::generate().expect("a key pair");
    let mut ca = CertificateParams::new(Vec::<String>::new()).expect("valid parameters");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).expect("a certificate");
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().expect("a key pair");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate =
        CertificateParams::new(names).expect("valid names").signed_by(&key, &issuer).expect("a certificate");
    for (name, text) in
        [("ca.pem", ca_certificate.pem()), ("server.pem", certificate.pem()), ("server.key", key.serialize_pem())]
    {
        let path = folder.join(name);
        fs::write(&path, text).expect("the test's folder is writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its files are ours");
    }
}
