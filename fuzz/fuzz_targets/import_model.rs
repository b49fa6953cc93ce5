//! Any bytes that read as ONNX: the importer refuses or builds a graph that passes keep whole and that runs.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: planforge_fuzz::report_stack_overflows(), |bytes: &[u8]| {
    planforge_cpu::fuzzing::model(bytes)
});
