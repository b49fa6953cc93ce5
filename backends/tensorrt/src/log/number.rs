//! Numbers as C++ streams print them: at most six significant digits, exponents, bare `nan` and `inf`.

/// The number `text` is, or `None` where it is anything else.
pub(crate) fn number(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return text.parse().ok();
    }
    let negative = text.starts_with('-');
    // Some C libraries print the payload too: `nan(ind)`.
    let word = digits.split('(').next().unwrap_or(digits);
    if word.eq_ignore_ascii_case("nan") {
        Some(f64::NAN)
    } else if word.eq_ignore_ascii_case("inf") || word.eq_ignore_ascii_case("infinity") {
        Some(if negative { f64::NEG_INFINITY } else { f64::INFINITY })
    } else {
        None
    }
}

/// `text` as a number followed by ` unit`.
pub(crate) fn with_unit(text: &str, unit: &str) -> Option<f64> {
    number(text.trim_end().strip_suffix(unit)?.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_printed() {
        assert_eq!(number("0.000976562"), Some(0.000976562));
        assert_eq!(number("1.2e-05"), Some(1.2e-5));
        assert_eq!(number("1e+06"), Some(1e6));
        assert_eq!(number("-inf"), Some(f64::NEG_INFINITY));
        assert!(number("-nan").is_some_and(f64::is_nan));
        assert!(number("nan(ind)").is_some_and(f64::is_nan));
        for other in ["", "-", "the", "1.0x", "0x10", "1 ms", "nano", "."] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn a_unit_must_follow() {
        assert_eq!(with_unit("12.5 ms", "ms"), Some(12.5));
        assert_eq!(with_unit("12.5 sec.", "sec."), Some(12.5));
        assert_eq!(with_unit("12.5 s", "ms"), None);
    }
}
