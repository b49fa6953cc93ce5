//! Layout, placement and memory: descriptions that a run which follows them must bear out.

use super::*;
use crate::{
    layout::{Layout, Layouts},
    memory::plan,
    placement::Placement,
};
use planforge_graph::ir::ValueId;

/// A small network with everything the descriptions are about: parts of parts, parts of parts of a concatenation,
/// reshapes, a value read twice, an output in the middle.
fn network() -> TestModel {
    TestModel::new(17)
        .input("x", &[1, 4, 4, 4])
        .longs("sizes", &[1, 3])
        .longs("flat", &[1, 96])
        .floats("w", &[4, 4, 3, 3], &numbers(144))
        .node("Conv", &["x", "w"], "a", vec![ints("pads", &[1, 1, 1, 1])])
        .node("Relu", &["a"], "b", vec![])
        .node("Tanh", &["b"], "c", vec![])
        .node("Concat", &["b", "c"], "inner", vec![int("axis", 1)])
        .node("Sigmoid", &["a"], "d", vec![])
        .node("MaxPool", &["d"], "e", vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1, 1, 1, 1])])
        .node("Concat", &["inner", "e", "e"], "outer", vec![int("axis", 1)])
        .node("Slice", &["outer", "starts", "ends"], "part", vec![])
        .longs("starts", &[0, 2, 1, 0])
        .longs("ends", &[1, 8, 4, 3])
        .node("Neg", &["part"], "n", vec![])
        .node("Exp", &["outer"], "f", vec![])
        .node("Reshape", &["f", "wide"], "g", vec![])
        .longs("wide", &[1, 256])
        .node("Softmax", &["g"], "y", vec![])
        .output("y")
        .output("n")
        .output("d")
}

/// Runs the graph in one stretch of memory, values where the plan puts them.
fn run_in_memory(graph: &Graph, placement: &Placement) -> BTreeMap<String, Tensor> {
    let memory = plan(graph, placement).expect("shapes are static");
    let mut arena = vec![f32::NAN; (memory.arena_bytes / 4) as usize];
    let shape = |id: ValueId| graph.static_shape(id).expect("shapes are static");
    // Where each element of a value lies.
    let places = |id: ValueId| -> Vec<usize> {
        let own = shape(id);
        let (whole, starts) = match placement.outermost(id) {
            Some(place) => (place.whole, place.starts),
            None => (id, vec![0; own.len()]),
        };
        let outer = if whole == id { own.clone() } else { shape(whole) };
        let home = memory.homes[whole.index()];
        let base = memory.offsets[home.index()].expect("it has memory") as usize / 4;
        let mut all = vec![0usize];
        for axis in 0..own.len() {
            let (size, start) = (outer[axis], starts[axis]);
            all = all.iter().flat_map(|&lead| (start..start + own[axis]).map(move |at| lead * size + at)).collect();
        }
        all.into_iter().map(|at| base + at).collect()
    };
    let inputs = inputs(graph);
    for &id in &graph.inputs {
        let values = inputs[&graph.value(id).name].values::<f32>().expect("inputs are floats").into_owned();
        places(id).into_iter().zip(values).for_each(|(at, value)| arena[at] = value);
    }
    let read = |arena: &[f32], id: ValueId| -> Tensor {
        if let Some(constant) = graph.constant(id) {
            return constant.clone();
        }
        let values = places(id).into_iter().map(|at| arena[at]).collect();
        Tensor::from_vec(shape(id), values).expect("values fill the shape")
    };
    for node in &graph.nodes {
        let given: Vec<Option<Tensor>> = node.inputs.iter().map(|id| id.map(|id| read(&arena, id))).collect();
        let given: Vec<Option<&Tensor>> = given.iter().map(Option::as_ref).collect();
        let types = interpreter::output_types(graph, node).expect("shapes are static");
        let results = interpreter::run(&node.op, &given, &types).expect("the node runs");
        for (&id, result) in node.outputs.iter().zip(results) {
            // Parts of what was there before are there already; writing them again must change nothing.
            let values = result.values::<f32>().expect("values are floats").into_owned();
            places(id).into_iter().zip(values).for_each(|(at, value)| arena[at] = value);
        }
    }
    graph.outputs.iter().map(|output| (output.name.clone(), read(&arena, output.value))).collect()
}

#[test]
fn a_graph_means_the_same_in_planned_memory() {
    let graph = network().import();
    let expected = interpreter::execute(&graph, &inputs(&graph)).expect("the graph runs");
    for placement in [Placement::none(&graph), Placement::find(&graph)] {
        assert_eq!(run_in_memory(&graph, &placement), expected);
    }
    let found = Placement::find(&graph);
    // b, c and inner; what is concatenated twice is copied, and so is the slice that is only read once more.
    assert_eq!(found.len(), 4, "{found:?}");
    let (apart, together) = (plan(&graph, &Placement::none(&graph)), plan(&graph, &found));
    let bytes = |plan: Option<memory::MemoryPlan>| plan.map(|plan| (plan.arena_bytes, plan.without_reuse_bytes));
    let (Some((reused, all)), Some((_, placed))) = (bytes(apart), bytes(together)) else { panic!("shapes are static") };
    assert!(reused < all && placed < all, "{reused} {placed} {all}");
}

#[test]
fn images_are_turned_where_layouts_meet_and_nowhere_else() {
    let graph = network().import();
    let layouts = Layouts::assign(&graph);
    let of = |name: &str| {
        let id = (0..graph.values.len() as u32).map(ValueId).find(|&id| graph.value(id).name == name);
        layouts.of[id.expect("the value exists").index()]
    };
    for image in ["a", "b", "c", "d", "e", "inner", "outer", "f"] {
        assert_eq!(of(image), Layout::ChannelsLast, "{image}");
    }
    for row in ["x", "g", "y", "part", "n"] {
        assert_eq!(of(row), Layout::Row, "{row}");
    }
    let mut turned: Vec<&str> = layouts.turns.iter().map(|turn| graph.value(turn.value).name.as_str()).collect();
    turned.sort_unstable();
    // Into the first convolution; into the slice, the reshape, and an output.
    assert_eq!(turned, ["d", "f", "outer", "x"]);
}
