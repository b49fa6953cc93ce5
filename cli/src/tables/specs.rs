//! What tells rows of one list apart: columns of toolchain, precision, threads and shapes where not every row is alike.

use planforge_types::BuildSpec;
use std::collections::BTreeSet;

/// A column: its name, and what each row has there.
pub type Column = (&'static str, Vec<String>);

/// Stands where a row says nothing, or what everybody has.
const USUAL: &str = "-";

/// The columns in which the rows' build specs, as JSON, differ. Rows without a spec (long lists leave it out) have a dash
/// everywhere and make no difference.
pub fn columns<'a>(specs: impl Iterator<Item = &'a str>) -> Vec<Column> {
    let specs: Vec<Option<BuildSpec>> = specs.map(|json| serde_json::from_str(json).ok()).collect();
    let column = |name, words: fn(&BuildSpec) -> String| {
        differing(name, specs.iter().map(|spec| spec.as_ref().map(words)).collect())
    };
    let all = [
        column("precision", |spec| spec.precision.to_string()),
        column("threads", |spec| spec.threads.map_or_else(|| USUAL.into(), |threads| threads.to_string())),
        column("shapes", |spec| spec.shape_words().unwrap_or_else(|| USUAL.into())),
        column("spec", |spec| match spec.other_words().join(", ") {
            none if none.is_empty() => USUAL.to_owned(),
            others => others,
        }),
    ];
    all.into_iter().flatten().collect()
}

/// The column of the rows' toolchains, where they differ.
pub fn toolchains<'a>(toolchains: impl Iterator<Item = &'a str>) -> Option<Column> {
    differing("toolchain", toolchains.map(|json| (!json.is_empty()).then(|| super::toolchain(json))).collect())
}

fn differing(name: &'static str, rows: Vec<Option<String>>) -> Option<Column> {
    let told: BTreeSet<&String> = rows.iter().flatten().collect();
    let differs = told.len() > 1;
    differs.then(|| (name, rows.into_iter().map(|row| row.unwrap_or_else(|| USUAL.to_owned())).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(specs: &[&str]) -> Vec<Column> {
        columns(specs.iter().copied())
    }

    #[test]
    fn a_column_stands_where_rows_differ_in_it() {
        let names = |specs: &[&str]| of(specs).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert!(names(&[]).is_empty());
        assert!(names(&[r#"{"threads":2}"#, r#"{"threads":2}"#]).is_empty());
        assert_eq!(names(&[r#"{"threads":2}"#, r#"{"threads":1}"#]), ["threads"]);
        assert!(names(&[r#"{"threads":2}"#, ""]).is_empty(), "a row that says nothing");
        assert_eq!(names(&[r#"{"precision":"fp16","options":{"a":"b"}}"#, "{}"]), ["precision", "spec"]);
    }

    #[test]
    fn shapes_stand_as_they_are_typed() {
        let ranged = r#"{"profiles":[{"x":[{"min":1,"opt":8,"max":32},{"min":3,"opt":3,"max":3}]}]}"#;
        assert_eq!(of(&["{}", ranged]), [("shapes", vec!["-".to_owned(), "x:1..8..32x3".to_owned()])]);
    }

    #[test]
    fn toolchains_stand_where_they_differ() {
        let native = r#"{"backend":"native","version":"6","components":{}}"#;
        assert_eq!(toolchains([native, native].into_iter()), None);
        let newer = native.replace('6', "7");
        let told = toolchains([native, &newer, ""].into_iter()).unwrap();
        assert_eq!(told.1, ["native 6", "native 7", "-"]);
    }
}
