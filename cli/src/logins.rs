//! What `planforge login` keeps: one token for each server, in `$XDG_CONFIG_HOME/planforge/credentials.toml`.
//!
//! The file is its owner's alone (0600, in a folder of mode 0700), replaced whole by rename, and changed under a lock on
//! the folder, so that two logins at once both last. A CA file is copied beside it: the one that was there at login
//! counts, not what lies under its path later.

use crate::{failure::Failure, settings};
use planforge_client::{Endpoint, EndpointOptions};
use planforge_proto::ErrorCode;
use planforge_types::durable;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    net::IpAddr,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

const FILE: &str = "credentials.toml";

/// Largest file that is read: a login is three lines.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// What a user keeps for one server.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    pub token: String,
    /// Instead of the system's roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("token", &"***").field("ca_file", &self.ca_file).finish()
    }
}

/// Logins by [`key`].
pub type Logins = BTreeMap<String, Login>;

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    server: Logins,
}

/// Under which name a server's login is kept: scheme, host and port in one spelling. `None` for what is no URL of a
/// server, and for sockets, which know their callers without a token.
pub fn key(url: &str) -> Option<String> {
    // Whether plain HTTP is allowed is decided where a connection is made.
    let options = EndpointOptions { ca_file: None, insecure: true };
    let normal = |host: String| match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host.to_ascii_lowercase(),
    };
    match Endpoint::parse(url.trim(), &options).ok()? {
        Endpoint::Http { host, port } => Some(Endpoint::Http { host: normal(host), port }.to_string()),
        Endpoint::Https { host, port, ca_file, identity } => {
            Some(Endpoint::Https { host: normal(host), port, ca_file, identity }.to_string())
        }
        Endpoint::Unix(_) => None,
    }
}

/// Every login of this user; none where there is no file.
pub fn read() -> Result<Logins, Failure> {
    settings::config_folder().map_or(Ok(Logins::new()), |folder| read_in(&folder))
}

fn read_in(folder: &Path) -> Result<Logins, Failure> {
    let path = folder.join(FILE);
    let failed = |e: &io::Error| Failure::io("read", &path, e);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Logins::new()),
        Err(error) => return Err(failed(&error)),
    };
    let facts = file.metadata().map_err(|e| failed(&e))?;
    let refused = |message: String| Failure::new(ErrorCode::PermissionDenied, message);
    if facts.uid() != rustix::process::geteuid().as_raw() {
        let message = format!("the credentials in {} belong to another user", path.display());
        return Err(refused(message).hint(format!("remove the file: rm {}", path.display())));
    }
    let mode = facts.mode() & 0o777;
    if mode & 0o077 != 0 {
        let message = format!("other users may read the credentials in {} (mode {mode:03o})", path.display());
        return Err(refused(message).hint(format!(
            "close it with: chmod 600 {}; who may have read it can use the tokens until they are revoked",
            path.display()
        )));
    }
    let mut text = String::new();
    file.take(FILE_MAX_BYTES).read_to_string(&mut text).map_err(|e| failed(&e))?;
    let document: Document = toml::from_str(&text).map_err(|error| {
        let line = 1 + text[..error.span().map_or(0, |span| span.start)].matches('\n').count();
        // The error's own words, without the lines of the file that it would quote.
        Failure::usage(format!("{}:{line}: {}", path.display(), error.message()))
            .hint("planforge login writes this file; remove it and log in again")
    })?;
    Ok(document.server)
}

/// Keeps a login for the server of this key, with a copy of its CA file, in the place of an older one.
pub fn keep(key: &str, token: &str, ca: Option<&Path>) -> Result<PathBuf, Failure> {
    keep_in(&writable_folder()?, key, token, ca)
}

/// Forgets the login for the server of this key; whether there was one.
pub fn forget(key: &str) -> Result<bool, Failure> {
    forget_in(&writable_folder()?, key)
}

fn keep_in(folder: &Path, key: &str, token: &str, ca: Option<&Path>) -> Result<PathBuf, Failure> {
    let _lock = prepare(folder)?;
    let mut logins = read_in(folder)?;
    let ca_file = match ca {
        Some(from) => {
            let bytes = fs::read(from).map_err(|e| Failure::io("read the CA file", from, &e))?;
            let to = folder.join(ca_name(key));
            durable::write_private(&to, &bytes).map_err(|e| Failure::io("write", &to, &e))?;
            Some(to)
        }
        None => None,
    };
    logins.insert(key.to_owned(), Login { token: token.to_owned(), ca_file });
    write(folder, logins)
}

fn forget_in(folder: &Path, key: &str) -> Result<bool, Failure> {
    if !folder.join(FILE).exists() {
        return Ok(false);
    }
    let _lock = prepare(folder)?;
    let mut logins = read_in(folder)?;
    let Some(login) = logins.remove(key) else { return Ok(false) };
    write(folder, logins)?;
    let copy = folder.join(ca_name(key));
    if login.ca_file.as_deref() == Some(&*copy) {
        match fs::remove_file(&copy) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Failure::io("remove", &copy, &error)),
            _ => {}
        }
    }
    Ok(true)
}

fn writable_folder() -> Result<PathBuf, Failure> {
    settings::config_folder().ok_or_else(|| {
        Failure::usage("no folder for credentials: neither XDG_CONFIG_HOME nor HOME is set")
            .hint("set XDG_CONFIG_HOME to a folder of your own")
    })
}

/// Has the folder there, closed to others, and locked for as long as the handle lives.
fn prepare(folder: &Path) -> Result<File, Failure> {
    let failed = |e: io::Error| Failure::io("use the folder", folder, &e);
    durable::create_private_dir(folder).map_err(failed)?;
    let handle = File::open(folder).map_err(failed)?;
    handle.lock().map_err(failed)?;
    if handle.metadata().map_err(failed)?.mode() & 0o077 != 0 {
        handle.set_permissions(fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(handle)
}

fn write(folder: &Path, logins: Logins) -> Result<PathBuf, Failure> {
    let text = toml::to_string(&Document { server: logins }).map_err(|e| {
        Failure::new(ErrorCode::Internal, format!("cannot write the credentials as TOML: {}", e.to_string().trim()))
    })?;
    let path = folder.join(FILE);
    durable::write_private(&path, text.as_bytes()).map_err(|e| Failure::io("write", &path, &e))?;
    Ok(path)
}

/// A file name of its own for the CA of each server.
fn ca_name(key: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    format!("ca-{}.pem", key.split("://").last().unwrap_or(key).chars().map(plain).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "https://a.example:7400";

    #[test]
    fn a_server_has_one_key_in_every_spelling() {
        for same in ["https://A.Example:7400", "https://a.example:7400/", " https://a.example:7400"] {
            assert_eq!(key(same).as_deref(), Some(A), "{same}");
        }
        assert_eq!(key("https://a.example").as_deref(), Some("https://a.example:443"));
        assert_eq!(key("http://[0:0::1]:7400"), key("http://[::1]:7400"));
        assert_ne!(key("http://a.example:7400").as_deref(), Some(A));
        for none in ["unix:/run/p.sock", "", "a.example:7400", "https://me:secret@a.example", "https://a.example/x"] {
            assert_eq!(key(none), None, "{none}");
        }
    }

    #[test]
    fn logins_last_in_a_file_of_their_owner_alone() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("config/planforge");
        let ca = root.path().join("ca.pem");
        fs::write(&ca, "authority").unwrap();
        let file = keep_in(&folder, A, "one", Some(&ca)).unwrap();
        keep_in(&folder, "https://b.example:443", "two", None).unwrap();
        keep_in(&folder, A, "three", Some(&ca)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
        let logins = read_in(&folder).unwrap();
        let tokens: Vec<_> = logins.iter().map(|(key, login)| (key.as_str(), login.token.as_str())).collect();
        assert_eq!(tokens, [(A, "three"), ("https://b.example:443", "two")]);
        // The copy counts, whatever becomes of the file that was named.
        fs::write(&ca, "another").unwrap();
        let copy = logins[A].ca_file.clone().unwrap();
        assert_eq!((fs::read(&copy).unwrap(), mode(&copy)), (b"authority".to_vec(), 0o600));
        assert!(forget_in(&folder, A).unwrap());
        assert!(!forget_in(&folder, A).unwrap());
        assert!(!copy.exists());
        assert_eq!(read_in(&folder).unwrap().len(), 1);
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_with_what_to_type() {
        let root = tempfile::tempdir().unwrap();
        let file = keep_in(root.path(), A, "secret", None).unwrap();
        for mode in [0o640, 0o604, 0o666] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let refused = read_in(root.path()).unwrap_err();
            assert_eq!(refused.exit_code, 5);
            assert!(refused.hint.contains(&format!("chmod 600 {}", file.display())), "{}", refused.hint);
            assert!(keep_in(root.path(), A, "new", None).is_err());
        }
    }

    #[test]
    fn a_damaged_file_is_named_by_line_and_its_secrets_are_not_quoted() {
        let root = tempfile::tempdir().unwrap();
        let file = keep_in(root.path(), A, "s3cret", None).unwrap();
        let text = fs::read_to_string(&file).unwrap().replace("token", "tokn");
        durable::write_private(&file, text.as_bytes()).unwrap();
        let failure = read_in(root.path()).unwrap_err();
        assert_eq!(failure.exit_code, 2);
        assert!(failure.to_string().contains("credentials.toml:2: unknown field `tokn`"), "{failure}");
        assert!(!failure.to_string().contains("s3cret"));
    }

    #[test]
    fn logins_at_once_all_last() {
        let root = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let folder = root.path();
                scope.spawn(move || keep_in(folder, &format!("https://h{number}:1"), "t", None).unwrap());
            }
        });
        assert_eq!(read_in(root.path()).unwrap().len(), 8);
    }
}
