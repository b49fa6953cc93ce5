//! In which order memory demands that steps run, and how long they take on streams where each takes what it is said to.

use super::{MAX_STEPS, Touched, touches};
use crate::program::Program;

/// By step: the earlier ones that it follows wherever it runs; fewest that order what must be, the earliest first.
#[derive(Clone, Debug)]
pub struct Order(Vec<Vec<usize>>);

impl Order {
    /// What is demanded before buffers share memory; `None` of more steps than are compared.
    pub fn of(program: &Program) -> Option<Self> {
        (program.steps.len() <= MAX_STEPS).then(|| Self::by(&touches(program, false)))
    }

    pub(super) fn by(touches: &[Touched<'_>]) -> Self {
        let mut needs: Vec<Vec<usize>> = Vec::with_capacity(touches.len());
        // By step: which earlier ones are done when it begins.
        let mut before: Vec<Vec<bool>> = Vec::with_capacity(touches.len());
        for (number, touched) in touches.iter().enumerate() {
            let (mut needed, mut done) = (Vec::new(), vec![false; number]);
            for earlier in (0..number).rev() {
                if !done[earlier] && touches[earlier].orders(touched) {
                    needed.push(earlier);
                    done[earlier] = true;
                    done.iter_mut().zip(&before[earlier]).for_each(|(known, more)| *known |= more);
                }
            }
            needed.reverse();
            needs.push(needed);
            before.push(done);
        }
        Self(needs)
    }

    pub fn steps(&self) -> usize {
        self.0.len()
    }

    /// Whether no two steps may run at once.
    pub fn is_chain(&self) -> bool {
        // What stands between two neighbours is nothing, so the one needs the other itself.
        self.0.iter().enumerate().skip(1).all(|(number, needed)| needed.contains(&(number - 1)))
    }

    /// Gives each step the stream on which it could begin first, in the order of the program. `wait_us`: what waiting for
    /// another stream costs; less is not worth leaving a stream for.
    pub fn greedy(&self, streams: u32, cost_us: &[f64], wait_us: f64) -> Vec<u32> {
        let mut free_us = vec![0.0; streams as usize];
        let mut ends_us: Vec<f64> = Vec::with_capacity(self.steps());
        let mut chosen: Vec<u32> = Vec::with_capacity(self.steps());
        for (needed, cost_us) in self.0.iter().zip(cost_us) {
            let begin_us = |stream: u32| {
                let arrives = |&earlier: &usize| arrives_us(ends_us[earlier], chosen[earlier], stream, wait_us);
                needed.iter().map(arrives).fold(free_us[stream as usize], f64::max)
            };
            // Where what it waits for last ran, unless another stream is clearly sooner.
            let last = needed.iter().max_by(|a, b| ends_us[**a].total_cmp(&ends_us[**b]));
            let mut best = last.map_or(0, |&last| chosen[last]);
            for stream in 0..streams {
                if begin_us(stream) + wait_us < begin_us(best) {
                    best = stream;
                }
            }
            let end_us = begin_us(best) + cost_us;
            free_us[best as usize] = end_us;
            ends_us.push(end_us);
            chosen.push(best);
        }
        chosen
    }

    /// When the last step has ended, on these streams.
    pub fn makespan_us(&self, streams: &[u32], cost_us: &[f64], wait_us: f64) -> f64 {
        let mut free_us = vec![0.0; streams.iter().map(|stream| *stream as usize + 1).max().unwrap_or(0)];
        let mut ends_us: Vec<f64> = Vec::with_capacity(self.steps());
        for ((needed, &stream), cost_us) in self.0.iter().zip(streams).zip(cost_us) {
            let free_us = &mut free_us[stream as usize];
            let arrives = |&earlier: &usize| arrives_us(ends_us[earlier], streams[earlier], stream, wait_us);
            *free_us = needed.iter().map(arrives).fold(*free_us, f64::max) + cost_us;
            ends_us.push(*free_us);
        }
        ends_us.into_iter().fold(0.0, f64::max)
    }

    /// Pairs of steps on two streams of which one follows the other.
    pub fn crossings(&self, streams: &[u32]) -> usize {
        let of = |(needed, stream): (&Vec<usize>, &u32)| {
            needed.iter().filter(|earlier| streams[**earlier] != *stream).count()
        };
        self.0.iter().zip(streams).map(of).sum()
    }
}

/// When a step on `stream` knows of another's end.
fn arrives_us(end_us: f64, of: u32, stream: u32, wait_us: f64) -> f64 {
    end_us + if of == stream { 0.0 } else { wait_us }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rand::{RngExt as _, rngs::StdRng};

    /// Steps that follow one or two of the few before them.
    pub fn random(random: &mut StdRng, steps: usize) -> Order {
        let needs = |number: usize| {
            let count = random.random_range(0..=2_usize.min(number));
            let mut needed: Vec<usize> =
                (0..count).map(|_| random.random_range(number.saturating_sub(5)..number)).collect();
            needed.sort_unstable();
            needed.dedup();
            needed
        };
        Order((0..steps).map(needs).collect())
    }

    pub fn chain(steps: usize) -> Order {
        Order((0..steps).map(|number| number.checked_sub(1).into_iter().collect()).collect())
    }

    #[test]
    fn a_chain_is_told_from_what_has_branches() {
        assert!(chain(5).is_chain() && chain(0).is_chain());
        let branches = Order(vec![vec![], vec![0], vec![0], vec![1, 2]]);
        assert!(!branches.is_chain());
        assert_eq!(chain(5).greedy(4, &[3.0; 5], 0.5), [0; 5]);
        assert_eq!(branches.greedy(4, &[3.0; 4], 0.5), [0, 0, 1, 1]);
        assert_eq!(branches.greedy(4, &[3.0; 4], 2.0), [0; 4], "waiting is not worth it");
    }

    #[test]
    fn steps_begin_when_their_stream_is_free_and_what_they_follow_is_known_to_be_done() {
        let branches = Order(vec![vec![], vec![0], vec![0], vec![1, 2]]);
        let cost_us = [1.0, 10.0, 4.0, 2.0];
        assert!((branches.makespan_us(&[0; 4], &cost_us, 1.5) - 17.0).abs() < 1e-9);
        assert!((branches.makespan_us(&[0, 0, 1, 0], &cost_us, 1.5) - 13.0).abs() < 1e-9);
        // The other way round the long one waits, and is waited for.
        assert!((branches.makespan_us(&[0, 1, 0, 0], &cost_us, 1.5) - 16.0).abs() < 1e-9);
        assert_eq!(branches.crossings(&[0, 1, 0, 0]), 2);
        assert_eq!(branches.crossings(&[0; 4]), 0);
    }
}
