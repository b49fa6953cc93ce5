//! Calibration data from a script of the user's, run here and nowhere else.
//!
//! The interface is one call and one file: `SCRIPT MODEL.onnx OUT.npz`, in the current folder. A `.py` runs by the Python that
//! `PLANFORGE_PYTHON` names, else `python3`; anything else by its own first line. It succeeds when it exits with 0 and has
//! written OUT.npz, one array per input, named like it, rows along the first axis, and `labels` where it knows some. What it
//! prints is shown.

use crate::{context::Context, failure::Failure};
use planforge_proto::ErrorCode;
use std::{
    env,
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// The interpreter of scripts in Python.
pub const PYTHON: &str = "PLANFORGE_PYTHON";
const USUAL_PYTHON: &str = "python3";

/// Whether a file is a script: by its name, or by how it begins.
pub fn is_script(path: &Path) -> bool {
    let mut head = [0; 2];
    let mut begins = || File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *b"#!";
    path.extension() == Some(OsStr::new("py")) && path.is_file() || path.is_file() && begins()
}

/// Data to calibrate on: as it was named, or as a script wrote it.
#[derive(Debug)]
pub struct Given {
    pub path: PathBuf,
    /// What a script wrote goes with it.
    _folder: Option<TempDir>,
}

impl Given {
    /// The data that `named` stands for, for these models.
    pub fn of(context: &Context<'_>, named: PathBuf, models: &[PathBuf]) -> Result<Self, Failure> {
        if !is_script(&named) {
            return Ok(Self { path: named, _folder: None });
        }
        let [model] = models else {
            let message = format!("{} makes data for one model, and {} are given", named.display(), models.len());
            return Err(Failure::usage(message).hint("run it for each of them, or give data in a file"));
        };
        let folder = TempDir::new().map_err(|e| Failure::io("make a folder in", &env::temp_dir(), &e))?;
        let path = folder.path().join("calibration.npz");
        context.printer.note(&format!("running {} for calibration data", named.display()));
        run(context, &named, model, &path)?;
        Ok(Self { path, _folder: Some(folder) })
    }
}

fn run(context: &Context<'_>, script: &Path, model: &Path, output: &Path) -> Result<(), Failure> {
    let is_python = script.extension() == Some(OsStr::new("py"));
    let python = env::var_os(PYTHON).filter(|python| !python.is_empty()).unwrap_or_else(|| USUAL_PYTHON.into());
    let mut command = if is_python {
        let mut command = Command::new(&python);
        command.arg(script);
        command
    } else {
        // A name without a folder is looked for here, not along PATH.
        Command::new(std::path::absolute(script).map_err(|e| Failure::io("find", script, &e))?)
    };
    command.arg(model).arg(output).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let told = |message: String| Failure::new(ErrorCode::InvalidArgument, message);
    let done = command.output().map_err(|error| {
        let program = if is_python { PathBuf::from(&python) } else { script.to_owned() };
        told(format!("cannot run {}: {error}", program.display())).hint(match (is_python, error.kind()) {
            (true, io::ErrorKind::NotFound) => format!("install Python, or name it with {PYTHON}"),
            _ => "make it executable, or call it .py and let Python run it".to_owned(),
        })
    })?;
    // What it says is for people; the command's own output stays its own.
    for text in [&done.stdout, &done.stderr] {
        String::from_utf8_lossy(text).lines().for_each(|line| context.printer.note(line));
    }
    if !done.status.success() {
        return Err(told(format!("{} ended with {}", script.display(), done.status)).hint(INTERFACE));
    }
    if !output.is_file() {
        return Err(told(format!("{} wrote no data", script.display())).hint(INTERFACE));
    }
    Ok(())
}

/// What a script is called with.
const INTERFACE: &str =
    "it is called with MODEL.onnx OUT.npz, and is to write OUT.npz: one array per input, rows along the first axis";
