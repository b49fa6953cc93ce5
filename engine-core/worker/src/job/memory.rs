//! The highest resident memory of a job, of its build and of its runs, each for itself.
//!
//! The kernel keeps one highest value for a process (`VmHWM`), and sets it back to what is resident now when asked to
//! (`/proc/self/clear_refs`, 5). What a build left behind in the process therefore counts for the runs too, as it does on
//! a host that builds and runs in one process. Builds and runs of some backends are processes of their own: of those that
//! ended the kernel keeps the highest value as well, which is theirs where it rose meanwhile.

use nix::sys::resource::{UsageWho, getrusage};
use std::{cell::Cell, fs};

const BYTES_PER_KIB: u64 = 1024;

/// Sets this process's highest value back.
const RESET: &str = "5";

/// The highest values so far; none where the kernel does not tell, or does not set them back.
#[derive(Debug, Default)]
pub(super) struct PeakMemory {
    process: Cell<Option<u64>>,
    build: Cell<Option<u64>>,
    run: Cell<Option<u64>>,
}

impl PeakMemory {
    /// While something is built, by this process or by others that it waits for.
    pub fn of_build<T>(&self, work: impl FnOnce() -> T) -> T {
        let (result, own, others) = self.during(work);
        // The processes that measured the build before this one must not count for it.
        let others = others.filter(|_| self.build.get().is_none());
        raise(&self.build, own.max(others));
        result
    }

    /// While an engine is loaded or runs; `elsewhere` says of what came of it whether that was in other processes.
    pub fn of_run<T>(&self, elsewhere: impl FnOnce(&T) -> bool, work: impl FnOnce() -> T) -> T {
        let (result, own, others) = self.during(work);
        raise(&self.run, if elsewhere(&result) { others } else { own });
        result
    }

    /// Of the whole process so far.
    pub fn of_process(&self) -> Option<u64> {
        raise(&self.process, resident_peak());
        self.process.get()
    }

    pub fn of_builds(&self) -> Option<u64> {
        self.build.get()
    }

    pub fn of_runs(&self) -> Option<u64> {
        self.run.get()
    }

    /// Runs `work`, and tells the highest value of this process meanwhile, and that of others where it rose.
    fn during<T>(&self, work: impl FnOnce() -> T) -> (T, Option<u64>, Option<u64>) {
        raise(&self.process, resident_peak());
        let is_reset = fs::write("/proc/self/clear_refs", RESET).is_ok();
        let before = children_peak();
        let result = work();
        let own = resident_peak();
        raise(&self.process, own);
        (result, own.filter(|_| is_reset), children_peak().filter(|after| Some(*after) > before))
    }
}

fn raise(known: &Cell<Option<u64>>, more: Option<u64>) {
    known.set(known.get().max(more));
}

/// Highest resident memory of this process since it was set back, as the kernel counted it.
fn resident_peak() -> Option<u64> {
    parse_peak(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * BYTES_PER_KIB)
}

/// Highest resident memory of any process that this one waited for.
fn children_peak() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    Some(u64::try_from(usage.max_rss()).ok()? * BYTES_PER_KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Much more than anything else of the tests holds.
    const MUCH: usize = 256 << 20;

    #[test]
    fn peak_memory_is_read_in_bytes() {
        assert_eq!(parse_peak("Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_peak("VmHWM: x"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_build_took_is_told_apart_from_what_a_run_takes() {
        let memory = PeakMemory::default();
        let take = |bytes: usize| std::hint::black_box(vec![1u8; bytes]).len();
        assert_eq!(memory.of_build(|| take(MUCH)), MUCH);
        memory.of_run(|_| false, || take(1 << 20));
        let process = memory.of_process().expect("Linux tells it");
        assert!(process > MUCH as u64, "{process}");
        let (Some(build), Some(run)) = (memory.of_builds(), memory.of_runs()) else {
            return planforge_skipped::skipped("this process may not set its highest memory back");
        };
        assert!(build > MUCH as u64 && run + MUCH as u64 / 2 < build, "{build} and {run}");
        assert_eq!(process, build);
        // A later, smaller one takes nothing away.
        memory.of_build(|| take(1 << 20));
        assert_eq!(memory.of_builds(), Some(build));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_of_another_process_counts_where_the_work_is_done_there() {
        let memory = PeakMemory::default();
        let child = || std::process::Command::new("true").status().expect("true runs");
        memory.of_run(|_| true, child);
        assert!(memory.of_runs().is_some_and(|bytes| bytes > 0), "{:?}", memory.of_runs());
        // It did not rise again: nobody can tell whose it was.
        let known = PeakMemory::default();
        known.of_run(|_| true, || ());
        assert_eq!(known.of_runs(), None);
    }
}
