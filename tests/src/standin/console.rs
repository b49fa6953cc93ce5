//! Log lines in the right stream, the verdict, and numbers as C++ streams print them.

use super::version::Version;
use std::{
    io::{self, Write as _},
    time::{SystemTime, UNIX_EPOCH},
};

/// Where everything is said. Information goes to standard output, warnings and errors to standard error.
#[derive(Debug)]
pub struct Console {
    verdict: String,
    pub verbose: bool,
}

impl Console {
    pub fn new(version: Version, program: &str, arguments: &[String]) -> Self {
        let command: Vec<&str> = std::iter::once(program).chain(arguments.iter().map(String::as_str)).collect();
        let verdict = format!("TensorRT.trtexec {} # {}", version.tag(), command.join(" "));
        Self { verdict, verbose: false }
    }

    /// `&&&& PASSED TensorRT.trtexec ...`.
    pub fn verdict(&self, word: &str) {
        self.raw(&format!("&&&& {word} {}\n", self.verdict));
    }

    /// Text as it is, to standard output.
    pub fn raw(&self, text: &str) {
        // A reader that went away is noticed by nobody, as with the tool.
        let _ = io::stdout().write_all(text.as_bytes());
        let _ = io::stdout().flush();
    }

    pub fn info(&self, text: &str) {
        self.raw(&format!("[{}] [I] {text}\n", stamp()));
    }

    /// A message of the library.
    pub fn library(&self, text: &str) {
        self.info(&format!("[TRT] {text}"));
    }

    pub fn verbose(&self, text: &str) {
        if self.verbose {
            self.raw(&format!("[{}] [V] {text}\n", stamp()));
        }
    }

    pub fn warning(&self, text: &str) {
        complain(&format!("[{}] [W] {text}", stamp()));
    }

    pub fn error(&self, text: &str) {
        complain(&format!("[{}] [E] {text}", stamp()));
    }

    /// An error that does not pass through the logger.
    pub fn bare_error(&self, text: &str) {
        complain(text);
    }
}

/// A line on standard error.
pub fn complain(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// `MM/DD/YYYY-HH:MM:SS`.
fn stamp() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a day number, counting in eras of 400 years from March.
    let z = days as i64 + 719_468;
    let (era, day_of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{month:02}/{day:02}/{year:04}-{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// A number as a C++ stream prints it: at most six significant digits, `nan` and `inf` bare.
pub fn g6(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if value == 0.0 {
        return "0".into();
    }
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs());
    }
    trimmed(&format!("{value:.*}", (5 - exponent) as usize))
}

#[cfg(test)]
mod tests {
    use super::g6;

    #[test]
    fn numbers_have_six_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.0333252, "0.0333252"),
            (23188.63, "23188.6"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_012, "1.2e-05"),
            (-0.5, "-0.5"),
            (999_999.7, "1e+06"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(g6(value), text);
        }
    }
}
