//! Who uses a device, and who has.

use super::{Device, NvmlError, ffi, library::Library};
use std::{ffi::c_uint, ptr};

/// Entries of a list that are made room for beyond what the library announced: processes come meanwhile.
const HEADROOM: u32 = 8;
/// How often a list is asked for that outgrew its room.
const TRIES: u32 = 4;
/// More entries than any list has: a broken library is not followed into exhausting memory.
const MAX_ENTRIES: u32 = 1 << 16;

/// A process that is on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningProcess {
    pub pid: u32,
    /// `None` where the driver does not tell.
    pub used_bytes: Option<u64>,
}

/// What a process used of a device in the time before `timestamp_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilizationSample {
    pub pid: u32,
    /// Microseconds since 1970.
    pub timestamp_us: u64,
    pub sm_percent: u32,
    pub memory_percent: u32,
    pub encoder_percent: u32,
    pub decoder_percent: u32,
}

/// What the driver wrote down of one process, where it keeps accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub is_running: bool,
    /// Microseconds since 1970.
    pub start_us: u64,
    /// How long a context of it was there.
    pub time_ms: u64,
}

/// `nvmlDeviceGet..RunningProcesses` of one form.
type List = unsafe fn(&Library, ffi::DeviceHandle, *mut c_uint, *mut ffi::ProcessInfo) -> Result<(), NvmlError>;

impl Device<'_> {
    pub fn running_compute_processes(&self) -> Result<Vec<RunningProcess>, NvmlError> {
        self.running([
            Library::nvmlDeviceGetComputeRunningProcesses_v3,
            Library::nvmlDeviceGetComputeRunningProcesses_v2,
            Library::nvmlDeviceGetComputeRunningProcesses,
        ])
    }

    pub fn running_graphics_processes(&self) -> Result<Vec<RunningProcess>, NvmlError> {
        self.running([
            Library::nvmlDeviceGetGraphicsRunningProcesses_v3,
            Library::nvmlDeviceGetGraphicsRunningProcesses_v2,
            Library::nvmlDeviceGetGraphicsRunningProcesses,
        ])
    }

    /// The list by the newest form that the driver has: drivers before 510 lack the third, before 450 the second, and some
    /// of 535 lack the third again.
    fn running(&self, [third, second, first]: [List; 3]) -> Result<Vec<RunningProcess>, NvmlError> {
        let mut answer = self.listed(third, self.nvml().process_bytes);
        for (list, entry_bytes) in [(second, ffi::PROCESS_V2_BYTES), (first, ffi::PROCESS_V1_BYTES)] {
            if !matches!(answer, Err(NvmlError::Missing { .. })) {
                break;
            }
            answer = self.listed(list, entry_bytes);
        }
        answer
    }

    /// The list that `list` writes in entries of so many bytes.
    fn listed(&self, list: List, entry_bytes: usize) -> Result<Vec<RunningProcess>, NvmlError> {
        // Room for the widest entries, whatever the driver is thought to write: a wrong guess gives wrong numbers, not
        // broken memory. Eight bytes at a time, as the entries are aligned.
        const WORDS: usize = ffi::PROCESS_WIDE_BYTES / size_of::<u64>();
        let mut room: Vec<u64> = Vec::new();
        let count = filled(|count, first| {
            room.resize(*count as usize * WORDS, 0);
            let entries = if first { ptr::null_mut() } else { room.as_mut_ptr().cast() };
            // SAFETY: the handle is this library's; `entries` has room for `count` of the widest entries.
            unsafe { list(&self.nvml().library, self.handle(), count, entries) }
        })?;
        let word = |at: usize| room.get(at).copied().unwrap_or(0);
        let entry = |index: usize| {
            let at = index * entry_bytes / size_of::<u64>();
            let [a, b, c, d, ..] = word(at).to_ne_bytes();
            let used = word(at + 1);
            RunningProcess {
                pid: u32::from_ne_bytes([a, b, c, d]),
                used_bytes: (used != ffi::NOT_AVAILABLE).then_some(used),
            }
        };
        Ok((0..count as usize).map(entry).collect())
    }

    /// What processes used since a time (microseconds since 1970), as far as the driver still knows. That none did is told
    /// as [not found](NvmlError::is_not_found).
    pub fn process_utilization(&self, since_us: u64) -> Result<Vec<UtilizationSample>, NvmlError> {
        let mut samples: Vec<ffi::ProcessUtilization> = Vec::new();
        let count = filled(|count, first| {
            samples.resize(*count as usize, ffi::ProcessUtilization::default());
            let to = if first { ptr::null_mut() } else { samples.as_mut_ptr() };
            // SAFETY: the handle is this library's; `to` has room for `count` samples.
            unsafe { self.nvml().library.nvmlDeviceGetProcessUtilization(self.handle(), to, count, since_us) }
        })?;
        samples.truncate(count as usize);
        let sample = |sample: ffi::ProcessUtilization| UtilizationSample {
            pid: sample.pid,
            timestamp_us: sample.timestamp_us,
            sm_percent: sample.sm_percent,
            memory_percent: sample.memory_percent,
            encoder_percent: sample.encoder_percent,
            decoder_percent: sample.decoder_percent,
        };
        Ok(samples.into_iter().map(sample).collect())
    }

    /// How many samples of the whole device's utilisation the driver keeps.
    pub fn utilization_samples_kept(&self) -> Result<u32, NvmlError> {
        let (mut value_type, mut samples): (c_uint, Vec<ffi::Sample>) = (0, Vec::new());
        filled(|count, first| {
            samples.resize(*count as usize, ffi::Sample::default());
            let to = if first { ptr::null_mut() } else { samples.as_mut_ptr() };
            let kind = ffi::SAMPLES_GPU_UTILIZATION;
            // SAFETY: the handle is this library's; `to` has room for `count` samples, whose type is one enum.
            unsafe { self.nvml().library.nvmlDeviceGetSamples(self.handle(), kind, 0, &mut value_type, count, to) }
        })
    }

    /// Whether the driver keeps accounts of processes.
    pub fn is_accounting_enabled(&self) -> Result<bool, NvmlError> {
        self.number(Library::nvmlDeviceGetAccountingMode).map(|mode| mode != 0)
    }

    /// Processes of which there are accounts.
    pub fn accounting_pids(&self) -> Result<Vec<u32>, NvmlError> {
        let mut pids: Vec<c_uint> = Vec::new();
        let count = filled(|count, first| {
            pids.resize(*count as usize, 0);
            let to = if first { ptr::null_mut() } else { pids.as_mut_ptr() };
            // SAFETY: the handle is this library's; `to` has room for `count` numbers.
            unsafe { self.nvml().library.nvmlDeviceGetAccountingPids(self.handle(), count, to) }
        })?;
        pids.truncate(count as usize);
        Ok(pids)
    }

    pub fn account_of(&self, pid: u32) -> Result<Account, NvmlError> {
        let mut stats = ffi::AccountingStats::default();
        // SAFETY: the handle is this library's; writes one structure.
        unsafe { self.nvml().library.nvmlDeviceGetAccountingStats(self.handle(), pid, &mut stats)? };
        Ok(Account { is_running: stats.is_running != 0, start_us: stats.start_us, time_ms: stats.time_ms })
    }
}

/// Fills a list whose length only the library knows. `ask` is called with the length that there is room for, first with
/// none; the library then says how long the list is. Returns how many entries were written.
fn filled(mut ask: impl FnMut(&mut c_uint, bool) -> Result<(), NvmlError>) -> Result<u32, NvmlError> {
    let mut room = 0;
    let mut answer = Ok(());
    for attempt in 0..TRIES {
        let mut count = room;
        answer = ask(&mut count, attempt == 0);
        match &answer {
            Ok(()) if attempt == 0 && count == 0 => return Ok(0),
            // Never more than there was room for.
            Ok(()) if attempt > 0 => return Ok(count.min(room)),
            // The length was told, or the list has grown since.
            Ok(()) => {}
            Err(error) if error.is_insufficient_size() => {}
            Err(_) => break,
        }
        room = count.max(room).saturating_add(HEADROOM).min(MAX_ENTRIES);
    }
    answer.map(|()| 0)
}
