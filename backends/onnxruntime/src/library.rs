//! Where libonnxruntime is, which version it has and which providers lie beside it. Nothing is loaded: the answer
//! comes from folder listings and ELF headers, so that it costs an agent next to nothing to ask again.

use crate::{elf, python};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Environment variable that names the library or its folder; nothing else is then looked at.
pub const LIBRARY_VARIABLE: &str = "PLANFORGE_ONNXRUNTIME";

/// How the library's file is called, with or without a version behind it.
const LIBRARY_NAME: &str = "libonnxruntime.so";
/// Provider that runs on NVIDIA GPUs.
const CUDA_PROVIDER_NAME: &str = "libonnxruntime_providers_cuda.so";
/// The library tags its symbols with its version behind this.
const VERSION_TAG: &str = "VERS_";

/// First minor version of 1.x whose interface is loaded.
pub const MINOR_MIN: u64 = 17;

/// System folders, as the loader knows them.
const SYSTEM_FOLDERS: [&str; 7] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/opt/onnxruntime/lib",
    "/opt/onnxruntime",
];

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    pub path: PathBuf,
    /// `1.31.1`.
    pub version: String,
    /// Major version of the CUDA runtime its CUDA provider needs; `None` without that provider.
    pub cuda: Option<String>,
}

/// Where to look, in order; the first library that can be used is taken.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Library or folder that the user named; then nothing else is looked at.
    pub configured: Option<PathBuf>,
    pub folders: Vec<PathBuf>,
    /// Whether the packages of `python3` are looked at last; where they are is found out only then.
    pub packages: bool,
}

impl Search {
    /// As this process's environment says: the configured place, else the virtual environment, the loader's folders
    /// and the packages of `python3`.
    pub fn of_environment() -> Self {
        let configured = env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        if configured.is_some() {
            return Self { configured, ..Self::default() };
        }
        let mut folders = python::virtual_environment_folders();
        folders.extend(env::split_paths(&env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
        folders.extend(SYSTEM_FOLDERS.map(PathBuf::from));
        Self { configured, folders, packages: true }
    }

    /// The library to use. `Ok(None)`: there is none. `Err`: the configured one cannot be used, for this reason.
    pub fn find(&self) -> Result<Option<Library>, String> {
        if let Some(configured) = &self.configured {
            let file = if configured.is_dir() { in_folder(configured) } else { Some(configured.clone()) };
            let file = file.ok_or_else(|| format!("{} holds no {LIBRARY_NAME}", configured.display()))?;
            return inspect(&file).map(Some);
        }
        let of_packages = || if self.packages { python::interpreter_folders() } else { Vec::new() };
        Ok(first_of(&self.folders).or_else(|| first_of(&of_packages())))
    }
}

/// The first library in `folders` that can be used.
fn first_of(folders: &[PathBuf]) -> Option<Library> {
    folders.iter().filter_map(|folder| in_folder(folder)).find_map(|file| {
        inspect(&file).inspect_err(|reason| tracing::debug!(reason, "passing over a libonnxruntime")).ok()
    })
}

/// The library in `folder`: the unversioned name, else the highest version.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let plain = folder.join(LIBRARY_NAME);
    if plain.is_file() {
        return Some(plain);
    }
    let prefix = format!("{LIBRARY_NAME}.");
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let versions = names.filter_map(|name| {
        let version = name.strip_prefix(&prefix)?.split('.').map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        Some((version, name))
    });
    versions.max().map(|(_, name)| folder.join(name))
}

/// What `file` is; the reason when it cannot be used.
fn inspect(file: &Path) -> Result<Library, String> {
    let path = fs::canonicalize(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let facts = elf::facts(&path).ok_or_else(|| format!("{} is no 64-bit shared library", path.display()))?;
    let version = facts.versions.iter().find_map(|tag| tag.strip_prefix(VERSION_TAG));
    let version = version.ok_or_else(|| format!("{} does not say which version it is", path.display()))?;
    let mut parts = version.split('.').map_while(|part| part.parse::<u64>().ok());
    if parts.next() != Some(1) || parts.next().is_none_or(|minor| minor < MINOR_MIN) {
        return Err(format!("{} is version {version}; 1.{MINOR_MIN} or a later 1.x is needed", path.display()));
    }
    let provider = path.with_file_name(CUDA_PROVIDER_NAME);
    let cuda = elf::facts(&provider).and_then(|facts| {
        let runtime = facts.needed.iter().find_map(|name| name.strip_prefix("libcudart.so."))?;
        Some(runtime.to_owned())
    });
    Ok(Library { version: version.to_owned(), path, cuda })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(folder.path().join(name), b"not a library").unwrap();
        }
        folder
    }

    #[test]
    fn the_plain_name_comes_first_then_the_highest_version() {
        let folder = folder_with(&["libonnxruntime.so.1.9.0", "libonnxruntime.so.1.31.1", "libonnxruntime.so.old"]);
        let found = in_folder(folder.path()).unwrap();
        assert_eq!(found.file_name().unwrap(), "libonnxruntime.so.1.31.1");
        let folder = folder_with(&["libonnxruntime.so.1.9.0", "libonnxruntime.so"]);
        assert_eq!(in_folder(folder.path()).unwrap().file_name().unwrap(), "libonnxruntime.so");
        assert_eq!(in_folder(folder_with(&["libonnxruntime_providers_shared.so"]).path()), None);
    }

    #[test]
    fn what_cannot_be_used_is_passed_over_unless_it_was_configured() {
        let folder = folder_with(&["libonnxruntime.so.1.31.1"]);
        let search = Search { folders: vec![folder.path().to_owned()], ..Search::default() };
        assert_eq!(search.find(), Ok(None));
        let search = Search { configured: Some(folder.path().to_owned()), ..Search::default() };
        assert!(search.find().unwrap_err().ends_with("libonnxruntime.so.1.31.1 is no 64-bit shared library"));
        let empty = tempfile::tempdir().unwrap();
        let search = Search { configured: Some(empty.path().to_owned()), ..Search::default() };
        assert!(search.find().unwrap_err().ends_with("holds no libonnxruntime.so"));
    }

    #[test]
    fn another_library_is_not_taken_for_it() {
        let this = env::current_exe().unwrap();
        assert!(inspect(&this).unwrap_err().ends_with("does not say which version it is"));
    }
}
