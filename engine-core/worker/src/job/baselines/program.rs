//! The interface to programs that run a model by another runtime: PyTorch in Python, or whatever a host's operator puts
//! there.
//!
//! A program gets one argument, a file with an [`Order`] as JSON. It makes the model ready, writes [`Answer::Ready`] as a
//! line of JSON to its standard output, and then answers every line `{"window": {"iterations": N}}` of its standard
//! input with `{"latencies_ms": [...]}`: N executions, one after the other, timed as the engine's are, inputs and outputs
//! staying where they are. It ends when its standard input does. Instead of any answer it may
//! write `{"error": "..."}` and end. Standard error goes to the attempt's log. Warm-up, windows and when to stop are
//! decided here.

use super::super::outlet::log;
use planforge_backend::{Cancel, Meter, Window, WindowSamples};
use planforge_report::LayerTime;
use planforge_types::{BackendError, FailureClass, NamedTensors, Port, Precision};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// Raised whenever a program of the version before would not understand an order, or be understood.
pub const PROTOCOL: u32 = 1;

/// Longest a program may take to make a model ready: compiling by search takes minutes.
pub const READY_LIMIT: Duration = Duration::from_secs(900);

/// Longest one window may take beyond what its executions should.
const WINDOW_LIMIT: Duration = Duration::from_secs(120);

/// How long a program may take to end once its input has.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How often a wait looks whether the job was cancelled.
const POLL: Duration = Duration::from_millis(50);

/// Longest line that is read of a program: the latencies of a window of a million executions.
const LINE_MAX_BYTES: u64 = 64 << 20;

/// Lines of a program's standard error that its failure is told with.
const LAST_LINES: usize = 3;

/// What a program is to run.
#[derive(Debug, Serialize)]
pub struct Order<'a> {
    pub protocol: u32,
    /// As it was asked for: one program may answer to several names.
    pub name: &'a str,
    /// The ONNX file; its external data lies beside it.
    pub model: &'a Path,
    /// The model in the program's own form; absent: none was given.
    pub module: Option<&'a Path>,
    /// An `.npz` with an array for every input of the ONNX file, by its name.
    pub inputs: &'a Path,
    /// Those inputs in the order of the ONNX file.
    pub input_names: Vec<String>,
    /// The outputs in the order of the ONNX file.
    pub output_names: Vec<String>,
    /// `cpu` or `cuda`; of GPUs the program sees the job's alone.
    pub device: &'static str,
    /// What the engine beside it may compute in.
    pub precision: Precision,
    /// CPU threads of the engine beside it.
    pub threads: Option<u32>,
    /// Empty folder of its own.
    pub scratch: &'a Path,
}

/// A line of a program's.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ready(Ready),
    LatenciesMs(Vec<f64>),
    Error(String),
}

impl Answer {
    /// What it is, for people.
    fn kind(&self) -> &'static str {
        match self {
            Self::Ready(_) => "its being ready",
            Self::LatenciesMs(_) => "latencies",
            Self::Error(_) => "an error",
        }
    }
}

/// What a program says once it could run.
#[derive(Clone, Debug, Deserialize)]
pub struct Ready {
    /// The runtime and its version: `torch 2.11.0+cu130`.
    pub library: String,
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// An `.npz` with its outputs by the names of the ONNX file's, where it can tell them.
    #[serde(default)]
    pub outputs: Option<PathBuf>,
}

/// A program that made its model ready. Dropping it ends it.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<Result<String, String>>,
    last_words: thread::JoinHandle<Vec<String>>,
    cancel: Cancel,
    pub ready: Ready,
}

impl Program {
    /// Starts `path` with `order` and waits until it is ready.
    pub fn start(path: &Path, order: &Order<'_>, cancel: &Cancel) -> Result<Self, BackendError> {
        let told = |what: &str, error: std::io::Error| {
            BackendError::infrastructure(format!("cannot {what} {}: {error}", path.display()))
        };
        let file = order.scratch.join("order.json");
        let document = serde_json::to_vec(order).expect("an order has only JSON types");
        std::fs::write(&file, document).map_err(|error| told("write the order of", error))?;
        let mut child = Command::new(path)
            .arg(&file)
            .current_dir(order.scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| told("start", error))?;
        let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (sender, lines) = mpsc::sync_channel(1);
        thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            loop {
                let mut line = Vec::new();
                let read = stdout.by_ref().take(LINE_MAX_BYTES).read_until(b'\n', &mut line);
                let whole = match read {
                    Ok(0) => return,
                    Ok(_) if line.ends_with(b"\n") => Ok(String::from_utf8_lossy(&line).into_owned()),
                    Ok(_) => Err("it ended in the middle of a line, or wrote one without end".to_owned()),
                    Err(error) => Err(format!("its output cannot be read: {error}")),
                };
                let ends = whole.is_err();
                if sender.send(whole).is_err() || ends {
                    return;
                }
            }
        });
        let name = order.name.to_owned();
        let last_words = thread::spawn(move || {
            let mut last = Vec::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                log(&format!("{name}: {line}"));
                last.push(line);
                if last.len() > LAST_LINES {
                    last.remove(0);
                }
            }
            last
        });
        let ready = Ready { library: String::new(), settings: BTreeMap::new(), outputs: None };
        let commands = child.stdin.take();
        let (name, cancel) = (order.name.to_owned(), cancel.clone());
        let mut program = Self { name, child, commands, lines, last_words, cancel, ready };
        program.ready = match program.answer(READY_LIMIT)? {
            Answer::Ready(ready) => ready,
            other => return Err(program.lies(&format!("it answered with {} before it was ready", other.kind()))),
        };
        Ok(program)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn lies(&self, what: &str) -> BackendError {
        BackendError::infrastructure(format!("baseline {}: {what}", self.name))
    }

    fn answer(&mut self, limit: Duration) -> Result<Answer, BackendError> {
        let until = Instant::now() + limit;
        let line = loop {
            if self.cancel.is_cancelled() {
                return Err(BackendError::cancelled(format!("cancelled while baseline {} ran", self.name)));
            }
            match self.lines.recv_timeout(POLL) {
                Ok(Ok(line)) => break line,
                Ok(Err(trouble)) => return Err(self.lies(&trouble)),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.lies(&format!("it gave no answer within {} s", limit.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        };
        match serde_json::from_str(&line) {
            Ok(Answer::Error(error)) => Err(self.lies(&error)),
            Ok(answer) => Ok(answer),
            Err(error) => {
                let beginning: String = line.trim_end().chars().take(80).collect();
                Err(self.lies(&format!("it answered '{}': {error}", beginning.escape_debug())))
            }
        }
    }

    /// It closed its output without an answer.
    fn ended(&mut self) -> BackendError {
        let status = self.end();
        let last = std::mem::replace(&mut self.last_words, thread::spawn(Vec::new)).join().unwrap_or_default();
        let words = if last.is_empty() { "it said nothing".to_owned() } else { last.join(" | ") };
        self.lies(&format!("it ended with {status}: {words}"))
    }

    /// Closes its input, waits a little, and kills it.
    fn end(&mut self) -> String {
        drop(self.commands.take());
        let until = Instant::now() + END_LIMIT;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) => thread::park_timeout(POLL),
                Err(_) => break,
            }
        }
        let _ = self.child.kill();
        self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

impl Meter for Program {
    fn inputs(&self) -> Vec<Port> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Port> {
        Vec::new()
    }

    /// Its inputs came with its order.
    fn bind(&mut self, _inputs: &NamedTensors) -> Result<(), BackendError> {
        Ok(())
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        self.window(Window { iterations: 1, duration_ms: 0.0 })?;
        Ok(NamedTensors::default())
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        let asked = format!("{{\"window\":{{\"iterations\":{}}}}}\n", window.iterations);
        let commands = self.commands.as_mut().expect("open until it ends");
        if commands.write_all(asked.as_bytes()).and_then(|()| commands.flush()).is_err() {
            return Err(self.ended());
        }
        let limit = WINDOW_LIMIT + Duration::from_secs_f64(window.duration_ms.max(0.0) / 1e3);
        let latency_ms = match self.answer(limit)? {
            Answer::LatenciesMs(latency_ms) => latency_ms,
            other => return Err(self.lies(&format!("it answered a window with {}", other.kind()))),
        };
        let sane = latency_ms.iter().all(|ms| ms.is_finite() && *ms > 0.0);
        if latency_ms.len() != window.iterations as usize || !sane {
            let (count, asked) = (latency_ms.len(), window.iterations);
            return Err(self.lies(&format!("asked for {asked} latencies above 0 it gave {count}, or others")));
        }
        Ok(WindowSamples { latency_ms })
    }

    fn layers(&mut self, _iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
        Err(BackendError::new(FailureClass::Infrastructure, "a program of another runtime tells no layers"))
    }

    fn memory_bytes(&self) -> u64 {
        0
    }
}
