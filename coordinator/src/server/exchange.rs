//! Taking a farm out of wherever it lies into a data folder of its own, and putting such a folder's farm anywhere, while no
//! coordinator runs there: SQLite or PostgreSQL, blobs in a folder or a cloud.
//!
//! An exported folder is a data folder: a coordinator serves it as it is, `planforge admin check` looks it through. Its
//! database takes its name last, so that what was broken off is no farm yet; tried again, it goes on where it was.

use super::{
    alone::alone,
    moving::move_file,
    moving_blobs::{BlobsMove, BlobsPlace, MovedBlobs, move_blobs},
    start::{BLOBS, DATABASE, FARM_NAME, StartError, is_gone, lock_data_dir},
};
use crate::{
    blobs::CloudAccess,
    store::{
        MovedTable, PostgresConfig, PostgresStore, SqliteStore, Store as _, StoreError, copy_tables, fetch_tables,
    },
};
use planforge_types::durable;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// In the folder of an export that has not come to its end: its database.
const PART: &str = "farm.db.part";
/// In a data folder: an import into it has begun and not come to its end.
const IMPORTING: &str = "farm.importing";
/// In every data folder that was looked at.
const LOCK: &str = "coordinator.lock";

/// What is taken where.
#[derive(Clone, Debug)]
pub struct Export {
    /// The farm's data folder.
    pub data_dir: PathBuf,
    /// URL of its store, where that is PostgreSQL.
    pub postgres: Option<String>,
    /// Folder of the blobs, if they lie in one and not in the data folder.
    pub from_folder: Option<PathBuf>,
    /// How the cloud is reached in which they lie.
    pub access: CloudAccess,
    /// A folder that does not exist yet, or of an export that was broken off.
    pub to: PathBuf,
}

/// What is put where.
#[derive(Clone, Debug)]
pub struct Import {
    /// A data folder with its database and blobs: an export, or a backup.
    pub from: PathBuf,
    /// The data folder of the coordinator that will serve it.
    pub data_dir: PathBuf,
    /// URL of its store, where that will be PostgreSQL.
    pub postgres: Option<String>,
    /// Where its blobs will lie, if not in the data folder.
    pub to: Option<BlobsPlace>,
    /// How the cloud is reached that is one.
    pub access: CloudAccess,
    /// Read every blob back that is written to a cloud.
    pub read_back: bool,
}

/// What was taken or put.
#[derive(Clone, Debug)]
pub struct Exchanged {
    pub tables: Vec<MovedTable>,
    pub blobs: MovedBlobs,
}

/// How far it is.
#[derive(Debug)]
pub enum Step<'a> {
    Table(&'a MovedTable),
    Blobs(&'a MovedBlobs),
}

fn of_store(error: StoreError) -> StartError {
    StartError::Farm(error.into())
}

/// Copies a farm into a data folder. The farm stays as it is.
///
/// # Errors
/// A coordinator runs on one of the folders or leads the farm, there is no farm, the folder is not empty, or something
/// cannot be read, written or is not what was copied.
pub async fn export(what: &Export, tell: &mut (dyn FnMut(Step<'_>) + Send)) -> Result<Exchanged, StartError> {
    let to = &what.to;
    durable::create_private_dir(to).map_err(StartError::io("create the folder", to))?;
    let (part, whole) = (to.join(PART), to.join(DATABASE));
    must_be_empty(to, part.exists())?;
    let _lock = lock_data_dir(to)?;
    let mut tables = Vec::new();
    let mut told = |table: &MovedTable| {
        tell(Step::Table(table));
        tables.push(*table);
    };
    match &what.postgres {
        Some(url) => {
            let config = PostgresConfig { url: url.clone(), ..PostgresConfig::default() };
            let store = PostgresStore::open(&config).await.map_err(of_store)?;
            let fetched = alone(&store, "planforge admin export", async |epoch| {
                // Of this program's version, as the other one is.
                SqliteStore::open(&part).await.map_err(StartError::Farm)?.close().await.map_err(of_store)?;
                fetch_tables(url, &part, &mut told).await.map_err(of_store)?;
                store.check(epoch).await.map_err(of_store)
            });
            fetched.await?;
        }
        None => {
            let _lock = lock_data_dir(&what.data_dir)?;
            let file = what.data_dir.join(DATABASE);
            if what.data_dir.join(FARM_NAME).exists() {
                return Err(StartError::StoreElsewhere { folder: what.data_dir.clone() });
            }
            if is_gone(&file) {
                return Err(StartError::NoFarm { folder: what.data_dir.clone() });
            }
            copy_file(&file, &part, &mut told).await?;
        }
    }
    let blobs = BlobsMove {
        data_dir: what.data_dir.clone(),
        postgres: what.postgres.clone(),
        from_folder: what.from_folder.clone(),
        to: BlobsPlace::Folder(to.join(BLOBS)),
        access: what.access.clone(),
        read_back: false,
        stay: false,
    };
    let blobs = move_blobs(&blobs, &mut |moved| tell(Step::Blobs(moved))).await?;
    durable::rename(&part, &whole).map_err(StartError::io("name", &whole))?;
    Ok(Exchanged { tables, blobs })
}

/// Puts the farm of a data folder into another one, into PostgreSQL, its blobs into a cloud: as it is asked. The folder
/// stays as it is, and no coordinator may serve both.
///
/// # Errors
/// As [`export`]; a database or place that another farm uses is refused before anything is written.
pub async fn import(what: &Import, tell: &mut (dyn FnMut(Step<'_>) + Send)) -> Result<Exchanged, StartError> {
    let Import { from, data_dir, .. } = what;
    let file = from.join(DATABASE);
    if is_gone(&file) {
        return Err(StartError::NoFarm { folder: from.clone() });
    }
    durable::create_private_dir(data_dir).map_err(StartError::io("create the folder", data_dir))?;
    let mark = data_dir.join(IMPORTING);
    let mut tables = Vec::new();
    let mut told = |table: &MovedTable| {
        tell(Step::Table(table));
        tables.push(*table);
    };
    {
        let _locks = (lock_data_dir(from)?, lock_data_dir(data_dir)?);
        must_be_empty(data_dir, mark.exists())?;
        durable::write_private(&mark, b"").map_err(StartError::io("write", &mark))?;
        let whole = data_dir.join(DATABASE);
        match &what.postgres {
            // Of an import that was broken off.
            Some(_) if data_dir.join(FARM_NAME).exists() => {}
            None if !is_gone(&whole) => {}
            Some(url) => drop(move_file(&file, data_dir, url, &mut told).await?),
            None => {
                let part = data_dir.join(PART);
                copy_file(&file, &part, &mut told).await?;
                durable::rename(&part, &whole).map_err(StartError::io("name", &whole))?;
            }
        }
    }
    let blobs = BlobsMove {
        data_dir: data_dir.clone(),
        postgres: what.postgres.clone(),
        from_folder: Some(from.join(BLOBS)),
        to: what.to.clone().unwrap_or_else(|| BlobsPlace::Folder(data_dir.join(BLOBS))),
        access: what.access.clone(),
        read_back: what.read_back,
        stay: what.to.is_some(),
    };
    let blobs = move_blobs(&blobs, &mut |moved| tell(Step::Blobs(moved))).await?;
    fs::remove_file(&mark).map_err(StartError::io("remove", &mark))?;
    Ok(Exchanged { tables, blobs })
}

async fn copy_file(from: &Path, to: &Path, tell: &mut (dyn FnMut(&MovedTable) + Send)) -> Result<(), StartError> {
    // Of this program's version, as what is copied is read.
    SqliteStore::open(from).await.map_err(StartError::Farm)?.close().await.map_err(of_store)?;
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StartError::io("remove", to)(error)),
        _ => copy_tables(from, to, tell).await.map_err(of_store),
    }
}

/// Refuses a folder with something in it, but where what is there was begun here.
fn must_be_empty(folder: &Path, begun: bool) -> Result<(), StartError> {
    let mut entries = fs::read_dir(folder).map_err(StartError::io("list", folder))?;
    match !begun && entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != LOCK)) {
        true => Err(StartError::NotEmpty { folder: folder.to_owned() }),
        false => Ok(()),
    }
}
