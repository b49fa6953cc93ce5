//! What a blob store in a cloud remembers, kept with everything else.

use super::Store;
use crate::core::Change;
use futures::{FutureExt as _, future::BoxFuture};
use planforge_blobs::{Note, NoteChange, Notes};
use planforge_proto::ApiError;
use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{path::Path, sync::Arc};

/// Notes of a store. Those of a coordinator that does not lead are refused, as all that it would write.
pub struct StoreNotes(pub Arc<dyn Store>);

impl Notes for StoreNotes {
    fn of_kind(&self, kind: &'static str) -> BoxFuture<'_, Result<Vec<Note>, ApiError>> {
        async move { Ok(self.0.blob_notes(kind).await?) }.boxed()
    }

    fn change(&self, changes: Vec<NoteChange>) -> BoxFuture<'_, Result<(), ApiError>> {
        let change = |change| match change {
            NoteChange::Write(Note { kind, name, text, at_ms }) => {
                Change::BlobNote { kind: kind.into(), name, text: Some(text), at_ms }
            }
            NoteChange::Remove { kind, name } => Change::BlobNote { kind: kind.into(), name, text: None, at_ms: 0 },
        };
        let changes = changes.into_iter().map(change).collect();
        async move { Ok(self.0.commit_notes(changes).await?) }.boxed()
    }
}

impl std::fmt::Debug for StoreNotes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreNotes").finish_non_exhaustive()
    }
}

/// A note in the file of a database that is not opened as a store: nothing is changed, and a file that cannot be read says
/// nothing.
pub async fn noted_in_file(file: &Path, kind: &str, name: &str) -> Option<String> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = SqliteConnection::connect_with(&options).await.ok()?;
    let text = sqlx::query_scalar("SELECT text FROM blob_notes WHERE kind = $1 AND name = $2")
        .bind(kind)
        .bind(name)
        .fetch_optional(&mut connection)
        .await;
    text.ok().flatten()
}
