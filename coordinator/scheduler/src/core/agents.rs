//! Agents as their administrator sees them, and what ends an agent's stay from outside: a token that is revoked or given
//! to another, an administrator who forgets it.
//!
//! Which wins when an end is in flight: the inputs are applied one after another, and what was applied before is committed
//! before or with what came after. So the end of an attempt that came first stands, engine and all; one that comes after
//! is heard from nobody.

use super::{
    effects::{Effects, Reply, ToAgent},
    model::{Agent, Change, Failure, JobId, JobKind, JoinedBy, Outcome},
    state::{Now, SessionId, State},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::FailureClass;
use std::collections::BTreeMap;

/// An agent as it stands, for lists.
#[derive(Clone, Debug)]
pub struct AgentView {
    pub agent: Agent,
    pub online: bool,
    /// It is being shut down.
    pub draining: bool,
    /// Jobs that it holds.
    pub jobs: Vec<JobId>,
    pub seen_ms: u64,
}

/// Why a stream ends, as its agent is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    pub reason: String,
    pub hint: String,
    /// Trying again changes nothing before somebody does what the hint says.
    pub lasting: bool,
}

impl Farewell {
    pub fn lasting(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: hint.into(), lasting: true }
    }

    pub fn passing(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: hint.into(), lasting: false }
    }
}

impl State {
    /// By what an agent of that identity joined last; `None`: nobody knows it.
    pub fn joined_by(&self, agent: &str) -> Option<&JoinedBy> {
        Some(&self.agents.get(agent)?.record.joined_by)
    }

    /// Hosts of those among `agents` that are known.
    pub fn agent_names(&self, agents: &[String]) -> BTreeMap<String, String> {
        let name = |agent: &String| Some((agent.clone(), self.agents.get(agent)?.record.name.clone()));
        agents.iter().filter_map(name).collect()
    }

    /// Every known agent, those that are away too.
    pub fn agents(&self, now: Now) -> Vec<AgentView> {
        self.agents.keys().filter_map(|agent| self.agent(agent, now)).collect()
    }

    fn agent(&self, agent: &str, now: Now) -> Option<AgentView> {
        let entry = self.agents.get(agent)?;
        let online = entry.session.is_some();
        let silent_ms = now.mono_ms.saturating_sub(entry.last_message_mono_ms);
        Some(AgentView {
            agent: entry.record.clone(),
            online,
            draining: entry.draining,
            jobs: self.held_by(agent),
            seen_ms: if online { now.wall_ms.saturating_sub(silent_ms) } else { entry.record.seen_ms },
        })
    }

    fn held_by(&self, agent: &str) -> Vec<JobId> {
        self.holds.iter().filter(|(_, hold)| hold.device.agent == agent).map(|(id, _)| id.clone()).collect()
    }

    /// Ends a stream. What its agent holds stays with it until the leases run out.
    pub(super) fn refuse(&mut self, session: SessionId, why: Farewell, now: Now, effects: &mut Effects) {
        effects.sends.push((session, ToAgent::Refused(why)));
        self.disconnected(session, now, effects);
    }

    /// Ends the stay of a session's agent.
    pub(super) fn expel_session(&mut self, session: SessionId, why: Farewell, now: Now, effects: &mut Effects) {
        match self.sessions.get(&session).cloned() {
            Some(agent) => self.expel(&agent, &why, now, effects),
            None => self.refuse(session, why, now, effects),
        }
    }

    /// Takes back what an agent holds and ends its stream.
    fn expel(&mut self, agent: &str, why: &Farewell, now: Now, effects: &mut Effects) {
        for id in self.held_by(agent) {
            self.take_back(&id, agent, &why.reason, now, effects);
        }
        if let Some(session) = self.agents.get(agent).and_then(|entry| entry.session) {
            self.refuse(session, why.clone(), now, effects);
        }
    }

    /// Takes a lease back for what is no fault of the job. What its attempt built goes with it: nobody vouches for it.
    fn take_back(&mut self, id: &JobId, agent: &str, why: &str, now: Now, effects: &mut Effects) {
        if let Some(job) = self.job_mut(id) {
            let build = job.kind == JobKind::Build;
            if let Some(attempt) = job.attempts.last_mut() {
                attempt.taken_back = true;
                if build && attempt.built.is_some() && attempt.built == job.plan.as_ref().map(|plan| plan.digest) {
                    job.plan = None;
                }
            }
        }
        let failure = Failure::new(FailureClass::Infrastructure, format!("taken back from agent {agent}: {why}"), "");
        self.close_attempt(id, Outcome::Lost, Some(failure.clone()), None, now, effects);
        self.retry(id, &failure, now, effects);
    }

    /// A token ends, in one transaction with the stay of every agent that joined with it.
    pub(super) fn revoke_token(&mut self, token: String, why: &Farewell, now: Now, effects: &mut Effects) {
        self.expel_joined_with(&token, None, why, now, effects);
        self.revoked_tokens.insert(token.clone());
        effects.changes.push(Change::TokenRevoked { id: token });
    }

    /// A token belongs to `agent` from now on, or to the next one that uses it.
    pub(super) fn rebind_token(
        &mut self,
        token: String,
        agent: Option<String>,
        why: &Farewell,
        now: Now,
        effects: &mut Effects,
    ) {
        self.expel_joined_with(&token, agent.as_deref(), why, now, effects);
        effects.changes.push(Change::TokenBound { id: token, agent });
    }

    fn expel_joined_with(
        &mut self,
        token: &str,
        except: Option<&str>,
        why: &Farewell,
        now: Now,
        effects: &mut Effects,
    ) {
        let joined = self.agents.iter().filter(|(id, entry)| {
            except != Some(id) && matches!(&entry.record.joined_by, JoinedBy::Token(by) if by == token)
        });
        let joined: Vec<String> = joined.map(|(id, _)| id.clone()).collect();
        for agent in joined {
            self.expel(&agent, why, now, effects);
        }
    }

    /// Lets an agent get no more leases, or get them again.
    pub(super) fn drain_agent(&mut self, agent: &str, drained: bool, now: Now, effects: &mut Effects) {
        let Some(entry) = self.agents.get_mut(agent) else {
            effects.reply = Reply::Agent(Err(unknown(agent)));
            return;
        };
        if entry.record.drained != drained {
            entry.record.drained = drained;
            effects.changes.push(Change::Agent(Box::new(entry.record.clone())));
            self.refresh_agent(agent);
        }
        effects.reply = Reply::Agent(self.agent(agent, now).map(Box::new).ok_or_else(|| unknown(agent)));
    }

    /// Forgets an agent and what it offered.
    pub(super) fn forget_agent(&mut self, agent: &str, force: bool, now: Now, effects: &mut Effects) {
        let Some(view) = self.agent(agent, now) else {
            effects.reply = Reply::Agent(Err(unknown(agent)));
            return;
        };
        if let (Err(error), false) = (may_forget(&view), force) {
            effects.reply = Reply::Agent(Err(error));
            return;
        }
        let why = Farewell::lasting(
            "an administrator forgot this agent",
            "start it again to join anew, where its token is still good",
        );
        self.expel(agent, &why, now, effects);
        self.agents.remove(agent);
        effects.changes.push(Change::ForgetAgent(agent.to_owned()));
        self.reindex_agent(agent);
        self.place_all(now, effects);
        effects.reply = Reply::Agent(Ok(Box::new(view)));
    }
}

/// Whether an agent can be forgotten without taking anything from it.
fn may_forget(view: &AgentView) -> Result<(), ApiError> {
    let name = &view.agent.name;
    if view.online && !view.agent.drained {
        let message = format!("agent {name} is connected");
        let hint = format!("planforge agents drain {name} first, or use --force");
        return Err(ApiError::new(ErrorCode::Conflict, message).with_hint(hint));
    }
    if view.online && !view.jobs.is_empty() {
        let jobs: Vec<&str> = view.jobs.iter().map(JobId::as_str).collect();
        let message = format!("agent {name} still works on {}", jobs.join(", "));
        let hint = "wait until they have ended, or use --force, which has them begin again elsewhere";
        return Err(ApiError::new(ErrorCode::Conflict, message).with_hint(hint));
    }
    Ok(())
}

fn unknown(agent: &str) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("no agent has the id {}", agent.escape_debug()))
        .with_hint("'planforge agents list' shows them")
}
