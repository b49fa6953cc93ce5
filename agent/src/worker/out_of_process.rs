//! Builds in a process of their own.
//!
//! An engine is measured where users run it: in a process that only loaded it. A build on a GPU leaves contexts, code and
//! freed memory behind, with which the same plan was seen to run up to 8 % slower. So the worker starts its own program
//! once more for the build, in its own process group, with the same log; what breaks there breaks nothing else.

use super::{ORPHAN_GRACE, tell};
use crate::attempt::process::{KILLED_HINT, describe};
use nix::sys::signal::Signal;
use planforge_backend::{
    Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter, Oracle, PlanIdentity,
};
use planforge_types::{BackendError, FailureClass, Sku, Toolchain, fingerprint::DiscoveredDevice};
use serde::{Deserialize, Serialize};
use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::process::ExitStatusExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// What the first line of such a process begins with; an order for a whole job is an object and begins otherwise.
pub(super) const PREFIX: &[u8] = b"compile ";
/// How often a cancelled job is noticed.
const CANCEL_LOOK: Duration = Duration::from_millis(50);

/// What to build, by which backend.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CompileOrder {
    pub backend: String,
    pub request: CompileRequest,
}

/// What such a process says; the last is one of the last two.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum CompileEvent {
    Progress { phase: String, fraction: f32, detail: String },
    Log { line: String },
    Compiled { plan: CompiledPlan },
    Refused { error: BackendError },
}

/// Does the build of `order` and tells how it went.
pub(super) fn compile(order: &CompileOrder, compilers: &[Box<dyn Compiler>], out: File, cancel: &Cancel) -> ExitCode {
    let out = Telling(Mutex::new(out));
    let build = || {
        let compiler = compilers.iter().find(|compiler| compiler.backend() == order.backend);
        let compiler =
            compiler.ok_or_else(|| BackendError::infrastructure(format!("there is no backend '{}'", order.backend)))?;
        compiler.compile(&order.request, &out, cancel)
    };
    let result =
        catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|panic| Err(BackendError::bug("the build", &*panic)));
    match result {
        Ok(plan) => {
            out.tell(&CompileEvent::Compiled { plan });
            ExitCode::SUCCESS
        }
        Err(error) => {
            out.tell(&CompileEvent::Refused { error });
            ExitCode::FAILURE
        }
    }
}

struct Telling(Mutex<File>);

impl Telling {
    fn tell(&self, event: &CompileEvent) {
        tell(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), event);
    }
}

impl Events for Telling {
    fn progress(&self, phase: &str, fraction: f32, detail: &str) {
        self.tell(&CompileEvent::Progress { phase: phase.into(), fraction, detail: detail.into() });
    }

    fn log(&self, line: &str) {
        self.tell(&CompileEvent::Log { line: line.into() });
    }
}

/// A compiler whose builds run in processes of their own where they need to.
pub(super) struct OutOfProcess {
    inner: Box<dyn Compiler>,
    /// How this program is started once more.
    command: Vec<OsString>,
}

impl OutOfProcess {
    pub fn of(inner: Box<dyn Compiler>) -> Self {
        let program = env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        let command = [program.into()].into_iter().chain(env::args_os().skip(1)).collect();
        Self { inner, command }
    }

    fn start(&self) -> io::Result<Child> {
        Command::new(&self.command[0]).args(&self.command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    }
}

impl Compiler for OutOfProcess {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn toolchains(&self, device: &DiscoveredDevice) -> Vec<Toolchain> {
        self.inner.toolchains(device)
    }

    fn never_measures(&self, sku: &Sku) -> &'static [&'static str] {
        self.inner.never_measures(sku)
    }

    fn options(&self, sku: &Sku) -> Option<&'static [&'static str]> {
        self.inner.options(sku)
    }

    fn check(&self, request: &CompileRequest) -> Result<(), BackendError> {
        self.inner.check(request)
    }

    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        if !self.inner.builds_out_of_process(request) {
            return self.inner.compile(request, events, cancel);
        }
        let order = CompileOrder { backend: self.backend().to_owned(), request: request.clone() };
        let child = self
            .start()
            .map_err(|error| BackendError::infrastructure(format!("cannot start the build's process: {error}")))?;
        Build::new(child).run(&order, events, cancel)
    }

    fn prepares(&self) -> Vec<Toolchain> {
        self.inner.prepares()
    }

    fn prepare(
        &self,
        request: &CompileRequest,
        into: &Path,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<(), BackendError> {
        self.inner.prepare(request, into, events, cancel)
    }

    fn join_caches(&self, sku: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        self.inner.join_caches(sku, into, from)
    }

    fn recognises(&self, head: &[u8]) -> bool {
        self.inner.recognises(head)
    }

    fn identify(&self, plan: &Path) -> Result<PlanIdentity, BackendError> {
        self.inner.identify(plan)
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        self.inner.load(plan, options)
    }

    fn oracle(&self) -> Option<Box<dyn Oracle>> {
        self.inner.oracle()
    }
}

/// A build's process. Dropped, it is dead.
struct Build {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<io::Result<String>>,
}

impl Drop for Build {
    fn drop(&mut self) {
        // Both fail where it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Build {
    fn new(mut child: Child) -> Self {
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = stdout {
            thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| sender.send(line)));
        }
        Self { child, stdin, lines }
    }

    fn run(mut self, order: &CompileOrder, events: &dyn Events, cancel: &Cancel) -> Result<CompiledPlan, BackendError> {
        let mut line = PREFIX.to_vec();
        line.extend(serde_json::to_vec(order).expect("an order has only JSON types"));
        line.push(b'\n');
        // One that cannot read it says why by how it ends.
        let _ = self.stdin.as_mut().map(|stdin| stdin.write_all(&line));
        let mut last_word = None;
        let mut cancelled_at = None;
        loop {
            if cancel.is_cancelled() {
                // Its input ends: it stops by itself, and is not waited for much longer.
                self.stdin = None;
                if cancelled_at.get_or_insert_with(Instant::now).elapsed() > 2 * ORPHAN_GRACE {
                    return Err(BackendError::cancelled("cancelled; the build's process did not stop by itself"));
                }
            }
            match self.lines.recv_timeout(CANCEL_LOOK) {
                Ok(Ok(line)) => match serde_json::from_str(&line) {
                    Ok(CompileEvent::Progress { phase, fraction, detail }) => {
                        events.progress(&phase, fraction, &detail)
                    }
                    Ok(CompileEvent::Log { line }) => events.log(&line),
                    Ok(CompileEvent::Compiled { plan }) => last_word = Some(Ok(plan)),
                    Ok(CompileEvent::Refused { error }) => last_word = Some(Err(error)),
                    Err(_) => events.log(&line),
                },
                Ok(Err(error)) => {
                    return Err(BackendError::infrastructure(format!("the build's process cannot be heard: {error}")));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        self.stdin = None;
        let ended = self.child.wait();
        match last_word {
            // Libraries may crash while they unload: the plan was complete before.
            Some(result) => result,
            None if cancel.is_cancelled() => Err(BackendError::cancelled("cancelled while it was built")),
            None => Err(death(ended)),
        }
    }
}

/// The failure of a build whose process ended without a last word.
fn death(ended: io::Result<ExitStatus>) -> BackendError {
    let status = match ended {
        Ok(status) => status,
        Err(error) => return BackendError::infrastructure(format!("cannot wait for the build's process: {error}")),
    };
    let said = describe(status);
    match status.signal().map(Signal::try_from) {
        Some(Ok(Signal::SIGXFSZ)) => {
            BackendError::new(FailureClass::Resource, "the build wrote a larger file than the agent allows")
        }
        Some(Ok(Signal::SIGKILL)) => {
            BackendError::infrastructure(format!("the build's process died with {said}")).with_hint(KILLED_HINT)
        }
        Some(_) => BackendError::infrastructure(format!("the build's process died with {said}"))
            .with_hint("the attempt's log has what it said last"),
        None => BackendError::infrastructure(format!("the build's process ended without a result ({said})")),
    }
}

#[cfg(test)]
mod tests;
