//! Any bytes as an exported file: every reader takes or refuses them; nothing panics or grows without bound.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| planforge_tensorrt::fuzzing::exports(bytes));
