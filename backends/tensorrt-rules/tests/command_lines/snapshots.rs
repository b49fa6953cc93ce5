//! Some telling command lines, whole.

use crate::specs::{batched, cases, with};
use planforge_tensorrt_rules::{Capabilities, preflight};
use planforge_types::{BuildSpec, Precision};
use std::path::Path;

/// Every step of a job, one a line.
fn job(version: &str, spec: &BuildSpec) -> String {
    let capabilities = Capabilities::of_version(version.parse().unwrap());
    match preflight::steps(&capabilities, spec, Path::new("m.onnx"), None) {
        Ok(steps) => steps.iter().map(|step| format!("{}: {}\n", step.name, step.command)).collect(),
        Err(refusal) => format!("refused: {refusal}\nhint: {}\n", refusal.hint()),
    }
}

fn case(name: &str) -> BuildSpec {
    cases().into_iter().find(|case| case.name == name).unwrap().spec
}

#[test]
fn fp16_with_a_dynamic_batch_over_the_generations() {
    let spec = BuildSpec { precision: Precision::Fp16, profiles: vec![batched()], ..BuildSpec::default() };
    for version in ["8.4.1", "8.6.1", "10.16.0", "11.1.0"] {
        insta::assert_snapshot!(format!("fp16 {version}"), job(version, &spec));
    }
}

#[test]
fn several_profiles() {
    for version in ["8.6.1", "10.3.0"] {
        insta::assert_snapshot!(format!("profiles {version}"), job(version, &case("two profiles")));
    }
}

#[test]
fn much_at_once() {
    let spec = BuildSpec {
        precision: Precision::Int8,
        workspace_mib: Some(2048),
        hardware_compatibility: Some("ampere+".into()),
        version_compatible: true,
        ..with(&[
            ("tactic_shared_memory_kib", "48"),
            ("tactic_sources", "-cudnn"),
            ("max_aux_streams", "2"),
            ("sparsity", "enable"),
            ("input_formats", "fp16:chw+hwc8"),
            ("persistent_cache_ratio", "0.5"),
            ("layer_precisions", "norm 1:fp32"),
        ])
    };
    insta::assert_snapshot!("much 10.13.0", job("10.13.0", &spec));
    insta::assert_snapshot!("much 11.0.0", job("11.0.0", &spec));
}

#[test]
fn weights_that_stream_or_stay_away() {
    insta::assert_snapshot!("strip 10.0.0", job("10.0.0", &case("strip")));
    insta::assert_snapshot!("strip 10.14.0", job("10.14.0", &case("strip")));
    insta::assert_snapshot!("streaming 10.16.0", job("10.16.0", &case("weight streaming")));
}
