//! Which candidates are quickest together where what they add to the whole is no sum: one group after the other gets
//! another candidate, and keeps it where that gains.

use super::proof::{InTurns, Proof};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::ops::RangeInclusive;

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

/// Exchanges that a leap makes at once.
const AT_ONCE: RangeInclusive<usize> = 2..=5;
/// What is drawn by chance is the same in each search.
const SEED: u64 = 7;

/// Candidates that groups get at once: (group, candidate).
pub type Exchange = Vec<(usize, usize)>;

/// How a choice is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// In a third of the time, by which is seen what is clearly slower.
    Rough,
    Careful,
}

/// Milliseconds of the whole with a choice.
pub type Measures<'a, E> = dyn FnMut(&[usize], Look) -> Result<f64, E> + 'a;

/// What seems slower by no more at a rough look is looked at with care.
const ROUGHLY: f64 = 1.003;

/// Gives groups of `begin` other candidates, those of `exchanges` in their order, until none gains or `go_on` says no. Of
/// several at once all have to be others. `look` measures.
pub fn climb<E>(
    begin: Vec<usize>,
    exchanges: &[Exchange],
    rule: Rule,
    look: &mut Measures<'_, E>,
    go_on: &dyn Fn() -> bool,
) -> Result<Reached, E> {
    let mut now = Reached { ms: look(&begin, Look::Careful)?, choice: begin };
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
                now.ms = look(&now.choice, Look::Careful)?;
                compared = 0;
            }
            compared += 1;
            if look(&choice, Look::Rough)? >= now.ms * ROUGHLY
                || look(&choice, Look::Careful)? >= now.ms * rule.proof.gain
            {
                continue;
            }
            let measured = in_turns(rule, &now.choice, &choice, look)?;
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

fn in_turns<E>(rule: Rule, now: &[usize], other: &[usize], look: &mut Measures<'_, E>) -> Result<InTurns, E> {
    rule.proof.in_turns(now, other, &mut |choice| look(choice, Look::Careful))
}

/// Goes on from where no exchange gains: some of `exchanges` are made at once, by chance, and from there it is climbed
/// again; what that reaches is kept where it is quicker. Until `go_on` says no.
pub fn leap<E>(
    begin: Reached,
    exchanges: &[Exchange],
    rule: Rule,
    look: &mut Measures<'_, E>,
    go_on: &dyn Fn() -> bool,
) -> Result<Reached, E> {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut best = begin;
    while go_on() && !exchanges.is_empty() {
        let mut choice = best.choice.clone();
        for _ in 0..random.random_range(AT_ONCE) {
            // Rather one of the first, which are the most promising.
            let at = random.random::<f64>().powi(2) * exchanges.len() as f64;
            let exchange = &exchanges[at as usize];
            exchange.iter().for_each(|&(group, candidate)| choice[group] = candidate);
        }
        let reached = climb(choice, exchanges, rule, look, go_on)?;
        if reached.choice == best.choice {
            continue;
        }
        let measured = in_turns(rule, &best.choice, &reached.choice, look)?;
        if measured.is_quicker {
            best = Reached { choice: reached.choice, ms: measured.other_ms };
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut ms_of = |choice: &[usize], _: Look| {
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
    fn a_leap_leads_from_where_no_exchange_gains_to_what_is_better() {
        let mut ms_of = |choice: &[usize], _: Look| Ok::<f64, Infallible>(ms(choice));
        let begin = Reached { choice: vec![1; 4], ms: ms(&[1; 4]) };
        let left = Cell::new(5000);
        let go_on = || left.replace(left.get() - 1) > 0;
        let Ok(reached) = leap(begin.clone(), &all(4, 3), FEW, &mut ms_of, &go_on);
        assert_eq!(reached, Reached { choice: vec![2; 4], ms: ms(&[2; 4]) });
        let Ok(reached) = leap(begin.clone(), &[], FEW, &mut ms_of, &|| true);
        assert_eq!(reached, begin, "there is nothing to exchange");
        let Ok(reached) = leap(begin.clone(), &all(4, 3), FEW, &mut ms_of, &|| false);
        assert_eq!(reached, begin, "no time is left");
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
        assert_eq!((reached.choice, count), (vec![1, 1, 1, 0], 5), "what it has begun it ends");
    }

    #[test]
    fn only_what_is_named_is_exchanged() {
        let mut ms_of = |choice: &[usize], _: Look| Ok::<f64, Infallible>(ms(choice));
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
        let mut ms_of = |choice: &[usize], _: Look| Ok::<f64, Infallible>(ms(choice));
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

        fn measured_ms(&mut self, choice: &[usize], look: Look) -> f64 {
            self.measured += if look == Look::Rough { 3 } else { 8 };
            // The sum of twelve of these is as good as normal, and deviates by one.
            let noise: f64 = (0..12).map(|_| self.random.random::<f64>() - 0.5).sum();
            let noise = noise * if look == Look::Rough { 0.003 } else { 0.0015 };
            self.ms(choice) * (1.0 + noise) * (1.0 + 4e-6 * self.measured as f64)
        }

        /// What is reached of what there is to gain, on average over so many wholes, and how many groups became slower.
        fn climbed(seeds: u64, rule: Rule, most: usize) -> (f64, usize) {
            let (mut shares, mut slower) = (0.0, 0);
            for seed in 0..seeds {
                let (mut whole, count) = (Self::of(seed), Cell::new(0));
                let mut ms_of = |choice: &[usize], look: Look| {
                    count.set(count.get() + if look == Look::Rough { 3 } else { 8 });
                    Ok::<f64, Infallible>(whole.measured_ms(choice, look))
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
        // In two and a half seconds, of three milliseconds a rough look and eight a careful one.
        let (share, slower) = Noisy::climbed(20, MANY, 2500);
        assert!(share > 0.8 && slower <= 5, "{share} of the gain, {slower} of 1200 groups became slower");
        for worse in [FEW, Rule { fresh: usize::MAX, ..MANY }] {
            let (other, _) = Noisy::climbed(20, worse, 2500);
            assert!(other < share - 0.03, "{other} of the gain with {worse:?}, {share} with {MANY:?}");
        }
    }
}
