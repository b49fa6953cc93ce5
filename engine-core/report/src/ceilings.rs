//! What a device was measured to reach, and how near to it a step of an engine comes.
//!
//! A step that takes t for f operations and b bytes could take no less than max(f / highest rate of its type, b / rate
//! of a copy): the larger of the two *binds*, and its share of t is how much of the device the step uses. Operations
//! and bytes are counted from shapes, so shares are estimates: bytes that a cache holds may bring one above 100 %.

use super::format::{date, operations_per_second};
use crate::LayerTime;
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
        let disturbed =
            if self.disturbed.is_empty() { String::new() } else { format!("; {}", self.disturbed.join(", ")) };
        let join = |parts: &mut dyn Iterator<Item = String>| parts.collect::<Vec<_>>().join(", ");
        format!("{} ({}{disturbed})", join(&mut rates.into_iter()), join(&mut measured.into_iter()))
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

    /// `45 % of memory`.
    pub fn of_ceiling(&self) -> Option<String> {
        self.ceiling.map(|(bound, share)| format!("{:.0} % of {}", share * 100.0, bound.name()))
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
        assert!(ceilings.describe().ends_with("driver 580.1; throttled: thermal)"));
        let text = serde_json::to_string(&ceilings).unwrap();
        assert_eq!(serde_json::from_str::<Ceilings>(&text).unwrap(), ceilings);
    }
}
