//! Attention over operands that lie in strides: parts of wider ones are not copied for it.

use super::{
    super::program::{AttentionSizes, BufferId, HeadRows, StepKind},
    Lowered, Lowering, strides_of,
};
use planforge_graph::ir::{Attention, Node, Op, ValueId};

/// An operand (B, rows, heads columns), perhaps a part of a wider one.
struct Operand {
    buffer: BufferId,
    /// First element.
    offset: usize,
    /// From one row to the next.
    stride: usize,
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
                self.placed[output.index()].part = Some((x, starts));
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
        self.placed[output.index()].part = Some((x, starts.to_vec()));
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
        if let (None, Some((source, starts))) = (self.placed[id.index()].row, self.placed[id.index()].part.clone()) {
            let whole = self.shape(source)?;
            let offset = starts.iter().zip(strides_of(&whole)).map(|(start, stride)| start * stride).sum();
            return Ok(Operand { buffer: self.row(source)?, offset, stride: whole[2] });
        }
        Ok(Operand { buffer: self.row(id)?, offset: 0, stride: shape[2] })
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
        let (depth, value_depth) = (width / heads, v_width / heads);
        let (q, k, v) = (self.operand(q)?, self.operand(k)?, self.operand(v)?);
        let mask_strides = match node.input(3) {
            Some(mask) => mask_strides(&[batch, heads, queries, keys], &self.shape(mask)?),
            None => [0; 4],
        };
        let mask = node.input(3).map(|mask| self.row(mask)).transpose()?;
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        let rows = |of: &Operand| HeadRows { offset: of.offset, stride: of.stride };
        let kind = StepKind::Attention {
            sizes: AttentionSizes {
                batch,
                heads,
                queries,
                keys,
                depth,
                value_depth,
                scale: attention.scale,
                guarded: attention.guarded,
            },
            queries: rows(&q),
            keys: rows(&k),
            values: rows(&v),
            mask: mask_strides,
        };
        let mut inputs = vec![Some(q.buffer), Some(k.buffer), Some(v.buffer)];
        inputs.extend(mask.map(Some));
        self.emit(&node.origins, kind, inputs, vec![to]);
        Ok(true)
    }
}

/// Strides of a mask that is aligned with the scores at the right and repeats where its size is one.
fn mask_strides(scores: &[usize; 4], mask: &[usize]) -> [usize; 4] {
    let strides = aligned_strides(scores, mask);
    std::array::from_fn(|axis| strides[axis])
}

/// The same for scores of any axes.
pub(super) fn aligned_strides(scores: &[usize], mask: &[usize]) -> Vec<usize> {
    let strides = strides_of(mask);
    let of = |axis: usize| match (axis + mask.len()).checked_sub(scores.len()) {
        Some(own) if mask[own] != 1 => strides[own],
        _ => 0,
    };
    (0..scores.len()).map(of).collect()
}
