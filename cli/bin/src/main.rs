//! The `planforge` binary.

fn main() -> std::process::ExitCode {
    planforge_cli::main()
}
