//! Element-wise programs over operands of any type.

use super::{
    Operands, Prepared, Ready, activation,
    checker::{Checker, product},
};
use crate::{
    error::EngineError,
    program::{LoopInstruction, LoopOperand},
};
use planforge_graph::ir::{self, ElementType};
use planforge_kernels_cpu::nest::{Binary, Class, Compare, Instruction, Nest, Source, Unary};

#[derive(Debug)]
struct Loops(Nest);

pub(super) fn loops(
    check: &Checker<'_>,
    sizes: &[usize],
    operands: &[LoopOperand],
    code: &[LoopInstruction],
    element: ElementType,
) -> Prepared {
    let count = product(sizes)?;
    if operands.len() != check.step.inputs.len() || check.step.outputs.len() != 1 {
        return Err("it has not as many operands as inputs, or not one output".to_owned());
    }
    check.holds("output", check.output(), count, element.bytes())?;
    // What each operand is held as: the first load of it says.
    let mut classes: Vec<Option<Class>> = vec![None; operands.len()];
    let mut instructions = Vec::with_capacity(code.len());
    for instruction in code {
        if let LoopInstruction::Load(at) | LoopInstruction::LoadAs(at, _) = *instruction {
            let operand = operands.get(at).ok_or("it loads an operand that is not there")?;
            let class = match *instruction {
                LoopInstruction::LoadAs(_, to) if matches!(to, ElementType::F32 | ElementType::F64) => Class::of(to),
                LoopInstruction::LoadAs(..) => return Err("it loads as a type that numbers are not held as".to_owned()),
                _ => Class::of(operand.element),
            };
            if classes[at].replace(class).is_some() {
                return Err("it loads an operand twice".to_owned());
            }
        }
        instructions.push(kernel_form(instruction)?);
    }
    let mut sources = Vec::with_capacity(operands.len());
    for (operand, class) in operands.iter().zip(classes) {
        let class = class.ok_or("it has an operand that it does not load")?;
        sources.push(Source::new(operand.element, class, operand.first, &operand.strides));
    }
    let nest = Nest::new(sizes, sources, &instructions, element).map_err(|reason| format!("it {reason}"))?;
    for at in 0..operands.len() {
        if check.input_bytes(at) < nest.needs(at) as u64 {
            return Err(format!("its input {at} is too short"));
        }
    }
    Ok(Box::new(Loops(nest)))
}

impl Ready for Loops {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let inputs: Vec<&[u8]> = (0..on.step.inputs.len()).map(|at| on.input(at).unwrap_or_default()).collect();
        let (isa, pool, step) = (on.isa, on.pool, on.step);
        let failed = |source| EngineError::Loops { step: step.origins.join(" + "), source };
        self.0.run(isa, pool, &inputs, on.output(0)).map_err(failed)
    }
}

/// Least and largest number that an integer type holds, where f32 holds them exactly.
fn range(element: ElementType) -> Option<(f32, f32)> {
    Some(match element {
        ElementType::I8 => (-128.0, 127.0),
        ElementType::U8 => (0.0, 255.0),
        ElementType::I16 => (-32768.0, 32767.0),
        ElementType::U16 => (0.0, 65535.0),
        _ => return None,
    })
}

fn kernel_form(of: &LoopInstruction) -> Result<Instruction, String> {
    Ok(match *of {
        LoopInstruction::Load(at) | LoopInstruction::LoadAs(at, _) => Instruction::Load(at),
        LoopInstruction::Convert(from, to) => Instruction::Convert { from, to },
        LoopInstruction::Unary(function, x) => Instruction::Unary(unary(function), x),
        LoopInstruction::Activation(of, x) => Instruction::Activate(activation(Some(of)), x),
        LoopInstruction::Binary(function, a, b) => Instruction::Binary(binary(function)?, a, b),
        LoopInstruction::Shift { left, bits, x, by } => {
            if bits > 64 {
                return Err("it shifts integers of too many bits".to_owned());
            }
            Instruction::Binary(if left { Binary::ShiftLeft(bits) } else { Binary::ShiftRight(bits) }, x, by)
        }
        LoopInstruction::Compare(function, a, b) => Instruction::Compare(compare(function), a, b),
        LoopInstruction::Select(condition, a, b) => Instruction::Select(condition, a, b),
        LoopInstruction::Quantize { element, x, scale, zero } => {
            let (low, high) = range(element).ok_or_else(|| format!("it quantizes to {element}"))?;
            Instruction::Quantize { x, scale, zero, low, high }
        }
    })
}

fn unary(of: ir::Unary) -> Unary {
    use ir::Unary as From;
    match of {
        From::Neg => Unary::Neg,
        From::Abs => Unary::Abs,
        From::Exp => Unary::Exp,
        From::Log => Unary::Log,
        From::Sqrt => Unary::Sqrt,
        From::Reciprocal => Unary::Reciprocal,
        From::Floor => Unary::Floor,
        From::Ceil => Unary::Ceil,
        From::Round => Unary::Round,
        From::Sign => Unary::Sign,
        From::Erf => Unary::Erf,
        From::Sin => Unary::Sin,
        From::Cos => Unary::Cos,
        From::Tan => Unary::Tan,
        From::Asin => Unary::Asin,
        From::Acos => Unary::Acos,
        From::Atan => Unary::Atan,
        From::Sinh => Unary::Sinh,
        From::Cosh => Unary::Cosh,
        From::Asinh => Unary::Asinh,
        From::Acosh => Unary::Acosh,
        From::Atanh => Unary::Atanh,
        From::Not => Unary::Not,
        From::IsNan => Unary::IsNan,
        From::BitwiseNot => Unary::BitwiseNot,
    }
}

fn binary(of: ir::Binary) -> Result<Binary, String> {
    use ir::Binary as From;
    Ok(match of {
        From::Add => Binary::Add,
        From::Sub => Binary::Sub,
        From::Mul => Binary::Mul,
        From::Div => Binary::Div,
        From::Pow => Binary::Pow,
        From::Min => Binary::Min,
        From::Max => Binary::Max,
        From::Mod => Binary::Mod,
        From::FMod => Binary::FMod,
        From::PRelu => Binary::PRelu,
        From::And | From::BitwiseAnd => Binary::And,
        From::Or | From::BitwiseOr => Binary::Or,
        From::Xor | From::BitwiseXor => Binary::Xor,
        From::ShiftLeft | From::ShiftRight => return Err("it shifts without a number of bits".to_owned()),
    })
}

fn compare(of: ir::Compare) -> Compare {
    match of {
        ir::Compare::Equal => Compare::Equal,
        ir::Compare::Less => Compare::Less,
        ir::Compare::LessOrEqual => Compare::LessOrEqual,
        ir::Compare::Greater => Compare::Greater,
        ir::Compare::GreaterOrEqual => Compare::GreaterOrEqual,
    }
}
