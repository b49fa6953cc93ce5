//! Operators that only move elements: their results lie in other strides of a buffer that is there, or one step copies
//! them.

use super::{
    super::{
        draft::Role,
        program::{AxisSizes, BufferId, MoveAxis, MovePart, StepKind},
    },
    Lowered, Lowering, constant, strides_of,
};
use planforge_graph::{
    ir::{Node, Op, PadMode, Resize, ValueId},
    reference::{padded_position, resize},
};

/// Strides of (batch, channels, ...) in a buffer with channels innermost.
pub(super) fn image_strides(shape: &[usize]) -> Vec<usize> {
    let moved: Vec<usize> = [shape[0]].into_iter().chain(shape[2..].iter().copied()).chain([shape[1]]).collect();
    let strides = strides_of(&moved);
    let channels = strides[moved.len() - 1];
    [strides[0], channels].into_iter().chain(strides[1..moved.len() - 1].iter().copied()).collect()
}

pub(super) fn axes(sizes: &[usize], from: &[usize], to: &[usize]) -> Vec<MoveAxis> {
    let axes = sizes.iter().zip(from).zip(to);
    axes.map(|((&size, &from), &to)| MoveAxis { size, from: from as isize, to }).collect()
}

/// Parts that a padded tensor may be copied in, at most.
const PAD_PARTS_MAX: usize = 256;

/// Some positions of an axis that are read from the input one after the other.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    to: usize,
    len: usize,
    from: usize,
    step: isize,
}

/// The positions of an axis of a padded tensor that are read from the input, in stretches.
fn stretches(mode: PadMode, begin: i64, size: usize, out: usize) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    for at in 0..out {
        let Some(from) = padded_position(mode, at as i64 - begin, size as i64) else { continue };
        let from = from as usize;
        match all.last_mut() {
            Some(last) if last.to + last.len == at && last.len == 1 => {
                last.step = from as isize - last.from as isize;
                if last.step.abs() <= 1 {
                    last.len = 2;
                } else {
                    all.push(Stretch { to: at, len: 1, from, step: 1 });
                }
            }
            Some(last)
                if last.to + last.len == at && last.from as isize + last.len as isize * last.step == from as isize =>
            {
                last.len += 1;
            }
            _ => all.push(Stretch { to: at, len: 1, from, step: 1 }),
        }
    }
    all
}

impl Lowering<'_> {
    /// Buffer and strides of `id`, image or not, without moving it.
    pub(super) fn lies(&mut self, id: ValueId) -> Lowered<(BufferId, Vec<usize>)> {
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

    /// A transpose of elements that are not of four bytes: a copy.
    pub(super) fn transposed_at_once(&mut self, node: &Node, x: ValueId, perm: &[usize]) -> Lowered<bool> {
        let output = node.outputs[0];
        let strides = match (self.placed[x.index()].row, self.placed[x.index()].image) {
            (None, Some(_)) => image_strides(&self.shape(x)?),
            _ => strides_of(&self.shape(x)?),
        };
        let from = match (self.placed[x.index()].row, self.placed[x.index()].image) {
            (None, Some(image)) => image,
            _ => self.row(x)?,
        };
        let strides: Vec<usize> = perm.iter().map(|&axis| strides[axis]).collect();
        let buffer = self.copied(output, from, 0, &strides)?;
        self.placed[output.index()].row = Some(buffer);
        Ok(true)
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
        if !self.moves(output)? {
            return Ok(false);
        }
        let as_image = self.is_image(x);
        let (from, strides) = self.lies(x)?;
        let (to, to_strides) = self.destination(output, as_image)?;
        let first = starts.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
        let shape = self.shape(output)?;
        let axis = |axis: usize| MoveAxis {
            size: shape[axis],
            from: strides[axis] as isize * steps[axis] as isize,
            to: to_strides[axis],
        };
        let part = MovePart { input: 0, from: first, to: 0, axes: (0..shape.len()).map(axis).collect() };
        let kind = StepKind::Move { element_bytes: self.graph.value(output).element.bytes(), parts: vec![part] };
        self.emit(&node.origins, kind, vec![Some(from)], vec![to]);
        Ok(true)
    }

    /// Padding of any kind: what is constant first, then each stretch of the input.
    pub(super) fn pad(&mut self, node: &Node, mode: PadMode, begins: &[i64]) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out) = (self.shape(x)?, self.shape(output)?);
        if !self.moves(output)? || shape.contains(&0) || out.iter().any(|&size| size > 1 << 20) {
            return Ok(false);
        }
        let along: Vec<Vec<Stretch>> =
            (0..shape.len()).map(|axis| stretches(mode, begins[axis], shape[axis], out[axis])).collect();
        let count = along.iter().try_fold(1usize, |count, all| count.checked_mul(all.len()));
        if count.is_none_or(|count| count > PAD_PARTS_MAX) {
            return Ok(false);
        }
        let as_image = self.is_image(x);
        let element_bytes = self.graph.value(output).element.bytes();
        let (from, strides) = self.lies(x)?;
        let (mut inputs, mut parts) = (vec![Some(from)], Vec::new());
        let fill = match (mode, node.input(1)) {
            (PadMode::Constant, Some(id)) => Some(self.row(id)?),
            (PadMode::Constant, None) => {
                let zero = vec![0u8; element_bytes];
                Some(self.draft.add_buffer("0", element_bytes as u64, Role::Constant(zero.into())))
            }
            _ => None,
        };
        let (to, to_strides) = self.destination(output, as_image)?;
        if let Some(fill) = fill {
            inputs.push(Some(fill));
            parts.push(MovePart { input: 1, from: 0, to: 0, axes: axes(&out, &vec![0; out.len()], &to_strides) });
        }
        let mut chosen = vec![0usize; shape.len()];
        for _ in 0..count.unwrap_or(0) {
            let stretch = |axis: usize| along[axis][chosen[axis]];
            let place = |strides: &[usize], of: fn(Stretch) -> usize| {
                (0..shape.len()).map(|axis| of(stretch(axis)) * strides[axis]).sum()
            };
            let axes = (0..shape.len()).map(|axis| MoveAxis {
                size: stretch(axis).len,
                from: stretch(axis).step * strides[axis] as isize,
                to: to_strides[axis],
            });
            let (from, to) = (place(&strides, |stretch| stretch.from), place(&to_strides, |stretch| stretch.to));
            parts.push(MovePart { input: 0, from, to, axes: axes.collect() });
            for axis in (0..shape.len()).rev() {
                chosen[axis] += 1;
                if chosen[axis] < along[axis].len() {
                    break;
                }
                chosen[axis] = 0;
            }
        }
        self.emit(&node.origins, StepKind::Move { element_bytes, parts }, inputs, vec![to]);
        Ok(true)
    }

    /// One copy from `x` to the output: each axis its size, and its strides among those of `x` and of the output.
    fn one_move(&mut self, node: &Node, axes: impl Fn(&[usize], &[usize]) -> Vec<MoveAxis>) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        if !self.moves(output)? {
            return Ok(false);
        }
        let as_image = self.is_image(x) && self.graph.value(x).shape.len() == self.graph.value(output).shape.len();
        let (from, strides) = self.lies(x)?;
        let (to, to_strides) = self.destination(output, as_image)?;
        let part = MovePart { input: 0, from: 0, to: 0, axes: axes(&strides, &to_strides) };
        let kind = StepKind::Move { element_bytes: self.graph.value(output).element.bytes(), parts: vec![part] };
        self.emit(&node.origins, kind, vec![Some(from)], vec![to]);
        Ok(true)
    }

    pub(super) fn tile(&mut self, node: &Node) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let (own, out) = (self.shape(x)?, self.shape(node.outputs[0])?);
        if own.contains(&0) {
            return Ok(false);
        }
        self.one_move(node, |from, to| {
            let axis = |axis: usize| {
                let repeats = MoveAxis { size: out[axis] / own[axis], from: 0, to: to[axis] * own[axis] };
                [repeats, MoveAxis { size: own[axis], from: from[axis] as isize, to: to[axis] }]
            };
            (0..own.len()).flat_map(axis).collect()
        })
    }

    /// Blocks of channels spread over pixels (`spread`), or gathered from them.
    pub(super) fn blocks(&mut self, node: &Node, block: usize, column_row: bool, spread: bool) -> Lowered<bool> {
        let (Some(x), output) = (node.input(0), node.outputs[0]) else { return Ok(false) };
        let (deep, wide) = if spread { (x, output) } else { (output, x) };
        let (deep, wide) = (self.shape(deep)?, self.shape(wide)?);
        if deep.len() != 4 || wide.len() != 4 || block == 0 {
            return Ok(false);
        }
        let (batch, depth, rows, columns) = (deep[0], wide[1], deep[2], deep[3]);
        // Channels of the deep image are (row of block, column of block, depth), or depth first.
        let [row, column, channel] = if column_row { [block, 1, block * block] } else { [block * depth, depth, 1] };
        self.one_move(node, |from, to| {
            let (deep, wide) = if spread { (from, to) } else { (to, from) };
            let sides: [(usize, usize, usize); 6] = [
                (batch, deep[0], wide[0]),
                (depth, deep[1] * channel, wide[1]),
                (rows, deep[2], wide[2] * block),
                (block, deep[1] * row, wide[2]),
                (columns, deep[3], wide[3] * block),
                (block, deep[1] * column, wide[3]),
            ];
            let axis = |(size, deep, wide): (usize, usize, usize)| {
                let (from, to) = if spread { (deep, wide) } else { (wide, deep) };
                MoveAxis { size, from: from as isize, to }
            };
            sides.into_iter().map(axis).collect()
        })
    }

    /// Axis by axis, every line a weighted sum of two.
    fn resample(&mut self, node: &Node, resize: &Resize) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out) = (self.shape(x)?, self.shape(output)?);
        if !self.is_f32(x) || shape.contains(&0) || out.contains(&0) {
            return Ok(false);
        }
        let rank = shape.len();
        let as_image = self.is_image(x);
        let order: Vec<usize> =
            if as_image { [0].into_iter().chain(2..rank).chain([1]).collect() } else { (0..rank).collect() };
        let mut from = if as_image { self.image(x)? } else { self.row(x)? };
        let mut now: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let changed: Vec<(usize, usize)> = order
            .iter()
            .copied()
            .enumerate()
            .filter(|&(_, axis)| shape[axis] != out[axis] || resize.scales[axis] != 1.0)
            .collect();
        if changed.is_empty() {
            return Ok(false);
        }
        let name = self.graph.value(output).name.clone();
        for (index, &(at, axis)) in changed.iter().enumerate() {
            let taps = resize::taps(resize, axis, shape[axis], out[axis]);
            let two = taps.iter().any(|(.., weight)| *weight != 0.0);
            let (mut lines, mut weights) = (Vec::new(), Vec::new());
            for (low, high, weight) in taps {
                lines.push(low as i32);
                weights.push(if two { (1.0 - weight) as f32 } else { 1.0 });
                if two {
                    lines.push(high as i32);
                    weights.push(weight as f32);
                }
            }
            let product = |sizes: &[usize]| sizes.iter().product();
            let sizes = AxisSizes { outer: product(&now[..at]), size: now[at], inner: product(&now[at + 1..]) };
            now[at] = out[axis];
            let last = index + 1 == changed.len();
            let bytes = 4 * now.iter().product::<usize>() as u64;
            let to = match last {
                true => self.destination(output, as_image)?.0,
                false => self.draft.add_buffer(format!("{name} (axis {axis})"), bytes, Role::Temporary),
            };
            let raw: Vec<u8> = lines.iter().flat_map(|line| line.to_le_bytes()).collect();
            let given = self.draft.add_buffer(format!("{name} (lines)"), raw.len() as u64, Role::Constant(raw.into()));
            let by = self.draft.add_buffer(format!("{name} (weights)"), (weights.len() * 4) as u64, constant(&weights));
            let kind = StepKind::Resample { sizes, taps: if two { 2 } else { 1 } };
            self.emit(&node.origins, kind, vec![Some(from), Some(given), Some(by)], vec![to]);
            from = to;
        }
        Ok(true)
    }

    /// Nearest resizing by whole factors: every element repeated along each axis. Other resizing axis by axis.
    pub(super) fn resize(&mut self, node: &Node, resize: &Resize) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        let shape = self.shape(x)?;
        let Some(factors) = resize::repeats(resize, &shape, &self.shape(output)?) else {
            return self.resample(node, resize);
        };
        if !self.moves(output)? {
            return Ok(false);
        }
        let as_image = self.is_image(x);
        let (from, strides) = self.lies(x)?;
        let (to, to_strides) = self.destination(output, as_image)?;
        let mut axes = Vec::new();
        for (axis, factor) in factors.into_iter().enumerate() {
            axes.push(MoveAxis { size: shape[axis], from: strides[axis] as isize, to: to_strides[axis] * factor });
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
