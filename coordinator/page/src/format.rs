//! Numbers and times as people read them.

use planforge_charts::Unit;
use planforge_report::format::date;

/// Three significant digits are what a person compares; more would suggest a precision that a glance cannot use.
fn significant(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// `1.23 ms`, `45.6 us`, `2.50 s`.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if !ms.is_finite() => "–".into(),
        ms if ms >= 120_000.0 => format!("{} min", significant(ms / 60_000.0)),
        ms if ms >= 1_000.0 => format!("{} s", significant(ms / 1_000.0)),
        ms if ms >= 1.0 || ms == 0.0 => format!("{} ms", significant(ms)),
        ms => format!("{} {}", significant(ms * 1_000.0), Unit::MICROSECONDS),
    }
}

/// `1,234/s`, `12.3/s`.
pub fn per_second(rate: f64) -> String {
    if !rate.is_finite() {
        return "–".into();
    }
    if rate < 1_000.0 { format!("{}/s", significant(rate)) } else { format!("{}/s", grouped(rate.round() as u64)) }
}

/// Digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `512 B`, `1.50 KiB`, `98.0 MiB`.
pub fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64 / 1024.0;
    if value < 1.0 {
        return format!("{count} B");
    }
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", significant(value), units[unit])
}

/// `98.7 %` of a fraction.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// The first twelve digits of a digest or key.
pub fn short(digest: &str) -> String {
    digest.chars().take(12).collect()
}

/// Whether a text is a whole digest or key.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A digest in four parts of one length, which wrap as they are: no line is left with a single character.
pub fn quarters(digest: &str) -> Vec<&str> {
    let quarter = (digest.len() / 4).max(1);
    (0..digest.len()).step_by(quarter).filter_map(|at| digest.get(at..(at + quarter).min(digest.len()))).collect()
}

/// `now`, `in 4 min`, `in 2 h`: a time to wait, in words.
pub fn wait(ms: u64) -> String {
    match ms / 1_000 {
        0..=4 => "now".into(),
        // In steps: what counts down every second would never stand still.
        s @ 5..=99 => format!("in {} s", s.div_ceil(10) * 10),
        s @ 100..=5_999 => format!("in {} min", s.div_ceil(60)),
        s @ 6_000..=172_799 => format!("in {} h", s.div_ceil(3_600)),
        s => format!("in {} days", s.div_ceil(86_400)),
    }
}

/// Unix milliseconds as `2026-01-31T12:34:56Z`, in the proleptic Gregorian calendar.
pub fn iso(unix_ms: u64) -> String {
    let of_day = unix_ms / 1000 % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{}T{hour:02}:{minute:02}:{second:02}Z", date(unix_ms))
}

/// `90 days`, `6 h`: an age that was set.
pub fn days(age_ms: u64) -> String {
    const HOUR_MS: u64 = 60 * 60 * 1_000;
    match age_ms {
        ms if ms % (24 * HOUR_MS) == 0 && ms == 24 * HOUR_MS => "1 day".into(),
        ms if ms % (24 * HOUR_MS) == 0 => format!("{} days", ms / (24 * HOUR_MS)),
        ms if ms >= HOUR_MS => format!("{} h", ms / HOUR_MS),
        ms => format!("{} min", ms / 60_000),
    }
}

/// For a query: everything but letters, digits and what no query means anything by.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~,:".contains(&byte);
    let written = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(written).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let table = [
            (milliseconds(0.0), "0.000 ms"),
            (milliseconds(0.0456), "45.6 us"),
            (milliseconds(1.234), "1.23 ms"),
            (milliseconds(999.9), "1000 ms"),
            (milliseconds(2_500.0), "2.50 s"),
            (milliseconds(600_000.0), "10.0 min"),
            (milliseconds(f64::NAN), "–"),
            (per_second(12.34), "12.3/s"),
            (per_second(1_234_567.0), "1,234,567/s"),
            (grouped(0), "0"),
            (grouped(999), "999"),
            (grouped(1000), "1,000"),
            (bytes(512), "512 B"),
            (bytes(1536), "1.50 KiB"),
            (bytes(102_760_448), "98.0 MiB"),
            (percent(0.9876), "98.8 %"),
        ];
        for (text, expected) in table {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn short_times_have_the_unit_that_charts_and_reports_give_them() {
        let all = [milliseconds(0.05), planforge_report::format::milliseconds(0.05), Unit::Milliseconds.figure(0.05)];
        assert!(all.iter().all(|text| text.ends_with(&format!(" {}", Unit::MICROSECONDS))), "{all:?}");
    }

    #[test]
    fn a_digest_parts_into_equal_lines_and_waits_are_words() {
        let digest = "0123456789abcdef".repeat(4);
        assert_eq!(quarters(&digest), ["0123456789abcdef"; 4]);
        assert!(is_digest(&digest) && !is_digest("digits.onnx") && !is_digest(&"é".repeat(32)));
        assert_eq!([wait(0), wait(61_000), wait(150_000), wait(7_200_000)], ["now", "in 70 s", "in 3 min", "in 2 h"]);
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(iso(seconds * 1000), expected);
        }
    }
}
