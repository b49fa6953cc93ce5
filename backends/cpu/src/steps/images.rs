//! Convolutions and pools over NHWC images.

use super::{
    Operands, Prepared, Ready, activation,
    checker::{CHANNELS_MAX, Checker, product},
    products::tactics,
};
use crate::{
    error::EngineError,
    program::{Gather, ImageShape, PoolFunction, StepKind, Tactic},
};
use planforge_graph::{ir, shape::taps_are_few};
use planforge_kernels_cpu::{
    conv::{self, ConvShape, LineRows, TAP_CHANNELS_MAX, TapRows},
    depthwise,
    gemm::{self, Blocking, Epilogue, Kernel, MatrixRows, PackedSize},
    pointwise::Activation,
    window::{self, PoolKind},
};

/// Largest size, stride, pad or dilation of an image: products of three of them stay in 64 bits.
pub(super) const IMAGE_SIZE_MAX: usize = 1 << 20;
/// From this channel count on, pieces per kernel position are long enough to be tried.
const TAP_CHANNELS_MIN: usize = 8;

/// Every tactic of a convolution, the one to take untimed first; `None` for other kinds.
pub(super) fn candidates(kind: &StepKind, kernels: &[&Kernel], threads: usize) -> Option<Vec<Tactic>> {
    let StepKind::Conv { shape, .. } = kind else { return None };
    let shape: ConvShape = (*shape).into();
    let few = shape.channels / shape.groups < TAP_CHANNELS_MIN;
    let gathers: &[Gather] = match (shape.is_pointwise(), shape.has_lines() && shape.kernel != [1, 1], few) {
        (true, ..) => &[Gather::Matrix],
        (_, true, true) => &[Gather::Lines],
        (_, true, false) => &[Gather::Taps, Gather::Lines],
        (_, false, _) => &[Gather::Taps],
    };
    Some(tactics(kernels, threads, gathers, (shape.pixels(), shape.out_channels / shape.groups, shape.depth())))
}

/// Bytes of the image with its border, where a tactic reads lines of it; `None` for other kinds.
pub(super) fn scratch_bytes(kind: &StepKind, tactic: &Tactic) -> Option<u64> {
    match (kind, tactic.gather) {
        (StepKind::Conv { shape, .. }, Gather::Lines) => {
            let shape: ConvShape = (*shape).into();
            (!shape.is_inside()).then(|| (shape.bordered_len() * 4) as u64)
        }
        _ => None,
    }
}

/// Sizes of a convolution's packed weights and padded bias in elements; `None` for other kinds.
pub(super) fn packed_size(kind: &StepKind, kernel: &Kernel) -> Option<(usize, usize)> {
    let StepKind::Conv { shape, .. } = kind else { return None };
    let groups = shape.groups;
    let shape: ConvShape = (*shape).into();
    let size = PackedSize::new(kernel, shape.depth(), shape.out_channels / groups)?;
    Some((size.elements * groups, size.columns * groups))
}

/// Checks an image's sizes so that the arithmetic of [`ConvShape`] cannot overflow.
pub(super) fn image(shape: &ImageShape) -> Result<ConvShape, String> {
    let sizes = [shape.height, shape.width, shape.out_height, shape.out_width];
    let steps = [shape.kernel, shape.strides, shape.dilations];
    let fine = sizes.iter().chain(shape.pads.iter()).all(|&size| size <= IMAGE_SIZE_MAX)
        && steps.iter().flatten().all(|&size| (1..=IMAGE_SIZE_MAX).contains(&size))
        && [shape.batch, shape.channels, shape.out_channels, shape.groups]
            .iter()
            .all(|&n| (1..=CHANNELS_MAX).contains(&n))
        && shape.channels.is_multiple_of(shape.groups)
        && shape.out_channels.is_multiple_of(shape.groups);
    if !fine {
        return Err("its image's sizes are out of bounds".to_owned());
    }
    product(&[shape.batch, shape.height, shape.width, shape.channels])?;
    product(&[shape.batch, shape.out_height, shape.out_width, shape.out_channels])?;
    product(&[shape.kernel[0], shape.kernel[1], shape.channels, shape.out_channels])?;
    Ok((*shape).into())
}

/// How the rows of a convolution's product are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// The image is the matrix.
    Matrix,
    Taps,
    Lines,
}

#[derive(Debug)]
struct Conv {
    shape: ConvShape,
    blocking: Blocking,
    rows: Rows,
    activation: Activation,
    /// Elements of one group's packed weights and padded bias.
    group_weights: usize,
    group_bias: usize,
}

pub(super) fn conv(check: &Checker<'_>, shape: &ImageShape, of: Option<ir::Activation>) -> Prepared {
    let shape = image(shape)?;
    let tactic = check.tactic()?;
    let blocking = check.blocking_with_weights()?;
    let columns = shape.out_channels / shape.groups;
    let size = PackedSize::new(blocking.kernel, shape.depth(), columns).ok_or("its weights are too large")?;
    let out = product(&[shape.pixels(), shape.out_channels])?;
    check.takes(0, shape.image_len())?;
    check.may_take(1, out)?;
    check.gives(out)?;
    check.holds("weights", check.step.weights, product(&[size.elements, shape.groups])?, 4)?;
    if check.step.bias.is_some() {
        check.may_add(product(&[size.columns, shape.groups])?)?;
    }
    let rows = match tactic.gather {
        Gather::Lines if shape.has_lines() => Rows::Lines,
        Gather::Matrix if shape.is_pointwise() => Rows::Matrix,
        Gather::Taps if shape.channels / shape.groups <= TAP_CHANNELS_MAX => Rows::Taps,
        _ => return Err(format!("tactic {} does not suit it", tactic.name())),
    };
    let bordered = if rows == Rows::Lines && !shape.is_inside() {
        let [height, width] = shape.bordered();
        Some(product(&[shape.batch, height, width, shape.channels])?)
    } else {
        None
    };
    check.needs_scratch(bordered)?;
    let (group_weights, group_bias) = (size.elements, size.columns);
    Ok(Box::new(Conv { shape, blocking, rows, activation: activation(of), group_weights, group_bias }))
}

impl Ready for Conv {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let Self { shape, blocking, rows, activation, group_weights, group_bias } = self;
        let (isa, pool, workspace) = (on.isa, on.pool, on.workspace);
        let (image, packed, bias, residual) = (on.numbers(0), on.weights(), on.bias(), on.input(1));
        let (c, scratch) = on.output_and_scratch();
        let image = match scratch {
            Some(bordered) => {
                conv::add_border(pool, shape, image, bordered);
                &*bordered
            }
            None => image,
        };
        for group in 0..shape.groups {
            let place = shape.group_place(group);
            let epilogue = Epilogue {
                alpha: 1.0,
                bias: bias.map(|bias| &bias[group * group_bias..(group + 1) * group_bias]),
                residual: residual.map(|residual| (residual, place)),
                activation: *activation,
            };
            let b = &packed[group * group_weights..(group + 1) * group_weights];
            let b = (b, shape.out_channels / shape.groups);
            let out = (&mut *c, place);
            let run = |rows: &dyn gemm::Rows| {
                gemm::multiply(isa, pool, workspace, blocking, rows, b, out, &epilogue);
            };
            let depth = shape.channels / shape.groups;
            match rows {
                Rows::Matrix => {
                    let first = image.get(group * depth..).unwrap_or(&[]);
                    run(&MatrixRows::new(first, shape.pixels(), depth, shape.channels));
                }
                Rows::Lines => run(&LineRows::new(*shape, image)),
                Rows::Taps => run(&TapRows::new(*shape, image, group)),
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Depthwise {
    shape: ConvShape,
    activation: Activation,
}

pub(super) fn depthwise(check: &Checker<'_>, shape: &ImageShape, of: Option<ir::Activation>) -> Prepared {
    let shape = image(shape)?;
    if shape.groups != shape.channels || shape.out_channels != shape.channels {
        return Err("it is not depthwise".to_owned());
    }
    let out = product(&[shape.pixels(), shape.channels])?;
    check.takes(0, shape.image_len())?;
    check.may_take(1, out)?;
    check.gives(out)?;
    check.holds("weights", check.step.weights, shape.kernel[0] * shape.kernel[1] * shape.channels, 4)?;
    check.holds("bias", check.step.bias, shape.channels, 4)?;
    Ok(Box::new(Depthwise { shape, activation: activation(of) }))
}

impl Ready for Depthwise {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let of = depthwise::Depthwise {
            image: on.numbers(0),
            weights: on.weights(),
            bias: on.bias().unwrap_or(&[]),
            residual: on.input(1),
            activation: self.activation,
        };
        depthwise::depthwise(on.isa, on.pool, &self.shape, &of, on.output(0));
        Ok(())
    }
}

#[derive(Debug)]
struct Pool {
    shape: ConvShape,
    kind: PoolKind,
    padded: [usize; 2],
}

pub(super) fn pool(check: &Checker<'_>, shape: &ImageShape, function: PoolFunction, padded: [usize; 2]) -> Prepared {
    let shape = image(shape)?;
    if shape.channels != shape.out_channels {
        return Err("a pool keeps its channels".to_owned());
    }
    if !taps_are_few(&shape.kernel, &[shape.pixels(), shape.channels]) {
        return Err("its windows are too large".to_owned());
    }
    check.takes(0, shape.image_len())?;
    check.gives(product(&[shape.pixels(), shape.channels])?)?;
    let kind = match function {
        PoolFunction::Max => PoolKind::Max,
        PoolFunction::Average { count_pad } => PoolKind::Average { count_pad },
    };
    Ok(Box::new(Pool { shape, kind, padded }))
}

impl Ready for Pool {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        window::pool(on.isa, on.pool, self.kind, &self.shape, self.padded, on.numbers(0), on.output(0));
        Ok(())
    }
}

#[derive(Debug)]
struct GlobalMean {
    channels: usize,
}

pub(super) fn global_mean(check: &Checker<'_>, channels: usize) -> Prepared {
    let (input, output) = (check.input_bytes(0), check.output_bytes());
    let line = (channels as u64).saturating_mul(4);
    let images = output.checked_div(line).unwrap_or(0);
    if channels == 0 || images == 0 || images * line != output || !input.is_multiple_of(images * line) || input == 0 {
        return Err("its image is not a whole number of pixels".to_owned());
    }
    Ok(Box::new(GlobalMean { channels }))
}

impl Ready for GlobalMean {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        window::global_mean(on.isa, on.pool, self.channels, on.numbers(0), on.output(0));
        Ok(())
    }
}
