//! What cuDNN compiles for a device that is elsewhere. The library chooses its engines by a device's properties, which it
//! is told; their kernels are compiled by the library of this host, so only one of the device's own version will do, and
//! it takes this host's driver. A plan that the device's library does not take is made there again.

use super::{SHARED_BLOCK_LEAST_KIB, USUAL_SM_COUNT, shared_block_kib};
use crate::{
    build::Draft,
    program::{Program, Work},
    runtime,
    tune::{Effort, compiled_engines, forms, own_sources},
};
use planforge_backend::Cancel;
use planforge_kernels_cuda::{
    dnn::{Properties, Site},
    libraries::libraries,
    nvrtc::Arch,
};
use planforge_types::fingerprint::DeviceFingerprint;
use rayon::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What cuDNN asks a driver for, by compute capability: threads and blocks that a multiprocessor holds, and the second-level
/// cache of its largest board in MiB. NVIDIA's programming guide and data sheets.
const LIMITS: [(u32, u32, u32, u64); 9] = [
    (75, 1024, 16, 4),
    (80, 2048, 32, 40),
    (86, 1536, 16, 6),
    (87, 1536, 16, 4),
    (89, 1536, 24, 48),
    (90, 2048, 32, 50),
    (100, 2048, 32, 126),
    (103, 2048, 32, 126),
    (120, 1536, 24, 96),
];
/// H200 and GH200 have more cache than other boards of their capability, and are told by their memory.
const LARGE_HOPPER: (u64, u64) = (100 << 10, 60);

/// Shared memory that the system keeps of each block, since compute capability 8.0.
const RESERVED_SHARED_BYTES: u32 = 1 << 10;

/// Which plans are to be made.
#[derive(Clone, Copy, Debug)]
pub struct LibraryPlans<'a> {
    pub device: &'a DeviceFingerprint,
    pub arch: Arch,
    /// The device's cuDNN as its toolchain says it, `9.19`; empty: it has none.
    pub version: &'a str,
    pub level: u8,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Made {
    /// The library's own texts, by the keys that a build looks for.
    pub texts: BTreeMap<String, String>,
    /// What people are told.
    pub words: String,
}

impl LibraryPlans<'_> {
    /// Compiles on all cores. What does not compile is left out: the device's own build says so again. `None`: cancelled.
    pub fn compile(&self, draft: &Draft, cancel: &Cancel) -> Option<Made> {
        if self.version.is_empty() {
            return Some(Made {
                words: "the device has no cuDNN, so none of its plans are made ahead".into(),
                ..Made::default()
            });
        }
        let left = |why: String| {
            Some(Made { words: format!("cuDNN's plans are left to the device: {why}"), ..Made::default() })
        };
        let here = match &libraries().dnn {
            Ok(found) => found.version.clone(),
            Err(missing) => return left(missing.to_string()),
        };
        if here != self.version && !here.starts_with(&format!("{}.", self.version)) {
            return left(format!("this host has {here}, the device {}", self.version));
        }
        let properties = self.properties().to_string();
        if let Err(error) = Properties::from_text(&properties) {
            return left(error.to_string());
        }
        let effort = Effort::of_level(self.level);
        let mut works: Vec<(Program, Work)> = Vec::new();
        let target = super::target_of_device(self.device, self.arch);
        for mut program in draft.programs.iter().flat_map(|program| forms(program, target, effort)) {
            let (_, found) = own_sources(target, &mut program, &BTreeMap::new(), effort);
            works.extend(found.into_iter().map(|work| (program.clone(), work)));
        }
        // The library's objects stay on their thread, so each step describes the device anew.
        let made: Option<Vec<Vec<Attempt>>> = works
            .par_iter()
            .map(|(program, work)| (!cancel.is_cancelled()).then(|| plans_of(&properties, program, work, effort)))
            .collect();
        let (mut texts, mut refused) = (BTreeMap::new(), 0);
        for attempt in made?.into_iter().flatten() {
            match attempt {
                Ok((key, text)) => drop(texts.insert(key, text)),
                Err(_) => refused += 1,
            }
        }
        let bytes: usize = texts.values().map(String::len).sum();
        let words =
            format!("{} plans made by cuDNN {here} for {}, {refused} refused: {bytes} bytes", texts.len(), self.arch);
        Some(Made { texts, words })
    }

    /// The device in the library's own words.
    fn properties(&self) -> Value {
        let (device, capability) = (self.device, self.arch.capability);
        let gpu = device.gpu.clone().unwrap_or_default();
        let known = LIMITS.iter().find(|(known, ..)| *known == capability).copied();
        let (_, threads, blocks, cache_mib) = known.unwrap_or((capability, 1536, 16, 4));
        let large = capability == 90 && device.memory_mib >= LARGE_HOPPER.0;
        let cache_mib = if large { LARGE_HOPPER.1 } else { cache_mib };
        let shared_kib = shared_block_kib(capability).unwrap_or(SHARED_BLOCK_LEAST_KIB);
        let khz = |mhz: Option<u32>| u64::from(mhz.unwrap_or_default()) * 1000;
        json!({
            "maxGridSize": [i32::MAX, 65_535, 65_535],
            "maxBlockSize": [1024, 1024, 64],
            "regsPerBlock": 65_536,
            "multiProcessorCount": gpu.sm_count.unwrap_or(USUAL_SM_COUNT),
            "warpSize": 32,
            "maxSharedMemoryPerBlock": 48 << 10,
            "maxSharedMemoryPerBlockOptin": shared_kib << 10,
            "reservedSharedMemoryPerBlock": if capability < 80 { 0 } else { RESERVED_SHARED_BYTES },
            "maxRegistersPerSM": 65_536,
            "maxCtasPerSM": blocks,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerSM": threads,
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
            "totalGlobalMem": device.memory_mib << 20,
            "smClockRateKHz": khz(gpu.max_sm_clock_mhz),
            "memClockRateKHz": khz(gpu.max_memory_clock_mhz),
            "l2CacheSize": cache_mib << 20,
            "cudaDeviceId": 0,
            "deviceVer": capability * 10,
            "driverVer": driver_number(&gpu.cuda_driver),
            "deviceName": device.name,
        })
    }
}

/// A plan under its key, or why there is none.
type Attempt = Result<(String, String), String>;

fn plans_of(properties: &str, program: &Program, work: &Work, effort: Effort) -> Vec<Attempt> {
    let Ok(device) = Properties::from_text(properties) else { return Vec::new() };
    let Some(Ok(pattern)) = runtime::pattern(Site::Elsewhere(device), work) else { return Vec::new() };
    compiled_engines(program, work, &pattern, effort)
        .map(|engine| {
            let text = pattern.plan_text(&engine).map_err(|error| {
                tracing::debug!(%error, engine = engine.name(), "a plan is not made ahead");
                error.to_string()
            })?;
            Ok((runtime::plan_key(program, work, engine.index, &engine.knobs), text))
        })
        .collect()
}

/// `13.0` as drivers count it, 13000.
fn driver_number(version: &str) -> u32 {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    parts.next().unwrap_or(0) * 1000 + parts.next().unwrap_or(0) * 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::fingerprint::{DeviceKind, GpuFacts, HostFacts};

    /// As cuDNN 9.19 read them of the device itself.
    const H200: &str = r#"{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,
        "multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,
        "reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,
        "maxThreadsPerSM":2048,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,"memClockRateKHz":3201000,
        "l2CacheSize":62914560,"cudaDeviceId":0,"deviceVer":900,"driverVer":13000,"deviceName":"NVIDIA H200"}"#;

    #[test]
    fn a_described_h200_is_what_the_library_read_of_one() {
        let gpu = GpuFacts {
            compute_capability: "9.0".into(),
            sm_count: Some(132),
            max_sm_clock_mhz: Some(1980),
            max_memory_clock_mhz: Some(3201),
            cuda_driver: "13.0".into(),
            ..GpuFacts::default()
        };
        let device = DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: "NVIDIA H200".into(),
            memory_mib: 143_771,
            gpu: Some(gpu),
            cpu: None,
            host: HostFacts::default(),
        };
        let plans = LibraryPlans { device: &device, arch: Arch::of_device(9, 0), version: "9.19", level: 3 };
        let (said, read) = (plans.properties(), serde_json::from_str::<Value>(H200).unwrap());
        for (name, value) in read.as_object().unwrap() {
            assert_eq!(said[name], *value, "{name}");
        }
        // Where the board lies and what of its memory is left is each host's own.
        assert_eq!(said.as_object().unwrap().len(), read.as_object().unwrap().len() + 2);
        assert_eq!((driver_number("12.8"), driver_number("")), (12_080, 0));
    }
}
