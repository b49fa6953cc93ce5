//! The memory of a running engine: an arena that steps write, and weights that nobody writes.

use super::program::{Buffer, Place};
use bytes::Bytes;
use std::cell::UnsafeCell;

/// A cache line, so that vectors of them are aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes that begin at a cache line.
#[derive(Debug, Default)]
pub(crate) struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

/// The system gave less memory than an engine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of memory cannot be had")]
pub struct OutOfMemory {
    pub bytes: u64,
}

impl AlignedBytes {
    /// Its size may come from a plan: what cannot be had is an error.
    pub(crate) fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        let mut lines = Vec::new();
        let count = len.div_ceil(64);
        lines.try_reserve_exact(count).map_err(|_| OutOfMemory { bytes: len as u64 })?;
        lines.resize(count, Line([0; 64]));
        Ok(Self { lines, len })
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

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Constants, by offset: those of a plan's section, and behind them what one engine has besides. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weights {
    section: Bytes,
    more: Bytes,
}

impl Weights {
    /// The section of a mapped plan, or constants made in memory; begins at a cache line.
    pub(crate) fn new(section: Bytes) -> Self {
        Self { section, more: Bytes::new() }
    }

    pub(crate) fn owned(bytes: AlignedBytes) -> Self {
        Self::new(Bytes::from_owner(bytes))
    }

    /// The same with `more` behind it.
    pub(crate) fn with(&self, more: AlignedBytes) -> Self {
        Self { section: self.section.clone(), more: Bytes::from_owner(more) }
    }

    pub(crate) fn len(&self) -> usize {
        self.section.len() + self.more.len()
    }

    /// A buffer's bytes, which lie in one of the two.
    fn slice(&self, offset: usize, len: usize) -> &[u8] {
        match offset.checked_sub(self.section.len()) {
            None => &self.section[offset..][..len],
            Some(offset) => &self.more[offset..][..len],
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
    /// Without an arena.
    pub(crate) fn new(weights: Weights) -> Self {
        Self { arena: UnsafeCell::default(), arena_len: 0, weights }
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Takes the arena out; buffers in it cannot be lent until there is one again.
    pub(crate) fn take_arena(&mut self) -> AlignedBytes {
        self.arena_len = 0;
        std::mem::take(self.arena.get_mut())
    }

    /// Puts an arena of at least `bytes` in: the given one, when it is large enough.
    pub(crate) fn give_arena(&mut self, arena: AlignedBytes, bytes: usize) -> Result<(), OutOfMemory> {
        let arena = if arena.len < bytes {
            // The old one first, so that both are never there at once.
            drop(arena);
            AlignedBytes::zeroed(bytes)?
        } else {
            arena
        };
        self.arena_len = arena.len;
        *self.arena.get_mut() = arena;
        Ok(())
    }

    /// Bytes of arena and weights.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.arena_len + self.weights.len()) as u64
    }

    /// Where a buffer begins, which lies in the arena.
    ///
    /// # Panics
    /// When it does not. `Program::check` refuses such programs; an engine whose arena was taken away has none either.
    fn inside(&self, offset: u64, len: usize) -> usize {
        let offset = offset as usize;
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.arena_len), "a buffer leaves the arena");
        offset
    }

    /// The bytes of a buffer.
    ///
    /// # Safety
    /// While the result lives, nothing writes the buffer's bytes.
    pub(crate) unsafe fn read(&self, buffer: &Buffer) -> &[u8] {
        let len = buffer.bytes as usize;
        match buffer.place {
            Place::Weights(offset) => self.weights.slice(offset as usize, len),
            Place::Arena(offset) => {
                let offset = self.inside(offset, len);
                // SAFETY: inside the arena (`inside`), whose lines are `arena_len` bytes or more, all of them zeroed or
                // written; nobody writes it, by the caller's promise.
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
        let offset = self.inside(offset, len);
        // SAFETY: inside the arena (`inside`), and lent to this caller alone, by its promise.
        unsafe { std::slice::from_raw_parts_mut((*self.arena.get()).lines.as_mut_ptr().cast::<u8>().add(offset), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        let bytes = 1 << 62;
        assert_eq!(AlignedBytes::zeroed(bytes).unwrap_err(), OutOfMemory { bytes: bytes as u64 });
        assert!(Memory::new(Weights::default()).give_arena(AlignedBytes::default(), bytes).is_err());
        assert_eq!(AlignedBytes::zeroed(100).unwrap().bytes(), [0; 100]);
    }
}
