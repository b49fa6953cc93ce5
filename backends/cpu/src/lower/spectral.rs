//! Fourier transforms by their fast form.

use super::{
    super::program::{BufferId, FourierLines, StepKind},
    Lowered, Lowering,
};
use planforge_graph::ir::{NamedOp, Node};

impl Lowering<'_> {
    pub(super) fn dft(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let (shape, out) = (self.shape(x)?, self.shape(node.outputs[0])?);
        let (axis, length) = (named.size("axis"), named.size("length"));
        let (inverse, onesided) = (named.flag("inverse"), named.flag("onesided"));
        let [lead @ .., parts] = shape.as_slice() else { return Ok(false) };
        let mirrored = inverse && onesided;
        if !self.is_f32(x) || shape.contains(&0) || out.contains(&0) || mirrored && *parts == 1 {
            return Ok(false);
        }
        let out_parts = out[shape.len() - 1];
        let inner: usize = lead[axis + 1..].iter().product();
        let lines = FourierLines {
            count: [lead[..axis].iter().product(), inner],
            from: [shape[axis] * inner * parts, *parts],
            to: [out[axis] * inner * out_parts, out_parts],
            from_step: inner * parts,
            to_step: inner * out_parts,
            given: shape[axis].min(length),
            from_complex: *parts == 2,
            to_complex: out_parts == 2,
            bins: out[axis],
            mirrored,
        };
        let from = self.row(x)?;
        self.fourier(node, vec![Some(from)], StepKind::Fourier { length, inverse, lines })
    }

    pub(super) fn stft(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let (shape, out) = (self.shape(x)?, self.shape(node.outputs[0])?);
        let (step, length) = (named.size("step"), named.size("length"));
        let parts = shape.get(2).copied().unwrap_or(1);
        let floats = [Some(x), node.input(1)].into_iter().flatten().all(|id| self.is_f32(id));
        if !floats || shape.contains(&0) || out.contains(&0) {
            return Ok(false);
        }
        let [_, frames, bins, _] = out[..] else { return Ok(false) };
        let lines = FourierLines {
            count: [shape[0], frames],
            from: [shape[1] * parts, step * parts],
            to: [frames * bins * 2, bins * 2],
            from_step: parts,
            to_step: 2,
            given: length,
            from_complex: parts == 2,
            to_complex: true,
            bins,
            mirrored: false,
        };
        let mut inputs = vec![Some(self.row(x)?)];
        if let Some(window) = node.input(1) {
            inputs.push(Some(self.row(window)?));
        }
        self.fourier(node, inputs, StepKind::Fourier { length, inverse: false, lines })
    }

    fn fourier(&mut self, node: &Node, inputs: Vec<Option<BufferId>>, kind: StepKind) -> Lowered<bool> {
        let output = node.outputs[0];
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        self.emit(&node.origins, kind, inputs, vec![to]);
        Ok(true)
    }
}
