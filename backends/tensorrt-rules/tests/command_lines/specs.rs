//! Specs that together use every flag of the command builders.

use planforge_tensorrt_rules::model::{Edge, ModelFacts, ModelType};
use planforge_types::{BuildSpec, Digest, DimRange, OptimizationLevel, OptimizationProfile, Precision};
use std::collections::BTreeSet;

/// A spec, and the model it is for where that matters.
pub struct Case {
    pub name: &'static str,
    pub spec: BuildSpec,
    pub model: Option<ModelFacts>,
}

fn dims(sizes: Sizes<'_>) -> Vec<DimRange> {
    sizes.iter().map(|&(min, opt, max)| DimRange { min, opt, max }).collect()
}

/// Smallest, usual and largest size of every dimension.
type Sizes<'a> = &'a [(u64, u64, u64)];

pub fn profile(inputs: &[(&str, Sizes<'_>)]) -> OptimizationProfile {
    OptimizationProfile { inputs: inputs.iter().map(|(name, sizes)| ((*name).to_owned(), dims(sizes))).collect() }
}

const BATCH: Sizes<'_> = &[(1, 4, 8), (3, 3, 3), (224, 224, 224)];

pub fn batched() -> OptimizationProfile {
    profile(&[("images", BATCH)])
}

/// A model with one input of these dimensions.
pub fn model(input: &str, dims: &[Option<u64>], computes: &[ModelType], quantizes: &[ModelType]) -> ModelFacts {
    ModelFacts {
        opset: Some(17),
        inputs: vec![Edge { name: input.into(), element: Some("fp32"), dims: dims.to_vec() }],
        outputs: vec![Edge { name: "y".into(), element: Some("fp32"), dims: vec![Some(1), Some(10)] }],
        computes_in: BTreeSet::from_iter(computes.iter().copied()),
        quantizes_to: BTreeSet::from_iter(quantizes.iter().copied()),
        ..ModelFacts::default()
    }
}

pub fn fixed(computes: &[ModelType], quantizes: &[ModelType]) -> ModelFacts {
    model("x", &[Some(1), Some(3)], computes, quantizes)
}

pub fn with(options: &[(&str, &str)]) -> BuildSpec {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    BuildSpec { options, ..BuildSpec::default() }
}

fn precision(precision: Precision) -> BuildSpec {
    BuildSpec { precision, ..BuildSpec::default() }
}

pub fn cases() -> Vec<Case> {
    use ModelType::{Fp8, Fp16, Fp32, Int8};
    let digest = Digest::of(b"file");
    let mut cases = Vec::new();
    let mut case = |name, spec: BuildSpec, model| cases.push(Case { name, spec: spec.canonical(), model });

    case("plain", BuildSpec::default(), None);
    for (name, wanted) in
        [("tf32", Precision::Tf32), ("fp16", Precision::Fp16), ("bf16", Precision::Bf16), ("best", Precision::Best)]
    {
        case(name, precision(wanted), None);
    }
    case("fp16, fp32 model", precision(Precision::Fp16), Some(fixed(&[Fp32], &[])));
    case("fp16, fp16 model", precision(Precision::Fp16), Some(fixed(&[Fp32, Fp16], &[])));
    case("int8, Q/DQ model", precision(Precision::Int8), Some(fixed(&[Fp32], &[Int8])));
    case("fp8, Q/DQ model", precision(Precision::Fp8), Some(fixed(&[Fp16], &[Fp8])));
    case("uncalibrated int8", precision(Precision::Int8), Some(fixed(&[Fp32], &[])));
    case(
        "calibrated int8",
        BuildSpec { calibration: Some(digest), ..precision(Precision::Int8) },
        Some(fixed(&[Fp32], &[])),
    );
    case("calibrated best", BuildSpec { calibration: Some(digest), ..precision(Precision::Best) }, None);
    for fallback in ["fp16", "bf16", "fp32"] {
        let spec = BuildSpec { precision: Precision::Int8, ..with(&[("quantized_fallback", fallback)]) };
        case("int8 fallback", spec, Some(fixed(&[Fp32], &[Int8])));
    }
    case(
        "strongly typed fp16",
        BuildSpec { precision: Precision::Fp16, ..with(&[("strongly_typed", "true")]) },
        Some(fixed(&[Fp16], &[])),
    );
    case("strongly typed fp32", with(&[("strongly_typed", "true")]), Some(fixed(&[Fp32], &[])));

    case("dynamic batch", BuildSpec { profiles: vec![batched()], ..BuildSpec::default() }, None);
    case(
        "dynamic batch, known model",
        BuildSpec { profiles: vec![batched()], ..BuildSpec::default() },
        Some(model("images", &[None, Some(3), Some(224)], &[Fp32], &[])),
    );
    case(
        "fixed shapes, known model",
        BuildSpec { profiles: vec![profile(&[("x", &[(1, 1, 1), (3, 3, 3)])])], ..BuildSpec::default() },
        Some(fixed(&[Fp32], &[])),
    );
    let tokens =
        |most| profile(&[("ids:0", &[(1, 1, most), (128, 128, 128)]), ("mask", &[(1, 1, most), (128, 128, 128)])]);
    case("two profiles", BuildSpec { profiles: vec![tokens(1), tokens(32)], ..precision(Precision::Fp16) }, None);
    case(
        "three profiles and calibration",
        BuildSpec {
            profiles: vec![tokens(1), tokens(8), tokens(32)],
            calibration: Some(digest),
            precision: Precision::Int8,
            ..with(&[("calibration_profile", "2")])
        },
        None,
    );

    case("workspace", BuildSpec { workspace_mib: Some(4096), ..BuildSpec::default() }, None);
    case(
        "workspace and shared memory",
        BuildSpec { workspace_mib: Some(1), ..with(&[("tactic_shared_memory_kib", "48")]) },
        None,
    );
    for level in [0, 5] {
        let optimization_level = OptimizationLevel(level);
        case("level", BuildSpec { optimization_level, ..BuildSpec::default() }, None);
    }
    for (name, level) in [("ampere+", "ampere+"), ("same compute capability", "same_compute_capability")] {
        case(name, BuildSpec { hardware_compatibility: Some(level.into()), ..BuildSpec::default() }, None);
    }
    case("version compatible", BuildSpec { version_compatible: true, ..BuildSpec::default() }, None);
    case(
        "version compatible, lean",
        BuildSpec { version_compatible: true, ..with(&[("exclude_lean_runtime", "true")]) },
        None,
    );
    case(
        "both compatible",
        BuildSpec {
            version_compatible: true,
            hardware_compatibility: Some("ampere+".into()),
            ..precision(Precision::Fp16)
        },
        None,
    );
    case("approximate gelu", BuildSpec { approximate_gelu: true, ..precision(Precision::Fp16) }, None);
    case("refit", with(&[("refit", "true")]), None);
    case("strip", with(&[("strip_weights", "identical")]), None);
    case("strip all", with(&[("strip_weights", "all")]), None);
    for budget in ["auto", "1073741824", "50%"] {
        let options = [("weight_streaming", "true"), ("weight_streaming_budget", budget), ("strongly_typed", "true")];
        case("weight streaming", with(&options), None);
    }
    case("cudnn", with(&[("tactic_sources", "-cudnn,+CUBLAS_LT,-cublas")]), None);
    case("jit", with(&[("tactic_sources", "-JIT_CONVOLUTIONS,+EDGE_MASK_CONVOLUTIONS")]), None);
    for preview in ["+fasterDynamicShapes0805", "-profileSharing0806", "+aliasedPluginIO1003,-runtimeActivationResize"]
    {
        case("preview", with(&[("preview", preview)]), None);
    }
    case(
        "tactics",
        with(&[("avg_timing", "16"), ("max_tactics", "32"), ("max_aux_streams", "0"), ("sparsity", "enable")]),
        None,
    );
    for (name, value) in [
        ("avg_timing", "1"),
        ("max_tactics", "8"),
        ("max_aux_streams", "4"),
        ("sparsity", "enable"),
        ("heuristic", "true"),
        ("tiling_level", "3"),
        ("l2_limit_for_tiling_bytes", "1048576"),
        ("profiling_verbosity", "layer_names_only"),
        ("timing_cache", "off"),
        ("error_on_timing_cache_miss", "true"),
        ("no_compilation_cache", "true"),
        ("plugin_instance_norm", "true"),
        ("managed_memory", "true"),
        ("allocation_strategy", "profile"),
        ("persistent_cache_ratio", "0.5"),
        ("input_formats", "fp32:chw+hwc8"),
        ("output_formats", "fp16:chw,fp32:chw32"),
        ("input_formats", "int64:chw,fp8:dhwc"),
        ("layer_precisions", "conv1:fp32,*:fp16"),
        ("layer_output_types", "a:b split:fp16+fp32"),
    ] {
        case("option", with(&[(name, value)]), None);
    }
    case(
        "preferred layers",
        BuildSpec {
            precision: Precision::Fp16,
            ..with(&[("layer_precisions", "norm:fp32"), ("precision_constraints", "prefer")])
        },
        None,
    );
    case("input layouts, known model", with(&[("input_formats", "chw+chw32")]), Some(fixed(&[Fp32], &[])));
    for loading in ["static", "dynamic", "serialized"] {
        let plugins = vec![digest, Digest::of(b"other")];
        case(
            "plugins",
            BuildSpec { plugins, version_compatible: loading == "serialized", ..with(&[("plugin_loading", loading)]) },
            None,
        );
    }
    for runtime in ["lean", "dispatch"] {
        case("runtime", BuildSpec { version_compatible: true, ..with(&[("runtime", runtime)]) }, None);
    }
    case("gpu layers", with(&[("layer_device_types", "conv 1:GPU,b:GPU")]), None);
    case("int4", BuildSpec { precision: Precision::Fp16, ..with(&[("int4", "true")]) }, None);
    case(
        "calibration shapes",
        BuildSpec {
            profiles: vec![batched()],
            calibration: Some(digest),
            precision: Precision::Int8,
            ..with(&[("calibration_shapes", "images:1..4..8x3x224")])
        },
        None,
    );
    cases
}
