//! The loaded library and the sessions made with it.
//!
//! A process loads one library and keeps it: ONNX Runtime's environment is global and cannot be made twice.

use crate::library::Library;
use ort::{
    ep::CUDA,
    logging::LogLevel,
    session::{
        Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
};
use planforge_types::{BackendError, FailureClass, Reason};
use std::{
    ffi::{CStr, c_char},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Where a session computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Cpu,
    Cuda,
}

impl Provider {
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Cuda];

    /// As specs and toolchains call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.name() == name)
    }
}

/// How long idle threads of a session burn their processor while they wait for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spinning {
    Never,
    /// Within a run only: the library's fastest that leaves an idle engine quiet.
    WhileRunning,
}

/// How a session is made.
#[derive(Clone, Debug)]
pub(crate) struct Setup<'a> {
    pub provider: Provider,
    pub threads: usize,
    /// 0 (none) to 3 (all).
    pub optimization: u8,
    pub spinning: Spinning,
    /// Sizes of named dimensions that do not vary.
    pub dimensions: &'a [(String, i64)],
    /// Where the optimised model is written.
    pub optimised: Option<&'a Path>,
    /// Beginning of the file that the profile is written to.
    pub profile: Option<&'a Path>,
}

/// The library this process has loaded.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    path: PathBuf,
    /// As the library says.
    pub version: String,
    environment: ort::environment::Environment,
}

fn host_error(message: String) -> BackendError {
    BackendError::new(FailureClass::Infrastructure, message)
}

impl Runtime {
    /// Loads `library`, or gives what was loaded before.
    pub fn load(library: &Library) -> Result<Self, BackendError> {
        static LOADED: Mutex<Option<Runtime>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*loaded {
            return match runtime.path == library.path {
                true => Ok(runtime.clone()),
                false => Err(host_error(format!(
                    "this process has loaded {} and cannot load {} too",
                    runtime.path.display(),
                    library.path.display()
                ))),
            };
        }
        let version = version_of(&library.path)?;
        if version != library.version {
            return Err(host_error(format!(
                "{} says it is version {version}, though its symbols are of {}",
                library.path.display(),
                library.version
            )));
        }
        let cannot = |reason: String| host_error(format!("cannot load {}: {reason}", library.path.display()));
        let builder = ort::init_from(&library.path).map_err(|error| cannot(error.to_string()))?;
        let environment = builder.with_name("planforge").with_telemetry(false).build();
        let environment = environment.map_err(|error| cannot(error.message().to_owned()))?;
        // Errors come back as results; nothing is to be said twice.
        environment.set_log_level(LogLevel::Fatal);
        let runtime = Self { path: library.path.clone(), version, environment };
        *loaded = Some(runtime.clone());
        Ok(runtime)
    }

    /// How the library was built, in its own words.
    pub fn build_info(&self) -> &'static str {
        ort::info()
    }

    /// Makes a session of the model at `path`.
    pub fn session(&self, path: &Path, setup: &Setup<'_>) -> Result<Session, BackendError> {
        let make = || -> ort::Result<Session> { self.builder(setup)?.commit_from_file(path) };
        make().map_err(|error| self.error(&format!("refuses {}", path.display()), error.message()))
    }

    fn builder(&self, setup: &Setup<'_>) -> ort::Result<SessionBuilder> {
        let level = match setup.optimization {
            0 => GraphOptimizationLevel::Disable,
            1 => GraphOptimizationLevel::Level1,
            2 => GraphOptimizationLevel::Level2,
            _ => GraphOptimizationLevel::All,
        };
        let spins = setup.spinning == Spinning::WhileRunning;
        let switch = |on| if on { "1" } else { "0" };
        let mut builder = Session::builder(&self.environment)?
            .with_optimization_level(level)?
            .with_intra_threads(setup.threads)?
            .with_inter_threads(1)?
            .with_parallel_execution(false)?
            .with_config_entry("session.intra_op.allow_spinning", switch(spins))?
            .with_config_entry("session.inter_op.allow_spinning", "0")?
            // Processors that multiply bytes without VNNI saturate sums of unsigned and signed ones: off by a twentieth of
            // the scale. This makes weights unsigned there, which is slower and right; elsewhere it does nothing.
            .with_config_entry("session.x64quantprecision", "1")?
            .with_config_entry("session.force_spinning_stop", switch(spins))?;
        for (name, size) in setup.dimensions {
            builder = builder.with_dimension_override(name, *size)?;
        }
        if let Some(path) = setup.optimised {
            builder = builder.with_optimized_model_path(path)?;
        }
        if let Some(path) = setup.profile {
            builder = builder.with_profiling(path)?;
        }
        if setup.provider == Provider::Cuda {
            builder = builder.with_execution_providers([CUDA::default().build().error_on_failure()])?;
        }
        Ok(builder)
    }

    /// Classes what the library says.
    pub fn error(&self, did: &str, said: &str) -> BackendError {
        let message = format!("onnxruntime {} {did}: {}", self.version, said.trim());
        let lower = said.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        if says(&["out of memory", "failed to allocate memory", "bad_alloc"]) {
            return BackendError::new(FailureClass::Resource, message)
                .with_hint("use a smaller batch or a device with more memory");
        }
        if says(&["libonnxruntime_providers", "cuda driver", "libcudnn", "libcublas", "failed to load library"]) {
            return BackendError::new(FailureClass::Infrastructure, message).with_hint(
                "install the CUDA and cuDNN libraries that this onnxruntime needs where the loader finds them",
            );
        }
        let refused = BackendError::new(FailureClass::Model, message);
        if says(&["could not find an implementation", "no op registered", "not implemented", "opset"]) {
            return refused.because(Reason::Unsupported).with_hint(
                "build it with another toolchain, or convert the model to operators and an opset that this version knows",
            );
        }
        refused
    }
}

/// What the library itself says its version is. Loads it.
fn version_of(path: &Path) -> Result<String, BackendError> {
    let cannot = |reason: String| host_error(format!("cannot load {}: {reason}", path.display()));
    // SAFETY: loading runs the library's initialisers; it was found under its own name with its own version tag, and
    // an operator put it there to be run.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| cannot(error.to_string()))?;
    // SAFETY: this entry point has this signature in every version of the library.
    let base = unsafe { library.get::<unsafe extern "C" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase") };
    let base = base.map_err(|error| cannot(error.to_string()))?;
    // SAFETY: the function takes nothing and gives a static table or null.
    let base = unsafe { base().as_ref() }.ok_or_else(|| cannot("it gives no interface".into()))?;
    // SAFETY: the second entry of the table, in every version; it gives a static text.
    let text: *const c_char = unsafe { (base.GetVersionString)() };
    if text.is_null() {
        return Err(cannot("it does not say its version".into()));
    }
    // SAFETY: not null, and a static text that ends with NUL.
    let version = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // Stays loaded: `ort` opens the same file next, and the library is not made to be unloaded.
    std::mem::forget(library);
    Ok(version)
}
