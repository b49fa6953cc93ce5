//! Any bytes as `planforge.toml`: refused with a line of it, or read; nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: planforge_fuzz::report_stack_overflows(), |bytes: &[u8]| {
    planforge_fleet::fuzzing::declaration(bytes)
});
