//! A plan that came from a coordinator is held against what it was fetched as, before it lies where it was asked for: an
//! agent's word, or an older coordinator's, is not enough. See `planforge-plan-check`.

use crate::failure::Failure;
use bytes::Bytes;
use planforge_fleet::Locked;
use planforge_plan_check::{CheckError, Expected, Source, check};
use planforge_proto::{ErrorCode, v1};
use planforge_types::{BuildSpec, Digest, Sku, Toolchain};
use std::{fs::File, io, ops::Range, os::unix::fs::FileExt as _, path::Path};

/// What a plan is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    model: String,
    sku: String,
    toolchain_json: String,
    spec_json: String,
}

impl From<&v1::Engine> for Said {
    fn from(engine: &v1::Engine) -> Self {
        Self {
            model: engine.model.as_ref().map(|model| model.digest.clone()).unwrap_or_default(),
            sku: engine.sku.clone(),
            toolchain_json: engine.toolchain_json.clone(),
            spec_json: engine.spec_json.clone(),
        }
    }
}

impl Said {
    /// A plan as a lock names it.
    pub fn of_locked(sku: &Sku, locked: &Locked) -> Self {
        Self {
            model: locked.model.to_string(),
            sku: sku.to_string(),
            toolchain_json: serde_json::to_string(&locked.toolchain).unwrap_or_default(),
            spec_json: locked.spec.to_canonical_json(),
        }
    }
}

impl From<&v1::Job> for Said {
    fn from(job: &v1::Job) -> Self {
        Self {
            model: job.model.as_ref().map(|model| model.digest.clone()).unwrap_or_default(),
            sku: if job.built_for.is_empty() { job.sku.clone() } else { job.built_for.clone() },
            toolchain_json: job.toolchain_json.clone(),
            spec_json: job.spec_json.clone(),
        }
    }
}

/// A plan on this machine.
struct OnDisk {
    file: File,
    size_bytes: u64,
}

impl Source for OnDisk {
    type Error = io::Error;

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    async fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let length = range.end.saturating_sub(range.start).min(self.size_bytes);
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes.into())
    }
}

/// Refuses a file that is not, by its own words, the plan it is said to be.
pub async fn hold(path: &Path, said: &Said) -> Result<(), Failure> {
    let unreadable = |e: io::Error| Failure::io("read the plan", path, &e);
    let file = File::open(path).map_err(unreadable)?;
    let size_bytes = file.metadata().map_err(unreadable)?.len();
    let wrong = |what: &str, reason: &dyn std::fmt::Display| {
        Failure::new(
            ErrorCode::Internal,
            format!("the coordinator names the plan's {what} by something else: {reason}"),
        )
    };
    let model: Digest = said.model.parse().map_err(|e| wrong("model", &e))?;
    let sku: Sku = said.sku.parse().map_err(|e| wrong("SKU", &e))?;
    let toolchain: Toolchain = serde_json::from_str(&said.toolchain_json).map_err(|e| wrong("toolchain", &e))?;
    let spec = BuildSpec::parse(&said.spec_json).map_err(|e| wrong("build spec", &e))?;
    let expected = Expected { model, sku: &sku, toolchain: &toolchain, spec: &spec };
    match check(&OnDisk { file, size_bytes }, &expected).await {
        Ok(()) => Ok(()),
        Err(CheckError::Read(error)) => Err(unreadable(error)),
        Err(CheckError::Unfit(problem)) => {
            let message = format!("what the coordinator calls an engine for {sku} by {toolchain} is none: {problem}");
            Err(Failure::new(ErrorCode::Gone, message).hint(
                "nothing was kept; build it again with planforge submit --force, and look at the agent that built it",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_plan::container::{KIND_MANIFEST, Writer};

    #[tokio::test]
    async fn only_what_a_plan_says_of_itself_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.plan");
        let toolchain_json = r#"{"backend":"native","version":"1"}"#;
        let model = Digest::of(b"m").to_string();
        let said = |sku: &str| Said {
            model: model.clone(),
            sku: sku.into(),
            toolchain_json: toolchain_json.into(),
            spec_json: r#"{"threads":2}"#.into(),
        };
        let manifest = format!(
            r#"{{"model_digest":"{model}","sku":"cpu-x86-64-v3","toolchain":{toolchain_json},"spec":{{"threads":2}}}}"#
        );
        let mut writer = Writer::create(&path, 1).unwrap();
        writer.section::<io::Error>(KIND_MANIFEST, |out| out.write_all(manifest.as_bytes())).unwrap();
        writer.finish().unwrap();
        hold(&path, &said("cpu-x86-64-v3")).await.unwrap();
        let other = hold(&path, &said("cpu-x86-64-v2")).await.unwrap_err();
        assert!(other.to_string().contains("cpu-x86-64-v3, not cpu-x86-64-v2"), "{other}");
        assert_eq!(other.exit_code, ErrorCode::Gone.exit_code());
        std::fs::write(&path, vec![0x5a; 5_000]).unwrap();
        let random = hold(&path, &said("cpu-x86-64-v3")).await.unwrap_err();
        assert!(random.to_string().contains("no plan file"), "{random}");
    }
}
