//! Functions of whole rows: softmax and normalization.

use super::{Operands, Prepared, Ready, checker::Checker};
use crate::error::EngineError;
use planforge_kernels_cpu::rows;

/// Checks that a step gives rows like those it takes, whole ones of `columns`.
fn whole_rows(check: &Checker<'_>, columns: usize) -> Result<(), String> {
    let elements = check.input_bytes(0) as usize / 4;
    check.gives(elements)?;
    check.takes(0, elements)?;
    if columns == 0 || !elements.is_multiple_of(columns) {
        return Err("its rows are not whole".to_owned());
    }
    Ok(())
}

#[derive(Debug)]
struct Softmax {
    columns: usize,
    guarded: bool,
}

pub(super) fn softmax(check: &Checker<'_>, columns: usize, guarded: bool) -> Prepared {
    whole_rows(check, columns)?;
    Ok(Box::new(Softmax { columns, guarded }))
}

impl Ready for Softmax {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, from) = (on.isa, on.pool, on.numbers(0));
        let to = on.output(0);
        to.copy_from_slice(from);
        rows::softmax(isa, pool, self.columns, self.guarded, to);
        Ok(())
    }
}

#[derive(Debug)]
struct LayerNorm {
    columns: usize,
    epsilon: f32,
}

pub(super) fn layer_norm(check: &Checker<'_>, columns: usize, epsilon: f32) -> Prepared {
    whole_rows(check, columns)?;
    check.may_take(1, columns)?;
    check.may_take(2, columns)?;
    Ok(Box::new(LayerNorm { columns, epsilon }))
}

impl Ready for LayerNorm {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let parameters = rows::NormParameters { scale: on.input(1), bias: on.input(2), epsilon: self.epsilon };
        rows::layer_norm(on.isa, on.pool, self.columns, on.numbers(0), parameters, on.output(0));
        Ok(())
    }
}
