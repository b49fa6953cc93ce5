//! The command line: parsed, settings resolved, one command run, ended with its exit code.
//!
//! | module | holds |
//! |---|---|
//! | `backends` | the compilers this program knows, in one list |
//! | `doctor` | what is checked on this machine, one file per area |
//! | `local_worker` | one order done by a worker process, without a farm |
//! | `cli` | the command line's grammar: global flags and one variant per command |
//! | `examples` | command lines to copy, below the help of each command |
//! | `commands` | one file per command, thin: what it asks, what it prints |
//! | `dispatch` | which of them a command line means |
//! | `context` | what every command gets |
//! | `settings` | flags, environment and files laid over each other; the table of settings |
//! | `failure` | how a command fails, and the table of exit codes |
//! | `printer` | the only place that writes to the terminal |
//! | `credentials` | which credentials go to which server |
//! | `logins` | what `planforge login` keeps |
//! | `farm` | the coordinator that a command talks to: one by URL, or this machine's own |
//! | `declared` | what a project declares and has locked, and how the farm stands to it |
//! | `fetched` | what `fetch` put where, so that it need not be read again |
//! | `lists` | lists that come in pages, as a whole |
//! | `local` | this machine's own farm: who hosts it, who is its client; in the small client `no_local`, that there is none |
//! | `request` | from flags and model files to a request |
//! | `reports`, `imported`, `portability` | reports by name, figures that were measured elsewhere, what foreign plans lose |
//! | `older` | engines of an older compiler |
//! | `ages`, `times` | ages and times of the clock as people write them |
//! | `wait` | following jobs to their end, with progress and Ctrl-C |
//! | `plans` | where plans land on this machine |
//! | `tables` | how jobs, devices, engines and reports look to people |
//! | `signals`, `telemetry`, `traces` | being asked to end; log lines; the trace of a command's requests |
//!
//! Without the feature `local` this is the small client: no coordinator, no agent, no compiler, and no library is opened at
//! run time.
//!
//! Nothing uses `commands` but `cli`, whose grammar is made of their flags, and `dispatch`.

#![cfg_attr(not(feature = "local"), allow(dead_code, reason = "what only this machine's own farm needs"))]

mod ages;
#[cfg(feature = "local")]
mod backends;
mod cli;
#[cfg(feature = "local")]
mod cloud;
mod commands;
#[cfg(feature = "local")]
mod compile_kernels;
mod context;
mod credentials;
mod declared;
#[cfg(feature = "local")]
mod device_check;
mod dispatch;
#[cfg(feature = "local")]
mod doctor;
mod examples;
mod failure;
mod farm;
mod fetched;
mod imported;
mod lists;
#[cfg(feature = "local")]
mod local;
#[cfg(not(feature = "local"))]
#[path = "no_local.rs"]
mod local;
#[cfg(feature = "local")]
mod local_worker;
mod logins;
mod older;
mod plan_check;
mod plans;
mod portability;
#[cfg(feature = "local")]
mod preparation;
mod printer;
mod reports;
mod request;
mod settings;
mod signals;
mod tables;
mod telemetry;
#[cfg(feature = "local")]
mod time_candidates;
mod times;
mod traces;
mod wait;

#[cfg(feature = "local")]
use planforge_kernels_cuda::compilers;
#[cfg(feature = "local")]
use std::fmt::Display;
use std::{ffi::OsString, process::ExitCode};

/// Whether a command line that cannot be parsed asks for JSON. What stands behind `--` is none of ours.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// What the process does, from its arguments to its exit code.
pub fn main() -> ExitCode {
    let parsed = match cli::Cli::of_arguments(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) if !error.use_stderr() => {
            // Help and version: words of this program alone.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let words = error.render().to_string();
            if asks_for_json(std::env::args_os().skip(1)) {
                let failure = failure::Failure::command_line(words.trim_end());
                let _ = printer::Printer::new(true, true).object(&serde_json::json!({ "error": failure.as_json() }));
            }
            printer::bare(words.trim_end());
            return ExitCode::from(error.exit_code().try_into().unwrap_or(2));
        }
    };
    #[cfg(feature = "local")]
    // A worker reads its order from standard input and nothing else: no settings of its user may change it.
    if let cli::Command::Worker = parsed.command {
        start_processes_of_this_program();
        return planforge_agent::worker_main(backends::compilers(), &planforge_device::telemetry::for_device);
    }
    #[cfg(feature = "local")]
    if let cli::Command::CheckDevice { device } = &parsed.command {
        return device_check::main(device);
    }
    #[cfg(feature = "local")]
    if let cli::Command::RunSteps { plan, profile } = &parsed.command {
        return ended(planforge_cuda::meter::counters::run_steps(plan, *profile));
    }
    #[cfg(feature = "local")]
    if let cli::Command::CompileKernels = parsed.command {
        return ended(compile_kernels::serve());
    }
    #[cfg(feature = "local")]
    if let cli::Command::TimeCandidates = parsed.command {
        start_processes_of_this_program();
        return ended(time_candidates::serve());
    }
    let printer = printer::Printer::new(parsed.global.json, parsed.global.quiet);
    match dispatch::dispatch(parsed, &printer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            printer.failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

/// What is not done in this process is done in others of this program.
#[cfg(feature = "local")]
fn start_processes_of_this_program() {
    std::env::current_exe().map(compilers::use_processes_of).unwrap_or_default();
}

/// How a process ends that others of this program start.
#[cfg(feature = "local")]
fn ended(result: Result<(), impl Display>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            printer::bare(&error.to_string());
            ExitCode::FAILURE
        }
    }
}
