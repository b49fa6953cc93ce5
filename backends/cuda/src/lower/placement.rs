//! Where a value is to lie: in memory of its own, inside a concatenation, or in an output's memory.

use super::{Lowering, Outcome};
use crate::view::View;
use planforge_graph::ir::{DefUse, ElementType, Graph, Op, ValueId};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

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
    pub wholes: BTreeMap<ValueId, View>,
    /// Where values were copied to besides: one concatenation may lie inside of another.
    copies: BTreeMap<ValueId, Vec<View>>,
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
        placement.parts.extend(runs(graph, uses));
        placement
    }

    pub fn is_image(&self, id: ValueId) -> bool {
        self.images.contains(&id)
    }
}

/// A concatenation.
struct Whole<'a> {
    result: ValueId,
    axis: usize,
    inputs: &'a [Option<ValueId>],
}

impl Whole<'_> {
    /// How far its first parts go, where their shapes are known.
    fn length(&self, graph: &Graph, parts: usize) -> Option<u64> {
        self.inputs[..parts].iter().map(|id| Some(graph.static_shape((*id)?)?[self.axis] as u64)).sum()
    }
}

/// Concatenations of what a longer one holds one behind the other, as blocks of a DenseNet have many: each is where it lies
/// in the longest, so that nothing is copied from one to the next.
fn runs(graph: &Graph, uses: &DefUse) -> BTreeMap<ValueId, (ValueId, usize, u64)> {
    let mut wholes = Vec::new();
    for node in &graph.nodes {
        // What the graph gives lies as its caller wants it.
        if let Op::Concat { axis } = node.op
            && !uses.is_output[node.outputs[0].index()]
        {
            wholes.push(Whole { result: node.outputs[0], axis, inputs: &node.inputs });
        }
    }
    wholes.sort_by_key(|whole| Reverse(whole.inputs.len()));
    // Where each value is a part, of the longest first.
    let mut places: BTreeMap<ValueId, Vec<(&Whole<'_>, usize)>> = BTreeMap::new();
    for whole in &wholes {
        for (at, id) in whole.inputs.iter().enumerate() {
            if let Some(id) = id {
                places.entry(*id).or_default().push((whole, at));
            }
        }
    }
    let place_of = |run: &Whole<'_>| {
        let first = run.inputs.first().copied().flatten()?;
        let holds =
            |(whole, at): &&(&Whole<'_>, usize)| whole.axis == run.axis && whole.inputs[*at..].starts_with(run.inputs);
        let &(whole, at) = places.get(&first)?.iter().find(holds)?;
        let all = whole.length(graph, whole.inputs.len())?;
        (all > run.length(graph, run.inputs.len())?).then_some(())?;
        Some((run.result, (whole.result, whole.axis, whole.length(graph, at)?)))
    };
    wholes.iter().filter_map(place_of).collect()
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

    /// Sees to it that `id` lies in `part` of a concatenation, too.
    pub(super) fn lay(&mut self, id: ValueId, part: View, origins: &[String]) -> Outcome<()> {
        let have = self.view(id)?;
        let copies = self.placement.copies.get(&id).into_iter().flatten();
        if copies.chain([&have]).any(|there| there.is_same(&part)) {
            return Ok(());
        }
        self.copy(&have, &part, origins)?;
        self.placement.copies.entry(id).or_default().push(part);
        Ok(())
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
