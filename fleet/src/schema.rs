//! The JSON Schema of `planforge.toml`, for editors and for whoever checks YAML and TOML in a pipeline.

use crate::{
    declaration::{GATES, GATES_OF_SKUS, NAME_MAX_BYTES},
    target::{ALL_FLEET, Class},
};
use planforge_report::compare::gate::Figure;
use planforge_types::spec::{MAX_THREADS, MAX_WORKSPACE_MIB};
use serde_json::{Map, Value, json};

/// A setting that the file may hold beside the declaration.
#[derive(Clone, Copy, Debug)]
pub struct SettingKey<'a> {
    pub name: &'a str,
    pub help: &'a str,
    /// A list of texts; a text otherwise.
    pub is_list: bool,
}

/// The schema (draft 2020-12), with the keys of `settings` among those of the document.
pub fn schema(settings: &[SettingKey<'_>]) -> Value {
    let texts = |description: &str| json!({"type": "array", "items": {"type": "string"}, "description": description});
    let classes = Class::ALL.map(Class::name).join(", ");
    let targets =
        |description: &str| texts(&format!("{description}: device kinds, classes ({classes}) or {ALL_FLEET}"));
    let name = json!({"type": "string", "pattern": format!("^[A-Za-z0-9][A-Za-z0-9._-]{{0,{}}}$", NAME_MAX_BYTES - 1)});
    let text = |description: &str| json!({"type": "string", "description": description});
    let switch = |description: &str| json!({"type": "boolean", "description": description});
    let whole = |least: u64, most: u64, description: &str| json!({"type": "integer", "minimum": least, "maximum": most, "description": description});
    let table = |properties: Value| json!({"type": "object", "additionalProperties": false, "properties": properties});
    let model = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "path": {"type": "string", "minLength": 1, "description": "ONNX file; the path starts at this file's folder"},
            "url": {"type": "string", "pattern": "^https?://", "description": "where the file is downloaded from"},
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "SHA-256 of what the URL brings"},
            "targets": targets("In place of the file's targets"),
            "specs": texts("Names of the specs to build; all by default"),
        },
        "oneOf": [{"required": ["path"]}, {"required": ["url", "sha256"]}],
    });
    let spec = table(json!({
        "precision": {"enum": ["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "best"], "description": "arithmetic"},
        "toolchain": text("Range of toolchains, such as native or tensorrt>=10.3,<11"),
        "shapes": texts("Input shapes, such as images:1x3x224x224 or ids:1..8x128; each text is a profile"),
        "threads": whole(1, MAX_THREADS.into(), "CPU threads the engine runs on"),
        "optimization_level": whole(0, 5, "how hard to search for tactics"),
        "workspace_mib": whole(1, MAX_WORKSPACE_MIB, "most scratch memory a tactic may use, in MiB"),
        "hardware_compatibility": {
            "enum": ["none", "ampere+", "same_compute_capability"],
            "description": "TensorRT: run on other boards too",
        },
        "version_compatible": switch("TensorRT: run on newer versions too"),
        "approximate_gelu": switch("GELU by tanh may stand in for GELU by erf"),
        "strict": switch("Refuse a model whose declared output shapes contradict its nodes"),
        "calibration": text("Calibration cache that int8 scales come from"),
        "plugins": texts("Plugin libraries that the engine needs"),
        "options": {"type": "object", "additionalProperties": {"type": "string"}, "description": "backend options"},
        "targets": targets("Only for these of a model's targets"),
    }));
    let limits: Map<String, Value> = GATES
        .iter()
        .map(|(name, figure)| {
            let unit = if *figure == Figure::Accuracy { "percentage points" } else { "percent" };
            let help = format!("{unit} that its {} may be worse than that of the engine it replaces", figure.words());
            let limit = json!({"type": "number", "minimum": 0, "maximum": figure.most_percent(), "description": help});
            ((*name).to_owned(), limit)
        })
        .collect();
    let mut gates = limits.clone();
    let of_sku = table(Value::Object(limits));
    gates.insert(
        GATES_OF_SKUS.into(),
        json!({"type": "object", "additionalProperties": of_sku, "description": "Gates of single device kinds"}),
    );
    let gates = table(Value::Object(gates));
    let layout = table(json!({
        "folder": text("Where fetched engines go; the path starts at this file's folder"),
        "file": text("Below it; {model}, {sku} and {spec} stand for the cell's"),
    }));
    let mut properties = Map::new();
    for SettingKey { name, help, is_list } in settings {
        properties.insert((*name).to_owned(), if *is_list { texts(help) } else { text(help) });
    }
    let named = |of: Value| json!({"type": "object", "propertyNames": name.clone(), "additionalProperties": of});
    let mut called = name.clone();
    called["description"] = "What the farm knows the repository by; its folder's name by default".into();
    properties.insert("name".into(), called);
    properties.insert("targets".into(), targets("What models are built for that name no targets"));
    properties.insert("models".into(), named(model));
    properties.insert("specs".into(), named(spec));
    properties.insert("gates".into(), gates);
    properties.insert("layout".into(), layout);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "planforge.toml",
        "description": "Settings of a project, and the engines that it declares",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Declaration, declaration::KEYS, target::tests::boards};

    const SETTINGS: [SettingKey<'_>; 2] = [
        SettingKey { name: "server", help: "URL", is_list: false },
        SettingKey { name: "skus", help: "device kinds", is_list: true },
    ];

    /// Whether a document is one of the schema; of JSON Schema what [`schema`] uses.
    fn fits(schema: &Value, value: &Value) -> bool {
        let kind = |name: &str| match name {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64(),
            "number" => value.is_number(),
            other => panic!("unknown type {other}"),
        };
        let Some(rules) = schema.as_object() else { return schema.as_bool().expect("a schema") };
        rules.iter().all(|(rule, of)| match rule.as_str() {
            "$schema" | "title" | "description" | "properties" => true,
            "type" => kind(of.as_str().unwrap()),
            "enum" => of.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= of.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= of.as_f64().unwrap()),
            "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= of.as_u64().unwrap()),
            "pattern" => value.as_str().is_none_or(|text| matches_pattern(of.as_str().unwrap(), text)),
            "items" => value.as_array().is_none_or(|items| items.iter().all(|item| fits(of, item))),
            "required" => of.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
            "oneOf" => of.as_array().unwrap().iter().filter(|one| fits(one, value)).count() == 1,
            "propertyNames" => {
                value.as_object().is_none_or(|table| table.keys().all(|name| fits(of, &Value::from(name.as_str()))))
            }
            "additionalProperties" => value.as_object().is_none_or(|table| {
                let known = rules.get("properties").and_then(Value::as_object);
                table.iter().all(|(name, value)| match known.and_then(|known| known.get(name)) {
                    Some(schema) => fits(schema, value),
                    None => fits(of, value),
                })
            }),
            other => panic!("unknown rule {other}"),
        })
    }

    /// The three patterns of the schema.
    fn matches_pattern(pattern: &str, text: &str) -> bool {
        match pattern {
            "^https?://" => text.starts_with("https://") || text.starts_with("http://"),
            "^[0-9a-f]{64}$" => {
                text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            }
            "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" => crate::declaration::is_plain_name(text),
            other => panic!("unknown pattern {other}"),
        }
    }

    #[test]
    fn schema_and_parser_take_and_refuse_the_same() {
        let schema = schema(&SETTINGS);
        let digest = "a".repeat(64);
        let fine = [
            String::new(),
            "server = \"https://x\"\nskus = [\"t4\"]\n".into(),
            "targets = [\"t4\", \"hopper\"]\n[models.a]\npath = \"a.onnx\"\n".into(),
            format!("[models.a]\nurl = \"https://x\"\nsha256 = \"{digest}\"\ntargets = [\"all-fleet\"]\nspecs = [\"s\"]\n[specs.s]\n"),
            "[specs.s]\nprecision = \"int8\"\ntoolchain = \"native\"\nshapes = [\"x:1x3\"]\nthreads = 2\noptimization_level = 0\n\
             workspace_mib = 1\nhardware_compatibility = \"ampere+\"\nversion_compatible = true\napproximate_gelu = false\nstrict = true\n\
             calibration = \"c\"\nplugins = [\"p\"]\noptions = { a = \"b\" }\ntargets = [\"gpu\"]\n"
                .into(),
            "[gates]\nslower_percent = 2.5\n[layout]\nfolder = \"e\"\nfile = \"{model}/{sku}\"\n".into(),
            "[gates]\nslower_percent = 0\n".into(),
            "[gates]\np99_slower_percent = 1\naccuracy_lower_points = 0.5\n[gates.skus.t4]\nsize_more_percent = 3\n".into(),
            "name = \"shop.v2\"\n".into(),
        ];
        let wrong = [
            "x = 1\n".to_owned(),
            "server = 1\n".into(),
            "skus = \"t4\"\n".into(),
            "targets = \"t4\"\n".into(),
            "name = \"my shop\"\n".into(),
            "name = 1\n".into(),
            "targets = [1]\n".into(),
            "models = 1\n".into(),
            "targets = [\"t4\"]\n[models.a]\n".into(),
            format!("targets = [\"t4\"]\n[models.a]\npath = \"a\"\nurl = \"https://x\"\nsha256 = \"{digest}\"\n"),
            "targets = [\"t4\"]\n[models.a]\nurl = \"https://x\"\n".into(),
            "targets = [\"t4\"]\n[models.a]\nurl = \"https://x\"\nsha256 = \"12\"\n".into(),
            format!("targets = [\"t4\"]\n[models.a]\nurl = \"ftp://x\"\nsha256 = \"{digest}\"\n"),
            "targets = [\"t4\"]\n[models.a]\npath = \"a\"\nname = \"b\"\n".into(),
            "targets = [\"t4\"]\n[models.\"a b\"]\npath = \"a\"\n".into(),
            "[specs.s]\nprecision = \"fp64\"\n".into(),
            "[specs.s]\nthreads = 0\n".into(),
            "[specs.s]\noptimization_level = 6\n".into(),
            "[specs.s]\noptimization_level = 1.5\n".into(),
            "[specs.s]\nversion_compatible = \"on\"\n".into(),
            "[specs.s]\noptions = { a = 1 }\n".into(),
            "[gates]\nslower_percent = -1\n".into(),
            "[gates]\nfaster_percent = 1\n".into(),
            "[gates]\nthroughput_lower_percent = 100\n".into(),
            "[gates.skus.t4]\nfaster_percent = 1\n".into(),
            "[layout]\nfolder = 1\n".into(),
        ];
        // Settings have a reader of their own, which sees to their kinds.
        let settings_are_wrong = |text: &str| text.starts_with("server = 1") || text.starts_with("skus = \"");
        for (texts, is_fine) in [(&fine[..], true), (&wrong[..], false)] {
            for text in texts {
                let document: toml::Table = toml::from_str(text).unwrap();
                let document = serde_json::to_value(document).unwrap();
                assert_eq!(fits(&schema, &document), is_fine, "the schema: {text}");
                if !settings_are_wrong(text) {
                    let read = Declaration::parse(text, &["server", "skus"], &boards());
                    assert_eq!(read.is_ok(), is_fine, "the parser: {text}: {read:?}");
                }
            }
        }
    }

    #[test]
    fn every_key_that_is_read_stands_in_the_schema() {
        let schema = schema(&SETTINGS);
        let keys: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), KEYS.len() + SETTINGS.len());
        assert!(KEYS.iter().all(|key| keys.iter().any(|known| known == key)));
    }
}
