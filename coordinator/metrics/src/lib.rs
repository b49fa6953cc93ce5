//! What a coordinator tells of its farm as numbers: a snapshot, histograms, and both as OpenMetrics text.
//!
//! Names end in their unit. Labels are few and bounded, never the id of a job; devices are told apart by their UUID, and
//! of them no more are told than [`DEVICES_MAX`].

mod devices;
mod exposition;
mod stats;

pub use devices::{DEVICES_MAX, DeviceReading};
pub use exposition::{BlobFacts, Metrics, OpenConnection};
pub use stats::{FarmStats, Histogram, LATENCY_BOUNDS_MS, StoreOp};
