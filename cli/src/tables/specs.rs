//! What tells rows of one list apart: columns of toolchain, precision, threads and shapes where not every row is alike.

use planforge_types::{BuildSpec, preparation::Int8Way};
use std::collections::BTreeSet;

/// A column: its name, and what each row has there.
pub type Column = (&'static str, Vec<String>);

/// Stands where a row says nothing, or what everybody has.
const USUAL: &str = "-";

/// The columns in which the rows' build specs, as JSON, differ. Rows without a spec (long lists leave it out) have a dash
/// everywhere and make no difference.
pub fn columns<'a>(specs: impl Iterator<Item = &'a str>) -> Vec<Column> {
    columns_by_way(specs.map(|spec| (spec, None)))
}

/// Likewise, of rows of which some tell the way that leads to their precision, which stands in its place.
pub fn columns_by_way<'a>(rows: impl Iterator<Item = (&'a str, Option<Int8Way>)>) -> Vec<Column> {
    let (specs, ways): (Vec<Option<BuildSpec>>, Vec<Option<Int8Way>>) =
        rows.map(|(json, way)| (serde_json::from_str(json).ok(), way)).unzip();
    let precisions = specs.iter().zip(ways).map(|(spec, way)| match way {
        Some(way) => Some(way.name().to_owned()),
        None => spec.as_ref().map(|spec| spec.precision.to_string()),
    });
    let precisions = differing("precision", precisions.collect());
    let column = |name, words: fn(&BuildSpec) -> String| {
        differing(name, specs.iter().map(|spec| spec.as_ref().map(words)).collect())
    };
    let all = [
        precisions,
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
