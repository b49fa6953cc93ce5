//! Whether a library's kernel waits for the one ahead of it.
//!
//! Where a kernel lets the next one begin early, that one has to wait by itself before it touches what others write. Ours
//! do; of libraries' kernels most do and some do not, and nothing tells which. So they are tried: a kernel that lets them
//! begin at once writes what they read a good while later, and until then that is garbage. Only tactics that pass may
//! follow a kernel of ours that is not done yet; the others wait for its end, which costs a few microseconds each time.

use crate::{
    codegen::late,
    early::EARLY_SINCE,
    program::{Program, Step},
    runtime::{Device, Kernels, Memory, Ready, Result, RuntimeError, prepare},
    tune::{Timed, agree},
    view::View,
};
use planforge_graph::ir::Tensor;
use planforge_kernels_cuda::device::{Arg, Buffer, DeviceError};

/// Repetitions, of which each must be right.
const ROUNDS: usize = 3;
/// Steps of more memory are not tried: what an early begin saves does not count there.
const MAX_BYTES: usize = 64 << 20;
/// Of every type's numbers, none: NaN.
const GARBAGE: u8 = 0xff;

/// Notes in those of `timed` that are a library's whether they wait.
pub(super) fn note(
    device: &Device,
    program: &Program,
    step: &Step,
    memory: &Memory,
    timed: &mut [Timed],
    kernels: &mut Kernels,
) -> Result<()> {
    if device.gpu.properties().arch.capability < EARLY_SINCE {
        return Ok(());
    }
    for one in timed.iter_mut().filter(|timed| timed.tactic.is_library()) {
        let tried = prepare(device, program, step, Some(&one.tactic), memory, kernels)
            .and_then(|ready| waits(device, program, step, memory, &ready));
        let (step, tactic) = (&step.name, one.tactic.name());
        match tried {
            Ok(Some(waits)) => {
                one.tactic.set_waits(waits);
                if !waits {
                    tracing::info!(step, tactic, "reads before the kernel ahead of it is done, and is kept behind it");
                }
            }
            Ok(None) => {}
            Err(error @ RuntimeError::Device(DeviceError::Fault { .. })) => return Err(error),
            Err(error) => tracing::debug!(step, tactic, %error, "not tried behind a kernel that is late"),
        }
    }
    Ok(())
}

/// Whether `ready`, which computes `step`, waits for a kernel ahead of it that lets it begin at once. `None` where that
/// cannot be told: the step touches too much memory, or its result does not show what it reads. Memory is as it was
/// before.
pub fn waits(device: &Device, program: &Program, step: &Step, memory: &Memory, ready: &Ready) -> Result<Option<bool>> {
    let (read, written) = step.work.views();
    let read = read.into_iter().filter(|view| !program.is_constant(view));
    let inputs: Option<Vec<Region>> = read.map(|view| Region::of(program, memory, view)).collect();
    let Some((inputs, output)) = inputs.zip(Region::of(program, memory, written)) else { return Ok(None) };
    let regions: Vec<Region> = inputs.iter().chain([&output]).copied().collect();
    let bytes: usize = regions.iter().map(|region| region.bytes).sum();
    if bytes > MAX_BYTES || regions.len() > late::COPIES {
        return Ok(None);
    }
    let kept = Kept::of(device, regions, bytes)?;
    let tried = tried(device, program, memory, written, ready, &inputs, &kept);
    // Also where something failed: later candidates and steps read it.
    kept.restore(device)?;
    tried
}

fn tried(
    device: &Device,
    program: &Program,
    memory: &Memory,
    written: &View,
    ready: &Ready,
    inputs: &[Region],
    kept: &Kept,
) -> Result<Option<bool>> {
    let stream = &device.stream;
    let spoil = || -> Result<()> {
        for region in inputs {
            // SAFETY: the range is part of the engine's memory, which lives.
            unsafe { stream.fill(region.address, GARBAGE, region.bytes)? };
        }
        Ok(stream.synchronize()?)
    };
    // SAFETY: the caller's memory lives.
    unsafe { ready.run(stream)? };
    let expected = result(device, program, memory, written)?;
    // Garbage that cannot be seen in the result would prove nothing.
    kept.restore(device)?;
    spoil()?;
    // SAFETY: as above.
    unsafe { ready.run(stream)? };
    if alike(&expected, &result(device, program, memory, written)?, written, program.tf32) {
        return Ok(None);
    }
    kept.restore(device)?;
    let generated = late::generate();
    let kernel = device.kernel(&generated.source)?;
    let args = kept.late_args();
    let graph = stream.capture(|| -> Result<()> {
        // SAFETY: copies between memory that lives, each within its range.
        unsafe { kernel.launch(stream, generated.launch(), &args)? };
        // SAFETY: the caller's memory lives.
        unsafe { ready.run(stream) }
    })?;
    for _ in 0..ROUNDS {
        spoil()?;
        // SAFETY: the memory it was captured with lives.
        let _: () = unsafe { graph.launch()? };
        if !alike(&expected, &result(device, program, memory, written)?, written, program.tf32) {
            return Ok(Some(false));
        }
        kept.restore(device)?;
    }
    Ok(Some(true))
}

/// Memory of a view, in whole units of what is copied; what lies beside the view is kept and restored with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    address: u64,
    bytes: usize,
}

impl Region {
    const UNIT: u64 = 16;

    /// `None` for what has no end or is empty.
    fn of(program: &Program, memory: &Memory, view: &View) -> Option<Self> {
        let begin = memory.address_of(program, view);
        let end = begin + view.end_bytes()?.checked_sub(view.offset * view.kind.bytes())?;
        Self::between(begin, end)
    }

    fn between(begin: u64, end: u64) -> Option<Self> {
        // Buffers begin and end at multiples of far more than this.
        let address = begin / Self::UNIT * Self::UNIT;
        let bytes = usize::try_from(end.next_multiple_of(Self::UNIT).checked_sub(address)?).ok()?;
        (bytes > 0).then_some(Self { address, bytes })
    }
}

/// What lay in some regions.
struct Kept {
    regions: Vec<Region>,
    memory: Buffer,
}

impl Kept {
    fn of(device: &Device, regions: Vec<Region>, bytes: usize) -> Result<Self> {
        let kept = Self { regions, memory: device.gpu.alloc(bytes)? };
        device.stream.synchronize()?;
        for (region, at) in kept.places() {
            // SAFETY: both ranges live; the second is as long as all regions together.
            unsafe { device.stream.copy(at, region.address, region.bytes)? };
        }
        Ok(kept)
    }

    /// Every region, and where it is kept.
    fn places(&self) -> impl Iterator<Item = (&Region, u64)> {
        self.regions.iter().scan(self.memory.address(), |at, region| {
            let here = *at;
            *at += region.bytes as u64;
            Some((region, here))
        })
    }

    fn restore(&self, device: &Device) -> Result<()> {
        for (region, at) in self.places() {
            // SAFETY: as above, the other way round.
            unsafe { device.stream.copy(region.address, at, region.bytes)? };
        }
        Ok(device.stream.synchronize()?)
    }

    /// The late kernel's arguments for restoring everything; copies that are left over have nothing to do.
    fn late_args(&self) -> Vec<Arg> {
        let copy = |(region, at): (&Region, u64)| (region.address, at, region.bytes as u64 / Region::UNIT);
        let copies = self.places().map(copy).chain(std::iter::repeat((0, 0, 0))).take(late::COPIES);
        copies.flat_map(|(to, from, count)| [Arg::Address(to), Arg::Address(from), Arg::I64(count as i64)]).collect()
    }
}

/// All of what a step wrote, gaps of the view included.
fn result(device: &Device, program: &Program, memory: &Memory, view: &View) -> Result<Vec<u8>> {
    device.stream.synchronize()?;
    let begin = view.offset * view.kind.bytes();
    let mut bytes = vec![0; usize::try_from(view.end_bytes().unwrap_or(begin) - begin).unwrap_or(0)];
    memory.read(program, view.buffer, begin, &mut bytes)?;
    Ok(bytes)
}

/// The same, but for the order in which sums were taken.
fn alike(expected: &[u8], actual: &[u8], view: &View, tf32: bool) -> bool {
    if expected == actual {
        return true;
    }
    let numbers = |bytes: &[u8]| {
        let count = bytes.len() / view.kind.bytes() as usize;
        Tensor::new(view.kind.element(), vec![count], bytes.to_vec().into()).map(|tensor| tensor.to_f64s())
    };
    let (Ok(expected), Ok(actual)) = (numbers(expected), numbers(actual)) else { return false };
    let squares: f64 = expected.iter().map(|x| x * x).sum();
    let differences: f64 = expected.iter().zip(&actual).map(|(a, b)| (a - b) * (a - b)).sum();
    // NaN is not less.
    (differences / squares).sqrt() < agree::bound(view.kind, tf32)
}
