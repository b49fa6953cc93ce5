//! Where plans land on this machine.

use crate::{failure::Failure, tables};
use planforge_proto::v1;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Longest part of a model's name that a file name keeps.
const STEM_MAX_CHARS: usize = 80;

/// `resnet50.cpu-x86-64-v3.plan`.
pub fn file_name(model: Option<&v1::Model>, sku: &str) -> String {
    let name = tables::model_name(model);
    let stem = name.strip_suffix(".onnx").unwrap_or(name);
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    let stem: String = stem.chars().take(STEM_MAX_CHARS).map(plain).collect();
    let stem = stem.trim_start_matches('.');
    format!("{}.{sku}.plan", if stem.is_empty() { "model" } else { stem })
}

/// Where the plan of `wanted` goes: a folder gets a file of the usual name, anything else is the file itself.
pub fn destination(output: &Path, name: &str) -> PathBuf {
    let is_folder = output.is_dir() || output.as_os_str().as_encoded_bytes().ends_with(b"/");
    if is_folder { output.join(name) } else { output.to_owned() }
}

/// Makes the folder that `path` lies in.
pub fn make_parent(path: &Path) -> Result<(), Failure> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => fs::create_dir_all(parent).map_err(|e| Failure::io("create the folder", parent, &e)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_called_after_model_and_sku() {
        let model = |name: &str| v1::Model { name: name.into(), digest: "ab".repeat(32), ..Default::default() };
        assert_eq!(file_name(Some(&model("resnet50.onnx")), "l4"), "resnet50.l4.plan");
        assert_eq!(file_name(Some(&model("../a b/c.onnx")), "l4"), "_a_b_c.l4.plan");
        assert_eq!(file_name(Some(&model("")), "l4"), "abababababab.l4.plan");
        assert_eq!(file_name(Some(&model("...")), "l4"), "model.l4.plan");
    }

    #[test]
    fn a_folder_gets_a_file_of_the_usual_name() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(destination(root.path(), "a.plan"), root.path().join("a.plan"));
        assert_eq!(destination(Path::new("new/"), "a.plan"), Path::new("new/a.plan"));
        assert_eq!(destination(Path::new("b.plan"), "a.plan"), Path::new("b.plan"));
    }
}
