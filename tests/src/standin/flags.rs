//! Which options a version takes, and its help text.
//!
//! `flags.txt` has a line for every span of versions that takes an option: name, kind (`b` presence alone, `i` whole
//! number, `f` number, `s` text, `l` text that may be given again), first version, first version without it.

use super::version::Version;
use std::fmt::Write as _;

const TABLE: &str = include_str!("flags.txt");

/// What follows the name of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Presence,
    Integer,
    Number,
    Text,
    /// May be given several times.
    List,
}

/// Options that the tool takes without saying so in its help.
const UNDOCUMENTED: [(&str, Version); 2] =
    [("streams", Version::new(8, 6, 0)), ("tuningResultFile", Version::new(11, 1, 0))];

fn rows(version: Version) -> impl Iterator<Item = (&'static str, Kind)> {
    TABLE.lines().filter_map(move |line| {
        let mut words = line.split(' ');
        let (name, kind) = (words.next()?, words.next()?);
        let since: Version = words.next()?.parse().ok()?;
        let gone: Option<Version> = words.next().and_then(|word| word.parse().ok());
        let kind = match kind {
            "b" => Kind::Presence,
            "i" => Kind::Integer,
            "f" => Kind::Number,
            "l" => Kind::List,
            _ => Kind::Text,
        };
        (since <= version && gone.is_none_or(|gone| version < gone)).then_some((name, kind))
    })
}

/// The kind of `name` in `version`; `None`: unknown there.
pub fn kind(version: Version, name: &str) -> Option<Kind> {
    rows(version).find(|(known, _)| *known == name).map(|(_, kind)| kind)
}

/// The help text: one line an option, under the tool's headings.
pub fn help(version: Version) -> String {
    let mut text =
        String::from("=== Model Options ===\n  --onnx=<file>               ONNX model\n\n=== Build Options ===\n");
    for (name, kind) in rows(version) {
        let hidden = UNDOCUMENTED.iter().any(|(hidden, since)| *hidden == name && version >= *since);
        if name == "onnx" || hidden {
            continue;
        }
        let (form, words) = match kind {
            Kind::Presence => (format!("--{name}"), "switch this on (default = disabled)"),
            Kind::Integer => (format!("--{name}=N"), "set this to N"),
            Kind::Number => (format!("--{name}=F"), "set this to F"),
            Kind::Text => (format!("--{name}=spec"), "as the grammar below says"),
            Kind::List => (format!("--{name}=lib"), "may be given more than once"),
        };
        let _ = writeln!(text, "  {form:<35} {words}");
    }
    // Prose that names options, among them one that a version may not take: only the left column counts.
    text.push_str("                                      Note: like --memPoolSize, where --workspace went in time\n");
    text.push_str("\n=== Help ===\n  --help, -h                  Print this message\n");
    text
}
