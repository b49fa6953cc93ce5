//! A project that declares its engines: planforge.toml and engines.lock in a repository, against a real coordinator with
//! an agent for this machine's processor. The rows of the table in `docs/fleet.md` name the tests here.

mod held;
mod kept;
mod releases;

use planforge_tests::{
    farm::{Farm, Link},
    models, process,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

const SKUS: [&str; 3] = ["cpu-x86-64-v2", "cpu-x86-64-v3", "cpu-x86-64-v4"];

/// Device kinds of this machine that the tests build for: three levels, where it has as many.
fn skus() -> Vec<&'static str> {
    let here = planforge_device::CpuLevel::detect();
    SKUS.into_iter().filter(|sku| here.iter().any(|level| level.name() == *sku)).collect()
}

/// A clone of a repository.
struct Clone<'a> {
    farm: &'a Farm,
    folder: PathBuf,
    /// Whose data folder and settings its commands use.
    home: PathBuf,
}

impl<'a> Clone<'a> {
    /// An empty repository.
    fn new(farm: &'a Farm, name: &str) -> Self {
        let folder = farm.path().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let clone = Self { farm, folder, home: farm.home(&format!("{name}-home")) };
        clone.git(&["init", "--quiet", "--initial-branch", "main"]);
        clone
    }

    /// Another one with what this has committed.
    fn clone_as(&self, name: &str) -> Self {
        let folder = self.farm.path().join(name);
        let [from, to] = [&self.folder, &folder].map(|path| path.to_str().expect("UTF-8").to_owned());
        self.git(&["clone", "--quiet", &from, &to]);
        Self { farm: self.farm, folder, home: self.farm.home(&format!("{name}-home")) }
    }

    fn git(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]);
        command.arg("-C").arg(&self.folder).args(arguments).env("HOME", &self.home);
        process::run(command)
    }

    fn commit(&self, message: &str) {
        assert!(self.git(&["add", "--all"]).status.success());
        let output = self.git(&["commit", "--quiet", "--message", message]);
        assert!(output.status.success(), "{output:?}");
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect("the clone is writable");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A tiny model, another for each seed.
    fn model(&self, name: &str, seed: u32) {
        models::convolutions(&self.folder.join(name), 1, 4, 8, seed);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.farm.command_as(&self.home, Some(&self.farm.admin));
        command.args(arguments).current_dir(&self.folder).env("no_proxy", "127.0.0.1");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        process::run(self.command(arguments))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut command = self.command(arguments);
        command.arg("--json");
        process::run_json(command)
    }

    /// Runs a command that ends with `code`, and what it said on stderr.
    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {said}\n{}",
            String::from_utf8_lossy(&output.stdout)
        );
        said
    }
}

/// `models` (name and seed) for every device kind, in planforge.toml and as files.
fn declare(clone: &Clone<'_>, models: &[(&str, u32)], rest: &str) {
    let mut text = format!("targets = {:?}\n", skus());
    for (name, seed) in models {
        clone.model(&format!("{name}.onnx"), *seed);
        text.push_str(&format!("\n[models.{name}]\npath = \"{name}.onnx\"\n"));
    }
    clone.write("planforge.toml", &format!("{text}{rest}"));
}

/// State by cell of what `check` or `sync` printed.
fn states(document: &Value) -> Vec<(String, String)> {
    let cells = document["cells"].as_array().unwrap_or_else(|| panic!("no cells in {document}"));
    let text = |cell: &Value, key: &str| cell[key].as_str().unwrap_or_default().to_owned();
    cells.iter().map(|cell| (format!("{}/{}", text(cell, "model"), text(cell, "sku")), text(cell, "state"))).collect()
}

fn sha256_of(path: &Path) -> String {
    hex::encode(Sha256::digest(fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))))
}

/// Digest by path of the engines below `folder`.
fn engines(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                _ => found.push((entry.path(), sha256_of(&entry.path()))),
            }
        }
    }
    found.sort();
    found
}

fn with_agent() -> (Farm, process::Process) {
    let farm = Farm::start(Link::Loopback);
    let agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    (farm, agent)
}

fn builds(farm: &Farm) -> usize {
    let jobs = farm.json(&["jobs", "--limit", "1000"]);
    let jobs = jobs["jobs"].as_array().expect("a list");
    jobs.iter().filter(|job| job["kind"] == "build" && job["cached"] == false).count()
}

#[test]
fn an_empty_repository_gets_its_engines_locks_them_and_notices_what_changes() {
    let (farm, _agent) = with_agent();
    let one = Clone::new(&farm, "one");
    declare(&one, &[("alpha", 1), ("beta", 2), ("gamma", 3)], "");
    let count = 3 * skus().len();
    let said = one.json(&["config", "check"]);
    assert_eq!(said["models"].as_array().map(Vec::len), Some(3), "{said}");

    // Nothing is locked: red, every cell named.
    let said = one.refused(&["check"], 1);
    assert_eq!(said.matches("missing: engines.lock has no engine").count(), count, "{said}");
    let synced = one.json(&["sync"]);
    assert_eq!((&synced["ok"], &synced["written"]), (&true.into(), &true.into()), "{synced:#}");
    assert_eq!(states(&synced).len(), count);
    one.commit("engines");
    assert_eq!(one.json(&["check", "--strict"])["ok"], true);
    let text = one.read("engines.lock");
    assert_eq!(text.matches("[[engine]]").count(), count);

    // Again: nothing is built, nothing is written.
    let before = builds(&farm);
    assert_eq!(before, count);
    assert_eq!(one.json(&["sync"])["written"], false);
    assert_eq!((builds(&farm), one.read("engines.lock")), (before, text));

    // Fetched: what the lock says, in the layout's places.
    let fetched = one.json(&["fetch", "--sku", &skus().join(",")]);
    assert_eq!(fetched["engines"].as_array().map(Vec::len), Some(count), "{fetched:#}");
    for engine in fetched["engines"].as_array().expect("a list") {
        let path = one.folder.join(engine["path"].as_str().expect("a path"));
        assert_eq!(Some(sha256_of(&path).as_str()), engine["plan_digest"].as_str());
        let (model, sku) =
            (engine["engine"]["model"].as_str().expect("a name"), engine["engine"]["sku"].as_str().expect("a SKU"));
        assert!(path.ends_with(format!("engines/{model}/{sku}/default.plan")), "{}", path.display());
    }

    // A model changes: its cells are stale, by name, and no others.
    one.model("beta.onnx", 20);
    let output = one.run(&["check", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let checked: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let stale: Vec<_> = states(&checked).into_iter().filter(|(_, state)| state != "present").collect();
    let expected: Vec<_> = skus().iter().map(|sku| (format!("beta/{sku}"), "stale".to_owned())).collect();
    assert_eq!(stale, expected, "{checked:#}");
    let said = one.refused(&["fetch", "beta.onnx", "--sku", skus()[0]], 3);
    assert!(said.contains("changed since engines.lock was written"), "{said}");
    let said = one.refused(&["sync", "--frozen"], 7);
    assert!(said.contains("the model changed") && said.contains("beta"), "{said}");
    one.json(&["sync"]);
    assert_eq!(builds(&farm), before + skus().len());
    assert_eq!(one.json(&["check"])["ok"], true);

    // What changed since the commit, with a verdict for each cell.
    let diff = one.json(&["diff"]);
    let changed = diff["changed"].as_array().expect("a list");
    assert_eq!((changed.len(), &diff["unchanged"]), (skus().len(), &(count - skus().len()).into()), "{diff:#}");
    for change in changed {
        assert!(change["model"] == "beta" && change["verdict"].is_string(), "{change:#}");
    }
    let markdown = String::from_utf8(one.run(&["diff", "HEAD", "--markdown"]).stdout).expect("UTF-8");
    assert!(markdown.starts_with("**Engines**: 0 added, 0 removed, ") && markdown.contains("| beta | "), "{markdown}");
    one.commit("another beta");
    assert!(one.json(&["diff"])["changed"].as_array().is_some_and(Vec::is_empty));
    let since = one.json(&["diff", "HEAD~1", "HEAD"]);
    assert_eq!(since["changed"].as_array().map(Vec::len), Some(skus().len()));

    // A model is declared no more: red until its blocks are gone, too.
    let text = one.read("planforge.toml");
    one.write("planforge.toml", text.split("\n[models.gamma]").next().expect("a part"));
    let said = one.refused(&["check"], 1);
    assert!(said.contains("gamma") && said.contains("declares it no more"), "{said}");
    one.json(&["sync"]);
    assert_eq!(one.json(&["check"])["cells"].as_array().map(Vec::len), Some(2 * skus().len()));
}

#[test]
fn two_clones_that_sync_at_once_build_each_engine_once() {
    let (farm, _agent) = with_agent();
    let one = Clone::new(&farm, "one");
    declare(&one, &[("alpha", 31), ("beta", 32)], "");
    one.commit("declared");
    let two = one.clone_as("two");
    let started = [&one, &two].map(|clone| {
        let mut command = clone.command(&["sync", "--json"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("the binary starts")
    });
    for child in started {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
    }
    let keys: std::collections::BTreeSet<String> = farm.json(&["engines"])["engines"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|engine| engine["engine_key"].to_string())
        .collect();
    assert_eq!((builds(&farm), keys.len()), (2 * skus().len(), 2 * skus().len()), "one build a key");
    assert_eq!(one.read("engines.lock"), two.read("engines.lock"));

    // Fetched at once into one folder: whole, and the same.
    let folder = farm.path().join("shared");
    let target = format!("{}/", folder.display());
    let all = skus().join(",");
    let started = [0; 4].map(|_| {
        let mut command = one.command(&["fetch", "--sku", &all, "-o", &target, "--json"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("the binary starts")
    });
    for child in started {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
    }
    let found = engines(&folder);
    assert_eq!(found.len(), 2 * skus().len(), "nothing else is left there: {found:?}");
    let lock = one.read("engines.lock");
    assert!(found.iter().all(|(_, digest)| lock.contains(digest)), "{found:?}");
}

#[test]
fn experiments_change_nothing_that_is_fetched() {
    let (farm, _agent) = with_agent();
    let sku = skus()[0];
    let one = Clone::new(&farm, "one");
    declare(&one, &[("alpha", 41)], "");
    one.json(&["sync"]);
    let fetch = |arguments: &[&str], folder: &str| {
        let target = format!("{}/", one.folder.join(folder).display());
        one.json(&[&["fetch"][..], arguments, &["--sku", sku, "-o", &target]].concat());
        engines(&one.folder.join(folder)).into_iter().map(|(_, digest)| digest).collect::<Vec<_>>()
    };
    let locked = fetch(&["alpha"], "locked-1");
    let newest = fetch(&["alpha.onnx", "--unlocked"], "newest-1");
    assert_eq!((locked.len(), &locked), (1, &newest));

    // Newer, each of another spec, and one of other threads than the farm chooses.
    let devices = farm.json(&["devices"]);
    let usual = devices["devices"][0]["threads"].as_u64().expect("a number");
    let threads = if usual == 1 { "2" } else { "1" };
    for experiment in [&["--threads", threads][..], &["--optimization-level", "1"], &["--workspace-mib", "64"]] {
        let submit = [&["submit", "alpha.onnx", "--sku", sku, "--wait"][..], experiment].concat();
        let done = one.json(&submit);
        assert_eq!(done["jobs"][0]["state"], "succeeded", "{done:#}");
    }
    assert_eq!(farm.json(&["engines", "--sku", sku])["engines"].as_array().map(Vec::len), Some(4));
    assert_eq!(fetch(&["alpha"], "locked-2"), locked);
    assert_eq!(fetch(&["alpha.onnx"], "locked-3"), locked, "a locked model's file is answered by the lock");
    assert_eq!(fetch(&["alpha.onnx", "--unlocked"], "newest-2"), newest);
    let output = one.run(&["fetch", "alpha.onnx", "--unlocked", "--explain", "--sku", sku, "-o", "explained/"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("an experiment beside the default spec").count(), 3, "{said}");
    // Whoever names an experiment gets it, under a name of its own.
    let named = format!("{{\"threads\": {threads}}}");
    let experiment = fetch(&["alpha.onnx", "--spec", &named], "newest-2");
    assert_eq!(experiment.len(), 2, "beside the default one: {experiment:?}");

    // Another model of the same file name, fetched into the same folder: both are there.
    let namesake = Clone::new(&farm, "namesake");
    namesake.model("alpha.onnx", 43);
    for builds_it in ["submit", "build"] {
        let out = format!("{}/", one.folder.join(format!("both-{builds_it}")).display());
        for clone in [&one, &namesake, &one] {
            match builds_it {
                "submit" => {
                    clone.json(&["submit", "alpha.onnx", "--sku", sku, "--wait"]);
                    clone.json(&["fetch", "alpha.onnx", "--unlocked", "--sku", sku, "-o", &out]);
                }
                _ => drop(clone.json(&["build", "alpha.onnx", "--sku", sku, "-o", &out])),
            }
        }
        let found: Vec<String> = engines(Path::new(&out)).into_iter().map(|(_, digest)| digest).collect();
        assert_eq!(found.len(), 2, "{builds_it}: {found:?}");
        assert!(found.contains(&newest[0]), "{builds_it}: {found:?}");
    }

    // Only experiments are there: none is the answer.
    let other = Clone::new(&farm, "other");
    other.model("m.onnx", 42);
    let submitted = other.json(&["submit", "m.onnx", "--sku", sku, "--optimization-level", "1", "--wait"]);
    assert_eq!(submitted["jobs"][0]["state"], "succeeded");
    let said = other.refused(&["fetch", "m.onnx", "--sku", sku], 3);
    assert!(said.contains("no engine of the default spec") && said.contains("optimization_level 3 to 1"), "{said}");
}

#[test]
fn an_engine_that_was_fetched_is_not_read_again_and_a_broken_one_is_mended() {
    let (farm, _agent) = with_agent();
    let sku = skus()[0];
    let one = Clone::new(&farm, "one");
    declare(&one, &[("alpha", 51), ("beta", 52)], "");
    one.json(&["sync"]);
    let from = |arguments: &[&str]| {
        let fetched = one.json(&[&["fetch", "--sku", sku][..], arguments].concat());
        let engines = fetched["engines"].as_array().expect("a list");
        engines.iter().map(|engine| engine["from"].as_str().expect("a word").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(from(&[]), ["farm", "farm"]);
    assert_eq!(from(&[]), ["cache", "cache"]);
    assert_eq!(from(&["--verify"]), ["verified", "verified"]);
    // Half a file, as when a disk was full: fetched anew, alone.
    let path = one.folder.join(format!("engines/alpha/{sku}/default.plan"));
    let whole = fs::read(&path).expect("the engine");
    fs::write(&path, &whole[..whole.len() / 2]).expect("a shorter one");
    assert_eq!(from(&[]), ["farm", "cache"]);
    assert_eq!(fs::read(&path).expect("the engine"), whole);
    // As long, but other bytes: its time of change says so.
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    fs::write(&path, &changed).expect("another one");
    assert_eq!(from(&[]), ["farm", "cache"]);
    assert_eq!(fs::read(&path).expect("the engine"), whole);
    // What was remembered is half written: found out by reading.
    let data = one.home.join(".local/share/planforge/fetched");
    for entry in fs::read_dir(&data).expect("the record's folder").flatten() {
        let text = fs::read(entry.path()).expect("a record");
        fs::write(entry.path(), &text[..text.len() / 2]).expect("half a record");
    }
    assert_eq!(from(&[]), ["verified", "verified"]);
    assert_eq!(from(&[]), ["cache", "cache"]);

    // The coordinator is away: what is here is here; what is not is told of.
    let mut farm_away = one.command(&["fetch", "--sku", sku, "--json"]);
    farm_away.env("PLANFORGE_SERVER", "http://127.0.0.1:1");
    let fetched = process::run_json(farm_away);
    assert_eq!(fetched["engines"].as_array().map(Vec::len), Some(2));

    // A copy of the farm's blobs is enough for what is locked: as a folder, and behind any web server.
    let away = |blobs: &str| {
        fs::remove_file(&path).expect("the engine");
        let mut fetch = one.command(&["fetch", "--sku", sku, "--blobs", blobs, "--json"]);
        fetch.env("PLANFORGE_SERVER", "http://127.0.0.1:1");
        let fetched = process::run_json(fetch);
        assert_eq!(
            (&fetched["engines"][0]["from"], &fetched["engines"][1]["from"]),
            (&"blobs".into(), &"cache".into())
        );
        assert_eq!(fs::read(&path).expect("the engine"), whole);
    };
    let blobs = farm.data().join("blobs");
    away(blobs.to_str().expect("UTF-8"));
    let url = serve(whole.clone());
    away(url.split("/models").next().expect("its beginning"));
    fs::remove_file(&path).expect("the engine");
    let said = one.refused(&["fetch", "--sku", sku, "--blobs", "."], 3);
    assert!(said.contains("has no plan sha256:"), "{said}");
    let url = serve(b"something else".to_vec());
    let said = one.refused(&["fetch", "--sku", sku, "--blobs", url.split("/models").next().expect("its beginning")], 2);
    assert!(said.contains("whose SHA-256 is"), "{said}");
    assert!(!path.exists());

    // Named by the environment or the project, the copy answers by itself while the coordinator is away, and says so.
    let fetch_from = |server: &str, token: &str, named: &str| {
        let mut fetch = one.command(&["fetch", "--sku", sku, "--json"]);
        fetch.env("PLANFORGE_SERVER", server).env("PLANFORGE_TOKEN", token).env("PLANFORGE_BLOBS", named);
        process::run(fetch)
    };
    let nowhere = "http://127.0.0.1:1";
    let fell_back = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("cannot reach the coordinator") && said.contains("taking 1 engines from"), "{said}");
        let fetched: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert_eq!(fetched["engines"][0]["from"], "blobs", "{fetched:#}");
        assert_eq!(fs::read(&path).expect("the engine"), whole);
        fs::remove_file(&path).expect("the engine");
    };
    let output = fetch_from(nowhere, &farm.admin, "");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && said.contains("PLANFORGE_BLOBS"), "{said}");
    fell_back(&fetch_from(nowhere, &farm.admin, blobs.to_str().expect("UTF-8")));
    let declared = one.read("planforge.toml");
    std::os::unix::fs::symlink(&blobs, one.folder.join("mirror")).expect("a link");
    one.write("planforge.toml", &format!("blobs = \"mirror\"\n{declared}"));
    fell_back(&fetch_from(nowhere, &farm.admin, ""));
    // A copy that is not what the lock names is refused as ever.
    let url = serve(b"something else".to_vec());
    let output = fetch_from(nowhere, &farm.admin, url.split("/models").next().expect("its beginning"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!path.exists());
    // One that refuses is not away, and one that is there is asked.
    let output = fetch_from(&farm.url, "nonsense", blobs.to_str().expect("UTF-8"));
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(!path.exists());
    assert_eq!(from(&[]), ["farm", "cache"]);
    one.write("planforge.toml", &declared);

    // A folder that takes nothing: refused by name; what lies in it already is fine.
    let closed = one.folder.join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("a mode");
    if fs::write(closed.join("probe"), "").is_err() {
        let said = one.refused(&["fetch", "alpha", "--sku", sku, "-o", "closed/"], 2);
        assert!(said.contains("closed") && said.contains("permission denied"), "{said}");
    } else {
        planforge_skipped::skipped("this user may write in every folder");
    }
    let said = one.refused(&["fetch", "alpha", "--sku", sku, "-o", "/dev/null/engines/"], 2);
    assert!(said.contains("/dev/null/engines"), "{said}");

    // The blob is gone from the farm: fetch says which, check is red, sync --frozen brings the same plan back.
    let digest = sha256_of(&path);
    let found = process::run({
        let mut find = Command::new("find");
        find.arg(farm.data()).args(["-type", "f", "-name", &digest]);
        find
    });
    fs::remove_file(String::from_utf8_lossy(&found.stdout).trim()).expect("the blob");
    fs::remove_file(&path).expect("the engine");
    let said = one.refused(&["fetch", "alpha", "--sku", sku], 3);
    assert!(said.contains(&digest[..12]), "{said}");
    let said = one.refused(&["check"], 1);
    assert!(said.contains("missing") && said.contains("is gone"), "{said}");
    let lock = one.read("engines.lock");
    one.json(&["sync", "--frozen"]);
    assert_eq!(one.read("engines.lock"), lock);
    assert_eq!(one.json(&["check"])["ok"], true, "a native plan is the same each time");
    assert_eq!(from(&[]), ["farm", "cache"]);

    // A link of the repository that leads elsewhere: only its user says where files are written.
    let elsewhere = farm.home("elsewhere");
    fs::rename(one.folder.join("engines"), one.folder.join("before")).expect("another name");
    std::os::unix::fs::symlink(&elsewhere, one.folder.join("engines")).expect("a link");
    let said = one.refused(&["fetch", "--sku", sku], 2);
    assert!(said.contains("leads out of"), "{said}");
    assert_eq!(engines(&elsewhere), []);
    one.json(&["fetch", "--sku", sku, "-o", "engines/"]);
    assert_eq!(engines(&elsewhere).len(), 2);
}

#[test]
fn broken_foreign_and_newer_locks_are_refused_by_line() {
    let (farm, _agent) = with_agent();
    let one = Clone::new(&farm, "one");
    declare(&one, &[("alpha", 61)], "");
    one.json(&["sync"]);
    one.commit("engines");

    // Two branches change the same model: git leaves its marks, and the next sync makes it whole.
    one.git(&["checkout", "--quiet", "-b", "left"]);
    one.model("alpha.onnx", 62);
    one.json(&["sync"]);
    one.commit("left");
    one.git(&["checkout", "--quiet", "-b", "right", "main"]);
    one.model("alpha.onnx", 63);
    one.json(&["sync"]);
    one.commit("right");
    let merged = one.git(&["merge", "left"]);
    assert!(!merged.status.success(), "{merged:?}");
    let text = one.read("engines.lock");
    let first = 1 + text.lines().position(|line| line.starts_with("<<<<<<<")).expect("a mark");
    for command in [&["check"][..], &["sync"], &["fetch"], &["diff"]] {
        let said = one.refused(command, 7);
        assert!(
            said.contains(&format!("engines.lock:{first}: a merge left its conflict marks")),
            "{command:?}: {said}"
        );
    }
    one.git(&["checkout", "--ours", "engines.lock", "alpha.onnx"]);
    let built = builds(&farm);
    one.json(&["sync"]);
    assert_eq!(builds(&farm), built, "either side is built already");
    one.commit("merged");

    // Another farm's lock: its engines are not here, and the message says where they are.
    let elsewhere = Farm::start(Link::Loopback);
    let mut check = one.command(&["check"]);
    check.env("PLANFORGE_SERVER", &elsewhere.url).env("PLANFORGE_TOKEN", &elsewhere.admin);
    let output = process::run(check);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("it was locked at {}", farm.url)), "{said}");

    let fine = one.read("engines.lock");
    let refused = |text: &str, code: i32| {
        one.write("engines.lock", text);
        one.refused(&["check"], code)
    };
    let said = refused(&fine.replace("version = 1\n", "version = 3\n"), 2);
    assert!(said.contains("engines.lock:3: the lock has version 3") && said.contains("upgrade"), "{said}");
    let said = refused(&fine.replacen(skus()[0], "h100-sxm", 1), 2);
    assert!(said.contains("is not what was written"), "{said}");
    let block = &fine[fine.find("\n[[engine]]").expect("a block")..];
    let said = refused(&format!("{fine}{block}"), 7);
    assert!(said.contains("stands twice, in lines"), "{said}");
    let said = refused("not a lock", 2);
    assert!(said.contains("engines.lock:1"), "{said}");
}

#[test]
fn what_is_wrong_with_a_declaration_is_said_with_its_line() {
    let farm = Farm::start(Link::Loopback);
    let one = Clone::new(&farm, "one");
    let said = one.refused(&["check"], 2);
    assert!(said.contains("no planforge.toml"), "{said}");
    one.write("planforge.toml", "targets = [\"h100\"]\n");
    let said = one.refused(&["config", "check"], 2);
    assert!(said.contains("planforge.toml:1: 'h100' is neither") && said.contains("h100-sxm"), "{said}");
    one.write("planforge.toml", "targets = [\"hopper\"]\n\n[models.a]\npath = \"a.onnx\"\n");
    let said = one.refused(&["config", "check"], 2);
    assert!(said.contains("a.onnx"), "a file that is not there: {said}");
    one.model("a.onnx", 71);
    one.json(&["config", "check"]);
    // No agent has registered: a class of which the farm has nothing.
    let said = one.refused(&["check"], 6);
    assert!(said.contains("knows no device of 'hopper'"), "{said}");
    // Files that are sent as they are have to be the project's own.
    one.write(
        "planforge.toml",
        "targets = [\"t4\"]\n[models.a]\npath = \"a.onnx\"\n[specs.s]\ncalibration = \"../../../../etc/passwd\"\n",
    );
    let said = one.refused(&["config", "check"], 2);
    assert!(said.contains("lies outside of"), "{said}");
    one.write(
        "planforge.toml",
        "targets = [\"t4\", \"l4\"]\n[models.a]\npath = \"a.onnx\"\n[layout]\nfile = \"{model}.plan\"\n",
    );
    let said = one.refused(&["config", "check"], 2);
    assert!(said.contains("would both be a.plan"), "{said}");
    let schema = one.json(&["config", "schema"]);
    assert!(schema["properties"]["models"].is_object() && schema["properties"]["server"].is_object(), "{schema}");
}

#[test]
fn where_nothing_was_built_the_fastest_measured_engine_answers_with_its_loss() {
    let (farm, _agent) = with_agent();
    let [built, other, ..] = skus()[..] else { return planforge_skipped::skipped("this processor has one level") };
    let one = Clone::new(&farm, "one");
    one.model("alpha.onnx", 95);
    one.write("planforge.toml", &format!("targets = [\"{built}\"]\n[models.alpha]\npath = \"alpha.onnx\"\n"));
    let synced = one.json(&["sync"]);
    let plan = synced["cells"][0]["engine"]["plan"].as_str().expect("a digest").to_owned();
    // Nobody measured it there, so nobody knows: both ways are refused, and say what would find it out.
    for arguments in
        [&["fetch", "alpha", "--sku", other][..], &["fetch", "alpha.onnx", "--unlocked", "--explain", "--sku", other]]
    {
        let said = one.refused(arguments, 3);
        assert!(
            said.contains(&format!("not measured on {other} (planforge bench {plan} --on {other} does)")),
            "{said}"
        );
    }
    one.json(&["bench", &plan, "--on", other]);
    for (arguments, folder) in [(&["alpha"][..], "locked/"), (&["alpha.onnx", "--unlocked"], "newest/")] {
        let output = one.run(&[&["fetch", "--sku", other, "-o", folder][..], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains(&format!("nothing was built for {other}: this one, built for {built}"))
                && said.contains("loss"),
            "{said}"
        );
        let found = engines(&one.folder.join(folder));
        assert_eq!(found.iter().map(|(_, digest)| digest).collect::<Vec<_>>(), [&plan]);
    }
}

#[test]
fn a_gate_holds_an_engine_against_the_one_it_replaces_until_it_is_accepted() {
    let (farm, _agent) = with_agent();
    let one = Clone::new(&farm, "one");
    one.model("alpha.onnx", 96);
    let sku = skus()[0];
    let text = format!("targets = [\"{sku}\"]\n[models.alpha]\npath = \"alpha.onnx\"\n[gates]\nslower_percent = 900\n");
    one.write("planforge.toml", &text);
    let first = one.json(&["sync"]);
    let plan = first["cells"][0]["engine"]["plan"].as_str().expect("a digest").to_owned();
    assert!(!one.read("engines.lock").contains("base_plan"), "it replaces nothing");
    one.model("alpha.onnx", 97);
    // A busy machine may leave it undecided, which is said with the gate's own exit code.
    let output = one.run(&["sync", "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 9)), "{output:?}");
    assert!(one.read("engines.lock").contains(&format!("base_plan = \"{plan}\"")), "{}", one.read("engines.lock"));
    let checked = one.run(&["check", "--json"]);
    assert_eq!(checked.status.code(), output.status.code());
    let document: Value = serde_json::from_slice(&checked.stdout).expect("one object");
    assert!(document["cells"][0]["gate"]["outcome"].is_string(), "{document:#}");
    assert_eq!(one.json(&["sync", "--accept"])["ok"], true);
    assert!(!one.read("engines.lock").contains("base_plan"));
}

/// Serves one file to whoever asks, as often as it is asked.
fn serve(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/models/served.onnx?version=1", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
            let _ = stream.write_all(&bytes);
        }
    });
    url
}

#[test]
fn a_model_of_the_web_is_fetched_by_the_command_and_is_what_its_digest_says() {
    let (farm, _agent) = with_agent();
    let sku = skus()[0];
    let one = Clone::new(&farm, "one");
    one.model("served.onnx", 81);
    let bytes = fs::read(one.folder.join("served.onnx")).expect("the model");
    let digest = hex::encode(Sha256::digest(&bytes));
    let declare = |url: &str, digest: &str| {
        let text = format!("targets = [\"{sku}\"]\n[models.web]\nurl = \"{url}\"\nsha256 = \"{digest}\"\n");
        one.write("planforge.toml", &text);
    };
    declare(&serve(bytes), &"0".repeat(64));
    let said = one.refused(&["sync"], 2);
    assert!(said.contains("whose SHA-256 is") && said.contains(&digest[..12]), "{said}");
    let url = serve(fs::read(one.folder.join("served.onnx")).expect("the model"));
    declare(&url, &digest);
    one.json(&["sync"]);
    fs::remove_file(one.folder.join("served.onnx")).expect("the model");
    // Neither asks the web again: the digest is the model's identity.
    declare("http://127.0.0.1:1/models/served.onnx", &digest);
    assert_eq!(one.json(&["check"])["ok"], true);
    assert_eq!(one.json(&["sync"])["written"], false);
    let engines = farm.json(&["engines"]);
    assert_eq!(engines["engines"][0]["model"]["name"], "served.onnx", "{engines}");
}

#[test]
fn only_what_failed_of_a_request_is_tried_again() {
    let (farm, _agent) = with_agent();
    let sku = skus()[0];
    let good = models::convolutions(&farm.path().join("good.onnx"), 1, 4, 8, 91);
    let bad = models::unknown_operators(&farm.path().join("bad.onnx"));
    let [good, bad] = [&good, &bad].map(|path| path.to_str().expect("UTF-8"));
    let mut submit = farm.cli(&["submit", good, bad, "--sku", sku, "--wait", "--json"]);
    submit.env("PLANFORGE_LOG", "off");
    let output = process::run(submit);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let submitted: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let request = submitted["request_id"].as_str().expect("an id");
    let output = process::run(farm.cli(&["retry", request, "--wait", "--json"]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let again: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let jobs = again["jobs"].as_array().expect("a list");
    assert_eq!(jobs.len(), 1, "{again:#}");
    assert_eq!((&jobs[0]["model"]["name"], &jobs[0]["cached"]), (&"bad.onnx".into(), &false.into()), "{again:#}");
    let fine = farm.submit(Path::new(good), &["--sku", sku, "--wait"]);
    assert_eq!(fine.len(), 1);
    let nothing = farm.json(&["retry", &request_of(&farm, good, sku)]);
    assert!(nothing["jobs"].as_array().is_some_and(Vec::is_empty), "{nothing}");
}

#[test]
fn what_was_skipped_is_tried_again_behind_what_it_needs() {
    let (farm, _agent) = with_agent();
    let sku = skus()[0];
    let bad = models::unknown_operators(&farm.path().join("bad.onnx"));
    let good = models::convolutions(&farm.path().join("good.onnx"), 1, 4, 8, 92);
    let [good, bad] = [&good, &bad].map(|path| path.to_str().expect("UTF-8"));
    // Nothing begins before both are submitted.
    let agents = farm.json(&["agents", "list"]);
    let agent = agents["agents"][0]["id"].as_str().unwrap_or_else(|| panic!("{agents:#}"));
    farm.json(&["agents", "drain", agent]);
    let first = farm.json(&["submit", bad, "--sku", sku]);
    let needed = first["jobs"][0]["id"].as_str().expect("an id");
    let second = farm.json(&["submit", good, "--sku", sku, "--needs", needed]);
    assert_eq!(second["jobs"][0]["state"], "blocked", "{second:#}");
    farm.json(&["agents", "resume", agent]);
    let job = farm.wait_ended(second["jobs"][0]["id"].as_str().expect("an id"));
    assert_eq!(job["state"], "skipped", "{job:#}");
    assert!(job["failure"]["message"].as_str().is_some_and(|message| message.contains(needed)), "{job:#}");
    let request = second["request_id"].as_str().expect("an id");
    let output = process::run(farm.cli(&["retry", request, "--wait", "--json"]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let again: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let jobs = again["jobs"].as_array().expect("a list");
    let of = |name: &str| jobs.iter().find(|job| job["model"]["name"] == name).expect("a job of that model");
    assert_eq!(
        (jobs.len(), &of("bad.onnx")["state"], &of("good.onnx")["state"]),
        (2, &"failed".into(), &"skipped".into())
    );
    assert_eq!(of("good.onnx")["needed"][0], of("bad.onnx")["id"], "it needs the new one");
}

/// The id of a request whose jobs all succeeded.
fn request_of(farm: &Farm, model: &str, sku: &str) -> String {
    let reply = farm.json(&["submit", model, "--sku", sku]);
    reply["request_id"].as_str().expect("an id").to_owned()
}
