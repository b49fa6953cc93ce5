//! Sizes of open dimensions that follow from the graph: a product takes as many columns as its weights have rows, a
//! convolution as many channels as its filters.
//!
//! Nodes are walked once, in the model's order, over what is known of every value's dimensions: a size, an open dimension
//! of an input (handed on by whatever keeps it), or nothing. Where an operator wants two dimensions equal they are
//! *unified*. What weights say is certain; what broadcasting suggests is likely, and only proposed.

use super::standard;
use crate::declared::{inputs, open_dims};
use planforge_graph::shape::DeclaredDim;
use planforge_onnx::{
    Model,
    proto::{GraphProto, NodeProto, TensorProto},
};
use std::collections::{BTreeMap, HashMap};

/// Steps from one dimension to the one it is tied to; ties are made towards roots, so this bounds nothing that happens.
const MAX_TIES: usize = 64;

/// What is known of one dimension of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dim {
    Size(i64),
    /// An open dimension, by its number.
    Open(usize),
    Unknown,
}

/// One open dimension, wherever the model names it.
#[derive(Clone, Debug, Default)]
struct Open {
    certain: Option<i64>,
    /// Weights contradict each other: nothing is certain.
    contradicted: bool,
    likely: Option<i64>,
    /// Another one that is likely of the same size.
    tied: Option<usize>,
}

/// What the graph says of the open dimensions of inputs.
#[derive(Clone, Debug, Default)]
pub struct Solution {
    open: Vec<Open>,
    /// By input and axis.
    places: BTreeMap<(String, usize), usize>,
}

impl Solution {
    /// The one size that the graph takes there, where weights say it.
    pub fn certain(&self, input: &str, axis: usize) -> Option<i64> {
        self.open(input, axis)?.certain
    }

    /// The size that fits best, where the graph says anything.
    pub fn likely(&self, input: &str, axis: usize) -> Option<i64> {
        let root = &self.open[self.root(self.number(input, axis)?)];
        let own = self.open(input, axis)?;
        own.certain.or(root.certain).or(own.likely).or(root.likely)
    }

    /// What tells open dimensions apart that need not be of one size.
    pub fn class(&self, input: &str, axis: usize) -> Option<usize> {
        Some(self.root(self.number(input, axis)?))
    }

    fn number(&self, input: &str, axis: usize) -> Option<usize> {
        self.places.get(&(input.to_owned(), axis)).copied()
    }

    fn open(&self, input: &str, axis: usize) -> Option<&Open> {
        self.open.get(self.number(input, axis)?)
    }

    fn root(&self, number: usize) -> usize {
        let mut at = number;
        for _ in 0..MAX_TIES {
            match self.open[at].tied {
                Some(next) => at = next,
                None => break,
            }
        }
        at
    }

    fn unify(&mut self, a: Dim, b: Dim) {
        match (a, b) {
            (Dim::Open(open), Dim::Size(size)) | (Dim::Size(size), Dim::Open(open)) => {
                let open = &mut self.open[open];
                open.contradicted |= size < 1 || open.certain.is_some_and(|certain| certain != size);
                open.certain = Some(size).filter(|_| !open.contradicted);
            }
            (Dim::Open(a), Dim::Open(b)) => self.tie(a, b),
            _ => {}
        }
    }

    fn tie(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            let (root, other) = (a.min(b), a.max(b));
            let of_other = (self.open[other].certain, self.open[other].likely);
            self.open[other].tied = Some(root);
            let root = &mut self.open[root];
            root.likely = root.likely.or(of_other.0).or(of_other.1);
        }
    }

    /// The result of broadcasting two dimensions.
    fn broadcast(&mut self, a: Dim, b: Dim) -> Dim {
        match (a, b) {
            (Dim::Size(1), other) | (other, Dim::Size(1)) => other,
            (Dim::Size(size), Dim::Open(open)) | (Dim::Open(open), Dim::Size(size)) => {
                self.open[open].likely.get_or_insert(size);
                Dim::Size(size)
            }
            (Dim::Open(a), Dim::Open(b)) => {
                self.tie(a, b);
                Dim::Open(a)
            }
            (Dim::Size(size), _) | (_, Dim::Size(size)) => Dim::Size(size),
            _ => Dim::Unknown,
        }
    }
}

/// Walks the main graph of a model.
pub fn solve(model: &Model) -> Solution {
    let graph = model.graph();
    let mut walk = Walk { model, solution: Solution::default(), dims: HashMap::new(), ints: HashMap::new() };
    walk.begin(graph);
    graph.node.iter().for_each(|node| walk.node(node));
    walk.solution
}

struct Walk<'a> {
    model: &'a Model,
    solution: Solution,
    dims: HashMap<&'a str, Vec<Dim>>,
    /// Lists of integers that the model holds: axes and shapes.
    ints: HashMap<&'a str, Vec<i64>>,
}

impl<'a> Walk<'a> {
    fn begin(&mut self, graph: &'a GraphProto) {
        let mut symbols: BTreeMap<String, usize> = BTreeMap::new();
        for info in inputs(graph) {
            let Some(declared) = open_dims(info) else { continue };
            let mut dims = Vec::with_capacity(declared.len());
            for (axis, dim) in declared.into_iter().enumerate() {
                let number = match &dim {
                    DeclaredDim::Size(size) => {
                        dims.push(Dim::Size(*size));
                        continue;
                    }
                    DeclaredDim::Symbol(name) => symbols.get(name).copied(),
                    DeclaredDim::Unknown => None,
                };
                let number = number.unwrap_or_else(|| {
                    self.solution.open.push(Open::default());
                    self.solution.open.len() - 1
                });
                if let DeclaredDim::Symbol(name) = dim {
                    symbols.insert(name, number);
                }
                self.solution.places.insert((info.name.clone(), axis), number);
                dims.push(Dim::Open(number));
            }
            self.dims.insert(&info.name, dims);
        }
        graph.initializer.iter().for_each(|tensor| self.constant(&tensor.name, tensor));
    }

    fn constant(&mut self, name: &'a str, tensor: &TensorProto) {
        self.dims.insert(name, tensor.dims.iter().map(|&size| Dim::Size(size)).collect());
        let is_list = tensor.dims.len() <= 1 && tensor.dims.iter().product::<i64>() <= 16;
        if is_list && let Ok(tensor) = super::read_tensor(self.model, tensor) {
            self.ints.extend(tensor.to_i64s().map(|ints| (name, ints)));
        }
    }

    fn of(&self, node: &NodeProto, position: usize) -> Option<Vec<Dim>> {
        self.dims.get(node.input.get(position)?.as_str()).cloned()
    }

    fn node(&mut self, node: &'a NodeProto) {
        let Some(output) = node.output.first().filter(|name| !name.is_empty()) else { return };
        if !standard(&node.domain) && node.domain != "com.microsoft" {
            return;
        }
        if node.op_type == "Constant" {
            if let Some(tensor) = node.attribute.iter().find_map(|attribute| attribute.t.as_deref()) {
                self.constant(output, tensor);
            }
            return;
        }
        if let Some(dims) = self.result(node) {
            self.dims.insert(output, dims);
        }
    }

    /// The dimensions of a node's first output; notes what it wants of its inputs on the way.
    fn result(&mut self, node: &NodeProto) -> Option<Vec<Dim>> {
        let x = self.of(node, 0);
        match node.op_type.as_str() {
            "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Max" | "Min" | "Mean" | "Sum" | "PRelu" | "And" | "Or"
            | "Equal" | "Greater" | "Less" | "GreaterOrEqual" | "LessOrEqual" | "Mod" => {
                let mut dims = x?;
                for position in 1..node.input.len() {
                    let other = self.of(node, position)?;
                    dims = self.broadcast(&dims, &other);
                }
                Some(dims)
            }
            "Where" => {
                let (cond, a, b) = (x?, self.of(node, 1)?, self.of(node, 2)?);
                let dims = self.broadcast(&a, &b);
                Some(self.broadcast(&dims, &cond))
            }
            "Conv" | "ConvInteger" => self.conv(node, &x?, 1),
            "QLinearConv" => self.conv(node, &x?, 3),
            "ConvTranspose" => {
                let (x, w) = (x?, self.of(node, 1)?);
                self.solution.unify(*x.get(1)?, *w.first()?);
                let mut dims = vec![Dim::Unknown; x.len()];
                *dims.first_mut()? = x[0];
                Some(dims)
            }
            "MatMul" | "MatMulInteger" => {
                let other = self.of(node, 1)?;
                self.product(&x?, &other)
            }
            "QLinearMatMul" => {
                let other = self.of(node, 3)?;
                self.product(&x?, &other)
            }
            "Gemm" => {
                let (mut a, mut b) = (x?, self.of(node, 1)?);
                if int(node, "transA") == Some(1) {
                    a.reverse();
                }
                if int(node, "transB") == Some(1) {
                    b.reverse();
                }
                self.product(&a, &b)
            }
            "Gather" => {
                let indices = self.of(node, 1)?;
                let mut dims = x?;
                let axis = axis(int(node, "axis").unwrap_or(0), dims.len())?;
                drop(dims.splice(axis..=axis, indices));
                Some(dims)
            }
            "BatchNormalization" | "InstanceNormalization" => {
                let (x, scale) = (x?, self.of(node, 1)?);
                self.solution.unify(*x.get(1)?, *scale.first()?);
                Some(x)
            }
            "LayerNormalization" | "SkipLayerNormalization" | "SimplifiedLayerNormalization" | "RMSNormalization" => {
                let position = if node.op_type.starts_with("Skip") { 2 } else { 1 };
                let (x, scale) = (x?, self.of(node, position)?);
                for (&x, &scale) in x.iter().rev().zip(scale.iter().rev()).filter(|(_, scale)| **scale != Dim::Size(1))
                {
                    self.solution.unify(x, scale);
                }
                Some(x)
            }
            "LSTM" | "GRU" | "RNN" => {
                let (x, w) = (x?, self.of(node, 1)?);
                self.solution.unify(*x.get(2)?, *w.get(2)?);
                None
            }
            "Transpose" => {
                let x = x?;
                let perm = node.attribute.iter().find(|attribute| attribute.name == "perm");
                match perm {
                    None => Some(x.into_iter().rev().collect()),
                    Some(perm) => perm
                        .ints
                        .iter()
                        .map(|&from| usize::try_from(from).ok().and_then(|at| x.get(at).copied()))
                        .collect(),
                }
            }
            "Reshape" => {
                let (x, shape) = (x?, self.ints.get(node.input.get(1)?.as_str())?.clone());
                if x.len() == shape.len() {
                    for (&from, &to) in x.iter().zip(&shape) {
                        if let (Dim::Open(open), 2..) = (from, to) {
                            self.solution.open[open].likely.get_or_insert(to);
                        }
                    }
                }
                let size = |(at, &to): (usize, &i64)| match to {
                    0 => x.get(at).copied().unwrap_or(Dim::Unknown),
                    1.. => Dim::Size(to),
                    _ => Dim::Unknown,
                };
                Some(shape.iter().enumerate().map(size).collect())
            }
            "Unsqueeze" => {
                let mut dims = x?;
                let rank = dims.len() + self.axes(node)?.len();
                let mut axes = self.axes(node)?.into_iter().map(|at| axis(at, rank)).collect::<Option<Vec<_>>>()?;
                axes.sort_unstable();
                axes.into_iter().try_for_each(|at| (at <= dims.len()).then(|| dims.insert(at, Dim::Size(1))))?;
                Some(dims)
            }
            "MaxPool" | "AveragePool" | "LpPool" | "Pad" | "Resize" | "Upsample" | "GlobalAveragePool"
            | "GlobalMaxPool" => {
                let x = x?;
                let kept = |(at, dim)| if at < 2 && node.op_type != "Pad" { dim } else { Dim::Unknown };
                Some(x.into_iter().enumerate().map(kept).collect())
            }
            "Flatten" => {
                let x = x?;
                let rest = x.get(1..).unwrap_or_default().iter().try_fold(1i64, |product, dim| match dim {
                    Dim::Size(size) => product.checked_mul(*size),
                    _ => None,
                });
                match (int(node, "axis").unwrap_or(1), x.len()) {
                    (1, 2) => Some(x),
                    (1, _) => Some(vec![*x.first()?, rest.map_or(Dim::Unknown, Dim::Size)]),
                    _ => None,
                }
            }
            "Concat" => {
                let along = axis(int(node, "axis")?, x.as_ref()?.len())?;
                let mut dims = x?;
                for position in 1..node.input.len() {
                    let other = self.of(node, position).filter(|other| other.len() == dims.len())?;
                    let pairs = dims.iter().zip(&other).enumerate().filter(|(at, _)| *at != along);
                    pairs.for_each(|(_, (&a, &b))| self.solution.unify(a, b));
                }
                dims[along] = Dim::Unknown;
                Some(dims)
            }
            "Abs"
            | "Cast"
            | "Ceil"
            | "Celu"
            | "Clip"
            | "Cos"
            | "Dropout"
            | "Elu"
            | "Erf"
            | "Exp"
            | "FastGelu"
            | "Floor"
            | "Gelu"
            | "HardSigmoid"
            | "HardSwish"
            | "Identity"
            | "LeakyRelu"
            | "Log"
            | "LogSoftmax"
            | "Mish"
            | "Neg"
            | "Not"
            | "QuantizeLinear"
            | "DequantizeLinear"
            | "DynamicQuantizeLinear"
            | "QuickGelu"
            | "Reciprocal"
            | "Relu"
            | "Round"
            | "Selu"
            | "Sigmoid"
            | "Sign"
            | "Sin"
            | "Softmax"
            | "Softplus"
            | "Softsign"
            | "Sqrt"
            | "Tanh" => x,
            _ => None,
        }
    }

    fn broadcast(&mut self, a: &[Dim], b: &[Dim]) -> Vec<Dim> {
        let rank = a.len().max(b.len());
        let at = |dims: &[Dim], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(Dim::Size(1), |at| dims[at]);
        (0..rank).map(|axis| self.solution.broadcast(at(a, axis), at(b, axis))).collect()
    }

    fn conv(&mut self, node: &NodeProto, x: &[Dim], weights: usize) -> Option<Vec<Dim>> {
        let w = self.of(node, weights)?;
        if let &[_, Dim::Size(channels), ..] = w.as_slice() {
            let all = channels.checked_mul(int(node, "group").unwrap_or(1))?;
            self.solution.unify(*x.get(1)?, Dim::Size(all));
        }
        let mut dims = vec![Dim::Unknown; x.len()];
        *dims.get_mut(1)? = *w.first()?;
        dims[0] = x[0];
        Some(dims)
    }

    fn product(&mut self, a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
        let (&depth, rows) = a.split_last()?;
        let [batch @ .., other, columns] = b else { return None };
        self.solution.unify(depth, *other);
        let mut dims = match batch {
            [] => rows.to_vec(),
            _ => {
                let (&row, batches) = rows.split_last()?;
                let mut dims = self.broadcast(batches, batch);
                dims.push(row);
                dims
            }
        };
        dims.push(*columns);
        Some(dims)
    }

    /// The axes of an `Unsqueeze`, by attribute or by input.
    fn axes(&self, node: &NodeProto) -> Option<Vec<i64>> {
        match node.attribute.iter().find(|attribute| attribute.name == "axes") {
            Some(axes) => Some(axes.ints.clone()),
            None => self.ints.get(node.input.get(1)?.as_str()).cloned(),
        }
    }
}

fn int(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.i)
}

fn axis(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}
