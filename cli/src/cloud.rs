//! Places for blobs in a cloud, as the command line names them.

use crate::failure::Failure;
use planforge_coordinator::{
    blobs::{CloudAccess, CloudPlace},
    server::BlobsPlace,
};
use std::path::PathBuf;

/// How a cloud is reached.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CloudArgs {
    /// Where the store of s3://… answers, if it is not Amazon's: http(s)://HOST:PORT [env: AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub blobs_endpoint: Option<String>,
    /// Region of the bucket [env: AWS_REGION]
    #[arg(long, value_name = "REGION", hide_short_help = true)]
    pub blobs_region: Option<String>,
    /// File with the store's keys, that this user alone can read, as lines: aws_access_key_id = … and
    /// aws_secret_access_key = … [env: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; else those of the machine]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub blobs_keys: Option<PathBuf>,
    /// PEM file with the authorities that the store's certificate may come from
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub blobs_ca: Option<PathBuf>,
    /// Read every blob back after it was written, also where the store confirms its checksum
    #[arg(long, hide_short_help = true)]
    pub blobs_read_back: bool,
}

impl CloudArgs {
    pub fn access(&self, allow_readable_key: bool) -> CloudAccess {
        CloudAccess {
            endpoint: self.blobs_endpoint.clone(),
            region: self.blobs_region.clone(),
            keys_file: self.blobs_keys.clone(),
            ca_file: self.blobs_ca.clone(),
            allow_readable_key,
            ..CloudAccess::default()
        }
    }

    /// A flag that says nothing where no cloud is named.
    pub fn any(&self) -> Option<&'static str> {
        let given = [
            ("--blobs-endpoint", self.blobs_endpoint.is_some()),
            ("--blobs-region", self.blobs_region.is_some()),
            ("--blobs-keys", self.blobs_keys.is_some()),
            ("--blobs-ca", self.blobs_ca.is_some()),
            ("--blobs-read-back", self.blobs_read_back),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }
}

/// A folder, or a bucket with a prefix: s3://BUCKET/PREFIX.
pub fn place(text: &str) -> Result<BlobsPlace, Failure> {
    if !CloudPlace::is_one(text) {
        return Ok(BlobsPlace::Folder(text.into()));
    }
    let place = text.parse::<CloudPlace>();
    place.map(BlobsPlace::Cloud).map_err(|error| Failure::usage(error.to_string()).hint(error.hint().to_owned()))
}
