//! Log lines as JSON: one object a line, in which the fields of the spans around stand beside the line's own.
//!
//! So `job`, `attempt`, `agent` and `trace` are found in one place, whoever knew them.

use planforge_types::shown;
use serde_json::{Map, Value};
use std::{fmt, sync::OnceLock};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields as _, FormattedFields,
        format::{JsonFields, Writer},
        time::{FormatTime as _, SystemTime},
    },
    registry::LookupSpan,
};

/// What all lines of this process are about.
static ABOUT: OnceLock<Map<String, Value>> = OnceLock::new();

/// Says, once, what every line of this process is about: for processes that do one thing and end.
pub fn all_about(fields: Map<String, Value>) {
    let _ = ABOUT.set(fields);
}

/// Writes events as flat objects; for a layer whose fields are [`JsonFields`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Flat;

impl<S: Subscriber + for<'a> LookupSpan<'a>> FormatEvent<S, JsonFields> for Flat {
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = ABOUT.get().cloned().unwrap_or_default();
        // From the outermost on: what is nearer to the event is known better.
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<FormattedFields<JsonFields>>() {
                add(&mut line, fields);
            }
        }
        let mut own = String::new();
        context.field_format().format_fields(Writer::new(&mut own), event)?;
        add(&mut line, &own);
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        line.insert("timestamp".into(), timestamp.into());
        line.insert("level".into(), event.metadata().level().as_str().into());
        line.insert("target".into(), event.metadata().target().into());
        // What could steer a terminal is written as JSON's escapes, which are the same values.
        writeln!(writer, "{}", shown::json(&Value::Object(line).to_string()))
    }
}

/// A line that no event made: `message` at `level`, at this time.
pub fn line(level: &str, target: &str, message: &str) -> String {
    let mut line = ABOUT.get().cloned().unwrap_or_default();
    let mut timestamp = String::new();
    // A text takes whatever is written to it.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    for (name, value) in [("timestamp", &*timestamp), ("level", level), ("target", target), ("message", message)] {
        line.insert(name.into(), value.into());
    }
    shown::json(&Value::Object(line).to_string()).into_owned()
}

fn add(line: &mut Map<String, Value>, fields: &str) {
    if let Ok(Value::Object(fields)) = serde_json::from_str(fields) {
        line.extend(fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io,
        sync::{Arc, Mutex},
    };
    use tracing_subscriber::{fmt::layer, layer::SubscriberExt as _};

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

    fn logged(log: impl FnOnce()) -> Vec<Map<String, Value>> {
        let sink = Sink::default();
        let writer = sink.clone();
        let lines = layer().fmt_fields(JsonFields::new()).event_format(Flat).with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_has_the_fields_of_the_spans_around_it_and_its_own_above_them() {
        let lines = logged(|| {
            let _outer = tracing::info_span!("agent", agent = "rack-1", attempt = 7).entered();
            let _inner = tracing::info_span!("attempt", job = %"j1", attempt = 2_u32).entered();
            tracing::warn!(device = "gpu-0", level = "mine", "lost\nit");
        });
        let [line] = &lines[..] else { panic!("{lines:?}") };
        for (name, value) in [
            ("agent", Value::from("rack-1")),
            ("job", "j1".into()),
            ("attempt", 2.into()),
            ("device", "gpu-0".into()),
            ("message", "lost\nit".into()),
            ("level", "WARN".into()),
        ] {
            assert_eq!(line.get(name), Some(&value), "{name} in {line:?}");
        }
        assert!(line["timestamp"].as_str().is_some_and(|at| at.starts_with("20")) && line.contains_key("target"));
    }
}
