//! Ages as people write them: `90s`, `30m`, `12h`, `3d`, `2w`.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_numbers_with_units() {
        assert_eq!([parse("90s"), parse("2h"), parse("1w")], [Ok(90_000), Ok(7_200_000), Ok(604_800_000)]);
        for bad in ["", "d", "3", "3y", "-3d", "3.5h", "99999999999999999w", "3ä"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
