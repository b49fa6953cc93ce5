//! Short spellings of the nodes that rules compose operators from.

use super::super::builder::Lowering;
use crate::error::Refusal;
use planforge_graph::ir::{Binary, Compare, ElementType, MatMul, Op, ReduceKind, Tensor, Unary, ValueId};

/// How far [`Lowering::counting`] counts: longer than any axis that is counted along.
const MAX_COUNTED: usize = 1 << 20;

/// Numbers that weigh as much as one node in what a model may unroll into.
const COUNTED_PER_NODE: usize = 1 << 10;

impl Lowering<'_> {
    pub fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Result<ValueId, Refusal> {
        self.emit(Op::Binary(op), &[a, b])
    }

    /// With a number of the same type on the right.
    pub fn binary_with(&mut self, op: Binary, a: ValueId, number: f64) -> Result<ValueId, Refusal> {
        let number = self.scalar(self.ty(a).element, number)?;
        self.binary(op, a, number)
    }

    pub fn unary(&mut self, op: Unary, x: ValueId) -> Result<ValueId, Refusal> {
        self.emit(Op::Unary(op), &[x])
    }

    pub fn compare(&mut self, op: Compare, a: ValueId, b: ValueId) -> Result<ValueId, Refusal> {
        self.emit(Op::Compare(op), &[a, b])
    }

    pub fn compare_with(&mut self, op: Compare, a: ValueId, number: f64) -> Result<ValueId, Refusal> {
        let number = self.scalar(self.ty(a).element, number)?;
        self.compare(op, a, number)
    }

    pub fn choose(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, Refusal> {
        self.emit(Op::Where, &[condition, a, b])
    }

    pub fn cast(&mut self, x: ValueId, to: ElementType) -> Result<ValueId, Refusal> {
        if self.ty(x).element == to { Ok(x) } else { self.emit(Op::Cast { to }, &[x]) }
    }

    pub fn reshape(&mut self, x: ValueId, shape: Vec<usize>) -> Result<ValueId, Refusal> {
        if self.ty(x).shape == shape { Ok(x) } else { self.emit_as(Op::Reshape, &[x], shape) }
    }

    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Result<ValueId, Refusal> {
        self.emit(Op::Transpose { perm: perm.to_vec() }, &[x])
    }

    pub fn reduce(&mut self, kind: ReduceKind, x: ValueId, axes: &[usize], keep: bool) -> Result<ValueId, Refusal> {
        self.emit(Op::Reduce { kind, axes: axes.to_vec(), keep }, &[x])
    }

    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Refusal> {
        self.emit(Op::MatMul(MatMul::default()), &[a, b])
    }

    /// A contiguous part of an axis.
    pub fn part(&mut self, x: ValueId, axis: usize, start: usize, length: usize) -> Result<ValueId, Refusal> {
        let mut out = self.shape(x);
        if start == 0 && out[axis] == length {
            return Ok(x);
        }
        let mut starts = vec![0; out.len()];
        (starts[axis], out[axis]) = (start, length);
        self.emit_as(Op::Slice { starts, steps: vec![1; out.len()] }, &[x], out)
    }

    /// A constant of computed numbers in a given type.
    pub fn numbers(&mut self, element: ElementType, shape: Vec<usize>, values: Vec<f64>) -> Result<ValueId, Refusal> {
        let values = self.add_constant(Tensor::from_vec(shape, values)?);
        self.cast(values, element)
    }

    /// Integers from 0 on.
    pub fn counting(&mut self, element: ElementType, count: usize) -> Result<ValueId, Refusal> {
        if count > MAX_COUNTED {
            return Err(Refusal::Unsupported { what: format!("counting along an axis of {count}") });
        }
        self.builder.unroll(count / COUNTED_PER_NODE)?;
        self.numbers(element, vec![count], (0..count).map(|at| at as f64).collect())
    }

    /// A constant whose values must be known, whatever its type and shape.
    pub fn known(&self, position: usize, what: &'static str) -> Result<&Tensor, Refusal> {
        let id = self.input(position, what)?;
        self.constant(id).ok_or(Refusal::NotConstant { what })
    }

    /// The one number of an input that must be known.
    pub fn known_number(&self, position: usize, what: &'static str) -> Result<f64, Refusal> {
        match self.known(position, what)?.to_f64s()[..] {
            [number] => Ok(number),
            ref numbers => {
                Err(Refusal::Impossible { what, value: format!("{} numbers", numbers.len()), shape: vec![1] })
            }
        }
    }
}
