//! Pauses: device kinds, projects and agents that get no more jobs for a while. What runs goes on to its end.
//!
//! A pause holds until it is taken back, until a time, or in a window that comes again every day or on some days of the
//! week. Which hold is looked at whenever one is made or taken back, and once a second; in between nothing changes, so that
//! the same inputs give the same effects.

use super::{
    effects::{Effects, Reply},
    model::{Change, Job},
    queue::{DeviceKey, Target},
    state::{Now, State},
};
use planforge_proto::{ApiError, ErrorCode};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, str::FromStr};

const MINUTE_MS: u64 = 60_000;
const DAY_MINUTES: u64 = 24 * 60;
/// The day on which Unix time begins was a Thursday; Monday is 0.
const FIRST_WEEKDAY: u64 = 3;

/// What is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PausedKind {
    /// Jobs for a device kind wait.
    Sku,
    /// Jobs that nobody but paused projects asked for wait.
    Project,
    /// An agent gets no jobs.
    Agent,
}

impl PausedKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sku => "sku",
            Self::Project => "project",
            Self::Agent => "agent",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Sku => "device kind",
            Self::Project => "project",
            Self::Agent => "agent",
        }
    }
}

impl FromStr for PausedKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sku" => Ok(Self::Sku),
            "project" => Ok(Self::Project),
            "agent" => Ok(Self::Agent),
            _ => Err(format!("'{}' cannot be paused; sku, project and agent can", text.escape_debug())),
        }
    }
}

/// A time that comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Days of the week on which it begins, Monday as the lowest bit; all of them: every day.
    pub days: u8,
    /// Minute of the day at which it begins, UTC.
    pub start_minute: u16,
    /// How long it lasts: up to a day.
    pub minutes: u16,
}

impl Window {
    pub const EVERY_DAY: u8 = 0b111_1111;
    pub const MINUTES_MAX: u16 = DAY_MINUTES as u16;

    fn holds_at(&self, wall_ms: u64) -> bool {
        let minute = wall_ms / MINUTE_MS;
        let today = minute / DAY_MINUTES;
        // It may have begun the day before.
        [Some(today), today.checked_sub(1)].into_iter().flatten().any(|day| {
            let begins = day * DAY_MINUTES + u64::from(self.start_minute);
            let weekday = (day + FIRST_WEEKDAY) % 7;
            self.days & (1 << weekday) != 0 && (begins..begins + u64::from(self.minutes)).contains(&minute)
        })
    }

    /// Minutes from now until it ends, while it holds.
    fn left_minutes(&self, wall_ms: u64) -> u64 {
        let minute = wall_ms / MINUTE_MS % DAY_MINUTES;
        let since = (minute + DAY_MINUTES - u64::from(self.start_minute)) % DAY_MINUTES;
        u64::from(self.minutes).saturating_sub(since)
    }
}

/// Which pause: of one thing there is one that somebody made for once, and one window.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PauseId {
    pub kind: PausedKind,
    pub name: String,
    pub is_window: bool,
}

impl fmt::Display for PauseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_window { "window" } else { "once" };
        write!(f, "{} {how} {}", self.kind.name(), self.name)
    }
}

/// A pause; what is told of it beside its time is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseRecord {
    pub kind: PausedKind,
    /// A device kind, a project, or an agent's id.
    pub name: String,
    /// As people know it.
    pub shown: String,
    pub reason: String,
    pub actor: String,
    /// An administrator of the paused project made it, not one of the whole farm.
    #[serde(default)]
    pub own: bool,
    pub since_ms: u64,
    /// 0: until it is taken back.
    pub until_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
}

impl PauseRecord {
    pub fn id(&self) -> PauseId {
        PauseId { kind: self.kind, name: self.name.clone(), is_window: self.window.is_some() }
    }

    fn is_over(&self, wall_ms: u64) -> bool {
        self.until_ms != 0 && self.until_ms <= wall_ms
    }

    /// Whether jobs wait for its end now.
    pub fn holds_at(&self, wall_ms: u64) -> bool {
        !self.is_over(wall_ms) && self.window.is_none_or(|window| window.holds_at(wall_ms))
    }

    /// For whoever waits.
    fn told(&self, wall_ms: u64) -> String {
        let left = match self.window {
            Some(window) => Some(window.left_minutes(wall_ms)),
            None => Some(self.until_ms.saturating_sub(wall_ms).div_ceil(MINUTE_MS)).filter(|_| self.until_ms != 0),
        };
        let left = left.map_or("until somebody resumes it".into(), |minutes| match minutes {
            0..120 => format!("for another {minutes} min"),
            120..2_880 => format!("for another {} h", minutes.div_ceil(60)),
            _ => format!("for another {} days", minutes.div_ceil(DAY_MINUTES)),
        });
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{} {} is paused by {} {left}{reason}", self.kind.words(), self.shown, self.actor)
    }
}

impl State {
    pub(super) fn pause(&mut self, record: PauseRecord, now: Now, effects: &mut Effects) {
        effects.changes.push(Change::Pause(Box::new(record.clone())));
        self.pauses.insert(record.id(), record);
        self.look_at_pauses(now, effects);
    }

    pub(super) fn resume(&mut self, id: PauseId, now: Now, effects: &mut Effects) {
        let Some(record) = self.pauses.remove(&id) else {
            let message = format!("the {} {} is not paused", id.kind.words(), id.name);
            effects.reply = Reply::Resumed(Err(
                ApiError::new(ErrorCode::NotFound, message).with_hint("'planforge pause list' shows what is")
            ));
            return;
        };
        effects.changes.push(Change::Resume(id));
        effects.reply = Reply::Resumed(Ok(Box::new(record)));
        self.look_at_pauses(now, effects);
    }

    /// Takes away pauses whose time is over, and has everybody looked at again whom one held up that holds no more.
    pub(super) fn look_at_pauses(&mut self, now: Now, effects: &mut Effects) {
        let over: Vec<PauseId> =
            self.pauses.values().filter(|record| record.is_over(now.wall_ms)).map(PauseRecord::id).collect();
        for id in over {
            self.pauses.remove(&id);
            effects.changes.push(Change::Resume(id));
        }
        let holding: BTreeSet<PauseId> =
            self.pauses.values().filter(|record| record.holds_at(now.wall_ms)).map(PauseRecord::id).collect();
        if holding == self.paused {
            return;
        }
        let changed: Vec<PauseId> = holding.symmetric_difference(&self.paused).cloned().collect();
        self.paused = holding;
        for id in &changed {
            if id.kind == PausedKind::Agent {
                self.refresh_agent(&id.name);
            }
        }
        if changed.iter().any(|id| id.kind != PausedKind::Agent) {
            self.dirty_targets = self.queue.targets().cloned().collect();
        }
    }

    /// The pause that holds of a thing, if one does.
    fn pause_of(&self, kind: PausedKind, name: &str) -> Option<&PauseRecord> {
        if self.paused.is_empty() {
            return None;
        }
        let of = |is_window| PauseId { kind, name: name.to_owned(), is_window };
        [of(false), of(true)].iter().find(|id| self.paused.contains(id)).and_then(|id| self.pauses.get(id))
    }

    pub(super) fn is_agent_paused(&self, agent: &str) -> bool {
        self.pause_of(PausedKind::Agent, agent).is_some()
    }

    /// The pause for whose end a job waits.
    fn pause_for(&self, job: &Job) -> Option<&PauseRecord> {
        if let Some(pause) = self.pause_of(PausedKind::Sku, job.sku.as_str()) {
            return Some(pause);
        }
        let mut pauses = job.wants.iter().map(|want| self.pause_of(PausedKind::Project, &want.project));
        let first = pauses.next().flatten()?;
        pauses.all(|pause| pause.is_some()).then_some(first)
    }

    /// Whether a job waits for the end of a pause.
    pub(super) fn is_paused(&self, job: &Job) -> bool {
        !self.paused.is_empty() && self.pause_for(job).is_some()
    }

    /// Why a queued job waits, where a pause of its device kind or project is the reason, or one of every agent that is
    /// there and could run it.
    pub(super) fn why_paused(&self, job: &Job, target: &Target, now: Now) -> Option<String> {
        if self.paused.is_empty() {
            return None;
        }
        if let Some(pause) = self.pause_for(job) {
            return Some(pause.told(now.wall_ms));
        }
        let is_online = |agent: &str| self.agents.get(agent).is_some_and(|entry| entry.session.is_some());
        let could = |key: &&DeviceKey| is_online(&key.agent) && self.serves(job, key);
        let mut pauses =
            self.offers.get(target)?.iter().filter(could).map(|key| self.pause_of(PausedKind::Agent, &key.agent));
        let first = pauses.next().flatten()?;
        pauses.all(|pause| pause.is_some()).then(|| first.told(now.wall_ms))
    }

    /// Every pause, whether or not it holds now.
    pub fn pauses(&self) -> impl Iterator<Item = &PauseRecord> {
        self.pauses.values()
    }

    /// Whether a device of that kind is known, or a job waits for one.
    pub fn knows_sku(&self, sku: &str) -> bool {
        self.offers.keys().any(|target| target.sku.as_str() == sku)
            || self.jobs.values().any(|job| job.sku.as_str() == sku)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-25 is a Wednesday.
    const WEDNESDAY_MS: u64 = 1_795_564_800_000;

    fn at(hours: u64, minutes: u64) -> u64 {
        WEDNESDAY_MS + (hours * 60 + minutes) * MINUTE_MS
    }

    #[test]
    fn a_window_holds_from_its_minute_on_and_past_midnight() {
        let nightly = Window { days: Window::EVERY_DAY, start_minute: 22 * 60, minutes: 180 };
        assert!(!nightly.holds_at(at(21, 59)) && nightly.holds_at(at(22, 0)) && nightly.holds_at(at(24, 59)));
        assert!(!nightly.holds_at(at(25, 0)));
        assert_eq!((nightly.left_minutes(at(22, 0)), nightly.left_minutes(at(24, 30))), (180, 30));
    }

    #[test]
    fn a_window_of_some_days_begins_on_those() {
        let wednesdays = Window { days: 1 << 2, start_minute: 23 * 60, minutes: 120 };
        assert!(wednesdays.holds_at(at(23, 30)) && wednesdays.holds_at(at(24, 30)));
        assert!(!wednesdays.holds_at(at(23 + 24, 30)) && !wednesdays.holds_at(at(0, 30)));
        assert!(wednesdays.holds_at(at(23 + 7 * 24, 30)));
    }

    #[test]
    fn a_pause_ends_at_its_time_and_says_how_long_it_still_is() {
        let mut record = PauseRecord {
            kind: PausedKind::Sku,
            name: "rtx-4090".into(),
            shown: "rtx-4090".into(),
            reason: "new driver".into(),
            actor: "root".into(),
            own: false,
            since_ms: at(1, 0),
            until_ms: at(3, 0),
            window: None,
        };
        assert!(record.holds_at(at(2, 59)) && !record.holds_at(at(3, 0)));
        assert_eq!(record.told(at(2, 1)), "device kind rtx-4090 is paused by root for another 59 min: new driver");
        record.until_ms = 0;
        record.reason.clear();
        assert_eq!(record.told(at(2, 1)), "device kind rtx-4090 is paused by root until somebody resumes it");
    }
}
