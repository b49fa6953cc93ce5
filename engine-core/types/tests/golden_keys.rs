//! Engine keys are forever: data folders, locks and pipelines hold them. The keys in `golden/engine-keys.json` were made
//! by the release that first wrote that file; whatever changes one of them makes every stored engine unfindable.
//!
//! A key that has to change gets a new key domain and a line in CHANGELOG; the file is then written anew by hand.

use planforge_types::{BuildSpec, Digest, EngineKey, Sku, Toolchain};
use serde::Deserialize;
use std::{collections::BTreeSet, path::Path};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    name: String,
    model: Digest,
    sku: Sku,
    toolchain: Toolchain,
    /// As a request says it: fields may be left out.
    spec: serde_json::Value,
    key: String,
}

fn golden() -> Vec<Golden> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/engine-keys.json");
    let text = std::fs::read_to_string(&path).expect("the golden keys are readable");
    serde_json::from_str(&text).expect("the golden keys parse")
}

fn key_of(row: &Golden) -> EngineKey {
    let spec = BuildSpec::parse(&row.spec.to_string()).expect(&row.name);
    EngineKey::new(&row.model, &row.sku, &row.toolchain, &spec)
}

#[test]
fn engine_keys_stay_what_they_were() {
    let rows = golden();
    let wrong: Vec<String> = rows
        .iter()
        .map(|row| (row, key_of(row).to_string()))
        .filter(|(row, key)| *key != row.key)
        .map(|(row, key)| format!("{}: was {}, is {key}", row.name, row.key))
        .collect();
    assert!(wrong.is_empty(), "engine keys changed, so stored engines are no longer found:\n{}", wrong.join("\n"));
    let different: BTreeSet<_> = rows.iter().map(|row| &row.key).collect();
    assert_eq!((rows.len(), different.len()), (10, 10), "ten specs, each with a key of its own");
}

/// A spec with every default written out is the spec that leaves them out.
#[test]
fn defaults_written_out_give_the_same_key() {
    for row in golden() {
        let spec = BuildSpec::parse(&row.spec.to_string()).expect(&row.name);
        let whole = BuildSpec::parse(&spec.to_canonical_json()).expect(&row.name);
        let key = EngineKey::new(&row.model, &row.sku, &row.toolchain, &whole);
        assert_eq!(key.to_string(), row.key, "{}", row.name);
    }
}
