//! Who uploads, and how much one of them may have open at once.
//!
//! Announcing costs nothing, so it takes nothing from others: space of the disk and of the farm's quota is counted as it
//! arrives. What a project announced counts against its own quota alone.

use super::error::{BlobError, Whose};
use planforge_types::Digest;
use serde::{Deserialize, Serialize};

/// Open uploads of one token; a model of many files goes up a few at a time.
const OPEN_OF_TOKEN_MAX: usize = 128;
/// Open uploads of one project's tokens together.
const OPEN_OF_PROJECT_MAX: usize = 512;
/// Open uploads of everybody together but the owner. Each costs two small files.
const OPEN_MAX: usize = 4_096;

/// Who announces an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploader {
    /// Id of the token; empty: the owner of the data folder, or nobody in particular.
    pub token: String,
    /// For people.
    pub name: String,
    /// That the token belongs to; `None`: none.
    pub project: Option<String>,
    /// What it sends is for new work, and leaves alone what is kept for the ends of jobs that run.
    #[serde(default)]
    pub leaves_reserve: bool,
}

/// What a client announced, as kept beside what arrived of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Announced {
    pub digest: Digest,
    pub size_bytes: u64,
    /// Nobody in particular, in what older versions left.
    #[serde(default)]
    pub uploader: Uploader,
}

/// What a project may store, and does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectRoom {
    pub quota_bytes: u64,
    pub stored_bytes: u64,
}

/// Answer to an announced upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The blob is here already: nothing to send.
    Exists,
    /// Continue this upload at its offset, which is 0 for a new one.
    Upload(UploadStatus),
}

/// Where an upload stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadStatus {
    pub id: String,
    pub offset: u64,
    pub size_bytes: u64,
}

impl Begun {
    /// The answer where `stored_bytes` lie under the digest already.
    pub(crate) fn of_stored(digest: Digest, announced_bytes: u64, stored_bytes: u64) -> Result<Self, BlobError> {
        if stored_bytes == announced_bytes {
            return Ok(Self::Exists);
        }
        Err(BlobError::SizeMismatch { digest, announced_bytes, received: format!("{stored_bytes} as stored") })
    }
}

impl Uploader {
    /// Whether an upload of this one exists for `asker`. What an older version left names nobody; who knows the id has it
    /// from there.
    pub(crate) fn is_seen_by(&self, asker: &Self) -> bool {
        self.is(asker) || *self == Self::default()
    }

    /// Whether both are one, whatever they are called.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.token == other.token
    }

    /// Whether it may open another upload of `size_bytes` beside those that are open.
    pub(crate) fn admit<'a>(
        &self,
        open: impl Iterator<Item = (&'a Self, u64)>,
        size_bytes: u64,
        room: Option<&ProjectRoom>,
    ) -> Result<(), BlobError> {
        if self.token.is_empty() {
            return Ok(());
        }
        let (mut all, mut own, mut of_project, mut announced_bytes) = (0, 0, 0, 0_u64);
        for (other, size_bytes) in open {
            all += 1;
            own += usize::from(self.is(other));
            if self.project.is_some() && self.project == other.project {
                of_project += 1;
                announced_bytes = announced_bytes.saturating_add(size_bytes);
            }
        }
        if own >= OPEN_OF_TOKEN_MAX {
            return Err(BlobError::TooManyUploads { open: own, whose: Whose::Token(self.name.clone()) });
        }
        if let Some(project) = &self.project {
            if of_project >= OPEN_OF_PROJECT_MAX {
                return Err(BlobError::TooManyUploads { open: of_project, whose: Whose::Project(project.clone()) });
            }
            if let Some(ProjectRoom { quota_bytes, stored_bytes }) = room.cloned() {
                let after = stored_bytes.saturating_add(announced_bytes).saturating_add(size_bytes);
                if after > quota_bytes {
                    return Err(BlobError::ProjectFull {
                        project: project.clone(),
                        needed_bytes: size_bytes,
                        stored_bytes,
                        announced_bytes,
                        quota_bytes,
                    });
                }
            }
        }
        if all >= OPEN_MAX {
            return Err(BlobError::TooManyUploads { open: all, whose: Whose::Farm });
        }
        Ok(())
    }
}
