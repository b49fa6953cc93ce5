//! The fuzzing corpora of the declaration and the lock, replayed: nothing panics, and what is read is written again.

use planforge_fleet::{CellId, Lock, Locked, Standing, fuzzing, lock::Headline};
use planforge_report::matrix::StandIn;
use planforge_types::{BuildSpec, Digest, EngineKey, Precision, Toolchain};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn folder(corpus: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(corpus)
}

/// Runs `target` over every file of its committed corpus.
fn replay(corpus: &str, target: fn(&[u8])) {
    let folder = folder(corpus);
    let mut files = 0;
    for entry in fs::read_dir(&folder).expect("the corpus is committed") {
        target(&fs::read(entry.expect("an entry can be read").path()).expect("a file can be read"));
        files += 1;
    }
    assert!(files >= 8, "{} has only {files} files", folder.display());
}

#[test]
fn declarations() {
    replay("planforge_toml", fuzzing::declaration);
}

#[test]
fn locks() {
    replay("engines_lock", fuzzing::lock);
}

/// Of locks no byte of what went into a key can change, so seeds are made here: PLANFORGE_WRITE_CORPUS=1 writes them.
#[test]
fn seeds_of_locks_are_what_is_written_today() {
    let write = std::env::var_os("PLANFORGE_WRITE_CORPUS").is_some();
    for (name, text) in seeds() {
        let path = folder("engines_lock").join(name);
        if write {
            fs::create_dir_all(path.parent().expect("a folder")).expect("the corpus can be written");
            fs::write(&path, &text).expect("the corpus can be written");
        }
        let kept = fs::read_to_string(&path).expect("the corpus is committed");
        assert!(kept == text, "{name} is not what is written today");
        assert_eq!(Lock::parse(&text).is_ok(), name.starts_with("ok-"), "{name}: {:?}", Lock::parse(&text));
    }
}

fn cell(model: &str, sku: &str, toolchain: &Toolchain, spec: &BuildSpec) -> (CellId, Locked) {
    let id = CellId { model: model.into(), sku: sku.parse().expect("a device kind"), spec: "default".into() };
    let digest = Digest::of(model.as_bytes());
    let locked = Locked {
        model: digest,
        toolchain: toolchain.clone(),
        spec: spec.clone(),
        engine_key: EngineKey::new(&digest, &id.sku, toolchain, spec),
        plan: Digest::of(sku.as_bytes()),
        plan_bytes: 1234,
        farm: "https://farm.example".into(),
        headline: Headline::default(),
        base_plan: None,
    };
    (id, locked)
}

fn seeds() -> Vec<(&'static str, String)> {
    let native = Toolchain { backend: "native".into(), version: "6".into(), components: BTreeMap::new() };
    let components = [("cuda", "12.4"), ("it's \"odd\"", "\u{7f}")];
    let tensorrt = Toolchain {
        backend: "tensorrt".into(),
        version: "10.3.0".into(),
        components: components.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
    };
    let spec = BuildSpec { threads: Some(4), ..BuildSpec::default() };
    let odd = BuildSpec {
        precision: Precision::Fp16,
        options: BTreeMap::from([("tactic_sources".to_owned(), "it's \"-CUDNN\"".to_owned())]),
        ..BuildSpec::default()
    };
    let text = |cells: Vec<(CellId, Locked)>| Lock { cells: cells.into_iter().collect(), ..Lock::default() }.render();
    let one = || cell("a", "cpu-x86-64-v3", &native, &spec);
    let measured = || {
        let (id, locked) = one();
        let headline =
            Headline { median_ms: Some(0.0241), p99_ms: Some(1e21), throughput_per_s: Some(f64::MIN_POSITIVE) };
        (id, Locked { headline, base_plan: Some(Digest::of(b"before")), farm: "line\nbreak".into(), ..locked })
    };
    let several = vec![one(), cell("a", "t4", &tensorrt, &odd), cell("b.2", "h100-sxm-mig-1g.10gb", &tensorrt, &odd)];
    let plain = text(vec![one()]);
    let stand_in = StandIn {
        built_for: "h100-sxm".parse().expect("a device kind"),
        loss_low: -0.0125,
        loss_high: 0.018,
        models: 3,
        boards: [2, 4],
    };
    let stood = CellId { model: "a".into(), sku: "h100-pcie".parse().expect("a device kind"), spec: "default".into() };
    let stands = Standing { plan: Digest::of(b"plan"), stand_in };
    let standing = Lock { cells: [one()].into(), stand_ins: [(stood, stands)].into() };
    let block = plain[plain.find("\n[[engine]]").expect("a block")..].to_owned();
    vec![
        ("ok-empty", text(Vec::new())),
        ("ok-one", plain.clone()),
        ("ok-measured", text(vec![measured()])),
        ("ok-stands-in", standing.render()),
        ("ok-several", text(several)),
        ("ok-comments", plain.replace("version = 1\n", "version = 0x1 # the first\n\n")),
        ("bad-twice", format!("{plain}{block}")),
        ("bad-conflict", plain.replace("\n[[engine]]\n", "\n<<<<<<< HEAD\n[[engine]]\n") + "=======\n>>>>>>> other\n"),
        ("bad-newer", plain.replace("version = 1\n", "version = 7\nshape = [[]]\n")),
        ("bad-edited", plain.replace("native", "cuda")),
        ("bad-figure", text(vec![measured()]).replace("0.0241", "nan")),
        ("bad-field", plain.replace("farm =", "frm =")),
        ("bad-text", "not a lock".into()),
    ]
}
