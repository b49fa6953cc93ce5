//! Activations of every number that 16 bits hold, and how far results are from the right ones.

use planforge_cuda::view::{BufferId, Kind, View};
use planforge_graph::{
    interpreter,
    ir::{Activation, ElementType, GeluForm, Graph, Node, Op, Output, Tensor},
};
use planforge_types::HostTensor;
use std::{collections::BTreeMap, fmt};

/// As many numbers as 16 bits hold, those that are none included.
pub const COUNT: usize = 1 << 16;

/// Of the smallest results of bf16 only this much is asked: beyond it some are taken to be zero.
const VANISHING: f64 = 2e-36;

/// Every activation that is more than a comparison and a product.
pub const ACTIVATIONS: [Activation; 14] = [
    Activation::Gelu(GeluForm::Erf),
    Activation::Gelu(GeluForm::Tanh),
    Activation::Silu,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Softplus,
    Activation::Softsign,
    Activation::Mish,
    Activation::HardSwish,
    Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
    Activation::Elu { alpha: 1.0 },
    Activation::Elu { alpha: 0.5 },
    Activation::Selu { alpha: 1.67, gamma: 1.05 },
    Activation::Celu { alpha: 2.0 },
];

/// All of them, in the order of their bits, as a matrix of rows of 64.
pub fn view(kind: Kind) -> View {
    View::rows(BufferId(0), kind, &[1, COUNT as u64 / 64, 64])
}

/// Their bytes.
pub fn bytes() -> Vec<u8> {
    (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()
}

/// What bytes stand for.
pub fn numbers(kind: Kind, bytes: &[u8]) -> Vec<f64> {
    let count = bytes.len() / kind.bytes() as usize;
    Tensor::new(kind.element(), vec![count], bytes.to_vec().into()).expect("as many bytes as elements take").to_f64s()
}

/// What the reference operator, which computes in f64, makes of numbers that f32 holds.
pub fn expected(activation: Activation, numbers: &[f64]) -> Vec<f64> {
    let mut graph = Graph::default();
    let x = graph.add_value("x", ElementType::F32, &[numbers.len()]);
    let y = graph.add_value("y", ElementType::F32, &[numbers.len()]);
    graph.inputs.push(x);
    let (op, origins) = (Op::Activation(activation), vec!["activation".to_owned()]);
    graph.nodes.push(Node { op, inputs: vec![Some(x)], outputs: vec![y], origins });
    graph.outputs.push(Output { name: "y".into(), value: y });
    let values = Tensor::from_vec(vec![numbers.len()], numbers.iter().map(|&x| x as f32).collect());
    let inputs = BTreeMap::from([("x".to_owned(), values.expect("as many values as the shape says"))]);
    interpreter::execute(&graph, &inputs).expect("the reference computes it")["y"].to_f64s()
}

/// The result that is furthest off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worst {
    /// In units of the last place of the right result.
    pub ulps: u64,
    x: f64,
    got: f64,
    want: f64,
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ulps, x, got, want } = self;
        write!(f, "{ulps} ulps at most (of {x}: {got:e} for {want:e})")
    }
}

/// Where numbers of 16 bits stand among all of them.
fn place(bits: u16) -> i64 {
    let magnitude = i64::from(bits & 0x7fff);
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// The worst of results that are stored as `kind`; `slack` says of a number and its right result which absolute error
/// does not count. Results that are no number where one should be, or the other way round, are as wrong as can be.
pub fn worst(
    kind: Kind,
    activation: Activation,
    x: &[f64],
    got: &[u8],
    want: &[f64],
    slack: impl Fn(f64, f64) -> f64,
) -> Worst {
    let drops_nan = matches!(activation, Activation::HardSigmoid { .. } | Activation::Celu { .. });
    let right = HostTensor::of_values(kind.element(), vec![want.len()], want).bytes;
    let values = numbers(kind, got);
    let bits = |bytes: &[u8]| -> Vec<u16> { bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect() };
    let (got, right) = (bits(got), bits(&right));
    assert_eq!((got.len(), right.len()), (x.len(), x.len()));
    let mut worst = Worst::default();
    for (index, &x) in x.iter().enumerate() {
        let ulps = match (want[index].is_nan(), values[index].is_nan()) {
            // Of -inf the formula makes -inf times zero, and its limit is zero.
            (true, false) if x == f64::NEG_INFINITY && values[index] == 0.0 => 0,
            (true, true) => 0,
            // Limits to a range drop what is no number, as their instruction does.
            (true, false) if x.is_nan() && drops_nan => 0,
            (false, false) if (values[index] - want[index]).abs() <= slack(x, want[index]) => 0,
            (false, false) => place(got[index]).abs_diff(place(right[index])),
            (true, false) | (false, true) => u64::MAX,
        };
        if ulps > worst.ulps {
            worst = Worst { ulps, x, got: values[index], want: want[index] };
        }
    }
    worst
}

/// What our own kernels are held to: a unit in the last place, and of GELU by erf in the smallest results too.
pub fn own_slack(kind: Kind, activation: Activation) -> impl Fn(f64, f64) -> f64 {
    let vanishing = kind == Kind::Bf16 && activation != Activation::Gelu(GeluForm::Erf);
    move |_, _| if vanishing { VANISHING } else { 0.0 }
}
