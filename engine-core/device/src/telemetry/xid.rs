//! Xids: the numbers under which the NVIDIA driver reports errors of a device.
//!
//! The driver tells them as events, to whoever asked before they happened. They are looked for only around timed windows,
//! without waiting: nothing runs during one.

use crate::nvml::{Device, XidEvents};

/// Most events that one look takes: a broken device may report without end.
const EVENTS_MAX: usize = 64;
/// The number that stands for an error without a known one.
const UNKNOWN: u64 = 999;

/// What the commoner numbers stand for, and whether the device may do nothing more afterwards: so it is where NVIDIA's
/// public catalogue of Xids asks for a reset of the GPU or a restart of its machine, with 61 (older boards), and with 171
/// and 172, which come beside 48.
const KNOWN: [(u64, &str, bool); 31] = [
    (13, "a kernel made the graphics engine stop", false),
    (31, "a kernel touched memory it must not", false),
    (43, "a process's work on the device was stopped", false),
    (45, "a process's work was cleared away after an error", false),
    (46, "the device stopped processing", true),
    (48, "a memory error that cannot be corrected", true),
    (61, "the device's microcontroller stopped at a breakpoint", true),
    (62, "the device's microcontroller halted", true),
    (63, "a memory row or page is to be replaced", false),
    (64, "a bad memory row or page could not be replaced", true),
    (69, "a kernel used the graphics engine wrongly", false),
    (74, "an NVLink error", false),
    (79, "the GPU fell off the bus", true),
    (92, "many corrected memory errors", false),
    (94, "a memory error that was contained", false),
    (95, "a memory error that was not contained", true),
    (109, "a context could not be switched in time", true),
    (110, "a security fault", true),
    (119, "the device's system processor does not answer", true),
    (120, "the device's system processor failed", true),
    (136, "an NVLink could not be trained", true),
    (140, "memory errors that cannot be recovered from", true),
    (143, "the device could not be initialised", true),
    (151, "keys could not be changed", true),
    (154, "the driver's advice on recovery changed", false),
    (155, "NVLinks were taken down", true),
    (156, "a part of the device is to be retired", true),
    (158, "the device did not answer in time", true),
    (171, "an uncorrectable error in the device's memory", true),
    (172, "an uncorrectable error in the device's caches", true),
    (UNKNOWN, "an error without a known number", false),
];

/// Whether the device may do nothing more after this error: it has to be looked at before anything else runs on it.
pub fn loses_device(number: u64) -> bool {
    KNOWN.iter().any(|(known, _, lost)| *known == number && *lost)
}

/// The error in words.
pub fn words(number: u64) -> String {
    match KNOWN.iter().find(|(known, _, _)| *known == number) {
        Some((_, meaning, _)) => format!("Xid {number}, {meaning}"),
        None => format!("Xid {number}"),
    }
}

/// What was reported of the device since the last look.
pub(super) fn since_last(events: &XidEvents) -> Vec<u64> {
    std::iter::from_fn(|| events.take()).take(EVENTS_MAX).collect()
}

/// Registers for the errors of the device; `None` where the driver tells none of this one.
pub(super) fn watch(device: &Device<'_>) -> Option<XidEvents> {
    let events = XidEvents::of(device);
    let events =
        events.inspect_err(|error| tracing::debug!(%error, "the driver reports no errors of this device as events"));
    events.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_in_words_and_only_some_lose_the_device() {
        assert_eq!(words(79), "Xid 79, the GPU fell off the bus");
        assert_eq!(words(5), "Xid 5");
        assert!([46, 48, 79, 109, 158].into_iter().all(loses_device));
        assert!(![5, 13, 31, 43, 45, 63, 94, 154, UNKNOWN].into_iter().any(loses_device));
        assert!(KNOWN.is_sorted_by_key(|(number, _, _)| *number), "each number stands once, in order");
    }
}
