//! The state of this host's CPU, from the kernel's files. What cannot be read is left out.

use super::{Telemetry, rapl::Packages, unix_ms};
use planforge_types::telemetry::{CpuTime, TelemetrySample};
use std::{fs, path::Path};

/// Length of one tick of `/proc/stat`; Linux fixes it at 100 a second for user space.
const TICK_MS: f64 = 10.0;

/// Threads of this process whose waiting is summed; a bound on the files opened per sample.
const MAX_THREADS: usize = 1024;

/// Reads `/proc` and `/sys`.
#[derive(Debug, Default)]
pub struct CpuTelemetry {
    packages: Packages,
}

impl Telemetry for CpuTelemetry {
    fn sample(&mut self) -> TelemetrySample {
        let load = fs::read_to_string("/proc/loadavg").ok();
        let (load_1m, runnable) = load.as_deref().and_then(parse_loadavg).unzip();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok();
        let memory = fs::read_to_string("/proc/meminfo").ok();
        TelemetrySample {
            at_unix_ms: unix_ms(),
            cpu_mhz: cpuinfo.as_deref().and_then(parse_mean_mhz),
            temperature_c: package_temperature(Path::new("/sys/class/thermal")),
            memory_used_mib: memory.as_deref().and_then(parse_memory_used_mib),
            load_1m,
            // The thread that reads is runnable too.
            runnable_others: runnable.map(|n: u32| n.saturating_sub(1)),
            cpu_time: cpu_time(),
            energy_uj: self.packages.used_uj(),
            ..TelemetrySample::default()
        }
    }
}

fn cpu_time() -> Option<CpuTime> {
    let mut time = parse_stat(&fs::read_to_string("/proc/stat").ok()?)?;
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten().take(MAX_THREADS) {
        // A thread may end between being listed and being read.
        let counters = fs::read_to_string(thread.path().join("schedstat")).ok();
        if let Some((busy_ms, wait_ms)) = counters.as_deref().and_then(parse_schedstat) {
            time.own_busy_ms += busy_ms;
            time.own_wait_ms += wait_ms;
        }
    }
    Some(time)
}

/// The first line of `/proc/stat`: user nice system idle iowait irq softirq steal, in ticks.
fn parse_stat(text: &str) -> Option<CpuTime> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
    let busy = user + nice + system + irq + softirq;
    Some(CpuTime {
        capacity_ms: (busy + idle + iowait + steal) * TICK_MS,
        busy_ms: busy * TICK_MS,
        steal_ms: steal * TICK_MS,
        ..CpuTime::default()
    })
}

/// Milliseconds a thread ran and waited, from nanoseconds.
fn parse_schedstat(text: &str) -> Option<(f64, f64)> {
    let mut fields = text.split_whitespace().map(|field| field.parse::<f64>().ok());
    Some((fields.next()?? / 1e6, fields.next()?? / 1e6))
}

/// One-minute load and the number of tasks that could run now.
fn parse_loadavg(text: &str) -> Option<(f64, u32)> {
    let mut fields = text.split_whitespace();
    let load = fields.next()?.parse().ok()?;
    let runnable = fields.nth(2)?.split_once('/')?.0.parse().ok()?;
    Some((load, runnable))
}

fn parse_mean_mhz(cpuinfo: &str) -> Option<u32> {
    let clocks: Vec<f64> = cpuinfo
        .lines()
        .filter_map(|line| line.strip_prefix("cpu MHz"))
        .filter_map(|rest| rest.rsplit(':').next()?.trim().parse().ok())
        .collect();
    (!clocks.is_empty()).then(|| (clocks.iter().sum::<f64>() / clocks.len() as f64).round() as u32)
}

fn parse_memory_used_mib(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(kib("MemTotal")?.saturating_sub(kib("MemAvailable")?) / 1024)
}

/// The processor package's temperature, where a thermal zone says that it is one.
fn package_temperature(zones: &Path) -> Option<f64> {
    fs::read_dir(zones).ok()?.flatten().find_map(|zone| {
        let kind = fs::read_to_string(zone.path().join("type")).ok()?.to_ascii_lowercase();
        if !kind.contains("pkg") && !kind.contains("cpu") {
            return None;
        }
        let millidegrees: f64 = fs::read_to_string(zone.path().join("temp")).ok()?.trim().parse().ok()?;
        Some(millidegrees / 1000.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_understood() {
        let time = parse_stat("cpu  100 20 30 1000 50 0 7 3 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!((time.busy_ms, time.steal_ms, time.capacity_ms), (1570.0, 30.0, 12_100.0));
        assert_eq!(parse_schedstat("276069624 71172783 47\n"), Some((276.069_624, 71.172_783)));
        assert_eq!(parse_loadavg("1.64 1.18 0.73 3/94 28849\n"), Some((1.64, 3)));
        assert_eq!(parse_mean_mhz("cpu MHz\t\t: 2000.0\nx\ncpu MHz\t\t: 3000.0\n"), Some(2500));
        assert_eq!(parse_memory_used_mib("MemTotal:  4096 kB\nMemFree: 1 kB\nMemAvailable: 2048 kB\n"), Some(2));
    }

    #[test]
    fn damaged_files_are_left_out() {
        for bad in ["", "cpu", "cpu 1 2", "intr 5"] {
            assert!(parse_stat(bad).is_none(), "{bad}");
        }
        assert!(parse_loadavg("x").is_none() && parse_schedstat("1").is_none() && parse_mean_mhz("").is_none());
        assert!(package_temperature(Path::new("/nonexistent")).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_of_this_process_shows_up_as_its_own() {
        let mut telemetry = CpuTelemetry::default();
        let before = telemetry.sample().cpu_time.unwrap();
        let mut sum = 0u64;
        // Until the kernel's counters have moved by two ticks.
        let after = loop {
            for i in 0..1_000_000u64 {
                sum = sum.wrapping_add(std::hint::black_box(i));
            }
            let now = telemetry.sample().cpu_time.unwrap();
            if now.own_busy_ms - before.own_busy_ms > 2.0 * TICK_MS {
                break now;
            }
        };
        std::hint::black_box(sum);
        assert!(after.capacity_ms >= before.capacity_ms && after.busy_ms >= before.busy_ms);
    }
}
