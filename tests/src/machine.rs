//! Disks that a test fills, and clocks that it sets, of programs that run beside others on this machine.

use std::{
    env, fs,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Takes up what room is left, below a disk's folder.
const FILLER: &str = "filler";

/// Small disks, each mounted on a folder, that only programs see that were let in.
#[derive(Debug)]
pub struct Disks {
    /// Keeps the mounts for as long as it runs.
    keeper: Child,
    /// It has a user namespace too: whoever is not root may mount there alone.
    is_users: bool,
}

impl Disks {
    /// Mounts a disk of `mib` on each of the folders.
    ///
    /// # Errors
    /// Nothing can be mounted here; what was said instead.
    pub fn mount(folders: &[PathBuf], mib: u32) -> Result<Self, String> {
        let is_users = fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0);
        let script = "size=$1; shift; for folder; do mount -t tmpfs -o size=\"$size\" tmpfs \"$folder\" || exit 1; done; \
                      echo mounted; read -r forever";
        let mut command = Command::new("unshare");
        command.arg(if is_users { "-rm" } else { "-m" }).args(["sh", "-c", script, "sh", &format!("{mib}m")]);
        command.args(folders).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut keeper = command.spawn().map_err(|error| error.to_string())?;
        let mut line = String::new();
        let out = keeper.stdout.take().expect("its output is piped");
        let read = BufReader::new(out).read_line(&mut line);
        if read.is_ok() && line.trim() == "mounted" {
            return Ok(Self { keeper, is_users });
        }
        let output = keeper.wait_with_output().map_err(|error| error.to_string())?;
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// The command, run where the disks are.
    pub fn enter(&self, command: &Command) -> Command {
        let mut entering = Command::new("nsenter");
        entering.args(["-t", &self.keeper.id().to_string(), "-m"]);
        if self.is_users {
            entering.args(["-U", "--preserve-credentials"]);
        }
        // The namespace begins at its root.
        entering.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]);
        entering.arg(command.get_current_dir().unwrap_or(Path::new("/"))).arg(command.get_program());
        entering.args(command.get_args()).stdin(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => entering.env(name, value),
                None => entering.env_remove(name),
            };
        }
        entering
    }

    /// Where a path on one of the disks is found from outside.
    pub fn seen(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Takes the last byte of the disk on `folder`.
    pub fn fill(&self, folder: &Path) {
        let path = self.seen(folder).join(FILLER);
        let mut filler = File::options().create(true).append(true).open(path).expect("a file on the small disk");
        for piece in [1 << 20, 4096, 1] {
            while filler.write_all(&vec![0x5a; piece]).is_ok() {}
        }
    }

    /// Gives back what [`Self::fill`] took.
    pub fn free(&self, folder: &Path) {
        let _ = fs::remove_file(self.seen(folder).join(FILLER));
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// A clock that programs go by which were given it.
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    shift: PathBuf,
    file: File,
}

impl Clock {
    /// A clock of the name, which is right at first.
    ///
    /// # Errors
    /// What it is made of cannot be compiled here; what was said instead.
    pub fn new(folder: &Path, name: &str) -> Result<Self, String> {
        let library = folder.join("clock.so");
        if !library.exists() {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/clock.c");
            let mut compile = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
            compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
            let output = compile.output().map_err(|error| format!("cc: {error}"))?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
        let shift = folder.join(format!("{name}.shift"));
        let file = File::options().create(true).truncate(true).write(true).open(&shift);
        let clock = Self { library, shift, file: file.map_err(|error| error.to_string())? };
        clock.set(0);
        Ok(clock)
    }

    /// Has a program go by it.
    pub fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("CLOCK_SHIFT", &self.shift);
    }

    /// Sets it off by so many seconds, for all that go by it.
    pub fn set(&self, off_s: i64) {
        self.file.write_all_at(&off_s.to_ne_bytes(), 0).expect("the test's folder is writable");
    }
}
