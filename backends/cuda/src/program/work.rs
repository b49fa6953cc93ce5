//! Every kind of work a step can be: what it reads and writes, what its operands must be like, and what tells two of it
//! apart.

use super::chain::{ChainWork, First};
use crate::view::{CHANNELS_LAST, Kind, View, strides_in};
use planforge_graph::ir::{Activation, GeluForm};
use serde::{Deserialize, Serialize};

/// What a step computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    Kernel(KernelWork),
    Conv(ConvWork),
    Product(ProductWork),
    Attention(AttentionWork),
    OneToken(OneTokenWork),
    Heads(Box<HeadsWork>),
    Chain(Box<ChainWork>),
}

impl Work {
    /// A short name for lists.
    pub fn kind(&self) -> &str {
        match self {
            Self::Kernel(kernel) => &kernel.role,
            Self::Conv(conv) if conv.is_depthwise() => "depthwise_conv",
            Self::Conv(_) => "conv",
            Self::Product(_) => "gemm",
            Self::Attention(_) => "attention",
            Self::OneToken(_) => "one_token_attention",
            Self::Heads(_) => "heads",
            Self::Chain(work) => match (&work.first, &work.tail) {
                (First::Heads(_), _) => "heads_and_gemm",
                (First::Product(_), Some(_)) => "gemm_pair",
                (First::Product(_), None) => "gemm_of_sums",
            },
        }
    }

    /// Whether its result is stored in f32.
    pub fn is_f32(&self) -> bool {
        self.views().1.kind == Kind::F32
    }

    /// What it does to every element of its sums; of generated kernels nothing is told.
    pub fn activation(&self) -> Option<Activation> {
        match self {
            Self::Conv(conv) => conv.activation,
            Self::Product(product) => product.activation,
            Self::Chain(work) => work.product().activation,
            Self::Kernel(_) | Self::Attention(_) | Self::OneToken(_) | Self::Heads(_) => None,
        }
    }

    /// What of that which it reads it writes as well.
    pub fn updates(&self) -> Vec<&View> {
        match self {
            Self::OneToken(work) if work.append.is_some() => vec![&work.k, &work.v],
            Self::Heads(work) => vec![&work.attention.k, &work.attention.v],
            Self::Chain(work) => work.updates(),
            _ => Vec::new(),
        }
    }

    /// Everything it reads, then what it writes.
    pub fn views(&self) -> (Vec<&View>, &View) {
        match self {
            Self::Kernel(kernel) => {
                let (out, read) = kernel.operands.split_last().expect("a kernel writes something");
                (read.iter().collect(), out)
            }
            Self::Conv(conv) => {
                let rest = [&conv.taps, &conv.bias, &conv.residual];
                ([&conv.x, &conv.w].into_iter().chain(rest.into_iter().flatten()).collect(), &conv.y)
            }
            Self::Product(product) => {
                let rest = [&product.bias, &product.residual].into_iter().flatten();
                let norm = product.norm.iter().flat_map(|norm| [&norm.scale, &norm.bias].into_iter().flatten());
                ([&product.a, &product.b].into_iter().chain(rest).chain(norm).collect(), &product.y)
            }
            Self::Attention(attention) => {
                let read = [&attention.q, &attention.k, &attention.v].into_iter().chain(&attention.mask);
                (read.collect(), &attention.o)
            }
            Self::OneToken(work) => {
                let new = work.append.iter().flat_map(|append| [&append.k, &append.v, &append.place]);
                let rest = work.mask.iter().chain(new).chain(work.turn.iter().flatten());
                ([&work.q, &work.k, &work.v].into_iter().chain(rest).collect(), &work.parts)
            }
            Self::Heads(work) => {
                let HeadsWork { product, attention, o } = &**work;
                let norm = product.norm.iter().flat_map(|norm| [&norm.scale, &norm.bias].into_iter().flatten());
                let place = attention.append.iter().map(|append| &append.place);
                let caches = [&attention.k, &attention.v].into_iter().chain(place);
                let rest = product.bias.iter().chain(norm).chain(caches);
                ([&product.a, &product.b].into_iter().chain(rest).collect(), o)
            }
            Self::Chain(work) => work.views(),
        }
    }
}

/// A generated kernel; its arguments are the operands' addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWork {
    /// `pointwise`, `pool`, `layer_norm`, ...
    pub role: String,
    /// Index of its source in the program.
    pub source: usize,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// The last one is written.
    pub operands: Vec<View>,
    /// Forms of the GELUs among what it computes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gelus: Vec<GeluForm>,
}

/// `y = activation(conv(x, w) + residual + bias)` over channels-last images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvWork {
    pub x: View,
    /// Logical `K C R S`, lying `K R S C`.
    pub w: View,
    /// The weights of a depthwise convolution once more, as `[R][S][C]`.
    pub taps: Option<View>,
    pub bias: Option<View>,
    pub residual: Option<View>,
    pub y: View,
    /// Height, then width.
    pub strides: [u64; 2],
    pub pads_before: [u64; 2],
    pub pads_after: [u64; 2],
    pub dilations: [u64; 2],
    pub groups: u64,
    pub activation: Option<Activation>,
}

impl ConvWork {
    /// Every channel by itself.
    pub fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.x.dims[1] && self.groups == self.y.dims[1]
    }

    /// A matrix product over pixels.
    pub fn is_pointwise(&self) -> bool {
        self.groups == 1
            && self.w.dims[2..] == [1, 1]
            && self.strides == [1, 1]
            && self.pads_before == [0, 0]
            && self.pads_after == [0, 0]
    }

    /// Whether its operands are as large as a library takes them to be from each other's sizes.
    fn operands_fit(&self) -> bool {
        let (x, w, y) = (&self.x, &self.w, &self.y);
        w.dims[1].checked_mul(self.groups) == Some(x.dims[1])
            && (x.dims[0], w.dims[0]) == (y.dims[0], y.dims[1])
            && (!self.is_pointwise() || x.dims[2..] == y.dims[2..])
            && w.has_strides(&strides_in(&w.dims, &CHANNELS_LAST))
            && (w.kind, y.kind) == (x.kind, x.kind)
            && self.bias.as_ref().is_none_or(|bias| is_bias(bias, y.dims[1], x.kind))
            && self.residual.as_ref().is_none_or(|residual| residual.kind == x.kind && residual.dims == y.dims)
    }
}

/// `y = activation(alpha a · b + residual + bias)`: `[batch][m][k] · [batch][k][n]`, in any strides that have one
/// dimension of 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductWork {
    pub a: View,
    pub b: View,
    pub bias: Option<View>,
    pub residual: Option<View>,
    pub y: View,
    pub alpha: f32,
    pub activation: Option<Activation>,
    /// What is done to the only row of `a` before it is multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<Norm>,
}

/// A normalisation of one row: `(x - mean) / sqrt(variance + epsilon)`, or without a mean `x / sqrt(mean square + epsilon)`,
/// then the scale and the bias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    pub epsilon: f32,
    pub centred: bool,
    pub scale: Option<View>,
    pub bias: Option<View>,
}

impl ProductWork {
    /// Whether its operands are as large as a library takes them to be from each other's sizes.
    fn operands_fit(&self) -> bool {
        let [batch, m, k] = [0, 1, 2].map(|axis| self.a.dims[axis]);
        let n = self.b.dims[2];
        let kind = self.a.kind;
        let dense = |view: &View, axis: usize| view.dims[axis] == 1 || view.strides[axis] == 1;
        let in_rows = |view: &View| view.kind == kind && view.dims == [batch, m, n] && dense(view, 2);
        self.b.dims == [batch, k, n]
            && self.b.kind == kind
            && dense(&self.a, 2)
            && (dense(&self.b, 1) || dense(&self.b, 2))
            && in_rows(&self.y)
            && self.residual.as_ref().is_none_or(in_rows)
            && self.bias.as_ref().is_none_or(|bias| is_bias(bias, n, kind))
            && self.norm.as_ref().is_none_or(|norm| {
                let whole = |view: &View| view.elements() == k && view.is_rows();
                (batch, m) == (1, 1) && [&norm.scale, &norm.bias].into_iter().flatten().all(whole)
            })
    }
}

/// `o = softmax(scale q · kᵀ + mask) · v` over `[batch][heads][sequence][size]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionWork {
    pub q: View,
    pub k: View,
    pub v: View,
    /// `[batch][heads][queries][keys]`, mostly by strides of 0.
    #[serde(default)]
    pub mask: Option<View>,
    pub o: View,
    pub scale: f32,
}

/// Attention of one query in each head over keys and values that lie in caches: every block takes some of the keys, for all
/// heads of queries that share them, and leaves their weighted values, largest score and sum of weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneTokenWork {
    /// `[batch][heads][1][size]`.
    pub q: View,
    /// `[batch][shared heads][places][size]`, as `v`.
    pub k: View,
    pub v: View,
    /// `[batch][heads][1][places]`, mostly by strides of 0.
    pub mask: Option<View>,
    /// What is written into the caches first.
    pub append: Option<Append>,
    /// Cosines and sines by which queries and new keys are turned: each `size` numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<[View; 2]>,
    /// Places up to that of what is appended are seen, in the place of a mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
    /// `[batch][heads][blocks of keys][size + 2]` in f32: values, then the largest score and the sum of weights.
    pub parts: View,
    pub scale: f32,
    /// Keys of one block.
    pub keys: u64,
    /// A query without any key gives zeros rather than no number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guarded: bool,
}

/// A product of one row whose columns are queries, new keys and new values, and attention of these over caches: a cluster of
/// blocks for each head. What the product gives is in no memory: its result, and the operands and parts of the attention, say
/// only how they lie to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadsWork {
    pub product: ProductWork,
    pub attention: OneTokenWork,
    /// `[1][heads][1][size]`.
    pub o: View,
}

impl HeadsWork {
    /// Columns of the product from which on queries, keys and values of all heads lie; `None` where they do not.
    pub fn columns(&self) -> Option<[u64; 3]> {
        let [heads, size] = [1, 3].map(|axis| self.attention.q.dims[axis]);
        let y = &self.product.y;
        let append = self.attention.append.as_ref()?;
        let column = |view: &View| {
            let lies = view.buffer == y.buffer && view.strides[3] == 1 && (heads == 1 || view.strides[1] == size);
            let first = view.offset.checked_sub(y.offset).filter(|_| lies)?;
            (first + heads * size <= y.dims[2]).then_some(first)
        };
        Some([column(&self.attention.q)?, column(&append.k)?, column(&append.v)?])
    }

    /// Whether its operands are as large as the kernel takes them to be from each other's sizes.
    fn operands_fit(&self) -> bool {
        let Self { product, attention, o } = self;
        let whole = attention.k.dims[1] == attention.q.dims[1] && product.a.dims[..2] == [1, 1];
        let bare = product.residual.is_none() && product.activation.is_none() && attention.turn.is_none();
        product.operands_fit()
            && attention.operands_fit()
            && attention.seen.is_some_and(|seen| seen.early)
            && [attention.k.kind, attention.q.kind, o.kind].iter().all(|kind| *kind == product.a.kind)
            && o.dims == attention.q.dims
            && o.strides[3] == 1
            && whole
            && bare
            && self.columns().is_some()
    }
}

/// How far a query sees that sees everything up to its own place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// What is not seen counts as little as a finite number says: a query that would see nothing sees all alike.
    pub finite: bool,
    /// The place is an input, which no step writes: it is known before steps ahead are done, and so are the keys.
    pub early: bool,
}

/// A key and a value of every shared head, and which place of the caches is theirs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Append {
    /// `[batch][shared heads][1][size]`, as `v`.
    pub k: View,
    pub v: View,
    /// One whole number.
    pub place: View,
}

impl OneTokenWork {
    /// Whether everything has as many dimensions as it must have, and elements.
    fn is_whole(&self) -> bool {
        let new = self.append.iter().flat_map(|append| [&append.k, &append.v]);
        let views = [&self.q, &self.k, &self.v, &self.parts].into_iter().chain(new);
        views.into_iter().all(|view| view.rank() == 4 && view.elements() > 0)
    }

    /// Whether its operands are as large as the kernel takes them to be from each other's sizes.
    fn operands_fit(&self) -> bool {
        let [batch, heads, queries, size] = [0, 1, 2, 3].map(|axis| self.q.dims[axis]);
        let [shared, places] = [1, 2].map(|axis| self.k.dims[axis]);
        let cache = [batch, shared, places, size];
        let dense = |view: &View| view.strides[3] == 1;
        let new = |append: &Append| {
            let row = |view: &View| view.dims == [batch, shared, 1, size] && dense(view) && view.kind == self.k.kind;
            row(&append.k) && row(&append.v) && append.place.elements() == 1 && batch == 1
        };
        queries == 1
            && heads.is_multiple_of(shared)
            && self.k.dims == cache
            && self.v.dims == cache
            && self.k.kind == self.v.kind
            && [&self.q, &self.k, &self.v].into_iter().all(dense)
            && self.mask.as_ref().is_none_or(|mask| mask.dims == [batch, heads, 1, places])
            && self.append.as_ref().is_none_or(new)
            && (self.seen.is_none() || (self.append.is_some() && self.mask.is_none()))
            && self
                .turn
                .iter()
                .flatten()
                .all(|view| view.elements() == size && view.is_rows() && view.kind == self.q.kind)
            && self.keys > 0
            && self.parts.dims == [batch, heads, places.div_ceil(self.keys), size + 2]
            && self.parts.is_rows()
            && self.parts.kind == Kind::F32
    }
}

/// What a launch may ask for on any device: blocks along each axis, threads along each axis and of a block.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];

const BLOCK_THREADS_MAX: u64 = 1024;

/// Most elements of one view, so that no product of sizes overflows.
const MAX_VIEW_ELEMENTS: u64 = 1 << 40;

impl Work {
    /// Ranks and sizes that everything else relies on.
    pub(crate) fn check_shapes(&self) -> Result<(), &'static str> {
        if let Self::Kernel(kernel) = self {
            if kernel.operands.is_empty() {
                return Err("a kernel that writes nothing");
            }
            check_launch(kernel.grid, kernel.block)?;
        }
        let (read, written) = self.views();
        for view in read.into_iter().chain([written]) {
            let elements = view.dims.iter().try_fold(1u64, |count, &size| count.checked_mul(size.max(1)));
            if elements.is_none_or(|count| count > MAX_VIEW_ELEMENTS) || view.dims.len() != view.strides.len() {
                return Err("more elements than any device has");
            }
        }
        let whole = |views: &[&View], rank: usize| views.iter().all(|view| view.rank() == rank && view.elements() > 0);
        let whole_heads = |work: &HeadsWork| {
            let product = &work.product;
            whole(&[&product.a, &product.b, &product.y], 3) && work.attention.is_whole() && whole(&[&work.o], 4)
        };
        let right = match self {
            Self::Kernel(_) => true,
            Self::Conv(conv) => {
                let image = |view: &View| view.rank() == 4 && view.elements() > 0 && view.is_channels_last();
                image(&conv.x)
                    && image(&conv.y)
                    && conv.residual.as_ref().is_none_or(image)
                    && whole(&[&conv.w], 4)
                    && conv.groups > 0
                    && conv.strides.iter().chain(&conv.dilations).all(|&size| size > 0)
            }
            Self::Product(product) => {
                whole(&[&product.a, &product.b, &product.y], 3)
                    && product.residual.as_ref().is_none_or(|view| whole(&[view], 3))
            }
            Self::Attention(attention) => whole(&[&attention.q, &attention.k, &attention.v, &attention.o], 4),
            Self::OneToken(work) => work.is_whole(),
            Self::Heads(work) => whole_heads(work),
            Self::Chain(work) => {
                let first = match &work.first {
                    First::Heads(heads) => whole_heads(heads),
                    First::Product(product) => whole(&[&product.a, &product.b, &product.y], 3),
                };
                first && work.is_whole()
            }
        };
        if !right {
            return Err("a rank, a size or strides that its kind of step never has");
        }
        let fit = match self {
            Self::Conv(conv) => conv.operands_fit(),
            Self::Product(product) => product.operands_fit(),
            Self::OneToken(work) => work.operands_fit(),
            Self::Heads(work) => work.operands_fit(),
            Self::Chain(work) => {
                let first = match &work.first {
                    First::Heads(heads) => heads.operands_fit(),
                    First::Product(product) => product.operands_fit(),
                };
                first && work.operands_fit()
            }
            Self::Kernel(_) | Self::Attention(_) => true,
        };
        if fit { Ok(()) } else { Err("operands that do not fit each other") }
    }
}

/// Whether any device launches so many blocks of so many threads.
pub(super) fn check_launch(grid: [u32; 3], block: [u32; 3]) -> Result<(), &'static str> {
    if grid.iter().chain(&block).any(|&size| size == 0) {
        return Err("a launch of no threads");
    }
    let within = |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).all(|(size, most)| *size <= most);
    let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
    if !within(grid, GRID_MAX) || !within(block, BLOCK_MAX) || threads > BLOCK_THREADS_MAX {
        return Err("a launch of more threads than any device has");
    }
    Ok(())
}

/// A bias as libraries read it: as many elements, one after another.
fn is_bias(view: &View, elements: u64, kind: Kind) -> bool {
    view.kind == kind && view.dims == [elements] && view.is_rows()
}

impl Work {
    /// What besides its views decides how long it takes.
    pub(crate) fn decides(&self, is_constant: &dyn Fn(&View) -> bool) -> serde_json::Value {
        match self {
            Self::Conv(conv) => serde_json::json!([
                conv.strides,
                conv.pads_before,
                conv.pads_after,
                conv.dilations,
                conv.groups,
                conv.activation,
                conv.bias.is_some(),
                conv.residual.is_some(),
                conv.taps.is_some()
            ]),
            Self::Product(product) => {
                let constant = is_constant(&product.b);
                // A kernel may read a constant bias before what is ahead of it has ended.
                let bias = product.bias.as_ref().map(is_constant);
                let has = serde_json::json!([bias, product.residual.is_some(), constant]);
                match &product.norm {
                    None => serde_json::json!([product.alpha, product.activation, has]),
                    Some(norm) => {
                        serde_json::json!([product.alpha, product.activation, has, norm.epsilon, norm.centred])
                    }
                }
            }
            Self::Attention(attention) => serde_json::json!([attention.scale]),
            Self::OneToken(work) => {
                serde_json::json!([work.scale, work.keys, work.append.is_some(), work.turn.is_some(), work.seen])
            }
            Self::Heads(work) => {
                let HeadsWork { product, attention, .. } = &**work;
                let of_product = Self::Product(product.clone()).decides(is_constant);
                serde_json::json!([of_product, work.columns(), attention.scale, attention.seen, attention.guarded])
            }
            Self::Chain(work) => {
                let first = match &work.first {
                    First::Heads(heads) => Self::Heads(heads.clone()),
                    First::Product(product) => Self::Product(ProductWork::clone(product)),
                };
                let bias = work.tail.as_ref().and_then(|tail| tail.bias.as_ref()).map(is_constant);
                serde_json::json!([first.decides(is_constant), work.sums.is_some(), work.tail.is_some(), bias])
            }
            Self::Kernel(_) => serde_json::Value::Null,
        }
    }
}
