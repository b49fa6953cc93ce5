//! What bounds an engine and what is worth trying, below its report.

use super::headless;
use planforge_advice::{Advice, bound::EngineBound};
use planforge_report::Severity;

/// As lines of name and words, like those of the report; empty where nothing is to say.
pub fn render(bound: Option<&EngineBound>, advice: &[Advice]) -> String {
    let bound = bound.map(|bound| ["bound by".to_owned(), bound.words.clone()]);
    let mut lines: Vec<[String; 2]> = bound.into_iter().collect();
    for Advice { code, severity, message, advice, .. } in advice {
        let severity = match severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        lines.push(["advice".to_owned(), format!("{severity}: {message} ({code})")]);
        lines.push([String::new(), format!("try: {advice}")]);
    }
    if lines.is_empty() {
        return String::new();
    }
    let mut rows = headless();
    rows.add_rows(lines);
    super::render(rows, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_advice::{advise, bound};
    use planforge_report::testing::{disturbed, sample_report, with_ceilings_and_batches};

    #[test]
    fn advice_stands_below_with_what_to_try() {
        let report = disturbed(with_ceilings_and_batches(sample_report(1.0)));
        let text = render(bound::of_engine(&report).as_ref(), &advise(&report, &[]));
        assert!(text.contains("bound by") && text.contains("compute: 75 % of the layers' time (estimated)"), "{text}");
        assert!(text.contains("warning: 5 of 5 windows") && text.contains("try: measure again"), "{text}");
        assert_eq!(render(None, &[]), "");
    }
}
