//! Windows, filter banks and Fourier transforms.

use super::{super::builder::Lowering, Rule, sizes};
use crate::{builder::MAX_FOLDED_ELEMENTS, element_type, error::Refusal};
use planforge_graph::ir::{ElementType, NamedOp, Op, ValueId};
use std::f64::consts::{LN_10, PI};

const WINDOW: &[&str] = &["output_datatype", "periodic"];

pub const RULES: &[Rule] = &[
    Rule { op_type: "HannWindow", attributes: WINDOW, lower: |node| window(node, [0.5, 0.5, 0.0]) },
    Rule { op_type: "HammingWindow", attributes: WINDOW, lower: |node| window(node, [25.0 / 46.0, 21.0 / 46.0, 0.0]) },
    Rule { op_type: "BlackmanWindow", attributes: WINDOW, lower: |node| window(node, [0.42, 0.5, 0.08]) },
    Rule { op_type: "MelWeightMatrix", attributes: &["output_datatype"], lower: mel },
    Rule { op_type: "DFT", attributes: &["axis", "inverse", "onesided"], lower: dft },
    Rule { op_type: "STFT", attributes: &["onesided"], lower: stft },
];

fn output_type(node: &Lowering<'_>) -> Result<ElementType, Refusal> {
    let number = node.attributes.int_or("output_datatype", 1)?;
    i32::try_from(number).ok().and_then(|number| element_type(number).ok()).ok_or_else(|| Refusal::Attribute {
        name: "output_datatype".into(),
        reason: "names an element type that is not supported".into(),
    })
}

/// `a - b cos(2 pi n / N) + c cos(4 pi n / N)`.
fn window(node: &mut Lowering<'_>, [a, b, c]: [f64; 3]) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let size = node.known_number(0, "size")?;
    let periodic = node.attributes.flag("periodic", true)?;
    let period = if periodic { size } else { size - 1.0 };
    if !(size >= 0.0 && size <= MAX_FOLDED_ELEMENTS as f64) || (period <= 0.0 && size > 0.0) {
        return Err(Refusal::Impossible { what: "the window's size", value: size.to_string(), shape: Vec::new() });
    }
    let at = |n: usize| 2.0 * PI * n as f64 / period;
    let values = (0..size as usize).map(|n| a - b * at(n).cos() + c * (2.0 * at(n)).cos());
    let element = output_type(node)?;
    Ok(vec![node.numbers(element, vec![size as usize], values.collect())?])
}

/// Triangular filters, evenly spaced on the mel scale, over the bins of a spectrum.
fn mel(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(5)?;
    let mut given = [0.0; 5];
    let names = ["num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"];
    for (position, what) in names.into_iter().enumerate() {
        given[position] = node.known_number(position, what)?;
    }
    let [bands, length, rate, low, high] = given;
    let wrong = || Refusal::Impossible {
        what: "the filter bank",
        value: format!("{bands} bands of {length} samples at {rate} between {low} and {high}"),
        shape: Vec::new(),
    };
    let bins = (length / 2.0).floor() + 1.0;
    if !(bands >= 0.0 && bins >= 1.0 && rate > 0.0 && low > -700.0 && bands * bins <= MAX_FOLDED_ELEMENTS as f64) {
        return Err(wrong());
    }
    let (bands, bins) = (bands as usize, bins as usize);
    let to_mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / LN_10;
    let step = (to_mel(high) - to_mel(low)) / (bands + 2) as f64;
    let edge = |at: usize| {
        let hertz = 700.0 * ((at as f64 * step + to_mel(low)) / 2595.0 * LN_10).exp_m1();
        ((length + 1.0) * hertz / rate).floor()
    };
    let mut weights = vec![0f64; bins * bands];
    for band in 0..bands {
        let [left, centre, right] = [edge(band), edge(band + 1), edge(band + 2)];
        if !(left >= 0.0 && left <= centre && centre <= right && centre < bins as f64 && right <= bins as f64) {
            return Err(wrong());
        }
        let [left, centre, right] = [left as usize, centre as usize, right as usize];
        if left == centre {
            weights[centre * bands + band] = 1.0;
        } else {
            for bin in left..=centre {
                weights[bin * bands + band] = (bin - left) as f64 / (centre - left) as f64;
            }
        }
        for bin in centre..right {
            weights[bin * bands + band] = (right - bin) as f64 / (right - centre) as f64;
        }
    }
    let element = output_type(node)?;
    Ok(vec![node.numbers(element, vec![bins, bands], weights)?])
}

/// The axis is an attribute up to opset 19 and an input from 20 on.
fn dft(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "input")?;
    let shape = node.shape(x);
    let rank = shape.len();
    let axis = if node.opset < 20 {
        node.at_most(2)?;
        node.attributes.int_or("axis", 1)?
    } else {
        node.at_most(3)?;
        node.known_ints(2, "axis")?.and_then(|axis| axis.first().copied()).unwrap_or(-2)
    };
    let axis = node.axis(axis, rank, "axis")?;
    let (inverse, onesided) = (node.attributes.flag("inverse", false)?, node.attributes.flag("onesided", false)?);
    let length = match node.known_ints(1, "dft_length")? {
        Some(length) => sizes("dft_length", &length)?.first().copied().unwrap_or(0),
        // What a one-sided inverse gives is the signal that a one-sided transform was taken of.
        None if inverse && onesided => shape[axis].saturating_sub(1) * 2,
        None => shape[axis],
    };
    let mut out = shape.clone();
    if axis + 1 >= rank || !matches!(shape[rank - 1], 1 | 2) || length == 0 {
        return Err(Refusal::Impossible { what: "the axis of the transform", value: axis.to_string(), shape });
    }
    out[axis] = if onesided && !inverse { length / 2 + 1 } else { length };
    out[rank - 1] = if onesided && inverse { 1 } else { 2 };
    let op = NamedOp::new("dft")
        .with_int("axis", axis as i64)
        .with_int("length", length as i64)
        .with_int("inverse", inverse.into())
        .with_int("onesided", onesided.into());
    Ok(vec![node.emit_as(Op::Named(op.into()), &[x], out)?])
}

fn stft(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(4)?;
    let x = node.input(0, "signal")?;
    let shape = node.shape(x);
    let step = sizes("frame_step", &[node.known_number(1, "frame_step")? as i64])?[0];
    let window = node.optional(2);
    let length = match node.known_ints(3, "frame_length")?.and_then(|length| length.first().copied()) {
        Some(length) => sizes("frame_length", &[length])?[0],
        None => window.map_or(0, |window| node.shape(window).iter().product()),
    };
    let wrong = || Refusal::Impossible {
        what: "the frames",
        value: format!("{length} samples every {step}"),
        shape: shape.clone(),
    };
    let (batch, samples) = match shape[..] {
        [batch, samples] | [batch, samples, 1 | 2] => (batch, samples),
        _ => return Err(wrong()),
    };
    if step == 0 || length == 0 || samples < length {
        return Err(wrong());
    }
    if window.is_some_and(|window| node.shape(window) != [length]) {
        return Err(wrong());
    }
    let frames = (samples - length) / step + 1;
    let onesided = node.attributes.flag("onesided", true)?;
    let bins = if onesided { length / 2 + 1 } else { length };
    let op = NamedOp::new("stft")
        .with_int("step", step as i64)
        .with_int("length", length as i64)
        .with_int("onesided", onesided.into());
    let inputs = vec![Some(x), window];
    Ok(vec![node.emit_optional(Op::Named(op.into()), inputs, &[vec![batch, frames, bins, 2]])?])
}
