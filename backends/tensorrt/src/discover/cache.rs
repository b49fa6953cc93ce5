//! What programs answered, by the stamp of their file.

use super::Answer;
use planforge_types::durable;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// File in the cache folder.
const FILE: &str = "trtexec.json";
/// Raised whenever answers are read differently or the table of options changes.
const CACHE_VERSION: u32 = 2;
/// Far more than answers of every program that is looked at.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What tells a program from the one it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Stamp {
    /// `None` for what is no file.
    pub fn of(path: &Path) -> Option<Self> {
        let facts = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            device: facts.dev(),
            inode: facts.ino(),
            size_bytes: facts.size(),
            changed_s: facts.mtime(),
            changed_ns: facts.mtime_nsec(),
        })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    stamp: Stamp,
    answer: Answer,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    programs: BTreeMap<PathBuf, Entry>,
}

/// Answers in memory, and in a file for the next process.
#[derive(Debug)]
pub(super) struct Cache {
    file: Option<PathBuf>,
    programs: BTreeMap<PathBuf, Entry>,
    changed: bool,
}

impl Cache {
    /// A file that cannot be read only costs time.
    pub fn open(folder: Option<&Path>) -> Self {
        let file = folder.map(|folder| folder.join(FILE));
        let kept = file.as_deref().and_then(read).filter(|kept| kept.version == CACHE_VERSION);
        Self { file, programs: kept.map(|kept| kept.programs).unwrap_or_default(), changed: false }
    }

    /// The kept answer of a program that did not change. A fault is kept in memory alone: what was missing may have
    /// been installed when the next process asks.
    pub fn answer(&mut self, program: &Path, stamp: Stamp, ask: impl FnOnce() -> Answer) -> Answer {
        if let Some(entry) = self.programs.get(program).filter(|entry| entry.stamp == stamp) {
            return entry.answer.clone();
        }
        let answer = ask();
        self.programs.insert(program.to_owned(), Entry { stamp, answer: answer.clone() });
        self.changed = true;
        answer
    }

    /// Writes what changed; programs that are not in `seen` are forgotten.
    pub fn keep(&mut self, seen: &BTreeSet<PathBuf>) {
        let before = self.programs.len();
        self.programs.retain(|program, _| seen.contains(program));
        if !self.changed && self.programs.len() == before {
            return;
        }
        self.changed = false;
        let Some(file) = &self.file else { return };
        let good = self.programs.iter().filter(|(_, entry)| entry.answer.result.is_ok());
        let programs = good.map(|(program, entry)| (program.clone(), entry.clone())).collect();
        if let Err(error) = write(file, &Kept { version: CACHE_VERSION, programs }) {
            tracing::debug!(file = %file.display(), %error, "found installations are not kept");
        }
    }
}

fn read(file: &Path) -> Option<Kept> {
    let mut bytes = Vec::new();
    fs::File::open(file).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write(file: &Path, kept: &Kept) -> std::io::Result<()> {
    durable::write_cache(file, &serde_json::to_vec(kept)?)
}
