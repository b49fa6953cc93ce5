//! The `Range` header: one range of bytes (RFC 9110 §14).

use std::ops::Range;

/// What a `Range` header asks of a representation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// No range, several, or a unit other than bytes: all of it is a correct answer.
    Whole,
    Part(Range<u64>),
    /// No byte of it exists.
    Unsatisfiable,
}

/// Reads a `Range` header against a representation of `size_bytes`.
pub(super) fn parse(header: &str, size_bytes: u64) -> Asked {
    let Some(spec) = header.trim().strip_prefix("bytes=") else { return Asked::Whole };
    let Some((first, last)) = spec.trim().split_once('-') else { return Asked::Whole };
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    match (number(first), number(last)) {
        // "-500": the last 500 bytes.
        (None, Some(length)) if first.is_empty() => match size_bytes.saturating_sub(length) {
            _ if length == 0 || size_bytes == 0 => Asked::Unsatisfiable,
            start => Asked::Part(start..size_bytes),
        },
        (Some(start), None) if last.is_empty() => bounded(start, size_bytes, size_bytes),
        (Some(start), Some(end)) if start <= end => bounded(start, end.saturating_add(1), size_bytes),
        _ => Asked::Whole,
    }
}

fn bounded(start: u64, end: u64, size_bytes: u64) -> Asked {
    if start >= size_bytes { Asked::Unsatisfiable } else { Asked::Part(start..end.min(size_bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_ranges_are_served_and_the_rest_is_ignored_or_refused() {
        let table = [
            ("bytes=0-0", Asked::Part(0..1)),
            ("bytes=0-99", Asked::Part(0..100)),
            ("bytes=0-100", Asked::Part(0..100)),
            ("bytes=99-", Asked::Part(99..100)),
            ("bytes=5-7", Asked::Part(5..8)),
            ("bytes=-1", Asked::Part(99..100)),
            ("bytes=-1000", Asked::Part(0..100)),
            ("bytes=0-18446744073709551615", Asked::Part(0..100)),
            ("bytes=100-", Asked::Unsatisfiable),
            ("bytes=100-200", Asked::Unsatisfiable),
            ("bytes=-0", Asked::Unsatisfiable),
            ("bytes=7-5", Asked::Whole),
            ("bytes=0-1,5-6", Asked::Whole),
            ("bytes=", Asked::Whole),
            ("bytes=-", Asked::Whole),
            ("bytes=a-b", Asked::Whole),
            ("bytes=+1-2", Asked::Whole),
            ("bytes=99999999999999999999999-", Asked::Whole),
            ("lines=0-1", Asked::Whole),
        ];
        for (header, expected) in table {
            assert_eq!(parse(header, 100), expected, "{header}");
        }
        assert_eq!(parse("bytes=0-", 0), Asked::Unsatisfiable);
        assert_eq!(parse("bytes=-5", 0), Asked::Unsatisfiable);
    }
}
