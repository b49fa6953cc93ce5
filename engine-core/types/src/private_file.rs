//! Files that hold secrets: whether anybody else may read them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Reading and writing by the group and by others.
const OTHERS: u32 = 0o066;

/// Why a file with a secret is not used.
#[derive(Debug, thiserror::Error)]
pub enum Exposed {
    #[error("cannot look at {}: {source}", path.display())]
    Look { path: PathBuf, source: io::Error },
    #[error("{} holds a secret and is open to other users (mode {mode:04o})", path.display())]
    ToOthers { path: PathBuf, mode: u32 },
}

impl Exposed {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Look { .. } => String::new(),
            Self::ToOthers { path, .. } => format!(
                "close it: chmod 600 {}; or say that you mean it: --allow-readable-key (PLANFORGE_ALLOW_READABLE_KEY=1)",
                path.display()
            ),
        }
    }
}

/// Refuses a file that others than its owner may read or write. What is no file, such as a pipe, is nobody else's.
///
/// # Errors
/// When it is, or cannot be looked at.
pub fn refuse_exposed(path: &Path) -> Result<(), Exposed> {
    let facts = fs::metadata(path).map_err(|source| Exposed::Look { path: path.to_owned(), source })?;
    let mode = facts.mode() & 0o7777;
    if facts.is_file() && mode & OTHERS != 0 {
        return Err(Exposed::ToOthers { path: path.to_owned(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_others_may_read_or_write_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        fs::write(&path, "secret").unwrap();
        for (mode, exposed) in
            [(0o600, false), (0o400, false), (0o700, false), (0o640, true), (0o604, true), (0o620, true), (0o602, true)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = refuse_exposed(&path);
            assert_eq!(refused.is_err(), exposed, "{mode:o}");
            if let Err(error) = refused {
                assert!(error.to_string().contains("key.pem") && error.to_string().contains(&format!("{mode:04o}")));
                assert!(error.hint().contains("chmod 600"));
            }
        }
        assert!(refuse_exposed(Path::new("/dev/null")).is_ok());
        assert!(matches!(refuse_exposed(&folder.path().join("none")), Err(Exposed::Look { .. })));
    }
}
