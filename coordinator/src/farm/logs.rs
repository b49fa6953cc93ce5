//! Logs of attempts that run: bounded, followed while they grow, and sealed into a blob when they end.
//!
//! Crash safety: a live log is a convenience. An agent keeps its own copy and stores the whole log when the attempt
//! ends; what is kept here serves those who follow, and is all there is when the agent is lost.
//!
//! Invariant: lines are taken only from the session that holds the attempt, which must be the job's newest. The leader
//! says which session that is, as it sends the lease to it.
//!
//! A disk that takes no lines costs those lines and nothing else: a line says how many are missing, once there is room.

use crate::core::{JobId, SessionId};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::watch;

/// Longest live log; agents bound theirs to the same order.
pub(super) const LOG_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Longest live log without a folder to keep it in.
const MEMORY_LOG_MAX_BYTES: u64 = 1024 * 1024;

#[derive(Debug)]
enum Bytes {
    Memory(Vec<u8>),
    File(File, PathBuf),
}

#[derive(Debug)]
struct Live {
    bytes: Bytes,
    length: watch::Sender<u64>,
    /// Whose lines are taken; `None`: the attempt has ended.
    holder: Option<SessionId>,
    /// Where the holder's next line begins, by the holder's own count. Beside `length` when lines were lost.
    next: u64,
    /// The holder's bytes that the disk did not take since it last took some, and why.
    lost: Option<(u64, io::Error)>,
}

impl Live {
    fn length(&self) -> u64 {
        *self.length.borrow()
    }

    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let length = self.length();
        match &mut self.bytes {
            Bytes::Memory(bytes) => bytes.extend_from_slice(data),
            Bytes::File(file, _) => file.write_all_at(data, length)?,
        }
        self.length.send_replace(length + data.len() as u64);
        Ok(())
    }

    /// Writes a line in the place of those that were lost.
    fn write_loss(&mut self) -> io::Result<()> {
        let Some((lost_bytes, why)) = &self.lost else { return Ok(()) };
        let line = format!("\ncoordinator: {lost_bytes} bytes of log could not be kept here: {why}\n");
        self.write(line.as_bytes())?;
        self.lost = None;
        Ok(())
    }
}

/// Live logs by job and attempt.
#[derive(Clone, Debug)]
pub(super) struct Logs {
    folder: Option<PathBuf>,
    live: Arc<Mutex<BTreeMap<(JobId, u32), Live>>>,
}

impl Logs {
    /// Keeps logs in `folder`, in memory without one. Leftovers of an earlier process stay until their attempts end.
    pub fn new(folder: Option<PathBuf>) -> io::Result<Self> {
        if let Some(folder) = &folder {
            std::fs::create_dir_all(folder)?;
        }
        Ok(Self { folder, live: Arc::default() })
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<(JobId, u32), Live>) -> T) -> T {
        work(&mut self.live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes lines of an attempt from the session it was granted to. Begins its log, or goes on with what an earlier
    /// session or process left of it.
    pub fn open(&self, job: &JobId, attempt: u32, holder: SessionId) {
        let key = (job.clone(), attempt);
        let known = self.with(|live| live.get_mut(&key).map(|log| log.holder = Some(holder)).is_some());
        if known {
            return;
        }
        let in_memory = || (Bytes::Memory(Vec::new()), 0);
        let (bytes, length) = match &self.folder {
            None => in_memory(),
            Some(folder) => {
                let path = folder.join(format!("{job}-{attempt}.log"));
                let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
                let opened = file.and_then(|file| file.metadata().map(|meta| (Bytes::File(file, path), meta.len())));
                opened.unwrap_or_else(|error| {
                    tracing::warn!(%job, attempt, %error, "the live log has no file; its beginning is kept in memory");
                    in_memory()
                })
            }
        };
        let log = Live { bytes, length: watch::Sender::new(length), holder: Some(holder), next: length, lost: None };
        self.with(|live| live.insert(key, log));
    }

    /// Takes what `session` says that an attempt wrote at `offset`; repeated bytes change nothing, a gap is refused, what
    /// exceeds the bound is dropped. Lines of attempts that the session does not hold are ignored.
    pub fn append(&self, session: SessionId, job: &JobId, attempt: u32, offset: u64, data: &[u8]) {
        self.with(|live| {
            let Some(log) = live.get_mut(&(job.clone(), attempt)) else { return };
            if log.holder != Some(session) {
                tracing::debug!(%job, attempt, session, "log lines of a session that does not hold the attempt");
                return;
            }
            if offset > log.next {
                tracing::debug!(%job, attempt, offset, next = log.next, "log lines beyond the end were dropped");
                return;
            }
            let max = if matches!(log.bytes, Bytes::Memory(_)) { MEMORY_LOG_MAX_BYTES } else { LOG_MAX_BYTES };
            let fresh = data.get((log.next - offset) as usize..).unwrap_or_default();
            let fresh = &fresh[..fresh.len().min(max.saturating_sub(log.length()) as usize)];
            if fresh.is_empty() {
                return;
            }
            log.next += fresh.len() as u64;
            let written = log.write_loss().and_then(|()| log.write(fresh));
            if let Err(error) = written {
                if log.lost.is_none() {
                    tracing::warn!(%job, attempt, %error, "log lines are lost");
                }
                let before = log.lost.take().map_or(0, |(bytes, _)| bytes);
                log.lost = Some((before + fresh.len() as u64, error));
            }
        });
    }

    /// The attempt has ended: takes no more lines.
    pub fn end(&self, job: &JobId, attempt: u32) {
        self.with(|live| {
            let Some(log) = live.get_mut(&(job.clone(), attempt)) else { return };
            log.holder = None;
            if let Err(error) = log.write_loss() {
                tracing::debug!(%job, attempt, %error, "the end of a log does not say what is missing");
            }
        });
    }

    /// At most `most` bytes from `offset`; `None` when the attempt's log is not live.
    pub fn read(&self, job: &JobId, attempt: u32, offset: u64, most: usize) -> Option<io::Result<Vec<u8>>> {
        self.with(|live| {
            let log = live.get(&(job.clone(), attempt))?;
            let count = log.length.borrow().saturating_sub(offset).min(most as u64) as usize;
            Some(match &log.bytes {
                Bytes::Memory(bytes) => {
                    let from = (offset as usize).min(bytes.len());
                    Ok(bytes[from..from + count].to_vec())
                }
                Bytes::File(file, _) => {
                    let mut bytes = vec![0; count];
                    file.read_exact_at(&mut bytes, offset).map(|()| bytes)
                }
            })
        })
    }

    /// Tells when the log grows; ends when it is closed.
    pub fn follow(&self, job: &JobId, attempt: u32) -> Option<watch::Receiver<u64>> {
        self.with(|live| live.get(&(job.clone(), attempt)).map(|log| log.length.subscribe()))
    }

    /// The log is kept elsewhere, or nowhere: forgets it.
    pub fn close(&self, job: &JobId, attempt: u32) {
        let closed = self.with(|live| live.remove(&(job.clone(), attempt)));
        if let Some(Live { bytes: Bytes::File(_, path), .. }) = closed
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::debug!(path = %path.display(), %error, "a live log could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(logs: &Logs, job: &JobId) -> String {
        String::from_utf8(logs.read(job, 1, 0, 1 << 20).unwrap().unwrap()).unwrap()
    }

    #[test]
    fn lines_are_taken_from_the_newest_holder_alone() {
        let (logs, job) = (Logs::new(None).unwrap(), JobId::from("job"));
        logs.append(7, &job, 1, 0, b"nobody holds it\n");
        logs.open(&job, 1, 7);
        logs.append(7, &job, 1, 0, b"one\n");
        logs.append(8, &job, 1, 4, b"a stranger\n");
        // Its agent came back: the stream before is not believed any more, even if it is still there.
        logs.open(&job, 1, 8);
        logs.append(7, &job, 1, 4, b"late\n");
        logs.append(8, &job, 1, 0, b"one\ntwo\n");
        logs.end(&job, 1);
        logs.append(8, &job, 1, 8, b"after the end\n");
        assert_eq!(text(&logs, &job), "one\ntwo\n");
    }

    #[test]
    fn lines_that_the_disk_did_not_take_are_counted_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let (logs, job) = (Logs::new(Some(folder.path().to_owned())).unwrap(), JobId::from("job"));
        logs.open(&job, 1, 7);
        logs.append(7, &job, 1, 0, b"one\n");
        // A handle that takes no writes, as a full disk takes none.
        let path = folder.path().join("job-1.log");
        let swap = |file: File| {
            logs.with(|live| live.get_mut(&(job.clone(), 1)).unwrap().bytes = Bytes::File(file, path.clone()));
        };
        swap(File::open(&path).unwrap());
        logs.append(7, &job, 1, 4, b"two\n");
        logs.append(7, &job, 1, 8, b"three\n");
        swap(File::options().read(true).write(true).open(&path).unwrap());
        logs.append(7, &job, 1, 14, b"four\n");
        logs.append(7, &job, 1, 0, b"one\ntwo\nthree\nfour\nfive\n");
        let text = text(&logs, &job);
        let (before, after) = text.split_once("\ncoordinator: 10 bytes of log could not be kept here: ").unwrap();
        assert_eq!(before, "one\n");
        assert!(after.ends_with("\nfour\nfive\n"), "{after}");
    }
}
