//! The highest rate that keeps an objective.
//!
//! What the instances do as fast as they can bounds it from above. Between rates that keep the objective and rates that
//! break it the middle is tried until the two are close; then the highest that kept it has to keep it once more, for
//! longer. A tail is noisy: one lucky short run is no answer.

use super::{arrivals::Arrivals, rig::Rig};
use planforge_report::load::{LoadPoint, Objective, ObjectiveFound};
use planforge_types::{BackendError, FailureClass};
use std::time::Duration;

/// Rates this close are the same.
const CLOSE: f64 = 0.03;

/// Most rates that are tried before one is confirmed.
const TRIES_MAX: usize = 12;

/// How much longer the run is that confirms a rate, and how often a lower one is tried where it does not.
const LONGER: u32 = 3;
const CONFIRMATIONS_MAX: usize = 5;

/// Runs one rate, or none for as fast as it goes.
///
/// # Errors
///
/// When an instance fails, or nothing was served.
pub fn point(rig: &Rig<'_>, rate_per_s: Option<f64>, length: Duration, seed: u64) -> Result<LoadPoint, BackendError> {
    let arrivals = match rate_per_s {
        Some(rate_per_s) => Arrivals::poisson(rate_per_s, length, seed),
        None => Arrivals::closed(length),
    };
    let (served, unserved) = rig.serve(arrivals)?;
    let duration_ms = length.as_secs_f64() * 1e3;
    LoadPoint::of(&served, unserved, rate_per_s, duration_ms, rig.instances()).ok_or_else(|| {
        BackendError::new(FailureClass::Unstable, format!("no request arrived within {duration_ms:.0} ms"))
            .with_hint("ask for a higher rate or a longer run")
    })
}

/// Looks for the highest rate; every run it took goes to `points`.
///
/// # Errors
///
/// When a run fails.
pub fn search(
    objective: Objective,
    length: Duration,
    points: &mut Vec<LoadPoint>,
    mut run: impl FnMut(Option<f64>, Duration) -> Result<LoadPoint, BackendError>,
) -> Result<ObjectiveFound, BackendError> {
    let full = run(None, length)?;
    let capacity_per_s = full.served_per_s;
    points.push(full);
    let (mut kept, mut broken) = (None, None);
    // Of slower ones a run is too short to tell.
    let slowest = objective.figure.least_requests() as f64 * 1.5 / length.as_secs_f64();
    for _ in 0..TRIES_MAX {
        let rate = match (kept, broken) {
            (Some(kept), Some(broken)) if broken <= kept * (1.0 + CLOSE) => break,
            (Some(kept), Some(broken)) => f64::midpoint(kept, broken),
            (Some(kept), None) if capacity_per_s <= kept * (1.0 + CLOSE) => break,
            (Some(kept), None) => f64::midpoint(kept, capacity_per_s),
            (None, Some(broken)) if broken / 2.0 < slowest => break,
            (None, Some(broken)) => broken / 2.0,
            (None, None) => capacity_per_s / 2.0,
        };
        let tried = run(Some(rate), length)?;
        match objective.holds(&tried) {
            true => kept = Some(rate),
            false => broken = Some(rate),
        }
        points.push(tried);
    }
    let mut found =
        ObjectiveFound { objective, capacity_per_s, rate_per_s: None, point: None, broken_at_per_s: broken };
    let Some(mut rate) = kept else { return Ok(found) };
    for _ in 0..CONFIRMATIONS_MAX {
        let tried = run(Some(rate), length * LONGER)?;
        let holds = objective.holds(&tried);
        points.push(tried);
        if holds {
            found.rate_per_s = Some(rate);
            found.point = Some(points.len() - 1);
            break;
        }
        found.broken_at_per_s = Some(rate);
        rate /= 1.0 + 2.0 * CLOSE;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::rig::{tests::timed, with_rig};
    use planforge_backend::Cancel;
    use planforge_report::load::{Bounded, Served};

    /// An engine whose latency is 1 ms over its share of idle time, up to `capacity` requests a second.
    fn made(capacity: f64, rate: Option<f64>) -> LoadPoint {
        let load = rate.map_or(0.99, |rate| rate / capacity);
        let latency = if load < 1.0 { 1.0 / (1.0 - load) } else { 1e4 };
        let served: Vec<Served> = (0..500)
            .map(f64::from)
            .map(|at| Served { scheduled_ms: at, began_ms: at, ended_ms: at + latency })
            .collect();
        let mut point = LoadPoint::of(&served, 0, rate, 1e6, 1).unwrap();
        point.served_per_s = rate.unwrap_or(capacity);
        point
    }

    fn look(most_ms: f64) -> (ObjectiveFound, usize) {
        let objective = Objective { figure: Bounded::P99, most_ms };
        let mut points = Vec::new();
        let run = |rate, _| Ok(made(1000.0, rate));
        let found = search(objective, Duration::from_secs(100), &mut points, run).unwrap();
        (found, points.len())
    }

    #[test]
    fn the_rate_lies_just_below_where_the_objective_breaks() {
        let (found, runs) = look(5.0);
        // 1 / (1 - load) is 5 at a load of 0.8.
        let rate = found.rate_per_s.unwrap();
        assert!((776.0..=800.0).contains(&rate) && runs <= 14, "{found:?} in {runs} runs");
        assert!(found.broken_at_per_s.unwrap() > rate && found.capacity_per_s == 1000.0);
        assert_eq!(found.point, Some(runs - 1));
        // Where nothing breaks it, the capacity does.
        assert!(look(1e9).0.rate_per_s.unwrap() > 960.0);
    }

    #[test]
    fn an_objective_that_no_rate_keeps_has_no_answer() {
        let (found, _) = look(0.5);
        assert_eq!((found.rate_per_s, found.point), (None, None));
        assert!(found.broken_at_per_s.unwrap() < 20.0, "as slow as a run of that length can tell: {found:?}");
    }

    #[test]
    fn a_rate_that_does_not_hold_for_longer_is_lowered() {
        let length = Duration::from_secs(1);
        let objective = Objective { figure: Bounded::P99, most_ms: 5.0 };
        // Long runs meet what short ones do not.
        let run = |rate: Option<f64>, run: Duration| Ok(made(if run > length { 900.0 } else { 1000.0 }, rate));
        let found = search(objective, length, &mut Vec::new(), run).unwrap();
        let rate = found.rate_per_s.unwrap();
        assert!((650.0..=720.0).contains(&rate) && found.broken_at_per_s.unwrap() > rate, "{found:?}");
    }

    #[test]
    fn a_point_is_measured_of_instances() {
        let cancel = Cancel::default();
        let length = Duration::from_millis(200);
        let (open, closed) =
            with_rig(2, &timed, &cancel, |rig| Ok((point(rig, Some(100.0), length, 1)?, point(rig, None, length, 1)?)))
                .unwrap();
        assert_eq!((open.rate_per_s, closed.rate_per_s), (Some(100.0), None));
        assert!(open.service_ms.median >= 2.0 && closed.requests > 0 && !closed.fell_behind, "{open:?} {closed:?}");
        let nothing = with_rig(1, &timed, &cancel, |rig| point(rig, Some(1e-6), length, 1)).unwrap_err();
        assert!(nothing.message.contains("no request arrived"), "{}", nothing.message);
    }
}
