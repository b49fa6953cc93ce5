//! Reference inputs: the same for the same model and seed, and such that a model makes sense of them.
//!
//! | input | values |
//! |---|---|
//! | floats | uniform with zero mean and unit variance, which is what normalised images and embeddings look like |
//! | masks, by name | ones, then zeros to the end of each row, in each row of a batch another share of them |
//! | integers that index an axis | whole numbers inside of it, so tokens of the vocabulary and positions that exist |
//! | lengths, by name | within the shortest axis of the other inputs, in each row of a batch another |
//! | a single number that the graph compares with constants | one of those constants |
//! | other integers | 0 or 1 |
//! | other bools | true |
//!
//! A mask of ones would leave masking untried, and one of zeros hides the very values that should be compared.

use planforge_graph::ir::{Binary, Graph, Node, Op, ValueId};
use planforge_types::{Digest, ElementType, HostTensor, NamedTensors, OptimizationProfile, Port};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

/// Seed of every reference input, so that a later measurement of the same model sees the same values.
pub const REFERENCE_SEED: u64 = 0x706c_616e_666f_7267;

/// Integers that index nothing we can see stay below this.
const SMALL: u64 = 2;

/// Rows of a batch that differ in how much of them is masked or counted: quarters, without all and none.
const QUARTERS: usize = 3;

/// How one input is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zero mean, unit variance.
    Spread,
    /// Whole numbers from 0 to one less than this.
    Below(u64),
    Ones,
    /// Ones, then zeros to the end of each row.
    Mask,
    /// Whole numbers from 1 to this, the largest not in every row.
    Length(u64),
    /// One of these.
    Among(Vec<i64>),
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
    let shapes: Vec<Vec<usize>> = graph.inputs.iter().map(|id| graph.static_shape(*id)).collect::<Option<_>>()?;
    // Behind the batch; an axis of one element counts nothing.
    let behind_batch = shapes.iter().filter(|shape| shape.len() > 1).flat_map(|shape| &shape[1..]);
    let shortest = behind_batch.copied().filter(|size| *size > 1).min();
    let spec = |(id, shape): (&ValueId, &Vec<usize>)| {
        let value = graph.value(*id);
        let uses = Uses::of(graph, *id);
        let free = uses.indexed.is_none();
        let counts = shape.len() <= 1 && names(&value.name, &["length", "lens", "seq_len"]);
        let fill = match (fill(&value.name, value.element, uses.indexed), shortest) {
            (Fill::Below(_), _) if free && shape.iter().product::<usize>() == 1 && !uses.compared.is_empty() => {
                Fill::Among(uses.compared)
            }
            (Fill::Below(_), Some(most)) if free && counts => Fill::Length(most as u64),
            (fill, _) => fill,
        };
        InputSpec { name: value.name.clone(), element: value.element, shape: shape.clone(), fill }
    };
    Some(graph.inputs.iter().zip(&shapes).map(spec).collect())
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

fn names(name: &str, words: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    words.iter().any(|word| name.contains(word))
}

fn fill(name: &str, element: ElementType, indexed: Option<u64>) -> Fill {
    // An index that is called a mask is an index.
    if indexed.is_none() && names(name, &["mask"]) {
        return Fill::Mask;
    }
    match element {
        ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::F64 => Fill::Spread,
        ElementType::Bool => Fill::Ones,
        _ => Fill::Below(indexed.unwrap_or(SMALL).max(1)),
    }
}

/// What a graph does with an input's values, as far as operators hand them on as they are, or a constant apart.
#[derive(Debug, Default)]
struct Uses {
    /// Below this every value is inside of all axes that are indexed by it.
    indexed: Option<u64>,
    /// Constants that it is compared with.
    compared: Vec<i64>,
}

impl Uses {
    fn of(graph: &Graph, input: ValueId) -> Self {
        // What is added to the input's values until they become these.
        let mut apart: Vec<Option<i64>> = vec![None; graph.values.len()];
        apart[input.index()] = Some(0);
        let mut uses = Self::default();
        for node in &graph.nodes {
            uses.indexed = [uses.indexed, bound(graph, node, &apart)].into_iter().flatten().min();
            if let Op::Compare(_) = node.op {
                uses.compared.extend(other_number(graph, node, &apart).map(|(number, by)| number - by));
            }
            if let Some(by) = handed_on(graph, node, &apart) {
                node.outputs.iter().for_each(|id| apart[id.index()] = Some(by));
            }
        }
        uses.compared.sort_unstable();
        uses.compared.dedup();
        uses
    }
}

/// What is added to the input's values in the results of this node, where they are those or some of them.
fn handed_on(graph: &Graph, node: &Node, apart: &[Option<i64>]) -> Option<i64> {
    let by = |position: usize| node.input(position).and_then(|id| apart[id.index()]);
    match &node.op {
        Op::Identity
        | Op::Cast { .. }
        | Op::Reshape
        | Op::Transpose { .. }
        | Op::Expand
        | Op::Slice { .. }
        | Op::Split { .. }
        | Op::Tile
        | Op::Gather { .. } => by(0),
        Op::Concat { .. } => node.inputs.iter().flatten().filter_map(|id| apart[id.index()]).max(),
        Op::Where => [by(1), by(2)].into_iter().flatten().max(),
        Op::Binary(Binary::Add) => other_number(graph, node, apart).map(|(number, by)| number + by),
        Op::Binary(Binary::Sub) if by(0).is_some() => other_number(graph, node, apart).map(|(number, by)| by - number),
        _ => None,
    }
}

/// The whole number that one side of this node is throughout, where the other side are the input's values, and what
/// those are apart from them.
fn other_number(graph: &Graph, node: &Node, apart: &[Option<i64>]) -> Option<(i64, i64)> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let (by, other) = match (apart[a.index()], apart[b.index()]) {
        (Some(by), None) => (by, b),
        (None, Some(by)) => (by, a),
        _ => return None,
    };
    let values = graph.constant(other)?.to_f64s();
    let first = *values.first()?;
    let whole = first == first.trunc() && first.abs() < 9e15 && values.iter().all(|value| *value == first);
    whole.then_some((first as i64, by))
}

/// Below what the input's values must stay for this node, where they index an axis.
fn bound(graph: &Graph, node: &Node, apart: &[Option<i64>]) -> Option<u64> {
    let indices = match &node.op {
        Op::Gather { .. } | Op::GatherElements { .. } => 1,
        _ => return None,
    };
    let by = apart[node.input(indices)?.index()]?;
    let (Op::Gather { axis } | Op::GatherElements { axis }) = &node.op else { return None };
    let size = *graph.static_shape(node.input(0)?)?.get(*axis)?;
    u64::try_from(i64::try_from(size).ok()? - by.max(0)).ok()
}

/// How much of a row is not masked, or counts: three quarters of the first, half of the second, a quarter of the
/// third, and so on; one element at least.
fn part(size: usize, row: usize) -> usize {
    let dropped = (size * (1 + row % QUARTERS) / (QUARTERS + 1)).max(1);
    size.saturating_sub(dropped).max(1)
}

fn make(spec: &InputSpec, seed: u64) -> HostTensor {
    let name = Digest::of(spec.name.as_bytes());
    let (head, _) = name.as_raw().split_first_chunk::<8>().expect("a digest has 32 bytes");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed ^ u64::from_le_bytes(*head));
    let count: usize = spec.shape.iter().product();
    let width = spec.shape.last().copied().unwrap_or(1);
    // Elements of one row of the batch; a mask without a batch is a row by itself.
    let of_row = if spec.shape.len() > 1 { spec.shape[1..].iter().product() } else { count };
    let mut value = |at: usize| match &spec.fill {
        // Uniform on ±√3 has unit variance.
        Fill::Spread => (random.random::<f64>() * 2.0 - 1.0) * 3f64.sqrt(),
        Fill::Below(bound) => random.random_range(0..*bound) as f64,
        Fill::Ones => 1.0,
        Fill::Mask => f64::from(u8::from(at % width < part(width, at / of_row))),
        Fill::Length(most) => part(*most as usize, at) as f64,
        Fill::Among(numbers) => numbers[random.random_range(0..numbers.len())] as f64,
    };
    let values: Vec<f64> = (0..count).map(&mut value).collect();
    HostTensor::of_values(spec.element, spec.shape.clone(), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_graph::ir::Tensor;
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
        let fills: Vec<Fill> = of_graph(&graph).unwrap().iter().map(|spec| spec.fill.clone()).collect();
        assert_eq!(fills, [Fill::Below(5), Fill::Below(SMALL), Fill::Mask]);
        let made = generate(&of_graph(&graph).unwrap(), 1);
        let ids = Tensor::try_from(made["ids"].clone()).unwrap().to_i64s().unwrap();
        assert!(ids.iter().all(|id| (0..5).contains(id)) && ids.iter().any(|id| *id > 0), "{ids:?}");
        let mask = Tensor::try_from(made["attention_mask"].clone()).unwrap().to_i64s().unwrap();
        assert_eq!(mask, [1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn masks_end_in_zeros_and_rows_differ() {
        let mask = |shape: &[usize]| {
            let spec = InputSpec {
                name: "m".into(),
                element: ElementType::Bool,
                shape: shape.to_vec(),
                fill: fill("key_padding_mask", ElementType::Bool, None),
            };
            Tensor::try_from(generate(&[spec], 1)["m"].clone()).unwrap().to_f64s()
        };
        assert_eq!(mask(&[3, 4]), [1., 1., 1., 0., 1., 1., 0., 0., 1., 0., 0., 0.]);
        // Every query of a sequence sees the same keys.
        assert_eq!(mask(&[2, 1, 2, 4]), [1., 1., 1., 0., 1., 1., 1., 0., 1., 1., 0., 0., 1., 1., 0., 0.]);
        assert_eq!(mask(&[1]), [1.0]);
        assert_eq!(mask(&[2]), [1.0, 0.0]);
        assert_eq!(mask(&[2, 0]), [0.0; 0]);
    }

    #[test]
    fn control_inputs_take_what_the_graph_compares_them_with() {
        let mut graph = Graph::default();
        let rate = graph.add_value("sr", ElementType::I64, &[]);
        let wide = graph.add_value("sr32", ElementType::F32, &[1]);
        let sixteen = graph.add_constant("sixteen", Tensor::from_vec(vec![1], vec![16_000f32]).unwrap());
        let is = graph.add_value("is", ElementType::Bool, &[1]);
        let ids = graph.add_value("ids", ElementType::I64, &[1, 4]);
        let pad = graph.add_constant("pad", Tensor::scalar(7i64));
        let padded = graph.add_value("padded", ElementType::Bool, &[1, 4]);
        graph.inputs = vec![rate, ids];
        let equal = || Op::Compare(planforge_graph::ir::Compare::Equal);
        graph.nodes = vec![
            node(Op::Cast { to: ElementType::F32 }, &[rate], wide),
            node(equal(), &[wide, sixteen], is),
            node(equal(), &[pad, ids], padded),
        ];
        let specs = of_graph(&graph).unwrap();
        // Many numbers are no switch.
        assert_eq!([&specs[0].fill, &specs[1].fill], [&Fill::Among(vec![16_000]), &Fill::Below(SMALL)]);
        let made = Tensor::try_from(generate(&specs, 3)["sr"].clone()).unwrap();
        assert_eq!(made.to_i64s().unwrap(), [16_000]);
    }

    #[test]
    fn positions_leave_room_for_what_is_added_to_them() {
        let mut graph = Graph::default();
        let positions = graph.add_value("position_ids", ElementType::I64, &[1, 6]);
        let two = graph.add_constant("two", Tensor::scalar(2i64));
        let later = graph.add_value("later", ElementType::I64, &[1, 6]);
        let table = graph.add_constant("table", Tensor::from_vec(vec![8, 2], vec![0f32; 16]).unwrap());
        let rows = graph.add_value("rows", ElementType::F32, &[1, 6, 2]);
        graph.inputs = vec![positions];
        graph.nodes = vec![
            node(Op::Binary(Binary::Add), &[two, positions], later),
            node(Op::Gather { axis: 0 }, &[table, later], rows),
        ];
        assert_eq!(of_graph(&graph).unwrap()[0].fill, Fill::Below(6));
    }

    #[test]
    fn lengths_are_within_what_they_count() {
        let mut graph = Graph::default();
        let signal = graph.add_value("signal", ElementType::F32, &[3, 40, 16]);
        let lengths = graph.add_value("signal_lengths", ElementType::I64, &[3]);
        graph.inputs = vec![signal, lengths];
        let specs = of_graph(&graph).unwrap();
        assert_eq!(specs[1].fill, Fill::Length(16));
        let made = Tensor::try_from(generate(&specs, 3)["signal_lengths"].clone()).unwrap();
        assert_eq!(made.to_i64s().unwrap(), [12, 8, 4]);
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
