//! The order in which waiting jobs are served.
//!
//! Within a project: priority, which grows with waiting, then age. Both together are one number that never changes
//! while the job waits, because all jobs age alike. Between projects: the priority of the first job, which grows with
//! the time since the project was last served, then who runs least for its share, then who got least for its share. So a project that
//! floods the queue delays its own jobs, and a low priority is late but never starves.

use super::{
    model::{Job, JobId},
    ranks::Ranks,
};
use planforge_types::{Requirement, Sku, Toolchain};
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

/// Waiting this long counts as much as one step of priority.
pub(super) const AGEING_STEP_MS: u64 = 10 * 60 * 1_000;

/// What a job must run on: exactly this SKU with exactly this toolchain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub sku: Sku,
    pub toolchain: Toolchain,
}

impl Target {
    pub fn of(job: &Job) -> Option<Self> {
        let toolchain = job.toolchain.clone()?;
        match job.prepares() {
            true => Self::preparing(&toolchain),
            false => Some(Self { sku: job.sku.clone(), toolchain }),
        }
    }
}

/// A device of an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceKey {
    pub agent: String,
    pub device: String,
}

/// Where a job waits; what it shares with the others of its line is kept once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    target: Arc<Target>,
    line: LineKey,
    rank: i64,
    queued_ms: u64,
    priority: i32,
}

/// What a project of share 1 pays for one lease; one of share n pays the n-th part.
const STRIDE: u64 = 1 << 20;

/// How much a project got.
#[derive(Clone, Debug)]
struct Share {
    weight: u32,
    running: u32,
    last_served_ms: u64,
    /// Paid for so far, in parts of [`STRIDE`]: who paid least is served first. Who was away pays as from now, so that
    /// nobody saves up.
    paid: u64,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, running: 0, last_served_ms: 0, paid: 0 }
    }
}

impl Share {
    fn price(&self) -> u64 {
        STRIDE / u64::from(self.weight.max(1))
    }
}

/// Whose line it is, and what its jobs ask of their device: one that lacks it passes the whole line by.
type LineKey = (Arc<str>, Arc<Requirement>);

/// Jobs of one project and requirement that wait for one target.
#[derive(Debug, Default)]
struct Line {
    ranks: Ranks,
    /// How many there are of each priority.
    by_priority: BTreeMap<i32, usize>,
}

impl Line {
    fn count(&mut self, priority: i32, step: isize) {
        let count = self.by_priority.entry(priority).or_default();
        *count = count.saturating_add_signed(step);
        if *count == 0 {
            self.by_priority.remove(&priority);
        }
    }
}

type Lines = BTreeMap<LineKey, Line>;

/// The lines of a project.
fn of_project<'a>(lines: &'a Lines, project: &'a Arc<str>) -> impl Iterator<Item = &'a Line> {
    let first = (project.clone(), Arc::default());
    lines.range(first..).take_while(move |((other, _), _)| other == project).map(|(_, line)| line)
}

/// Waiting jobs by target, project and requirement.
#[derive(Debug, Default)]
pub(super) struct Queue {
    places: BTreeMap<JobId, Place>,
    targets: BTreeMap<Arc<Target>, Lines>,
    shares: BTreeMap<String, Share>,
    /// What whoever was served last had paid before.
    paid_before: u64,
}

impl Queue {
    pub fn insert(&mut self, job: &Job, target: Target) {
        self.remove(job);
        let ageing = i64::from(job.priority()) * AGEING_STEP_MS as i64;
        let target = match self.targets.get_key_value(&target) {
            Some((known, _)) => known.clone(),
            None => Arc::new(target),
        };
        let lines = self.targets.entry(target.clone()).or_default();
        let key: LineKey = (job.project().into(), Arc::new(job.requirement()));
        let key = lines.get_key_value(&key).map_or(key, |(known, _)| known.clone());
        let rank = i64::try_from(job.created_ms).unwrap_or(i64::MAX).saturating_sub(ageing);
        let line = lines.entry(key.clone()).or_default();
        line.ranks.insert((rank, job.id.clone()));
        line.count(job.priority(), 1);
        let place = Place { target, line: key, rank, queued_ms: job.queued_ms, priority: job.priority() };
        self.places.insert(job.id.clone(), place);
    }

    pub fn remove(&mut self, job: &Job) {
        let Some(place) = self.places.remove(&job.id) else { return };
        let Some(lines) = self.targets.get_mut(&place.target) else { return };
        if let Some(line) = lines.get_mut(&place.line) {
            line.ranks.remove(&(place.rank, job.id.clone()));
            line.count(place.priority, -1);
            if line.ranks.is_empty() {
                lines.remove(&place.line);
            }
        }
        if lines.is_empty() {
            self.targets.remove(&place.target);
        }
    }

    pub fn contains(&self, id: &JobId) -> bool {
        self.places.contains_key(id)
    }

    /// Targets that somebody waits for.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.targets.keys().map(Arc::as_ref)
    }

    pub fn waits_for(&self, target: &Target) -> bool {
        self.targets.contains_key(target)
    }

    /// Jobs that wait for `target`.
    pub fn jobs_of(&self, target: &Target) -> Vec<JobId> {
        let lines = self.targets.get(target).into_iter().flat_map(BTreeMap::values);
        lines.flat_map(|line| line.ranks.iter()).map(|(_, id)| id.clone()).collect()
    }

    /// How many jobs the devices that offer `targets` likely serve before `id`: those before it in its project's line, and
    /// of every other project as many as its share gives it turns until then; all those of a higher priority, none of a
    /// lower one. What comes meanwhile, and what waiting adds to a priority, is not foreseen.
    pub fn ahead_of<'a>(&self, id: &JobId, targets: impl Iterator<Item = &'a Target>) -> usize {
        let Some(place) = self.places.get(id) else { return 0 };
        let lines: Vec<&Lines> = targets.filter_map(|target| self.targets.get(target)).collect();
        let rank = (place.rank, id.clone());
        let project = &place.line.0;
        let own: usize =
            lines.iter().flat_map(|lines| of_project(lines, project)).map(|own| own.ranks.before(&rank)).sum();
        let weight = |project: &str| self.shares.get(project).map_or(1, |share| share.weight.max(1)) as usize;
        // Jobs of each other project: those of a higher priority, and those of no lower one.
        let mut others: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for ((other, _), line) in lines.into_iter().flatten().filter(|((other, _), _)| other != project) {
            let (higher, no_lower) = others.entry(other).or_default();
            for (_, count) in line.by_priority.range(place.priority..) {
                *no_lower += count;
            }
            *higher +=
                line.ranks.len() - line.by_priority.range(..=place.priority).map(|(_, count)| count).sum::<usize>();
        }
        let turns = |other: &str| ((own + 1) * weight(other)).div_ceil(weight(project));
        own + others
            .into_iter()
            .map(|(other, (higher, no_lower))| higher.max(no_lower.min(turns(other))))
            .sum::<usize>()
    }

    /// The job that a device offering `targets` should run next. `has` says whether the device meets what is asked for,
    /// `may` which jobs may be granted at all.
    pub fn pick<'a>(
        &self,
        targets: impl Iterator<Item = &'a Target>,
        now_wall_ms: u64,
        has: impl Fn(&Requirement) -> bool,
        may: impl Fn(&JobId) -> bool,
    ) -> Option<JobId> {
        let mut best = None;
        for lines in targets.filter_map(|target| self.targets.get(target)) {
            // Of each project, whatever its jobs ask for.
            let mut firsts: BTreeMap<&str, &(i64, JobId)> = BTreeMap::new();
            for ((project, _), line) in lines.iter().filter(|((_, asked), _)| has(asked)) {
                let Some(first) = line.ranks.iter().find(|(_, id)| may(id)) else { continue };
                firsts.entry(project).and_modify(|known| *known = first.min(*known)).or_insert(first);
            }
            for (project, (rank, id)) in firsts {
                let Some(place) = self.places.get(id) else { continue };
                let share = self.shares.get(project).cloned().unwrap_or_default();
                let unserved_ms = now_wall_ms.saturating_sub(place.queued_ms.max(share.last_served_ms));
                let level = i64::from(place.priority) + (unserved_ms / AGEING_STEP_MS) as i64;
                let running = u64::from(share.running) * share.price();
                let order = (Reverse(level), running, share.paid, *rank, id.clone());
                if best.as_ref().is_none_or(|known| order < *known) {
                    best = Some(order);
                }
            }
        }
        best.map(|(.., id)| id)
    }

    /// A lease was granted to a job of `project`.
    pub fn served(&mut self, project: &str, now_wall_ms: u64) {
        let share = self.shares.entry(project.to_owned()).or_default();
        share.running += 1;
        share.last_served_ms = now_wall_ms;
        self.paid_before = share.paid.max(self.paid_before);
        share.paid = self.paid_before + share.price();
    }

    /// A project with a weight of `share` gets so many times what one of weight 1 gets.
    pub fn weigh(&mut self, project: &str, share: u32) {
        self.shares.entry(project.to_owned()).or_default().weight = share.max(1);
    }

    /// Leases that a project holds now.
    pub fn running(&self, project: &str) -> u32 {
        self.shares.get(project).map_or(0, |share| share.running)
    }

    /// A lease of `project` ended.
    pub fn ended(&mut self, project: &str) {
        if let Some(share) = self.shares.get_mut(project) {
            share.running = share.running.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::{Model, Want};
    use planforge_types::{BuildSpec, Digest};

    const START_MS: u64 = 1_700_000_000_000;

    fn toolchain() -> Toolchain {
        Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() }
    }

    fn target() -> Target {
        Target { sku: "cpu-x86-64-v3".parse().unwrap(), toolchain: toolchain() }
    }

    /// A job of `project` that has waited since `at_ms`.
    fn job(id: &str, project: &str, priority: i32, at_ms: u64) -> Job {
        let model = Model {
            digest: Digest::of(id.as_bytes()),
            graph_digest: None,
            structure_digest: None,
            name: id.to_owned(),
            files: Vec::new(),
        };
        let want = Want {
            request: id.into(),
            actor: project.into(),
            project: project.into(),
            priority,
            tags: Vec::new(),
            no_fallback: false,
            require: planforge_types::Requirement::default(),
        };
        let job = Job::queued(id.into(), model, target().sku, BuildSpec::default(), want, at_ms);
        Job { toolchain: Some(toolchain()), ..job }
    }

    fn queue(jobs: &[Job]) -> Queue {
        let mut queue = Queue::default();
        jobs.iter().for_each(|job| queue.insert(job, target()));
        queue
    }

    /// Serves everything on one device, each job for `run_ms`, and returns the jobs in order.
    fn serve_all(jobs: &[Job], run_ms: u64, begin_ms: u64) -> Vec<String> {
        let mut queue = queue(jobs);
        let (mut order, mut now_ms) = (Vec::new(), begin_ms);
        while let Some(id) = queue.pick([target()].iter(), now_ms, |_| true, |_| true) {
            let job = jobs.iter().find(|job| job.id == id).unwrap();
            queue.remove(job);
            queue.served(job.project(), now_ms);
            now_ms += run_ms;
            queue.ended(job.project());
            order.push(id.to_string());
        }
        order
    }

    #[test]
    fn two_projects_take_turns_however_many_jobs_one_of_them_has() {
        let mut jobs: Vec<Job> = (0..6).map(|n| job(&format!("flood{n}"), "red", 0, START_MS + n)).collect();
        // The other project comes later, and still does not wait behind the flood.
        jobs.extend((0..2).map(|n| job(&format!("late{n}"), "blue", 0, START_MS + 100 + n)));
        let order = serve_all(&jobs, 1_000, START_MS + 200);
        assert_eq!(order[..4], ["flood0", "late0", "flood1", "late1"], "{order:?}");
        assert_eq!(order[4..], ["flood2", "flood3", "flood4", "flood5"], "each project in the order of its ages");
    }

    #[test]
    fn a_project_of_three_times_the_share_gets_three_times_the_leases() {
        let mut jobs: Vec<Job> = (0..40).map(|n| job(&format!("r{n}"), "red", 0, START_MS + n)).collect();
        jobs.extend((0..40).map(|n| job(&format!("b{n}"), "blue", 0, START_MS + n)));
        let mut queue = queue(&jobs);
        queue.weigh("blue", 3);
        let (mut blue, mut now_ms) = (0, START_MS + 100);
        for _ in 0..40 {
            let id = queue.pick([target()].iter(), now_ms, |_| true, |_| true).unwrap();
            let job = jobs.iter().find(|job| job.id == id).unwrap();
            queue.remove(job);
            queue.served(job.project(), now_ms);
            now_ms += 10;
            queue.ended(job.project());
            blue += u32::from(job.project() == "blue");
        }
        assert_eq!(blue, 30);
        // On several devices at once, too: what runs is weighed alike.
        let mut queue = self::queue(&jobs);
        queue.weigh("blue", 3);
        for _ in 0..8 {
            let id = queue.pick([target()].iter(), now_ms, |_| true, |_| true).unwrap();
            let job = jobs.iter().find(|job| job.id == id).unwrap();
            queue.remove(job);
            queue.served(job.project(), now_ms);
        }
        assert_eq!((queue.running("blue"), queue.running("red")), (6, 2));
    }

    #[test]
    fn the_project_that_runs_less_is_served_first() {
        let jobs = [job("r", "red", 0, START_MS), job("b", "blue", 0, START_MS + 1)];
        let mut queue = queue(&jobs);
        let pick = |queue: &Queue| queue.pick([target()].iter(), START_MS + 10, |_| true, |_| true).unwrap();
        // Blue was served longer ago, but two of its jobs still run.
        queue.served("blue", START_MS + 2);
        queue.served("blue", START_MS + 3);
        queue.served("red", START_MS + 4);
        assert_eq!(pick(&queue).as_str(), "r");
        queue.ended("blue");
        queue.ended("blue");
        assert_eq!(pick(&queue).as_str(), "b");
    }

    #[test]
    fn a_device_passes_by_what_it_lacks_and_keeps_the_order_of_a_project_otherwise() {
        let asks = |id: &str, texts: &[&str], priority, at_ms| {
            let mut job = job(id, "red", priority, at_ms);
            job.wants[0].require = Requirement::of_all(texts).unwrap();
            job
        };
        let large = asks("large", &["memory=40GiB"], 0, START_MS);
        // Less urgent by its priority, and yet first, for it has waited so long.
        let plain = asks("plain", &[], 1, START_MS + 2 * AGEING_STEP_MS);
        let queue = queue(&[large, plain]);
        let pick = |has_all| {
            let has = |asked: &Requirement| has_all || asked.is_empty();
            queue.pick([target()].iter(), START_MS + 3 * AGEING_STEP_MS, has, |_| true).unwrap()
        };
        assert_eq!((pick(true).as_str(), pick(false).as_str()), ("large", "plain"));
        assert_eq!(queue.ahead_of(&"plain".into(), [target()].iter()), 1);
    }

    #[test]
    fn waiting_outweighs_priority_in_time_and_not_before() {
        let low = job("low", "red", 0, START_MS);
        // Within a project every step of priority is worth one ageing step of waiting.
        for (steps, first) in [(1, "high"), (2, "high"), (4, "low")] {
            let high = job("high", "red", 3, START_MS + steps * AGEING_STEP_MS);
            assert_eq!(serve_all(&[low.clone(), high], 1_000, START_MS + 5 * AGEING_STEP_MS)[0], first, "{steps}");
        }
        // Between projects too: the low one starves behind no stream of urgent jobs.
        for (steps, first) in [(1, "high"), (4, "low")] {
            let now_ms = START_MS + steps * AGEING_STEP_MS;
            let high = job("high", "blue", 3, now_ms);
            assert_eq!(serve_all(&[low.clone(), high], 1_000, now_ms)[0], first, "{steps}");
        }
    }
}
