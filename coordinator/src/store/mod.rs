//! What the coordinator remembers, behind one trait.

/// Everything durable except blobs.
pub trait Store: Send + Sync + 'static {}

/// Keeps everything in memory: tests and simulation.
#[derive(Debug, Default)]
pub struct MemStore {}

impl MemStore {
    pub fn new() -> Self {
        Self::default()
    }
}

impl Store for MemStore {}

/// SQLite in one file, for one coordinator.
#[derive(Debug)]
pub struct SqliteStore {}

impl SqliteStore {
    /// Opens or creates the database file and brings its schema up to date.
    pub async fn open(_file: &std::path::Path) -> Result<Self, planforge_proto::ApiError> {
        Ok(Self {})
    }
}

impl Store for SqliteStore {}
