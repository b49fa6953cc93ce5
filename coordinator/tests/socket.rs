//! The Unix socket asks the kernel who is at the other end: a file's mode is not all that keeps others out.

use planforge_coordinator::server::{Coordinator, CoordinatorConfig};
use rustix::{process::Uid, thread::set_thread_res_uid};
use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::Path,
    time::Duration,
};
use tempfile::TempDir;

const NOBODY: u32 = 65_534;
const REQUEST: &[u8] = b"GET /api/v1/info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// What the socket answers to a process of that user. The user of a thread is its own on Linux, and connections carry
/// that of the thread that opens them.
fn ask_as(uid: u32, socket: &Path) -> String {
    let socket = socket.to_owned();
    let asking = std::thread::spawn(move || {
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).expect("root may become anybody");
        let mut stream = UnixStream::connect(&socket).expect("the file's mode lets everybody in");
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The other end may be closed already.
        let _ = stream.write_all(REQUEST);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    });
    asking.join().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_refused_on_the_socket_whatever_its_mode() {
    if !rustix::process::geteuid().is_root() {
        return planforge_skipped::skipped("only root can come as another user");
    }
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let mut config = CoordinatorConfig::new(&data);
    let socket = data.join("coordinator.sock");
    config.unix_socket = Some(socket.clone());
    let coordinator = Coordinator::start(config).await.unwrap();
    for path in [folder.path(), &data, &socket] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let answers = tokio::task::spawn_blocking(move || (ask_as(0, &socket), ask_as(NOBODY, &socket))).await.unwrap();
    assert!(answers.0.starts_with("HTTP/1.1 200") && answers.0.contains(r#""actor":"local""#), "{}", answers.0);
    assert_eq!(answers.1, "", "nobody hears nothing");
    coordinator.shutdown().await;
}
