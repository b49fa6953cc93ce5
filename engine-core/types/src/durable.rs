//! Files that are whole or not there: write beside, fsync, rename, fsync the folder, in one place, so that no step can be
//! forgotten at a call site.
//!
//! | function | a reader sees old or new, never a part | survives a power cut once it returned |
//! |---|---|---|
//! | [`write()`], [`write_private`], [`publish`], [`rename`] | yes | yes |
//! | [`write_cache`] | yes | maybe not, and then the file may be empty or old: for what is checked and can be made again |
//!
//! Crash safety: a process that dies in between leaves `.NAME.PID-NUMBER.new` beside the file, which nobody reads.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Mode of a new file before the umask takes its part.
const MODE: u32 = 0o666;
/// Mode of what only its owner may read.
const PRIVATE_MODE: u32 = 0o600;
/// Mode of a folder that only its owner may enter.
const PRIVATE_FOLDER_MODE: u32 = 0o700;

/// Puts a file with these bytes at `path`, in the place of what is there.
///
/// # Errors
/// What the disk says; the old file stays then, and nothing of the new one.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    staged(path, MODE, bytes, File::sync_all)?;
    sync_folder_of(path)
}

/// The same for a file that only its owner may read.
///
/// # Errors
/// As [`write()`].
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    staged(path, PRIVATE_MODE, bytes, File::sync_all)?;
    sync_folder_of(path)
}

/// The same without waiting for the disk: for caches, whose readers check what they read.
///
/// # Errors
/// As [`write()`].
pub fn write_cache(path: &Path, bytes: &[u8]) -> io::Result<()> {
    staged(path, MODE, bytes, |_| Ok(()))
}

/// Gives a written file its final name, its bytes durable first. `file` is the open handle of `from`; both paths lie on
/// one file system.
///
/// # Errors
/// What the disk says; `from` may have its final name then, without that being durable.
pub fn publish(file: &File, from: &Path, to: &Path) -> io::Result<()> {
    file.sync_all()?;
    rename(from, to)
}

/// Gives a file whose bytes are durable another name, durably.
///
/// # Errors
/// As [`publish`].
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder_of(to)
}

/// Makes the entries of a folder durable.
///
/// # Errors
/// What the disk says.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Creates a folder and its missing parents; only the owner may enter those that it creates.
///
/// # Errors
/// What the disk says.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER_MODE).create(path)
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    sync_folder(folder_of(path))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name beside `path` that no other thread or process uses.
fn name_beside(path: &Path) -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut staged = std::ffi::OsString::from(".");
    staged.push(name);
    staged.push(format!(".{}-{}.new", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(staged))
}

fn staged(path: &Path, mode: u32, bytes: &[u8], settle: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let staged = name_beside(path)?;
    let written = (|| {
        // A process that had this number before may have left one.
        match fs::remove_file(&staged) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&staged)?;
        if mode == PRIVATE_MODE {
            // An odd umask takes nothing from its owner.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.write_all(bytes)?;
        settle(&file)?;
        fs::rename(&staged, path)
    })();
    if written.is_err() {
        // The error is what counts; a full disk gets the part that was written back.
        let _ = fs::remove_file(&staged);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        for writes in [write, write_private, write_cache] {
            fs::write(&path, "a longer text that was there before").unwrap();
            writes(&path, b"new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(names(folder.path()), ["state.json"]);
        }
    }

    /// Who has the old file open goes on reading it: the new one is another file.
    #[test]
    fn a_reader_of_the_old_file_sees_nothing_of_the_new_one() {
        use std::io::Read as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write(&path, b"old").unwrap();
        let mut reader = File::open(&path).unwrap();
        write_cache(&path, b"new").unwrap();
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "old");
    }

    #[test]
    fn a_private_file_stays_private_whatever_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write_private(&path, b"secret").unwrap();
        assert_eq!(mode(&path), 0o600);
        create_private_dir(&folder.path().join("a/b")).unwrap();
        assert_eq!((mode(&folder.path().join("a")), mode(&folder.path().join("a/b"))), (0o700, 0o700));
    }

    #[test]
    fn a_write_that_fails_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        // A folder that is not empty takes no rename over it.
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "x").unwrap();
        write(&path, b"new").unwrap_err();
        assert_eq!(names(folder.path()), ["taken"]);
        write(&folder.path().join("missing/file"), b"new").unwrap_err();
        write(Path::new("/"), b"new").unwrap_err();
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[test]
    fn what_another_process_of_the_same_number_left_is_no_hindrance() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let next = name_beside(&path).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let (head, number) = next.strip_suffix(".new").unwrap().rsplit_once('-').unwrap();
        // Other tests of this process draw numbers meanwhile: leave something under the next many.
        for ahead in 1..32 {
            let left = format!("{head}-{}.new", number.parse::<u64>().unwrap() + ahead);
            fs::write(folder.path().join(left), "left").unwrap();
        }
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn published_and_renamed_files_have_their_name_and_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to, on) = (folder.path().join("part"), folder.path().join("whole"), folder.path().join("moved"));
        let mut file = File::create(&from).unwrap();
        file.write_all(b"bytes").unwrap();
        publish(&file, &from, &to).unwrap();
        rename(&to, &on).unwrap();
        assert_eq!((names(folder.path()), fs::read(&on).unwrap()), (vec!["moved".to_owned()], b"bytes".to_vec()));
        rename(&to, &on).unwrap_err();
    }
}
