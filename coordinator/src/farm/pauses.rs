//! Pauses as their administrators see them: of device kinds and agents by those of the whole farm, of a project by its own
//! too.

use super::{
    Farm, convert,
    tokens::{admin, some_admin},
};
use crate::{
    auth::Actor,
    core::{AuditKind, Input, PauseId, PauseRecord, PausedKind, Reply, Window},
};
use planforge_proto::{ApiError, ErrorCode, v1};

/// Pauses at once; a farm has a handful.
const PAUSES_MAX: usize = 1_000;
/// Longest time that one can be made for.
const LONGEST_MS: u64 = 366 * 24 * 60 * 60 * 1_000;
const DAYS_OF_A_WEEK: u32 = 7;
const MINUTES_OF_A_DAY: u32 = 24 * 60;

impl Farm {
    /// What is paused; for who belongs to a project, nothing of other projects.
    ///
    /// # Errors
    /// For an agent's token.
    pub async fn list_pauses(&self, actor: &Actor) -> Result<v1::ListPausesReply, ApiError> {
        super::confine::may_look(actor)?;
        let own = actor.project.clone();
        let seen = move |pause: &PauseRecord| {
            pause.kind != PausedKind::Project || own.as_ref().is_none_or(|own| *own == pause.name)
        };
        let pauses: Vec<v1::Pause> = self
            .ask(move |state, now| {
                state.pauses().filter(|pause| seen(pause)).map(|pause| pause_out(pause, now.wall_ms)).collect()
            })
            .await?;
        Ok(v1::ListPausesReply { pauses })
    }

    /// Has jobs for a device kind, of a project or for an agent wait; what runs goes on. Needs role admin.
    ///
    /// # Errors
    /// Without the role, for what is not known, for times that make no sense, or when the store takes no writes.
    pub async fn pause(&self, actor: &Actor, request: v1::PauseRequest) -> Result<v1::PauseReply, ApiError> {
        let words = format!("{} {}", request.kind, request.name);
        let paused = self.pause_now(actor, request);
        self.audited(actor, AuditKind::Admin, "pause", &words, paused).await
    }

    async fn pause_now(&self, actor: &Actor, request: v1::PauseRequest) -> Result<v1::PauseReply, ApiError> {
        let (kind, name, shown) = self.paused_thing(actor, &request.kind, &request.name).await?;
        let now_ms = self.clock().wall_ms();
        let until_ms = match (request.for_ms, request.until_ms) {
            (0, 0) => 0,
            (for_ms, 0) if for_ms <= LONGEST_MS => now_ms + for_ms,
            (0, until_ms) if until_ms > now_ms && until_ms - now_ms <= LONGEST_MS => until_ms,
            (0, until_ms) if until_ms <= now_ms => {
                return Err(convert::invalid("the time until which to pause is over"));
            }
            (0, _) | (_, 0) => {
                return Err(convert::invalid("a pause is for a year at most")
                    .with_hint("leave its end away: until it is resumed"));
            }
            _ => return Err(convert::invalid("a pause lasts for so long, or until a time; not both")),
        };
        let record = PauseRecord {
            kind,
            name,
            shown,
            reason: convert::pause_reason(&request.reason)?,
            actor: actor.name.clone(),
            own: actor.project.is_some(),
            since_ms: now_ms,
            until_ms,
            window: request.window.as_ref().map(window).transpose()?,
        };
        let id = record.id();
        let (known, count) = self
            .ask(move |state, _| (state.pauses().find(|known| known.id() == id).cloned(), state.pauses().count()))
            .await?;
        if known.is_none() && count >= PAUSES_MAX {
            return Err(ApiError::new(ErrorCode::ResourceExhausted, format!("{count} pauses are there already")));
        }
        known.map_or(Ok(()), |known| may_undo(actor, &known))?;
        let pause = pause_out(&record, now_ms);
        self.input(Input::Pause(Box::new(record))).await?;
        tracing::info!(kind = pause.kind, name = pause.name, actor = actor.name, "a pause was made");
        Ok(v1::PauseReply { pause: Some(pause) })
    }

    /// Takes a pause back. Needs role admin; what an administrator of the whole farm paused, one of a project does not
    /// resume.
    ///
    /// # Errors
    /// Without the role, for what is not paused, or when the store takes no writes.
    pub async fn resume(&self, actor: &Actor, request: v1::ResumeRequest) -> Result<v1::ResumeReply, ApiError> {
        let words = format!("{} {}", request.kind, request.name);
        let resumed = self.resume_now(actor, request);
        self.audited(actor, AuditKind::Admin, "resume", &words, resumed).await
    }

    async fn resume_now(&self, actor: &Actor, request: v1::ResumeRequest) -> Result<v1::ResumeReply, ApiError> {
        some_admin(actor)?;
        // What is gone meanwhile, as an agent that was forgotten, is named as the list does.
        let (kind, asked) = (kind(&request.kind)?, request.name.clone());
        let of_thing = move |pause: &PauseRecord, is_window| pause.kind == kind && pause.window.is_some() == is_window;
        let is_window = request.window;
        let found: Vec<PauseRecord> = self
            .ask(move |state, _| {
                let is =
                    |pause: &&PauseRecord| of_thing(pause, is_window) && [&pause.name, &pause.shown].contains(&&asked);
                state.pauses().filter(is).cloned().collect()
            })
            .await?;
        let id = match found.as_slice() {
            [one] => {
                may_name(actor, kind, &one.name)?;
                may_undo(actor, one)?;
                one.id()
            }
            _ => {
                let (kind, name, _) = self.paused_thing(actor, &request.kind, &request.name).await?;
                PauseId { kind, name, is_window }
            }
        };
        let now_ms = self.clock().wall_ms();
        match self.input(Input::Resume(id)).await? {
            Reply::Resumed(resumed) => {
                let pause = pause_out(&*resumed?, now_ms);
                tracing::info!(kind = pause.kind, name = pause.name, actor = actor.name, "a pause was taken back");
                Ok(v1::ResumeReply { pause: Some(pause) })
            }
            _ => Err(ApiError::new(ErrorCode::Internal, "the scheduler answered something else")),
        }
    }

    /// What is meant by a kind and a name, and how people know it.
    async fn paused_thing(
        &self,
        actor: &Actor,
        asked: &str,
        name: &str,
    ) -> Result<(PausedKind, String, String), ApiError> {
        some_admin(actor)?;
        let kind = kind(asked)?;
        may_name(actor, kind, name)?;
        match kind {
            PausedKind::Sku => {
                let sku = convert::sku(name)?;
                let asked = sku.clone();
                if !self.ask(move |state, _| state.knows_sku(asked.as_str())).await? {
                    let message = format!("no device of this farm is of the kind {sku}, and no job waits for one");
                    return Err(ApiError::new(ErrorCode::NotFound, message).with_hint("'planforge devices' shows them"));
                }
                Ok((kind, sku.as_str().to_owned(), sku.as_str().to_owned()))
            }
            PausedKind::Project => {
                let project = convert::project(name)?;
                Ok((kind, project.clone(), project))
            }
            PausedKind::Agent => {
                let id = self.agent_of(name).await?;
                let ids = vec![id.clone()];
                let names = self.ask(move |state, _| state.agent_names(&ids)).await?;
                let shown = names.get(&id).cloned().unwrap_or_else(|| id.clone());
                Ok((kind, id, shown))
            }
        }
    }
}

fn kind(text: &str) -> Result<PausedKind, ApiError> {
    text.parse().map_err(|error: String| convert::invalid(error))
}

/// An administrator of a project pauses that project, and nothing else.
fn may_name(actor: &Actor, kind: PausedKind, name: &str) -> Result<(), ApiError> {
    match (&actor.project, kind) {
        (Some(own), PausedKind::Project) if own == name => Ok(()),
        (None, _) => Ok(()),
        _ => admin(actor),
    }
}

/// What the farm's administrators paused is not a project's to change.
fn may_undo(actor: &Actor, pause: &PauseRecord) -> Result<(), ApiError> {
    if actor.project.is_some() && !pause.own { admin(actor) } else { Ok(()) }
}

fn window(asked: &v1::PauseWindow) -> Result<Window, ApiError> {
    let mut days = 0;
    for day in &asked.days {
        if !(1..=DAYS_OF_A_WEEK).contains(day) {
            return Err(convert::invalid(format!("a day of the week is 1 (Monday) to 7 (Sunday), not {day}")));
        }
        days |= 1 << (day - 1);
    }
    if asked.start_minute >= MINUTES_OF_A_DAY || !(1..=MINUTES_OF_A_DAY).contains(&asked.minutes) {
        return Err(convert::invalid("a window begins at a minute of the day and lasts for a day at most"));
    }
    let days = if asked.days.is_empty() { Window::EVERY_DAY } else { days };
    Ok(Window { days, start_minute: asked.start_minute as u16, minutes: asked.minutes as u16 })
}

fn pause_out(pause: &PauseRecord, now_ms: u64) -> v1::Pause {
    let out = |window: Window| v1::PauseWindow {
        days: (1..=DAYS_OF_A_WEEK).filter(|day| window.days & (1 << (day - 1)) != 0).collect(),
        start_minute: window.start_minute.into(),
        minutes: window.minutes.into(),
    };
    v1::Pause {
        kind: pause.kind.name().into(),
        name: pause.name.clone(),
        shown: pause.shown.clone(),
        reason: pause.reason.clone(),
        actor: pause.actor.clone(),
        since_ms: pause.since_ms,
        until_ms: pause.until_ms,
        window: pause.window.map(out),
        holds: pause.holds_at(now_ms),
    }
}
