//! The only place that writes to the terminal: data on stdout, words and progress on stderr.

use crate::failure::Failure;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

/// How often a progress line is redrawn without news.
const TICK: Duration = Duration::from_millis(120);

/// Role of a piece of text; colour only repeats what the words say.
#[derive(Clone, Copy, Debug)]
pub enum Ink {
    Bad,
    Warn,
    Name,
}

/// Writes what commands have to say, as the global flags ask.
#[derive(Clone, Debug)]
pub struct Printer {
    /// One JSON object on stdout instead of tables.
    pub json: bool,
    quiet: bool,
    colour: bool,
    bars: MultiProgress,
}

impl Printer {
    /// `quiet` keeps words off stderr; errors are always said.
    pub fn new(json: bool, quiet: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let target = if terminal && !quiet { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { json, quiet, colour: terminal && !no_colour, bars: MultiProgress::with_draw_target(target) }
    }

    /// Data for people, on stdout. Nothing with `--json`.
    pub fn data(&self, text: &str) -> Result<(), Failure> {
        if self.json { Ok(()) } else { write_stdout(text.trim_end_matches('\n')) }
    }

    /// Raw bytes on stdout, such as a log.
    pub fn raw(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(|e| stdout_failure(&e))
    }

    /// The command's one JSON object; nothing without `--json`.
    pub fn object(&self, value: &impl Serialize) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        let text = serde_json::to_string_pretty(value).map_err(|e| {
            Failure::new(planforge_proto::ErrorCode::Internal, format!("cannot write the result as JSON: {e}"))
        })?;
        write_stdout(&text)
    }

    /// One JSON object a line, for streams that have no end of their own.
    pub fn line_object(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|e| {
            Failure::new(planforge_proto::ErrorCode::Internal, format!("cannot write an event as JSON: {e}"))
        })?;
        write_stdout(&text)
    }

    /// Words for people, on stderr.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.say(text);
        }
    }

    /// Something that went not as asked but does not end the command.
    pub fn warn(&self, text: &str) {
        self.say(&format!("{} {text}", self.paint(Ink::Warn, "warning:")));
    }

    /// The last words of a command that failed.
    pub fn failure(&self, failure: &Failure) {
        if failure.silent {
            return;
        }
        if self.json {
            let error = serde_json::json!({
                "error": {
                    "code": failure.name,
                    "exit_code": failure.exit_code,
                    "message": failure.to_string(),
                    "hint": failure.hint,
                }
            });
            // The exit code already says that it failed; a closed stdout changes nothing about that.
            let _ = self.object(&error);
        }
        self.problem(&failure.to_string());
        if !failure.hint.is_empty() {
            self.hint(&failure.hint);
        }
    }

    /// An `error:` line.
    pub fn problem(&self, text: &str) {
        self.say(&format!("{} {text}", self.paint(Ink::Bad, "error:")));
    }

    /// A `hint:` line: what to do next.
    pub fn hint(&self, text: &str) {
        self.say(&format!("{} {text}", self.paint(Ink::Name, "hint:")));
    }

    /// `text` in the colour of its role, where colours are wanted.
    pub fn paint(&self, ink: Ink, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match ink {
            Ink::Bad => 31,
            Ink::Warn => 33,
            Ink::Name => 36,
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// Whether progress lines are drawn.
    pub fn shows_progress(&self) -> bool {
        !self.bars.is_hidden()
    }

    /// A line that says what goes on; invisible where stderr is no terminal.
    pub fn spinner(&self, text: &str) -> ProgressBar {
        let style =
            ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = self.bars.add(ProgressBar::new_spinner().with_style(style));
        bar.set_message(text.to_owned());
        if self.shows_progress() {
            bar.enable_steady_tick(TICK);
        }
        bar
    }

    /// A bar over `total_bytes` of a transfer.
    pub fn transfer(&self, text: &str, total_bytes: u64) -> ProgressBar {
        let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = self.bars.add(ProgressBar::new(total_bytes).with_style(style));
        bar.set_message(text.to_owned());
        bar
    }

    fn say(&self, text: &str) {
        self.bars.suspend(|| {
            // Nobody is left to tell when stderr is gone.
            let _ = writeln!(io::stderr().lock(), "{text}");
        });
    }
}

fn write_stdout(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| stdout_failure(&e))
}

fn stdout_failure(error: &io::Error) -> Failure {
    let mut failure = Failure::io("write", std::path::Path::new("standard output"), error);
    // `planforge jobs | head` closes the pipe: nothing went wrong.
    failure.silent = error.kind() == io::ErrorKind::BrokenPipe;
    failure
}
