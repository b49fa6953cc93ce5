//! Being asked to end, or to read files again.

use std::{fs, pin::pin};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Completes when the user or the system asks this process to end.
pub async fn interrupted() {
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(stream) => stream,
        Err(_) => return std::future::pending().await,
    };
    tokio::select! {
        result = tokio::signal::ctrl_c() => if result.is_err() { std::future::pending::<()>().await },
        _ = terminate.recv() => {}
    }
}

/// The same for a service. SIGHUP asks it to read its certificates again; only where its terminal went away it means the
/// end, as it does for everything else that was started there.
pub async fn service_ended(reload: impl Fn()) {
    let mut hangups = Hangups::listen();
    let mut ended = pin!(interrupted());
    loop {
        tokio::select! {
            () = &mut ended => return,
            gone = hangups.terminal_gone() => if gone { return } else { reload() },
        }
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
        match &mut self.signal {
            Some(signal) => signal.recv().await,
            None => std::future::pending().await,
        };
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
