//! Room for blobs in a cloud: the farm's quota alone. A store in a cloud has no disk to look at, so there is no reserve of
//! its own either; of a quota a twentieth is kept for the ends of jobs that run, as of a folder's.

use super::Inner;
use crate::{
    error::{BlobError, Room},
    local::{RESERVE_BYTES, RESERVE_PART},
};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

/// What blobs and open uploads take.
#[derive(Debug)]
pub(super) struct Taken {
    max_bytes: Option<u64>,
    /// Bytes of visible blobs; counted only when there is a quota.
    used_bytes: AtomicU64,
    /// Bytes of open uploads that arrived.
    arrived_bytes: AtomicU64,
}

impl Taken {
    pub fn new(max_bytes: Option<u64>, used_bytes: u64, arrived_bytes: u64) -> Self {
        Self { max_bytes, used_bytes: used_bytes.into(), arrived_bytes: arrived_bytes.into() }
    }

    pub fn stored(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn gone(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        // The closure always returns a value, so this cannot fail.
        let _ = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub fn arrived(&self, bytes: u64) {
        self.arrived_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn left(&self, bytes: u64) {
        let less = |arrived: u64| Some(arrived.saturating_sub(bytes));
        // The closure always returns a value, so this cannot fail.
        let _ = self.arrived_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Bytes that may still come; `None`: there is no quota.
    pub fn within_quota(&self) -> Option<u64> {
        let taken = self.used_bytes.load(Ordering::Relaxed).saturating_add(self.arrived_bytes.load(Ordering::Relaxed));
        self.max_bytes.map(|max| max.saturating_sub(taken))
    }

    /// Whether what arrived, and counts already, is more than may come.
    fn is_over(&self) -> bool {
        let taken = self.used_bytes.load(Ordering::Relaxed).saturating_add(self.arrived_bytes.load(Ordering::Relaxed));
        self.max_bytes.is_some_and(|max| taken > max)
    }

    /// What new work leaves alone.
    fn reserve(&self) -> u64 {
        self.max_bytes.map_or(0, |max| RESERVE_BYTES.min(max / RESERVE_PART))
    }
}

impl Inner {
    fn path(&self) -> PathBuf {
        self.options.place.to_string().into()
    }

    pub(super) fn room_for_work(&self) -> Result<(), BlobError> {
        match (self.taken.within_quota(), self.taken.reserve()) {
            (Some(available_bytes), reserve_bytes) if available_bytes < reserve_bytes => {
                Err(BlobError::Reserved { room: Room::FarmQuota, path: self.path(), available_bytes, reserve_bytes })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn has_room(&self, needed_bytes: u64, leaves_reserve: bool) -> Result<(), BlobError> {
        let kept = if leaves_reserve { self.taken.reserve() } else { 0 };
        match self.taken.within_quota().map(|left| left.saturating_sub(kept)) {
            Some(available_bytes) if available_bytes < needed_bytes => {
                Err(BlobError::Full { room: Room::FarmQuota, path: self.path(), needed_bytes, available_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Whether what arrived still fits.
    pub(super) fn still_fits(&self, needed_bytes: u64) -> Result<(), BlobError> {
        match self.taken.is_over() {
            true => Err(BlobError::Full { room: Room::FarmQuota, path: self.path(), needed_bytes, available_bytes: 0 }),
            false => Ok(()),
        }
    }
}
