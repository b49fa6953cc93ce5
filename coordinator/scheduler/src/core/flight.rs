//! Work in flight by name, so that the same is not done twice.

use super::model::{Covered, Job, JobKind};
use planforge_types::{Digest, EngineKey, Sku};

/// Under this name identical work in flight is found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Flight {
    /// An engine comes of it.
    Build(EngineKey),
    /// It is made ready for a device elsewhere.
    Ahead(EngineKey),
    /// A model comes of it.
    Prepare(EngineKey),
    Measure {
        plan: Digest,
        sku: Sku,
        covered: Covered,
    },
}

impl Flight {
    /// Of a job that measures nothing that is there already.
    pub fn of_key(kind: JobKind, sku: &Sku, key: EngineKey) -> Self {
        match kind {
            JobKind::Compile if !sku.is_cpu() => Self::Ahead(key),
            JobKind::Prepare => Self::Prepare(key),
            _ => Self::Build(key),
        }
    }
}

/// The name under which identical work finds this job. Forced jobs and jobs that wait for another job are joined by nobody; what
/// is being cancelled is found too, so that nobody does the same beside it.
pub(super) fn flight_of(job: &Job) -> Option<Flight> {
    if job.force || job.recheck || !job.needs.is_empty() {
        return None;
    }
    match job.kind {
        JobKind::Build | JobKind::Compile | JobKind::Prepare => {
            job.key.map(|key| Flight::of_key(job.kind, &job.sku, key))
        }
        JobKind::Benchmark => {
            let plan = job.plan.as_ref()?;
            Some(Flight::Measure { plan: plan.digest, sku: job.sku.clone(), covered: job.covered() })
        }
    }
}
