//! Moving a farm from its data folder's database to PostgreSQL, while no coordinator runs there. Blobs stay where they are.

use super::{
    alone::alone,
    start::{DATABASE, FARM_NAME, StartError, is_gone, lock_data_dir, write_farm_name},
};
use crate::store::{MovedTable, PostgresConfig, PostgresStore, SqliteStore, Store as _, StoreError, move_tables};
use planforge_types::durable;
use std::{fs, io, path::Path};

/// In a data folder: the farm of the database to which a move has begun that has not come to its end.
const MOVING: &str = "farm.moving";

/// What came of a move.
#[derive(Debug)]
pub struct Moved {
    pub tables: Vec<MovedTable>,
    /// The database in words.
    pub database: String,
}

/// Copies what the database of a data folder remembers to a PostgreSQL database that no farm uses, and notes that this is
/// where the farm is from now on. The former database stays as it is. Broken off, it goes on where it was.
///
/// # Errors
/// When the folder is in use or has no farm, the database is used by another one, or a copy is not what was copied.
pub async fn move_to_postgres(
    data_dir: &Path,
    url: &str,
    tell: &mut (dyn FnMut(&MovedTable) + Send),
) -> Result<Moved, StartError> {
    let _lock = lock_data_dir(data_dir)?;
    move_file(&data_dir.join(DATABASE), data_dir, url, tell).await
}

/// The same with the database of another folder, which stays what it is.
pub(super) async fn move_file(
    file: &Path,
    data_dir: &Path,
    url: &str,
    tell: &mut (dyn FnMut(&MovedTable) + Send),
) -> Result<Moved, StartError> {
    let of_store = |error: StoreError| StartError::Farm(error.into());
    if data_dir.join(FARM_NAME).exists() {
        return Err(StartError::StoreElsewhere { folder: data_dir.to_owned() });
    }
    if is_gone(file) {
        return Err(StartError::NoFarm { folder: data_dir.to_owned() });
    }
    // Of this program's version, as the other one is.
    SqliteStore::open(file).await.map_err(StartError::Farm)?.close().await.map_err(of_store)?;
    let config = PostgresConfig { url: url.to_owned(), may_begin: true, ..PostgresConfig::default() };
    let store = PostgresStore::open(&config).await.map_err(of_store)?;
    let mark = data_dir.join(MOVING);
    let begun = match fs::read_to_string(&mark) {
        Ok(farm) => farm.trim() == store.farm(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(StartError::io("read", &mark)(error)),
    };
    if !begun && store.is_used().await.map_err(of_store)? {
        return Err(StartError::DatabaseInUse { database: store.name().to_owned() });
    }
    let name = format!("{}\n", store.farm());
    let moved = alone(&store, "planforge admin migrate", async |epoch| {
        durable::write_private(&mark, name.as_bytes()).map_err(StartError::io("write", &mark))?;
        let mut tables = Vec::new();
        let mut told = |table: &MovedTable| {
            tell(table);
            tables.push(*table);
        };
        move_tables(file, url, &mut told).await.map_err(of_store)?;
        // Nobody else led meanwhile.
        store.check(epoch).await.map_err(of_store)?;
        write_farm_name(data_dir, store.farm())?;
        Ok(Moved { tables, database: store.name().to_owned() })
    });
    let moved = moved.await?;
    fs::remove_file(&mark).map_err(StartError::io("remove", &mark))?;
    Ok(moved)
}
