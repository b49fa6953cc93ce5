//! Command lines of made-up specs, many of them, held against the option parser of our own and, where they are at hand,
//! against NVIDIA's.

use crate::{
    checker::{Number, Versions, check},
    parsers,
};
use planforge_tensorrt_rules::{Capabilities, flags::table::COLUMNS, options::OPTIONS, preflight};
use planforge_types::{BuildSpec, Digest, DimRange, OptimizationLevel, OptimizationProfile, Precision};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Specs that are made; each is tried on every version.
const SPECS: usize = 300;
/// Different command lines that they come to at least.
const LINES_MIN: usize = 10_000;

/// Numbers that are the same in every run (Knuth's MMIX generator; its high bits).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    /// One in `many`.
    fn rarely(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Values beside each option's own example.
const VALUES: &[(&str, &[&str])] = &[
    ("quantized_fallback", &["fp16", "bf16"]),
    ("layer_precisions", &["*:fp16", "a b:fp32,c:int8", "norm:bf16"]),
    ("layer_output_types", &["x:fp16+fp16+fp32"]),
    ("precision_constraints", &["obey"]),
    ("calibration_shapes", &["x:1x3", "images:1..8x3x224x224,mask:1..8x128"]),
    ("layer_device_types", &["a:GPU,b c:GPU"]),
    ("input_formats", &["fp32:chw", "fp16:chw16+chw32", "int8:chw4,fp32:hwc", "chw+hwc8", "bf16:chw"]),
    ("output_formats", &["fp16:hwc8", "chw32", "int64:chw"]),
    ("tactic_sources", &["+CUBLAS", "-cublas,-cublas_lt,-cudnn", "+JIT_CONVOLUTIONS", "-EDGE_MASK_CONVOLUTIONS"]),
    ("preview", &["-fasterDynamicShapes0805", "+disableExternalTacticSourcesForCore0805", "+runtimeActivationResize"]),
    ("max_tactics", &["1"]),
    ("tiling_level", &["0", "3"]),
    ("tactic_shared_memory_kib", &["1", "100", "1024"]),
    ("max_aux_streams", &["0", "64"]),
    ("sparsity", &["disable"]),
    ("profiling_verbosity", &["layer_names_only", "detailed"]),
    ("timing_cache", &["on"]),
    ("strip_weights", &["all"]),
    ("weight_streaming_budget", &["auto", "1", "99%"]),
    ("runtime", &["dispatch", "full"]),
    ("plugin_loading", &["serialized", "static"]),
    ("allocation_strategy", &["static", "runtime"]),
    ("persistent_cache_ratio", &["0", "1", "0.125"]),
];

fn profile(numbers: &mut Numbers) -> OptimizationProfile {
    const NAMES: [&str; 5] = ["x", "images", "serving_default_x:0", "input ids", "a/b.c"];
    let mut inputs = BTreeMap::new();
    for _ in 0..=numbers.below(2) {
        let name = (*numbers.one_of(&NAMES)).to_owned();
        let dims = (0..=numbers.below(4)).map(|_| {
            let min = 1 + numbers.below(64) as u64;
            let opt = min + numbers.below(64) as u64;
            let max = if numbers.rarely(2) { opt } else { opt + numbers.below(4096) as u64 };
            DimRange { min, opt, max }
        });
        inputs.insert(name, dims.collect());
    }
    OptimizationProfile { inputs }
}

fn spec(numbers: &mut Numbers) -> BuildSpec {
    use Precision::{Best, Bf16, Fp8, Fp16, Fp32, Int8, Tf32};
    let mut spec = BuildSpec {
        precision: *numbers.one_of(&[Fp32, Tf32, Fp16, Fp16, Fp16, Bf16, Int8, Fp8, Best]),
        ..BuildSpec::default()
    };
    if numbers.rarely(2) {
        let count = 1 + numbers.below(3) / 2;
        spec.profiles = (0..count).map(|_| profile(numbers)).collect();
    }
    if numbers.rarely(3) {
        spec.workspace_mib = Some(1 + numbers.below(65_536) as u64);
    }
    if numbers.rarely(3) {
        spec.optimization_level = OptimizationLevel(numbers.below(6) as u8);
    }
    if numbers.rarely(6) {
        spec.hardware_compatibility = Some((*numbers.one_of(&["ampere+", "same_compute_capability"])).to_owned());
    }
    spec.version_compatible = numbers.rarely(4);
    if numbers.rarely(8) {
        spec.calibration = Some(Digest::of(b"cache"));
    }
    if numbers.rarely(6) {
        spec.plugins = (0..=numbers.below(2)).map(|n| Digest::of(&[n as u8])).collect();
    }
    for _ in 0..numbers.below(4) {
        let option = numbers.one_of(OPTIONS);
        let mut values = vec![option.example];
        values.extend(VALUES.iter().filter(|(name, _)| *name == option.name).flat_map(|(_, values)| *values));
        spec.options.insert(option.name.to_owned(), (*numbers.one_of(&values)).to_owned());
    }
    spec.canonical()
}

/// Every different command line, with the version it is for; how many specs were refused on a version.
fn lines() -> (BTreeSet<(Number, Vec<String>)>, usize) {
    let mut numbers = Numbers(17);
    let mut lines = BTreeSet::new();
    let mut refused = 0;
    let driven = COLUMNS.iter().filter(|version| **version >= preflight::OLDEST);
    let driven: Vec<Capabilities> = driven.map(|version| Capabilities::of_version(*version)).collect();
    for _ in 0..SPECS {
        let spec = spec(&mut numbers);
        assert_eq!(spec.validate(), Ok(()), "{spec:?}");
        for capabilities in &driven {
            match preflight::steps(capabilities, &spec, Path::new("/models/m 1.onnx"), None) {
                Ok(steps) => {
                    let version = capabilities.version();
                    let number = (version.major, version.minor, version.patch);
                    lines.extend(steps.into_iter().map(|step| (number, step.command.to_texts())));
                }
                Err(refusal) => {
                    assert!(!refusal.to_string().is_empty());
                    refused += 1;
                }
            }
        }
    }
    (lines, refused)
}

#[test]
fn made_up_specs_come_to_lines_that_their_version_parses() {
    let versions = Versions::read();
    let (lines, refused) = lines();
    for (number, args) in &lines {
        check(versions.flags(*number), *number, args)
            .unwrap_or_else(|problem| panic!("{number:?}: {problem}\n{args:?}"));
    }
    assert!(lines.len() >= LINES_MIN, "{} lines", lines.len());
    let used: BTreeSet<&str> = lines.iter().flat_map(|(_, args)| args).map(|arg| name_of(arg)).collect();
    #[expect(clippy::print_stderr, reason = "the figure is what this test is for")]
    {
        eprintln!("{} different lines of {} options, {refused} specs refused on a version", lines.len(), used.len());
    }
    let asked = parsers::ask_where_present(&lines);
    if let Some(asked) = asked {
        assert_eq!(asked.versions, COLUMNS.iter().filter(|version| **version >= preflight::OLDEST).count());
    }
}

fn name_of(arg: &str) -> &str {
    arg.split_once('=').map_or(arg, |(name, _)| name)
}
