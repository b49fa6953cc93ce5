//! What one `trtexec` can be asked.

use super::{find, help, table::FLAGS};
use crate::version::Version;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The options of one version, as its table column has them or as an installation lists them.
///
/// A version newer than the table is taken for the newest column, as far as its help lists the options: what it has
/// beyond is unknown here and never used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    version: Version,
    flags: BTreeSet<String>,
}

impl Capabilities {
    /// What the table says of `version`, for where no installation is at hand.
    pub fn of_version(version: Version) -> Self {
        let flags = FLAGS.iter().filter(|flag| flag.is_in(version)).map(|flag| flag.name.to_owned()).collect();
        Self { version, flags }
    }

    /// What an installation of `version` with this help text can do.
    pub fn of_help(version: Version, text: &str) -> Self {
        let listed = help::options(text);
        let known = listed.into_iter().filter(|name| find(name).is_some_and(|flag| flag.spans(version)));
        Self { version, flags: known.map(str::to_owned).collect() }
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether it takes this option, named with its dashes.
    pub fn has(&self, name: &str) -> bool {
        debug_assert!(find(name).is_some(), "{name} is in no version");
        self.flags.contains(name)
    }

    pub fn flags(&self) -> impl Iterator<Item = &str> {
        self.flags.iter().map(String::as_str)
    }

    /// Whether its networks are always strongly typed, so that precision is the model's and not a flag's.
    pub fn strongly_typed_only(&self) -> bool {
        self.version.major >= 11
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_narrows_the_table_and_never_widens_it() {
        let v: Version = "10.16.1".parse().unwrap();
        let some = Capabilities::of_help(v, "  --fp16\n  --onnx=<file>\n  --includeDataTransfers\n  --brandNew\n");
        assert_eq!(some.flags().collect::<Vec<_>>(), ["--fp16", "--onnx"]);
        let all = Capabilities::of_version(v);
        assert!(all.has("--fp16") && all.has("--maxTactics") && !all.has("--includeDataTransfers"));
    }

    #[test]
    fn newer_versions_have_the_newest_column_as_far_as_they_list_it() {
        let v: Version = "11.4.1".parse().unwrap();
        let new = Capabilities::of_help(v, "  --onnx=f\n  --noCudaGraph\n  --fp16\n  --futureThing\n");
        assert_eq!(new.flags().collect::<Vec<_>>(), ["--noCudaGraph", "--onnx"]);
        assert!(new.strongly_typed_only());
    }
}
