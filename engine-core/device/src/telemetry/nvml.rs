//! The state of one NVIDIA GPU through its management library. Only reads.

use super::{Telemetry, unix_ms, xid};
use crate::nvml::{
    Account, Clock, Device, Nvml, NvmlError, RunningProcess, ThrottleReasons, UtilizationSample, XidEvents,
};
use planforge_types::telemetry::{ForeignProcess, PassedProcess, TelemetrySample};
use std::{collections::BTreeSet, fs, thread, time::Duration};

const BYTES_PER_MIB: u64 = 1 << 20;
const US_PER_MS: u64 = 1000;
const UJ_PER_MJ: u64 = 1000;

/// A utilisation sample of the driver covers at most this long; boards take one every 170 ms to one second.
const UTILIZATION_PERIOD_MS: u64 = 1000;
/// How long after a window its last utilisation sample may come.
const UTILIZATION_DELAY: Duration = Duration::from_millis(250);

/// Reads one GPU.
#[derive(Debug)]
pub struct NvmlTelemetry {
    nvml: Nvml,
    uuid: String,
    /// Processes that used the GPU before this process could have.
    earlier: BTreeSet<u32>,
    /// Our own number as the library tells it, once it does.
    own: Option<u32>,
    buffers: Buffers,
    errors: Option<XidEvents>,
}

impl NvmlTelemetry {
    /// Opens the library. Call it before this process touches the GPU: inside a container the library tells process
    /// ids of the host, and a nameless newcomer is then taken for this process itself.
    pub fn open(uuid: &str) -> Result<Self, NvmlError> {
        Self::of(Nvml::open()?, uuid)
    }

    pub(crate) fn of(nvml: Nvml, uuid: &str) -> Result<Self, NvmlError> {
        let device = nvml.device_by_uuid(uuid)?;
        let earlier = processes(&device).iter().map(|process| process.pid).collect();
        let mut buffers = Buffers::default();
        buffers.read(&device, None);
        let errors = xid::watch(&device);
        Ok(Self { nvml, uuid: uuid.to_owned(), earlier, own: None, buffers, errors })
    }
}

/// The running processes that are not ours. `own` is kept up to date: it is this process's number where the library
/// tells it, else the nameless newcomer's, as long as that is listed.
fn foreign(running: Vec<RunningProcess>, earlier: &BTreeSet<u32>, own: &mut Option<u32>) -> Vec<ForeignProcess> {
    let listed = |pid: u32| running.iter().any(|process| process.pid == pid);
    let this = std::process::id();
    *own = listed(this).then_some(this).or(own.filter(|pid| listed(*pid))).or_else(|| {
        let pids = running.iter().map(|process| process.pid);
        pids.filter(|pid| !earlier.contains(pid)).find(|pid| process_name(*pid).is_empty())
    });
    let others = running.into_iter().filter(|process| Some(process.pid) != *own && process.pid != this);
    others
        .map(|process| ForeignProcess {
            pid: process.pid,
            name: process_name(process.pid),
            memory_mib: process.used_bytes.map(|bytes| bytes / BYTES_PER_MIB),
        })
        .collect()
}

fn processes(device: &Device<'_>) -> Vec<RunningProcess> {
    let mut all = device.running_compute_processes().unwrap_or_default();
    all.extend(device.running_graphics_processes().unwrap_or_default());
    all.sort_by_key(|process| process.pid);
    all.dedup_by_key(|process| process.pid);
    all
}

fn process_name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// What the driver keeps of processes, read up to some moment.
#[derive(Debug, Default)]
struct Buffers {
    /// Time of the newest utilisation sample that was read.
    utilization_us: u64,
    /// This process was among the samples under its own number. Until then nobody there can be told from it.
    knows_own: bool,
    /// Ended processes whose accounts were read.
    accounted: BTreeSet<u32>,
}

/// What came to the buffers since they were last read.
#[derive(Debug, Default)]
struct Buffered {
    processes: Vec<PassedProcess>,
    looked_in: Vec<String>,
}

impl Buffers {
    fn read(&mut self, device: &Device<'_>, own: Option<u32>) -> Buffered {
        let mut found = Buffered::default();
        let answered = match device.process_utilization(self.utilization_us) {
            Ok(samples) => {
                found.processes.extend(self.used(&samples, own));
                true
            }
            // Nothing used the device since.
            Err(error) => error.is_not_found(),
        };
        if answered && self.knows_own {
            found.looked_in.push("process-utilization".to_owned());
        }
        // Accounts of ended processes, where an administrator has the driver keep them.
        if !device.is_accounting_enabled().unwrap_or(false) {
            return found;
        }
        let Ok(pids) = device.accounting_pids() else { return found };
        found.looked_in.push("accounting".to_owned());
        for pid in pids {
            if !self.accounted.contains(&pid)
                && let Ok(account) = device.account_of(pid)
                && !account.is_running
            {
                self.accounted.insert(pid);
                found.processes.push(ended(pid, &account));
            }
        }
        found
    }

    /// The processes of new samples in which something was used, `own` apart.
    fn used(&mut self, samples: &[UtilizationSample], own: Option<u32>) -> Vec<PassedProcess> {
        let since_us = self.utilization_us;
        self.knows_own |= samples.iter().any(|sample| Some(sample.pid) == own);
        let new = samples.iter().filter(|sample| sample.pid != 0 && sample.timestamp_us > since_us);
        let mut found = Vec::new();
        for sample in new {
            self.utilization_us = self.utilization_us.max(sample.timestamp_us);
            let idle = sample.sm_percent + sample.memory_percent + sample.encoder_percent + sample.decoder_percent == 0;
            if idle || !self.knows_own || Some(sample.pid) == own {
                continue;
            }
            let to_unix_ms = sample.timestamp_us.div_ceil(US_PER_MS);
            let period_ms = to_unix_ms.saturating_sub(UTILIZATION_PERIOD_MS);
            found.push(PassedProcess {
                pid: sample.pid,
                name: process_name(sample.pid),
                from_unix_ms: period_ms.max(since_us / US_PER_MS),
                to_unix_ms,
            });
        }
        found
    }
}

fn ended(pid: u32, account: &Account) -> PassedProcess {
    let from_unix_ms = account.start_us / US_PER_MS;
    PassedProcess { pid, name: String::new(), from_unix_ms, to_unix_ms: from_unix_ms + account.time_ms.max(1) }
}

impl Telemetry for NvmlTelemetry {
    fn sample(&mut self) -> TelemetrySample {
        let xids = self.errors.as_ref().map(xid::since_last).unwrap_or_default();
        let empty = TelemetrySample { at_unix_ms: unix_ms(), xids, ..TelemetrySample::default() };
        let Ok(device) = self.nvml.device_by_uuid(self.uuid.as_str()) else { return empty };
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let foreign_processes = foreign(processes(&device), &self.earlier, &mut self.own);
        let Buffered { processes: passed_processes, looked_in } = self.buffers.read(&device, self.own);
        TelemetrySample {
            foreign_processes,
            passed_processes,
            looked_in,
            sm_clock_mhz: device.clock_mhz(Clock::Sm).ok(),
            memory_clock_mhz: device.clock_mhz(Clock::Memory).ok(),
            temperature_c: device.temperature_c().ok().map(f64::from),
            power_w: device.power_mw().ok().map(watts),
            power_limit_w: device.power_limit_mw().ok().map(watts),
            throttle: device.throttle_reasons().map(throttle_names).unwrap_or_default(),
            ecc_uncorrected: device.uncorrected_errors().ok(),
            utilization_percent: device.utilization_percent().ok().map(f64::from),
            memory_used_mib: device.memory().ok().map(|memory| memory.used / BYTES_PER_MIB),
            pcie_generation: device.pcie_generation().ok(),
            pcie_width: device.pcie_width().ok(),
            energy_uj: device.energy_mj().ok().map(|millijoules| millijoules.saturating_mul(UJ_PER_MJ)),
            ..empty
        }
    }

    fn settle(&mut self) {
        thread::park_timeout(UTILIZATION_DELAY);
    }
}

/// Stable names of what holds clocks down; idling and fixed clocks are no throttling.
fn throttle_names(reasons: ThrottleReasons) -> Vec<String> {
    let names = [
        (ThrottleReasons::SW_POWER_CAP, "power-cap"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "thermal"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware-thermal"),
        (ThrottleReasons::HW_SLOWDOWN, "hardware-slowdown"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power-brake"),
    ];
    names.iter().filter(|(flag, _)| reasons.contains(*flag)).map(|(_, name)| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::fake::{A100, Fake, H200};

    #[test]
    fn a_sample_holds_what_the_driver_tells() {
        let fake = Fake::new(&[]);
        let mut telemetry = NvmlTelemetry::of(fake.open(), H200).unwrap();
        let first = telemetry.sample();
        assert_eq!(first.xids, [31, 79]);
        assert_eq!(
            (first.sm_clock_mhz, first.memory_clock_mhz, first.temperature_c),
            (Some(345), Some(2619), Some(41.0))
        );
        assert_eq!((first.power_w, first.power_limit_w), (Some(112.5), Some(700.0)));
        assert_eq!(first.throttle, ["power-cap", "thermal"]);
        assert_eq!((first.ecc_uncorrected, first.utilization_percent), (Some(5_000_000_000), Some(37.0)));
        assert_eq!(first.memory_used_mib, Some(500));
        assert_eq!(first.foreign_processes.len(), 40, "{:?}", first.foreign_processes);
        // Accounts from before it was opened are not told; the processes of the samples cannot be told from ourselves.
        assert_eq!((first.passed_processes.len(), first.looked_in), (0, vec!["accounting".to_owned()]));
        assert_eq!((first.pcie_generation, first.pcie_width), (Some(5), Some(16)));
        let second = telemetry.sample();
        assert_eq!(second.xids, [] as [u64; 0], "each error once");
        let used = second.energy_uj.unwrap() - first.energy_uj.unwrap();
        assert_eq!(used, 1_000_000, "a joule, in microjoules");
    }

    #[test]
    fn a_board_that_tells_little_is_sampled_all_the_same() {
        let fake = Fake::new(&["OLD", "PROCESSES=1"]);
        let sample = NvmlTelemetry::of(fake.open(), A100).unwrap().sample();
        assert_eq!((sample.xids.len(), sample.foreign_processes.len()), (0, 0));
        assert_eq!((sample.sm_clock_mhz, sample.memory_used_mib), (Some(345), Some(1100)));
        assert_eq!((sample.pcie_generation, sample.pcie_width, sample.energy_uj), (Some(1), Some(8), None));
        assert!(NvmlTelemetry::of(fake.open(), "GPU-none").is_err());
    }

    /// Far above any number that a process of this host can have.
    const STRANGERS: [u32; 3] = [0x7fff_0001, 0x7fff_0002, 0x7fff_0003];

    fn running(pids: &[u32]) -> Vec<RunningProcess> {
        let process = |pid: &u32| RunningProcess { pid: *pid, used_bytes: None };
        pids.iter().map(process).collect()
    }

    fn foreign_pids(pids: &[u32], earlier: &[u32], own: &mut Option<u32>) -> Vec<u32> {
        let earlier = earlier.iter().copied().collect();
        foreign(running(pids), &earlier, own).into_iter().map(|process| process.pid).collect()
    }

    #[test]
    fn this_process_is_told_from_others() {
        let [first, second, third] = STRANGERS;
        let this = std::process::id();
        let mut own = None;
        assert_eq!(foreign_pids(&[this, first], &[], &mut own), [first]);
        assert_eq!(own, Some(this));
        // Inside a container: numbers of the host, where nothing has our name.
        let mut own = None;
        assert_eq!(foreign_pids(&[first], &[first], &mut own), [first]);
        assert_eq!(own, None, "it was there before us");
        assert_eq!(foreign_pids(&[first, third], &[first], &mut own), [first]);
        assert_eq!(own, Some(third));
        // A later one with a lower number does not take our place.
        assert_eq!(foreign_pids(&[second, third], &[first], &mut own), [second]);
        assert_eq!(own, Some(third));
    }

    fn used(pid: u32, timestamp_ms: u64, sm_percent: u32) -> UtilizationSample {
        let timestamp_us = timestamp_ms * US_PER_MS;
        UtilizationSample { pid, timestamp_us, sm_percent, memory_percent: 0, encoder_percent: 0, decoder_percent: 0 }
    }

    #[test]
    fn utilisation_samples_are_read_once_and_cover_the_time_before_them() {
        let [own, first, second] = STRANGERS;
        let mut buffers = Buffers::default();
        let read = |buffers: &mut Buffers, samples: &[UtilizationSample]| {
            let found = buffers.used(samples, Some(own));
            found.into_iter().map(|p| (p.pid, p.from_unix_ms, p.to_unix_ms)).collect::<Vec<_>>()
        };
        // As long as ours is not among them, each might be ours under another number.
        assert_eq!(read(&mut buffers, &[used(first, 4000, 40)]), []);
        let samples = [used(own, 5200, 90), used(first, 5200, 40), used(second, 5200, 0), used(0, 5200, 9)];
        assert_eq!(
            read(&mut buffers, &samples),
            [(first, 4200, 5200)],
            "who used nothing or has no number is left out"
        );
        // The same again, and one that is new: it was not before what had been read.
        assert_eq!(read(&mut buffers, &[used(first, 5200, 40), used(second, 5370, 1)]), [(second, 5200, 5370)]);
    }

    #[test]
    fn an_ended_process_used_the_device_as_long_as_its_account_says() {
        let account = Account { is_running: false, start_us: 7_000_000, time_ms: 300 };
        let process = ended(9, &account);
        assert_eq!((process.from_unix_ms, process.to_unix_ms), (7000, 7300));
        assert!(process.may_have_met(7299, 8000) && !process.may_have_met(7300, 8000));
    }
}
