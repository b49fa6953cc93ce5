//! What runs inside the worker process: one order in, events out.
//!
//! Standard output carries events only. Whatever libraries print there is led to standard error, which is the
//! attempt's log. End of standard input means that the agent is gone: the work is cancelled and, should it not stop,
//! the process is ended.
//!
//! A build that needs a process of its own is done by this program started once more, with the same words on its command
//! line and a `Task::Compile` as its first line; see `out_of_process`.

mod out_of_process;

use crate::log_fields::log_fields;
use out_of_process::{CompileOrder, OutOfProcess};
use planforge_backend::{Cancel, Compiler};
use planforge_device::telemetry::OpenTelemetry;
use planforge_trace::lines;
use planforge_types::{
    FailureClass,
    order::{WorkCommand, WorkEvent, WorkOrder},
};
use planforge_worker::job::RunEnd;
use std::{
    fs::File,
    io::{self, BufRead as _, Write as _},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    filter::Targets, fmt, fmt::format::JsonFields, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// Largest order; a fingerprint and a spec with hundreds of profiles stay far below.
const ORDER_MAX_BYTES: u64 = 16 << 20;
/// How long cancelled work may take to stop once the agent is gone.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// What a worker process is started for: the first line of its input.
enum Task {
    Work(Box<WorkOrder>),
    Compile(Box<CompileOrder>),
}

impl Task {
    fn read() -> Result<Self, String> {
        let mut line = Vec::new();
        // Locked only for this line; later lines are read by `listen` through the same buffer.
        let mut stdin = io::Read::take(io::stdin().lock(), ORDER_MAX_BYTES);
        stdin.read_until(b'\n', &mut line).map_err(|error| format!("cannot read the order: {error}"))?;
        Self::of(&line).map_err(|error| format!("the order cannot be understood: {error}"))
    }

    fn of(line: &[u8]) -> serde_json::Result<Self> {
        match line.starts_with(out_of_process::PREFIX) {
            true => serde_json::from_slice(&line[out_of_process::PREFIX.len()..]).map(Self::Compile),
            false => serde_json::from_slice(line).map(Self::Work),
        }
    }
}

/// Takes one order from standard input, runs it with `compilers` and tells how it goes on standard output.
///
/// `open_telemetry` gives the reader of the order's device: the product's own, or a script in tests.
///
/// The process does nothing else: no other thread may use standard input or output.
pub fn worker_main(compilers: Vec<Box<dyn Compiler>>, open_telemetry: &OpenTelemetry<'_>) -> ExitCode {
    log_to_stderr();
    let mut out = match take_stdout() {
        Ok(out) => out,
        Err(error) => {
            tracing::error!(%error, "cannot set up the worker's output");
            return ExitCode::FAILURE;
        }
    };
    let cancel = Cancel::default();
    match Task::read() {
        Ok(Task::Work(order)) => work(&order, compilers, open_telemetry, out, &cancel),
        Ok(Task::Compile(order)) => {
            let _commands = listen(cancel.clone());
            out_of_process::compile(&order, &compilers, out, &cancel)
        }
        Err(message) => {
            let (class, hint) = (FailureClass::Infrastructure, String::new());
            tell(&mut out, &WorkEvent::Failed { class, message, hint, reason: None });
            ExitCode::FAILURE
        }
    }
}

fn work(
    order: &WorkOrder,
    compilers: Vec<Box<dyn Compiler>>,
    open_telemetry: &OpenTelemetry<'_>,
    mut out: File,
    cancel: &Cancel,
) -> ExitCode {
    let compilers: Vec<Box<dyn Compiler>> =
        compilers.into_iter().map(|compiler| Box::new(OutOfProcess::of(compiler)) as Box<dyn Compiler>).collect();
    lines::all_about(about(order));
    tracing::info!(target: "attempt", sku = %order.sku, toolchain = %order.toolchain, "work begins");
    let mut emit = move |event: WorkEvent| tell(&mut out, &event);
    let commands = listen(cancel.clone());
    let mut wait_continue = || match commands.recv() {
        Ok(WorkCommand::Continue) => Ok(()),
        Err(_) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the agent is gone")),
    };
    match planforge_worker::job::run(order, &compilers, open_telemetry, &mut emit, &mut wait_continue, cancel) {
        RunEnd::Succeeded => ExitCode::SUCCESS,
        RunEnd::Failed => ExitCode::FAILURE,
    }
}

/// What log lines of JSON say of whom they are about.
fn about(order: &WorkOrder) -> serde_json::Map<String, serde_json::Value> {
    let mut fields = serde_json::Map::new();
    fields.insert("job".into(), order.job.clone().into());
    fields.insert("attempt".into(), order.attempt.into());
    fields.insert("agent".into(), order.agent.clone().into());
    fields.extend(order.trace.map(|trace| ("trace".to_owned(), trace.id().into())));
    fields
}

/// Writes one line.
fn tell(out: &mut File, event: &impl serde::Serialize) {
    let mut line = serde_json::to_vec(event).expect("events have only JSON types");
    line.push(b'\n');
    // Whoever no longer reads is noticed by the end of standard input.
    if let Err(error) = out.write_all(&line) {
        tracing::debug!(%error, "nobody reads any more");
    }
}

/// What a process logs goes to its standard error, as `PLANFORGE_LOG` and `PLANFORGE_LOG_FORMAT` ask.
pub fn log_to_stderr() {
    let wanted = std::env::var("PLANFORGE_LOG").ok().and_then(|wanted| wanted.parse().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let layer = fmt::layer().with_writer(io::stderr);
    let filtered = tracing_subscriber::registry().with(filter);
    // An embedding program may have set up its own.
    let _ = match std::env::var("PLANFORGE_LOG_FORMAT").is_ok_and(|format| format == "json") {
        true => filtered.with(layer.fmt_fields(JsonFields::new()).event_format(lines::Flat)).try_init(),
        false => filtered.with(layer.fmt_fields(log_fields()).with_ansi(false)).try_init(),
    };
}

/// Keeps the pipe to the agent under another descriptor and leads standard output to standard error.
pub fn take_stdout() -> io::Result<File> {
    let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(File::from(pipe))
}

/// Reads commands on a thread of its own until the agent is gone.
fn listen(cancel: Cancel) -> mpsc::Receiver<WorkCommand> {
    let (sender, commands) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(command) => {
                    if sender.send(command).is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(line, %error, "ignoring a command that cannot be understood"),
            }
        }
        cancel.cancel();
        drop(sender);
        thread::park_timeout(ORPHAN_GRACE);
        tracing::error!("the agent is gone and the work does not stop: ending the process");
        #[expect(clippy::disallowed_methods, reason = "an orphan must free its device; nothing is left to clean up")]
        std::process::exit(1);
    });
    commands
}
