//! Bits as they lie: the same bytes as another type, and floats as codes of eight bits or fewer.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{Inputs, OpError, numbers::floats},
    shape::{Given, ShapeError, TensorType, attribute, require},
};

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "bit_cast", takes_empty: false, infer: bit_cast_type, run: bit_cast },
    Entry { name: "narrow_float", takes_empty: false, infer: narrow_type, run: narrow },
];

/// Types whose every bit pattern is a value.
const CASTABLE: [ElementType; 12] = [
    ElementType::F32,
    ElementType::F16,
    ElementType::Bf16,
    ElementType::F64,
    ElementType::I8,
    ElementType::U8,
    ElementType::I16,
    ElementType::U16,
    ElementType::I32,
    ElementType::U32,
    ElementType::I64,
    ElementType::U64,
];

/// `[x]`: the same bytes as type `to`, of the same width. There is no cast to bool, most of whose patterns mean nothing.
fn bit_cast_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.get(0)?;
    let to = CASTABLE.into_iter().find(|element| element.to_string() == named.text("to"));
    let to = to.filter(|to| to.bytes() == x.element.bytes());
    let to = to.ok_or_else(|| attribute("to", named.text("to"), &x.shape))?;
    Ok(vec![TensorType::new(to, x.shape.clone())])
}

fn bit_cast(_: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let x = inputs.get(0)?;
    Ok(vec![Tensor::new(outputs[0].element, x.shape().to_vec(), x.bytes().clone())?])
}

/// A float of eight bits or fewer: sign, exponent, mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowFloat {
    /// As ONNX names the type.
    pub name: &'static str,
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// The code of the largest finite number.
    largest: u8,
    /// The code of infinity, where there is one.
    infinity: Option<u8>,
    /// The code of what is no number, where there is one.
    nan: Option<u8>,
    /// The code of negative zero is that of what is no number.
    one_zero: bool,
}

const fn narrow_float(name: &'static str, [exponent_bits, mantissa_bits]: [u32; 2], bias: i32) -> NarrowFloat {
    NarrowFloat {
        name,
        exponent_bits,
        mantissa_bits,
        bias,
        largest: 0x7f,
        infinity: None,
        nan: Some(0x80),
        one_zero: true,
    }
}

/// Exponents alone, without a sign.
pub const EXPONENT: &str = "FLOAT8E8M0";

pub const NARROW_FLOATS: [NarrowFloat; 5] = [
    NarrowFloat { largest: 0x7e, nan: Some(0x7f), one_zero: false, ..narrow_float("FLOAT8E4M3FN", [4, 3], 7) },
    narrow_float("FLOAT8E4M3FNUZ", [4, 3], 8),
    NarrowFloat {
        largest: 0x7b,
        infinity: Some(0x7c),
        nan: Some(0x7e),
        one_zero: false,
        ..narrow_float("FLOAT8E5M2", [5, 2], 15)
    },
    narrow_float("FLOAT8E5M2FNUZ", [5, 2], 16),
    NarrowFloat { largest: 0x7, nan: None, one_zero: false, ..narrow_float("FLOAT4E2M1", [2, 1], 1) },
];

impl NarrowFloat {
    fn sign(&self) -> u8 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// What a code without a sign is by its exponent and mantissa alone.
    fn magnitude(&self, code: u32) -> f64 {
        let (exponent, mantissa) = (code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1));
        let unit = f64::from(mantissa) / f64::from(1u32 << self.mantissa_bits);
        let scale = |exponent: i32| 2f64.powi(exponent - self.bias);
        if exponent == 0 { unit * scale(1) } else { (1.0 + unit) * scale(exponent as i32) }
    }

    /// The number of a code; bits that the format does not have are not looked at.
    pub fn decode(&self, code: u8) -> f64 {
        let sign = self.sign();
        let (bits, negative) = (code & (sign - 1), code & sign != 0);
        let value = match bits {
            0 if negative && self.one_zero => f64::NAN,
            bits if bits <= self.largest => self.magnitude(bits.into()),
            bits if Some(bits) == self.infinity => f64::INFINITY,
            _ => f64::NAN,
        };
        if negative { -value } else { value }
    }

    /// The code of the nearest number, of the even one of two that are equally near. Beyond the largest number stands the
    /// largest where it `saturates`, else infinity or what is no number; a format without either always saturates, and
    /// has negative zero for what is no number.
    pub fn encode(&self, value: f64, saturates: bool) -> u8 {
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        if value.is_nan() {
            return match self.nan {
                Some(nan) if self.one_zero => nan,
                Some(nan) => nan | sign,
                None => self.sign(),
            };
        }
        let (wanted, largest) = (value.abs(), u32::from(self.largest));
        // The first code that is not below; one more than there are stands for everything beyond.
        let above = (0..=largest).find(|&code| self.magnitude(code) >= wanted).unwrap_or(largest + 1);
        let mut code = above;
        if above > 0 && self.magnitude(above) > wanted {
            let (down, up) = (wanted - self.magnitude(above - 1), self.magnitude(above) - wanted);
            if down < up || (down == up && above % 2 == 1) {
                code = above - 1;
            }
        }
        let code = match u8::try_from(code).ok().filter(|&code| code <= self.largest && wanted.is_finite()) {
            Some(code) => code,
            None if saturates => self.largest,
            None => match (self.infinity, self.nan) {
                (Some(infinity), _) => infinity,
                (None, Some(nan)) if self.one_zero => return nan,
                (None, nan) => nan.unwrap_or(self.largest),
            },
        };
        if code == 0 && self.one_zero { 0 } else { code | sign }
    }
}

/// Which power of two a code without sign and mantissa is; the last is no number.
pub fn power(code: u8) -> f64 {
    if code == u8::MAX { f64::NAN } else { 2f64.powi(i32::from(code) - 127) }
}

/// The exponent of an f32 as a code, its fraction rounded; the sign is not looked at.
fn exponent(value: f64, saturates: bool, rounding: &str) -> u8 {
    let bits = (value as f32).to_bits();
    let exponent = ((bits >> 23) & 0xff) as u8;
    if exponent == u8::MAX {
        return u8::MAX;
    }
    let raised = match rounding {
        "up" => bits & 0x7f_ffff != 0,
        "nearest" => bits & 0x40_0000 != 0 && (bits & 0x3f_ffff != 0 || exponent > 0),
        _ => false,
    };
    let raised = raised && !(saturates && exponent == 0xfe);
    exponent + u8::from(raised)
}

const ROUNDINGS: [&str; 3] = ["up", "nearest", "down"];

/// `[x, floats]` -> codes, u8, of the format `to`; `saturate`: what lies beyond becomes the largest. `rounding` is that
/// of [`EXPONENT`] alone.
fn narrow_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.float(0)?;
    let to = named.text("to");
    let known = to == EXPONENT && ROUNDINGS.contains(&named.text("rounding"))
        || NARROW_FLOATS.iter().any(|format| format.name == to);
    require(known, || attribute("to", to, &x.shape))?;
    Ok(vec![TensorType::new(ElementType::U8, x.shape.clone())])
}

fn narrow(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let x = inputs.get(0)?;
    let (saturates, rounding) = (named.flag("saturate"), named.text("rounding"));
    let format = NARROW_FLOATS.into_iter().find(|format| format.name == named.text("to"));
    let code = |value: f64| match format {
        Some(format) => format.encode(value, saturates),
        None => exponent(value, saturates, rounding),
    };
    let codes: Vec<u8> = floats("narrow_float", x)?.into_iter().map(code).collect();
    Ok(vec![Tensor::from_vec(outputs[0].shape.clone(), codes)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{infer::infer, interpreter, ir::Op};

    fn format(name: &str) -> NarrowFloat {
        NARROW_FLOATS.into_iter().find(|format| format.name == name).expect("a known format")
    }

    #[test]
    fn every_code_comes_back() {
        for format in NARROW_FLOATS {
            let codes = 0..=(format.sign() - 1) | format.sign();
            for code in codes {
                let value = format.decode(code);
                let again = format.encode(value, false);
                let same = if value.is_nan() { format.decode(again).is_nan() } else { again == code };
                assert!(same, "{}: {code:#x} is {value}, which is {again:#x}", format.name);
            }
        }
        assert_eq!((power(127), power(128), power(0)), (1.0, 2.0, 2f64.powi(-127)));
        assert!(power(255).is_nan());
    }

    #[test]
    fn numbers_are_rounded_to_even_and_cut_at_the_largest() {
        let largest = [448.0, 240.0, 57344.0, 57344.0, 6.0];
        for (format, largest) in NARROW_FLOATS.into_iter().zip(largest) {
            assert_eq!(format.decode(format.encode(1e9, true)), largest, "{}", format.name);
            assert_eq!(format.decode(format.encode(f64::NEG_INFINITY, true)), -largest, "{}", format.name);
        }
        // Halfway between the largest and what would come next.
        assert_eq!(format("FLOAT8E4M3FN").encode(464.0, false), 0x7e);
        assert_eq!(format("FLOAT8E5M2").encode(61440.0, false), 0x7c);
        assert_eq!(format("FLOAT8E4M3FNUZ").encode(-1e-9, false), 0);
        assert_eq!(format("FLOAT8E4M3FN").encode(-1e-9, false), 0x80);
        assert_eq!([0.25, 0.75, 2.5, 3.5, -5.0].map(|x| format("FLOAT4E2M1").encode(x, true)), [0, 2, 4, 6, 0xe]);
        assert_eq!(["up", "nearest", "down"].map(|way| exponent(1.1, true, way)), [128, 127, 127]);
    }

    #[test]
    fn bits_are_cast_between_types_of_one_width_alone() {
        let x = Tensor::from_vec(vec![2], vec![1.0f32, -2.5]).expect("two numbers");
        let cast = |to: &str| Op::Named(NamedOp::new("bit_cast").with_text("to", to).into());
        let out = infer(&cast("i32"), &[Some(&TensorType::of(&x))], &[]).expect("both have 32 bits");
        let bits = interpreter::run(&cast("i32"), &[Some(&x)], &out).expect("bits can be cast").remove(0);
        assert_eq!(bits.to_i64s().expect("integers"), [0x3f80_0000, -0x3fe0_0000]);
        for other in ["i16", "f64", "bool", ""] {
            infer(&cast(other), &[Some(&TensorType::of(&x))], &[]).expect_err(other);
        }
    }
}
