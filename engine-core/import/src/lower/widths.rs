//! Types of eight bits and fewer: the numbers of what they are kept as, and the way back.

use super::super::builder::Lowering;
use crate::{error::Refusal, narrow::Narrow};
use planforge_graph::{
    ir::{Binary, ElementType, NamedOp, Op, Tensor, ValueId},
    named::EXPONENT,
    shape::is_float,
};

/// How a float becomes one of fewer bits.
#[derive(Clone, Copy, Debug)]
pub struct Rounding<'a> {
    /// What lies beyond the largest number becomes it.
    pub saturates: bool,
    /// Of exponents alone.
    pub mode: &'a str,
}

impl<'a> Lowering<'a> {
    /// The attributes of operators that make narrow floats, where the model's version has them.
    pub fn rounding(&self) -> Result<Rounding<'a>, Refusal> {
        let saturates = self.attributes.flag("saturate", true)?;
        let mode = self.attributes.text_or("round_mode", "up")?;
        if !["up", "down", "nearest"].contains(&mode) {
            return Err(Refusal::Attribute { name: "round_mode".into(), reason: format!("is {mode}") });
        }
        Ok(Rounding { saturates, mode })
    }

    /// What a value is kept as, as a value that is nothing else.
    pub fn codes(&mut self, id: ValueId) -> Result<ValueId, Refusal> {
        let Some(narrow) = self.narrow(id) else { return Ok(id) };
        if let Some(tensor) = self.builder.graph.constant(id).cloned() {
            return Ok(self.add_constant(tensor));
        }
        self.builder.narrow.remove(&id);
        let codes = self.emit(Op::Identity, &[id]);
        self.builder.narrow.insert(id, narrow);
        codes
    }

    /// The numbers of a value: integers as they are kept, floats as f32. One of another type stays.
    pub fn widened(&mut self, id: ValueId) -> Result<ValueId, Refusal> {
        let Some(narrow) = self.narrow(id) else { return Ok(id) };
        let codes = self.codes(id)?;
        if narrow.is_integer() {
            return Ok(codes);
        }
        let table = narrow.table();
        let table = self.add_constant(Tensor::from_vec(vec![table.len()], table)?);
        let codes = self.cast(codes, ElementType::I32)?;
        self.emit(Op::Gather { axis: 0 }, &[table, codes])
    }

    /// Numbers as `narrow`. Integers that do not fit wrap; floats are cut to integers first.
    pub fn narrowed(&mut self, x: ValueId, narrow: Narrow, rounding: Rounding<'_>) -> Result<ValueId, Refusal> {
        let made = if narrow.is_integer() {
            let wide = self.cast(x, ElementType::I32)?;
            let [least, largest] = narrow.range();
            let mask = self.scalar(ElementType::I32, largest - least)?;
            let raised = self.binary_with(Binary::Sub, wide, least)?;
            let kept = self.binary(Binary::BitwiseAnd, raised, mask)?;
            let kept = self.binary_with(Binary::Add, kept, least)?;
            self.cast(kept, narrow.kept_as())?
        } else {
            let x = if is_float(self.ty(x).element) { x } else { self.cast(x, ElementType::F32)? };
            let op = NamedOp::new("narrow_float")
                .with_text("to", narrow.name())
                .with_int("saturate", rounding.saturates.into());
            let op = if narrow.name() == EXPONENT { op.with_text("rounding", rounding.mode) } else { op };
            self.emit(Op::Named(op.into()), &[x])?
        };
        self.noted(made, narrow)
    }

    /// Integers that are kept as such a type is, cut to its range.
    pub fn clamped(&mut self, x: ValueId, narrow: Narrow) -> Result<ValueId, Refusal> {
        let [least, largest] = narrow.range();
        let x = self.binary_with(Binary::Max, x, least)?;
        let x = self.binary_with(Binary::Min, x, largest)?;
        self.noted(x, narrow)
    }

    /// A value of its own that is meant as `narrow`.
    pub fn noted(&mut self, id: ValueId, narrow: Narrow) -> Result<ValueId, Refusal> {
        self.builder.narrow.insert(id, narrow);
        Ok(id)
    }
}
