//! Any bytes as a plan, as manifest and weights of one whose digests fit, and as the machine code of one: refused, or
//! loaded and run; machine code only checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use planforge_fuzz::cubin::Cubin;
use std::{path::PathBuf, sync::LazyLock};

static SCRATCH: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("planforge-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    folder
});

fuzz_target!(init: planforge_fuzz::report_stack_overflows(), |bytes: &[u8]| {
    planforge_cpu::fuzzing::plan(bytes, &SCRATCH);
    let _ = Cubin::parse(bytes);
});
