//! The calibration that a build was given, as the toolchain reads it: a cache as it is, and from what a preparation wrote
//! down (`model.preparation.json`) the ranges in it, as a cache for the version that is about to read it.

use planforge_precision::cache;
use planforge_types::{BackendError, FailureClass, Toolchain};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

/// The cache that is made, in the build's own folder.
const FILE: &str = "calibration-of-preparation.cache";
/// Far more than the ranges of any model.
const DOCUMENT_MAX_BYTES: u64 = 256 << 20;

/// What of a preparation's document is read here.
#[derive(Deserialize)]
struct Ranges {
    #[serde(default)]
    calibration: BTreeMap<String, f32>,
}

/// The file for `toolchain`: `given`, or one made of it in `folder`.
///
/// # Errors
/// When the document of a preparation holds no ranges, or the version takes none; when a file cannot be read or written.
pub(crate) fn file(given: &Path, toolchain: &Toolchain, folder: &Path) -> Result<PathBuf, BackendError> {
    let unread = |error: &std::io::Error| {
        BackendError::infrastructure(format!("cannot read the calibration {}: {error}", given.display()))
    };
    let mut first = [0];
    let mut open = fs::File::open(given).map_err(|error| unread(&error))?;
    // No cache begins so: its first line names the version that made it.
    if open.read(&mut first).map_err(|error| unread(&error))? == 0 || first != *b"{" {
        return Ok(given.to_owned());
    }
    let mut text = first.to_vec();
    open.take(DOCUMENT_MAX_BYTES).read_to_end(&mut text).map_err(|error| unread(&error))?;
    let ranges: Ranges = serde_json::from_slice(&text).map_err(|error| {
        BackendError::model(format!("the calibration is neither a cache nor what a preparation wrote down: {error}"))
            .with_hint("give a calibration cache, or the .preparation.json of a model that was prepared to int8")
    })?;
    if ranges.calibration.is_empty() {
        let message = "the preparation that is to calibrate this engine found no ranges";
        let hint = "a model that is quantised already has its own, and one prepared to other types needs none: build it \
                    without a calibration";
        return Err(BackendError::model(message).with_hint(hint));
    }
    let cache = cache::text(&toolchain.version, &ranges.calibration)
        .map_err(|error| BackendError::model(error.to_string()).with_hint("build the prepared model instead"))?;
    let path = folder.join(FILE);
    fs::write(&path, cache).map_err(|error| {
        let message = format!("cannot write the calibration cache {}: {error}", path.display());
        BackendError::new(FailureClass::Resource, message).with_hint("make room on the disk of the scratch folder")
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_a_cache_for_the_version_that_reads_it_and_caches_stay() {
        let folder = tempfile::tempdir().unwrap();
        let made = |text: &str, version: &str| {
            let given = folder.path().join("given");
            fs::write(&given, text).unwrap();
            let toolchain =
                Toolchain { backend: "tensorrt".into(), version: version.into(), components: BTreeMap::new() };
            file(&given, &toolchain, folder.path()).map(|path| (path != given, fs::read_to_string(path).unwrap()))
        };
        let cache = "TRT-8601-EntropyCalibration2\nx: 3c010204\n";
        assert_eq!(made(cache, "10.3.0").unwrap(), (false, cache.to_owned()));
        assert_eq!(made("", "10.3.0").unwrap(), (false, String::new()));
        let document = r#"{"source": "of", "calibration": {"x": 0.007874016, "b:0": 0.5}, "layers": [1]}"#;
        let written = "EntropyCalibration2\nb:0: 3f000000\nx: 3c010204\n";
        assert_eq!(made(document, "8.6.1").unwrap(), (true, format!("TRT-8601-{written}")));
        assert_eq!(made(document, "10.3.0.26").unwrap(), (true, format!("TRT-100300-{written}")));
        let refused = |text: &str, version: &str| {
            let error = made(text, version).unwrap_err();
            assert_eq!(error.class, FailureClass::Model);
            error.message
        };
        assert!(refused(document, "11.0.0").contains("reads no calibration cache"));
        assert!(refused(r#"{"layers": []}"#, "10.3.0").contains("found no ranges"));
        assert!(refused("{broken", "10.3.0").contains("neither a cache nor"));
        assert!(refused(r#"{"calibration": {"x": -1.0}}"#, "10.3.0").contains('x'));
    }
}
