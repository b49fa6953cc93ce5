//! The tactic cache: what was fastest, so that no step is timed twice on devices of one class.
//!
//! A JSON file, read before a build and replaced by rename after it. A cache that cannot be read is an empty one: it
//! only saves time. The same inputs and the same cache give the same plan, byte for byte.

use super::{
    COMPILER_REVISION,
    program::{StepKind, TimedTactic},
};
use planforge_types::{Digest, durable};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Largest cache file that is read: some hundred thousand steps.
const CACHE_MAX_BYTES: u64 = 256 << 20;

/// The file's content.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// By digest of everything that decides; see [`TacticCache::key`].
    steps: BTreeMap<String, Vec<TimedTactic>>,
}

/// What decides a tactic besides the machine.
#[derive(Debug, Serialize)]
pub(crate) struct Signature<'a> {
    pub kind: Cow<'a, StepKind>,
    pub bias: bool,
    pub residual: bool,
}

/// Tactics known for one device class, level and number of threads.
#[derive(Debug)]
pub(crate) struct TacticCache {
    file: Option<PathBuf>,
    kept: Kept,
    /// What every key of this build has in common.
    common: Common,
    pub hits: usize,
    pub misses: usize,
}

#[derive(Debug, Clone, Serialize)]
struct Common {
    revision: u32,
    device_class: Digest,
    level: &'static str,
    threads: usize,
}

impl TacticCache {
    /// Opens the cache in `file`, which need not exist yet; `None` keeps nothing.
    pub(crate) fn open(file: Option<&Path>, device_class: Digest, level: &'static str, threads: usize) -> Self {
        let file = file.map(Path::to_owned);
        let kept = file.as_deref().map(read).unwrap_or_default();
        let common = Common { revision: COMPILER_REVISION, device_class, level, threads };
        Self { file, kept, common, hits: 0, misses: 0 }
    }

    /// The key of a step whose candidates are `tactics`.
    pub(crate) fn key(&self, signature: &Signature<'_>, tactics: &[super::program::Tactic]) -> String {
        let names: Vec<String> = tactics.iter().map(super::program::Tactic::name).collect();
        // Keys only need to be the same for the same input; serialisation of these types cannot fail.
        let text = serde_json::to_vec(&(&self.common, signature, names)).unwrap_or_default();
        Digest::of(&text).to_string()
    }

    /// What is known by `key`, else by `other`.
    pub(crate) fn get(&mut self, key: &str, other: Option<&str>) -> Option<Vec<TimedTactic>> {
        let known = |key: &str| self.kept.steps.get(key).filter(|tried| !tried.is_empty());
        let found = known(key).or_else(|| known(other?)).cloned();
        *(if found.is_some() { &mut self.hits } else { &mut self.misses }) += 1;
        found
    }

    pub(crate) fn put(&mut self, key: String, tried: Vec<TimedTactic>) {
        self.kept.steps.insert(key, tried);
    }

    /// Writes what is known, together with what others wrote meanwhile.
    pub(crate) fn save(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if self.misses == 0 {
            return Ok(());
        }
        self.kept.add(read(file));
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        self.kept.write(file)
    }
}

/// Adds to the cache in `into` what the one in `from` knows beyond it. One that cannot be read knows nothing.
pub(crate) fn join(into: &Path, from: &Path) -> io::Result<()> {
    let mut kept = read(into);
    kept.add(read(from));
    kept.write(into)
}

impl Kept {
    fn add(&mut self, other: Self) {
        for (key, tried) in other.steps {
            self.steps.entry(key).or_insert(tried);
        }
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        durable::write_cache(file, &serde_json::to_vec(self).map_err(io::Error::other)?)
    }
}

fn read(file: &Path) -> Kept {
    let fits = fs::metadata(file).is_ok_and(|metadata| metadata.len() <= CACHE_MAX_BYTES);
    let bytes = if fits { fs::read(file).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        if !bytes.is_empty() {
            tracing::warn!(file = %file.display(), %error, "the tactic cache cannot be read and is begun anew");
        }
        Kept::default()
    })
}
