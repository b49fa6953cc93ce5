//! Which buffers share the arena: those that never live at the same time.

use crate::program::{ALIGNMENT, Place, Program};
use planforge_passes::memory::{Lifetime, place};

/// Gives every arena buffer its offset, and drops the ones that no step uses.
pub(super) fn plan(program: &mut Program) {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; program.buffers.len()];
    for (number, step) in program.steps.iter().enumerate() {
        let (read, written) = step.work.views();
        for view in read.into_iter().chain([written]) {
            let life = lives[view.buffer.0 as usize].get_or_insert((number, number));
            life.1 = number;
        }
    }
    let in_arena = |index: &usize| matches!(program.buffers[*index].place, Place::Arena(_));
    let indices: Vec<usize> = (0..program.buffers.len()).filter(in_arena).collect();
    let lifetimes: Vec<Lifetime> = indices
        .iter()
        .map(|&index| {
            // A buffer that nobody uses takes no room worth speaking of.
            let (first, last) = lives[index].unwrap_or((0, 0));
            let bytes = if lives[index].is_some() { program.buffers[index].bytes } else { 1 };
            Lifetime { bytes, first, last }
        })
        .collect();
    let (offsets, whole) = place(&lifetimes, ALIGNMENT);
    for (index, (offset, life)) in indices.into_iter().zip(offsets.into_iter().zip(&lifetimes)) {
        program.buffers[index].place = Place::Arena(offset);
        program.buffers[index].bytes = life.bytes;
    }
    program.arena_bytes = whole;
}
