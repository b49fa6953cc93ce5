//! The device's state while a program runs beside this process: what the program does there is the measurement, not a
//! disturbance of it.

use planforge_device::telemetry::Telemetry;
use planforge_types::telemetry::TelemetrySample;
use std::{collections::BTreeSet, fs};

/// Processes looked at for children of the program's, and threads of each: bounds of what one look reads.
const PROCESSES_MAX: usize = 65_536;
const THREADS_MAX: usize = 1024;

/// What `inner` tells, the program and its children apart.
pub(super) struct WithProgram<'a> {
    inner: &'a mut dyn Telemetry,
    root: u32,
    /// Processes that the device told of before the program started, by the numbers that it knows them by.
    before: BTreeSet<u32>,
    /// Those that came with it: a driver may number processes in another way than this system does.
    with_it: Option<BTreeSet<u32>>,
}

impl<'a> WithProgram<'a> {
    /// `before` is what the device told before the program started, which is process `root`.
    pub fn new(inner: &'a mut dyn Telemetry, before: &TelemetrySample, root: u32) -> Self {
        let before = before.foreign_processes.iter().map(|process| process.pid).collect();
        Self { inner, root, before, with_it: None }
    }
}

impl Telemetry for WithProgram<'_> {
    fn sample(&mut self) -> TelemetrySample {
        let mut sample = self.inner.sample();
        let family = family(self.root);
        // The first look comes once the program is ready: what is new on the device by then is the program.
        let with_it = self.with_it.get_or_insert_with(|| {
            let told = sample.foreign_processes.iter().map(|process| process.pid);
            told.filter(|pid| !self.before.contains(pid)).collect()
        });
        let ours = |pid: u32| family.contains(&pid) || with_it.contains(&pid);
        sample.foreign_processes.retain(|process| !ours(process.pid));
        sample.passed_processes.retain(|process| !ours(process.pid));
        if let Some(time) = &mut sample.cpu_time {
            for (busy_ms, wait_ms) in family.iter().flat_map(|pid| threads(*pid)) {
                time.own_busy_ms += busy_ms;
                time.own_wait_ms += wait_ms;
            }
        }
        sample
    }

    fn settle(&mut self) {
        self.inner.settle();
    }
}

/// The process and everything that descends from it.
fn family(root: u32) -> BTreeSet<u32> {
    let parent_of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold spaces and brackets; state and parent follow the last of those.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten().take(PROCESSES_MAX);
    let all: Vec<(u32, u32)> = listed
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent_of(pid)?)))
        .collect();
    let mut family = BTreeSet::from([root]);
    loop {
        let more: Vec<u32> = all
            .iter()
            .filter(|(pid, parent)| family.contains(parent) && !family.contains(pid))
            .map(|one| one.0)
            .collect();
        if more.is_empty() {
            return family;
        }
        family.extend(more);
    }
}

/// Milliseconds that each thread of a process ran and waited.
fn threads(pid: u32) -> Vec<(f64, f64)> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(THREADS_MAX);
    let counters = listed.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
    counters
        .filter_map(|text| {
            let mut fields = text.split_whitespace().map(|field| field.parse::<f64>().ok());
            Some((fields.next()?? / 1e6, fields.next()?? / 1e6))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::telemetry::{CpuTime, ForeignProcess};
    use std::process::{Command, Stdio};

    /// Tells the same again and again.
    struct Told(TelemetrySample);

    impl Telemetry for Told {
        fn sample(&mut self) -> TelemetrySample {
            self.0.clone()
        }
    }

    fn process(pid: u32) -> ForeignProcess {
        ForeignProcess { pid, name: "x".into(), memory_mib: None }
    }

    #[test]
    fn the_program_and_what_it_started_are_no_strangers() {
        // A shell with a child of its own, which computes and stays until it is told to end: what a shell puts into the
        // background would read from nothing, and be gone before anybody looks.
        let mut shell = Command::new("sh")
            .args(["-c", "exec 3<&0; (i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; cat <&3) & wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        assert_eq!(line, "done\n");
        let found = family(shell.id());
        assert!(found.len() >= 2 && found.contains(&shell.id()), "{found:?}");
        let child = *found.iter().find(|pid| **pid != shell.id()).unwrap();
        let time = CpuTime { own_busy_ms: 1.0, ..CpuTime::default() };
        let before = TelemetrySample { foreign_processes: vec![process(7)], ..TelemetrySample::default() };
        let now = TelemetrySample {
            // 4,000,007 is how the driver numbers the program.
            foreign_processes: vec![process(7), process(child), process(4_000_007)],
            cpu_time: Some(time),
            ..TelemetrySample::default()
        };
        let mut told = Told(now);
        let mut watched = WithProgram::new(&mut told, &before, shell.id());
        let sample = watched.sample();
        assert_eq!(sample.foreign_processes, [process(7)]);
        assert!(sample.cpu_time.unwrap().own_busy_ms > 1.0);
        // Who comes later is a stranger.
        watched.inner = Box::leak(Box::new(Told(TelemetrySample {
            foreign_processes: vec![process(4_000_007), process(4_000_008)],
            ..TelemetrySample::default()
        })));
        assert_eq!(watched.sample().foreign_processes, [process(4_000_008)]);
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
