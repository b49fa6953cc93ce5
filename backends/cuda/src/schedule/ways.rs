//! Ways to spread steps over streams: which are tried, and in which order. Times of steps are uncertain, and what waiting
//! costs and how much two kernels hold each other up nobody knows; so the best of many ways is looked for, by whatever
//! tells how long the whole takes.

use super::{Order, WAIT_US};
use crate::program::MAX_STREAMS;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::collections::BTreeSet;

/// Ways that are drawn: each step costs a share by chance of what it was said to, waiting one of these.
const BY_CHANCE: usize = 32;
const SHARES: std::ops::Range<f64> = 0.7..1.4;
const WAITS_US: [f64; 4] = [0.5, WAIT_US, 3.0, 6.0];
/// Draws until one is new; then all are taken to be known.
const DRAWS: usize = 20;
/// Moves that are looked at from a way, and those of them that are tried: the ones that should be quickest.
const MOVES_SEEN: usize = 2000;
const MOVES: usize = 128;
/// Steps that are moved together: so many that follow each other on their stream.
const RUNS: [usize; 7] = [1, 1, 2, 3, 4, 6, 10];
/// What a step costs that follows one of another stream, for its kernel does not begin early.
const CROSSING_US: f64 = 0.2;
/// What is drawn by chance is the same in each search.
const SEED: u64 = 21;

/// What came of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It is quicker than the best before it.
    Gains,
    /// It is about as quick.
    Near,
    Far,
}

/// Tries ways (streams by step) until none gains or `go_on` says no. One stream is the best before the first; the first
/// two, on two and on all streams, are tried in any case, others only where one of those gained or was near.
pub fn search<E>(
    order: &Order,
    cost_us: &[f64],
    try_one: &mut dyn FnMut(&[u32]) -> Result<Tried, E>,
    go_on: &dyn Fn() -> bool,
) -> Result<(), E> {
    let mut best = vec![0; order.steps()];
    let mut ways = Ways::new(order, cost_us);
    if order.is_chain() {
        return Ok(());
    }
    let mut is_near = false;
    for streams in [2, MAX_STREAMS] {
        let way = in_order_of_use(&order.greedy(streams, cost_us, WAIT_US));
        if ways.seen.insert(way.clone()) {
            let tried = try_one(&way)?;
            is_near |= tried != Tried::Far;
            if tried == Tried::Gains {
                best = way;
            }
        }
    }
    if !is_near {
        return Ok(());
    }
    for _ in 0..BY_CHANCE {
        let Some(way) = go_on().then(|| ways.by_chance()).flatten() else { break };
        if try_one(&way)? == Tried::Gains {
            best = way;
        }
    }
    let mut gains = true;
    while gains {
        gains = false;
        for way in ways.beside(&best) {
            if !go_on() {
                return Ok(());
            }
            ways.seen.insert(way.clone());
            if try_one(&way)? == Tried::Gains {
                (best, gains) = (way, true);
                break;
            }
        }
    }
    Ok(())
}

/// Where ways come from. Streams are numbered in the order of their use, for two ways that only call them otherwise are
/// one.
struct Ways<'a> {
    order: &'a Order,
    cost_us: &'a [f64],
    /// Those that were tried, all steps on one stream among them.
    seen: BTreeSet<Vec<u32>>,
    random: StdRng,
}

impl<'a> Ways<'a> {
    fn new(order: &'a Order, cost_us: &'a [f64]) -> Self {
        let seen = BTreeSet::from([vec![0; order.steps()]]);
        Self { order, cost_us, seen, random: StdRng::seed_from_u64(SEED) }
    }

    /// A new one that would be right if steps cost a little else.
    fn by_chance(&mut self) -> Option<Vec<u32>> {
        for _ in 0..DRAWS {
            let streams = self.random.random_range(2..=MAX_STREAMS);
            let wait_us = WAITS_US[self.random.random_range(0..WAITS_US.len())];
            let mut drawn = |us: &f64| us * self.random.random_range(SHARES.start.ln()..SHARES.end.ln()).exp();
            let cost_us: Vec<f64> = self.cost_us.iter().map(&mut drawn).collect();
            let way = in_order_of_use(&self.order.greedy(streams, &cost_us, wait_us));
            if self.seen.insert(way.clone()) {
                return Some(way);
            }
        }
        None
    }

    /// New ones in which some steps that follow each other on their stream are on another, the most promising first.
    fn beside(&mut self, way: &[u32]) -> Vec<Vec<u32>> {
        let used = way.iter().max().map_or(1, |most| most + 1);
        let mut found: BTreeSet<Vec<u32>> = BTreeSet::new();
        let mut ranked: Vec<(f64, Vec<u32>)> = Vec::new();
        for _ in 0..MOVES_SEEN {
            let first = self.random.random_range(0..way.len());
            let run = RUNS[self.random.random_range(0..RUNS.len())];
            let to = self.random.random_range(0..(used + 1).min(MAX_STREAMS));
            let mut moved = way.to_vec();
            let stream = way[first];
            moved[first..].iter_mut().filter(|other| **other == stream).take(run).for_each(|other| *other = to);
            let moved = in_order_of_use(&moved);
            if !self.seen.contains(&moved) && found.insert(moved.clone()) {
                let us = self.order.makespan_us(&moved, self.cost_us, WAIT_US);
                ranked.push((us + CROSSING_US * self.order.crossings(&moved) as f64, moved));
            }
        }
        ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        ranked.into_iter().map(|(_, way)| way).take(MOVES).collect()
    }
}

/// The same with its streams numbered in the order in which they are used.
fn in_order_of_use(way: &[u32]) -> Vec<u32> {
    let mut names: Vec<u32> = Vec::new();
    let mut name = |stream: &u32| {
        names.iter().position(|known| known == stream).unwrap_or_else(|| {
            names.push(*stream);
            names.len() - 1
        }) as u32
    };
    way.iter().map(&mut name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::order::tests::{chain, random};
    use std::{cell::Cell, convert::Infallible};

    /// A program on a device that is not as it is thought to be: steps cost else, and waiting does.
    struct Emulated {
        order: Order,
        said_us: Vec<f64>,
        cost_us: Vec<f64>,
    }

    const TRUE_WAIT_US: f64 = 2.5;

    impl Emulated {
        fn of(seed: u64, steps: usize) -> Self {
            let mut rng = StdRng::seed_from_u64(seed);
            let order = random(&mut rng, steps);
            let said_us: Vec<f64> = (0..steps).map(|_| rng.random_range(2.0..12.0)).collect();
            let cost_us = said_us.iter().map(|us| us * rng.random_range(0.6..1.6)).collect();
            Self { order, said_us, cost_us }
        }

        fn us(&self, way: &[u32]) -> f64 {
            self.order.makespan_us(way, &self.cost_us, TRUE_WAIT_US)
        }

        /// What the best of so many tries takes, and what was tried.
        fn searched(&self, most: usize) -> (f64, Vec<Vec<u32>>) {
            let (mut best_us, count) = (self.us(&vec![0; self.order.steps()]), Cell::new(0));
            let mut tried = Vec::new();
            let mut try_one = |way: &[u32]| {
                count.set(count.get() + 1);
                tried.push(way.to_vec());
                let us = self.us(way);
                let gains = us < best_us;
                best_us = best_us.min(us);
                Ok::<Tried, Infallible>(if gains { Tried::Gains } else { Tried::Near })
            };
            let Ok(()) = search(&self.order, &self.said_us, &mut try_one, &|| count.get() < most);
            (best_us, tried)
        }
    }

    #[test]
    fn more_tries_are_never_worse_and_many_are_better_than_two() {
        let mut sums_us = [0.0; 4];
        for seed in 0..40 {
            let emulated = Emulated::of(seed, 60);
            let found = [2, 12, 40, 100].map(|most| emulated.searched(most).0);
            assert!(found.is_sorted_by(|few, many| many <= few), "{found:?} (seed {seed})");
            sums_us.iter_mut().zip(found).for_each(|(sum, us)| *sum += us);
        }
        assert!(sums_us[2] < sums_us[0] * 0.97 && sums_us[3] < sums_us[2] * 0.995, "{sums_us:?}");
    }

    #[test]
    fn of_few_steps_what_is_found_is_near_the_best_there_is() {
        let (mut found_us, mut least_us) = (0.0, 0.0);
        for seed in 0..20 {
            let emulated = Emulated::of(seed, 7);
            let ways = (0..MAX_STREAMS.pow(7)).map(|number| (0..7).map(|step| number >> (2 * step) & 3).collect());
            least_us += ways.map(|way: Vec<u32>| emulated.us(&way)).fold(f64::INFINITY, f64::min);
            found_us += emulated.searched(100).0;
        }
        assert!(found_us < least_us * 1.02, "{found_us} us where {least_us} us are the least");
    }

    #[test]
    fn no_way_is_tried_twice_under_whatever_names_and_each_search_is_the_same() {
        for seed in 0..10 {
            let emulated = Emulated::of(seed, 30);
            let (_, tried) = emulated.searched(150);
            let different: BTreeSet<&Vec<u32>> = tried.iter().collect();
            assert_eq!(different.len(), tried.len(), "seed {seed}");
            assert!(tried.iter().all(|way| way == &in_order_of_use(way)), "seed {seed}: names of streams differ");
            assert!(tried.iter().all(|way| way.iter().any(|stream| *stream > 0)), "seed {seed}: all on one stream");
            assert!(tried.iter().flatten().all(|stream| *stream < MAX_STREAMS), "seed {seed}");
            assert_eq!(emulated.searched(150).1, tried, "seed {seed}");
        }
    }

    #[test]
    fn what_cannot_gain_is_not_tried() {
        let tries = |order: &Order, tried: Tried| {
            let mut count = 0;
            let mut try_one = |_: &[u32]| {
                count += 1;
                Ok::<Tried, Infallible>(tried)
            };
            let Ok(()) = search(order, &vec![5.0; order.steps()], &mut try_one, &|| true);
            count
        };
        assert_eq!(tries(&chain(40), Tried::Gains), 0, "no two may run at once");
        assert_eq!(tries(&chain(0), Tried::Gains), 0);
        let branches = random(&mut StdRng::seed_from_u64(3), 40);
        assert_eq!(tries(&branches, Tried::Far), 2, "neither is near");
        assert_eq!(tries(&branches, Tried::Near), 2 + BY_CHANCE + MOVES, "moves go on while they gain");
    }
}
