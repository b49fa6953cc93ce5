//! Tensors and operations of a pattern.
//!
//! Shapes are always in the library's logical order (`N C H W` for images, `batch m n` for matrices); strides say how
//! they really lie, so channels-last is a matter of strides.

use super::{
    descriptor::{Descriptor, DnnError, Result},
    site::Site,
};
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptorType_t as Kind,
    cudnnConvolutionMode_t as ConvMode, cudnnDataType_t, cudnnPointwiseMode_t as Mode,
};

/// Names a tensor of a pattern when it runs.
pub type Uid = i64;

/// Element types that engines of ours use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    F32,
    F16,
    Bf16,
    I32,
}

impl DataType {
    fn raw(self) -> u32 {
        (match self {
            Self::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
            Self::F16 => cudnnDataType_t::CUDNN_DATA_HALF,
            Self::Bf16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            Self::I32 => cudnnDataType_t::CUDNN_DATA_INT32,
        }) as u32
    }
}

/// How a tensor lies in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    pub uid: Uid,
    pub kind: DataType,
    pub dims: Vec<i64>,
    pub strides: Vec<i64>,
}

impl Tensor {
    /// Channels last, dense.
    pub fn nhwc(uid: Uid, kind: DataType, [n, c, h, w]: [i64; 4]) -> Self {
        Self::nhwc_slice(uid, kind, [n, c, h, w], c)
    }

    /// Channels last, as a slice of the channels of a wider tensor of `width` channels.
    pub fn nhwc_slice(uid: Uid, kind: DataType, [n, c, h, w]: [i64; 4], width: i64) -> Self {
        Self { uid, kind, dims: vec![n, c, h, w], strides: vec![h * w * width, 1, w * width, width] }
    }

    /// The last axis fastest, dense.
    pub fn rows(uid: Uid, kind: DataType, dims: &[i64]) -> Self {
        let mut strides = vec![1; dims.len()];
        for axis in (1..dims.len()).rev() {
            strides[axis - 1] = strides[axis] * dims[axis];
        }
        Self { uid, kind, dims: dims.to_vec(), strides }
    }

    fn descriptor(&self, is_virtual: bool, by_value: bool) -> Result<Descriptor> {
        let made = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        made.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[self.kind.raw()])?;
        made.set_i64(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &self.dims)?;
        made.set_i64(Name::CUDNN_ATTR_TENSOR_STRIDES, &self.strides)?;
        made.set_i64(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[self.uid])?;
        made.set_i64(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[16])?;
        made.set_bool(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual)?;
        if by_value {
            made.set_bool(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, true)?;
        }
        made.finalize("describe a tensor")?;
        Ok(made)
    }
}

/// The last operation of a fused pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    None,
    Relu,
    /// x · sigmoid(x).
    Silu,
    Sigmoid,
    /// With erf.
    Gelu,
    GeluTanh,
}

impl Activation {
    fn mode(self) -> Option<Mode> {
        Some(match self {
            Self::None => return None,
            Self::Relu => Mode::CUDNN_POINTWISE_RELU_FWD,
            Self::Silu => Mode::CUDNN_POINTWISE_SWISH_FWD,
            Self::Sigmoid => Mode::CUDNN_POINTWISE_SIGMOID_FWD,
            Self::Gelu => Mode::CUDNN_POINTWISE_GELU_FWD,
            Self::GeluTanh => Mode::CUDNN_POINTWISE_GELU_APPROX_TANH_FWD,
        })
    }
}

/// A pattern that the library may run as one kernel.
#[derive(Debug)]
pub struct Pattern {
    pub(super) site: Site,
    pub(super) graph: Descriptor,
    /// Every tensor that is bound to memory.
    pub uids: Vec<Uid>,
}

/// Convolution with its epilogue: `y = activation(conv(x, w) + residual + bias)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvPattern {
    pub x: Tensor,
    /// `K C R S` in logical order.
    pub w: Tensor,
    pub y: Tensor,
    /// `1 K 1 1`.
    pub bias: Option<Tensor>,
    pub residual: Option<Tensor>,
    pub activation: Activation,
    /// Height, then width.
    pub pads_before: [i64; 2],
    pub pads_after: [i64; 2],
    pub strides: [i64; 2],
    pub dilations: [i64; 2],
}

/// Virtual tensors get identities from here on.
const VIRTUAL_UIDS: Uid = 1 << 20;

/// Collects the operations of a pattern.
struct Builder {
    operations: Vec<Descriptor>,
    uids: Vec<Uid>,
    next_virtual: Uid,
}

impl Builder {
    fn new() -> Self {
        Self { operations: Vec::new(), uids: Vec::new(), next_virtual: VIRTUAL_UIDS }
    }

    fn bound(&mut self, tensor: &Tensor) -> Result<Descriptor> {
        self.uids.push(tensor.uid);
        tensor.descriptor(false, false)
    }

    /// A tensor between operations, in f32 and of `like`'s shape.
    fn between(&mut self, like: &Tensor) -> Result<Descriptor> {
        let uid = self.next_virtual;
        self.next_virtual += 1;
        Tensor { uid, kind: DataType::F32, ..like.clone() }.descriptor(true, false)
    }

    fn pointwise(&mut self, mode: Mode, x: &Descriptor, b: Option<&Descriptor>, y: &Descriptor) -> Result<()> {
        let how = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode as u32])?;
        how.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Type::CUDNN_TYPE_DATA_TYPE, &[DataType::F32.raw()])?;
        how.finalize("describe a pointwise operation")?;
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[x])?;
        if let Some(b) = b {
            operation.set_parts(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[b])?;
        }
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[y])?;
        operation.finalize("describe a pointwise operation")?;
        self.operations.push(operation);
        Ok(())
    }

    fn finish(self, site: &Site) -> Result<Pattern> {
        let graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        // For a device that is elsewhere there is no handle, and none is asked for.
        if let Site::Here(handle) = site {
            graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.raw()])?;
        }
        let parts: Vec<&Descriptor> = self.operations.iter().collect();
        graph.set_parts(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &parts)?;
        graph.finalize("describe a pattern")?;
        Ok(Pattern { site: site.clone(), graph, uids: self.uids })
    }
}

impl Pattern {
    pub fn convolution(site: &Site, conv: &ConvPattern) -> Result<Self> {
        let mut builder = Builder::new();
        let how = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[DataType::F32.raw()])?;
        let mode = ConvMode::CUDNN_CROSS_CORRELATION as u32;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE, &[mode])?;
        how.set_i64(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[2])?;
        how.set_i64(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &conv.pads_before)?;
        how.set_i64(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &conv.pads_after)?;
        how.set_i64(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &conv.strides)?;
        how.set_i64(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &conv.dilations)?;
        how.finalize("describe a convolution")?;

        let tail_length = usize::from(conv.residual.is_some())
            + usize::from(conv.bias.is_some())
            + usize::from(conv.activation != Activation::None);
        let x = builder.bound(&conv.x)?;
        let w = builder.bound(&conv.w)?;
        let y = builder.bound(&conv.y)?;
        let sum = if tail_length == 0 { y.clone() } else { builder.between(&conv.y)? };
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, &[&how])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, &[&x])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, &[&w])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, &[&sum])?;
        operation.set(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, Type::CUDNN_TYPE_FLOAT, &[1f32])?;
        operation.set(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, Type::CUDNN_TYPE_FLOAT, &[0f32])?;
        operation.finalize("describe a convolution")?;
        builder.operations.push(operation);
        let tail = Tail { residual: &conv.residual, bias: &conv.bias, activation: conv.activation };
        builder.tail(tail, tail_length, sum, y, &conv.y)?;
        builder.finish(site)
    }

    /// `y = activation(a · b + residual + bias)` over `[batch][m][k] · [batch][k][n]`.
    pub fn product(site: &Site, product: &ProductPattern) -> Result<Self> {
        let mut builder = Builder::new();
        let how = Descriptor::new(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[DataType::F32.raw()])?;
        how.finalize("describe a matrix product")?;
        let tail_length = usize::from(product.residual.is_some())
            + usize::from(product.bias.is_some())
            + usize::from(product.activation != Activation::None);
        let a = builder.bound(&product.a)?;
        let b = builder.bound(&product.b)?;
        let y = builder.bound(&product.y)?;
        let sum = if tail_length == 0 { y.clone() } else { builder.between(&product.y)? };
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&how])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[&a])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[&b])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[&sum])?;
        operation.finalize("describe a matrix product")?;
        builder.operations.push(operation);
        let tail = Tail { residual: &product.residual, bias: &product.bias, activation: product.activation };
        builder.tail(tail, tail_length, sum, y, &product.y)?;
        builder.finish(site)
    }

    /// Scaled dot-product attention over `[batch][heads][sequence][size]`, in any strides.
    pub fn attention(site: &Site, sdpa: &Sdpa) -> Result<Self> {
        let mut builder = Builder::new();
        let [q, k, v, o] = [&sdpa.q, &sdpa.k, &sdpa.v, &sdpa.o].map(|tensor| builder.bound(tensor));
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR)?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, &[&q?])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, &[&k?])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, &[&v?])?;
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, &[&o?])?;
        let scale = Tensor::rows(sdpa.scale_uid, DataType::F32, &[1, 1, 1, 1]);
        builder.uids.push(scale.uid);
        operation.set_parts(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, &[&scale.descriptor(false, true)?])?;
        if let Some((queries, keys)) = &sdpa.lengths {
            let (queries, keys) = (builder.bound(queries)?, builder.bound(keys)?);
            operation.set_parts(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, &[&queries])?;
            operation.set_parts(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, &[&keys])?;
        }
        operation.finalize("describe attention")?;
        builder.operations.push(operation);
        builder.finish(site)
    }
}

/// What follows the sum.
struct Tail<'a> {
    residual: &'a Option<Tensor>,
    bias: &'a Option<Tensor>,
    activation: Activation,
}

impl Builder {
    /// Residual, then bias, then activation: the order with ready-made kernels.
    fn tail(&mut self, tail: Tail<'_>, length: usize, first: Descriptor, y: Descriptor, like: &Tensor) -> Result<()> {
        let (mut at, mut left) = (first, length);
        let add = Mode::CUDNN_POINTWISE_ADD;
        let steps =
            [(tail.residual.as_ref(), Some(add)), (tail.bias.as_ref(), Some(add)), (None, tail.activation.mode())];
        for (index, (operand, mode)) in steps.into_iter().enumerate() {
            let is_activation = index == 2;
            let Some(mode) = mode.filter(|_| is_activation || operand.is_some()) else { continue };
            left -= 1;
            let next = if left == 0 { y.clone() } else { self.between(like)? };
            let operand = operand.map(|tensor| self.bound(tensor)).transpose()?;
            self.pointwise(mode, &at, operand.as_ref(), &next)?;
            at = next;
        }
        Ok(())
    }
}

/// A matrix product with its epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProductPattern {
    pub a: Tensor,
    pub b: Tensor,
    pub y: Tensor,
    /// `1 1 n`.
    pub bias: Option<Tensor>,
    pub residual: Option<Tensor>,
    pub activation: Activation,
}

/// Scaled dot-product attention.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sdpa {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub o: Tensor,
    /// The scale is given by value when the plan runs.
    pub scale_uid: Uid,
    /// Valid queries and keys of each sequence, i32 `[batch][1][1][1]`; the rest is masked.
    pub lengths: Option<(Tensor, Tensor)>,
}

impl From<std::num::TryFromIntError> for DnnError {
    fn from(error: std::num::TryFromIntError) -> Self {
        Self::Library { what: "describe a shape", reason: error.to_string() }
    }
}
