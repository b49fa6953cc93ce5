//! Builds an engine of a generated model on the GPU that is there, and times it: `cuda_engine MODEL BATCH [FOLDER [LOCK]]`.
//!
//! With a folder, the model, one set of inputs and the engine's outputs are left in it as raw files, to be compared
//! with another runtime. The same program on several streams is timed beside it, and its outputs compared. With a lock
//! file, the GPU is used only while it is held, so that several can be begun at once.
use planforge_cuda::{
    lower::lower,
    program::{MAX_STREAMS, Program, Tactic},
    runtime::{Constants, Context, Device, Kernels},
    schedule,
    source::Source,
    tune::{Effort, Timed, Times, tune},
    versions::CUDA_REVISION,
    view::Kind,
};
use planforge_graph::ir::ElementType;
use planforge_modelgen::{Batch, Options, Style};
use planforge_passes::Target;
use std::{error::Error, io::Write as _, path::Path, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let args: Vec<String> = std::env::args().collect();
    let (name, batch) = (args[1].as_str(), args[2].parse::<u64>()?);
    let folder = args.get(3).map_or(Path::new("/tmp/cuda-engine"), Path::new);
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("{name}.onnx"));
    if name.ends_with(".onnx") {
        std::fs::copy(name, &path)?;
    } else if !path.exists() {
        let style = Style { batch: Batch::Fixed(u32::try_from(batch)?), ..Style::default() };
        planforge_modelgen::generate(name, &Options { style, ..Options::default() }, &path)?;
    }
    let began = Instant::now();
    let graph = planforge_import::import(&planforge_onnx::Model::open(&path)?, None)?;
    let graph = planforge_passes::pipeline(graph, Target::default())?.graph;
    let lowered = lower(&graph, Kind::F16)?;
    let mut program = lowered.program;
    writeln!(
        out,
        "{} steps, arena {} MiB, weights {} MiB, imported in {:.2} s",
        program.steps.len(),
        program.arena_bytes >> 20,
        lowered.weights.len() >> 20,
        began.elapsed().as_secs_f64()
    )?;
    let lock = args.get(4).map(std::fs::File::create).transpose()?;
    if let Some(lock) = &lock {
        lock.lock()?;
    }
    let device = Device::open(None, Some(folder.join("cubins")))?;
    let weights = Constants::upload(&device, &lowered.weights)?;
    let began = Instant::now();
    // What an older compiler timed may have been something else.
    let times_file = folder.join(format!("times-{CUDA_REVISION}.json"));
    let mut known: Times =
        std::fs::read(&times_file).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    let tuned = tune(&device, &mut program, &weights, Effort::of_level(3), &mut known, &mut |_, _, _| true)?;
    std::fs::write(&times_file, serde_json::to_vec(&known)?)?;
    writeln!(
        out,
        "tuned in {:.1} s, {} candidates",
        began.elapsed().as_secs_f64(),
        tuned.tried.values().map(Vec::len).sum::<usize>()
    )?;
    let began = Instant::now();
    let mut kernels = Kernels::new();
    let context = Context::new(&device, &program, weights.clone(), &mut kernels)?;
    writeln!(out, "made ready in {:.2} s", began.elapsed().as_secs_f64())?;
    for (edge, bytes) in program.inputs.iter().zip(bind(&program, &context)?) {
        std::fs::write(folder.join(format!("in_{}.bin", edge.name)), &bytes)?;
    }
    let results = run(&program, &context)?;
    for (edge, bytes) in program.outputs.iter().zip(&results) {
        std::fs::write(folder.join(format!("out_{}.bin", edge.name)), bytes)?;
    }
    let times = times_ms(&context)?;
    writeln!(
        out,
        "{name} batch {batch}: median {:.4} ms, p95 {:.4}, {:.0} items/s, {} MiB on the device",
        times[100],
        times[190],
        batch as f64 * 1e3 / times[100],
        context.memory.bytes() >> 20
    )?;
    let steps = context.step_times_ms(&device)?;
    let step_us: Vec<f64> = steps.iter().map(|ms| ms * 1e3).collect();
    for streams in [2, MAX_STREAMS] {
        let Some(spread) = schedule::spread(&program, streams, &step_us) else {
            writeln!(out, "on {streams} streams: no step would begin sooner")?;
            continue;
        };
        let context = Context::new(&device, &spread, weights.clone(), &mut kernels)?;
        bind(&spread, &context)?;
        // Often, so that branches meet in many ways.
        let mut differing = 0;
        for _ in 0..200 {
            differing += usize::from(run(&spread, &context)? != results);
        }
        writeln!(
            out,
            "on {streams} streams: median {:.4} ms, {} of {} steps aside, {} MiB, {differing} of 200 outputs differ",
            times_ms(&context)?[100],
            spread.steps.iter().filter(|step| step.stream > 0).count(),
            spread.steps.len(),
            context.memory.bytes() >> 20
        )?;
    }
    let mut by_kind = std::collections::BTreeMap::<String, (usize, f64)>::new();
    for (step, ms) in program.steps.iter().zip(&steps) {
        let entry = by_kind.entry(step.work.kind().to_owned()).or_default();
        entry.0 += 1;
        entry.1 += ms;
    }
    writeln!(
        out,
        "sum of steps {:.4} ms: {}",
        steps.iter().sum::<f64>(),
        by_kind.iter().map(|(k, (n, ms))| format!("{k} x{n} {ms:.4}")).collect::<Vec<_>>().join(", ")
    )?;
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by(|&a, &b| steps[b].total_cmp(&steps[a]));
    for &index in &order {
        let step = &program.steps[index];
        let tried = tuned.tried.get(&step.name).map(Vec::as_slice).unwrap_or_default();
        writeln!(
            out,
            "  {:.4} ms {:.0} TF/s {:.0} GB/s {} | {} | {}",
            steps[index],
            step.flops as f64 / steps[index] / 1e9,
            step.bytes as f64 / steps[index] / 1e6,
            step.work.kind(),
            step.name,
            bests(tried),
        )?;
    }
    Ok(())
}

/// Gives every input the same numbers each time, and returns them.
fn bind(program: &Program, context: &Context) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let mut state = 7u32;
    let mut all = Vec::new();
    for (edge, buffer) in program.inputs.iter().zip(&context.memory.inputs) {
        let mut bytes = Vec::new();
        for _ in 0..edge.shape.iter().product::<u64>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match edge.element {
                ElementType::I64 => {
                    bytes.extend((if edge.name.contains("mask") { 1i64 } else { i64::from(state >> 18) }).to_le_bytes())
                }
                _ => bytes.extend(((state >> 8) as f32 / (1u32 << 23) as f32 - 1.0).to_le_bytes()),
            }
        }
        buffer.write(0, &bytes)?;
        all.push(bytes);
    }
    Ok(all)
}

/// One execution's outputs.
fn run(program: &Program, context: &Context) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    context.launch()?;
    context.stream().synchronize()?;
    let outputs = program.outputs.iter().zip(&context.memory.outputs).map(|(edge, buffer)| {
        let mut bytes = vec![0; edge.shape.iter().product::<u64>() as usize * edge.element.bytes()];
        buffer.read(0, &mut bytes).map(|()| bytes)
    });
    Ok(outputs.collect::<Result<_, _>>()?)
}

/// Device times of 200 executions, in order of length.
fn times_ms(context: &Context) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..200 {
        let from = context.stream().moment()?;
        context.launch()?;
        let to = context.stream().moment()?;
        to.wait()?;
        times.push(to.since_ms(&from)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The best candidate of each source.
fn bests(tried: &[Timed]) -> String {
    let best = |name: &str, is: &dyn Fn(&Tactic) -> bool| {
        let timed = tried.iter().find(|timed| is(&timed.tactic))?;
        let tile = timed.source.as_ref().map(tile).unwrap_or_default();
        Some(format!("{name} {:.1} us {}{tile}", timed.us, timed.tactic.name()))
    };
    let own = best("own", &|tactic| matches!(tactic, Tactic::Kernel { .. }));
    let dnn = best("dnn", &|tactic| matches!(tactic, Tactic::Dnn { .. }));
    let blas = best("blas", &|tactic| matches!(tactic, Tactic::Blas { .. }));
    [own, dnn, blas].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// The sizes that a kernel on tensor cores is made with.
fn tile(source: &Source) -> String {
    let names = ["BM", "BN", "BK", "STAGES", "WARPS_M", "WARPS_N", "SPLIT"];
    let value = |name: &&str| source.text.split(&format!("#define {name} ")).nth(1)?.lines().next();
    format!(" tile {}", names.iter().filter_map(value).collect::<Vec<_>>().join(","))
}
