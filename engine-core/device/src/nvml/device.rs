//! A device and what is asked of it.

use super::{
    Nvml, NvmlError,
    ffi::{self, ThrottleReasons},
    library::{self, Library},
};
use std::{
    ffi::{CStr, c_char, c_int, c_uint},
    fmt, ptr,
};

/// Which of a device's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Sm = 1,
    Memory = 2,
}

/// Who may compute on a device at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    Default,
    ExclusiveThread,
    Prohibited,
    ExclusiveProcess,
}

/// Whose a device is, where it is not the host's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Virtualization {
    None,
    PassThrough,
    Vgpu,
    HostVgpu,
    HostVsga,
}

/// Where a device is on the bus and which it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pci {
    /// `00000000:1B:00.0`.
    pub bus_id: String,
    /// Device in the upper half, vendor in the lower; likewise the subsystem.
    pub device_id: u32,
    pub subsystem_id: u32,
}

/// Whether errors of the memory are corrected: now, and after the next reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecc {
    pub current: bool,
    pub pending: bool,
}

/// A device's memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Drivers before 510 count in it what they keep for themselves.
    pub used: u64,
}

/// How large a slice of a partitioned device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceAttributes {
    pub multiprocessors: u32,
    pub gpu_slices: u32,
    pub memory_mib: u64,
}

/// A device, or a slice of one, as long as the library is open.
#[derive(Clone, Copy)]
pub struct Device<'nvml> {
    nvml: &'nvml Nvml,
    handle: ffi::DeviceHandle,
}

impl fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Device")
    }
}

// Each function of `library.rs` that has one of these types does what is said here, whatever the values are before: so it
// may be called with any of them.

/// A function that writes one number, or one structure of numbers, of a device.
type Number<T> = unsafe fn(&Library, ffi::DeviceHandle, *mut T) -> Result<(), NvmlError>;
/// One that writes two.
type Pair<T> = unsafe fn(&Library, ffi::DeviceHandle, *mut T, *mut T) -> Result<(), NvmlError>;
/// One that writes one number of several.
type NumberOf = unsafe fn(&Library, ffi::DeviceHandle, c_uint, *mut c_uint) -> Result<(), NvmlError>;
/// One that writes a text.
type Text = unsafe fn(&Library, ffi::DeviceHandle, *mut c_char, c_uint) -> Result<(), NvmlError>;

impl<'nvml> Device<'nvml> {
    /// The device whose handle `find` writes.
    pub(super) fn found(
        nvml: &'nvml Nvml,
        find: impl FnOnce(*mut ffi::DeviceHandle) -> Result<(), NvmlError>,
    ) -> Result<Self, NvmlError> {
        let mut handle = ptr::null_mut();
        find(&mut handle)?;
        Ok(Self { nvml, handle })
    }

    pub(super) fn nvml(&self) -> &'nvml Nvml {
        self.nvml
    }

    pub(super) fn handle(&self) -> ffi::DeviceHandle {
        self.handle
    }

    /// What a function writes.
    pub(super) fn number<T: Default>(&self, function: Number<T>) -> Result<T, NvmlError> {
        let mut value = T::default();
        // SAFETY: the handle is this library's, which is open; writes one `T`.
        unsafe { function(&self.nvml.library, self.handle, &mut value)? };
        Ok(value)
    }

    fn pair<T: Default>(&self, function: Pair<T>) -> Result<(T, T), NvmlError> {
        let (mut first, mut second) = (T::default(), T::default());
        // SAFETY: the handle is this library's, which is open; writes two `T`.
        unsafe { function(&self.nvml.library, self.handle, &mut first, &mut second)? };
        Ok((first, second))
    }

    fn number_of(&self, function: NumberOf, which: c_uint) -> Result<u32, NvmlError> {
        let mut value: c_uint = 0;
        // SAFETY: the handle is this library's, which is open; writes one number.
        unsafe { function(&self.nvml.library, self.handle, which, &mut value)? };
        Ok(value)
    }

    fn text(&self, name: &'static str, bytes: usize, function: Text) -> Result<String, NvmlError> {
        // SAFETY: the handle is this library's, which is open; the buffer is as long as the function is told.
        library::text(name, bytes, |buffer, length| unsafe {
            function(&self.nvml.library, self.handle, buffer, length)
        })
    }

    pub fn name(&self) -> Result<String, NvmlError> {
        self.text("nvmlDeviceGetName", ffi::NAME_BYTES, Library::nvmlDeviceGetName)
    }

    pub fn uuid(&self) -> Result<String, NvmlError> {
        self.text("nvmlDeviceGetUUID", ffi::UUID_BYTES, Library::nvmlDeviceGetUUID)
    }

    pub fn board_part_number(&self) -> Result<String, NvmlError> {
        self.text("nvmlDeviceGetBoardPartNumber", ffi::PART_NUMBER_BYTES, Library::nvmlDeviceGetBoardPartNumber)
    }

    pub fn vbios_version(&self) -> Result<String, NvmlError> {
        self.text("nvmlDeviceGetVbiosVersion", ffi::VBIOS_BYTES, Library::nvmlDeviceGetVbiosVersion)
    }

    pub fn pci(&self) -> Result<Pci, NvmlError> {
        let pci = self.number(Library::nvmlDeviceGetPciInfo_v3)?;
        let bytes = pci.bus_id.map(|byte| byte as u8);
        let bus_id = CStr::from_bytes_until_nul(&bytes).ok().and_then(|text| text.to_str().ok());
        let bus_id = bus_id.ok_or(NvmlError::Text { function: "nvmlDeviceGetPciInfo_v3" })?.to_owned();
        Ok(Pci { bus_id, device_id: pci.device_id, subsystem_id: pci.subsystem_id })
    }

    /// Major and minor number.
    pub fn compute_capability(&self) -> Result<(i32, i32), NvmlError> {
        self.pair::<c_int>(Library::nvmlDeviceGetCudaComputeCapability)
    }

    /// Lanes for fp32.
    pub fn cores(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetNumGpuCores)
    }

    pub fn memory_bus_bits(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetMemoryBusWidth)
    }

    pub fn max_pcie_width(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetMaxPcieLinkWidth)
    }

    pub fn max_pcie_generation(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetMaxPcieLinkGeneration)
    }

    /// As negotiated now: an idle board may lower both.
    pub fn pcie_width(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetCurrPcieLinkWidth)
    }

    pub fn pcie_generation(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetCurrPcieLinkGeneration)
    }

    pub fn clock_mhz(&self, clock: Clock) -> Result<u32, NvmlError> {
        self.number_of(Library::nvmlDeviceGetClockInfo, clock as c_uint)
    }

    pub fn max_clock_mhz(&self, clock: Clock) -> Result<u32, NvmlError> {
        self.number_of(Library::nvmlDeviceGetMaxClockInfo, clock as c_uint)
    }

    /// What programs are given unless they ask for another.
    pub fn application_clock_mhz(&self, clock: Clock) -> Result<u32, NvmlError> {
        self.number_of(Library::nvmlDeviceGetApplicationsClock, clock as c_uint)
    }

    pub fn power_limit_mw(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetEnforcedPowerLimit)
    }

    pub fn power_mw(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetPowerUsage)
    }

    /// What the board has used since the driver was loaded; boards since Volta count it.
    pub fn energy_mj(&self) -> Result<u64, NvmlError> {
        self.number(Library::nvmlDeviceGetTotalEnergyConsumption)
    }

    pub fn temperature_c(&self) -> Result<u32, NvmlError> {
        self.number_of(Library::nvmlDeviceGetTemperature, ffi::TEMPERATURE_GPU)
    }

    /// What holds clocks down now. The function was renamed in drivers of 535.
    pub fn throttle_reasons(&self) -> Result<ThrottleReasons, NvmlError> {
        let reasons = match self.number(Library::nvmlDeviceGetCurrentClocksThrottleReasons) {
            Err(NvmlError::Missing { .. }) => self.number(Library::nvmlDeviceGetCurrentClocksEventReasons),
            answer => answer,
        };
        reasons.map(ThrottleReasons)
    }

    /// Percent of the last sample's time in which a kernel ran.
    pub fn utilization_percent(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetUtilizationRates).map(|rates| rates.gpu)
    }

    pub fn memory(&self) -> Result<Memory, NvmlError> {
        let mut memory = ffi::MemoryV2 { version: ffi::MEMORY_V2, ..ffi::MemoryV2::default() };
        // SAFETY: the handle is this library's; writes one structure, which says its size.
        match unsafe { self.nvml.library.nvmlDeviceGetMemoryInfo_v2(self.handle, &mut memory) } {
            Ok(()) => Ok(Memory { total: memory.total, used: memory.used }),
            Err(error) if error.is_not_supported() => {
                let memory = self.number(Library::nvmlDeviceGetMemoryInfo)?;
                Ok(Memory { total: memory.total, used: memory.used })
            }
            Err(error) => Err(error),
        }
    }

    pub fn ecc(&self) -> Result<Ecc, NvmlError> {
        let (current, pending) = self.pair::<c_uint>(Library::nvmlDeviceGetEccMode)?;
        Ok(Ecc { current: current != 0, pending: pending != 0 })
    }

    /// Errors of the memory that could not be corrected, since the driver was loaded.
    pub fn uncorrected_errors(&self) -> Result<u64, NvmlError> {
        let mut count = 0;
        let (kind, counter) = (ffi::ECC_UNCORRECTED, ffi::ECC_VOLATILE);
        // SAFETY: the handle is this library's; writes one number.
        unsafe { self.nvml.library.nvmlDeviceGetTotalEccErrors(self.handle, kind, counter, &mut count)? };
        Ok(count)
    }

    /// Whether pages of the memory wait for a reset to be retired.
    pub fn are_pages_pending(&self) -> Result<bool, NvmlError> {
        self.number(Library::nvmlDeviceGetRetiredPagesPendingStatus).map(|pending| pending != 0)
    }

    /// Whether the driver stays loaded while nobody uses the device.
    pub fn is_persistent(&self) -> Result<bool, NvmlError> {
        self.number(Library::nvmlDeviceGetPersistenceMode).map(|mode| mode != 0)
    }

    pub fn compute_mode(&self) -> Result<ComputeMode, NvmlError> {
        Ok(match self.number(Library::nvmlDeviceGetComputeMode)? {
            0 => ComputeMode::Default,
            1 => ComputeMode::ExclusiveThread,
            2 => ComputeMode::Prohibited,
            3 => ComputeMode::ExclusiveProcess,
            value => return Err(NvmlError::Value { function: "nvmlDeviceGetComputeMode", value }),
        })
    }

    pub fn virtualization(&self) -> Result<Virtualization, NvmlError> {
        Ok(match self.number(Library::nvmlDeviceGetVirtualizationMode)? {
            0 => Virtualization::None,
            1 => Virtualization::PassThrough,
            2 => Virtualization::Vgpu,
            3 => Virtualization::HostVgpu,
            4 => Virtualization::HostVsga,
            value => return Err(NvmlError::Value { function: "nvmlDeviceGetVirtualizationMode", value }),
        })
    }

    /// `nvmlDeviceGpuRecoveryAction_t`: what has to be done before the device can be used again.
    pub fn recovery_action(&self) -> Result<u64, NvmlError> {
        const FUNCTION: &str = "nvmlDeviceGetFieldValues";
        let mut field = ffi::FieldValue { field_id: ffi::FIELD_RECOVERY_ACTION, ..ffi::FieldValue::default() };
        // SAFETY: the handle is this library's; reads and writes one structure.
        unsafe { self.nvml.library.nvmlDeviceGetFieldValues(self.handle, 1, &mut field)? };
        // Every field has a return code of its own.
        NvmlError::of(FUNCTION, field.code)?;
        field.number().ok_or(NvmlError::Value { function: FUNCTION, value: field.value_type })
    }

    /// Whether the device is partitioned into slices.
    pub fn is_partitioned(&self) -> Result<bool, NvmlError> {
        self.pair::<c_uint>(Library::nvmlDeviceGetMigMode).map(|(current, _)| current == 1)
    }

    /// How many slices it can have.
    pub fn slice_slots(&self) -> Result<u32, NvmlError> {
        self.number(Library::nvmlDeviceGetMaxMigDeviceCount)
    }

    /// The slice in a slot; an error where there is none.
    pub fn slice(&self, slot: u32) -> Result<Device<'nvml>, NvmlError> {
        // SAFETY: the handle is this library's; writes one handle.
        Device::found(self.nvml, |handle| unsafe {
            self.nvml.library.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, slot, handle)
        })
    }

    /// Of a slice.
    pub fn attributes(&self) -> Result<SliceAttributes, NvmlError> {
        let attributes = self.number(Library::nvmlDeviceGetAttributes_v2)?;
        Ok(SliceAttributes {
            multiprocessors: attributes.multiprocessor_count,
            gpu_slices: attributes.gpu_instance_slice_count,
            memory_mib: attributes.memory_size_mb,
        })
    }
}
