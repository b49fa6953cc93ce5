//! Plans of TensorRT: nothing in them names model or spec, so magic, size and version have to do.

use crate::{CheckError, Expected, Source, head};
use planforge_tensorrt_rules::{
    plan::{HEAD_MAX_BYTES, PlanHeader, PlanLayout},
    version::Version,
};

pub async fn check<S: Source>(plan: &S, expected: &Expected<'_>) -> Result<(), CheckError<S::Error>> {
    let first = head(plan, HEAD_MAX_BYTES).await?;
    let header = PlanHeader::parse(&first, plan.size_bytes()).map_err(|error| CheckError::unfit(error.to_string()))?;
    if header.wrapper_bytes.is_some() {
        return Err(CheckError::unfit(
            "another tool's description stands in front of it, which TensorRT does not load",
        ));
    }
    if header.layout == PlanLayout::Unknown {
        return Err(CheckError::unfit("it does not begin as plans of TensorRT do"));
    }
    let version: Version = expected.toolchain.version.parse().map_err(|error| CheckError::unfit(format!("{error}")))?;
    if header.is_of(version) == Some(false) {
        let says = header.version_text().unwrap_or_default();
        return Err(CheckError::unfit(format!("it was written by TensorRT {says}, not by {}", expected.toolchain)));
    }
    Ok(())
}
