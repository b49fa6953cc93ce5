//! From a model to the prepared one and its report.

use crate::{
    blocks,
    draft::{Draft, Judge, Options, Prepared, layer_report},
    error::{DataError, Finding, PrecisionError},
    int8,
    layers::layers,
    net::Net,
    run::Runner,
    samples::Samples,
    typed,
};
use planforge_onnx::Model;
use planforge_types::preparation::{Budget, Kind};

/// Operators that say that somebody quantised the model before.
const QUANTISED: [&str; 9] = [
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
    "MatMulInteger",
    "DynamicQuantizeLinear",
    "MatMulNBits",
    "QGemm",
];

/// Prepares a model. `samples` is what it is calibrated on, `judged` what its loss is measured on where that is other data.
///
/// # Errors
///
/// When the model or the data cannot be used, nothing in it can be lowered, the target has no such type, or the budget
/// cannot be met.
pub fn prepare(
    model: &Model,
    samples: Option<&Samples>,
    judged: Option<&Samples>,
    options: &Options,
    runner: &dyn Runner,
) -> Result<Prepared, PrecisionError> {
    check(samples, judged, options)?;
    let profile = samples.or(judged).and_then(Samples::profile);
    let original = Net::of(model, profile.as_ref())?;
    let mut findings = samples.map(Samples::findings).unwrap_or_default();
    if let Some(found) = original.graph().node.iter().find(|node| QUANTISED.contains(&node.op_type.as_str())) {
        let text =
            format!("the model is quantised already ('{}' is a {}): it is left as it is", found.name, found.op_type);
        findings.push(Finding::new("already-quantized", text));
        return Ok(untouched(model, &original, samples, options, runner, findings));
    }
    let unknown = options.keep.iter().find(|name| original.graph().node.iter().all(|node| node.name != **name));
    if let Some(name) = unknown {
        return Err(PrecisionError::Options(format!("there is no layer '{name}' to keep")));
    }
    let report = Draft { options, runner, samples, findings };
    if options.kind == Kind::Int8 {
        return int8::prepare(original, samples, judged, report);
    }
    let judge = Judge::of(&original, samples, judged, runner)?;
    match options.kind {
        Kind::Fp16 | Kind::Bf16 => typed::prepare(original, samples, judge.as_ref(), report),
        _ => blocks::prepare(original, judge.as_ref(), report),
    }
}

fn check(samples: Option<&Samples>, judged: Option<&Samples>, options: &Options) -> Result<(), PrecisionError> {
    let (kind, target) = (options.kind, options.target);
    let named = || kind.name().to_owned();
    if !target.has(kind) {
        return Err(PrecisionError::Target { target: target.name().to_owned(), precision: named() });
    }
    if kind.needs_data() && samples.is_none() {
        return Err(PrecisionError::NoData { precision: named() });
    }
    if let Some(Budget::AccuracyDrop(most) | Budget::OutputError(most)) = options.budget {
        if !most.is_finite() || most < 0.0 {
            return Err(PrecisionError::Options(format!("a budget of {most} allows nothing")));
        }
        let Some(data) = judged.or(samples) else {
            return Err(PrecisionError::NoData { precision: "a budget".to_owned() });
        };
        if matches!(options.budget, Some(Budget::AccuracyDrop(_))) && !data.has_labels() {
            let found = data.inputs(0).into_keys().collect::<Vec<_>>().join(", ");
            return Err(DataError::NoLabels { found }.into());
        }
    }
    if let Some(group) = options.group
        && (group < 16 || !group.is_power_of_two())
    {
        return Err(PrecisionError::Options(format!("a group of {group} weights is none of 16, 32, 64, …")));
    }
    Ok(())
}

fn untouched(
    model: &Model,
    net: &Net,
    samples: Option<&Samples>,
    options: &Options,
    runner: &dyn Runner,
    findings: Vec<Finding>,
) -> Prepared {
    let report = layers(net)
        .iter()
        .map(|layer| layer_report(layer, net, "as it was", "the model is quantised already".to_owned(), None))
        .collect();
    let draft = Draft { options, runner, samples, findings };
    let mut prepared = draft.finish(net, net.clone(), report, None);
    prepared.report.answers.clear();
    // As it was, and whole: weights in files beside it come along.
    prepared.proto = if model.files().len() > 1 { net.proto.clone() } else { model.proto.clone() };
    prepared
}
