//! Deciding about more builds than are looked at at once: they are weighed piece by piece, those first that were used longest
//! ago, and twice where room has to be made: what goes for other reasons makes room, too.

use crate::{Build, Policy, Why, decide};
use std::collections::{BTreeMap, BTreeSet};

/// What goes, and how much is still beyond what the policy has room for.
#[derive(Clone, Debug)]
pub struct Weighed<N> {
    /// Of all builds together.
    excess_bytes: u64,
    /// Of those that only one project may see.
    excess_of_projects: BTreeMap<String, u64>,
    gone: BTreeSet<N>,
}

impl<N: Clone + Ord> Weighed<N> {
    /// Of a farm whose engines take `bytes`, and those that only one project may see so many as `of_projects` says.
    pub fn new(policy: &Policy, bytes: u64, of_projects: &BTreeMap<String, u64>) -> Self {
        let beyond = |(project, quota_bytes): (&String, &u64)| {
            let taken = of_projects.get(project).copied().unwrap_or_default();
            (project.clone(), taken.saturating_sub(*quota_bytes))
        };
        Self {
            excess_bytes: policy.room_bytes.map_or(0, |room_bytes| bytes.saturating_sub(room_bytes)),
            excess_of_projects: policy.quotas_bytes.iter().map(beyond).collect(),
            gone: BTreeSet::new(),
        }
    }

    /// The builds of the next piece that go by their age or a quota, and why.
    pub fn by_age_and_quota(&mut self, policy: &Policy, piece: &[Build<N>], now_ms: u64) -> Vec<(Build<N>, Why)> {
        // Of this piece so much may stay that the excess is gone with it.
        let quota = |(project, excess): (&String, &u64)| {
            let own = piece.iter().filter(|build| build.project.as_ref() == Some(project));
            (project.clone(), own.map(|build| build.bytes).sum::<u64>().saturating_sub(*excess))
        };
        let quotas_bytes = self.excess_of_projects.iter().map(quota).collect();
        self.take(&Policy { room_bytes: None, quotas_bytes, ..policy.clone() }, piece, now_ms)
    }

    /// Whether there is too little room when all pieces were weighed by age and quota.
    pub fn is_room_needed(&self) -> bool {
        self.excess_bytes > 0
    }

    /// The builds of the next piece that go to make room.
    pub fn for_room(&mut self, policy: &Policy, piece: &[Build<N>], now_ms: u64) -> Vec<(Build<N>, Why)> {
        let left: Vec<Build<N>> = piece.iter().filter(|build| !self.gone.contains(&build.name)).cloned().collect();
        let bytes: u64 = left.iter().map(|build| build.bytes).sum();
        let room_bytes = policy.room_bytes.map(|_| bytes.saturating_sub(self.excess_bytes));
        let (superseded_ms, unused_ms, quotas_bytes) = (None, None, BTreeMap::new());
        self.take(&Policy { superseded_ms, unused_ms, room_bytes, quotas_bytes, ..policy.clone() }, &left, now_ms)
    }

    fn take(&mut self, policy: &Policy, piece: &[Build<N>], now_ms: u64) -> Vec<(Build<N>, Why)> {
        let gone: BTreeMap<N, Why> = decide(policy, piece, now_ms).into_iter().collect();
        let mut told = Vec::with_capacity(gone.len());
        for build in piece {
            let Some(why) = gone.get(&build.name) else { continue };
            self.excess_bytes = self.excess_bytes.saturating_sub(build.bytes);
            if let Some(excess) = build.project.as_ref().and_then(|project| self.excess_of_projects.get_mut(project)) {
                *excess = excess.saturating_sub(build.bytes);
            }
            self.gone.insert(build.name.clone());
            told.push((build.clone(), *why));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    const NOW_MS: u64 = 1_000 * DAY_MS;

    /// Twelve of red's, which together are 120, and as many of blue's between them; the oldest first.
    fn builds() -> Vec<Build<usize>> {
        let build = |number: usize| Build {
            name: number,
            bytes: 10,
            built_ms: NOW_MS - (95 - number as u64) * DAY_MS,
            used_ms: 0,
            superseded_ms: (number % 7 == 6).then_some(NOW_MS - 30 * DAY_MS),
            project: Some(["red", "blue"][number % 2].to_owned()),
            is_pinned: number == 8,
        };
        (0..24).map(build).collect()
    }

    fn gone(policy: &Policy, builds: &[Build<usize>], at_once: usize) -> Vec<(usize, Why)> {
        let mut of_projects: BTreeMap<String, u64> = BTreeMap::new();
        for build in builds {
            *of_projects.entry(build.project.clone().unwrap_or_default()).or_default() += build.bytes;
        }
        let bytes = builds.iter().map(|build| build.bytes).sum();
        let mut weighed = Weighed::new(policy, bytes, &of_projects);
        let mut gone = Vec::new();
        for piece in builds.chunks(at_once) {
            gone.extend(weighed.by_age_and_quota(policy, piece, NOW_MS));
        }
        for piece in builds.chunks(at_once).filter(|_| policy.room_bytes.is_some()) {
            if weighed.is_room_needed() {
                gone.extend(weighed.for_room(policy, piece, NOW_MS));
            }
        }
        let mut gone: Vec<(usize, Why)> = gone.into_iter().map(|(build, why)| (build.name, why)).collect();
        gone.sort_unstable();
        gone
    }

    #[test]
    fn room_is_made_alike_however_small_the_pieces() {
        let builds = builds();
        for room_bytes in [0, 50, 100, 140, 1_000] {
            let policy = Policy { room_bytes: Some(room_bytes), ..Policy::default() };
            let mut whole = decide(&policy, &builds, NOW_MS);
            whole.sort_unstable();
            for at_once in [1, 2, 5, 24] {
                assert_eq!(gone(&policy, &builds, at_once), whole, "{at_once} at once: {policy:?}");
            }
        }
    }

    #[test]
    fn a_project_over_its_quota_across_pieces_loses_what_it_must() {
        let quota = |project: &str, bytes| (project.to_owned(), bytes);
        // Neither by age nor superseded, so that the quota alone decides.
        let builds: Vec<Build<usize>> = builds()
            .into_iter()
            .map(|build| Build { superseded_ms: None, built_ms: build.built_ms + 10 * DAY_MS, ..build })
            .collect();
        for (room_bytes, quotas_bytes) in [
            (None, BTreeMap::from([quota("red", 70)])),
            (None, BTreeMap::from([quota("red", 70), quota("blue", 0)])),
            (Some(150), BTreeMap::from([quota("blue", 30)])),
            (Some(1_000), BTreeMap::from([quota("green", 1)])),
        ] {
            let policy = Policy { room_bytes, quotas_bytes, ..Policy::default() };
            let mut whole = decide(&policy, &builds, NOW_MS);
            whole.sort_unstable();
            // Of one piece of five no project has as much as its quota.
            for at_once in [1, 2, 5, 24] {
                assert_eq!(gone(&policy, &builds, at_once), whole, "{at_once} at once: {policy:?}");
            }
        }
        let policy = Policy { room_bytes: None, quotas_bytes: BTreeMap::from([quota("red", 70)]), ..Policy::default() };
        let names: Vec<usize> = gone(&policy, &builds, 3).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [0, 2, 4, 6, 10], "the one that is pinned stays, and the next goes for it");
    }
}
