//! int8: from ranges on data to a model with quantisation in its places, within the budget.

use crate::{
    budget::Cost,
    draft::{Draft, FEW_ROWS, Judge, MOST_ROWS, Prepared, layer_report},
    equalize::{self, Evened},
    error::{Finding, PrecisionError},
    fold,
    layers::{Layer, layers},
    net::Net,
    observe::{Divided, Observations, Observed, Observer, observe},
    opset,
    place::{activation_behind, places},
    quantize::{Int8, Quantised, Step, quantise},
    report::LayerReport,
    run::Runner,
    samples::Samples,
    truth::Truth,
};
use planforge_types::preparation::{Method, Target};
use rayon::prelude::*;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

/// Every value that may be quantised, and the axis of the channels of those that layers read: looked at once, whatever is
/// chosen later.
fn watched(net: &Net, layers: &[Layer], target: Target) -> BTreeMap<String, Option<usize>> {
    let mut watched: BTreeMap<String, Option<usize>> = match target.has_cache() {
        // A cache has a scale for every value.
        true => unfused(net).into_iter().map(|name| (name, None)).collect(),
        // Fewer layers have no other places than all of them.
        false => {
            let all: Vec<&Layer> = layers.iter().collect();
            places(net, &all, target).points.into_keys().map(|name| (name, None)).collect()
        }
    };
    for layer in layers {
        watched.insert(layer.input.clone(), Some(layer.channel_axis));
    }
    watched
}

/// The values of the model, but for those that an activation alone reads: every backend computes it with what is before it.
/// Before its inputs there is nothing.
fn unfused(net: &Net) -> BTreeSet<String> {
    let (readers, fixed) = (net.readers(), net.fixed_names());
    let inputs = net.graph().input.iter().map(|input| &input.name);
    let made = net.graph().node.iter().flat_map(|node| &node.output);
    let values = inputs.chain(made.filter(|name| activation_behind(net, &readers, &fixed, name).is_none()));
    values.filter(|name| net.is_single(name) && net.initializer(name).is_none()).cloned().collect()
}

pub(crate) fn prepare(
    mut net: Net,
    samples: Option<&Samples>,
    judged: Option<&Samples>,
    draft: Draft<'_>,
) -> Result<Prepared, PrecisionError> {
    let options = draft.options;
    let no_data = || PrecisionError::NoData { precision: options.kind.name().to_owned() };
    let samples = samples.ok_or_else(no_data)?;
    let net = &mut net;
    let before = net.clone();
    let mut folded = fold::batch_norms(net);
    opset::raise(net, 13)?;
    if options.target == Target::Cpu {
        folded.extend(fold::attention_scales(net));
    }
    let layers = layers(net);
    if layers.is_empty() {
        let why = "it has no convolution and no product with stored single-precision weights".to_owned();
        return Err(PrecisionError::Nothing { precision: options.kind.name().to_owned(), why });
    }
    let pairs = if options.equalize { equalize::pairs(net) } else { Vec::new() };
    let observer = Observer::of(&watched(net, &layers, options.target)).keeping(equalize::values(&pairs));
    let observer = match options.method {
        // The largest number may be any.
        Method::MinMax => observer,
        _ => observer.sparing(samples.batches()),
    };
    // What the model as it was says of other data, where that judges.
    let judge = judged.map_or(Ok(None), |judged| Judge::of(&before, None, Some(judged), draft.runner))?;
    let Calibrated { seen, undivided, evened, judge } = calibrate(net, samples, judge, &pairs, observer, &draft)?;
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
    // What a device elsewhere saves is not known here: there, multiplications stand for it.
    let saved_us: RefCell<Option<Vec<f64>>> = RefCell::default();
    let costs = || {
        let here = options.target == Target::Cpu;
        let times = here.then(|| saved_us_of(net, &make(&BTreeSet::new()).net, &free, samples, draft.runner)).flatten();
        saved_us.replace(times.clone());
        let saved = times.unwrap_or_else(|| free.iter().map(|layer| layer.macs as f64).collect());
        saved.into_iter().map(|saved| Cost { saved }).collect()
    };
    let names: Vec<&str> = free.iter().map(|layer| layer.name.as_str()).collect();
    // The last one measured, which is mostly the one that stays.
    let last: RefCell<Option<(BTreeSet<usize>, Quantised)>> = RefCell::default();
    let settled = judge.settle(options.budget, costs, &names, |returned| {
        let made = make(returned);
        let net = made.net.clone();
        last.replace(Some((returned.clone(), made)));
        net
    })?;
    let last = last.into_inner().filter(|(returned, _)| *returned == settled.returned);
    let made = last.map_or_else(|| make(&settled.returned), |(_, made)| made);
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
        let saved_us = at.and_then(|at| saved_us.borrow().as_ref()?.get(at).copied());
        let (precision, why) = match at {
            None => ("fp32", "it was asked to stay".to_owned()),
            Some(at) if settled.returned.contains(&at) => {
                let harm = harm.unwrap_or_default();
                let saved = saved_us.map_or_else(String::new, |us| format!(", and int8 saves {us:.1} us"));
                ("fp32", format!("returned by the budget: alone it makes a relative error of {harm:.2e}{saved}"))
            }
            Some(_) => match made.refused.get(&layer.name) {
                Some(why) => ("fp32", why.clone()),
                None => ("int8", format!("ranges by {}", options.method.name())),
            },
        };
        LayerReport { saved_us, ..layer_report(layer, &made.net, precision, why, harm) }
    });
    let report = report.collect();
    let measured = judge.measured(&settled.reached, settled.evaluations);
    let draft = Draft { findings, ..draft };
    let mut prepared = draft.finish(&before, made.net, report, Some(measured));
    prepared.report.folded = folded;
    prepared.report.equalized = evened.into_iter().map(|of| of.name).collect();
    if options.target.has_cache() {
        let of = |name: &str| undivided.get(name).or_else(|| seen.get(name));
        prepared.scales = cache_scales(&before, of, options.method);
    }
    Ok(prepared)
}

/// What one pass over the data tells.
struct Calibrated<'a> {
    seen: Observations,
    /// What evened-out values were before.
    undivided: Observations,
    evened: Vec<Evened>,
    judge: Judge<'a>,
}

/// Evens out `net` and finds the ranges of its values then, all by runs of the model as it was: evening out multiplies what
/// it says by powers of two, which needs no other engine. Without other data that judges, what it says is heard by the way.
fn calibrate<'a>(
    net: &mut Net,
    samples: &Samples,
    judge: Option<Judge<'a>>,
    pairs: &[equalize::Pair],
    mut observer: Observer,
    draft: &Draft<'a>,
) -> Result<Calibrated<'a>, PrecisionError> {
    let (target, runner) = (draft.options.target, draft.runner);
    // The rows of single layers, those that the whole is judged by besides, and all others.
    let (few, rest) = samples.parted(FEW_ROWS);
    let (more, rest) = match rest {
        Some(rest) if samples.has_labels() && judge.is_none() => {
            let (more, rest) = rest.parted(MOST_ROWS - FEW_ROWS);
            (Some(more), rest)
        }
        rest => (None, rest),
    };
    let mut truth = Truth::about(net);
    let watched = observer.wanted().chain(truth.wanted()).cloned().collect();
    let mut session = runner.open(&net.model()?, samples.profile().as_ref(), &watched, samples.batches())?;
    let session = session.as_mut();
    match judge {
        None => truth.hear(session, &few, Some(&mut observer))?,
        Some(_) => observe(session, &few, &mut observer)?,
    }
    let evened = equalize::apply(net, pairs, &observer.seen());
    // A cache is for the model as it was.
    if !observer.even_out(divided(&evened), target.has_cache()) {
        observe(session, &few, &mut observer)?;
    }
    let of_few = truth.clone();
    if let Some(more) = &more {
        truth.hear(session, more, Some(&mut observer))?;
    }
    if let Some(rest) = &rest {
        observe(session, rest, &mut observer)?;
    }
    let whole = more.map_or_else(|| few.clone(), |more| few.followed_by(&more));
    let judge = judge.unwrap_or(Judge { runner, whole: (whole, truth), few: (few, of_few) });
    let (seen, undivided) = observer.into_seen();
    Ok(Calibrated { seen, undivided, evened, judge })
}

/// Microseconds that each layer takes less in int8 on this machine; `None` where not every layer's time can be told.
fn saved_us_of(net: &Net, int8: &Net, layers: &[&Layer], samples: &Samples, runner: &dyn Runner) -> Option<Vec<f64>> {
    let inputs = samples.inputs(0);
    let of = |net: &Net| runner.node_us(&net.model().ok()?, samples.profile().as_ref(), &inputs);
    let (before, after) = (of(net)?, of(int8)?);
    layers.iter().map(|layer| Some(before.get(&layer.name)? - after.get(&layer.name)?)).collect()
}

/// What becomes of values.
fn divided(evened: &[Evened]) -> Vec<Divided> {
    let of = |of: &Evened, (value, axis): &(String, usize)| Divided {
        value: value.clone(),
        axis: *axis,
        by: of.factors.clone(),
    };
    evened.iter().flat_map(|evened| evened.values.iter().map(|value| of(evened, value))).collect()
}

/// The scale of every value that was seen; what an activation alone reads takes that of the activation, behind which it
/// could tell no more apart.
fn cache_scales<'a>(
    net: &Net,
    seen: impl Fn(&str) -> Option<&'a Observed> + Sync,
    method: Method,
) -> BTreeMap<String, f32> {
    let (readers, fixed) = (net.readers(), net.fixed_names());
    let unfused = unfused(net);
    let scale = |name: &str| Some(Step::of(seen(name)?.histogram.range(method, true), true)?.scale);
    let mut scales: BTreeMap<String, f32> =
        unfused.par_iter().filter_map(|name| Some((name.clone(), scale(name)?))).collect();
    for name in net.graph().node.iter().rev().flat_map(|node| &node.output) {
        if let Some(behind) = activation_behind(net, &readers, &fixed, name)
            && let Some(scale) = scales.get(&net.graph().node[behind].output[0])
        {
            scales.insert(name.clone(), *scale);
        }
    }
    scales
}
