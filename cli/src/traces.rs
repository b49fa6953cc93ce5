//! The trace that this command's requests belong to, and who takes the spans of this process.
//!
//! A command's trace is the one that `TRACEPARENT` names, as CI services set it, or one of its own.

#[cfg(feature = "otlp")]
use crate::printer::Printer;
use planforge_client::FarmService;
use planforge_proto::v1;
#[cfg(feature = "otlp")]
use planforge_trace::otlp::{Deliver, Exporter};
use planforge_trace::{Kind, Part, Span, emit, fresh, unix_ns};
use planforge_types::TraceContext;
use std::sync::OnceLock;
use tonic::{Request, Response, Status};

/// What this command is in its trace.
struct Command {
    place: TraceContext,
    parent: Option<TraceContext>,
    began_unix_ns: u64,
}

static COMMAND: OnceLock<Command> = OnceLock::new();

/// This command, from the moment that it first submits.
fn command() -> &'static Command {
    COMMAND.get_or_init(|| {
        let own = fresh();
        let parent: Option<TraceContext> = std::env::var("TRACEPARENT").ok().and_then(|text| text.parse().ok());
        let place = parent.map_or(own, |parent| TraceContext { span: own.span, ..parent });
        Command { place, parent, began_unix_ns: unix_ns() }
    })
}

/// Submits within this command's trace.
pub async fn submit(rpc: &mut FarmService, request: v1::SubmitRequest) -> Result<v1::SubmitReply, Status> {
    let command = command();
    let place = TraceContext { span: fresh().span, ..command.place };
    let mut call = Request::new(request);
    if let Ok(text) = place.to_string().parse() {
        call.metadata_mut().insert("traceparent", text);
    }
    let began = unix_ns();
    let answer = rpc.submit(call).await.map(Response::into_inner);
    let mut attributes = Vec::new();
    if let Ok(reply) = &answer {
        let job = match &reply.jobs[..] {
            [job] => Some(job.id.as_str()),
            _ => None,
        };
        attributes.push(("planforge.request", reply.request_id.clone()));
        attributes.extend(job.map(|job| ("planforge.job", job.to_owned())));
        let (jobs, lacks) = (reply.jobs.len(), reply.missing_blobs.len());
        tracing::info!(request = reply.request_id, job, jobs, lacks, trace = %place.id(), "submitted");
    }
    emit(Span {
        part: Part::Client,
        name: "submit".into(),
        kind: Kind::Client,
        context: place,
        parent: Some(command.place),
        start_unix_ns: began,
        end_unix_ns: unix_ns(),
        attributes,
        error: answer.as_ref().err().map(|status| status.message().to_owned()),
    });
    answer
}

/// The command has ended; `error` says why not well. One that submitted nothing is in no trace.
pub fn ended(error: Option<String>) {
    let Some(Command { place, parent, began_unix_ns }) = COMMAND.get() else { return };
    emit(Span {
        part: Part::Client,
        name: "command".into(),
        kind: Kind::Internal,
        context: *place,
        parent: *parent,
        start_unix_ns: *began_unix_ns,
        end_unix_ns: unix_ns(),
        attributes: Vec::new(),
        error,
    });
}

/// A variable of the environment that is not empty.
#[cfg(feature = "otlp")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Takes this process's spans to the collector that the environment names, until what is returned is dropped.
#[cfg(feature = "otlp")]
pub fn export(printer: &Printer) -> Option<Exporter> {
    let endpoint = variable("OTEL_EXPORTER_OTLP_ENDPOINT")?;
    let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    let told = printer.clone();
    let tell = move |why: &str| {
        told.warn(&format!("no collector takes traces: {why}; jobs go on without, and this is said once"));
    };
    let exporter = Exporter::start(variable("OTEL_SERVICE_NAME"), Box::new(tell), move || deliver(&url));
    exporter.map_err(|error| printer.warn(&format!("traces go nowhere: {error}"))).ok()
}

#[cfg(feature = "otlp")]
fn deliver(url: &str) -> Result<Deliver, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    let post = planforge_client::post::Post::to(url).map_err(|error| error.to_string())?;
    Ok(Box::new(move |bytes| {
        let sent = runtime.block_on(post.send("application/x-protobuf", bytes.into()));
        sent.map_err(|error| error.to_string())
    }))
}
