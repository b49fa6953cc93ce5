//! Which candidates of many groups are quickest together, told from times of wholes in which every group has one of its
//! candidates by chance. One time says something of all groups at once, so a few hundred of them tell candidates apart
//! that differ by far less than what one time is uncertain by.

use rand::{SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};

/// A candidate that is slower than its group's best by so many standard errors is given up.
const SURE: f64 = 3.5;
/// So is one that differs from it by no more than this share of the whole: either will do.
const ALIKE: f64 = 4e-4;
/// Standard errors that are added to a difference before it is called small.
const LIKELY: f64 = 2.0;
/// A time further from what was expected than so many median deviations counts as that far: something else ran meanwhile.
const OUTLYING: f64 = 6.0;
/// Times beyond what effects take, of which half as many more are wanted, before anything is given up.
const FREE: usize = 8;
/// Times that are cleared of what something else did before effects are believed.
const CLEARINGS: usize = 2;
/// Passes over all groups, in which their effects are told apart; each begins where the last one ended.
const SWEEPS: usize = 4;
/// What is drawn by chance is the same in each search.
const SEED: u64 = 20;

/// An experiment on groups of candidates.
#[derive(Debug)]
pub struct Screen {
    groups: Vec<Group>,
    trials: Vec<Trial>,
    round: usize,
    random: StdRng,
}

#[derive(Debug)]
struct Group {
    alive: Vec<bool>,
    /// What is dealt next, so that all of them come equally often.
    deck: Vec<usize>,
    /// Microseconds by which the whole is longer with each, about; `None` before it was tried.
    effects: Vec<Option<f64>>,
    /// By how much each was slower than the best when it was last compared. Effects of those that were given up go astray
    /// later, for they were met in a few rounds only, which have means of their own.
    slower_us: Vec<Option<f64>>,
}

#[derive(Debug)]
struct Trial {
    choice: Vec<usize>,
    round: usize,
    us: f64,
}

impl Screen {
    /// `candidates`: how many each group has; none has none.
    pub fn new(candidates: &[usize]) -> Self {
        let group = |&count: &usize| Group {
            alive: vec![true; count],
            deck: Vec::new(),
            effects: vec![None; count],
            slower_us: vec![None; count],
        };
        let groups = candidates.iter().map(group).collect();
        Self { groups, trials: Vec::new(), round: 0, random: StdRng::seed_from_u64(SEED) }
    }

    /// What is still to be found out: candidates alive beside one of each group.
    pub fn unknowns(&self) -> usize {
        self.groups.iter().map(|group| group.alive().count() - 1).sum()
    }

    /// One candidate of each group, by chance.
    pub fn deal(&mut self) -> Vec<usize> {
        let random = &mut self.random;
        let deal = |group: &mut Group| loop {
            match group.deck.pop() {
                Some(card) if group.alive[card] => break card,
                Some(_) => {}
                None => {
                    group.deck = group.alive().collect();
                    group.deck.shuffle(random);
                }
            }
        };
        self.groups.iter_mut().map(deal).collect()
    }

    /// What the whole takes with such a choice.
    pub fn tell(&mut self, choice: Vec<usize>, us: f64) {
        self.trials.push(Trial { choice, round: self.round, us });
    }

    /// A candidate that does not run, unless it is the last of its group.
    pub fn give_up(&mut self, group: usize, candidate: usize) {
        let group = &mut self.groups[group];
        if group.alive().any(|other| other != candidate) {
            group.alive[candidate] = false;
        }
    }

    /// Ends a round: finds what every candidate adds, and gives up those that are slower for sure, or no different.
    pub fn settle(&mut self) {
        self.round += 1;
        let Some((deviation_us, whole_us)) = self.fit() else { return };
        for at in 0..self.groups.len() {
            let met = |candidate: usize| self.trials.iter().filter(|trial| trial.choice[at] == candidate).count();
            let best = self.groups[at].best();
            let Some(best_us) = self.groups[at].effects[best] else { continue };
            self.groups[at].slower_us[best] = Some(0.0);
            let alive: Vec<usize> = self.groups[at].alive().filter(|candidate| *candidate != best).collect();
            for candidate in alive {
                let Some(us) = self.groups[at].effects[candidate] else { continue };
                let error_us = deviation_us * (1.0 / met(best) as f64 + 1.0 / met(candidate) as f64).sqrt();
                let slower_us = us - best_us;
                self.groups[at].slower_us[candidate] = Some(slower_us);
                if slower_us > SURE * error_us || slower_us + LIKELY * error_us < ALIKE * whole_us {
                    self.groups[at].alive[candidate] = false;
                }
            }
        }
    }

    /// The quickest candidate of each group, as far as is known.
    pub fn best(&self) -> Vec<usize> {
        self.groups.iter().map(Group::best).collect()
    }

    /// Every candidate with its group, those that are least slow by what is known first: such as are not given up, and
    /// the others.
    pub fn exchanges(&self) -> [Vec<(usize, usize)>; 2] {
        let mut all: Vec<(f64, (usize, usize))> = Vec::new();
        for (at, group) in self.groups.iter().enumerate() {
            let exchange = |(candidate, us): (usize, &Option<f64>)| (us.unwrap_or(f64::INFINITY), (at, candidate));
            all.extend(group.slower_us.iter().enumerate().map(exchange));
        }
        all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let all = all.into_iter().map(|(_, exchange)| exchange);
        let (open, others) = all.partition(|&(at, candidate)| self.groups[at].alive[candidate]);
        [open, others]
    }

    /// The choices with which the whole was quickest when it was timed, the quickest first.
    pub fn quickest(&self, count: usize) -> Vec<Vec<usize>> {
        let mut trials: Vec<&Trial> = self.trials.iter().collect();
        trials.sort_by(|a, b| a.us.total_cmp(&b.us));
        trials.iter().take(count).map(|trial| trial.choice.clone()).collect()
    }

    /// Tells effects apart; gives the deviation of one time from what they add up to, and the middle time. `None` while
    /// there are too few times to say.
    fn fit(&mut self) -> Option<(f64, f64)> {
        let mut times: Vec<f64> = self.trials.iter().map(|trial| trial.us).collect();
        let whole_us = middle(&times)?;
        let far =
            |distances: &[f64]| Some(OUTLYING * middle(&distances.iter().map(|far| far.abs()).collect::<Vec<_>>())?);
        // What is far from all others first, for it would be taken for effects; then what effects do not explain.
        let distances: Vec<f64> = times.iter().map(|time| time - whole_us).collect();
        let most = far(&distances)?;
        for (time, distance) in times.iter_mut().zip(&distances) {
            *time = whole_us + distance.clamp(-most, most);
        }
        for _ in 0..CLEARINGS {
            self.sweep(&times);
            let rests = self.rests(&times);
            let most = far(&rests)?;
            for (time, rest) in times.iter_mut().zip(rests) {
                *time += rest.clamp(-most, most) - rest;
            }
        }
        self.sweep(&times);
        let tried = |group: &Group| group.effects.iter().flatten().count().saturating_sub(1);
        let found: usize = self.groups.iter().map(tried).sum::<usize>() + self.round;
        let free = self.trials.len().checked_sub(found).filter(|free| *free >= FREE + found / 2)?;
        let squares: f64 = self.rests(&times).iter().map(|rest| rest * rest).sum();
        // What few times more than effects tell apart is less sure by as much again.
        let crowded = self.trials.len() as f64 / free as f64;
        Some(((squares / free as f64 * crowded).sqrt(), whole_us))
    }

    /// Finds the effects whose sums are nearest to the times, group by group. The mean of each round is one more group:
    /// clocks and temperatures wander.
    fn sweep(&mut self, times: &[f64]) {
        let explained = |trial: &Trial| -> f64 {
            let of = |(group, candidate): (&Group, &usize)| group.effects[*candidate].unwrap_or_default();
            self.groups.iter().zip(&trial.choice).map(of).sum()
        };
        let mut rests: Vec<f64> = times.iter().zip(&self.trials).map(|(time, trial)| time - explained(trial)).collect();
        let rounds = self.round.max(1);
        for _ in 0..SWEEPS {
            let round = |trial: &Trial| trial.round;
            level(&self.trials, &mut rests, &mut vec![Some(0.0); rounds], round);
            for (at, group) in self.groups.iter_mut().enumerate() {
                level(&self.trials, &mut rests, &mut group.effects, |trial| trial.choice[at]);
            }
        }
        // Effects are told by how they differ within a group.
        for group in &mut self.groups {
            let least = group.effects.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            group.effects.iter_mut().flatten().for_each(|effect| *effect -= least);
        }
    }

    /// What effects and rounds leave unexplained of each time.
    fn rests(&self, times: &[f64]) -> Vec<f64> {
        let explained = |trial: &Trial| -> f64 {
            let of = |(group, candidate): (&Group, &usize)| group.effects[*candidate].unwrap_or_default();
            self.groups.iter().zip(&trial.choice).map(of).sum()
        };
        let mut rests: Vec<f64> = times.iter().zip(&self.trials).map(|(time, trial)| time - explained(trial)).collect();
        level(&self.trials, &mut rests, &mut vec![Some(0.0); self.round.max(1)], |trial| trial.round);
        rests
    }
}

impl Group {
    fn alive(&self) -> impl Iterator<Item = usize> {
        (0..self.alive.len()).filter(|candidate| self.alive[*candidate])
    }

    fn best(&self) -> usize {
        let known = self.alive().filter_map(|candidate| Some((candidate, self.effects[candidate]?)));
        let best = known.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(candidate, _)| candidate);
        best.or_else(|| self.alive().next()).unwrap_or(0)
    }
}

/// Moves the mean of the rests of each class, and what was found of it before, into its effect.
fn level(trials: &[Trial], rests: &mut [f64], effects: &mut [Option<f64>], class: impl Fn(&Trial) -> usize) {
    let mut sums = vec![(0.0, 0_usize); effects.len()];
    for (trial, rest) in trials.iter().zip(rests.iter()) {
        let (sum, count) = &mut sums[class(trial)];
        *sum += rest;
        *count += 1;
    }
    let means: Vec<f64> = sums.iter().map(|(sum, count)| sum / (*count).max(1) as f64).collect();
    for (effect, (mean, (_, count))) in effects.iter_mut().zip(means.iter().zip(&sums)) {
        if *count > 0 {
            *effect = Some(effect.unwrap_or_default() + mean);
        }
    }
    for (trial, rest) in trials.iter().zip(rests) {
        *rest -= means[class(trial)];
    }
}

fn middle(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt as _;

    /// A whole of sixty groups, whose candidates differ by anything from nothing to two microseconds.
    struct Whole {
        groups: Vec<Vec<f64>>,
        random: StdRng,
        trials: usize,
    }

    impl Whole {
        fn of(seed: u64) -> Self {
            let mut random = StdRng::seed_from_u64(seed);
            let mut candidates = || (0..4).map(|_| 2.0 + 2.0 * random.random::<f64>().powi(3)).collect::<Vec<_>>();
            let groups = (0..60).map(|_| candidates()).collect();
            Self { groups, random, trials: 0 }
        }

        fn us(&self, choice: &[usize]) -> f64 {
            self.groups.iter().zip(choice).map(|(group, candidate)| group[*candidate]).sum()
        }

        fn least_us(&self) -> f64 {
            self.groups.iter().map(|group| group.iter().copied().fold(f64::INFINITY, f64::min)).sum()
        }

        /// With noise of a quarter of a percent, now and then something that ran meanwhile, and a clock that slows down.
        fn measured_us(&mut self, choice: &[usize]) -> f64 {
            self.trials += 1;
            let noise: f64 = (0..12).map(|_| self.random.random::<f64>() - 0.5).sum::<f64>() * 0.35;
            let other = if self.random.random::<f64>() < 0.02 { 60.0 } else { 0.0 };
            self.us(choice) * (1.0 + self.trials as f64 * 1e-5) + noise + other
        }
    }

    fn screened(whole: &mut Whole, rounds: usize) -> Screen {
        let mut screen = Screen::new(&[4; 60]);
        for _ in 0..rounds {
            for _ in 0..100 {
                let choice = screen.deal();
                let us = whole.measured_us(&choice);
                screen.tell(choice, us);
            }
            screen.settle();
        }
        screen
    }

    #[test]
    fn differences_below_the_noise_of_one_time_are_found() {
        for seed in 0..3 {
            let mut whole = Whole::of(seed);
            let screen = screened(&mut whole, 20);
            let (found, least) = (whole.us(&screen.best()), whole.least_us());
            assert!(found < least * 1.005, "{found} us where {least} us is the least (seed {seed})");
            assert!(screen.unknowns() < 90, "{} are still open (seed {seed})", screen.unknowns());
        }
    }

    #[test]
    fn a_candidate_that_does_not_run_is_not_dealt_and_the_last_of_a_group_stays() {
        let mut screen = Screen::new(&[3, 1]);
        screen.give_up(0, 0);
        screen.give_up(1, 0);
        assert!((0..20).all(|_| screen.deal()[0] != 0));
        assert_eq!(screen.unknowns(), 1);
        assert_eq!(screen.best(), [1, 0]);
        screen.settle();
        assert_eq!(screen.best(), [1, 0], "nothing was timed");
    }

    #[test]
    fn what_is_open_is_exchanged_first_and_what_is_likely_to_gain_before_that() {
        let mut whole = Whole::of(2);
        let screen = screened(&mut whole, 20);
        let [open, others] = screen.exchanges();
        assert_eq!((open.len(), open.len() + others.len()), (60 + screen.unknowns(), 240));
        let slower_us = |&(at, candidate): &(usize, usize)| {
            whole.groups[at][candidate] - whole.groups[at].iter().copied().fold(f64::INFINITY, f64::min)
        };
        let mean_us = |some: &[(usize, usize)]| some.iter().map(slower_us).sum::<f64>() / some.len() as f64;
        assert!(mean_us(&open) * 5.0 < mean_us(&others));
        let (first_us, last_us) = (mean_us(&others[..20]), mean_us(&others[others.len() - 20..]));
        assert!(first_us * 3.0 < last_us, "{first_us} us and {last_us} us slower");
    }

    #[test]
    fn too_few_times_decide_nothing() {
        let mut whole = Whole::of(1);
        let mut screen = Screen::new(&[4; 60]);
        for _ in 0..100 {
            let choice = screen.deal();
            let us = whole.measured_us(&choice);
            screen.tell(choice, us);
        }
        screen.settle();
        assert_eq!(screen.unknowns(), 180);
    }
}
