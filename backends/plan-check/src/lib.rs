//! Is a plan, by its own words, the engine that a job asked for?
//!
//! An agent says that some bytes are a plan. Before they become an engine, or are handed to anybody, what they say of
//! themselves is read and held against the job:
//!
//! | backend | what is read | what has to fit |
//! |---|---|---|
//! | native | header, table of sections, manifest | size and digests of those; model, SKU, toolchain, spec |
//! | TensorRT | the first bytes | magic; size and version where the layout tells them |
//! | ONNX Runtime | the manifest in front, the graph behind it | model, SKU, toolchain, spec; a graph that reads |
//!
//! The bytes are hostile: a bounded part of them is read ([`READ_MAX_BYTES`]), nothing of them is run or loaded, and no
//! length in them is believed before it is compared with the file's. What this cannot tell is whether the engine behind
//! the words is a good one: that is what verification and the loader's own checks are for.

mod native;
mod onnxruntime;
mod tensorrt;

use bytes::Bytes;
use planforge_types::{BuildSpec, Digest, Sku, Toolchain};
use std::{future::Future, ops::Range};

/// Most that is read of a plan at once, and of a manifest at all.
pub const READ_MAX_BYTES: u64 = 64 << 20;

/// What a plan has to be.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    pub model: Digest,
    /// Device kind that it was built for.
    pub sku: &'a Sku,
    pub toolchain: &'a Toolchain,
    pub spec: &'a BuildSpec,
}

/// Where the bytes of a plan lie.
pub trait Source: Sync {
    /// Why they cannot be read.
    type Error: Send;

    fn size_bytes(&self) -> u64;

    /// The bytes of a range that lies inside.
    fn read(&self, range: Range<u64>) -> impl Future<Output = Result<Bytes, Self::Error>> + Send;
}

/// Why a plan is not taken.
#[derive(Debug, thiserror::Error)]
pub enum CheckError<E> {
    /// It is not what the job asked for; says what does not fit.
    #[error("{0}")]
    Unfit(String),
    /// Its bytes cannot be read now, which says nothing of it.
    #[error("the plan cannot be read")]
    Read(E),
}

impl<E> CheckError<E> {
    fn unfit(what: impl Into<String>) -> Self {
        Self::Unfit(what.into())
    }
}

/// Holds a plan's words against what was asked for.
///
/// # Errors
/// [`CheckError::Unfit`] when it is another engine, or none.
pub async fn check<S: Source>(plan: &S, expected: &Expected<'_>) -> Result<(), CheckError<S::Error>> {
    match expected.toolchain.backend.as_str() {
        planforge_plan::BACKEND => native::check(plan, expected).await,
        planforge_tensorrt_rules::BACKEND => tensorrt::check(plan, expected).await,
        onnxruntime::BACKEND => onnxruntime::check(plan, expected).await,
        other => Err(CheckError::unfit(format!("plans of '{other}' are not known to this release"))),
    }
}

/// What a manifest says that every backend which has one says.
#[derive(Debug, serde::Deserialize)]
struct Claims {
    model_digest: Digest,
    sku: Sku,
    toolchain: Toolchain,
    spec: BuildSpec,
}

impl Claims {
    fn read<E>(json: &[u8]) -> Result<Self, CheckError<E>> {
        serde_json::from_slice(json).map_err(|error| CheckError::unfit(format!("its manifest cannot be read: {error}")))
    }

    fn fit<E>(self, expected: &Expected<'_>) -> Result<(), CheckError<E>> {
        let unfit = |what: &str, says: String, asked: String| {
            Err(CheckError::unfit(format!("it says that it was built {what} {says}, not {asked}")))
        };
        if self.model_digest != expected.model {
            return unfit(
                "from the model",
                format!("sha256:{}", self.model_digest),
                format!("sha256:{}", expected.model),
            );
        }
        if self.sku != *expected.sku {
            return unfit("for", self.sku.to_string(), expected.sku.to_string());
        }
        if self.toolchain != *expected.toolchain {
            return unfit("by", self.toolchain.to_string(), expected.toolchain.to_string());
        }
        let (says, asked) = (self.spec.canonical(), expected.spec.clone().canonical());
        if says != asked {
            return unfit("as", says.to_canonical_json(), asked.to_canonical_json());
        }
        Ok(())
    }
}

/// Bytes of a range, where it lies inside the plan and is no longer than what is read at once.
async fn read<S: Source>(plan: &S, range: Range<u64>, what: &str) -> Result<Bytes, CheckError<S::Error>> {
    let size = plan.size_bytes();
    if range.start > range.end || range.end > size {
        return Err(CheckError::unfit(format!("it ends after {size} bytes, inside its {what}")));
    }
    if range.end - range.start > READ_MAX_BYTES {
        let length = range.end - range.start;
        return Err(CheckError::unfit(format!("its {what} has {length} bytes; at most {READ_MAX_BYTES} are read")));
    }
    let length = range.end - range.start;
    let bytes = plan.read(range).await.map_err(CheckError::Read)?;
    match bytes.len() as u64 == length {
        true => Ok(bytes),
        false => {
            Err(CheckError::unfit(format!("{length} bytes of its {what} were asked for and {} came", bytes.len())))
        }
    }
}

/// The first bytes, as many as there are.
async fn head<S: Source>(plan: &S, most: u64) -> Result<Bytes, CheckError<S::Error>> {
    read(plan, 0..most.min(plan.size_bytes()), "head").await
}

#[cfg(test)]
mod tests;
