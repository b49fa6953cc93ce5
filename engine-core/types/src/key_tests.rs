//! The promise of the engine key: same meaning ⇒ same key, in any order or spelling; another meaning ⇒ another key.

use super::*;
use proptest::{collection::btree_map, option, prelude::*, sample::select};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

fn precision() -> impl Strategy<Value = Precision> {
    use Precision::{Best, Bf16, Fp8, Fp16, Fp32, Int8, Tf32};
    select(vec![Fp32, Tf32, Fp16, Bf16, Int8, Fp8, Best])
}

fn range() -> impl Strategy<Value = DimRange> {
    (1..100u64, 0..100u64, 0..100u64).prop_map(|(min, a, b)| DimRange { min, opt: min + a, max: min + a + b })
}

fn profile() -> impl Strategy<Value = OptimizationProfile> {
    btree_map("[a-z]{1,6}", proptest::collection::vec(range(), 1..5), 1..3)
        .prop_map(|inputs| OptimizationProfile { inputs })
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest::from_raw)
}

fn spec() -> impl Strategy<Value = BuildSpec> {
    (
        (precision(), proptest::collection::vec(profile(), 0..3), option::of(1..5000u64), 0..=5u8),
        (option::of(select(vec!["ampere+", "same_compute_capability"])), any::<[bool; 3]>(), option::of(digest())),
        (proptest::collection::vec(digest(), 0..4), option::of(1..64u32), btree_map("[a-z]{1,6}", "[ -~]{0,8}", 0..4)),
    )
        .prop_map(|((precision, profiles, workspace_mib, level), (compatibility, switches, calibration), rest)| {
            let (plugins, threads, options) = rest;
            let [version_compatible, approximate_gelu, strict] = switches;
            BuildSpec {
                precision,
                profiles,
                workspace_mib,
                optimization_level: OptimizationLevel(level),
                hardware_compatibility: compatibility.map(str::to_owned),
                version_compatible,
                approximate_gelu,
                strict,
                calibration,
                plugins,
                threads,
                options,
            }
        })
}

fn sku() -> Sku {
    "cpu-x86-64-v3".parse().unwrap()
}

fn toolchain() -> Toolchain {
    let components = BTreeMap::from([("cuda".to_owned(), "12.8".to_owned())]);
    Toolchain { backend: "native".into(), version: "1".into(), components }
}

fn key(spec: &BuildSpec) -> EngineKey {
    EngineKey::new(&Digest::of(b"model"), &sku(), &toolchain(), spec)
}

/// The document with the fields of every object in reverse order and blanks between them: another spelling of the
/// same.
fn respelled(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().rev().map(|(name, value)| format!("{} :\t{}", json!(name), respelled(value))).collect();
            format!("{{ {} }}", fields.join(" ,\n"))
        }
        Value::Array(items) => format!("[ {} ]", items.iter().map(respelled).collect::<Vec<_>>().join(" , ")),
        other => other.to_string(),
    }
}

/// The document without the fields that say what leaving them out says.
fn without_defaults(value: &Value) -> Value {
    let defaults = serde_json::to_value(BuildSpec::default()).unwrap();
    let Value::Object(fields) = value else { unreachable!("a spec is an object") };
    fields.iter().filter(|(name, value)| defaults[*name] != **value).map(|(n, v)| (n.clone(), v.clone())).collect()
}

proptest! {
    #[test]
    fn any_spelling_of_a_spec_gives_the_same_key(spec in spec(), turn in 0..4usize, repeat in any::<bool>()) {
        let expected = key(&spec);
        let document = serde_json::to_value(&spec).unwrap();
        for text in [document.to_string(), respelled(&document), without_defaults(&document).to_string(), spec.to_canonical_json()] {
            prop_assert_eq!(key(&BuildSpec::parse(&text).unwrap()), expected, "{}", text);
        }
        let mut shuffled = spec.clone();
        let places = shuffled.plugins.len().max(1);
        shuffled.plugins.rotate_left(turn % places);
        if let (true, Some(first)) = (repeat, shuffled.plugins.first().copied()) {
            shuffled.plugins.push(first);
        }
        prop_assert_eq!(key(&shuffled), expected);
    }

    #[test]
    fn specs_that_differ_have_different_keys(left in spec(), right in spec()) {
        prop_assert_eq!(left.clone().canonical() == right.clone().canonical(), key(&left) == key(&right));
    }

    #[test]
    fn canonical_json_is_a_fixed_point(spec in spec()) {
        let text = spec.to_canonical_json();
        prop_assert_eq!(BuildSpec::parse(&text).unwrap().to_canonical_json(), text);
        prop_assert_eq!(spec.clone().canonical().canonical(), spec.canonical());
    }
}

/// Every way to change one leaf of a JSON document into another of its kind.
fn mutations(value: &Value) -> Vec<Value> {
    match value {
        Value::Object(fields) => {
            let nested = fields.iter().flat_map(|(name, value)| {
                mutations(value).into_iter().map(move |changed| {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), changed);
                    Value::Object(fields)
                })
            });
            nested.collect()
        }
        Value::Array(items) => {
            let mut all: Vec<Value> = Vec::new();
            for (index, item) in items.iter().enumerate() {
                for changed in mutations(item) {
                    let mut items = items.clone();
                    items[index] = changed;
                    all.push(Value::Array(items));
                }
            }
            all
        }
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) => vec![json!(number.as_u64().unwrap() + 1)],
        Value::String(text) if text.len() == 64 => vec![json!(Digest::of(text.as_bytes()).to_string())],
        Value::String(text) => match text.as_str() {
            "fp16" => vec![json!("bf16")],
            "ampere+" => vec![json!("same_compute_capability")],
            other => vec![json!(format!("{other}x"))],
        },
        Value::Null => Vec::new(),
    }
}

/// A spec in which every field is set, so that every one can be changed.
fn full_spec() -> BuildSpec {
    let dims = vec![DimRange { min: 1, opt: 4, max: 8 }, DimRange { min: 3, opt: 3, max: 5 }];
    let profile = |name: &str| OptimizationProfile { inputs: BTreeMap::from([(name.to_owned(), dims.clone())]) };
    BuildSpec {
        precision: Precision::Fp16,
        profiles: vec![profile("x"), profile("y")],
        workspace_mib: Some(64),
        optimization_level: OptimizationLevel(4),
        hardware_compatibility: Some("ampere+".into()),
        version_compatible: false,
        approximate_gelu: true,
        strict: true,
        calibration: Some(Digest::of(b"table")),
        plugins: vec![Digest::of(b"plugin")],
        threads: Some(2),
        options: BTreeMap::from([("name".to_owned(), "value".to_owned())]),
    }
}

#[test]
fn a_change_of_any_field_gives_another_key() {
    let document = serde_json::to_value(full_spec()).unwrap();
    let Value::Object(fields) = &document else { unreachable!("a spec is an object") };
    let mut seen = BTreeSet::from([key(&full_spec())]);
    for (name, value) in fields {
        let variants = mutations(&Value::Object(Map::from_iter([(name.clone(), value.clone())])));
        assert!(!variants.is_empty(), "field {name} is set to something that can be changed");
        for variant in variants {
            let mut changed = fields.clone();
            changed.insert(name.clone(), variant[name].clone());
            // Read without validation: what matters is that the key tells it apart.
            let spec: BuildSpec = serde_json::from_value(Value::Object(changed)).unwrap();
            assert!(seen.insert(key(&spec)), "changing {name} to {} gives a key seen before", variant[name]);
        }
        // Leaving it out is another meaning too where it is no default, and of a switch the one that was seen just now.
        let mut without = fields.clone();
        without.remove(name);
        let spec: BuildSpec = serde_json::from_value(Value::Object(without)).unwrap();
        let is_new = !["version_compatible", "approximate_gelu", "strict"].contains(&name.as_str());
        assert_eq!(seen.insert(key(&spec)), is_new, "leaving out {name}");
    }
}

#[test]
fn order_of_profiles_and_names_of_inputs_matter() {
    let mut swapped = full_spec();
    swapped.profiles.reverse();
    assert_ne!(key(&swapped), key(&full_spec()));
}

#[test]
fn model_sku_and_every_part_of_the_toolchain_matter() {
    let spec = full_spec();
    let model = Digest::of(b"model");
    let base = EngineKey::new(&model, &sku(), &toolchain(), &spec);
    let mut seen = BTreeSet::from([base]);
    assert!(seen.insert(EngineKey::new(&Digest::of(b"other"), &sku(), &toolchain(), &spec)));
    assert!(seen.insert(EngineKey::new(&model, &"t4".parse().unwrap(), &toolchain(), &spec)));
    let changes: [fn(&mut Toolchain); 5] = [
        |t| t.backend = "onnxruntime".into(),
        |t| t.version = "2".into(),
        |t| t.components.clear(),
        |t| drop(t.components.insert("cuda".into(), "12.9".into())),
        |t| drop(t.components.insert("cudnn".into(), "9.1".into())),
    ];
    for change in changes {
        let mut changed = toolchain();
        change(&mut changed);
        assert!(seen.insert(EngineKey::new(&model, &sku(), &changed, &spec)), "{changed}");
    }
}

#[test]
fn equal_meanings_have_one_form() {
    let empty_profile = BuildSpec { profiles: vec![OptimizationProfile::default()], ..BuildSpec::default() };
    assert_eq!(key(&empty_profile), key(&BuildSpec::default()));
    for (spelling, same_as) in
        [("none", None), ("Ampere+", Some("ampere+")), ("same-compute-capability", Some("same_compute_capability"))]
    {
        let with = |level: Option<&str>| BuildSpec {
            hardware_compatibility: level.map(str::to_owned),
            ..BuildSpec::default()
        };
        assert_eq!(key(&with(Some(spelling))), key(&with(same_as)), "{spelling}");
    }
}

/// Keys name stored engines: a change of what goes into them must be a decision, with a new key domain.
#[test]
fn keys_stay_what_they_were() {
    let spec = BuildSpec { threads: Some(2), ..BuildSpec::default() };
    assert_eq!(
        spec.to_canonical_json(),
        r#"{"calibration":null,"hardware_compatibility":null,"optimization_level":3,"options":{},"plugins":[],"precision":"fp32","profiles":[],"threads":2,"version_compatible":false,"workspace_mib":null}"#
    );
    assert_eq!(key(&spec).to_string(), "60aea0124d9e7f09cf8815f4ba4efa77ca29c9b8091b65d6b542f97a3295dd50");
}

/// What is asked for only now and then is written down only then: the keys of all other specs stay what they were.
#[test]
fn an_approximate_gelu_is_another_key_and_no_word_elsewhere() {
    let asked = BuildSpec { approximate_gelu: true, ..BuildSpec::default() };
    assert!(asked.to_canonical_json().starts_with(r#"{"approximate_gelu":true,"calibration":null,"#));
    assert_ne!(key(&asked), key(&BuildSpec::default()));
    let refused = BuildSpec::parse(r#"{"approximate_gelu": false}"#).unwrap();
    assert_eq!(key(&refused), key(&BuildSpec::default()));
    assert_eq!(BuildSpec::parse(&asked.to_canonical_json()), Ok(asked));
}

#[test]
fn strictness_is_another_key_and_no_word_elsewhere() {
    let asked = BuildSpec { strict: true, ..BuildSpec::default() };
    assert!(asked.to_canonical_json().contains(r#""strict":true"#));
    assert!(!BuildSpec::default().to_canonical_json().contains("strict"));
    assert_ne!(key(&asked), key(&BuildSpec::default()));
    assert_eq!(key(&BuildSpec::parse(r#"{"strict": false}"#).unwrap()), key(&BuildSpec::default()));
    assert_eq!(BuildSpec::parse(&asked.to_canonical_json()), Ok(asked));
}
