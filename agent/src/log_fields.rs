//! Fields of log lines, escaped: what a name, a path or an error says begins no line of its own and steers no terminal.

use planforge_types::shown;
use tracing_subscriber::{
    field::MakeExt as _,
    fmt::{FormatFields, format},
};

/// Message and fields as `message name=value`. Colours are put around them by the formatter, from nothing that they say.
pub fn log_fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    let one = format::debug_fn(|writer, field, value| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => write!(writer, "{}", shown::line(&value)),
            name => write!(writer, "{}={}", name.strip_prefix("r#").unwrap_or(name), shown::line(&value)),
        }
    });
    one.delimited(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io,
        sync::{Arc, Mutex},
    };
    use tracing_subscriber::{fmt, layer::SubscriberExt as _};

    /// What was logged.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is written while `log` runs, with the formatter's own colours or without.
    fn logged(colour: bool, log: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let lines = fmt::layer().fmt_fields(log_fields()).with_writer(move || writer.clone()).with_ansi(colour);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn no_name_begins_a_log_line_or_steers_the_terminal() {
        let name = "x\u{1b}[31m\n2026-01-01T00:00:00Z  INFO forged\u{202e}\u{9b}2J\r";
        let shown = r"x\u{1b}[31m\n2026-01-01T00:00:00Z  INFO forged\u{202e}\u{9b}2J\r";
        for colour in [false, true] {
            let text = logged(colour, || {
                let span = tracing::info_span!("job", of = %name).entered();
                tracing::warn!(device = %name, quoted = name, "refused {name}");
                drop(span);
            });
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert!(text.ends_with('\n') && !text.contains(['\r', '\u{202e}', '\u{9b}']), "{text:?}");
            assert_eq!(text.matches(shown).count(), 4, "message, two fields, a span's field: {text:?}");
            assert_eq!(text.contains('\u{1b}'), colour, "{text:?}");
            // Of the colours none is one that a name asked for.
            assert!(!text.contains("\u{1b}[31m"), "{text:?}");
        }
    }
}
