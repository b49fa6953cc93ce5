//! Commands over more jobs than one stream or one call takes.

use crate::support::{World, transcript};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// More than one watch names, and more than one call cancels.
const JOBS: usize = 600;
/// Longest any of these may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(240);

#[expect(clippy::disallowed_methods, reason = "looks at a foreign process until a deadline")]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

struct Coordinator {
    child: Child,
    url: String,
    token: String,
}

impl Coordinator {
    fn start(world: &World) -> Self {
        let said = world.root().join("coordinator.json");
        let mut command =
            world.command(&["coordinator", "--listen", "127.0.0.1:0", "--require-token", "--json", "--data"]);
        command.arg(world.root().join("farm"));
        command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let facts: Value = wait_for("the coordinator", || serde_json::from_slice(&fs::read(&said).ok()?).ok());
        let token = fs::read_to_string(facts["token_file"].as_str().unwrap()).unwrap().trim().to_owned();
        Self { child, url: facts["url"].as_str().unwrap().to_owned(), token }
    }

    fn command(&self, world: &World, args: &[&str]) -> Command {
        let mut command = world.command(args);
        command.env("PLANFORGE_SERVER", &self.url).env("PLANFORGE_TOKEN", &self.token);
        command
    }

    fn json(&self, world: &World, args: &[&str]) -> Value {
        let output = self.command(world, args).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", transcript(world.root(), &output)))
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ids(document: &Value) -> Vec<&str> {
    document["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect()
}

#[test]
fn six_hundred_jobs_are_submitted_waited_for_listed_watched_and_cancelled() {
    let world = World::new();
    let farm = Coordinator::start(&world);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
    // Nobody has such devices: the jobs wait until they are cancelled.
    let skus = (0..JOBS).map(|number| format!("gpu-{number}")).collect::<Vec<_>>().join(",");
    let args = ["submit", model.to_str().unwrap(), "--sku", &skus, "--wait-for-device", "--wait", "--json"];
    let mut waiting = farm.command(&world, &args);
    let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let list = ["jobs", "--limit", "5000", "--json"];
    let listed = wait_for("the jobs", || {
        Some(farm.json(&world, &list)).filter(|listed| listed["jobs"].as_array().is_some_and(|j| j.len() == JOBS))
    });
    let all = ids(&listed);
    let request = listed["jobs"][0]["request_id"].as_str().unwrap();
    let of_request = farm.json(&world, &["jobs", "--request", request, "--limit", "5000", "--json"]);
    assert_eq!(ids(&of_request), all);
    let named = farm.json(&world, &[&["jobs", "--json"], &all[..]].concat());
    assert_eq!(ids(&named), all);

    let cancelled = farm.json(&world, &[&["cancel", "--json"], &all[..]].concat());
    assert_eq!(cancelled["jobs"].as_array().unwrap().len(), JOBS);
    let waited: Output = waiting.wait_with_output().unwrap();
    assert_eq!(waited.status.code(), Some(1), "{}", transcript(world.root(), &waited));
    let told: Value = serde_json::from_slice(&waited.stdout).unwrap();
    assert!(told["jobs"].as_array().unwrap().iter().all(|job| job["state"] == "cancelled"));
    assert_eq!(told["jobs"].as_array().unwrap().len(), JOBS);

    let watched = farm.command(&world, &[&["watch", "--json"], &all[..]].concat()).output().unwrap();
    assert_eq!(watched.status.code(), Some(1), "{}", transcript(world.root(), &watched));
    // `compare` finds the request whatever its size: none of its jobs was measured.
    let compared = farm.command(&world, &["compare", "--request", request]).output().unwrap();
    let words = String::from_utf8_lossy(&compared.stderr);
    assert_eq!(words.matches("has no report: cancelled").count(), JOBS, "{words}");
}
