//! From values to places on an axis, and where its ticks are.

/// How values are laid along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Places of `low` and `high`.
    from: f64,
    to: f64,
}

impl Scale {
    /// Linear; a range without width gets some.
    pub fn linear(low: f64, high: f64, from: f64, to: f64) -> Self {
        let (low, high) = ordered(low, high);
        let (low, high) = if high > low { (low, high) } else { (low - 0.5, low + 0.5) };
        Self { low, high, logarithmic: false, from, to }
    }

    /// Logarithmic; what is not above 0 lies at the low end.
    pub fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Self {
        let (low, high) = ordered(low, high);
        let low = if low > 0.0 { low } else { 1e-12 };
        let high = if high > low { high } else { low * 10.0 };
        Self { low, high, logarithmic: true, from, to }
    }

    pub fn bounds(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Where a value lies; one outside of the range at its end.
    pub fn at(&self, value: f64) -> f64 {
        let value = if value.is_nan() { self.low } else { value.clamp(self.low, self.high) };
        let share = if self.logarithmic {
            (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// Round values within the range, about `wanted` of them, and the step between neighbours of a linear axis.
    pub fn ticks(&self, wanted: usize) -> (Vec<f64>, f64) {
        if self.logarithmic { (self.powers(), 0.0) } else { self.steps(wanted) }
    }

    fn steps(&self, wanted: usize) -> (Vec<f64>, f64) {
        let rough = (self.high - self.low) / wanted.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(power * 10.0);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        ((first..=last).take(64).map(|index| index as f64 * step).collect(), step)
    }

    fn powers(&self) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let decades = self.high.log10() - self.low.log10();
        let factors: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / 8.0).ceil().max(1.0) as i32;
        let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
        let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        all.filter(|value| *value >= self.low * 0.999 && *value <= self.high * 1.001).collect()
    }
}

fn ordered(low: f64, high: f64) -> (f64, f64) {
    let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
    let (low, high) = (finite(low), finite(high));
    if low <= high { (low, high) } else { (high, low) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(Scale::linear(0.0, 1.0, 0.0, 100.0).ticks(4), (vec![0.0, 0.25, 0.5, 0.75, 1.0], 0.25));
        assert_eq!(Scale::linear(0.9, 3.2, 0.0, 100.0).ticks(5).0, [1.0, 1.5, 2.0, 2.5, 3.0]);
        assert_eq!(Scale::logarithmic(0.5, 30.0, 0.0, 1.0).ticks(0).0, [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(Scale::logarithmic(1e3, 1e7, 0.0, 1.0).ticks(0).0, [1e3, 1e4, 1e5, 1e6, 1e7]);
    }

    proptest! {
        /// Whatever the values, places are finite and within the axis, in the order of the values.
        #[test]
        fn places_are_on_the_axis(a in any::<f64>(), b in any::<f64>(), c in any::<f64>(), d in any::<f64>()) {
            for scale in [Scale::linear(a, b, 10.0, 20.0), Scale::logarithmic(a, b, 10.0, 20.0)] {
                let (low, high) = if c <= d { (c, d) } else { (d, c) };
                let (at_low, at_high) = (scale.at(low), scale.at(high));
                // Ranges near the ends of what a float holds overflow; nobody measures those.
                prop_assume!(scale.bounds().1 - scale.bounds().0 < 1e300);
                prop_assert!((10.0..=20.0).contains(&at_low) && (10.0..=20.0).contains(&at_high), "{at_low} {at_high}");
                prop_assert!(low.is_nan() || high.is_nan() || at_low <= at_high + 1e-9);
                prop_assert!(scale.ticks(5).0.len() <= 64);
            }
        }
    }
}
