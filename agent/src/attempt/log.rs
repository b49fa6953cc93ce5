//! The log of one attempt: a bounded file that is streamed while it grows and stored whole at the end.
//!
//! Most of the bound goes to the beginning; the last part is kept in memory and appended when the log is sealed, with
//! a line between that says how much is missing. Offsets are those of the file, so streaming the same piece twice is
//! harmless.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// End of an overlong log that is kept.
const TAIL_BYTES: usize = 64 << 10;
/// Last part of a log that an error message quotes.
const QUOTE_BYTES: u64 = 2 << 10;

/// The log of one attempt.
#[derive(Debug)]
pub struct AttemptLog {
    path: PathBuf,
    reader: File,
    /// Bytes in the file, readable by offset.
    len: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    writer: File,
    /// Bytes the beginning may still take.
    room: u64,
    tail: VecDeque<u8>,
    /// Bytes that are in neither the file nor the tail.
    dropped: u64,
}

impl AttemptLog {
    /// A new log at `path` of at most about `limit_bytes`.
    pub fn create(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        let writer = File::create(path)?;
        let room = limit_bytes.saturating_sub(TAIL_BYTES as u64);
        let inner = Inner { writer, room, tail: VecDeque::new(), dropped: 0 };
        Ok(Self { path: path.to_owned(), reader: File::open(path)?, len: AtomicU64::new(0), inner: Mutex::new(inner) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that can be read now.
    pub fn len_bytes(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Appends what the worker wrote.
    pub fn append(&self, bytes: &[u8]) {
        let mut inner = self.lock();
        let fits = usize::try_from(inner.room).unwrap_or(usize::MAX).min(bytes.len());
        let (head, rest) = bytes.split_at(fits);
        // A disk that takes no more ends the beginning; the attempt goes on, and the end of its log is still kept.
        match self.write(&inner.writer, head) {
            Ok(()) => inner.room -= head.len() as u64,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot write an attempt's log");
                inner.room = 0;
                inner.dropped += head.len() as u64;
            }
        }
        inner.tail.extend(rest);
        let over = inner.tail.len().saturating_sub(TAIL_BYTES);
        inner.tail.drain(..over);
        inner.dropped += over as u64;
    }

    /// A line of the agent's own.
    pub fn note(&self, text: &str) {
        self.append(format!("agent: {text}\n").as_bytes());
    }

    /// Ends the log: appends the tail. What is appended later is lost.
    pub fn seal(&self) -> io::Result<()> {
        let mut inner = self.lock();
        inner.room = 0;
        let tail: Vec<u8> = std::mem::take(&mut inner.tail).into();
        let gap = match inner.dropped {
            0 => String::new(),
            dropped => format!("\nagent: {dropped} bytes of log left out here\n"),
        };
        for part in [gap.as_bytes(), &tail] {
            self.write(&inner.writer, part)?;
        }
        Ok(())
    }

    /// Writes at the end of what can be read; of a write that fails nothing stays.
    fn write(&self, writer: &File, bytes: &[u8]) -> io::Result<()> {
        let len = self.len_bytes();
        let written = writer.write_all_at(bytes, len);
        match &written {
            Ok(()) => drop(self.len.fetch_add(bytes.len() as u64, Ordering::Release)),
            // A file that cannot be cut is read up to its known length; only its last line may be half.
            Err(_) => drop(writer.set_len(len)),
        }
        written
    }

    /// Up to `limit` bytes from `offset` on.
    pub fn read(&self, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.len_bytes().saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(limit)];
        self.reader.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// The last lines, for an error message.
    pub fn last_lines(&self) -> String {
        let from = self.len_bytes().saturating_sub(QUOTE_BYTES);
        let mut bytes = self.read(from, QUOTE_BYTES as usize).unwrap_or_default();
        bytes.extend(self.lock().tail.iter());
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_logs_are_kept_whole() {
        let folder = tempfile::tempdir().unwrap();
        let log = AttemptLog::create(&folder.path().join("log"), 1 << 20).unwrap();
        log.append(b"one\ntwo\n");
        log.note("three");
        assert_eq!(log.read(4, 3).unwrap(), b"two");
        log.seal().unwrap();
        assert_eq!(std::fs::read_to_string(log.path()).unwrap(), "one\ntwo\nagent: three\n");
        assert_eq!(log.last_lines(), "one\ntwo\nagent: three");
    }

    #[test]
    fn a_disk_that_takes_no_more_costs_lines_and_says_how_many() {
        let folder = tempfile::tempdir().unwrap();
        let log = AttemptLog::create(&folder.path().join("log"), 1 << 20).unwrap();
        log.append(b"one\n");
        // A handle that takes no writes, as a full disk takes none.
        let good = std::mem::replace(&mut log.lock().writer, File::open(log.path()).unwrap());
        log.append(b"two\n");
        log.append(b"three\n");
        // As after a write of which the disk took a part.
        good.write_all_at(b"tw", 4).unwrap();
        log.lock().writer = good;
        log.append(b"four\n");
        log.seal().unwrap();
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(text, "one\n\nagent: 4 bytes of log left out here\nthree\nfour\n");
        assert_eq!(log.len_bytes(), text.len() as u64);
    }

    #[test]
    fn long_logs_keep_both_ends_within_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let limit = 200 << 10;
        let log = AttemptLog::create(&folder.path().join("log"), limit).unwrap();
        for line in 0..100_000 {
            log.append(format!("line {line}\n").as_bytes());
        }
        assert!(log.last_lines().ends_with("line 99999"));
        log.seal().unwrap();
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(text.len() as u64 <= limit + 100, "{}", text.len());
        assert!(text.starts_with("line 0\n") && text.ends_with("line 99999\n"));
        assert!(text.contains(" bytes of log left out here\n"));
        assert_eq!(log.len_bytes(), text.len() as u64);
    }
}
