//! Reference inputs: the same for the same model and seed, and such that a model makes sense of them.
//!
//! Floats are uniform with zero mean and unit variance, which is what normalised images and embeddings look like.
//! Integers that index a constant table stay inside it; other integers are 0 or 1. Masks are all ones: a mask of
//! zeros hides the very values that should be compared.

use planforge_graph::ir::{Graph, Op, ValueId};
use planforge_types::{Digest, ElementType, HostTensor, NamedTensors, OptimizationProfile, Port};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

/// Seed of every reference input, so that a later measurement of the same model sees the same values.
pub const REFERENCE_SEED: u64 = 0x706c_616e_666f_7267;

/// Integers that index nothing we can see stay below this.
const SMALL: u64 = 2;

/// How one input is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zero mean, unit variance.
    Spread,
    /// Whole numbers from 0 to one less than this.
    Below(u64),
    Ones,
}

/// One input to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    pub name: String,
    pub element: ElementType,
    pub shape: Vec<usize>,
    pub fill: Fill,
}

/// The inputs of a bound graph; `None` when a shape is not bound.
pub fn of_graph(graph: &Graph) -> Option<Vec<InputSpec>> {
    let spec = |id: &ValueId| {
        let value = graph.value(*id);
        let shape = graph.static_shape(*id)?;
        let bound = indexed_size(graph, *id);
        Some(InputSpec {
            name: value.name.clone(),
            element: value.element,
            shape,
            fill: fill(&value.name, value.element, bound),
        })
    };
    graph.inputs.iter().map(spec).collect()
}

/// The inputs of a plan whose model is not at hand: varying dimensions take the profile's usual size, else 1.
pub fn of_ports(ports: &[Port], profile: Option<&OptimizationProfile>) -> Vec<InputSpec> {
    let size = |port: &Port, axis: usize, fixed: Option<u64>| {
        let usual = || profile?.inputs.get(&port.name)?.get(axis).map(|range| range.opt);
        fixed.or_else(usual).unwrap_or(1) as usize
    };
    let spec = |port: &Port| InputSpec {
        name: port.name.clone(),
        element: port.element,
        shape: port.shape.iter().enumerate().map(|(axis, fixed)| size(port, axis, *fixed)).collect(),
        fill: fill(&port.name, port.element, None),
    };
    ports.iter().map(spec).collect()
}

/// Makes the inputs. Every input draws from a stream of its own, so that adding one changes no other.
pub fn generate(specs: &[InputSpec], seed: u64) -> NamedTensors {
    specs.iter().map(|spec| (spec.name.clone(), make(spec, seed))).collect()
}

fn fill(name: &str, element: ElementType, indexed: Option<u64>) -> Fill {
    if name.to_ascii_lowercase().contains("mask") {
        return Fill::Ones;
    }
    match element {
        ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::F64 => Fill::Spread,
        ElementType::Bool => Fill::Ones,
        _ => Fill::Below(indexed.unwrap_or(SMALL).max(1)),
    }
}

/// Size of the smallest constant axis that `input` indexes, looking through operators that keep its values.
fn indexed_size(graph: &Graph, input: ValueId) -> Option<u64> {
    let mut same = vec![false; graph.values.len()];
    same[input.index()] = true;
    let mut smallest = None;
    for node in &graph.nodes {
        let reads = |position: usize| node.input(position).is_some_and(|id| same[id.index()]);
        match &node.op {
            Op::Identity | Op::Cast { .. } | Op::Reshape | Op::Transpose { .. } | Op::Expand if reads(0) => {
                node.outputs.iter().for_each(|id| same[id.index()] = true);
            }
            Op::Gather { axis } if reads(1) => {
                let table = node.input(0).and_then(|id| graph.static_shape(id));
                let size = table.and_then(|shape| shape.get(*axis).map(|size| *size as u64));
                smallest = [smallest, size].into_iter().flatten().min();
            }
            _ => {}
        }
    }
    smallest
}

fn make(spec: &InputSpec, seed: u64) -> HostTensor {
    let name = Digest::of(spec.name.as_bytes());
    let (head, _) = name.as_raw().split_first_chunk::<8>().expect("a digest has 32 bytes");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed ^ u64::from_le_bytes(*head));
    let count: usize = spec.shape.iter().product();
    let mut value = || match spec.fill {
        // Uniform on ±√3 has unit variance.
        Fill::Spread => (random.random::<f64>() * 2.0 - 1.0) * 3f64.sqrt(),
        Fill::Below(bound) => random.random_range(0..bound) as f64,
        Fill::Ones => 1.0,
    };
    let values: Vec<f64> = (0..count).map(|_| value()).collect();
    HostTensor::of_values(spec.element, spec.shape.clone(), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_graph::ir::{Node, Tensor};
    use planforge_types::DimRange;

    fn node(op: Op, inputs: &[ValueId], output: ValueId) -> Node {
        Node { op, inputs: inputs.iter().map(|id| Some(*id)).collect(), outputs: vec![output], origins: Vec::new() }
    }

    #[test]
    fn token_ids_stay_inside_the_embedding_table() {
        let mut graph = Graph::default();
        let ids = graph.add_value("ids", ElementType::I64, &[1, 6]);
        let free = graph.add_value("counts", ElementType::I32, &[3]);
        let mask = graph.add_value("attention_mask", ElementType::I64, &[1, 6]);
        let flat = graph.add_value("flat", ElementType::I64, &[6]);
        let table = graph.add_constant("table", Tensor::from_vec(vec![5, 2], vec![0f32; 10]).unwrap());
        let rows = graph.add_value("rows", ElementType::F32, &[6, 2]);
        graph.inputs = vec![ids, free, mask];
        graph.nodes = vec![node(Op::Reshape, &[ids], flat), node(Op::Gather { axis: 0 }, &[table, flat], rows)];
        let fills: Vec<Fill> = of_graph(&graph).unwrap().iter().map(|spec| spec.fill).collect();
        assert_eq!(fills, [Fill::Below(5), Fill::Below(SMALL), Fill::Ones]);
        let made = generate(&of_graph(&graph).unwrap(), 1);
        let ids = Tensor::try_from(made["ids"].clone()).unwrap().to_i64s().unwrap();
        assert!(ids.iter().all(|id| (0..5).contains(id)) && ids.iter().any(|id| *id > 0), "{ids:?}");
        assert!(made["attention_mask"].bytes.chunks(8).all(|bytes| bytes[0] == 1));
    }

    #[test]
    fn floats_are_spread_and_repeatable() {
        let spec = |name: &str| InputSpec {
            name: name.into(),
            element: ElementType::F32,
            shape: vec![50, 100],
            fill: Fill::Spread,
        };
        let made = generate(&[spec("a"), spec("b")], 7);
        let values = Tensor::try_from(made["a"].clone()).unwrap().to_f64s();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert_ne!(made["a"], made["b"]);
        assert_eq!(generate(&[spec("b")], 7)["b"], made["b"]);
        assert_ne!(generate(&[spec("b")], 8)["b"], made["b"]);
    }

    #[test]
    fn a_plan_alone_gives_shapes_by_its_profile() {
        let port = Port { name: "x".into(), element: ElementType::F16, shape: vec![None, Some(3), None] };
        let range = |opt| DimRange { min: 1, opt, max: 9 };
        let profile = OptimizationProfile { inputs: [("x".to_owned(), vec![range(4), range(3)])].into() };
        assert_eq!(of_ports(std::slice::from_ref(&port), Some(&profile))[0].shape, [4, 3, 1]);
        assert_eq!(of_ports(&[port], None)[0].shape, [1, 3, 1]);
    }

    #[test]
    fn every_type_has_the_length_it_should() {
        for element in [ElementType::Bool, ElementType::Bf16, ElementType::U8, ElementType::I16, ElementType::U64] {
            let spec = InputSpec { name: "x".into(), element, shape: vec![3], fill: fill("x", element, Some(9)) };
            assert_eq!(generate(&[spec], 1)["x"].bytes.len(), 3 * element.bytes(), "{element:?}");
        }
    }
}
