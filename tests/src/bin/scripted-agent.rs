//! The agent with scripted GPUs; its own worker too.

fn main() -> std::process::ExitCode {
    planforge_tests::scripted::main()
}
