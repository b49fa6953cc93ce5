//! The libraries that engines are built and run with, and the toolchain they make.

use planforge_kernels_cuda::libraries::{Missing, libraries};
use planforge_types::Toolchain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the backend in toolchains; the same as that of engines for CPUs.
pub use planforge_plan::BACKEND;

/// Raised whenever the same input would give another plan, or the same plan would run otherwise; `tests/plan_golden`
/// holds it to that. Engines for CPUs count for themselves.
pub const CUDA_REVISION: u32 = 14;

/// Exact versions, as the libraries say them; empty where one is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// Highest CUDA version of the driver.
    pub driver: String,
    pub nvrtc: String,
    pub cublaslt: String,
    pub cudnn: String,
}

impl Versions {
    /// Of this process. Opens the libraries at the first call.
    pub fn here() -> Self {
        let found = libraries();
        let version = |slot: &Result<planforge_kernels_cuda::libraries::Found, Missing>| {
            slot.as_ref().map(|found| found.version.clone()).unwrap_or_default()
        };
        Self {
            driver: version(&found.driver),
            nvrtc: version(&found.nvrtc),
            cublaslt: version(&found.blaslt),
            cudnn: version(&found.dnn),
        }
    }

    /// Whether recipes of tactics mean here what they meant there: NVRTC and the driver do not matter to them.
    pub fn same_tactics(&self, other: &Self) -> bool {
        (&self.cublaslt, &self.cudnn) == (&other.cublaslt, &other.cudnn)
    }

    /// The toolchain on a device with this driver (`580.159.03`).
    pub fn toolchain(&self, driver: &str) -> Toolchain {
        let branch = driver.split('.').next().filter(|branch| branch.bytes().all(|byte| byte.is_ascii_digit()));
        let parts = [
            ("cuda", major_minor(&self.nvrtc)),
            ("cudnn", major_minor(&self.cudnn)),
            ("cublaslt", major_minor(&self.cublaslt)),
            ("driver_branch", branch.unwrap_or_default().to_owned()),
        ];
        let components: BTreeMap<String, String> = parts
            .into_iter()
            .filter(|(_, version)| !version.is_empty())
            .map(|(name, version)| (name.to_owned(), version))
            .collect();
        Toolchain { backend: BACKEND.into(), version: CUDA_REVISION.to_string(), components }
    }
}

/// Why engines cannot be built in this process: the driver runs them and NVRTC compiles their kernels; what else is
/// missing only means fewer tactics.
pub fn missing() -> Option<Missing> {
    let found = libraries();
    [&found.driver, &found.nvrtc].into_iter().find_map(|slot| slot.as_ref().err().cloned())
}

fn major_minor(version: &str) -> String {
    let parts: Vec<&str> = version.splitn(3, '.').take(2).collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_names_what_forms_keys_and_leaves_out_what_is_missing() {
        let versions =
            Versions { driver: "13.0".into(), nvrtc: "13.0".into(), cublaslt: "13.1.0".into(), cudnn: "9.19.0".into() };
        let toolchain = versions.toolchain("580.159.04");
        let native = format!("native {CUDA_REVISION}, cublaslt 13.1, cuda 13.0");
        assert_eq!(toolchain.to_string(), format!("{native}, cudnn 9.19, driver_branch 580"));
        let less = Versions { cudnn: String::new(), ..versions.clone() };
        assert_eq!(less.toolchain("R580").to_string(), native);
        assert!(!versions.same_tactics(&less));
        assert!(versions.same_tactics(&Versions { nvrtc: "12.9".into(), driver: "12.9".into(), ..versions.clone() }));
    }
}
