//! Times of the clock as people write them, UTC: `2026-11-26T18:00Z`, `22:00`; and days of the week.

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Days of the week, 1 Monday to 7 Sunday; none: every day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Days(pub Vec<u32>);

/// Unix milliseconds of a time.
///
/// # Errors
/// For a text that is none.
pub fn parse(text: &str) -> Result<u64, String> {
    let none = || format!("'{text}' is no time: write it as 2026-11-26T18:00Z");
    let (date, clock) = text.split_once(['T', ' ']).ok_or_else(none)?;
    let mut parts = date.split('-').map(|part| part.parse::<i64>().ok());
    let (Some(Some(year)), Some(Some(month)), Some(Some(day)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(none());
    };
    let days = days_from_1970(year, month, day).ok_or_else(none)?;
    let minutes = minute_of_day(clock.strip_suffix('Z').unwrap_or(clock)).map_err(|_| none())?;
    Ok((days * 24 * 60 + u64::from(minutes)) * 60_000)
}

/// Days from the beginning of Unix time to a date of the Gregorian calendar; `None`: there is no such date.
fn days_from_1970(year: i64, month: i64, day: i64) -> Option<u64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    if !(1970..=9999).contains(&year) || !(1..=*lengths.get(index)?).contains(&day) {
        return None;
    }
    let before = year - 1;
    let until_year = before * 365 + before / 4 - before / 100 + before / 400;
    let until_1970 = 1969 * 365 + 1969 / 4 - 1969 / 100 + 1969 / 400;
    let until_month: i64 = lengths[..index].iter().sum();
    u64::try_from(until_year - until_1970 + until_month + day - 1).ok()
}

/// Minutes since midnight.
///
/// # Errors
/// For a text that is no time of a day.
pub fn minute_of_day(text: &str) -> Result<u32, String> {
    let none = || format!("'{text}' is no time of a day: write it as 22:00");
    let (hours, minutes) = text.split_once(':').ok_or_else(none)?;
    let number = |text: &str, most: u32| text.parse::<u32>().ok().filter(|number| *number <= most && text.len() == 2);
    let (hours, minutes) = (number(hours, 23).ok_or_else(none)?, number(minutes, 59).ok_or_else(none)?);
    Ok(hours * 60 + minutes)
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
    fn days_of_the_week_have_numbers() {
        assert_eq!((days("day"), days("sat,sun")), (Ok(Days(vec![])), Ok(Days(vec![6, 7]))));
        assert_eq!((days_shown(&[]), days_shown(&[6, 7])), ("day".to_owned(), "sat,sun".to_owned()));
        assert!(days("sat,,sun").is_err() && days("weekend").is_err());
    }
}
