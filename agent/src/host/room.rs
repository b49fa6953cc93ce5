//! Room for what an agent could get again: models, timing caches, rates of devices, words of other runtimes.
//!
//! All of it together is bounded by bytes, and each file by how long nobody used it; the longest unused go first. What a
//! running attempt uses stays: its folder has links to the models, and of timing caches it has a copy.
//!
//! Crash safety: nothing is only here, and whatever is used is first checked against its digest or read as a whole. So a
//! removal that breaks off leaves a smaller cache, and the next one goes on.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// How long a file is kept that nobody used.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The folders and their bound.
#[derive(Clone, Debug)]
pub struct Room {
    folders: Vec<PathBuf>,
    limit_bytes: u64,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    pub files: u64,
    pub bytes: u64,
}

/// A file that may go.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Unused {
    used: SystemTime,
    path: PathBuf,
    bytes: u64,
}

impl Room {
    pub fn new(folders: Vec<PathBuf>, limit_bytes: u64) -> Self {
        Self { folders, limit_bytes }
    }

    /// Removes what nobody used for long, and then the longest unused until the bound holds. What `is_needed` says stays,
    /// and what has another name elsewhere: a running attempt has it.
    pub fn make(&self, is_needed: &dyn Fn(&Path) -> bool, now: SystemTime) -> Freed {
        let (mut total, mut may_go) = (0, Vec::new());
        for folder in &self.folders {
            if let Err(error) = list(folder, &mut total, &mut may_go) {
                tracing::warn!(folder = %folder.display(), %error, "cannot see what may go of an agent's cache");
            }
        }
        may_go.retain(|file| !is_needed(&file.path));
        may_go.sort();
        let mut freed = Freed::default();
        for file in may_go {
            let is_old = now.duration_since(file.used).is_ok_and(|age| age > UNUSED);
            if !is_old && total <= self.limit_bytes {
                break;
            }
            match fs::remove_file(&file.path) {
                Ok(()) => freed = Freed { files: freed.files + 1, bytes: freed.bytes + file.bytes },
                // Another attempt's end made room, too.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(path = %file.path.display(), %error, "cannot remove a file of an agent's cache");
                    continue;
                }
            }
            total -= file.bytes;
        }
        freed
    }
}

fn list(folder: &Path, total: &mut u64, may_go: &mut Vec<Unused>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Removed meanwhile, otherwise.
        let Ok(facts) = entry.metadata() else { continue };
        if !facts.is_file() {
            continue;
        }
        *total += facts.len();
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // What is still being written has such names.
        let is_part = name.starts_with('.') || name.ends_with(".partial");
        if !is_part && facts.nlink() == 1 {
            // Readers of the small files do not mark them; the disk may.
            let used = facts.modified()?.max(facts.accessed().unwrap_or(SystemTime::UNIX_EPOCH));
            may_go.push(Unused { used, path, bytes: facts.len() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, FileTimes};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    /// Files of 100 bytes in two folders, with the days since each was used.
    fn files(root: &Path, files: &[(&str, u32)]) -> Room {
        for folder in ["models", "caches"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for (name, days) in files {
            let path = root.join(name);
            fs::write(&path, [0; 100]).unwrap();
            let at = SystemTime::now() - *days * DAY;
            let times = FileTimes::new().set_modified(at).set_accessed(at);
            File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        }
        Room::new(vec![root.join("models"), root.join("caches")], 250)
    }

    fn left(root: &Path, files: &[(&str, u32)]) -> Vec<String> {
        files.iter().map(|(name, _)| (*name).to_owned()).filter(|name| root.join(name).exists()).collect()
    }

    #[test]
    fn the_longest_unused_go_first_whatever_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let all = [("models/a", 3), ("caches/b.cache", 2), ("models/c", 1), ("models/.part", 9)];
        let room = files(folder.path(), &all);
        assert_eq!(room.make(&|_| false, SystemTime::now()), Freed { files: 2, bytes: 200 });
        assert_eq!(left(folder.path(), &all), ["models/c", "models/.part"]);
        assert_eq!(room.make(&|_| false, SystemTime::now()), Freed::default(), "it holds");
    }

    #[test]
    fn what_is_in_use_stays() {
        let folder = tempfile::tempdir().unwrap();
        let all = [("models/linked", 40), ("models/needed", 40), ("caches/old.json", 31), ("models/new", 29)];
        let room = Room { limit_bytes: 0, ..files(folder.path(), &all) };
        fs::hard_link(folder.path().join("models/linked"), folder.path().join("attempt")).unwrap();
        let needed = |path: &Path| path.ends_with("needed");
        room.make(&needed, SystemTime::now());
        assert_eq!(left(folder.path(), &all), ["models/linked", "models/needed"]);
        fs::remove_file(folder.path().join("attempt")).unwrap();
        assert_eq!(room.make(&|_| false, SystemTime::now()).files, 2, "it may go when the attempt has ended");
    }

    #[test]
    fn what_nobody_used_for_long_goes_though_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let all = [("caches/old.json", 31), ("models/young", 29)];
        assert_eq!(files(folder.path(), &all).make(&|_| false, SystemTime::now()), Freed { files: 1, bytes: 100 });
        assert_eq!(left(folder.path(), &all), ["models/young"]);
    }
}
