//! A gate's answer as JUnit has test results, which every CI service reads.

use planforge_report::compare::{
    Comparison,
    gate::{Gate, Outcome},
};
use planforge_types::shown;
use std::fmt::Write as _;

/// A test case for every figure that was judged; what is undecided did not pass.
pub fn of_gate(gate: &Gate, comparison: &Comparison) -> String {
    let failures = gate.lines.iter().filter(|line| line.outcome != Outcome::Passed).count();
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"planforge gate\" tests=\"{}\" \
         failures=\"{failures}\" skipped=\"0\">\n",
        gate.lines.len()
    );
    for line in &gate.lines {
        let spec = line.other.and_then(|row| comparison.rows.get(row)).map(|row| format!(" {}", row.spec_words()));
        let figure = line.limit.as_ref().map_or("comparison", |limit| limit.figure.words());
        let name = escaped(&format!("{}{}: {figure}", line.sku, spec.unwrap_or_default()));
        let _ = write!(xml, "    <testcase classname=\"{}\" name=\"{name}\" time=\"0\"", escaped(&line.model));
        if line.outcome == Outcome::Passed {
            xml.push_str("/>\n");
            continue;
        }
        let allowed = line.limit.as_ref().map_or_else(String::new, |limit| format!("{}: ", limit.words()));
        let message = format!("{}: {allowed}{}", line.outcome.words(), line.reason);
        let _ = writeln!(xml, ">\n      <failure message=\"{}\"/>\n    </testcase>", escaped(&message));
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

/// Text as XML has it within quotes; what it may not hold at all is shown by its number.
fn escaped(text: &str) -> String {
    shown::line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::{
        compare::{compare, gate},
        testing::sample_report,
    };

    #[test]
    fn every_figure_is_a_case_and_names_cannot_end_it() {
        let mut slow = sample_report(1.5);
        slow.model.name = "a\"><b>\u{1b}".into();
        let mut base = sample_report(1.0);
        base.model.name = slow.model.name.clone();
        let reports = [base, slow];
        let comparison = compare(&reports).unwrap();
        let limits: Vec<gate::Limit> = ["5", "size=0"].iter().map(|text| text.parse().unwrap()).collect();
        let xml = of_gate(&gate::judge(&comparison, &reports, &limits), &comparison);
        assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
        assert!(xml.contains("name=\"cpu-x86-64-v3 fp32 b1 2t: plan size\" time=\"0\"/>"), "{xml}");
        assert!(xml.contains("<failure message=\"FAILED: median latency at most 5 % slower: "), "{xml}");
        assert!(!xml.contains("<b>") && !xml.contains('\u{1b}'), "{xml}");
    }
}
