//! Log lines on stderr: filter and format from the settings.

use crate::{
    failure::Failure,
    settings::{Key, Settings},
};
use std::io::{self, IsTerminal as _};
use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// Whether this process serves others: services say what they do, commands only what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Yes,
    No,
}

/// Starts logging to stderr.
pub fn start(settings: &Settings, verbose: u8, service: Service) -> Result<(), Failure> {
    let usual = match (verbose, service) {
        (0, Service::Yes) => "info",
        // The embedded farm's own warnings would repeat what the command says itself.
        (0, Service::No) => "error",
        (1, _) => "info",
        (2, _) => "info,planforge=debug,planforge_agent=debug,planforge_coordinator=debug,planforge_client=debug",
        _ => "trace",
    };
    let wanted = settings.get(Key::Log).unwrap_or(usual);
    let filter: Targets = wanted.parse().map_err(|e| {
        Failure::usage(format!("'{wanted}' is not a log filter: {e}"))
            .hint("write for example --log info,planforge_agent=debug")
    })?;
    let (filtered, lines) = (tracing_subscriber::registry().with(filter), fmt::layer().with_writer(io::stderr));
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    match settings.get(Key::LogFormat).unwrap_or("text") {
        "text" => filtered.with(lines.with_ansi(colour)).init(),
        "json" => filtered.with(lines.json().flatten_event(true)).init(),
        other => {
            return Err(Failure::usage(format!("'{other}' is not a log format")).hint("formats are text and json"));
        }
    }
    Ok(())
}
