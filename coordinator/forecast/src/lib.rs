//! How long a job will likely take, from how long others took.
//!
//! Durations of work are told apart by factors, not by differences: everything here is in logarithms. The first of these
//! that is known answers:
//!
//! | known | forecast |
//! |---|---|
//! | work of exactly this name: same model, device kind, spec | the median of the latest |
//! | other work of the model, and other models on the device kind | what the device kind usually takes, times what the model usually takes of that |
//! | other work on the device kind alone | what that usually takes |
//!
//! Every duration is held against its forecast before it is learnt from: so the error that is told is that of forecasts of
//! what was not known then. Memory is bounded: who was learnt from longest ago is forgotten.

use std::collections::{BTreeMap, VecDeque};

/// Latest durations of one name; a median of more changes too slowly when a toolchain or a driver does.
const LATEST_MAX: usize = 9;
/// Names, models and device kinds that are remembered, each.
const NAMES_MAX: usize = 20_000;
/// Latest forecasts that the error is told from.
const ERRORS_MAX: usize = 500;
/// With fewer nothing is told of the error.
const ERRORS_MIN: usize = 20;
/// So much does one duration weigh in what is usual.
const LEARNING_RATE: f64 = 0.1;
/// Of the latest forecasts so many were right within the error that is told.
const TOLD_SHARE: f64 = 0.8;
/// Shorter work counts as so long: what takes milliseconds is told apart by noise.
const SHORTEST_MS: u64 = 100;

/// What work is, as far as its duration goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Work {
    pub model: String,
    /// Device kind, with what is done there: a build takes longer than a measurement.
    pub place: String,
    /// Everything else that makes it what it is.
    pub spec: String,
}

/// How long work will likely take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    pub duration_ms: u64,
    /// Ended work that it rests on.
    pub samples: u32,
}

/// A mean that follows what comes, in logarithms.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    log: f64,
    /// Of the durations themselves: what many of them take together.
    mean_ms: f64,
    samples: u32,
}

impl Usual {
    fn learn(&mut self, log: f64) {
        self.samples = self.samples.saturating_add(1);
        // The first few weigh alike.
        let rate = LEARNING_RATE.max(1.0 / f64::from(self.samples));
        self.log += rate * (log - self.log);
        self.mean_ms += rate * (log.exp() - self.mean_ms);
    }
}

/// A map that forgets what was first put into it when it grows too large.
#[derive(Clone, Debug)]
struct Bounded<K, V> {
    known: BTreeMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: Ord + Clone, V: Default> Bounded<K, V> {
    fn get_mut(&mut self, key: &K) -> &mut V {
        if !self.known.contains_key(key) {
            if self.order.len() >= NAMES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
            self.order.push_back(key.clone());
        }
        self.known.entry(key.clone()).or_default()
    }
}

/// Learns from what ended, tells of what is to come.
#[derive(Clone, Debug, Default)]
pub struct Forecaster {
    exact: Bounded<Work, VecDeque<f64>>,
    places: Bounded<String, Usual>,
    /// What a model takes of what is usual at its places.
    models: Bounded<String, Usual>,
    /// Logarithms of how far forecasts were off.
    errors: VecDeque<f64>,
}

fn log(duration_ms: u64) -> f64 {
    (duration_ms.max(SHORTEST_MS) as f64).ln()
}

fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    values.get((share * last as f64).ceil() as usize).copied()
}

impl Forecaster {
    /// `None`: nothing like it is known.
    pub fn forecast(&self, work: &Work) -> Option<Forecast> {
        let told = |log: f64, samples: usize| Forecast {
            duration_ms: log.exp().round() as u64,
            samples: u32::try_from(samples).unwrap_or(u32::MAX),
        };
        if let Some(latest) = self.exact.known.get(work)
            && let Some(median) = quantile(latest.iter().copied().collect(), 0.5)
        {
            return Some(told(median, latest.len()));
        }
        let place = self.places.known.get(&work.place)?;
        let model = self.models.known.get(&work.model).copied().unwrap_or_default();
        Some(told(place.log + model.log, if model.samples > 0 { model.samples } else { place.samples } as usize))
    }

    /// What work at a place takes on average.
    pub fn mean_ms(&self, place: &str) -> Option<u64> {
        self.places.known.get(place).map(|usual| usual.mean_ms.round() as u64)
    }

    /// Learns that work took so long; returns by which factor its forecast was off, if there was one.
    pub fn learn(&mut self, work: &Work, duration_ms: u64) -> Option<f64> {
        let log = log(duration_ms);
        let off = self.forecast(work).map(|forecast| (log - self::log(forecast.duration_ms)).abs());
        if let Some(off) = off {
            self.errors.push_back(off);
            if self.errors.len() > ERRORS_MAX {
                self.errors.pop_front();
            }
        }
        let latest = self.exact.get_mut(work);
        latest.push_back(log);
        if latest.len() > LATEST_MAX {
            latest.pop_front();
        }
        let place = self.places.get_mut(&work.place);
        let beside = log - if place.samples > 0 { place.log } else { log };
        place.learn(log);
        self.models.get_mut(&work.model).learn(beside);
        off.map(f64::exp)
    }

    /// The factor within which four fifths of the latest forecasts were right; `None` while there were too few.
    pub fn error_factor(&self) -> Option<f64> {
        if self.errors.len() < ERRORS_MIN {
            return None;
        }
        quantile(self.errors.iter().copied().collect(), TOLD_SHARE).map(f64::exp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

    fn work(model: usize, place: usize, spec: usize) -> Work {
        Work { model: format!("m{model}"), place: format!("p{place}"), spec: format!("s{spec}") }
    }

    /// About normal, of deviation 1.
    fn noise(random: &mut StdRng) -> f64 {
        (0..12).map(|_| random.random_range(0.0..1.0)).sum::<f64>() - 6.0
    }

    /// A farm: models differ by a factor of hundreds, device kinds by tens, specs by two; one build differs from the next by
    /// a fifth.
    fn duration_ms(work: (usize, usize, usize), random: &mut StdRng) -> u64 {
        let (model, place, spec) = work;
        let model = 2_000.0 * 1.12_f64.powi(model as i32);
        let place = 1.5_f64.powi(place as i32 % 6);
        let spec = [1.0, 1.4, 2.0][spec % 3];
        (model * place * spec * (0.2 * noise(random)).exp()) as u64
    }

    #[test]
    fn four_fifths_of_the_jobs_that_were_held_out_are_forecast_within_a_factor_of_two() {
        let mut random = StdRng::seed_from_u64(7);
        let mut forecaster = Forecaster::default();
        let any =
            |random: &mut StdRng| (random.random_range(0..50), random.random_range(0..8), random.random_range(0..3));
        for _ in 0..2_000 {
            let (model, place, spec) = any(&mut random);
            forecaster.learn(&work(model, place, spec), duration_ms((model, place, spec), &mut random));
        }
        // Not learnt from: half of work that was seen like this, half that was never seen so.
        let mut off = Vec::new();
        let (mut seen, mut unseen) = (0, 0);
        while seen < 500 || unseen < 500 {
            let (model, place, spec) = any(&mut random);
            let spec = if unseen < seen { spec + 3 } else { spec };
            let asked = work(model, place, spec);
            let known = forecaster.exact.known.contains_key(&asked);
            seen += usize::from(known);
            unseen += usize::from(!known);
            let took = duration_ms((model, place, spec), &mut random) as f64;
            let told = forecaster.forecast(&asked).unwrap().duration_ms as f64;
            off.push((took / told).max(told / took));
        }
        let p80 = quantile(off, 0.8).unwrap();
        assert!(p80 <= 2.0, "p80 is a factor of {p80:.2}");
        // What it says of itself is about that, too.
        let said = forecaster.error_factor().unwrap();
        assert!((1.05..=2.0).contains(&said), "{said:.2}");
    }

    #[test]
    fn nothing_is_told_where_nothing_is_known() {
        let mut forecaster = Forecaster::default();
        assert_eq!((forecaster.forecast(&work(0, 0, 0)), forecaster.error_factor()), (None, None));
        assert_eq!(forecaster.learn(&work(0, 0, 0), 5_000), None);
        assert_eq!(forecaster.forecast(&work(1, 1, 0)), None, "another place says nothing");
        let other = forecaster.forecast(&work(1, 0, 0)).unwrap();
        assert!((4_990..=5_010).contains(&other.duration_ms), "{other:?}");
    }

    #[test]
    fn a_model_that_takes_ten_times_the_usual_does_so_elsewhere() {
        let mut forecaster = Forecaster::default();
        for _ in 0..20 {
            for place in 0..2 {
                forecaster.learn(&work(0, place, 0), 1_000 * (1 + 4 * place as u64));
            }
            forecaster.learn(&work(1, 0, 0), 10_000);
        }
        let told = forecaster.forecast(&work(1, 1, 0)).unwrap().duration_ms;
        assert!((10_000..200_000).contains(&told), "{told}");
    }

    #[test]
    fn what_changed_is_followed() {
        let mut forecaster = Forecaster::default();
        for _ in 0..50 {
            forecaster.learn(&work(0, 0, 0), 60_000);
        }
        for _ in 0..LATEST_MAX {
            forecaster.learn(&work(0, 0, 0), 6_000);
        }
        let told = forecaster.forecast(&work(0, 0, 0)).unwrap();
        assert!((5_990..=6_010).contains(&told.duration_ms), "{told:?}");
    }

    #[test]
    fn memory_is_bounded() {
        let mut forecaster = Forecaster::default();
        for number in 0..NAMES_MAX + 10 {
            forecaster.learn(&work(number, 0, 0), 1_000);
        }
        assert_eq!((forecaster.exact.known.len(), forecaster.models.known.len()), (NAMES_MAX, NAMES_MAX));
        assert!(!forecaster.exact.known.contains_key(&work(0, 0, 0)));
        assert!(forecaster.errors.len() <= ERRORS_MAX);
    }
}
