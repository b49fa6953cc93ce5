//! Whose a place in a cloud is: an object says so, so that two farms on one bucket, and a bucket of somebody else, are
//! refused before anything is written.

use super::bucket::Bucket;
use crate::{error::BlobError, trouble::Trouble};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Name of that object, below the prefix.
pub(super) const MARKER: &str = "planforge-farm.json";

#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    /// The farm.
    farm: String,
    /// How objects below are laid out.
    layout: u32,
}

const LAYOUT: u32 = 1;

/// The farm that the place is of; `None`: nothing is there.
///
/// # Errors
/// The store fails, or something is there that is no farm's.
pub(super) async fn owner(bucket: &Bucket) -> Result<Option<String>, BlobError> {
    if let Some(bytes) = bucket.get(MARKER).await? {
        return match serde_json::from_slice::<Marker>(&bytes) {
            Ok(marker) if marker.layout <= LAYOUT => Ok(Some(marker.farm)),
            _ => Err(BlobError::Foreign { place: bucket.place.to_string(), key: format!("another {MARKER}") }),
        };
    }
    match bucket.any(None).await? {
        None => Ok(None),
        Some(key) => Err(BlobError::Foreign { place: bucket.place.to_string(), key }),
    }
}

/// Makes the place the farm's, where it is nobody's.
///
/// # Errors
/// As [`owner`], and where it is another farm's.
pub(super) async fn claim(bucket: &Bucket, farm: &str) -> Result<(), BlobError> {
    let mut found = owner(bucket).await?;
    if found.is_none() {
        let text = serde_json::to_vec(&Marker { farm: farm.to_owned(), layout: LAYOUT }).unwrap_or_default();
        bucket.create(MARKER, Bytes::from(text)).await?;
        // Of two that came at once one was first, whatever a store can tell.
        found = owner(bucket).await?;
    }
    match found {
        Some(found) if found == farm => Ok(()),
        Some(found) => Err(BlobError::OtherFarm { place: bucket.place.to_string(), found, own: farm.to_owned() }),
        None => Err(BlobError::Store {
            action: "claim the place",
            place: bucket.place.to_string(),
            trouble: Trouble::Failed { detail: format!("{MARKER} was written and is not there") },
        }),
    }
}
