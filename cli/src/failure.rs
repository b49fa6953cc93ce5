//! How a command fails: a message, a hint and one of the documented exit codes.

use planforge_proto::{ApiError, ErrorCode};
use std::{error::Error, fmt, io, path::Path};

/// A job ended without success.
pub const EXIT_JOB_FAILED: u8 = 1;
/// A gate on speed did not pass.
pub const EXIT_GATE: u8 = 9;
/// What was waited for did not come within `--timeout`.
pub const EXIT_TIMED_OUT: u8 = 10;
/// Ctrl-C, the way shells count it: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Exit codes and what they mean; part of the command line's contract.
pub const EXIT_CODES: [(u8, &str); 13] = [
    (0, "done"),
    (EXIT_JOB_FAILED, "a job failed, was cancelled or was skipped; `doctor`, `check`: problems were found"),
    (2, "the command line, a file named on it or a setting is wrong"),
    (3, "no such job, engine, report or token; `fetch`: the engine is missing"),
    (4, "the coordinator cannot be reached or is shutting down: try again"),
    (5, "no token, a bad or revoked one, or one that may not do this"),
    (6, "refused: nothing known could run it, or the coordinator is too old to know it; the message says what exists"),
    (7, "conflict with something that exists; a lock that a merge broke, or that `sync --frozen` would change"),
    (8, "disk, queue or quota is full"),
    (EXIT_GATE, "`compare --gate`, `check`, `sync`, `eval`: an engine is worse than allowed, or nobody can tell"),
    (EXIT_TIMED_OUT, "`--timeout` is over and what was waited for goes on"),
    (70, "a bug or a broken store: no reason to try again"),
    (EXIT_INTERRUPTED, "interrupted"),
];

/// Why a command did not do what was asked.
#[derive(Debug)]
pub struct Failure {
    /// Stable name, used in JSON.
    pub name: &'static str,
    pub exit_code: u8,
    message: String,
    /// What to do next; may be empty.
    pub hint: String,
    /// Everything was already said on stdout or stderr.
    pub silent: bool,
}

impl Failure {
    /// A failure with one of the shared error codes.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            name: code.name(),
            exit_code: code.exit_code(),
            message: message.into(),
            hint: String::new(),
            silent: false,
        }
    }

    /// The command line, a file named on it or a setting is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// A command line that is none, in the words of its parser: what is wrong, then what would be right.
    pub fn command_line(words: &str) -> Self {
        let words = words.strip_prefix("error: ").unwrap_or(words);
        let (message, rest) = words.split_once("\n\n").unwrap_or((words, ""));
        let hints = rest.split("\n\n").filter(|part| !part.starts_with("For more information"));
        Self::usage(message).hint(hints.map(str::trim).collect::<Vec<_>>().join("\n"))
    }

    /// A file operation failed: `verb` says which, such as "read".
    pub fn io(verb: &str, path: &Path, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::ResourceExhausted,
            _ => ErrorCode::InvalidArgument,
        };
        Self::new(code, format!("cannot {verb} {}: {}", path.display(), io_reason(error)))
    }

    /// Ended by Ctrl-C or SIGTERM.
    pub fn interrupted() -> Self {
        let mut failure = Self::new(ErrorCode::Internal, "interrupted");
        failure.name = "interrupted";
        failure.exit_code = EXIT_INTERRUPTED;
        failure
    }

    /// `--timeout` is over.
    pub fn timed_out(seconds: u64) -> Self {
        let mut failure = Self::new(ErrorCode::Internal, format!("not done within the {seconds} s of --timeout"));
        failure.name = "timed-out";
        failure.exit_code = EXIT_TIMED_OUT;
        failure
    }

    /// Jobs ended without success, and the command has said so already.
    pub fn jobs_failed() -> Self {
        let mut failure = Self::new(ErrorCode::Internal, "a job did not succeed");
        failure.name = "job-failed";
        failure.exit_code = EXIT_JOB_FAILED;
        failure.silent = true;
        failure
    }

    /// Nobody reads what the command writes without end: it has done what was wanted of it.
    pub fn unread() -> Self {
        let mut failure = Self::new(ErrorCode::Internal, "nobody reads standard output any more");
        failure.name = "unread";
        failure.exit_code = 0;
        failure.silent = true;
        failure
    }

    /// The doctor found problems, and has said so already.
    pub fn problems_found() -> Self {
        let mut failure = Self::jobs_failed();
        failure.name = "problems-found";
        failure
    }

    /// The gate did not pass, and the command has said so already.
    pub fn gate() -> Self {
        let mut failure = Self::new(ErrorCode::Refused, "the gate did not pass");
        failure.name = "gate-not-passed";
        failure.exit_code = EXIT_GATE;
        failure.silent = true;
        failure
    }

    /// Says what to do next.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Adds a hint where the error brought none of its own.
    pub fn hint_if_none(self, hint: impl Into<String>) -> Self {
        if self.hint.is_empty() { self.hint(hint) } else { self }
    }

    /// What `--json` says of it, under `error`.
    pub fn as_json(&self) -> serde_json::Value {
        serde_json::json!({
            "code": self.name,
            "exit_code": self.exit_code,
            "message": self.message,
            "hint": self.hint,
        })
    }

    /// Whether the coordinator went away, rather than refused something.
    pub fn is_unavailable(&self) -> bool {
        self.exit_code == ErrorCode::Unavailable.exit_code()
    }

    /// Whether nothing known offers what was asked for.
    pub fn is_refused(&self) -> bool {
        self.name == ErrorCode::Refused.name()
    }
}

/// The operating system's words without the number that Rust appends.
pub fn io_reason(error: &io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    let mut reason = text[..end].to_owned();
    if let Some(first) = reason.get_mut(0..1) {
        first.make_ascii_lowercase();
    }
    reason
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::new(error.code, error.message).hint(error.hint)
    }
}

/// The table for `--help`.
pub fn exit_codes_text() -> String {
    let rows = EXIT_CODES.map(|(code, meaning)| format!("  {code:>3}  {meaning}\n"));
    format!("Exit codes:\n{}", rows.concat())
}

/// The table for the README.
#[cfg(test)]
fn markdown() -> String {
    let rows = EXIT_CODES.map(|(code, meaning)| format!("| {code} | {meaning} |\n"));
    format!("| code | meaning |\n|---|---|\n{}", rows.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shared_error_code_is_documented() {
        for code in ErrorCode::all() {
            assert!(EXIT_CODES.iter().any(|(number, _)| *number == code.exit_code()), "{}", code.name());
        }
    }

    #[test]
    fn the_readme_has_this_table() {
        assert!(include_str!("../../README.md").contains(&markdown()), "put this into README.md:\n{}", markdown());
    }

    #[test]
    fn a_command_line_that_is_none_is_told_in_two_parts() {
        let words = "error: unexpected argument '--x' found\n\n  tip: a\n\nUsage: planforge jobs\n\nFor more information, try '--help'.";
        let failure = Failure::command_line(words);
        assert_eq!(failure.to_string(), "unexpected argument '--x' found");
        assert_eq!((failure.hint.as_str(), failure.exit_code), ("tip: a\nUsage: planforge jobs", 2));
        let bare = Failure::command_line("nothing");
        assert_eq!((bare.to_string().as_str(), bare.hint.as_str()), ("nothing", ""));
    }

    #[test]
    fn a_full_disk_is_told_from_a_missing_file() {
        let path = Path::new("x");
        let full = Failure::io("write", path, &io::Error::from(io::ErrorKind::StorageFull));
        let missing = Failure::io("read", path, &io::Error::from_raw_os_error(2));
        assert_eq!((full.exit_code, missing.exit_code), (8, 2));
        assert_eq!(missing.to_string(), "cannot read x: no such file or directory");
    }
}
