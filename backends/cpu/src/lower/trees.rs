//! Ensembles of trees.

use super::{Lowered, Lowering};
use crate::program::{StepKind, TreeAggregate, TreeSizes};
use planforge_graph::ir::{ElementType, NamedOp, Node, ValueId};

impl Lowering<'_> {
    /// Rows through constant trees, where nobody asks which scores were given.
    pub(super) fn trees(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let ids: Option<Vec<ValueId>> = (0..6).map(|position| node.input(position)).collect();
        let Some(ids) = ids.filter(|_| node.outputs.len() == 1) else { return Ok(false) };
        let is_list = |(id, element): (&ValueId, ElementType)| {
            self.graph.constant(*id).is_some_and(|constant| constant.element() == element && !constant.is_empty())
        };
        let aggregate = match named.text("aggregate") {
            "SUM" => TreeAggregate::Sum,
            "AVERAGE" => TreeAggregate::Average,
            "MIN" => TreeAggregate::Min,
            "MAX" => TreeAggregate::Max,
            _ => return Ok(false),
        };
        let element = self.graph.value(ids[0]).element;
        let lists = [ElementType::I32, ElementType::I32, element, ElementType::I32, element];
        let is_known = matches!(element, ElementType::F32 | ElementType::F64);
        if !is_known || !ids[1..].iter().zip(lists).all(is_list) {
            return Ok(false);
        }
        let (x, out) = (self.shape(ids[0])?, self.shape(node.outputs[0])?);
        if x.contains(&0) || out.contains(&0) {
            return Ok(false);
        }
        let count = |position: usize| self.shape(ids[position]).map(|shape| shape[0]);
        let sizes = TreeSizes {
            rows: x[0],
            features: x[1],
            targets: out[1],
            trees: count(1)?,
            nodes: count(2)?,
            weights: count(5)?,
            element,
            aggregate,
        };
        let inputs = ids.iter().map(|&id| self.row(id).map(Some)).collect::<Lowered<Vec<_>>>()?;
        let to = self.temporary(node.outputs[0], "")?;
        self.placed[node.outputs[0].index()].row = Some(to);
        self.emit(&node.origins, StepKind::Trees(sizes), inputs, vec![to]);
        Ok(true)
    }
}
