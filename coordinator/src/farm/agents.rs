//! What an administrator asks about agents, and asks of them.

use super::{Farm, convert, tokens::admin};
use crate::{
    auth::Actor,
    core::{AgentView, AuditKind, Input, JoinedBy, Reply},
};
use planforge_proto::{ApiError, ErrorCode, v1};

impl Farm {
    /// Every known agent, those that are away too. Needs role admin.
    pub async fn list_agents(&self, actor: &Actor) -> Result<v1::ListAgentsReply, ApiError> {
        admin(actor)?;
        let mut views = self.ask(|state, now| state.agents(now)).await?;
        views.sort_by(|left, right| (&left.agent.name, &left.agent.id).cmp(&(&right.agent.name, &right.agent.id)));
        Ok(v1::ListAgentsReply { agents: views.iter().map(|view| self.agent_out(view)).collect() })
    }

    /// Lets an agent get no more leases. Needs role admin.
    pub async fn drain_agent(
        &self,
        actor: &Actor,
        request: v1::DrainAgentRequest,
    ) -> Result<v1::DrainAgentReply, ApiError> {
        Ok(v1::DrainAgentReply { agent: Some(self.set_drained(actor, &request.agent, true).await?) })
    }

    /// Lets an agent get leases again. Needs role admin.
    pub async fn resume_agent(
        &self,
        actor: &Actor,
        request: v1::ResumeAgentRequest,
    ) -> Result<v1::ResumeAgentReply, ApiError> {
        Ok(v1::ResumeAgentReply { agent: Some(self.set_drained(actor, &request.agent, false).await?) })
    }

    /// Forgets an agent and what it offered; with `force` also one that is connected. Needs role admin.
    pub async fn forget_agent(
        &self,
        actor: &Actor,
        request: v1::ForgetAgentRequest,
    ) -> Result<v1::ForgetAgentReply, ApiError> {
        let asked = request.agent.clone();
        let forget = async {
            admin(actor)?;
            let agent = self.agent_of(&request.agent).await?;
            self.told(Input::ForgetAgent { agent, force: request.force }).await
        };
        let forgotten = self.audited(actor, AuditKind::Admin, "agent.forget", &asked, forget).await?;
        tracing::info!(agent = forgotten.id, name = forgotten.name, actor = actor.name, "an agent was forgotten");
        Ok(v1::ForgetAgentReply { agent: Some(forgotten) })
    }

    async fn set_drained(&self, actor: &Actor, asked: &str, drained: bool) -> Result<v1::Agent, ApiError> {
        let tell = async {
            admin(actor)?;
            let agent = self.agent_of(asked).await?;
            self.told(Input::DrainAgent { agent, drained }).await
        };
        let what = if drained { "agent.drain" } else { "agent.resume" };
        let agent = self.audited(actor, AuditKind::Admin, what, asked, tell).await?;
        tracing::info!(agent = agent.id, name = agent.name, drained, actor = actor.name, "an agent was told");
        Ok(agent)
    }

    async fn told(&self, input: Input) -> Result<v1::Agent, ApiError> {
        match self.input(input).await? {
            Reply::Agent(agent) => Ok(self.agent_out(&*agent?)),
            _ => Err(ApiError::new(ErrorCode::Internal, "the scheduler answered something else")),
        }
    }

    fn agent_out(&self, view: &AgentView) -> v1::Agent {
        let token = match &view.agent.joined_by {
            JoinedBy::Token(id) => self.tokens().with(|known| known.name_of(id)),
            JoinedBy::Owner | JoinedBy::Unknown => None,
        };
        v1::Agent { token: token.unwrap_or_default(), ..convert::agent_out(view) }
    }

    /// The id of the agent of that id, unique beginning of one, or unique name.
    pub(super) async fn agent_of(&self, asked: &str) -> Result<String, ApiError> {
        let known: Vec<(String, String)> = self
            .ask(|state, now| state.agents(now).into_iter().map(|view| (view.agent.id, view.agent.name)).collect())
            .await?;
        if let Some((id, _)) = known.iter().find(|(id, _)| id == asked) {
            return Ok(id.clone());
        }
        let fits = |(id, name): &&(String, String)| name == asked || (!asked.is_empty() && id.starts_with(asked));
        let found: Vec<&(String, String)> = known.iter().filter(fits).collect();
        match found.as_slice() {
            [(id, _)] => Ok(id.clone()),
            [] => {
                let message = format!("no agent has the id or name '{}'", asked.escape_debug());
                Err(ApiError::new(ErrorCode::NotFound, message).with_hint("'planforge agents list' shows them"))
            }
            several => {
                let ids: Vec<&str> = several.iter().map(|(id, _)| id.as_str()).take(8).collect();
                let message = format!(
                    "{} agents have the name '{asked}' or an id that begins so: {}",
                    several.len(),
                    ids.join(", ")
                );
                Err(convert::invalid(message).with_hint("name one of them by its whole id"))
            }
        }
    }
}
