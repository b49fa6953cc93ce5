//! Engines of another device kind that stand in for one of their class (`--classes`).
//!
//! A class is no measurement of the model at hand: it says that engines of other models did as well. So it is asked for by a
//! flag, rests on what `planforge matrix` wrote, and is told with the loss that the others had.

use crate::failure::Failure;
use planforge_proto::v1;
use planforge_report::matrix::{MATRIX_SCHEMA_VERSION, Matrix, StandIn, spec_words, stand_in};
use planforge_types::{BuildSpec, Sku, Toolchain};
use serde::Deserialize;
use std::{fs, path::Path};

/// Largest file of matrices that is read.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// What `planforge matrix --json`, or `-o FILE.json`, writes. Its classes are not taken at their word but derived again.
#[derive(Deserialize)]
struct Document {
    matrices: Vec<Matrix>,
}

/// What is known of device kinds that may stand for each other.
#[derive(Debug)]
pub(super) struct Evidence {
    matrices: Vec<Matrix>,
    /// As it was named.
    file: String,
}

/// An engine that may stand in, or why not.
#[derive(Debug)]
pub(super) struct Candidate {
    pub sku: Sku,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
}

impl Candidate {
    /// `None` where the engine is of a newer release.
    pub fn of(engine: &v1::Engine) -> Option<Self> {
        let toolchain = serde_json::from_str(&engine.toolchain_json).ok()?;
        Some(Self { sku: engine.sku.parse().ok()?, toolchain, spec: BuildSpec::parse(&engine.spec_json).ok()? })
    }
}

/// What came of looking at candidates, by index.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub best: Option<(usize, StandIn)>,
    /// Why the others are no answer.
    pub rejected: Vec<(usize, String)>,
}

impl Evidence {
    /// The matrices of a file; `None` where none is named.
    pub fn read(path: Option<&Path>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let failed = |error: std::io::Error| Failure::io("read", path, &error);
        let hint = "planforge matrix A.onnx B.onnx C.onnx --sku SKU,SKU --measure -o FILE.json writes it";
        let refused = |why: String| Failure::usage(format!("{} {why}", path.display())).hint(hint);
        let bytes = fs::metadata(path).map_err(failed)?.len();
        if bytes > MAX_BYTES {
            return Err(refused(format!("has {bytes} bytes: no file of matrices")));
        }
        let text = fs::read(path).map_err(failed)?;
        let document: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| refused(format!("is no file of matrices: {error}")))?;
        let versions = document["matrices"].as_array().into_iter().flatten().map(|matrix| &matrix["schema_version"]);
        if let Some(newer) = versions.filter_map(serde_json::Value::as_u64).max()
            && newer > u64::from(MATRIX_SCHEMA_VERSION)
        {
            let why = format!("has matrices of version {newer}; this program reads up to {MATRIX_SCHEMA_VERSION}");
            return Err(refused(why).hint("a newer release wrote it: read it with that one"));
        }
        let Document { matrices } =
            serde_json::from_value(document).map_err(|error| refused(format!("is no file of matrices: {error}")))?;
        Ok(Some(Self { matrices, file: path.display().to_string() }))
    }

    /// The candidate that loses least at worst, and why the others may not stand in for one of `wanted`.
    pub fn choose(&self, candidates: &[Candidate], wanted: &Sku) -> Search {
        let mut search = Search::default();
        for (index, candidate) in candidates.iter().enumerate() {
            let like = (candidate.toolchain.to_string(), spec_words(&candidate.spec));
            match stand_in(&self.matrices, (&like.0, &like.1), &candidate.sku, wanted) {
                Ok(found) if search.best.as_ref().is_none_or(|(_, best)| found.loss_high < best.loss_high) => {
                    if let Some((before, _)) = search.best.replace((index, found)) {
                        search.rejected.push((before, "another kind of the class loses less".into()));
                    }
                }
                Ok(_) => search.rejected.push((index, "another kind of the class loses less".into())),
                Err(why) => search.rejected.push((index, format!("by {}: {why}", self.file))),
            }
        }
        search
    }

    /// What to warn of.
    pub fn words(&self, found: &StandIn, wanted: &Sku) -> String {
        words(found, wanted, &self.file)
    }
}

/// What to warn of; `by` says what it rests on.
pub(super) fn words(found: &StandIn, wanted: &Sku, by: &str) -> String {
    format!(
        "nothing was built for {wanted}, and this model was not measured there: an engine stands in by {by}, {}",
        found.words()
    )
}

/// For `--json`: that an engine stands in for one of `wanted`.
pub(super) fn document(wanted: &Sku, found: &StandIn) -> serde_json::Value {
    let mut document = serde_json::json!(found);
    document["sku"] = wanted.to_string().into();
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("matrix.json");
        fs::write(&path, text).unwrap();
        Evidence::read(Some(&path)).unwrap_err().to_string()
    }

    #[test]
    fn a_file_that_holds_no_matrices_is_refused() {
        assert!(Evidence::read(None).unwrap().is_none());
        for (text, said) in [
            ("", "is no file of matrices"),
            ("{}", "missing field `matrices`"),
            (r#"{"matrices": [{"schema_version": 1}]}"#, "is no file of matrices"),
            (r#"{"matrices": [{"schema_version": 9}]}"#, "matrices of version 9; this program reads up to 1"),
        ] {
            let told = refused(text);
            assert!(told.contains(said), "{text}: {told}");
        }
    }
}
