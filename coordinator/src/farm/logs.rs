//! Logs of attempts that run: bounded, followed while they grow, and sealed into a blob when they end.
//!
//! Crash safety: a live log is a convenience. An agent keeps its own copy and stores the whole log when the attempt
//! ends; what is kept here serves those who follow, and is all there is when the agent is lost.
//!
//! Invariant: lines are taken only from the session that holds the attempt, which must be the job's newest. The leader
//! says which session that is, as it sends the lease to it.
//!
//! Invariant: nothing waits for a disk but who writes or reads that very log. The table of logs is locked for look-ups
//! alone, every log has a lock of its own, and file work runs on threads that may block; the leader never does any.
//!
//! A disk that takes no lines costs those lines and nothing else: a line says how many are missing, once there is room.

use crate::core::{JobId, SessionId};
use std::{
    collections::BTreeMap,
    fs::File,
    future, io,
    os::unix::fs::FileExt as _,
    panic,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Longest live log; agents bound theirs to the same order.
pub(super) const LOG_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Longest live log without a folder to keep it in.
const MEMORY_LOG_MAX_BYTES: u64 = 1024 * 1024;
/// Files of logs that stay open; others are opened for each piece of work. Descriptors are needed for connections.
const OPEN_MAX: usize = 64;

#[derive(Debug)]
enum Bytes {
    Memory(Vec<u8>),
    /// Nothing was written yet, and no file is there. The first line makes it: many attempts have none.
    Unbegun(PathBuf),
    /// Opened by whoever writes or reads it first: the leader, who begins logs, opens no files.
    Unopened(PathBuf),
    File(File),
    /// Opened before, and closed again because too many are.
    Closed(PathBuf),
}

/// What an attempt's log holds. Locked while its disk works.
#[derive(Debug)]
struct Body {
    bytes: Bytes,
    /// Where the holder's next line begins, by the holder's own count. Beside the length when lines were lost.
    next: u64,
    /// Lets its file stay open.
    kept: Option<OwnedSemaphorePermit>,
    /// The holder's bytes that the disk did not take since it last took some, and why.
    lost: Option<(u64, io::Error)>,
}

/// One attempt's log.
#[derive(Debug)]
struct Live {
    /// Removed when the log is closed.
    path: Option<PathBuf>,
    /// Bytes that can be read.
    length: watch::Sender<u64>,
    /// Files of logs that may stay open, of all logs together.
    open: Arc<Semaphore>,
    /// Whose lines are taken; `None`: the attempt has ended.
    holder: Mutex<Option<SessionId>>,
    body: Mutex<Body>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// A log in `path`, where something of it may lie already if it is `left`; in memory without one.
    fn new(path: Option<PathBuf>, left: bool, open: Arc<Semaphore>) -> Self {
        let bytes = match path.clone() {
            Some(path) if left => Bytes::Unopened(path),
            Some(path) => Bytes::Unbegun(path),
            None => Bytes::Memory(Vec::new()),
        };
        let body = Body { bytes, next: 0, kept: None, lost: None };
        Self { path, length: watch::Sender::new(0), open, holder: Mutex::new(None), body: Mutex::new(body) }
    }

    fn length(&self) -> u64 {
        *self.length.borrow()
    }

    /// Whether there is nothing of it, on no disk either.
    fn is_unbegun(&self) -> bool {
        // Whoever is at work on it begins it.
        self.body.try_lock().is_ok_and(|body| matches!(body.bytes, Bytes::Unbegun(_)))
    }

    /// Runs `work` on what the log holds, where it may wait for a disk.
    async fn work<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self, &mut Body) -> T + Send + 'static) -> T {
        if self.path.is_none() {
            return work(self, &mut locked(&self.body));
        }
        let log = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut body = locked(&log.body);
            if !matches!(body.bytes, Bytes::Unbegun(_)) {
                log.open(&mut body);
            }
            let done = work(&log, &mut body);
            log.put_away(&mut body);
            done
        });
        match done.await {
            Ok(done) => done,
            Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
            // The process ends, and did not begin it: nothing comes after that.
            Err(_) => future::pending().await,
        }
    }

    /// Makes the file, or goes on with what an earlier session or process left.
    fn open(&self, body: &mut Body) {
        let (path, first) = match &body.bytes {
            Bytes::Unbegun(path) | Bytes::Unopened(path) => (path, true),
            Bytes::Closed(path) => (path, false),
            Bytes::Memory(_) | Bytes::File(_) => return,
        };
        let file = File::options().create(first).truncate(false).read(true).write(true).open(path);
        if !first {
            // Work on it fails as on a disk that takes nothing, and the next may find it again.
            if let Ok(file) = file {
                body.bytes = Bytes::File(file);
            }
            return;
        }
        let opened = file.and_then(|file| file.metadata().map(|facts| (file, facts.len())));
        let (bytes, length) = opened.map(|(file, length)| (Bytes::File(file), length)).unwrap_or_else(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "the live log has no file; its beginning is kept in memory");
            (Bytes::Memory(Vec::new()), 0)
        });
        (body.bytes, body.next) = (bytes, length);
        self.length.send_replace(length);
    }

    /// Closes the file unless it is one of those that may stay open.
    fn put_away(&self, body: &mut Body) {
        let (Bytes::File(_), Some(path)) = (&body.bytes, &self.path) else { return };
        if body.kept.is_none() {
            body.kept = self.open.clone().try_acquire_owned().ok();
        }
        if body.kept.is_none() {
            body.bytes = Bytes::Closed(path.clone());
        }
    }

    fn append(&self, body: &mut Body, session: SessionId, offset: u64, data: &[u8]) {
        if *locked(&self.holder) != Some(session) {
            tracing::debug!(session, "log lines of a session that does not hold the attempt");
            return;
        }
        if offset > body.next {
            tracing::debug!(offset, next = body.next, "log lines beyond the end were dropped");
            return;
        }
        self.open(body);
        let max = if matches!(body.bytes, Bytes::Memory(_)) { MEMORY_LOG_MAX_BYTES } else { LOG_MAX_BYTES };
        let fresh = data.get((body.next - offset) as usize..).unwrap_or_default();
        let fresh = &fresh[..fresh.len().min(max.saturating_sub(self.length()) as usize)];
        if fresh.is_empty() {
            return;
        }
        body.next += fresh.len() as u64;
        let written = self.write_loss(body).and_then(|()| self.write(body, fresh));
        if let Err(error) = written {
            if body.lost.is_none() {
                let path = self.path.as_ref().map(|path| path.display().to_string());
                tracing::warn!(path, %error, "log lines are lost");
            }
            let before = body.lost.take().map_or(0, |(bytes, _)| bytes);
            body.lost = Some((before + fresh.len() as u64, error));
        }
    }

    fn write(&self, body: &mut Body, data: &[u8]) -> io::Result<()> {
        let length = self.length();
        match &mut body.bytes {
            Bytes::Memory(bytes) => bytes.extend_from_slice(data),
            Bytes::File(file) => file.write_all_at(data, length)?,
            Bytes::Unbegun(_) | Bytes::Unopened(_) | Bytes::Closed(_) => {
                return Err(io::Error::other("the log is not open"));
            }
        }
        self.length.send_replace(length + data.len() as u64);
        Ok(())
    }

    /// Writes a line in the place of those that were lost.
    fn write_loss(&self, body: &mut Body) -> io::Result<()> {
        let Some((lost_bytes, why)) = &body.lost else { return Ok(()) };
        let line = format!("\ncoordinator: {lost_bytes} bytes of log could not be kept here: {why}\n");
        self.write(body, line.as_bytes())?;
        body.lost = None;
        Ok(())
    }

    fn read(&self, body: &Body, offset: u64, most: usize) -> io::Result<Vec<u8>> {
        let count = self.length().saturating_sub(offset).min(most as u64) as usize;
        match &body.bytes {
            Bytes::Memory(bytes) => {
                let from = (offset as usize).min(bytes.len());
                Ok(bytes[from..from + count].to_vec())
            }
            Bytes::File(file) => {
                let mut bytes = vec![0; count];
                file.read_exact_at(&mut bytes, offset).map(|()| bytes)
            }
            Bytes::Unbegun(_) | Bytes::Unopened(_) => Ok(Vec::new()),
            Bytes::Closed(_) => Err(io::Error::other("the log cannot be opened")),
        }
    }
}

type Table = BTreeMap<(JobId, u32), Arc<Live>>;

/// Live logs by job and attempt.
#[derive(Clone, Debug)]
pub(super) struct Logs {
    folder: Option<PathBuf>,
    /// Files that may stay open.
    open: Arc<Semaphore>,
    /// Never held while a file is worked on.
    live: Arc<Mutex<Table>>,
}

impl Logs {
    /// Keeps logs in `folder`, in memory without one. Leftovers of an earlier process stay until their attempts end.
    pub fn new(folder: Option<PathBuf>) -> io::Result<Self> {
        if let Some(folder) = &folder {
            std::fs::create_dir_all(folder)?;
        }
        Ok(Self { folder, open: Arc::new(Semaphore::new(OPEN_MAX)), live: Arc::default() })
    }

    /// Jobs and attempts of which there are files: what an earlier process left, before any log is opened.
    pub fn left(&self) -> Vec<(JobId, u32)> {
        let Some(entries) = self.folder.as_ref().and_then(|folder| std::fs::read_dir(folder).ok()) else {
            return Vec::new();
        };
        let name = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let key = |name: String| {
            let (job, attempt) = name.strip_suffix(".log")?.rsplit_once('-')?;
            Some((JobId::from(job), attempt.parse().ok()?))
        };
        entries.filter_map(name).filter_map(key).collect()
    }

    fn find(&self, job: &JobId, attempt: u32) -> Option<Arc<Live>> {
        locked(&self.live).get(&(job.clone(), attempt)).cloned()
    }

    /// Takes lines of an attempt that begins from the session it was granted to. Touches no file.
    pub fn begin(&self, job: &JobId, attempt: u32, holder: SessionId) {
        self.hold(job, attempt, holder, false);
    }

    /// The same of an attempt that goes on, with what an earlier session or process left of its log. Touches no file.
    pub fn open(&self, job: &JobId, attempt: u32, holder: SessionId) {
        self.hold(job, attempt, holder, true);
    }

    fn hold(&self, job: &JobId, attempt: u32, holder: SessionId, left: bool) {
        let path = || self.folder.as_ref().map(|folder| folder.join(format!("{job}-{attempt}.log")));
        let new = || Arc::new(Live::new(path(), left, self.open.clone()));
        let mut live = locked(&self.live);
        let log = live.entry((job.clone(), attempt)).or_insert_with(new);
        *locked(&log.holder) = Some(holder);
    }

    /// Takes what `session` says that an attempt wrote at `offset`; repeated bytes change nothing, a gap is refused, what
    /// exceeds the bound is dropped. Lines of attempts that the session does not hold are ignored.
    pub async fn append(&self, session: SessionId, job: &JobId, attempt: u32, offset: u64, data: Vec<u8>) {
        let Some(log) = self.find(job, attempt) else { return };
        log.work(move |log, body| log.append(body, session, offset, &data)).await;
    }

    /// The attempt has ended: takes no more lines.
    pub fn end(&self, job: &JobId, attempt: u32) {
        if let Some(log) = self.find(job, attempt) {
            *locked(&log.holder) = None;
        }
    }

    /// Has the log of an attempt that has ended say what is missing of it.
    pub async fn tell_loss(&self, job: &JobId, attempt: u32) {
        let Some(log) = self.find(job, attempt).filter(|log| !log.is_unbegun()) else { return };
        if let Err(error) = log.work(|log, body| log.write_loss(body)).await {
            tracing::debug!(%job, attempt, %error, "the end of a log does not say what is missing");
        }
    }

    /// At most `most` bytes from `offset`; `None` when the attempt's log is not live.
    pub async fn read(&self, job: &JobId, attempt: u32, offset: u64, most: usize) -> Option<io::Result<Vec<u8>>> {
        let log = self.find(job, attempt)?;
        if log.is_unbegun() {
            return Some(Ok(Vec::new()));
        }
        Some(log.work(move |log, body| log.read(body, offset, most)).await)
    }

    /// Tells when the log grows; ends when it is closed.
    pub fn follow(&self, job: &JobId, attempt: u32) -> Option<watch::Receiver<u64>> {
        self.find(job, attempt).map(|log| log.length.subscribe())
    }

    /// The log is kept elsewhere, or nowhere: forgets it. Its file goes once nobody works on it any more.
    pub fn close(&self, job: &JobId, attempt: u32) {
        let Some(log) = locked(&self.live).remove(&(job.clone(), attempt)) else { return };
        // Whoever has found it before begins no file any more.
        *locked(&log.holder) = None;
        let Some(path) = log.path.clone().filter(|_| !log.is_unbegun()) else { return };
        tokio::task::spawn_blocking(move || {
            let _body = locked(&log.body);
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::debug!(path = %path.display(), %error, "a live log could not be removed");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(logs: &Logs, job: &JobId) -> String {
        String::from_utf8(logs.read(job, 1, 0, 1 << 20).await.unwrap().unwrap()).unwrap()
    }

    async fn append(logs: &Logs, session: SessionId, job: &JobId, offset: u64, data: &str) {
        logs.append(session, job, 1, offset, data.as_bytes().to_vec()).await;
    }

    #[tokio::test]
    async fn lines_are_taken_from_the_newest_holder_alone() {
        let folder = tempfile::tempdir().unwrap();
        for folder in [None, Some(folder.path().to_owned())] {
            let (logs, job) = (Logs::new(folder).unwrap(), JobId::from("job"));
            append(&logs, 7, &job, 0, "nobody holds it\n").await;
            logs.open(&job, 1, 7);
            append(&logs, 7, &job, 0, "one\n").await;
            append(&logs, 8, &job, 4, "a stranger\n").await;
            // Its agent came back: the stream before is not believed any more, even if it is still there.
            logs.open(&job, 1, 8);
            append(&logs, 7, &job, 4, "late\n").await;
            append(&logs, 8, &job, 0, "one\ntwo\n").await;
            logs.end(&job, 1);
            append(&logs, 8, &job, 8, "after the end\n").await;
            assert_eq!(text(&logs, &job).await, "one\ntwo\n");
        }
    }

    #[tokio::test]
    async fn an_attempt_without_a_line_has_no_file_and_one_that_is_closed_makes_none() {
        let folder = tempfile::tempdir().unwrap();
        let (logs, job) = (Logs::new(Some(folder.path().to_owned())).unwrap(), JobId::from("job"));
        logs.begin(&job, 1, 7);
        assert_eq!(text(&logs, &job).await, "");
        append(&logs, 8, &job, 0, "a stranger\n").await;
        logs.tell_loss(&job, 1).await;
        assert_eq!(logs.left(), []);
        // Found before it is closed, and worked on after.
        let log = logs.find(&job, 1).unwrap();
        logs.close(&job, 1);
        log.work(|log, body| log.append(body, 7, 0, b"late\n")).await;
        assert_eq!(logs.left(), []);
        // With a line it has one, and what is read of it is that line.
        logs.begin(&job, 2, 7);
        logs.append(7, &job, 2, 0, b"one\n".to_vec()).await;
        assert_eq!(logs.left(), [(job.clone(), 2)]);
        assert_eq!(logs.read(&job, 2, 0, 16).await.unwrap().unwrap(), b"one\n");
    }

    #[tokio::test]
    async fn a_log_goes_on_where_an_earlier_process_left_it_and_goes_when_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, job) = (folder.path().join("job-1.log"), JobId::from("job"));
        std::fs::write(&path, "one\n").unwrap();
        let logs = Logs::new(Some(folder.path().to_owned())).unwrap();
        logs.open(&job, 1, 7);
        append(&logs, 7, &job, 0, "one\ntwo\n").await;
        assert_eq!((text(&logs, &job).await, *logs.follow(&job, 1).unwrap().borrow()), ("one\ntwo\n".into(), 8));
        let mut growth = logs.follow(&job, 1).unwrap();
        logs.close(&job, 1);
        assert!(logs.read(&job, 1, 0, 1).await.is_none());
        while path.exists() {
            tokio::task::yield_now().await;
        }
        growth.borrow_and_update();
        assert!(growth.changed().await.is_err(), "who follows hears that it is closed");
    }

    /// On one thread, as the worst runtime has: a disk that hangs under one log leaves every other alone.
    #[tokio::test(flavor = "current_thread")]
    async fn a_disk_that_hangs_holds_up_its_own_log_alone() {
        let folder = tempfile::tempdir().unwrap();
        let logs = Logs::new(Some(folder.path().to_owned())).unwrap();
        let (stuck, other) = (JobId::from("stuck"), JobId::from("other"));
        logs.open(&stuck, 1, 7);
        logs.open(&other, 1, 7);
        let log = logs.find(&stuck, 1).unwrap();
        let (hangs, hanging) = std::sync::mpsc::channel();
        let (goes_on, until) = std::sync::mpsc::channel::<()>();
        let disk = std::thread::spawn(move || {
            let _body = locked(&log.body);
            hangs.send(()).unwrap();
            until.recv().unwrap();
        });
        hanging.recv().unwrap();
        let appending = tokio::spawn({
            let (logs, stuck) = (logs.clone(), stuck.clone());
            async move { append(&logs, 7, &stuck, 0, "late\n").await }
        });
        // What the leader does with any log, and what others do with theirs.
        logs.open(&stuck, 1, 7);
        append(&logs, 7, &other, 0, "in time\n").await;
        assert_eq!(text(&logs, &other).await, "in time\n");
        logs.end(&other, 1);
        logs.close(&other, 1);
        assert!(!appending.is_finished());
        goes_on.send(()).unwrap();
        appending.await.unwrap();
        disk.join().unwrap();
        assert_eq!(text(&logs, &stuck).await, "late\n");
    }

    #[tokio::test]
    async fn lines_that_the_disk_did_not_take_are_counted_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let (logs, job) = (Logs::new(Some(folder.path().to_owned())).unwrap(), JobId::from("job"));
        logs.open(&job, 1, 7);
        append(&logs, 7, &job, 0, "one\n").await;
        // A handle that takes no writes, as a full disk takes none.
        let path = folder.path().join("job-1.log");
        let swap = |file: File| locked(&logs.find(&job, 1).unwrap().body).bytes = Bytes::File(file);
        swap(File::open(&path).unwrap());
        append(&logs, 7, &job, 4, "two\n").await;
        append(&logs, 7, &job, 8, "three\n").await;
        swap(File::options().read(true).write(true).open(&path).unwrap());
        append(&logs, 7, &job, 14, "four\n").await;
        append(&logs, 7, &job, 0, "one\ntwo\nthree\nfour\nfive\n").await;
        let all = text(&logs, &job).await;
        let (before, after) = all.split_once("\ncoordinator: 10 bytes of log could not be kept here: ").unwrap();
        assert_eq!(before, "one\n");
        assert!(after.ends_with("\nfour\nfive\n"), "{after}");
    }

    /// Under the usual limit of 1,024 descriptors, an open file for each attempt that runs would cost half of the agents.
    #[tokio::test]
    async fn only_so_many_files_stay_open_and_every_log_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let logs = Logs { open: Arc::new(Semaphore::new(2)), ..Logs::new(Some(folder.path().to_owned())).unwrap() };
        let jobs: Vec<_> = (0..10).map(|number| JobId::from(format!("job{number}").as_str())).collect();
        for job in &jobs {
            logs.open(job, 1, 7);
        }
        for line in 0..3 {
            for job in &jobs {
                append(&logs, 7, job, line * 4, "one\n").await;
            }
        }
        let opened = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let opened = opened.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        assert_eq!(opened.filter(|path| path.starts_with(folder.path())).count(), 2);
        for job in &jobs {
            assert_eq!(text(&logs, job).await, "one\none\none\n");
            logs.end(job, 1);
            logs.close(job, 1);
        }
        // Closing works where it may wait for the disk.
        while logs.open.available_permits() < 2 {
            tokio::task::yield_now().await;
        }
    }
}
