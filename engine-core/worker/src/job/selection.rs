//! Several builds of one engine, of which the fastest right one is kept.
//!
//! Builders that time their tactics do not make the same plan twice. An order for N builds compiles, verifies and
//! measures N times under one lease. Only the plan that is kept is told to the agent and uploaded.
//!
//! The fastest of several medians is fast by luck as well, the more so the more there are: a median that was chosen for
//! being low says too little. So the kept plan is measured once more after the choice, and that is what its report is
//! about; the medians by which it was chosen stand beside.
//!
//! # Caches
//!
//! A cache of timings answers what a second build would have timed again, so builds from the same full cache are the
//! same build. The first build therefore starts from the cache that the order brings, every further one from nothing.
//! Afterwards the order's file holds the kept build's cache when there was nothing at the start, else the first
//! build's: that one only adds to what the farm has, while the others know this model alone.
//!
//! # Stability
//!
//! *Spread* is the slowest median over the fastest, less one, among builds with right outputs. A model is
//! *build-unstable* when the ratio of the two would be a verdict of [`compare`](planforge_report::compare): its interval
//! leaves 1 out, and it is above 2 %, or above 10 % where windows of one of the two were disturbed. The interval is as wide
//! as the slowest and the fastest of all pairs take. A build whose every window was disturbed says nothing of this, nor
//! does a median without an interval.

use super::{
    document,
    outlet::log,
    run::{Built, Job, Loaded, Measured, Phases, file_error},
};
use crate::{measure::Measurement, verify::Verdict};
use planforge_device::telemetry::Telemetry;
use planforge_report::{
    BuildSelection, BuildTrial,
    compare::{DISTURBED_MARGIN, SAME_MARGIN},
};
use planforge_stats::{CI_CONFIDENCE, Place, ratio_interval};
use planforge_types::{BackendError, NamedTensors};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// One build that was measured.
struct Trial {
    built: Built,
    verdict: Verdict,
    inputs: NamedTensors,
    measurement: Measurement,
    cache: Option<PathBuf>,
}

/// The build that is kept, loaded again, and how it was chosen.
pub(super) struct Chosen {
    pub built: Built,
    pub loaded: Loaded,
    pub selection: BuildSelection,
}

/// Builds, verifies and measures as often as the order says and returns the build that is kept.
pub(super) fn run(job: &Job<'_>, telemetry: &mut dyn Telemetry, phases: &mut Phases) -> Result<Chosen, BackendError> {
    let order = job.order;
    let was_cold = order.cache.as_deref().is_none_or(|cache| !holds_something(cache));
    let mut trials: Vec<Trial> = Vec::new();
    let mut failed = Vec::new();
    let mut last_error = None;
    for index in 0..order.builds {
        let name = format!("build {} of {}", index + 1, order.builds);
        job.may_go_on(&name)?;
        log(&name);
        match trial(job, index, telemetry, phases) {
            Ok(trial) => trials.push(trial),
            Err(error) if job.cancel.is_cancelled() => return Err(error),
            Err(error) => {
                job.loss.check()?;
                log(&format!("{name} failed: {error}"));
                failed.push(format!("{name}: {error}"));
                last_error = Some(error);
                // What fails the first time by its own fault fails every time.
                if trials.is_empty() {
                    break;
                }
            }
        }
    }
    let outcomes: Vec<Outcome> = trials.iter().map(|trial| Outcome::of(trial, trials.len())).collect();
    let Some(kept) = choose(&outcomes) else {
        return Err(last_error.unwrap_or_else(|| BackendError::infrastructure("the order asks for no build")));
    };
    if !trials[kept].verdict.accurate && !order.allow_inaccurate {
        return Err(trials[kept].verdict.refusal());
    }
    keep_cache(order.cache.as_deref(), &trials[if was_cold { kept } else { 0 }])?;
    let (spread, unstable) = spread(&outcomes);
    let builds = trials.iter().enumerate().map(|(index, trial)| trial.told(index == kept)).collect();
    let disturbed = outcomes.iter().filter(|outcome| outcome.disturbed == Disturbed::Wholly).count();
    let selection = BuildSelection { builds, spread, unstable, disturbed, remeasured: true, failed };
    let Trial { built, verdict, inputs, .. } = trials.swap_remove(kept);
    for trial in trials {
        // Plans are large; a file that stays goes with the scratch folder.
        let _ = fs::remove_file(&trial.built.path);
    }
    // The engine was let go so that the builds after it had the device to themselves.
    let mut meter = job.load(&built.path, 0)?;
    meter.bind(&inputs)?;
    Ok(Chosen { built, loaded: Loaded { meter, inputs, verdict }, selection })
}

fn trial(job: &Job<'_>, index: u32, telemetry: &mut dyn Telemetry, phases: &mut Phases) -> Result<Trial, BackendError> {
    let folder = job.order.scratch.join(format!("build-{index}"));
    fs::create_dir_all(&folder).map_err(|error| file_error("create", &folder, &error))?;
    let cache = match &job.order.cache {
        Some(start) => Some(own_cache(start, &folder, index == 0)?),
        None => None,
    };
    let built = job.phase("compile", phases, || job.compile(&folder, cache.as_deref()))?;
    let loaded = job.phase("verify", phases, || job.verify(&built))?;
    let measured = job.measured(built, loaded, telemetry, phases)?;
    let Measured { built, loaded, measurement, .. } = measured;
    let Loaded { mut meter, inputs, mut verdict } = loaded;
    document::add_once(&mut verdict.findings, meter.aside().findings);
    Ok(Trial { built, verdict, inputs, measurement, cache })
}

/// This build's own cache file: a copy of `start` for the first build, a name that does not exist yet for the others.
fn own_cache(start: &Path, folder: &Path, copies: bool) -> Result<PathBuf, BackendError> {
    let own = folder.join("cache");
    if copies && holds_something(start) {
        fs::copy(start, &own).map_err(|error| file_error("copy the cache to", &own, &error))?;
    }
    Ok(own)
}

fn holds_something(cache: &Path) -> bool {
    fs::metadata(cache).is_ok_and(|facts| facts.len() > 0)
}

/// Puts the cache of `trial` where the order's was; a build that wrote none leaves it as it is.
fn keep_cache(order: Option<&Path>, trial: &Trial) -> Result<(), BackendError> {
    let (Some(order), Some(own)) = (order, &trial.cache) else { return Ok(()) };
    let copied: io::Result<()> = if holds_something(own) { fs::copy(own, order).map(drop) } else { Ok(()) };
    copied.map_err(|error| file_error("update the cache", order, &error))
}

impl Trial {
    fn told(&self, kept: bool) -> BuildTrial {
        let stats = &self.measurement.stats;
        BuildTrial {
            plan_digest: self.built.plan.digest,
            bytes: self.built.plan.bytes,
            build_ms: self.built.build_ms.unwrap_or(0.0),
            median_ms: stats.median,
            ci_low_ms: stats.interval.ok().map(|interval| interval.low),
            ci_high_ms: stats.interval.ok().map(|interval| interval.high),
            accurate: self.verdict.accurate,
            kept,
            cache: self.built.cache.clone(),
        }
    }
}

/// What decides between builds.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    median: f64,
    /// Where the median lies, with the confidence that the slowest and the fastest of all builds take; none where the
    /// samples do not tell.
    place: Option<Place>,
    accurate: bool,
    disturbed: Disturbed,
}

/// How many of a measurement's windows something disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbed {
    No,
    Partly,
    Wholly,
}

impl Outcome {
    fn of(trial: &Trial, builds: usize) -> Self {
        let Measurement { stats, samples, windows, .. } = &trial.measurement;
        let counted = || windows.iter().filter(|window| window.tainted.is_empty() || window.kept_tainted);
        let sizes: Vec<usize> = counted().map(|window| window.iterations as usize).collect();
        let pairs = (builds * builds.saturating_sub(1) / 2).max(1);
        let place = Place::of(samples, &sizes, 1.0 - (1.0 - CI_CONFIDENCE) / pairs as f64).ok();
        let disturbed = match counted().filter(|window| window.kept_tainted).count() {
            0 => Disturbed::No,
            count if count < sizes.len() => Disturbed::Partly,
            _ => Disturbed::Wholly,
        };
        Self { median: stats.median, place, accurate: trial.verdict.accurate, disturbed }
    }
}

/// The fastest build with right outputs; when none has, the fastest of all. The earlier of equals.
fn choose(outcomes: &[Outcome]) -> Option<usize> {
    let order = |a: &(usize, &Outcome), b: &(usize, &Outcome)| {
        b.1.accurate.cmp(&a.1.accurate).then(a.1.median.total_cmp(&b.1.median)).then(a.0.cmp(&b.0))
    };
    outcomes.iter().enumerate().min_by(order).map(|(index, _)| index)
}

/// Spread, and whether it is the builds that differ; see the module's words. Builds with wrong outputs are left out
/// where others are right, wholly disturbed ones where two others are not.
fn spread(outcomes: &[Outcome]) -> (f64, bool) {
    let any_accurate = outcomes.iter().any(|outcome| outcome.accurate);
    let mut judged: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.accurate == any_accurate).collect();
    let tells = |outcome: &Outcome| outcome.disturbed != Disturbed::Wholly;
    let enough_tell = judged.iter().filter(|outcome| tells(outcome)).count() > 1;
    judged.retain(|outcome| !enough_tell || tells(outcome));
    judged.sort_by(|a, b| a.median.total_cmp(&b.median));
    let [fastest, .., slowest] = judged[..] else { return (0.0, false) };
    let spread = slowest.median / fastest.median.max(f64::MIN_POSITIVE) - 1.0;
    let quiet = [fastest, slowest].iter().all(|outcome| outcome.disturbed == Disturbed::No);
    let margin = if quiet { SAME_MARGIN } else { DISTURBED_MARGIN };
    let interval = fastest.place.zip(slowest.place).and_then(|(fastest, slowest)| ratio_interval(&fastest, &slowest));
    let differ = interval.is_some_and(|interval| interval.log_low > 0.0 && interval.log_ratio >= margin.ln_1p());
    (spread, enough_tell && differ)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(median: f64, half_width: f64, accurate: bool) -> Outcome {
        let place = Some(Place { median, low: median - half_width, high: median + half_width });
        Outcome { median, place, accurate, disturbed: Disturbed::No }
    }

    #[test]
    fn the_fastest_right_build_is_kept() {
        let outcomes = [outcome(3.0, 0.1, true), outcome(1.0, 0.1, false), outcome(2.0, 0.1, true)];
        assert_eq!(choose(&outcomes), Some(2));
        assert_eq!(choose(&[outcome(3.0, 0.1, false), outcome(2.0, 0.1, false)]), Some(1));
        assert_eq!(choose(&[outcome(2.0, 0.1, true), outcome(2.0, 0.1, true)]), Some(0));
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn unstable_are_builds_that_differ_by_more_than_their_measurements_could() {
        let judge = |outcomes: &[Outcome]| spread(outcomes).1;
        assert!(judge(&[outcome(1.0, 0.01, true), outcome(1.10, 0.01, true)]));
        assert!(!judge(&[outcome(1.0, 0.08, true), outcome(1.10, 0.08, true)]), "the intervals meet");
        assert!(!judge(&[outcome(1.0, 0.001, true), outcome(1.01, 0.001, true)]), "nobody would act on it");
        assert!(!judge(&[outcome(1.0, 0.01, true), outcome(2.0, 0.01, false)]), "wrong outputs do not count");
        assert!(judge(&[outcome(1.0, 0.01, false), outcome(2.0, 0.01, false)]), "unless all are wrong");
        assert!(!judge(&[outcome(1.0, 0.0, true)]) && !judge(&[]));
        let one_window = Outcome { place: None, ..outcome(2.0, 0.0, true) };
        assert!(!judge(&[outcome(1.0, 0.01, true), one_window]), "one window says nothing of its own spread");
        assert!((spread(&[outcome(1.0, 0.01, true), outcome(1.5, 0.01, true)]).0 - 0.5).abs() < 1e-12);
    }

    #[test]
    fn what_disturbed_the_device_is_not_told_of_the_builds() {
        let outcome = |median: f64, disturbed| Outcome { disturbed, ..outcome(median, 0.01, true) };
        use Disturbed::{No, Partly, Wholly};
        assert!(!spread(&[outcome(1.0, Wholly), outcome(1.58, Wholly)]).1, "nothing was measured undisturbed");
        assert!(!spread(&[outcome(1.0, No), outcome(1.58, Wholly)]).1, "one alone tells no difference");
        let (quiet, unstable) = spread(&[outcome(1.0, No), outcome(1.01, No), outcome(1.58, Wholly)]);
        assert!((quiet - 0.01).abs() < 1e-12 && !unstable, "{quiet}");
        assert!(spread(&[outcome(1.0, No), outcome(1.2, Partly), outcome(9.0, Wholly)]).1);
        assert!(!spread(&[outcome(1.0, No), outcome(1.05, Partly)]).1, "partly disturbed: 10 % count");
        assert!(spread(&[outcome(1.0, No), outcome(1.05, No)]).1);
    }
}
