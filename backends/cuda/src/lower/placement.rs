//! Where a value is to lie: in memory of its own, inside a concatenation, or in an output's memory.

use super::{Lowering, Outcome};
use crate::view::View;
use planforge_graph::ir::{DefUse, ElementType, Graph, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Decided before any step exists.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// Values that lie with their channels last.
    images: BTreeSet<ValueId>,
    /// A part of a concatenation: its result, the axis, and where the part begins.
    parts: BTreeMap<ValueId, (ValueId, usize, u64)>,
    /// Values that only a reshape reads: what it makes of them.
    reshaped: BTreeMap<ValueId, ValueId>,
    /// Memory of the graph's outputs, by value.
    pub outputs: BTreeMap<ValueId, View>,
    /// Concatenations whose memory exists already.
    wholes: BTreeMap<ValueId, View>,
}

impl Placement {
    pub fn of(graph: &Graph, uses: &DefUse) -> Self {
        let mut placement = Self { images: images(graph), ..Self::default() };
        for node in &graph.nodes {
            match &node.op {
                Op::Concat { axis } => {
                    let mut at = 0;
                    for id in node.inputs.iter().flatten() {
                        let Some(shape) = graph.static_shape(*id) else { break };
                        let repeated = node.inputs.iter().flatten().filter(|other| *other == id).count() > 1;
                        let computed = uses.definition[id.index()].is_some() && graph.constant(*id).is_none();
                        if computed && !repeated && !uses.is_output[id.index()] {
                            placement.parts.entry(*id).or_insert((node.outputs[0], *axis, at));
                        }
                        at += shape[*axis] as u64;
                    }
                }
                Op::Reshape => {
                    if let Some(id) = node.input(0).filter(|id| uses.sole_use(*id).is_some()) {
                        placement.reshaped.insert(id, node.outputs[0]);
                    }
                }
                _ => {}
            }
        }
        placement
    }

    pub fn is_image(&self, id: ValueId) -> bool {
        self.images.contains(&id)
    }
}

/// Images: what convolutions and pools make, and what element-wise operators, concatenations and splits make of those.
fn images(graph: &Graph) -> BTreeSet<ValueId> {
    let mut images = BTreeSet::new();
    for node in &graph.nodes {
        let from_image = || node.inputs.iter().flatten().any(|id| images.contains(id));
        let is_image = match &node.op {
            Op::Conv(_) | Op::ConvTranspose(_) | Op::Pool(_) | Op::Resize(_) => true,
            Op::Unary(_)
            | Op::Activation(_)
            | Op::Binary(_)
            | Op::Where
            | Op::Cast { .. }
            | Op::BatchNorm { .. }
            | Op::Concat { .. }
            | Op::Reduce { .. }
            | Op::Split { .. }
            | Op::Slice { .. }
            | Op::Pad { .. } => from_image(),
            _ => false,
        };
        if is_image {
            images.extend(node.outputs.iter().copied().filter(|&id| {
                let value = graph.value(id);
                value.shape.len() == 4
                    && matches!(value.element, ElementType::F32 | ElementType::F16 | ElementType::Bf16)
            }));
        }
    }
    images
}

impl Lowering<'_> {
    /// Where a step should write `id`: for results that may lie anywhere and be of any float type.
    pub(super) fn place(&mut self, id: ValueId) -> Outcome<View> {
        match self.target(id)? {
            Some(view) => Ok(view),
            None => self.fresh(id),
        }
    }

    /// Where a library should write `id`: like [`Lowering::place`], but only what is stored as the engine's floats.
    pub(super) fn place_strictly(&mut self, id: ValueId, fits: impl Fn(&View) -> bool) -> Outcome<View> {
        let kind = self.kind(id);
        match self.target(id)?.filter(|view| view.kind == kind && fits(view)) {
            Some(view) => Ok(view),
            None => self.fresh(id),
        }
    }

    /// Memory that something else wants `id` in.
    fn target(&mut self, id: ValueId) -> Outcome<Option<View>> {
        if let Some(&(whole, axis, start)) = self.placement.parts.get(&id) {
            let length = self.dims(id)?[axis];
            return Ok(Some(self.whole(whole)?.slice(axis, start, length)));
        }
        if let Some(view) = self.placement.outputs.get(&id).filter(|_| self.uses.uses[id.index()].is_empty()) {
            return Ok(Some(view.clone()));
        }
        if let Some(&result) = self.placement.reshaped.get(&id) {
            let dims = self.dims(id)?;
            return Ok(self.target(result)?.and_then(|view| view.reshaped(&dims)));
        }
        Ok(None)
    }

    /// The memory of a concatenation's result, made when its first part is written.
    pub(super) fn whole(&mut self, id: ValueId) -> Outcome<View> {
        if let Some(view) = self.placement.wholes.get(&id) {
            return Ok(view.clone());
        }
        let view = self.place(id)?;
        self.placement.wholes.insert(id, view.clone());
        Ok(view)
    }
}
