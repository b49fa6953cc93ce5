//! Where `trtexec` may lie.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// The program's name.
pub(super) const PROGRAM: &str = "trtexec";

/// Programs to use instead of searching, separated as in PATH; empty for none.
pub const TRTEXEC_VARIABLE: &str = "PLANFORGE_TRTEXEC";
/// Folder of one installation.
pub const HOME_VARIABLE: &str = "TENSORRT_HOME";

/// Folders of system packages and of NVIDIA's and others' images.
const FOLDERS: [&str; 6] = [
    "/usr/src/tensorrt/bin",
    "/opt/tensorrt/bin",
    "/workspace/tensorrt/bin",
    "/usr/local/tensorrt/bin",
    "/usr/bin",
    "/usr/local/bin",
];

/// Folders in which unpacked archives (`TensorRT-10.3.0.26`) lie beside each other.
const PARENTS: [&str; 5] = ["/opt", "/usr/local", "/opt/nvidia", "/usr/src", "/workspace"];

/// How the folder of an unpacked archive begins.
const ARCHIVE_PREFIX: &str = "tensorrt-";

/// Entries of a parent folder that are looked at.
const MAX_ENTRIES: usize = 4096;

/// Where to search, in this order.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Used alone when there.
    pub programs: Option<Vec<PathBuf>>,
    /// Folders of installations: the program lies in them, in `bin`, or in `targets/PLATFORM/bin`.
    pub homes: Vec<PathBuf>,
    /// Folders that hold the program.
    pub folders: Vec<PathBuf>,
    /// Folders that hold unpacked archives.
    pub parents: Vec<PathBuf>,
}

impl Places {
    /// What the environment says, then the usual folders.
    pub fn of_environment() -> Self {
        Self::from(|name| std::env::var_os(name))
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let paths = |name| variable(name).map(|value| non_empty(&value));
        let homes = paths(HOME_VARIABLE).unwrap_or_default();
        let mut parents: Vec<PathBuf> = homes.iter().filter_map(|home| home.parent()).map(Path::to_owned).collect();
        parents.extend(PARENTS.map(PathBuf::from));
        parents.extend(variable("HOME").map(PathBuf::from));
        let mut folders = paths("PATH").unwrap_or_default();
        folders.extend(FOLDERS.map(PathBuf::from));
        Self { programs: paths(TRTEXEC_VARIABLE), homes, folders, parents }
    }

    /// Paths at which a program may lie, existing or not, without order of preference beyond first come.
    pub(super) fn programs(&self) -> Vec<PathBuf> {
        if let Some(programs) = &self.programs {
            return programs.iter().map(|path| if path.is_dir() { path.join(PROGRAM) } else { path.clone() }).collect();
        }
        let mut found: Vec<PathBuf> = self.homes.iter().flat_map(|home| of_home(home)).collect();
        found.extend(self.folders.iter().map(|folder| folder.join(PROGRAM)));
        found.extend(self.parents.iter().flat_map(|parent| archives(parent)).flat_map(|home| of_home(&home)));
        found
    }
}

fn non_empty(value: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(value).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// Where the program lies in one installation.
fn of_home(home: &Path) -> Vec<PathBuf> {
    let mut found = vec![home.join("bin").join(PROGRAM), home.join(PROGRAM)];
    found.extend(entries(&home.join("targets")).into_iter().map(|target| target.join("bin").join(PROGRAM)));
    found
}

/// Unpacked archives beside each other.
fn archives(parent: &Path) -> Vec<PathBuf> {
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        name.starts_with(ARCHIVE_PREFIX)
    };
    entries(parent).into_iter().filter(is_archive).collect()
}

/// Entries of a folder by name; none where it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut entries: Vec<PathBuf> = read.take(MAX_ENTRIES).flatten().map(|entry| entry.path()).collect();
    entries.sort_unstable();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_leads() {
        let with = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> = pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
            Places::from(move |name| pairs.iter().find(|(n, _)| n == name).map(|(_, v)| v.into()))
        };
        assert_eq!(
            with(&[("PLANFORGE_TRTEXEC", "/a/trtexec:/b/x")]).programs(),
            ["/a/trtexec", "/b/x"].map(PathBuf::from)
        );
        // Set and empty: no TensorRT, wherever it lies.
        assert!(with(&[("PLANFORGE_TRTEXEC", ""), ("TENSORRT_HOME", "/t")]).programs().is_empty());
        let found = with(&[("TENSORRT_HOME", "/t"), ("PATH", "/p1::/p2")]).programs();
        let at = |path: &str| {
            found.iter().position(|p| p == Path::new(path)).unwrap_or_else(|| panic!("{path} in {found:?}"))
        };
        assert!(at("/t/bin/trtexec") < at("/t/trtexec"));
        assert!(at("/t/trtexec") < at("/p1/trtexec") && at("/p1/trtexec") < at("/p2/trtexec"));
        assert!(at("/p2/trtexec") < at("/usr/src/tensorrt/bin/trtexec"));
    }

    #[test]
    fn archives_lie_beside_each_other() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["TensorRT-8.6.1.6/bin", "TensorRT-10.3.0.26/targets/x86_64-linux-gnu/bin", "other/bin"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let places = Places { parents: vec![root.path().to_owned()], ..Places::default() };
        let found = places.programs();
        for expected in ["TensorRT-8.6.1.6/bin/trtexec", "TensorRT-10.3.0.26/targets/x86_64-linux-gnu/bin/trtexec"] {
            assert!(found.contains(&root.path().join(expected)), "{expected} in {found:?}");
        }
        assert!(!found.iter().any(|path| path.starts_with(root.path().join("other"))));
    }
}
