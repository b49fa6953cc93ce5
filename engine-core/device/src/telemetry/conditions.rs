//! How a GPU is set up, as far as it decides what measurements on it are worth. Only reads.

use crate::gpu::open_nvml;
use nvml_wrapper::{
    enum_wrappers::device::{Clock, ComputeMode},
    error::NvmlError,
};
use serde::Serialize;

/// Settings of one GPU. What it does not tell is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conditions {
    /// The driver stays loaded while nobody uses the device.
    pub persistence: Option<bool>,
    /// Who may use the device at once: `default`, `exclusive-process`, `prohibited`.
    pub compute_mode: Option<&'static str>,
    pub ecc: Option<bool>,
    /// ECC will be so after the next reset.
    pub ecc_pending: Option<bool>,
    /// Memory pages wait for a reset to be retired.
    pub pages_pending: Option<bool>,
    pub application_sm_clock_mhz: Option<u32>,
    pub max_sm_clock_mhz: Option<u32>,
}

/// Reads the settings of the GPU with this UUID.
pub fn conditions(uuid: &str) -> Result<Conditions, NvmlError> {
    let nvml = open_nvml()?;
    let device = nvml.device_by_uuid(uuid)?;
    let ecc = device.is_ecc_enabled().ok();
    let compute_mode = device.compute_mode().ok().map(|mode| match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive-thread",
        ComputeMode::ExclusiveProcess => "exclusive-process",
        ComputeMode::Prohibited => "prohibited",
    });
    Ok(Conditions {
        persistence: device.is_in_persistent_mode().ok(),
        compute_mode,
        ecc: ecc.as_ref().map(|state| state.currently_enabled),
        ecc_pending: ecc.as_ref().map(|state| state.pending_enabled),
        pages_pending: device.are_pages_pending_retired().ok(),
        application_sm_clock_mhz: device.applications_clock(Clock::SM).ok(),
        max_sm_clock_mhz: device.max_clock_info(Clock::SM).ok(),
    })
}
