//! Devices: what they are, what they are called, what they can run.
//!
//! | module | answers |
//! |---|---|
//! | [`fingerprint`] | what exactly is this device, so that a number can be traced to it? |
//! | [`catalogue`] | what is this board called? |
//! | [`level`] | which instruction-set levels are there, and which can this CPU run? |
//! | [`discover`](mod@discover) | which devices does this host have? |

pub mod catalogue;
pub mod cpu;
pub mod discover;
pub mod fingerprint;
pub mod gpu;
pub mod level;

pub use discover::discover;
pub use fingerprint::{CpuFacts, DeviceFingerprint, DeviceKind, GpuFacts, HostFacts};
pub use level::CpuLevel;

use crate::identity::{Sku, Toolchain};
use serde::{Deserialize, Serialize};

/// A device that was found on this host, and what it offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiscoveredDevice {
    /// Stable on its host: the GPU's UUID, or `cpu0`.
    pub id: String,
    pub fingerprint: DeviceFingerprint,
    /// One for a GPU; one per instruction-set level for a CPU, best last.
    pub skus: Vec<Sku>,
    /// Physical cores a CPU engine may use; 0 for GPUs.
    pub threads: u32,
    /// Toolchains that can build for it now.
    pub offers: Vec<Toolchain>,
    /// A scripted double: everything measured on it is marked.
    pub simulated: bool,
}
