//! One job told from the command line to its worker: log lines of JSON, and the spans that a collector gets.

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as Any},
    trace::v1::Span,
};
use planforge_tests::{
    eventually,
    farm::{Farm, Link, id_of},
    models,
    process::{self, Process},
};
use prost::Message as _;
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    net::TcpListener,
    process::Command,
    sync::{Arc, Mutex},
};

const SKU: &str = "cpu-x86-64-v2";
/// What a CI service would have set.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLERS_SPAN: &str = "00f067aa0ba902b7";

/// What begins the lines that a coordinator prints on standard output when it starts.
const ANNOUNCED: [&str; 5] = ["url ", "page ", "sign in ", "token file ", "data "];

fn submit(farm: &Farm, extra: &[&str]) -> Command {
    let model = models::digits();
    let mut command =
        farm.cli(&["submit", model.to_str().unwrap(), "--sku", SKU, "--threads", "1", "--wait", "--json"]);
    command.args(extra).env("TRACEPARENT", CALLER);
    command
}

/// Runs a submission to its end: its one job, and what was said on standard error.
fn submitted(command: Command) -> (String, String) {
    let output = process::run(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    (id_of(&document["jobs"][0]), said)
}

/// Every line as an object.
fn decoded<'a>(whose: &str, lines: impl Iterator<Item = &'a str>) -> Vec<Map<String, Value>> {
    let decoded: Vec<Map<String, Value>> = lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{whose}: {error}: {line}")))
        .collect();
    for line in &decoded {
        for name in ["timestamp", "level", "target", "message"] {
            assert!(line.get(name).is_some_and(Value::is_string), "{whose}: no {name} in {line:?}");
        }
    }
    decoded
}

fn must_say(whose: &str, lines: &[Map<String, Value>], fields: &[(&str, Value)]) {
    let says = |line: &&Map<String, Value>| fields.iter().all(|(name, value)| line.get(*name) == Some(value));
    assert!(lines.iter().any(|line| says(&line)), "{whose}: no line has all of {fields:?}:\n{lines:#?}");
}

#[test]
fn every_line_for_machines_is_an_object_and_one_trace_goes_through_all_of_a_job() {
    let farm = Farm::start_with(Link::Loopback, &["--log-format", "json"]);
    let mut agent = farm.agent_command(&farm.url, "rack", "host", None);
    agent.env("PLANFORGE_LOG_FORMAT", "json");
    let agent = Process::start("agent-rack", farm.path(), agent);
    farm.wait_agents(1);
    let (job, said) = submitted(submit(&farm, &["--quiet", "--log", "info", "--log-format", "json"]));

    let of_job = [("job", Value::from(&*job)), ("trace", TRACE.into())];
    let of_attempt = [&of_job[..], &[("attempt", 1.into()), ("agent", "rack".into())]].concat();
    must_say("command line", &decoded("command line", said.lines()), &of_job);

    let told = farm.coordinator.log();
    let announced = |line: &&str| ANNOUNCED.iter().any(|start| line.starts_with(start));
    assert_eq!(told.lines().filter(announced).count(), ANNOUNCED.len(), "{told}");
    let lines = decoded("coordinator", told.lines().filter(|line| !announced(line)));
    for (message, fields) in [("job submitted", &of_job[..]), ("job leased", &of_attempt), ("job ended", &of_attempt)] {
        must_say("coordinator", &lines, &[fields, &[("message", message.into())]].concat());
    }

    let told = agent.log();
    let lines = decoded("agent", told.lines());
    for message in ["attempt starts", "attempt ended"] {
        must_say("agent", &lines, &[&of_attempt[..], &[("message", message.into())]].concat());
    }
    // What looks for devices knows nothing of agents.
    let of_session = |line: &&Map<String, Value>| {
        line["target"].as_str().is_some_and(|target| target.starts_with("planforge_agent::session"))
    };
    assert!(lines.iter().filter(of_session).all(|line| line.get("agent") == Some(&"rack".into())), "{told}");

    let log = process::run(farm.cli(&["logs", &job]));
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    // What the agent notes in the log of its attempt is for whoever reads that.
    let lines = decoded("worker", log.lines().filter(|line| !line.starts_with("agent: ")));
    must_say("worker", &lines, &of_attempt);
    assert!(lines.iter().all(|line| line.get("trace") == Some(&TRACE.into())), "{log}");
}

/// Takes what is handed over, and decodes it as OpenTelemetry's own crate does.
struct Collector {
    url: String,
    taken: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    _runtime: tokio::runtime::Runtime,
}

/// A span with the service that it came from.
struct Told {
    service: String,
    span: Span,
}

impl Told {
    fn id(&self) -> String {
        hex::encode(&self.span.span_id)
    }

    fn parent(&self) -> String {
        hex::encode(&self.span.parent_span_id)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        text(&self.span.attributes, name)
    }
}

fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text.clone()),
        other => panic!("{name} is {other:?}"),
    }
}

impl Collector {
    fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let into = taken.clone();
        let take = async move |headers: axum::http::HeaderMap, body: axum::body::Bytes| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            into.lock().unwrap().push(ExportTraceServiceRequest::decode(body).expect("a request of OTLP"));
        };
        let routes = axum::Router::new().route("/v1/traces", axum::routing::post(take));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Self { url, taken, _runtime: runtime }
    }

    fn told(&self) -> Vec<Told> {
        let taken = self.taken.lock().unwrap().clone();
        let resources = taken.into_iter().flat_map(|request| request.resource_spans);
        let spans = resources.flat_map(|resource| {
            let service = text(&resource.resource.expect("a resource").attributes, "service.name");
            let service = service.expect("a service has a name");
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.map(move |span| Told { service: service.clone(), span }).collect::<Vec<_>>()
        });
        spans.collect()
    }
}

/// Service, name and the name of what it is below, of every span that a job of one attempt must have.
const TREE: [(&str, &str, &str); 12] = [
    ("planforge-client", "submit", "command"),
    ("planforge-coordinator", "accept", "submit"),
    ("planforge-coordinator", "queue wait", "accept"),
    ("planforge-coordinator", "lease", "accept"),
    ("planforge-agent", "attempt", "lease"),
    ("planforge-agent", "fetch", "attempt"),
    ("planforge-worker", "compile", "attempt"),
    ("planforge-worker", "verify", "attempt"),
    ("planforge-agent", "upload", "attempt"),
    ("planforge-worker", "measure", "attempt"),
    ("planforge-worker", "windows", "measure"),
    ("planforge-agent", "report", "attempt"),
];

const NS_PER_MS: u64 = 1_000_000;

#[test]
fn a_collector_gets_one_trace_from_the_command_line_to_the_worker() {
    let collector = Collector::start();
    let export = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str());
    let farm = Farm::start_among(Link::Loopback, &[], &[export]);
    let mut agent = farm.agent_command(&farm.url, "rack", "host", None);
    agent.env(export.0, export.1);
    let agent = Process::start("agent-rack", farm.path(), agent);
    farm.wait_agents(1);
    let mut command = submit(&farm, &[]);
    command.env(export.0, export.1);
    let (job, said) = submitted(command);
    assert!(!said.contains("collector"), "{said}");

    let told = eventually("every span arrives", || {
        let told = collector.told();
        let names: Vec<&str> = told.iter().map(|told| told.span.name.as_str()).collect();
        let lacks = TREE.iter().find(|(_, name, _)| !names.contains(name));
        match lacks {
            None if names.contains(&"command") => Ok(told),
            _ => Err(format!("{names:?}")),
        }
    });
    let by_id: BTreeMap<String, &Told> = told.iter().map(|told| (told.id(), told)).collect();
    assert_eq!(by_id.len(), told.len(), "no two spans have one place");
    for (service, name, below) in TREE {
        for one in told.iter().filter(|told| told.span.name == name) {
            let parents: Vec<&str> =
                by_id.get(&one.parent()).map(|parent| parent.span.name.as_str()).into_iter().collect();
            // A submission that uploads comes twice, and of both there are spans.
            assert_eq!((one.service.as_str(), parents), (service, vec![below]), "{:?}", one.span);
        }
    }
    for one in &told {
        let span = &one.span;
        assert_eq!(hex::encode(&span.trace_id), TRACE, "{span:?}");
        assert!(span.status.is_none() && 0 < span.start_time_unix_nano, "{span:?}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        let Some(parent) = by_id.get(&one.parent()) else {
            assert_eq!((span.name.as_str(), one.parent().as_str()), ("command", CALLERS_SPAN), "{span:?}");
            continue;
        };
        // The farm's clock counts milliseconds.
        let (begins, begun) = (span.start_time_unix_nano, parent.span.start_time_unix_nano);
        assert!(begins / NS_PER_MS >= begun / NS_PER_MS, "{span:?} begins before {:?}", parent.span);
        // What a submission leads to goes on when it was taken; all else ends within what it is below.
        if parent.span.name != "accept" {
            assert!(span.end_time_unix_nano <= parent.span.end_time_unix_nano, "{span:?} outlives {:?}", parent.span);
        }
        if !["command", "submit", "accept"].contains(&span.name.as_str()) {
            assert_eq!(one.attribute("planforge.job").as_deref(), Some(&*job), "{span:?}");
            assert_eq!(one.attribute("planforge.attempt").as_deref(), Some("1"), "{span:?}");
            assert_eq!(one.attribute("planforge.agent").as_deref(), Some("rack"), "{span:?}");
        }
    }
    let named = told.iter().filter(|told| told.attribute("planforge.job").as_deref() == Some(&*job));
    let mut services: Vec<&str> = named.map(|told| told.service.as_str()).collect();
    services.sort_unstable();
    services.dedup();
    assert_eq!(services, ["planforge-agent", "planforge-client", "planforge-coordinator", "planforge-worker"]);
    // Nothing else is measured meanwhile.
    let mut windows: Vec<(u64, u64)> = told
        .iter()
        .filter(|told| told.span.name == "windows")
        .map(|told| (told.span.start_time_unix_nano, told.span.end_time_unix_nano))
        .collect();
    windows.sort_unstable();
    assert!(windows.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{windows:?}");

    // Lines for people name the job, too.
    for (whose, log) in [("coordinator", farm.coordinator.log()), ("agent", agent.log())] {
        let names = |line: &str| line.contains(&format!("job={job}")) && line.contains(&format!("trace={TRACE}"));
        assert!(log.lines().any(names), "{whose}:\n{log}");
    }
}

#[test]
fn a_collector_that_is_away_costs_one_line() {
    let home = tempfile::Builder::new().prefix("planforge-test-").tempdir().unwrap();
    // Nobody listens where somebody just did.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let model = models::digits();
    let mut command = process::command(home.path());
    command.args(["build", model.to_str().unwrap(), "--threads", "1", "--data"]).arg(home.path().join("data"));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}/"));
    let output = process::run(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("collector")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains(&format!("http://{address}/v1/traces")) && lines[0].contains("said once"), "{said}");
}
