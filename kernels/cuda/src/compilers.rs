//! Compiling in processes of their own, as many as are asked at a time.
//!
//! NVRTC holds one lock for a part of each compilation, the parser's: many threads wait for it, processes have one each.
//! A process is this very program, started once more with [`COMMAND`]; it answers until its input ends, so that none
//! outlives who asked.

use super::{
    messages::{Process, read_message, something_else, write_message},
    nvrtc::{self, Arch, CompileError, Compiled, Source},
};
use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, OnceLock, PoisonError},
};

/// The first argument of a program that is to [`serve`].
pub const COMMAND: &str = "compile-kernels";

/// What the first field of an answer says the others are.
const COMPILED: &[u8] = b"compiled";
const REFUSED: &[u8] = b"refused";
const FAILED: &[u8] = b"failed";

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// From now on [`Compilers::here`] start processes of `program`; until then this process compiles by itself.
pub fn use_processes_of(program: PathBuf) {
    // The first word stands.
    let _ = PROGRAM.set(program);
}

/// What [`use_processes_of`] said.
pub fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// Compiles for as many threads at a time as there are. Its processes end with it.
#[derive(Debug)]
pub struct Compilers {
    program: Option<PathBuf>,
    idle: Mutex<Vec<Process>>,
}

impl Compilers {
    /// As this process was told to compile.
    pub fn here() -> Self {
        Self::of(program().map(Path::to_owned))
    }

    /// Processes of a program that serves; `None`: this one.
    pub fn of(program: Option<PathBuf>) -> Self {
        Self { program, idle: Mutex::default() }
    }

    /// Compiles without any cache.
    ///
    /// # Errors
    /// As [`nvrtc::compile`], and when the process ends without an answer: another one compiles the next source.
    pub fn compile(&self, source: Source<'_>, arch: Arch) -> Result<Compiled, CompileError> {
        let Some(program) = &self.program else { return nvrtc::compile(source, arch) };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut process = match idle.map_or_else(|| Process::start(Command::new(program).arg(COMMAND)), Ok) {
            Ok(process) => process,
            Err(error) => {
                tracing::debug!(program = %program.display(), %error, "no process compiles");
                return nvrtc::compile(source, arch);
            }
        };
        match ask(&mut process, source, arch) {
            Ok(answer) => {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(process);
                answer
            }
            Err(error) => Err(CompileError::Process { name: source.name.into(), reason: process.end(&error) }),
        }
    }
}

/// What a process makes of a source; the outer error is one of the pipes.
fn ask(process: &mut Process, source: Source<'_>, arch: Arch) -> io::Result<Result<Compiled, CompileError>> {
    let arch_text = arch.to_string();
    let mut fields = vec![arch_text.as_bytes(), source.name.as_bytes(), source.text.as_bytes()];
    fields.extend(source.options.iter().map(|option| option.as_bytes()));
    write_message(&mut process.input, &fields)?;
    let answer = process.answer()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let name = source.name.to_owned();
    match answer.iter().map(Vec::as_slice).collect::<Vec<_>>()[..] {
        [COMPILED, log, bytes] => Ok(Ok(Compiled { bytes: bytes.to_vec(), log: text(log) })),
        [REFUSED, log] => Ok(Err(CompileError::Source { name, arch, log: text(log), text: source.text.into() })),
        [FAILED, reason] => Ok(Err(CompileError::Process { name, reason: text(reason) })),
        _ => Err(something_else()),
    }
}

/// Compiles what it is sent until there is no more.
///
/// # Errors
/// When a message is cut or none of ours, or nobody takes the answer.
pub fn serve(input: impl Read, output: impl Write) -> io::Result<()> {
    let (mut input, mut output) = (BufReader::new(input), BufWriter::new(output));
    while let Some(fields) = read_message(&mut input)? {
        let fields: Vec<String> = fields
            .into_iter()
            .map(|field| String::from_utf8(field).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
            .collect::<Result<_, _>>()?;
        let none_of_ours = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let [arch, name, text, options @ ..] = fields.as_slice() else {
            return Err(none_of_ours(format!("a message of {} fields", fields.len())));
        };
        let arch: Arch = arch.parse().map_err(|error| none_of_ours(format!("{error}")))?;
        match nvrtc::compile(Source { name, text, options }, arch) {
            Ok(done) => write_message(&mut output, &[COMPILED, done.log.as_bytes(), &done.bytes])?,
            Err(CompileError::Source { log, .. }) => write_message(&mut output, &[REFUSED, log.as_bytes()])?,
            Err(error) => write_message(&mut output, &[FAILED, error.to_string().as_bytes()])?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_order_ends_it() {
        let answers = |message: &[&[u8]]| {
            let (mut sent, mut answer) = (Vec::new(), Vec::new());
            write_message(&mut sent, message).unwrap();
            (serve(sent.as_slice(), &mut answer).map_err(|error| error.kind()), answer)
        };
        let broken = Err(io::ErrorKind::InvalidData);
        assert_eq!(answers(&[b"sm_90a", b"name"]), (broken, Vec::new()));
        assert_eq!(answers(&[b"80", b"name", b""]), (broken, Vec::new()));
        assert_eq!(answers(&[b"sm_80", b"name", b"\xff"]), (broken, Vec::new()));
    }

    /// Programs that are no compilers.
    #[test]
    fn a_process_that_does_not_answer_costs_its_source() {
        let source = Source { name: "scale", text: "", options: &[] };
        let arch = Arch::of_device(8, 0);
        let said = |program: &str| {
            let compilers = Compilers::of(Some(program.into()));
            let error = compilers.compile(source, arch).unwrap_err();
            assert!(compilers.idle.lock().unwrap().is_empty(), "{program} is not asked again");
            error.to_string()
        };
        let ended = said("false");
        assert!(ended.contains("kernel scale") && ended.contains("exit status: 1"), "{ended}");
        let garbled = said("yes");
        assert!(garbled.contains("at most"), "{garbled}");
    }
}
