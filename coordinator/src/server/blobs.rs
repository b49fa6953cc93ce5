//! Where a farm's blobs lie: found, looked at, and opened for the farm that its database is.

use super::start::{BLOBS, CoordinatorConfig, StartError};
use crate::{
    blobs::{
        BlobError, Blobs, CloudBlobs, CloudBlobsOptions, CloudPlace, LocalBlobs, LocalBlobsOptions, Note, NoteChange,
        Notes,
    },
    store::{PostgresStore, Store, StoreError, StoreNotes},
};
use planforge_proto::ApiError;
use std::{path::PathBuf, sync::Arc};

/// Notes of this kind say of the farm what others of its places have to agree with.
pub(super) const FARM: &str = "farm";
/// Which farm this is, where its database does not say so otherwise.
const ID: &str = "id";
/// Where its blobs lie, once they were in a cloud; a folder's path after they came from there.
pub(super) const PLACE: &str = "blobs";

/// What the command line names.
pub(super) enum Place {
    Folder {
        folder: PathBuf,
        options: LocalBlobsOptions,
    },
    /// And the folder where blobs would lie without it.
    Cloud {
        options: Box<CloudBlobsOptions>,
        folder: PathBuf,
    },
}

/// What is there before anything is opened.
pub(super) struct Found {
    pub has_blobs: bool,
    /// The farm that a place in a cloud is of.
    pub farm: Option<String>,
}

impl Place {
    pub fn of(config: &CoordinatorConfig) -> Self {
        let folder = config.blobs_dir.clone().unwrap_or_else(|| config.data_dir.join(BLOBS));
        match &config.cloud {
            Some(options) => Self::Cloud { options: Box::new(options.clone()), folder },
            None => Self::Folder { folder, options: config.blobs.clone() },
        }
    }

    /// The folder of the blobs, where they lie in one.
    pub fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::Folder { folder, .. } => Some(folder.clone()),
            Self::Cloud { .. } => None,
        }
    }

    /// Looks what is there; changes nothing.
    pub async fn look(&self) -> Result<Found, StartError> {
        Ok(match self {
            Self::Folder { folder, .. } => Found { has_blobs: LocalBlobs::has_some_in(folder)?, farm: None },
            Self::Cloud { options, .. } => {
                let farm = options.owner().await?;
                Found { has_blobs: farm.is_some(), farm }
            }
        })
    }

    /// Opens it for the farm of a store: of `farm`, or of the one that the store's notes name.
    pub async fn open(&self, store: Arc<dyn Store>, farm: Option<&str>) -> Result<Blobs, StartError> {
        let notes = Arc::new(StoreNotes(store));
        let known = noted(&*notes, PLACE).await?;
        match self {
            Self::Folder { folder, options } => match known {
                Some(known) if CloudPlace::is_one(&known) => {
                    Err(StartError::BlobsElsewhere { known, asked: folder.display().to_string() })
                }
                _ => Ok(LocalBlobs::open(folder, options.clone())?.into()),
            },
            Self::Cloud { options, folder } => {
                let asked = options.place.to_string();
                match known {
                    Some(known) if known != asked => return Err(StartError::BlobsElsewhere { known, asked }),
                    None if LocalBlobs::has_some_in(folder)? => {
                        return Err(StartError::BlobsElsewhere { known: folder.display().to_string(), asked });
                    }
                    _ => {}
                }
                let farm = match farm {
                    Some(farm) => farm.to_owned(),
                    None => farm_id(&*notes).await?,
                };
                let blobs = CloudBlobs::open(options.as_ref().clone(), &farm, notes.clone()).await?;
                note(&*notes, PLACE, asked).await?;
                Ok(blobs.into())
            }
        }
    }

    /// Opens it for a coordinator that is about to lead; `None`: another one was faster.
    pub async fn take_over(&self, store: &Arc<PostgresStore>, owner: &str) -> Result<Option<Blobs>, StartError> {
        if matches!(self, Self::Cloud { .. }) {
            // What a store in a cloud remembers is written by who leads.
            match store.acquire(owner, 0).await {
                Ok(_) => {}
                Err(StoreError::Led { .. }) => return Ok(None),
                Err(error) => return Err(StartError::Farm(error.into())),
            }
        }
        self.open(store.clone(), Some(store.farm())).await.map(Some)
    }
}

fn of_notes(error: ApiError) -> StartError {
    StartError::Blobs(BlobError::Notes(error))
}

/// What is noted of the farm under a name.
pub(super) async fn noted(notes: &dyn Notes, name: &str) -> Result<Option<String>, StartError> {
    let notes = notes.of_kind(FARM).await.map_err(of_notes)?;
    Ok(notes.into_iter().find(|note| note.name == name).map(|note| note.text))
}

pub(super) async fn note(notes: &dyn Notes, name: &str, text: String) -> Result<(), StartError> {
    let change = NoteChange::Write(Note { kind: FARM, name: name.into(), text, at_ms: 0 });
    notes.change(vec![change]).await.map_err(of_notes)
}

/// The farm's own name, made once.
pub(super) async fn farm_id(notes: &dyn Notes) -> Result<String, StartError> {
    if let Some(id) = noted(notes, ID).await? {
        return Ok(id);
    }
    let id = format!("{:032x}", rand::random::<u128>());
    note(notes, ID, id.clone()).await?;
    Ok(id)
}
