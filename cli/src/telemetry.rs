//! Log lines on stderr: filter and format from the settings.

use crate::{
    failure::Failure,
    settings::{Key, Settings},
};
#[cfg(feature = "local")]
use planforge_agent::log_fields;
use planforge_trace::lines::Flat;
#[cfg(not(feature = "local"))]
use planforge_types::shown;
use std::io;
#[cfg(feature = "local")]
use std::io::IsTerminal as _;
use tracing_subscriber::{
    filter::Targets, fmt, fmt::format::JsonFields, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

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
    let filtered = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer();
    #[cfg(feature = "local")]
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    match settings.get(Key::LogFormat).unwrap_or("text") {
        #[cfg(not(feature = "local"))]
        "text" => filtered.with(lines.with_writer(|| TextLines).with_ansi(false)).init(),
        #[cfg(feature = "local")]
        "text" => filtered.with(lines.fmt_fields(log_fields()).with_writer(io::stderr).with_ansi(colour)).init(),
        "json" => {
            let lines = lines.fmt_fields(JsonFields::new()).event_format(Flat).with_writer(io::stderr);
            filtered.with(lines).init();
        }
        other => {
            return Err(Failure::usage(format!("'{other}' is not a log format")).hint("formats are text and json"));
        }
    }
    Ok(())
}

/// Lines of text on stderr, whole lines escaped.
#[cfg(not(feature = "local"))]
struct TextLines;

#[cfg(not(feature = "local"))]
impl io::Write for TextLines {
    /// Gets a whole line at a time.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        writeln!(io::stderr().lock(), "{}", shown::line(line.trim_end_matches('\n')))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
