//! Attention as two batches of products with a softmax between them, over operands that lie in strides.

use super::{
    super::{
        draft::Role,
        program::{BufferId, MatrixStrides, PairAxis, PairFunction, StepKind},
    },
    Lowered, Lowering, strides_of,
};
use crate::ir::{Attention, Node, Op, ValueId};

/// An operand (B, rows, heads columns), perhaps a part of a wider one.
struct Operand {
    buffer: BufferId,
    /// First element.
    offset: usize,
    /// From one row to the next.
    stride: usize,
    rows: usize,
}

impl Operand {
    fn at(&self, image: usize, column: usize) -> usize {
        self.offset + image * self.rows * self.stride + column
    }
}

impl Lowering<'_> {
    /// Notes parts of a value that only attention reads as such; others are copied.
    pub(super) fn split(&mut self, node: &Node, axis: usize) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let parts = node.outputs.iter().all(|&output| self.stays_part(x, output, axis));
        let mut start = 0;
        for &output in &node.outputs {
            let shape = self.shape(output)?;
            let mut starts = vec![0; shape.len()];
            starts[axis] = start;
            start += shape[axis];
            if parts {
                self.held[output.index()].part = Some((x, starts));
            } else if !self.cut(node, output, &starts, &vec![1; shape.len()])? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn slice(&mut self, node: &Node, starts: &[usize], steps: &[i64]) -> Lowered<bool> {
        let output = node.outputs[0];
        let (Some(x), Some(axis)) = (node.input(0), starts.len().checked_sub(1)) else { return Ok(false) };
        let lead = self.shape(x)?[..axis] == self.shape(output)?[..axis];
        if !lead || steps.iter().any(|&step| step != 1) || !self.stays_part(x, output, axis) {
            return self.cut(node, output, starts, steps);
        }
        self.held[output.index()].part = Some((x, starts.to_vec()));
        Ok(true)
    }

    /// Whether `output` is some columns of `x` that attention alone reads, and not as its mask.
    fn stays_part(&self, x: ValueId, output: ValueId, axis: usize) -> bool {
        let rank = self.graph.value(x).shape.len();
        let reads = |&at: &usize| {
            let node = &self.graph.nodes[at];
            matches!(node.op, Op::Attention(_)) && node.input(3) != Some(output)
        };
        rank == 3
            && axis == 2
            && self.is_f32(x)
            && !self.graph.constants.contains_key(&x)
            && !self.uses.is_output[output.index()]
            && self.uses.uses[output.index()].iter().all(reads)
    }

    fn operand(&mut self, id: ValueId) -> Lowered<Operand> {
        let shape = self.shape(id)?;
        if let (None, Some((source, starts))) = (self.held[id.index()].row, self.held[id.index()].part.clone()) {
            let whole = self.shape(source)?;
            let offset = starts.iter().zip(strides_of(&whole)).map(|(start, stride)| start * stride).sum();
            return Ok(Operand { buffer: self.row(source)?, offset, stride: whole[2], rows: whole[1] });
        }
        Ok(Operand { buffer: self.row(id)?, offset: 0, stride: shape[2], rows: shape[1] })
    }

    pub(super) fn attention(&mut self, node: &Node, attention: &Attention) -> Lowered<bool> {
        let (Some(q), Some(k), Some(v)) = (node.input(0), node.input(1), node.input(2)) else { return Ok(false) };
        let output = node.outputs[0];
        let (q_shape, v_shape) = (self.shape(q)?, self.shape(v)?);
        let ([batch, queries, width], [_, keys, v_width]) = (&q_shape[..], &v_shape[..]) else { return Ok(false) };
        let (batch, queries, keys, heads) = (*batch, *queries, *keys, attention.heads);
        let mask_is_f32 = node.input(3).is_none_or(|mask| self.is_f32(mask));
        if ![q, k, v].iter().all(|&id| self.is_f32(id)) || !mask_is_f32 || q_shape.contains(&0) || v_shape.contains(&0)
        {
            return Ok(false);
        }
        let (depth, v_depth) = (width / heads, v_width / heads);
        let (q, k, v) = (self.operand(q)?, self.operand(k)?, self.operand(v)?);
        let scores_bytes = (batch * heads * queries * keys * 4) as u64;
        let name = self.graph.value(output).name.clone();
        let mut temporary =
            |what: &str| self.draft.add_buffer(format!("{name} ({what})"), scores_bytes, Role::Temporary);
        let (mut scores, weights) = (temporary("scores"), temporary("weights"));
        let pairs: Vec<(usize, usize)> =
            (0..batch).flat_map(|image| (0..heads).map(move |head| (image, head))).collect();
        let square = |image: usize, head: usize| (image * heads + head) * queries * keys;
        let kind = StepKind::BatchGemm {
            rows: queries,
            columns: keys,
            depth,
            alpha: attention.scale,
            activation: None,
            a: MatrixStrides { row: q.stride, column: 1 },
            b: MatrixStrides { row: 1, column: k.stride },
            c_row: keys,
            items: pairs
                .iter()
                .map(|&(image, head)| [q.at(image, head * depth), k.at(image, head * depth), square(image, head)])
                .collect(),
        };
        self.emit(&node.origins, kind, vec![Some(q.buffer), Some(k.buffer)], vec![scores]);
        if let Some(mask) = node.input(3) {
            let axes = mask_axes(&[batch, heads, queries, keys], &self.shape(mask)?);
            let mask = self.row(mask)?;
            let masked = self.draft.add_buffer(format!("{name} (masked scores)"), scores_bytes, Role::Temporary);
            let kind = StepKind::Pair { function: PairFunction::Add, axes };
            self.emit(&node.origins, kind, vec![Some(scores), Some(mask)], vec![masked]);
            scores = masked;
        }
        let softmax = StepKind::Softmax { columns: keys, guarded: attention.guarded };
        self.emit(&node.origins, softmax, vec![Some(scores)], vec![weights]);
        let to = self.temporary(output, "")?;
        self.held[output.index()].row = Some(to);
        let kind = StepKind::BatchGemm {
            rows: queries,
            columns: v_depth,
            depth: keys,
            alpha: 1.0,
            activation: None,
            a: MatrixStrides { row: keys, column: 1 },
            b: MatrixStrides { row: v.stride, column: 1 },
            c_row: *v_width,
            items: pairs
                .iter()
                .map(|&(image, head)| {
                    let place = image * queries * v_width + head * v_depth;
                    [square(image, head), v.at(image, head * v_depth), place]
                })
                .collect(),
        };
        self.emit(&node.origins, kind, vec![Some(weights), Some(v.buffer)], vec![to]);
        Ok(true)
    }
}

/// Axes of scores in one piece and a mask that repeats over some of them, as few as possible.
fn mask_axes(scores: &[usize; 4], mask: &[usize]) -> Vec<PairAxis> {
    let aligned: Vec<usize> = vec![1; 4 - mask.len()].into_iter().chain(mask.iter().copied()).collect();
    let (own, other) = (strides_of(scores), strides_of(&aligned));
    let mut axes: Vec<PairAxis> = Vec::new();
    for axis in (0..4).filter(|&axis| scores[axis] != 1) {
        let repeated = if aligned[axis] == 1 { 0 } else { other[axis] };
        let next = PairAxis { size: scores[axis], a: own[axis], b: repeated };
        match axes.last_mut() {
            Some(last) if last.a == next.a * next.size && last.b == next.b * next.size => {
                *last = PairAxis { size: last.size * next.size, ..next };
            }
            _ => axes.push(next),
        }
    }
    axes
}
