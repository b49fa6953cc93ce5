//! A PostgreSQL server of a test's own: made in a temporary folder, reached over a Unix socket there, as careful about its
//! disk as it is by default, and ended with the test.
//!
//! PostgreSQL refuses to run as root; then it runs as the user that Debian's package makes for it, or as nobody.

use planforge_skipped::skipped;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::{
    fs,
    io::{self, Seek as _, Write as _},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Where Debian's packages lie, by version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Users that a server may run as where the test is root's.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// Long enough for a loaded machine.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const LOOKS: Duration = Duration::from_millis(20);
/// Its administrator.
const ADMIN: &str = "postgres";

/// Its programs, and whom they run as.
#[derive(Clone, Debug)]
struct Programs {
    folder: PathBuf,
    /// `None`: as whoever runs the test.
    user: Option<User>,
}

#[derive(Clone, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

impl Programs {
    /// The newest that is installed; else what is missing.
    fn find() -> Result<Self, String> {
        let newest = fs::read_dir(DEBIAN).into_iter().flatten().flatten().filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            let folder = entry.path().join("bin");
            folder.join("initdb").exists().then_some((version, folder))
        });
        let Some((_, folder)) = newest.max() else {
            return Err(format!("there is no PostgreSQL server below {DEBIAN}"));
        };
        if !geteuid().is_root() {
            return Ok(Self { folder, user: None });
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let number = |name: &str| {
            let fields: Vec<&str> =
                users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|f| f[0] == name)?;
            Some(User { uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()? })
        };
        match USERS.into_iter().find_map(number) {
            Some(user) => Ok(Self { folder, user: Some(user) }),
            None => Err("PostgreSQL does not run as root, and there is no other user for it".to_owned()),
        }
    }

    /// A program as that user; it ends with the test.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "INT"]);
        if let Some(User { uid, gid }) = &self.user {
            command.args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()]);
        }
        command.arg(self.folder.join(program)).stdin(Stdio::null()).env("LC_ALL", "C").current_dir("/");
        command
    }
}

/// Runs a program to its end.
fn run(mut command: Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    output
}

/// A server that runs. Its folder goes with it.
#[derive(Debug)]
pub struct Server {
    programs: Programs,
    folder: TempDir,
    child: Option<Child>,
}

impl Server {
    /// Makes and starts one; `None`, and told, where there is no PostgreSQL.
    pub fn start() -> Option<Self> {
        let programs = match Programs::find() {
            Ok(programs) => programs,
            Err(why) => {
                skipped(why);
                return None;
            }
        };
        let server = Self::new(programs);
        let mut made = server.programs.command("initdb");
        made.args([
            "--no-sync",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--username",
            ADMIN,
            "--pgdata",
        ]);
        made.arg(server.data());
        run(made);
        Some(server.running())
    }

    /// A replica of this one, which follows it.
    pub fn replica(&self) -> Self {
        let server = Self::new(self.programs.clone());
        let mut copied = self.programs.command("pg_basebackup");
        copied.args(["--checkpoint=fast", "--write-recovery-conf", "--no-sync", "--username", ADMIN, "--host"]);
        copied.arg(self.socket_folder()).arg("--pgdata").arg(server.data());
        run(copied);
        server.running()
    }

    fn new(programs: Programs) -> Self {
        let folder = tempfile::tempdir().expect("the folder for temporary files is writable");
        if let Some(User { uid, gid }) = &programs.user {
            chown(folder.path(), Some(*uid), Some(*gid)).expect("root may give folders away");
        }
        Self { programs, folder, child: None }
    }

    fn running(mut self) -> Self {
        self.begin();
        self
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The folder that it lies in, with its socket.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts it, where it has ended.
    #[expect(clippy::disallowed_methods, reason = "waits on the server, with a deadline")]
    pub fn begin(&mut self) {
        let log = fs::File::create(self.folder.path().join("log")).expect("the server's folder is writable");
        let mut command = self.programs.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.socket_folder());
        // No port; memory and connections for a test.
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=32MB", "-c", "max_connections=60"]);
        command.stdout(log.try_clone().expect("a file handle can be cloned")).stderr(log);
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let until = Instant::now() + STARTS_WITHIN;
        while !self.psql("postgres", "SELECT 1").is_ok_and(|answer| answer.status.success()) {
            assert!(Instant::now() < until, "PostgreSQL does not start:\n{}", self.log());
            sleep(LOOKS);
        }
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Ends it at once, as a crash does.
    pub fn crash(&mut self) {
        self.end(Signal::QUIT);
    }

    fn end(&mut self, how: Signal) {
        if let Some(mut child) = self.child.take() {
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // It may have ended by itself.
                let _ = kill_process(pid, how);
            }
            let _ = child.wait();
        }
    }

    fn psql(&self, database: &str, sql: &str) -> io::Result<Output> {
        let mut command = self.programs.command("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", ADMIN, "-d", database, "-c", sql, "-h"]);
        command.arg(self.socket_folder()).output()
    }

    /// Runs a statement as its administrator; its first column as text.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let answer = self.psql(database, sql).expect("psql is there");
        assert!(answer.status.success(), "{sql}: {}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8_lossy(&answer.stdout).trim().to_owned()
    }

    /// The same; `None` where the server does not answer, or refuses.
    pub fn try_sql(&self, database: &str, sql: &str) -> Option<String> {
        let answer = self.psql(database, sql).ok().filter(|answer| answer.status.success())?;
        Some(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    }

    /// Makes an empty database and says how it is reached.
    pub fn database(&self, name: &str) -> String {
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(ADMIN, name)
    }

    /// A copy of a database while it is written to, as `pg_dump` makes it.
    pub fn dump(&self, database: &str) -> Vec<u8> {
        let mut dump = self.programs.command("pg_dump");
        dump.args(["--format=custom", "-U", ADMIN, "-d", database, "-h"]).arg(self.socket_folder());
        run(dump).stdout
    }

    /// Puts such a copy in the place of a database that nobody uses.
    pub fn restore(&self, database: &str, copy: &[u8]) {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(copy).and_then(|()| file.rewind()).expect("room for a copy");
        self.sql("postgres", &format!("DROP DATABASE IF EXISTS {database}"));
        self.sql("postgres", &format!("CREATE DATABASE {database}"));
        let mut restore = self.programs.command("pg_restore");
        restore.args(["--exit-on-error", "-U", ADMIN, "-d", database, "-h"]).arg(self.socket_folder()).stdin(file);
        run(restore);
    }

    /// How a user reaches a database.
    pub fn url(&self, user: &str, database: &str) -> String {
        let folder = self.socket_folder().to_string_lossy().replace('/', "%2F");
        format!("postgres://{user}@localhost/{database}?host={folder}")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Signal::INT);
    }
}
