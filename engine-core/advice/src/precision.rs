//! Rules about the types that engines compute in.

use crate::rule::{Advice, Case, Evidence, Rule, name, percent, times};
use planforge_report::{LayerTime, Report, Severity, format::bytes};
use planforge_types::Precision;

pub(crate) const RULES: &[Rule] =
    &[int8_coverage, reformats, wide_weights, small_gain, half_not_enabled, no_tensor_cores];

/// int8 that covers less than this of the time leaves most of its gain.
const COVERED: f64 = 0.8;

/// Conversions that take this share cost more than most engines spend on them.
const REFORMATS: f64 = 0.05;

/// Weights of which this share is wider than was asked for.
const WIDE: f64 = 0.5;

/// What precisions usually bring at least over fp32, and over fp32 that ran as TF32.
const HALF_GAIN: (f64, f64) = (1.5, 1.2);
const BYTE_GAIN: (f64, f64) = (2.0, 1.5);

/// Products that take this share of the time are worth another type.
const PRODUCTS: f64 = 0.3;

/// Layers of kernels without tensor cores that take this share.
const WITHOUT: f64 = 0.1;

fn int8_coverage(case: &Case<'_>) -> Option<Advice> {
    let covered = *case.report.precision_time.get("int8")?;
    if !matches!(case.report.spec.precision, Precision::Int8 | Precision::Best) || covered >= COVERED {
        return None;
    }
    let is_other = |layer: &LayerTime| layer.precision.as_deref().is_some_and(|precision| precision != "int8");
    let total = case.layers_ms()?;
    let line = |layer: &&LayerTime| {
        let precision = layer.precision.as_deref().unwrap_or_default();
        // Why is what the engine itself tells: what the layer is given and gives, or what it is.
        let why = layer.formats.as_ref().map_or_else(|| layer.kind.clone(), |formats| format!("tensors {formats}"));
        format!("{} in {precision} ({}, {why})", name(layer), percent(layer.median_ms / total))
    };
    let slowest: Vec<String> = case.slowest(3, is_other).iter().map(line).collect();
    Some(Advice {
        code: "int8-coverage",
        severity: Severity::Warning,
        message: format!(
            "int8 covers only {} of the layers' time; the slowest others: {}",
            percent(covered),
            slowest.join("; ")
        ),
        evidence: Evidence::measured("share of the layers' time in int8", covered, COVERED),
        advice: "give these layers scales: Q/DQ nodes before their inputs, or a calibration that reaches them".into(),
    })
}

fn is_conversion(layer: &LayerTime) -> bool {
    let all = format!("{} {}", layer.kind, layer.name).to_ascii_lowercase();
    let alone = layer.nodes.len() <= 1;
    alone && ["reformat", "quantize", "cast"].iter().any(|word| all.contains(word))
}

fn reformats(case: &Case<'_>) -> Option<Advice> {
    let share = case.share(is_conversion).filter(|share| *share >= REFORMATS)?;
    let names: Vec<&str> = case.slowest(3, is_conversion).into_iter().map(name).collect();
    Some(Advice {
        code: "reformat-share",
        severity: Severity::Note,
        message: format!(
            "conversions of type and layout take {} of the layers' time: {}",
            percent(share),
            names.join("; ")
        ),
        evidence: Evidence::measured("share of the layers' time in conversions", share, REFORMATS),
        advice:
            "keep neighbouring layers in one type, and bind inputs and outputs in the layout that the first and last \
                 layers take"
                .into(),
    })
}

/// Bits of an element.
fn bits(element: &str) -> u32 {
    match element {
        "fp32" | "tf32" | "int32" | "float32" => 32,
        "fp16" | "bf16" | "float16" => 16,
        "int8" | "uint8" | "fp8" | "bool" => 8,
        "int4" | "fp4" => 4,
        _ => 0,
    }
}

fn asked_bits(precision: Precision) -> Option<u32> {
    match precision {
        Precision::Fp16 | Precision::Bf16 => Some(16),
        Precision::Int8 | Precision::Fp8 => Some(8),
        Precision::Fp32 | Precision::Tf32 | Precision::Best => None,
    }
}

fn wide_weights(case: &Case<'_>) -> Option<Advice> {
    let asked = asked_bits(case.report.spec.precision)?;
    let all: u64 = case.report.weight_bytes.values().sum();
    let wide: Vec<_> = case.report.weight_bytes.iter().filter(|(element, _)| bits(element) > asked).collect();
    let wide_bytes: u64 = wide.iter().map(|(_, size)| **size).sum();
    let share = wide_bytes as f64 / all.max(1) as f64;
    if share < WIDE {
        return None;
    }
    let types: Vec<String> = wide.iter().map(|(element, size)| format!("{} in {element}", bytes(**size))).collect();
    let (plan, precision) = (bytes(case.report.plan.bytes), case.report.spec.precision);
    Some(Advice {
        code: "wide-weights",
        severity: Severity::Warning,
        message: format!(
            "the plan ({plan}) is larger than {precision} suggests: of {} of weights {} are wider",
            bytes(all),
            types.join(", ")
        ),
        evidence: Evidence::measured("share of the weights' bytes in wider types", share, WIDE),
        advice: "see which layers kept the wider type (planforge inspect PLAN) and why: a type that the model itself \
                 fixes, or layers without a kernel in the narrower one"
            .into(),
    })
}

/// Whether products ran as TF32, by what the engine itself tells.
fn ran_tf32(report: &Report) -> bool {
    report.spec.precision == Precision::Tf32
        || report.precision_time.contains_key("tf32")
        || report.layers.iter().any(|layer| layer.tactic.contains("tf32"))
}

fn small_gain(case: &Case<'_>) -> Option<Advice> {
    let bits = asked_bits(case.report.spec.precision).filter(|_| case.has_tensor_cores())?;
    let is_base = |other: &&Report| {
        matches!(other.spec.precision, Precision::Fp32 | Precision::Tf32)
            && other.toolchain == case.report.toolchain
            && other.batch == case.report.batch
    };
    let base = case.alike().find(is_base)?;
    let (ratio, _) = times(base, case.report)?;
    let (gain, as_tf32) = (1.0 / ratio, ran_tf32(base));
    let usual = if bits == 16 { HALF_GAIN } else { BYTE_GAIN };
    let usual = if as_tf32 { usual.1 } else { usual.0 };
    if gain >= usual {
        return None;
    }
    let (precision, of) = (case.report.spec.precision, base.spec.precision);
    let tf32 = if as_tf32 { ", whose products ran as TF32 on tensor cores already" } else { "" };
    Some(Advice {
        code: "small-gain",
        severity: Severity::Warning,
        message: format!("{precision} is {gain:.2} times as fast as {of}{tf32}; usual are {usual} times and more"),
        evidence: Evidence::measured("how many times as fast as the wider precision", gain, usual),
        advice: "look where the time goes: layers that stayed wide, conversions between types, and layers bound by \
                 memory or launches gain nothing from narrower products"
            .into(),
    })
}

fn is_product(layer: &LayerTime) -> bool {
    let kind = layer.kind.to_ascii_lowercase();
    ["conv", "gemm", "matmul", "matrix", "attention", "fully"].iter().any(|word| kind.contains(word))
}

fn half_not_enabled(case: &Case<'_>) -> Option<Advice> {
    let is_wide = matches!(case.report.spec.precision, Precision::Fp32 | Precision::Tf32);
    if !is_wide || !case.has_tensor_cores() {
        return None;
    }
    let share = case.share(is_product).filter(|share| *share >= PRODUCTS)?;
    let built = case.alike().any(|other| asked_bits(other.spec.precision).is_some());
    if built {
        return None;
    }
    let precision = case.report.spec.precision;
    Some(Advice {
        code: "half-not-enabled",
        severity: Severity::Note,
        message: format!(
            "products take {} of the layers' time in {precision}, on a device with tensor cores",
            percent(share)
        ),
        evidence: Evidence::measured("share of the layers' time in products", share, PRODUCTS),
        advice: "build in fp16 too (--precision fp16) and compare both, outputs included".into(),
    })
}

/// Kernels that name the plain units they compute with.
fn is_without(layer: &LayerTime) -> bool {
    let tactic = layer.tactic.to_ascii_lowercase();
    is_product(layer) && ["simt", "ffma", "sgemm", "scudnn", "hfma"].iter().any(|word| tactic.contains(word))
}

fn no_tensor_cores(case: &Case<'_>) -> Option<Advice> {
    if asked_bits(case.report.spec.precision).is_none() || !case.has_tensor_cores() {
        return None;
    }
    let share = case.share(is_without).filter(|share| *share >= WITHOUT)?;
    let names: Vec<String> =
        case.slowest(3, is_without).into_iter().map(|layer| format!("{} by {}", name(layer), layer.tactic)).collect();
    Some(Advice {
        code: "no-tensor-cores",
        severity: Severity::Warning,
        message: format!(
            "products without tensor cores take {} of the layers' time: {}",
            percent(share),
            names.join("; ")
        ),
        evidence: Evidence::measured("share of the layers' time in products without tensor cores", share, WITHOUT),
        advice: "make channels multiples of 8 (fp16, bf16) or 16 (int8, fp8) where they are not, padding the first \
                 layer's input for one"
            .into(),
    })
}
