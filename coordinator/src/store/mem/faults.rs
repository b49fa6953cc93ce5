//! What goes wrong with a store, for tests of what happens then.

use super::{MemStore, Tables};
use crate::{
    core::{Change, Snapshot},
    store::StoreError,
};
use std::time::Duration;

/// How a store fails, until it is told otherwise. The default is a sound one.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Commits and checks are refused with this and change nothing.
    pub refused: Option<StoreError>,
    /// Commits are done all the same, and this is heard of them: the acknowledgement was lost.
    pub unheard: Option<StoreError>,
    /// Nothing can be loaded.
    pub unreadable: Option<StoreError>,
    /// How long a commit takes until it is done, and as long again until that is heard.
    pub slow: Duration,
}

impl MemStore {
    /// Lets it fail as told, until it is told otherwise.
    pub fn set_faults(&self, faults: Faults) {
        self.with(|tables| tables.faults = faults);
    }

    /// Lets every commit fail with `fault` until it is taken back.
    pub fn set_fault(&self, fault: Option<StoreError>) {
        self.with(|tables| tables.faults.refused = fault);
    }

    /// Lets loading fail with `fault` until it is taken back.
    pub fn set_load_fault(&self, fault: Option<StoreError>) {
        self.with(|tables| tables.faults.unreadable = fault);
    }

    pub(super) async fn commit_faultily(&self, epoch: u64, mut changes: Vec<Change>) -> Result<(), StoreError> {
        self.wait_if_slow().await;
        let done = self.with(|tables| {
            tables.may_write(epoch)?;
            // Within one commit a token is there before anything happens to it.
            changes.sort_by_key(|change| !matches!(change, Change::TokenMade(_)));
            changes.into_iter().for_each(|change| tables.apply(change));
            tables.faults.unheard.clone().map_or(Ok(()), Err)
        });
        self.wait_if_slow().await;
        done
    }

    async fn wait_if_slow(&self) {
        let slow = self.with(|tables| tables.faults.slow);
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
    }
}

impl Tables {
    pub(super) fn may_write(&self, epoch: u64) -> Result<(), StoreError> {
        if self.epoch != epoch {
            return Err(StoreError::Fenced { mine: epoch, current: self.epoch });
        }
        self.faults.refused.clone().map_or(Ok(()), Err)
    }

    pub(super) fn loaded(&self) -> Result<Snapshot, StoreError> {
        self.faults.unreadable.clone().map_or_else(|| Ok(self.snapshot()), Err)
    }
}
