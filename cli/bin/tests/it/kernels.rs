//! Processes of this program that compile kernels for its workers, and that time candidates for them.

use planforge_kernels_cuda::{
    compilers::{self, Compilers},
    libraries::{Driver, Nvrtc},
    messages::{read_message, write_message},
    nvrtc::{self, Arch, CompileError, Source},
};
use std::{
    env,
    io::Write as _,
    process::{Command, Output, Stdio},
    thread,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_planforge");

/// `planforge_cuda::tune::apart::COMMAND`.
const TIME_CANDIDATES: &str = "time-candidates";

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

fn process(command: &str, input: &[u8]) -> Output {
    let mut program = Command::new(PROGRAM);
    program.arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().expect("started");
    // One that wants no more has closed its end.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("ended")
}

#[test]
fn one_ends_with_its_input_and_at_what_is_no_order() {
    let nothing = process(compilers::COMMAND, b"");
    assert!(nothing.status.success() && nothing.stdout.is_empty(), "{nothing:?}");
    let garbage = b"compile, please: there is no such order";
    for command in [compilers::COMMAND, TIME_CANDIDATES] {
        let garbled = process(command, garbage);
        assert_eq!(garbled.status.code(), Some(1), "{garbled:?}");
        let words = String::from_utf8_lossy(&garbled.stderr);
        assert!(garbled.stdout.is_empty() && words.contains("at most"), "{command}: {garbled:?}");
    }
    assert_eq!(process(TIME_CANDIDATES, b"").status.code(), Some(1));
}

/// Where there is no device it says so, and whoever asked goes on without; where there is one, nothing is to be timed.
#[test]
fn candidates_are_timed_where_there_is_a_device() {
    let mut order = Vec::new();
    let task = r#"{"uuid":null,"level":3,"programs":[],"known":{},"library_plans":{},"code":[]}"#;
    write_message(&mut order, &[task.as_bytes(), b"weights"]).expect("written");
    let answered = process(TIME_CANDIDATES, &order);
    assert!(answered.status.success(), "{answered:?}");
    let fields = read_message(&mut answered.stdout.as_slice()).expect("a message").expect("an answer");
    let fields: Vec<_> = fields.iter().map(|field| String::from_utf8_lossy(field)).collect();
    match Driver::get() {
        Err(missing) => assert_eq!(fields, ["failed".to_owned(), missing.to_string()]),
        Ok(_) => assert_eq!(fields, ["timed", r#"{"times":{},"library_plans":{},"code":[]}"#]),
    }
}
