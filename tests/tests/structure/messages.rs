//! What people read is written for people: no message holds what Rust's `Debug` makes of a value.
//!
//! Looked for in the sources: every `{:?}` in a text that is no test's, no assertion's and no log line's of the levels for
//! developers. Lists of plain numbers (`[1, 3, 224, 224]`) are let through by their names, other uses by their files.

use crate::crates::{packages, read, root, rust_files};
use std::collections::BTreeSet;

/// Names of lists of numbers, and of positions in them, which `Debug` writes as everybody does.
const NUMBERS: [&str; 31] = [
    "at",
    "axes",
    "axis",
    "block",
    "built",
    "dims",
    "dimensions",
    "expected",
    "first",
    "found",
    "given",
    "grid",
    "kernel",
    "label_shape",
    "parts",
    "place",
    "region",
    "row_shape",
    "scales",
    "second",
    "shape",
    "shape()",
    "shapes",
    "sizes",
    "takes",
    "target",
    "value",
    "values",
    "w",
    "window",
    "0",
];

/// Names of C libraries' status codes, whose `Debug` is the name that the libraries' manuals have.
const STATUSES: [&str; 2] = ["status", "other"];

/// Files whose texts nobody reads as messages, and what they are.
const OTHERS: [(&str, &str); 13] = [
    ("backends/cpu/src/assemble.rs", "what decides a packed constant's bytes"),
    ("backends/cpu/src/tail/kernels.rs", "a key of a cache"),
    ("backends/cuda/src/codegen/expr.rs", "why no code is generated, for who writes the generator"),
    ("backends/cuda/src/codegen/reduce.rs", "the same"),
    ("backends/cuda/src/runtime/library_plans.rs", "a key of a cache"),
    ("backends/cuda/src/runtime/ready.rs", "an implementation of Debug"),
    ("backends/tensorrt/src/failure/sources.rs", "what a test says of messages that were not understood"),
    (
        "coordinator/scheduler/src/core/invariants.rs",
        "broken rules of the scheduler: evidence of a bug, for who mends it",
    ),
    ("engine-core/graph/src/ir/check.rs", "broken rules of a graph, the same"),
    ("engine-core/graph/src/ir/dump.rs", "a graph as developers look at it"),
    ("engine-core/passes/src/duplicates.rs", "what makes two steps equal"),
    ("engine-core/passes/src/parallel.rs", "the same"),
    ("engine-core/worker/src/verify/agreement.rs", "what a digest is taken of, and places"),
];

/// What in the lines around says that a developer reads it.
const FOR_DEVELOPERS: [&str; 8] =
    ["assert", "panic!", "unreachable!", "debug!", "trace!", "expect(", "impl fmt::Debug", "f.write_str"];

/// The source without its tests.
fn product(text: &str) -> &str {
    let tests = text.match_indices("#[cfg(test)]\n").find(|(at, _)| {
        let mut after = text[*at..].lines().skip(1).skip_while(|line| line.starts_with("#["));
        after.next().is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    });
    tests.map_or(text, |(at, _)| &text[..at])
}

/// What stands between braces before `:?` or `:#?`, with the last name of what is formatted where nothing does.
fn formatted(line: &str, statement: &str) -> Vec<String> {
    let mut found = Vec::new();
    for end in [":?}", ":#?}"] {
        for (at, _) in line.match_indices(end) {
            let Some(start) = line[..at].rfind('{') else { continue };
            let name = &line[start + 1..at];
            if name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                found.push(if name.is_empty() { positional(statement) } else { name.to_owned() });
            }
        }
    }
    found
}

/// A name of a list of numbers that the arguments of a statement end in; else nothing.
fn positional(statement: &str) -> String {
    let names = NUMBERS.iter().filter(|name| name.len() > 3);
    let mut named =
        names.filter(|name| statement.contains(&format!(".{name}")) || statement.contains(&format!(".{name}(")));
    named.next().map(|name| (*name).to_owned()).unwrap_or_default()
}

/// Every use of `Debug` in messages of a source file.
fn uses(file: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = product(text).lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        let before = lines[at.saturating_sub(2)..=at].join("\n");
        if FOR_DEVELOPERS.iter().any(|word| before.contains(word)) {
            continue;
        }
        let statement = lines[at..lines.len().min(at + 5)].join("\n");
        let names = formatted(line, &statement);
        let unknown = |name: &String| !NUMBERS.contains(&name.as_str());
        let is_status = |name: &String| file.starts_with("kernels/cuda/") && STATUSES.contains(&name.as_str());
        if names.iter().any(|name| unknown(name) && !is_status(name)) {
            found.push(format!("{file}:{}: {}", at + 1, line.trim()));
        }
    }
    found
}

/// Fields of log lines that people read, written by `Debug`: `?name`.
fn logged(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for level in ["tracing::info!(", "tracing::warn!(", "tracing::error!("] {
        for (at, _) in product(text).match_indices(level) {
            let line = &text[at..at + text[at..].find(");").unwrap_or(0)];
            let by_debug = |(at, _): (usize, &str)| {
                let (before, after) = (&line[..at], &line[at + 1..]);
                before.ends_with([' ', '(']) && after.starts_with(|c: char| c.is_ascii_lowercase())
            };
            if line.match_indices('?').any(by_debug) {
                found.push(format!("{file}: {line}"));
            }
        }
    }
    found
}

#[test]
fn no_message_holds_what_debug_makes_of_a_value() {
    let (mut found, mut let_through, mut files) = (Vec::new(), BTreeSet::new(), 0);
    for package in &packages() {
        if ["planforge-tests", "planforge-skipped"].contains(&package.name.as_str()) {
            continue;
        }
        for file in rust_files(&package.folder().join("src")) {
            let name = file.strip_prefix(root()).expect("a file of the workspace").display().to_string();
            if name.ends_with("tests.rs") || name.ends_with("testing.rs") || name.contains("/tests/") {
                continue;
            }
            let text = read(&file);
            let uses = uses(&name, &text);
            files += 1;
            found.extend(logged(&name, &text));
            match OTHERS.iter().find(|(other, _)| *other == name) {
                Some((other, _)) if !uses.is_empty() => drop(let_through.insert(*other)),
                _ => found.extend(uses),
            }
        }
    }
    assert!(files > 300, "only {files} files were looked at");
    assert!(found.is_empty(), "write these for people (Display, or a list of names):\n{}", found.join("\n"));
    assert_eq!(let_through.len(), OTHERS.len(), "some of {OTHERS:?} use it no more: {let_through:?}");
}

#[test]
fn a_message_by_debug_is_told_from_what_only_looks_so() {
    for line in [
        r#"format!("{state:?}")"#,
        r#"format!("{:?}", job.state)"#,
        r#"#[error("the type {element:?} of it")]"#,
        r#"context.note(&format!("{limit:#?}"))"#,
    ] {
        assert_eq!(uses("x.rs", line).len(), 1, "{line}");
    }
    for line in [
        r#"format!("shape {shape:?}")"#,
        r#"format!("{:?}", tensor.shape)"#,
        r#"assert!(x, "{state:?}")"#,
        r#"tracing::debug!("{state:?}")"#,
        "#[cfg(test)]\nmod tests {\n    format!(\"{state:?}\")",
        r#"// {state:?}"#,
    ] {
        assert!(uses("x.rs", line).is_empty(), "{line}");
    }
    assert_eq!(logged("x.rs", r#"tracing::info!(?url, "started");"#).len(), 1);
    assert_eq!(logged("x.rs", r#"tracing::warn!(names = ?names, "odd");"#).len(), 1);
    assert!(logged("x.rs", r#"tracing::info!(%url, "started? yes");"#).is_empty());
}
