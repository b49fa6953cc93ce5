//! Which store in a cloud, and how it is reached.

use super::http::Http;
use crate::error::BlobError;
use object_store::{
    ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, Checksum},
    multipart::MultipartStore,
    path::Path as Key,
    signer::Signer,
};
use planforge_types::private_file;
use std::{fmt, fs, path::Path, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

/// Where S3 lies when nobody says.
const DEFAULT_REGION: &str = "us-east-1";
/// First pause before a request is tried again; later ones are longer.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// Tries of one request beside the first.
const RETRIES: usize = 8;

/// What is asked of a client of a store.
pub(super) trait Objects: ObjectStore + MultipartStore + Signer {}

impl<S: ObjectStore + MultipartStore + Signer> Objects for S {}

/// Whose protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    S3,
    /// Google's; compiled with the feature `gcp`, never run.
    Gcs,
    /// Azure's; compiled with the feature `azure`, never run.
    Azure,
}

/// A bucket and what all names in it begin with: `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudPlace {
    service: Service,
    bucket: String,
    /// Without slashes at its ends; may be empty.
    prefix: String,
}

impl CloudPlace {
    /// Whether a text names a place in a cloud rather than a folder.
    pub fn is_one(text: &str) -> bool {
        text.contains("://")
    }

    /// Name of an object of this place.
    pub(super) fn key(&self, name: &str) -> Key {
        match self.prefix.as_str() {
            "" => Key::from(name),
            prefix => Key::from(format!("{prefix}/{name}")),
        }
    }

    /// What every name begins with, without one: the whole bucket.
    pub(super) fn prefix(&self) -> Option<Key> {
        (!self.prefix.is_empty()).then(|| Key::from(self.prefix.as_str()))
    }
}

impl fmt::Display for CloudPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.service {
            Service::S3 => "s3",
            Service::Gcs => "gs",
            Service::Azure => "az",
        };
        write!(f, "{scheme}://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl FromStr for CloudPlace {
    type Err = BlobError;

    fn from_str(text: &str) -> Result<Self, BlobError> {
        let wrong = |why: &str| BlobError::NoPlace { place: text.to_owned(), why: why.to_owned() };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let service = match scheme {
            "s3" => Service::S3,
            "gs" if cfg!(feature = "gcp") => Service::Gcs,
            "az" if cfg!(feature = "azure") => Service::Azure,
            "gs" | "az" => return Err(wrong("this program was built without that service")),
            _ => return Err(wrong("only s3:// is known")),
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(wrong("it names no bucket"));
        }
        let prefix = prefix.trim_matches('/');
        if !prefix.chars().all(|c| plain(c) || c == '/') || prefix.split('/').any(|part| part == "." || part == "..") {
            return Err(wrong("its prefix has other characters than letters, digits and -._/"));
        }
        Ok(Self { service, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

/// How a store is reached, beyond where it is.
#[derive(Clone, Debug)]
pub struct CloudAccess {
    /// `http://` or `https://` and a host; `None`: the service's own.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// File with keys; `None`: those that `AWS_ACCESS_KEY_ID` and so on name, or the machine's own.
    pub keys_file: Option<PathBuf>,
    /// File with the authorities that the store's certificate may come from; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    /// Let others read the file with keys.
    pub allow_readable_key: bool,
    /// How long a request is tried again while the store is away or wants fewer.
    pub patience: Duration,
}

impl Default for CloudAccess {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            keys_file: None,
            ca_file: None,
            allow_readable_key: false,
            patience: Duration::from_secs(20),
        }
    }
}

/// A pair of keys.
struct Keys {
    id: String,
    secret: String,
    session: Option<String>,
}

fn unusable(what: &str, why: impl fmt::Display, hint: &str) -> BlobError {
    BlobError::Unusable { what: what.to_owned(), why: why.to_string(), hint: hint.to_owned() }
}

/// Reads `aws_access_key_id = …` and `aws_secret_access_key = …`, as the tools of S3 keep them; of several profiles the
/// first.
fn read_keys(path: &Path, allow_readable: bool) -> Result<Keys, BlobError> {
    let what = format!("the keys in {}", path.display());
    if !allow_readable && let Err(error) = private_file::refuse_exposed(path) {
        return Err(unusable(&what, &error, &error.hint()));
    }
    let text = fs::read_to_string(path).map_err(|error| unusable(&what, error, "name a file that it may read"))?;
    let value = |wanted: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim().eq_ignore_ascii_case(wanted)).then(|| value.trim().to_owned())
        })
    };
    let (Some(id), Some(secret)) = (value("aws_access_key_id"), value("aws_secret_access_key")) else {
        let hint = "write two lines: aws_access_key_id = … and aws_secret_access_key = …";
        return Err(unusable(&what, "one of the two is missing", hint));
    };
    Ok(Keys { id, secret, session: value("aws_session_token") })
}

/// A client of the store; nothing is connected to yet.
pub(super) fn client(place: &CloudPlace, access: &CloudAccess) -> Result<Arc<dyn Objects>, BlobError> {
    let http = Http::new(access.ca_file.as_deref())?;
    let mut retry = RetryConfig { max_retries: RETRIES, retry_timeout: access.patience, ..RetryConfig::default() };
    retry.backoff.init_backoff = RETRY_FIRST.min(access.patience);
    retry.backoff.max_backoff = RETRY_LONGEST.min(access.patience);
    let failed = |error: object_store::Error| unusable(&place.to_string(), error, "see docs/operations.md");
    match place.service {
        Service::S3 => {
            let mut builder = match &access.keys_file {
                Some(path) => {
                    let keys = read_keys(path, access.allow_readable_key)?;
                    let builder =
                        AmazonS3Builder::new().with_access_key_id(keys.id).with_secret_access_key(keys.secret);
                    match keys.session {
                        Some(session) => builder.with_token(session),
                        None => builder,
                    }
                }
                None => AmazonS3Builder::from_env(),
            };
            match (&access.region, builder.get_config_value(&"aws_region".parse().map_err(failed)?)) {
                (Some(region), _) => builder = builder.with_region(region),
                (None, None) => builder = builder.with_region(DEFAULT_REGION),
                (None, Some(_)) => {}
            }
            if let Some(endpoint) = &access.endpoint {
                if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
                    return Err(unusable(
                        "the store's endpoint",
                        format!("'{endpoint}' is no URL"),
                        "write https://HOST",
                    ));
                }
                builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
            }
            let built = builder
                .with_bucket_name(&place.bucket)
                .with_checksum_algorithm(Checksum::SHA256)
                .with_retry(retry)
                .with_http_connector(http)
                .build();
            Ok(Arc::new(built.map_err(failed)?))
        }
        #[cfg(feature = "gcp")]
        Service::Gcs => {
            let builder = object_store::gcp::GoogleCloudStorageBuilder::from_env();
            let built = builder.with_bucket_name(&place.bucket).with_retry(retry).with_http_connector(http).build();
            Ok(Arc::new(built.map_err(failed)?))
        }
        #[cfg(feature = "azure")]
        Service::Azure => {
            let builder = object_store::azure::MicrosoftAzureBuilder::from_env();
            let built = builder.with_container_name(&place.bucket).with_retry(retry).with_http_connector(http).build();
            Ok(Arc::new(built.map_err(failed)?))
        }
        #[cfg(not(all(feature = "gcp", feature = "azure")))]
        _ => Err(unusable(&place.to_string(), "this program was built without that service", "use s3://")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_bucket_and_a_prefix() {
        let place: CloudPlace = "s3://farm/blobs/of/one/".parse().unwrap();
        assert_eq!(place.to_string(), "s3://farm/blobs/of/one");
        assert_eq!(place.key("sha256/ab").as_ref(), "blobs/of/one/sha256/ab");
        let whole: CloudPlace = "s3://farm".parse().unwrap();
        assert_eq!((whole.to_string(), whole.prefix()), ("s3://farm".into(), None));
        for wrong in ["farm", "s3://", "s3:///x", "ftp://farm", "s3://fa rm", "s3://farm/a b", "s3://farm/../x"] {
            assert!(matches!(wrong.parse::<CloudPlace>(), Err(BlobError::NoPlace { .. })), "{wrong}");
        }
    }

    #[test]
    fn keys_are_read_from_a_file_that_nobody_else_reads() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, "[default]\naws_access_key_id = AK\nAWS_SECRET_ACCESS_KEY=a=b/c\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let open = read_keys(&path, false).err().unwrap();
        assert!(open.to_string().contains("open to other users"), "{open}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let keys = read_keys(&path, false).ok().unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str(), keys.session), ("AK", "a=b/c", None));
        fs::write(&path, "aws_access_key_id = AK\n").unwrap();
        assert!(read_keys(&path, false).is_err());
    }
}
