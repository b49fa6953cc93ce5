//! Finding NVIDIA GPUs through their management library. Without the library there are no GPUs; that is no error.

use crate::nvml::{Clock, Device, Nvml, NvmlError, Virtualization};
use planforge_types::fingerprint::{DeviceFingerprint, DeviceKind, GpuFacts, HostFacts, VISIBLE_DEVICES};
use std::{env, sync::Once};

const BYTES_PER_MIB: u64 = 1 << 20;

/// Every GPU, or every slice of a GPU that is partitioned, those left out that `CUDA_VISIBLE_DEVICES` hides. Empty where
/// there is no library; said once.
pub fn detect(host: &HostFacts) -> Vec<DeviceFingerprint> {
    match Nvml::open().and_then(|nvml| enumerate(&nvml, host)) {
        Ok(mut found) => {
            if let Ok(shown) = env::var(VISIBLE_DEVICES) {
                let mut shown = shown_by(&shown, &found).into_iter();
                found.retain(|_| shown.next().unwrap_or(false));
            }
            found
        }
        Err(error) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| tracing::info!(%error, "no NVIDIA GPUs: the management library gives none"));
            Vec::new()
        }
    }
}

pub(crate) fn enumerate(nvml: &Nvml, host: &HostFacts) -> Result<Vec<DeviceFingerprint>, NvmlError> {
    let driver = nvml.driver_version().unwrap_or_default();
    let cuda = nvml.cuda_driver_version().map(cuda_version).unwrap_or_default();
    let mut found = Vec::new();
    for index in 0..nvml.device_count()? {
        let board = match nvml.device_by_index(index).and_then(|device| Ok((board(&device, host)?, device))) {
            Ok((mut fingerprint, device)) => {
                if let Some(gpu) = &mut fingerprint.gpu {
                    gpu.driver.clone_from(&driver);
                    gpu.cuda_driver.clone_from(&cuda);
                }
                (fingerprint, device)
            }
            Err(error) => {
                tracing::warn!(index, %error, "a GPU cannot be described and is left out");
                continue;
            }
        };
        let (fingerprint, device) = board;
        if device.is_partitioned().unwrap_or(false) {
            found.extend(slices(&device, &fingerprint));
        } else {
            found.push(fingerprint);
        }
    }
    Ok(found)
}

fn board(device: &Device<'_>, host: &HostFacts) -> Result<DeviceFingerprint, NvmlError> {
    let pci = device.pci()?;
    let (major, minor) = device.compute_capability()?;
    let gpu = GpuFacts {
        uuid: device.uuid()?,
        pci_id: pci_text(pci.device_id),
        pci_subsystem: Some(pci_text(pci.subsystem_id)),
        pci_bus: Some(pci.bus_id.to_ascii_lowercase()),
        sm_count: device.cores().ok().zip(cores_per_sm(major, minor)).map(|(cores, per_sm)| cores / per_sm),
        compute_capability: format!("{major}.{minor}"),
        memory_bus_bits: device.memory_bus_bits().ok(),
        max_sm_clock_mhz: device.max_clock_mhz(Clock::Sm).ok(),
        max_memory_clock_mhz: device.max_clock_mhz(Clock::Memory).ok(),
        power_limit_w: device.power_limit_mw().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
        pcie_max_width: device.max_pcie_width().ok(),
        pcie_max_generation: device.max_pcie_generation().ok(),
        ecc: device.ecc().ok().map(|state| state.current),
        board_part: device.board_part_number().ok(),
        vbios: device.vbios_version().ok(),
        driver: String::new(),
        cuda_driver: String::new(),
        mig: None,
        virtualization: device.virtualization().ok().and_then(virtualization_name),
    };
    Ok(DeviceFingerprint {
        kind: DeviceKind::Gpu,
        name: device.name()?,
        memory_mib: device.memory()?.total / BYTES_PER_MIB,
        gpu: Some(gpu),
        cpu: None,
        host: host.clone(),
    })
}

/// The slices of a partitioned board, each a device of its own with its own memory and SMs.
fn slices(device: &Device<'_>, board: &DeviceFingerprint) -> Vec<DeviceFingerprint> {
    let describe = |slot: u32| -> Result<DeviceFingerprint, NvmlError> {
        let slice = device.slice(slot)?;
        let attributes = slice.attributes()?;
        let mut fingerprint = board.clone();
        fingerprint.memory_mib = attributes.memory_mib;
        if let Some(gpu) = &mut fingerprint.gpu {
            gpu.uuid = slice.uuid()?;
            gpu.sm_count = Some(attributes.multiprocessors);
            gpu.mig = Some(mig_profile(&slice.name()?, attributes.gpu_slices, attributes.memory_mib));
        }
        Ok(fingerprint)
    };
    // Slots without a slice answer with an error.
    (0..device.slice_slots().unwrap_or(0)).filter_map(|slot| describe(slot).ok()).collect()
}

/// Which of the devices a value of `CUDA_VISIBLE_DEVICES` shows: numbers (here in the order of the PCI bus) and UUIDs or
/// their beginnings, up to the first that names no device, as CUDA reads it.
fn shown_by(value: &str, devices: &[DeviceFingerprint]) -> Vec<bool> {
    let uuid = |device: &DeviceFingerprint| device.gpu.as_ref().map_or("", |gpu| gpu.uuid.as_str()).to_owned();
    let uuids: Vec<_> = devices.iter().map(uuid).collect();
    let position = |name: &str| match name.parse::<usize>() {
        Ok(number) => Some(number).filter(|number| *number < uuids.len()),
        Err(_) if name.is_empty() => None,
        Err(_) => uuids.iter().position(|uuid| uuid.starts_with(name)),
    };
    let mut shown = vec![false; devices.len()];
    for at in value.split(',').map_while(|name| position(name.trim())) {
        shown[at] = true;
    }
    shown
}

/// What an administrator has to do before the GPU can be used again, where its driver says so (565 and later do, on
/// datacenter boards).
pub fn recovery_needed(uuid: &str) -> Option<&'static str> {
    recovery_asked(&Nvml::open().ok()?, uuid)
}

pub(crate) fn recovery_asked(nvml: &Nvml, uuid: &str) -> Option<&'static str> {
    nvml.device_by_uuid(uuid).and_then(|device| device.recovery_action()).ok().and_then(recovery)
}

/// `nvmlDeviceGpuRecoveryAction_t`. What concerns traffic between boards (3 and 5) keeps none from computing alone.
fn recovery(action: u64) -> Option<&'static str> {
    match action {
        1 | 4 => Some("the driver asks for a reset of this GPU (nvidia-smi --gpu-reset)"),
        2 | 7 => Some("the driver asks for a restart of this host"),
        6 => Some("the driver asks for a reset of this GPU's PCIe bus"),
        _ => None,
    }
}

/// `1g.10gb` from `NVIDIA A100 MIG 1g.10gb`, else from the slice's size.
fn mig_profile(name: &str, slices: u32, memory_mib: u64) -> String {
    let named = name.rsplit_once("MIG ").map(|(_, profile)| profile.trim().to_ascii_lowercase());
    named.filter(|profile| !profile.is_empty()).unwrap_or_else(|| format!("{slices}g.{}gb", memory_mib.div_ceil(1024)))
}

/// Vendor and device from one number: the device id is in the upper half.
fn pci_text(combined: u32) -> String {
    format!("{:04x}:{:04x}", combined & 0xffff, combined >> 16)
}

fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// FP32 lanes per SM, by which the library's count of cores becomes a count of SMs.
fn cores_per_sm(major: i32, minor: i32) -> Option<u32> {
    match (major, minor) {
        (6, 0) | (7, _) | (8, 0) => Some(64),
        (5, _) | (6, _) | (8, _) | (9, _) | (10, _) | (11, _) | (12, _) => Some(128),
        _ => None,
    }
}

fn virtualization_name(mode: Virtualization) -> Option<String> {
    let name = match mode {
        Virtualization::None => return None,
        Virtualization::PassThrough => "passthrough",
        Virtualization::Vgpu => "vgpu",
        Virtualization::HostVgpu => "host-vgpu",
        Virtualization::HostVsga => "host-vsga",
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalogue,
        nvml::fake::{A100, Fake, H200},
    };

    #[test]
    fn numbers_become_text() {
        assert_eq!(pci_text(0x2335_10de), "10de:2335");
        assert_eq!(cuda_version(12080), "12.8");
        assert_eq!(mig_profile("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1, 4864), "1g.5gb");
        assert_eq!(mig_profile("odd", 2, 9984), "2g.10gb");
    }

    #[test]
    fn cuda_visible_devices_leaves_out_what_it_hides() {
        let device = |uuid: &str| DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: String::new(),
            memory_mib: 0,
            gpu: Some(GpuFacts { uuid: uuid.into(), ..GpuFacts::default() }),
            cpu: None,
            host: HostFacts::default(),
        };
        let devices = [device("GPU-aa00"), device("GPU-ab11"), device("MIG-cc22")];
        for (value, shown) in [
            ("0", [true, false, false]),
            ("2, 1", [false, true, true]),
            ("GPU-ab", [false, true, false]),
            ("MIG-cc22,GPU-aa00", [true, false, true]),
            ("1,7,0", [false, true, false]),
            ("0,-1,1", [true, false, false]),
            ("", [false; 3]),
            ("NoDevFiles", [false; 3]),
        ] {
            assert_eq!(shown_by(value, &devices), shown, "{value:?}");
        }
    }

    #[test]
    fn a_gpu_that_its_driver_wants_reset_is_told() {
        assert!([1, 2, 4, 6, 7].into_iter().all(|action| recovery(action).is_some()));
        assert!([0, 3, 5, 99].into_iter().all(|action| recovery(action).is_none()));
        assert_eq!(recovery_needed("GPU-00000000-0000-0000-0000-000000000000"), None);
    }

    /// The board that is lost is left out, the one in slices is its slices.
    #[test]
    fn boards_and_slices_are_described_as_their_driver_tells() {
        let fake = Fake::new(&[]);
        let found = enumerate(&fake.open(), &HostFacts::default()).unwrap();
        let names: Vec<_> = found.iter().map(|device| catalogue::gpu_sku(device).to_string()).collect();
        assert_eq!(found.len(), 3, "{names:?}");
        let facts = GpuFacts {
            uuid: H200.into(),
            pci_id: "10de:2335".into(),
            pci_subsystem: Some("10de:18be".into()),
            pci_bus: Some("00000000:1b:00.0".into()),
            sm_count: Some(132),
            compute_capability: "9.0".into(),
            memory_bus_bits: Some(6144),
            max_sm_clock_mhz: Some(1980),
            max_memory_clock_mhz: Some(3201),
            power_limit_w: Some(700.0),
            pcie_max_width: Some(16),
            pcie_max_generation: Some(5),
            ecc: Some(true),
            board_part: Some("900-21010-0140-030".into()),
            vbios: Some("96.00.BC.00.02".into()),
            driver: "570.86.10".into(),
            cuda_driver: "12.8".into(),
            mig: None,
            virtualization: Some("passthrough".into()),
        };
        assert_eq!(
            (found[0].name.as_str(), found[0].memory_mib, found[0].gpu.as_ref()),
            ("NVIDIA H200", 143_771, Some(&facts))
        );
        let slice = |device: &DeviceFingerprint| {
            let gpu = device.gpu.clone().unwrap();
            (gpu.uuid, gpu.mig, gpu.sm_count, device.memory_mib, gpu.board_part)
        };
        let first = ("MIG-bb000001-0000-0000-0000-000000000000".into(), Some("1g.5gb".into()), Some(14), 4864, None);
        assert_eq!(slice(&found[1]), first);
        let second = ("MIG-bb000002-0000-0000-0000-000000000000".into(), Some("3g.20gb".into()), Some(42), 19968, None);
        assert_eq!(slice(&found[2]), second);
    }

    #[test]
    fn a_reset_that_the_driver_asks_for_is_heard() {
        let fake = Fake::new(&[]);
        let nvml = fake.open();
        assert!(recovery_asked(&nvml, H200).is_some_and(|asked| asked.contains("--gpu-reset")));
        assert_eq!(recovery_asked(&nvml, A100), None);
        assert_eq!(recovery_asked(&nvml, "GPU-none"), None);
    }

    /// On a host with GPUs: what is found is complete enough for a name and a key. Elsewhere: nothing is found.
    #[test]
    fn detection_never_fails() {
        for fingerprint in detect(&HostFacts::default()) {
            let gpu = fingerprint.gpu.as_ref().expect("a GPU has GPU facts");
            assert!(gpu.uuid.contains("GPU-") || gpu.uuid.contains("MIG-"), "{gpu:?}");
            assert!(gpu.pci_id.starts_with("10de:") && fingerprint.memory_mib > 0 && !gpu.driver.is_empty(), "{gpu:?}");
            assert!(gpu.sm_count.is_some_and(|count| count > 0), "{gpu:?}");
            let sku = catalogue::gpu_sku(&fingerprint);
            assert!(!sku.is_cpu());
            tracing::info!(%sku, ?fingerprint, "found");
        }
    }
}
