//! Any bytes as an exported file: every reader takes or refuses them; nothing panics or grows without bound.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: planforge_fuzz::report_stack_overflows(), |bytes: &[u8]| {
    planforge_tensorrt::fuzzing::exports(bytes)
});
