//! Logs of attempts that run: bounded, followed while they grow, and sealed into a blob when they end.
//!
//! Crash safety: a live log is a convenience. An agent keeps its own copy and stores the whole log when the attempt
//! ends; what is kept here serves those who follow, and is all there is when the agent is lost.

use crate::core::JobId;
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

    /// Begins the log of a granted attempt, or goes on with what an earlier process left of it.
    pub fn open(&self, job: &JobId, attempt: u32) {
        let key = (job.clone(), attempt);
        if self.with(|live| live.contains_key(&key)) {
            return;
        }
        let opened = match &self.folder {
            None => Ok((Bytes::Memory(Vec::new()), 0)),
            Some(folder) => {
                let path = folder.join(format!("{job}-{attempt}.log"));
                let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
                file.and_then(|file| file.metadata().map(|meta| (Bytes::File(file, path), meta.len())))
            }
        };
        match opened {
            Ok((bytes, length)) => {
                self.with(|live| live.insert(key, Live { bytes, length: watch::Sender::new(length) }));
            }
            Err(error) => tracing::warn!(%job, attempt, %error, "the live log cannot be opened"),
        }
    }

    /// Writes at `offset`; repeated bytes change nothing, a gap is refused, what exceeds the bound is dropped. Lines of
    /// attempts that nobody granted are ignored.
    pub fn append(&self, job: &JobId, attempt: u32, offset: u64, data: &[u8]) {
        self.with(|live| {
            let Some(log) = live.get_mut(&(job.clone(), attempt)) else { return };
            let length = *log.length.borrow();
            if offset > length {
                tracing::debug!(%job, attempt, offset, length, "log lines beyond the end were dropped");
                return;
            }
            let max = if matches!(log.bytes, Bytes::Memory(_)) { MEMORY_LOG_MAX_BYTES } else { LOG_MAX_BYTES };
            let fresh = data.get((length - offset) as usize..).unwrap_or_default();
            let fresh = &fresh[..fresh.len().min(max.saturating_sub(length) as usize)];
            if fresh.is_empty() {
                return;
            }
            let written = match &mut log.bytes {
                Bytes::Memory(bytes) => {
                    bytes.extend_from_slice(fresh);
                    Ok(())
                }
                Bytes::File(file, _) => file.write_all_at(fresh, length),
            };
            match written {
                Ok(()) => drop(log.length.send_replace(length + fresh.len() as u64)),
                Err(error) => tracing::warn!(%job, attempt, %error, "log lines were lost"),
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
