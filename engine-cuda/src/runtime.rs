//! A program on a device: its memory, its steps made ready, and all of them captured as one graph.

use crate::{
    codegen::Source,
    program::{AttentionWork, ConvWork, Place, ProductWork, Program, ProgramError, Step, Tactic, Work},
    view::{Kind, View},
};
use planforge_engine_core::ir::{Activation, GeluForm};
use planforge_kernels::cuda::{
    blaslt::{self, Algorithm, BlasError, Element, Epilogue, Operands, Prepared, Product},
    device::{Arg, Buffer, DeviceError, Gpu, Graph, Kernel, Launch, Moment, Stream},
    dnn::{self, Binding, ConvPattern, DataType, DnnError, Pattern, Plan, ProductPattern, Sdpa, Tensor},
    nvrtc::{CompileError, CubinCache},
};
use std::{collections::BTreeMap, fmt, path::PathBuf};

/// Why an engine does not run.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Dnn(#[from] DnnError),
    #[error(transparent)]
    Blas(#[from] BlasError),
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("step '{step}' cannot be computed by {tactic} here")]
    Tactic { step: String, tactic: String },
    #[error("step '{step}' has no tactic")]
    NoTactic { step: String },
}

type Result<T> = std::result::Result<T, RuntimeError>;

/// One GPU with the libraries that are there.
pub struct Device {
    pub gpu: Gpu,
    pub stream: Stream,
    pub dnn: Option<dnn::Handle>,
    pub blas: Option<blaslt::Handle>,
    cubins: CubinCache,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.gpu.properties().name)
    }
}

impl Device {
    /// A GPU by its UUID, or the first; a library that is missing only means fewer tactics. Cubins are kept in
    /// `cubins`, where given.
    pub fn open(uuid: Option<&str>, cubins: Option<PathBuf>) -> Result<Self> {
        let gpu = match uuid {
            Some(uuid) => Gpu::open_uuid(uuid)?,
            None => Gpu::open(0)?,
        };
        let stream = gpu.stream()?;
        let told =
            |name: &str, reason: String| tracing::info!(library = name, reason, "tactics of a library are left out");
        let dnn = dnn::Handle::new().map_err(|error| told("cudnn", error.to_string())).ok();
        let blas = blaslt::Handle::new().map_err(|error| told("cublaslt", error.to_string())).ok();
        Ok(Self { gpu, stream, dnn, blas, cubins: CubinCache::new(cubins) })
    }

    /// A kernel's machine code for this device.
    pub fn cubin(&self, source: &Source) -> Result<Vec<u8>> {
        let source = planforge_kernels::cuda::nvrtc::Source { name: &source.name, text: &source.text, options: &[] };
        Ok(self.cubins.compile(source, self.gpu.properties().arch)?)
    }
}

/// Device memory of one engine context.
#[derive(Debug)]
pub struct Memory {
    arena: Buffer,
    weights: std::rc::Rc<Buffer>,
    pub inputs: Vec<Buffer>,
    pub outputs: Vec<Buffer>,
    workspace: Buffer,
}

impl Memory {
    /// Memory for `program`; contexts of one engine share its weights.
    pub fn new(device: &Device, program: &Program, weights: std::rc::Rc<Buffer>, workspace_bytes: u64) -> Result<Self> {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let edges = |edges: &[crate::program::Edge]| {
            edges
                .iter()
                .map(|edge| device.gpu.alloc(size(program.buffer(edge.buffer).bytes)))
                .collect::<std::result::Result<Vec<_>, _>>()
        };
        Ok(Self {
            arena: device.gpu.alloc(size(program.arena_bytes))?,
            weights,
            inputs: edges(&program.inputs)?,
            outputs: edges(&program.outputs)?,
            workspace: device.gpu.alloc(size(workspace_bytes))?,
        })
    }

    pub(crate) fn workspace_address(&self) -> u64 {
        self.workspace.address()
    }

    /// Where a view begins.
    pub(crate) fn address_of(&self, program: &Program, view: &View) -> u64 {
        let base = match program.buffer(view.buffer).place {
            Place::Arena(at) => self.arena.address() + at,
            Place::Weights(at) => self.weights.address() + at,
            Place::Input(number) => self.inputs[number as usize].address(),
            Place::Output(number) => self.outputs[number as usize].address(),
        };
        base + view.offset * view.kind.bytes()
    }

    /// Bytes of everything.
    pub fn bytes(&self) -> u64 {
        let edges: usize = self.inputs.iter().chain(&self.outputs).map(Buffer::len_bytes).sum();
        (self.arena.len_bytes() + self.weights.len_bytes() + self.workspace.len_bytes() + edges) as u64
    }

    /// Fills the arena with small halves of either sign, so that what is timed has data like real data.
    pub fn fill_with_noise(&self) -> Result<()> {
        const CHUNK: usize = 8 << 20;
        let mut state = 0x9e37_79b9_u32;
        let noise: Vec<u8> = (0..CHUNK / 2)
            .flat_map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let bits = ((state >> 31) << 15) as u16 | (0x3000 + ((state >> 20) & 0x7ff) as u16);
                bits.to_le_bytes()
            })
            .collect();
        let length = self.arena.len_bytes();
        for at in (0..length).step_by(CHUNK) {
            self.arena.write(at, &noise[..CHUNK.min(length - at)])?;
        }
        Ok(())
    }
}

/// A step that can be queued.
pub enum Ready {
    Kernel { kernel: Kernel, launch: Launch, args: Vec<Arg> },
    Dnn { plan: Plan, binding: Binding, _scale: Option<Box<f32>> },
    Blas { prepared: Prepared, algorithm: Algorithm, operands: Operands },
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { kernel, .. } => write!(f, "{kernel:?}"),
            Self::Dnn { plan, .. } => write!(f, "{plan:?}"),
            Self::Blas { prepared, .. } => write!(f, "{prepared:?}"),
        }
    }
}

impl Ready {
    /// Queues the step.
    ///
    /// # Safety
    /// The memory that it was made ready for still lives.
    pub unsafe fn run(&self, stream: &Stream) -> Result<()> {
        // SAFETY: addresses were taken from living memory by `prepare`, and the program was checked.
        unsafe {
            match self {
                Self::Kernel { kernel, launch, args } => kernel.launch(stream, *launch, args)?,
                Self::Dnn { plan, binding, .. } => plan.run(stream, binding)?,
                Self::Blas { prepared, algorithm, operands } => prepared.run(stream, algorithm, *operands)?,
            }
        }
        Ok(())
    }
}

/// Kernels that were loaded, by the index of their source.
pub type Kernels = BTreeMap<usize, Kernel>;

/// Loads a source's kernel unless it is loaded.
pub fn load_kernel(device: &Device, sources: &[Source], index: usize, kernels: &mut Kernels) -> Result<Kernel> {
    if let Some(kernel) = kernels.get(&index) {
        return Ok(kernel.clone());
    }
    let source = &sources[index];
    let kernel = device.gpu.load(&device.cubin(source)?)?.kernel(&source.name)?;
    kernels.insert(index, kernel.clone());
    Ok(kernel)
}

/// Makes a step ready to be computed by `tactic`.
pub fn prepare(
    device: &Device,
    program: &Program,
    step: &Step,
    tactic: Option<&Tactic>,
    memory: &Memory,
    kernels: &mut Kernels,
) -> Result<Ready> {
    let address = |view: &View| memory.address_of(program, view);
    let wrong = |tactic: &Tactic| RuntimeError::Tactic { step: step.name.clone(), tactic: tactic.name() };
    let addresses = |views: &[&View]| views.iter().map(|view| Arg::Address(address(view))).collect::<Vec<_>>();
    if let Work::Kernel(work) = &step.work {
        let kernel = load_kernel(device, &program.sources, work.source, kernels)?;
        let launch = Launch { grid: work.grid, block: work.block, shared_bytes: 0 };
        let operands: Vec<&View> = work.operands.iter().collect();
        return Ok(Ready::Kernel { kernel, launch, args: addresses(&operands) });
    }
    let tactic = tactic.ok_or_else(|| RuntimeError::NoTactic { step: step.name.clone() })?;
    match tactic {
        Tactic::Kernel { source, grid, block } => {
            let kernel = load_kernel(device, &program.sources, *source, kernels)?;
            let launch = Launch { grid: *grid, block: *block, shared_bytes: 0 };
            let Work::Conv(conv) = &step.work else { return Err(wrong(tactic)) };
            let taps = conv.taps.as_ref().ok_or_else(|| wrong(tactic))?;
            let mut operands = vec![&conv.x, taps];
            operands.extend(conv.bias.as_ref());
            operands.extend(conv.residual.as_ref());
            operands.push(&conv.y);
            Ok(Ready::Kernel { kernel, launch, args: addresses(&operands) })
        }
        Tactic::Dnn { engine, knobs, .. } => {
            let handle = device.dnn.as_ref().ok_or_else(|| wrong(tactic))?;
            let pattern = pattern(handle, &step.work).ok_or_else(|| wrong(tactic))??;
            let plan = pattern.plan(&pattern.engine(*engine, knobs)?)?;
            bind(plan, &step.work, &address, memory.workspace_address())
        }
        Tactic::Blas { words, workspace_bytes } => {
            let handle = device.blas.as_ref().ok_or_else(|| wrong(tactic))?;
            let product = product(&step.work).ok_or_else(|| wrong(tactic))?;
            let prepared = Prepared::new(handle, product)?;
            let algorithm = Algorithm { words: *words, workspace_bytes: *workspace_bytes as usize, waves: 0.0 };
            let operands = operands(&step.work, &address, memory.workspace_address()).ok_or_else(|| wrong(tactic))?;
            Ok(Ready::Blas { prepared, algorithm, operands })
        }
    }
}

// Names of a pattern's tensors.
const X: i64 = 1;
const W: i64 = 2;
const Y: i64 = 3;
const BIAS: i64 = 4;
const RESIDUAL: i64 = 5;
const SCALE: i64 = 6;

/// Binds a plan of `work`'s pattern to memory.
pub fn bind(plan: Plan, work: &Work, address: &dyn Fn(&View) -> u64, workspace: u64) -> Result<Ready> {
    let mut scale = None;
    let mut tensors = Vec::new();
    match work {
        Work::Conv(conv) => {
            tensors.extend([(X, address(&conv.x)), (W, address(&conv.w)), (Y, address(&conv.y))]);
            tensors.extend(conv.bias.as_ref().map(|view| (BIAS, address(view))));
            tensors.extend(conv.residual.as_ref().map(|view| (RESIDUAL, address(view))));
        }
        Work::Product(product) => {
            tensors.extend([(X, address(&product.a)), (W, address(&product.b)), (Y, address(&product.y))]);
            tensors.extend(product.bias.as_ref().map(|view| (BIAS, address(view))));
            tensors.extend(product.residual.as_ref().map(|view| (RESIDUAL, address(view))));
        }
        Work::Attention(attention) => {
            tensors.extend([
                (X, address(&attention.q)),
                (W, address(&attention.k)),
                (BIAS, address(&attention.v)),
                (Y, address(&attention.o)),
            ]);
            // The library reads it from the host when the plan is queued.
            let value = scale.insert(Box::new(attention.scale));
            tensors.push((SCALE, std::ptr::from_ref::<f32>(value) as u64));
        }
        Work::Kernel(_) => unreachable!("a generated kernel has no pattern"),
    }
    let binding = plan.bind(&tensors, workspace)?;
    Ok(Ready::Dnn { plan, binding, _scale: scale })
}

fn data_type(kind: Kind) -> Option<DataType> {
    match kind {
        Kind::F32 => Some(DataType::F32),
        Kind::F16 => Some(DataType::F16),
        Kind::Bf16 => Some(DataType::Bf16),
        Kind::I32 => Some(DataType::I32),
        _ => None,
    }
}

fn tensor(uid: i64, view: &View) -> Option<Tensor> {
    let signed = |sizes: &[u64]| sizes.iter().map(|&size| size as i64).collect::<Vec<_>>();
    let mut strides = signed(&view.strides);
    // A size of 1 may carry any stride; the library wants one that looks dense.
    for axis in (0..view.rank()).rev() {
        if view.dims[axis] == 1 || strides[axis] == 0 {
            let later = view.dims.iter().zip(&view.strides).filter(|(dim, _)| **dim > 1);
            strides[axis] = later.map(|(dim, stride)| (dim * stride) as i64).max().unwrap_or(1);
        }
    }
    Some(Tensor { uid, kind: data_type(view.kind)?, dims: signed(&view.dims), strides })
}

/// A channels-last image, whose sizes of 1 carry the strides that the library expects.
fn image(uid: i64, view: &View) -> Option<Tensor> {
    let dims: Vec<i64> = view.dims.iter().map(|&size| size as i64).collect();
    let shape = [dims[0], dims[1], dims[2], dims[3]];
    Some(Tensor::nhwc_slice(uid, data_type(view.kind)?, shape, view.pixel_pitch() as i64))
}

/// The cuDNN pattern of a step, where there is one.
pub fn pattern(handle: &dnn::Handle, work: &Work) -> Option<std::result::Result<Pattern, DnnError>> {
    match work {
        Work::Conv(conv) => conv_pattern(conv).map(|pattern| Pattern::convolution(handle, &pattern)),
        Work::Product(product) => product_pattern(product).map(|pattern| Pattern::product(handle, &pattern)),
        Work::Attention(attention) => sdpa(attention).map(|pattern| Pattern::attention(handle, &pattern)),
        Work::Kernel(_) => None,
    }
}

fn dnn_activation(activation: Option<Activation>) -> Option<dnn::Activation> {
    Some(match activation {
        None => dnn::Activation::None,
        Some(Activation::Relu) => dnn::Activation::Relu,
        Some(Activation::Silu) => dnn::Activation::Silu,
        Some(Activation::Sigmoid) => dnn::Activation::Sigmoid,
        Some(Activation::Tanh) => dnn::Activation::Tanh,
        Some(Activation::Gelu(GeluForm::Erf)) => dnn::Activation::Gelu,
        Some(Activation::Gelu(GeluForm::Tanh)) => dnn::Activation::GeluTanh,
        Some(_) => return None,
    })
}

fn conv_pattern(conv: &ConvWork) -> Option<ConvPattern> {
    let signed = |pair: [u64; 2]| pair.map(|size| size as i64);
    let bias = |view: &View| {
        let k = view.elements() as i64;
        Some(Tensor::nhwc(BIAS, data_type(view.kind)?, [1, k, 1, 1]))
    };
    let weights: Vec<i64> = conv.w.dims.iter().map(|&size| size as i64).collect();
    Some(ConvPattern {
        x: image(X, &conv.x)?,
        w: Tensor::nhwc(W, data_type(conv.w.kind)?, [weights[0], weights[1], weights[2], weights[3]]),
        y: image(Y, &conv.y)?,
        bias: match &conv.bias {
            Some(view) => Some(bias(view)?),
            None => None,
        },
        residual: match &conv.residual {
            Some(view) => Some(image(RESIDUAL, view)?),
            None => None,
        },
        activation: dnn_activation(conv.activation)?,
        pads_before: signed(conv.pads_before),
        pads_after: signed(conv.pads_after),
        strides: signed(conv.strides),
        dilations: signed(conv.dilations),
    })
}

fn product_pattern(product: &ProductWork) -> Option<ProductPattern> {
    if product.alpha != 1.0 {
        return None;
    }
    let bias = |view: &View| {
        let n = view.elements() as i64;
        Some(Tensor { uid: BIAS, kind: data_type(view.kind)?, dims: vec![1, 1, n], strides: vec![n, n, 1] })
    };
    Some(ProductPattern {
        a: tensor(X, &product.a)?,
        b: tensor(W, &product.b)?,
        y: tensor(Y, &product.y)?,
        bias: match &product.bias {
            Some(view) => Some(bias(view)?),
            None => None,
        },
        residual: match &product.residual {
            Some(view) => Some(tensor(RESIDUAL, view)?),
            None => None,
        },
        activation: dnn_activation(product.activation)?,
    })
}

fn sdpa(attention: &AttentionWork) -> Option<Sdpa> {
    Some(Sdpa {
        q: tensor(X, &attention.q)?,
        k: tensor(W, &attention.k)?,
        v: tensor(BIAS, &attention.v)?,
        o: tensor(Y, &attention.o)?,
        scale_uid: SCALE,
        lengths: None,
    })
}

fn blas_element(kind: Kind) -> Option<Element> {
    match kind {
        Kind::F16 => Some(Element::F16),
        Kind::Bf16 => Some(Element::Bf16),
        Kind::F32 => Some(Element::F32),
        _ => None,
    }
}

/// The epilogue, of activations that the library has. The erf form of GELU is taken by its tanh form where storage is
/// coarser than the two differ.
fn blas_epilogue(activation: Option<Activation>, kind: Kind) -> Option<Epilogue> {
    match activation {
        None => Some(Epilogue::None),
        Some(Activation::Relu) => Some(Epilogue::Relu),
        Some(Activation::Gelu(GeluForm::Tanh)) => Some(Epilogue::GeluTanh),
        Some(Activation::Gelu(GeluForm::Erf)) if kind != Kind::F32 => Some(Epilogue::GeluTanh),
        Some(_) => None,
    }
}

/// The cuBLASLt product of a step, where it is one.
pub fn product(work: &Work) -> Option<Product> {
    match work {
        Work::Conv(conv) if conv.is_pointwise() => {
            let [n, k, h, w] = [0, 1, 2, 3].map(|axis| conv.y.dims[axis]);
            let c = conv.x.dims[1];
            let mut product = Product::dense(blas_element(conv.x.kind)?, n * h * w, k, c).with_transposed_b();
            product.lda = conv.x.pixel_pitch();
            product.ldd = conv.y.pixel_pitch();
            product.ldc = conv.residual.as_ref().map_or(product.ldd, View::pixel_pitch);
            product.bias = conv.bias.is_some();
            product.residual = conv.residual.is_some();
            product.epilogue = blas_epilogue(conv.activation, conv.x.kind)?;
            Some(product)
        }
        Work::Product(work) => {
            let [batch, m, n] = [work.y.dims[0], work.y.dims[1], work.y.dims[2]];
            let k = work.a.dims[2];
            let mut product = Product::dense(blas_element(work.a.kind)?, m, n, k);
            let pitch = |view: &View, columns: u64| if view.dims[1] == 1 { columns } else { view.strides[1] };
            product.alpha = work.alpha;
            product.batch = batch;
            product.lda = pitch(&work.a, k);
            product.b_transposed = !(work.b.strides[2] == 1 || n == 1);
            product.ldb = if product.b_transposed { work.b.strides[2] } else { pitch(&work.b, n) };
            product.ldd = pitch(&work.y, n);
            product.ldc = work.residual.as_ref().map_or(product.ldd, |view| pitch(view, n));
            product.stride_a = work.a.strides[0] as i64;
            product.stride_b = work.b.strides[0] as i64;
            product.stride_d = work.y.strides[0] as i64;
            product.stride_c = work.residual.as_ref().map_or(product.stride_d, |view| view.strides[0] as i64);
            product.bias = work.bias.is_some();
            product.residual = work.residual.is_some();
            product.epilogue = blas_epilogue(work.activation, work.a.kind)?;
            Some(product)
        }
        _ => None,
    }
}

fn operands(work: &Work, address: &dyn Fn(&View) -> u64, workspace: u64) -> Option<Operands> {
    let of = |view: &Option<View>| view.as_ref().map_or(0, address);
    Some(match work {
        Work::Conv(conv) => Operands {
            a: address(&conv.x),
            b: address(&conv.w),
            c: of(&conv.residual),
            d: address(&conv.y),
            bias: of(&conv.bias),
            workspace,
        },
        Work::Product(product) => Operands {
            a: address(&product.a),
            b: address(&product.b),
            c: of(&product.residual),
            d: address(&product.y),
            bias: of(&product.bias),
            workspace,
        },
        _ => return None,
    })
}

/// Runs of a step that are captured together when it is timed: long enough that launching does not count.
const MIN_TIMED_US: f64 = 200.0;
const MAX_REPEATS: usize = 20;
/// Launches of which the median is taken.
const TIMED_LAUNCHES: usize = 5;

/// Median device time of one run of `ready`, in microseconds.
pub fn time_us(device: &Device, ready: &Ready) -> Result<f64> {
    let stream = &device.stream;
    // SAFETY: the caller's memory lives.
    unsafe { ready.run(stream)? };
    let first = stream.moment()?;
    // SAFETY: as above.
    unsafe { ready.run(stream)? };
    let rough_us = elapsed_ms(stream, &first)? * 1e3;
    let repeats = ((MIN_TIMED_US / rough_us.max(1.0)) as usize).clamp(2, MAX_REPEATS);
    let mut failed = None;
    let graph = stream.capture(|| {
        for _ in 0..repeats {
            // SAFETY: as above.
            if let Err(error) = unsafe { ready.run(stream) } {
                failed = Some(error);
                break;
            }
        }
        Ok(())
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let graph = graph?;
    let mut times = Vec::with_capacity(TIMED_LAUNCHES);
    for _ in 0..TIMED_LAUNCHES {
        let from = stream.moment()?;
        // SAFETY: the memory it was captured with lives.
        unsafe { graph.launch()? };
        times.push(elapsed_ms(stream, &from)? * 1e3 / repeats as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[TIMED_LAUNCHES / 2])
}

/// Device time since `from`, which everything queued since then is waited for.
fn elapsed_ms(stream: &Stream, from: &Moment) -> Result<f64> {
    let to = stream.moment()?;
    to.wait()?;
    Ok(to.since_ms(from)?)
}

/// A program with its memory on a device, ready to run as one graph.
pub struct Context {
    pub memory: Memory,
    ready: Vec<Ready>,
    graph: Graph,
    stream: Stream,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({} steps)", self.ready.len())
    }
}

impl Context {
    /// Prepares every step and captures them; each must have its tactic.
    pub fn new(
        device: &Device,
        program: &Program,
        weights: std::rc::Rc<Buffer>,
        kernels: &mut Kernels,
    ) -> Result<Self> {
        program.check()?;
        let memory = Memory::new(device, program, weights, program.workspace_bytes())?;
        let mut ready = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            ready.push(prepare(device, program, step, step.tactic.as_ref(), &memory, kernels)?);
        }
        let stream = device.gpu.stream()?;
        // Once outside of a capture: libraries set things up at their first call.
        for step in &ready {
            // SAFETY: the memory lives in this context.
            unsafe { step.run(&stream)? };
        }
        stream.synchronize()?;
        let mut failed = None;
        let graph = stream.capture(|| {
            for step in &ready {
                // SAFETY: as above.
                if let Err(error) = unsafe { step.run(&stream) } {
                    failed = Some(error);
                    break;
                }
            }
            Ok(())
        });
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(Self { memory, ready, graph: graph?, stream })
    }

    /// Queues one execution as a graph.
    pub fn launch(&self) -> Result<()> {
        // SAFETY: the memory it was captured with lives in this context.
        let _: () = unsafe { self.graph.launch()? };
        Ok(())
    }

    /// Queues one execution step by step.
    pub fn launch_steps(&self) -> Result<()> {
        for step in &self.ready {
            // SAFETY: the memory lives in this context.
            unsafe { step.run(&self.stream)? };
        }
        Ok(())
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Median device time of each step by itself, in milliseconds.
    pub fn step_times_ms(&self, device: &Device) -> Result<Vec<f64>> {
        self.ready.iter().map(|ready| time_us(device, ready).map(|us| us / 1e3)).collect()
    }
}
