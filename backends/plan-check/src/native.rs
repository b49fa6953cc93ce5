//! Plans of the native backend: their table of sections is whole, and their manifest is the job's.

use crate::{CheckError, Claims, Expected, Source, head, read};
use planforge_plan::container::{self, HEAD_MAX_BYTES, KIND_CUDA_MANIFEST, KIND_MANIFEST};
use planforge_types::Digest;

pub async fn check<S: Source>(plan: &S, expected: &Expected<'_>) -> Result<(), CheckError<S::Error>> {
    let first = head(plan, HEAD_MAX_BYTES).await?;
    let sections = container::table(&first, plan.size_bytes()).map_err(|error| CheckError::unfit(error.to_string()))?;
    let kind = if expected.sku.is_cpu() { KIND_MANIFEST } else { KIND_CUDA_MANIFEST };
    let manifest =
        container::only(&sections, kind, "manifest").map_err(|error| CheckError::unfit(error.to_string()))?;
    let bytes = read(plan, manifest.offset..manifest.offset + manifest.length, "manifest").await?;
    if Digest::of(&bytes) != manifest.digest() {
        return Err(CheckError::unfit("its manifest does not match its digest"));
    }
    Claims::read(&bytes)?.fit(expected)
}
