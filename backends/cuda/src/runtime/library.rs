//! Steps in the words of cuDNN and cuBLASLt.

use super::{Ready, Result};
use crate::{
    program::{AttentionWork, ConvWork, ProductWork, Program, Work},
    view::{Kind, View},
};
use planforge_graph::ir::{Activation, GeluForm};
use planforge_kernels_cuda::{
    blaslt::{Element, Epilogue, Operands, Product},
    dnn::{self, ConvPattern, DataType, DnnError, Pattern, Plan, ProductPattern, Sdpa, Site, Tensor},
};
use std::rc::Rc;

// Names of a pattern's tensors.
const X: i64 = 1;
const W: i64 = 2;
const Y: i64 = 3;
const BIAS: i64 = 4;
const RESIDUAL: i64 = 5;
const SCALE: i64 = 6;

/// Binds a plan of `work`'s pattern to memory. `waits`: for a kernel ahead of it that lets it begin early.
pub fn bind(plan: Rc<Plan>, work: &Work, address: &dyn Fn(&View) -> u64, workspace: u64, waits: bool) -> Result<Ready> {
    let mut scale = None;
    let mut tensors = Vec::new();
    match work {
        Work::Conv(conv) => {
            tensors.extend([(X, address(&conv.x)), (W, address(&conv.w)), (Y, address(&conv.y))]);
            tensors.extend(conv.bias.as_ref().map(|view| (BIAS, address(view))));
            tensors.extend(conv.residual.as_ref().map(|view| (RESIDUAL, address(view))));
        }
        Work::Product(product) => {
            tensors.extend([(X, address(&product.a)), (W, address(&product.b)), (Y, address(&product.y))]);
            tensors.extend(product.bias.as_ref().map(|view| (BIAS, address(view))));
            tensors.extend(product.residual.as_ref().map(|view| (RESIDUAL, address(view))));
        }
        Work::Attention(attention) => {
            tensors.extend([
                (X, address(&attention.q)),
                (W, address(&attention.k)),
                (BIAS, address(&attention.v)),
                (Y, address(&attention.o)),
            ]);
            // The library reads it from the host when the plan is queued.
            let value = scale.insert(Box::new(attention.scale));
            tensors.push((SCALE, std::ptr::from_ref::<f32>(value) as u64));
        }
        Work::Kernel(_) | Work::OneToken(_) | Work::Heads(_) | Work::Chain(_) => {
            unreachable!("only kernels of ours compute it")
        }
    }
    let binding = plan.bind(&tensors, workspace)?;
    Ok(Ready::Dnn { plan, binding, waits, _scale: scale })
}

fn data_type(kind: Kind) -> Option<DataType> {
    match kind {
        Kind::F32 => Some(DataType::F32),
        Kind::F16 => Some(DataType::F16),
        Kind::Bf16 => Some(DataType::Bf16),
        Kind::I32 => Some(DataType::I32),
        _ => None,
    }
}

/// `None` for what repeats elements: the library would take a stride of 0 for one that moves.
fn tensor(uid: i64, view: &View) -> Option<Tensor> {
    let signed = |sizes: &[u64]| sizes.iter().map(|&size| size as i64).collect::<Vec<_>>();
    let mut strides = signed(&view.strides);
    // A size of 1 may carry any stride; the library wants one that looks dense.
    for axis in (0..view.rank()).rev() {
        if view.dims[axis] == 1 {
            let later = view.dims.iter().zip(&view.strides).filter(|(dim, _)| **dim > 1);
            strides[axis] = later.map(|(dim, stride)| (dim * stride) as i64).max().unwrap_or(1);
        } else if strides[axis] == 0 {
            return None;
        }
    }
    Some(Tensor { uid, kind: data_type(view.kind)?, dims: signed(&view.dims), strides })
}

/// A channels-last image, whose sizes of 1 carry the strides that the library expects.
fn image(uid: i64, view: &View) -> Option<Tensor> {
    let dims: Vec<i64> = view.dims.iter().map(|&size| size as i64).collect();
    let shape = [dims[0], dims[1], dims[2], dims[3]];
    Some(Tensor::nhwc_slice(uid, data_type(view.kind)?, shape, view.pixel_pitch() as i64))
}

/// The cuDNN pattern of a step, where there is one, for the device at `site`.
pub fn pattern(site: impl Into<Site>, work: &Work) -> Option<std::result::Result<Pattern, DnnError>> {
    let site = &site.into();
    match work {
        Work::Conv(conv) => conv_pattern(conv).map(|pattern| Pattern::convolution(site, &pattern)),
        Work::Product(product) => product_pattern(product).map(|pattern| Pattern::product(site, &pattern)),
        Work::Attention(attention) => sdpa(attention).map(|pattern| Pattern::attention(site, &pattern)),
        Work::Kernel(_) | Work::OneToken(_) | Work::Heads(_) | Work::Chain(_) => None,
    }
}

fn dnn_activation(activation: Option<Activation>) -> Option<dnn::Activation> {
    Some(match activation {
        None => dnn::Activation::None,
        Some(Activation::Relu) => dnn::Activation::Relu,
        Some(Activation::Silu) => dnn::Activation::Silu,
        Some(Activation::Sigmoid) => dnn::Activation::Sigmoid,
        Some(Activation::Gelu(GeluForm::Erf)) => dnn::Activation::Gelu,
        Some(Activation::Gelu(GeluForm::Tanh)) => dnn::Activation::GeluTanh,
        // Not its tanh: its general engine makes NaN of numbers beyond 44 (9.19, H200).
        Some(_) => return None,
    })
}

fn conv_pattern(conv: &ConvWork) -> Option<ConvPattern> {
    let signed = |pair: [u64; 2]| pair.map(|size| size as i64);
    let bias = |view: &View| {
        let k = view.elements() as i64;
        Some(Tensor::nhwc(BIAS, data_type(view.kind)?, [1, k, 1, 1]))
    };
    let weights: Vec<i64> = conv.w.dims.iter().map(|&size| size as i64).collect();
    Some(ConvPattern {
        x: image(X, &conv.x)?,
        w: Tensor::nhwc(W, data_type(conv.w.kind)?, [weights[0], weights[1], weights[2], weights[3]]),
        y: image(Y, &conv.y)?,
        bias: match &conv.bias {
            Some(view) => Some(bias(view)?),
            None => None,
        },
        residual: match &conv.residual {
            Some(view) => Some(image(RESIDUAL, view)?),
            None => None,
        },
        activation: dnn_activation(conv.activation)?,
        pads_before: signed(conv.pads_before),
        pads_after: signed(conv.pads_after),
        strides: signed(conv.strides),
        dilations: signed(conv.dilations),
    })
}

fn product_pattern(product: &ProductWork) -> Option<ProductPattern> {
    if product.alpha != 1.0 || product.norm.is_some() {
        return None;
    }
    let bias = |view: &View| {
        let n = view.elements() as i64;
        Some(Tensor { uid: BIAS, kind: data_type(view.kind)?, dims: vec![1, 1, n], strides: vec![n, n, 1] })
    };
    Some(ProductPattern {
        a: tensor(X, &product.a)?,
        b: tensor(W, &product.b)?,
        y: tensor(Y, &product.y)?,
        bias: match &product.bias {
            Some(view) => Some(bias(view)?),
            None => None,
        },
        residual: match &product.residual {
            Some(view) => Some(tensor(RESIDUAL, view)?),
            None => None,
        },
        activation: dnn_activation(product.activation)?,
    })
}

fn sdpa(attention: &AttentionWork) -> Option<Sdpa> {
    // Versions before 9.21 add no mask.
    if attention.mask.is_some() {
        return None;
    }
    Some(Sdpa {
        q: tensor(X, &attention.q)?,
        k: tensor(W, &attention.k)?,
        v: tensor(BIAS, &attention.v)?,
        o: tensor(Y, &attention.o)?,
        scale_uid: SCALE,
        lengths: None,
    })
}

fn blas_element(kind: Kind, tf32: bool) -> Option<Element> {
    match kind {
        Kind::F32 if tf32 => Some(Element::Tf32),
        Kind::F16 => Some(Element::F16),
        Kind::Bf16 => Some(Element::Bf16),
        Kind::F32 => Some(Element::F32),
        _ => None,
    }
}

/// Who makes the activation of a product by cuBLASLt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The library's epilogue.
    Library,
    /// A kernel of ours behind it, in place.
    Kernel,
}

/// Who may make `work`'s activation where cuBLASLt computes the product: the library where it has just that activation.
/// Its only GELU is the one with tanh, in halves; in place of the one with erf it is taken only where the program says
/// that it may be.
pub fn end(program: &Program, work: &Work) -> End {
    match work.activation() {
        None | Some(Activation::Relu) => End::Library,
        Some(Activation::Gelu(GeluForm::Tanh)) if !work.is_f32() => End::Library,
        Some(Activation::Gelu(_)) if program.approximate_gelu => End::Library,
        Some(_) => End::Kernel,
    }
}

/// The epilogue by which the library makes an activation, exactly or nearly.
fn blas_epilogue(activation: Option<Activation>, end: End) -> Option<Epilogue> {
    match activation {
        None => Some(Epilogue::None),
        Some(_) if end == End::Kernel => Some(Epilogue::None),
        Some(Activation::Relu) => Some(Epilogue::Relu),
        Some(Activation::Gelu(_)) => Some(Epilogue::GeluTanh),
        Some(_) => None,
    }
}

/// The cuBLASLt product of a step, where it is one; `tf32`: factors in f32 may be rounded.
pub fn product(work: &Work, tf32: bool, end: End) -> Option<Product> {
    match work {
        Work::Conv(conv) if conv.is_pointwise() => {
            let [n, k, h, w] = [0, 1, 2, 3].map(|axis| conv.y.dims[axis]);
            let c = conv.x.dims[1];
            let mut product = Product::dense(blas_element(conv.x.kind, tf32)?, n * h * w, k, c).with_transposed_b();
            product.lda = conv.x.pixel_pitch();
            product.ldd = conv.y.pixel_pitch();
            product.ldc = conv.residual.as_ref().map_or(product.ldd, View::pixel_pitch);
            product.bias = conv.bias.is_some();
            product.residual = conv.residual.is_some();
            product.epilogue = blas_epilogue(conv.activation, end)?;
            Some(product)
        }
        Work::Product(work) if work.norm.is_none() => {
            let [batch, m, n] = [work.y.dims[0], work.y.dims[1], work.y.dims[2]];
            let k = work.a.dims[2];
            let mut product = Product::dense(blas_element(work.a.kind, tf32)?, m, n, k);
            let pitch = |view: &View, columns: u64| if view.dims[1] == 1 { columns } else { view.strides[1] };
            product.alpha = work.alpha;
            product.batch = batch;
            product.lda = pitch(&work.a, k);
            product.b_transposed = !(work.b.strides[2] == 1 || n == 1);
            product.ldb = if product.b_transposed { work.b.strides[2] } else { pitch(&work.b, n) };
            product.ldd = pitch(&work.y, n);
            product.ldc = work.residual.as_ref().map_or(product.ldd, |view| pitch(view, n));
            product.stride_a = work.a.strides[0] as i64;
            product.stride_b = work.b.strides[0] as i64;
            product.stride_d = work.y.strides[0] as i64;
            product.stride_c = work.residual.as_ref().map_or(product.stride_d, |view| view.strides[0] as i64);
            product.bias = work.bias.is_some();
            product.residual = work.residual.is_some();
            product.epilogue = blas_epilogue(work.activation, end)?;
            Some(product)
        }
        _ => None,
    }
}

pub(super) fn operands(work: &Work, address: &dyn Fn(&View) -> u64, workspace: u64) -> Option<Operands> {
    let of = |view: &Option<View>| view.as_ref().map_or(0, address);
    Some(match work {
        Work::Conv(conv) => Operands {
            a: address(&conv.x),
            b: address(&conv.w),
            c: of(&conv.residual),
            d: address(&conv.y),
            bias: of(&conv.bias),
            workspace,
        },
        Work::Product(product) => Operands {
            a: address(&product.a),
            b: address(&product.b),
            c: of(&product.residual),
            d: address(&product.y),
            bias: of(&product.bias),
            workspace,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::BufferId;

    #[test]
    fn a_factor_that_is_repeated_has_no_pattern() {
        let rows = |dims: &[u64]| View::rows(BufferId(0), Kind::F16, dims);
        let pattern = |a: View| {
            let b = rows(&[2, 16, 24]);
            let y = rows(&[2, 8, 24]);
            product_pattern(&ProductWork {
                a,
                b,
                bias: None,
                residual: None,
                y,
                alpha: 1.0,
                activation: None,
                norm: None,
            })
        };
        assert!(pattern(rows(&[2, 8, 16])).is_some());
        let repeated = rows(&[8, 16]).broadcast(&[2, 8, 16]).expect("one matrix serves both");
        assert_eq!(pattern(repeated), None);
        let one = rows(&[8, 16]).broadcast(&[1, 8, 16]).expect("a batch of one");
        assert_eq!(tensor(X, &one).expect("nothing is repeated").strides, [128, 16, 1]);
    }

    #[test]
    fn a_convolution_with_tanh_is_not_left_to_a_library_that_makes_no_number_of_it() {
        assert_eq!(dnn_activation(Some(Activation::Tanh)), None);
        assert_eq!(dnn_activation(Some(Activation::Sigmoid)), Some(dnn::Activation::Sigmoid));
    }

    /// The library's GELU stands for the one with erf only where the program allows it, and then for no other.
    #[test]
    fn gelu_by_erf_is_not_left_to_an_epilogue() {
        let activations = [
            Activation::Relu,
            Activation::Silu,
            Activation::Tanh,
            Activation::Gelu(GeluForm::Tanh),
            Activation::Gelu(GeluForm::Erf),
        ];
        let exact = Program::default();
        let approximate = Program { approximate_gelu: true, ..Program::default() };
        for kind in [Kind::F16, Kind::Bf16, Kind::F32] {
            for activation in activations {
                let rows = |dims: &[u64]| View::rows(BufferId(0), kind, dims);
                let (a, b, y) = (rows(&[1, 8, 16]), rows(&[1, 16, 24]), rows(&[1, 8, 24]));
                let activation = Some(activation);
                let work = ProductWork { a, b, bias: None, residual: None, y, alpha: 1.0, activation, norm: None };
                let work = Work::Product(work);
                let epilogue = |program: &Program| {
                    let product = product(&work, false, end(program, &work)).expect("the library computes it");
                    product.epilogue
                };
                let expected = match activation {
                    Some(Activation::Relu) => [Epilogue::Relu; 2],
                    Some(Activation::Gelu(GeluForm::Tanh)) if kind != Kind::F32 => [Epilogue::GeluTanh; 2],
                    Some(Activation::Gelu(_)) => [Epilogue::None, Epilogue::GeluTanh],
                    _ => [Epilogue::None; 2],
                };
                assert_eq!([epilogue(&exact), epilogue(&approximate)], expected, "{kind:?} {activation:?}");
            }
        }
    }
}
