//! Pauses as a table.

use super::{projects::moment, render, table};
use crate::times;
use planforge_proto::v1;

/// One row a pause.
pub fn pauses(pauses: &[v1::Pause]) -> String {
    let mut rows = table(&["what", "name", "how long", "now", "by", "since (utc)", "why"]);
    for pause in pauses {
        let now = if pause.holds { "paused" } else { "-" };
        let reason = if pause.reason.is_empty() { "-" } else { &pause.reason };
        rows.add_row([
            pause.kind.clone(),
            pause.shown.clone(),
            pause_time(pause),
            now.to_owned(),
            pause.actor.clone(),
            moment(pause.since_ms),
            reason.to_owned(),
        ]);
    }
    render(rows, &[])
}

/// When a pause holds.
pub fn pause_time(pause: &v1::Pause) -> String {
    let until = match pause.until_ms {
        0 => String::new(),
        until_ms => format!("until {} UTC", moment(until_ms)),
    };
    let Some(window) = &pause.window else {
        return if until.is_empty() { "until it is resumed".into() } else { until };
    };
    let (days, begins) = (times::days_shown(&window.days), window.start_minute);
    let every = format!("every {days} at {:02}:{:02} UTC for {} min", begins / 60, begins % 60, window.minutes);
    if until.is_empty() { every } else { format!("{every}, {until}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_says_when_it_holds() {
        let window = v1::PauseWindow { days: vec![6, 7], start_minute: 1_320, minutes: 480 };
        let pause = |window, until_ms| v1::Pause { window, until_ms, ..v1::Pause::default() };
        assert_eq!(pause_time(&pause(None, 0)), "until it is resumed");
        assert_eq!(pause_time(&pause(None, 20_777 * 86_400_000)), "until 2026-11-20 00:00:00 UTC");
        assert_eq!(pause_time(&pause(Some(window), 0)), "every sat,sun at 22:00 UTC for 480 min");
    }
}
