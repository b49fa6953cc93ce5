//! Times of the clock as people write them, UTC: `2026-11-26T18:00Z`, `22:00`; and days of the week.

use chrono::{NaiveDateTime, NaiveTime, Timelike as _};

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Days of the week, 1 Monday to 7 Sunday; none: every day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Days(pub Vec<u32>);

/// Unix milliseconds of a time.
///
/// # Errors
/// For a text that is none.
pub fn parse(text: &str) -> Result<u64, String> {
    let clock = text.strip_suffix('Z').unwrap_or(text);
    let read =
        ["%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"].iter().find_map(|form| NaiveDateTime::parse_from_str(clock, form).ok());
    let at_ms = read.and_then(|at| u64::try_from(at.and_utc().timestamp_millis()).ok());
    at_ms.ok_or_else(|| format!("'{text}' is no time: write it as 2026-11-26T18:00Z"))
}

/// Minutes since midnight.
///
/// # Errors
/// For a text that is no time of a day.
pub fn minute_of_day(text: &str) -> Result<u32, String> {
    let at = NaiveTime::parse_from_str(text, "%H:%M");
    at.map(|at| at.hour() * 60 + at.minute()).map_err(|_| format!("'{text}' is no time of a day: write it as 22:00"))
}

/// `day`, or days such as `sat,sun`.
///
/// # Errors
/// For a text that is neither.
pub fn days(text: &str) -> Result<Days, String> {
    if text == "day" {
        return Ok(Days(Vec::new()));
    }
    let number = |name: &str| DAYS.iter().position(|day| *day == name).map(|index| index as u32 + 1);
    let days: Option<Vec<u32>> = text.split(',').map(number).collect();
    days.map(Days).ok_or_else(|| format!("'{text}' is none of 'day' and {}", DAYS.join(",")))
}

/// Days as `days` reads them.
pub fn days_shown(days: &[u32]) -> String {
    if days.is_empty() || days.len() == DAYS.len() {
        return "day".into();
    }
    let name = |day: &u32| DAYS.get((*day as usize).wrapping_sub(1)).copied();
    days.iter().filter_map(name).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_clock() {
        assert_eq!(parse("1970-01-01T00:00Z"), Ok(0));
        assert_eq!(parse("2026-11-25T00:00Z"), Ok(1_795_564_800_000));
        assert_eq!(parse("2024-02-29 12:30"), Ok(1_709_209_800_000));
        for bad in ["", "2026-11-25", "2025-02-29T00:00Z", "2026-13-01T00:00Z", "2026-11-25T24:00Z", "26-11-25T1:00"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_of_a_day_are_minutes() {
        assert_eq!((minute_of_day("22:30"), minute_of_day("00:00")), (Ok(1_350), Ok(0)));
        assert!(minute_of_day("24:00").is_err() && minute_of_day("22").is_err() && minute_of_day("").is_err());
    }

    #[test]
    fn days_of_the_week_have_numbers() {
        assert_eq!((days("day"), days("sat,sun")), (Ok(Days(vec![])), Ok(Days(vec![6, 7]))));
        assert_eq!((days_shown(&[]), days_shown(&[6, 7])), ("day".to_owned(), "sat,sun".to_owned()));
        assert!(days("sat,,sun").is_err() && days("weekend").is_err());
    }
}
