//! Pins: who of a project wants which plan kept, why, and until when.
//!
//! A pin is named by plan, project and owner (the token's name), so whoever asks again renews it. Renewing only ever makes
//! it last longer; one that has expired is gone. A project pins what it may fetch, and up to a bound.

use super::{
    Farm, convert,
    convert::invalid,
    pages::{Cursor, Page, bad_cursor, in_hex, of_hex},
    requests::{DEFAULT_PROJECT, bounded, may_submit, visible_project},
    tokens::some_admin,
};
use crate::{
    auth::Actor,
    core::{AuditKind, Change, PinId, PinRecord},
    store::{EngineFilter, PinFilter},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_types::Digest;
use std::collections::{BTreeMap, BTreeSet};

/// Pins of one project; ten times the engines of a large fleet.
const PINS_MAX: u64 = 10_000;
/// Plans that one call names.
const NAMED_MAX: usize = 1_024;
/// How long a pin lasts where nobody says, and the longest.
const USUAL_MS: u64 = 90 * DAY_MS;
const LONGEST_MS: u64 = 3_660 * DAY_MS;
/// A renewal by less than this is not written: a pipeline that runs every minute changes nothing every minute.
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// The plans that a call names, each once.
fn plans_of(digests: &[String]) -> Result<BTreeSet<Digest>, ApiError> {
    if digests.is_empty() || digests.len() > NAMED_MAX {
        return Err(invalid(format!("a call names 1 to {NAMED_MAX} plans, not {}", digests.len())));
    }
    digests.iter().map(|text| convert::digest("the plan's digest", text)).collect()
}

impl Farm {
    /// Pins plans, or renews the caller's pins on them. Needs role submit.
    ///
    /// # Errors
    /// Without the role; when the project has none of the plans, or too many pins.
    pub async fn pin_engines(
        &self,
        actor: &Actor,
        request: v1::PinEnginesRequest,
    ) -> Result<v1::PinEnginesReply, ApiError> {
        let object = format!("{} plans: {}", request.plan_digests.len(), request.reason);
        let pinned = self.pin(actor, request).await;
        match &pinned {
            Ok((_, 0)) => {}
            Ok((_, new)) => self.note(actor, "pin", &object, &format!("{new} were not pinned")),
            Err(error) => self.audit_refusal(actor, AuditKind::Use, "pin", &object, error),
        }
        pinned.map(|(reply, _)| reply)
    }

    /// With how many pins are new.
    async fn pin(&self, actor: &Actor, request: v1::PinEnginesRequest) -> Result<(v1::PinEnginesReply, u64), ApiError> {
        may_submit(actor)?;
        let seen = visible_project(actor, &request.project)?;
        let project = seen.clone().unwrap_or_else(|| DEFAULT_PROJECT.into());
        let plans = plans_of(&request.plan_digests)?;
        let reason = convert::pin_reason(&request.reason)?;
        let lasts_ms = match request.ttl_s.saturating_mul(1_000) {
            0 => USUAL_MS,
            lasts_ms if lasts_ms <= LONGEST_MS => lasts_ms,
            _ => return Err(invalid(format!("a pin lasts at most {} days", LONGEST_MS / DAY_MS))),
        };
        let _turn = self.turn_of(&project).await;
        let now_ms = self.clock().wall_ms();
        let own = PinFilter {
            project: Some(project.clone()),
            owner: Some(actor.name.clone()),
            plans: plans.iter().copied().collect(),
            now_ms,
            limit: plans.len(),
            ..PinFilter::default()
        };
        let own = self.timed("pins", self.store().pins(own)).await?;
        let own: BTreeMap<Digest, PinRecord> = own.into_iter().map(|pin| (pin.plan, pin)).collect();
        let (mut pins, mut changes, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        let mut new = 0;
        let expires_ms = now_ms + lasts_ms;
        for plan in plans {
            let known = own.get(&plan);
            let pin = match known {
                Some(pin) => PinRecord {
                    expires_ms: pin.expires_ms.max(expires_ms),
                    reason: if reason.is_empty() { pin.reason.clone() } else { reason.clone() },
                    ..pin.clone()
                },
                None => match self.unpinned(actor, seen.as_deref(), plan).await? {
                    Some(pin) => {
                        new += 1;
                        let (reason, owner) = (reason.clone(), actor.name.clone());
                        PinRecord { project: project.clone(), owner, reason, created_ms: now_ms, expires_ms, ..pin }
                    }
                    None => {
                        unknown.push(plan.to_string());
                        continue;
                    }
                },
            };
            let longer = known.is_none_or(|known| {
                pin.expires_ms >= known.expires_ms + DAY_MS.min(lasts_ms / 2) || pin.reason != known.reason
            });
            let pin = if longer { pin } else { known.cloned().unwrap_or(pin) };
            pins.push(convert::pin_out(&pin));
            if longer {
                changes.push(Change::Pin(Box::new(pin)));
            }
        }
        if pins.is_empty() {
            let message = format!("project {project} has none of the {} plans", unknown.len());
            return Err(ApiError::new(ErrorCode::NotFound, message).with_hint("planforge engines lists what is there"));
        }
        let live = self.timed("pins", self.store().pin_count(&project, now_ms)).await?;
        if new > 0 && live + new > PINS_MAX {
            let message = format!("project {project} has {live} pins, and {new} more would be above {PINS_MAX}");
            return Err(ApiError::new(ErrorCode::ResourceExhausted, message)
                .with_hint("planforge pins list says who pinned what; planforge pins remove takes pins away"));
        }
        if !changes.is_empty() {
            changes.insert(0, Change::PinsExpired { now_ms });
            self.commit(changes).await?;
        }
        Ok((v1::PinEnginesReply { pins, unknown }, new))
    }

    /// What a pin says of a plan's engine, as the caller's project knows it; `None` where that has none.
    async fn unpinned(&self, actor: &Actor, seen: Option<&str>, plan: Digest) -> Result<Option<PinRecord>, ApiError> {
        let filter =
            EngineFilter { plan: Some(plan), project: seen.map(str::to_owned), limit: 1, ..EngineFilter::default() };
        let Some(engine) = self.timed("engines", self.store().engines(filter)).await?.pop() else { return Ok(None) };
        let view = self.as_its_own(actor, &engine, convert::engine_out(&engine, String::new())).await?;
        Ok(Some(PinRecord {
            plan,
            project: String::new(),
            owner: String::new(),
            key: engine.key,
            model: view.model.map(|model| model.name).unwrap_or_default(),
            sku: engine.sku,
            reason: String::new(),
            created_ms: 0,
            expires_ms: 0,
        }))
    }

    /// Pins of the caller's projects, newest first.
    ///
    /// # Errors
    /// For an agent's token, a wrong cursor, or when the store cannot be asked.
    pub async fn list_pins(&self, actor: &Actor, request: v1::ListPinsRequest) -> Result<v1::ListPinsReply, ApiError> {
        let project = visible_project(actor, &request.project)?;
        let limit = bounded(request.limit);
        let plan = convert::optional_digest("the plan's digest", &request.plan_digest)?;
        let filter = PinFilter {
            project,
            owner: Some(request.owner).filter(|owner| !owner.is_empty()),
            plans: plan.into_iter().collect(),
            now_ms: self.clock().wall_ms(),
            behind: behind(&request.cursor)?,
            limit: limit + 1,
        };
        let mut pins = self.timed("pins", self.store().pins(filter)).await?;
        let more = pins.len() > limit;
        pins.truncate(limit);
        let mut page = Page::new();
        for pin in &pins {
            if !page.push(convert::pin_out(pin)) {
                break;
            }
        }
        let cut = page.len() < pins.len() || more;
        let last = pins.get(page.len().saturating_sub(1)).filter(|_| cut);
        let next_cursor = last.map(cursor_of).unwrap_or_default();
        Ok(v1::ListPinsReply { pins: page.into_items(), next_cursor })
    }

    /// Takes pins away: the caller's own, or, for administrators, those of a named owner. Needs role submit.
    ///
    /// # Errors
    /// Without the role, or when there is no such pin.
    pub async fn unpin_engines(
        &self,
        actor: &Actor,
        request: v1::UnpinEnginesRequest,
    ) -> Result<v1::UnpinEnginesReply, ApiError> {
        let object = format!("{} plans of {}", request.plan_digests.len(), request.owner);
        let unpin = self.unpin(actor, request);
        self.audited(actor, AuditKind::Use, "unpin", &object, unpin).await
    }

    async fn unpin(&self, actor: &Actor, request: v1::UnpinEnginesRequest) -> Result<v1::UnpinEnginesReply, ApiError> {
        may_submit(actor)?;
        let project = visible_project(actor, &request.project)?.unwrap_or_else(|| DEFAULT_PROJECT.into());
        let owner = Some(request.owner).filter(|owner| !owner.is_empty()).unwrap_or_else(|| actor.name.clone());
        if owner != actor.name {
            some_admin(actor)?;
        }
        let plans = plans_of(&request.plan_digests)?;
        let _turn = self.turn_of(&project).await;
        let now_ms = self.clock().wall_ms();
        let filter = PinFilter {
            project: Some(project.clone()),
            owner: Some(owner.clone()),
            limit: plans.len(),
            plans: plans.into_iter().collect(),
            now_ms,
            ..PinFilter::default()
        };
        let pins = self.timed("pins", self.store().pins(filter)).await?;
        if pins.is_empty() {
            let message = format!("{owner} has no pin on any of them in project {project}");
            return Err(
                ApiError::new(ErrorCode::NotFound, message).with_hint("planforge pins list says whose pins there are")
            );
        }
        let gone = pins.iter().map(|pin| Change::Unpin(pin.id()));
        self.commit(gone.chain([Change::PinsExpired { now_ms }]).collect()).await?;
        Ok(v1::UnpinEnginesReply { pins: pins.iter().map(convert::pin_out).collect() })
    }
}

fn cursor_of(pin: &PinRecord) -> String {
    let names = [pin.plan.to_string(), in_hex(&pin.project), in_hex(&pin.owner)];
    Cursor { created_ms: pin.created_ms, names: names.each_ref().map(String::as_str) }.write()
}

fn behind(cursor: &str) -> Result<Option<(u64, PinId)>, ApiError> {
    let Some(Cursor { created_ms, names: [plan, project, owner] }) = Cursor::read(cursor)? else { return Ok(None) };
    let plan = plan.parse().map_err(|_| bad_cursor())?;
    Ok(Some((created_ms, PinId { plan, project: of_hex(project)?, owner: of_hex(owner)? })))
}
