//! Which part of the numbers a value takes is worth keeping: a histogram of them, and four ways to cut it.

use planforge_types::preparation::Method;

/// Bins on each side of zero.
const HALF: usize = 2048;
/// Integers that stand for magnitudes in int8.
const LEVELS: usize = 128;
/// Thresholds that the search for the least squared error tries.
const CANDIDATES: usize = 128;

/// Share of the numbers that a percentile range holds.
pub const PERCENTILE: f64 = 0.9999;

/// Values that are looked at, found their bins and counted before the next ones are: they stay near the processor.
const TOGETHER: usize = 1024;
/// Values that are looked at side by side.
const LANES: usize = 16;

/// Between which values numbers lie, and how many of them are finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    pub min: f32,
    pub max: f32,
    pub count: u64,
}

impl Extent {
    pub fn of(values: &[f32]) -> Self {
        let mut of = Self { min: f32::INFINITY, max: f32::NEG_INFINITY, count: 0 };
        let (whole, rest) = values.as_chunks::<LANES>();
        // One after the other, each is a few instructions for many values; together they are not.
        let min = by_lane(whole, of.min, |min, value| if value < min { value } else { min });
        let max = by_lane(whole, of.max, |max, value| if value > max { value } else { max });
        // Stays zero but for what is not finite.
        let nothing = by_lane(whole, 0.0, |nothing, value| nothing + value * 0.0);
        if nothing == [0.0; LANES] {
            of.min = min.into_iter().fold(of.min, f32::min);
            of.max = max.into_iter().fold(of.max, f32::max);
            of.count = (whole.len() * LANES) as u64;
        } else {
            whole.iter().flatten().for_each(|value| of.add(*value));
        }
        rest.iter().for_each(|value| of.add(*value));
        of
    }

    fn add(&mut self, value: f32) {
        if value.is_finite() {
            (self.min, self.max, self.count) = (self.min.min(value), self.max.max(value), self.count + 1);
        }
    }

    /// That of both.
    fn with(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max), count: self.count + other.count }
    }
}

/// What becomes of `first` with every value, side by side.
fn by_lane(values: &[[f32; LANES]], first: f32, with: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    values.iter().fold([first; LANES], |all, values| std::array::from_fn(|lane| with(all[lane], values[lane])))
}

/// Numbers counted in equal bins around zero, which widen as larger numbers come.
#[derive(Clone, Debug)]
pub struct Histogram {
    bins: Box<[u64; 2 * HALF]>,
    /// The bins cover −limit..limit.
    limit: f64,
    pub min: f64,
    pub max: f64,
    pub count: u64,
    /// Numbers that are none, or infinite.
    pub not_finite: u64,
}

/// The bin of a finite number in units of bins, from −HALF to HALF; what is nearer to the next one than a thousandth may fall
/// there.
fn bin_of(value: f32) -> u32 {
    // Between these two, floats have as many digits before the point as there are bins, and the same exponent: their first
    // digits are the number of the bin.
    const FIRST: f32 = (2 * HALF) as f32;
    const LAST: f32 = f32::from_bits((2.0 * FIRST).to_bits() - 1);
    const DIGITS_BEHIND: u32 = f32::MANTISSA_DIGITS - 1 - (2 * HALF).ilog2();
    let at = value + (FIRST + HALF as f32);
    let at = if at < LAST { at } else { LAST };
    let at = if at > FIRST { at } else { FIRST };
    (at.to_bits() >> DIGITS_BEHIND) % (2 * HALF) as u32
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            bins: Box::new([0; 2 * HALF]),
            limit: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            count: 0,
            not_finite: 0,
        }
    }
}

impl Histogram {
    /// Counts values, and tells their extent.
    pub fn add(&mut self, values: &[f32]) -> Extent {
        let mut whole = Extent::of(&[]);
        for values in values.chunks(TOGETHER) {
            let extent = Extent::of(values);
            whole = whole.with(extent);
            if extent.count == 0 {
                continue;
            }
            let largest = f64::from(extent.min.abs().max(extent.max.abs()));
            if self.limit == 0.0 && largest > 0.0 {
                // Whatever was counted before was zero, and zero is in the middle of any limit.
                self.limit = largest;
            }
            if self.limit < largest {
                self.widen(largest);
            }
            let per_value = (HALF as f64 / self.limit) as f32;
            if extent.count < values.len() as u64 || !per_value.is_finite() {
                let limit = self.limit;
                for value in values.iter().filter(|value| value.is_finite()) {
                    let at =
                        if limit == 0.0 { HALF } else { ((f64::from(*value) / limit + 1.0) * HALF as f64) as usize };
                    self.bins[at.min(2 * HALF - 1)] += 1;
                }
                continue;
            }
            let mut places = [0u32; TOGETHER];
            places.iter_mut().zip(values).for_each(|(place, value)| *place = bin_of(value * per_value));
            places[..values.len()].iter().for_each(|place| {
                let bin = &mut self.bins[*place as usize % (2 * HALF)];
                *bin = bin.wrapping_add(1);
            });
        }
        self.count += whole.count;
        self.not_finite += values.len() as u64 - whole.count;
        if whole.count > 0 {
            (self.min, self.max) = (self.min.min(whole.min.into()), self.max.max(whole.max.into()));
        }
        whole
    }

    /// Joins bins until there are some for numbers so large.
    fn widen(&mut self, largest: f64) {
        while self.limit < largest {
            let mut wider = Box::new([0; 2 * HALF]);
            self.bins.iter().enumerate().for_each(|(at, count)| wider[HALF / 2 + at / 2] += count);
            (self.bins, self.limit) = (wider, self.limit * 2.0);
        }
    }

    /// The greatest magnitude seen; 0 where nothing was.
    pub fn largest(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.min.abs().max(self.max.abs()) }
    }

    /// Counts by magnitude.
    fn magnitudes(&self) -> Vec<u64> {
        (0..HALF).map(|at| self.bins[HALF + at] + self.bins[HALF - 1 - at]).collect()
    }

    /// The range to keep, from a number of 0 or less to one of 0 or more. With `symmetric`, as far on both sides.
    pub fn range(&self, method: Method, symmetric: bool) -> (f64, f64) {
        if self.count == 0 || self.limit == 0.0 {
            return (0.0, 0.0);
        }
        let cut = match method {
            Method::MinMax => self.largest(),
            Method::Percentile => self.percentile(),
            Method::Entropy => self.entropy(),
            Method::Mse => self.least_squares(symmetric),
        };
        let cut = cut.min(self.largest());
        if symmetric { (-cut, cut) } else { (self.min.clamp(-cut, 0.0), self.max.clamp(0.0, cut)) }
    }

    fn percentile(&self) -> f64 {
        let wanted = (self.count as f64 * PERCENTILE).ceil() as u64;
        let mut below = 0;
        let magnitudes = self.magnitudes();
        let at = magnitudes.iter().position(|count| {
            below += count;
            below >= wanted
        });
        (at.unwrap_or(HALF - 1) + 1) as f64 * self.limit / HALF as f64
    }

    /// The threshold whose clipped distribution, spread over 128 levels, diverges least from the clipped one itself.
    fn entropy(&self) -> f64 {
        let counts = self.magnitudes();
        let last = counts.iter().rposition(|count| *count > 0).unwrap_or(0) + 1;
        let (mut best, mut least) = (last, f64::INFINITY);
        for end in LEVELS.min(last)..=last {
            let outliers: u64 = counts[end..].iter().sum();
            let mut clipped: Vec<f64> = counts[..end].iter().map(|count| *count as f64).collect();
            clipped[end - 1] += outliers as f64;
            let divergence = divergence(&clipped, &counts[..end]);
            if divergence < least {
                (best, least) = (end, divergence);
            }
        }
        best as f64 * self.limit / HALF as f64
    }

    fn least_squares(&self, symmetric: bool) -> f64 {
        let largest = self.largest();
        let width = self.limit / HALF as f64;
        let (mut best, mut least) = (largest, f64::INFINITY);
        for candidate in (1..=CANDIDATES).rev() {
            let cut = largest * candidate as f64 / CANDIDATES as f64;
            let (low, high) =
                if symmetric { (-cut, cut) } else { (self.min.clamp(-cut, 0.0), self.max.clamp(0.0, cut)) };
            let step = (high - low) / if symmetric { 254.0 } else { 255.0 };
            let mut error = 0.0;
            for (at, count) in self.bins.iter().enumerate().filter(|(_, count)| **count > 0) {
                let value = (at as f64 + 0.5 - HALF as f64) * width;
                let beyond = if value > high {
                    value - high
                } else if value < low {
                    low - value
                } else {
                    0.0
                };
                let within = if beyond > 0.0 { 0.0 } else { step * step / 12.0 };
                error += *count as f64 * (beyond * beyond + within);
            }
            if error < least {
                (best, least) = (cut, error);
            }
        }
        best
    }
}

/// Kullback–Leibler divergence of `clipped` from what is left of `counts` when every so many bins become one level.
fn divergence(clipped: &[f64], counts: &[u64]) -> f64 {
    let total: f64 = clipped.iter().sum();
    let kept: f64 = counts.iter().map(|count| *count as f64).sum();
    if kept == 0.0 {
        return f64::INFINITY;
    }
    let levels = LEVELS.min(counts.len());
    let mut sum = 0.0;
    for level in 0..levels {
        let bins = level * counts.len() / levels..(level + 1) * counts.len() / levels;
        let filled = bins.clone().filter(|at| clipped[*at] > 0.0).count();
        let mass: u64 = counts[bins.clone()].iter().sum();
        for at in bins.filter(|at| clipped[*at] > 0.0) {
            let p = clipped[at] / total;
            let q = mass as f64 / filled as f64 / kept;
            // A level of outliers alone has no mass of its own: the cut loses them.
            sum += p * (p / q.max(1e-12)).ln();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of a bell curve, by a sum of uniform ones.
    fn bell(count: usize) -> Vec<f64> {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1_u64 << 31) as f64
        };
        (0..count).map(|_| (0..12).map(|_| next()).sum::<f64>() - 6.0).collect()
    }

    fn of(values: &[f64]) -> Histogram {
        let mut histogram = Histogram::default();
        let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
        values.chunks(100).for_each(|chunk| {
            histogram.add(chunk);
        });
        histogram
    }

    #[test]
    fn numbers_fall_into_the_bins_that_they_are_in() {
        let half = HALF as f32;
        assert_eq!([-half, 0.0, half].map(bin_of), [0, HALF as u32, 2 * HALF as u32 - 1]);
        // What is nearly one too much for the last bin, or too little for the first, is in it.
        assert_eq!([-half - 0.01, half + 0.01].map(bin_of), [0, 2 * HALF as u32 - 1]);
        for at in -100 * HALF as i64..100 * HALF as i64 {
            let value = (at as f64 + 0.5) / 100.0;
            assert_eq!(f64::from(bin_of(value as f32)), value.floor() + HALF as f64, "{value}");
        }
    }

    #[test]
    fn min_max_keeps_all_and_the_others_cut_one_outlier() {
        let mut values = bell(40_000);
        values.push(1000.0);
        let histogram = of(&values);
        assert_eq!(histogram.range(Method::MinMax, true), (-1000.0, 1000.0));
        for method in [Method::Percentile, Method::Entropy] {
            let (low, high) = histogram.range(method, true);
            assert!(low == -high && high > 2.0 && high < 100.0, "{method:?}: {high}");
        }
        // One outlier of a thousand costs more squared error than all the others' steps: it is kept.
        let (_, high) = histogram.range(Method::Mse, true);
        assert!(high > 500.0, "{high}");
    }

    #[test]
    fn least_squares_cuts_the_tails_of_a_bell() {
        let values = bell(40_000);
        let histogram = of(&values);
        let (low, high) = histogram.range(Method::Mse, true);
        assert!(high < histogram.largest() && high > 2.5 && low == -high, "{high}");
        let error = |cut: f64| {
            let step = cut / 127.0;
            values.iter().map(|value| ((value / step).round().clamp(-127.0, 127.0) * step - value).powi(2)).sum::<f64>()
        };
        assert!(error(high) <= error(histogram.largest()), "the cut is no worse than none");
    }

    #[test]
    fn ranges_hold_zero_and_one_side_stays_one() {
        let positive: Vec<f64> = bell(5000).into_iter().map(f64::abs).collect();
        for method in Method::ALL {
            let (low, high) = of(&positive).range(method, false);
            assert!(low == 0.0 && high > 0.5, "{method:?}: {low}..{high}");
        }
        assert_eq!(of(&[0.0; 10]).range(Method::Mse, true), (0.0, 0.0));
        assert_eq!(Histogram::default().range(Method::Entropy, false), (0.0, 0.0));
    }

    #[test]
    fn bins_widen_and_nothing_is_lost() {
        let mut histogram = of(&[0.0, 0.1, -0.2, 50.0, f64::NAN, -3.0, f64::INFINITY]);
        assert_eq!((histogram.count, histogram.not_finite, histogram.min, histogram.max), (5, 2, -3.0, 50.0));
        assert_eq!(histogram.bins.iter().sum::<u64>(), 5);
        // What is too small for its reciprocal is counted all the same.
        histogram = of(&[1e-42, -1e-42, 0.0]);
        assert_eq!((histogram.count, histogram.bins.iter().sum::<u64>(), histogram.bins[2 * HALF - 1]), (3, 3, 1));
        let mut grown = Histogram::default();
        [0.1, 1.0, 10.0, -100.0].iter().for_each(|value: &f32| {
            grown.add(&[*value]);
        });
        assert_eq!((grown.bins.iter().sum::<u64>(), grown.largest()), (4, 100.0));
    }

    #[test]
    fn many_values_are_counted_as_each_by_itself() {
        for count in [0, 1, 7, 8, 9, 1023, 1024, 1025, 5000, 400_000] {
            let values: Vec<f32> =
                bell(count).into_iter().map(|value| if value < 0.5 { 0.0 } else { value as f32 }).collect();
            let mut whole = Histogram::default();
            assert_eq!(whole.add(&values), Extent::of(&values));
            let places = values.iter().map(|value| {
                (f64::from(*value) * HALF as f64 / whole.limit.max(f64::MIN_POSITIVE) + HALF as f64) as usize
            });
            let mut bins = vec![0; 2 * HALF];
            places.for_each(|at| bins[at.min(2 * HALF - 1)] += 1);
            let apart: u64 = whole.bins.iter().zip(&bins).map(|(a, b): (&u64, &u64)| a.abs_diff(*b)).sum();
            // A value at the edge of a bin may fall on either side of it.
            assert!(apart <= count as u64 / 500, "{apart} of {count}");
            assert_eq!((whole.count, whole.bins.iter().sum::<u64>()), (count as u64, count as u64));
            let odd: Vec<f32> = values.iter().copied().chain([f32::NAN, f32::NEG_INFINITY]).collect();
            assert_eq!(Extent::of(&odd), Extent::of(&values));
        }
    }

    #[test]
    fn the_percentile_holds_its_share() {
        let mut values: Vec<f64> = (1..=20_000).map(f64::from).collect();
        values.push(1e9);
        let (_, high) = of(&values).range(Method::Percentile, true);
        assert!((20_000.0..1e7).contains(&high), "{high}");
    }
}
