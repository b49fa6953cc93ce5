//! Pooling.

use super::{
    super::builder::Lowering,
    Rule,
    linear::{auto_pad, impossible_window},
    spatial_sizes,
};
use crate::error::Refusal;
use planforge_graph::{
    ir::{NamedOp, Op, Pool, PoolKind, ReduceKind, ValueId},
    shape::{AutoPad, is_float, resolve_pads, window_outputs},
};

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "MaxPool",
        attributes: &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"],
        lower: max_pool,
    },
    Rule {
        op_type: "AveragePool",
        attributes: &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"],
        lower: average_pool,
    },
    Rule {
        op_type: "LpPool",
        attributes: &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "p", "pads", "strides"],
        lower: lp_pool,
    },
    Rule { op_type: "GlobalLpPool", attributes: &["p"], lower: global_lp_pool },
    Rule { op_type: "GlobalAveragePool", attributes: &[], lower: |node| global(node, ReduceKind::Mean) },
    Rule { op_type: "GlobalMaxPool", attributes: &[], lower: |node| global(node, ReduceKind::Max) },
];

pub fn max_pool(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let column_major = node.attributes.flag("storage_order", false)?;
    let mut results = pool(node, PoolKind::Max)?;
    if node.wants(1) {
        let (x, pool, out) = windows(node, PoolKind::Max, true)?;
        if !is_float(node.ty(x).element) {
            return Err(Refusal::Output { position: 1 });
        }
        let op = windowed("max_places", &pool).with_int("column_major", column_major.into());
        results.push(node.emit_as(Op::Named(op.into()), &[x], out)?);
    }
    Ok(results)
}

/// An operator of the table over windows.
fn windowed(name: &str, pool: &Pool) -> NamedOp {
    NamedOp::new(name)
        .with_sizes("kernel", &pool.kernel)
        .with_sizes("strides", &pool.strides)
        .with_sizes("pads", &pool.pads)
        .with_sizes("dilations", &pool.dilations)
}

pub fn average_pool(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let count_pad = node.attributes.flag("count_include_pad", false)?;
    pool(node, PoolKind::Average { count_pad })
}

fn pool(node: &mut Lowering<'_>, kind: PoolKind) -> Result<Vec<ValueId>, Refusal> {
    let dilated = kind == PoolKind::Max || node.opset >= 19;
    let (x, pool, out) = windows(node, kind, dilated)?;
    Ok(vec![node.emit_as(Op::Pool(pool), &[x], out)?])
}

/// Powers summed in each window; the global form takes the whole image as one.
fn lp_pool(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (x, pool, out) = windows(node, PoolKind::Max, node.opset >= 18)?;
    let op = windowed("lp_pool", &pool).with_int("p", node.attributes.int_or("p", 2)?);
    Ok(vec![node.emit_as(Op::Named(op.into()), &[x], out)?])
}

fn global_lp_pool(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    match node.attributes.int_or("p", 2)? {
        1 => global(node, ReduceKind::L1),
        2 => global(node, ReduceKind::L2),
        other => Err(Refusal::Attribute { name: "p".into(), reason: format!("is {other}, not 1 or 2") }),
    }
}

/// The value that is pooled, its windows and the shape of the result.
fn windows(node: &Lowering<'_>, kind: PoolKind, dilated: bool) -> Result<(ValueId, Pool, Vec<usize>), Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    let shape = node.shape(x);
    let missing = || Refusal::Attribute { name: "kernel_shape".into(), reason: "is missing".into() };
    let given = node.attributes.ints("kernel_shape")?.ok_or_else(missing)?;
    if shape.len() < 3 {
        return Err(impossible_window(&shape, &[given.len()]));
    }
    let (image, rank) = (&shape[2..], shape.len() - 2);
    let kernel = spatial_sizes("kernel_shape", Some(given), rank, 1)?;
    let strides = spatial_sizes("strides", node.attributes.ints("strides")?, rank, 1)?;
    let dilations = if dilated { node.attributes.ints("dilations")? } else { None };
    let dilations = spatial_sizes("dilations", dilations, rank, 1)?;
    let explicit = spatial_sizes("pads", node.attributes.ints("pads")?, 2 * rank, 0)?;
    let ceil = node.attributes.flag("ceil_mode", false)?;
    let auto = auto_pad(node)?;
    let pads = resolve_pads(auto, &explicit, image, &kernel, &strides, &dilations)
        .ok_or_else(|| impossible_window(&shape, &kernel))?;
    // Resolved pads already give the sizes that SAME and VALID ask for.
    let ceil = ceil && auto == AutoPad::NotSet;
    let sizes = window_outputs(image, &kernel, &strides, &pads, &dilations, ceil)
        .ok_or_else(|| impossible_window(&shape, &kernel))?;
    let out = [&shape[..2], sizes.as_slice()].concat();
    Ok((x, Pool { kind, kernel, strides, pads, dilations }, out))
}

fn global(node: &mut Lowering<'_>, kind: ReduceKind) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    let rank = node.shape(x).len();
    if rank < 3 {
        return Err(Refusal::Impossible { what: "the rank", value: rank.to_string(), shape: node.shape(x) });
    }
    Ok(vec![node.emit(Op::Reduce { kind, axes: (2..rank).collect(), keep: true }, &[x])?])
}
