//! How fast the engine's cores are right now, told by a fixed piece of work that every one of them does.
//!
//! A neighbour on the other hardware thread of a core, or a clock that was lowered, leaves no trace in the counters that
//! a guest can read; what an engine then takes is up to twice as long, for seconds. The piece keeps the multipliers and
//! the nearest cache busy, as engines do, so it takes longer by about as much. It sees nothing of the memory behind that
//! cache.

use crate::pool::ThreadPool;
use std::{
    hint::{black_box, spin_loop},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// Elements of each of the two rows that are multiplied: together half of the smallest first-level cache.
const ELEMENTS: usize = 2048;
/// Sums that do not wait for each other.
const LANES: usize = 32;
/// Products of the rows in one piece: some tens of microseconds.
const PRODUCTS: usize = 64;
/// Pieces that each core does; the median of them counts, so that an interrupt does not.
const PIECES: usize = 9;
/// Longest that a core waits for the others to begin with it.
const MEET: Duration = Duration::from_millis(2);

/// Nanoseconds that a piece of work takes on the slowest of the pool's cores, all of them working at once.
pub fn pace_ns(pool: &ThreadPool) -> f64 {
    let threads = pool.threads();
    let met = AtomicUsize::new(0);
    let slowest_ns = AtomicU64::new(0);
    pool.run(threads, |_, _| {
        // Nobody takes a second task before everybody has one, or was waited for long enough.
        met.fetch_add(1, Ordering::Relaxed);
        let since = Instant::now();
        while met.load(Ordering::Relaxed) < threads && since.elapsed() < MEET {
            spin_loop();
        }
        slowest_ns.fetch_max(median_ns(), Ordering::Relaxed);
    });
    slowest_ns.into_inner() as f64
}

fn median_ns() -> u64 {
    let (left, right) = ([0.5_f32; ELEMENTS], [0.25_f32; ELEMENTS]);
    let mut took_ns = [0; PIECES];
    for took in &mut took_ns {
        let since = Instant::now();
        for _ in 0..PRODUCTS {
            black_box(product(black_box(&left), black_box(&right)));
        }
        *took = since.elapsed().as_nanos() as u64;
    }
    took_ns.sort_unstable();
    took_ns[PIECES / 2]
}

fn product(left: &[f32; ELEMENTS], right: &[f32; ELEMENTS]) -> f32 {
    let mut sums = [0.0; LANES];
    for (left, right) in left.as_chunks::<LANES>().0.iter().zip(right.as_chunks::<LANES>().0) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_piece_is_real_work_that_any_pool_does() {
        assert_eq!(product(&[0.5; ELEMENTS], &[0.25; ELEMENTS]), ELEMENTS as f32 / 8.0);
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads).unwrap();
            assert!(pace_ns(&pool) > 0.0, "{threads}");
        }
    }
}
