//! Ages as people write them: `90s`, `30m`, `12h`, `3d`, `2w`; and short times: `5ms`, `800us`.

const UNITS_MS: [(char, u64); 5] =
    [('s', 1_000), ('m', 60_000), ('h', 3_600_000), ('d', 86_400_000), ('w', 7 * 86_400_000)];

/// Milliseconds of an age.
///
/// # Errors
/// For a text that is none.
pub fn parse(text: &str) -> Result<u64, String> {
    let none = || format!("'{text}' is no age: a number with s, m, h, d or w behind it, such as 12h or 3d");
    let unit = text.chars().last().ok_or_else(none)?;
    let (_, unit_ms) = UNITS_MS.into_iter().find(|(name, _)| *name == unit).ok_or_else(none)?;
    let count: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| none())?;
    count.checked_mul(unit_ms).ok_or_else(none)
}

/// Milliseconds of a short time with its unit.
///
/// # Errors
/// For a text that is none.
pub fn milliseconds(text: &str) -> Result<f64, String> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    let read = units.into_iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        (number.is_finite() && number > 0.0).then_some(number * factor)
    });
    read.ok_or_else(|| format!("'{text}' is no time: a number with us, ms or s behind it, such as 5ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_have_units() {
        assert_eq!([milliseconds("5ms"), milliseconds("800us"), milliseconds("1.5 s")], [Ok(5.0), Ok(0.8), Ok(1500.0)]);
        for bad in ["", "5", "ms", "-1ms", "0ms", "nans", "5m"] {
            assert!(milliseconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ages_are_numbers_with_units() {
        assert_eq!([parse("90s"), parse("2h"), parse("1w")], [Ok(90_000), Ok(7_200_000), Ok(604_800_000)]);
        for bad in ["", "d", "3", "3y", "-3d", "3.5h", "99999999999999999w", "3ä"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
