//! The memory of a running engine: an arena that steps write, and weights that nobody writes.

use super::program::{Buffer, Place};
use memmap2::Mmap;
use std::cell::UnsafeCell;

/// A cache line, so that vectors of them are aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes that begin at a cache line.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    pub(crate) fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line([0; 64]); len.div_ceil(64)], len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: lines are plain bytes without padding, and `len` is at most their number of bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// Where constants come from.
#[derive(Debug)]
pub(crate) enum Weights {
    /// A section of a mapped plan: offset and length.
    Mapped(Mmap, usize, usize),
    /// Made in memory, while tactics are timed.
    Owned(AlignedBytes),
}

impl Weights {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map, offset, len) => &map[*offset..*offset + *len],
            Self::Owned(bytes) => bytes.bytes(),
        }
    }
}

/// Arena and weights of one engine.
#[derive(Debug)]
pub(crate) struct Memory {
    arena: UnsafeCell<AlignedBytes>,
    arena_len: usize,
    weights: Weights,
}

impl Memory {
    pub(crate) fn new(arena_bytes: usize, weights: Weights) -> Self {
        Self { arena: UnsafeCell::new(AlignedBytes::zeroed(arena_bytes)), arena_len: arena_bytes, weights }
    }

    /// Bytes of arena and weights.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.arena_len + self.weights.bytes().len()) as u64
    }

    /// The bytes of a buffer.
    ///
    /// # Safety
    /// While the result lives, nothing writes the buffer's bytes.
    pub(crate) unsafe fn read(&self, buffer: &Buffer) -> &[u8] {
        let len = buffer.bytes as usize;
        match buffer.place {
            Place::Weights(offset) => &self.weights.bytes()[offset as usize..][..len],
            Place::Arena(offset) => {
                let offset = offset as usize;
                assert!(offset + len <= self.arena_len, "a buffer leaves the arena");
                // SAFETY: inside the arena; nobody writes it, by the caller's promise.
                unsafe { std::slice::from_raw_parts((*self.arena.get()).lines.as_ptr().cast::<u8>().add(offset), len) }
            }
        }
    }

    /// The bytes of a buffer in the arena, to be written.
    ///
    /// # Safety
    /// While the result lives, nothing else reads or writes the buffer's bytes.
    #[expect(clippy::mut_from_ref, reason = "buffers of one arena are lent out apart; the caller keeps them apart")]
    pub(crate) unsafe fn write(&self, buffer: &Buffer) -> &mut [u8] {
        let len = buffer.bytes as usize;
        let Place::Arena(offset) = buffer.place else { panic!("a buffer of weights is written") };
        let offset = offset as usize;
        assert!(offset + len <= self.arena_len, "a buffer leaves the arena");
        // SAFETY: inside the arena, and lent to this caller alone, by its promise.
        unsafe { std::slice::from_raw_parts_mut((*self.arena.get()).lines.as_mut_ptr().cast::<u8>().add(offset), len) }
    }
}

/// When a buffer is needed: from the step that writes it to the last that reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub bytes: u64,
    pub first: usize,
    pub last: usize,
}

/// Gives every lifetime an offset so that those alive at the same time never overlap, and the size of the whole.
/// Largest first, each at the lowest place free during its life.
pub(crate) fn place(lifetimes: &[Lifetime], alignment: u64) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].bytes), lifetimes[i].first, i));
    let mut offsets = vec![0u64; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut whole = 0;
    for index in order {
        let life = lifetimes[index];
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&other| lifetimes[other].first <= life.last && life.first <= lifetimes[other].last)
            .map(|&other| (offsets[other], offsets[other] + lifetimes[other].bytes))
            .collect();
        taken.sort_unstable();
        let mut offset = 0u64;
        for (start, end) in taken {
            if offset + life.bytes <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(alignment));
        }
        offsets[index] = offset;
        whole = whole.max(offset + life.bytes);
        placed.push(index);
    }
    (offsets, whole.next_multiple_of(alignment))
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
