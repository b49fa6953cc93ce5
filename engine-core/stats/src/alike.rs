//! How much neighbouring windows resemble each other, and what that does to the spread of their mean.
//!
//! Windows are taken one after another, and whatever slows one (a clock, a neighbour, heat) often slows the next. Such
//! windows say less than as many independent ones. What is assumed of them here is a correlation that falls by the same
//! factor φ with every step, an AR(1) process.
//!
//! From ten or twenty windows nobody can tell φ = 0 from φ = 0.5. An interval that believes the estimate is too narrow
//! whenever the estimate is low by chance, and a measurement that stops when its interval is narrow waits for that chance.
//! So an estimate is never believed to be lower than an independent series could show by chance.
//!
//! Sources: the lag-1 correlation of ranks, which single slow windows cannot hide (Bartels, *The Rank Version of von
//! Neumann's Ratio Test for Randomness*, 1982); its bias and standard error for short series (Marriott and Pope, *Bias in
//! the Estimation of Autocorrelations*, 1954; Bartlett, *On the Theoretical Specification and Sampling Properties of
//! Autocorrelated Time-Series*, 1946); the variance of the mean of correlated values and the expectation of their sum of
//! squares (Anderson, *The Statistical Analysis of Time Series*, 1971, section 8.2); that an estimated correlation taken as
//! if it were known leaves intervals too narrow for short series (Zwiers and von Storch, *Taking Serial Correlation into
//! Account in Tests of the Mean*, 1995).

/// Values below which nobody can tell from them how alike neighbours are: `ASSUMED` is taken.
pub const MIN_TO_JUDGE: usize = 10;

/// Correlation of neighbours that few values are taken to have: a little more than the 0.5 up to which intervals hold
/// whatever is estimated.
const ASSUMED: f64 = 0.6;

/// What independent values stay within, in standard errors, 95 times of 100: the estimate is not believed below it.
const BAND: f64 = 1.96;

/// Correlation beyond which values do not tell where their middle lies: ten of them count for less than two.
const MOST: f64 = 0.95;

/// The correlation φ of neighbours that is to be reckoned with, one standard error above what is estimated; `None` where
/// it may be so high that the values do not tell where their middle lies.
pub fn to_reckon_with(values: &[f64]) -> Option<f64> {
    if values.len() < MIN_TO_JUDGE {
        return Some(ASSUMED);
    }
    let count = values.len() as f64;
    let found = ((count * neighbours(&ranks(values)) + 1.0) / (count - 4.0)).max(0.0);
    let error = ((1.0 - found.min(MOST).powi(2)) / count).sqrt();
    let bound = (found + error).max(BAND / count.sqrt());
    (bound <= MOST).then_some(bound)
}

/// Lag-1 correlation; 0 where all values are equal.
fn neighbours(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let products: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if squares > 0.0 { products / squares } else { 0.0 }
}

/// The rank of each value; equal ones share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut smaller = 0;
    for tied in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let shared = smaller as f64 + (tied.len() - 1) as f64 / 2.0;
        tied.iter().for_each(|index| ranks[*index] = shared);
        smaller += tied.len();
    }
    ranks
}

/// What a correlation of neighbours makes of the mean of several values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Variance of the mean over what s²/n says of it: the mean varies more, and s² is too small as well.
    pub variance: f64,
    /// Of s².
    pub degrees_of_freedom: f64,
}

/// The effect of correlation φ (0 to below 1) on the mean of `count` values, two or more.
pub fn effect(correlation: f64, count: usize) -> Effect {
    let (phi, n) = (correlation, count as f64);
    // Variance of the mean over that of as many independent values.
    let mean = (1.0 + phi) / (1.0 - phi) - 2.0 * phi * (1.0 - phi.powf(n)) / (n * (1.0 - phi).powi(2));
    let squares = (n - mean) / (n - 1.0);
    let degrees_of_freedom = (n - 1.0) * (1.0 - phi * phi) / (1.0 + phi * phi);
    Effect { variance: mean / squares, degrees_of_freedom }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn independent_values_have_their_usual_variance() {
        let found = effect(0.0, 7);
        assert!((found.variance - 1.0).abs() < 1e-12 && (found.degrees_of_freedom - 6.0).abs() < 1e-12);
    }

    #[test]
    fn the_effect_is_that_of_all_covariances_added_up() {
        for (phi, count) in [(0.5f64, 5usize), (0.8, 10), (0.3, 40)] {
            let n = count as f64;
            let mut sum = 0.0;
            for i in 0..count {
                sum += (0..count).map(|j| phi.powi(i.abs_diff(j) as i32)).sum::<f64>();
            }
            let (mean, squares) = (sum / (n * n), (n - sum / n) / (n - 1.0));
            assert!((effect(phi, count).variance - mean * n / squares).abs() < 1e-9, "{phi} {count}");
        }
    }

    #[test]
    fn the_more_alike_neighbours_are_the_more_is_reckoned_with() {
        let rising: Vec<f64> = (0..40).map(f64::from).collect();
        assert_eq!(to_reckon_with(&rising), None);
        let turning: Vec<f64> = (0..40).map(|i| f64::from(i % 2)).collect();
        assert_eq!(to_reckon_with(&turning), Some(BAND / 40f64.sqrt()), "alternating windows are not believed to help");
        let equal = [3.0; 40];
        assert_eq!(to_reckon_with(&equal), Some(BAND / 40f64.sqrt()));
        assert_eq!(to_reckon_with(&rising[..9]), Some(ASSUMED));
        let slow_waves: Vec<f64> = (0..80).map(|i| (f64::from(i) * 1.2).sin()).collect();
        let found = to_reckon_with(&slow_waves).unwrap();
        assert!((0.3..0.6).contains(&found), "{found}");
    }

    #[test]
    fn a_single_slow_value_hides_nothing() {
        let waves = |i: i32| (f64::from(i) * 0.7).sin();
        let mut values: Vec<f64> = (0..60).map(waves).collect();
        let before = to_reckon_with(&values).unwrap();
        values[30] = 1e6;
        let after = to_reckon_with(&values).unwrap();
        assert!((before - after).abs() < 0.1, "{before} {after}");
    }

    #[test]
    fn equal_values_share_their_rank() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [1.5, 0.0, 1.5, 3.0]);
    }
}
