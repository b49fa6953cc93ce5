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
    /// Make a token worthless at once
    Revoke {
        /// Id of the token, as `list` shows it
        id: String,
    },
}

fn parse_role(text: &str) -> Result<Role, String> {
    text.parse()
}

/// Seconds of a day.
const DAY_S: u64 = 24 * 60 * 60;

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let farm = Farm::open(context, Need::Answers).await?;
    let result = act(context, &farm, args.action).await;
    farm.close(context.printer).await;
    result
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
    })
}
