//! Moving a farm's blobs from a folder to a cloud or back, while no coordinator runs there.
//!
//! A blob counts as moved when the place where it comes to has confirmed its digest. Broken off, a move goes on: what is
//! there is not copied again. Only when everything is there does the farm's database name the new place; the former blobs
//! stay where they were.

use super::{
    alone::alone,
    blobs::{FARM, PLACE, farm_id, note, noted},
    start::{BLOBS, DATABASE, FARM_NAME, StartError, is_gone, lock_data_dir},
};
use crate::{
    blobs::{Begun, BlobError, Blobs, CloudAccess, CloudBlobs, CloudBlobsOptions, CloudPlace, LocalBlobs},
    store::{PostgresConfig, PostgresStore, SqliteStore, Store, StoreError, StoreNotes, noted_in_file},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use planforge_types::Digest;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Blobs that move at once.
const AT_ONCE: usize = 4;

/// A place for blobs.
#[derive(Clone, Debug)]
pub enum BlobsPlace {
    Folder(PathBuf),
    Cloud(CloudPlace),
}

/// What is to be moved where.
#[derive(Clone, Debug)]
pub struct BlobsMove {
    pub data_dir: PathBuf,
    /// URL of the farm's store, where that is PostgreSQL.
    pub postgres: Option<String>,
    /// Folder of the blobs, if they lie in one and not in the data folder.
    pub from_folder: Option<PathBuf>,
    pub to: BlobsPlace,
    /// How the cloud among the two is reached.
    pub access: CloudAccess,
    /// Read every blob back that is written to a cloud.
    pub read_back: bool,
    /// The farm's blobs lie there from then on; else it is a copy, and the farm stays where it is.
    pub stay: bool,
}

/// What came of a move, and how far one is.
#[derive(Clone, Debug, Default)]
pub struct MovedBlobs {
    /// The places in words.
    pub from: String,
    pub to: String,
    pub blobs: u64,
    pub bytes: u64,
    /// Of these, those that were there before.
    pub was_there: u64,
    /// Of how many.
    pub of_blobs: u64,
    /// Left out: they have not the bytes of their digests, and nobody can have them.
    pub damaged: Vec<Digest>,
}

/// The cloud in which the blobs of a data folder's farm lie, as far as its database says so. Changes nothing.
pub async fn blobs_elsewhere(data_dir: &Path) -> Option<String> {
    noted_in_file(&data_dir.join(DATABASE), FARM, PLACE).await.filter(|place| CloudPlace::is_one(place))
}

/// Moves all blobs of a farm. `tell` hears how far it is after each.
///
/// # Errors
/// A coordinator runs on the folder or leads the farm, there is no farm, one of the places cannot be used, or a blob cannot
/// be copied; what was copied before is kept.
pub async fn move_blobs(
    what: &BlobsMove,
    tell: &mut (dyn FnMut(&MovedBlobs) + Send),
) -> Result<MovedBlobs, StartError> {
    let of_store = |error: StoreError| StartError::Farm(error.into());
    let _lock = lock_data_dir(&what.data_dir)?;
    let (store, farm): (Arc<dyn Store>, Option<String>) = match &what.postgres {
        Some(url) => {
            let config = PostgresConfig { url: url.clone(), ..PostgresConfig::default() };
            let store = PostgresStore::open(&config).await.map_err(of_store)?;
            let farm = store.farm().to_owned();
            (Arc::new(store), Some(farm))
        }
        None if what.data_dir.join(FARM_NAME).exists() => {
            return Err(StartError::StoreElsewhere { folder: what.data_dir.clone() });
        }
        None => {
            let file = what.data_dir.join(DATABASE);
            if is_gone(&file) {
                return Err(StartError::NoFarm { folder: what.data_dir.clone() });
            }
            (Arc::new(SqliteStore::open(&file).await.map_err(StartError::Farm)?), None)
        }
    };
    // Nobody else leads meanwhile, where others could.
    alone(&*store, "planforge admin blobs", async |epoch| move_within(what, &store, farm, epoch, tell).await).await
}

/// Moves them in an epoch.
async fn move_within(
    what: &BlobsMove,
    store: &Arc<dyn Store>,
    farm: Option<String>,
    epoch: u64,
    tell: &mut (dyn FnMut(&MovedBlobs) + Send),
) -> Result<MovedBlobs, StartError> {
    let notes = Arc::new(StoreNotes(store.clone()));
    let farm = match farm {
        Some(farm) => farm,
        None => farm_id(&*notes).await?,
    };
    let own_folder = what.from_folder.clone().unwrap_or_else(|| what.data_dir.join(BLOBS));
    let open = |place: BlobsPlace| {
        let (notes, farm, own_folder) = (notes.clone(), farm.clone(), own_folder.clone());
        async move {
            Ok::<Blobs, BlobError>(match place {
                BlobsPlace::Folder(folder) => LocalBlobs::open(folder, Default::default())?.into(),
                BlobsPlace::Cloud(place) => {
                    let mut options = CloudBlobsOptions::new(place, own_folder);
                    options.access = what.access.clone();
                    options.read_back = what.read_back;
                    CloudBlobs::open(options, &farm, notes).await?.into()
                }
            })
        }
    };
    let from = match noted(&*notes, PLACE).await? {
        Some(place) if CloudPlace::is_one(&place) => BlobsPlace::Cloud(place.parse()?),
        Some(folder) if what.from_folder.is_none() => BlobsPlace::Folder(folder.into()),
        _ => BlobsPlace::Folder(own_folder.clone()),
    };
    let words = |place: &BlobsPlace| match place {
        BlobsPlace::Folder(folder) => folder.display().to_string(),
        BlobsPlace::Cloud(place) => place.to_string(),
    };
    let mut moved = MovedBlobs { from: words(&from), to: words(&what.to), ..MovedBlobs::default() };
    if moved.from == moved.to {
        return Err(StartError::SamePlace { place: moved.to });
    }
    if matches!((&from, &what.to), (BlobsPlace::Cloud(_), BlobsPlace::Cloud(_))) {
        return Err(StartError::TwoClouds { from: moved.from, to: moved.to });
    }
    let (source, target) = (open(from).await?, open(what.to.clone()).await?);
    let all = source.list().await?;
    moved.of_blobs = all.len() as u64;
    let there: BTreeMap<Digest, u64> = target.list().await?.into_iter().collect();
    let copies = stream::iter(&all).map(|&(digest, size_bytes)| {
        let (source, target, was_there) = (&source, &target, there.get(&digest) == Some(&size_bytes));
        async move {
            let copied = match was_there {
                true => Ok(()),
                false => copy(source, target, digest, size_bytes).await,
            };
            (digest, size_bytes, was_there, copied)
        }
    });
    let mut copies = copies.buffer_unordered(AT_ONCE);
    while let Some((digest, size_bytes, was_there, copied)) = copies.next().await {
        match copied {
            Ok(()) => {
                moved.blobs += 1;
                moved.bytes += size_bytes;
                moved.was_there += u64::from(was_there);
            }
            Err(BlobError::Damaged { .. } | BlobError::Corrupt { .. } | BlobError::DigestMismatch { .. }) => {
                moved.damaged.push(digest);
            }
            Err(error) => return Err(error.into()),
        }
        tell(&moved);
    }
    drop(copies);
    // Counted again, at the place itself.
    let there: BTreeMap<Digest, u64> = target.list().await?.into_iter().collect();
    let is_lacking =
        |(digest, size): &&(Digest, u64)| there.get(digest) != Some(size) && !moved.damaged.contains(digest);
    if let Some((digest, _)) = all.iter().find(is_lacking) {
        return Err(BlobError::NotKept { digest: *digest, place: moved.to }.into());
    }
    store.check(epoch).await.map_err(|error| StartError::Farm(error.into()))?;
    if what.stay {
        note(&*notes, PLACE, moved.to.clone()).await?;
    }
    Ok(moved)
}

/// Copies one blob, its digest confirmed where it comes to.
async fn copy(source: &Blobs, target: &Blobs, digest: Digest, size_bytes: u64) -> Result<(), BlobError> {
    if let (Blobs::Folder(folder), Blobs::Cloud(cloud)) = (source, target) {
        return cloud.store_file(&folder.path(digest), digest).await.map(drop);
    }
    match target.begin_upload(digest, size_bytes).await? {
        Begun::Exists => Ok(()),
        Begun::Upload(upload) => {
            // A move that was broken off may have left a part.
            let rest = source.open_range(digest, upload.offset..size_bytes).await?;
            target.append(&upload.id, upload.offset, true, rest.map_err(|error| error.to_string())).await.map(drop)
        }
    }
}
