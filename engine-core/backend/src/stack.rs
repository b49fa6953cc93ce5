//! Executions that begin at different places of the stack.
//!
//! The system moves every process's stack by a random number of bytes. Where a loop's variables then lie as far within
//! their page as what the loop reads, loads wait for stores that have nothing to do with them: a quick engine is slower
//! by a tenth in one process of thirty, from its first execution to its last. Whoever times executions moves them
//! through the page, so that no process measures its own luck.
//!
//! Sources: Mytkowicz, Diwan, Hauswirth and Sweeney, *Producing Wrong Data Without Doing Anything Obviously Wrong!* (2009),
//! on what the size of the environment does to a program's speed; Curtsinger and Berger, *STABILIZER: Statistically
//! Sound Performance Evaluation* (2013), on placing stacks at random while measuring.

use std::hint::black_box;

/// Places that [`Places`] visits in turn.
const PLACES: usize = 64;

/// Coprime to [`PLACES`], near its golden section: places visited one after another lie far apart.
const STRIDE: usize = 39;

/// Bytes that a step down the stack takes at least. A step and the frame around it, of any size, hardly ever come to a
/// part of a page that has few other parts, so that the places of one turn lie all over it.
const STEP_BYTES: usize = 56;

/// The place of one execution after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    next: usize,
}

impl Places {
    /// Runs `body` with its stack at the next place.
    pub fn run<T>(&mut self, body: impl FnOnce() -> T) -> T {
        let place = self.next;
        self.next = (self.next + STRIDE) % PLACES;
        let mut body = Some(body);
        let mut result = None;
        down(place, &mut || result = body.take().map(|body| body()));
        result.expect("the body runs once")
    }
}

/// Calls `body` as many steps down the stack as `steps`.
#[inline(never)]
fn down(steps: usize, body: &mut dyn FnMut()) {
    let step = [0u8; STEP_BYTES];
    match steps.checked_sub(1) {
        None => body(),
        Some(rest) => down(rest, body),
    }
    // Used after the call, so that the call is no jump and the step stays.
    black_box(&step);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Bytes of a page that a place of its own lies in.
    const PART_BYTES: usize = 256;
    const PAGE_BYTES: usize = 4096;

    #[test]
    fn executions_one_after_another_begin_all_over_a_page() {
        let mut places = Places::default();
        let mut offset = || {
            places.run(|| {
                let here = 0u8;
                std::ptr::from_ref(black_box(&here)).addr() % PAGE_BYTES
            })
        };
        let offsets: Vec<usize> = (0..=PLACES).map(|_| offset()).collect();
        let parts: BTreeSet<usize> = offsets.iter().map(|offset| offset / PART_BYTES).collect();
        assert_eq!(parts.len(), PAGE_BYTES / PART_BYTES, "{offsets:?}");
        // A handful already lies apart: as few as a short measurement has.
        let few: BTreeSet<usize> = offsets[..20].iter().map(|offset| offset / PART_BYTES).collect();
        assert!(few.len() >= 8, "{offsets:?}");
        assert_eq!(offsets[PLACES], offsets[0], "a turn is over");
    }

    #[test]
    fn what_the_body_returns_comes_back() {
        let mut places = Places::default();
        let words: Vec<String> = (0..3).map(|index| places.run(|| format!("{index}"))).collect();
        assert_eq!(words, ["0", "1", "2"]);
    }
}
