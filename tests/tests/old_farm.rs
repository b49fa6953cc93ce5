//! A data folder that an earlier release wrote opens with the binary of today, and says what that release said.
//!
//! `fixtures/farm-51f5ee2.tar.zst` was made by `fixtures/make-farm.sh` with the binary of that revision: `farm/` is its
//! data folder with five engines and nine jobs, `said/` what it printed about them.

use planforge_identity::npz;
use planforge_tests::{
    models,
    process::{self, Process},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// The unpacked fixture.
struct OldFarm {
    home: TempDir,
}

impl OldFarm {
    fn unpack() -> Self {
        let home = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/farm-51f5ee2.tar.zst");
        let bytes = ruzstd::decoding::StreamingDecoder::new(File::open(path).expect("the fixture is there"));
        tar::Archive::new(bytes.expect("the fixture is zstd")).unpack(home.path()).expect("the fixture is a tar");
        Self { home }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// What the release of then printed.
    fn said(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.file("said").join(name)).expect("the fixture says it");
        serde_json::from_str(&text).expect("it is JSON")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = process::command(self.home.path());
        command.args(arguments).arg("--data").arg(self.file("farm"));
        command
    }

    /// Runs a statement that changes so many rows of the farm's database.
    fn changes(&self, rows: u64, statement: &'static str) {
        let database = format!("sqlite://{}", self.file("farm/farm.db").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let pool = sqlx::SqlitePool::connect(&database).await.expect("the database opens");
            let changed = sqlx::query(statement).execute(&pool).await.expect("the statement runs");
            assert_eq!(changed.rows_affected(), rows);
            pool.close().await;
        });
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut command = self.command(arguments);
        command.arg("--json");
        process::run_json(command)
    }
}

/// The rows of a list by the value of `key`, each cut down to `fields`.
fn rows(document: &Value, list: &str, key: &str, fields: &[&str]) -> BTreeMap<String, Vec<Value>> {
    let rows = document[list].as_array().unwrap_or_else(|| panic!("no {list} in {document}"));
    let row = |row: &Value| {
        let name = row[key].as_str().unwrap_or_else(|| panic!("no {key} in {row}")).to_owned();
        (name, fields.iter().map(|field| row.pointer(field).cloned().unwrap_or(Value::Null)).collect())
    };
    rows.iter().map(row).collect()
}

fn sha256_of(path: &Path) -> String {
    hex::encode(Sha256::digest(fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))))
}

#[test]
fn its_jobs_engines_and_reports_are_listed_as_they_were() {
    let farm = OldFarm::unpack();
    let fields = [
        "/state",
        "/kind",
        "/sku",
        "/spec",
        "/builds",
        "/engine_key",
        "/plan_digest",
        "/model/digest",
        "/failure",
        "/created_ms",
        "/toolchain",
        "/report/latency_ms",
    ];
    let (then, now) = (farm.said("jobs.json"), farm.json(&["jobs"]));
    let (then, now) = (rows(&then, "jobs", "id", &fields), rows(&now, "jobs", "id", &fields));
    assert_eq!(then.len(), 9, "the fixture has jobs that succeeded, failed and were cancelled");
    assert_eq!(now, then);

    let fields = ["/plan_digest", "/plan_bytes", "/accurate", "/builds", "/sku", "/spec", "/toolchain", "/card_digest"];
    let (then, now) = (farm.said("engines.json"), farm.json(&["engines"]));
    let (then, now) = (rows(&then, "engines", "engine_key", &fields), rows(&now, "engines", "engine_key", &fields));
    assert_eq!(then.len(), 5);
    assert_eq!(now, then);

    let (then, now) = (farm.said("report.json"), farm.json(&["report", "farm/v2.plan"]));
    for field in ["latency_ms", "throughput_per_s", "layers", "samples", "device", "plan_digest", "toolchain"] {
        assert_eq!(now["reports"][0][field], then["reports"][0][field], "{field}");
    }
}

#[test]
fn its_engines_are_fetched_read_and_run() {
    let farm = OldFarm::unpack();
    for engine in farm.said("engines.json")["engines"].as_array().expect("a list") {
        let key = engine["engine_key"].as_str().expect("a key");
        let plan = farm.file(&format!("{key}.plan"));
        farm.json(&["fetch", key, "--card", "-o", plan.to_str().expect("UTF-8")]);
        assert_eq!(Some(sha256_of(&plan).as_str()), engine["plan_digest"].as_str(), "{key}");
        let inspected = farm.json(&["inspect", plan.to_str().expect("UTF-8")]);
        for field in ["sku", "toolchain", "spec"] {
            assert_eq!(inspected[field], engine[field], "{field} of {key}");
        }
    }
    // By model, as pipelines ask; the levels have one engine and several.
    let model = models::digits();
    let plan = farm.file("by-model.plan");
    let model = model.to_str().expect("UTF-8");
    let spec = ["--spec", r#"{"threads":1}"#];
    let place = ["--sku", "cpu-x86-64-v3", "-o", plan.to_str().expect("UTF-8")];
    farm.json(&[&["fetch", model][..], &spec, &place].concat());

    let (test_set, out) = (models::digits_test_set(), farm.file("out.npz"));
    let files = ["--input", test_set.to_str().expect("UTF-8"), "--output", out.to_str().expect("UTF-8")];
    farm.json(&[&["run", "farm/v2.plan"][..], &files].concat());
    let outputs = npz::read(&out).expect("the outputs are an archive");
    assert_eq!(outputs.values().next().expect("an output").shape[0], 450, "one row an image");
}

#[test]
fn a_project_locks_and_fetches_what_it_built() {
    let farm = OldFarm::unpack();
    let project = farm.file("project");
    fs::create_dir(&project).expect("a folder");
    fs::copy(models::digits(), project.join("digits.onnx")).expect("the model");
    let declared = "targets = [\"cpu-x86-64-v3\"]\n[models.digits]\npath = \"digits.onnx\"\n[specs.one]\nthreads = 1\n";
    fs::write(project.join("planforge.toml"), declared).expect("a declaration");
    let json = |arguments: &[&str]| {
        let mut command = farm.command(arguments);
        command.arg("--json").current_dir(&project);
        process::run_json(command)
    };
    let synced = json(&["sync"]);
    assert_eq!(synced["ok"], true, "{synced:#}");
    let fetched = json(&["fetch", "--sku", "cpu-x86-64-v3"]);
    let plan = fetched["plan_digest"].as_str().expect("one engine").to_owned();
    assert_eq!(sha256_of(&project.join("engines/digits/cpu-x86-64-v3/one.plan")), plan);
    let engines = farm.said("engines.json");
    let then = engines["engines"].as_array().expect("a list").iter().find(|engine| engine["sku"] == "cpu-x86-64-v3");
    let then = then.expect("an engine");
    // Of the same revision of the compiler it is the very engine of then.
    let revision = planforge_cpu::COMPILER_REVISION.to_string();
    if then["toolchain"]["version"].as_str() == Some(revision.as_str()) {
        assert_eq!(Some(plan.as_str()), then["plan_digest"].as_str(), "{synced:#}");
    }
    assert_eq!(json(&["check"])["ok"], true);
}

#[test]
fn its_reports_are_compared() {
    let farm = OldFarm::unpack();
    let said = farm.said("jobs.json");
    let measured: Vec<&Value> = said["jobs"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|job| job["state"] == "succeeded" && job["kind"] == "build" && job["sku"] == "cpu-x86-64-v2")
        .filter(|job| job["model"]["name"] == "digits.onnx")
        .collect();
    assert_eq!(measured.len(), 3);
    let ids: Vec<&str> = measured.iter().map(|job| job["id"].as_str().expect("an id")).collect();
    let compared = farm.json(&[&["compare"][..], &ids].concat());
    let medians: Vec<&Value> = compared["rows"].as_array().expect("rows").iter().map(|row| &row["median_ms"]).collect();
    let then: Vec<&Value> = measured.iter().map(|job| &job["report"]["latency_ms"]["median"]).collect();
    assert_eq!(medians, then);
    let verdicts: Vec<&Value> =
        compared["pairs"].as_array().expect("pairs").iter().map(|pair| &pair["verdict"]).collect();
    assert_eq!(verdicts.len(), 3, "{compared}");
    assert!(verdicts.iter().all(|verdict| verdict.is_string() && **verdict != "cannot_tell"), "{compared}");
}

#[test]
fn its_tokens_and_plugins_are_what_they_were() {
    let farm = OldFarm::unpack();
    let tokens = farm.json(&["token", "list"]);
    let state: BTreeMap<_, _> = rows(&tokens, "tokens", "name", &["/role", "/revoked"]);
    assert_eq!(state["ci"], [Value::from("read"), false.into()], "{tokens}");
    assert_eq!(state["gone"], [Value::from("submit"), true.into()], "{tokens}");
    assert_eq!(state["admin"], [Value::from("admin"), false.into()], "{tokens}");

    let command = farm.command(&["coordinator", "--listen", "127.0.0.1:0"]);
    let mut coordinator = Process::start("coordinator", farm.home.path(), command);
    let line = coordinator.wait_for_line("url  ");
    let url = line.split_whitespace().last().expect("a URL").to_owned();
    let status = |file: &str| {
        let mut command = process::command(farm.home.path());
        // Made before token files were closed to others.
        command.args(["jobs", "--server", &url, "--allow-readable-key", "--token-file", file]);
        process::run(command).status.code()
    };
    assert_eq!(status("farm/ci.token"), Some(0));
    assert_eq!(status("farm/gone.token"), Some(5), "a revoked token stays revoked");
}

/// This machine's agent as an earlier release left it, whose compiler had another revision.
const ANOTHER_COMPILER: &str =
    r#"UPDATE agents SET doc = replace(doc, '"backend":"native","version":"6"', '"backend":"native","version":"1"')"#;
/// Another machine's beside it, which joined while the folder's farm had a port.
const ANOTHER_MACHINE: &str = r#"INSERT INTO agents (id, seen_ms, doc) SELECT 'elsewhere', seen_ms, json_set(replace(doc,
    '"backend":"native","version":"6"', '"backend":"native","version":"1"'), '$.id', 'elsewhere', '$.name', 'elsewhere')
    FROM agents"#;

/// Nobody has the toolchain that is asked for any more: said, instead of waited for, also where nothing else is.
#[test]
fn a_build_ends_whose_toolchain_nobody_offers_any_more() {
    let (model, today) = (models::digits(), format!("native {}", planforge_cpu::COMPILER_REVISION));
    for (known, said_of_it) in [(ANOTHER_COMPILER, today.as_str()), (ANOTHER_MACHINE, "planforge agents forget")] {
        let farm = OldFarm::unpack();
        farm.changes(1, known);
        let mut build = farm.command(&["build", "--quiet", "--toolchain", "native=1", "--threads", "1"]);
        build.args(["--sku", "cpu-x86-64-v2", "--optimization-level", "2"]).arg(&model);
        let output = process::run(build);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{said}");
        assert!(said.contains(said_of_it), "{said}");
        // What it had asked for is withdrawn, and the folder builds on.
        let jobs = farm.json(&["jobs"]);
        let live = |job: &&Value| !planforge_tests::farm::is_ended(job);
        assert!(jobs["jobs"].as_array().expect("a list").iter().find(live).is_none(), "{jobs}");
        let model = model.to_str().expect("UTF-8");
        let built = farm.json(&["build", model, "--sku", "cpu-x86-64-v2", "--threads", "1", "--toolchain", "native"]);
        assert_eq!(built["jobs"][0]["state"], "succeeded", "{built}");
    }
}

/// As after an upgrade whose compiler has another revision: what the folder knows of this machine is out of date.
#[test]
fn a_machine_that_offers_another_compiler_than_before_builds_with_it() {
    let farm = OldFarm::unpack();
    farm.changes(1, ANOTHER_COMPILER);
    let model = models::digits();
    let model = model.to_str().expect("UTF-8");
    let built = farm.json(&["build", model, "--sku", "cpu-x86-64-v2", "--threads", "1", "--optimization-level", "2"]);
    let job = &built["jobs"][0];
    assert_eq!(job["state"], "succeeded", "{built}");
    assert_ne!(job["toolchain"]["version"], "1", "{built}");
    // The jobs of before are found again, and the withdrawn one has ended.
    let jobs = farm.json(&["jobs"]);
    let live = |job: &&Value| !planforge_tests::farm::is_ended(job);
    assert!(jobs["jobs"].as_array().expect("a list").iter().find(live).is_none(), "{jobs}");
}

/// Projects beyond those that one reply holds.
const TEAMS: u64 = 1_203;

#[test]
fn every_project_is_listed_however_many_there_are() {
    let farm = OldFarm::unpack();
    farm.json(&["projects", "set", "red", "--share", "2"]);
    farm.changes(
        TEAMS,
        "WITH RECURSIVE teams(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM teams WHERE n < 1203)
        INSERT INTO projects SELECT printf('team-%04d', n), json_set(doc, '$.name', printf('team-%04d', n))
        FROM teams, projects WHERE name = 'red'",
    );
    let listed = farm.json(&["projects", "list"]);
    let names: Vec<&str> =
        listed["projects"].as_array().unwrap().iter().map(|project| project["name"].as_str().unwrap()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(names, sorted, "each once, by name");
    let teams: Vec<String> = (1..=TEAMS).map(|n| format!("team-{n:04}")).collect();
    assert!(teams.iter().all(|team| sorted.binary_search(&team.as_str()).is_ok()), "{} are listed", names.len());
    // People see all of them, too.
    let table = process::run(farm.command(&["projects", "list"]));
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(teams.iter().all(|team| table.contains(team)), "{table}");
}
