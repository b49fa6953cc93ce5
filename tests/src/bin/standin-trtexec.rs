//! The stand-in for `trtexec`; tests put it under that name beside a scenario.

fn main() -> std::process::ExitCode {
    planforge_tests::standin::main()
}
