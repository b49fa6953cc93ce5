//! int8: from ranges on data to a model with quantisation in its places, within the budget.

use crate::{
    budget::Cost,
    draft::{Draft, FEW_ROWS, Judge, Prepared, layer_report},
    equalize::{self, Evened},
    error::{Finding, PrecisionError},
    fold::{self, Folded},
    layers::{Layer, layers},
    net::Net,
    observe::{Former, Observed, observe},
    opset,
    quantize::{Int8, Quantised, Step, quantise},
    samples::Samples,
};
use planforge_types::preparation::{Method, Target};
use std::collections::{BTreeMap, BTreeSet};

/// Sums, and every value that may be quantised: observed once, whatever is chosen later.
fn watched(net: &Net, layers: &[Layer]) -> BTreeMap<String, Option<usize>> {
    let graph = net.graph();
    let inputs = graph.input.iter().map(|input| &input.name);
    let values = inputs.chain(graph.node.iter().flat_map(|node| &node.output));
    let values = values.filter(|name| net.is_single(name) && net.initializer(name).is_none());
    let mut watched: BTreeMap<String, Option<usize>> = values.map(|name| (name.clone(), None)).collect();
    for layer in layers {
        watched.insert(layer.input.clone(), Some(layer.channel_axis));
    }
    watched
}

pub(crate) fn prepare(
    mut net: Net,
    samples: Option<&Samples>,
    judge: Option<&Judge<'_>>,
    draft: Draft<'_>,
) -> Result<Prepared, PrecisionError> {
    let options = draft.options;
    let (Some(samples), Some(judge)) = (samples, judge) else {
        return Err(PrecisionError::NoData { precision: options.kind.name().to_owned() });
    };
    let net = &mut net;
    let before = net.clone();
    let folded = fold::batch_norms(net);
    opset::raise(net, 13)?;
    let mut equalized = Vec::new();
    if options.equalize {
        let pairs = equalize::pairs(net);
        let wanted = equalize::wanted(net, &pairs);
        let (seen, _) = observe(net, draft.runner, &samples.thinned(FEW_ROWS), &wanted, &[])?;
        equalized = equalize::apply(net, &pairs, &seen);
    }
    let layers = layers(net);
    if layers.is_empty() {
        let why = "it has no convolution and no product with stored single-precision weights".to_owned();
        return Err(PrecisionError::Nothing { precision: options.kind.name().to_owned(), why });
    }
    // A cache is for the model as it was: without what folding and evening out made of its values.
    let formers = match options.target {
        Target::Any | Target::TensorRt => formers(&folded, &equalized),
        Target::OnnxRuntime | Target::Cpu => Vec::new(),
    };
    let (seen, before_seen) = observe(net, draft.runner, samples, &watched(net, &layers), &formers)?;
    let how = Int8 {
        target: options.target,
        method: options.method,
        per_tensor: options.per_tensor,
        correct_bias: options.correct_bias,
    };
    let free: Vec<&Layer> = layers.iter().filter(|layer| !options.keep.contains(&layer.name)).collect();
    let make = |returned: &BTreeSet<usize>| -> Quantised {
        let chosen: Vec<&Layer> =
            free.iter().enumerate().filter(|(at, _)| !returned.contains(at)).map(|(_, layer)| *layer).collect();
        quantise(net, &chosen, &seen, how)
    };
    let costs: Vec<Cost> = free.iter().map(|layer| Cost { saved: layer.macs as f64 }).collect();
    let names: Vec<&str> = free.iter().map(|layer| layer.name.as_str()).collect();
    let settled = judge.settle(options.budget, &costs, &names, |returned| make(returned).net)?;
    let made = make(&settled.returned);
    if made.refused.len() == free.len() {
        let why = made.refused.iter().map(|(name, why)| format!("'{name}': {why}")).collect::<Vec<_>>().join("; ");
        return Err(PrecisionError::Nothing { precision: options.kind.name().to_owned(), why });
    }
    let mut findings = draft.findings;
    for (name, why) in &made.refused {
        findings.push(Finding::new("layer-kept", format!("'{name}' stays single precision: {why}")));
    }
    let report = layers.iter().map(|layer| {
        let at = free.iter().position(|other| other.node == layer.node);
        let harm = at.and_then(|at| settled.harm.get(at).copied());
        let (precision, why) = match at {
            None => ("fp32", "it was asked to stay".to_owned()),
            Some(at) if settled.returned.contains(&at) => {
                let harm = harm.unwrap_or_default();
                ("fp32", format!("returned by the budget: alone it makes a relative error of {harm:.2e}"))
            }
            Some(_) => match made.refused.get(&layer.name) {
                Some(why) => ("fp32", why.clone()),
                None => ("int8", format!("ranges by {}", options.method.name())),
            },
        };
        layer_report(layer, &made.net, precision, why, harm)
    });
    let report = report.collect();
    let measured = judge.measured(&settled.reached, settled.evaluations);
    let draft = Draft { findings, ..draft };
    let mut prepared = draft.finish(&before, made.net, report, Some(measured));
    prepared.report.folded = folded.into_iter().map(|of| of.name).collect();
    prepared.report.equalized = equalized.into_iter().map(|of| of.name).collect();
    let values = watched(&before, &[]);
    let seen = values.keys().filter_map(|name| Some((name, before_seen.get(name).or_else(|| seen.get(name))?)));
    prepared.scales = cache_scales(seen, options.method);
    Ok(prepared)
}

/// What of the values before is something else now.
fn formers(folded: &[Folded], evened: &[Evened]) -> Vec<Former> {
    let mut formers: Vec<Former> = Vec::new();
    for of in evened {
        for (value, axis) in &of.values {
            let (factors, shifts) = (of.factors.clone(), vec![0.0; of.factors.len()]);
            formers.push(Former { name: value.clone(), value: value.clone(), axis: *axis, factors, shifts });
        }
    }
    for of in folded {
        let evened =
            formers.iter().find(|former| former.value == of.output && former.factors.len() == of.factors.len());
        let by = evened.map(|former| former.factors.clone()).unwrap_or_else(|| vec![1.0; of.factors.len()]);
        // Backwards: of what the normalisation gave to what it took.
        let factors = of.factors.iter().zip(by).map(|(factor, by)| by / factor).collect();
        let shifts = of.factors.iter().zip(&of.shifts).map(|(factor, shift)| -shift / factor).collect();
        formers.push(Former { name: of.input.clone(), value: of.output.clone(), axis: 1, factors, shifts });
    }
    formers
}

fn cache_scales<'a>(seen: impl Iterator<Item = (&'a String, &'a Observed)>, method: Method) -> BTreeMap<String, f32> {
    let step = |(name, observed): (&String, &Observed)| {
        let step = Step::of(observed.histogram.range(method, true), true)?;
        Some((name.clone(), step.scale))
    };
    seen.filter_map(step).collect()
}
