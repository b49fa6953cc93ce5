//! How a GPU is set up, as far as it decides what measurements on it are worth. Only reads.

use crate::nvml::{Clock, ComputeMode, Nvml, NvmlError};
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
    conditions_from(&Nvml::open()?, uuid)
}

pub(crate) fn conditions_from(nvml: &Nvml, uuid: &str) -> Result<Conditions, NvmlError> {
    let device = nvml.device_by_uuid(uuid)?;
    let ecc = device.ecc().ok();
    let compute_mode = device.compute_mode().ok().map(|mode| match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive-thread",
        ComputeMode::ExclusiveProcess => "exclusive-process",
        ComputeMode::Prohibited => "prohibited",
    });
    Ok(Conditions {
        persistence: device.is_persistent().ok(),
        compute_mode,
        ecc: ecc.map(|state| state.current),
        ecc_pending: ecc.map(|state| state.pending),
        pages_pending: device.are_pages_pending().ok(),
        application_sm_clock_mhz: device.application_clock_mhz(Clock::Sm).ok(),
        max_sm_clock_mhz: device.max_clock_mhz(Clock::Sm).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::fake::{A100, Fake, H200};

    #[test]
    fn settings_are_read_and_what_is_not_told_is_left_out() {
        let fake = Fake::new(&[]);
        let nvml = fake.open();
        let told = Conditions {
            persistence: Some(true),
            compute_mode: Some("exclusive-process"),
            ecc: Some(true),
            ecc_pending: Some(false),
            pages_pending: Some(true),
            application_sm_clock_mhz: Some(1755),
            max_sm_clock_mhz: Some(1980),
        };
        assert_eq!(conditions_from(&nvml, H200), Ok(told.clone()));
        assert_eq!(conditions_from(&nvml, A100), Ok(Conditions { compute_mode: None, ..told }));
        assert!(conditions_from(&nvml, "GPU-none").is_err());
    }
}
