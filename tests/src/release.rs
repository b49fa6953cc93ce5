//! Release packages, as tests make them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The workspace's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace")
}

/// Runs to success and returns what was written to stdout.
pub fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A Python program, started in the workspace's folder.
pub fn python(words: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").args(words).current_dir(root()).env_remove("SOURCE_DATE_EPOCH");
    command
}

/// The command that packs `binary` into the folder `out`, quickly.
pub fn pack(binary: &Path, out: &Path, epoch: &str, sbom: &Path) -> Command {
    let [binary, out, sbom] = [binary, out, sbom].map(|path| path.to_str().expect("UTF-8"));
    python(&["deploy/release/pack.py", binary, "--out", out, "--epoch", epoch, "--sbom", sbom, "--level", "1"])
}

/// A binary as packages hold it, in `folder`: without what debuggers want.
pub fn stripped(folder: &Path, binary: &Path) -> PathBuf {
    let path = folder.join("planforge");
    ran(Command::new("strip").arg("-o").arg(&path).arg(binary));
    path
}
