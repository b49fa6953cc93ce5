//! The structures of the header, as far as they are used, and what is sent in them.
//!
//! Layouts were compared with the header of release 13 and older ones; a wrong size does not compile.

use std::ffi::{c_char, c_longlong, c_uint, c_ulonglong, c_void};

/// `nvmlDevice_t`: points to what only the library looks into.
pub type DeviceHandle = *mut c_void;
/// `nvmlEventSet_t`, likewise.
pub type EventSetHandle = *mut c_void;

/// Bytes of buffers for texts, as the header gives them.
pub const VERSION_BYTES: usize = 80;
pub const NAME_BYTES: usize = 96;
pub const UUID_BYTES: usize = 96;
pub const PART_NUMBER_BYTES: usize = 80;
pub const VBIOS_BYTES: usize = 32;

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
pub const FIELD_RECOVERY_ACTION: c_uint = 230;
/// `nvmlEventTypeXidCriticalError`.
pub const EVENT_XID: c_ulonglong = 8;
/// `NVML_TEMPERATURE_GPU`.
pub const TEMPERATURE_GPU: c_uint = 0;
/// `NVML_MEMORY_ERROR_TYPE_UNCORRECTED`.
pub const ECC_UNCORRECTED: c_uint = 1;
/// `NVML_VOLATILE_ECC`: counted since the driver was loaded.
pub const ECC_VOLATILE: c_uint = 0;
/// `NVML_GPU_UTILIZATION_SAMPLES`.
pub const SAMPLES_GPU_UTILIZATION: c_uint = 1;
/// `NVML_VALUE_NOT_AVAILABLE` where a size stands.
pub const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PciInfo {
    pub bus_id_legacy: [c_char; 16],
    pub domain: c_uint,
    pub bus: c_uint,
    pub device: c_uint,
    /// Device in the upper half, vendor in the lower.
    pub device_id: c_uint,
    pub subsystem_id: c_uint,
    pub bus_id: [c_char; 32],
}
const _: () = assert!(size_of::<PciInfo>() == 68);

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MemoryV1 {
    pub total: c_ulonglong,
    pub free: c_ulonglong,
    /// What the driver keeps for itself included.
    pub used: c_ulonglong,
}
const _: () = assert!(size_of::<MemoryV1>() == 24);

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MemoryV2 {
    /// [`MEMORY_V2`].
    pub version: c_uint,
    pub total: c_ulonglong,
    pub reserved: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}
/// A structure that carries its version says size and number.
pub const MEMORY_V2: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;
const _: () = assert!(MEMORY_V2 == 0x0200_0028);

/// `nvmlUtilization_t`, percent.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Utilization {
    pub gpu: c_uint,
    pub memory: c_uint,
}
const _: () = assert!(size_of::<Utilization>() == 8);

/// `nvmlDeviceAttributes_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Attributes {
    pub multiprocessor_count: c_uint,
    pub engines: [c_uint; 5],
    pub gpu_instance_slice_count: c_uint,
    pub compute_instance_slice_count: c_uint,
    pub memory_size_mb: c_ulonglong,
}
const _: () = assert!(size_of::<Attributes>() == 40);

/// `nvmlProcessInfo_v1_t`: how every entry of a list of running processes begins.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ProcessInfo {
    pub pid: c_uint,
    pub used_gpu_memory: c_ulonglong,
}
/// Bytes of an entry: the first form; with the slice's numbers; and, in [`drivers that had it`](wide_processes), with
/// the memory that is protected.
pub const PROCESS_V1_BYTES: usize = 16;
pub const PROCESS_V2_BYTES: usize = 24;
pub const PROCESS_WIDE_BYTES: usize = 32;
const _: () = assert!(size_of::<ProcessInfo>() == PROCESS_V1_BYTES);

/// Whether entries of `nvmlDevice..RunningProcesses_v3` are the widest: drivers 535.43 to 535.86 had them so, under the
/// name that earlier and later ones give to the second form.
pub fn wide_processes(driver_version: &str) -> bool {
    let mut parts = driver_version.split('.').map(|part| part.parse::<u32>().ok());
    matches!((parts.next().flatten(), parts.next().flatten()), (Some(535), Some(43..=86)))
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ProcessUtilization {
    pub pid: c_uint,
    pub timestamp_us: c_ulonglong,
    pub sm_percent: c_uint,
    pub memory_percent: c_uint,
    pub encoder_percent: c_uint,
    pub decoder_percent: c_uint,
}
const _: () = assert!(size_of::<ProcessUtilization>() == 32);

/// `nvmlAccountingStats_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AccountingStats {
    pub gpu_percent: c_uint,
    pub memory_percent: c_uint,
    pub max_memory_bytes: c_ulonglong,
    pub time_ms: c_ulonglong,
    pub start_us: c_ulonglong,
    pub is_running: c_uint,
    pub reserved: [c_uint; 5],
}
const _: () = assert!(size_of::<AccountingStats>() == 56);

/// `nvmlFieldValue_t`; the value is eight bytes that `value_type` says how to read.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct FieldValue {
    pub field_id: c_uint,
    pub scope_id: c_uint,
    pub timestamp_us: c_longlong,
    pub latency_us: c_longlong,
    pub value_type: c_uint,
    pub code: c_uint,
    pub value: [u8; 8],
}
const _: () = assert!(size_of::<FieldValue>() == 40);

impl FieldValue {
    /// The value, where it is a whole number that is not negative. Of a shorter type only the first bytes were written.
    pub fn number(&self) -> Option<u64> {
        let value = self.value;
        let word = [value[0], value[1], value[2], value[3]];
        match self.value_type {
            // unsigned int
            1 => Some(u32::from_ne_bytes(word).into()),
            // unsigned long and unsigned long long
            2 | 3 => Some(u64::from_ne_bytes(value)),
            // long long
            4 => u64::try_from(i64::from_ne_bytes(value)).ok(),
            // int
            5 => u64::try_from(i32::from_ne_bytes(word)).ok(),
            // unsigned short
            6 => Some(u16::from_ne_bytes([value[0], value[1]]).into()),
            _ => None,
        }
    }
}

/// `nvmlSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Sample {
    pub timestamp_us: c_ulonglong,
    pub value: [u8; 8],
}
const _: () = assert!(size_of::<Sample>() == 16);

/// `nvmlEventData_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventData {
    pub device: DeviceHandle,
    pub event_type: c_ulonglong,
    pub event_data: c_ulonglong,
    pub gpu_instance_id: c_uint,
    pub compute_instance_id: c_uint,
}
const _: () = assert!(size_of::<EventData>() == 32);

/// What holds clocks down: `nvmlClocksThrottleReason...`, of which any may stand beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleReasons(pub c_ulonglong);

impl ThrottleReasons {
    pub const SW_POWER_CAP: Self = Self(0x04);
    pub const HW_SLOWDOWN: Self = Self(0x08);
    pub const SW_THERMAL_SLOWDOWN: Self = Self(0x20);
    pub const HW_THERMAL_SLOWDOWN: Self = Self(0x40);
    pub const HW_POWER_BRAKE_SLOWDOWN: Self = Self(0x80);

    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}
