//! What a toolchain can do at all, as agents say: what none of them could ever build is refused when it is asked for.

use super::{queue::Target, state::State};
use planforge_types::{BuildSpec, Precision};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Stands for every option: the compiler looks at them itself.
const ANY_OPTION: &str = "*";

/// What one toolchain can do on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    pub precisions: BTreeSet<Precision>,
    /// Fields of a build spec that it takes beside precision, profiles and effort.
    pub features: BTreeSet<String>,
    /// Names of backend options.
    pub options: BTreeSet<String>,
}

impl Abilities {
    /// What the spec asks for and the toolchain cannot do, in words.
    pub fn lacks(&self, spec: &BuildSpec) -> Option<String> {
        if !self.precisions.contains(&spec.precision) {
            let able: Vec<String> = self.precisions.iter().map(spelt).collect();
            return Some(format!("precision {} (it has {})", spelt(&spec.precision), able.join(", ")));
        }
        let wishes = [
            ("hardware_compatibility", spec.hardware_compatibility.is_some(), "hardware compatibility levels"),
            ("version_compatible", spec.version_compatible, "version-compatible plans"),
            ("approximate_gelu", spec.approximate_gelu, "an approximate GELU"),
            ("strict", spec.strict, "strictness about declared outputs"),
            ("calibration", spec.calibration.is_some(), "calibration"),
            ("plugins", !spec.plugins.is_empty(), "plugins"),
        ];
        let lacking = wishes.iter().find(|(name, asked, _)| *asked && !self.features.contains(*name));
        if let Some((_, _, words)) = lacking {
            return Some((*words).to_owned());
        }
        let takes = |name: &String| self.options.contains(ANY_OPTION) || self.options.contains(name);
        spec.options.keys().find(|name| !takes(name)).map(|name| format!("the option {name}"))
    }
}

fn spelt(precision: &Precision) -> String {
    format!("{precision:?}").to_lowercase()
}

impl State {
    /// What of the spec no known device with this target can do; `None` where one can, or has not said what it can.
    pub(super) fn lacking(&self, target: &Target, spec: &BuildSpec) -> Option<String> {
        let mut lacking = None;
        for key in self.offers.get(target).into_iter().flatten() {
            let device = self.device(key)?;
            let offer = device.offers.iter().position(|offer| *offer == target.toolchain)?;
            let abilities = device.abilities.get(&u32::try_from(offer).ok()?)?;
            lacking = Some(abilities.lacks(spec)?);
        }
        lacking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        let abilities = Abilities {
            precisions: [Precision::Fp32, Precision::Best].into(),
            features: ["calibration".to_owned()].into(),
            options: ["force_tactic".to_owned()].into(),
        };
        let lacks = |spec: BuildSpec| abilities.lacks(&spec).unwrap_or_default();
        let digest = planforge_types::Digest::of(b"x");
        assert_eq!(lacks(BuildSpec::default()), "");
        assert_eq!(lacks(BuildSpec { calibration: Some(digest), ..BuildSpec::default() }), "");
        assert_eq!(lacks(BuildSpec { plugins: vec![digest], ..BuildSpec::default() }), "plugins");
        let half = BuildSpec { precision: Precision::Fp16, ..BuildSpec::default() };
        assert_eq!(lacks(half), "precision fp16 (it has fp32, best)");
        let option =
            |name: &str| BuildSpec { options: [(name.to_owned(), "1".to_owned())].into(), ..BuildSpec::default() };
        assert_eq!(
            (lacks(option("force_tactic")), lacks(option("other"))),
            (String::new(), "the option other".to_owned())
        );
        let open = Abilities { options: [ANY_OPTION.to_owned()].into(), ..abilities.clone() };
        assert_eq!(open.lacks(&option("other")), None);
    }
}
