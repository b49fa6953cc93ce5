//! What a device did within a day: the share of each hour that it built, measured, and was idle.

use crate::format;
use serde::Serialize;

pub const DAY_HOURS: usize = 24;
pub const HOUR_MS: u64 = 60 * 60 * 1_000;
/// How high the chart of an hour is, in units of the picture.
const HEIGHT: u64 = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hour {
    pub building_ms: u64,
    pub measuring_ms: u64,
    /// Attempts that the device, its agent or its host brought to an end.
    pub faults: u32,
}

/// The last hours of a device; the last of them is not over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Day {
    /// When the first of them began.
    pub begins_ms: u64,
    /// How much of the time until now is known: all of it, or since the coordinator was started.
    pub known_ms: u64,
    pub hours: Vec<Hour>,
}

/// A day as a picture: outlines of what was built, and on top of it of what was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DayChart {
    pub words: String,
    pub building: String,
    pub measuring: String,
    /// How many attempts broke there; empty: none did.
    pub faults: String,
}

/// Rounded up where anything happened: it is to be seen.
fn height(ms: u64) -> u64 {
    (ms * HEIGHT).div_ceil(HOUR_MS).min(HEIGHT)
}

impl DayChart {
    pub fn of(day: &Day) -> Self {
        let mut chart = Self::default();
        let (mut building_ms, mut measuring_ms) = (0, 0);
        let faults: u32 = day.hours.iter().map(|hour| hour.faults).sum();
        if faults > 0 {
            let attempts = if faults == 1 { "attempt" } else { "attempts" };
            chart.faults = format!("{faults} {attempts} broke here within the day");
        }
        for (at, hour) in day.hours.iter().enumerate() {
            building_ms += hour.building_ms;
            measuring_ms += hour.measuring_ms;
            let below = height(hour.building_ms);
            let above = height(hour.measuring_ms).min(HEIGHT - below);
            if below > 0 {
                chart.building.push_str(&format!("M{at} {HEIGHT}v-{below}h1v{below}"));
            }
            if above > 0 {
                chart.measuring.push_str(&format!("M{at} {}v-{above}h1v{above}", HEIGHT - below));
            }
        }
        if day.known_ms == 0 {
            return Self { words: "nothing known of its last day yet".into(), ..chart };
        }
        let share = |ms: u64| format::percent((ms as f64 / day.known_ms as f64).min(1.0));
        let idle_ms = day.known_ms.saturating_sub(building_ms + measuring_ms);
        let since = match day.known_ms >= (DAY_HOURS as u64 - 1) * HOUR_MS {
            true => "last 24 h".into(),
            false if day.known_ms >= 2 * HOUR_MS => format!("last {} h", day.known_ms / HOUR_MS),
            false => format!("last {} min", day.known_ms.div_ceil(60_000)),
        };
        let (building, measuring, idle) = (share(building_ms), share(measuring_ms), share(idle_ms));
        chart.words = format!("{since}: {building} building, {measuring} measuring, {idle} idle");
        chart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_is_known_and_short_work_is_seen() {
        let mut day = Day { begins_ms: 0, known_ms: 10 * HOUR_MS, hours: vec![Hour::default(); DAY_HOURS] };
        day.hours[3] = Hour { building_ms: HOUR_MS / 2, measuring_ms: HOUR_MS / 2, faults: 2 };
        day.hours[23] = Hour { building_ms: 1, ..Hour::default() };
        let chart = DayChart::of(&day);
        assert_eq!(chart.building, "M3 20v-10h1v10M23 20v-1h1v1");
        assert_eq!(chart.measuring, "M3 10v-10h1v10");
        assert_eq!(chart.words, "last 10 h: 5.0 % building, 5.0 % measuring, 90.0 % idle");
        assert_eq!(chart.faults, "2 attempts broke here within the day");
        let whole = Day { known_ms: 24 * HOUR_MS, ..day };
        assert!(DayChart::of(&whole).words.starts_with("last 24 h: 2.1 % building"), "{}", DayChart::of(&whole).words);
        assert_eq!(DayChart::of(&Day::default()).words, "nothing known of its last day yet");
    }
}
