//! The functions: each is looked up by its name when it is called, and its return code is judged.

use super::{
    error::NvmlError,
    ffi::{
        AccountingStats, Attributes, DeviceHandle, EventData, EventSetHandle, FieldValue, MemoryV1, MemoryV2, PciInfo,
        ProcessInfo, ProcessUtilization, Sample, Utilization,
    },
};
use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulonglong},
    ops::Deref,
};

/// The loaded library, initialised; shut down when dropped.
pub struct Initialised(Library);

impl Initialised {
    pub fn open(name: &OsStr) -> Result<Self, NvmlError> {
        // SAFETY: the driver's library: its initialisers are what every program of this host runs that uses a GPU.
        let loaded = unsafe { libloading::Library::new(name) };
        let loaded = loaded
            .map_err(|error| NvmlError::Library { library: name.display().to_string(), reason: error.to_string() })?;
        let library = Library { loaded };
        // SAFETY: takes nothing. Calls are counted, and this one is answered when `Self` is dropped.
        unsafe { library.nvmlInit_v2()? };
        Ok(Self(library))
    }
}

impl Deref for Initialised {
    type Target = Library;

    fn deref(&self) -> &Library {
        &self.0
    }
}

impl Drop for Initialised {
    fn drop(&mut self) {
        // SAFETY: takes nothing. Devices borrow this value and sets of events hold it, so no handle is left.
        let _ = unsafe { self.nvmlShutdown() };
    }
}

/// The library's functions.
pub struct Library {
    loaded: libloading::Library,
}

/// Declares functions as the header does; all return an `nvmlReturn_t`.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[expect(non_snake_case, reason = "the library's own names")]
        impl Library {
            $(
                /// # Safety
                /// As the header says of the function of this name: pointers are valid for what it reads and writes.
                pub unsafe fn $name(&self $(, $argument: $type)*) -> Result<(), NvmlError> {
                    const NAME: &str = stringify!($name);
                    type Function = unsafe extern "C" fn($($type),*) -> c_uint;
                    // SAFETY: the header declares the function of this name so.
                    let function = unsafe { self.loaded.get::<Function>(NAME) };
                    let function = function.map_err(|_| NvmlError::Missing { function: NAME })?;
                    // SAFETY: the caller's promise.
                    NvmlError::of(NAME, unsafe { function($($argument),*) })
                }
            )*
        }
    };
}

functions! {
    nvmlInit_v2();
    nvmlShutdown();
    nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint);
    nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int);
    nvmlDeviceGetCount_v2(count: *mut c_uint);
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut DeviceHandle);
    nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut DeviceHandle);

    nvmlDeviceGetName(device: DeviceHandle, name: *mut c_char, length: c_uint);
    nvmlDeviceGetUUID(device: DeviceHandle, uuid: *mut c_char, length: c_uint);
    nvmlDeviceGetBoardPartNumber(device: DeviceHandle, number: *mut c_char, length: c_uint);
    nvmlDeviceGetVbiosVersion(device: DeviceHandle, version: *mut c_char, length: c_uint);
    nvmlDeviceGetPciInfo_v3(device: DeviceHandle, pci: *mut PciInfo);
    nvmlDeviceGetCudaComputeCapability(device: DeviceHandle, major: *mut c_int, minor: *mut c_int);
    nvmlDeviceGetNumGpuCores(device: DeviceHandle, cores: *mut c_uint);
    nvmlDeviceGetMemoryBusWidth(device: DeviceHandle, bits: *mut c_uint);
    nvmlDeviceGetMaxPcieLinkWidth(device: DeviceHandle, lanes: *mut c_uint);
    nvmlDeviceGetMaxPcieLinkGeneration(device: DeviceHandle, generation: *mut c_uint);
    nvmlDeviceGetCurrPcieLinkWidth(device: DeviceHandle, lanes: *mut c_uint);
    nvmlDeviceGetCurrPcieLinkGeneration(device: DeviceHandle, generation: *mut c_uint);
    nvmlDeviceGetMaxClockInfo(device: DeviceHandle, clock: c_uint, mhz: *mut c_uint);
    nvmlDeviceGetClockInfo(device: DeviceHandle, clock: c_uint, mhz: *mut c_uint);
    nvmlDeviceGetApplicationsClock(device: DeviceHandle, clock: c_uint, mhz: *mut c_uint);
    nvmlDeviceGetEnforcedPowerLimit(device: DeviceHandle, milliwatts: *mut c_uint);
    nvmlDeviceGetPowerUsage(device: DeviceHandle, milliwatts: *mut c_uint);
    nvmlDeviceGetTotalEnergyConsumption(device: DeviceHandle, millijoules: *mut c_ulonglong);
    nvmlDeviceGetTemperature(device: DeviceHandle, sensor: c_uint, celsius: *mut c_uint);
    nvmlDeviceGetCurrentClocksEventReasons(device: DeviceHandle, reasons: *mut c_ulonglong);
    nvmlDeviceGetCurrentClocksThrottleReasons(device: DeviceHandle, reasons: *mut c_ulonglong);
    nvmlDeviceGetUtilizationRates(device: DeviceHandle, rates: *mut Utilization);
    nvmlDeviceGetMemoryInfo(device: DeviceHandle, memory: *mut MemoryV1);
    nvmlDeviceGetMemoryInfo_v2(device: DeviceHandle, memory: *mut MemoryV2);
    nvmlDeviceGetEccMode(device: DeviceHandle, current: *mut c_uint, pending: *mut c_uint);
    nvmlDeviceGetTotalEccErrors(device: DeviceHandle, kind: c_uint, counter: c_uint, count: *mut c_ulonglong);
    nvmlDeviceGetRetiredPagesPendingStatus(device: DeviceHandle, pending: *mut c_uint);
    nvmlDeviceGetPersistenceMode(device: DeviceHandle, mode: *mut c_uint);
    nvmlDeviceGetComputeMode(device: DeviceHandle, mode: *mut c_uint);
    nvmlDeviceGetVirtualizationMode(device: DeviceHandle, mode: *mut c_uint);
    nvmlDeviceGetFieldValues(device: DeviceHandle, count: c_int, values: *mut FieldValue);

    nvmlDeviceGetMigMode(device: DeviceHandle, current: *mut c_uint, pending: *mut c_uint);
    nvmlDeviceGetMaxMigDeviceCount(device: DeviceHandle, count: *mut c_uint);
    nvmlDeviceGetMigDeviceHandleByIndex(device: DeviceHandle, index: c_uint, slice: *mut DeviceHandle);
    nvmlDeviceGetAttributes_v2(device: DeviceHandle, attributes: *mut Attributes);

    nvmlDeviceGetComputeRunningProcesses(device: DeviceHandle, count: *mut c_uint, entries: *mut ProcessInfo);
    nvmlDeviceGetComputeRunningProcesses_v2(device: DeviceHandle, count: *mut c_uint, entries: *mut ProcessInfo);
    nvmlDeviceGetComputeRunningProcesses_v3(device: DeviceHandle, count: *mut c_uint, entries: *mut ProcessInfo);
    nvmlDeviceGetGraphicsRunningProcesses(device: DeviceHandle, count: *mut c_uint, entries: *mut ProcessInfo);
    nvmlDeviceGetGraphicsRunningProcesses_v2(device: DeviceHandle, count: *mut c_uint, entries: *mut ProcessInfo);
    nvmlDeviceGetGraphicsRunningProcesses_v3(device: DeviceHandle, count: *mut c_uint, entries: *mut ProcessInfo);
    nvmlDeviceGetProcessUtilization(
        device: DeviceHandle,
        samples: *mut ProcessUtilization,
        count: *mut c_uint,
        since_us: c_ulonglong
    );
    nvmlDeviceGetSamples(
        device: DeviceHandle,
        kind: c_uint,
        since_us: c_ulonglong,
        value_type: *mut c_uint,
        count: *mut c_uint,
        samples: *mut Sample
    );
    nvmlDeviceGetAccountingMode(device: DeviceHandle, mode: *mut c_uint);
    nvmlDeviceGetAccountingPids(device: DeviceHandle, count: *mut c_uint, pids: *mut c_uint);
    nvmlDeviceGetAccountingStats(device: DeviceHandle, pid: c_uint, stats: *mut AccountingStats);

    nvmlEventSetCreate(events: *mut EventSetHandle);
    nvmlDeviceRegisterEvents(device: DeviceHandle, kinds: c_ulonglong, events: EventSetHandle);
    nvmlEventSetWait_v2(events: EventSetHandle, event: *mut EventData, timeout_ms: c_uint);
    nvmlEventSetFree(events: EventSetHandle);
}

/// The text that `write` puts into a buffer of so many bytes.
pub fn text(
    function: &'static str,
    bytes: usize,
    write: impl FnOnce(*mut c_char, c_uint) -> Result<(), NvmlError>,
) -> Result<String, NvmlError> {
    let mut buffer = vec![0u8; bytes];
    write(buffer.as_mut_ptr().cast(), bytes as c_uint)?;
    let text = CStr::from_bytes_until_nul(&buffer).map_err(|_| NvmlError::Text { function })?;
    text.to_str().map(str::to_owned).map_err(|_| NvmlError::Text { function })
}
