//! What `fetch` put where on this machine, so that an engine that is there already is neither read nor asked for.
//!
//! What do we store? One document per folder that was fetched into, under the data folder: of each file the plan that it
//! is, and device, inode, size, mtime and ctime as they were then. Whatever changes a file changes its ctime, which no
//! program sets. Only `fetch` writes here.
//!
//! Crash safety: written by rename; a document that does not read back is as good as absent, and what it would have said
//! is found out by hashing. Of two fetches at once the later document stays, which costs the other's files a hash.

use planforge_identity::digest_cache::Stamp;
use planforge_types::{Digest, DigestWriter, durable};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Raised when the meaning of a document changes.
const VERSION: u32 = 1;
/// Largest document that is read.
const MAX_BYTES: u64 = 16 << 20;
/// Clocks of file systems tick this coarsely at most: a file that was written longer ago cannot change unseen.
pub const TICK: Duration = Duration::from_millis(20);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Document {
    version: u32,
    files: BTreeMap<PathBuf, Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    plan: Digest,
    stamp: Stamp,
}

/// What is known of one folder.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    document: Document,
    changed: bool,
}

impl Record {
    /// What was fetched into `folder` before, as `data` remembers it.
    pub fn open(data: &Path, folder: &Path) -> Self {
        let name = Digest::of(folder.as_os_str().as_encoded_bytes());
        let path = data.join("fetched").join(format!("{name}.json"));
        let small = fs::metadata(&path).is_ok_and(|facts| facts.len() <= MAX_BYTES);
        let read = || serde_json::from_slice::<Document>(&fs::read(&path).ok()?).ok();
        let document = small.then(read).flatten().filter(|document| document.version == VERSION).unwrap_or_default();
        Self { path, document, changed: false }
    }

    /// Whether the file at `path` is the plan and was not touched since it was found to be.
    pub fn is_unchanged(&self, path: &Path, plan: Digest) -> bool {
        let known = self.document.files.get(path).filter(|entry| entry.plan == plan);
        known.is_some_and(|entry| Stamp::of(path).is_ok_and(|now| now == entry.stamp))
    }

    /// Reads the file at `path`: whether it is the plan, which is then remembered.
    pub fn verify(&mut self, path: &Path, plan: Digest, bytes: u64) -> bool {
        // Before it is read: what changes it afterwards leaves another stamp.
        let Ok(stamp) = Stamp::of(path) else { return false };
        let whole = fs::metadata(path).is_ok_and(|facts| facts.is_file() && (bytes == 0 || facts.len() == bytes));
        if !whole || DigestWriter::of_file(path).map_or(true, |(found, _)| found != plan) {
            self.changed |= self.document.files.remove(path).is_some();
            return false;
        }
        self.remember(path, plan, stamp);
        true
    }

    /// Remembers a file that was just put there, with the stamp it had then.
    pub fn remember(&mut self, path: &Path, plan: Digest, stamp: Stamp) {
        self.document.files.insert(path.to_owned(), Entry { plan, stamp });
        self.changed = true;
    }

    /// Writes down what was learnt. A data folder that takes no writes costs time at the next fetch, and nothing else.
    pub fn save(&mut self) {
        if !self.changed {
            return;
        }
        self.document.version = VERSION;
        self.document.files.retain(|path, _| path.exists());
        let written = self.path.parent().map_or(Ok(()), durable::create_private_dir).and_then(|()| {
            let bytes = serde_json::to_vec(&self.document)?;
            durable::write_cache(&self.path, &bytes)
        });
        match written {
            Ok(()) => self.changed = false,
            Err(error) => tracing::debug!(path = %self.path.display(), %error, "what was fetched is not remembered"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_until_anything_about_it_changes() {
        let root = tempfile::tempdir().unwrap();
        let (data, folder) = (root.path().join("data"), root.path().join("engines"));
        fs::create_dir(&folder).unwrap();
        let file = folder.join("a.plan");
        fs::write(&file, "plan").unwrap();
        let plan = Digest::of(b"plan");
        let mut record = Record::open(&data, &folder);
        assert!(!record.is_unchanged(&file, plan), "nobody looked at it");
        assert!(!record.verify(&file, Digest::of(b"other"), 4) && !record.verify(&file, plan, 5));
        assert!(record.verify(&file, plan, 4));
        record.save();
        let again = Record::open(&data, &folder);
        assert!(again.is_unchanged(&file, plan) && !again.is_unchanged(&file, Digest::of(b"other")));
        // The same bytes in another file, and the same file under another time.
        let copy = folder.join("copy");
        fs::write(&copy, "plan").unwrap();
        fs::rename(&copy, &file).unwrap();
        assert!(!again.is_unchanged(&file, plan), "another inode");
        assert!(!Record::open(&data, root.path()).is_unchanged(&file, plan), "another folder's document");
    }

    #[test]
    fn a_document_that_does_not_read_back_is_as_good_as_absent() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a.plan");
        fs::write(&file, "plan").unwrap();
        let plan = Digest::of(b"plan");
        let mut record = Record::open(root.path(), root.path());
        assert!(record.verify(&file, plan, 0));
        record.save();
        let written = fs::read(&record.path).unwrap();
        for cut in [0, written.len() / 2, written.len() - 1] {
            fs::write(&record.path, &written[..cut]).unwrap();
            assert!(!Record::open(root.path(), root.path()).is_unchanged(&file, plan), "cut at {cut}");
        }
        fs::write(&record.path, String::from_utf8(written).unwrap().replace("\"version\":1", "\"version\":9")).unwrap();
        assert!(!Record::open(root.path(), root.path()).is_unchanged(&file, plan), "a newer program's");
    }
}
