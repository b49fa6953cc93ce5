//! How far an upload is: parts that the store has, bytes that wait to fill the next one, and the hash of both; and how that
//! is remembered across restarts.

use super::bucket::Part;
use crate::{
    notes::{Note, NoteChange},
    scrub::now_ms,
    uploader::Announced,
};
use bytes::BytesMut;
use planforge_types::Digest;
use serde::{Deserialize, Serialize};
use sha2::{
    Digest as _, Sha256,
    digest::common::hazmat::{SerializableState as _, SerializedState},
};
use std::mem;

pub(super) const UPLOAD: &str = "upload";
/// Of one whose parts its client writes to the store itself.
pub(super) const DIRECT: &str = "direct-upload";
pub(super) const PART: &str = "part";

/// Least bytes of a part but the last: S3 takes 5 MiB and more.
const PART_BYTES_MIN: u64 = 8 << 20;
/// Most parts of an upload; S3 takes 10,000.
const PARTS_MAX: u64 = 9_000;

/// Bytes of every part but the last, of a blob of that size: whole MiB, so that hashes stop between blocks.
pub(super) fn part_bytes(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(PARTS_MAX).next_multiple_of(1 << 20).max(PART_BYTES_MIN)
}

/// As noted, beside its parts.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    announced: Announced,
    /// The store's name of it.
    upload: String,
    /// SHA-256 of its parts so far, as it goes on; hex.
    hash: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptPart {
    id: String,
    is_confirmed: bool,
}

/// How far an upload is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The store's name of it; `None`: no part was sent yet.
    pub upload: Option<String>,
    pub parts: Vec<Part>,
    /// Hash of the parts.
    sent: Sha256,
    /// Hash of the parts and of what waits.
    pub hasher: Sha256,
    /// What waits to fill a part.
    pub tail: BytesMut,
    /// Its client writes parts to the store itself: nobody here has hashed all of it.
    pub direct: bool,
}

impl Progress {
    /// The digest of all bytes so far.
    pub fn digest(&self) -> Digest {
        Digest::from_raw(self.hasher.clone().finalize().into())
    }

    /// Takes the bytes that wait, and the hash of everything up to their end.
    pub fn take_tail(&mut self) -> (bytes::Bytes, Sha256) {
        (mem::take(&mut self.tail).freeze(), self.hasher.clone())
    }

    /// The store has the next part, up to which bytes hash to `sent`.
    pub fn sent(&mut self, part: Part, sent: Sha256) {
        self.parts.push(part);
        self.sent = sent;
    }

    /// Forgets what the store has not.
    pub fn rewind(&mut self) {
        self.tail = BytesMut::new();
        self.hasher = self.sent.clone();
    }

    /// Notes of the upload as it stands, of its newest part among them.
    pub fn kept(&self, id: &str, announced: &Announced) -> Vec<NoteChange> {
        let Some(upload) = self.upload.clone() else { return Vec::new() };
        let hash = hex::encode(self.sent.serialize());
        let kept = Kept { announced: announced.clone(), upload, hash };
        let note = |kind, name, text| NoteChange::Write(Note { kind, name, text, at_ms: now_ms() });
        let mut changes = vec![note(self.kind(), id.to_owned(), serde_json::to_string(&kept).unwrap_or_default())];
        if let Some(part) = self.parts.last() {
            let kept = KeptPart { id: part.id.clone(), is_confirmed: part.is_confirmed };
            let text = serde_json::to_string(&kept).unwrap_or_default();
            changes.push(note(PART, part_name(id, self.parts.len() - 1), text));
        }
        changes
    }

    fn kind(&self) -> &'static str {
        if self.direct { DIRECT } else { UPLOAD }
    }

    /// What removes those notes.
    pub fn forgotten(&self, id: &str) -> Vec<NoteChange> {
        let Some(_) = &self.upload else { return Vec::new() };
        let parts = (0..self.parts.len()).map(|index| NoteChange::Remove { kind: PART, name: part_name(id, index) });
        parts.chain([NoteChange::Remove { kind: self.kind(), name: id.to_owned() }]).collect()
    }
}

fn part_name(id: &str, index: usize) -> String {
    format!("{id}/{index:05}")
}

/// An upload as notes tell of it; `None`: they make no sense together.
pub(super) fn restored(note: &Note, parts: &[Note]) -> Option<(Announced, Progress)> {
    let kept: Kept = serde_json::from_str(&note.text).ok()?;
    let state = hex::decode(&kept.hash).ok()?;
    let state = SerializedState::<Sha256>::try_from(state.as_slice()).ok()?;
    let sent = Sha256::deserialize(&state).ok()?;
    let of_this = parts.iter().filter(|part| part.name.split('/').next() == Some(note.name.as_str()));
    let mut found = Vec::new();
    for part in of_this {
        if part.name != part_name(&note.name, found.len()) {
            return None;
        }
        let part: KeptPart = serde_json::from_str(&part.text).ok()?;
        found.push(Part { id: part.id, is_confirmed: part.is_confirmed });
    }
    let (hasher, direct) = (sent.clone(), note.kind == DIRECT);
    let upload = Some(kept.upload);
    Some((kept.announced, Progress { upload, parts: found, sent, hasher, tail: BytesMut::new(), direct }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uploader::Uploader;

    #[test]
    fn parts_are_large_enough_and_not_too_many() {
        for size in [0, 1, 8 << 20, (8 << 20) + 1, 100 << 30, 5 << 40] {
            let bytes = part_bytes(size);
            assert!(bytes >= PART_BYTES_MIN && bytes.is_multiple_of(1 << 20), "{size}: {bytes}");
            assert!(size.div_ceil(bytes) <= PARTS_MAX, "{size}: {bytes}");
        }
    }

    #[test]
    fn an_upload_goes_on_from_its_notes_and_not_from_half_of_them() {
        let announced = Announced { digest: Digest::of(b"x"), size_bytes: 3, uploader: Uploader::default() };
        let mut progress = Progress { upload: Some("there".into()), ..Progress::default() };
        let mut notes: Vec<Note> = Vec::new();
        for bytes in [vec![1; 64], vec![2; 640]] {
            progress.hasher.update(&bytes);
            progress.tail.extend_from_slice(&bytes);
            let (_, hash) = progress.take_tail();
            progress.sent(Part { id: format!("{}", bytes.len()), is_confirmed: true }, hash);
            for change in progress.kept("id", &announced) {
                let NoteChange::Write(note) = change else { panic!("{change:?}") };
                notes.retain(|old| old.name != note.name);
                notes.push(note);
            }
        }
        let (uploads, mut parts): (Vec<_>, Vec<_>) = notes.into_iter().partition(|note| note.kind == UPLOAD);
        let (_, again) = restored(&uploads[0], &parts).unwrap();
        assert_eq!((again.digest(), again.parts), (progress.digest(), progress.parts));
        parts.remove(0);
        assert!(restored(&uploads[0], &parts).is_none());
    }
}
