//! Plans where every value of a graph lies in one stretch of memory, ahead of any run.
//!
//! Before: `x -> Conv -> a -> Conv -> b -> Conv -> y`, each value in memory of its own.
//! After: a at 0, b behind it, and y again at 0, where a was: nobody reads a any more.
//!
//! Values that lie inside others ([`Placement`]) share their memory, and reshapes share that of what they reshape.
//! Inputs are kept through a run, outputs to its end; constants have a place of their own.

use super::placement::Placement;
use planforge_graph::ir::{Graph, Op, ValueId};

/// When a buffer is needed: from the step that writes it to the last that reads it.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    pub bytes: u64,
    pub first: usize,
    pub last: usize,
}

/// Gives every lifetime an offset so that those alive at the same time never overlap, and the size of the whole.
pub fn place(lifetimes: &[Lifetime], alignment: u64) -> (Vec<u64>, u64) {
    let sizes: Vec<u64> = lifetimes.iter().map(|life| life.bytes).collect();
    let apart_in_time = |a: usize, b: usize| {
        let (a, b) = (lifetimes[a], lifetimes[b]);
        a.last < b.first || b.last < a.first
    };
    place_apart(&sizes, |index| lifetimes[index].first, apart_in_time, alignment)
}

/// Gives every buffer an offset so that two overlap only where they `may_share`, and the size of the whole. Largest
/// first, of equal ones the one needed `first`, each at the lowest place free.
pub fn place_apart(
    sizes: &[u64],
    first: impl Fn(usize) -> usize,
    may_share: impl Fn(usize, usize) -> bool,
    alignment: u64,
) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(sizes[i]), first(i), i));
    let mut offsets = vec![0u64; sizes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut whole = 0;
    for index in order {
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&other| !may_share(index, other))
            .map(|&other| (offsets[other], offsets[other] + sizes[other]))
            .collect();
        taken.sort_unstable();
        let mut offset = 0u64;
        for (start, end) in taken {
            if offset + sizes[index] <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(alignment));
        }
        offsets[index] = offset;
        whole = whole.max(offset + sizes[index]);
        placed.push(index);
    }
    (offsets, whole.next_multiple_of(alignment))
}

/// Offsets are multiples of this, so that vector loads never split a line.
const ALIGNMENT: u64 = 64;

/// Where the values of a graph lie.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// Offset in bytes of every value that has memory of its own; `None` for constants and for what lies in others.
    pub offsets: Vec<Option<u64>>,
    /// Whose memory a value lies in; itself when it has its own.
    pub homes: Vec<ValueId>,
    /// Size of the whole.
    pub arena_bytes: u64,
    /// What it would be if nothing shared its memory.
    pub without_reuse_bytes: u64,
}

/// Plans the memory of a graph of static shapes; `None` when a shape is not static.
pub fn plan(graph: &Graph, placement: &Placement) -> Option<MemoryPlan> {
    let count = graph.values.len();
    let mut homes: Vec<ValueId> = (0..count as u32).map(ValueId).collect();
    for node in &graph.nodes {
        for &output in &node.outputs {
            homes[output.index()] = home(graph, placement, &homes, node, output);
        }
    }
    // A part that is written before its whole: only now is the whole's own home known.
    for at in 0..count {
        while homes[homes[at].index()] != homes[at] {
            homes[at] = homes[homes[at].index()];
        }
    }
    let bytes = |id: ValueId| -> Option<u64> {
        let elements = graph.static_shape(id)?.iter().product::<usize>();
        Some((elements * graph.value(id).element.bytes()) as u64)
    };
    let mut lives: Vec<Option<Lifetime>> = vec![None; count];
    let end = graph.nodes.len();
    let mut touch = |id: ValueId, at: usize| -> Option<()> {
        let home = homes[id.index()];
        if graph.constants.contains_key(&home) {
            return Some(());
        }
        let life = lives[home.index()].get_or_insert(Lifetime { bytes: bytes(home)?, first: at, last: at });
        (life.first, life.last) = (life.first.min(at), life.last.max(at));
        Some(())
    };
    for (at, node) in graph.nodes.iter().enumerate() {
        node.inputs.iter().flatten().chain(&node.outputs).try_for_each(|&id| touch(id, at))?;
    }
    for &id in &graph.inputs {
        touch(id, 0)?;
        touch(id, end)?;
    }
    graph.outputs.iter().try_for_each(|output| touch(output.value, end))?;
    let owners: Vec<usize> = (0..count).filter(|&at| lives[at].is_some()).collect();
    let own: Vec<Lifetime> = owners.iter().filter_map(|&at| lives[at]).collect();
    let (places, arena_bytes) = place(&own, ALIGNMENT);
    let mut offsets = vec![None; count];
    for (&at, offset) in owners.iter().zip(places) {
        offsets[at] = Some(offset);
    }
    let without_reuse_bytes = own.iter().map(|life| life.bytes.next_multiple_of(ALIGNMENT)).sum();
    Some(MemoryPlan { offsets, homes, arena_bytes, without_reuse_bytes })
}

/// Whose memory the output of a node takes.
fn home(
    graph: &Graph,
    placement: &Placement,
    homes: &[ValueId],
    node: &planforge_graph::ir::Node,
    output: ValueId,
) -> ValueId {
    if let Some(place) = placement.of(output) {
        return place.whole;
    }
    match (&node.op, node.input(0)) {
        // What lies in strides, or is a constant, has to be copied.
        (Op::Reshape | Op::Identity, Some(x)) if placement.of(x).is_none() && !graph.constants.contains_key(&x) => {
            homes[x.index()]
        }
        _ => output,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_lives_at_the_same_time_never_overlaps(
            lives in proptest::collection::vec((1u64..500, 0usize..20, 0usize..6), 0..40),
        ) {
            let lives: Vec<Lifetime> =
                lives.into_iter().map(|(bytes, first, more)| Lifetime { bytes, first, last: first + more }).collect();
            let (offsets, whole) = place(&lives, 64);
            for (i, a) in lives.iter().enumerate() {
                prop_assert!(offsets[i] % 64 == 0 && offsets[i] + a.bytes <= whole);
                for (j, b) in lives.iter().enumerate().skip(i + 1) {
                    let together = a.first <= b.last && b.first <= a.last;
                    let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    prop_assert!(!together || apart);
                }
            }
            let sum: u64 = lives.iter().map(|life| life.bytes.next_multiple_of(64)).sum();
            prop_assert!(whole <= sum);
        }
    }
}
