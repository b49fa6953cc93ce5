//! A program on a device: its memory, its steps made ready, and all of them captured as one graph.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the device with its libraries |
//! | `memory` | device memory of one engine context |
//! | `ready` | a step made ready by a tactic |
//! | `library` | steps in the words of cuDNN and cuBLASLt |
//! | `library_plans` | what cuDNN compiled, kept as text |
//! | `timing` | device time of one step |
//! | `context` | a whole program, captured |

mod context;
mod library;
mod library_plans;
mod memory;
mod ready;
mod timing;

pub use context::Context;
pub(crate) use context::{capture, keep_libraries_behind, prepare_all, prepare_step};
pub use library::{End, bind, end, pattern, product};
pub use library_plans::LibraryPlans;
pub(crate) use library_plans::{plan_key, plans_of};
pub use memory::{Constants, Memory};
pub use ready::{Kernels, Ready, load_kernel, prepare};
pub(crate) use timing::graph_ms;
pub use timing::time_us;

use crate::{
    program::ProgramError,
    source::{Source, source_digest},
};
use planforge_kernels_cuda::{
    blaslt::{self, BlasError},
    cubin::Cubin,
    device::{DeviceError, Gpu, Kernel, Stream},
    dnn::{self, DnnError},
    nvrtc::{self, CompileError, CubinCache},
};
use planforge_types::Digest;
use rayon::prelude::*;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt,
    path::PathBuf,
};

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
    #[error("the build was cancelled")]
    Cancelled,
    #[error("no inputs are bound to the engine")]
    NotBound,
    #[error("{bytes} bytes of host memory for an output cannot be had")]
    HostMemory { bytes: u64 },
}

pub(crate) type Result<T> = std::result::Result<T, RuntimeError>;

/// One GPU with the libraries that are there.
pub struct Device {
    pub gpu: Gpu,
    pub stream: Stream,
    pub dnn: Option<dnn::Handle>,
    pub blas: Option<blaslt::Handle>,
    /// As it was asked for.
    uuid: Option<String>,
    cubins: CubinCache,
    /// By digest of the source.
    code: RefCell<BTreeMap<Digest, Vec<u8>>>,
    plans: RefCell<LibraryPlans>,
    other_libraries: Cell<bool>,
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
        Ok(Self {
            gpu,
            stream,
            dnn,
            blas,
            uuid: uuid.map(str::to_owned),
            cubins: CubinCache::new(cubins),
            code: RefCell::default(),
            plans: RefCell::default(),
            other_libraries: Cell::new(false),
        })
    }

    /// What is made ready now was chosen with other library versions: recipes are checked before they are used.
    pub fn expect_other_libraries(&self) {
        self.other_libraries.set(true);
    }

    fn has_other_libraries(&self) -> bool {
        self.other_libraries.get()
    }

    /// Machine code that a plan brought along.
    pub fn add_code(&self, source: Digest, code: Vec<u8>) {
        self.code.borrow_mut().insert(source, code);
    }

    /// The UUID it was asked for by.
    pub(crate) fn uuid(&self) -> Option<&str> {
        self.uuid.as_deref()
    }

    /// All machine code there is, by digest of the source.
    pub(crate) fn all_code(&self) -> BTreeMap<Digest, Vec<u8>> {
        self.code.borrow().clone()
    }

    pub(crate) fn has_code(&self, source: &Source) -> bool {
        self.code.borrow().contains_key(&source_digest(source))
    }

    /// Where machine code is kept beyond this process.
    pub(crate) fn cubin_cache(&self) -> &CubinCache {
        &self.cubins
    }

    /// Compiles what has no code yet, on all cores of the host.
    pub fn compile_all(&self, sources: &[Source]) -> Result<()> {
        let missing: BTreeMap<Digest, &Source> = {
            let code = self.code.borrow();
            let named = sources.iter().map(|source| (source_digest(source), source));
            named.filter(|(digest, _)| !code.contains_key(digest)).collect()
        };
        let (arch, cubins) = (self.gpu.properties().arch, &self.cubins);
        let compiled: Vec<(Digest, Vec<u8>)> = missing
            .into_par_iter()
            .map(|(digest, source)| Ok((digest, cubins.compile(nvrtc_source(source), arch)?)))
            .collect::<std::result::Result<_, CompileError>>()?;
        self.code.borrow_mut().extend(compiled);
        Ok(())
    }

    /// A source's kernel, loaded; machine code that does not hold together is refused.
    pub fn kernel(&self, source: &Source) -> Result<Kernel> {
        let code = self.cubin(source)?;
        let cubin = Cubin::parse(&code).map_err(DeviceError::from)?;
        Ok(self.gpu.load(&cubin)?.kernel(&source.name)?)
    }

    /// A kernel's machine code for this device.
    pub fn cubin(&self, source: &Source) -> Result<Vec<u8>> {
        let digest = source_digest(source);
        if let Some(code) = self.code.borrow().get(&digest) {
            return Ok(code.clone());
        }
        let code = self.cubins.compile(nvrtc_source(source), self.gpu.properties().arch)?;
        self.code.borrow_mut().insert(digest, code.clone());
        Ok(code)
    }
}

pub(crate) fn nvrtc_source(source: &Source) -> nvrtc::Source<'_> {
    nvrtc::Source { name: &source.name, text: &source.text, options: &[] }
}
