//! The JSON Schema of reports, for whoever reads them by other programs.

/// The schema (draft 2020-12), as `planforge report --schema` prints it.
pub const SCHEMA: &str = include_str!("../report.schema.json");

/// What of a document the schema does not allow, or does not know: for tests, by the part of JSON Schema that ours uses.
#[cfg(any(test, feature = "testing"))]
pub fn complaints(document: &serde_json::Value) -> Vec<String> {
    let schema = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let mut found = Vec::new();
    hold::Against { schema: &schema, found: &mut found }.hold(&schema, document, "report");
    found
}

#[cfg(any(test, feature = "testing"))]
mod hold {
    use serde_json::Value;

    pub struct Against<'a> {
        pub schema: &'a Value,
        pub found: &'a mut Vec<String>,
    }

    impl Against<'_> {
        pub fn hold(&mut self, rule: &Value, value: &Value, at: &str) {
            if let Some(name) = rule["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
                let schema = self.schema;
                return self.hold(&schema["$defs"][name], value, at);
            }
            if let Some(known) = rule["enum"].as_array() {
                if !known.contains(value) {
                    self.found.push(format!("{at}: {value} is none of the known"));
                }
                return;
            }
            let types: Vec<&str> = match &rule["type"] {
                Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                single => single.as_str().into_iter().collect(),
            };
            let is = |name: &str| match name {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "number" => value.is_number(),
                "integer" => value.is_u64() || value.is_i64(),
                "boolean" => value.is_boolean(),
                _ => value.is_null(),
            };
            if !types.iter().any(|name| is(name)) {
                self.found.push(format!("{at}: {value} is no {}", types.join(" or ")));
            }
            if rule["minimum"].as_f64() > value.as_f64().or(Some(f64::INFINITY)) {
                self.found.push(format!("{at}: {value} is too small"));
            }
            for required in rule["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if value.get(required).is_none() {
                    self.found.push(format!("{at}.{required} is missing"));
                }
            }
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                self.hold(&rule["items"], item, &format!("{at}[{index}]"));
            }
            for (name, field) in value.as_object().into_iter().flatten() {
                let known = &rule["properties"][name];
                let rest = &rule["additionalProperties"];
                match (known.is_null(), rest.is_object()) {
                    (false, _) => self.hold(known, field, &format!("{at}.{name}")),
                    (true, true) => self.hold(rest, field, &format!("{at}.{name}")),
                    // Readers let later fields pass; a test wants to hear of them.
                    (true, false) => self.found.push(format!("{at}.{name} is not in the schema")),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Report,
        testing::{disturbed, sample_report, with_ceilings_and_batches},
    };
    use serde_json::{Map, Value, json};
    use std::collections::BTreeSet;

    fn schema() -> Value {
        serde_json::from_str(SCHEMA).unwrap()
    }

    #[test]
    fn reports_are_what_the_schema_says() {
        let reports =
            [sample_report(1.0), disturbed(sample_report(2.0)), with_ceilings_and_batches(sample_report(1.0))];
        for report in reports {
            assert_eq!(complaints(&serde_json::to_value(report).unwrap()), Vec::<String>::new());
        }
    }

    #[test]
    fn what_is_no_report_is_told() {
        let good = serde_json::to_value(sample_report(1.0)).unwrap();
        let told = |change: &dyn Fn(&mut Value)| {
            let mut document = good.clone();
            change(&mut document);
            complaints(&document).join("; ")
        };
        assert_eq!(told(&|d| d["batch"] = json!("one")), "report.batch: \"one\" is no integer");
        assert_eq!(told(&|d| d["batch"] = json!(-1)), "report.batch: -1 is too small");
        assert_eq!(told(&|d| d["new"] = json!(1)), "report.new is not in the schema");
        assert_eq!(
            told(&|d| d["experiment"]["stop"] = json!("late")),
            "report.experiment.stop: \"late\" is none of the known"
        );
        assert_eq!(
            told(&|d| drop(d["latency_ms"].as_object_mut().unwrap().remove("p99"))),
            "report.latency_ms.p99 is missing"
        );
        assert_eq!(
            told(&|d| d["windows"][1]["iterations"] = json!(1.5)),
            "report.windows[1].iterations: 1.5 is no integer"
        );
    }

    /// A document with everything that the schema names.
    fn instance(rule: &Value) -> Value {
        if let Some(name) = rule["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
            return if name == "sku" { json!("cpu-x86-64-v3") } else { instance(&schema()["$defs"][name]) };
        }
        if let Some(known) = rule["enum"].as_array() {
            return known[0].clone();
        }
        let first = rule["type"].as_array().map_or(&rule["type"], |types| &types[0]);
        match first.as_str().unwrap() {
            "object" => {
                let mut fields = Map::new();
                for (name, rule) in rule["properties"].as_object().into_iter().flatten() {
                    fields.insert(name.clone(), instance(rule));
                }
                if rule["additionalProperties"].is_object() {
                    fields.insert("any".into(), instance(&rule["additionalProperties"]));
                }
                Value::Object(fields)
            }
            "array" => json!([instance(&rule["items"])]),
            "string" if rule["pattern"].is_string() => json!("0".repeat(64)),
            "string" => json!("words"),
            "integer" => json!(2),
            "number" => json!(1.5),
            "boolean" => json!(true),
            other => panic!("{other}"),
        }
    }

    fn paths(value: &Value, at: &str, found: &mut BTreeSet<String>) {
        for (name, field) in value.as_object().into_iter().flatten() {
            found.insert(format!("{at}.{name}"));
            paths(field, &format!("{at}.{name}"), found);
        }
        value.as_array().into_iter().flatten().for_each(|item| paths(item, &format!("{at}[]"), found));
    }

    #[test]
    fn everything_that_the_schema_names_is_read_and_written() {
        let all = instance(&schema());
        let report: Report = serde_json::from_value(all.clone()).unwrap();
        let (mut named, mut written) = (BTreeSet::new(), BTreeSet::new());
        paths(&all, "report", &mut named);
        paths(&serde_json::to_value(&report).unwrap(), "report", &mut written);
        let lost: Vec<&String> = named.difference(&written).collect();
        assert!(lost.is_empty(), "the schema names what reports do not have: {lost:?}");
        let unnamed: Vec<&String> = written.difference(&named).collect();
        assert!(unnamed.is_empty(), "reports have what the schema does not name: {unnamed:?}");
        assert!(named.len() > 250, "{}", named.len());
    }

    /// Names of a struct's fields, read from its source.
    fn fields<'a>(source: &'a str, name: &str) -> BTreeSet<&'a str> {
        let (_, rest) = source.split_once(&format!("pub struct {name} {{\n")).unwrap_or_else(|| panic!("{name}"));
        let (body, _) = rest.split_once("\n}").unwrap();
        body.lines().filter_map(|line| Some(line.trim().strip_prefix("pub ")?.split_once(':')?.0)).collect()
    }

    /// A new optional field is absent in every made-up document: here it is missed.
    #[test]
    fn every_field_of_a_report_is_in_the_schema() {
        let schema = schema();
        let (report, detail) = (include_str!("lib.rs"), include_str!("detail.rs"));
        let mut of_report = fields(report, "Report");
        assert!(of_report.remove("selection") && of_report.insert("lottery"), "its name in documents");
        let named =
            |rule: &'_ Value| -> BTreeSet<String> { rule["properties"].as_object().unwrap().keys().cloned().collect() };
        let owned = |fields: BTreeSet<&str>| -> BTreeSet<String> { fields.into_iter().map(str::to_owned).collect() };
        assert_eq!(owned(of_report), named(&schema));
        for (source, name, definition) in [
            (report, "WindowRecord", "window"),
            (report, "Numerics", "numerics"),
            (report, "OutputNumerics", "output"),
            (report, "Finding", "finding"),
            (detail, "ModeSplit", "mode"),
            (detail, "ProfilePoint", "point"),
            (detail, "BuildSelection", "builds"),
            (detail, "BuildTrial", "trial"),
            (include_str!("layer.rs"), "LayerTime", "layer"),
            (include_str!("layer.rs"), "LayerCounters", "counters"),
            (include_str!("baseline.rs"), "Baseline", "baseline"),
            (include_str!("state.rs"), "Seen", "seen"),
        ] {
            assert_eq!(owned(fields(source, name)), named(&schema["$defs"][definition]), "{name}");
        }
    }
}
