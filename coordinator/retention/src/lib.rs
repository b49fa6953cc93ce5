//! What a farm keeps, and what goes: decided here, without a store, a disk or a clock.
//!
//! | what | goes |
//! |---|---|
//! | an ended job, with its events and logs | `jobs_ms` after its end |
//! | events, logs, measurements that newer ones took the place of, files that were sent and never named | by ages of their own |
//! | a build that a newer one of its key took the place of | `superseded_ms` after that |
//! | an engine | when nobody asked for it for `unused_ms` |
//! | the engines that were used longest ago | while all together take more than `room_bytes`, or those of a project more than its quota |
//!
//! Nothing goes within `grace_ms` of its last use, and nothing that is pinned, whatever its age or size.

mod pieces;

pub use pieces::Weighed;
use std::collections::BTreeMap;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// How long things are kept; `None`: for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub jobs_ms: Option<u64>,
    pub events_ms: Option<u64>,
    pub logs_ms: Option<u64>,
    /// Measurements of which there is a newer one.
    pub reports_ms: Option<u64>,
    /// Files that were sent and never named by a job.
    pub uploads_ms: Option<u64>,
    pub superseded_ms: Option<u64>,
    pub unused_ms: Option<u64>,
    /// Bytes that all engines together may take.
    pub room_bytes: Option<u64>,
    /// Bytes that the engines which only that project may see may take.
    pub quotas_bytes: BTreeMap<String, u64>,
    pub grace_ms: u64,
}

impl Default for Policy {
    /// A quarter of a year, and no more than a laptop has to spare.
    fn default() -> Self {
        Self {
            jobs_ms: Some(90 * DAY_MS),
            events_ms: Some(30 * DAY_MS),
            logs_ms: Some(30 * DAY_MS),
            reports_ms: Some(90 * DAY_MS),
            uploads_ms: Some(7 * DAY_MS),
            superseded_ms: Some(7 * DAY_MS),
            unused_ms: Some(90 * DAY_MS),
            room_bytes: Some(20 << 30),
            quotas_bytes: BTreeMap::new(),
            grace_ms: DAY_MS,
        }
    }
}

/// One build of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build<N> {
    /// What the caller knows it by.
    pub name: N,
    pub bytes: u64,
    pub built_ms: u64,
    /// When anybody last fetched it, was answered with it or measured it; 0: never.
    pub used_ms: u64,
    /// When a newer build of its key was stored; `None`: it is the newest.
    pub superseded_ms: Option<u64>,
    /// The only project that may see it; `None`: several may.
    pub project: Option<String>,
    pub is_pinned: bool,
}

impl<N> Build<N> {
    fn last_ms(&self) -> u64 {
        self.built_ms.max(self.used_ms)
    }
}

/// Why a build goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    Superseded,
    Unused,
    Quota,
    Room,
}

impl Why {
    pub fn name(self) -> &'static str {
        match self {
            Self::Superseded => "superseded",
            Self::Unused => "unused",
            Self::Quota => "quota",
            Self::Room => "room",
        }
    }
}

/// Up to which end jobs go; `None`: none does.
pub fn jobs_before(policy: &Policy, now_ms: u64) -> Option<u64> {
    before(policy, policy.jobs_ms, now_ms)
}

/// Up to which time something goes whose age is limited so; `None`: nothing does.
pub fn before(policy: &Policy, age_ms: Option<u64>, now_ms: u64) -> Option<u64> {
    now_ms.checked_sub(age_ms?.max(policy.grace_ms)).filter(|before| *before > 0)
}

/// Before which last use builds may go at all; `None`: none goes, however old.
pub fn builds_before(policy: &Policy, now_ms: u64) -> Option<u64> {
    let Policy { superseded_ms, unused_ms, room_bytes, quotas_bytes, .. } = policy;
    let some_go = superseded_ms.or(*unused_ms).or(*room_bytes).is_some() || !quotas_bytes.is_empty();
    some_go.then(|| now_ms.saturating_sub(policy.grace_ms))
}

/// The builds that go, and why: the reason that holds whatever else is stored comes first.
pub fn decide<N: Clone + Ord>(policy: &Policy, builds: &[Build<N>], now_ms: u64) -> Vec<(N, Why)> {
    let old =
        |since_ms: u64, age_ms: Option<u64>| age_ms.is_some_and(|age_ms| now_ms.saturating_sub(since_ms) > age_ms);
    let before_ms = builds_before(policy, now_ms);
    let may_go = |build: &Build<N>| !build.is_pinned && before_ms.is_some_and(|before_ms| build.last_ms() < before_ms);
    let by_itself = |build: &Build<N>| match build.superseded_ms {
        Some(since_ms) if old(since_ms, policy.superseded_ms) => Some(Why::Superseded),
        _ if old(build.last_ms(), policy.unused_ms) => Some(Why::Unused),
        _ => None,
    };
    let mut gone: BTreeMap<&N, Why> = BTreeMap::new();
    for build in builds.iter().filter(|build| may_go(build)) {
        if let Some(why) = by_itself(build) {
            gone.insert(&build.name, why);
        }
    }
    let mut oldest_first: Vec<&Build<N>> = builds.iter().collect();
    oldest_first.sort_by_key(|build| (build.last_ms(), build.name.clone()));
    let mut make_room = |room_bytes: u64, why: Why, of: &dyn Fn(&Build<N>) -> bool| {
        let kept = |build: &&&Build<N>, gone: &BTreeMap<&N, Why>| of(build) && !gone.contains_key(&build.name);
        let mut taken: u64 = oldest_first.iter().filter(|build| kept(build, &gone)).map(|build| build.bytes).sum();
        for build in &oldest_first {
            if taken <= room_bytes {
                return;
            }
            if kept(&build, &gone) && may_go(build) {
                taken -= build.bytes;
                gone.insert(&build.name, why);
            }
        }
    };
    for (project, quota_bytes) in &policy.quotas_bytes {
        make_room(*quota_bytes, Why::Quota, &|build| build.project.as_ref() == Some(project));
    }
    if let Some(room_bytes) = policy.room_bytes {
        make_room(room_bytes, Why::Room, &|_| true);
    }
    gone.into_iter().map(|(name, why)| (name.clone(), why)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_000 * DAY_MS;

    fn build(name: &'static str, bytes: u64, days_ago: u64) -> Build<&'static str> {
        let built_ms = NOW_MS - days_ago * DAY_MS;
        Build { name, bytes, built_ms, used_ms: 0, superseded_ms: None, project: None, is_pinned: false }
    }

    fn gone(policy: &Policy, builds: &[Build<&'static str>]) -> Vec<(&'static str, Why)> {
        decide(policy, builds, NOW_MS)
    }

    #[test]
    fn what_is_old_goes_and_what_was_used_stays() {
        let used = Build { used_ms: NOW_MS - 5 * DAY_MS, ..build("used", 1, 400) };
        let pinned = Build { is_pinned: true, ..build("pinned", 1, 400) };
        let replaced = |name, days_ago| Build { superseded_ms: Some(NOW_MS - days_ago * DAY_MS), ..build(name, 1, 60) };
        let builds = [build("old", 1, 91), build("young", 1, 89), used, pinned, replaced("a", 8), replaced("b", 6)];
        assert_eq!(gone(&Policy::default(), &builds), [("a", Why::Superseded), ("old", Why::Unused)]);
        let for_ever = Policy { superseded_ms: None, unused_ms: None, room_bytes: None, ..Policy::default() };
        assert_eq!((gone(&for_ever, &builds), builds_before(&for_ever, NOW_MS)), (Vec::new(), None));
    }

    #[test]
    fn room_is_made_by_what_was_used_longest_ago_and_never_within_the_grace() {
        let policy = Policy { room_bytes: Some(100), ..Policy::default() };
        let builds = [build("c", 60, 10), build("b", 60, 20), build("a", 60, 30), build("new", 60, 0)];
        assert_eq!(gone(&policy, &builds), [("a", Why::Room), ("b", Why::Room), ("c", Why::Room)]);
        // What is pinned takes room, too, and the rest gives way to it.
        let pinned = Build { is_pinned: true, ..build("a", 60, 30) };
        assert_eq!(gone(&policy, &[pinned, build("b", 60, 20)]), [("b", Why::Room)]);
        assert_eq!(gone(&policy, &[build("new", 600, 0)]), []);
    }

    #[test]
    fn a_quota_takes_only_what_is_the_projects_alone() {
        let quotas_bytes = BTreeMap::from([("red".to_owned(), 50)]);
        let policy = Policy { quotas_bytes, ..Policy::default() };
        let of =
            |project: Option<&str>, build: Build<&'static str>| Build { project: project.map(str::to_owned), ..build };
        let builds = [
            of(Some("red"), build("r1", 40, 30)),
            of(Some("red"), build("r2", 40, 20)),
            of(None, build("both", 40, 40)),
            of(Some("blue"), build("blue", 400, 40)),
        ];
        assert_eq!(gone(&policy, &builds), [("r1", Why::Quota)]);
    }

    #[test]
    fn jobs_go_by_the_age_of_their_end_and_never_within_the_grace() {
        let policy = Policy { jobs_ms: Some(1), ..Policy::default() };
        assert_eq!(jobs_before(&policy, NOW_MS), Some(NOW_MS - DAY_MS));
        assert_eq!(jobs_before(&Policy { jobs_ms: None, ..policy }, NOW_MS), None);
        assert_eq!(jobs_before(&Policy::default(), 5), None);
    }
}
