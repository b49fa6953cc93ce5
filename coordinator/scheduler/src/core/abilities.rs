//! What a toolchain can do at all, as agents say: what none of them could ever build is refused when it is asked for.

use super::{model::Device, queue::Target, state::State};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{BuildSpec, Precision, Sku, Toolchain, order::MeasureAsk};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Device kinds that one refusal lists.
const LISTED_MAX: usize = 40;
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
    /// What its engines cannot be measured by, by the names of [`planforge_types::order::extras`]; empty where an agent of
    /// an older release did not say.
    #[serde(default)]
    pub never_measures: BTreeSet<String>,
}

impl Abilities {
    /// What the spec asks for and the toolchain cannot do, in words.
    pub fn lacks(&self, spec: &BuildSpec) -> Option<String> {
        if !self.precisions.contains(&spec.precision) {
            let able: Vec<String> = self.precisions.iter().map(Precision::to_string).collect();
            return Some(format!("precision {} (it has {})", spec.precision, able.join(", ")));
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
        let unknown = spec.options.keys().find(|name| !takes(name))?;
        let known: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Some(format!("the option {unknown} (it has {known})"))
    }
}

/// What a device's toolchain can do; `None` where its agent did not say.
fn abilities_of<'a>(device: &'a Device, toolchain: &Toolchain) -> Option<&'a Abilities> {
    let offer = device.offers.iter().position(|offer| offer == toolchain)?;
    device.abilities.get(&u32::try_from(offer).ok()?)
}

impl State {
    /// What of the spec no known device with this target can do; `None` where one can, or has not said what it can.
    pub(super) fn lacking(&self, target: &Target, spec: &BuildSpec) -> Option<String> {
        let mut lacking = None;
        for key in self.offers.get(target).into_iter().flatten() {
            let abilities = abilities_of(self.device(key)?, &target.toolchain)?;
            lacking = Some(abilities.lacks(spec)?);
        }
        lacking
    }

    /// The refusal of a measurement that no known device with this target can make; `None` where one can, or did not say.
    pub(super) fn unmeasurable(&self, target: &Target, ask: &MeasureAsk) -> Option<ApiError> {
        let lacking: Vec<_> = ask.extras().into_iter().filter(|(name, ..)| self.none_measures(target, name)).collect();
        let (name, _, _) = lacking.first()?;
        let whats: Vec<&str> = lacking.iter().map(|(_, what, _)| *what).collect();
        let flags: Vec<&str> = lacking.iter().map(|(.., flag)| *flag).collect();
        let able: BTreeSet<&Sku> =
            self.offers.keys().filter(|other| !self.none_measures(other, name)).map(|other| &other.sku).collect();
        let able: Vec<String> = able.into_iter().take(LISTED_MAX).map(ToString::to_string).collect();
        let (sku, toolchain) = (&target.sku, &target.toolchain);
        let message = format!("{sku} cannot be measured so: {toolchain} has no {} there", whats.join(" and no "));
        let elsewhere = match able.as_slice() {
            [] => "no known device can".to_owned(),
            able => format!("or name a device that can with --sku: {}", able.join(", ")),
        };
        let hint = format!("leave out {}; {elsewhere}", flags.join(" and "));
        Some(ApiError::new(ErrorCode::Refused, message).with_hint(hint))
    }

    /// Whether every known device with this target has said that it never makes such a measurement.
    fn none_measures(&self, target: &Target, name: &str) -> bool {
        let mut devices = self.offers.get(target).into_iter().flatten().peekable();
        let known = devices.peek().is_some();
        known
            && devices.all(|key| {
                let said = self.device(key).and_then(|device| abilities_of(device, &target.toolchain));
                said.is_some_and(|abilities| abilities.never_measures.contains(name))
            })
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
            never_measures: BTreeSet::new(),
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
            (String::new(), "the option other (it has force_tactic)".to_owned())
        );
        let closed = Abilities { options: BTreeSet::new(), ..abilities.clone() };
        assert_eq!(closed.lacks(&option("other")).as_deref(), Some("the option other (it has none)"));
        let open = Abilities { options: [ANY_OPTION.to_owned()].into(), ..abilities.clone() };
        assert_eq!(open.lacks(&option("other")), None);
    }
}
