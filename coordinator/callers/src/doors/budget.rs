//! From open files to places: every connection is one, and the store, blobs and logs need theirs.

use super::Places;
use planforge_types::open_files;

/// Connections at once, wherever the system would allow more: a thousand agents and as many people several times over.
pub const CONNECTIONS_MAX: usize = 8192;
/// Open files kept for what is no connection: a quarter, within these.
const FILES_MIN: usize = 64;
const FILES_MAX: usize = 512;

/// What this process can hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Files that this process may have open.
    pub open_files: usize,
    /// Of them for the store, blobs and logs.
    pub files: usize,
    pub places: Places,
}

impl Budget {
    /// Of a process that may have so many files open (`None`: any number), for at most so many connections.
    pub fn of(open_files: Option<u64>, connections_max: usize) -> Self {
        let open_files = open_files.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let files = (open_files / 4).clamp(FILES_MIN, FILES_MAX);
        let connections = open_files.saturating_sub(files).min(connections_max);
        Self { open_files, files, places: Places::of(connections) }
    }

    /// Of this process as it is now.
    pub fn of_this_process(connections_max: usize) -> Self {
        Self::of(open_files::limits().soft, connections_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_limit_holds_more_than_five_hundred_agents() {
        let budget = Budget::of(Some(1024), CONNECTIONS_MAX);
        assert_eq!(budget.files + budget.places.all(), 1024);
        assert!(budget.places.known > 600, "{budget:?}");
    }

    #[test]
    fn no_limit_is_the_largest_number_of_connections() {
        assert_eq!(Budget::of(None, CONNECTIONS_MAX).places.all(), CONNECTIONS_MAX);
        assert_eq!(Budget::of(Some(1 << 20), CONNECTIONS_MAX).places.all(), CONNECTIONS_MAX);
        assert!(Budget::of(Some(1 << 20), 100).places.all() <= 100);
        assert!(Budget::of(Some(10), CONNECTIONS_MAX).places.all() > 0);
    }
}
