//! Every option of this backend, for help texts, the documentation and its test.

/// One option, explained.
#[derive(Clone, Copy, Debug)]
pub struct OptionHelp {
    pub name: &'static str,
    /// What may stand behind it.
    pub values: &'static str,
    /// A value that is accepted.
    pub example: &'static str,
    pub meaning: &'static str,
    /// What it becomes on the command line.
    pub flag: &'static str,
}

const fn option(
    name: &'static str,
    values: &'static str,
    example: &'static str,
    flag: &'static str,
    meaning: &'static str,
) -> OptionHelp {
    OptionHelp { name, values, example, meaning, flag }
}

const BOOL: &str = "`true`, `false`";

/// By topic.
pub const OPTIONS: &[OptionHelp] = &[
    option(
        "quantized_fallback",
        "`fp16`, `bf16`, `fp32`",
        "fp32",
        "--fp16, --bf16",
        "what layers without an int8 or fp8 form compute in; fp16 by default",
    ),
    option(
        "strongly_typed",
        BOOL,
        "true",
        "--stronglyTyped",
        "take every type from the model, as TensorRT 11 always does; the model must be typed as the precision says",
    ),
    option(
        "layer_precisions",
        "`LAYER:TYPE,...`",
        "conv1:fp32,*:fp16",
        "--layerPrecisions",
        "compute these layers in this type",
    ),
    option(
        "layer_output_types",
        "`LAYER:TYPE+TYPE,...`",
        "split1:fp16+fp32",
        "--layerOutputTypes",
        "types of these layers' outputs",
    ),
    option(
        "precision_constraints",
        "`obey`, `prefer`",
        "prefer",
        "--precisionConstraints",
        "how strictly layer types are held; obey by default where layer types are given",
    ),
    option(
        "calibration_profile",
        "index",
        "1",
        "--calibProfile",
        "optimization profile that calibration runs in; 0 by default",
    ),
    option(
        "calibration_shapes",
        "`NAME:SHAPE,...`",
        "images:1..4..8x3x224x224",
        "--minShapesCalib, --optShapesCalib, --maxShapesCalib",
        "shapes that calibration runs in, where they are not the optimization profile's",
    ),
    option(
        "int4",
        BOOL,
        "true",
        "--int4",
        "weights in int4 where the model has int4 Q/DQ nodes (10.1 to 10.16; strongly typed networks take them by themselves)",
    ),
    option(
        "layer_device_types",
        "`LAYER:GPU,...`",
        "conv1:GPU",
        "--layerDeviceTypes",
        "run these layers on the GPU; DLA cores are not built for",
    ),
    option(
        "input_formats",
        "`TYPE:LAYOUT+LAYOUT,...`",
        "fp16:chw+hwc8",
        "--inputIOFormats",
        "type and memory layouts of every input in the model's order, or of all of them; TensorRT 11 takes layouts alone",
    ),
    option("output_formats", "`TYPE:LAYOUT+LAYOUT,...`", "fp32:chw", "--outputIOFormats", "the same for outputs"),
    option(
        "tactic_sources",
        "`+NAME,-NAME,...`",
        "-CUDNN,+CUBLAS_LT",
        "--tacticSources",
        "libraries whose kernels may be used",
    ),
    option("preview", "`+NAME,-NAME,...`", "+profileSharing0806", "--preview", "preview features of the version"),
    option("max_tactics", "count", "32", "--maxTactics", "most tactics that are timed where there is a choice"),
    option("avg_timing", "1 to 1024", "16", "--avgTiming", "timings averaged per tactic; 8 by default"),
    option("heuristic", BOOL, "true", "--heuristic", "choose tactics by heuristics (8.5 to 9.x)"),
    option("tiling_level", "0 to 3", "2", "--tilingOptimizationLevel", "how hard to search for on-chip tiling"),
    option(
        "l2_limit_for_tiling_bytes",
        "bytes",
        "1048576",
        "--l2LimitForTiling",
        "level-two cache that tiling may use",
    ),
    option(
        "tactic_shared_memory_kib",
        "1 to 1024",
        "48",
        "--memPoolSize",
        "most shared memory a tactic may use (10.1 and newer)",
    ),
    option("max_aux_streams", "0 to 64", "2", "--maxAuxStreams", "most auxiliary streams of one execution"),
    option("sparsity", "`enable`, `disable`", "enable", "--sparsity", "use structured sparsity of the weights"),
    option(
        "profiling_verbosity",
        "`detailed`, `layer_names_only`, `none`",
        "none",
        "--profilingVerbosity",
        "what the plan says of its layers; detailed by default, which profiles need",
    ),
    option("timing_cache", "`on`, `off`", "off", "--noBuilderCache", "off: time every tactic anew and keep nothing"),
    option(
        "error_on_timing_cache_miss",
        BOOL,
        "true",
        "--errorOnTimingCacheMiss",
        "fail rather than time a tactic that the cache lacks",
    ),
    option(
        "no_compilation_cache",
        BOOL,
        "true",
        "--noCompilationCache",
        "keep compiled kernels out of the timing cache",
    ),
    option("refit", BOOL, "true", "--refit", "plan whose weights can be exchanged"),
    option(
        "strip_weights",
        "`identical`, `all`",
        "identical",
        "--stripWeights, --stripAllWeights",
        "plan without weights: the same ones, or any, are put back before use; measured from 10.14 on",
    ),
    option(
        "weight_streaming",
        BOOL,
        "true",
        "--allowWeightStreaming",
        "weights may stay in host memory; strongly typed networks only",
    ),
    option(
        "weight_streaming_budget",
        "`auto`, bytes, `N%`",
        "50%",
        "--weightStreamingBudget",
        "device memory for weights when the plan runs",
    ),
    option(
        "exclude_lean_runtime",
        BOOL,
        "true",
        "--excludeLeanRuntime, --leanDLLPath",
        "version-compatible plan without the runtime inside; the installation's own lean runtime loads it",
    ),
    option(
        "runtime",
        "`full`, `lean`, `dispatch`",
        "lean",
        "--useRuntime",
        "runtime that loads a version-compatible plan when it is measured; full by default",
    ),
    option(
        "plugin_instance_norm",
        BOOL,
        "true",
        "--pluginInstanceNorm",
        "instance normalisation by the plugin rather than natively",
    ),
    option(
        "plugin_loading",
        "`static`, `dynamic`, `serialized`",
        "dynamic",
        "--staticPlugins, --dynamicPlugins, --setPluginsToSerialize",
        "how plugin libraries are loaded; static by default; serialized only into a version-compatible plan",
    ),
    option(
        "managed_memory",
        BOOL,
        "true",
        "--useManagedMemory",
        "inputs and outputs in managed memory when the plan is measured",
    ),
    option(
        "allocation_strategy",
        "`static`, `profile`, `runtime`",
        "profile",
        "--allocationStrategy",
        "how activation memory is allocated when the plan is measured",
    ),
    option(
        "persistent_cache_ratio",
        "0 to 1",
        "0.5",
        "--persistentCacheRatio",
        "level-two cache that persistent data may hold when the plan is measured",
    ),
];

#[cfg(test)]
mod tests {
    use super::OPTIONS;

    #[test]
    fn the_documentation_lists_every_option_as_it_is() {
        let page = include_str!("../../../../docs/tensorrt.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `") && line.contains("` | ")).collect();
        for option in OPTIONS {
            let flags = option.flag.replace(", ", "`, `");
            let row = format!("| `{}` | {} | `{flags}` | {} |", option.name, option.values, option.meaning);
            assert!(rows.contains(&row.as_str()), "docs/tensorrt.md lacks this row:\n{row}");
        }
        let after = page.split_once("### Options").map_or("", |(_, after)| after);
        let table = after.split_once("###").map_or(after, |(table, _)| table);
        let documented = table.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(documented, OPTIONS.len(), "docs/tensorrt.md lists options that there are not");
    }
}
