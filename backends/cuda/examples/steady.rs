//! Whether a process stays as fast as it begins: steady PLAN [ROUNDS]
//!
//! Times a plan, and a graph of twenty copies of 16 MiB, before and behind contexts that are made and dropped; a line for
//! each round with the median of both in microseconds, and last how much slower than the first the slowest was. Each round
//! makes one context that is run, and one that is not. Copies tell it best: in a process that has become slow an H200 takes
//! 120 us for them instead of 111 (docs/measurements/cuda-product.md).

use planforge_backend::LoadOptions;
use planforge_cuda::engine::Engine;
use planforge_kernels_cuda::device::{Buffer, DeviceError, Gpu, Graph, Stream};
use planforge_worker::verify::inputs;
use std::{
    env,
    error::Error,
    io::{self, Write as _},
    path::Path,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const LAUNCHES: usize = 25;
const COPIES: u64 = 20;
const COPY_BYTES: usize = 16 << 20;
/// Where a copy begins behind the one before.
const STEP_BYTES: u64 = 1 << 16;

fn main() -> Outcome<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [plan, rounds @ ..] = args.as_slice() else { return Err("steady PLAN [ROUNDS]".into()) };
    let rounds: usize = rounds.first().map_or(Ok(30), |text| text.parse())?;
    let mut engine = Engine::load(Path::new(plan), &LoadOptions { allow_foreign: true, ..LoadOptions::default() })?;
    engine.bind(&inputs::generate(&inputs::of_ports(&engine.inputs(), None), 7))?;
    let captured = engine.current()?;
    let copies = Copies::new(&engine.device.gpu)?;
    let mut out = io::stdout().lock();
    let (mut first_us, mut slowest) = ([0.0; 2], [1.0f64; 2]);
    for round in 0..=rounds {
        let context = &captured.context;
        let plan_us = median_us(context.stream(), &mut || context.launch().map_err(Box::from))?;
        let times_us = [plan_us, copies.us()?];
        writeln!(out, "round {round:3}: plan {:8.1} us, copies {:6.1} us", times_us[0], times_us[1])?;
        if round == 0 {
            first_us = times_us;
        }
        for (slowest, (us, first_us)) in slowest.iter_mut().zip(times_us.into_iter().zip(first_us)) {
            *slowest = slowest.max(us / first_us);
        }
        let run = captured.another_context(&engine.device)?;
        run.launch()?;
        run.stream().synchronize()?;
        captured.another_context(&engine.device)?;
    }
    let [plan, copies] = slowest.map(|slowest| 100.0 * (slowest - 1.0));
    writeln!(out, "the slowest round: plan {plan:.1} % slower than the first, copies {copies:.1} %")?;
    Ok(())
}

/// What the second-level cache decides.
struct Copies {
    stream: Stream,
    graph: Graph,
    /// What the graph copies within.
    _memory: Buffer,
}

impl Copies {
    fn new(gpu: &Gpu) -> Outcome<Self> {
        let sources_bytes = COPY_BYTES + COPIES as usize * STEP_BYTES as usize;
        let memory = gpu.alloc(sources_bytes + COPY_BYTES)?;
        let (from, to) = (memory.address(), memory.address() + sources_bytes as u64);
        let stream = gpu.stream()?;
        let graph = stream.capture::<DeviceError>(|| {
            // SAFETY: sources and destination lie in the memory, which lives as long as the graph.
            (0..COPIES).try_for_each(|number| unsafe { stream.copy(to, from + number * STEP_BYTES, COPY_BYTES) })
        })?;
        Ok(Self { stream, graph, _memory: memory })
    }

    fn us(&self) -> Outcome<f64> {
        // SAFETY: the memory lives.
        median_us(&self.stream, &mut || unsafe { self.graph.launch() }.map_err(Box::from))
    }
}

/// Median device time of what `launch` queues on the stream, after some that do not count.
fn median_us(stream: &Stream, launch: &mut dyn FnMut() -> Outcome<()>) -> Outcome<f64> {
    for _ in 0..3 {
        launch()?;
    }
    let mut moments = vec![stream.moment()?];
    for _ in 0..LAUNCHES {
        launch()?;
        moments.push(stream.moment()?);
    }
    moments[LAUNCHES].wait()?;
    let both = moments.windows(2).map(|both| Ok(both[1].since_ms(&both[0])? * 1e3));
    let mut times_us = both.collect::<Outcome<Vec<f64>>>()?;
    times_us.sort_by(f64::total_cmp);
    Ok(times_us[LAUNCHES / 2])
}
