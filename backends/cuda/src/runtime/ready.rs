//! A step made ready to be queued by one of its tactics.

use super::{Device, End, Memory, Result, RuntimeError, bind, library::operands, pattern, product};
use crate::{
    codegen::ALONE_BYTES,
    early,
    program::{After, Program, Step, Tactic, Work},
    source::Source,
    view::View,
};
use planforge_kernels_cuda::{
    blaslt::{Algorithm, Operands, Prepared},
    device::{Arg, Kernel, Launch, Stream},
    dnn::{Binding, Plan},
};
use std::{collections::BTreeMap, fmt, rc::Rc};

/// A step that can be queued.
pub enum Ready {
    Kernel {
        kernel: Kernel,
        launch: Launch,
        args: Vec<Arg>,
    },
    /// `waits`: for a kernel of ours ahead of it that is not done yet.
    Dnn {
        plan: Rc<Plan>,
        binding: Binding,
        waits: bool,
        _scale: Option<Box<f32>>,
    },
    Blas {
        prepared: Prepared,
        algorithm: Algorithm,
        operands: Operands,
        waits: bool,
        /// What makes the activation, in place.
        after: Option<Box<Following>>,
    },
}

/// A kernel that follows a library's in the same step.
#[derive(Debug)]
pub struct Following {
    kernel: Kernel,
    launch: Launch,
    args: Vec<Arg>,
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
    /// For a step that waits for other streams too: beginning early counts on the kernel before it on its own.
    pub fn begin_after_all(&mut self) {
        if let Self::Kernel { kernel, .. } = self {
            kernel.begin_after_all();
        }
    }

    /// Whether the kernel behind may begin before this one has ended.
    pub fn let_next_begin_early(&mut self, may: bool) -> Result<()> {
        // The last kernel of the step, where that is ours.
        let ours = match self {
            Self::Kernel { kernel, launch, .. } => Some((kernel, launch)),
            Self::Blas { after: Some(after), .. } => Some((&mut after.kernel, &mut after.launch)),
            Self::Blas { .. } | Self::Dnn { .. } => None,
        };
        if let Some((kernel, launch)) = ours {
            launch.shared_bytes &= !ALONE_BYTES;
            if !may {
                launch.shared_bytes |= ALONE_BYTES;
                kernel.allow_shared_bytes(launch.shared_bytes)?;
            }
        }
        Ok(())
    }

    /// Workspace that it wants with the libraries that are here.
    pub fn workspace_bytes(&self) -> u64 {
        match self {
            Self::Kernel { .. } => 0,
            Self::Dnn { plan, .. } => plan.workspace_bytes as u64,
            Self::Blas { algorithm, .. } => algorithm.workspace_bytes as u64,
        }
    }

    /// Whether a library queues it, its first kernel at least.
    pub fn is_library(&self) -> bool {
        matches!(self, Self::Dnn { .. } | Self::Blas { .. })
    }

    /// Whether it waits by itself for a kernel ahead of it that lets it begin early.
    pub fn waits(&self) -> bool {
        match self {
            Self::Kernel { .. } => true,
            Self::Dnn { waits, .. } | Self::Blas { waits, .. } => *waits,
        }
    }

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
                Self::Blas { prepared, algorithm, operands, after, .. } => {
                    prepared.run(stream, algorithm, *operands)?;
                    if let Some(after) = after {
                        after.kernel.launch(stream, after.launch, &after.args)?;
                    }
                }
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
    let mut kernel = device.kernel(source)?;
    if device.gpu.properties().arch.capability >= early::EARLY_SINCE && source.waits() {
        kernel = kernel.beginning_early();
    }
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
    // Seen of the libraries that it was chosen with.
    let waits = tactic.waits() && !device.has_other_libraries();
    match tactic {
        Tactic::Kernel { source, grid, block, shared_bytes } => {
            let kernel = load_kernel(device, &program.sources, *source, kernels)?;
            let launch = Launch { grid: *grid, block: *block, shared_bytes: *shared_bytes };
            if *shared_bytes > 0 {
                // As much as any launch of it asks for: the bound is the kernel's, not the launch's.
                kernel.allow_shared_bytes(*shared_bytes | ALONE_BYTES)?;
            }
            let (mut operands, written) = step.work.views();
            if matches!(&step.work, Work::Conv(conv) if conv.taps.is_some()) {
                // A depthwise kernel reads its weights in their other arrangement.
                operands.remove(1);
            }
            operands.push(written);
            Ok(Ready::Kernel { kernel, launch, args: addresses(&operands) })
        }
        Tactic::Dnn { engine, knobs, .. } => {
            let handle = device.dnn.as_ref().ok_or_else(|| wrong(tactic))?;
            let plan = match device.recalled_plan(handle, program, &step.work, *engine, knobs) {
                Some(plan) => plan,
                None => {
                    let pattern = pattern(handle, &step.work).ok_or_else(|| wrong(tactic))??;
                    let engine = pattern.engine(*engine, knobs)?;
                    device.use_plan(program, &step.work, &engine, pattern.plan(&engine)?)
                }
            };
            // A plan of another library version may want more than the recipe says.
            if plan.workspace_bytes as u64 > memory.workspace_bytes(step.stream) {
                return Err(wrong(tactic));
            }
            bind(plan, &step.work, &address, memory.workspace_address(step.stream), waits)
        }
        Tactic::Blas { words, workspace_bytes, after, .. } => {
            let handle = device.blas.as_ref().ok_or_else(|| wrong(tactic))?;
            let end = if after.is_some() { End::Kernel } else { End::Library };
            let product = product(&step.work, program.tf32, end).ok_or_else(|| wrong(tactic))?;
            let prepared = Prepared::new(handle, product)?;
            let algorithm = Algorithm { words: *words, workspace_bytes: *workspace_bytes as usize, waves: 0.0 };
            // Bytes of another library version mean nothing, or something else.
            if device.has_other_libraries() && prepared.workspace_of(&algorithm)? > *workspace_bytes {
                return Err(wrong(tactic));
            }
            let operands =
                operands(&step.work, &address, memory.workspace_address(step.stream)).ok_or_else(|| wrong(tactic))?;
            let after = match after {
                Some(After { source, grid, block }) => Some(Box::new(Following {
                    kernel: load_kernel(device, &program.sources, *source, kernels)?,
                    launch: Launch { grid: *grid, block: *block, shared_bytes: 0 },
                    args: addresses(&[step.work.views().1]),
                })),
                None => None,
            };
            Ok(Ready::Blas { prepared, algorithm, operands, waits, after })
        }
    }
}
