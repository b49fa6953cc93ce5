//! Processes of this program that compile kernels for its workers.

use planforge_kernels_cuda::{
    compilers::{COMMAND, Compilers},
    libraries::Nvrtc,
    nvrtc::{self, Arch, CompileError, Source},
};
use std::{
    env,
    io::Write as _,
    process::{Command, Output, Stdio},
    thread,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_planforge");

#[test]
fn they_compile_what_this_process_compiles() {
    if let Err(missing) = Nvrtc::get() {
        assert!(env::var_os("PLANFORGE_NEED_NVRTC").is_none(), "{missing}");
        return planforge_skipped::skipped(missing);
    }
    let compilers = Compilers::of(Some(PROGRAM.into()));
    let arch = Arch::of_device(9, 0);
    let text =
        |by: usize| format!("extern \"C\" __global__ void scale(float* x) {{ x[threadIdx.x] *= {by}.0f * FACTOR; }}");
    let options = ["-DFACTOR=2.0f".to_owned()];
    thread::scope(|scope| {
        for thread in 0..3 {
            let (compilers, options) = (&compilers, &options);
            scope.spawn(move || {
                for text in (0..4).map(|by| text(10 * thread + by)) {
                    let source = Source { name: "scale", text: &text, options };
                    let here = nvrtc::compile(source, arch).expect("it compiles here");
                    assert_eq!(compilers.compile(source, arch).expect("and there"), here);
                }
            });
        }
    });
    // The compiler's words come back, and the process goes on.
    let broken = Source { name: "broken", text: "extern \"C\" __global__ void f() { undeclared(); }", options: &[] };
    let words = compilers.compile(broken, arch).expect_err("it does not compile");
    let CompileError::Source { name, log, .. } = &words else { panic!("{words}") };
    assert!(name == "broken" && log.contains("undeclared"), "{words}");
    let text = text(7);
    compilers.compile(Source { name: "scale", text: &text, options: &options }, arch).expect("the next compiles");
}

fn process(input: &[u8]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    // One that wants no more has closed its end.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("ended")
}

#[test]
fn one_ends_with_its_input_and_at_what_is_no_order() {
    let nothing = process(b"");
    assert!(nothing.status.success() && nothing.stdout.is_empty(), "{nothing:?}");
    let garbled = process(b"compile, please: there is no such order");
    assert_eq!(garbled.status.code(), Some(1), "{garbled:?}");
    assert!(garbled.stdout.is_empty() && String::from_utf8_lossy(&garbled.stderr).contains("at most"), "{garbled:?}");
}
