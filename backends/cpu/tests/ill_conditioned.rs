//! Models that make anything of a last digit: a norm of values that do not differ, a division by next to nothing, a softmax
//! of huge numbers, differences of sums that are nearly equal. Engines of them are right though their outputs lie apart;
//! engines of something else are wrong, which their well conditioned outputs show.

mod support;

use planforge_backend::{Cancel, Compiler, LoadOptions, Meter};
use planforge_cpu::CpuCompiler;
use planforge_device::CpuLevel;
use planforge_graph::ir::{ElementType, Graph};
use planforge_import::testing::{TestModel, float, int, ints, numbers};
use planforge_types::{NamedTensors, Precision};
use planforge_worker::{
    measure::MonotonicClock,
    verify::{Check, ORACLE_BUDGET_MS, Verdict, inputs},
};
use prost::Message as _;
use std::fs;
use support::Silent;

/// Rows of every model, and what stands behind each of them: no power of two, so that means are rounded.
const ROWS: i64 = 6;
const WIDTH: i64 = 96;

/// A model whose output `y` is badly conditioned, and `z`, which is not, is made of the same numbers.
struct Case {
    name: &'static str,
    model: fn(&Weights) -> TestModel,
}

/// What a fault changes.
#[derive(Clone)]
struct Weights {
    /// The trunk's, which both outputs follow from.
    trunk: Vec<f32>,
    /// Behind the badly conditioned step.
    head: Vec<f32>,
}

impl Weights {
    fn right() -> Self {
        let of = |shift: f32| numbers((WIDTH * WIDTH) as usize).iter().map(|x| (x + shift) / 8.0).collect();
        Self { trunk: of(0.001), head: of(0.013) }
    }

    /// Two channels of the trunk hold each other's values.
    fn swapped(mut self) -> Self {
        let width = WIDTH as usize;
        self.trunk.chunks_mut(width).for_each(|row| row.swap(3, 4));
        self
    }
}

/// 0 or 1, as floats, a row each: `rows` [ROWS, WIDTH], of which every row is the same number throughout.
fn constant_rows(opset: i64) -> TestModel {
    TestModel::new(opset)
        .input_of("flags", ElementType::I64, &[ROWS, 1])
        .node("Cast", &["flags"], "flag", vec![int("to", 1)])
        .longs("shape", &[ROWS, WIDTH])
        .node("Expand", &["flag", "shape"], "rows", vec![])
}

/// `from` through the trunk to the well conditioned output.
fn with_trunk(model: TestModel, from: &str, weights: &Weights) -> TestModel {
    let shape = [WIDTH as usize, WIDTH as usize];
    model.floats("trunk", &shape, &weights.trunk).node("MatMul", &[from, "trunk"], "mixed", vec![]).node(
        "Tanh",
        &["mixed"],
        "z",
        vec![],
    )
}

fn with_head(model: TestModel, from: &str, weights: &Weights) -> TestModel {
    let shape = [WIDTH as usize, WIDTH as usize];
    model.floats("head", &shape, &weights.head).node("MatMul", &[from, "head"], "y", vec![]).output("y").output("z")
}

/// The norm as one operator, of rows without any variance.
fn layer_norm(weights: &Weights) -> TestModel {
    let model = with_trunk(constant_rows(17), "rows", weights)
        .floats("tenths", &[1], &[0.1])
        .node("Mul", &["rows", "tenths"], "tenth", vec![])
        .floats("ones", &[WIDTH as usize], &vec![1.0; WIDTH as usize])
        .node("LayerNormalization", &["tenth", "ones"], "normed", vec![int("axis", -1), float("epsilon", 1e-14)]);
    with_head(model, "normed", weights)
}

/// The same of 0 and 1, as exporters spell it out.
fn layer_norm_in_parts(weights: &Weights) -> TestModel {
    let last = || vec![ints("axes", &[-1]), int("keepdims", 1)];
    let model = with_trunk(constant_rows(17), "rows", weights)
        .floats("two", &[], &[2.0])
        .floats("epsilon", &[], &[1e-12])
        .node("ReduceMean", &["rows"], "mean", last())
        .node("Sub", &["rows", "mean"], "apart", vec![])
        .node("Pow", &["apart", "two"], "squares", vec![])
        .node("ReduceMean", &["squares"], "variance", last())
        .node("Add", &["variance", "epsilon"], "above", vec![])
        .node("Sqrt", &["above"], "deviation", vec![])
        .node("Div", &["apart", "deviation"], "normed", vec![]);
    with_head(model, "normed", weights)
}

/// `nothing`: the trunk's product less the same product, its terms in another order.
fn with_nothing(weights: &Weights) -> TestModel {
    let width = WIDTH as usize;
    let order: Vec<i64> = (0..WIDTH).map(|index| index * 35 % WIDTH).collect();
    let rows = order.iter().flat_map(|&row| weights.trunk[row as usize * width..][..width].iter().copied());
    with_trunk(TestModel::new(17).input("x", &[ROWS, WIDTH]), "x", weights)
        .longs("order", &order)
        .node("Gather", &["x", "order"], "shuffled", vec![int("axis", 1)])
        .floats("rows", &[width, width], &rows.collect::<Vec<_>>())
        .node("MatMul", &["shuffled", "rows"], "again", vec![])
        .node("Sub", &["mixed", "again"], "nothing", vec![])
}

/// Unit vectors made of what is next to nothing.
fn near_zero_norm(weights: &Weights) -> TestModel {
    let model = with_nothing(weights)
        .floats("least", &[], &[1e-12])
        .node("ReduceL2", &["nothing"], "length", vec![ints("axes", &[-1]), int("keepdims", 1)])
        .node("Add", &["length", "least"], "norm", vec![])
        .node("Div", &["nothing", "norm"], "unit", vec![]);
    with_head(model, "unit", weights)
}

/// A softmax of logits so large that their last digits decide it.
fn huge_logits(weights: &Weights) -> TestModel {
    let model = with_nothing(weights)
        .floats("large", &[], &[1e7])
        .node("Mul", &["nothing", "large"], "logits", vec![])
        .node("Softmax", &["logits"], "weights", vec![int("axis", -1)]);
    with_head(model, "weights", weights)
}

/// One product of exact numbers whose terms take each other away, so that nothing but its own roundings is left; then a
/// norm of that.
fn cancelling_product(weights: &Weights) -> TestModel {
    let (width, half) = (WIDTH as usize, WIDTH as usize / 2);
    let large = |row: usize| weights.trunk[row * width..][..width].iter().map(|value| value * 1e3);
    let theirs = (0..half).flat_map(|row| large(row * 35 % half).map(|value| -value));
    let pairs: Vec<f32> = (0..half).flat_map(large).chain(theirs).collect();
    let model = with_trunk(constant_rows(17), "rows", weights)
        .floats("pairs", &[width, width], &pairs)
        .node("MatMul", &["rows", "pairs"], "left", vec![])
        .floats("ones", &[width], &vec![1.0; width])
        .node("LayerNormalization", &["left", "ones"], "normed", vec![int("axis", -1), float("epsilon", 1e-16)]);
    with_head(model, "normed", weights)
}

/// Two sums of the same terms in another order, and a division by what sets them apart.
fn near_equal_sums(weights: &Weights) -> TestModel {
    let width = WIDTH as usize;
    let order: Vec<i64> = (0..WIDTH).map(|index| index * 35 % WIDTH).collect();
    let model = with_trunk(TestModel::new(17).input("x", &[ROWS, WIDTH]), "x", weights)
        .floats("scales", &[width], &(0..width).map(|index| 1.0 + (index * index) as f32).collect::<Vec<_>>())
        .node("Mul", &["mixed", "scales"], "scaled", vec![])
        .longs("order", &order)
        .floats("ones", &[width, 1], &vec![1.0; width])
        .node("Gather", &["scaled", "order"], "shuffled", vec![int("axis", 1)])
        .node("MatMul", &["scaled", "ones"], "sum", vec![])
        .node("MatMul", &["shuffled", "ones"], "same", vec![])
        .node("Sub", &["sum", "same"], "rest", vec![])
        .floats("tiny", &[], &[1e-3])
        .node("Abs", &["rest"], "size", vec![])
        .node("Add", &["size", "tiny"], "least", vec![])
        .node("Div", &["mixed", "least"], "blown", vec![]);
    with_head(model, "blown", weights)
}

const CASES: [Case; 6] = [
    Case { name: "layer norm", model: layer_norm },
    Case { name: "layer norm in parts", model: layer_norm_in_parts },
    Case { name: "near zero norm", model: near_zero_norm },
    Case { name: "huge logits", model: huge_logits },
    Case { name: "cancelling product", model: cancelling_product },
    Case { name: "near equal sums", model: near_equal_sums },
];

/// An engine of the model on the processor's highest level.
fn engine(model: &TestModel, level: CpuLevel) -> Box<dyn Meter> {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("m.onnx");
    fs::write(&path, model.proto.encode_to_vec()).unwrap();
    let request = support::request(&path, level, scratch.path());
    let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default()).unwrap().path;
    CpuCompiler.load(&plan, &LoadOptions::default()).unwrap()
}

/// What is said of `engine` as an engine of `graph`.
fn verdict(graph: &Graph, inputs: &NamedTensors, engine: &mut dyn Meter) -> Verdict {
    engine.bind(inputs).unwrap();
    let check = Check {
        graph: Ok(graph),
        independent: None,
        second: None,
        inputs,
        eval: None,
        precision: Precision::Fp32,
        budget_ms: ORACLE_BUDGET_MS,
        clock: &MonotonicClock::default(),
        cancel: &Cancel::default(),
    };
    check.run(engine).unwrap()
}

fn made(graph: &Graph, seed: u64) -> NamedTensors {
    inputs::generate(&inputs::of_graph(graph).unwrap(), seed)
}

#[test]
fn right_engines_are_right_though_their_outputs_lie_apart() {
    let mut apart = Vec::new();
    for Case { name, model } in CASES {
        let model = model(&Weights::right());
        let graph = model.import();
        for level in CpuLevel::detect() {
            let mut engine = engine(&model, level);
            for seed in 0..6 {
                let verdict = verdict(&graph, &made(&graph, seed), &mut *engine);
                let numerics = verdict.numerics.as_ref().unwrap();
                assert!(verdict.accurate, "{name} {level:?} {seed}: {:?}", verdict.findings);
                let of = |output: &str| numerics.outputs.iter().find(|found| found.name == output).unwrap();
                assert!(of("z").allowed.is_none(), "{name}: the well conditioned output is judged as any");
                if of("y").allowed.is_some() {
                    apart.push(name);
                }
            }
        }
    }
    apart.dedup();
    assert!(apart.len() >= 3, "only {apart:?} were off by more than the precision explains");
}

#[test]
fn engines_of_something_else_are_found_by_what_is_well_conditioned() {
    for Case { name, model } in CASES {
        let right = model(&Weights::right()).import();
        let mut wrong = engine(&model(&Weights::right().swapped()), *CpuLevel::detect().last().unwrap());
        for seed in 0..4 {
            let verdict = verdict(&right, &made(&right, seed), &mut *wrong);
            assert!(!verdict.accurate, "{name} {seed}: {:?}", verdict.findings);
            assert!(verdict.refusal().message.contains("output 'z'"), "{name}: {}", verdict.refusal().message);
        }
    }
}
