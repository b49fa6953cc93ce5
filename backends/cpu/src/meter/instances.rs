//! Instances of one engine side by side, each with activations and threads of its own, on cores that no other has; the
//! constants are shared.

use super::{ITERATIONS_MAX, engine_error, guarded};
use crate::engine::Engine;
use planforge_backend::{StreamSamples, Window};
use planforge_kernels_cpu::pool::ThreadPool;
use planforge_types::{BackendError, FailureClass, failure::chain};
use std::{
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

/// What one instance did.
struct Ran {
    latency_ms: Vec<f64>,
    ended: Instant,
}

/// Runs `count` instances for as long as `window` says, `engine` on `pool` among them.
///
/// # Errors
///
/// When there are not enough cores for each to have its own, which would measure how they wait for each other.
pub(super) fn measure(
    engine: &mut Engine,
    pool: &ThreadPool,
    count: u32,
    window: Window,
) -> Result<StreamSamples, BackendError> {
    let (count, threads) = (count.max(1), pool.threads());
    let mut pools = Vec::new();
    for _ in 1..count {
        let own =
            ThreadPool::pinned(threads).map_err(|error| BackendError::new(FailureClass::Resource, chain(&error)))?;
        if !own.is_pinned() {
            return Err(too_few_cores(count, threads));
        }
        pools.push(own);
    }
    if !pool.is_pinned() {
        return Err(too_few_cores(count, threads));
    }
    let least = window.iterations.min(ITERATIONS_MAX).div_ceil(count).max(1);
    let (program, weights, isa) = engine.parts();
    let inputs = engine.input_bytes();
    run(engine, Instant::now(), 0.0, 1)?;
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let mut others = Vec::with_capacity(pools.len());
        for pool in pools {
            let (go, goes) = mpsc::channel();
            let (tell, inputs) = (tell.clone(), &inputs);
            let (program, weights) = (program.clone(), weights.clone());
            let body = move || {
                let pool = Arc::new(pool);
                let _pinned = pool.pin_caller();
                let made = guarded(|| {
                    let mut engine =
                        Engine::new(program, weights, isa, Arc::clone(&pool)).map_err(|error| engine_error(&error))?;
                    inputs.iter().enumerate().for_each(|(index, bytes)| engine.set_input(index, bytes));
                    run(&mut engine, Instant::now(), 0.0, 1)?;
                    Ok(engine)
                });
                let mut engine = match made {
                    Ok(engine) => engine,
                    Err(error) => {
                        // Whoever started it hears of it, or has given up.
                        let _ = tell.send(Err(error));
                        return Err(gone());
                    }
                };
                let _ = tell.send(Ok(()));
                drop(tell);
                let began = goes.recv().map_err(|_| gone())?;
                guarded(|| run(&mut engine, began, window.duration_ms, least))
            };
            others.push((go, scope.spawn(body)));
        }
        drop(tell);
        for _ in &others {
            told.recv().map_err(|_| gone())??;
        }
        let began = Instant::now();
        for (go, _) in &others {
            go.send(began).map_err(|_| gone())?;
        }
        let mut ran = vec![run(engine, began, window.duration_ms, least)?];
        for (_, other) in others {
            ran.push(other.join().map_err(|_| gone())??);
        }
        let ended = ran.iter().map(|ran| ran.ended).max().unwrap_or(began);
        let latency_ms: Vec<f64> = ran.into_iter().flat_map(|ran| ran.latency_ms).collect();
        let elapsed_s = ended.duration_since(began).as_secs_f64();
        Ok(StreamSamples { executions_per_s: latency_ms.len() as f64 / elapsed_s.max(1e-9), latency_ms })
    })
}

/// Runs until `duration_ms` have passed since `began`, and `least` times.
fn run(engine: &mut Engine, began: Instant, duration_ms: f64, least: u32) -> Result<Ran, BackendError> {
    let mut latency_ms = Vec::with_capacity(least as usize);
    loop {
        let start = Instant::now();
        let passed = start.duration_since(began).as_secs_f64() * 1e3 >= duration_ms;
        if latency_ms.len() >= least as usize && (passed || latency_ms.len() >= ITERATIONS_MAX as usize) {
            return Ok(Ran { latency_ms, ended: start });
        }
        engine.run().map_err(|error| BackendError::model(chain(&error)))?;
        latency_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
}

fn too_few_cores(count: u32, threads: usize) -> BackendError {
    let of = if threads == 1 { "one thread".to_owned() } else { format!("{threads} threads") };
    let wanted = match count as usize * threads {
        1 => "a core".to_owned(),
        cores => format!("{cores} cores"),
    };
    let message = match count {
        1 => format!("an instance of {of} takes {wanted} that nobody else has, and fewer are free"),
        count => format!("{count} instances of {of} each take {wanted} that nobody else has, and fewer are free"),
    };
    BackendError::new(FailureClass::Resource, message)
        .with_hint("build the engine with fewer --threads, or ask for fewer streams")
}

fn gone() -> BackendError {
    BackendError::infrastructure("an instance of the engine ended by itself")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuCompiler, toolchain};
    use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Meter};
    use planforge_device::{CpuLevel, cpu};
    use planforge_types::{BuildSpec, Digest, HostTensor, NamedTensors, OptimizationLevel, fingerprint::HostFacts};
    use std::path::Path;

    struct Silent;

    impl Events for Silent {
        fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
        fn log(&self, _line: &str) {}
    }

    /// A loaded engine of one thread.
    fn engine(folder: &Path) -> Box<dyn Meter> {
        let request = CompileRequest {
            model: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx"),
            model_digest: Digest::of(b"model"),
            sku: CpuLevel::detect()[0].sku(),
            device: cpu::detect(&HostFacts::default()).0,
            toolchain: toolchain(),
            spec: BuildSpec { threads: Some(1), optimization_level: OptimizationLevel(0), ..BuildSpec::default() },
            scratch: folder.to_owned(),
            cache: None,
            calibration: None,
            plugins: Vec::new(),
        };
        let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default()).unwrap().path;
        CpuCompiler.load(&plan, &LoadOptions::default()).unwrap()
    }

    fn bind(meter: &mut dyn Meter) {
        let input = |port: planforge_types::Port| {
            let shape: Vec<usize> = port.shape.iter().map(|size| size.unwrap() as usize).collect();
            let bytes = 1f32.to_le_bytes().repeat(shape.iter().product());
            (port.name, HostTensor { element: port.element, shape, bytes })
        };
        let inputs: NamedTensors = meter.inputs().into_iter().map(input).collect();
        meter.bind(&inputs).unwrap();
    }

    #[test]
    fn instances_have_cores_of_their_own_or_say_that_there_are_too_few() {
        let folder = tempfile::tempdir().unwrap();
        let mut meter = engine(folder.path());
        bind(&mut *meter);
        let before = meter.run().unwrap();
        let window = Window { iterations: 20, duration_ms: 5.0 };
        // No machine has so many.
        let many = 2_000;
        let error = meter.streams(many, window).unwrap_err();
        assert_eq!(error.class, FailureClass::Resource);
        assert!(error.message.contains(&format!("{many} instances of one thread each take {many} cores")), "{error}");
        assert_eq!(meter.run().unwrap(), before, "the engine itself goes on as before");
        for count in [1, 2] {
            match meter.streams(count, window) {
                Ok(Some(samples)) => {
                    assert!(samples.latency_ms.len() >= 20, "every instance ran: {}", samples.latency_ms.len());
                    assert!(samples.executions_per_s > 0.0);
                    assert_eq!(meter.run().unwrap(), before, "the others wrote into memory of their own");
                }
                Ok(None) => panic!("processors have instances"),
                Err(error) => planforge_skipped::skipped(format_args!("{count} free cores: {error}")),
            }
        }
    }

    #[test]
    fn an_engine_that_nothing_is_bound_to_has_no_instances() {
        let folder = tempfile::tempdir().unwrap();
        let error = engine(folder.path()).streams(1, Window { iterations: 1, duration_ms: 0.0 }).unwrap_err();
        assert!(error.message.contains("no inputs are bound"), "{error}");
    }
}
