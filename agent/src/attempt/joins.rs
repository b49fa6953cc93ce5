//! What builds side by side on this host learn, made one cache.
//!
//! The coordinator publishes a build's cache only when it grew from the newest, and knows nothing of what is inside. Of
//! builds that ran at once on several devices of one host, each but the first therefore adds what the others published
//! since it began, before it is published itself. What it says itself stays: the cache of a build still makes the same
//! plan. What another host published meanwhile is joined by the scope's next build, which is given both (`caches`).

use crate::DeviceSource;
use planforge_types::{Digest, Sku};
use std::{
    collections::BTreeMap,
    fmt, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Newest caches that this agent gave to its coordinator, by scope; clones share them.
#[derive(Clone)]
pub struct Joins {
    source: Arc<dyn DeviceSource>,
    published: Arc<Mutex<BTreeMap<Digest, Digest>>>,
}

impl fmt::Debug for Joins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joins").field("published", &self.published).finish_non_exhaustive()
    }
}

impl Joins {
    pub fn new(source: Arc<dyn DeviceSource>) -> Self {
        Self { source, published: Arc::default() }
    }

    pub fn published(&self, scope: Digest) -> Option<Digest> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).get(&scope).copied()
    }

    pub fn publish(&self, scope: Digest, digest: Digest) {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).insert(scope, digest);
    }

    /// Adds to the cache file `into` what `from` knows beyond it; `false` where the backend's caches cannot be joined.
    pub fn join(&self, backend: &str, sku: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        self.source.join_caches(backend, sku, into, from)
    }
}
