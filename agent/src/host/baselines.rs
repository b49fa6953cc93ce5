//! Programs of this host that measure a model by another runtime, for who asks for one beside an engine.
//!
//! Whoever runs the agent decides what may run: it is an executable file of the folder that `PLANFORGE_BASELINES` names,
//! under the name that requests ask for. Nobody else can bring a program here, only the model that it is given.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Names the folder.
pub const VARIABLE: &str = "PLANFORGE_BASELINES";

/// Write permission for the group or for everybody.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const EXECUTABLE: u32 = 0o111;

/// The folder that this process's environment names.
pub fn of_environment() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The program of that name; `None` where the folder has none, or there is no folder.
///
/// # Errors
/// In words, where there is one that must not, or cannot, be run.
pub fn program(folder: Option<&Path>, name: &str) -> Result<Option<PathBuf>, String> {
    let Some(folder) = folder else { return Ok(None) };
    let path = folder.join(name);
    let facts = match fs::metadata(&path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{} cannot be looked at: {error}", path.display())),
    };
    if !facts.is_file() || facts.permissions().mode() & EXECUTABLE == 0 {
        return Err(format!("{} is no executable file", path.display()));
    }
    let folder_facts = fs::metadata(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (path, facts) in [(path.as_path(), facts), (folder, folder_facts)] {
        if facts.permissions().mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(format!("{} may be written by others: chmod go-w it", path.display()));
        }
    }
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_operator_put_there_is_run() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let found = |name: &str| program(Some(folder.path()), name);
        assert_eq!(program(None, "torch"), Ok(None));
        assert_eq!(found("torch"), Ok(None));
        let path = folder.path().join("torch");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        mode(&path, 0o644);
        assert!(found("torch").unwrap_err().contains("no executable"));
        mode(&path, 0o755);
        assert_eq!(found("torch"), Ok(Some(path.clone())));
        mode(&path, 0o775);
        assert!(found("torch").unwrap_err().contains("written by others"));
        mode(&path, 0o755);
        mode(folder.path(), 0o777);
        assert!(found("torch").unwrap_err().contains("written by others"));
        mode(folder.path(), 0o700);
        fs::create_dir(folder.path().join("jax")).unwrap();
        assert!(found("jax").unwrap_err().contains("no executable"));
    }
}
