//! What ARCHITECTURE.md, CONTRIBUTING.md and README.md say of the sources is there.

use crate::crates::root;
use std::{collections::BTreeSet, fs, process::Command};

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What stands between backticks outside of code blocks.
fn quoted(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((choices, after)) = rest.split_once('}') else { return vec![path.to_owned()] };
    choices.split(',').flat_map(|choice| expanded(&format!("{before}{choice}{after}"))).collect()
}

#[test]
fn every_path_that_the_pages_name_is_there() {
    let root = root();
    let folders: BTreeSet<String> = fs::read_dir(&root)
        .expect("the workspace")
        .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_dir())?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    let mut missing = Vec::new();
    let mut seen = 0;
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"] {
        for text in quoted(&page(name)) {
            let is_path = text.split_once('/').is_some_and(|(first, _)| folders.contains(first));
            let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.{},*".contains(c);
            if !is_path || !text.chars().all(plain) || text.contains('*') {
                continue;
            }
            for path in expanded(&text) {
                seen += 1;
                // A module may be a file or a folder.
                if !root.join(&path).exists() && !root.join(format!("{path}.rs")).exists() {
                    missing.push(format!("{name}: `{path}`"));
                }
            }
        }
    }
    assert!(seen > 50, "only {seen} paths were looked at");
    assert!(missing.is_empty(), "named but not there:\n{}", missing.join("\n"));
}

#[test]
fn every_recipe_applies() {
    let check = Command::new("bash").arg(root().join("docs/recipes/check.sh")).arg("--applies").output().expect("bash");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

/// Names of everything that a file defines: functions, methods as `Type::method`, types, constants.
fn defined(file: &str) -> BTreeSet<String> {
    let parsed = syn::parse_file(&page(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut names = BTreeSet::new();
    for item in parsed.items {
        match item {
            syn::Item::Fn(item) => drop(names.insert(item.sig.ident.to_string())),
            syn::Item::Const(item) => drop(names.insert(item.ident.to_string())),
            syn::Item::Struct(item) => drop(names.insert(item.ident.to_string())),
            syn::Item::Enum(item) => drop(names.insert(item.ident.to_string())),
            syn::Item::Impl(item) => {
                let syn::Type::Path(of) = *item.self_ty else { continue };
                let of = of.path.segments.last().expect("a type has a name").ident.to_string();
                for item in item.items {
                    if let syn::ImplItem::Fn(method) = item {
                        names.insert(format!("{of}::{}", method.sig.ident));
                    }
                }
            }
            _ => {}
        }
    }
    names
}

#[test]
fn the_items_that_decide_ten_behaviours_are_there() {
    let page = page("ARCHITECTURE.md");
    let (_, rest) = page.split_once("## Who decides\n").expect("ARCHITECTURE.md says who decides");
    let section = rest.split("\n## ").next().expect("the section's text");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() >= 10, "{} behaviours", rows.len());
    for row in rows {
        let names = quoted(row);
        let [item, file] = names.as_slice() else { panic!("a row names an item and its file: {row}") };
        let defined = defined(file);
        assert!(defined.contains(item), "{file} defines no {item}; it has {defined:?}");
    }
}
