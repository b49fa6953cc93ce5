//! Remembers that the device was lost, whoever heard of it: where a part's failure is only a finding, it must not pass
//! for one.

use planforge_device::telemetry::{Telemetry, contention::device_lost};
use planforge_types::{BackendError, telemetry::TelemetrySample};
use std::sync::{Arc, OnceLock};

/// Why the device was lost, once it was.
#[derive(Clone, Debug, Default)]
pub(super) struct Loss(Arc<OnceLock<String>>);

impl Loss {
    /// What `inner` tells, looked through for a loss.
    pub fn watching(&self, inner: Box<dyn Telemetry>) -> Box<dyn Telemetry> {
        Box::new(Listening { inner, last: TelemetrySample::default(), loss: self.clone() })
    }

    /// An error from the first loss on.
    pub fn check(&self) -> Result<(), BackendError> {
        self.0.get().map_or(Ok(()), |reason| Err(BackendError::device_lost(reason)))
    }
}

struct Listening {
    inner: Box<dyn Telemetry>,
    last: TelemetrySample,
    loss: Loss,
}

impl Listening {
    fn heard(&mut self, sample: TelemetrySample) -> TelemetrySample {
        if let Some(reason) = device_lost(&self.last, &sample) {
            // The first reason stays.
            let _ = self.loss.0.set(reason);
        }
        self.last = sample.clone();
        sample
    }
}

impl Telemetry for Listening {
    fn sample(&mut self) -> TelemetrySample {
        let sample = self.inner.sample();
        self.heard(sample)
    }

    fn outside(&mut self) -> TelemetrySample {
        let sample = self.inner.outside();
        self.heard(sample)
    }

    fn settle(&mut self) {
        self.inner.settle();
    }
}
