//! A file as the body of a request: read ahead by a thread of its own.

use super::{PIECE_BYTES, PIECES_IN_FLIGHT};
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};
use tokio::sync::mpsc;

/// Pieces that are kept to be filled again: those on their way, the one that is written, the one that is read, and some
/// that the connection still holds.
const PIECES_KEPT: usize = PIECES_IN_FLIGHT + 4;

/// Part of a file; its length is known.
pub struct FileBody {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
    sent: Arc<AtomicU64>,
}

impl FileBody {
    /// Begins to read `range` of the file; `sent` counts what left. Called on a runtime.
    pub fn new(file: Arc<File>, path: PathBuf, range: Range<u64>, sent: Arc<AtomicU64>) -> Self {
        let (sender, pieces) = mpsc::channel(PIECES_IN_FLIGHT);
        let left = range.end - range.start;
        tokio::task::spawn_blocking(move || read_ahead(&file, &path, range, &sender));
        Self { pieces, left, sent }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.pieces.poll_recv(cx).map(|piece| {
            piece.map(|piece| {
                piece.map(|bytes| {
                    self.left = self.left.saturating_sub(bytes.len() as u64);
                    self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    Frame::data(bytes)
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Reads `range` in pieces until the receiver is gone.
fn read_ahead(file: &File, path: &Path, range: Range<u64>, sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut memory = Memory::default();
    let mut offset = range.start;
    while offset < range.end {
        let want = usize::try_from(range.end - offset).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let mut piece = memory.take(want);
        let result = file.read_exact_at(&mut piece, offset).map(|()| memory.lend(piece)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot read {} at byte {offset}: {error}", path.display()))
        });
        let failed = result.is_err();
        if sender.blocking_send(result).is_err() || failed {
            return;
        }
        offset += want as u64;
    }
}

/// Pieces of memory that are filled again once the connection has let go of them: to get, clear and give back fresh
/// memory for each would cost as much as sending it.
#[derive(Default)]
struct Memory {
    /// Oldest first: they are let go of in the order in which they were lent.
    lent: VecDeque<Bytes>,
}

impl Memory {
    /// A piece of so many bytes, with anything in it.
    fn take(&mut self, bytes: usize) -> BytesMut {
        let oldest = self.lent.pop_front().map(Bytes::try_into_mut);
        match oldest {
            Some(Ok(mut piece)) if piece.len() >= bytes => {
                piece.truncate(bytes);
                piece
            }
            Some(Err(held)) => {
                self.lent.push_front(held);
                BytesMut::zeroed(bytes)
            }
            _ => BytesMut::zeroed(bytes),
        }
    }

    /// The piece to be sent.
    fn lend(&mut self, piece: BytesMut) -> Bytes {
        let piece = piece.freeze();
        if self.lent.len() < PIECES_KEPT {
            self.lent.push_back(piece.clone());
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a body, each piece let go of before the next is asked for, and how many places in memory they were
    /// in.
    async fn collected(mut body: FileBody) -> io::Result<(Vec<u8>, usize)> {
        let (mut bytes, mut places) = (Vec::new(), std::collections::BTreeSet::new());
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let piece = frame?.into_data().expect("a file has no trailers");
            places.insert(piece.as_ptr() as usize);
            bytes.extend_from_slice(&piece);
        }
        Ok((bytes, places.len()))
    }

    /// A file of so many pieces and a bit, its path, and what is in it.
    fn file(pieces: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..pieces * PIECE_BYTES + 12345).map(|at| (at / 7 + at / PIECE_BYTES) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        (file, bytes)
    }

    #[tokio::test]
    async fn a_file_is_sent_as_it_is_from_memory_that_is_used_again() {
        let (file, bytes) = file(64);
        let open = || Arc::new(File::open(file.path()).unwrap());
        let sent = Arc::new(AtomicU64::new(0));
        let body = FileBody::new(open(), file.path().to_owned(), 0..bytes.len() as u64, sent.clone());
        assert_eq!((body.left, body.is_end_stream()), (bytes.len() as u64, false));
        let (found, places) = collected(body).await.unwrap();
        assert!(found == bytes, "other bytes than the file's");
        assert_eq!(sent.load(Ordering::Relaxed), bytes.len() as u64);
        assert!(places <= PIECES_KEPT, "{places} pieces of memory for 65 pieces");
        let rest = FileBody::new(open(), file.path().to_owned(), 700_001..bytes.len() as u64, sent);
        assert!(collected(rest).await.unwrap().0 == bytes[700_001..], "other bytes than the file's end");
    }

    #[tokio::test]
    async fn memory_that_is_still_held_is_left_alone() {
        let (file, bytes) = file(40);
        let open = Arc::new(File::open(file.path()).unwrap());
        let mut body = FileBody::new(open, file.path().to_owned(), 0..bytes.len() as u64, Arc::default());
        let mut held = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            held.push(frame.unwrap().into_data().unwrap());
        }
        assert!(held.concat() == bytes, "a piece was written to while it was held");
    }

    #[tokio::test]
    async fn a_file_that_became_shorter_is_told() {
        let (file, bytes) = file(1);
        let open = Arc::new(File::open(file.path()).unwrap());
        let body = FileBody::new(open, file.path().to_owned(), 0..bytes.len() as u64 + 1, Arc::default());
        let error = collected(body).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot read {} at byte {PIECE_BYTES}: ", file.path().display())),
            "{error}"
        );
    }
}
