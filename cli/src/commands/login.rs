//! `planforge login` and `planforge logout`: a token kept for one server, and sent to no other.

use crate::{
    context::Context,
    credentials,
    failure::Failure,
    logins,
    settings::{self, Key, Origin},
};
use planforge_client::{Client, Endpoint, EndpointOptions, Token};
use planforge_proto::{ErrorCode, v1};
use std::{
    io::{self, IsTerminal as _, Read as _},
    path::Path,
};

/// Most that is read from standard input: a token is a line.
const TOKEN_MAX_BYTES: u64 = 64 * 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "The token is read from --token-file, else from standard input. --ca is remembered with it.")]
pub struct Args {
    /// The coordinator, such as https://farm.example:7400
    #[arg(value_name = "URL")]
    url: String,
}

#[derive(Debug, clap::Args)]
pub struct LogoutArgs {
    /// The coordinator, as it was given to login
    #[arg(value_name = "URL")]
    url: String,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let key = key(&args.url)?;
    let settings = &context.settings;
    // The URL was typed for this command: what vouches for the server may come from anywhere but a project file, which
    // holds no such thing.
    let options =
        EndpointOptions { ca_file: settings.get(Key::Ca).map(Into::into), insecure: settings.switch(Key::Insecure)? };
    let endpoint = Endpoint::parse(args.url.trim(), &options).map_err(|e| Failure::usage(e.to_string()))?;
    let secret = secret(context, &key)?;
    let client = Client::connect(endpoint, Some(Token::new(&secret)?)).await?;
    let info = client.farm().get_server_info(v1::GetServerInfoRequest {}).await;
    let info = info.map_err(|status| client.error(status))?.into_inner();
    let file = logins::keep(&key, &secret, options.ca_file.as_deref())?;
    context.printer.note(&format!(
        "{key} knows you as {} with role {}, project {}; kept in {}",
        info.actor,
        info.role,
        info.project,
        file.display()
    ));
    context.printer.object(&serde_json::json!({
        "server": key,
        "actor": info.actor,
        "role": info.role,
        "project": info.project,
        "credentials_file": file,
    }))
}

pub fn log_out(context: &Context<'_>, args: LogoutArgs) -> Result<(), Failure> {
    let key = key(&args.url)?;
    if !logins::forget(&key)? {
        let message = format!("there is no login for {key}");
        let known = logins::read()?.into_keys().collect::<Vec<_>>().join(", ");
        let hint = if known.is_empty() { "there is none for any server".into() } else { format!("there is: {known}") };
        return Err(Failure::new(ErrorCode::NotFound, message).hint(hint));
    }
    context
        .printer
        .note(&format!("the token for {key} is forgotten here; it goes on to work elsewhere until it is revoked"));
    context.printer.object(&serde_json::json!({ "server": key }))
}

fn key(url: &str) -> Result<String, Failure> {
    let options = EndpointOptions { ca_file: None, insecure: true };
    match (logins::key(url), Endpoint::parse(url.trim(), &options)) {
        (Some(key), _) => Ok(key),
        (None, Err(error)) => Err(Failure::usage(error.to_string())),
        (None, Ok(_)) => {
            Err(Failure::usage(format!("{url} is a socket of this machine: it knows you without a token")))
        }
    }
}

/// The token to keep: from the flags, else from standard input. The environment's is not asked: it may be meant for
/// another server.
fn secret(context: &Context<'_>, key: &str) -> Result<String, Failure> {
    let said = |key| context.settings.said_by(Origin::Flag, key);
    if let Some(file) = said(Key::TokenFile) {
        let allow_readable_key = context.settings.switch(Key::AllowReadable)?;
        return credentials::read_token(Path::new(file), allow_readable_key);
    }
    if let Some(secret) = said(Key::Token) {
        return Ok(secret.to_owned());
    }
    let failed = |e: io::Error| Failure::usage(format!("cannot read the token from standard input: {e}"));
    let mut text = String::new();
    if io::stdin().is_terminal() {
        context.printer.note(&format!("token for {key} (it is not shown):"));
        text = console::Term::stderr().read_secure_line().map_err(failed)?;
    } else {
        io::stdin().lock().take(TOKEN_MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    }
    match text.trim() {
        "" => Err(Failure::usage("no token was given").hint(format!(
            "planforge login {key} {} FILE, or pipe the token into it",
            settings::row(Key::TokenFile).flag
        ))),
        secret => Ok(secret.to_owned()),
    }
}
