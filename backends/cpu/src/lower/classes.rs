//! Labels and probabilities from scores.

use super::{Lowered, Lowering};
use crate::{program::StepKind, steps};
use planforge_graph::ir::{NamedOp, Node};

impl Lowering<'_> {
    /// Scores of f32 by a rule that has a kernel, with constant base values or none.
    pub(super) fn classes(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let (Some(scores), None) = (node.input(0), node.input(1)) else { return Ok(false) };
        let base = node.input(2);
        let shape = self.shape(scores)?;
        let constant = base.is_none_or(|id| self.constant_f32(id).is_some());
        let count = base.map_or(Ok(0), |id| self.shape(id).map(|shape| shape.iter().product()))?;
        let known = steps::class_rule(named, shape[1], count).is_some();
        if !self.is_f32(scores) || !constant || !known || shape.contains(&0) {
            return Ok(false);
        }
        let mut inputs = vec![Some(self.row(scores)?)];
        if let Some(base) = base {
            inputs.push(Some(self.row(base)?));
        }
        let mut outputs = Vec::new();
        for &id in &node.outputs {
            let buffer = self.temporary(id, "")?;
            self.placed[id.index()].row = Some(buffer);
            outputs.push(buffer);
        }
        let kind = StepKind::Classes { op: named.clone(), rows: shape[0], columns: shape[1] };
        self.emit(&node.origins, kind, inputs, outputs);
        Ok(true)
    }
}
