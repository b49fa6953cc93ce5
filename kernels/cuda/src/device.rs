//! One GPU: context, memory, streams, kernels, events, captured graphs.
//!
//! Thin over cudarc's driver layer. Memory is plain device memory, never managed. Event tracking is off: what runs on
//! several streams is ordered by explicit events, as it must be inside a captured graph.

use super::{
    calls::driver as calls,
    cubin::{Cubin, CubinError},
    libraries::{Driver, Missing},
    nvrtc::Arch,
    pool::Pool,
};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaGraph, CudaStream, DriverError,
    result::{self, module},
    sys,
};
use std::{collections::BTreeMap, ffi::CString, ffi::c_void, fmt, ptr, sync::Arc};

/// Alignment of every buffer and of every tensor inside one; what vector loads and the libraries' fastest paths need.
pub const ALIGNMENT_BYTES: usize = 256;

/// Why the device could not do it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error("no GPU has the UUID {uuid}; this process sees {seen} GPUs")]
    NoSuchDevice { uuid: String, seen: usize },
    #[error("out of device memory: {wanted_mib} MiB asked for, {free_mib} MiB free")]
    OutOfMemory { wanted_mib: u64, free_mib: u64 },
    #[error("out of device memory: cannot {what}")]
    Exhausted { what: String },
    #[error(
        "the device stopped at a faulty kernel ({reason}) while it was to {what}; this process can do no more on it"
    )]
    Fault { what: String, reason: String },
    #[error("cannot {what}: {reason}")]
    Driver { what: String, reason: String },
    #[error("these bytes are no machine code that a device could run: {0}")]
    Code(#[from] CubinError),
    #[error("kernel {kernel} takes parameters of {takes:?} bytes, and is given {given:?}")]
    Arguments { kernel: String, takes: Vec<u32>, given: Vec<u32> },
}

impl DeviceError {
    pub(crate) fn from_driver(what: impl Into<String>, error: DriverError) -> Self {
        use sys::cudaError_enum as Code;
        let what = what.into();
        let reason = error.to_string();
        match error.0 {
            Code::CUDA_ERROR_OUT_OF_MEMORY => Self::Exhausted { what },
            Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR => Self::Fault { what, reason },
            _ => Self::Driver { what, reason },
        }
    }
}

type Result<T> = std::result::Result<T, DeviceError>;

pub(super) fn doing<T>(what: &str, result: std::result::Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| DeviceError::from_driver(what, error))
}

/// Runs `work` with whoever profiles this process looking, and nothing else of it.
pub fn profiled<T>(work: impl FnOnce() -> T) -> Result<T> {
    // SAFETY: neither takes anything; without a profiler they do nothing.
    doing("let a profiler look", unsafe { sys::cuProfilerStart() }.result())?;
    let done = work();
    // SAFETY: as above.
    doing("end a profiler's look", unsafe { sys::cuProfilerStop() }.result())?;
    Ok(done)
}

/// What decides how kernels are made and laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    pub name: String,
    pub arch: Arch,
    pub sm_count: u32,
    pub l2_bytes: u64,
    /// Most shared memory one block may ask for.
    pub shared_block_bytes: u32,
    pub memory_bytes: u64,
}

/// One GPU of this process.
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    properties: Properties,
    streams: Arc<Pool<CudaStream>>,
}

impl Gpu {
    /// The device of that number, in the order of this process.
    pub fn open(ordinal: usize) -> Result<Self> {
        Driver::get()?;
        let context = doing("open the device", CudaContext::new(ordinal))?;
        // SAFETY: every order between streams is stated by events of our own; nothing relies on tracked ones.
        unsafe { context.disable_event_tracking() };
        let properties = doing("ask for the device's properties", properties(&context))?;
        Ok(Self { context, properties, streams: Arc::default() })
    }

    /// Whether that is the device's NVML UUID: `GPU-...`, or `MIG-...` of a slice.
    pub fn has_uuid(&self, uuid: &str) -> Result<bool> {
        doing("ask for the device's UUID", self.context.uuid()).map(|own| is_uuid(uuid, own))
    }

    /// The device with that NVML UUID (`GPU-...`, or `MIG-...` of a slice), whatever its number here.
    ///
    /// No other device is opened: a context there would take memory and show up beside what is measured on it.
    pub fn open_uuid(uuid: &str) -> Result<Self> {
        Driver::get()?;
        let count = doing("count the devices", CudaContext::device_count())?;
        for ordinal in 0..count {
            let handle = doing("ask for a device", result::device::get(ordinal))?;
            if is_uuid(uuid, doing("ask for a device's UUID", result::device::get_uuid(handle))?) {
                return Self::open(usize::try_from(ordinal).unwrap_or(0));
            }
        }
        Err(DeviceError::NoSuchDevice { uuid: uuid.into(), seen: usize::try_from(count).unwrap_or(0) })
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes the device the one that libraries of this thread use.
    pub fn use_here(&self) -> Result<()> {
        doing("use the device", self.context.bind_to_thread())
    }

    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Free and total device memory in bytes.
    pub fn memory_bytes(&self) -> Result<(u64, u64)> {
        let (free, total) = doing("ask for free memory", self.context.mem_get_info())?;
        Ok((free as u64, total as u64))
    }

    /// A stream that waits for no other; what an earlier user queued on it may still run.
    ///
    /// None is destroyed before the device goes: contexts that came and went with streams of their own left the process in
    /// a state in which every kernel that fills the device takes up to 0.4 us longer (docs/measurements/cuda-product.md).
    pub fn stream(&self) -> Result<Stream> {
        self.streams.take(|| doing("make a stream", self.context.new_stream())).map(Stream)
    }

    /// Uninitialised memory.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        doing("use the device", self.context.bind_to_thread())?;
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT_BYTES);
        // SAFETY: the memory is owned by the buffer and freed once; nobody reads it before it is written.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(address) => Ok(Buffer { address, bytes, context: self.context.clone() }),
            Err(error) if error.0 == sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => {
                const MIB: u64 = 1 << 20;
                let free = self.memory_bytes().map_or(0, |(free, _)| free);
                Err(DeviceError::OutOfMemory { wanted_mib: (bytes as u64).div_ceil(MIB), free_mib: free / MIB })
            }
            Err(error) => Err(DeviceError::from_driver("allocate device memory", error)),
        }
    }

    /// Memory with these bytes in it.
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.alloc(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Loads machine code.
    pub fn load(&self, cubin: &Cubin<'_>) -> Result<Module> {
        doing("use the device", self.context.bind_to_thread())?;
        // SAFETY: the driver copies the image during the call, and reads what its headers name: all of that lies inside
        // of the image, as its type says.
        let handle = doing("load a kernel", unsafe { module::load_data(cubin.bytes().as_ptr().cast()) })?;
        let parameters = cubin.parameters().clone();
        Ok(Module(Arc::new(ModuleInner { handle, parameters, context: self.context.clone() })))
    }

    /// Waits until everything on the device is done.
    pub fn synchronize(&self) -> Result<()> {
        doing("wait for the device", self.context.synchronize())
    }
}

fn properties(context: &Arc<CudaContext>) -> std::result::Result<Properties, DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let ask = |attribute| context.attribute(attribute).map(|value| u32::try_from(value).unwrap_or(0));
    let (major, minor) = context.compute_capability()?;
    Ok(Properties {
        name: context.name()?,
        arch: Arch::of_device(u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)),
        sm_count: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: ask(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        shared_block_bytes: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        memory_bytes: context.total_mem()? as u64,
    })
}

/// Whether the text, of a GPU or of a slice of one, names the device of these sixteen bytes.
fn is_uuid(text: &str, uuid: sys::CUuuid) -> bool {
    let Some(digits) = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")) else { return false };
    let digits = digits.chars().filter(|digit| *digit != '-').map(|digit| digit.to_ascii_lowercase());
    digits.eq(uuid.bytes.iter().flat_map(|byte| format!("{:02x}", *byte as u8).into_bytes()).map(char::from))
}

/// Device memory of one owner.
pub struct Buffer {
    address: sys::CUdeviceptr,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x})", self.bytes, self.address)
    }
}

impl Buffer {
    /// Where it begins in the device's address space.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Copies to the device and waits until it is there.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.bytes, "{} bytes at {offset} of {self:?}", bytes.len());
        doing("use the device", self.context.bind_to_thread())?;
        // SAFETY: the range lies inside this buffer, as checked above.
        doing("copy to the device", unsafe { result::memcpy_htod_sync(self.address + offset as u64, bytes) })?;
        wait_for_default_stream()
    }

    /// Copies from the device, after everything that was queued on it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.bytes, "{} bytes at {offset} of {self:?}", bytes.len());
        doing("wait for the device", self.context.synchronize())?;
        // SAFETY: the range lies inside this buffer, as checked above.
        doing("copy from the device", unsafe { result::memcpy_dtoh_sync(bytes, self.address + offset as u64) })
    }

    /// Sets every byte and waits until they are.
    pub fn fill(&self, byte: u8) -> Result<()> {
        doing("use the device", self.context.bind_to_thread())?;
        // SAFETY: exactly this buffer's memory is written.
        doing("fill device memory", unsafe { result::memset_d8_sync(self.address, byte, self.bytes) })?;
        wait_for_default_stream()
    }
}

/// Copies and fills by the driver's plain calls go through its default stream. They come back once the bytes are in its own
/// memory, on the way, or not even begun; streams of ours wait for no other, and a kernel there could be ahead of them.
fn wait_for_default_stream() -> Result<()> {
    // SAFETY: null names the default stream of the context that the caller made current.
    doing("wait for a copy", unsafe { result::stream::synchronize(std::ptr::null_mut()) })
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let freed = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: allocated by `Gpu::alloc`, freed once; the driver waits for work that uses it.
            unsafe { result::free_sync(self.address) }
        });
        if let Err(error) = freed {
            tracing::debug!(%error, "device memory was not freed");
        }
    }
}

/// An order of work on the device.
#[derive(Clone, Debug)]
pub struct Stream(pub(super) Arc<CudaStream>);

impl Stream {
    pub fn synchronize(&self) -> Result<()> {
        doing("wait for the stream", self.0.synchronize())
    }

    /// What follows here runs after what was queued on `other` so far.
    pub fn after(&self, other: &Stream) -> Result<()> {
        doing("order two streams", self.0.join(&other.0))
    }

    /// What follows here runs after that moment of another stream; both may be in one capture.
    pub fn after_moment(&self, moment: &Moment) -> Result<()> {
        doing("order two streams", self.0.wait(&moment.0))
    }

    /// A moment on this stream whose time can be read.
    pub fn moment(&self) -> Result<Moment> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Moment(doing("record an event", self.0.record_event(flags))?))
    }

    /// Records what `work` queues, runs none of it, and makes it one graph.
    pub fn capture<E: From<DeviceError>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        doing("begin a capture", self.0.begin_capture(mode))?;
        let worked = work();
        // Ended in any case: a stream must not stay in capture.
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.0.end_capture(flags);
        worked?;
        // Its first launch uploads it. Uploaded ahead and not launched, it makes every kernel of the process that fills the
        // device up to 0.4 us slower (docs/measurements/cuda-product.md).
        let graph = doing("end a capture", graph)?.ok_or_else(|| DeviceError::Driver {
            what: "end a capture".into(),
            reason: "nothing was captured".into(),
        })?;
        Ok(Graph(graph))
    }

    /// Copies between device addresses in stream order.
    ///
    /// # Safety
    /// Both ranges are memory of this device that lives until the copy is done.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: as the caller vouches.
        doing("copy on the device", unsafe { result::memcpy_dtod_async(to, from, bytes, self.0.cu_stream()) })
    }

    /// Copies so many rows of bytes between device addresses in stream order; both have a row at every `pitch_bytes`.
    ///
    /// # Safety
    /// Both ranges are memory of this device that lives until the copy is done, and no row of one is in the other.
    pub unsafe fn copy_rows(&self, to: u64, from: u64, bytes: usize, pitch_bytes: usize, rows: usize) -> Result<()> {
        if bytes == 0 || rows == 0 {
            return Ok(());
        }
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from,
            srcArray: std::ptr::null_mut(),
            srcPitch: pitch_bytes,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to,
            dstArray: std::ptr::null_mut(),
            dstPitch: pitch_bytes,
            WidthInBytes: bytes,
            Height: rows,
        };
        doing("use the device", self.0.context().bind_to_thread())?;
        // SAFETY: the ranges are as the caller vouches; the parameters live until the call returns.
        doing(
            "copy rows on the device",
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.0.cu_stream()) }.result(),
        )
    }

    /// Fills device memory in stream order.
    ///
    /// # Safety
    /// The range is memory of this device that lives until the fill is done.
    pub unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: as the caller vouches.
        doing("fill device memory", unsafe { result::memset_d8_async(to, byte, bytes, self.0.cu_stream()) })
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.0.cu_stream()
    }

    /// The driver's handle, for libraries that queue work of their own.
    pub(super) fn raw(&self) -> *mut c_void {
        self.0.cu_stream().cast()
    }
}

/// A recorded event.
#[derive(Debug)]
pub struct Moment(CudaEvent);

impl Moment {
    pub fn wait(&self) -> Result<()> {
        doing("wait for an event", self.0.synchronize())
    }

    /// Device time from `earlier` to here; waits for both.
    pub fn since_ms(&self, earlier: &Moment) -> Result<f64> {
        earlier.wait()?;
        self.wait()?;
        let mut ms = 0f32;
        // SAFETY: both events are there and were waited for.
        let read = unsafe { calls::cuEventElapsedTime(&mut ms, earlier.0.cu_event(), self.0.cu_event()) };
        doing("read an event", read.result())?;
        Ok(ms.into())
    }
}

/// Captured work that is launched as one.
pub struct Graph(CudaGraph);

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Graph")
    }
}

impl Graph {
    /// Queues it on the stream it was captured on.
    ///
    /// # Safety
    /// Every address it was captured with still is the memory it was then.
    pub unsafe fn launch(&self) -> Result<()> {
        doing("launch a graph", self.0.launch())
    }
}

/// Loaded machine code.
#[derive(Clone)]
pub struct Module(Arc<ModuleInner>);

struct ModuleInner {
    handle: sys::CUmodule,
    /// By kernel: how many bytes each of its parameters has.
    parameters: BTreeMap<String, Vec<u32>>,
    context: Arc<CudaContext>,
}

// SAFETY: a module handle may be used from any thread that binds its context, which every user does.
unsafe impl Send for ModuleInner {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for ModuleInner {}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Module")
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // SAFETY: loaded by `Gpu::load`, unloaded once; kernels hold the module alive.
        let unloaded = self.context.bind_to_thread().and_then(|()| unsafe { module::unload(self.handle) });
        if let Err(error) = unloaded {
            tracing::debug!(%error, "a kernel module was not unloaded");
        }
    }
}

impl Module {
    /// A kernel by its `extern "C"` name.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let missing = |reason: &str| DeviceError::Driver { what: format!("find kernel {name}"), reason: reason.into() };
        let text = CString::new(name).map_err(|_| missing("its name has a zero byte"))?;
        // A launch reads as many arguments as the kernel has.
        let takes = self.0.parameters.get(name).ok_or_else(|| missing("its parameters are not described"))?.clone();
        doing("use the device", self.0.context.bind_to_thread())?;
        // SAFETY: the module is loaded and kept alive by the kernel.
        let function = unsafe { module::get_function(self.0.handle, text) };
        let function = function.map_err(|error| missing(&error.to_string()))?;
        Ok(Kernel { function, module: self.clone(), name: name.into(), takes, begins_early: false })
    }
}

/// Blocks, threads and shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory of one block.
    pub shared_bytes: u32,
}

/// One argument of a kernel, by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A device address.
    Address(u64),
    I32(i32),
    I64(i64),
    F32(f32),
}

impl Arg {
    fn len_bytes(&self) -> u32 {
        match self {
            Self::Address(_) | Self::I64(_) => 8,
            Self::I32(_) | Self::F32(_) => 4,
        }
    }
}

/// A kernel of a loaded module.
#[derive(Clone)]
pub struct Kernel {
    function: sys::CUfunction,
    module: Module,
    name: String,
    /// Bytes of each parameter.
    takes: Vec<u32>,
    begins_early: bool,
}

// SAFETY: function handles belong to their module, which is `Send` and held alive.
unsafe impl Send for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name)
    }
}

impl Kernel {
    /// Lets its blocks begin while the kernel before it on the stream still runs, from compute capability 9.0 on. The
    /// kernel must wait by itself (`griddepcontrol.wait`) before it touches what others read or write.
    pub fn beginning_early(self) -> Self {
        Self { begins_early: true, ..self }
    }

    /// Takes [`Kernel::beginning_early`] back, for a launch that follows work of several streams.
    pub fn begin_after_all(&mut self) {
        self.begins_early = false;
    }

    /// Lets a block ask for more shared memory than a kernel gets by default; launches that may ask for more already go on
    /// being allowed to.
    pub fn allow_shared_bytes(&self, bytes: u32) -> Result<()> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        doing("use the device", self.module.0.context.bind_to_thread())?;
        // SAFETY: the function is alive through its module.
        let allowed = unsafe { result::function::get_function_attribute(self.function, attribute) };
        if allowed.is_ok_and(|allowed| allowed >= value) {
            return Ok(());
        }
        // SAFETY: as above.
        let set = unsafe { result::function::set_function_attribute(self.function, attribute, value) };
        set.map_err(|error| {
            DeviceError::from_driver(format!("give kernel {} {bytes} bytes of shared memory", self.name), error)
        })
    }

    /// Queues one launch; arguments that are not as many and as large as the kernel declares are refused.
    ///
    /// # Safety
    /// `args` are what the kernel declares, in its order, and every address in them leads to memory of this device that
    /// is large enough for what the kernel does with it and lives until it is done.
    pub unsafe fn launch(&self, stream: &Stream, launch: Launch, args: &[Arg]) -> Result<()> {
        if !self.takes.iter().copied().eq(args.iter().map(Arg::len_bytes)) {
            let given = args.iter().map(Arg::len_bytes).collect();
            return Err(DeviceError::Arguments { kernel: self.name.clone(), takes: self.takes.clone(), given });
        }
        let mut pointers: Vec<*mut c_void> = args
            .iter()
            .map(|arg| match arg {
                Arg::Address(value) => ptr::from_ref(value).cast_mut().cast(),
                Arg::I32(value) => ptr::from_ref(value).cast_mut().cast(),
                Arg::I64(value) => ptr::from_ref(value).cast_mut().cast(),
                Arg::F32(value) => ptr::from_ref(value).cast_mut().cast(),
            })
            .collect();
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared_bytes,
            hStream: stream.0.cu_stream(),
            attrs: &raw mut early,
            numAttrs: 1,
        };
        let [grid, block] = [launch.grid, launch.block].map(|d| (d[0], d[1], d[2]));
        // SAFETY: the pointers live until the call returns, which copies what they point to; the rest is the caller's.
        let queued = unsafe {
            if self.begins_early {
                sys::cuLaunchKernelEx(&raw const config, self.function, pointers.as_mut_ptr(), ptr::null_mut()).result()
            } else {
                let stream = stream.0.cu_stream();
                result::launch_kernel(self.function, grid, block, launch.shared_bytes, stream, &mut pointers)
            }
        };
        queued.map_err(|error| {
            let shared = launch.shared_bytes;
            let what = format!("launch kernel {} (grid {grid:?}, block {block:?}, {shared} bytes shared)", self.name);
            DeviceError::from_driver(what, error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_names_a_board_or_a_slice_of_one() {
        let bytes: [i8; 16] = std::array::from_fn(|at| (at * 17) as u8 as i8);
        let uuid = sys::CUuuid { bytes: bytes.map(|byte| byte as _) };
        for text in ["GPU-00112233-4455-6677-8899-aabbccddeeff", "MIG-00112233-4455-6677-8899-AABBCCDDEEFF"] {
            assert!(is_uuid(text, uuid), "{text}");
        }
        for text in
            ["00112233-4455-6677-8899-aabbccddeeff", "GPU-00112233", "GPU-10112233-4455-6677-8899-aabbccddeeff", ""]
        {
            assert!(!is_uuid(text, uuid), "{text}");
        }
    }
}
