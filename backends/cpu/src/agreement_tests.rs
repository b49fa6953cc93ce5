//! Every tactic of every level on graphs of many shapes, against the reference operators: what a tactic computes may
//! differ from the others' by rounding only, and the number of threads changes nothing.

use super::{
    assemble::{WeightPlan, assemble},
    draft::{Draft, DraftStep},
    engine::Engine,
    lower::lower,
    memory::{AlignedBytes, Weights},
    program::{ProgramPort, StepKind, Tactic},
    steps::candidates,
};
use planforge_graph::{
    interpreter,
    ir::{ElementType, Graph, Tensor},
};
use planforge_import::testing::{TestModel, int, ints, numbers, text};
use planforge_kernels_cpu::{
    gemm::{Factors, bf16_kernels},
    isa::{Isa, IsaLevel},
    pool::ThreadPool,
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How far two ways of computing one thing may differ.
#[derive(Clone, Copy)]
struct Bound {
    /// Relative to the scale of an output.
    relative: f64,
    /// The smallest scale of an output, as a share of the largest number given: sums round by what is summed, however
    /// little of it is left.
    floor: f64,
}

impl Bound {
    const F32: Self = Self { relative: 2e-5, floor: 2e-2 };
    /// Products of bf16 numbers: what verification allows.
    const BF16: Self = Self { relative: 5e-2, floor: 0.2 };
    /// One way of computing, cut elsewhere.
    const THREADS: Self = Self { relative: 1e-5, floor: 2e-2 };

    /// The largest difference of an output's values.
    fn of(self, values: &[f64], given: &BTreeMap<String, Tensor>) -> f64 {
        let top = |values: &[f64]| values.iter().fold(0.0f64, |top, value| top.max(value.abs()));
        let floats = given.values().filter(|tensor| tensor.element() == ElementType::F32);
        let given = floats.map(|tensor| top(&tensor.to_f64s())).fold(0.0, f64::max);
        self.relative * top(values).max(self.floor * given).max(1e-6)
    }
}

/// Inputs of a graph: floats, or bytes of every value.
pub(super) fn given(graph: &Graph) -> BTreeMap<String, Tensor> {
    let tensor = |element: ElementType, shape: Vec<usize>| {
        let count = shape.iter().product();
        if matches!(element, ElementType::U8 | ElementType::I8) {
            let bytes: Vec<u8> = (0..count).map(|at: usize| (at * 89 + at / 11) as u8).collect();
            return Tensor::new(element, shape, bytes.into()).unwrap();
        }
        Tensor::from_vec(shape, numbers(count)).unwrap()
    };
    let each = graph.inputs.iter().map(|&id| (graph.value(id), graph.static_shape(id).unwrap()));
    each.map(|(value, shape)| (value.name.clone(), tensor(value.element, shape))).collect()
}

/// The outputs of a draft whose tuned steps take their `choice`th tactic (counted around), by output name.
fn run(
    mut draft: Draft,
    choice: usize,
    (isa, factors): (Isa, Factors),
    threads: usize,
    given: &BTreeMap<String, Tensor>,
) -> BTreeMap<String, Vec<f64>> {
    for step in draft.steps.iter_mut().filter(|step| step.step.kind.is_tuned()) {
        let mut tactics = candidates(&step.step.kind, isa, factors, threads);
        step.step.tactic = Some(tactics.swap_remove(choice % tactics.len()));
    }
    let mut plan = WeightPlan::default();
    let program = assemble(draft, &mut plan);
    let mut bytes = Vec::new();
    plan.write(&mut bytes).unwrap();
    let mut weights = AlignedBytes::zeroed(bytes.len()).unwrap();
    weights.bytes_mut().copy_from_slice(&bytes);
    let pool = Arc::new(ThreadPool::new(threads).unwrap());
    let mut engine = Engine::new(program.clone(), Weights::owned(weights), isa, pool).unwrap();
    for (index, port) in program.inputs.iter().enumerate() {
        engine.set_input(index, given[&port.name].bytes());
    }
    engine.run().unwrap();
    let output = |index: usize, port: &ProgramPort| {
        let bytes = engine.output(index).to_vec();
        Tensor::new(port.element, port.shape.clone(), bytes.into()).unwrap().to_f64s()
    };
    program.outputs.iter().enumerate().map(|(index, port)| (port.name.clone(), output(index, port))).collect()
}

/// What one choice of tactics gave.
pub(super) struct Ran<'a> {
    pub level: IsaLevel,
    pub tactics: &'a str,
    pub outputs: &'a BTreeMap<String, Vec<f64>>,
}

/// Runs a draft by every tactic of every level, on two threads, and once on one.
pub(super) fn run_all(draft: &Draft, given: &BTreeMap<String, Tensor>, each: &mut dyn FnMut(Ran<'_>)) {
    for isa in Isa::available() {
        let tactics: Vec<Vec<String>> = draft
            .steps
            .iter()
            .map(|step| candidates(&step.step.kind, isa, Factors::F32, 2).iter().map(Tactic::name).collect())
            .collect();
        let choices = tactics.iter().map(Vec::len).max().unwrap_or(0).max(1);
        for choice in 0..choices {
            let names: Vec<&str> = tactics
                .iter()
                .filter(|tactics| !tactics.is_empty())
                .map(|tactics| tactics[choice % tactics.len()].as_str())
                .collect();
            let outputs = run(draft.clone(), choice, (isa, Factors::F32), 2, given);
            each(Ran { level: isa.level(), tactics: &names.join(", "), outputs: &outputs });
        }
        let outputs = run(draft.clone(), 0, (isa, Factors::F32), 1, given);
        each(Ran { level: isa.level(), tactics: "one thread", outputs: &outputs });
    }
}

fn assert_near(
    got: &BTreeMap<String, Vec<f64>>,
    want: &BTreeMap<String, Vec<f64>>,
    bound: &dyn Fn(&[f64]) -> f64,
    what: &str,
) {
    for (name, want) in want {
        assert_eq!(got[name].len(), want.len());
        let bound = bound(want);
        for (got, want) in got[name].iter().zip(want) {
            assert!((got - want).abs() <= bound, "{name} at {what}: {got}, not {want}");
        }
    }
}

/// Runs every tactic of every level; gives the names of the tactics that were run and the kinds of the steps.
pub(super) fn assert_agrees(model: &TestModel) -> (BTreeSet<String>, Vec<&'static str>) {
    let graph = planforge_passes::pipeline(model.import(), super::TARGET).unwrap().graph;
    let given = given(&graph);
    let want = interpreter::execute(&graph, &given).unwrap();
    let want = want.into_iter().map(|(name, tensor)| (name, tensor.to_f64s())).collect();
    let within = |bound: Bound| {
        let given = &given;
        move |values: &[f64]| bound.of(values, given)
    };
    let draft = lower(&graph).unwrap();
    let mut names = BTreeSet::new();
    for isa in Isa::available() {
        let tactics = |threads: usize| {
            draft
                .steps
                .iter()
                .map(move |step| candidates(&step.step.kind, isa, Factors::F32, threads))
                .collect::<Vec<_>>()
        };
        let choices = tactics(2).iter().map(Vec::len).max().unwrap_or(0).max(1);
        names.extend(tactics(2).iter().flatten().map(Tactic::name));
        for choice in 0..choices {
            let got = run(draft.clone(), choice, (isa, Factors::F32), 2, &given);
            assert_near(&got, &want, &within(Bound::F32), &format!("{} by {choice}", isa.level()));
        }
        // One thread cuts the work elsewhere; each sum is made the same way all the same.
        let by_threads = |threads| run(draft.clone(), 0, (isa, Factors::F32), threads, &given);
        assert_near(&by_threads(1), &by_threads(2), &within(Bound::THREADS), &format!("{}, one thread", isa.level()));
    }
    for isa in Isa::available().into_iter().filter(|isa| !bf16_kernels(isa.level()).is_empty()) {
        let of = |step: &DraftStep| candidates(&step.step.kind, isa, Factors::Bf16, 2);
        let choices = draft.steps.iter().map(|step| of(step).len()).max().unwrap_or(0);
        for choice in 0..choices {
            let got = run(draft.clone(), choice, (isa, Factors::Bf16), 2, &given);
            assert_near(&got, &want, &within(Bound::BF16), &format!("{} by {choice}, bf16", isa.level()));
        }
    }
    (names, draft.steps.iter().map(|step| step.step.kind.name()).collect())
}

fn conv(
    (batch, channels, height, width): (usize, usize, usize, usize),
    (out_channels, groups): (usize, usize),
    kernel: (usize, usize),
    attributes: (i64, i64, i64),
    activation: &str,
) -> TestModel {
    let (stride, pad, dilation) = attributes;
    let shape = [batch as i64, channels as i64, height as i64, width as i64];
    let weights = [out_channels, channels / groups, kernel.0, kernel.1];
    let attributes = vec![
        ints("strides", &[stride; 2]),
        ints("pads", &[pad; 4]),
        ints("dilations", &[dilation; 2]),
        int("group", groups as i64),
    ];
    TestModel::new(17)
        .input("x", &shape)
        .floats("w", &weights, &numbers(weights.iter().product()))
        .floats("b", &[out_channels], &numbers(out_channels))
        .node("Conv", &["x", "w", "b"], "c", attributes)
        .node(activation, &["c"], "y", vec![])
        .output("y")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn convolutions(
        batch in 1usize..3, per_group in 1usize..20, size in (1usize..13, 1usize..15), out_per_group in 1usize..40,
        groups in 1usize..4, kernel in (1usize..5, 1usize..5), stride in 1i64..3, pad in 0i64..3, dilation in 1i64..3,
        activation in prop::sample::select(vec!["Relu", "Sigmoid", "HardSwish", "Identity"]),
    ) {
        let fits = |size: usize, kernel: usize| size as i64 + 2 * pad > (kernel as i64 - 1) * dilation;
        prop_assume!(fits(size.0, kernel.0) && fits(size.1, kernel.1));
        let shape = (batch, per_group * groups, size.0, size.1);
        let attributes = (stride, pad, dilation);
        assert_agrees(&conv(shape, (out_per_group * groups, groups), kernel, attributes, activation));
    }

    #[test]
    fn products(
        rows in 1usize..60, depth in 1usize..70, columns in 1usize..70, batch in 1usize..3, constant: bool,
        activation in prop::sample::select(vec!["Relu", "Tanh", "Identity"]),
    ) {
        let left = TestModel::new(17).input("a", &[batch as i64, rows as i64, depth as i64]);
        let both = if constant {
            left.floats("b", &[depth, columns], &numbers(depth * columns))
        } else {
            left.input("b", &[batch as i64, depth as i64, columns as i64])
        };
        assert_agrees(&both.node("MatMul", &["a", "b"], "m", vec![]).node(activation, &["m"], "y", vec![]).output("y"));
    }

    #[test]
    fn movements(
        channels in (1usize..9, 1usize..9), size in (1usize..7, 1usize..7), start in 0usize..4, step in 1i64..3,
        images: bool,
    ) {
        let shape = |channels: usize| [1, channels as i64, size.0 as i64, size.1 as i64];
        let all = (channels.0 + channels.1) as i64;
        let start = (start as i64).min(all - 1);
        let model = TestModel::new(17)
            .input("a", &shape(channels.0))
            .input("b", &shape(channels.1))
            .longs("starts", &[start, 0])
            .longs("ends", &[all, i64::MAX])
            .longs("axes", &[1, 3])
            .longs("steps", &[step, step])
            .longs("parts", &[start, all - start])
            .floats("scales", &[4], &[1.0, 1.0, 2.0, 3.0])
            .floats("w", &[channels.0, channels.0, 1, 1], &numbers(channels.0 * channels.0));
        // Behind a convolution values lie as images, else as the model has them.
        let model = if images {
            model.node("Conv", &["a", "w"], "first", vec![])
        } else {
            model.node("Relu", &["a"], "first", vec![])
        };
        let model = model
            .node("Concat", &["first", "b"], "both", vec![int("axis", 1)])
            .node("Slice", &["both", "starts", "ends", "axes", "steps"], "cut", vec![])
            .node("Resize", &["both", "", "scales"], "large", vec![
                text("mode", "nearest"),
                text("coordinate_transformation_mode", "asymmetric"),
                text("nearest_mode", "floor"),
            ])
            .output("cut")
            .output("large");
        let model = if start > 0 {
            model.node_of("Split", &["both", "parts"], &["low", "high"], vec![int("axis", 1)]).output("low").output("high")
        } else {
            model
        };
        let (_, kinds) = assert_agrees(&model);
        prop_assert!(kinds.contains(&"move"));
        for reference in ["concat", "slice", "split", "resize"] {
            prop_assert!(!kinds.contains(&reference), "{reference} runs by its reference");
        }
    }
}

#[test]
fn what_each_kind_can_choose_from_is_there() {
    let words = |model: &TestModel, wanted: &[&str]| {
        let (names, _) = assert_agrees(model);
        for word in wanted {
            assert!(names.iter().any(|name| name.contains(word)), "no tactic is called {word}: {names:?}");
        }
        names.len()
    };
    assert!(words(&conv((1, 16, 9, 11), (24, 1), (3, 3), (1, 1, 1), "Relu"), &["+taps", "+lines", "+packed"]) > 4);
    // A pointwise convolution is a product, whichever way its rows are found.
    let (names, _) = assert_agrees(&conv((1, 16, 9, 11), (24, 1), (1, 1), (1, 0, 1), "Relu"));
    assert!(names.iter().all(|name| !name.contains("+taps") && !name.contains("+lines")), "{names:?}");
    let deep = TestModel::new(17)
        .input("a", &[9, 700])
        .floats("b", &[700, 33], &numbers(700 * 33))
        .node("MatMul", &["a", "b"], "y", vec![])
        .output("y");
    words(&deep, &["+packed", "+k256"]);
}

#[test]
fn attention_is_one_step_and_both_ways_agree() {
    for (queries, masked) in [(7, false), (33, true)] {
        let (heads, depth) = (3i64, 8i64);
        let width = heads * depth;
        let split = [1, queries, heads, depth];
        let mut model = TestModel::new(17).input("x", &[1, queries, width]).longs("split", &split);
        for name in ["q", "k", "v"] {
            let weights = format!("w{name}");
            let values: Vec<f32> = numbers((width * width) as usize).iter().map(|value| value * 0.2).collect();
            let (product, parts) = (format!("{name}_product"), format!("{name}_parts"));
            let perm: &[i64] = if name == "k" { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] };
            model = model
                .floats(&weights, &[width as usize, width as usize], &values)
                .node("MatMul", &["x", &weights], &product, vec![])
                .node("Reshape", &[&product, "split"], &parts, vec![])
                .node("Transpose", &[&parts], name, vec![ints("perm", perm)]);
        }
        model = model.floats("scale", &[1], &[0.35]).node("MatMul", &["q", "k"], "products", vec![]).node(
            "Mul",
            &["products", "scale"],
            "scaled",
            vec![],
        );
        let scores = if masked {
            let mask: Vec<f32> = (0..queries).map(|key| if key % 5 == 4 { -1e4 } else { 0.0 }).collect();
            model = model.floats("mask", &[1, 1, 1, queries as usize], &mask).node(
                "Add",
                &["scaled", "mask"],
                "scores",
                vec![],
            );
            "scores"
        } else {
            "scaled"
        };
        model = model
            .longs("joined", &[1, queries, width])
            .node("Softmax", &[scores], "weights", vec![int("axis", -1)])
            .node("MatMul", &["weights", "v"], "heads", vec![])
            .node("Transpose", &["heads"], "rows", vec![ints("perm", &[0, 2, 1, 3])])
            .node("Reshape", &["rows", "joined"], "y", vec![])
            .output("y");
        let (names, kinds) = assert_agrees(&model);
        assert_eq!(kinds.iter().filter(|kind| **kind == "attention").count(), 1, "{kinds:?}");
        assert!(["+heads", "+passes"].iter().all(|way| names.iter().any(|name| name.contains(way))), "{names:?}");
    }
}

/// A detection head: an image whose channels are split, brought behind its pixels, is copied once.
#[test]
fn split_channels_are_copied_once() {
    let model = TestModel::new(17)
        .input("x", &[1, 4, 5, 6])
        .floats("w", &[21, 4, 1, 1], &numbers(84))
        .longs("split", &[1, 3, 7, 5, 6])
        .node("Conv", &["x", "w"], "c", vec![])
        .node("Reshape", &["c", "split"], "parts", vec![])
        .node("Transpose", &["parts"], "y", vec![ints("perm", &[0, 1, 3, 4, 2])])
        .output("y");
    let graph = planforge_passes::pipeline(model.import(), super::TARGET).unwrap().graph;
    let draft = lower(&graph).unwrap();
    let moved = draft.steps.iter().filter(|step| matches!(step.step.kind, StepKind::Move { .. })).count();
    let kinds: Vec<_> = draft.steps.iter().map(|step| step.step.kind.name()).collect();
    assert_eq!((moved, kinds.iter().filter(|kind| **kind == "transpose").count()), (1, 1), "{kinds:?}");
    assert_agrees(&model);
}
