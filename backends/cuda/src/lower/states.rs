//! Inputs that are changed in place: an output that is an input with some places written anew takes that input's memory.
//!
//! Before: `cache -> ScatterElements(place, new) -> next cache`, or `Where`, transposed on the way or not.
//! After: the scatter writes its places of the input's own memory, which is the output; nothing is copied. A `Where` goes
//! through the memory once and writes what it chose where it read.
//!
//! Only where nobody reads what was there before: every value from the input to the scatter has one reader. What is put
//! takes the place of what was there, so that running again on the same inputs gives the same. Conversions on the way
//! are none where the engine stores every float as the cache does.
//!
//! Before: `cache, new -> Concat -> next cache`.
//! After: the input is the first places of the output's memory, of which only the last one is written.

use crate::{program::State, view::Kind};
use planforge_graph::ir::{DefUse, Graph, ValueId};
use planforge_passes::states::{Cache, Grown, Written, caches, grown};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct States {
    pub pairs: Vec<State>,
    /// Results of what writes, by value: they lie where their data lies.
    in_place: BTreeSet<ValueId>,
    /// Results of `Where`, each with what it chooses from and writes over.
    chosen: BTreeMap<ValueId, ValueId>,
    /// Conversions that change nothing, as everything is stored.
    same: BTreeSet<ValueId>,
    /// Results of concatenations that are caches one place longer.
    grown: BTreeSet<ValueId>,
}

impl States {
    /// Of an engine that stores floats as `float`.
    pub fn of(graph: &Graph, uses: &DefUse, float: Kind) -> Self {
        let mut states = Self::default();
        for cache in caches(graph, uses) {
            let Cache { input, output, written, data, result, passed, converts, is_alone, axis } = cache;
            let edge = graph.value(graph.inputs[input]);
            let stored_alike = || {
                let is_float = |id: &ValueId| Kind::of(graph.value(*id).element).is_float();
                Kind::of(edge.element) == float && passed.iter().chain([&data, &result]).all(is_float)
            };
            if !is_alone || (converts && !stored_alike()) {
                continue;
            }
            let places = axis.and_then(|axis| Some(graph.static_shape(graph.inputs[input])?[axis] as u64));
            states.pairs.push(State { input: input as u32, output: output as u32, places, grows: None });
            states.in_place.insert(result);
            states.same.extend(passed);
            if written == Written::Chosen {
                states.chosen.insert(result, data);
            }
        }
        for Grown { input, output, result, axis, .. } in grown(graph, uses) {
            // What the engine stores and what the model gives are the same.
            if Kind::of(graph.value(graph.inputs[input]).element) == Kind::of(graph.value(result).element) {
                let state =
                    State { input: input as u32, output: output as u32, places: None, grows: Some(axis as u32) };
                states.pairs.push(state);
                states.grown.insert(result);
            }
        }
        states
    }

    /// Whether a concatenation only writes its last place.
    pub fn is_grown(&self, id: ValueId) -> bool {
        self.grown.contains(&id)
    }

    pub fn is_in_place(&self, id: ValueId) -> bool {
        self.in_place.contains(&id)
    }

    /// What a `Where` in place chooses from and writes over.
    pub fn chosen_from(&self, id: ValueId) -> Option<ValueId> {
        self.chosen.get(&id).copied()
    }

    /// Whether a value is the same elements in the same memory as what it is made from.
    pub fn is_same(&self, id: ValueId) -> bool {
        self.same.contains(&id)
    }
}
