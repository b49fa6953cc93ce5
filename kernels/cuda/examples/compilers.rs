//! How long kernels take to compile by threads of one process and by processes, in turns. Needs NVRTC, no device.
//!
//!     cargo run --release -p planforge-kernels-cuda --example compilers [FILE.cu ...]
//!
//! Without files a hundred kernels of one line each, of which parsing is a large part.

use planforge_kernels_cuda::{
    compilers::{COMMAND, Compilers, serve},
    nvrtc::{Arch, CompileError, Source},
};
use std::{
    env,
    error::Error,
    fs, io,
    num::NonZero,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

const ROUNDS: usize = 5;
const SMALL_KERNELS: usize = 100;

/// Seconds that `threads` at a time take to have all of `texts` compiled.
fn seconds(program: Option<PathBuf>, threads: usize, texts: &[String]) -> Result<f64, CompileError> {
    let (began, next, compilers) = (Instant::now(), AtomicUsize::new(0), Compilers::of(program));
    let work = || -> Result<(), CompileError> {
        while let Some(text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
            compilers.compile(Source { name: "kernel", text, options: &[] }, Arch::of_device(9, 0))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    drop(compilers);
    Ok(began.elapsed().as_secs_f64())
}

#[expect(clippy::print_stdout, reason = "its result")]
fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = env::args().skip(1).collect();
    if files.first().is_some_and(|first| first == COMMAND) {
        return Ok(serve(io::stdin(), io::stdout())?);
    }
    let mut texts = files.iter().map(fs::read_to_string).collect::<io::Result<Vec<_>>>()?;
    if texts.is_empty() {
        let small = |n| format!("extern \"C\" __global__ void scale(float* x) {{ x[threadIdx.x] *= {n}.0f; }}");
        texts = (0..SMALL_KERNELS).map(small).collect();
    }
    let program = env::current_exe()?;
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    // The libraries are opened, and the files are in memory.
    seconds(None, 1, &texts[..1])?;
    println!("{} kernels, {threads} at a time", texts.len());
    for _ in 0..ROUNDS {
        let (one, by_threads) = (seconds(None, 1, &texts)?, seconds(None, threads, &texts)?);
        let by_processes = seconds(Some(program.clone()), threads, &texts)?;
        println!("one thread {one:.2} s, threads {by_threads:.2} s, processes {by_processes:.2} s");
    }
    Ok(())
}
