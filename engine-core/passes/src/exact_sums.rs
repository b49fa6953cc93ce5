//! Computes products of small integers in f32 where every sum is exact there, for backends whose products are of f32.
//!
//! Before: `x: u8 -> Cast(f64) -> Sub(zero) -> Conv(w: f64, integers)`, as quantized operators are read.
//! After: `.. -> Cast(f32) -> Conv(w: f32) -> Cast(f64)`.
//!
//! A sum is exact while no partial one reaches 2^24: the largest operand times the sum of the weights' magnitudes stays
//! below, per column where the weights are constants. What is longer is cut along its depth, the parts added as they were.

use planforge_graph::ir::{Binary, DefUse, ElementType, Graph, MatMul, Node, Op, Tensor, ValueId};

/// Below this, integers are exact in f32.
const EXACT: f64 = 16_777_216.0;
/// Parts that a product may be cut into.
const PARTS_MAX: usize = 64;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let nodes = std::mem::take(&mut graph.nodes);
    let narrow: Vec<Option<usize>> = nodes.iter().map(|node| parts(graph, &nodes, &found, node)).collect();
    for (node, parts) in nodes.into_iter().zip(narrow) {
        match parts {
            Some(parts) => {
                changes.push(node.origins.join(" + "));
                narrowed(graph, node, parts);
            }
            None => graph.nodes.push(node),
        }
    }
}

/// The largest magnitude of a value that holds whole numbers alone.
fn bound(graph: &Graph, nodes: &[Node], found: &DefUse, id: ValueId, depth: usize) -> Option<f64> {
    match graph.value(id).element {
        ElementType::U8 => return Some(255.0),
        ElementType::I8 => return Some(128.0),
        ElementType::Bool => return Some(1.0),
        _ => {}
    }
    if let Some(tensor) = graph.constant(id) {
        let values = tensor.to_f64s();
        let whole = values.iter().all(|value| value.fract() == 0.0);
        return whole.then(|| values.iter().fold(0.0, |top, value| f64::max(top, value.abs())));
    }
    let node = &nodes[found.definition[id.index()]?];
    let depth = depth.checked_sub(1)?;
    let of = |position: usize| bound(graph, nodes, found, node.input(position)?, depth);
    match &node.op {
        Op::Cast { .. } | Op::Reshape | Op::Transpose { .. } | Op::Identity | Op::Slice { .. } => of(0),
        Op::Binary(Binary::Add | Binary::Sub) => Some(of(0)? + of(1)?),
        _ => None,
    }
}

/// Into how many parts of its depth a product has to be cut so that each sum is exact; `None` where it stays.
fn parts(graph: &Graph, nodes: &[Node], found: &DefUse, node: &Node) -> Option<usize> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let element = graph.value(a).element;
    if !matches!(element, ElementType::F64 | ElementType::I32) || node.inputs.len() > 2 {
        return None;
    }
    let (a_shape, b_shape) = (graph.static_shape(a)?, graph.static_shape(b)?);
    let plain = node.op.epilogue().is_some_and(|epilogue| epilogue.activation.is_none());
    let depth = match &node.op {
        Op::MatMul(product) => {
            let usual = *product == MatMul::default() && a_shape.len() >= 2 && b_shape.len() >= 2;
            usual.then(|| a_shape[a_shape.len() - 1])?
        }
        Op::Conv(_) => b_shape[1..].iter().product(),
        _ => return None,
    };
    let (x, w) = (bound(graph, nodes, found, a, 8)?, bound(graph, nodes, found, b, 8)?);
    if !plain || depth == 0 {
        return None;
    }
    let longest = match graph.constant(b) {
        Some(weights) => heaviest(&node.op, weights)?,
        None => w * depth as f64,
    };
    if x * longest < EXACT {
        return Some(1);
    }
    let room = (EXACT / (x * w).max(1.0)).floor().max(1.0) as usize;
    let parts = depth.div_ceil(room);
    (matches!(node.op, Op::MatMul(_)) && parts <= PARTS_MAX).then_some(parts)
}

/// The largest sum of magnitudes that one result meets.
fn heaviest(op: &Op, weights: &Tensor) -> Option<f64> {
    let (values, shape) = (weights.to_f64s(), weights.shape());
    if let Op::Conv(_) = op {
        let per_filter = shape[1..].iter().product::<usize>().max(1);
        let sums = values.chunks(per_filter).map(|filter| filter.iter().map(|value| value.abs()).sum());
        return Some(sums.fold(0.0, f64::max));
    }
    let [.., depth, columns] = *shape else { return None };
    let mut top = 0.0f64;
    let mut sums = vec![0.0; columns];
    for matrix in values.chunks((depth * columns).max(1)) {
        sums.fill(0.0);
        for row in matrix.chunks(columns.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.abs());
        }
        top = sums.iter().copied().fold(top, f64::max);
    }
    Some(top)
}

/// Nodes that take the place of one.
struct Parts<'a> {
    graph: &'a mut Graph,
    name: String,
    origins: Vec<String>,
}

impl Parts<'_> {
    fn push(&mut self, op: Op, inputs: &[ValueId], element: ElementType, shape: &[usize]) -> ValueId {
        let to = self.graph.add_value(format!("{}/exact", self.name), element, shape);
        let inputs = inputs.iter().copied().map(Some).collect();
        self.graph.nodes.push(Node { op, inputs, outputs: vec![to], origins: self.origins.clone() });
        to
    }

    /// From `first` to `end` along an axis, of f32.
    fn cut(&mut self, from: ValueId, shape: &[usize], axis: usize, [first, end]: [usize; 2]) -> ValueId {
        let mut starts = vec![0; shape.len()];
        starts[axis] = first;
        let mut own = shape.to_vec();
        own[axis] = end - first;
        let op = Op::Slice { starts, steps: vec![1; shape.len()] };
        self.push(op, &[from], ElementType::F32, &own)
    }
}

/// Puts a product of f32 in the place of `node`, whose parts are added in the type of its operands.
fn narrowed(graph: &mut Graph, node: Node, parts: usize) {
    let Node { op, inputs, outputs, origins } = node;
    let (Some(a), Some(b), out) = (inputs[0], inputs[1], outputs[0]) else { return };
    let element = graph.value(out).element;
    let shape = |graph: &Graph, id: ValueId| graph.static_shape(id).unwrap_or_default();
    let (a_shape, b_shape, out_shape) = (shape(graph, a), shape(graph, b), shape(graph, out));
    let name = graph.value(out).name.clone();
    let mut made = Parts { graph, name, origins };
    let to = ElementType::F32;
    let x = made.push(Op::Cast { to }, &[a], to, &a_shape);
    let w = made.push(Op::Cast { to }, &[b], to, &b_shape);
    let depth = a_shape.last().copied().unwrap_or(1);
    let size = depth.div_ceil(parts);
    let mut sum: Option<ValueId> = None;
    for part in 0..parts {
        let range = [part * size, ((part + 1) * size).min(depth)];
        if parts > 1 && range[0] >= range[1] {
            continue;
        }
        let (x, w) = match parts {
            1 => (x, w),
            _ => (made.cut(x, &a_shape, a_shape.len() - 1, range), made.cut(w, &b_shape, b_shape.len() - 2, range)),
        };
        let product = made.push(op.clone(), &[x, w], to, &out_shape);
        let wide = made.push(Op::Cast { to: element }, &[product], element, &out_shape);
        sum = Some(match sum {
            Some(sum) => made.push(Op::Binary(Binary::Add), &[sum, wide], element, &out_shape),
            None => wide,
        });
    }
    if let (Some(last), true) = (graph.nodes.last_mut(), sum.is_some()) {
        last.outputs = vec![out];
    }
}
