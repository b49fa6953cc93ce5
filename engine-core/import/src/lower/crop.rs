//! Cropping and padding about the centre, columns back to images, counting of n-grams, reversal.

use super::{super::builder::Lowering, Rule, sizes, spatial_sizes};
use crate::error::Refusal;
use planforge_graph::ir::{NamedOp, Op, PadMode, ValueId};

pub const RULES: &[Rule] = &[
    Rule { op_type: "CenterCropPad", attributes: &["axes"], lower: center_crop_pad },
    Rule { op_type: "Col2Im", attributes: &["dilations", "pads", "strides"], lower: col2im },
    Rule { op_type: "ReverseSequence", attributes: &["batch_axis", "time_axis"], lower: reverse_sequence },
    Rule {
        op_type: "TfIdfVectorizer",
        attributes: &[
            "max_gram_length",
            "max_skip_count",
            "min_gram_length",
            "mode",
            "ngram_counts",
            "ngram_indexes",
            "pool_int64s",
            "pool_strings",
            "weights",
        ],
        lower: tf_idf,
    },
];

fn center_crop_pad(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let mut x = node.input(0, "input_data")?;
    let target = node.known_ints(1, "shape")?.ok_or(Refusal::MissingInput { position: 1, what: "shape" })?;
    let target = sizes("shape", &target)?;
    let rank = node.ty(x).rank();
    let axes: Vec<usize> = match node.attributes.ints("axes")? {
        Some(axes) => axes.iter().map(|&axis| node.axis(axis, rank, "axes")).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    if axes.len() != target.len() {
        let value = format!("{target:?}");
        return Err(Refusal::Impossible { what: "the new shape", value, shape: node.shape(x) });
    }
    for (&axis, &wanted) in axes.iter().zip(&target) {
        let mut shape = node.shape(x);
        let size = shape[axis];
        if wanted < size {
            x = node.part(x, axis, (size - wanted) / 2, wanted)?;
        } else if wanted > size {
            let mut begins = vec![0i64; rank];
            begins[axis] = ((wanted - size) / 2) as i64;
            shape[axis] = wanted;
            x = node.emit_as(Op::Pad { mode: PadMode::Constant, begins }, &[x], shape)?;
        }
    }
    Ok(vec![node.emit(Op::Identity, &[x])?])
}

fn col2im(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    let x = node.input(0, "input")?;
    let list = |position, what: &'static str| -> Result<Vec<usize>, Refusal> {
        sizes(what, &node.known_ints(position, what)?.ok_or(Refusal::MissingInput { position, what })?)
    };
    let (image, kernel) = (list(1, "image_shape")?, list(2, "block_shape")?);
    let rank = image.len();
    let shape = node.shape(x);
    let taps = kernel.iter().try_fold(1usize, |taps, &size| taps.checked_mul(size)).filter(|&taps| taps > 0);
    let channels = shape.get(1).zip(taps).map(|(columns, taps)| columns / taps);
    let (Some(channels), true) = (channels, kernel.len() == rank && rank > 0) else {
        return Err(Refusal::Impossible { what: "the block", value: format!("{kernel:?}"), shape });
    };
    let op = NamedOp::new("col2im")
        .with_sizes("kernel", &kernel)
        .with_sizes("strides", &spatial_sizes("strides", node.attributes.ints("strides")?, rank, 1)?)
        .with_sizes("pads", &spatial_sizes("pads", node.attributes.ints("pads")?, 2 * rank, 0)?)
        .with_sizes("dilations", &spatial_sizes("dilations", node.attributes.ints("dilations")?, rank, 1)?);
    let out = [&[shape[0], channels], image.as_slice()].concat();
    Ok(vec![node.emit_as(Op::Named(op.into()), &[x], out)?])
}

fn reverse_sequence(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let inputs = [node.input(0, "input")?, node.input(1, "sequence_lens")?];
    let rank = node.ty(inputs[0]).rank();
    let time = node.axis(node.attributes.int_or("time_axis", 0)?, rank, "time_axis")?;
    let batch = node.axis(node.attributes.int_or("batch_axis", 1)?, rank, "batch_axis")?;
    let op = NamedOp::new("reverse_sequence").with_int("time", time as i64).with_int("batch", batch as i64);
    Ok(vec![node.emit(Op::Named(op.into()), &inputs)?])
}

fn tf_idf(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    let attributes = &node.attributes;
    if attributes.has("pool_strings") {
        return Err(Refusal::Attribute { name: "pool_strings".into(), reason: "is not supported".into() });
    }
    let list = |name: &'static str| -> Result<&[i64], Refusal> { Ok(attributes.ints(name)?.unwrap_or_default()) };
    let mode = attributes.text_or("mode", "")?;
    if !["TF", "IDF", "TFIDF"].contains(&mode) {
        return Err(Refusal::Attribute { name: "mode".into(), reason: format!("is '{mode}'") });
    }
    let op = NamedOp::new("tf_idf")
        .with_ints("ngram_counts", list("ngram_counts")?)
        .with_ints("ngram_indexes", list("ngram_indexes")?)
        .with_ints("pool", list("pool_int64s")?)
        .with_int("min", attributes.required_int("min_gram_length")?)
        .with_int("max", attributes.required_int("max_gram_length")?)
        .with_int("skip", attributes.required_int("max_skip_count")?)
        .with_text("mode", mode);
    let op = match attributes.floats("weights")? {
        Some(weights) => op.with_floats("weights", weights),
        None => op,
    };
    Ok(vec![node.emit(Op::Named(op.into()), &[x])?])
}
