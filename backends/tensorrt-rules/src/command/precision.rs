//! Precision: builder flags up to 10.16, the model's own types from 11.0 on.
//!
//! | spec | weakly typed (to 10.16) | strongly typed (11, or `strongly_typed=true` before) |
//! |---|---|---|
//! | fp32 | `--noTF32` | a model of fp32 without Q/DQ; `--noTF32` |
//! | tf32 | nothing: TF32 is on by itself | a model of fp32 without Q/DQ |
//! | fp16, bf16 | the flag; TF32 stays on for what is left in fp32 | the model must hold the type |
//! | int8, fp8 | the flag and the fallback's, fp16 unless `quantized_fallback` says otherwise | the model must hold Q/DQ nodes of the type |
//! | best | `--best` | any model, as it is typed |
//!
//! int8 and fp8 bring fp16 along because the layers without a quantized form would else run in fp32, which nobody
//! deploys; an engine of int8 and fp32 alone is one option away.

use super::line::Builder;
use crate::{
    model::{ModelFacts, ModelType},
    options::{Fallback, Options},
    refusal::Refusal,
};
use planforge_types::{BuildSpec, Precision};

/// `fp32`, `tf32`, ...
pub(super) fn name(precision: Precision) -> &'static str {
    match precision {
        Precision::Fp32 => "fp32",
        Precision::Tf32 => "tf32",
        Precision::Fp16 => "fp16",
        Precision::Bf16 => "bf16",
        Precision::Int8 => "int8",
        Precision::Fp8 => "fp8",
        Precision::Best => "best",
    }
}

/// Adds the flags that `spec` means, after checking the model where its types decide.
pub(super) fn flags(
    line: &mut Builder<'_>,
    spec: &BuildSpec,
    options: &Options,
    model: Option<&ModelFacts>,
) -> Result<(), Refusal> {
    let precision = spec.precision;
    if line.capabilities.strongly_typed_only() || options.strongly_typed {
        if let Some(model) = model {
            typed_model(precision, model)?;
        }
        if !line.capabilities.strongly_typed_only() {
            line.on("strong typing", "--stronglyTyped")?;
        }
        if precision == Precision::Fp32 {
            line.on("fp32 without TF32", "--noTF32")?;
        }
        return Ok(());
    }
    let what = format!("precision {}", name(precision));
    match precision {
        Precision::Fp32 => line.on("fp32 without TF32", "--noTF32"),
        Precision::Tf32 => Ok(()),
        Precision::Fp16 => line.on(&what, "--fp16"),
        Precision::Bf16 => line.on(&what, "--bf16"),
        Precision::Best => line.on(&what, "--best"),
        Precision::Int8 => {
            line.on(&what, "--int8")?;
            fallback(line, options.quantized_fallback)
        }
        Precision::Fp8 => {
            line.on(&what, "--fp8")?;
            fallback(line, options.quantized_fallback)
        }
    }?;
    if options.int4 {
        line.on("option int4", "--int4")?;
    }
    Ok(())
}

fn fallback(line: &mut Builder<'_>, fallback: Fallback) -> Result<(), Refusal> {
    match fallback {
        Fallback::Fp16 => line.on("quantized_fallback=fp16", "--fp16"),
        Fallback::Bf16 => line.on("quantized_fallback=bf16", "--bf16"),
        Fallback::Fp32 => Ok(()),
    }
}

/// Refuses a model whose own types are not what `precision` asks for.
fn typed_model(precision: Precision, model: &ModelFacts) -> Result<(), Refusal> {
    let computes = |t| model.computes_in.contains(&t);
    let quantizes = |t| model.quantizes_to.contains(&t);
    let good = match precision {
        Precision::Best => true,
        Precision::Fp32 | Precision::Tf32 => {
            !computes(ModelType::Fp16) && !computes(ModelType::Bf16) && !model.has_quantization()
        }
        Precision::Fp16 => computes(ModelType::Fp16),
        Precision::Bf16 => computes(ModelType::Bf16),
        Precision::Int8 => quantizes(ModelType::Int8),
        Precision::Fp8 => quantizes(ModelType::Fp8),
    };
    if good {
        return Ok(());
    }
    let list = |types: &std::collections::BTreeSet<ModelType>| {
        types.iter().map(|t| t.name()).collect::<Vec<_>>().join(" and ")
    };
    let mut is = match model.computes_in.is_empty() {
        true => "names no floating-point type".to_owned(),
        false => format!("is typed in {}", list(&model.computes_in)),
    };
    is += &match model.has_quantization() {
        true => format!(" with Q/DQ nodes in {}", list(&model.quantizes_to)),
        false => " without Q/DQ nodes".to_owned(),
    };
    let what =
        format!("a strongly typed network computes as its model says, and this model {is}, not {}", name(precision));
    let hint = match precision {
        Precision::Fp32 | Precision::Tf32 => "give the model in fp32, or ask for precision best to take it as it is",
        Precision::Fp16 | Precision::Bf16 => {
            "give a model converted to that type (ModelOpt's AutoCast does), or ask for precision best to take it as it is"
        }
        _ => "give a model with Q/DQ nodes of that type, or ask for precision best to take it as it is",
    };
    Err(Refusal::model(what, hint))
}
