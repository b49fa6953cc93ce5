//! How the user who runs a coordinator on this machine gets in without typing a token.
//!
//! ```text
//! $XDG_STATE_HOME/planforge/servers/127.0.0.1_7400    (or below $HOME/.local/state; folder 0700, file 0600)
//! ```
//!
//! A coordinator that listens on a port leaves a record there that names its data folder, and takes it away when it
//! ends. A command for that address that has no token finds the record and talks to the socket in the data folder
//! instead of the port: who stands behind a port is anybody's guess, while that socket is the owner's by the kernel's
//! word. A record, folder or socket that is not wholly this user's own is refused by name.

use super::DataFolder;
use crate::{
    failure::{Failure, io_reason},
    printer::Printer,
};
use planforge_client::Endpoint;
use planforge_proto::ErrorCode;
use planforge_types::durable;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, Metadata},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};
use tokio::net::UnixStream;

/// Largest record that is read: it holds one path.
const RECORD_MAX_BYTES: u64 = 16 * 1024;

#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Contents {
    /// The data folder, absolute.
    data: PathBuf,
    /// Tells a record from that of a later coordinator on the same address.
    pid: u32,
}

/// A record that a coordinator has left; taken away when dropped.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    text: String,
}

impl Record {
    /// Leaves the record of a coordinator on `address`. Without one, everything works but the way in without a token,
    /// so that what stands against it is told and not fatal.
    pub fn leave(address: SocketAddr, folder: &DataFolder, printer: &Printer) -> Option<Self> {
        let write = || {
            let Some(servers) = servers_folder() else {
                return Err("neither XDG_STATE_HOME nor HOME names a folder for it".to_owned());
            };
            Self::write(&servers, address, folder.path()).map_err(|e| format!("{}: {e}", servers.display()))
        };
        write()
            .inspect_err(|reason| {
                printer.warn(&format!(
                    "your commands cannot find this coordinator by its address ({reason}); \
                     give them --data {} or a token",
                    folder.path().display()
                ));
            })
            .ok()
    }

    fn write(servers: &Path, address: SocketAddr, data: &Path) -> io::Result<Self> {
        durable::create_private_dir(servers)?;
        is_private(&fs::symlink_metadata(servers)?).map_err(io::Error::other)?;
        let path = servers.join(file_name(address.ip(), address.port()));
        let text = serde_json::to_string(&Contents { data: data.to_owned(), pid: std::process::id() })?;
        durable::write_private(&path, text.as_bytes())?;
        Ok(Self { path, text })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // A later coordinator on this address may have written its own.
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The owner's way to a coordinator of this machine.
#[derive(Debug)]
pub struct OwnersWay {
    /// The socket.
    pub endpoint: Endpoint,
    /// Keeps the path to a socket in a deep folder valid.
    folder: DataFolder,
}

impl OwnersWay {
    /// The way to what listens at `endpoint`, when this user has started it on this machine.
    pub fn find(endpoint: &Endpoint) -> Result<Option<Self>, Failure> {
        match servers_folder() {
            Some(servers) => Self::find_in(&servers, endpoint),
            None => Ok(None),
        }
    }

    fn find_in(servers: &Path, endpoint: &Endpoint) -> Result<Option<Self>, Failure> {
        let (Endpoint::Http { host, port } | Endpoint::Https { host, port, .. }) = endpoint else { return Ok(None) };
        for ip in addresses_behind(host) {
            let path = servers.join(file_name(ip, *port));
            if let Some(data) = read(servers, &path)? {
                let folder = open_data(&data, &path, endpoint)?;
                return Ok(Some(Self { endpoint: Endpoint::unix(folder.socket_path()), folder }));
            }
        }
        Ok(None)
    }

    /// Its data folder.
    pub fn data(&self) -> &Path {
        self.folder.path()
    }

    /// Checks that a process of this user answers on the socket.
    pub async fn check(&self, asked: &Endpoint) -> Result<(), Failure> {
        let path = self.folder.socket_path();
        let data = self.folder.path().display();
        match UnixStream::connect(&path).await.and_then(|stream| stream.peer_cred()) {
            Ok(peer) if peer.uid() == own_uid() => Ok(()),
            Ok(peer) => Err(not_ours(format!("the socket in {data} is served by another user ({})", peer.uid()))),
            Err(error) => Err(ended(asked, self.folder.path(), &error)),
        }
    }
}

/// Where records lie.
fn servers_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("planforge/servers"))
}

fn file_name(ip: IpAddr, port: u16) -> String {
    format!("{ip}_{port}")
}

/// The addresses on which a coordinator may listen that is reached as `host` on this machine; none for another host.
fn addresses_behind(host: &str) -> Vec<IpAddr> {
    let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    if host.eq_ignore_ascii_case("localhost") {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), v4, v6];
    }
    match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => vec![ip, v4, v6],
        _ => Vec::new(),
    }
}

/// The data folder that a record names; `None` where there is no record.
fn read(servers: &Path, path: &Path) -> Result<Option<PathBuf>, Failure> {
    let facts = match fs::symlink_metadata(path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(not_ours(format!("cannot read {}: {}", path.display(), io_reason(&error)))),
    };
    let around = fs::symlink_metadata(servers).map_err(|e| Failure::io("read", servers, &e))?;
    for (what, facts) in [(servers, &around), (path, &facts)] {
        if let Err(reason) = is_private(facts) {
            return Err(not_ours(format!("{} {reason}: it says how to get in, and is not believed", what.display()))
                .hint(format!("remove {}, or give a token: --token-file FILE", path.display())));
        }
    }
    if !facts.is_file() || facts.len() > RECORD_MAX_BYTES {
        return Err(not_ours(format!("{} is no record of a coordinator", path.display())));
    }
    let text = fs::read_to_string(path).map_err(|e| Failure::io("read the record", path, &e))?;
    let contents: Contents = serde_json::from_str(&text).map_err(|e| {
        Failure::usage(format!("{} is no record of a coordinator: {e}", path.display()))
            .hint("remove it, or give a token: --token-file FILE")
    })?;
    Ok(Some(contents.data))
}

/// Opens the data folder of a record, without making or changing anything there but the lock of its users.
fn open_data(data: &Path, record: &Path, asked: &Endpoint) -> Result<DataFolder, Failure> {
    let facts = fs::symlink_metadata(data).map_err(|error| ended(asked, data, &error))?;
    is_private(&facts).map_err(|reason| {
        not_ours(format!("{}, which {} names, {reason}", data.display(), record.display()))
            .hint("give a token: --token-file FILE")
    })?;
    let folder = DataFolder::open(data)?;
    let socket = folder.socket_path();
    match fs::symlink_metadata(&socket) {
        Ok(facts) if !facts.file_type().is_socket() || facts.uid() != own_uid() => {
            Err(not_ours(format!("the socket in {} is not this user's own", data.display())))
        }
        // One that has ended is looked at by whoever connects: an agent waits for the next.
        _ => Ok(folder),
    }
}

/// Why a file or folder is not this user's alone.
fn is_private(facts: &Metadata) -> Result<(), &'static str> {
    if facts.uid() != own_uid() {
        return Err("belongs to another user");
    }
    if facts.is_symlink() {
        return Err("is a link");
    }
    if facts.mode() & 0o077 != 0 { Err("is open to other users") } else { Ok(()) }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn not_ours(message: String) -> Failure {
    Failure::new(ErrorCode::Unauthenticated, message).hint("give a token: --token-file FILE")
}

fn ended(asked: &Endpoint, data: &Path, reason: &io::Error) -> Failure {
    let (data, reason) = (data.display(), io_reason(reason));
    Failure::new(
        ErrorCode::Unavailable,
        format!("the coordinator that you started at {asked} on {data} does not run any more: {reason}"),
    )
    .hint(format!("start it again with --data {data}; for another coordinator at that address give its token"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use tokio::net::UnixListener;

    const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7400);

    fn endpoint(host: &str, port: u16) -> Endpoint {
        Endpoint::Http { host: host.into(), port }
    }

    /// A folder of records, a data folder, and the record of a coordinator there.
    struct World {
        root: tempfile::TempDir,
        record: Record,
    }

    impl World {
        fn new(address: SocketAddr) -> Self {
            let root = tempfile::tempdir().unwrap();
            let folder = DataFolder::open(&root.path().join("data")).unwrap();
            let record = Record::write(&root.path().join("servers"), address, folder.path()).unwrap();
            Self { root, record }
        }

        fn servers(&self) -> PathBuf {
            self.root.path().join("servers")
        }

        fn find(&self, host: &str, port: u16) -> Result<Option<OwnersWay>, Failure> {
            OwnersWay::find_in(&self.servers(), &endpoint(host, port))
        }
    }

    #[tokio::test]
    async fn the_owner_finds_the_socket_and_a_record_goes_with_its_coordinator() {
        let world = World::new(ADDRESS);
        assert_eq!(fs::metadata(&world.record.path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(world.servers()).unwrap().mode() & 0o777, 0o700);
        let asked = endpoint("127.0.0.1", 7400);
        let way = world.find("127.0.0.1", 7400).unwrap().unwrap();
        let gone = way.check(&asked).await.unwrap_err();
        assert_eq!(gone.exit_code, 4, "nothing listens: {gone}");
        assert!(gone.to_string().contains("127.0.0.1:7400") && gone.hint.contains("--data"), "{gone}: {}", gone.hint);
        let _listener = UnixListener::bind(world.root.path().join("data/coordinator.sock")).unwrap();
        way.check(&asked).await.unwrap();
        assert!(matches!(&way.endpoint, Endpoint::Unix(path) if path.ends_with("coordinator.sock")));
        assert!(world.find("localhost", 7400).unwrap().is_some());
        for (host, port) in [("127.0.0.1", 7401), ("127.0.0.2", 7400), ("::1", 7400), ("farm.example", 7400)] {
            assert!(world.find(host, port).unwrap().is_none(), "{host}:{port}");
        }
        let World { root, record } = world;
        drop(record);
        assert_eq!(fs::read_dir(root.path().join("servers")).unwrap().count(), 0);
    }

    #[test]
    fn an_address_that_stands_for_all_is_found_by_loopback_names_alone() {
        let world = World::new(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 7400));
        for host in ["127.0.0.1", "127.0.0.9", "localhost"] {
            assert!(world.find(host, 7400).unwrap().is_some(), "{host}");
        }
        for host in ["10.0.0.1", "farm.example", "localhost.example"] {
            assert!(world.find(host, 7400).unwrap().is_none(), "{host}");
        }
    }

    #[test]
    fn a_record_that_others_could_have_written_is_refused() {
        let refused = |spoil: &dyn Fn(&World)| {
            let world = World::new(ADDRESS);
            spoil(&world);
            let failure = world.find("127.0.0.1", 7400).unwrap_err();
            assert_eq!(failure.exit_code, 5, "{failure}");
            assert!(failure.hint.contains("--token-file"), "{}", failure.hint);
        };
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o722)).unwrap();
        refused(&|world| open(&world.record.path));
        refused(&|world| open(&world.servers()));
        refused(&|world| open(&world.root.path().join("data")));
        refused(&|world| {
            let moved = world.root.path().join("moved");
            fs::rename(&world.record.path, &moved).unwrap();
            symlink(moved, &world.record.path).unwrap();
        });
        refused(&|world| fs::write(world.root.path().join("data/coordinator.sock"), "no socket").unwrap());
    }

    #[test]
    fn a_later_coordinators_record_stays() {
        let world = World::new(ADDRESS);
        let path = world.record.path.clone();
        fs::write(&path, "{\"data\":\"/elsewhere\",\"pid\":1}").unwrap();
        drop(world.record);
        assert!(path.exists());
    }
}
