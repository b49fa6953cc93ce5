//! What golden digests of plans are held to: whoever changes what a compiler makes of the same input raises its revision.
//!
//! One file per revision, `plans-revision-N.json`, with the digests of a model and of what was made of it, by name. With
//! `PLANFORGE_BLESS=1` what is not known yet is written down; a digest that is known is never changed. Files of earlier
//! revisions may be deleted.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Digests by name.
pub type Golden = BTreeMap<String, Digests>;

/// Of what went into a compiler and of what came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digests {
    pub model: String,
    pub plan: String,
}

/// A compiler's revision.
#[derive(Clone, Copy, Debug)]
pub struct Revision {
    pub number: u32,
    /// `CONSTANT in FILE`.
    pub constant: &'static str,
}

pub fn blessing() -> bool {
    std::env::var_os("PLANFORGE_BLESS").is_some_and(|value| value == "1")
}

/// The file of a revision in the folder of golden files; `what`: plans, tactics.
pub fn file(folder: &Path, what: &str, revision: Revision) -> PathBuf {
    folder.join(format!("{what}-revision-{}.json", revision.number))
}

/// What is known of a revision.
pub fn read(path: &Path) -> Golden {
    let text = fs::read_to_string(path).unwrap_or_else(|_| "{}".into());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Why `now` is not what is known, or what is to be known from here on.
pub fn judge(known: &Golden, now: &Golden, revision: Revision, blessing: bool) -> Result<Golden, String> {
    let same_input = |name: &str, digests: &Digests| known.get(name).filter(|known| known.model == digests.model);
    let changed: Vec<&str> = now
        .iter()
        .filter(|(name, digests)| same_input(name, digests).is_some_and(|known| known.plan != digests.plan))
        .map(|(name, _)| name.as_str())
        .collect();
    let Revision { number, constant } = revision;
    if !changed.is_empty() {
        return Err(format!(
            "{} plans are not what revision {number} made of the same input: {}\n\
             hint: raise the revision constant {constant} and run with PLANFORGE_BLESS=1",
            changed.len(),
            changed.join(", ")
        ));
    }
    let new: Vec<&str> =
        now.iter().filter(|(name, of)| same_input(name, of).is_none()).map(|(name, _)| name.as_str()).collect();
    if !new.is_empty() && !blessing {
        return Err(format!(
            "{} plans of revision {number} are not known: {}\nhint: run with PLANFORGE_BLESS=1 and commit what it writes",
            new.len(),
            new.join(", ")
        ));
    }
    let mut all = known.clone();
    all.extend(now.clone());
    Ok(all)
}

pub fn write(path: &Path, value: &impl Serialize) {
    let mut text = serde_json::to_string_pretty(value).expect("only JSON types");
    text.push('\n');
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

mod tests {
    use super::*;

    #[test]
    fn a_changed_plan_asks_for_another_revision_and_is_never_blessed() {
        let revision = Revision { number: 3, constant: "REVISION in here.rs" };
        let of = |model: &str, plan: &str| Digests { model: model.into(), plan: plan.into() };
        let known = Golden::from([("a".into(), of("m", "1"))]);
        assert_eq!(judge(&known, &known, revision, false), Ok(known.clone()));
        let changed = Golden::from([("a".into(), of("m", "2"))]);
        for blessing in [false, true] {
            let words = judge(&known, &changed, revision, blessing).expect_err("it changed");
            assert!(words.contains("raise the revision constant REVISION in here.rs"), "{words}");
        }
        for new in [Golden::from([("b".into(), of("m", "1"))]), Golden::from([("a".into(), of("n", "2"))])] {
            assert!(judge(&known, &new, revision, false).expect_err("not known").contains("PLANFORGE_BLESS=1"));
            let all = judge(&known, &new, revision, true).expect("it is written down");
            assert!(new.iter().all(|(name, digests)| all[name] == *digests) && all.contains_key("a"));
        }
    }
}
