//! Fourier transforms.

use super::{Operands, Prepared, Ready, checker::Checker};
use crate::{error::EngineError, program::FourierLines};
use planforge_kernels_cpu::fourier::{Fourier, Lines};

#[derive(Debug)]
struct Transform(Fourier);

pub(super) fn fourier(check: &Checker<'_>, length: usize, inverse: bool, of: &FourierLines) -> Prepared {
    let lines = Lines {
        count: of.count,
        from: of.from,
        to: of.to,
        from_step: of.from_step,
        to_step: of.to_step,
        given: of.given,
        from_complex: of.from_complex,
        to_complex: of.to_complex,
        bins: of.bins,
        mirrored: of.mirrored,
    };
    let made = Fourier::new(length, inverse, lines).ok_or("its sizes are out of bounds")?;
    let [from, to] = made.needs().map(|elements| (elements as u64).saturating_mul(4));
    if check.input_bytes(0) < from || check.output_bytes() < to || check.step.outputs.len() != 1 {
        return Err("its lines leave their buffers".to_owned());
    }
    check.may_take(1, length)?;
    Ok(Box::new(Transform(made)))
}

impl Ready for Transform {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, from, window) = (on.isa, on.pool, on.numbers(0), on.input(1));
        self.0.run(isa, pool, window, from, on.output(0));
        Ok(())
    }
}
