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

/// `812/s`, `3.4/s`.
pub fn per_second(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.2}/s") } else { format!("{rate:.0}/s") }
}

/// `98.89 %`.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_mean_something() {
        assert_eq!([0.0123, 1.5, 12.345, 1234.0].map(milliseconds), ["12.3 us", "1.500 ms", "12.35 ms", "1.23 s"]);
        assert_eq!([12, 2048, 5 << 30].map(bytes), ["12 B", "2.0 KiB", "5.0 GiB"]);
        assert_eq!([3.456, 812.3].map(per_second), ["3.46/s", "812/s"]);
        assert_eq!(percent(0.98888), "98.89 %");
    }
}
