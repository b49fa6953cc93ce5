//! Processes of this host, as `/proc` tells of them: who is who, and ending those that are ours.
//!
//! Process numbers are reused. A process is told apart by its number together with its start time, and everything an
//! attempt started by a marker in its environment, which every descendant inherits.

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use std::{fs, io::Read as _};

/// Name of the environment variable that marks every process of one attempt.
pub const MARKER_VARIABLE: &str = "PLANFORGE_ATTEMPT";
/// Most bytes of a process's environment that are searched for the marker.
const ENVIRONMENT_MAX_BYTES: u64 = 1 << 20;

/// One process, told apart from later ones of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks between boot and its start.
    pub started_ticks: u64,
}

impl ProcessId {
    /// The process that now has the number `pid`.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat_fields(&stat)?;
        // A zombie runs nothing and holds nothing.
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return None;
        }
        Some(Self { pid, started_ticks: fields.get(19)?.parse().ok()? })
    }

    /// This process.
    pub fn current() -> Option<Self> {
        Self::of(i32::try_from(std::process::id()).ok()?)
    }

    /// Whether that very process still runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    /// Sends `signal` to the group that this process leads, while it runs. Once it has ended its number may be anybody's;
    /// what it left behind is swept by whoever waits for it.
    pub fn signal_group(&self, signal: Signal) {
        if self.is_alive() {
            signal_group(self.pid, signal);
        }
    }
}

/// Tells this process's numbering of processes from that of other containers.
pub fn pid_namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// The fields of a stat line from the state on; the command before it may hold anything.
fn stat_fields(stat: &str) -> Option<Vec<&str>> {
    Some(stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().collect())
}

/// Whether a process was started with `marker` in its environment; not known of other users' processes.
pub fn carries(pid: i32, marker: &str) -> bool {
    let want = format!("{MARKER_VARIABLE}={marker}");
    let mut environment = Vec::new();
    let read = fs::File::open(format!("/proc/{pid}/environ"))
        .and_then(|file| file.take(ENVIRONMENT_MAX_BYTES).read_to_end(&mut environment));
    read.is_ok() && environment.split(|byte| *byte == 0).any(|entry| entry == want.as_bytes())
}

/// Processes whose environment holds `marker`, those of other users apart.
pub fn marked(marker: &str) -> Vec<i32> {
    let me = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| u32::try_from(*pid) != Ok(me))
        .filter(|pid| carries(*pid, marker))
        .filter(|pid| ProcessId::of(*pid).is_some())
        .collect()
}

/// Sends `signal` to a whole process group; a group that is gone is fine. For a leader that is not reaped yet: otherwise
/// see [`ProcessId::signal_group`].
pub fn signal_group(leader: i32, signal: Signal) {
    match killpg(Pid::from_raw(leader), signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => tracing::warn!(leader, %signal, %error, "cannot signal a worker's process group"),
    }
}

/// Kills every process that carries `marker`, also those that left their group. Returns how many were found.
pub fn kill_marked(marker: &str) -> usize {
    let found = marked(marker);
    for pid in &found {
        match kill(Pid::from_raw(*pid), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => tracing::warn!(pid, %error, "cannot kill a stray process of an attempt"),
        }
    }
    found.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_its_number() {
        let me = ProcessId::current().unwrap();
        assert!(me.is_alive());
        assert!(!ProcessId { started_ticks: me.started_ticks + 1, ..me }.is_alive());
    }

    #[test]
    fn stat_lines_with_odd_names_are_read() {
        let line = "12 (a) b (c)) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 0 0";
        assert_eq!(stat_fields(line).unwrap()[19], "777");
    }

    #[test]
    fn a_number_that_another_process_has_now_is_not_signalled() {
        use std::os::unix::process::CommandExt as _;
        let mut child = std::process::Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let id = ProcessId::of(child.id().cast_signed()).unwrap();
        let before = ProcessId { started_ticks: id.started_ticks - 1, ..id };
        before.signal_group(Signal::SIGKILL);
        assert!(id.is_alive() && child.try_wait().unwrap().is_none(), "another process was killed");
        id.signal_group(Signal::SIGKILL);
        assert!(!child.wait().unwrap().success());
        id.signal_group(Signal::SIGKILL);
    }
}
