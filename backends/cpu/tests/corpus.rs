//! Replays the fuzzers' seeds, and whatever they found: an error or an answer, never a panic.
//!
//! Models whose names begin with `ok-` must import. `PLANFORGE_WRITE_CORPUS=1` makes the seeds of plans anew, from
//! those models.

mod support;

use planforge_backend::{Cancel, CompileRequest, Compiler};
use planforge_cpu::{CpuCompiler, fuzzing};
use planforge_device::CpuLevel;
use planforge_import::import;
use planforge_onnx::{
    Model,
    proto::{ModelProto, tensor_shape_proto::dimension, type_proto},
};
use planforge_types::{BuildSpec, Digest, DimRange, OptimizationProfile};
use proptest::{collection::vec, prelude::*, sample::Index};
use prost::Message as _;
use std::{
    error::Error,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};
use support::Silent;

type Failure = Box<dyn Error>;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Names and bytes of a corpus, sorted.
fn seeds(target: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut seeds = Vec::new();
    for entry in fs::read_dir(folder(target))? {
        let path = entry?.path();
        seeds.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), fs::read(&path)?));
    }
    seeds.sort();
    Ok(seeds)
}

#[test]
fn models_are_refused_or_run() -> Result<(), Failure> {
    let seeds = seeds("import_model")?;
    for (name, bytes) in &seeds {
        let imported = Model::from_bytes(bytes.clone().into()).map(|model| import(&model, None));
        match imported {
            Ok(Ok(_)) => assert!(!name.starts_with("bad-"), "{name} was imported"),
            Ok(Err(error)) => assert!(!name.starts_with("ok-"), "{name}: {error}"),
            Err(error) => assert!(!name.starts_with("ok-"), "{name}: {error}"),
        }
        fuzzing::model(bytes);
    }
    assert!(seeds.len() >= 20, "{} seeds", seeds.len());
    Ok(())
}

/// Manifest and weights of a model's plan, with a zero byte between, as the fuzzer takes them.
fn plan_seed(model: &Path, level: CpuLevel, profiles: Vec<OptimizationProfile>) -> Result<Vec<u8>, Failure> {
    let scratch = tempfile::tempdir()?;
    let plain = support::request(model, level, scratch.path());
    let spec = BuildSpec { profiles, ..plain.spec };
    let request = CompileRequest { model_digest: Digest::of(&fs::read(model)?), spec, ..plain };
    let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default())?;
    Ok(fuzzing::plan_seed(&plan.path)?)
}

#[test]
fn plans_are_refused_or_run() -> Result<(), Failure> {
    let lowest = CpuLevel::detect().first().copied().ok_or("this CPU is below every level")?;
    if std::env::var_os("PLANFORGE_WRITE_CORPUS").is_some() {
        fs::create_dir_all(folder("read_plan"))?;
        for (name, _) in seeds("import_model")?.iter().filter(|(name, _)| name.starts_with("ok-")) {
            fs::write(folder("read_plan").join(name), plan_seed(&folder("import_model").join(name), lowest, vec![])?)?;
        }
        // A plan of varying shapes holds its model.
        let scratch = tempfile::tempdir()?;
        let model = scratch.path().join("model.onnx");
        let mut proto = ModelProto::decode(fs::read(folder("import_model").join("ok-chain"))?.as_slice())?;
        let graph = proto.graph.as_mut().ok_or("a graph")?;
        for port in graph.input.iter_mut().chain(&mut graph.output) {
            let value = port.r#type.as_mut().and_then(|ty| ty.value.as_mut());
            let Some(type_proto::Value::TensorType(tensor)) = value else { return Err("a tensor".into()) };
            let first = tensor.shape.as_mut().and_then(|shape| shape.dim.first_mut()).ok_or("a batch")?;
            first.value = Some(dimension::Value::DimParam("n".into()));
        }
        fs::write(&model, proto.encode_to_vec())?;
        let range = |min, opt, max| DimRange { min, opt, max };
        let dims = vec![range(1, 2, 3), range(1, 1, 1), range(4, 4, 4), range(4, 4, 4)];
        let profile = OptimizationProfile { inputs: [("x".to_owned(), dims)].into() };
        fs::write(folder("read_plan").join("ok-varying"), plan_seed(&model, lowest, vec![profile])?)?;
    }
    let scratch = tempfile::tempdir()?;
    let seeds = seeds("read_plan")?;
    for (_, bytes) in &seeds {
        fuzzing::plan(bytes, scratch.path());
        // Cut short, and with one byte changed, at a few places.
        for at in [bytes.len() / 7, bytes.len() / 3, bytes.len() / 2] {
            fuzzing::plan(&bytes[..at], scratch.path());
            let mut changed = bytes.clone();
            if let Some(byte) = changed.get_mut(at) {
                *byte = byte.wrapping_add(1);
            }
            fuzzing::plan(&changed, scratch.path());
        }
    }
    assert!(seeds.len() >= 10, "{} seeds", seeds.len());
    Ok(())
}

/// Where the numbers of a manifest stand that are no part of a string.
fn numbers(manifest: &[u8]) -> Vec<Range<usize>> {
    let (mut found, mut quoted, mut at) = (Vec::new(), false, 0);
    while let Some(byte) = manifest.get(at) {
        let length = manifest[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        match byte {
            b'"' => quoted = !quoted,
            _ if length > 0 && !quoted => found.push(at..at + length),
            _ => {}
        }
        at += length.max(1);
    }
    found
}

/// Offsets, sizes, counts and indices that a plan's reader must not believe: each number of every seed, made another.
#[test]
fn plans_with_another_number_are_refused_or_run() -> Result<(), Failure> {
    let others = |number: &[u8]| -> [String; 5] {
        let value = String::from_utf8_lossy(number).parse::<u64>().unwrap_or(u64::MAX);
        [0, value.wrapping_add(1), value.wrapping_sub(1), u64::from(u32::MAX), u64::MAX].map(|other| other.to_string())
    };
    let scratch = tempfile::tempdir()?;
    let mut tried = 0;
    for (_, bytes) in seeds("read_plan")? {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        for place in numbers(&bytes[..end]) {
            // One of the others each: all of them together take minutes.
            let other = &others(&bytes[place.clone()])[tried % 5];
            let changed = [&bytes[..place.start], other.as_bytes(), &bytes[place.end..]].concat();
            fuzzing::plan(&changed, scratch.path());
            tried += 1;
        }
    }
    assert!(tried >= 500, "{tried} numbers");
    Ok(())
}

/// How one place of a plan's sections is changed.
#[derive(Clone, Debug)]
enum Change {
    Bit(u8),
    Byte(u8),
    /// Bytes are left out.
    Cut(u8),
    /// What stands there comes twice.
    Twice(u8),
    /// What stands elsewhere is put here.
    Moved(Index, u8),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..8u8).prop_map(Change::Bit),
        any::<u8>().prop_map(Change::Byte),
        (1..40u8).prop_map(Change::Cut),
        (1..40u8).prop_map(Change::Twice),
        (any::<Index>(), 1..40u8).prop_map(|(from, length)| Change::Moved(from, length)),
    ]
}

fn changed(bytes: &mut Vec<u8>, place: usize, change: &Change) {
    let end = |length: u8| (place + usize::from(length)).min(bytes.len());
    match change {
        Change::Bit(bit) => bytes[place] ^= 1 << bit,
        Change::Byte(byte) => bytes[place] = *byte,
        Change::Cut(length) => drop(bytes.drain(place..end(*length))),
        Change::Twice(length) => {
            let again = bytes[place..end(*length)].to_vec();
            bytes.splice(place..place, again);
        }
        Change::Moved(from, length) => {
            let from = from.index(bytes.len());
            let piece = bytes[from..(from + usize::from(*length)).min(bytes.len())].to_vec();
            bytes.splice(place..place, piece);
        }
    }
}

proptest! {
    // A round of `tests/soak.sh` asks for ten thousand with PROPTEST_CASES.
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64),
        ..ProptestConfig::default()
    })]

    /// Their digests are made anew, so that nothing but what is written in them speaks against them.
    #[test]
    fn mutants_of_plans_that_are_sealed_again_never_panic(
        of in any::<Index>(), changes in vec((any::<Index>(), change()), 1..5)
    ) {
        let seeds = seeds("read_plan").expect("the corpus is there");
        let mut bytes = seeds[of.index(seeds.len())].1.clone();
        for (place, change) in &changes {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                changed(&mut bytes, place, change);
            }
        }
        let scratch = tempfile::tempdir().expect("a folder");
        fuzzing::plan(&bytes, scratch.path());
    }
}
