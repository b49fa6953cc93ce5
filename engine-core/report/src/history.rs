//! Builds of one engine over time, and since which of them its level is another.
//!
//! What stays comparable from build to build is the model's name, the device kind and the spec. Its weights, toolchain,
//! driver and compiler change, and which of them changed where the level did is told. Builds whose windows were all
//! disturbed are listed and not judged.

use crate::format::milliseconds;
use planforge_stats::{
    change::{Change, LEAST, changes},
    median,
};
use serde::Serialize;

/// Digits of a digest that tell it from others.
const SHORT_DIGEST: usize = 12;

/// Deviations from a level, in medians of them, that are still noise: three standard deviations where they are normal.
const NOISE: f64 = 3.0 * 1.4826;

/// One engine of a history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Build {
    pub job: String,
    pub created_ms: u64,
    pub median_ms: f64,
    /// Every window was disturbed: not judged.
    pub disturbed: bool,
    pub plan_digest: String,
    pub model_digest: String,
    pub toolchain: String,
}

/// A change of the level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Job of the first build of the new level.
    pub job: String,
    /// Job of the build with which it could be told.
    pub told: String,
    pub before_ms: f64,
    pub after_ms: f64,
    /// What else changed between the build before and the first of the new level.
    pub with: Vec<String>,
}

/// The changes of builds that are in order, the oldest first.
pub fn steps(builds: &[Build]) -> Vec<Step> {
    let judged = judged(builds);
    changes(&medians(&judged)).iter().map(|change| Step::of(change, &judged)).collect()
}

/// Between which times builds as they are now differ by noise alone; `None` where too few tell.
pub fn noise(builds: &[Build]) -> Option<(f64, f64)> {
    let values = medians(&judged(builds));
    let level = &values[changes(&values).last().map_or(0, |change| change.first)..];
    if level.len() < 3 {
        return None;
    }
    let middle = median(level);
    let deviations: Vec<f64> = level.iter().map(|value| (value - middle).abs()).collect();
    let noise = (NOISE * median(&deviations)).max(LEAST * middle);
    Some((middle - noise, middle + noise))
}

fn judged(builds: &[Build]) -> Vec<&Build> {
    builds.iter().filter(|build| !build.disturbed).collect()
}

fn medians(builds: &[&Build]) -> Vec<f64> {
    builds.iter().map(|build| build.median_ms).collect()
}

impl Step {
    fn of(change: &Change, judged: &[&Build]) -> Self {
        let (before, first) = (judged[change.first - 1], judged[change.first]);
        let differ = |what: &str, old: &str, new: &str| (old != new).then(|| format!("{what} {old} to {new}"));
        let short = |digest: &str| digest.get(..SHORT_DIGEST).unwrap_or(digest).to_owned();
        let with = [
            differ("weights", &short(&before.model_digest), &short(&first.model_digest)),
            differ("toolchain", &before.toolchain, &first.toolchain),
        ];
        Self {
            job: first.job.clone(),
            told: judged[change.told].job.clone(),
            before_ms: change.before,
            after_ms: change.after,
            with: with.into_iter().flatten().collect(),
        }
    }

    /// `9.9 % slower`.
    pub fn how(&self) -> String {
        let ratio = self.after_ms / self.before_ms;
        let (how, percent) = if ratio > 1.0 { ("slower", ratio - 1.0) } else { ("faster", 1.0 / ratio - 1.0) };
        format!("{:.1} % {how}", percent * 100.0)
    }

    /// As people read it.
    pub fn words(&self) -> String {
        let with = if self.with.is_empty() { "nothing else known".to_owned() } else { self.with.join(", ") };
        let (before, after) = (milliseconds(self.before_ms), milliseconds(self.after_ms));
        format!("{} since {}: {before} to {after}; changed with it: {with}", self.how(), self.job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(index: usize, median_ms: f64) -> Build {
        Build {
            job: format!("job-{index}"),
            created_ms: index as u64,
            median_ms,
            disturbed: false,
            plan_digest: String::new(),
            model_digest: if index < 30 { "aa".into() } else { "bb".into() },
            toolchain: "native 6".into(),
        }
    }

    #[test]
    fn the_noise_is_that_of_the_level_now_and_what_was_disturbed_counts_for_nothing() {
        let level = |index: usize| if index < 30 { 2.0 } else { 1.0 } + 0.01 * (index % 5) as f64;
        let mut builds: Vec<Build> = (0..60).map(|index| build(index, level(index))).collect();
        builds[40].disturbed = true;
        builds[40].median_ms = 9.0;
        let found = steps(&builds);
        assert_eq!((found.len(), found[0].job.as_str(), &*found[0].how()), (1, "job-30", "98.0 % faster"));
        assert_eq!(found[0].with, ["weights aa to bb"]);
        let (low, high) = noise(&builds).unwrap();
        assert!((0.95..1.0).contains(&low) && (1.04..1.1).contains(&high), "{low} {high}");
        assert_eq!(noise(&builds[..2]), None);
        // What hardly scatters differs by noise up to the least change that is told.
        let still: Vec<Build> = (0..4).map(|index| build(index, 1.0)).collect();
        assert_eq!(noise(&still), Some((0.98, 1.02)));
    }
}
