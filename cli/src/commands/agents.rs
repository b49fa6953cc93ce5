//! `planforge agents`: which agents the farm knows, and which of them get work.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    tables,
};
use clap::Subcommand;
use planforge_proto::{v1, view::AgentView};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List agents, those that are away too
    List,
    /// Give an agent no more jobs, until it is resumed; what runs goes on
    Drain {
        /// Id of the agent or its first characters, or its name
        agent: String,
    },
    /// Give a drained agent jobs again
    Resume {
        /// Id of the agent or its first characters, or its name
        agent: String,
    },
    /// Forget an agent: what only it offered is no longer accepted in requests
    Forget {
        /// Id of the agent or its first characters, or its name
        agent: String,
        /// Also one that is connected: what it works on begins again elsewhere
        #[arg(long)]
        force: bool,
    },
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Answers, async |farm| act(context, farm, args.action.clone()).await).await
}

async fn act(context: &Context<'_>, farm: &Farm, action: Action) -> Result<(), Failure> {
    let mut rpc = farm.rpc();
    let failed = |status| farm.error(status);
    let (agent, done) = match action {
        Action::List => {
            let agents = rpc.list_agents(v1::ListAgentsRequest {}).await.map_err(failed)?.into_inner().agents;
            if agents.is_empty() {
                context.printer.note("no agents: none has joined yet");
            } else {
                context.printer.data(&tables::agents(&agents, tables::now_ms()))?;
            }
            let agents: Vec<_> = agents.into_iter().map(AgentView::from).collect();
            return context.printer.object(&serde_json::json!({ "agents": agents }));
        }
        Action::Drain { agent } => {
            let reply = rpc.drain_agent(v1::DrainAgentRequest { agent }).await.map_err(failed)?.into_inner();
            (reply.agent, "gets no more jobs until it is resumed")
        }
        Action::Resume { agent } => {
            let reply = rpc.resume_agent(v1::ResumeAgentRequest { agent }).await.map_err(failed)?.into_inner();
            (reply.agent, "gets jobs again")
        }
        Action::Forget { agent, force } => {
            let reply = rpc.forget_agent(v1::ForgetAgentRequest { agent, force }).await.map_err(failed)?.into_inner();
            (reply.agent, "is forgotten; it may join anew as long as its token is good (planforge token revoke)")
        }
    };
    let agent = agent.unwrap_or_default();
    context.printer.note(&format!("agent {} ({}) {done}", agent.name, agent.id));
    context.printer.object(&serde_json::json!({ "agent": AgentView::from(agent) }))
}
