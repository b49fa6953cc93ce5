//! Nodes of every known operator with inputs and attributes that nobody meant: read or refused, never worse.

use super::*;
use crate::lower::{known, rule};
use planforge_graph::ir::Tensor;
use planforge_onnx::proto::AttributeProto;

/// Draws of each operator.
const DRAWS: u64 = 400;

/// Numbers of a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    fn whole(&mut self) -> i64 {
        self.one(&[-2, -1, 0, 0, 1, 1, 1, 2, 2, 3, 4, 8, 100])
    }

    fn attribute(&mut self, name: &str) -> AttributeProto {
        match self.below(8) {
            0 => float(name, self.one(&[-1.0, 0.0, 0.5, 1.0, f32::NAN])),
            1 | 2 => {
                let count = self.below(5);
                ints(name, &(0..count).map(|_| self.whole()).collect::<Vec<_>>())
            }
            3 => text(
                name,
                self.one(&["", "NONE", "SAME_UPPER", "bidirectional", "Relu", "linear", "constant", "ab,bc->ac"]),
            ),
            _ => int(name, self.whole()),
        }
    }

    fn shape(&mut self) -> Vec<usize> {
        let rank = self.one(&[0, 1, 1, 2, 2, 3, 3, 4, 4, 5]);
        (0..rank).map(|_| self.one(&[0, 1, 1, 2, 2, 2, 3, 4, 4, 8])).collect()
    }
}

/// A model of one node, with some inputs of the model, some stored, some left out.
fn model_of(draw: &mut Draw, domain: &str, op_type: &str, attributes: &[&str]) -> TestModel {
    let elements = [
        ElementType::F32,
        ElementType::F32,
        ElementType::F32,
        ElementType::I64,
        ElementType::I32,
        ElementType::U8,
        ElementType::I8,
        ElementType::Bool,
        ElementType::F16,
    ];
    let mut model = TestModel::new(draw.one(&[11, 13, 17, 21, 24, 25]));
    let mut given = Vec::new();
    // Of one type and shape as often as not, which is what most operators want.
    let (usual, shape) = (draw.one(&elements), draw.shape());
    let inputs = draw.one(&[1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 7, 9, 11]);
    for at in 0..inputs {
        let name = format!("i{at}");
        let element = if draw.below(5) > 0 { usual } else { draw.one(&elements) };
        let shape = if draw.below(3) > 0 { shape.clone() } else { draw.shape() };
        match draw.below(12) {
            0 => {
                given.push(String::new());
                continue;
            }
            1..=7 => {
                let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
                model = model.input_of(&name, element, &sizes);
            }
            _ => {
                let count = shape.iter().product();
                let values: Vec<f64> = (0..count).map(|_| draw.whole() as f64).collect();
                let host = planforge_types::HostTensor::of_values(element, shape, &values);
                model = model.constant(&name, &Tensor::try_from(host).expect("values fill the shape"));
            }
        }
        given.push(name);
    }
    let mut written = Vec::new();
    for name in attributes.iter().filter(|_| draw.below(4) == 0).collect::<Vec<_>>() {
        written.push(draw.attribute(name));
    }
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let mut model = model.node(op_type, &given, "y", written).output("y");
    let node = &mut model.graph().node[0];
    node.domain = domain.into();
    node.output.extend((0..draw.one(&[0, 0, 0, 0, 1, 2])).map(|at: usize| format!("y{at}")));
    if !domain.is_empty() {
        model.proto.opset_import.push(OperatorSetIdProto { domain: domain.into(), version: draw.one(&[1, 1, 2, 5]) });
    }
    model
}

#[test]
fn whatever_a_node_is_given_it_is_read_or_refused() {
    let (mut read, mut all) = (0, 0);
    for operator in known() {
        let attributes = rule(operator.domain, operator.op_type).expect("it is known").attributes;
        for seed in 0..DRAWS {
            let name = format!("{}:{} {seed}", operator.domain, operator.op_type);
            let mut draw = Draw(name.bytes().fold(seed, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())));
            let model = model_of(&mut draw, operator.domain, operator.op_type, attributes);
            let made = std::panic::catch_unwind(|| import(&model.model(), None));
            let made = made.unwrap_or_else(|_| panic!("{name}: {:?}", model.proto.graph));
            all += 1;
            if let Ok(graph) = made {
                read += 1;
                graph.check().unwrap_or_else(|error| panic!("{name}: {error}"));
                check_graph(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    }
    assert!(read > 2_000 && all > 20_000, "{read} of {all} were read");
}
