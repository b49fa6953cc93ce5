//! The state of one NVIDIA GPU through its management library. Only reads.

use super::{ForeignProcess, Telemetry, TelemetrySample, unix_ms};
use crate::device::gpu::open_nvml;
use nvml_wrapper::{
    Device, Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor},
    enums::device::UsedGpuMemory,
    error::NvmlError,
    struct_wrappers::device::ProcessInfo,
};
use std::{collections::BTreeSet, fs};

const BYTES_PER_MIB: u64 = 1 << 20;

/// Reads one GPU.
#[derive(Debug)]
pub struct NvmlTelemetry {
    nvml: Nvml,
    uuid: String,
    /// Processes that used the GPU before this process could have.
    earlier: BTreeSet<u32>,
}

impl NvmlTelemetry {
    /// Opens the library. Call it before this process touches the GPU: inside a container the library tells process
    /// ids of the host, and a nameless newcomer is then taken for this process itself.
    pub fn open(uuid: &str) -> Result<Self, NvmlError> {
        let nvml = open_nvml()?;
        let earlier = processes(&nvml.device_by_uuid(uuid)?).iter().map(|process| process.pid).collect();
        Ok(Self { nvml, uuid: uuid.to_owned(), earlier })
    }

    fn foreign(&self, device: &Device<'_>) -> Vec<ForeignProcess> {
        let own = std::process::id();
        let running = processes(device);
        let own_is_listed = running.iter().any(|process| process.pid == own);
        let mut newcomer_taken = own_is_listed;
        let mut foreign = Vec::new();
        for process in running {
            let name = process_name(process.pid);
            let could_be_us = name.is_empty() && !self.earlier.contains(&process.pid);
            if process.pid == own || (could_be_us && !std::mem::replace(&mut newcomer_taken, true)) {
                continue;
            }
            let memory_mib = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes / BYTES_PER_MIB),
                UsedGpuMemory::Unavailable => None,
            };
            foreign.push(ForeignProcess { pid: process.pid, name, memory_mib });
        }
        foreign
    }
}

fn processes(device: &Device<'_>) -> Vec<ProcessInfo> {
    let mut all = device.running_compute_processes().unwrap_or_default();
    all.extend(device.running_graphics_processes().unwrap_or_default());
    all.sort_by_key(|process| process.pid);
    all.dedup_by_key(|process| process.pid);
    all
}

fn process_name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

impl Telemetry for NvmlTelemetry {
    fn sample(&mut self) -> TelemetrySample {
        let empty = TelemetrySample { at_unix_ms: unix_ms(), ..TelemetrySample::default() };
        let Ok(device) = self.nvml.device_by_uuid(self.uuid.as_str()) else { return empty };
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        TelemetrySample {
            foreign_processes: self.foreign(&device),
            sm_clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            power_w: device.power_usage().ok().map(watts),
            power_limit_w: device.enforced_power_limit().ok().map(watts),
            throttle: device.current_throttle_reasons().map(throttle_names).unwrap_or_default(),
            ecc_uncorrected: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
            utilization_percent: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu)),
            memory_used_mib: device.memory_info().ok().map(|memory| memory.used / BYTES_PER_MIB),
            ..empty
        }
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
