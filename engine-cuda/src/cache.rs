//! The tactic cache: what was timed on devices of one class with one set of libraries, and what cuDNN compiled for it.
//!
//! A JSON file, this build's own copy, read before a build and replaced by rename after it. One that cannot be read is an
//! empty one: it only saves time. The same inputs and the same cache give the same plan, byte for byte.

use crate::{
    tune::{Timed, Times},
    versions::{CUDA_REVISION, Versions},
};
use planforge_engine_core::identity::Digest;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Largest cache file that is read; the farm keeps none that is larger.
const CACHE_MAX_BYTES: u64 = planforge_engine_core::worker::TUNING_CACHE_MAX_BYTES;
/// Candidates kept per step: what an inspection shows. More say nothing for later builds.
const KEPT_CANDIDATES: usize = 6;

/// The file's content.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// By what must be the same for a time to mean anything; see [`TacticCache::open`].
    scopes: BTreeMap<Digest, Times>,
    /// cuDNN's own plans, by digests that name its version.
    #[serde(default)]
    library_plans: BTreeMap<String, String>,
}

/// Times known for one class of device, one set of libraries and one way to search.
#[derive(Debug)]
pub struct TacticCache {
    file: Option<PathBuf>,
    kept: Kept,
    scope: Digest,
}

impl TacticCache {
    /// Opens the cache in `file`, which need not exist yet; `None` keeps nothing.
    pub fn open(file: Option<&Path>, device_class: Digest, versions: &Versions, level: u8) -> Self {
        let same = (CUDA_REVISION, device_class, &versions.cudnn, &versions.cublaslt, &versions.nvrtc, level);
        let scope = Digest::of(&serde_json::to_vec(&same).unwrap_or_default());
        Self { file: file.map(Path::to_owned), kept: file.map(read).unwrap_or_default(), scope }
    }

    /// What is known, fastest first.
    pub fn times(&self) -> Times {
        self.kept.scopes.get(&self.scope).cloned().unwrap_or_default()
    }

    pub fn library_plans(&self) -> impl Iterator<Item = (String, String)> {
        self.kept.library_plans.iter().map(|(key, text)| (key.clone(), text.clone()))
    }

    /// Takes over what a search learned.
    pub fn learn(&mut self, times: &Times, library_plans: BTreeMap<String, String>) {
        let known = self.kept.scopes.entry(self.scope).or_default();
        for (signature, timed) in times {
            known.insert(signature.clone(), trimmed(timed));
        }
        self.kept.library_plans.extend(library_plans);
    }

    /// Writes what is known. What would not be read again is not written.
    pub fn save(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let bytes = serde_json::to_vec(&self.kept).map_err(io::Error::other)?;
        if bytes.len() as u64 > CACHE_MAX_BYTES {
            return Err(io::Error::other(format!("{} bytes are more than {CACHE_MAX_BYTES}", bytes.len())));
        }
        let draft = file.with_extension(format!("{}.partial", std::process::id()));
        fs::write(&draft, bytes)?;
        fs::rename(&draft, file)
    }
}

/// The fastest few of a step's candidates.
pub fn trimmed(timed: &[Timed]) -> Vec<Timed> {
    timed.iter().take(KEPT_CANDIDATES).cloned().collect()
}

fn read(file: &Path) -> Kept {
    let fits = fs::metadata(file).is_ok_and(|facts| facts.len() <= CACHE_MAX_BYTES);
    let bytes = if fits { fs::read(file).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        if !bytes.is_empty() {
            tracing::warn!(file = %file.display(), %error, "the tactic cache cannot be read and is begun anew");
        }
        Kept::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codegen::Source, program::Tactic};

    fn timed(us: f64) -> Timed {
        let source = Source { name: "k".into(), text: "text".into() };
        Timed {
            tactic: Tactic::Kernel { source: 3, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 },
            us,
            source: Some(source),
        }
    }

    #[test]
    fn what_was_learned_is_known_in_its_scope_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cache");
        let versions = Versions { cudnn: "9.19.0".into(), ..Versions::default() };
        let open = |versions: &Versions, level| TacticCache::open(Some(&file), Digest::of(b"class"), versions, level);
        let mut cache = open(&versions, 3);
        assert!(cache.times().is_empty());
        let all = Times::from([("step".to_owned(), (0..9).map(|us| timed(us.into())).collect())]);
        cache.learn(&all, BTreeMap::from([("a".to_owned(), "{}".to_owned())]));
        cache.save().unwrap();
        let again = open(&versions, 3);
        assert_eq!(again.times()["step"], trimmed(&all["step"]));
        assert_eq!(again.times()["step"].len(), KEPT_CANDIDATES);
        assert_eq!(again.library_plans().count(), 1);
        assert!(open(&versions, 4).times().is_empty(), "another search");
        assert!(open(&Versions::default(), 3).times().is_empty(), "other libraries");
        fs::write(&file, b"{").unwrap();
        assert!(open(&versions, 3).times().is_empty());
    }
}
