//! Which candidates are quickest together where what they add to the whole is no sum: one group after the other gets
//! another candidate, and keeps it where that gains.

use super::proof::Proof;

/// A choice of one candidate for each group, and what the whole takes with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    pub choice: Vec<usize>,
    pub ms: f64,
}

/// When an exchange is made.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What it has to show, once by itself and then in turns with what it would take the place of.
    pub proof: Proof,
    /// After so many exchanges what they are compared with is measured again: once, it may have been quick by chance, and
    /// clocks wander.
    pub fresh: usize,
}

/// Where each exchange is a large part of the whole.
pub const FEW: Rule = Rule { proof: Proof { gain: 0.997, turns: 1 }, fresh: usize::MAX };
/// Where the whole has many groups: what an exchange gains is about what a time is uncertain by.
pub const MANY: Rule = Rule { proof: Proof { gain: 0.998, turns: 1 }, fresh: 20 };

/// Candidates that groups get at once: (group, candidate).
pub type Exchange = Vec<(usize, usize)>;

/// Gives groups of `begin` other candidates, those of `exchanges` in their order, until none gains or `go_on` says no. Of
/// several at once all have to be others. `ms_of` measures.
pub fn climb<E>(
    begin: Vec<usize>,
    exchanges: &[Exchange],
    rule: Rule,
    ms_of: &mut dyn FnMut(&[usize]) -> Result<f64, E>,
    go_on: &dyn Fn() -> bool,
) -> Result<Reached, E> {
    let mut now = Reached { ms: ms_of(&begin)?, choice: begin };
    let (mut gains, mut compared) = (true, 0);
    while gains {
        gains = false;
        for exchange in exchanges {
            if !go_on() {
                return Ok(now);
            }
            if exchange.iter().any(|&(group, candidate)| now.choice[group] == candidate) {
                continue;
            }
            let mut choice = now.choice.clone();
            exchange.iter().for_each(|&(group, candidate)| choice[group] = candidate);
            if compared >= rule.fresh {
                now.ms = ms_of(&now.choice)?;
                compared = 0;
            }
            compared += 1;
            if ms_of(&choice)? >= now.ms * rule.proof.gain {
                continue;
            }
            let measured = rule.proof.in_turns(&*now.choice, &*choice, ms_of)?;
            now.ms = measured.now_ms;
            compared = 0;
            if measured.is_quicker {
                now = Reached { choice, ms: measured.other_ms };
                gains = true;
            }
        }
    }
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
    use std::{cell::Cell, convert::Infallible};

    /// Kernels that ask for one of three sizes: two that follow each other are slow unless both fit.
    fn ms(choice: &[usize]) -> f64 {
        let alone: f64 = choice.iter().map(|size| [1.0, 0.98, 1.0][*size]).sum();
        let apart = choice.windows(2).filter(|pair| pair[0] != pair[1]).count();
        alone + 0.2 * apart as f64 - if choice.iter().all(|size| *size == 2) { 1.0 } else { 0.0 }
    }

    fn all(groups: usize, candidates: usize) -> Vec<Exchange> {
        (0..groups).flat_map(|group| (0..candidates).map(move |candidate| vec![(group, candidate)])).collect()
    }

    fn climbed(begin: [usize; 4], measured: impl Fn(&[usize], u32) -> f64, most: u32) -> (Reached, u32) {
        let count = Cell::new(0);
        let mut ms_of = |choice: &[usize]| {
            count.set(count.get() + 1);
            Ok::<f64, Infallible>(measured(choice, count.get()))
        };
        let Ok(reached) = climb(begin.to_vec(), &all(4, 3), FEW, &mut ms_of, &|| count.get() < most);
        (reached, count.get())
    }

    #[test]
    fn it_ends_where_no_single_exchange_gains() {
        let (reached, _) = climbed([0, 1, 1, 0], |choice, _| ms(choice), u32::MAX);
        assert_eq!(reached, Reached { choice: vec![1; 4], ms: ms(&[1; 4]) });
        // What is best of all is reached from beginnings near it.
        let (reached, _) = climbed([2, 2, 2, 0], |choice, _| ms(choice), u32::MAX);
        assert_eq!(reached.choice, [2; 4]);
    }

    #[test]
    fn noise_alone_exchanges_nothing_and_what_does_not_run_is_not_taken() {
        // Every fifth time looks quicker by a tenth, and the last candidate does not run.
        let noisy = |choice: &[usize], count: u32| match choice.contains(&2) {
            true => f64::INFINITY,
            false => 4.0 * if count.is_multiple_of(5) { 0.9 } else { 1.0 },
        };
        let (reached, _) = climbed([0; 4], noisy, u32::MAX);
        assert_eq!(reached.choice, [0; 4]);
    }

    #[test]
    fn it_stops_when_it_is_told_to() {
        let (reached, count) = climbed([0, 1, 1, 0], |choice, _| ms(choice), 1);
        assert_eq!((reached.choice, count), (vec![0, 1, 1, 0], 1));
        let (reached, count) = climbed([0, 1, 1, 0], |choice, _| ms(choice), 2);
        assert_eq!((reached.choice, count), (vec![1, 1, 1, 0], 4), "what it has begun it ends");
    }

    #[test]
    fn only_what_is_named_is_exchanged() {
        let mut ms_of = |choice: &[usize]| Ok::<f64, Infallible>(ms(choice));
        let Ok(reached) = climb(vec![0, 1, 1, 0], &[vec![(3, 1)], vec![(0, 2)]], FEW, &mut ms_of, &|| true);
        assert_eq!(reached.choice, [0, 1, 1, 1]);
    }

    #[test]
    fn two_that_gain_only_together_are_exchanged_at_once() {
        // Each is slower by itself.
        let ms = |choice: &[usize]| match (choice[0], choice[1]) {
            (1, 1) => 0.9,
            (0, 0) => 1.0,
            _ => 1.1,
        };
        let mut ms_of = |choice: &[usize]| Ok::<f64, Infallible>(ms(choice));
        let both = vec![vec![(0, 1), (1, 1)]];
        let Ok(alone) = climb(vec![0; 3], &all(3, 2), MANY, &mut ms_of, &|| true);
        let Ok(together) = climb(alone.choice.clone(), &both, MANY, &mut ms_of, &|| true);
        assert_eq!((alone.choice, together.choice), (vec![0; 3], vec![1, 1, 0]));
        let Ok(half) = climb(vec![1, 0, 0], &both, MANY, &mut ms_of, &|| true);
        assert_eq!(half.choice, [1, 0, 0], "what has one of both already is an exchange of one");
    }

    /// A whole of sixty groups of four candidates: of a third of them the first is not the best, by 0.2 to 0.8 % of the
    /// whole; others are as quick as the first, or slower by up to 0.5 %. The median of some launches is uncertain by
    /// 0.15 %, and the clock slows down by a percent and more on the way.
    struct Noisy {
        groups: Vec<[f64; 4]>,
        random: StdRng,
        measured: usize,
    }

    impl Noisy {
        fn of(seed: u64) -> Self {
            let mut random = StdRng::seed_from_u64(seed);
            let mut group = |number: usize| {
                let others = [0; 3].map(|_| if random.random() { 0.0 } else { random.random_range(0.0..0.005) });
                let best = if number.is_multiple_of(3) { random.random_range(-0.008..-0.002) } else { others[0] };
                [0.0, best, others[1], others[2]]
            };
            Self { groups: (0..60).map(&mut group).collect(), random, measured: 0 }
        }

        fn ms(&self, choice: &[usize]) -> f64 {
            1.0 + self.groups.iter().zip(choice).map(|(group, candidate)| group[*candidate]).sum::<f64>()
        }

        fn measured_ms(&mut self, choice: &[usize]) -> f64 {
            self.measured += 1;
            // The sum of twelve of these is as good as normal, and deviates by one.
            let noise: f64 = (0..12).map(|_| self.random.random::<f64>() - 0.5).sum();
            self.ms(choice) * (1.0 + 0.0015 * noise) * (1.0 + 2e-5 * self.measured as f64)
        }

        /// What is reached of what there is to gain, on average over so many wholes, and how many groups became slower.
        fn climbed(seeds: u64, rule: Rule, most: usize) -> (f64, usize) {
            let (mut shares, mut slower) = (0.0, 0);
            for seed in 0..seeds {
                let (mut whole, count) = (Self::of(seed), Cell::new(0));
                let mut ms_of = |choice: &[usize]| {
                    count.set(count.get() + 1);
                    Ok::<f64, Infallible>(whole.measured_ms(choice))
                };
                let Ok(reached) = climb(vec![0; 60], &all(60, 4), rule, &mut ms_of, &|| count.get() < most);
                let gains = whole.groups.iter().map(|group| group.iter().copied().fold(0.0, f64::min));
                shares += (1.0 - whole.ms(&reached.choice)) / -gains.sum::<f64>() / seeds as f64;
                slower += whole.groups.iter().zip(&reached.choice).filter(|(group, at)| group[**at] > 0.0005).count();
            }
            (shares, slower)
        }
    }

    #[test]
    fn of_many_groups_what_gains_is_found_below_the_noise_and_hardly_any_becomes_slower() {
        let (share, slower) = Noisy::climbed(20, MANY, usize::MAX);
        assert!(share > 0.95 && slower <= 5, "{share} of the gain, {slower} of 1200 groups became slower");
        // In two and a half seconds, of six milliseconds each.
        let (share, slower) = Noisy::climbed(20, MANY, 400);
        assert!(share > 0.85 && slower <= 5, "{share} of the gain, {slower} of 1200 groups became slower");
        for worse in [FEW, Rule { fresh: usize::MAX, ..MANY }] {
            let (other, _) = Noisy::climbed(20, worse, 400);
            assert!(other < share - 0.05, "{other} of the gain with {worse:?}, {share} with {MANY:?}");
        }
    }
}
