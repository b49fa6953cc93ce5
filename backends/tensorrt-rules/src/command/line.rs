//! One command line of `trtexec`, and the files it names.

use crate::{flags::Capabilities, refusal::Refusal};
use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
};

/// The arguments after the program's name, and the files they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    pub args: Vec<OsString>,
    /// Files the process reads.
    pub reads: Vec<PathBuf>,
    /// Files the process writes.
    pub writes: Vec<PathBuf>,
}

impl CommandLine {
    /// The arguments as text, for cards and reports; bytes that are no text are replaced.
    pub fn to_texts(&self) -> Vec<String> {
        self.args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    /// With `program` before it, quoted for a shell.
    pub fn shell(&self, program: &Path) -> String {
        let all = std::iter::once(program.as_os_str()).chain(self.args.iter().map(OsString::as_os_str));
        all.map(quoted).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for CommandLine {
    /// As a shell takes it, after `trtexec`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shell(Path::new("trtexec")))
    }
}

/// A word as a POSIX shell takes it.
fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+,.:/%@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Collects the arguments of one version; whatever the version lacks is refused.
pub(super) struct Builder<'a> {
    pub capabilities: &'a Capabilities,
    line: CommandLine,
}

impl<'a> Builder<'a> {
    pub fn new(capabilities: &'a Capabilities) -> Self {
        Self { capabilities, line: CommandLine::default() }
    }

    pub fn finish(self) -> CommandLine {
        self.line
    }

    pub fn has(&self, flag: &str) -> bool {
        self.capabilities.has(flag)
    }

    /// Adds a bare `flag` that `what` needs.
    pub fn on(&mut self, what: &str, flag: &str) -> Result<(), Refusal> {
        self.must_have(what, flag)?;
        self.line.args.push(flag.into());
        Ok(())
    }

    /// Says a mode of the measuring loop that is off by default up to 10 and on from 11.0 on: `on` turns it on, where
    /// it is the default only as far as the version still knows that form; `off` turns it off where it is the default.
    pub fn on_or_default(
        &mut self,
        what: &str,
        wanted: bool,
        on: &str,
        off: &str,
        is_default: bool,
    ) -> Result<(), Refusal> {
        match (wanted, is_default) {
            (true, true) if !self.has(on) => Ok(()),
            (true, _) => self.on(what, on),
            (false, true) => self.on(what, off),
            (false, false) => Ok(()),
        }
    }

    /// Adds `flag=value` that `what` needs.
    pub fn value(&mut self, what: &str, flag: &str, value: impl fmt::Display) -> Result<(), Refusal> {
        self.must_have(what, flag)?;
        self.line.args.push(format!("{flag}={value}").into());
        Ok(())
    }

    pub fn reads(&mut self, what: &str, flag: &str, path: &Path) -> Result<(), Refusal> {
        self.path(what, flag, path)?;
        self.line.reads.push(path.to_owned());
        Ok(())
    }

    pub fn writes(&mut self, what: &str, flag: &str, path: &Path) -> Result<(), Refusal> {
        self.path(what, flag, path)?;
        self.line.writes.push(path.to_owned());
        Ok(())
    }

    /// Remembers a file that is part of a list.
    pub fn also_reads(&mut self, path: &Path) {
        self.line.reads.push(path.to_owned());
    }

    fn path(&mut self, what: &str, flag: &str, path: &Path) -> Result<(), Refusal> {
        self.must_have(what, flag)?;
        if path.as_os_str().is_empty() {
            return Err(Refusal::Path { path: String::new(), problem: "it is empty" });
        }
        let mut arg = OsString::from(format!("{flag}="));
        arg.push(path);
        self.line.args.push(arg);
        Ok(())
    }

    fn must_have(&self, what: &str, flag: &str) -> Result<(), Refusal> {
        if self.has(flag) {
            return Ok(());
        }
        Err(Refusal::flag(format!("{what} ({flag})"), self.capabilities.version(), flag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_can_be_pasted_into_a_shell() {
        let args = ["--onnx=/m/it's a model.onnx", "--tacticSources=-CUDNN,+CUBLAS", "--minShapes=a*b:1x3", ""];
        let line = CommandLine { args: args.map(OsString::from).to_vec(), ..CommandLine::default() };
        assert_eq!(
            line.to_string(),
            r"trtexec '--onnx=/m/it'\''s a model.onnx' --tacticSources=-CUDNN,+CUBLAS '--minShapes=a*b:1x3' ''"
        );
    }
}
