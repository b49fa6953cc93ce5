//! Remainders, shifts and bits as they lie.

use super::{super::builder::Lowering, Rule};
use crate::{element_type, error::Refusal};
use planforge_graph::{
    ir::{Binary, Compare, ElementType, NamedOp, Op, Unary, ValueId},
    shape::is_float,
};

pub const RULES: &[Rule] = &[
    Rule { op_type: "BitCast", attributes: &["to"], lower: bit_cast },
    Rule { op_type: "BitShift", attributes: &["direction"], lower: bit_shift },
    Rule { op_type: "Mod", attributes: &["fmod"], lower: modulo },
];

fn pair(node: &Lowering<'_>) -> Result<[ValueId; 2], Refusal> {
    node.at_most(2)?;
    Ok([node.input(0, "first")?, node.input(1, "second")?])
}

/// The remainder has the sign of the divisor, or with `fmod` that of the dividend.
fn modulo(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let [x, y] = pair(node)?;
    if node.attributes.flag("fmod", false)? {
        return Ok(vec![node.binary(Binary::FMod, x, y)?]);
    }
    let element = node.ty(x).element;
    if !is_float(element) {
        return Ok(vec![node.binary(Binary::Mod, x, y)?]);
    }
    let rest = node.binary(Binary::FMod, x, y)?;
    let shape = node.shape(rest);
    let y = if node.shape(y) == shape { y } else { node.emit_as(Op::Expand, &[y], shape)? };
    let negative = node.compare_with(Compare::Less, rest, 0.0)?;
    let wants_negative = node.compare_with(Compare::Less, y, 0.0)?;
    let differs = node.binary(Binary::Xor, negative, wants_negative)?;
    let nothing = node.compare_with(Compare::Equal, rest, 0.0)?;
    let something = node.unary(Unary::Not, nothing)?;
    let wrong = node.binary(Binary::And, differs, something)?;
    let moved = node.binary(Binary::Add, rest, y)?;
    Ok(vec![node.choose(wrong, moved, rest)?])
}

/// The type of the same width without a sign, of those that have one.
fn unsigned(element: ElementType) -> Option<ElementType> {
    Some(match element {
        ElementType::I8 => ElementType::U8,
        ElementType::I16 => ElementType::U16,
        ElementType::I32 => ElementType::U32,
        ElementType::I64 => ElementType::U64,
        _ => return None,
    })
}

/// Amounts that are negative or as large as the width shift everything out, as in numpy.
fn bit_shift(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let op = match node.attributes.text_or("direction", "")? {
        "LEFT" => Binary::ShiftLeft,
        "RIGHT" => Binary::ShiftRight,
        other => {
            let reason = format!("is '{other}', not LEFT or RIGHT");
            return Err(Refusal::Attribute { name: "direction".into(), reason });
        }
    };
    let [x, by] = pair(node)?;
    let element = node.ty(x).element;
    let Some(plain) = unsigned(element).filter(|_| node.ty(by).element == element) else {
        return Ok(vec![node.binary(op, x, by)?]);
    };
    // A negative amount is a large one without its sign.
    let by = node.cast(by, plain)?;
    if op == Binary::ShiftLeft {
        let x = node.cast(x, plain)?;
        let shifted = node.binary(op, x, by)?;
        return Ok(vec![node.cast(shifted, element)?]);
    }
    // Ones come in from the left of a negative number: it is shifted as what it lacks to -1.
    let negative = node.compare_with(Compare::Less, x, 0.0)?;
    let turned = node.unary(Unary::BitwiseNot, x)?;
    let turned = node.choose(negative, turned, x)?;
    let turned = node.cast(turned, plain)?;
    let shifted = node.binary(op, turned, by)?;
    let shifted = node.cast(shifted, element)?;
    let back = node.unary(Unary::BitwiseNot, shifted)?;
    Ok(vec![node.choose(negative, back, shifted)?])
}

fn bit_cast(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "input")?;
    let wrong = |reason: String| Refusal::Attribute { name: "to".into(), reason };
    let number = node.attributes.required_int("to")?;
    let to = i32::try_from(number).map_err(|_| number.to_string()).and_then(element_type);
    let to = to.map_err(|name| wrong(format!("is {name}, which is not supported")))?;
    let own = node.ty(x).element;
    if to == own {
        return Ok(vec![node.emit(Op::Identity, &[x])?]);
    }
    if to.bytes() != own.bytes() || to == ElementType::Bool {
        return Err(wrong(format!("is {to}, whose bits are no {own}")));
    }
    let op = NamedOp::new("bit_cast").with_text("to", &to.to_string());
    Ok(vec![node.emit(Op::Named(op.into()), &[x])?])
}

#[cfg(test)]
mod tests {
    use crate::{
        import,
        testing::{TestModel, int, text},
    };
    use planforge_graph::{
        interpreter,
        ir::{Element, ElementType, Graph, Tensor},
    };
    use std::collections::BTreeMap;

    fn of_two<T: Element>(graph: &Graph, x: &[T], y: &[T]) -> Tensor {
        let list = |values: &[T]| Tensor::from_vec(vec![values.len()], values.to_vec()).expect("a list");
        let inputs = BTreeMap::from([("x".to_owned(), list(x)), ("y".to_owned(), list(y))]);
        interpreter::execute(graph, &inputs).expect("the graph runs")["z"].clone()
    }

    fn pair(op_type: &str, element: ElementType, count: i64, attribute: (&'static str, &'static str)) -> Graph {
        let (name, value) = attribute;
        let attributes = if value.is_empty() { vec![int(name, 0)] } else { vec![text(name, value)] };
        TestModel::new(26)
            .input_of("x", element, &[count])
            .input_of("y", element, &[count])
            .node(op_type, &["x", "y"], "z", attributes)
            .output("z")
            .import()
    }

    #[test]
    fn shifts_keep_the_sign_and_lose_what_is_shifted_out() {
        let shift = |way, x: &[i8], y: &[i8]| {
            let graph = pair("BitShift", ElementType::I8, x.len() as i64, ("direction", way));
            of_two(&graph, x, y).to_i64s().expect("integers")
        };
        let (x, by) = ([-8i8, -1, -128, 127, 5, -5, 5], [1i8, 7, 8, 3, -1, -1, 0]);
        assert_eq!(shift("RIGHT", &x, &by), [-4, -1, -1, 15, 0, -1, 5]);
        assert_eq!(shift("LEFT", &x, &by), [-16, -128, 0, -8, 0, 0, 5]);
    }

    #[test]
    fn remainders_of_floats_have_the_sign_of_the_divisor() {
        let graph = pair("Mod", ElementType::F32, 6, ("fmod", ""));
        let x = [-4.5f32, 7.25, 5.0, -3.0, 6.0, 1.0];
        let y = [2.0f32, -3.5, 8.0, f32::INFINITY, -3.0, 0.0];
        let z = of_two(&graph, &x, &y).to_f64s();
        assert_eq!(z[..5], [1.5, -3.25, 5.0, f64::INFINITY, 0.0]);
        assert!(z[5].is_nan());
    }

    #[test]
    fn bits_are_cast_to_types_of_their_width() {
        let cast = |to: i64| TestModel::new(26).input("x", &[2]).node("BitCast", &["x"], "z", vec![int("to", to)]);
        let graph = cast(6).output("z").import();
        let x = Tensor::from_vec(vec![2], vec![1.0f32, -2.5]).expect("two numbers");
        let z = &interpreter::execute(&graph, &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs")["z"];
        assert_eq!((z.element(), z.to_i64s()), (ElementType::I32, Some(vec![0x3f80_0000, -0x3fe0_0000])));
        for (to, says) in [(7, "is i64, whose bits are no f32"), (8, "is STRING, which is not supported")] {
            let error = import(&cast(to).output("z").model(), None).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
