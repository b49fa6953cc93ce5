//! Options of this backend in `BuildSpec.options`: allow-listed names with checked values.
//!
//! No value reaches a command line as it was given: each is read into a type of its own and written again, so nothing
//! can smuggle another option, a path or a separator. Whether a version has what an option asks for is said where its
//! command line is written.

mod list;
mod value;

pub use list::{OPTIONS, OptionHelp};

use crate::refusal::Refusal;
use planforge_types::OptimizationProfile;
use std::collections::BTreeMap;
use value::{choice, decimal, flag, lists, number};

/// What layers of a quantized engine compute in where they have no quantized form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Also where a model mixes quantized and plain layers, nearly always what is deployed.
    #[default]
    Fp16,
    Bf16,
    Fp32,
}

/// How plugin libraries are given to the tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PluginLoading {
    #[default]
    Static,
    Dynamic,
    /// Dynamic, and written into the plan, so that loading it needs no file.
    Serialized,
}

/// Which of TensorRT's runtimes loads a plan when it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    #[default]
    Full,
    /// Without builder; what the plan's own runtime is.
    Lean,
    /// Loads only through the runtime that the plan brings, or the lean one beside it.
    Dispatch,
}

/// Name of the option that lets versions be used that are newer than all that is known here.
pub const ALLOW_UNKNOWN_TOOLCHAIN: &str = "allow_unknown_toolchain";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strip {
    /// Weights of the same model go back in.
    Identical,
    /// Any weights may go in, at a cost.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamingBudget {
    Automatic,
    Bytes(u64),
    /// Of the weights that can be streamed, 0 to 99.
    Percent(u64),
}

/// A switch with a name, on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    pub on: bool,
    pub name: String,
}

/// `name:type` of one layer; an output type per output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerType {
    pub layer: String,
    pub types: Vec<String>,
}

/// Type and memory layouts of one input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoFormat {
    pub element: Option<String>,
    pub layouts: Vec<String>,
}

/// Options of a spec, read and checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    pub quantized_fallback: Fallback,
    pub strongly_typed: bool,
    pub tactic_sources: Vec<Switch>,
    pub preview: Vec<Switch>,
    pub tactic_shared_memory_kib: Option<u64>,
    pub max_aux_streams: Option<u64>,
    pub avg_timing: Option<u64>,
    pub max_tactics: Option<u64>,
    pub tiling_level: Option<u64>,
    pub l2_limit_for_tiling_bytes: Option<u64>,
    pub sparsity: Option<String>,
    pub layer_precisions: Vec<LayerType>,
    pub layer_output_types: Vec<LayerType>,
    pub precision_constraints: Option<String>,
    pub input_formats: Vec<IoFormat>,
    pub output_formats: Vec<IoFormat>,
    pub refit: bool,
    pub strip_weights: Option<Strip>,
    pub weight_streaming: bool,
    pub weight_streaming_budget: Option<StreamingBudget>,
    pub exclude_lean_runtime: bool,
    pub profiling_verbosity: Option<String>,
    pub timing_cache_off: bool,
    pub error_on_timing_cache_miss: bool,
    pub no_compilation_cache: bool,
    pub heuristic: bool,
    pub plugin_instance_norm: bool,
    pub plugin_loading: PluginLoading,
    pub calibration_profile: Option<u64>,
    /// Smallest, usual and largest shapes that calibration runs in; no input where they are the profile's.
    pub calibration_shapes: OptimizationProfile,
    /// Layers that run on the GPU where TensorRT would choose another device; the only device there is here.
    pub layers_on_gpu: Vec<String>,
    pub int4: bool,
    pub runtime: Runtime,
    pub persistent_cache_ratio: Option<String>,
    pub managed_memory: bool,
    pub allocation_strategy: Option<String>,
}

/// Names that ask for the deep-learning accelerator of embedded boards.
const DLA: [&str; 6] =
    ["dla", "use_dla_core", "dla_core", "allow_gpu_fallback", "build_dla_standalone", "dla_managed_sram_mib"];

impl Options {
    /// Reads the options of a spec.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let mut parsed = Self::default();
        for (name, value) in options {
            parsed.set(name, value.trim())?;
        }
        parsed.consistent()?;
        Ok(parsed)
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), Refusal> {
        if DLA.contains(&name) {
            return Err(Refusal::option(
                name,
                "this farm builds for whole GPUs, not for the DLA cores of embedded boards",
                "leave it out; build DLA loadables on the board itself",
            ));
        }
        let most = |most| move |text: &str| number(text, 0..=most);
        let result = match name {
            "quantized_fallback" => choice(text, &["fp16", "bf16", "fp32"]).map(|word| {
                self.quantized_fallback = match word {
                    "bf16" => Fallback::Bf16,
                    "fp32" => Fallback::Fp32,
                    _ => Fallback::Fp16,
                };
            }),
            "strongly_typed" => flag(text).map(|on| self.strongly_typed = on),
            "tactic_sources" => lists::switches(text).map(|v| self.tactic_sources = upper(v)),
            "preview" => lists::switches(text).map(|v| self.preview = v),
            "tactic_shared_memory_kib" => {
                number(text, 1..=MAX_SHARED_MEMORY_KIB).map(|n| self.tactic_shared_memory_kib = Some(n))
            }
            "max_aux_streams" => most(MAX_AUX_STREAMS)(text).map(|n| self.max_aux_streams = Some(n)),
            "avg_timing" => number(text, 1..=MAX_AVG_TIMING).map(|n| self.avg_timing = Some(n)),
            "max_tactics" => number(text, 1..=MAX_INT).map(|n| self.max_tactics = Some(n)),
            "tiling_level" => most(MAX_TILING_LEVEL)(text).map(|n| self.tiling_level = Some(n)),
            "l2_limit_for_tiling_bytes" => most(MAX_INT)(text).map(|n| self.l2_limit_for_tiling_bytes = Some(n)),
            "sparsity" => choice(text, &["enable", "disable"]).map(|w| self.sparsity = Some(w.into())),
            "layer_precisions" => lists::layer_types(text, false).map(|v| self.layer_precisions = v),
            "layer_output_types" => lists::layer_types(text, true).map(|v| self.layer_output_types = v),
            "precision_constraints" => {
                choice(text, &["obey", "prefer"]).map(|w| self.precision_constraints = Some(w.into()))
            }
            "input_formats" => lists::io_formats(text).map(|v| self.input_formats = v),
            "output_formats" => lists::io_formats(text).map(|v| self.output_formats = v),
            "refit" => flag(text).map(|on| self.refit = on),
            "strip_weights" => choice(text, &["identical", "all"]).map(|word| {
                self.strip_weights = Some(if word == "all" { Strip::All } else { Strip::Identical });
            }),
            "weight_streaming" => flag(text).map(|on| self.weight_streaming = on),
            "weight_streaming_budget" => value::budget(text).map(|b| self.weight_streaming_budget = Some(b)),
            "exclude_lean_runtime" => flag(text).map(|on| self.exclude_lean_runtime = on),
            "profiling_verbosity" => choice(text, &["detailed", "layer_names_only", "none"])
                .map(|w| self.profiling_verbosity = (w != "detailed").then(|| w.into())),
            "timing_cache" => choice(text, &["on", "off"]).map(|w| self.timing_cache_off = w == "off"),
            "error_on_timing_cache_miss" => flag(text).map(|on| self.error_on_timing_cache_miss = on),
            "no_compilation_cache" => flag(text).map(|on| self.no_compilation_cache = on),
            "heuristic" => flag(text).map(|on| self.heuristic = on),
            "plugin_instance_norm" => flag(text).map(|on| self.plugin_instance_norm = on),
            "plugin_loading" => choice(text, &["static", "dynamic", "serialized"]).map(|word| {
                self.plugin_loading = match word {
                    "dynamic" => PluginLoading::Dynamic,
                    "serialized" => PluginLoading::Serialized,
                    _ => PluginLoading::Static,
                };
            }),
            "calibration_shapes" => lists::shapes(text).map(|v| self.calibration_shapes = v),
            "layer_device_types" => lists::devices(text).map(|v| self.layers_on_gpu = v),
            "int4" => flag(text).map(|on| self.int4 = on),
            "runtime" => choice(text, &["full", "lean", "dispatch"]).map(|word| {
                self.runtime = match word {
                    "lean" => Runtime::Lean,
                    "dispatch" => Runtime::Dispatch,
                    _ => Runtime::Full,
                };
            }),
            // Decides who may build; the coordinator takes it out before anything is keyed.
            ALLOW_UNKNOWN_TOOLCHAIN => flag(text).map(drop),
            "calibration_profile" => most(MAX_PROFILE)(text).map(|n| self.calibration_profile = Some(n)),
            "persistent_cache_ratio" => decimal(text, 1.0).map(|d| self.persistent_cache_ratio = Some(d)),
            "managed_memory" => flag(text).map(|on| self.managed_memory = on),
            "allocation_strategy" => {
                choice(text, &["static", "profile", "runtime"]).map(|w| self.allocation_strategy = Some(w.into()))
            }
            _ => {
                let known = OPTIONS.iter().map(|option| option.name).collect::<Vec<_>>().join(", ");
                return Err(Refusal::option(
                    &name.chars().take(80).collect::<String>(),
                    "the tensorrt backend has no such option",
                    format!("known options: {known}"),
                ));
            }
        };
        result.map_err(|problem| {
            let values = OPTIONS.iter().find(|option| option.name == name).map_or("", |option| option.values);
            Refusal::option(name, problem, format!("it takes {values}"))
        })
    }

    /// Refuses options that mean nothing without another.
    fn consistent(&self) -> Result<(), Refusal> {
        let typed = !self.layer_precisions.is_empty() || !self.layer_output_types.is_empty();
        if self.precision_constraints.is_some() && !typed {
            return Err(Refusal::spec(
                "option precision_constraints has nothing to hold without layer_precisions or layer_output_types",
                "give layer_precisions, or leave it out",
            ));
        }
        if self.weight_streaming_budget.is_some() && !self.weight_streaming {
            return Err(Refusal::spec(
                "option weight_streaming_budget needs weight_streaming=true",
                "add weight_streaming=true, or leave the budget out",
            ));
        }
        if self.timing_cache_off && self.error_on_timing_cache_miss {
            return Err(Refusal::spec(
                "option error_on_timing_cache_miss needs the timing cache that timing_cache=off turns off",
                "leave one of the two out",
            ));
        }
        if self.calibration_profile.is_some() && !self.calibration_shapes.inputs.is_empty() {
            return Err(Refusal::spec(
                "option calibration_profile has no effect beside calibration_shapes, which says the shapes itself",
                "leave one of the two out",
            ));
        }
        Ok(())
    }
}

/// Largest number the tool's parser reads without an exception.
const MAX_INT: u64 = i32::MAX as u64;
/// More shared memory than any streaming multiprocessor has.
const MAX_SHARED_MEMORY_KIB: u64 = 1024;
const MAX_AUX_STREAMS: u64 = 64;
/// More repetitions only cost time.
const MAX_AVG_TIMING: u64 = 1024;
const MAX_TILING_LEVEL: u64 = 3;
/// More optimization profiles than a spec may have.
const MAX_PROFILE: u64 = 63;

fn upper(switches: Vec<Switch>) -> Vec<Switch> {
    switches.into_iter().map(|s| Switch { name: s.name.to_ascii_uppercase(), ..s }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Options, Refusal> {
        Options::parse(&pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn every_listed_option_is_read_and_nothing_else() {
        for option in OPTIONS {
            let with = |value: &str| Options::default().set(option.name, value);
            assert!(with(option.example).is_ok(), "{}={}", option.name, option.example);
            for bad in [
                "",
                "\n",
                "--onnx=/etc/passwd",
                "x y z,,",
                "../../etc",
                "1e99",
                "-1",
                "=",
                "a'b",
                "18446744073709551616",
            ] {
                assert!(with(bad).is_err(), "{}={bad}", option.name);
            }
        }
        let unknown = parse(&[("save_engine", "/etc/x")]).unwrap_err();
        assert!(unknown.hint().contains("tactic_sources"), "{unknown:?}");
        assert!(parse(&[("use_dla_core", "0")]).unwrap_err().to_string().contains("DLA"));
    }

    #[test]
    fn options_that_need_others_say_so() {
        for pairs in [
            &[("precision_constraints", "obey")][..],
            &[("weight_streaming_budget", "auto")],
            &[("timing_cache", "off"), ("error_on_timing_cache_miss", "true")],
            &[("calibration_profile", "0"), ("calibration_shapes", "x:1x3")],
        ] {
            assert!(matches!(parse(pairs), Err(Refusal::Spec { .. })), "{pairs:?}");
        }
    }
}
