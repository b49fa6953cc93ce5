//! The few variables that a tool gets. Nothing else of this process's environment reaches it, tokens least of all.

use planforge_types::fingerprint::VISIBLE_DEVICES;
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    path::Path,
};

/// Marks every process of an attempt, so that its agent finds and ends them all.
pub const MARKER_VARIABLE: &str = "PLANFORGE_ATTEMPT";

/// Passed on as they are, where they are set.
const INHERITED: [&str; 3] = ["PATH", "HOME", MARKER_VARIABLE];

/// Folders of libraries, of the installation first, then of this process.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// A tool's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// For a tool on the GPU of `uuid` alone, with the libraries in `libraries` and temporary files in `scratch`.
    pub fn new(uuid: Option<&str>, libraries: &[impl AsRef<Path>], scratch: &Path) -> Self {
        let mut variables: BTreeMap<OsString, OsString> =
            INHERITED.iter().filter_map(|name| Some((OsString::from(name), env::var_os(name)?))).collect();
        // Numbers and dates as its parser expects them.
        variables.insert("LC_ALL".into(), "C".into());
        variables.insert("TMPDIR".into(), scratch.into());
        if let Some(uuid) = uuid {
            variables.insert(VISIBLE_DEVICES.into(), uuid.into());
        }
        let own = libraries.iter().map(|folder| folder.as_ref().to_owned());
        let inherited = env::var_os(LIBRARY_PATH);
        let inherited = inherited.iter().flat_map(env::split_paths).filter(|folder| !folder.as_os_str().is_empty());
        // A folder whose name holds the separator cannot be named; the loader's own places are left.
        if let Ok(path) = env::join_paths(own.chain(inherited))
            && !path.is_empty()
        {
            variables.insert(LIBRARY_PATH.into(), path);
        }
        Self { variables }
    }

    /// Names and values.
    pub fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// One variable's value.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_gets_its_device_its_libraries_and_little_else() {
        let environment = Environment::new(Some("GPU-1"), &["/opt/tensorrt/lib"], Path::new("/scratch"));
        assert_eq!(environment.get("CUDA_VISIBLE_DEVICES"), Some(OsStr::new("GPU-1")));
        assert_eq!(environment.get("TMPDIR"), Some(OsStr::new("/scratch")));
        let libraries = environment.get("LD_LIBRARY_PATH").unwrap().to_str().unwrap();
        assert!(libraries.starts_with("/opt/tensorrt/lib"), "{libraries}");
        let known = ["PATH", "HOME", MARKER_VARIABLE, "LC_ALL", "TMPDIR", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"];
        let odd = environment.variables().find(|(name, _)| !known.iter().any(|known| OsStr::new(known) == *name));
        assert_eq!(odd, None, "the test runner's own variables stay out");
    }
}
