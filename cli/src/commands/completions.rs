//! `planforge completions`: a completion script for a shell.

use crate::{context::Context, failure::Failure};
use clap_complete::Shell;
use planforge_types::shown::Stream;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell that the script is for
    shell: Shell,
}

/// Writes the script for `grammar`.
pub fn run(context: &Context<'_>, args: Args, mut grammar: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut grammar, "planforge", &mut script);
    let mut stream = Stream::default();
    context.printer.stream(&mut stream, &script)?;
    context.printer.stream_end(stream)
}
