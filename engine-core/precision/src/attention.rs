//! Attention as models have it in pieces, and whether both of its products may be made of integers.

use crate::net::{Net, is_standard};
use planforge_onnx::proto::NodeProto;
use std::collections::{BTreeMap, BTreeSet};

/// `q, k -> MatMul -> Div -> Add mask -> Softmax`, and `v -> MatMul` with what that gives; a scale or none, a mask or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attention {
    /// The products, by node.
    pub scores: usize,
    pub context: usize,
    pub queries: String,
    pub keys: String,
    pub values: String,
    pub weights: String,
    pub result: String,
}

/// The attentions of a model, each with everything between its products read by nobody else.
pub fn attentions(net: &Net, readers: &BTreeMap<&str, Vec<usize>>, fixed: &BTreeSet<String>) -> Vec<Attention> {
    let makers = net.makers();
    let nodes = &net.graph().node;
    let computed = |name: &str| !name.is_empty() && net.initializer(name).is_none() && net.is_single(name);
    let sole = |name: &str| {
        let alone = readers.get(name).is_some_and(|all| all.len() == 1) && !fixed.contains(name);
        makers.get(name).copied().filter(|at| alone && is_standard(&nodes[*at].domain))
    };
    let is_product = |node: &NodeProto| {
        node.op_type == "MatMul" && is_standard(&node.domain) && node.input.iter().all(|name| computed(name))
    };
    let product = |name: &str| -> Option<usize> {
        let at = sole(name)?;
        if is_product(&nodes[at]) {
            return Some(at);
        }
        let product = scaled_by_one_number(net, &nodes[at])?;
        sole(product).filter(|at| is_product(&nodes[*at]))
    };
    let of = |context: usize| -> Option<Attention> {
        let [weights, values] = &nodes[context].input[..] else { return None };
        let softmax = sole(weights).filter(|at| nodes[*at].op_type == "Softmax")?;
        let before = &nodes[softmax].input[0];
        let masked = || {
            let add = &nodes[sole(before).filter(|at| nodes[*at].op_type == "Add")?];
            add.input.iter().find_map(|name| product(name))
        };
        let scores = product(before).or_else(masked)?;
        let [queries, keys] = &nodes[scores].input[..] else { return None };
        let heads = |name: &str| net.shape(name).map(|shape| shape[..shape.len().saturating_sub(2)].to_vec());
        let own = heads(queries).filter(|heads| (1..=2).contains(&heads.len()))?;
        let alike = [keys, values].into_iter().all(|name| heads(name).as_ref() == Some(&own));
        alike.then(|| Attention {
            scores,
            context,
            queries: queries.clone(),
            keys: keys.clone(),
            values: values.clone(),
            weights: weights.clone(),
            result: nodes[context].output[0].clone(),
        })
    };
    (0..nodes.len()).filter(|at| is_product(&nodes[*at])).filter_map(of).collect()
}

/// What a node multiplies or divides by one stored number.
pub fn scaled_by_one_number<'a>(net: &Net, node: &'a NodeProto) -> Option<&'a str> {
    let [a, b] = &node.input[..] else { return None };
    let one = |name: &str| net.floats(name).is_some_and(|values| values.len() == 1);
    let of = match node.op_type.as_str() {
        "Mul" | "Div" if is_standard(&node.domain) && one(b) => a,
        "Mul" if is_standard(&node.domain) && one(a) => b,
        _ => return None,
    };
    (net.shape(of).is_some() && net.shape(of) == net.shape(&node.output[0])).then_some(of)
}
