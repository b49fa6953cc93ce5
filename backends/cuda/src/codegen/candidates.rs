//! Which generated kernels can compute a step.

use super::{
    Generated, any, attention, chain,
    depthwise::{self, Depthwise},
    gemm, heads, matvec, one_token, pointwise, staged,
};
use crate::program::{ConvWork, ProductWork, Program, Work};
use planforge_graph::ir::Activation;

/// Generated kernels that can compute a step on such a device; of products at most so many `tiles`.
pub fn own_kernels(target: gemm::Device, program: &Program, work: &Work, tiles: usize) -> Vec<Generated> {
    kernels_of(target, program, work, &tiles_of(target, program, work, tiles))
}

/// Tiles that are worth timing of the product that a step is, at most so many; none of anything else.
pub fn tiles_of(target: gemm::Device, program: &Program, work: &Work, most: usize) -> Vec<gemm::Tile> {
    product(program, work).map_or_else(Vec::new, |problem| gemm::tiles(&problem, target, most))
}

/// The product that a step is, where a kernel with tiles computes it.
pub fn product(program: &Program, work: &Work) -> Option<gemm::Problem> {
    match work {
        Work::Conv(conv) if conv.taps.is_none() => gemm::Problem::of_conv(conv),
        Work::Product(product) if product.norm.is_none() => {
            gemm::Problem::of_product(product, program.is_constant(&product.b))
        }
        _ => None,
    }
}

/// Generated kernels that can compute a step, of products those with such tiles, which come first.
pub fn kernels_of(target: gemm::Device, program: &Program, work: &Work, tiles: &[gemm::Tile]) -> Vec<Generated> {
    let gemm = || match product(program, work) {
        Some(problem) => tiles.iter().map(|tile| gemm::generate(&problem, *tile)).collect(),
        None => Vec::new(),
    };
    // What tensor cores have no kernel for, and sums of few rows, which gain nothing by them.
    let with_any = |mut kernels: Vec<Generated>, problem: Option<any::Problem>| {
        if let Some(problem) = problem.filter(|problem| kernels.is_empty() || problem.is_of_few_rows()) {
            kernels.extend(any::tiles(&problem).into_iter().map(|tile| any::generate(&problem, tile)));
        }
        kernels
    };
    match work {
        Work::Conv(conv) if conv.taps.is_some() => depthwise_kernels(conv),
        Work::Conv(conv) => with_any(gemm(), any::Problem::of_conv(conv)),
        Work::Product(product) if product.norm.is_some() => one_row_kernels(target, program, product),
        Work::Product(product) => {
            let mut kernels = with_any(gemm(), any::Problem::of_product(product));
            // Where one row is what there is at every step; elsewhere what there was is enough.
            if !program.states.is_empty() {
                kernels.extend(one_row_kernels(target, program, product));
            }
            kernels
        }
        Work::Attention(work) => {
            attention::tiles(work, target.capability).into_iter().map(|tile| attention::generate(work, tile)).collect()
        }
        Work::OneToken(work) => one_token::kernels(work, target),
        Work::Heads(work) => heads::kernels(work, target),
        Work::Chain(work) => chain::kernels(work, target),
        Work::Kernel(_) => Vec::new(),
    }
}

fn one_row_kernels(target: gemm::Device, program: &Program, product: &ProductWork) -> Vec<Generated> {
    let Some(problem) = matvec::Problem::of(product, |view| program.is_constant(view)) else { return Vec::new() };
    let plain = matvec::tiles(&problem).into_iter().map(|tile| matvec::generate(&problem, tile));
    let staged = staged::tiles(&problem, target).into_iter().map(|tile| staged::generate(&problem, tile));
    plain.chain(staged).collect()
}

/// What makes a step's activation in place, behind a library that has none like it: of products any, of convolutions
/// GELU, for cuDNN ends those with the others.
pub fn after(work: &Work) -> Option<Generated> {
    let (activation, y) = match work {
        Work::Product(product) => (product.activation?, &product.y),
        Work::Conv(conv) => (conv.activation.filter(|op| matches!(op, Activation::Gelu(_)))?, &conv.y),
        Work::Kernel(_) | Work::Attention(_) | Work::OneToken(_) | Work::Heads(_) | Work::Chain(_) => return None,
    };
    pointwise::in_place(activation, y).ok()
}

fn depthwise_kernels(conv: &ConvWork) -> Vec<Generated> {
    let how = Depthwise {
        kernel: [conv.w.dims[2], conv.w.dims[3]],
        strides: conv.strides,
        pads_before: conv.pads_before,
        dilations: conv.dilations,
        bias: conv.bias.is_some(),
        activation: conv.activation,
    };
    let (x, residual, y) = (&conv.x, conv.residual.as_ref(), &conv.y);
    let tiles = depthwise::tiles(x, residual, y);
    tiles.into_iter().map(|tile| depthwise::generate(x, residual, y, how, tile)).collect()
}
