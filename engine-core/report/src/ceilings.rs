//! What a device was measured to reach, and how near to it a step of an engine comes.
//!
//! A step that takes t for f operations and b bytes could take no less than max(f / highest rate of its type, b / rate
//! of a copy): the larger of the two *binds*, and its share of t is how much of the device the step uses. Operations
//! and bytes are counted from shapes, so shares are estimates: bytes that a cache holds, products that take fewer
//! operations than are counted, or a ceiling that was measured too low bring one above 100 %. Such a share always says so.

use super::format::{date, operations_per_second};
use crate::{Finding, LayerTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What copies and products reach on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Read plus written, within the device's memory.
    pub copy_gb_s: f64,
    /// Products by element type (`fp16`), multiplications and additions apart; of integers TOP/s.
    pub tflop_s: BTreeMap<String, f64>,
}

impl Rates {
    /// Of products in `precision`; where a step does not tell its type, the only one there is.
    fn product_tflop_s(&self, precision: Option<&str>) -> Option<f64> {
        match precision {
            Some(precision) => self.tflop_s.get(precision).copied(),
            None if self.tflop_s.len() == 1 => self.tflop_s.values().next().copied(),
            None => None,
        }
    }
}

/// [`Rates`], with when and how they were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Unix milliseconds of the agent's clock.
    pub measured_unix_ms: u64,
    /// What they hold under: versions of driver and libraries, threads.
    pub conditions: BTreeMap<String, String>,
    #[serde(flatten)]
    pub rates: Rates,
    /// Why they may be too low; empty when nothing speaks against them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<String>,
    /// How often they were measured again, undisturbed, because a step came above them: the highest rates count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remeasured: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Ceilings {
    /// One line: the rates, when, with what.
    pub fn describe(&self) -> String {
        let products = self.rates.tflop_s.iter().map(|(element, rate)| {
            format!("{element} {}", operations_per_second(rate * 1e12, element.starts_with("int")))
        });
        let rates = [format!("copy {:.0} GB/s", self.rates.copy_gb_s)].into_iter().chain(products);
        let conditions = self.conditions.iter().map(|(name, value)| format!("{name} {value}"));
        let measured = [format!("measured {}", date(self.measured_unix_ms))].into_iter().chain(conditions);
        let disturbed = match self.disturbed.is_empty() {
            true => String::new(),
            false => format!("; disturbed, so they may be too low: {}", self.disturbed.join(", ")),
        };
        let join = |parts: &mut dyn Iterator<Item = String>| parts.collect::<Vec<_>>().join(", ");
        format!("{} ({}{disturbed})", join(&mut rates.into_iter()), join(&mut measured.into_iter()))
    }

    /// Together with a later measurement under the same conditions. What was reached once can be reached: the higher
    /// rates count, and they are disturbed only where both measurements were.
    pub fn joined(mut self, later: Self) -> Self {
        let quiet = [self.disturbed.is_empty(), later.disturbed.is_empty()];
        self.remeasured += u32::from(quiet == [true, true]);
        self.disturbed = if quiet == [false, false] { later.disturbed } else { Vec::new() };
        self.measured_unix_ms = later.measured_unix_ms;
        self.rates.copy_gb_s = self.rates.copy_gb_s.max(later.rates.copy_gb_s);
        for (element, rate) in later.rates.tflop_s {
            let known = self.rates.tflop_s.entry(element).or_default();
            *known = known.max(rate);
        }
        self
    }

    /// What a reader should know of them before trusting a share of them.
    pub fn findings(&self, layers: &[LayerTime]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let disturbed = self.disturbed.join(", ");
        if !disturbed.is_empty() {
            let message = format!(
                "what the device reaches was measured while something disturbed it ({disturbed}), so shares of it are too \
                 high; it is not kept, and the next job measures it again"
            );
            findings.push(Finding::warning("ceilings-disturbed", message));
        }
        let lines = layers.iter().filter_map(|layer| Some((layer, Roofline::of(layer, Some(self))?)));
        let mut above: Vec<_> = lines.filter(|(_, line)| line.is_above()).collect();
        above.sort_by(|(_, a), (_, b)| b.share().total_cmp(&a.share()));
        if let Some((layer, line)) = above.first() {
            let why = match (disturbed.is_empty(), line.ceiling) {
                (false, _) => "the ceiling was measured on a disturbed device".to_owned(),
                (true, Some((Bound::Memory, _))) => {
                    format!("its bytes come from a cache, or the ceiling was measured too low{}", self.tries())
                }
                (true, _) => {
                    format!(
                        "it takes fewer operations than are counted, or the ceiling was measured too low{}",
                        self.tries()
                    )
                }
            };
            let message = format!(
                "{} of {} layers come above what the device was measured to reach, {} with {}: {why}",
                above.len(),
                layers.len(),
                layer.name,
                line.of_ceiling().unwrap_or_default(),
            );
            let told = if disturbed.is_empty() { Finding::note } else { Finding::warning };
            findings.push(told("above-ceiling", message));
        }
        findings
    }

    fn tries(&self) -> String {
        if self.remeasured > 0 { format!(", {} times again", self.remeasured) } else { String::new() }
    }
}

/// Which ceiling a step meets first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Compute,
    Memory,
}

impl Bound {
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
        }
    }
}

/// Where one step stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    pub tflop_s: f64,
    pub gb_s: f64,
    /// The ceiling that binds, and the share of it that is reached; `None` where no ceiling is known.
    pub ceiling: Option<(Bound, f64)>,
}

impl Roofline {
    /// `None` where nothing was counted or timed.
    pub fn of(layer: &LayerTime, ceilings: Option<&Ceilings>) -> Option<Self> {
        let seconds = layer.median_ms / 1e3;
        if !(seconds > 0.0 && seconds.is_finite()) || (layer.flops == 0 && layer.bytes == 0) {
            return None;
        }
        let (tflop_s, gb_s) = (layer.flops as f64 / seconds / 1e12, layer.bytes as f64 / seconds / 1e9);
        let share = |rate: f64, ceiling: Option<f64>| ceiling.filter(|c| *c > 0.0).map(|ceiling| rate / ceiling);
        let rates = ceilings.map(|ceilings| &ceilings.rates);
        let compute = share(tflop_s, rates.and_then(|rates| rates.product_tflop_s(layer.precision.as_deref())));
        let memory = share(gb_s, rates.map(|rates| rates.copy_gb_s));
        let ceiling = match (compute, memory) {
            (Some(compute), Some(memory)) if compute > memory => Some((Bound::Compute, compute)),
            (_, Some(memory)) => Some((Bound::Memory, memory)),
            (Some(compute), None) => Some((Bound::Compute, compute)),
            (None, None) => None,
        };
        Some(Self { tflop_s, gb_s, ceiling })
    }

    /// `512 GFLOP/s, 850 GB/s`; what was not counted is left out.
    pub fn rates(&self) -> String {
        let operations = (self.tflop_s > 0.0).then(|| operations_per_second(self.tflop_s * 1e12, false));
        let bytes = (self.gb_s > 0.0).then(|| gigabytes_per_second(self.gb_s));
        operations.into_iter().chain(bytes).collect::<Vec<_>>().join(", ")
    }

    fn share(&self) -> f64 {
        self.ceiling.map_or(0.0, |(_, share)| share)
    }

    fn percent(&self) -> f64 {
        (self.share() * 100.0).round()
    }

    /// Whether it comes above its ceiling, as far as a share is shown.
    pub fn is_above(&self) -> bool {
        self.percent() > 100.0
    }

    /// `45 % of memory`, `116 % of memory, above the ceiling`.
    pub fn of_ceiling(&self) -> Option<String> {
        let above = if self.is_above() { ", above the ceiling" } else { "" };
        self.ceiling.map(|(bound, _)| format!("{:.0} % of {}{above}", self.percent(), bound.name()))
    }

    /// Both.
    pub fn describe(&self) -> String {
        [Some(self.rates()), self.of_ceiling()].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// `0.8 GB/s`, `850 GB/s`.
fn gigabytes_per_second(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1} GB/s") } else { format!("{rate:.0} GB/s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings() -> Ceilings {
        Ceilings {
            measured_unix_ms: 1_763_600_000_000,
            conditions: BTreeMap::from([("driver".to_owned(), "580.1".to_owned())]),
            rates: Rates {
                copy_gb_s: 4000.0,
                tflop_s: BTreeMap::from([("fp16".to_owned(), 800.0), ("int8".to_owned(), 1500.0)]),
            },
            disturbed: Vec::new(),
            remeasured: 0,
        }
    }

    fn layer(median_ms: f64, flops: u64, bytes: u64, precision: Option<&str>) -> LayerTime {
        LayerTime { median_ms, flops, bytes, precision: precision.map(str::to_owned), ..LayerTime::default() }
    }

    #[test]
    fn the_larger_share_binds() {
        let ceilings = ceilings();
        let of = |layer: &LayerTime| Roofline::of(layer, Some(&ceilings)).unwrap();
        // 400 of 800 TFLOP/s, 1000 of 4000 GB/s.
        let product = of(&layer(1.0, 400_000_000_000, 1_000_000_000, Some("fp16")));
        assert_eq!((product.tflop_s, product.gb_s, product.ceiling), (400.0, 1000.0, Some((Bound::Compute, 0.5))));
        // 100 of 800 TFLOP/s, 3000 of 4000 GB/s.
        let copy = of(&layer(1.0, 100_000_000_000, 3_000_000_000, Some("fp16")));
        assert_eq!(copy.ceiling, Some((Bound::Memory, 0.75)));
        assert_eq!(copy.describe(), "100 TFLOP/s, 3000 GB/s, 75 % of memory");
        // A type that was not measured leaves the memory's ceiling.
        assert_eq!(of(&layer(1.0, 400_000_000_000, 1_000_000_000, Some("fp32"))).ceiling, Some((Bound::Memory, 0.25)));
    }

    #[test]
    fn a_step_without_a_type_is_held_to_the_only_one() {
        let mut ceilings = ceilings();
        let unnamed = layer(1.0, 400_000_000_000, 0, None);
        assert_eq!(Roofline::of(&unnamed, Some(&ceilings)).unwrap().ceiling, Some((Bound::Memory, 0.0)));
        ceilings.rates.tflop_s.remove("int8");
        assert_eq!(Roofline::of(&unnamed, Some(&ceilings)).unwrap().ceiling, Some((Bound::Compute, 0.5)));
    }

    #[test]
    fn without_ceilings_rates_are_left_and_without_counts_nothing() {
        let rates = Roofline::of(&layer(2.0, 1_000_000_000, 1_000_000, None), None).unwrap();
        assert_eq!((rates.gb_s, rates.ceiling), (0.5, None));
        assert_eq!(rates.describe(), "500 GFLOP/s, 0.5 GB/s");
        assert_eq!(Roofline::of(&layer(2.0, 0, 0, None), Some(&ceilings())), None);
        assert_eq!(Roofline::of(&layer(0.0, 1, 1, None), Some(&ceilings())), None);
        let broken = Ceilings { rates: Rates::default(), ..ceilings() };
        assert_eq!(Roofline::of(&layer(2.0, 1, 1, None), Some(&broken)).unwrap().ceiling, None);
    }

    #[test]
    fn ceilings_are_told_with_when_and_with_what() {
        let mut ceilings = ceilings();
        assert_eq!(
            ceilings.describe(),
            "copy 4000 GB/s, fp16 800 TFLOP/s, int8 1500 TOP/s (measured 2025-11-20, driver 580.1)"
        );
        ceilings.disturbed = vec!["throttled: thermal".into()];
        assert!(ceilings.describe().ends_with("driver 580.1; disturbed, so they may be too low: throttled: thermal)"));
        let text = serde_json::to_string(&ceilings).unwrap();
        assert_eq!(serde_json::from_str::<Ceilings>(&text).unwrap(), ceilings);
    }
    #[test]
    fn no_share_above_the_ceiling_stands_without_a_word() {
        let mut ceilings = ceilings();
        let within = layer(1.0, 0, 4_010_000_000, None);
        assert_eq!(Roofline::of(&within, Some(&ceilings)).unwrap().of_ceiling().as_deref(), Some("100 % of memory"));
        assert!(ceilings.findings(std::slice::from_ref(&within)).is_empty());

        let cached = LayerTime { name: "pool".into(), ..layer(1.0, 0, 4_640_000_000, None) };
        let line = Roofline::of(&cached, Some(&ceilings)).unwrap();
        assert!(line.describe().ends_with("116 % of memory, above the ceiling"), "{}", line.describe());
        let told = |ceilings: &Ceilings, layer: &LayerTime| {
            let findings = ceilings.findings(&[layer.clone(), within.clone()]);
            findings.into_iter().map(|finding| (finding.code, finding.message)).collect::<Vec<_>>()
        };
        let [(code, message)] = &told(&ceilings, &cached)[..] else { panic!("one finding") };
        assert_eq!(code, "above-ceiling");
        assert!(message.starts_with("1 of 2 layers") && message.contains("pool with 116 % of memory"), "{message}");
        assert!(message.ends_with("its bytes come from a cache, or the ceiling was measured too low"), "{message}");
        ceilings.remeasured = 2;
        let product = layer(1.0, 1_000_000_000_000, 0, Some("fp16"));
        let message = &told(&ceilings, &product)[0].1;
        assert!(message.contains("125 % of compute, above the ceiling: it takes fewer operations"), "{message}");
        assert!(message.ends_with("measured too low, 2 times again"), "{message}");

        ceilings.disturbed = vec!["hypervisor took: 9 % of the processors".into()];
        let [(marked, why), (above, message)] = &told(&ceilings, &cached)[..] else { panic!("two findings") };
        assert_eq!((marked.as_str(), above.as_str()), ("ceilings-disturbed", "above-ceiling"));
        assert!(why.contains("hypervisor took: 9 %") && why.contains("measures it again"), "{why}");
        assert!(message.ends_with("the ceiling was measured on a disturbed device"), "{message}");
        assert_eq!(told(&ceilings, &within).len(), 1, "disturbed ceilings are marked whatever they are held against");
    }

    #[test]
    fn of_two_measurements_the_higher_rates_count() {
        let quiet = ceilings();
        let low =
            Rates { copy_gb_s: 5000.0, tflop_s: BTreeMap::from([("fp16".to_owned(), 1.0), ("bf16".to_owned(), 2.0)]) };
        let busy = Ceilings { rates: low, disturbed: vec!["throttled: thermal".into()], ..quiet.clone() };
        let told = |ceilings: Ceilings| (ceilings.rates.copy_gb_s, ceilings.disturbed.len(), ceilings.remeasured);
        assert_eq!(told(quiet.clone().joined(busy.clone())), (5000.0, 0, 0));
        assert_eq!(told(busy.clone().joined(quiet.clone())), (5000.0, 0, 0));
        assert_eq!(told(busy.clone().joined(busy.clone())), (5000.0, 1, 0));
        assert_eq!(told(quiet.clone().joined(quiet.clone())), (4000.0, 0, 1));
        let both = quiet.joined(busy).rates.tflop_s;
        assert_eq!((both["fp16"], both["int8"], both["bf16"]), (800.0, 1500.0, 2.0));
    }
}
