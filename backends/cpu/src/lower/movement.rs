//! Operators that only move elements: their results lie in other strides of a buffer that is there, or one step copies
//! them.

use super::{
    super::program::{BufferId, MoveAxis, MovePart, StepKind},
    Lowered, Lowering, strides_of,
};
use planforge_graph::{
    ir::{Node, Op, Resize, ValueId},
    reference::resize,
};

/// Strides of (batch, channels, ...) in a buffer with channels innermost.
fn image_strides(shape: &[usize]) -> Vec<usize> {
    let moved: Vec<usize> = [shape[0]].into_iter().chain(shape[2..].iter().copied()).chain([shape[1]]).collect();
    let strides = strides_of(&moved);
    let channels = strides[moved.len() - 1];
    [strides[0], channels].into_iter().chain(strides[1..moved.len() - 1].iter().copied()).collect()
}

fn axes(sizes: &[usize], from: &[usize], to: &[usize]) -> Vec<MoveAxis> {
    let axes = sizes.iter().zip(from).zip(to);
    axes.map(|((&size, &from), &to)| MoveAxis { size, from, to }).collect()
}

impl Lowering<'_> {
    /// Buffer and strides of `id`, image or not, without moving it.
    fn lies(&mut self, id: ValueId) -> Lowered<(BufferId, Vec<usize>)> {
        let placed = &self.placed[id.index()];
        match (placed.row, placed.image) {
            (None, Some(image)) => Ok((image, image_strides(&self.shape(id)?))),
            _ => self.view(id),
        }
    }

    /// Whether elements of `id` are of a width that can be copied in strides, and there are any.
    fn moves(&self, id: ValueId) -> Lowered<bool> {
        let bytes = self.graph.value(id).element.bytes();
        Ok(matches!(bytes, 1 | 2 | 4 | 8) && !self.shape(id)?.contains(&0))
    }

    /// A buffer for `id`, as an image or as the model has it, and its strides.
    fn destination(&mut self, id: ValueId, as_image: bool) -> Lowered<(BufferId, Vec<usize>)> {
        let shape = self.shape(id)?;
        let buffer = self.temporary(id, if as_image { " (NHWC)" } else { "" })?;
        let placed = &mut self.placed[id.index()];
        *(if as_image { &mut placed.image } else { &mut placed.row }) = Some(buffer);
        Ok((buffer, if as_image { image_strides(&shape) } else { strides_of(&shape) }))
    }

    /// Copies what lies in strides, its first element at `first`, to the layout of the model.
    pub(super) fn copied(&mut self, id: ValueId, from: BufferId, first: usize, strides: &[usize]) -> Lowered<BufferId> {
        let shape = self.shape(id)?;
        let buffer = self.temporary(id, "")?;
        let part = MovePart { input: 0, from: first, to: 0, axes: axes(&shape, strides, &strides_of(&shape)) };
        let kind = StepKind::Move { element_bytes: self.graph.value(id).element.bytes(), parts: vec![part] };
        let origins = match self.uses.definition[id.index()] {
            Some(node) => self.graph.nodes[node].origins.clone(),
            None => self.layout_origin(id, "copied"),
        };
        self.emit(&origins, kind, vec![Some(from)], vec![buffer]);
        Ok(buffer)
    }

    /// A reshape that only splits axes of an image, and a transpose that alone reads it and has channels innermost
    /// again (as detection heads do): the image itself, in strides.
    pub(super) fn split_axes(&mut self, node: &Node) -> Lowered<bool> {
        let output = node.outputs[0];
        let Some(x) = node.input(0).filter(|&x| self.is_image(x)) else { return Ok(false) };
        let Some(Op::Transpose { perm }) = self.uses.sole_use(output).map(|user| &self.graph.nodes[user].op) else {
            return Ok(false);
        };
        let last = perm.last().copied();
        let (from, to) = (self.shape(x)?, self.shape(output)?);
        let Some(image) = self.placed[x.index()].image else { return Ok(false) };
        let mut strides = Vec::with_capacity(to.len());
        let mut sizes = to.iter().copied();
        for (size, stride) in from.iter().copied().zip(image_strides(&from)) {
            let mut own = Vec::new();
            let mut product = 1;
            while product < size {
                let Some(next) = sizes.next() else { return Ok(false) };
                product *= next;
                own.push(next);
            }
            if product != size {
                return Ok(false);
            }
            strides.extend(strides_of(&own).into_iter().map(|inner| inner * stride));
        }
        if sizes.any(|size| size != 1) {
            return Ok(false);
        }
        strides.resize(to.len(), 0);
        if last.is_none_or(|axis| strides[axis] != 1) {
            return Ok(false);
        }
        self.placed[output.index()].strided = Some((image, strides));
        Ok(true)
    }

    pub(super) fn concat(&mut self, node: &Node, axis: usize) -> Lowered<bool> {
        let output = node.outputs[0];
        if !self.moves(output)? || node.inputs.iter().any(Option::is_none) {
            return Ok(false);
        }
        let given: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let as_image = given.iter().any(|&id| self.is_image(id));
        let mut parts = Vec::new();
        let mut inputs = Vec::new();
        let mut start = 0;
        let (to, to_strides) = self.destination(output, as_image)?;
        for id in given {
            let shape = self.shape(id)?;
            if shape.contains(&0) {
                continue;
            }
            let (from, strides) = self.lies(id)?;
            let axes = axes(&shape, &strides, &to_strides);
            parts.push(MovePart { input: inputs.len(), from: 0, to: start * to_strides[axis], axes });
            inputs.push(Some(from));
            start += shape[axis];
        }
        let element_bytes = self.graph.value(output).element.bytes();
        self.emit(&node.origins, StepKind::Move { element_bytes, parts }, inputs, vec![to]);
        Ok(true)
    }

    /// Copies `output` out of `x`: from these starts on, in these steps.
    pub(super) fn cut(&mut self, node: &Node, output: ValueId, starts: &[usize], steps: &[i64]) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        if !self.moves(output)? || steps.iter().any(|&step| step < 1) {
            return Ok(false);
        }
        let as_image = self.is_image(x);
        let (from, strides) = self.lies(x)?;
        let (to, to_strides) = self.destination(output, as_image)?;
        let first = starts.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
        let stepped: Vec<usize> = strides.iter().zip(steps).map(|(stride, &step)| stride * step as usize).collect();
        let part = MovePart { input: 0, from: first, to: 0, axes: axes(&self.shape(output)?, &stepped, &to_strides) };
        let kind = StepKind::Move { element_bytes: self.graph.value(output).element.bytes(), parts: vec![part] };
        self.emit(&node.origins, kind, vec![Some(from)], vec![to]);
        Ok(true)
    }

    /// Nearest resizing by whole factors: every element repeated along each axis.
    pub(super) fn resize(&mut self, node: &Node, resize: &Resize) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        let shape = self.shape(x)?;
        let Some(factors) = resize::repeats(resize, &shape, &self.shape(output)?) else { return Ok(false) };
        if !self.moves(output)? {
            return Ok(false);
        }
        let as_image = self.is_image(x);
        let (from, strides) = self.lies(x)?;
        let (to, to_strides) = self.destination(output, as_image)?;
        let mut axes = Vec::new();
        for (axis, factor) in factors.into_iter().enumerate() {
            axes.push(MoveAxis { size: shape[axis], from: strides[axis], to: to_strides[axis] * factor });
            axes.push(MoveAxis { size: factor, from: 0, to: to_strides[axis] });
        }
        let part = MovePart { input: 0, from: 0, to: 0, axes };
        let kind = StepKind::Move { element_bytes: self.graph.value(output).element.bytes(), parts: vec![part] };
        self.emit(&node.origins, kind, vec![Some(from)], vec![to]);
        Ok(true)
    }

    pub(super) fn expand(&mut self, node: &Node) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        if !self.moves(output)? {
            return Ok(false);
        }
        let (own, shape) = (self.shape(x)?, self.shape(output)?);
        let Some(missing) = shape.len().checked_sub(own.len()) else { return Ok(false) };
        let (from, strides) = self.lies(x)?;
        let (to, to_strides) = self.destination(output, false)?;
        let repeated = (0..shape.len()).map(|axis| match axis.checked_sub(missing) {
            Some(axis) if own[axis] != 1 => strides[axis],
            _ => 0,
        });
        let part =
            MovePart { input: 0, from: 0, to: 0, axes: axes(&shape, &repeated.collect::<Vec<_>>(), &to_strides) };
        let kind = StepKind::Move { element_bytes: self.graph.value(output).element.bytes(), parts: vec![part] };
        self.emit(&node.origins, kind, vec![Some(from)], vec![to]);
        Ok(true)
    }
}
