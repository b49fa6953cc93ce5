//! What an agent calls a plan is held against its job before it is anything to the farm: see `planforge-plan-check`.

use super::{Farm, convert};
use crate::{
    blobs::BlobStore,
    core::{Job, LeaseRef, PlanRef},
};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use planforge_plan_check::{CheckError, Expected, READ_MAX_BYTES, Source, check};
use planforge_proto::ApiError;
use planforge_types::Digest;
use std::{ops::Range, sync::Arc};

/// A plan in the blob store.
struct Stored<'a> {
    blobs: &'a Arc<dyn BlobStore>,
    digest: Digest,
    size_bytes: u64,
}

impl Source for Stored<'_> {
    type Error = ApiError;

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, ApiError> {
        let length = range.end.saturating_sub(range.start).min(READ_MAX_BYTES);
        let mut bytes = BytesMut::with_capacity(length as usize);
        let mut chunks = self.blobs.read(self.digest, range).await?;
        while let Some(chunk) = chunks.try_next().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }
}

/// Why a plan that is in the blob store is not what its attempt was to build; `None`: it is, or nobody asks.
pub(super) async fn unfit(farm: &Farm, lease: &LeaseRef, plan: &PlanRef) -> Result<Option<String>, ApiError> {
    let (id, number) = (lease.job.clone(), lease.attempt);
    let held = farm.ask(move |state, _| state.job(&id).filter(|job| job.attempt() == number).cloned()).await?;
    // The core refuses what is of no live job, or of an attempt that is not its newest.
    let Some(job) = held else { return Ok(None) };
    let known = job.plan.as_ref().is_some_and(|known| known.digest == plan.digest);
    if known || !job.makes_engine() {
        return Ok(None);
    }
    let problem = match against(farm, plan, &job).await {
        Ok(()) => return Ok(None),
        Err(CheckError::Unfit(problem)) => problem,
        Err(CheckError::Read(error)) => return Err(error),
    };
    let agent = job.attempts.last().map(|attempt| attempt.agent_name.as_str()).unwrap_or_default();
    tracing::warn!(job = %job.id, agent, plan = %plan.digest, problem, "an agent reported a plan that was not asked for");
    Ok(Some(format!(
        "what agent {agent} calls the plan of job {}, sha256:{}, is not it: {problem}",
        job.id, plan.digest
    )))
}

async fn against(farm: &Farm, plan: &PlanRef, job: &Job) -> Result<(), CheckError<ApiError>> {
    let nothing = || CheckError::Read(convert::invalid(format!("job {} has no toolchain", job.id)));
    let expected = Expected {
        model: job.model.digest,
        sku: job.built_for.as_ref().unwrap_or(&job.sku),
        toolchain: job.toolchain.as_ref().ok_or_else(nothing)?,
        spec: &job.spec,
    };
    let stored = Stored { blobs: farm.blobs(), digest: plan.digest, size_bytes: plan.size_bytes };
    check(&stored, &expected).await
}
