//! One engine of an ONNX file on the first GPU, timed on demand: our side of the comparison with PyTorch
//! (`tests/bench/cuda-vs-pytorch`).
//!
//!     engine_server MODEL.onnx BATCH CACHE [--level 0..5] [--contexts N] [--libraries-behind]
//!                   [--approximate-gelu] [--fp32]
//!     engine_server MODEL.onnx BATCH --steps [--fp32]
//!
//! `seeded:NAME` in the place of a file is a model of `planforge testmodel` in fp16, written into the folder CACHE first.
//! Open dimensions get the size BATCH. Times of tactics and compiled kernels are kept in the folder CACHE. With
//! `--steps` nothing touches a device: the engine's steps are listed. With `--libraries-behind` every kernel of a library
//! waits for the end of what is ahead of it, whether that is needed or not: for measuring what an early begin gives. With
//! `--approximate-gelu` GELU by tanh may stand in for GELU by erf: for measuring what exactness costs. The engine
//! computes in fp16, with `--fp32` in fp32 that nothing rounds to TF32. Else one line of JSON says what was built, and
//! every command on standard input is answered by one line of JSON:
//!
//! | command | answer |
//! |---|---|
//! | `inputs A.npz B.npz ..` | sets of inputs go to the device; the first is what the fixed buffers hold |
//! | `fixed N` | ms of each of N executions, each begun when the device is idle: event, graph, event |
//! | `rotated N` | likewise, the copy of the next set into the graph's buffers between the events |
//! | `fixed-queued N`, `rotated-queued N` | ms of one execution of N that are queued at once between two events |
//! | `streams N` | N rounds over all contexts at once: seconds of host time for everything, ms of each execution |
//! | `outputs A.npz B.npz` | what the inputs of A give is written to B |
//! | `layers` | ms, flops and bytes of every step by itself |

use planforge_cuda::{
    build::target,
    lower::{Lowered, changes_inputs, lower},
    program::{Edge, Program},
    runtime::{Constants, Context, Device, Kernels},
    tune::{Effort, Knowledge, ReadyProgram, Times, quickest},
    versions::CUDA_REVISION,
    view::Kind,
};
use planforge_identity::npz;
use planforge_kernels_cuda::device::Buffer;
use planforge_modelgen::{Options, Precision};
use planforge_onnx::{
    Model,
    proto::{tensor_shape_proto::dimension, type_proto},
    write::Storage,
};
use planforge_passes::Target;
use planforge_types::{DimRange, HostTensor, NamedTensors, OptimizationProfile};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    error::Error,
    io::{BufRead as _, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Arguments {
    model: PathBuf,
    batch: u64,
    cache: Option<PathBuf>,
    level: u8,
    contexts: usize,
    libraries_behind: bool,
    approximate_gelu: bool,
    kind: Kind,
}

fn arguments() -> Outcome<Arguments> {
    let mut positional = Vec::new();
    let (mut level, mut contexts, mut steps) = (3, 1, false);
    let (mut libraries_behind, mut approximate_gelu) = (false, false);
    let mut kind = Kind::F16;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number =
            || words.next().and_then(|text| text.parse::<u8>().ok()).ok_or(format!("{word} needs a number"));
        match word.as_str() {
            "--level" => level = number()?,
            "--contexts" => contexts = usize::from(number()?.max(1)),
            "--steps" => steps = true,
            "--libraries-behind" => libraries_behind = true,
            "--approximate-gelu" => approximate_gelu = true,
            "--fp32" => kind = Kind::F32,
            _ => positional.push(word),
        }
    }
    let cache = positional.get(2).map(PathBuf::from);
    match positional.as_slice() {
        [model, batch, ..] if steps || cache.is_some() => Ok(Arguments {
            model: model.into(),
            batch: batch.parse()?,
            cache: cache.filter(|_| !steps),
            level,
            contexts,
            libraries_behind,
            approximate_gelu,
            kind,
        }),
        _ => Err("usage: engine_server MODEL.onnx BATCH CACHE [--level N] [--contexts N] [--libraries-behind] \
              [--approximate-gelu] [--fp32], \
              or MODEL.onnx BATCH --steps [--fp32]"
            .into()),
    }
}

/// Every open dimension of size `batch`.
fn profile(model: &Model, batch: u64) -> OptimizationProfile {
    let inputs = model.graph().input.iter().filter_map(|input| {
        let Some(type_proto::Value::TensorType(tensor)) = input.r#type.as_ref()?.value.as_ref() else { return None };
        let dims = tensor.shape.as_ref()?.dim.iter().map(|dim| {
            let size = match dim.value {
                Some(dimension::Value::DimValue(size)) => u64::try_from(size).unwrap_or(batch),
                _ => batch,
            };
            DimRange { min: size, opt: size, max: size }
        });
        Some((input.name.clone(), dims.collect()))
    });
    OptimizationProfile { inputs: inputs.collect() }
}

/// The file of a model, written first where only its name is given.
fn file(arguments: &Arguments) -> Outcome<PathBuf> {
    let Some(name) = arguments.model.to_str().and_then(|model| model.strip_prefix("seeded:")) else {
        return Ok(arguments.model.clone());
    };
    let folder = arguments.cache.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.onnx"));
    if !path.exists() {
        let options = Options { storage: Storage::External, precision: Precision::Fp16, ..Options::default() };
        planforge_modelgen::generate(name, &options, &path)?;
    }
    Ok(path)
}

fn lowered(arguments: &Arguments) -> Outcome<Lowered> {
    let model = Model::open(&file(arguments)?)?;
    let graph = planforge_import::import(&model, Some(&profile(&model, arguments.batch)))?;
    let target = if changes_inputs(&graph) { target(&graph) } else { Target::default() };
    Ok(lower(&planforge_passes::pipeline(graph, target)?.graph, arguments.kind)?)
}

fn main() -> Outcome<()> {
    let arguments = arguments()?;
    let began = Instant::now();
    let Lowered { mut program, weights } = lowered(&arguments)?;
    let imported_s = began.elapsed().as_secs_f64();
    let mut out = std::io::stdout();
    let Some(cache) = &arguments.cache else {
        for step in &program.steps {
            writeln!(
                out,
                "{:<15} {:>9.3} GFLOP {:>9.3} MB  {}",
                step.work.kind(),
                step.flops as f64 / 1e9,
                step.bytes as f64 / 1e6,
                step.name
            )?;
        }
        writeln!(out, "{}", by_kind(&program))?;
        return Ok(());
    };
    std::fs::create_dir_all(cache)?;
    let device = Device::open(None, Some(cache.join("cubins")))?;
    let weights = Constants::upload(&device, &weights)?;
    program.approximate_gelu = arguments.approximate_gelu;
    // What an older compiler timed may have been something else.
    let times_file = cache.join(format!("times-{CUDA_REVISION}.json"));
    let times: Times = match std::fs::read(&times_file) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(_) => Times::default(),
    };
    let mut known = Knowledge { times, ..Knowledge::default() };
    let mut effort = Effort::of_level(arguments.level);
    effort.tries_late &= !arguments.libraries_behind;
    let began = Instant::now();
    let ready = quickest(&device, &program, &weights, effort, &mut known, &mut |_, _, _| true)?;
    let ReadyProgram { program, tuned, forms_ms, .. } = ready;
    let tuned_s = began.elapsed().as_secs_f64();
    if tuned.timed > 0 {
        std::fs::write(&times_file, serde_json::to_vec(&known.times)?)?;
    }
    let mut kernels = Kernels::new();
    let contexts = (0..arguments.contexts)
        .map(|_| Context::new(&device, &program, weights.clone(), &mut kernels))
        .collect::<Result<Vec<_>, _>>()?;
    let device_bytes: u64 = contexts.iter().map(|context| context.memory.bytes()).sum::<u64>()
        - (contexts.len() as u64 - 1) * weights.len_bytes();
    let plan_bytes = plan_bytes(&device, &program, weights.len_bytes())?;
    let libraries = planforge_kernels_cuda::libraries::libraries();
    let version = |found: &Result<planforge_kernels_cuda::libraries::Found, _>| {
        found.as_ref().map(|found| found.version.clone()).unwrap_or_default()
    };
    let built = json!({
        "ready": true, "steps": program.steps.len(), "kinds": by_kind(&program), "imported_s": imported_s,
        "states": program.states.len(), "tuned_s": tuned_s, "forms_ms": forms_ms, "timed": tuned.timed, "known": tuned.known, "device_mib": device_bytes >> 20,
        "gelu": program.gelus(), "plan_mib": plan_bytes >> 20, "weights_mib": program.weight_bytes >> 20, "arena_mib": program.arena_bytes >> 20,
        "driver": version(&libraries.driver), "cudnn": version(&libraries.dnn), "cublaslt": version(&libraries.blaslt),
    });
    writeln!(out, "{built}")?;
    let mut server = Server { device, program, contexts, sets: Vec::new() };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = server.answer(&line).unwrap_or_else(|error| json!({ "error": error.to_string() }));
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// What a plan file of this program holds: constants, machine code, the program and cuDNN's own plans.
fn plan_bytes(device: &Device, program: &Program, weight_bytes: u64) -> Outcome<u64> {
    let mut program = program.clone();
    program.drop_unused_sources();
    let code = program.sources.iter().map(|source| Ok(device.cubin(source)?.len())).sum::<Outcome<usize>>()?;
    let texts = serde_json::to_vec(&program)?.len() + serde_json::to_vec(&device.used_library_plans())?.len();
    Ok(weight_bytes + (code + texts) as u64)
}

fn by_kind(program: &Program) -> Value {
    let mut counts = BTreeMap::<&str, usize>::new();
    for step in &program.steps {
        *counts.entry(step.work.kind()).or_default() += 1;
    }
    json!(counts)
}

struct Server {
    device: Device,
    program: Program,
    contexts: Vec<Context>,
    /// Inputs that lie on the device, in the program's order.
    sets: Vec<Vec<Buffer>>,
}

fn tensor<'a>(tensors: &'a NamedTensors, edge: &Edge) -> Outcome<&'a HostTensor> {
    let given = tensors.get(&edge.name).ok_or_else(|| format!("there is no input '{}'", edge.name))?;
    let fits =
        given.element == edge.element && given.shape.iter().map(|&size| size as u64).eq(edge.shape.iter().copied());
    fits.then_some(given).ok_or_else(|| format!("input '{}' is {:?} {:?}", edge.name, edge.element, edge.shape).into())
}

impl Server {
    fn answer(&mut self, line: &str) -> Outcome<Value> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let count = || words.get(1).and_then(|text| text.parse::<usize>().ok()).ok_or("a number is missing");
        match words.as_slice() {
            ["inputs", files @ ..] => self.inputs(files),
            ["fixed", _] => self.calls(count()?, false),
            ["rotated", _] => self.calls(count()?, true),
            ["fixed-queued", _] => self.queued(count()?, false),
            ["rotated-queued", _] => self.queued(count()?, true),
            ["streams", _] => self.streams(count()?),
            ["outputs", from, to] => self.outputs(Path::new(from), Path::new(to)),
            ["layers"] => self.layers(),
            _ => Err(format!("unknown command '{line}'").into()),
        }
    }

    fn inputs(&mut self, files: &[&str]) -> Outcome<Value> {
        self.sets.clear();
        for file in files {
            let tensors = npz::read(Path::new(file))?;
            let set =
                self.program.inputs.iter().map(|edge| Ok(self.device.gpu.upload(&tensor(&tensors, edge)?.bytes)?));
            let set = set.collect::<Outcome<Vec<_>>>()?;
            if self.sets.is_empty() {
                for context in &self.contexts {
                    for (edge, buffer) in self.program.inputs.iter().zip(&context.memory.inputs) {
                        buffer.write(0, &tensor(&tensors, edge)?.bytes)?;
                    }
                }
            }
            self.sets.push(set);
        }
        Ok(json!({ "sets": self.sets.len() }))
    }

    /// Queues the copy of a set into the first context's buffers.
    fn feed(&self, set: &[Buffer]) -> Outcome<()> {
        let context = &self.contexts[0];
        for ((edge, from), to) in self.program.inputs.iter().zip(set).zip(&context.memory.inputs) {
            let bytes = edge.shape.iter().product::<u64>() as usize * edge.element.bytes();
            // SAFETY: both buffers are that large and live as long as this server.
            unsafe { context.stream().copy(to.address(), from.address(), bytes)? };
        }
        Ok(())
    }

    fn execute(&self, number: usize, rotated: bool) -> Outcome<()> {
        if rotated {
            self.feed(self.sets.get(number % self.sets.len().max(1)).ok_or("no inputs yet")?)?;
        }
        Ok(self.contexts[0].launch()?)
    }

    fn calls(&self, count: usize, rotated: bool) -> Outcome<Value> {
        let stream = self.contexts[0].stream();
        let mut times = Vec::with_capacity(count);
        for number in 0..count {
            stream.synchronize()?;
            let from = stream.moment()?;
            self.execute(number, rotated)?;
            let to = stream.moment()?;
            to.wait()?;
            times.push(to.since_ms(&from)?);
        }
        Ok(json!({ "ms": times }))
    }

    fn queued(&self, count: usize, rotated: bool) -> Outcome<Value> {
        let stream = self.contexts[0].stream();
        stream.synchronize()?;
        let from = stream.moment()?;
        for number in 0..count {
            self.execute(number, rotated)?;
        }
        let to = stream.moment()?;
        to.wait()?;
        Ok(json!({ "ms": to.since_ms(&from)? / count.max(1) as f64 }))
    }

    fn streams(&self, rounds: usize) -> Outcome<Value> {
        let began = Instant::now();
        let mut moments = Vec::with_capacity(rounds * self.contexts.len());
        for _ in 0..rounds {
            for context in &self.contexts {
                let from = context.stream().moment()?;
                context.launch()?;
                moments.push((from, context.stream().moment()?));
            }
        }
        for context in &self.contexts {
            context.stream().synchronize()?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let times = moments.iter().map(|(from, to)| Ok(to.since_ms(from)?)).collect::<Outcome<Vec<_>>>()?;
        Ok(json!({ "s": seconds, "ms": times, "contexts": self.contexts.len() }))
    }

    fn outputs(&self, from: &Path, to: &Path) -> Outcome<Value> {
        let tensors = npz::read(from)?;
        let context = &self.contexts[0];
        for (edge, buffer) in self.program.inputs.iter().zip(&context.memory.inputs) {
            buffer.write(0, &tensor(&tensors, edge)?.bytes)?;
        }
        context.launch()?;
        context.stream().synchronize()?;
        let mut given = NamedTensors::new();
        for (edge, buffer) in self.program.outputs.iter().zip(&context.memory.outputs) {
            let mut bytes = vec![0; edge.shape.iter().product::<u64>() as usize * edge.element.bytes()];
            buffer.read(0, &mut bytes)?;
            let shape = edge.shape.iter().map(|&size| size as usize).collect();
            given.insert(edge.name.clone(), HostTensor { element: edge.element, shape, bytes });
        }
        npz::write(to, &given)?;
        Ok(json!({ "outputs": given.len() }))
    }

    fn layers(&self) -> Outcome<Value> {
        let times = self.contexts[0].step_times_ms(&self.device)?;
        let rows = self.program.steps.iter().zip(times).map(|(step, ms)| {
            json!({
                "name": step.name, "kind": step.work.kind(), "ms": ms, "flops": step.flops, "bytes": step.bytes,
                "tactic": step.tactic.as_ref().map(|tactic| tactic.name()),
            })
        });
        Ok(json!({ "layers": rows.collect::<Vec<_>>() }))
    }
}
