//! What the store has under engine keys, as far as requests are answered by it.
//!
//! A farm has more engines than fit into memory, so the core keeps none of them: whoever submits brings what the store had
//! under the keys in question ([`Lookup`]), and the core remembers what it changed since ([`Known`]), so that nobody is
//! answered from an older state. Where it only knows that something changed, it asks for another look
//! ([`super::Submitted::Ask`], [`super::Effects::asks`]); the look is taken after that change is durable.

use super::{
    ask::{Asked, Expanded, expand},
    effects::Effects,
    model::{Covered, EngineRef, JobId, JobState, PreparationRecord, Refusal},
    queue::Target,
    state::{Now, State, Submit},
};
use planforge_types::{Digest, EngineKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Changed keys that are remembered; a look into the store takes a moment, in which nothing like so many change.
const CHANGED_KEPT: usize = 50_000;
/// Plans that are known to be gone from the blob store.
const GONE_KEPT: usize = 50_000;
/// Uses of engines that are remembered, and how often one is written down.
const USED_KEPT: usize = 50_000;
const USED_EVERY_MS: u64 = 10 * 60 * 1_000;
/// A look that did not come back within this time is asked for again.
const LOOK_AGAIN_MS: u64 = 5_000;

/// What the store has under one key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// The newest engine.
    pub engine: Option<EngineRef>,
    /// It is known to fail.
    pub refusal: Option<Refusal>,
    /// Of a prepare job's key.
    pub preparation: Option<PreparationRecord>,
}

/// What the store had when somebody looked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lookup {
    /// Of every key that was asked for.
    pub stored: BTreeMap<EngineKey, Stored>,
    /// Changes up to this number were durable before.
    pub as_of: u64,
}

/// What was changed of a key. `None`: that is not known here, and the store has it.
#[derive(Clone, Debug, Default)]
struct Changed {
    engine: Option<EngineRef>,
    refusal: Option<Option<Refusal>>,
    preparation: Option<PreparationRecord>,
    at: u64,
}

/// What this state changed of what the store has.
#[derive(Debug, Default)]
pub(super) struct Known {
    changed: BTreeMap<EngineKey, Changed>,
    order: VecDeque<EngineKey>,
    /// Counts changes.
    changes: u64,
    /// Changes up to this one are durable.
    durable: u64,
    gone: BTreeSet<Digest>,
    gone_order: VecDeque<Digest>,
    /// When a look at a key was asked for, monotonic.
    asked_ms: BTreeMap<EngineKey, u64>,
    /// When engines were used last, as far as that was written down.
    used_ms: BTreeMap<EngineKey, u64>,
    used_order: VecDeque<EngineKey>,
}

impl Known {
    /// The newest engine of a key whose plan is there; the outer `None`: somebody has to look.
    pub fn engine<'a>(&'a self, key: &EngineKey, lookup: &'a Lookup) -> Option<Option<&'a EngineRef>> {
        let there = |engine: &&EngineRef| !self.gone.contains(&engine.plan.digest);
        if let Some(engine) = self.changed.get(key).and_then(|changed| changed.engine.as_ref()) {
            return Some(Some(engine).filter(there));
        }
        self.looked(key, lookup).map(|stored| stored.engine.as_ref().filter(there))
    }

    /// Why a key is known to fail; the outer `None`: somebody has to look.
    pub fn refusal<'a>(&'a self, key: &EngineKey, lookup: &'a Lookup) -> Option<Option<&'a Refusal>> {
        if let Some(refusal) = self.changed.get(key).and_then(|changed| changed.refusal.as_ref()) {
            return Some(refusal.as_ref());
        }
        self.looked(key, lookup).map(|stored| stored.refusal.as_ref())
    }

    /// What a model was prepared into, where its files are there; the outer `None`: somebody has to look.
    pub fn preparation<'a>(&'a self, key: &EngineKey, lookup: &'a Lookup) -> Option<Option<&'a PreparationRecord>> {
        let there =
            |record: &&PreparationRecord| record.made.model.files.iter().all(|file| !self.gone.contains(&file.digest));
        if let Some(record) = self.changed.get(key).and_then(|changed| changed.preparation.as_ref()) {
            return Some(Some(record).filter(there));
        }
        self.looked(key, lookup).map(|stored| stored.preparation.as_ref().filter(there))
    }

    fn looked<'a>(&self, key: &EngineKey, lookup: &'a Lookup) -> Option<&'a Stored> {
        let is_old = self.changed.get(key).is_some_and(|changed| changed.at > lookup.as_of);
        lookup.stored.get(key).filter(|_| !is_old)
    }

    fn change(&mut self, key: EngineKey) -> &mut Changed {
        self.changes += 1;
        if !self.changed.contains_key(&key) {
            self.order.push_back(key);
            if self.order.len() > CHANGED_KEPT
                && let Some(oldest) = self.order.pop_front()
            {
                self.changed.remove(&oldest);
            }
        }
        let changed = self.changed.entry(key).or_default();
        changed.at = self.changes;
        changed
    }

    /// A build was taken; `trusted` when it takes a refusal back.
    pub fn built(&mut self, key: EngineKey, engine: EngineRef, trusted: bool) {
        self.gone.remove(&engine.plan.digest);
        let changed = self.change(key);
        changed.engine = Some(engine);
        if trusted {
            changed.refusal = Some(None);
        }
    }

    pub fn refused(&mut self, refusal: Refusal) {
        let key = refusal.key;
        self.change(key).refusal = Some(Some(refusal));
    }

    /// A model was prepared, which takes a refusal back, or a newer job came to what was prepared before.
    pub fn prepared(&mut self, record: PreparationRecord) {
        for file in &record.made.model.files {
            self.gone.remove(&file.digest);
        }
        let changed = self.change(record.key);
        (changed.preparation, changed.refusal) = (Some(record), Some(None));
    }

    /// The job that a prepared model was kept for is gone.
    pub fn preparation_forgotten(&mut self, key: EngineKey) {
        self.change(key).preparation = None;
    }

    /// A plan was measured.
    pub fn measured(&mut self, key: EngineKey, plan: Digest, covered: Covered, report: Digest, accurate: bool) {
        let changed = self.change(key);
        if let Some(engine) = changed.engine.as_mut().filter(|engine| engine.plan.digest == plan) {
            engine.learn(covered, report, accurate);
        }
    }

    /// A build of the key is gone.
    pub fn forgotten(&mut self, key: EngineKey) {
        self.change(key).engine = None;
    }

    /// Whether an engine was used then or later, as far as is known here.
    pub fn used_since(&self, key: &EngineKey, since_ms: u64) -> bool {
        self.used_ms.get(key).is_some_and(|used_ms| *used_ms + USED_EVERY_MS >= since_ms)
    }

    /// An engine was used; whether that is to be written down.
    pub fn used(&mut self, key: EngineKey, at_ms: u64) -> bool {
        if self.used_ms.get(&key).is_some_and(|used_ms| at_ms < used_ms + USED_EVERY_MS) {
            return false;
        }
        if self.used_ms.insert(key, at_ms).is_none() {
            self.used_order.push_back(key);
        }
        while self.used_order.len() > USED_KEPT {
            if let Some(oldest) = self.used_order.pop_front() {
                self.used_ms.remove(&oldest);
            }
        }
        true
    }

    /// These plans are not in the blob store any more: the store keeps the rows of their engines, as the record of what
    /// was built, until they are built again.
    pub fn lost<'a>(&mut self, plans: impl Iterator<Item = &'a Digest>) {
        for plan in plans {
            if self.gone.insert(*plan) {
                self.gone_order.push_back(*plan);
            }
        }
        while self.gone_order.len() > GONE_KEPT {
            if let Some(oldest) = self.gone_order.pop_front() {
                self.gone.remove(&oldest);
            }
        }
    }

    /// Keys of which this state holds all that the store will have once its changes are durable.
    fn whole(&self) -> impl Iterator<Item = (&EngineKey, &EngineRef)> {
        self.changed.iter().filter_map(|(key, changed)| Some((key, changed.engine.as_ref()?)))
    }
}

impl State {
    /// Counts what changed of engines and refusals.
    pub fn as_of(&self) -> u64 {
        self.known.changes
    }

    /// Changes up to this one are durable: what is looked up from now on has them.
    pub fn durable_as_of(&mut self, as_of: u64) {
        self.known.durable = self.known.durable.max(as_of);
    }

    /// Which changes a look from now on sees.
    pub(super) fn known_durable(&self) -> u64 {
        self.known.durable
    }

    /// Keys under which somebody has to look before the request is decided, and which changes that look will see.
    pub fn asks(&self, submit: &Submit) -> (BTreeSet<EngineKey>, u64) {
        let Ok(Expanded { prepares, builds }) = expand(submit) else { return (BTreeSet::new(), self.known.durable) };
        let open = |one: &&Asked| matches!(self.judge(one, &submit.lookup), Ok(super::judge::Verdict::Ask(_)));
        // What a model is built under is not known before it is prepared.
        let asked = prepares.iter().chain(builds.iter().filter(|one| !one.is_open()));
        (asked.filter(open).flat_map(|one| self.keys_of(one)).collect(), self.known.durable)
    }

    /// Lets a job wait until somebody has looked under its key.
    pub(super) fn ask_for(&mut self, id: &JobId, what: &'static str, key: EngineKey, now: Now, effects: &mut Effects) {
        self.asking.insert(id.clone(), what);
        // All that it may come to at once: one look has to decide it.
        let asked = self.jobs.get(id).and_then(|job| Asked::of(job));
        let mut keys: BTreeSet<EngineKey> = asked.iter().flat_map(|asked| self.keys_of(asked)).collect();
        keys.insert(key);
        let is_due = |key: &EngineKey| {
            self.known.asked_ms.get(key).is_none_or(|asked_ms| now.mono_ms >= *asked_ms + LOOK_AGAIN_MS)
        };
        if keys.iter().any(is_due) {
            self.known.asked_ms.extend(keys.iter().map(|key| (*key, now.mono_ms)));
            effects.asks.extend(keys);
        }
    }

    /// Somebody looked: decides about those that waited for it.
    pub(super) fn looked_up(&mut self, lookup: &Lookup, now: Now, effects: &mut Effects) {
        for key in lookup.stored.keys() {
            self.known.asked_ms.remove(key);
        }
        self.decide_asking(lookup, now, effects);
    }

    /// Tries anew to decide about those that wait for a look into the store.
    pub(super) fn decide_asking(&mut self, lookup: &Lookup, now: Now, effects: &mut Effects) {
        for (id, what) in std::mem::take(&mut self.asking) {
            let Some(job) = self.jobs.get(&id) else { continue };
            let waits = match job.state {
                JobState::Blocked => job.needs.is_empty(),
                JobState::Unplaceable => true,
                JobState::Queued => {
                    !self.holds.contains_key(&id)
                        && Target::of(job).is_none_or(|target| !self.offers.contains_key(&target))
                }
                _ => false,
            };
            if waits {
                self.readmit(&id, what, lookup, now, effects);
            }
        }
    }

    /// Checks that what this state holds of engines is what `stored` has.
    ///
    /// # Errors
    /// Every key of which it is not, in words.
    pub fn check_known(&self, stored: impl Fn(&EngineKey) -> Stored) -> Result<(), Vec<String>> {
        let told = |engine: Option<&EngineRef>| engine.map(|e| (e.plan.clone(), e.accurate, e.report));
        let wrong = self.known.whole().filter_map(|(key, engine)| {
            let (mine, theirs) = (told(Some(engine)), told(stored(key).engine.as_ref()));
            let plan = theirs.as_ref().map_or_else(|| "no plan".to_owned(), |(plan, ..)| plan.digest.to_string());
            (mine != theirs)
                .then(|| format!("engine {key} is of plan {} here, the store has {plan}", engine.plan.digest))
        });
        let wrong: Vec<String> = wrong.collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::PlanRef;

    fn key(text: &str) -> EngineKey {
        Digest::of(text.as_bytes()).to_string().parse().unwrap()
    }

    fn engine(plan: &str) -> EngineRef {
        let plan = PlanRef { digest: Digest::of(plan.as_bytes()), size_bytes: 1, card: None, builds: 1 };
        EngineRef { plan, accurate: true, inputs: None, report: None, reports: BTreeMap::new(), unmeasured: false }
    }

    fn lookup(key: EngineKey, plan: Option<&str>, as_of: u64) -> Lookup {
        Lookup { stored: BTreeMap::from([(key, Stored { engine: plan.map(engine), ..Stored::default() })]), as_of }
    }

    #[test]
    fn what_was_read_before_a_change_counts_no_more() {
        let mut known = Known::default();
        let found = |known: &Known, lookup: &Lookup| {
            known.engine(&key("a"), lookup).map(|engine| engine.map(|engine| engine.plan.digest))
        };
        let plan = |text: &str| Some(Some(Digest::of(text.as_bytes())));
        assert_eq!(found(&known, &Lookup::default()), None, "nobody looked");
        assert_eq!(found(&known, &lookup(key("a"), None, 0)), Some(None));
        assert_eq!(found(&known, &lookup(key("a"), Some("one"), 0)), plan("one"));
        known.measured(key("a"), Digest::of(b"one"), Covered::default(), Digest::of(b"report"), true);
        assert_eq!(found(&known, &lookup(key("a"), Some("one"), 0)), None, "older than the measurement");
        assert_eq!(found(&known, &lookup(key("a"), Some("one"), 1)), plan("one"));
        known.built(key("a"), engine("two"), true);
        assert_eq!(found(&known, &lookup(key("a"), Some("one"), 0)), plan("two"));
        assert_eq!(known.refusal(&key("a"), &Lookup::default()), Some(None));
    }

    #[test]
    fn an_engine_whose_plan_is_gone_is_none_until_it_is_built_again() {
        let mut known = Known::default();
        known.lost([Digest::of(b"one")].iter());
        assert_eq!(known.engine(&key("a"), &lookup(key("a"), Some("one"), 0)), Some(None));
        known.built(key("a"), engine("one"), true);
        assert!(known.engine(&key("a"), &Lookup::default()).flatten().is_some());
    }
}
