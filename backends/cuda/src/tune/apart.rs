//! Candidates timed one by one in a process of their own.
//!
//! What is loaded and run for them leaves a process in which kernels take longer than where a plan runs, and not all of
//! them by as much: on an H200 cuBLASLt's take up to 2 us more each, others next to none
//! (docs/measurements/cuda-product.md). Whole programs compared there would have the tactics that are best there. So this
//! very program is started once more with [`COMMAND`] and times what is not known, and whoever asked compares in a process
//! that is still as it began. Where none can be started or it fails, as on a device that lets one process in, all is done
//! in one process.

use super::{Effort, GoOn, Times, Tuned, forms, is_complete, may_be_used, target_of, time_steps};
use crate::{
    program::{MAX_WORKSPACE_BYTES, Program, Tactic, Work},
    runtime::{Constants, Device, Kernels, Memory, RuntimeError, plan_key},
    signature::signature,
    source::source_digest,
};
use planforge_kernels_cuda::{
    compilers,
    messages::{Process, read_message, something_else, write_message},
};
use planforge_types::Digest;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufWriter, Read, Write},
    mem,
    process::Command,
    time::{Duration, Instant},
};

/// The first argument of a program that is to [`serve`].
pub const COMMAND: &str = "time-candidates";

/// Weights are sent in parts of at most this.
const PART_BYTES: usize = 64 << 20;

/// What the first field of an answer says the others are: a step that comes next, all that was timed, why nothing was.
const STEP: &[u8] = b"step";
const TIMED: &[u8] = b"timed";
const FAILED: &[u8] = b"failed";

/// What was timed apart, and not yet told of a program that needs it.
#[derive(Debug, Default)]
pub struct Apart {
    signatures: BTreeSet<String>,
    took: Duration,
}

impl Apart {
    /// When a search began that goes on where that process ended.
    pub(super) fn began(&mut self) -> Instant {
        let now = Instant::now();
        now.checked_sub(mem::take(&mut self.took)).unwrap_or(now)
    }

    /// Whether steps like this one were timed there; true once.
    pub(super) fn takes(&mut self, signature: &str) -> bool {
        self.signatures.remove(signature)
    }
}

/// By digest of the source.
type Code = BTreeMap<Digest, Vec<u8>>;

/// What is to be timed on which device.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Task {
    uuid: Option<String>,
    level: u8,
    programs: Vec<Program>,
    known: Times,
    library_plans: BTreeMap<String, String>,
    /// Sources whose machine code comes along, in that order.
    code: Vec<Digest>,
}

/// A task with what is not text.
#[derive(Debug, Default, PartialEq)]
pub struct Order {
    task: Task,
    code: Code,
    weights: Vec<u8>,
}

/// What was timed that was not known, and what it takes to use it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Found {
    times: Times,
    library_plans: BTreeMap<String, String>,
    /// Likewise.
    code: Vec<Digest>,
}

/// Times what no step of the `programs` is known to take, in all their forms, and adds it to `times`. Nothing where all is
/// known, nothing would be compared, or there is no program to start.
pub fn time(
    device: &Device,
    programs: &[Program],
    weights: &[u8],
    level: u8,
    times: &mut Times,
    go_on: &mut GoOn<'_>,
) -> Result<Apart, RuntimeError> {
    let effort = Effort::of_level(level);
    let Some(program) = compilers::program().filter(|_| effort.compares) else { return Ok(Apart::default()) };
    let mut forms = programs.iter().flat_map(|program| forms(program, target_of(device), effort));
    if !forms.any(|form| lacks_times(&form, times)) {
        return Ok(Apart::default());
    }
    let began = Instant::now();
    let code = device.all_code();
    let task = Task {
        uuid: device.uuid().map(str::to_owned),
        level,
        programs: programs.to_vec(),
        known: times.clone(),
        library_plans: device.all_library_plans(),
        code: code.keys().copied().collect(),
    };
    match ask_new(Command::new(program).arg(COMMAND), &task, &code, weights, go_on) {
        Ok(Some((found, code))) => {
            device.add_library_plans(found.library_plans);
            code.into_iter().for_each(|(source, code)| device.add_code(source, code));
            let signatures = found.times.keys().cloned().collect();
            times.extend(found.times);
            Ok(Apart { signatures, took: began.elapsed() })
        }
        Ok(None) => Err(RuntimeError::Cancelled),
        Err(reason) => {
            tracing::warn!(reason, "candidates are timed in the process that compares them");
            Ok(Apart::default())
        }
    }
}

/// Whether a step with a choice has nothing known of it.
fn lacks_times(program: &Program, known: &Times) -> bool {
    let is_known = |work: &Work| known.get(&signature(program, work)).is_some_and(|timed| is_complete(timed));
    program.steps.iter().any(|step| !matches!(step.work, Work::Kernel(_)) && !is_known(&step.work))
}

/// What a process finds that serves; `None` where it is not to go on.
fn ask(process: &mut Process, go_on: &mut GoOn<'_>) -> io::Result<Option<(Found, Code)>> {
    loop {
        match process.answer()?.as_slice() {
            [kind, step] if kind == STEP => {
                let (number, count, name): (usize, usize, String) = serde_json::from_slice(step)?;
                if !go_on(number, count, &name) {
                    return Ok(None);
                }
            }
            [kind, found, code @ ..] if kind == TIMED => {
                let found: Found = serde_json::from_slice(found)?;
                let code = with_sources(&found.code, code)?;
                return Ok(Some((found, code)));
            }
            [kind, reason] if kind == FAILED => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, String::from_utf8_lossy(reason)));
            }
            _ => return Err(something_else()),
        }
    }
}

/// The same of a process that is started for it and given an order; why there is none otherwise.
fn ask_new(
    command: &mut Command,
    task: &Task,
    code: &Code,
    weights: &[u8],
    go_on: &mut GoOn<'_>,
) -> Result<Option<(Found, Code)>, String> {
    let mut process = Process::start(command).map_err(|error| error.to_string())?;
    if let Err(error) = write_order(&mut process.input, task, code, weights) {
        // What it says, or how it ended, says more.
        tracing::debug!(%error, "the process that times candidates reads no order");
    }
    ask(&mut process, go_on).map_err(|error| process.end(&error))
}

fn write_order(output: &mut impl Write, task: &Task, code: &Code, weights: &[u8]) -> io::Result<()> {
    let task = serde_json::to_vec(task)?;
    let fields =
        [task.as_slice()].into_iter().chain(code.values().map(Vec::as_slice)).chain(weights.chunks(PART_BYTES));
    write_message(output, &fields.collect::<Vec<_>>())
}

/// Machine code as it comes behind a list of its sources.
fn with_sources(sources: &[Digest], code: &[Vec<u8>]) -> io::Result<Code> {
    if sources.len() != code.len() {
        let words = format!("machine code of {} sources, and {} were named", code.len(), sources.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, words));
    }
    Ok(sources.iter().copied().zip(code.iter().cloned()).collect())
}

impl Order {
    /// # Errors
    /// When what comes is no order.
    pub fn read(input: &mut impl Read) -> io::Result<Self> {
        let fields = read_message(input)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (task, rest) = fields.split_first().ok_or(io::ErrorKind::InvalidData)?;
        let task: Task = serde_json::from_slice(task)?;
        let (code, weights) = rest.split_at_checked(task.code.len()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { code: with_sources(&task.code, code)?, weights: weights.concat(), task })
    }
}

/// Does what it is told, and answers. It ends early where nobody reads what it says.
///
/// # Errors
/// When nobody takes the answer.
pub fn serve(order: Order, output: impl Write) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    let mut tell = |number: usize, count: usize, name: &str| {
        let step = serde_json::to_vec(&(number, count, name)).unwrap_or_default();
        write_message(&mut output, &[STEP, &step]).is_ok()
    };
    match timed(order, &mut tell) {
        Ok((found, code)) => {
            let found = serde_json::to_vec(&found)?;
            let fields = [TIMED, &found].into_iter().chain(code.values().map(Vec::as_slice));
            write_message(&mut output, &fields.collect::<Vec<_>>())
        }
        Err(error) => write_message(&mut output, &[FAILED, error.to_string().as_bytes()]),
    }
}

fn timed(order: Order, go_on: &mut GoOn<'_>) -> Result<(Found, Code), RuntimeError> {
    let Order { task, code: sent, weights: host_weights } = order;
    let device = Device::open(task.uuid.as_deref(), None)?;
    device.add_library_plans(task.library_plans.clone());
    sent.iter().for_each(|(source, code)| device.add_code(*source, code.clone()));
    let weights = Constants::upload(&device, &host_weights)?;
    drop(host_weights);
    let effort = Effort::of_level(task.level);
    let mut times = task.known.clone();
    let (mut sources, mut plans) = (BTreeSet::new(), BTreeSet::new());
    for program in &task.programs {
        for mut form in forms(program, target_of(&device), effort) {
            device.compile_all(&form.sources)?;
            sources.extend(form.sources.iter().map(source_digest));
            let memory = Memory::new(&device, &form, weights.clone(), &[MAX_WORKSPACE_BYTES])?;
            let tuned = time_steps(&device, &mut form, &memory, effort, &mut times, &mut Kernels::new(), go_on)?;
            add_used(&form, effort, &tuned, &mut sources, &mut plans);
        }
    }
    times.retain(|signature, timed| task.known.get(signature) != Some(timed));
    let mut library_plans = device.all_library_plans();
    library_plans.retain(|key, _| plans.contains(key) && !task.library_plans.contains_key(key));
    let mut code = device.all_code();
    code.retain(|source, _| sources.contains(source) && !sent.contains_key(source));
    Ok((Found { times, library_plans, code: code.keys().copied().collect() }, code))
}

/// Adds what candidates need that may come into a plan: sources of kernels, and keys of cuDNN's plans.
fn add_used(
    program: &Program,
    effort: Effort,
    tuned: &Tuned,
    sources: &mut BTreeSet<Digest>,
    plans: &mut BTreeSet<String>,
) {
    for step in &program.steps {
        let tried = tuned.tried.get(&step.name).map(Vec::as_slice).unwrap_or_default();
        for timed in &tried[..may_be_used(program, effort, tried)] {
            sources.extend(timed.source.as_ref().map(source_digest));
            if let Tactic::Dnn { engine, knobs, .. } = &timed.tactic {
                plans.insert(plan_key(program, &step.work, *engine, knobs));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        program::{Buffer, Place, ProductWork, Step},
        source::Source,
        tune::Timed,
        view::{BufferId, Kind, View},
    };

    fn a_program() -> Program {
        let rows = |dims: &[u64]| View::rows(BufferId(0), Kind::F16, dims);
        let (a, b, y) = (rows(&[1, 8, 16]), rows(&[1, 16, 24]), rows(&[1, 8, 24]));
        let product = ProductWork { a, b, bias: None, residual: None, y, alpha: 1.0, activation: None, norm: None };
        let step = Step {
            name: "product".into(),
            origins: Vec::new(),
            work: Work::Product(product),
            tactic: None,
            stream: 0,
            flops: 0,
            bytes: 0,
        };
        let buffer = Buffer { name: "all".into(), bytes: 1 << 10, place: Place::Arena(0) };
        Program { buffers: vec![buffer], arena_bytes: 1 << 10, steps: vec![step], ..Program::default() }
    }

    fn kernel(name: &str, us: f64) -> Timed {
        let tactic = Tactic::Kernel { source: 0, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
        Timed { tactic, us, source: Some(Source { name: name.into(), text: name.into() }) }
    }

    fn signature_of(program: &Program) -> String {
        signature(program, &program.steps[0].work)
    }

    #[test]
    fn an_order_comes_as_it_was_sent() {
        let code = Code::from([(Digest::of(b"a"), vec![1, 2]), (Digest::of(b"b"), Vec::new())]);
        let program = a_program();
        let task = Task {
            uuid: Some("GPU-1".into()),
            level: 3,
            known: Times::from([(signature_of(&program), vec![kernel("k", 1.5)])]),
            programs: vec![program],
            library_plans: BTreeMap::from([("key".into(), "text".into())]),
            code: code.keys().copied().collect(),
        };
        // In two parts.
        let weights: Vec<u8> = (0..=PART_BYTES).map(|at| at as u8).collect();
        let mut sent = Vec::new();
        write_order(&mut sent, &task, &code, &weights).unwrap();
        let order = Order::read(&mut sent.as_slice()).unwrap();
        assert!(order == Order { task, code, weights });
        let refused = |bytes: &[u8]| Order::read(&mut &*bytes).unwrap_err().kind();
        assert_eq!(refused(&[]), io::ErrorKind::UnexpectedEof);
        assert_eq!(refused(&sent[..sent.len() - 1]), io::ErrorKind::UnexpectedEof);
        let mut lacking = Vec::new();
        write_message(&mut lacking, &[&serde_json::to_vec(&order.task).unwrap(), &[1]]).unwrap();
        assert_eq!(refused(&lacking), io::ErrorKind::InvalidData);
    }

    #[test]
    fn only_what_is_not_known_is_timed_apart() {
        let program = a_program();
        let mut known = Times::new();
        assert!(lacks_times(&program, &known));
        let bare = Timed { source: None, ..kernel("k", 1.0) };
        known.insert(signature_of(&program), vec![bare]);
        assert!(lacks_times(&program, &known), "a kernel without its source is of no use");
        known.insert(signature_of(&program), vec![kernel("k", 1.0)]);
        assert!(!lacks_times(&program, &known));
    }

    /// Or a build would take them for known, and compare nothing.
    #[test]
    fn steps_that_were_timed_apart_count_once() {
        let mut apart = Apart { signatures: BTreeSet::from(["a".into()]), took: Duration::from_secs(3) };
        assert!(apart.began().elapsed() >= Duration::from_secs(3));
        assert!(apart.began().elapsed() < Duration::from_secs(3), "of one search");
        assert_eq!(["a", "a", "b"].map(|signature| apart.takes(signature)), [true, false, false]);
    }

    #[test]
    fn what_may_be_compared_comes_along() {
        let program = a_program();
        let tried = vec![kernel("quick", 1.0), kernel("near", 1.25), kernel("far", 1.5)];
        let tuned = Tuned { tried: BTreeMap::from([("product".into(), tried.clone())]), ..Tuned::default() };
        let (mut sources, mut plans) = (BTreeSet::new(), BTreeSet::new());
        add_used(&program, Effort::of_level(3), &tuned, &mut sources, &mut plans);
        let expected: BTreeSet<Digest> =
            tried[..2].iter().filter_map(|timed| timed.source.as_ref().map(source_digest)).collect();
        assert_eq!((sources, plans.len()), (expected, 0));
        let dnn = Tactic::Dnn { engine: 4, knobs: vec![(24, 55)], workspace_bytes: 0, waits: None };
        let tuned = Tuned {
            tried: BTreeMap::from([("product".into(), vec![Timed { tactic: dnn, us: 1.0, source: None }])]),
            ..Tuned::default()
        };
        let mut sources = BTreeSet::new();
        add_used(&program, Effort::of_level(3), &tuned, &mut sources, &mut plans);
        let key = plan_key(&program, &program.steps[0].work, 4, &[(24, 55)]);
        assert_eq!((sources.len(), plans), (0, BTreeSet::from([key])));
    }

    /// Asks a process that runs `script`; what is told of steps is added to `steps`, until there are so many.
    fn asked(script: &str, steps: &mut Vec<String>, most: usize) -> Result<Option<(Found, Code)>, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut go_on = |number: usize, count: usize, name: &str| {
            steps.push(format!("{number} of {count}: {name}"));
            steps.len() < most
        };
        ask_new(&mut command, &Task::default(), &Code::new(), &[7; 100], &mut go_on)
    }

    /// A message as `printf` writes it.
    fn printf(fields: &[&str]) -> String {
        let number = |number: usize| {
            let bytes = u32::try_from(number).unwrap().to_le_bytes();
            bytes.map(|byte| format!("\\{byte:03o}")).concat()
        };
        let fields = fields.iter().map(|field| number(field.len()) + field);
        format!("printf '{}{}'", number(fields.len()), fields.collect::<String>())
    }

    #[test]
    fn steps_are_told_until_it_is_not_to_go_on() {
        let step = printf(&["step", r#"[4,7,"product"]"#]);
        let mut steps = Vec::new();
        // It would never end by itself.
        let cancelled = asked(&format!("{step}; {step}; cat; sleep 1000000"), &mut steps, 2);
        assert!(cancelled.unwrap().is_none());
        assert_eq!(steps, ["4 of 7: product"; 2]);
    }

    #[test]
    fn what_was_found_is_taken_with_its_machine_code() {
        let digest = Digest::of(b"source");
        let found = Found { code: vec![digest], ..Found::default() };
        let words = serde_json::to_string(&found).unwrap();
        let answer = printf(&["timed", &words, "code"]);
        let taken = asked(&format!("cat > /dev/null & {answer}"), &mut Vec::new(), 1).unwrap();
        assert_eq!(taken, Some((found, Code::from([(digest, b"code".to_vec())]))));
        let without = printf(&["timed", &words]);
        let error = asked(&without, &mut Vec::new(), 1).unwrap_err();
        assert!(error.contains("machine code of 0 sources, and 1 were named"), "{error}");
    }

    #[test]
    fn a_process_that_finds_nothing_says_why() {
        let why = |script: &str| asked(script, &mut Vec::new(), 1).unwrap_err();
        assert_eq!(why(&printf(&["failed", "no device"])), "no device");
        let ended = why("cat > /dev/null & exit 3");
        assert!(ended.contains("without an answer (exit status: 3)"), "{ended}");
        assert!(why("yes").contains("at most"));
        assert!(why(&printf(&["other"])).contains("something else"));
        let mut missing = Command::new("no-such-program");
        let why = ask_new(&mut missing, &Task::default(), &Code::new(), &[], &mut |_, _, _| true).unwrap_err();
        assert!(why.contains("No such file"), "{why}");
    }
}
