//! `planforge token`: who may do what.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    settings::Key,
    tables,
};
use clap::Subcommand;
use planforge_coordinator::auth::Role;
use planforge_proto::v1;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a token and print its secret, once
    Create {
        /// Who or what uses it; stands on every event it causes
        name: String,
        /// What it allows: read, submit, agent or admin
        #[arg(long, value_name = "ROLE", value_parser = parse_role)]
        role: Role,
        /// Days until it expires; never by default
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
        expires_days: Option<u64>,
    },
    /// List tokens, without their secrets
    List,
    /// Make a token worthless at once; an agent that joined with it loses what it works on
    Revoke {
        /// Id or name of the token, as `list` shows it
        id: String,
    },
    /// Give an agent's token, which belongs to the agent that used it first, to another agent
    Rebind {
        /// Id or name of the token, as `list` shows it
        id: String,
        /// Id of the agent; the next one that uses the token by default
        #[arg(long, value_name = "ID")]
        agent: Option<String>,
    },
}

fn parse_role(text: &str) -> Result<Role, String> {
    text.parse()
}

/// Seconds of a day.
const DAY_S: u64 = 24 * 60 * 60;

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Answers, async |farm| act(context, farm, args.action).await).await
}

async fn act(context: &Context<'_>, farm: &Farm, action: Action) -> Result<(), Failure> {
    match action {
        Action::Create { name, role, expires_days } => {
            let request = v1::CreateTokenRequest {
                name,
                role: role.to_string(),
                project: context.settings.get(Key::Project).unwrap_or_default().into(),
                ttl_s: expires_days.unwrap_or(0).saturating_mul(DAY_S),
            };
            let reply = farm.rpc().create_token(request).await.map_err(|e| farm.error(e))?.into_inner();
            context.printer.note(&format!("token {} created; its secret is shown only now", reply.id));
            context.printer.data(&reply.secret)?;
            context.printer.object(&serde_json::json!({ "id": reply.id, "secret": reply.secret }))
        }
        Action::List => {
            let tokens =
                farm.rpc().list_tokens(v1::ListTokensRequest {}).await.map_err(|e| farm.error(e))?.into_inner().tokens;
            context.printer.data(&tables::tokens(&tokens, tables::now_ms()))?;
            let tokens: Vec<_> = tokens.iter().map(token_json).collect();
            context.printer.object(&serde_json::json!({ "tokens": tokens }))
        }
        Action::Revoke { id } => {
            let reply =
                farm.rpc().revoke_token(v1::RevokeTokenRequest { id }).await.map_err(|e| farm.error(e))?.into_inner();
            let token = reply.token.unwrap_or_default();
            context.printer.note(&format!("token {} ({}) is revoked", token.id, token.name));
            context.printer.object(&serde_json::json!({ "token": token_json(&token) }))
        }
        Action::Rebind { id, agent } => {
            let request = v1::RebindTokenRequest { id, agent: agent.unwrap_or_default() };
            let reply = farm.rpc().rebind_token(request).await.map_err(|e| farm.error(e))?.into_inner();
            let token = reply.token.unwrap_or_default();
            let owner = match token.agent.as_str() {
                "" => "the next agent that uses it".to_owned(),
                agent => format!("agent {agent}"),
            };
            context.printer.note(&format!("token {} ({}) belongs to {owner}", token.id, token.name));
            context.printer.object(&serde_json::json!({ "token": token_json(&token) }))
        }
    }
}

fn token_json(token: &v1::Token) -> serde_json::Value {
    let time = |ms: u64| (ms != 0).then_some(ms);
    serde_json::json!({
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "project": token.project,
        "created_ms": time(token.created_ms),
        "expires_ms": time(token.expires_ms),
        "last_used_ms": time(token.last_used_ms),
        "revoked": token.revoked,
        "agent": (!token.agent.is_empty()).then_some(&token.agent),
        "agent_name": (!token.agent_name.is_empty()).then_some(&token.agent_name),
    })
}
