//! A median of disturbed windows alone, and the one mark that says so wherever a median is shown.
//!
//! Windows that something disturbed are measured again, and kept as they are where that did not help. While some windows
//! were quiet the median is mostly theirs, and the report's finding says the rest. Where not one was, nobody knows how
//! much slower the figures are than the engine.

use crate::{Report, WindowRecord, figures::Figures};

/// Follows a median of disturbed windows alone.
pub const MARK: &str = "*";

/// What the mark means.
pub const MEANING: &str = "every window of this measurement was disturbed, so the engine may be much faster \
                           (build or submit --refresh-disturbed builds it again)";

/// A line below whatever shows the mark; empty where nothing does.
pub fn legend(is_marked: bool) -> String {
    if is_marked { format!("{MARK} {MEANING}") } else { String::new() }
}

/// `median`, as the caller writes it, marked where every window was disturbed.
pub fn marked(median: String, wholly_disturbed: bool) -> String {
    if wholly_disturbed { median + MARK } else { median }
}

/// What disturbed the first of the windows that count; `None` when one of them was quiet, or there are none.
pub fn first_reason(windows: &[WindowRecord]) -> Option<&str> {
    first(windows.iter().map(|window| (window.tainted.as_slice(), window.kept_tainted)))
}

/// Of the reasons of each window, and whether it counts in spite of them.
fn first<'a>(windows: impl Iterator<Item = (&'a [String], bool)>) -> Option<&'a str> {
    let mut counted = windows.filter(|(reasons, kept)| reasons.is_empty() || *kept);
    let (reasons, _) = counted.next()?;
    let first = reasons.first()?;
    counted.all(|(reasons, _)| !reasons.is_empty()).then_some(first)
}

impl Report {
    /// What disturbed every single window that counts; `None` when one of them was quiet.
    pub fn wholly_disturbed(&self) -> Option<&str> {
        first_reason(&self.windows)
    }
}

impl Figures {
    /// As [`Report::wholly_disturbed`].
    pub fn wholly_disturbed(&self) -> Option<&str> {
        first(self.windows.iter().map(|window| (window.tainted.as_slice(), window.kept_tainted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{disturbed, sample_report};

    #[test]
    fn a_report_is_wholly_disturbed_when_no_window_was_quiet() {
        let figures = |report: &Report| Figures::parse(&serde_json::to_string(report).unwrap()).unwrap();
        let both = |report: &Report| {
            let told = report.wholly_disturbed().map(str::to_owned);
            assert_eq!(figures(report).wholly_disturbed(), told.as_deref());
            told
        };
        let mut report = sample_report(1.0);
        assert_eq!(both(&report), None);
        report = disturbed(report);
        assert_eq!(both(&report).as_deref(), Some("other processes used: 60 % of the processors"));
        let quiet = &mut report.windows[2];
        (quiet.tainted, quiet.kept_tainted) = (Vec::new(), false);
        assert_eq!(both(&report), None);
        // What was measured again does not count.
        report = sample_report(1.0);
        report.windows[0].tainted.push("throttled: thermal".into());
        assert_eq!(both(&report), None);
        report.windows.clear();
        assert_eq!(both(&report), None);
    }

    #[test]
    fn the_mark_stands_at_the_median() {
        assert_eq!([false, true].map(|disturbed| marked("1.500 ms".into(), disturbed)), ["1.500 ms", "1.500 ms*"]);
        assert!(legend(true).starts_with("* every window") && legend(false).is_empty());
    }
}
