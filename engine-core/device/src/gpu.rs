//! Finding NVIDIA GPUs through their management library. Without the library there are no GPUs; that is no error.

use nvml_wrapper::{
    Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor,
    enum_wrappers::device::{Clock, GpuVirtualizationMode},
    enums::device::SampleValue,
    error::NvmlError,
    structs::device::FieldId,
    sys_exports::field_id,
};
use planforge_types::fingerprint::{DeviceFingerprint, DeviceKind, GpuFacts, HostFacts, VISIBLE_DEVICES};
use std::{env, sync::Once};

const BYTES_PER_MIB: u64 = 1 << 20;

/// Opens the management library.
pub(crate) fn open_nvml() -> Result<Nvml, NvmlError> {
    Nvml::init()
}

/// Every GPU, or every slice of a GPU that is partitioned, those left out that `CUDA_VISIBLE_DEVICES` hides. Empty where
/// there is no library; said once.
pub fn detect(host: &HostFacts) -> Vec<DeviceFingerprint> {
    match open_nvml().and_then(|nvml| enumerate(&nvml, host)) {
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

fn enumerate(nvml: &Nvml, host: &HostFacts) -> Result<Vec<DeviceFingerprint>, NvmlError> {
    let driver = nvml.sys_driver_version().unwrap_or_default();
    let cuda = nvml.sys_cuda_driver_version().map(cuda_version).unwrap_or_default();
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
        if device.mig_mode().is_ok_and(|mode| mode.current == 1) {
            found.extend(slices(&device, &fingerprint));
        } else {
            found.push(fingerprint);
        }
    }
    Ok(found)
}

fn board(device: &Device<'_>, host: &HostFacts) -> Result<DeviceFingerprint, NvmlError> {
    let pci = device.pci_info()?;
    let capability = device.cuda_compute_capability()?;
    let (major, minor) = (capability.major, capability.minor);
    let gpu = GpuFacts {
        uuid: device.uuid()?,
        pci_id: pci_text(pci.pci_device_id),
        pci_subsystem: pci.pci_sub_system_id.map(pci_text),
        pci_bus: Some(pci.bus_id.to_ascii_lowercase()),
        sm_count: device.num_cores().ok().zip(cores_per_sm(major, minor)).map(|(cores, per_sm)| cores / per_sm),
        compute_capability: format!("{major}.{minor}"),
        memory_bus_bits: device.memory_bus_width().ok(),
        max_sm_clock_mhz: device.max_clock_info(Clock::SM).ok(),
        max_memory_clock_mhz: device.max_clock_info(Clock::Memory).ok(),
        power_limit_w: device.enforced_power_limit().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
        pcie_max_width: device.max_pcie_link_width().ok(),
        pcie_max_generation: device.max_pcie_link_gen().ok(),
        ecc: device.is_ecc_enabled().ok().map(|state| state.currently_enabled),
        board_part: device.board_part_number().ok(),
        vbios: device.vbios_version().ok(),
        driver: String::new(),
        cuda_driver: String::new(),
        mig: None,
        virtualization: device.virtualization_mode().ok().and_then(virtualization_name),
    };
    Ok(DeviceFingerprint {
        kind: DeviceKind::Gpu,
        name: device.name()?,
        memory_mib: device.memory_info()?.total / BYTES_PER_MIB,
        gpu: Some(gpu),
        cpu: None,
        host: host.clone(),
    })
}

/// The slices of a partitioned board, each a device of its own with its own memory and SMs.
fn slices(device: &Device<'_>, board: &DeviceFingerprint) -> Vec<DeviceFingerprint> {
    let describe = |index: u32| -> Result<DeviceFingerprint, NvmlError> {
        let slice = device.mig_device_by_index(index)?;
        let attributes = slice.attributes()?;
        let mut fingerprint = board.clone();
        fingerprint.memory_mib = attributes.memory_size_mb;
        if let Some(gpu) = &mut fingerprint.gpu {
            gpu.uuid = slice.uuid()?;
            gpu.sm_count = Some(attributes.multiprocessor_count);
            gpu.mig = Some(mig_profile(&slice.name()?, attributes.gpu_instance_slice_count, attributes.memory_size_mb));
        }
        Ok(fingerprint)
    };
    // Slots without a slice answer with an error.
    (0..device.mig_device_count().unwrap_or(0)).filter_map(|index| describe(index).ok()).collect()
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
    let nvml = open_nvml().ok()?;
    let device = nvml.device_by_uuid(uuid).ok()?;
    let field = FieldId(field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
    match device.field_values_for(&[field]).ok()?.pop()?.ok()?.value.ok()? {
        SampleValue::U32(action) => recovery(action.into()),
        SampleValue::U64(action) => recovery(action),
        SampleValue::I64(action) => recovery(u64::try_from(action).ok()?),
        SampleValue::F64(_) => None,
    }
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
    format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
}

/// FP32 lanes per SM, by which the library's count of cores becomes a count of SMs.
fn cores_per_sm(major: i32, minor: i32) -> Option<u32> {
    match (major, minor) {
        (6, 0) | (7, _) | (8, 0) => Some(64),
        (5, _) | (6, _) | (8, _) | (9, _) | (10, _) | (11, _) | (12, _) => Some(128),
        _ => None,
    }
}

fn virtualization_name(mode: GpuVirtualizationMode) -> Option<String> {
    let name = match mode {
        GpuVirtualizationMode::Bare => return None,
        GpuVirtualizationMode::PassThrough => "passthrough",
        GpuVirtualizationMode::Vgpu => "vgpu",
        GpuVirtualizationMode::HostVgpu => "host-vgpu",
        GpuVirtualizationMode::HostVsga => "host-vsga",
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

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
