//! Convolutions over NDHWC volumes.

use super::{
    Operands, Prepared, Ready, activation,
    checker::{Checker, product},
    images::{IMAGE_SIZE_MAX, image},
    products::tactics,
};
use crate::{
    error::EngineError,
    program::{Gather, StepKind, Tactic, VolumeSizes},
};
use planforge_graph::ir;
use planforge_kernels_cpu::{
    conv::{TAP_CHANNELS_MAX, VolumeRows, VolumeShape},
    gemm::{self, Blocking, Epilogue, Kernel, PackedSize},
    pointwise::Activation,
};

/// Every tactic of a convolution over volumes, the one to take untimed first; `None` for other kinds.
pub(super) fn candidates(kind: &StepKind, kernels: &[&Kernel], threads: usize) -> Option<Vec<Tactic>> {
    let StepKind::Volume { shape, .. } = kind else { return None };
    let shape: VolumeShape = (*shape).into();
    let columns = shape.plane.out_channels / shape.plane.groups;
    Some(tactics(kernels, threads, &[Gather::Taps], (shape.pixels(), columns, shape.product_depth())))
}

/// Sizes of packed weights and padded bias in elements; `None` for other kinds.
pub(super) fn packed_size(kind: &StepKind, kernel: &Kernel) -> Option<(usize, usize)> {
    let StepKind::Volume { shape, .. } = kind else { return None };
    let shape: VolumeShape = (*shape).into();
    let groups = shape.plane.groups;
    let size = PackedSize::new(kernel, shape.product_depth(), shape.plane.out_channels / groups)?;
    Some((size.elements * groups, size.columns * groups))
}

#[derive(Debug)]
struct Conv {
    shape: VolumeShape,
    blocking: Blocking,
    activation: Activation,
    /// Elements of one group's packed weights and padded bias.
    group_weights: usize,
    group_bias: usize,
}

pub(super) fn conv(check: &Checker<'_>, sizes: &VolumeSizes, of: Option<ir::Activation>) -> Prepared {
    let plane = image(&sizes.plane)?;
    let fine = [sizes.depth, sizes.out_depth, sizes.pad].iter().all(|&size| size <= IMAGE_SIZE_MAX)
        && [sizes.kernel, sizes.stride, sizes.dilation].iter().all(|&size| (1..=IMAGE_SIZE_MAX).contains(&size))
        && plane.channels / plane.groups <= TAP_CHANNELS_MAX;
    if !fine {
        return Err("its volume's sizes are out of bounds".to_owned());
    }
    product(&[plane.batch, sizes.depth, plane.height, plane.width, plane.channels])?;
    let out = product(&[plane.batch, sizes.out_depth, plane.out_height, plane.out_width, plane.out_channels])?;
    product(&[sizes.kernel, plane.kernel[0], plane.kernel[1], plane.channels, plane.out_channels])?;
    let shape: VolumeShape = (*sizes).into();
    let blocking = check.blocking_with_weights()?;
    let columns = plane.out_channels / plane.groups;
    let size = PackedSize::new(blocking.kernel, shape.product_depth(), columns).ok_or("its weights are too large")?;
    check.takes(0, shape.image_len())?;
    check.may_take(1, out)?;
    check.gives(out)?;
    check.holds("weights", check.step.weights, product(&[size.elements, plane.groups])?, 4)?;
    check.may_add(product(&[size.columns, plane.groups])?)?;
    check.needs_scratch(None)?;
    let (group_weights, group_bias) = (size.elements, size.columns);
    Ok(Box::new(Conv { shape, blocking, activation: activation(of), group_weights, group_bias }))
}

impl Ready for Conv {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let Self { shape, blocking, activation, group_weights, group_bias } = self;
        let (isa, pool, workspace) = (on.isa, on.pool, on.workspace);
        let (image, packed, bias, residual) = (on.numbers(0), on.weights(), on.bias(), on.input(1));
        let c = on.output(0);
        for group in 0..shape.plane.groups {
            let place = shape.plane.group_place(group);
            let epilogue = Epilogue {
                alpha: 1.0,
                bias: bias.map(|bias| &bias[group * group_bias..(group + 1) * group_bias]),
                residual: residual.map(|residual| (residual, place)),
                activation: *activation,
            };
            let b = &packed[group * group_weights..(group + 1) * group_weights];
            let b = (b, shape.plane.out_channels / shape.plane.groups);
            let rows = VolumeRows::new(*shape, image, group);
            gemm::multiply(isa, pool, workspace, blocking, &rows, b, (&mut *c, place), &epilogue);
        }
        Ok(())
    }
}
