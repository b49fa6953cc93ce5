//! A device's own ceilings: what copies, products, transfers and launches reach here, whatever the data sheet says.
//!
//! Everything is measured with data that is neither zero nor constant (products of zeros draw less power and run
//! faster), by events unless said otherwise, as the median over repeats.
//!
//! Copies go through the driver and products through cuBLASLt, whose best proposal of several counts: what an engine
//! could reach with the same libraries.

use crate::{runtime::RuntimeError, versions::Versions};
use planforge_kernels_cuda::{
    blaslt::{Element, Handle, Operands, Prepared, Product},
    cubin::Cubin,
    device::{Arg, Buffer, DeviceError, Gpu, Launch, Stream},
    nvrtc,
};
use planforge_report::Rates;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Instant};

type Result<T> = std::result::Result<T, RuntimeError>;

/// Bytes of one side of a copy: far beyond any cache, a small part of any device's memory.
const COPY_BYTES: usize = 1 << 30;
/// Rows and columns of the products.
const PRODUCT_SIZE: u64 = 8192;
/// Bytes of one transfer between host and device.
const TRANSFER_BYTES: usize = 256 << 20;
/// Share of free memory that one buffer may take.
const MEMORY_SHARE: u64 = 8;
const WARM_UPS: usize = 3;
const REPEATS: usize = 15;
/// Of the library's algorithms, and their workspace.
const ALGORITHMS: usize = 8;
const WORKSPACE_BYTES: usize = 64 << 20;
/// Launches of which one's share is told.
const QUEUED_LAUNCHES: usize = 1000;
/// Kernels of the longer graph.
const GRAPH_KERNELS: usize = 100;
const LATENCY_REPEATS: usize = 200;

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub device: String,
    /// Read plus written, device memory to device memory.
    pub copy_gb_s: f64,
    /// Products of square matrices by element type.
    pub products: Vec<Peak>,
    pub transfers: Transfers,
    /// `None` where no kernel can be compiled.
    pub launches: Option<Launches>,
    /// Why it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launches_missing: Option<String>,
}

/// Highest rate of products of one type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    pub element: String,
    /// Multiplications and additions apart; for integers TOP/s. `None`: the library has no such product here.
    pub tflop_s: Option<f64>,
}

/// Between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfers {
    pub to_device_pinned_gb_s: f64,
    pub from_device_pinned_gb_s: f64,
    /// Host clock: the driver copies through memory of its own.
    pub to_device_pageable_gb_s: f64,
    pub from_device_pageable_gb_s: f64,
}

/// Of an empty kernel of one block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launches {
    /// From asking to knowing that it is done, on an idle device, host clock.
    pub kernel_round_trip_us: f64,
    /// One of many that are queued behind one another.
    pub kernel_queued_us: f64,
    /// As the round trip, of a captured graph with this one kernel.
    pub graph_round_trip_us: f64,
    /// What one more kernel adds to a graph, by events.
    pub graph_kernel_us: f64,
}

impl Probe {
    /// The part of it that the steps of an engine are held against.
    pub fn rates(&self) -> Rates {
        as_rates(self.copy_gb_s, &self.products)
    }

    /// Measures everything: some seconds, a few GiB of device memory.
    pub fn measure(gpu: &Gpu) -> Result<Self> {
        let stream = gpu.stream()?;
        let properties = gpu.properties();
        let (launches, launches_missing) = match launches(gpu, &stream)? {
            Ok(launches) => (Some(launches), None),
            Err(reason) => (None, Some(reason)),
        };
        Ok(Self {
            device: properties.name.clone(),
            copy_gb_s: copy_gb_s(gpu, &stream)?,
            products: products(gpu, &stream)?,
            transfers: transfers(gpu, &stream)?,
            launches,
            launches_missing,
        })
    }
}

/// What a probe's rates depend on beside the device and its driver.
pub fn conditions(versions: &Versions) -> BTreeMap<String, String> {
    BTreeMap::from([("cublaslt".to_owned(), versions.cublaslt.clone())])
}

/// Copies and products alone: what the steps of an engine are held against.
pub fn rates(gpu: &Gpu) -> Result<Rates> {
    let stream = gpu.stream()?;
    Ok(as_rates(copy_gb_s(gpu, &stream)?, &products(gpu, &stream)?))
}

fn as_rates(copy_gb_s: f64, products: &[Peak]) -> Rates {
    let known = products.iter().filter_map(|peak| Some((peak.element.clone(), peak.tflop_s?)));
    Rates { copy_gb_s, tflop_s: known.collect() }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median event-timed milliseconds of `work`.
fn timed_ms(stream: &Stream, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..WARM_UPS {
        work()?;
    }
    let mut times = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        stream.synchronize()?;
        let from = stream.moment()?;
        work()?;
        let to = stream.moment()?;
        to.wait()?;
        times.push(to.since_ms(&from)?);
    }
    Ok(median(times))
}

/// Median microseconds of `work` by the host's clock.
fn host_us(repeats: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..WARM_UPS {
        work()?;
    }
    let mut times = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let began = Instant::now();
        work()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// As many bytes as are wanted, or what a full device spares.
fn bounded(gpu: &Gpu, wanted: usize) -> Result<usize> {
    let spare = usize::try_from(gpu.memory_bytes()?.0 / MEMORY_SHARE).unwrap_or(usize::MAX);
    Ok(wanted.min(spare).next_multiple_of(256))
}

/// Device memory full of noise that `pattern` makes of random words.
fn noise(gpu: &Gpu, bytes: usize, pattern: impl Fn(u32) -> u32) -> Result<Buffer> {
    const CHUNK: usize = 8 << 20;
    let mut state = 0x2545_f491_u32;
    let mut chunk = Vec::with_capacity(CHUNK.min(bytes));
    while chunk.len() < CHUNK.min(bytes) {
        // Marsaglia's xorshift: every bit of a word is as good as another.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        chunk.extend(pattern(state).to_le_bytes());
    }
    let buffer = gpu.alloc(bytes)?;
    for at in (0..bytes).step_by(CHUNK) {
        let length = chunk.len().min(bytes - at);
        buffer.write(at, &chunk[..length])?;
    }
    Ok(buffer)
}

fn copy_gb_s(gpu: &Gpu, stream: &Stream) -> Result<f64> {
    let bytes = bounded(gpu, COPY_BYTES)?;
    let (from, to) = (noise(gpu, bytes, |word| word)?, gpu.alloc(bytes)?);
    let ms = timed_ms(stream, || {
        // SAFETY: both buffers are that large and outlive the copy, which is waited for.
        unsafe { stream.copy(to.address(), from.address(), bytes) }.map_err(Into::into)
    })?;
    Ok(2.0 * bytes as f64 / ms / 1e6)
}

/// Numbers of one type made of random bits.
type Pattern = fn(u32) -> u32;

/// Types in the order they are told, with their bytes and a pattern that makes numbers of moderate size of random words.
const ELEMENTS: [(&str, Element, u64, Pattern); 6] = [
    ("fp16", Element::F16, 2, |word| word & 0x83ff_83ff | 0x3800_3800),
    ("bf16", Element::Bf16, 2, |word| word & 0x807f_807f | 0x3f00_3f00),
    ("tf32", Element::Tf32, 4, |word| word & 0x807f_ffff | 0x3f00_0000),
    ("fp32", Element::F32, 4, |word| word & 0x807f_ffff | 0x3f00_0000),
    ("int8", Element::Int8, 1, |word| word),
    ("fp8-e4m3", Element::F8E4m3, 1, |word| word & 0x8787_8787 | 0x3030_3030),
];

fn products(gpu: &Gpu, stream: &Stream) -> Result<Vec<Peak>> {
    let handle = Handle::new().ok();
    let peaks = ELEMENTS.into_iter().map(|(name, element, bytes, pattern)| {
        let tflop_s = match &handle {
            Some(handle) => product_tflop_s(gpu, stream, handle, element, bytes, pattern)?,
            None => None,
        };
        Ok(Peak { element: name.into(), tflop_s })
    });
    peaks.collect()
}

/// `None` when the library cannot compute the product on this device.
fn product_tflop_s(
    gpu: &Gpu,
    stream: &Stream,
    handle: &Handle,
    element: Element,
    element_bytes: u64,
    pattern: Pattern,
) -> Result<Option<f64>> {
    // Halved until three matrices of the widest result fit.
    let mut size = PRODUCT_SIZE;
    while size > 256 && size * size * 4 > gpu.memory_bytes()?.0 / MEMORY_SHARE {
        size /= 2;
    }
    let Ok(prepared) = Prepared::new(handle, Product::dense(element, size, size, size).with_transposed_b()) else {
        return Ok(None);
    };
    let algorithms = prepared.algorithms(WORKSPACE_BYTES, ALGORITHMS).unwrap_or_default();
    if algorithms.is_empty() {
        return Ok(None);
    }
    let bytes = usize::try_from(size * size * element_bytes).unwrap_or(usize::MAX);
    let (a, b) = (noise(gpu, bytes, pattern)?, noise(gpu, bytes, |word| pattern(word.rotate_left(7)))?);
    let d = gpu.alloc(usize::try_from(size * size * element_bytes.max(2)).unwrap_or(usize::MAX))?;
    let workspace = gpu.alloc(WORKSPACE_BYTES)?;
    let operands = Operands {
        a: a.address(),
        b: b.address(),
        d: d.address(),
        workspace: workspace.address(),
        ..Operands::default()
    };
    let mut best: Option<f64> = None;
    for algorithm in &algorithms {
        let ms = timed_ms(stream, || {
            // SAFETY: the matrices are as the product describes them and outlive it; it is waited for.
            unsafe { prepared.run(stream, algorithm, operands) }.map_err(Into::into)
        });
        // An algorithm that this device refuses when it runs is no ceiling.
        if let Ok(ms) = ms {
            best = Some(best.map_or(ms, |best| best.min(ms)));
        }
    }
    Ok(best.map(|ms| 2.0 * (size as f64).powi(3) / ms / 1e9))
}

fn transfers(gpu: &Gpu, stream: &Stream) -> Result<Transfers> {
    let bytes = bounded(gpu, TRANSFER_BYTES)?;
    let buffer = noise(gpu, bytes, |word| word)?;
    let mut pageable = vec![0u8; bytes];
    buffer.read(0, &mut pageable)?;
    let mut pinned = gpu.pinned(bytes)?;
    pinned.bytes_mut().copy_from_slice(&pageable);
    let gb_s = |ms: f64| bytes as f64 / ms / 1e6;
    let to_device_pinned = timed_ms(stream, || {
        // SAFETY: both live, and nobody changes the host's side before the copy was waited for.
        unsafe { stream.copy_in(&buffer, &pinned) }.map_err(Into::into)
    })?;
    let from_device_pinned = timed_ms(stream, || {
        // SAFETY: as above.
        unsafe { stream.copy_out(&mut pinned, &buffer)? };
        // The next repeat borrows the memory again.
        stream.synchronize().map_err(Into::into)
    })?;
    let to_device_pageable = host_us(REPEATS, || buffer.write(0, &pageable).map_err(Into::into))?;
    let from_device_pageable = host_us(REPEATS, || buffer.read(0, &mut pageable).map_err(Into::into))?;
    Ok(Transfers {
        to_device_pinned_gb_s: gb_s(to_device_pinned),
        from_device_pinned_gb_s: gb_s(from_device_pinned),
        to_device_pageable_gb_s: gb_s(to_device_pageable / 1e3),
        from_device_pageable_gb_s: gb_s(from_device_pageable / 1e3),
    })
}

/// A kernel that does nothing but could: the compiler cannot know what it is given.
const EMPTY: &str = "extern \"C\" __global__ void probe(int* word, int never) { if (never) *word = never; }\n";

fn launches(gpu: &Gpu, stream: &Stream) -> Result<std::result::Result<Launches, String>> {
    let source = nvrtc::Source { name: "probe", text: EMPTY, options: &[] };
    let cubin = match nvrtc::compile(source, gpu.properties().arch) {
        Ok(cubin) => cubin,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let cubin = Cubin::parse(&cubin.bytes).map_err(DeviceError::from)?;
    let kernel = gpu.load(&cubin)?.kernel("probe")?;
    let word = gpu.alloc(4)?;
    let one = Launch { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
    let args = [Arg::Address(word.address()), Arg::I32(0)];
    // SAFETY: the arguments are what the kernel declares; it writes nothing.
    let launch = || -> Result<()> { unsafe { kernel.launch(stream, one, &args) }.map_err(Into::into) };
    let kernel_round_trip_us = host_us(LATENCY_REPEATS, || {
        launch()?;
        stream.synchronize().map_err(Into::into)
    })?;
    let kernel_queued_us = host_us(REPEATS, || {
        for _ in 0..QUEUED_LAUNCHES {
            launch()?;
        }
        stream.synchronize().map_err(Into::into)
    })? / QUEUED_LAUNCHES as f64;
    let captured = |count: usize| {
        // SAFETY: as above.
        stream.capture(|| (0..count).try_for_each(|_| unsafe { kernel.launch(stream, one, &args) }))
    };
    let (short, long) = (captured(1)?, captured(GRAPH_KERNELS)?);
    let graph_round_trip_us = host_us(LATENCY_REPEATS, || {
        // SAFETY: the word it was captured with lives.
        unsafe { short.launch()? };
        stream.synchronize().map_err(Into::into)
    })?;
    // SAFETY: as above.
    let short_ms = timed_ms(stream, || unsafe { short.launch() }.map_err(Into::into))?;
    // SAFETY: as above.
    let long_ms = timed_ms(stream, || unsafe { long.launch() }.map_err(Into::into))?;
    let graph_kernel_us = (long_ms - short_ms) * 1e3 / (GRAPH_KERNELS - 1) as f64;
    Ok(Ok(Launches { kernel_round_trip_us, kernel_queued_us, graph_round_trip_us, graph_kernel_us }))
}
