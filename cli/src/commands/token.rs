//! `planforge token`: who may do what.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    local::Local,
    settings::{AgentBounds, Key},
    tables,
};
use clap::Subcommand;
use planforge_coordinator::{auth::Role, server};
use planforge_proto::v1;
use planforge_types::durable;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Create a token and print its secret, once
    Create {
        /// Who or what uses it; stands on every event it causes
        name: String,
        /// What it allows: read, submit, agent, admin, or enroll, which has one agent's key certified, once
        #[arg(long, value_name = "ROLE", value_parser = parse_role)]
        role: Role,
        /// Days until it expires; never by default, and after one day with role enroll
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
        expires_days: Option<u64>,
        /// Write the secret into a new file that only you can read, instead of printing it
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List tokens, without their secrets
    List,
    /// Make a token worthless at once; an agent that joined with it loses what it works on
    Revoke {
        /// Id or name of the token, as `list` shows it
        id: String,
    },
    /// Replace the first administrator's token, 'admin', as the owner of the data folder: the old one is worthless at once,
    /// the new one lies in DATA/admin.token
    ReplaceAdmin,
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

/// Where jobs go when neither a token nor a request names a project (`SubmitRequest.project` in the contract).
const DEFAULT_PROJECT: &str = "default";

/// Seconds of a day.
const DAY_S: u64 = 24 * 60 * 60;

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    if let Action::ReplaceAdmin = args.action {
        return replace_admin(context).await;
    }
    Farm::with(context, Need::Answers, async |farm| act(context, farm, args.action.clone()).await).await
}

async fn act(context: &Context<'_>, farm: &Farm, action: Action) -> Result<(), Failure> {
    match action {
        Action::Create { name, role, expires_days, output } => {
            // Before the token: nobody gets one whose secret has no place.
            let file = output.as_deref().map(SecretFile::create).transpose()?;
            let expires_days = expires_days.or((role == Role::Enroll).then_some(1));
            let request = v1::CreateTokenRequest {
                name,
                role: role.to_string(),
                project: context.settings.get(Key::Project).unwrap_or_default().into(),
                ttl_s: expires_days.unwrap_or(0).saturating_mul(DAY_S),
            };
            let project = project_of(farm, &request.project).await?;
            let reply = farm.rpc().create_token(request).await.map_err(|e| farm.error(e))?.into_inner();
            let mut object = serde_json::json!({ "id": reply.id, "project": project });
            if project.is_none() && works_in_projects(role) {
                object["default_project"] = DEFAULT_PROJECT.into();
            }
            match file {
                Some(file) => {
                    let path = file.keep(&reply.secret)?;
                    context.printer.note(&format!("token {} created; its secret lies in {}", reply.id, path.display()));
                    object["token_file"] = path.to_string_lossy().into();
                }
                None => {
                    context.printer.note(&format!("token {} created; its secret is shown only now", reply.id));
                    context.printer.data(&reply.secret)?;
                    object["secret"] = reply.secret.into();
                }
            }
            if works_in_projects(role) {
                context.printer.note(&reach(project.as_deref()));
            }
            context.printer.object(&object)
        }
        Action::ReplaceAdmin => unreachable!("done without a farm by URL"),
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

/// The project that a token gets: the one that was asked for, else that of who makes it; `None`: every one.
async fn project_of(farm: &Farm, asked: &str) -> Result<Option<String>, Failure> {
    let project = match asked {
        "" => {
            let info = farm.rpc().get_server_info(v1::GetServerInfoRequest {}).await;
            info.map_err(|e| farm.error(e))?.into_inner().project
        }
        asked => asked.to_owned(),
    };
    Ok((!project.is_empty()).then_some(project))
}

/// Whether who has such a token names projects; an agent works for all of them.
fn works_in_projects(role: Role) -> bool {
    !matches!(role, Role::Agent | Role::Enroll)
}

/// What a token of `project` reaches.
fn reach(project: Option<&str>) -> String {
    match project {
        Some(project) => format!("it reaches project '{project}' alone"),
        None => format!(
            "it belongs to no project: it reaches every one, and what it submits without --project goes to \
             '{DEFAULT_PROJECT}'"
        ),
    }
}

/// A new file for a secret; removed again unless it gets one.
struct SecretFile {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl SecretFile {
    fn create(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
            let failure = Failure::io("create the token file", path, &error);
            if error.kind() == io::ErrorKind::AlreadyExists {
                return failure.hint("name a file that is not there yet, or remove that one first");
            }
            failure
        })?;
        Ok(Self { path: path.to_owned(), file, kept: false })
    }

    fn keep(mut self, secret: &str) -> Result<PathBuf, Failure> {
        let written = writeln!(self.file, "{secret}").and_then(|()| self.file.sync_all());
        written.map_err(|error| {
            Failure::io("write the token file", &self.path, &error)
                .hint("the token was made all the same: planforge token revoke NAME, and make it again")
        })?;
        self.kept = true;
        Ok(self.path.clone())
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.kept {
            // It is empty, or the error that is on its way names it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Name of the token that a farm begins with.
const FIRST_TOKEN: &str = "admin";

/// Whoever owns the data folder is let in by the kernel, whatever became of the tokens; whether the coordinator runs or
/// not.
async fn replace_admin(context: &Context<'_>) -> Result<(), Failure> {
    let data = context.settings.data_folder()?;
    if !data.join("farm.db").is_file() {
        return Err(Failure::usage(format!("there is no farm in the data folder {}", data.display()))
            .hint("name the coordinator's data folder: --data DIR"));
    }
    let local = Local::join(&data, Need::Answers, AgentBounds::default()).await?;
    let replaced = replace_in(&local, &data).await;
    local.close(context.printer).await;
    let (id, file) = replaced?;
    context
        .printer
        .note(&format!("the token '{FIRST_TOKEN}' is a new one ({id}); its secret lies in {}", file.display()));
    context.printer.object(&serde_json::json!({ "id": id, "token_file": file }))
}

async fn replace_in(local: &Local, data: &Path) -> Result<(String, PathBuf), Failure> {
    let client = local.client();
    let failed = |status| Failure::from(client.error(status));
    let mut rpc = client.farm();
    let tokens = rpc.list_tokens(v1::ListTokensRequest {}).await.map_err(failed)?.into_inner().tokens;
    let old = tokens.into_iter().find(|token| token.name == FIRST_TOKEN && !token.revoked);
    if let Some(old) = old {
        // First: whoever runs this may have lost it to somebody.
        rpc.revoke_token(v1::RevokeTokenRequest { id: old.id }).await.map_err(failed)?;
    }
    let request = v1::CreateTokenRequest {
        name: FIRST_TOKEN.into(),
        role: Role::Admin.to_string(),
        ..v1::CreateTokenRequest::default()
    };
    let reply = rpc.create_token(request).await.map_err(failed)?.into_inner();
    let file = server::admin_token_file(data);
    durable::write_private(&file, format!("{}\n", reply.secret).as_bytes())
        .map_err(|error| Failure::io("write the token file", &file, &error).hint("run it again once there is room"))?;
    Ok((reply.id, file))
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
