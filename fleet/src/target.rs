//! Targets: a device kind by name, a class of them, or whatever the farm has.

use planforge_types::Sku;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A class of device kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Cpu,
    Gpu,
    Volta,
    Turing,
    Ampere,
    Ada,
    Hopper,
    Blackwell,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 8] =
        [Self::Cpu, Self::Gpu, Self::Volta, Self::Turing, Self::Ampere, Self::Ada, Self::Hopper, Self::Blackwell];

    /// As a declaration names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Volta => "volta",
            Self::Turing => "turing",
            Self::Ampere => "ampere",
            Self::Ada => "ada",
            Self::Hopper => "hopper",
            Self::Blackwell => "blackwell",
        }
    }

    /// The generation of a compute capability such as `9.0`; `None` for one that no class stands for.
    fn of_capability(capability: &str) -> Option<Self> {
        Some(match capability {
            "7.0" | "7.2" => Self::Volta,
            "7.5" => Self::Turing,
            "8.9" => Self::Ada,
            other => match other.split('.').next()? {
                "8" => Self::Ampere,
                "9" => Self::Hopper,
                "10" | "11" | "12" => Self::Blackwell,
                _ => return None,
            },
        })
    }
}

/// The word for every device kind that the farm has.
pub const ALL_FLEET: &str = "all-fleet";

/// What a declaration wants engines for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    Sku(Sku),
    /// Device kinds of this class that the farm has.
    Class(Class),
    AllFleet,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sku(sku) => sku.fmt(f),
            Self::Class(class) => f.write_str(class.name()),
            Self::AllFleet => f.write_str(ALL_FLEET),
        }
    }
}

/// Why a text is no target, or a target means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("'{text}' is neither a device kind nor a class")]
    Unknown {
        text: String,
        /// Names that are nearly it, nearest first.
        near: Vec<String>,
    },
    #[error("the farm knows no device of '{target}'")]
    Nobody { target: Target },
}

impl TargetError {
    /// What to do next.
    pub fn hint(&self) -> String {
        let classes = Class::ALL.map(Class::name).join(", ");
        match self {
            Self::Unknown { near, .. } if near.is_empty() => {
                format!("'planforge devices' lists device kinds; classes are {classes} and {ALL_FLEET}")
            }
            Self::Unknown { near, .. } => format!("did you mean {}?", near.join(", ")),
            Self::Nobody { .. } => {
                "start an agent on a host that has one, or name device kinds ('planforge devices' lists those known)"
                    .into()
            }
        }
    }
}

/// Names that are proposed for a wrong one.
const NEAR_MAX: usize = 4;
/// Letters that may be wrong in a name that is proposed.
const NEAR_EDITS: usize = 3;
/// Longest text that is looked for names near it: the work grows with every letter.
const NEAR_MAX_BYTES: usize = 80;

/// The device kinds that have a name, each with the generation of its chip where it is a GPU.
#[derive(Clone, Debug, Default)]
pub struct Boards(BTreeMap<Sku, Option<Class>>);

impl Boards {
    /// `gpus` with their compute capability, and `cpus`, as the catalogues of devices have them.
    pub fn new<'a>(gpus: impl IntoIterator<Item = (Sku, &'a str)>, cpus: impl IntoIterator<Item = Sku>) -> Self {
        let gpus = gpus.into_iter().map(|(sku, capability)| (sku, Class::of_capability(capability)));
        Self(gpus.chain(cpus.into_iter().map(|sku| (sku, None))).collect())
    }

    /// The generation of a GPU; of a slice, its board's; of a board without a name of its own, what its derived one says.
    fn generation(&self, sku: &Sku) -> Option<Class> {
        if let Some(class) = self.0.get(sku) {
            return *class;
        }
        if let Some((board, _)) = sku.as_str().split_once("-mig-") {
            return board.parse().ok().and_then(|board| self.generation(&board));
        }
        let (_, capability) = sku.as_str().trim_end_matches("-vgpu").rsplit_once("-cc")?;
        Class::of_capability(capability)
    }

    /// Whether a device kind of this name can exist: one of the catalogue, a slice of one, or a derived name.
    fn can_exist(&self, sku: &Sku) -> bool {
        let derived = || {
            let capability =
                sku.as_str().trim_end_matches("-vgpu").rsplit_once("-cc").map(|(_, capability)| capability);
            capability.is_some_and(|text| text.split('.').all(|part| part.parse::<u8>().is_ok()))
        };
        let slice = || {
            sku.as_str().split_once("-mig-").is_some_and(|(board, _)| board.parse().is_ok_and(|b| self.can_exist(&b)))
        };
        self.0.contains_key(sku) || slice() || derived()
    }

    fn is_of(&self, sku: &Sku, class: Class) -> bool {
        match class {
            Class::Cpu => sku.is_cpu(),
            Class::Gpu => !sku.is_cpu(),
            generation => !sku.is_cpu() && self.generation(sku) == Some(generation),
        }
    }

    /// Reads a target.
    ///
    /// # Errors
    /// [`TargetError::Unknown`] for a name that no device kind can have, with those that are nearly it.
    pub fn target(&self, text: &str) -> Result<Target, TargetError> {
        if text == ALL_FLEET {
            return Ok(Target::AllFleet);
        }
        if let Some(class) = Class::ALL.into_iter().find(|class| class.name() == text) {
            return Ok(Target::Class(class));
        }
        match text.parse::<Sku>() {
            Ok(sku) if self.can_exist(&sku) => Ok(Target::Sku(sku)),
            _ => Err(TargetError::Unknown { text: text.chars().take(80).collect(), near: self.near(text) }),
        }
    }

    /// Names that are nearly `text`: those that go on after it, those few letters apart, those that it goes on after.
    fn near(&self, text: &str) -> Vec<String> {
        if text.len() > NEAR_MAX_BYTES {
            return Vec::new();
        }
        let text = text.to_ascii_lowercase();
        let names = self.0.keys().map(Sku::as_str).chain(Class::ALL.map(Class::name)).chain([ALL_FLEET]);
        let rank = |name: &str| {
            let distance = edits(&text, name);
            let group = if text.len() >= 2 && name.starts_with(&text) {
                0
            } else if distance <= NEAR_EDITS.min(text.len() / 3) {
                1
            } else if text.starts_with(name) {
                2
            } else {
                return None;
            };
            Some((group, distance))
        };
        let mut near: Vec<((u8, usize), &str)> = names.filter_map(|name| Some((rank(name)?, name))).collect();
        near.sort_unstable();
        near.into_iter().take(NEAR_MAX).map(|(_, name)| name.to_owned()).collect()
    }

    /// The device kinds that `targets` mean on a farm that has those of `fleet`. Kinds that are named are meant whether or
    /// not it has them.
    ///
    /// # Errors
    /// [`TargetError::Nobody`] for a class of which it has none.
    pub fn expand(&self, targets: &[Target], fleet: &BTreeSet<Sku>) -> Result<BTreeSet<Sku>, TargetError> {
        let mut meant = BTreeSet::new();
        for target in targets {
            let before = meant.len();
            let found: Vec<&Sku> = match target {
                Target::Sku(sku) => vec![sku],
                Target::Class(class) => fleet.iter().filter(|sku| self.is_of(sku, *class)).collect(),
                Target::AllFleet => fleet.iter().collect(),
            };
            if found.is_empty() {
                return Err(TargetError::Nobody { target: target.clone() });
            }
            meant.extend(found.into_iter().cloned());
            debug_assert!(meant.len() >= before);
        }
        Ok(meant)
    }
}

/// Letters to insert, leave out or change to make one word of the other (Levenshtein).
fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let change = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = change.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn boards() -> Boards {
        let sku = |name: &str| name.parse::<Sku>().unwrap();
        let gpus = [("t4", "7.5"), ("l4", "8.9"), ("h100-sxm", "9.0"), ("h100-pcie", "9.0"), ("b200", "10.0")];
        let cpus = ["cpu-x86-64-v2", "cpu-x86-64-v3", "cpu-x86-64-v4"];
        Boards::new(gpus.map(|(name, capability)| (sku(name), capability)), cpus.map(sku))
    }

    #[test]
    fn classes_mean_what_the_farm_has_of_them() {
        let boards = boards();
        let fleet: BTreeSet<Sku> =
            ["t4", "h100-sxm", "cpu-x86-64-v2", "h100-sxm-mig-1g.10gb", "some-board-8gb-cc9.0-vgpu"]
                .iter()
                .map(|name| name.parse().unwrap())
                .collect();
        let meant = |targets: &[&str]| {
            let targets: Vec<_> = targets.iter().map(|text| boards.target(text).unwrap()).collect();
            let skus = boards.expand(&targets, &fleet);
            skus.map(|skus| skus.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(meant(&["hopper"]).unwrap(), ["h100-sxm", "h100-sxm-mig-1g.10gb", "some-board-8gb-cc9.0-vgpu"]);
        assert_eq!(meant(&["cpu", "l4"]).unwrap(), ["cpu-x86-64-v2", "l4"], "a named kind needs no device");
        assert_eq!(meant(&["gpu"]).unwrap().len(), 4);
        assert_eq!(meant(&["all-fleet", "t4"]).unwrap().len(), fleet.len());
        assert_eq!(meant(&["blackwell"]).unwrap_err().to_string(), "the farm knows no device of 'blackwell'");
    }

    #[test]
    fn a_wrong_name_is_answered_with_near_ones() {
        let near = |text: &str| match boards().target(text) {
            Err(TargetError::Unknown { near, .. }) => near,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(near("h100"), ["h100-sxm", "h100-pcie"]);
        assert_eq!(near("hoper"), ["hopper"]);
        assert_eq!(near("cpu-x86-64-v5")[..1], ["cpu-x86-64-v2"]);
        assert_eq!(near("T4"), ["t4"]);
        assert!(near("quantum-9000").is_empty());
        assert!(near(&"t4".repeat(500_000)).is_empty(), "nor is anything near to what is no name");
        for fine in ["h100-sxm-mig-1g.10gb", "h100-80gb-hbm3-80gb-114sm-cc9.0", "volta"] {
            boards().target(fine).unwrap();
        }
    }
}
