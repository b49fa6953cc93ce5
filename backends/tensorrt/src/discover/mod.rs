//! Installations of TensorRT on this host.
//!
//! Each `trtexec` is asked for its help once: that takes seconds, for it loads CUDA and the whole library. What it said
//! is kept under the file's stamp (path, inode, size, change time) in memory and in a file, so that asking again looks
//! only at files. A program that does not answer as a `trtexec` does is a [`Fault`] with what it printed, never an
//! error of the search.

mod cache;
mod components;
mod places;
mod probe;

pub use places::Places;

use cache::{Cache, Stamp};
use planforge_tensorrt_rules::{flags::Capabilities, preflight::OLDEST, version::Version};
use planforge_types::Toolchain;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Programs that one search looks at; hosts have one to five.
const MAX_PROGRAMS: usize = 32;

/// A `trtexec` that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Without symbolic links.
    pub trtexec: PathBuf,
    pub capabilities: Capabilities,
    /// Folders of its own libraries, which its loader may not know; empty for system packages.
    pub library_path: Vec<PathBuf>,
    /// Its lean runtime, which loads version-compatible plans that have none inside.
    pub lean_runtime: Option<PathBuf>,
    /// CUDA it was built for, `12.5`, where its packaging says so.
    pub cuda: Option<String>,
}

impl Installation {
    pub fn version(&self) -> Version {
        self.capabilities.version()
    }

    /// The toolchain it is on a device with this driver (`580.159.03`).
    pub fn toolchain(&self, driver: Option<&str>) -> Toolchain {
        let branch = driver.and_then(components::driver_branch);
        let parts = [("cuda", self.cuda.clone()), ("driver_branch", branch)];
        let components: BTreeMap<String, String> =
            parts.into_iter().filter_map(|(name, version)| Some((name.to_owned(), version?))).collect();
        Toolchain { backend: planforge_tensorrt_rules::BACKEND.into(), version: self.version().to_string(), components }
    }
}

/// Why a program that should be a `trtexec` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum Problem {
    #[error("it cannot be started: {reason}")]
    Start { reason: String },
    #[error("it did not answer --help within {limit_s} s and 256 KiB")]
    Hangs { limit_s: u64 },
    #[error("it ended with {status} and does not name its version")]
    NoVersion { status: String },
    #[error("it is TensorRT {version}, older than {}.{}", OLDEST.major, OLDEST.minor)]
    TooOld { version: Version },
    #[error("it is the trtexec of TensorRT for RTX {version}, whose engines are another product's")]
    Rtx { version: String },
}

/// A program that cannot be used, and what it printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub trtexec: PathBuf,
    pub problem: Problem,
    /// Its last words; may be empty.
    pub printed: String,
}

impl Fault {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        if self.printed.contains("error while loading shared libraries") {
            return "a library is missing: add its folder to LD_LIBRARY_PATH, or install the package that holds it";
        }
        if self.printed.contains("CUDA") || self.printed.contains("Cuda") {
            return "CUDA does not work here: check the driver with nvidia-smi, and that this process may use the GPU";
        }
        match self.problem {
            Problem::TooOld { .. } => "install TensorRT 8.4 or newer",
            Problem::Rtx { .. } => "install TensorRT itself; name its trtexec in PLANFORGE_TRTEXEC where both are here",
            Problem::Start { .. } => "check that the file is a program for this machine and may be run",
            Problem::Hangs { .. } => "run it by hand with --help; a GPU that hangs makes it wait",
            Problem::NoVersion { .. } => "run it by hand with --help, and repair or remove the installation",
        }
    }
}

/// What a search found: installations newest first, then by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub installations: Vec<Installation>,
    pub faults: Vec<Fault>,
}

/// What one program answered, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    result: Result<Capabilities, Problem>,
    /// Last words of a program that does not work.
    printed: String,
}

/// Finds installations and remembers what they said.
#[derive(Debug)]
pub struct Discovery {
    places: Places,
    cache: Mutex<Cache>,
}

impl Discovery {
    /// Looks in `places`; answers are kept in `folder` too, when there is one.
    pub fn new(places: Places, folder: Option<&Path>) -> Self {
        Self { places, cache: Mutex::new(Cache::open(folder)) }
    }

    /// This process's environment and the usual folders.
    pub fn of_host(folder: Option<&Path>) -> Self {
        Self::new(Places::of_environment(), folder)
    }

    /// Everything there is now. Runs only programs that are new or changed.
    pub fn findings(&self) -> Findings {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut findings = Findings::default();
        let mut seen = BTreeSet::new();
        for candidate in self.places.programs() {
            let Ok(trtexec) = candidate.canonicalize() else { continue };
            if seen.len() == MAX_PROGRAMS || !seen.insert(trtexec.clone()) {
                continue;
            }
            let Some(stamp) = Stamp::of(&trtexec) else { continue };
            let library_path = components::library_path(&trtexec);
            let answer = cache.answer(&trtexec, stamp, || probe::ask(&trtexec, &library_path));
            match answer.result {
                Ok(capabilities) => {
                    let cuda = components::cuda(&trtexec, capabilities.version());
                    let lean_runtime = components::lean_runtime(&library_path, capabilities.version());
                    findings.installations.push(Installation {
                        trtexec,
                        capabilities,
                        library_path,
                        lean_runtime,
                        cuda,
                    });
                }
                Err(problem) => findings.faults.push(Fault { trtexec, problem, printed: answer.printed }),
            }
        }
        cache.keep(&seen);
        findings.installations.sort_by(|a, b| b.version().cmp(&a.version()).then_with(|| a.trtexec.cmp(&b.trtexec)));
        findings
    }

    /// The toolchains that can build on a device with this driver, each once.
    pub fn toolchains(&self, driver: Option<&str>) -> Vec<Toolchain> {
        let mut toolchains: Vec<Toolchain> = Vec::new();
        for installation in self.findings().installations {
            let toolchain = installation.toolchain(driver);
            if !toolchains.contains(&toolchain) {
                toolchains.push(toolchain);
            }
        }
        toolchains
    }

    /// The installation that is exactly `toolchain` on a device with this driver.
    pub fn find(&self, toolchain: &Toolchain, driver: Option<&str>) -> Option<Installation> {
        self.findings().installations.into_iter().find(|found| found.toolchain(driver) == *toolchain)
    }
}

#[cfg(test)]
mod tests;
