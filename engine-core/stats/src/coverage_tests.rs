//! How often intervals hold the median, under the stopping rule of measurements: after every window, from the fewest on,
//! the interval is looked at, until it is narrow or the windows run out. Seeds are fixed; what is counted is the same on
//! every machine.
//!
//! The noise of each process is tried at several sizes, for what a stopping rule does depends on how far the noise is from
//! its target: small noise ends at the first look, large noise goes on until an interval is narrow by chance.

use crate::{LatencyStats, NARROW, NoInterval, Place, latency_stats};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

const CENTRE: f64 = 10.0;
const SAMPLES: usize = 8;
const MOST_WINDOWS: usize = 60;

/// Windows of a usual measurement before its first look: a second of a tenth each.
const USUAL: usize = 10;

/// What intervals promise to hold at least.
const PROMISED: f64 = 0.94;

/// Noise of a window's median over the half-width that ends a measurement.
const NOISES: [f64; 2] = [0.3, 1.0];

struct Random(Xoshiro256PlusPlus);

impl Random {
    /// A draw from the normal distribution (Box and Muller, *A Note on the Generation of Random Normal Deviates*, 1958).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.0.random::<f64>(), self.0.random::<f64>());
        (-2.0 * radius.ln()).sqrt() * (2.0 * std::f64::consts::PI * angle).cos()
    }
}

/// What one window's samples look like.
#[derive(Clone, Copy, Debug)]
enum Windows {
    /// Levels of their own, with noise around each: `share` is the level's over the noise's.
    Independent { share: f64 },
    /// The same, where a level is `phi` times the one before and something new.
    Alike { phi: f64, share: f64 },
    /// The level rises all the time, by as much as the noise is in [`MOST_WINDOWS`].
    Drifting,
    /// Of the samples of every window some lie in a second mode, 8 % away; how many differs between windows.
    Bimodal { second: f64 },
    /// Whole windows lie in the second mode.
    Switching { second: f64 },
}

/// One measurement: its statistics, windows and what its median truly is.
fn measure(windows: Windows, fewest: usize, noise: f64, random: &mut Random) -> (LatencyStats, usize, f64) {
    let share = match windows {
        Windows::Independent { share } | Windows::Alike { share, .. } => share,
        _ => 0.3,
    };
    let median_noise = (share * share + std::f64::consts::FRAC_PI_2 / SAMPLES as f64).sqrt();
    let noise = noise * NARROW * CENTRE / median_noise;
    let (mut samples, mut sizes, mut level, mut truth) = (Vec::new(), Vec::new(), random.normal(), CENTRE);
    loop {
        let (mut centre, mut second) = (CENTRE, 0.0);
        match windows {
            Windows::Independent { share } => centre += share * noise * random.normal(),
            Windows::Alike { phi, share } => {
                centre += share * noise * level;
                level = phi * level + (1.0 - phi * phi).sqrt() * random.normal();
            }
            Windows::Drifting => {
                let step = noise / MOST_WINDOWS as f64;
                centre += step * sizes.len() as f64;
                truth = CENTRE + step * sizes.len() as f64 / 2.0;
            }
            Windows::Bimodal { second: usual } => {
                centre += share * noise * random.normal();
                second = (usual + 0.05 * random.normal()).clamp(0.0, 1.0);
            }
            Windows::Switching { second: often } => {
                second = f64::from(u8::from(random.0.random::<f64>() < often));
            }
        }
        for _ in 0..SAMPLES {
            let mode = if random.0.random::<f64>() < second { 0.08 * CENTRE } else { 0.0 };
            samples.push(centre + mode + noise * random.normal());
        }
        sizes.push(SAMPLES);
        if sizes.len() < fewest {
            continue;
        }
        let stats = latency_stats(&samples, &sizes).unwrap();
        let narrow = stats.interval.is_ok_and(|interval| interval.relative_half_width(stats.median) <= NARROW);
        if narrow || sizes.len() == MOST_WINDOWS {
            return (stats, sizes.len(), truth);
        }
    }
}

/// Of many measurements.
#[derive(Debug)]
struct Coverage {
    /// Share of the intervals given that hold the median.
    held: f64,
    /// Share of the measurements that have an interval.
    given: f64,
    /// Windows of the middle measurement.
    windows: usize,
}

fn coverage(windows: Windows, fewest: usize, noise: f64, trials: u64, within: impl Fn(f64) -> (f64, f64)) -> Coverage {
    let (mut held, mut given, mut lengths) = (0, 0, Vec::new());
    for trial in 0..trials {
        let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(1000 * trial + (noise * 10.0) as u64));
        let (stats, length, truth) = measure(windows, fewest, noise, &mut random);
        lengths.push(length);
        if let Ok(interval) = stats.interval {
            given += 1;
            let (from, to) = within(truth);
            held += u32::from(interval.low <= to && from <= interval.high);
        }
    }
    lengths.sort_unstable();
    let held = f64::from(held) / f64::from(given.max(1));
    Coverage { held, given: f64::from(given) / trials as f64, windows: lengths[lengths.len() / 2] }
}

/// Holds what is promised at every noise; the median is a single value.
fn holds(windows: Windows, fewest: usize, trials: u64, given: f64) {
    for noise in NOISES {
        let found = coverage(windows, fewest, noise, trials, |truth| (truth, truth));
        assert!(found.held >= PROMISED && found.given >= given, "{windows:?} from {fewest} at {noise}: {found:?}");
    }
}

#[test]
fn intervals_hold_the_median_of_independent_windows() {
    for share in [0.0, 1.0] {
        holds(Windows::Independent { share }, USUAL, 100, 0.95);
        holds(Windows::Independent { share }, 5, 100, 0.95);
    }
}

#[test]
fn intervals_hold_the_median_while_levels_drift_by_no_more_than_the_noise() {
    // Who measures long sees that it goes one way only, and some get no interval then.
    holds(Windows::Drifting, USUAL, 150, 0.75);
    holds(Windows::Drifting, 5, 150, 0.75);
}

#[test]
fn intervals_hold_the_median_of_windows_that_resemble_their_neighbours() {
    holds(Windows::Alike { phi: 0.25, share: 1.0 }, USUAL, 100, 0.9);
    holds(Windows::Alike { phi: 0.5, share: 1.0 }, USUAL, 150, 0.9);
    holds(Windows::Alike { phi: 0.5, share: 1.0 }, 5, 150, 0.9);
    holds(Windows::Alike { phi: 0.5, share: 0.3 }, USUAL, 100, 0.9);
}

#[test]
fn intervals_that_are_given_hold_the_median_of_windows_that_resemble_their_neighbours_much() {
    holds(Windows::Alike { phi: 0.8, share: 1.0 }, USUAL, 300, 0.5);
    holds(Windows::Alike { phi: 0.8, share: 1.0 }, 5, 300, 0.5);
}

/// Where there is no interval because windows resemble their neighbours: how often the place they wandered to holds the
/// median, among measurements of `length` windows.
fn wandering(phi: f64, length: usize) -> (f64, u32) {
    let (mut held, mut given) = (0, 0);
    for trial in 0..400 {
        let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(7 * trial + length as u64));
        let (mut samples, mut level) = (Vec::new(), random.normal());
        for _ in 0..length {
            samples.extend((0..SAMPLES).map(|_| CENTRE + 0.1 * level + 0.02 * random.normal()));
            level = phi * level + (1.0 - phi * phi).sqrt() * random.normal();
        }
        let sizes = vec![SAMPLES; length];
        if latency_stats(&samples, &sizes).unwrap().interval == Err(NoInterval::Alike) {
            let place = Place::wandering(&samples, &sizes).unwrap();
            given += 1;
            held += u32::from(place.low <= CENTRE && CENTRE <= place.high);
        }
    }
    (f64::from(held) / f64::from(given.max(1)), given)
}

#[test]
fn levels_that_wander_stay_within_reach_where_there_is_no_interval() {
    for (phi, length) in [(0.8, USUAL), (0.8, 20), (0.9, USUAL), (0.9, 20), (0.95, 20)] {
        let (held, given) = wandering(phi, length);
        assert!(held >= PROMISED && given >= 40, "{phi}, {length} windows: {held} of {given}");
    }
}

#[test]
fn intervals_hold_the_median_of_two_modes() {
    // Of 30 % in the second mode the median lies in the first, and a little above its own.
    let first = |_| (CENTRE, CENTRE + NARROW * CENTRE);
    for noise in NOISES {
        for windows in [Windows::Bimodal { second: 0.3 }, Windows::Switching { second: 0.3 }] {
            let found = coverage(windows, USUAL, noise, 100, first);
            assert!(found.held >= PROMISED && found.given >= 0.9, "{windows:?} at {noise}: {found:?}");
        }
    }
    // Of as many in either mode every value between them is a median.
    let between = |_| (CENTRE, CENTRE * 1.08);
    let found = coverage(Windows::Bimodal { second: 0.5 }, USUAL, 0.2, 100, between);
    assert!(found.held >= PROMISED, "{found:?}");
}

#[test]
fn quiet_measurements_take_no_longer_than_they_did() {
    for (noise, windows) in [(0.2, USUAL), (0.4, USUAL + 5)] {
        let found = coverage(Windows::Independent { share: 1.0 }, USUAL, noise, 40, |truth| (truth, truth));
        assert!(found.windows <= windows, "{noise}: {found:?}");
    }
}

/// Windows of a hundred samples around levels of their own, `share` of the noise within; what a statistic of them truly is
/// follows from their normal distribution.
fn normal_windows(windows: usize, share: f64, random: &mut Random) -> (Vec<f64>, Vec<usize>) {
    const IN_WINDOW: usize = 100;
    let mut samples = Vec::with_capacity(windows * IN_WINDOW);
    for _ in 0..windows {
        let level = CENTRE + share * random.normal();
        samples.extend((0..IN_WINDOW).map(|_| level + random.normal()));
    }
    (samples, vec![IN_WINDOW; windows])
}

#[test]
fn intervals_of_means_and_of_99th_percentiles_hold_them() {
    /// Of the standard normal distribution.
    const P99: f64 = 2.326_347_9;
    for (windows, share) in [(10, 0.0), (20, 0.5), (40, 0.2)] {
        let truth = CENTRE + P99 * f64::hypot(1.0, share);
        let (mut means, mut tails) = (Vec::new(), Vec::new());
        let trials = 300;
        for trial in 0..trials {
            let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(7000 + trial));
            let (samples, sizes) = normal_windows(windows, share, &mut random);
            means.extend(Place::of_mean(&samples, &sizes, 0.95));
            tails.extend(Place::of_quantile(&samples, &sizes, 0.99, 0.95));
        }
        let held = |places: &[Place], truth: f64| {
            let held = places.iter().filter(|place| place.low <= truth && truth <= place.high).count();
            assert!(places.len() as f64 >= 0.9 * trials as f64, "{} of {trials} are given", places.len());
            held as f64 / places.len() as f64
        };
        let (mean, tail) = (held(&means, CENTRE), held(&tails, truth));
        assert!(mean >= PROMISED && tail >= PROMISED, "{windows} windows at {share}: {mean} of means, {tail} of tails");
        let bounded = tails.iter().filter(|place| place.high.is_finite()).count();
        assert!(windows < 20 || bounded * 10 >= tails.len() * 9, "{bounded} bounds of {windows} windows at {share}");
    }
}

#[test]
fn few_samples_know_no_upper_bound_of_a_99th_percentile() {
    let samples: Vec<f64> = (0..300).map(|index| CENTRE + f64::from(index * 7 % 300) / 300.0).collect();
    let place = Place::of_quantile(&samples, &[30; 10], 0.99, 0.95).unwrap();
    assert!(place.high.is_infinite() && place.low > CENTRE, "{place:?}");
    assert_eq!(Place::of_quantile(&samples, &[60; 5], 0.99, 0.95), Err(NoInterval::OneWindow));
    assert_eq!(Place::of_mean(&samples, &[60; 5], 0.95), Err(NoInterval::OneWindow));
}
