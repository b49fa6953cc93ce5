//! Numbers as people read them.

/// `1.23 ms`, with the digits that mean something.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 1.0 => format!("{:.1} us", ms * 1e3),
        ms if ms < 10.0 => format!("{ms:.3} ms"),
        ms if ms < 1000.0 => format!("{ms:.2} ms"),
        ms => format!("{:.2} s", ms / 1e3),
    }
}

/// `12.3 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `12.34 MiB`, whatever the size: for numbers that are read beside each other.
pub fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / (1 << 20) as f64)
}

/// `812/s`, `3.4/s`.
pub fn per_second(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.2}/s") } else { format!("{rate:.0}/s") }
}

/// `98.89 %`.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// `512 GFLOP/s`, `1.53 TOP/s` where it counts `integers`.
pub fn operations_per_second(rate: f64, integers: bool) -> String {
    let unit = if integers { "OP/s" } else { "FLOP/s" };
    let (value, prefix) = if rate < 1e12 { (rate / 1e9, 'G') } else { (rate / 1e12, 'T') };
    match value {
        value if value < 10.0 => format!("{value:.2} {prefix}{unit}"),
        value if value < 100.0 => format!("{value:.1} {prefix}{unit}"),
        value => format!("{value:.0} {prefix}{unit}"),
    }
}

/// `2026-11-20`, in UTC.
pub fn date(unix_ms: u64) -> String {
    // Howard Hinnant's days_from_civil, reversed: years begin in March, so that leap days end them.
    let days = unix_ms / 86_400_000 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_mean_something() {
        assert_eq!([0.0123, 1.5, 12.345, 1234.0].map(milliseconds), ["12.3 us", "1.500 ms", "12.35 ms", "1.23 s"]);
        assert_eq!([12, 2048, 5 << 30].map(bytes), ["12 B", "2.0 KiB", "5.0 GiB"]);
        assert_eq!([0, 3 << 19].map(mib), ["0.00 MiB", "1.50 MiB"]);
        assert_eq!([3.456, 812.3].map(per_second), ["3.46/s", "812/s"]);
        assert_eq!(percent(0.98888), "98.89 %");
        assert_eq!(operations_per_second(1.234e9, false), "1.23 GFLOP/s");
        assert_eq!(operations_per_second(5.12e13, false), "51.2 TFLOP/s");
        assert_eq!(operations_per_second(1.5e15, true), "1500 TOP/s");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let days = [0, 58, 59, 11_016, 11_017, 20_000, 20_777].map(|day| date(day * 86_400_000 + 1));
        let dates = ["1970-01-01", "1970-02-28", "1970-03-01", "2000-02-29", "2000-03-01", "2024-10-04", "2026-11-20"];
        assert_eq!(days, dates);
    }
}
