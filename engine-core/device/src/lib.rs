//! Devices: what they are, what they are called, what they can run.
//!
//! | module | answers |
//! |---|---|
//! | [`catalogue`] | what is this board called? |
//! | [`level`] | which instruction-set levels are there, and which can this CPU run? |
//! | [`telemetry`] | what state is this device in, and who else uses it? |
//! | [`nvml`] | what does the driver of NVIDIA devices say? |
//! | [`host`] | what is around the process that measures? |
//! | [`discover`](mod@discover) | which devices does this host have? |

pub mod catalogue;
pub mod cpu;
pub mod discover;
#[cfg(feature = "nvml")]
pub mod gpu;
#[cfg(feature = "nvml")]
pub mod host;
pub mod level;
#[cfg(feature = "nvml")]
pub mod nvml;
#[cfg(feature = "nvml")]
pub mod telemetry;

pub use discover::discover;
pub use level::CpuLevel;
