//! RNN, GRU and LSTM.

use super::{super::builder::Lowering, Rule};
use crate::error::Refusal;
use planforge_graph::{
    ir::{ElementType, NamedOp, Op, ValueId},
    named::ACTIVATIONS,
};

macro_rules! cell {
    ($name:literal, $own:literal, $count:literal, $functions:expr) => {
        Rule {
            op_type: $name,
            attributes: &[
                "activation_alpha",
                "activation_beta",
                "activations",
                "clip",
                "direction",
                "hidden_size",
                "layout",
                $own,
            ],
            lower: |node| cell(node, $name, $count, $functions),
        }
    };
}

pub const RULES: &[Rule] = &[
    // RNN has no attribute of its own: its first one stands twice.
    cell!("RNN", "activations", 6, &["Tanh"]),
    cell!("GRU", "linear_before_reset", 6, &["Sigmoid", "Tanh"]),
    cell!("LSTM", "input_forget", 8, &["Sigmoid", "Tanh", "Tanh"]),
];

/// Of each direction, whether it goes backwards.
pub fn directions(node: &Lowering<'_>) -> Result<&'static [i64], Refusal> {
    Ok(match node.attributes.text_or("direction", "forward")? {
        "forward" => &[0],
        "reverse" => &[1],
        "bidirectional" => &[0, 1],
        other => return Err(Refusal::Attribute { name: "direction".into(), reason: format!("is {other}") }),
    })
}

fn cell(
    node: &mut Lowering<'_>,
    name: &str,
    inputs: usize,
    functions: &[&'static str],
) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(inputs)?;
    let batch_first = node.opset >= 14 && node.attributes.flag("layout", false)?;
    let (mut x, w, r) = (node.input(0, "X")?, node.input(1, "W")?, node.input(2, "R")?);
    let reverse = directions(node)?;
    for name in ["activation_alpha", "activation_beta"] {
        if node.attributes.floats(name)?.is_some_and(|values| !values.is_empty()) {
            return Err(Refusal::Attribute { name: name.into(), reason: "is not supported".into() });
        }
    }
    let known = |given: &str| -> Result<&'static str, Refusal> {
        let found = ACTIVATIONS.into_iter().find(|name| name.eq_ignore_ascii_case(given));
        found.ok_or_else(|| Refusal::Attribute {
            name: "activations".into(),
            reason: format!("names {given}, which is not supported"),
        })
    };
    let activations: Vec<&str> = match node.attributes.texts("activations")? {
        Some(given) => given.into_iter().map(known).collect::<Result<_, _>>()?,
        None => reverse.iter().flat_map(|_| functions.to_vec()).collect(),
    };
    let hidden = node.shape(r).get(2).copied().unwrap_or(0);
    if node.attributes.int("hidden_size")?.is_some_and(|given| given != hidden as i64) {
        let reason = format!("differs from the weights' {hidden}");
        return Err(Refusal::Attribute { name: "hidden_size".into(), reason });
    }
    let mut op =
        NamedOp::new(&name.to_ascii_lowercase()).with_ints("reverse", reverse).with_texts("activations", &activations);
    if let Some(clip) = node.attributes.float("clip")? {
        if clip.is_nan() || clip < 0.0 {
            return Err(Refusal::Attribute { name: "clip".into(), reason: format!("is {clip}") });
        }
        op = op.with_floats("clip", &[clip]);
    }
    for flag in ["linear_before_reset", "input_forget"] {
        if node.attributes.has(flag) {
            op = op.with_int(flag, node.attributes.flag(flag, false)?.into());
        }
    }
    let mut given = vec![None; inputs];
    for (position, slot) in given.iter_mut().enumerate() {
        *slot = node.optional(position);
    }
    if batch_first {
        x = node.transpose(x, &[1, 0, 2])?;
        for position in [5, 6] {
            if let Some(Some(state)) = given.get(position).copied() {
                given[position] = Some(node.transpose(state, &[1, 0, 2])?);
            }
        }
    }
    (given[0], given[1], given[2]) = (Some(x), Some(w), Some(r));
    if let Some(lengths) = given[4]
        && node.ty(lengths).element != ElementType::I32
    {
        return Err(Refusal::Element(format!("{} of sequence_lens", node.ty(lengths).element)));
    }
    let mut results = node.emit_all(Op::Named(op.into()), given, &[])?;
    if batch_first {
        results[0] = node.transpose(results[0], &[2, 0, 1, 3])?;
        for state in &mut results[1..] {
            *state = node.transpose(*state, &[1, 0, 2])?;
        }
    }
    Ok(results)
}
