//! `planforge agent`: this host's devices for a coordinator elsewhere.

use crate::{
    backends,
    context::Context,
    credentials::{read_token, token},
    failure::Failure,
    farm::Place,
    local::{OwnersWay, bound, state_folder},
    settings::Key,
    signals,
};
use planforge_agent::{AgentConfig, AgentError, HostDevices, enrollment};
use planforge_client::{Endpoint, Identity, Token, tls::TlsError};
use planforge_types::{Label, requirement};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name under which the farm knows this agent; the host's by default
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Label by which jobs may ask for this host ('planforge submit --require label=NAME=VALUE'); repeat for several
    #[arg(long = "label", value_name = "NAME[=VALUE]")]
    labels: Vec<Label>,
    /// Folder of this agent's own state; DATA/agent by default
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Folder of the locks of devices and cores, the same for every agent and container of one host; PLANFORGE_LOCK_DIR names it too
    #[arg(long, value_name = "DIR")]
    lock_dir: Option<PathBuf>,
    /// PEM file with this agent's certificate, followed by its intermediates, where the coordinator asks for one
    #[arg(long, value_name = "FILE", requires = "cert_key", conflicts_with = "enroll")]
    cert: Option<PathBuf>,
    /// PEM file with the certificate's key
    #[arg(long, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// File with a one-time token (planforge token create NAME --role enroll): makes a key and has the coordinator certify it
    #[arg(long, value_name = "FILE")]
    enroll: Option<PathBuf>,
    /// Compile kernels for NVIDIA devices elsewhere ('planforge submit --compile-first'), where NVRTC is installed; a host with such a device does so anyhow
    #[arg(long)]
    compile_ahead: bool,
    /// Fail jobs that need plugins, which are native code, whatever the farm allows
    #[arg(long)]
    refuse_plugins: bool,
    /// Longest one build with its measurement may run, in seconds; a job of several builds may run as often as long
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    job_limit_s: Option<u64>,
    /// How long running jobs may go on after SIGTERM, in seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=604_800))]
    drain_s: Option<u64>,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let data = context.settings.data_folder()?;
    let endpoint = match Place::choose(&context.settings)? {
        Place::Server(endpoint) => endpoint,
        Place::ThisMachine(_) => {
            return Err(Failure::usage("which coordinator? no --server was given").hint(
                "planforge agent --server https://HOST:PORT --ca FILE --token-file FILE; planforge up needs none",
            ));
        }
    };
    let state = args.state.clone().unwrap_or_else(|| state_folder(&data));
    let devices = HostDevices::new(backends::compilers(), Some(state.clone())).compiling_ahead(args.compile_ahead);
    let devices = Arc::new(devices);
    let allow_readable_key = context.settings.switch(Key::AllowReadable)?;
    let (identity, enrolled) = identity(&args.as_shown(), &endpoint, &state, allow_readable_key).await?;
    // An enrolled agent's certificate is its token.
    let token = if enrolled { None } else { token(&context.settings)? };
    let endpoint = match identity.clone() {
        Some(identity) => endpoint.with_identity(identity).map_err(|error| Failure::usage(error.to_string()))?,
        None => endpoint,
    };
    // Not looked at further: a coordinator that does not answer now may do so soon, and the agent tries until then.
    let way = if token.is_none() && identity.is_none() { OwnersWay::find(&endpoint)? } else { None };
    let endpoint = way.as_ref().map_or(endpoint, |way| way.endpoint.clone());
    let mut config = AgentConfig::new(endpoint, token, state, devices)?;
    if let Some(name) = args.name {
        config.name = name;
    }
    requirement::labels(args.labels.iter().cloned()).map_err(|error| Failure::usage(error.to_string()))?;
    config.labels = args.labels;
    if let Some(lock_dir) = args.lock_dir {
        config.lock_dir = lock_dir;
    }
    config.enrolled = identity.clone().filter(|_| enrolled);
    config.refuse_plugins = args.refuse_plugins;
    const MS_PER_S: u64 = 1000;
    let limits = &mut config.limits;
    limits.job_ms = args.job_limit_s.map_or(limits.job_ms, |s| s * MS_PER_S);
    bound(limits, context.settings.agent_bounds()?);
    limits.drain_ms = args.drain_s.map_or(limits.drain_ms, |s| s * MS_PER_S);
    context.printer.note(&format!("agent {} for {}", config.name, config.endpoint));
    let reload = || match identity.as_ref().map(Identity::reload) {
        None => context.printer.note("there is no certificate to read again"),
        Some(Ok(())) => context.printer.note("read the certificate again; it holds for connections from now on"),
        Some(Err(error)) => context.printer.warn(&format!("the certificate stays as it is: {error}")),
    };
    planforge_agent::run(config, signals::service_ended(reload)).await?;
    Ok(())
}

/// What an agent can show beside a token.
struct Shown {
    cert: Option<(PathBuf, PathBuf)>,
    enroll: Option<PathBuf>,
}

impl Args {
    fn as_shown(&self) -> Shown {
        Shown { cert: self.cert.clone().zip(self.cert_key.clone()), enroll: self.enroll.clone() }
    }
}

/// The certificate that this agent shows, and whether the coordinator gave it, which an earlier start or this one asked
/// for.
async fn identity(
    shown: &Shown,
    endpoint: &Endpoint,
    state: &Path,
    allow_readable_key: bool,
) -> Result<(Option<Identity>, bool), Failure> {
    if let Some((cert, key)) = &shown.cert {
        let identity = Identity::load(cert, key, allow_readable_key).map_err(|error| {
            let hint = if let TlsError::Exposed(exposed) = &error { exposed.hint() } else { String::new() };
            Failure::usage(error.to_string()).hint(hint)
        })?;
        return Ok((Some(identity), false));
    }
    if let Some(identity) = enrollment::enrolled(state, allow_readable_key).map_err(AgentError::from)? {
        return Ok((Some(identity), true));
    }
    let Some(file) = &shown.enroll else { return Ok((None, false)) };
    if !matches!(endpoint, Endpoint::Https { .. }) {
        return Err(Failure::usage("a certificate is shown over TLS only: name the coordinator as https://HOST:PORT"));
    }
    let token = Token::new(&read_token(file, allow_readable_key)?)?;
    let identity = enrollment::enroll(endpoint, token, state).await.map_err(AgentError::from)?;
    Ok((Some(identity), true))
}
