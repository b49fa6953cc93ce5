//! Which process has a file's lock, by the kernel's word: for locks whose holder left no note, or another user's.

use std::{
    fmt,
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
};

/// A process that has taken a file's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub pid: i32,
    /// Its program, where `/proc` shows it.
    pub command: Option<String>,
    /// Its user, where `/proc` shows the process.
    pub uid: Option<u32>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command.as_deref().unwrap_or("whose program is hidden");
        write!(f, "process {} ({command}", self.pid)?;
        match self.uid {
            Some(uid) => write!(f, ", uid {uid})"),
            None => f.write_str(")"),
        }
    }
}

impl Owner {
    /// Who has taken the lock of `file`; `None` when nobody has, or nobody that can be seen from here: processes of other
    /// containers cannot.
    pub fn of(file: &File) -> Option<Self> {
        let facts = file.metadata().ok()?;
        let pid = holder_of(&fs::read_to_string("/proc/locks").ok()?, facts.dev(), facts.ino())?;
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned());
        let uid = fs::metadata(format!("/proc/{pid}")).ok().map(|facts| facts.uid());
        Some(Self { pid, command, uid })
    }
}

/// The process that holds a whole-file lock on the inode, in a text such as
/// `3: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`. Who waits has an arrow in the second place.
fn holder_of(locks: &str, device: u64, inode: u64) -> Option<i32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let id = format!("{major:02x}:{minor:02x}:{inode}");
    let line = locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&id.as_str())).then_some(fields)
    })?;
    // A process that cannot be seen from here has the number 0 or -1.
    line.get(4)?.parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_and_who_waits_is_not() {
        let locks = "1: POSIX  ADVISORY  WRITE 9 fe:00:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 8 fe:00:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 1234 fe:00:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 fe:00:78 0 EOF\n";
        let device = rustix::fs::makedev(0xfe, 0);
        assert_eq!(holder_of(locks, device, 77), Some(1234));
        assert_eq!(holder_of(locks, device, 78), None, "it cannot be seen from here");
        assert_eq!(holder_of(locks, device, 79), None);
        assert_eq!(holder_of(locks, rustix::fs::makedev(0xfe, 1), 77), None);
    }

    #[test]
    fn a_file_that_nobody_locked_has_no_owner() {
        assert_eq!(Owner::of(&tempfile::tempfile().unwrap()), None);
    }
}
