//! Where a series of measurements changed its level: the build from which on a model is slower, or faster.
//!
//! The last few values are held against those before them, back to the change found last, by ranks (Wilcoxon, *Individual
//! Comparisons by Ranking Methods*, 1945; Mann and Whitney, *On a Test of Whether one of Two Random Variables is
//! Stochastically Larger than the Other*, 1947). Ranks ask nothing of how the values scatter: while nothing changes, every
//! order of them is as likely as any other, so how often a series of mere noise is called changed is a count of orders,
//! outliers and several modes or not. What is told besides has to matter ([`LEAST`]). Values of which neighbours resemble
//! each other for long are not such series: levels that wander are told as changes.
//!
//! Where the level changed is the place that leaves the least absolute deviation from the two medians around it.

use crate::{median, quantile};
use std::sync::LazyLock;

/// Values behind a change from which it can be told, where there are [`BEFORE`] before it.
const AFTER: usize = 5;

/// So many have to lie behind it where fewer lie before it, but as many again at least.
const AFTER_FEW: usize = 10;

/// Values before a change that are looked at. Among so many there may be some outliers, and five values behind them still
/// tell a change.
const BEFORE: usize = 100;

/// How probable it is at most that one look at a series without a change finds one.
const FALSE_ALARM: f64 = 5e-5;

/// Changes smaller than this share are nobody's concern: two measurements of one engine differ as much.
pub const LEAST: f64 = 0.02;

/// A level that a series left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index of the first value of the new level.
    pub first: usize,
    /// Index of the value with which it could be told.
    pub told: usize,
    /// Medians of the values around it, as far as they were looked at.
    pub before: f64,
    pub after: f64,
}

impl Change {
    /// The new level over the old one.
    pub fn ratio(&self) -> f64 {
        self.after / self.before
    }
}

/// The changes of a series of positive values, in order. Each value is looked at once the ones after it are known, as a
/// farm sees them come.
pub fn changes(values: &[f64]) -> Vec<Change> {
    let mut found: Vec<Change> = Vec::new();
    let mut begin = 0;
    for told in 0..values.len() {
        if let Some(change) = look(values, begin, told) {
            begin = change.first;
            found.push(change);
        }
    }
    found
}

/// Whether the values up to `told` show a change of the level that began at `begin`.
fn look(values: &[f64], begin: usize, told: usize) -> Option<Change> {
    let known = told + 1 - begin;
    [AFTER, AFTER_FEW].into_iter().find_map(|after| {
        let before = known.checked_sub(after)?.min(BEFORE);
        let limit = LIMITS.of(before, after)?;
        let (old, new) = (&values[told + 1 - after - before..=told - after], &values[told + 1 - after..=told]);
        if !is_rare(old, new, limit) {
            return None;
        }
        let first = begins(values, begin, told, after);
        let (before, after) =
            (median(&values[first.saturating_sub(BEFORE).max(begin)..first]), median(&values[first..=told]));
        let ratio = after / before;
        (ratio.max(1.0 / ratio) > 1.0 + LEAST).then_some(Change { first, told, before, after })
    })
}

/// Whether at most `limit` pairs of an old and a new value stand against all others, in one direction or the other; equal
/// ones count half.
fn is_rare(old: &[f64], new: &[f64], limit: usize) -> bool {
    let (mut below, mut above) = (0, 0);
    new.iter().all(|new| {
        for old in old {
            below += usize::from(new <= old) + usize::from(new < old);
            above += usize::from(new >= old) + usize::from(new > old);
        }
        below.min(above) <= 2 * limit
    })
}

/// Where the new level begins: it may be told some values late, and its first may be an outlier.
fn begins(values: &[f64], begin: usize, told: usize, after: usize) -> usize {
    let earliest = (told + 1).saturating_sub(2 * after).max(begin + 1);
    let latest = told + 1 - after.min(AFTER - 2);
    let from = told.saturating_sub(BEFORE + after).max(begin);
    let (mut old, mut new) = (Ranked::of(&values[from..earliest]), Ranked::of(&values[earliest..=told]));
    let mut best: Option<(usize, f64)> = None;
    for (at, value) in values.iter().enumerate().take(latest + 1).skip(earliest) {
        let cost = old.deviation() + new.deviation();
        if best.is_none_or(|(_, least)| cost < least) {
            best = Some((at, cost));
        }
        old.add(*value);
        new.remove(*value);
    }
    best.map_or(told + 1 - after, |(at, _)| at)
}

/// Values in their order, one more or one fewer at a time: of neighbouring places most values are the same.
struct Ranked(Vec<f64>);

impl Ranked {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Self(sorted)
    }

    fn place(&self, value: f64) -> usize {
        self.0.partition_point(|known| known.total_cmp(&value).is_lt())
    }

    fn add(&mut self, value: f64) {
        self.0.insert(self.place(value), value);
    }

    fn remove(&mut self, value: f64) {
        let place = self.place(value);
        if place < self.0.len() {
            self.0.remove(place);
        }
    }

    /// The sum of the distances to the median.
    fn deviation(&self) -> f64 {
        let middle = quantile(&self.0, 0.5);
        self.0.iter().map(|value| (value - middle).abs()).sum()
    }
}

/// By the number of old values: the most inversions that tell a change; none where no order of so few is rare enough.
struct Limits {
    usual: Vec<Option<usize>>,
    few: Vec<Option<usize>>,
}

static LIMITS: LazyLock<Limits> = LazyLock::new(|| Limits { usual: limits(AFTER), few: limits(AFTER_FEW) });

impl Limits {
    fn of(&self, before: usize, after: usize) -> Option<usize> {
        let of = if after == AFTER { &self.usual } else { &self.few };
        of.get(before).copied().flatten()
    }
}

/// For each number of old values the most inversions of which so few, or so few of the opposite, are rarer than
/// [`FALSE_ALARM`]. Counts the orders of old and `after` new values by their inversions, as Mann and Whitney do.
fn limits(after: usize) -> Vec<Option<usize>> {
    // orders[n][u]: of n old values and the new ones so far, with u inversions.
    let most = BEFORE * after;
    let mut orders = vec![vec![0.0; most + 1]; BEFORE + 1];
    for row in &mut orders {
        row[0] = 1.0;
    }
    for new in 1..=after {
        for old in 1..=BEFORE {
            for u in new..=most {
                // The largest of all is a new value, as counted before, or an old one with every new one below it.
                orders[old][u] += orders[old - 1][u - new];
            }
        }
    }
    orders.iter().map(|counts| rarest(counts)).collect()
}

fn rarest(counts: &[f64]) -> Option<usize> {
    let total: f64 = counts.iter().sum();
    let mut sum = 0.0;
    let rare = counts.iter().take_while(|count| {
        sum += **count;
        2.0 * sum / total <= FALSE_ALARM
    });
    rare.count().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

    /// How values scatter around their level, as shares of it.
    #[derive(Clone, Copy, Debug)]
    enum Noise {
        Normal(f64),
        /// One value of so many is off by up to a half.
        Outliers(f64, u32),
        /// Each value lies at one of two modes, so far apart.
        Modes(f64),
        /// Whole values of few, such as a coarse clock gives.
        Rounded(f64),
    }

    fn series(noise: Noise, level: impl Fn(usize) -> f64, count: usize, seed: u64) -> Vec<f64> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut normal = move || {
            let (radius, angle) = (1.0 - random.random::<f64>(), random.random::<f64>());
            ((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos(), random.random::<f64>())
        };
        let value = |index| {
            let (normal, uniform) = normal();
            let relative = match noise {
                Noise::Normal(share) => share * normal,
                Noise::Outliers(_, every) if uniform * f64::from(every) < 1.0 => uniform * f64::from(every) * 0.5,
                Noise::Outliers(share, _) => share * normal,
                Noise::Modes(apart) => apart * f64::from(u8::from(uniform < 0.4)) + 0.002 * normal,
                Noise::Rounded(step) => (normal * 0.7).round() * step,
            };
            level(index) * (1.0 + relative)
        };
        (0..count).map(value).collect()
    }

    const NOISES: [Noise; 6] = [
        Noise::Normal(0.005),
        Noise::Normal(0.03),
        Noise::Outliers(0.01, 20),
        Noise::Outliers(0.01, 5),
        Noise::Modes(0.08),
        Noise::Rounded(0.03),
    ];

    #[test]
    fn noise_is_no_change() {
        for (number, noise) in NOISES.into_iter().enumerate() {
            let found = changes(&series(noise, |_| 7.0, 10_000, number as u64));
            assert!(found.len() <= 1, "{noise:?}: {found:?}");
        }
        // Series are short as a rule: 1,000 of 10, 20, 50 and 100 builds each.
        for count in [10, 20, 50, 100] {
            let false_alarms: usize = (0..1_000)
                .map(|seed| changes(&series(NOISES[seed % 6], |_| 7.0, count, 100 + seed as u64)).len())
                .sum();
            assert!(false_alarms <= count / 10, "{false_alarms} in {} builds", 1_000 * count);
        }
    }

    #[test]
    fn a_step_of_five_percent_in_200_builds_is_told_within_five_and_named() {
        // Outliers behind a step, or many before it, hide it until more values are there.
        for (noise, in_time) in
            [(Noise::Normal(0.005), 99), (Noise::Normal(0.01), 95), (Noise::Outliers(0.005, 20), 55)]
        {
            for ratio in [1.05, 1.0 / 1.05] {
                let (mut told, mut late, mut named) = (0, 0, 0);
                for seed in 0..100 {
                    let at = 40 + seed as usize;
                    let found = changes(&series(noise, |index| if index < at { 7.0 } else { 7.0 * ratio }, 200, seed));
                    let change = found.iter().find(|change| change.first.abs_diff(at) <= 2);
                    told += usize::from(change.is_some_and(|change| change.told < at + AFTER + 1));
                    late += usize::from(change.is_some_and(|change| change.told < at + 2 * AFTER_FEW));
                    named += usize::from(change.is_some_and(|change| change.first == at));
                    assert!(found.len() <= 2, "{noise:?} {seed}: {found:?}");
                }
                assert!(told >= in_time, "{noise:?} {ratio}: told {told} of 100 in time");
                assert!(late >= 98, "{noise:?} {ratio}: told {late} of 100 at all");
                assert!(named >= 85, "{noise:?} {ratio}: named {named} of 100");
            }
        }
    }

    #[test]
    fn a_short_series_and_a_small_step_tell_nothing_and_a_way_back_tells_two() {
        let step = |before: usize, after: usize, ratio: f64| {
            let level = move |index| if index < before { 1.0 } else { ratio };
            changes(&series(Noise::Normal(0.002), level, before + after, 3))
        };
        assert_eq!(step(3, 4, 2.0), []);
        assert_eq!(step(50, 4, 2.0), []);
        assert_eq!(step(50, 50, 1.01), []);
        assert_eq!(step(10, 10, 1.5).len(), 1);
        let there_and_back = |index| if (50..80).contains(&index) { 1.1 } else { 1.0 };
        let found = changes(&series(Noise::Normal(0.002), there_and_back, 150, 4));
        assert_eq!(found.iter().map(|change| change.first).collect::<Vec<_>>(), [50, 80]);
        assert!((found[0].ratio() - 1.1).abs() < 0.01 && (found[1].ratio() - 1.0 / 1.1).abs() < 0.01);
        assert_eq!(changes(&[]), []);
        assert_eq!(changes(&[1.0; 500]), []);
    }

    #[test]
    fn a_place_is_found_as_by_looking_at_each_by_itself() {
        let deviation = |part: &[f64]| {
            let middle = median(part);
            part.iter().map(|value| (value - middle).abs()).sum::<f64>()
        };
        for seed in 0..200 {
            let noise = NOISES[seed % NOISES.len()];
            let values = series(noise, |index| if index < 70 { 1.0 } else { 1.05 }, 120, seed as u64);
            let (begin, told, after) = (seed % 40, 72 + seed % 45, if seed % 2 == 0 { AFTER } else { AFTER_FEW });
            let from = told.saturating_sub(BEFORE + after).max(begin);
            let cost = |at: usize| deviation(&values[from..at]) + deviation(&values[at..=told]);
            let found = begins(&values, begin, told, after);
            let least =
                (told + 1 - 2 * after..=told + 1 - after.min(AFTER - 2)).map(cost).fold(f64::INFINITY, f64::min);
            // Sums of the same values in another order differ in their last digits.
            assert!(
                cost(found) <= least * (1.0 + 1e-12),
                "{seed}: {found} costs {}, {least} is the least",
                cost(found)
            );
        }
    }

    #[test]
    fn orders_are_counted_as_mann_and_whitney_count_them() {
        // Of 30 old and 5 new values there are 324,632 orders: 1, 1, 2, 3 and 5 of them with 0 to 4 inversions.
        let of = |before: usize, after: usize| LIMITS.of(before, after);
        assert_eq!(of(30, AFTER), Some(3), "2 x 7 of 324,632 are rare enough, 2 x 12 are not");
        assert_eq!(of(17, AFTER), None, "2 orders of 26,334 are too likely");
        assert_eq!(of(18, AFTER), None, "2 of 33,649, too");
        assert_eq!(of(20, AFTER), Some(0), "2 of 53,130 are not");
        assert_eq!((of(8, AFTER_FEW), of(9, AFTER_FEW)), (Some(0), Some(1)));
        assert_eq!(of(7, AFTER_FEW), None, "2 orders of 19,448 are too likely");
        assert!(of(100, AFTER).is_some_and(|most| most >= 20), "four outliers are borne");
    }
}
