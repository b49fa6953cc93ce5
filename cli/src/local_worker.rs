//! One order, done by a worker process of this program: its memory is its own, and it may crash alone.

use crate::{failure::Failure, printer::Printer, reports};
use planforge_proto::ErrorCode;
use planforge_report::Report;
use planforge_types::{
    BackendError,
    fingerprint::DeviceFingerprint,
    order::{WorkCommand, WorkEvent, WorkOrder},
};
use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
};

/// What a worker came to.
#[derive(Debug)]
pub struct Done {
    pub report: Report,
    /// The plan that it built, in the order's folder.
    pub plan: Option<PathBuf>,
}

/// Runs `order` on `device` to its end. The worker's log goes to standard error where `verbose`.
pub fn run(printer: &Printer, order: &WorkOrder, device: &DeviceFingerprint, verbose: bool) -> Result<Done, Failure> {
    let spinner = printer.spinner("starting");
    let result = start(order, device, verbose)
        .map_err(|error| Failure::new(ErrorCode::Internal, format!("cannot start a worker process: {error}")))
        .and_then(|mut child| {
            let log = child.stderr.take();
            thread::scope(|scope| {
                scope.spawn(|| log.map(|log| printer.pass_on(log)));
                follow(child, order, &mut |words| spinner.say(&words))
            })
        });
    spinner.clear();
    result
}

fn start(order: &WorkOrder, device: &DeviceFingerprint, verbose: bool) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg("worker")
        .current_dir(&order.scratch)
        .envs(device.visibility())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(if verbose { Stdio::piped() } else { Stdio::null() })
        .spawn()
}

fn follow(mut child: Child, order: &WorkOrder, progress: &mut dyn FnMut(String)) -> Result<Done, Failure> {
    let broken = |error: io::Error| Failure::new(ErrorCode::Internal, format!("lost the worker process: {error}"));
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Failure::new(ErrorCode::Internal, "the worker process has no pipes"));
    };
    let mut send = || -> io::Result<()> {
        serde_json::to_writer(&input, order)?;
        input.write_all(b"\n")?;
        // Nothing is uploaded, so a build goes on to its measurement whenever it gets there.
        serde_json::to_writer(&input, &WorkCommand::Continue)?;
        input.write_all(b"\n")
    };
    let sent = send();
    let (mut report, mut built) = (None, None);
    for line in BufReader::new(output).lines() {
        match serde_json::from_str(&line.map_err(broken)?) {
            Ok(WorkEvent::Progress { phase, fraction, detail }) => {
                progress(format!("{phase} {:.0}% {detail}", fraction * 100.0));
            }
            Ok(WorkEvent::Done { report: path, .. }) => report = Some(reports::of_worker(&path)),
            Ok(WorkEvent::Failed { class, message, hint, .. }) => {
                report = Some(Err(BackendError::new(class, message).with_hint(hint).into()));
            }
            Ok(WorkEvent::Built { plan, .. }) => built = Some(plan),
            Ok(
                WorkEvent::WindowBegin
                | WorkEvent::WindowEnd
                | WorkEvent::Compiled { .. }
                | WorkEvent::Prepared { .. }
                | WorkEvent::Made { .. },
            ) => {}
            Err(error) => {
                return Err(Failure::new(
                    ErrorCode::Internal,
                    format!("the worker says what nobody understands: {error}"),
                ));
            }
        }
    }
    // Held open until here: its end tells the worker that nobody waits any more.
    drop(input);
    let status = child.wait().map_err(broken)?;
    report.map(|report| Ok(Done { report: report?, plan: built })).unwrap_or_else(|| {
        sent.map_err(broken)?;
        Err(Failure::new(ErrorCode::Internal, format!("the worker process ended with {status} and said nothing"))
            .hint("run it again with -v to see its log"))
    })
}
