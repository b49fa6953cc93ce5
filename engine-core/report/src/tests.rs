//! The report's JSON is what other tools read: its shape is held by a snapshot.

use super::{
    testing::{sample_report, with_ceilings_and_batches},
    *,
};
use planforge_stats::latency_stats;

/// Every path of a document with the type of what is there.
fn paths(prefix: &str, value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| paths(&format!("{prefix}.{name}"), value, found));
        }
        serde_json::Value::Array(items) => match items.first() {
            Some(first) => paths(&format!("{prefix}[]"), first, found),
            None => found.push(format!("{prefix}[]")),
        },
        serde_json::Value::String(_) => found.push(format!("{prefix}: text")),
        serde_json::Value::Number(_) => found.push(format!("{prefix}: number")),
        serde_json::Value::Bool(_) => found.push(format!("{prefix}: flag")),
        serde_json::Value::Null => found.push(format!("{prefix}: null")),
    }
}

#[test]
fn the_json_keeps_its_shape() {
    let mut found = Vec::new();
    paths("", &serde_json::to_value(sample_report(1.0)).unwrap(), &mut found);
    insta::assert_snapshot!(found.join("\n"));
}

#[test]
fn a_report_comes_back_whole() {
    let report = sample_report(1.0);
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    assert!(report.is_consistent().unwrap());
}

#[test]
fn ceilings_and_batches_come_back() {
    let report = with_ceilings_and_batches(sample_report(1.0));
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    let mut found = Vec::new();
    paths("", &serde_json::to_value(&report).unwrap(), &mut found);
    found.retain(|path| path.starts_with(".ceilings") || path.starts_with(".batches"));
    insta::assert_snapshot!(found.join("\n"));
}

#[test]
fn reports_from_before_ceilings_and_batch_sweeps_are_read() {
    let mut document = serde_json::to_value(with_ceilings_and_batches(sample_report(1.0))).unwrap();
    let fields = document.as_object_mut().unwrap();
    assert!(fields.remove("ceilings").is_some() && fields.remove("batches").is_some());
    let report: Report = serde_json::from_value(document).unwrap();
    assert!(report.ceilings.is_none() && report.batches.is_none());
}

#[test]
fn an_older_report_of_one_window_opens_and_has_no_interval() {
    let mut report = sample_report(1.0);
    let samples = report.samples.decode().unwrap();
    let median_ms = planforge_stats::median(&samples);
    report.windows = vec![WindowRecord { iterations: samples.len() as u32, median_ms, ..report.windows[0].clone() }];
    report.latency_ms = latency_stats(&samples, &[samples.len()]).unwrap();
    let mut document = serde_json::to_value(&report).unwrap();
    // As it was written once: with bounds from a single window, and a confidence they never had.
    let stats = document["latency_ms"].as_object_mut().unwrap();
    assert_eq!(stats.remove("no_interval").unwrap(), "one window");
    for (field, value) in [("ci_low", 1.0), ("ci_high", 1.01), ("ci_confidence", 0.95)] {
        stats.insert(field.into(), value.into());
    }
    assert!(stats.remove("ci_rule").is_some());
    let old: Report = serde_json::from_value(document).unwrap();
    assert_eq!(old.interval(), Err(NoInterval::OneWindow));
    assert!(old.is_consistent().unwrap());
    assert_eq!(report.interval(), Err(NoInterval::OneWindow));
}

#[test]
fn the_interval_of_an_older_rule_is_kept_as_it_was_told() {
    let report = sample_report(1.0);
    let mut document = serde_json::to_value(&report).unwrap();
    let stats = document["latency_ms"].as_object_mut().unwrap();
    assert!(stats.remove("ci_rule").is_some());
    stats.insert("ci_low".into(), 1.009.into());
    let old: Report = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(old.interval().unwrap().low, 1.009);
    assert!(old.is_consistent().unwrap(), "nobody can derive it again");
    document["latency_ms"]["median"] = 1.005.into();
    assert!(!serde_json::from_value::<Report>(document.clone()).unwrap().is_consistent().unwrap(), "the rest can");
    document["latency_ms"]["median"] = report.latency_ms.median.into();
    document["latency_ms"]["ci_rule"] = planforge_stats::INTERVAL_RULE.into();
    assert!(!serde_json::from_value::<Report>(document).unwrap().is_consistent().unwrap(), "of this rule it can");
}

#[test]
fn changed_numbers_are_noticed() {
    let mut report = sample_report(1.0);
    report.latency_ms.median *= 0.9;
    assert!(!report.is_consistent().unwrap());
    let mut report = sample_report(1.0);
    report.windows[0].iterations += 1;
    assert!(!report.is_consistent().unwrap());
}
