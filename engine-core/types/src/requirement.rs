//! What a job asks of the device that runs it, beside its kind, and what a device has of that.
//!
//! | text | a device meets it |
//! |---|---|
//! | `memory=40GiB` | with so much memory or more; of a processor, its host's |
//! | `driver=570` | with that driver or a newer one |
//! | `mig=none` | that is no MIG slice |
//! | `mig=any`, `mig=1g.10gb` | that is a slice, or one of that profile |
//! | `label=NAME`, `label=NAME=VALUE` | whose agent was started with that label, or with that value of it |
//!
//! It says where a job runs, not what comes of it, and so is no part of an engine key.

use crate::{fingerprint::DeviceFingerprint, toolchain::compare_versions};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// Units of memory. What is shown takes the first that divides it.
const UNITS: [(&str, u64); 6] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
];
/// Longest driver version, name of a profile, and name or value of a label.
const VALUE_MAX_BYTES: usize = 64;
/// Slices or labels that one reason lists.
const LISTED_MAX: usize = 8;

/// What a device has of what a job may ask for. What is not known of it meets nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub memory_mib: u64,
    pub driver: Option<String>,
    /// Profile of the slice that it is.
    pub mig: Option<String>,
    /// Of its agent, by name.
    pub labels: BTreeMap<String, String>,
}

impl Attributes {
    /// Of a device; its agent's labels are the agent's to say.
    pub fn of(fingerprint: &DeviceFingerprint) -> Self {
        let gpu = fingerprint.gpu.as_ref();
        let driver = gpu.map(|gpu| gpu.driver.clone()).filter(|driver| !driver.is_empty());
        Self {
            memory_mib: fingerprint.memory_mib,
            driver,
            mig: gpu.and_then(|gpu| gpu.mig.clone()),
            labels: BTreeMap::new(),
        }
    }
}

/// A label of an agent, or what is asked of one: `NAME` or `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    pub name: String,
    pub value: Option<String>,
}

impl FromStr for Label {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Self, RequirementError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
        let is_value = |value: &str| {
            !value.is_empty() && value.len() <= VALUE_MAX_BYTES && !value.contains(|c: char| c == ',' || c.is_control())
        };
        if name.is_empty() || name.len() > VALUE_MAX_BYTES || !name.bytes().all(plain) || !value.is_none_or(is_value) {
            return Err(RequirementError::Label(clipped(text)));
        }
        Ok(Self { name: name.to_owned(), value: value.map(str::to_owned) })
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// An agent's labels by name; one without a value has an empty one.
///
/// # Errors
/// When a name stands there twice.
pub fn labels(labels: impl IntoIterator<Item = Label>) -> Result<BTreeMap<String, String>, RequirementError> {
    let mut known = BTreeMap::new();
    for Label { name, value } in labels {
        if known.insert(name.clone(), value.unwrap_or_default()).is_some() {
            return Err(RequirementError::Twice(name));
        }
    }
    Ok(known)
}

/// Whether a device is to be a slice of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mig {
    None,
    Any,
    Profile(String),
}

/// What a job asks of its device. All of it must hold; the default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Requirement {
    /// At least.
    memory_bytes: Option<u64>,
    /// At least.
    driver: Option<String>,
    mig: Option<Mig>,
    /// By name; `None`: whatever its value.
    labels: BTreeMap<String, Option<String>>,
}

/// A text that is no requirement, or two that no device meets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    #[error("'{0}' is no requirement; write for example memory=40GiB, driver=570, mig=none or label=zone=b")]
    Unknown(String),
    #[error("memory={0} is no size; write a whole number with MiB, GiB, TiB, MB, GB or TB, for example memory=40GiB")]
    Memory(String),
    #[error("driver={0} is no version; write dotted numbers, for example driver=570 or driver=570.86")]
    Driver(String),
    #[error("mig={0} is neither none, nor any, nor a profile such as 1g.10gb")]
    Mig(String),
    #[error(
        "'{0}' is no label; write NAME or NAME=VALUE, a name of letters, digits and . _ - /, a value without comma"
    )]
    Label(String),
    #[error("the label {0} stands there twice")]
    Twice(String),
    #[error("{0} contradicts {1}: no device meets both")]
    Contradiction(String, String),
}

impl Requirement {
    /// What several texts ask for together.
    ///
    /// # Errors
    /// The first text that is no requirement, or contradicts those before it.
    pub fn of_all<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, RequirementError> {
        texts.into_iter().try_fold(Self::default(), |all, text| all.and(&text.as_ref().parse()?))
    }

    /// Whether every device meets it.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What meets both.
    ///
    /// # Errors
    /// When no device can.
    pub fn and(&self, other: &Self) -> Result<Self, RequirementError> {
        let contradict = |left: &Mig, right: &Mig| {
            RequirementError::Contradiction(Part::Mig(left).to_string(), Part::Mig(right).to_string())
        };
        let mig = match (&self.mig, &other.mig) {
            (None, one) | (one, None) => one.clone(),
            (Some(left), Some(right)) if left == right => Some(left.clone()),
            (Some(Mig::Any), Some(Mig::Profile(profile))) | (Some(Mig::Profile(profile)), Some(Mig::Any)) => {
                Some(Mig::Profile(profile.clone()))
            }
            (Some(left), Some(right)) => return Err(contradict(left, right)),
        };
        let mut labels = self.labels.clone();
        for (name, value) in &other.labels {
            let own = labels.entry(name.clone()).or_default();
            match (&own, value) {
                (_, None) => {}
                (Some(left), Some(right)) if left != right => {
                    let part = |value: &String| Part::Label(name, Some(value.as_str())).to_string();
                    return Err(RequirementError::Contradiction(part(left), part(right)));
                }
                _ => own.clone_from(value),
            }
        }
        let driver = [&self.driver, &other.driver].into_iter().flatten();
        Ok(Self {
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            driver: driver.max_by(|left, right| compare_versions(left, right)).cloned(),
            mig,
            labels,
        })
    }

    fn parts(&self) -> Vec<Part<'_>> {
        let memory = self.memory_bytes.map(Part::Memory);
        let driver = self.driver.as_deref().map(Part::Driver);
        let labels = self.labels.iter().map(|(name, value)| Part::Label(name, value.as_deref()));
        [memory, driver, self.mig.as_ref().map(Part::Mig)].into_iter().flatten().chain(labels).collect()
    }

    /// A text for each thing that it asks for, as it is read.
    pub fn texts(&self) -> Vec<String> {
        self.parts().iter().map(Part::to_string).collect()
    }

    pub fn is_met_by(&self, device: &Attributes) -> bool {
        self.parts().iter().all(|part| part.is_met_by(device))
    }

    /// Why none of these devices meets it: "meets memory=40GiB (the largest has 24 GiB)", after a "none". `None` where one
    /// does, or there is none.
    pub fn why_none<'a>(&self, devices: impl IntoIterator<Item = &'a Attributes>) -> Option<String> {
        let devices: Vec<&Attributes> = devices.into_iter().collect();
        if devices.is_empty() || devices.iter().any(|device| self.is_met_by(device)) {
            return None;
        }
        let parts = self.parts();
        let unmet = parts.iter().filter(|part| !devices.iter().any(|device| part.is_met_by(device)));
        let unmet: Vec<String> = unmet.map(|part| format!("{part} ({})", part.best_of(&devices))).collect();
        if unmet.is_empty() {
            return Some(format!("meets {} at once", self.texts().join(" and ")));
        }
        Some(format!("meets {}", unmet.join(" or ")))
    }
}

/// One thing that is asked for.
enum Part<'a> {
    Memory(u64),
    Driver(&'a str),
    Mig(&'a Mig),
    Label(&'a str, Option<&'a str>),
}

impl Part<'_> {
    fn is_met_by(&self, device: &Attributes) -> bool {
        match self {
            Self::Memory(bytes) => device.memory_mib.saturating_mul(1 << 20) >= *bytes,
            Self::Driver(least) => device.driver.as_deref().is_some_and(|own| compare_versions(own, least).is_ge()),
            Self::Mig(Mig::None) => device.mig.is_none(),
            Self::Mig(Mig::Any) => device.mig.is_some(),
            Self::Mig(Mig::Profile(profile)) => device.mig.as_ref() == Some(profile),
            Self::Label(name, value) => {
                device.labels.get(*name).is_some_and(|own| value.is_none_or(|value| own == value))
            }
        }
    }

    /// What comes next to it among devices that do not meet it.
    fn best_of(&self, devices: &[&Attributes]) -> String {
        match self {
            Self::Memory(_) => match devices.iter().map(|device| device.memory_mib).max().unwrap_or_default() {
                0 => "no memory is known".into(),
                mib if mib < 1 << 10 => format!("the largest has {mib} MiB"),
                mib => format!("the largest has {} GiB", (mib as f64 / 102.4).floor() / 10.0),
            },
            Self::Driver(_) => {
                let known = devices.iter().filter_map(|device| device.driver.as_deref());
                known
                    .max_by(|left, right| compare_versions(left, right))
                    .map_or_else(|| "no driver is known".to_owned(), |newest| format!("the newest is {newest}"))
            }
            Self::Mig(_) => {
                let mut slices: Vec<&str> = devices.iter().filter_map(|device| device.mig.as_deref()).collect();
                slices.sort_unstable();
                slices.dedup();
                slices.truncate(LISTED_MAX);
                if slices.is_empty() { "none is a slice".into() } else { format!("slices are {}", slices.join(", ")) }
            }
            Self::Label(name, _) => {
                let mut values: Vec<&str> =
                    devices.iter().filter_map(|device| device.labels.get(*name)).map(String::as_str).collect();
                values.sort_unstable();
                values.dedup();
                values.truncate(LISTED_MAX);
                if values.is_empty() { "no agent has it".into() } else { format!("it is {}", values.join(", ")) }
            }
        }
    }
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(bytes) => {
                let (unit, size) = UNITS.into_iter().find(|(_, size)| bytes % size == 0).unwrap_or(("B", 1));
                write!(f, "memory={}{unit}", bytes / size)
            }
            Self::Driver(least) => write!(f, "driver={least}"),
            Self::Mig(Mig::None) => f.write_str("mig=none"),
            Self::Mig(Mig::Any) => f.write_str("mig=any"),
            Self::Mig(Mig::Profile(profile)) => write!(f, "mig={profile}"),
            Self::Label(name, None) => write!(f, "label={name}"),
            Self::Label(name, Some(value)) => write!(f, "label={name}={value}"),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(", "))
    }
}

fn clipped(text: &str) -> String {
    text.chars().take(80).collect::<String>().escape_debug().to_string()
}

fn memory_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(digits);
    let (_, size) = UNITS.into_iter().find(|(name, _)| *name == unit.trim_start())?;
    count.parse::<u64>().ok()?.checked_mul(size).filter(|bytes| *bytes > 0)
}

fn is_version(text: &str) -> bool {
    text.len() <= VALUE_MAX_BYTES && text.split('.').all(|part| part.parse::<u64>().is_ok())
}

/// `1g.10gb`, `1g.10gb+me`, `1c.2g.20gb`.
fn is_profile(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+'));
    text.len() <= VALUE_MAX_BYTES && plain && text.starts_with(|c: char| c.is_ascii_digit()) && text.contains("g.")
}

impl FromStr for Requirement {
    type Err = RequirementError;

    /// Reads one thing that is asked for.
    fn from_str(text: &str) -> Result<Self, RequirementError> {
        let (key, value) = text.split_once('=').ok_or_else(|| RequirementError::Unknown(clipped(text)))?;
        let (key, value) = (key.trim(), value.trim());
        match key {
            "memory" => {
                let bytes = memory_bytes(value).ok_or_else(|| RequirementError::Memory(clipped(value)))?;
                Ok(Self { memory_bytes: Some(bytes), ..Self::default() })
            }
            "driver" if is_version(value) => Ok(Self { driver: Some(value.to_owned()), ..Self::default() }),
            "driver" => Err(RequirementError::Driver(clipped(value))),
            "mig" => {
                let mig = match value {
                    "none" => Mig::None,
                    "any" => Mig::Any,
                    profile if is_profile(profile) => Mig::Profile(profile.to_owned()),
                    _ => return Err(RequirementError::Mig(clipped(value))),
                };
                Ok(Self { mig: Some(mig), ..Self::default() })
            }
            "label" => {
                let Label { name, value } = value.parse()?;
                Ok(Self { labels: BTreeMap::from([(name, value)]), ..Self::default() })
            }
            _ => Err(RequirementError::Unknown(clipped(text))),
        }
    }
}

impl TryFrom<Vec<String>> for Requirement {
    type Error = RequirementError;

    fn try_from(texts: Vec<String>) -> Result<Self, RequirementError> {
        Self::of_all(texts)
    }
}

impl From<Requirement> for Vec<String> {
    fn from(requirement: Requirement) -> Self {
        requirement.texts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{DeviceKind, GpuFacts, HostFacts};

    fn asks(texts: &[&str]) -> Requirement {
        Requirement::of_all(texts).unwrap()
    }

    fn refusal(texts: &[&str]) -> String {
        Requirement::of_all(texts).unwrap_err().to_string()
    }

    fn device(memory_mib: u64, driver: &str, mig: Option<&str>) -> Attributes {
        Attributes { memory_mib, driver: Some(driver.into()), mig: mig.map(str::to_owned), ..Attributes::default() }
    }

    #[test]
    fn what_is_asked_for_is_shown_as_it_is_read() {
        for text in
            ["memory=40GiB", "memory=1TiB", "memory=80GB", "memory=1000MiB", "driver=570.86.10", "mig=1g.10gb+me"]
        {
            assert_eq!(asks(&[text]).to_string(), text);
        }
        assert_eq!(
            asks(&["mig=any", " driver = 570", "memory=2048MiB"]).to_string(),
            "memory=2GiB, driver=570, mig=any"
        );
        let stored = serde_json::to_string(&asks(&["mig=none", "memory=40GiB"])).unwrap();
        assert_eq!(stored, r#"["memory=40GiB","mig=none"]"#);
        assert_eq!(serde_json::from_str::<Requirement>(&stored).unwrap(), asks(&["mig=none", "memory=40GiB"]));
        assert!(serde_json::from_str::<Requirement>(r#"["colour=red"]"#).is_err());
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for text in ["memory", "", "memory<40GiB", "colour=red", "Memory=40GiB"] {
            assert!(refusal(&[text]).contains("is no requirement"), "{text}");
        }
        for text in
            ["memory=", "memory=40", "memory=GiB", "memory=1.5GiB", "memory=-1GiB", "memory=0GiB", "memory=40gib"]
        {
            assert!(refusal(&[text]).contains("is no size"), "{text}");
        }
        assert!(refusal(&["memory=99999999999TiB"]).contains("is no size"));
        for text in ["driver=", "driver=new", "driver=570.", "driver=>=570"] {
            assert!(refusal(&[text]).contains("is no version"), "{text}");
        }
        for text in ["mig=", "mig=yes", "mig=1g", "mig=1g.10gb, 2g.20gb"] {
            assert!(refusal(&[text]).contains("is neither none, nor any"), "{text}");
        }
    }

    #[test]
    fn what_is_asked_for_together_is_the_stricter_of_both_or_a_contradiction() {
        let both = |left: &[&str], right: &[&str]| asks(left).and(&asks(right)).map(|both| both.to_string());
        assert_eq!(
            both(&["memory=40GiB", "driver=9"], &["memory=80GB", "driver=10"]).unwrap(),
            "memory=80GB, driver=10"
        );
        assert_eq!(both(&["mig=any"], &["mig=2g.20gb"]).unwrap(), "mig=2g.20gb");
        assert_eq!(both(&["mig=none"], &[]).unwrap(), "mig=none");
        assert_eq!(refusal(&["mig=none", "mig=any"]), "mig=none contradicts mig=any: no device meets both");
        assert!(refusal(&["mig=1g.10gb", "mig=2g.20gb"]).contains("contradicts"));
    }

    #[test]
    fn a_device_meets_what_it_is_known_to_have() {
        let whole = device(81_559, "570.86.10", None);
        let slice = device(9_856, "580.1", Some("1g.10gb"));
        for text in ["memory=40GiB", "memory=80GB", "driver=570", "driver=570.86", "mig=none"] {
            assert!(asks(&[text]).is_met_by(&whole), "{text}");
        }
        for text in ["memory=80GiB", "driver=570.124", "driver=580", "mig=any", "mig=1g.10gb"] {
            assert!(!asks(&[text]).is_met_by(&whole), "{text}");
        }
        assert!(asks(&["mig=any"]).is_met_by(&slice) && asks(&["mig=1g.10gb"]).is_met_by(&slice));
        assert!(!asks(&["mig=none"]).is_met_by(&slice) && !asks(&["mig=2g.20gb"]).is_met_by(&slice));
        let unknown = Attributes::default();
        assert!(asks(&[]).is_met_by(&unknown) && asks(&["mig=none"]).is_met_by(&unknown));
        assert!(!asks(&["memory=1MiB"]).is_met_by(&unknown) && !asks(&["driver=0"]).is_met_by(&unknown));
    }

    #[test]
    fn labels_are_asked_for_by_name_or_by_value() {
        let of = |texts: &[&str]| labels(texts.iter().map(|text| text.parse().unwrap()));
        let device = Attributes { labels: of(&["zone=b", "quiet"]).unwrap(), ..Attributes::default() };
        for text in ["label=zone", "label=zone=b", "label=quiet"] {
            assert!(asks(&[text]).is_met_by(&device), "{text}");
            assert_eq!(asks(&[text]).to_string(), text);
        }
        for text in ["label=zone=a", "label=quiet=yes", "label=rack"] {
            assert!(!asks(&[text]).is_met_by(&device), "{text}");
        }
        assert_eq!(asks(&["label=zone=b", "label=zone", "label=a"]).to_string(), "label=a, label=zone=b");
        assert!(refusal(&["label=zone=a", "label=zone=b"]).contains("label=zone=a contradicts label=zone=b"));
        assert_eq!(asks(&["label=zone=a"]).why_none([&device]).unwrap(), "meets label=zone=a (it is b)");
        assert_eq!(asks(&["label=rack"]).why_none([&device]).unwrap(), "meets label=rack (no agent has it)");
        for text in ["label=", "label==b", "label=zone=", "label=a b", "label=zone=a,b"] {
            assert!(refusal(&[text]).contains("is no label"), "{text}");
        }
        assert_eq!(of(&["zone=a", "zone=b"]).unwrap_err().to_string(), "the label zone stands there twice");
    }

    #[test]
    fn attributes_are_those_of_the_fingerprint() {
        let gpu = GpuFacts { driver: "570.86.10".into(), mig: Some("1g.10gb".into()), ..GpuFacts::default() };
        let board = DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: "NVIDIA H100 PCIe".into(),
            memory_mib: 9_856,
            gpu: Some(gpu),
            cpu: None,
            host: HostFacts::default(),
        };
        assert_eq!(Attributes::of(&board), device(9_856, "570.86.10", Some("1g.10gb")));
        let processor = DeviceFingerprint { kind: DeviceKind::Cpu, gpu: None, ..board };
        assert_eq!(Attributes::of(&processor), Attributes { memory_mib: 9_856, ..Attributes::default() });
    }

    #[test]
    fn what_is_lacking_is_told_with_what_comes_next_to_it() {
        let devices = [device(24_268, "560.35", None), device(9_856, "570.86", Some("1g.10gb"))];
        let why = |texts: &[&str]| asks(texts).why_none(&devices);
        assert_eq!(why(&["memory=20GiB"]), None);
        assert_eq!(why(&["memory=40GiB"]).unwrap(), "meets memory=40GiB (the largest has 23.6 GiB)");
        assert_eq!(
            why(&["driver=580", "mig=2g.20gb"]).unwrap(),
            "meets driver=580 (the newest is 570.86) or mig=2g.20gb (slices are 1g.10gb)"
        );
        assert_eq!(why(&["memory=20GiB", "driver=570"]).unwrap(), "meets memory=20GiB and driver=570 at once");
        assert_eq!(asks(&["mig=any"]).why_none(&devices[..1]).unwrap(), "meets mig=any (none is a slice)");
        assert_eq!(asks(&["mig=any"]).why_none(&[]), None);
    }
}
