//! Units, and numbers as axes and labels show them.

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds; shown in us, ms or s.
    Milliseconds,
    PerSecond,
    /// 0..1, shown in percent.
    Share,
    Bytes,
    /// Whole things.
    Count,
    /// Operations a second.
    FlopPerSecond,
    FlopPerByte,
    /// How many times.
    Times,
}

const DECIMAL: [(f64, &str); 5] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
const BINARY: [(f64, &str); 4] = [(1073741824.0, "GiB"), (1048576.0, "MiB"), (1024.0, "KiB"), (1.0, "B")];

impl Unit {
    /// What microseconds are called wherever a time is shown: on axes, in reports, on pages and on a terminal, which may
    /// have no Greek letters.
    pub const MICROSECONDS: &'static str = "us";

    /// How numbers of which `largest` is the largest are shown beside each other.
    pub(crate) fn scaled(self, largest: f64) -> Scaled {
        let fitting = |steps: &[(f64, &'static str)]| {
            let last = steps[steps.len() - 1];
            steps.iter().copied().find(|(size, _)| largest >= *size).unwrap_or(last)
        };
        let (size, name) = match self {
            Self::Milliseconds if largest < 1.0 => (1e-3, Self::MICROSECONDS),
            Self::Milliseconds if largest < 1e4 => (1.0, "ms"),
            Self::Milliseconds => (1e3, "s"),
            Self::PerSecond => (1.0, "/s"),
            Self::Share => (0.01, "%"),
            Self::Bytes => fitting(&BINARY),
            Self::Count => (1.0, ""),
            Self::FlopPerSecond => {
                let (size, prefix) = fitting(&DECIMAL);
                let name = match prefix {
                    "T" => "TFLOP/s",
                    "G" => "GFLOP/s",
                    "M" => "MFLOP/s",
                    "k" => "kFLOP/s",
                    _ => "FLOP/s",
                };
                (size, name)
            }
            Self::FlopPerByte => (1.0, "FLOP/B"),
            Self::Times => (1.0, "x"),
        };
        Scaled { size, name, whole: matches!(self, Self::Count) }
    }

    /// A number by itself, with its unit: `1.010 ms`.
    pub fn figure(self, value: f64) -> String {
        self.scaled(value.abs()).figure(value)
    }
}

/// A unit with its prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scaled {
    pub size: f64,
    pub name: &'static str,
    whole: bool,
}

impl Scaled {
    /// `latency (ms)`.
    pub fn heading(&self, name: &str) -> String {
        if self.name.is_empty() { name.to_owned() } else { format!("{name} ({})", self.name) }
    }

    /// With four digits that mean something, and the unit.
    pub fn figure(&self, value: f64) -> String {
        let number = if self.whole { format!("{value:.0}") } else { digits(value / self.size, 4) };
        match self.name {
            "" => number,
            "/s" | "x" => format!("{number}{}", self.name),
            name => format!("{number} {name}"),
        }
    }

    /// A tick, to the places that tell it from its neighbour `step` away.
    pub fn tick(&self, value: f64, step: f64) -> String {
        let (value, step) = (value / self.size, (step / self.size).abs());
        let places =
            if step > 0.0 && step.is_finite() { (-(step.log10() + 1e-9).floor()).clamp(0.0, 6.0) } else { 0.0 };
        // Steps of 2.5 and 0.25 need a place more.
        let more = (step * 10f64.powf(places)).fract();
        let places = places as usize + usize::from(more > 1e-6 && more < 1.0 - 1e-6);
        format!("{value:.places$}")
    }

    /// A tick of a logarithmic axis.
    pub fn power(&self, value: f64) -> String {
        let value = value / self.size;
        if !(1e-3..1e6).contains(&value) {
            return format!("{value:.0e}");
        }
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// So many significant digits, and never fewer than the whole part has.
fn digits(value: f64, significant: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { "-".into() };
    }
    let before = value.abs().log10().floor() as i64 + 1;
    let places = (significant as i64 - before).clamp(0, 6) as usize;
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_unit_and_the_digits_that_mean_something() {
        let shown = [
            (Unit::Milliseconds, 0.0123),
            (Unit::Milliseconds, 1.01),
            (Unit::Milliseconds, 12_345.0),
            (Unit::PerSecond, 812.25),
            (Unit::Share, 0.123),
            (Unit::Bytes, 2048.0),
            (Unit::Count, 12.0),
            (Unit::FlopPerSecond, 5.12e13),
            (Unit::FlopPerByte, 0.25),
            (Unit::Times, 1.5),
            (Unit::Milliseconds, 0.0),
        ]
        .map(|(unit, value)| unit.figure(value));
        let expected = [
            "12.30 us",
            "1.010 ms",
            "12.35 s",
            "812.2/s",
            "12.30 %",
            "2.000 KiB",
            "12",
            "51.20 TFLOP/s",
            "0.2500 FLOP/B",
            "1.500x",
            "0 us",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn ticks_have_the_places_that_tell_them_apart() {
        let ms = Unit::Milliseconds.scaled(2.0);
        assert_eq!([0.5, 1.0].map(|value| ms.tick(value, 0.5)), ["0.5", "1.0"]);
        assert_eq!([0.25, 1.0].map(|value| ms.tick(value, 0.25)), ["0.25", "1.00"]);
        assert_eq!(ms.tick(20.0, 10.0), "20");
        assert_eq!(Unit::Share.scaled(1.0).tick(0.25, 0.25), "25");
        let rates = Unit::FlopPerSecond.scaled(3e12);
        assert_eq!([1e12, 2e11, 5e9].map(|rate| rates.power(rate)), ["1", "0.2", "0.005"]);
        assert_eq!(
            (ms.heading("latency"), Unit::Count.scaled(8.0).heading("batch")),
            ("latency (ms)".into(), "batch".into())
        );
    }
}
