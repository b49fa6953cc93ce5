//! `planforge man-pages`: a page for each command, written where packages are made.

use crate::failure::Failure;
use std::{fs, path::PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder to write to
    folder: PathBuf,
}

/// Writes a page for every command of `grammar`.
pub fn run(args: Args, grammar: clap::Command) -> Result<(), Failure> {
    let failed = |error: &std::io::Error| Failure::io("write man pages to", &args.folder, error);
    fs::create_dir_all(&args.folder).map_err(|error| failed(&error))?;
    clap_mangen::generate_to(grammar, &args.folder).map_err(|error| failed(&error))
}
