//! Which outputs are inputs with some places written anew.

use super::*;
use crate::states::{Cache, Written, caches};
use planforge_graph::ir::ElementType;

/// A cache of two heads, five places and three elements, a token's place and what is new of it.
fn model() -> TestModel {
    TestModel::new(18).input("cache", &[1, 2, 5, 3]).input("new", &[1, 2, 1, 3]).input_of(
        "place",
        ElementType::I64,
        &[1, 2, 1, 3],
    )
}

fn found(model: &TestModel) -> Vec<Cache> {
    let graph = model.import();
    caches(&graph, &graph.def_use())
}

fn only(model: &TestModel) -> Cache {
    let mut all = found(model);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn a_scatter_of_one_place_is_found_through_transposes_and_casts() {
    let put = |model: TestModel, cache: &str| {
        model.node("ScatterElements", &[cache, "place", "new"], "y", vec![int("axis", 2)])
    };
    let cache = only(&put(model(), "cache").output("y"));
    assert_eq!((cache.input, cache.output, cache.written, cache.axis), (0, 0, Written::Put, Some(2)));
    assert!(cache.is_alone && !cache.converts);

    let there = TestModel::new(18)
        .input("cache", &[1, 5, 2, 3])
        .input("new", &[1, 2, 1, 3])
        .input_of("place", ElementType::I64, &[1, 2, 1, 3])
        .node("Transpose", &["cache"], "turned", vec![ints("perm", &[0, 2, 1, 3])]);
    let back = put(there, "turned").node("Transpose", &["y"], "z", vec![ints("perm", &[0, 2, 1, 3])]);
    assert_eq!(only(&back.output("z")).axis, Some(1), "of the input");

    let wide = put(model().node("Cast", &["cache"], "wide", vec![int("to", 1)]), "wide");
    let cast = only(&wide.node("Cast", &["y"], "z", vec![int("to", 1)]).output("z"));
    assert!(cast.converts && cast.is_alone);
}

#[test]
fn a_cache_that_is_read_beside_is_not_alone_and_sums_are_none() {
    let beside = model()
        .node("ScatterElements", &["cache", "place", "new"], "y", vec![int("axis", 2)])
        .node("Neg", &["cache"], "before", vec![])
        .output("y")
        .output("before");
    assert!(!only(&beside).is_alone);
    let summed = model().node("Add", &["cache", "new"], "y", vec![]).output("y");
    assert!(found(&summed).is_empty());
    let grown = model().node("Concat", &["cache", "new"], "y", vec![int("axis", 2)]).output("y");
    assert!(found(&grown).is_empty());
}

#[test]
fn a_choice_by_one_place_is_a_cache_whichever_side_it_is_on() {
    let chosen = |all: &[i64], inputs: [&str; 3]| {
        let model = model().input_of("at", ElementType::I64, &[1]).longs("all", all);
        let model = model.node("Equal", &["all", "at"], "row", vec![]);
        let model = model.longs("column", &[5, 1]).node("Reshape", &["row", "column"], "mask", vec![]);
        found(&model.node("Where", &inputs, "y", vec![]).output("y"))
    };
    for inputs in [["mask", "new", "cache"], ["mask", "cache", "new"]] {
        let all = chosen(&[0, 1, 2, 3, 4], inputs);
        assert_eq!((all[0].written, all[0].axis, all[0].is_alone), (Written::Chosen, Some(2), true));
        assert!(chosen(&[0, 1, 2, 2, 3], inputs).is_empty(), "two places may be written");
    }
    let any = model().input_of("mask", ElementType::Bool, &[1, 1, 5, 1]);
    let any = any.node("Where", &["mask", "new", "cache"], "y", vec![]).output("y");
    assert!(found(&any).is_empty(), "what a mask of an input says is not known");
}

#[test]
fn a_place_that_is_a_remainder_begins_again() {
    let ring = model()
        .longs("five", &[5])
        .node("Mod", &["place", "five"], "at", vec![])
        .node("ScatterElements", &["cache", "at", "new"], "y", vec![int("axis", 2)])
        .output("y");
    assert_eq!(only(&ring).axis, None);
}

#[test]
fn indices_of_several_axes_leave_one_that_places_lie_along() {
    let put = |indices: &[i64], new: &[i64]| {
        let model = TestModel::new(18).input("cache", &[1, 2, 5, 3]).input("new", new);
        let model = model.input_of("at", ElementType::I64, indices);
        only(&model.node("ScatterND", &["cache", "at", "new"], "y", vec![]).output("y")).axis
    };
    assert_eq!(put(&[1, 2, 1, 3], &[1, 2, 1, 3]), Some(2));
    assert_eq!(put(&[1, 2, 3, 3], &[1, 2, 3, 3]), None, "three places a run");
    assert_eq!(put(&[2, 3], &[2, 3]), None);
}
