//! What a farm tells Prometheus: scraped by a real one from a farm that works, with every query of the dashboard and
//! every alert that the project gives.

use planforge_tests::{
    eventually,
    farm::{Farm, Link},
    fleet::{Host, HostLimits},
    models,
    process::Process,
    release::{ran, root},
    scripted::{Script, Step},
};
use serde_json::{Value, json};
use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
};

const GPU: &str = "t4";

/// A program of Prometheus, which `test.sh` unpacks; nothing, and a word, where it is not.
fn program(name: &str) -> Option<PathBuf> {
    let unpacked = root().join("target/prometheus-package/usr/bin").join(name);
    let installed = Path::new("/usr/bin").join(name);
    let found = [unpacked, installed].into_iter().find(|path| path.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "test.sh unpacks {name}");
        planforge_skipped::skipped(format_args!("{name} is not there: ./test.sh unpacks it"));
    }
    found
}

fn monitoring() -> PathBuf {
    root().join("deploy/monitoring")
}

#[test]
fn alerts_fire_where_they_should_and_not_beside_it() {
    let Some(promtool) = program("promtool") else { return };
    let run = |arguments: &[&str]| ran(Command::new(&promtool).args(arguments).current_dir(monitoring()));
    run(&["check", "rules", "alerts.yml"]);
    run(&["check", "config", "--syntax-only", "prometheus.yml"]);
    run(&["test", "rules", "alerts-test.yml", "alerts-weeks-test.yml"]);

    // Each alert has a case in which it fires, and a place in the operator's book.
    let alerts = fs::read_to_string(monitoring().join("alerts.yml")).unwrap();
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect::<Vec<_>>();
    assert!(names.len() >= 10, "{names:?}");
    let cases =
        ["alerts-test.yml", "alerts-weeks-test.yml"].map(|name| fs::read_to_string(monitoring().join(name)).unwrap());
    let book = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    for name in names {
        let fires = format!("alertname: {name}\n        exp_alerts:");
        assert!(cases.iter().any(|cases| cases.contains(&fires)), "{name} never fires in a test");
        assert!(book.contains(&format!("`{name}`")), "docs/operations.md does not say what to do at {name}");
    }
}

/// A Prometheus that scrapes a farm.
struct Prometheus {
    url: String,
    _process: Process,
}

impl Prometheus {
    fn start(program: &Path, farm: &Farm) -> Self {
        let home = farm.home("prometheus");
        fs::write(home.join("token"), farm.token("prometheus", "read")).unwrap();
        let target = farm.url.strip_prefix("http://").expect("plain HTTP");
        // The project's own file, but for the address and what is secret; scraped more often.
        let config = fs::read_to_string(monitoring().join("prometheus.yml")).unwrap();
        let config = config
            .replace("15s", "1s")
            .replace("scheme: https", "scheme: http")
            .replace("/etc/prometheus/planforge.token", home.join("token").to_str().unwrap())
            .replace("coordinator.example:7400", target);
        let (kept, tls) = config.split_once("    tls_config:").expect("TLS of its own");
        let rest = &tls[tls.find("    static_configs:").expect("targets")..];
        fs::write(home.join("prometheus.yml"), format!("{kept}{rest}")).unwrap();
        fs::copy(monitoring().join("alerts.yml"), home.join("alerts.yml")).unwrap();
        // It takes no port 0 that it would tell: one that is free now.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(program);
        command.arg(format!("--config.file={}", home.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", home.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = Process::start("prometheus", farm.path(), command);
        Self { url: format!("http://127.0.0.1:{port}"), _process: process }
    }

    fn ask(&self, path: &str, query: Option<&str>) -> Result<Value, String> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--get", &format!("{}/api/v1/{path}", self.url)]);
        if let Some(query) = query {
            curl.args(["--data-urlencode", &format!("query={query}")]);
        }
        let output = curl.output().map_err(|e| e.to_string())?;
        let answer: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("{e}: {output:?}"))?;
        if answer["status"] == "success" { Ok(answer["data"].clone()) } else { Err(answer.to_string()) }
    }
}

#[test]
fn every_query_of_the_dashboard_has_an_answer_from_a_farm_that_works() {
    let Some(program) = program("prometheus") else { return };
    let farm = Farm::start(Link::Loopback);
    let host = Host::start(&farm, GPU, &["10.3.0.26"], HostLimits::default());
    let _cpu = farm.start_agent("cpu", "host-cpu", None);
    farm.wait_agents(2);
    // The board is too warm, so that there is something to tell.
    let hot = Step { throttle: vec!["thermal".into()], ..Step::default() };
    Script { telemetry: vec![hot], ..Script::healthy(GPU) }.write(&host.script);

    let model = models::convolutions(&farm.path().join("net.onnx"), 2, 8, 10, 7);
    let path = model.to_str().expect("UTF-8");
    farm.json(&["submit", path, "--sku", "cpu-x86-64-v2", "--wait"]);
    farm.json(&["submit", path, "--sku", "cpu-x86-64-v2", "--wait"]);
    // This one waits: its device gets no jobs.
    ran(&mut farm.cli(&["agents", "drain", "host-t4"]));
    let waiting = farm.submit(&model, &["--sku", GPU]);
    assert_eq!(waiting.len(), 1, "{waiting:?}");

    let prometheus = Prometheus::start(&program, &farm);
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(monitoring().join("grafana.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().expect("panels");
    let queries: Vec<(&Value, String)> = panels
        .iter()
        .flat_map(|panel| {
            panel["targets"].as_array().into_iter().flatten().map(move |target| (&panel["title"], target))
        })
        .map(|(title, target)| (title, target["expr"].as_str().expect("a query")))
        .map(|(title, query)| {
            (title, query.replace("$__rate_interval", "30s").replace("$job", "planforge").replace("$sku", ".*"))
        })
        .collect();
    assert!(queries.len() >= 30, "{}", queries.len());
    for (title, query) in &queries {
        assert!(!query.contains('$'), "{title}: {query}");
        eventually(&format!("{title}: {query}"), || {
            let data = prometheus.ask("query", Some(query))?;
            let rows = data["result"].as_array().map_or(0, Vec::len);
            if rows > 0 { Ok(()) } else { Err(data.to_string()) }
        });
    }
    // What the farm tells of the board arrives with the exporter's names, under its UUID.
    let uuid = host.board.uuid();
    let clock = prometheus.ask("query", Some(&format!("DCGM_FI_DEV_SM_CLOCK{{UUID=\"{uuid}\"}}"))).unwrap();
    assert_eq!(clock["result"][0]["metric"]["Hostname"], json!("host-t4"), "{clock}");
    // Variables of the dashboard name series that are there.
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let Some(query) = variable["query"].as_str().and_then(|query| query.strip_prefix("label_values(")) else {
            continue;
        };
        let (series, label) = query.trim_end_matches(')').split_once(", ").expect("a series and a label");
        let found = prometheus.ask("query", Some(series)).unwrap();
        assert!(found["result"][0]["metric"][label].is_string(), "{query}: {found}");
    }
    // Its rules are loaded, and none is in error.
    let rules = prometheus.ask("rules", None).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().expect("rules").clone();
    assert!(!rules.is_empty() && rules.iter().all(|rule| rule["lastError"].is_null()), "{rules:?}");
}
