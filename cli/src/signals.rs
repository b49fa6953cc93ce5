//! Being asked to end, or to read files again.

use std::fs;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Completes when the user or the system asks this process to end.
pub async fn interrupted() {
    Ends::listen().next().await;
}

/// The same for a service.
pub async fn service_ended(reload: impl Fn()) {
    Asked::listen().until_ended(reload).await;
}

/// What a service is asked, from when this is made: what is sent before it is looked at is not lost. Once a process listens, a
/// signal that nobody listens to has no effect at all, so there is one of these from the first to the last.
pub struct Asked {
    ends: Ends,
    hangups: Hangups,
}

impl Asked {
    pub fn listen() -> Self {
        Self { ends: Ends::listen(), hangups: Hangups::listen() }
    }

    /// Completes when the service is asked to end. SIGHUP asks it to read its certificates again; only where its terminal
    /// went away it means the end, as it does for everything else that was started there.
    pub async fn until_ended(&mut self, reload: impl Fn()) {
        loop {
            tokio::select! {
                () = self.ends.next() => return,
                gone = self.hangups.terminal_gone() => if gone { return } else { reload() },
            }
        }
    }
}

struct Ends {
    terminate: Option<Signal>,
    interrupt: Option<Signal>,
}

impl Ends {
    fn listen() -> Self {
        Self { terminate: signal(SignalKind::terminate()).ok(), interrupt: signal(SignalKind::interrupt()).ok() }
    }

    async fn next(&mut self) {
        tokio::select! {
            () = next(&mut self.terminate) => {}
            () = next(&mut self.interrupt) => {}
        }
    }
}

/// The next of a signal; none comes where it cannot be listened to.
async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

struct Hangups {
    signal: Option<Signal>,
    /// There is a terminal whose end counts: under nohup it does not.
    terminal: bool,
}

impl Hangups {
    fn listen() -> Self {
        let ignored = fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangups(&status));
        Self { terminal: !ignored && has_terminal(), signal: signal(SignalKind::hangup()).ok() }
    }

    /// The next SIGHUP: whether it says that the terminal is gone.
    async fn terminal_gone(&mut self) -> bool {
        next(&mut self.signal).await;
        self.terminal && !has_terminal()
    }
}

fn has_terminal() -> bool {
    fs::read_to_string("/proc/self/stat").is_ok_and(|stat| names_terminal(&stat))
}

/// Whether a process with these figures has a controlling terminal: their seventh, behind its name in parentheses.
fn names_terminal(stat: &str) -> bool {
    let figures = stat.rsplit_once(") ").map_or("", |(_, figures)| figures);
    figures.split(' ').nth(4).is_some_and(|terminal| terminal != "0")
}

/// Whether a process with this status was started with SIGHUP ignored.
fn ignores_hangups(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_sent_before_anybody_waits_is_not_lost() {
        let mut asked = Asked::listen();
        let own = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &own]).status().unwrap().success());
        let ended = asked.until_ended(|| unreachable!("SIGTERM is no SIGHUP"));
        tokio::time::timeout(std::time::Duration::from_secs(60), ended).await.unwrap();
    }

    #[test]
    fn ignored_hangups_are_seen_in_the_processs_status() {
        assert!(ignores_hangups("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangups("SigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangups("SigBlk:\t0000000000000001\n"));
    }

    #[test]
    fn a_terminal_is_seen_in_the_processs_figures() {
        assert!(names_terminal("7 (a b) (c) S 1 7 7 34816 7 4194560"));
        assert!(!names_terminal("7 (planforge) S 1 7 7 0 -1 4194560"));
        assert!(!names_terminal("nonsense"));
    }
}
