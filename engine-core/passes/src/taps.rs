//! Drops what a convolution's kernel multiplies with padding alone.
//!
//! Before: `x (6 by 6) -> Conv (3 by 3, 12 apart, padded by 12)`. After: `x -> Conv (1 by 1)`: wherever the kernel
//! stands, all its taps but the middle one lie outside of the image. So it is with the wide kernels of segmentation over
//! small images, and with kernels of five by five over two by two.
//!
//! The weights must be constants, and those that go finite: the product of zero and infinity is none.

use planforge_graph::{
    ir::{Conv, Graph, Node, Op, Tensor},
    shape::is_float,
};
use std::ops::RangeInclusive;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    for at in 0..graph.nodes.len() {
        let Some((conv, weights)) = trimmed(graph, &graph.nodes[at]) else { continue };
        let name = format!("{}/live taps", graph.value(graph.nodes[at].outputs[0]).name);
        let weights = graph.add_constant(name, weights);
        let node = &mut graph.nodes[at];
        changes.push(format!("taps of {}", node.origins.join(" + ")));
        node.op = Op::Conv(conv);
        node.inputs[1] = Some(weights);
    }
}

/// The convolution without its outer taps that meet nothing but padding; `None` where there are none.
fn trimmed(graph: &Graph, node: &Node) -> Option<(Conv, Tensor)> {
    let Op::Conv(conv) = &node.op else { return None };
    let weights = graph.constant(node.input(1)?).filter(|weights| is_float(weights.element()))?;
    let (image, made) = (graph.static_shape(node.input(0)?)?, graph.static_shape(node.outputs[0])?);
    let kernel = weights.shape().get(2..)?;
    let mut trimmed = conv.clone();
    let mut live = Vec::with_capacity(kernel.len());
    for (axis, &taps) in kernel.iter().enumerate() {
        let end = kernel.len() + axis;
        let (stride, apart) = (conv.strides[axis], conv.dilations[axis]);
        let (begin_pad, end_pad) = (conv.pads[axis], conv.pads[end]);
        let range = live_taps(taps, |tap| {
            let inside =
                |place: usize| (begin_pad..begin_pad + image[2 + axis]).contains(&(place * stride + tap * apart));
            (0..made[2 + axis]).any(inside)
        })?;
        // What goes takes its own padding along; no tap goes that stands on more.
        let first = (*range.start()).min(begin_pad / apart);
        let last = (*range.end()).max((taps - 1).saturating_sub(end_pad / apart));
        trimmed.pads[axis] -= first * apart;
        let reach = (made[2 + axis].max(1) - 1) * stride + (last - first) * apart + 1;
        trimmed.pads[end] = reach.saturating_sub(image[2 + axis] + trimmed.pads[axis]).min(end_pad);
        if first == last {
            trimmed.dilations[axis] = 1;
        }
        live.push(first..=last);
    }
    let is_whole = live.iter().zip(kernel).all(|(live, &taps)| live.clone().count() == taps);
    if is_whole {
        return None;
    }
    Some((trimmed, part(weights, &live)?))
}

/// From the first to the last tap that is live; `None` where none is.
fn live_taps(taps: usize, is_live: impl Fn(usize) -> bool) -> Option<RangeInclusive<usize>> {
    let first = (0..taps).find(|&tap| is_live(tap))?;
    let last = (first..taps).rev().find(|&tap| is_live(tap))?;
    Some(first..=last)
}

/// The weights of the taps that are `live` along each axis; `None` where one of the others is not finite.
fn part(weights: &Tensor, live: &[RangeInclusive<usize>]) -> Option<Tensor> {
    let shape = weights.shape();
    let (kernel, size) = (&shape[2..], weights.element().bytes());
    let area: usize = kernel.iter().product();
    let is_live: Vec<bool> = (0..area)
        .map(|tap| {
            let mut rest = tap;
            kernel.iter().zip(live).rev().all(|(&taps, live)| {
                let place = rest % taps;
                rest /= taps;
                live.contains(&place)
            })
        })
        .collect();
    let taps = || is_live.iter().cycle();
    if weights.to_f64s().iter().zip(taps()).any(|(value, is_live)| !is_live && !value.is_finite()) {
        return None;
    }
    let kept = weights.bytes().chunks_exact(size).zip(taps()).filter(|(_, is_live)| **is_live);
    let bytes: Vec<u8> = kept.flat_map(|(value, _)| value.iter().copied()).collect();
    let shape: Vec<usize> = shape[..2].iter().copied().chain(live.iter().map(|live| live.clone().count())).collect();
    Tensor::new(weights.element(), shape, bytes.into()).ok()
}
