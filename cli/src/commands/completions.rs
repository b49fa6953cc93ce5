//! `planforge completions`: a completion script for a shell.

use super::Context;
use crate::{cli::Cli, failure::Failure};
use clap::CommandFactory as _;
use clap_complete::Shell;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell that the script is for
    shell: Shell,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "planforge", &mut script);
    context.printer.raw(&script)
}
