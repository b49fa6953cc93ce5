//! Statistics of latencies: percentiles, spread, and an interval for the median that does not flatter itself.
//!
//! Latencies taken back to back resemble each other, so a textbook interval over all samples is too narrow. Each timed
//! window is one cluster here; what is counted is the share of its samples above a value. A value may be the median unless
//! the shares of all windows say otherwise: the interval is all values that are not refused by a t test of these shares.
//! The test is made anew at every value, so that nothing is squared around an estimated median, and bounds are order
//! statistics whatever the distribution, with two modes as well as with one. One window has nothing to disagree with: there
//! is no interval then.
//!
//! Four things widen it beyond the textbook:
//!
//! - **Neighbours** that resemble each other ([`alike`]); what they do is judged for single windows, and for
//!   blocks of two, four, eight and so on as long as there are ten, and the widest counts. Where they resemble each other
//!   too much there is no interval.
//! - **Fewer than ten windows**: shares of 0 and 1 alone are signs, and a handful of signs all agree by chance more often
//!   than the confidence allows. Then the interval reaches as far as Student's t for the windows' medians, too.
//! - **Looks**: a measurement that ends when its interval is narrow ends on one that is narrow by chance. An interval
//!   narrow enough for that ([`NARROW`]) has its share of the error alone: after every window there was a look, of which
//!   ten count, for later ones see nearly the same samples. One that is wider ended nothing.
//! - **Independence** of all samples, which no interval is narrower than.
//!
//! What the interval holds in the end is simulated under the very stopping rule, in `coverage_tests.rs`; the band and the
//! assumed correlation of [`alike`] and the ten looks are set so that it holds there, everything else follows.
//!
//! Sources: order statistics bound a quantile whatever the distribution (Conover, *Practical Nonparametric Statistics*,
//! 3rd edition, section 3.2); percentiles are interpolated as definition 7 of Hyndman and Fan, *Sample Quantiles in
//! Statistical Packages* (1996); windows are clusters, by whose shares a median's interval is found (Woodruff, *Confidence
//! Intervals for Medians and Other Position Measures*, 1952); testing at every value rather than at the estimate (Francisco
//! and Fuller, *Quantile Estimation with a Complex Survey Design*, 1991); blocks (Flyvbjerg and Petersen, *Error Estimates
//! on Averages of Correlated Data*, 1989); what looks do to the error (Armitage, McPherson and Rowe, *Repeated Significance
//! Tests on Accumulating Data*, 1969) and to intervals of fixed width (Chow and Robbins, *On the Asymptotic Theory of
//! Fixed-Width Sequential Confidence Intervals for the Mean*, 1965).

use crate::{
    alike,
    latency::{CI_CONFIDENCE, INTERVAL_RULE, LatencyStats, MedianInterval, NoInterval},
    student::student_t,
};

/// Fewer samples than this cannot bound a median with [`CI_CONFIDENCE`]: the interval is then all of them.
pub const MIN_FOR_CONFIDENCE: usize = 6;

/// Half-width of a median's interval over the median at which measurements end. Intervals up to it pay for the looks.
pub const NARROW: f64 = 0.01;

/// Windows before the first look at an interval.
const BEFORE_LOOKS: usize = 4;

/// Looks that count.
const MOST_LOOKS: usize = 10;

/// Fewest blocks of windows that the spread is judged by.
const MIN_BLOCKS: usize = alike::MIN_TO_JUDGE;

/// The `q`-quantile (0..=1) of ascending `sorted`, interpolated between closest ranks; 0 when empty.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let rank = q.clamp(0.0, 1.0) * last as f64;
    let below = rank.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (rank - below as f64)
}

/// The median of `values` in any order; 0 when empty.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// Statistics of `samples`, which are the windows of `window_sizes` one after another; `None` when there are none.
pub fn latency_stats(samples: &[f64], window_sizes: &[usize]) -> Option<LatencyStats> {
    if samples.is_empty() {
        return None;
    }
    debug_assert_eq!(window_sizes.iter().sum::<usize>(), samples.len(), "windows cover the samples");
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len();
    let mean = samples.iter().sum::<f64>() / count as f64;
    let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
    let stddev = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
    let middle = quantile(&sorted, 0.5);
    Some(LatencyStats {
        count: count as u64,
        median: middle,
        mean,
        stddev,
        min: sorted[0],
        max: sorted[count - 1],
        p50: middle,
        p90: quantile(&sorted, 0.90),
        p95: quantile(&sorted, 0.95),
        p99: quantile(&sorted, 0.99),
        interval: median_interval(samples, window_sizes, CI_CONFIDENCE),
        interval_rule: INTERVAL_RULE,
    })
}

/// Where the median of what was sampled lies, with `confidence` (0..1); `samples` are the windows of `window_sizes` one
/// after another.
///
/// # Errors
///
/// Why the samples do not tell.
pub fn median_interval(samples: &[f64], window_sizes: &[usize], confidence: f64) -> Result<MedianInterval, NoInterval> {
    let windows = cut(samples, window_sizes);
    if windows.len() < 2 {
        return Err(NoInterval::OneWindow);
    }
    let sampled = Sampled::new(&windows, 0.5);
    let (first, last) = (sampled.sorted[0].0, sampled.sorted[sampled.sorted.len() - 1].0);
    if sampled.sorted.len() < MIN_FOR_CONFIDENCE {
        let confidence = 1.0 - 2.0 * 0.5f64.powi(sampled.sorted.len() as i32);
        return Ok(MedianInterval { low: first, high: last, confidence });
    }
    // Without the looks it would be narrow: it may be the one that ended the measurement.
    let usual = sampled.interval(CI_CONFIDENCE)?;
    let looks = match usual.relative_half_width(sampled.median()) <= NARROW {
        true => windows.len().saturating_sub(BEFORE_LOOKS).clamp(1, MOST_LOOKS),
        false => 1,
    };
    let found = sampled.interval(1.0 - (1.0 - confidence) / looks as f64)?;
    // Whatever the blocks say, what was found in the middle is no less likely than its neighbours.
    let middle = sampled.median();
    Ok(MedianInterval { low: found.low.max(0.0).min(middle), high: found.high.max(middle), confidence })
}

/// Where a quantile (0 to 1) of what was sampled lies, found as the median's interval is, but for looks: nothing ends on
/// this one. A bound is infinite where the samples do not hold one: 300 of them know no upper bound of a 99th percentile.
///
/// # Errors
///
/// Why the samples do not tell; fewer than ten windows never do.
pub fn quantile_interval(
    samples: &[f64],
    window_sizes: &[usize],
    quantile: f64,
    confidence: f64,
) -> Result<MedianInterval, NoInterval> {
    let windows = cut(samples, window_sizes);
    if windows.len() < MIN_BLOCKS {
        return Err(NoInterval::OneWindow);
    }
    Sampled::new(&windows, quantile).interval(confidence)
}

/// Where the mean of what was sampled lies: windows, and blocks of them, are so many values of Student's t, as alike as
/// neighbours are.
///
/// # Errors
///
/// As [`quantile_interval`].
pub fn mean_interval(samples: &[f64], window_sizes: &[usize], confidence: f64) -> Result<MedianInterval, NoInterval> {
    let windows = cut(samples, window_sizes);
    if windows.len() < MIN_BLOCKS {
        return Err(NoInterval::OneWindow);
    }
    let sampled = Sampled::with_middles(&windows, |window| window.iter().sum::<f64>() / window.len() as f64);
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let mut half = 0.0f64;
    for together in sampled.block_sizes() {
        half = half.max(sampled.blocks(together).half_of_mean(confidence)?);
    }
    Ok(MedianInterval { low: mean - half, high: mean + half, confidence })
}

/// Cuts `samples` into their windows. One of less than half the samples of the one before, as a limit leaves it at the
/// end, belongs to that: its own median would say little.
pub(crate) fn cut<'a>(samples: &'a [f64], sizes: &[usize]) -> Vec<&'a [f64]> {
    let mut whole: Vec<usize> = Vec::with_capacity(sizes.len());
    for size in sizes.iter().copied().filter(|size| *size > 0) {
        match whole.last_mut() {
            Some(before) if size * 2 < *before => *before += size,
            _ => whole.push(size),
        }
    }
    let mut rest = samples;
    let mut cut = Vec::with_capacity(whole.len());
    for size in whole {
        let (window, after) = rest.split_at(size.min(rest.len()));
        cut.push(window);
        rest = after;
    }
    cut.retain(|window| !window.is_empty());
    cut
}

/// Windows, ready to be asked for intervals.
struct Sampled {
    /// The quantile that intervals are for.
    quantile: f64,
    /// Every sample and its window, ascending.
    sorted: Vec<(f64, usize)>,
    sizes: Vec<f64>,
    /// That quantile of each window, or its mean.
    middles: Vec<f64>,
}

/// Windows taken together, several to a block.
struct Blocks {
    /// By window.
    block: Vec<usize>,
    sizes: Vec<f64>,
    /// Mean of the windows' middles.
    middles: Vec<f64>,
}

impl Sampled {
    fn new(windows: &[&[f64]], share: f64) -> Self {
        let of_window = |window: &[f64]| {
            let mut sorted = window.to_vec();
            sorted.sort_unstable_by(f64::total_cmp);
            quantile(&sorted, share)
        };
        Self { quantile: share, ..Self::with_middles(windows, of_window) }
    }

    fn with_middles(windows: &[&[f64]], middle: impl Fn(&[f64]) -> f64) -> Self {
        let mut sorted = Vec::with_capacity(windows.iter().map(|window| window.len()).sum());
        for (index, window) in windows.iter().enumerate() {
            sorted.extend(window.iter().map(|value| (*value, index)));
        }
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let sizes = windows.iter().map(|window| window.len() as f64).collect();
        Self { quantile: 0.5, sorted, sizes, middles: windows.iter().map(|window| middle(window)).collect() }
    }

    fn median(&self) -> f64 {
        let last = self.sorted.len() - 1;
        f64::midpoint(self.sorted[last / 2].0, self.sorted[last.div_ceil(2)].0)
    }

    /// The widest that windows, and blocks of them, ask for.
    fn interval(&self, confidence: f64) -> Result<MedianInterval, NoInterval> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for together in self.block_sizes() {
            let (from, to) = self.blocks(together).bounds(&self.sorted, self.quantile, confidence)?;
            (low, high) = (low.min(from), high.max(to));
        }
        Ok(MedianInterval { low, high, confidence })
    }

    /// One window to a block, then two, four and so on.
    fn block_sizes(&self) -> impl Iterator<Item = usize> {
        let windows = self.sizes.len();
        std::iter::successors(Some(1), |together| Some(together * 2))
            .take_while(move |together| *together == 1 || windows / together >= MIN_BLOCKS)
    }

    /// Blocks of `together` windows; what is left over belongs to the last.
    fn blocks(&self, together: usize) -> Blocks {
        let count = self.sizes.len() / together;
        let block: Vec<usize> = (0..self.sizes.len()).map(|window| (window / together).min(count - 1)).collect();
        let (mut sizes, mut middles) = (vec![0.0; count], vec![0.0; count]);
        for ((block, size), middle) in block.iter().zip(&self.sizes).zip(&self.middles) {
            sizes[*block] += size;
            middles[*block] += size * middle;
        }
        middles.iter_mut().zip(&sizes).for_each(|(middle, size)| *middle /= size);
        Blocks { block, sizes, middles }
    }
}

impl Blocks {
    /// Half of the width of the mean's interval.
    fn half_of_mean(&self, confidence: f64) -> Result<f64, NoInterval> {
        let correlation = alike::to_reckon_with(&self.middles).ok_or(NoInterval::Alike)?;
        let effect = alike::effect(correlation, self.middles.len());
        let (count, weight) = (self.middles.len() as f64, self.sizes.iter().sum::<f64>());
        let mean = self.middles.iter().zip(&self.sizes).map(|(middle, size)| middle * size).sum::<f64>() / weight;
        let squares: f64 = self.middles.iter().map(|middle| (middle - mean).powi(2)).sum();
        let student = student_t(confidence, effect.degrees_of_freedom);
        Ok(student * (squares / (count - 1.0) * effect.variance / count).sqrt())
    }

    fn bounds(&self, sorted: &[(f64, usize)], quantile: f64, confidence: f64) -> Result<(f64, f64), NoInterval> {
        let correlation = alike::to_reckon_with(&self.middles).ok_or(NoInterval::Alike)?;
        let count = self.middles.len() as f64;
        let effect = alike::effect(correlation, self.middles.len());
        let student = student_t(confidence, effect.degrees_of_freedom);
        let (low, high) = self.not_refused(sorted, quantile, student, effect.variance);
        // As many independent signs as this would all agree too often. Of ten windows and more a slow one says less by its
        // median, which knows no bounds, than by its share.
        let signs_agree = (1.0 - count / effect.variance).exp2() > 1.0 - confidence;
        if !signs_agree || self.middles.len() >= alike::MIN_TO_JUDGE {
            return Ok((low, high));
        }
        let mean = self.middles.iter().sum::<f64>() / count;
        let squares: f64 = self.middles.iter().map(|middle| (middle - mean).powi(2)).sum();
        let half = student * (squares / (count - 1.0) * effect.variance / count).sqrt();
        Ok((low.min(mean - half), high.max(mean + half)))
    }

    /// The smallest and the largest sample that bound values at which the samples above are not too many or too few.
    /// `widened` is how many times larger than of independent blocks the variance is. Beside the median, a side on which
    /// not even all samples are enough is infinite.
    fn not_refused(&self, sorted: &[(f64, usize)], quantile: f64, student: f64, widened: f64) -> (f64, f64) {
        let (samples, count) = (sorted.len() as f64, self.sizes.len() as f64);
        let size_squares: f64 = self.sizes.iter().map(|size| size * size).sum();
        // Of each block, how many samples more than there should be lie above; at first all do.
        let mut above: Vec<f64> = self.sizes.iter().map(|size| size * quantile).collect();
        let mut total = samples * quantile;
        let mut squares = size_squares * quantile * quantile;
        let mut products = size_squares * quantile;
        let holds = |total: f64, squares: f64, products: f64| {
            let share = total / samples;
            let residual = (squares - 2.0 * share * products + share * share * size_squares).max(0.0);
            let variance = (residual * count / (count - 1.0) * widened).max(samples * quantile * (1.0 - quantile));
            total * total <= student * student * variance
        };
        let (first, last) = (sorted[0].0, sorted[sorted.len() - 1].0);
        let beyond = |bound: f64, side: f64| if quantile == 0.5 { bound } else { side };
        let mut low = holds(total, squares, products).then(|| beyond(first, 0.0));
        let mut high = first;
        let mut groups = sorted.chunk_by(|a, b| a.0 == b.0).peekable();
        while let Some(tied) = groups.next() {
            let was_above = total >= 0.0;
            for (_, window) in tied {
                let block = self.block[*window];
                squares += 1.0 - 2.0 * above[block];
                above[block] -= 1.0;
                products -= self.sizes[block];
                total -= 1.0;
            }
            let value = tied[0].0;
            if holds(total, squares, products) {
                low.get_or_insert(value);
                high = groups.peek().map_or_else(|| beyond(last, f64::INFINITY), |next| next[0].0);
            } else if was_above && total <= 0.0 {
                // The median itself, where many samples are equal to it.
                low.get_or_insert(value);
                high = value;
            }
        }
        (low.unwrap_or(first), high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate() {
        let values: Vec<f64> = (1..=101).map(f64::from).collect();
        let stats = latency_stats(&values, &[101]).unwrap();
        assert_eq!((stats.median, stats.p90, stats.p95, stats.p99), (51.0, 91.0, 96.0, 100.0));
        assert_eq!((stats.min, stats.max, stats.mean, stats.count), (1.0, 101.0, 51.0, 101));
        assert!((stats.stddev - 29.300_170).abs() < 1e-5);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert!(latency_stats(&[], &[]).is_none());
    }

    #[test]
    fn few_samples_claim_little() {
        let one = latency_stats(&[5.0], &[1]).unwrap();
        assert_eq!((one.interval, one.stddev), (Err(NoInterval::OneWindow), 0.0));
        let three = latency_stats(&[5.0, 6.0, 7.0], &[2, 1]).unwrap();
        assert_eq!(three.interval, Ok(MedianInterval { low: 5.0, high: 7.0, confidence: 0.75 }));
    }

    #[test]
    fn one_window_has_no_interval_however_many_samples() {
        let samples: Vec<f64> = (0..1000).map(|i| 10.0 + f64::from(i % 7)).collect();
        for sizes in [&[1000][..], &[0, 1000, 0]] {
            assert_eq!(latency_stats(&samples, sizes).unwrap().interval, Err(NoInterval::OneWindow), "{sizes:?}");
        }
        let two = latency_stats(&samples, &[500, 500]).unwrap().interval.unwrap();
        assert_eq!(two.confidence, CI_CONFIDENCE);
    }

    #[test]
    fn disagreeing_windows_widen_the_interval() {
        let calm: Vec<f64> = (0..400).map(|i| 10.0 + f64::from(i * 7 % 20) / 20.0).collect();
        // As many of each value, but every window has its own.
        let mut apart: Vec<f64> = Vec::new();
        for window in [3, 0, 6, 1, 7, 2, 5, 4] {
            let mut sorted = calm.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            apart.extend(&sorted[window * 50..][..50]);
        }
        let width = |samples: &[f64]| {
            let interval = latency_stats(samples, &[50; 8]).unwrap().interval.unwrap();
            interval.high - interval.low
        };
        assert!(width(&apart) > 3.0 * width(&calm), "{} {}", width(&apart), width(&calm));
    }

    #[test]
    fn windows_that_rise_all_the_time_do_not_tell_where_their_median_lies() {
        let rising: Vec<f64> = (0..2000).map(|i| 10.0 + f64::from(i) / 1000.0).collect();
        assert_eq!(latency_stats(&rising, &[100; 20]).unwrap().interval, Err(NoInterval::Alike));
    }

    #[test]
    fn equal_samples_have_the_median_they_all_are() {
        let mostly: Vec<f64> = (0..600).map(|i| if i % 5 < 3 { 10.0 } else { 11.0 }).collect();
        let found = latency_stats(&mostly, &[60; 10]).unwrap();
        let interval = found.interval.unwrap();
        assert_eq!((found.median, interval.low, interval.high), (10.0, 10.0, 10.0));
        let all = latency_stats(&[7.0; 100], &[10; 10]).unwrap().interval.unwrap();
        assert_eq!((all.low, all.high), (7.0, 7.0));
    }

    #[test]
    fn more_confidence_takes_a_wider_interval() {
        let samples: Vec<f64> = (0..1000).map(|i| 10.0 + f64::from(i * 7919 % 997) / 100.0).collect();
        let at = |confidence: f64| median_interval(&samples, &[50; 20], confidence).unwrap();
        let (usual, sure) = (at(0.95), at(0.9999));
        assert!(sure.low < usual.low && usual.high < sure.high, "{usual:?} {sure:?}");
        assert_eq!((usual.confidence, sure.confidence), (0.95, 0.9999));
    }

    #[test]
    fn a_window_that_was_cut_short_counts_for_what_it_holds() {
        let mut samples: Vec<f64> = (0..1000).map(|i| 10.0 + f64::from(i * 7919 % 97) / 1000.0).collect();
        let whole = latency_stats(&samples, &[100; 10]).unwrap().interval.unwrap();
        samples.push(99.0);
        let sizes: Vec<usize> = [100; 10].into_iter().chain([1]).collect();
        let cut = median_interval(&samples, &sizes, CI_CONFIDENCE).unwrap();
        assert!((cut.low - whole.low).abs() < 0.05, "{cut:?} {whole:?}");
    }
}
