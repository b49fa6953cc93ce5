//! What a gate allows: `5`, `p99=10`, `t4:throughput=3`.

use planforge_types::Sku;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Most that a figure may be allowed to be worse.
pub const MAX_PERCENT: f64 = 1000.0;

/// What of a report is held against another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Latency.
    Median,
    /// Latency.
    P99,
    /// Items per second.
    Throughput,
    /// What the loaded engine holds.
    Memory,
    /// Of the plan.
    Size,
    /// Top-1 on labelled rows.
    Accuracy,
}

impl Figure {
    pub const ALL: [Self; 6] = [Self::Median, Self::P99, Self::Throughput, Self::Memory, Self::Size, Self::Accuracy];

    /// As limits name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Median => "median",
            Self::P99 => "p99",
            Self::Throughput => "throughput",
            Self::Memory => "memory",
            Self::Size => "size",
            Self::Accuracy => "accuracy",
        }
    }

    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Median => "median latency",
            Self::P99 => "99th percentile",
            Self::Throughput => "throughput",
            Self::Memory => "engine memory",
            Self::Size => "plan size",
            Self::Accuracy => "top-1 accuracy",
        }
    }

    /// Whether it comes from the samples, which know it within an interval.
    pub fn is_latency(self) -> bool {
        matches!(self, Self::Median | Self::P99 | Self::Throughput)
    }

    /// Most that a limit may allow: a throughput cannot fall, nor an accuracy drop, by more than all of it.
    pub fn most_percent(self) -> f64 {
        match self {
            Self::Throughput => 99.0,
            Self::Accuracy => 100.0,
            _ => MAX_PERCENT,
        }
    }
}

/// By how much a figure may be worse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// On this device kind alone; absent: on every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sku: Option<Sku>,
    pub figure: Figure,
    /// Percent of the base's figure; of accuracies percentage points.
    pub allowed_percent: f64,
}

impl Limit {
    /// On the median latency, everywhere.
    pub fn of_median(allowed_percent: f64) -> Self {
        Self { sku: None, figure: Figure::Median, allowed_percent }
    }

    /// Whether it is the one of `limits` that counts on `sku`.
    pub(super) fn applies(&self, limits: &[Self], sku: &str) -> bool {
        let is_own = |limit: &Self| limit.sku.as_ref().is_some_and(|own| own.to_string() == sku);
        is_own(self) || self.sku.is_none() && !limits.iter().any(|l| l.figure == self.figure && is_own(l))
    }

    /// As people read it.
    pub fn words(&self) -> String {
        let on = self.sku.as_ref().map(|sku| format!(" on {sku}")).unwrap_or_default();
        let unit = if self.figure == Figure::Accuracy { "points" } else { "%" };
        let worse = match self.figure {
            Figure::Median | Figure::P99 => "slower",
            Figure::Throughput | Figure::Accuracy => "lower",
            Figure::Memory | Figure::Size => "more",
        };
        format!("{} at most {} {unit} {worse}{on}", self.figure.words(), self.allowed_percent)
    }
}

impl FromStr for Limit {
    type Err = String;

    /// Reads `PERCENT` (of the median), `FIGURE=PERCENT` or `SKU:FIGURE=PERCENT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (sku, rest) = match text.split_once(':') {
            Some((sku, rest)) => (Some(sku.parse::<Sku>().map_err(|error| error.to_string())?), rest),
            None => (None, text),
        };
        let (figure, number) = match rest.split_once('=') {
            Some((name, number)) => {
                let known = Figure::ALL.into_iter().find(|figure| figure.name() == name);
                let names = Figure::ALL.map(Figure::name).join(", ");
                (known.ok_or_else(|| format!("'{name}' is no figure: name one of {names}"))?, number)
            }
            None => (Figure::Median, rest),
        };
        let allowed_percent: f64 =
            number.trim_end_matches('%').parse().map_err(|_| format!("'{number}' is no number of percent"))?;
        let most = figure.most_percent();
        if !(0.0..=most).contains(&allowed_percent) {
            return Err(format!("between 0 and {most} percent"));
        }
        Ok(Self { sku, figure, allowed_percent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_meant() {
        assert_eq!("5".parse(), Ok(Limit::of_median(5.0)));
        assert_eq!("2.5%".parse(), Ok(Limit::of_median(2.5)));
        let limit: Limit = "t4:p99=10".parse().unwrap();
        assert_eq!(
            (limit.sku.unwrap().to_string(), limit.figure, limit.allowed_percent),
            ("t4".into(), Figure::P99, 10.0)
        );
        for (text, why) in [
            ("fast", "'fast' is no number of percent"),
            ("speed=5", "'speed' is no figure: name one of median, p99, throughput, memory, size, accuracy"),
            ("-1", "between 0 and 1000 percent"),
            ("nan", "between 0 and 1000 percent"),
            ("throughput=100", "between 0 and 99 percent"),
            ("accuracy=101", "between 0 and 100 percent"),
        ] {
            assert_eq!(text.parse::<Limit>(), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn the_limit_of_a_device_kind_goes_before_that_of_all() {
        let limits: Vec<Limit> = ["5", "t4:10", "size=0"].iter().map(|text| text.parse().unwrap()).collect();
        let applying = |sku: &str| -> Vec<f64> {
            limits.iter().filter(|limit| limit.applies(&limits, sku)).map(|limit| limit.allowed_percent).collect()
        };
        assert_eq!(applying("t4"), [10.0, 0.0]);
        assert_eq!(applying("h100-sxm"), [5.0, 0.0]);
    }
}
