//! ONNX backend cases through three paths: a case passes on all of them or is refused by name.
//!
//! The reference operators run the imported graph and the graph after all passes; the native compiler makes a plan of
//! the same model, and the engine loaded from it runs too. All three must give what the case expects.
//!
//! `tests/conformance/generate.py FOLDER` writes the cases. `PLANFORGE_ONNX_CASES` names the folder; without it,
//! `target/onnx-cases` is taken. Where neither is there the test says so and does nothing, but fails when `CI` is set.
//!
//! `docs/conformance.md` holds what passes, by group. The test fails when it is stale;
//! `PLANFORGE_WRITE_CONFORMANCE=1` with the same command writes it anew.
#![expect(clippy::print_stderr, reason = "the list of refusals, for whoever runs this by hand")]

mod case;
mod family;
mod run;
#[path = "../support/mod.rs"]
mod support;
mod table;

use case::{Case, Failure};
use rayon::prelude::*;
use run::{Outcome, run};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Cases of the filter that must pass, of the 549 there are; ONNX Runtime 1.31 passes as many.
const MUST_PASS: usize = 540;

/// How many cases the filter takes from version 1.23.2 of the package.
const IN_FILTER: usize = 549;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of cases, when there is one.
fn cases_folder() -> Option<PathBuf> {
    let given = env::var_os("PLANFORGE_ONNX_CASES").map(PathBuf::from);
    given.or_else(|| Some(workspace().join("target/onnx-cases")).filter(|folder| folder.join("cases.json").exists()))
}

fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false" && value != "0")
}

#[test]
fn backend_cases_pass_or_are_refused_by_name() -> Result<(), Failure> {
    let Some(root) = cases_folder() else {
        let command = "python3 tests/conformance/generate.py target/onnx-cases";
        assert!(!in_ci(), "there are no ONNX backend cases; make them with: {command}");
        planforge_skipped::skipped(format_args!("there are no ONNX backend cases; make them with: {command}"));
        return Ok(());
    };
    let only = env::var("PLANFORGE_ONNX_CASE").ok();
    let mut cases = case::list(&root)?;
    cases.retain(|case| only.as_ref().is_none_or(|only| case.name.contains(only.as_str())));
    // A panic is caught below and listed as a wrong answer of its case; its trace would drown the list.
    std::panic::set_hook(Box::new(|_| ()));
    let outcomes: Vec<(&Case, Outcome)> = cases.par_iter().map(|case| (case, run(&root, case))).collect();
    drop(std::panic::take_hook());
    let mut wrong = Vec::new();
    for (case, outcome) in &outcomes {
        match outcome {
            Outcome::Passed { .. } => {}
            Outcome::Refused { message, .. } => eprintln!("refused {}: {}", case.name, message.replace('\n', ";")),
            Outcome::Wrong(reason) => wrong.push(format!("{}: {reason}", case.name)),
        }
    }
    let passed = |case: &Case, outcome: &Outcome| case.in_filter() && matches!(outcome, Outcome::Passed { .. });
    let filtered = cases.iter().filter(|case| case.in_filter()).count();
    let passed = outcomes.iter().filter(|(case, outcome)| passed(case, outcome)).count();
    eprintln!("{passed} of {filtered} in the filter pass; {} wrong of {}", wrong.len(), cases.len());
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
    if only.is_some() {
        return Ok(());
    }
    assert_eq!(filtered, IN_FILTER, "the cases are not those of the package version the table is of");
    assert!(passed >= MUST_PASS, "{passed} of {filtered} pass, which is fewer than {MUST_PASS}");
    check_table(&table::render(&outcomes))
}

/// Operators of `com.microsoft`, held to what ONNX Runtime 1.31.1 answered (`tests/conformance/contrib.py`).
#[test]
fn contrib_operators_agree_with_onnx_runtime() -> Result<(), Failure> {
    all_agree("contrib", 50)
}

/// Operators of `ai.onnx.ml`, and models of scikit-learn, XGBoost and LightGBM, held to what ONNX Runtime 1.31.1
/// answered (`tests/conformance/ml.py`).
#[test]
fn models_of_trees_and_classifiers_agree_with_onnx_runtime() -> Result<(), Failure> {
    all_agree("ml", 150)
}

/// Standard operators that sample, resize and quantize, in forms that the library of cases has not, held to what ONNX
/// Runtime 1.31.1 answered (`tests/conformance/images.py`).
#[test]
fn images_and_bits_agree_with_onnx_runtime() -> Result<(), Failure> {
    all_agree("images", 50)
}

/// Every committed case of a folder passes, and there are as many as there should be.
fn all_agree(folder: &str, at_least: usize) -> Result<(), Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx_cases").join(folder);
    let cases = case::list(&root)?;
    let outcomes = cases.par_iter().map(|case| (case, run(&root, case)));
    let failed: Vec<String> = outcomes
        .filter(|(_, outcome)| !matches!(outcome, Outcome::Passed { constants: false }))
        .map(|(case, outcome)| format!("{}: {outcome:?}", case.name))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(cases.len() >= at_least, "{} cases", cases.len());
    Ok(())
}

/// Holds the committed page to what was found.
fn check_table(found: &str) -> Result<(), Failure> {
    let path = workspace().join("docs/conformance.md");
    let page = fs::read_to_string(&path)?;
    let renewed = table::replace(&page, found)?;
    if page == renewed {
        return Ok(());
    }
    if env::var_os("PLANFORGE_WRITE_CONFORMANCE").is_some() {
        return Ok(fs::write(&path, renewed)?);
    }
    let differs = page.lines().zip(renewed.lines()).find(|(old, new)| old != new);
    let (old, new) = differs.unwrap_or(("the last line", "more lines"));
    panic!(
        "docs/conformance.md is stale: it says\n  {old}\nwhere this is found\n  {new}\nrenew it with: \
         PLANFORGE_WRITE_CONFORMANCE=1 cargo nextest run -p planforge-cpu backend_cases"
    );
}
