//! The options that an installed `trtexec` lists in its help.
//!
//! An option begins a line, aliases follow after a comma (`  --versionCompatible, --vc   Mark the engine ...`).
//! Options that are only spoken of in an explanation do not count: newer versions name what they no longer take.

use std::collections::BTreeSet;

/// Bytes of help that are looked at; real ones have 20 to 45 KiB.
pub const MAX_HELP_BYTES: usize = 1 << 20;
/// Options that are kept; real ones list 80 to 130.
const MAX_OPTIONS: usize = 1024;

/// Names of the long options in `text`, with their dashes.
pub fn options(text: &str) -> BTreeSet<&str> {
    let end = text.floor_char_boundary(text.len().min(MAX_HELP_BYTES));
    let mut found = BTreeSet::new();
    for line in text[..end].lines() {
        let mut rest = line.trim_start();
        while let Some(name) = option_at_start(rest) {
            if found.len() == MAX_OPTIONS {
                return found;
            }
            found.insert(name);
            rest = &rest[name.len()..];
            let value_end = if rest.starts_with(['=', '[']) { rest.find([' ', ',']).unwrap_or(rest.len()) } else { 0 };
            rest = match rest[value_end..].trim_start().strip_prefix(',') {
                Some(alias) => alias.trim_start(),
                None => break,
            };
        }
    }
    found
}

fn option_at_start(text: &str) -> Option<&str> {
    let name = text.strip_prefix("--")?;
    let length = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
    (length > 0).then(|| &text[..length + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_begins_a_line_counts() {
        let help = "&&&& RUNNING TensorRT.trtexec [TensorRT v101601] # trtexec --help\n\
                    === Build Options ===\n\
                    \x20 --minShapes=spec      Build with dynamic shapes, see --optShapes\n\
                    \x20 --versionCompatible, --vc   Mark the engine\n\
                    \x20 --helpBuildRoute[=<knob>]   Print\n\
                    \x20 --help, -h            Print this message\n\
                    \x20                       and --fp16 elsewhere\n\
                    --\n -- x\n";
        let found: Vec<_> = options(help).into_iter().collect();
        assert_eq!(found, ["--help", "--helpBuildRoute", "--minShapes", "--vc", "--versionCompatible"]);
    }

    #[test]
    fn a_flood_is_cut() {
        let flood: String = (0..5000).map(|n| format!("--option{n}\n")).collect();
        assert_eq!(options(&flood).len(), MAX_OPTIONS);
        assert!(options(&"ü".repeat(MAX_HELP_BYTES)).is_empty());
    }
}
