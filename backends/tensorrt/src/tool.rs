//! One `trtexec` process of a job: run in its scratch folder on the leased device, held to that device, then judged.

use crate::{
    acceptance::{self, Exit, Rejected},
    discover::Installation,
    failure::{self, Ended, Failure, FailureKind, Step},
    log::LogFacts,
    process::{self, Environment, Finished, Invocation, Limits, Stopped},
    selected,
};
use planforge_backend::Cancel;
use planforge_tensorrt_rules::command::CommandLine;
use planforge_types::{BackendError, FailureClass, fingerprint::DeviceFingerprint};
use std::{
    ffi::OsString,
    fs, io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest one process may take; the agent's own limit for a job comes sooner.
const WALL_MAX: Duration = Duration::from_hours(24);

/// Longest a process may neither print nor compute. Builds of large models print nothing for many minutes, but they
/// compute; waiting for a device does not take this long.
const SILENCE_MAX: Duration = Duration::from_mins(10);

/// The bounds of a process on this host.
pub fn host_limits() -> Limits {
    Limits { wall: WALL_MAX, silence: SILENCE_MAX, memory_bytes: process::memory_limit_bytes() }
}

/// What all processes of one job share.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub installation: Installation,
    pub device: DeviceFingerprint,
    /// Exists; everything the processes write lies here.
    pub folder: PathBuf,
    pub limits: Limits,
    pub cancel: Cancel,
}

/// A process that ended, and how.
#[derive(Debug)]
pub(crate) struct Ran {
    pub exit: Exit,
    pub facts: LogFacts,
    pub finished: Finished,
}

impl Tool {
    /// Runs `trtexec` with `line`. Only a process that could not be run, was cancelled or ran on another device is an
    /// error.
    pub fn run(&self, line: &CommandLine, tell: &mut dyn FnMut(&str)) -> Result<Ran, BackendError> {
        tell(&line.shell(&self.installation.trtexec));
        self.run_program(&self.installation.trtexec, line.args.clone(), tell)
    }

    /// Runs another program that runs `trtexec`.
    pub fn run_program(
        &self,
        program: &Path,
        args: Vec<OsString>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Ran, BackendError> {
        let uuid = self.device.gpu.as_ref().map(|gpu| gpu.uuid.as_str()).filter(|uuid| !uuid.is_empty());
        let invocation = Invocation {
            program: program.to_owned(),
            args,
            folder: self.folder.clone(),
            environment: Environment::new(uuid, &self.installation.library_path, &self.folder),
            limits: self.limits,
        };
        let mut finished = process::run(&invocation, tell, &self.cancel).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            BackendError::new(FailureClass::Infrastructure, format!("{error}{cause}"))
        })?;
        if finished.stopped == Some(Stopped::Cancelled) {
            return Err(BackendError::cancelled("cancelled while trtexec ran"));
        }
        if finished.left_behind > 0 {
            tell(&format!("trtexec left {} processes behind; they were ended", finished.left_behind));
        }
        let mut facts = std::mem::take(&mut finished.log);
        self.hold_to_lease(&mut facts)?;
        Ok(Ran { exit: exit_of(&finished), facts, finished })
    }

    /// Takes nothing from a run on another device than the leased one, its failure least of all: it says nothing of what
    /// this job was to do. A run that passed and does not say where it ran has a finding more.
    fn hold_to_lease(&self, facts: &mut LogFacts) -> Result<(), BackendError> {
        let version = facts.version().unwrap_or(self.installation.version());
        let told = selected::hold(&self.device, &facts.device, version).map_err(|other| {
            BackendError::new(FailureClass::Infrastructure, format!("{other}: nothing of this run is kept")).with_hint(
                "look for what shows trtexec another device on this host: a wrapper or a library that sets \
                 CUDA_VISIBLE_DEVICES, or a board that changed its place",
            )
        })?;
        facts.findings.extend(told.filter(|_| facts.passed()));
        Ok(())
    }

    /// Why a run failed, in words.
    pub fn diagnose(&self, step: Step, ran: &Ran, rejected: &Rejected, file: &str) -> Failure {
        let ended = Ended {
            step,
            exit: ran.exit,
            rejected: Some(rejected),
            facts: &ran.facts,
            file,
            device: &self.device.name,
        };
        let mut failure = failure::diagnose(&ended);
        // The log explains nothing: what was wrong with the result then says most.
        if failure.kind == FailureKind::Other && failure.evidence.is_empty() {
            failure.message = format!("{file}: {rejected}");
        }
        failure
    }

    /// Runs a command that loads a plan, and takes only success.
    pub fn load(&self, line: &CommandLine, plan: &str, tell: &mut dyn FnMut(&str)) -> Result<LogFacts, BackendError> {
        let ran = self.run(line, tell)?;
        match acceptance::judge_run(ran.exit, &ran.facts) {
            Ok(()) => Ok(ran.facts),
            Err(rejected) => Err(self.diagnose(Step::Run, &ran, &rejected, plan).into()),
        }
    }

    /// A fresh folder inside this job's.
    pub fn subfolder(&self, name: &str) -> Result<PathBuf, BackendError> {
        let path = self.folder.join(name);
        fs::create_dir_all(&path).map_err(|error| file_error("create", &path, &error))?;
        Ok(path)
    }
}

fn exit_of(finished: &Finished) -> Exit {
    match finished.stopped {
        Some(Stopped::WallTime { limit }) => Exit::TimedOut { limit_ms: limit.as_millis() as u64 },
        Some(Stopped::Hang { silence }) => Exit::Hung { silent_ms: silence.as_millis() as u64 },
        Some(Stopped::Memory { limit_bytes, .. }) => Exit::OverMemory { limit_bytes },
        Some(Stopped::Cancelled) | None => match (finished.status.code(), finished.status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(0)),
        },
    }
}

/// A disk that is full or fails is this host's: another may well take the job.
pub(crate) fn file_error(what: &str, path: &Path, error: &io::Error) -> BackendError {
    BackendError::new(FailureClass::Infrastructure, format!("cannot {what} {}: {error}", path.display()))
        .with_hint("look at the disk of the agent's scratch folder: it may be full or failing")
}

/// A file's name for messages.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
