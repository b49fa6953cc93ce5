//! The best candidates once more, inside of the whole captured graph: there, weights come from memory instead of a
//! cache that repeating one step keeps warm, and kernels overlap with their neighbours.
//!
//! Of a hundred steps each is a hundredth of the whole, and candidates differ by a tenth of that: less than a time of the
//! whole is uncertain by. So graphs in which every step has one of its candidates by chance are timed, some hundred of
//! them, which tells all steps' candidates apart at once (`screen`).
//!
//! What candidates add to the whole is more than a sum where kernels of several steps share multiprocessors. So each
//! candidate is tried by itself in place of what was found, as long as that gains: of programs with many kinds of steps
//! those first that the experiment left undecided, and the others as far as time allows; of those with few, which decoders
//! are, all, from several beginnings. Then two steps that follow each other get others at once, and those candidates follow
//! that there was no time to experiment with. Where nothing of that gains and time is left, some are exchanged by chance,
//! and it is climbed again from there.

use super::{
    Timed, Tuned,
    climb::{Exchange, FEW, Look, MANY, Reached, climb, leap},
    screen::Screen,
    whole::{Group, LAUNCHES, LAUNCHES_AT_LAST, Whole, further, prefer_all},
};
use crate::{
    program::Program,
    runtime::{Device, Kernels, Memory, Result},
};
use std::{
    collections::BTreeSet,
    ops::{Range, RangeInclusive},
    time::{Duration, Instant},
};

/// Candidates of a step that are compared, the best included; and where time allows all that is to be found out of them.
const FINALISTS: usize = 5;
const MANY_FINALISTS: usize = 10;
/// Those that may be exchanged beside them.
const MOST_CANDIDATES: usize = 16;
/// Of two steps that follow each other so many candidates each are tried together.
const PAIRED: usize = 3;
/// How much slower by itself a finalist may be.
const SLACK: f64 = 1.3;
/// The same where the whole is one row: its matrices come from memory, whatever they take from a warm cache.
const FINALISTS_OF_ROWS: usize = 10;
const SLACK_OF_ROWS: f64 = 2.0;
/// The experiment ends about after this time.
const LONGEST: Duration = Duration::from_millis(4000);
/// Graphs are timed in rounds of so many, after each of which candidates are given up.
const ROUND: usize = 60;
/// Where every candidate is tried by itself in less than this time, that is done, from several beginnings, for about so long.
const LONGEST_SWEEP: Duration = Duration::from_millis(600);
const LONGEST_CLIMB: Duration = Duration::from_millis(4500);
/// Beginnings beside what was found: choices that were quickest by chance.
const BEGINNINGS: usize = 3;
/// Where it takes longer, candidates are exchanged for about so long from what was found; less where the whole search took
/// longer than most of what a cold build may take, but never less than going through them once takes.
const CLIMB_OF_MANY: RangeInclusive<Duration> = Duration::from_millis(1500)..=Duration::from_millis(6000);
const LONGEST_SEARCH: Duration = Duration::from_millis(23_500);
/// Graphs for each thing that is to be found out: with fewer nothing is, with more nothing is worth it.
const GRAPHS_EACH: Range<usize> = 2..24;

/// Exchanges tactics of `program` for those with which the whole is quickest. `known` learns what was found; the search
/// as a whole began at `since`.
pub(super) fn refine(
    device: &Device,
    program: &mut Program,
    memory: &Memory,
    tuned: &mut Tuned,
    known: &mut super::Times,
    kernels: &mut Kernels,
    since: Instant,
) -> Result<()> {
    let began = Instant::now();
    let mut graph = Whole::new(device, program, memory, kernels)?;
    let first = Instant::now();
    let first_ms = graph.ms(LAUNCHES)?;
    let graphs = (LONGEST.as_secs_f64() / first.elapsed().as_secs_f64()) as usize;
    let mut groups = groups(program, tuned, first_ms, graphs);
    for group in &mut groups {
        graph.make_ready(group, memory, kernels);
    }
    let mut screen = Screen::new(&groups.iter().map(|group| group.compared).collect::<Vec<_>>());
    let (mut timed, most) = (0, screen.unknowns() * GRAPHS_EACH.end);
    while screen.unknowns() > 0 && timed < most.max(ROUND) && began.elapsed() < LONGEST {
        for _ in 0..ROUND {
            let choice = screen.deal();
            match graph.ms_of(&mut groups, &choice, LAUNCHES)? {
                Some(ms) => screen.tell(choice, ms * 1e3),
                None => weed(&mut graph, &mut groups, &mut screen)?,
            }
            timed += 1;
        }
        screen.settle();
    }
    let follows = neighbours(program.steps.len(), &groups);
    let best = climbed(&mut graph, &mut groups, &screen, &follows, since)?;
    let first = vec![0; groups.len()];
    // Steps may not add up: what was found has to be quicker than what was there, measured in turns.
    let (mut best_ms, mut first_ms) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        let [of_first, of_best] = [&first, &best].map(|choice| graph.ms_of(&mut groups, choice, LAUNCHES_AT_LAST));
        first_ms = first_ms.min(of_first?.unwrap_or(f64::INFINITY));
        best_ms = best_ms.min(of_best?.unwrap_or(f64::INFINITY));
    }
    let (open, seconds) = (screen.unknowns(), began.elapsed().as_secs_f32());
    tracing::info!(
        groups = groups.len(),
        timed,
        open,
        first_ms,
        best_ms,
        seconds,
        "candidates are compared in the whole"
    );
    if best_ms >= first_ms {
        return Ok(());
    }
    for (group, &candidate) in groups.iter().zip(&best) {
        group.give(program, candidate);
    }
    prefer_all(program, &groups, &best, tuned, known);
    Ok(())
}

/// The quickest choice that is reached from what was found, or from one that was quick by chance, by exchanging one
/// candidate after the other.
fn climbed(
    graph: &mut Whole<'_>,
    groups: &mut [Group],
    screen: &Screen,
    follows: &[(usize, usize)],
    since: Instant,
) -> Result<Vec<usize>> {
    let (found, began) = (screen.best(), Instant::now());
    let of = |(at, group): (usize, &Group)| (0..group.compared).map(move |candidate| vec![(at, candidate)]);
    let all: Vec<Exchange> = groups.iter().enumerate().flat_map(of).collect();
    let further = further(groups);
    let exchanges = all.len() - groups.len();
    let mut tried = 0;
    let mut look = |choice: &[usize], look: Look| {
        tried += 1;
        graph.look(groups, choice, look)
    };
    let found_ms = look(&found, Look::Careful)?;
    let mut best = Reached { choice: found.clone(), ms: found_ms };
    let few = began.elapsed() * exchanges as u32 <= LONGEST_SWEEP;
    let left = LONGEST_SEARCH.saturating_sub(since.elapsed());
    let (rule, longest) = match few {
        true => (FEW, LONGEST_CLIMB),
        false => (MANY, left.clamp(*CLIMB_OF_MANY.start(), *CLIMB_OF_MANY.end())),
    };
    let go_on = || began.elapsed() < longest;
    if few {
        for begin in [found].into_iter().chain(screen.quickest(BEGINNINGS)).take_while(|_| go_on()) {
            let reached = climb(begin, &all, rule, &mut look, &go_on)?;
            if reached.ms < best.ms * rule.proof.gain {
                best = reached;
            }
        }
    }
    let one = |exchanges: Vec<(usize, usize)>| exchanges.into_iter().map(|one| vec![one]).collect();
    let [open, others] = screen.exchanges();
    let pairs = pairs(follows, &[&open[..], &others].concat());
    let kinds: [Vec<Exchange>; 4] = [one(open), one(others), pairs, further];
    let mut gains = true;
    while gains && go_on() {
        let before = best.choice.clone();
        for exchanges in &kinds {
            best = climb(best.choice, exchanges, rule, &mut look, &go_on)?;
        }
        gains = best.choice != before;
    }
    let climbed_ms = best.ms;
    best = leap(best, &kinds[..2].concat(), rule, &mut look, &go_on)?;
    let seconds = began.elapsed().as_secs_f32();
    tracing::info!(tried, exchanges, found_ms, climbed_ms, best_ms = best.ms, seconds, "candidates are exchanged");
    Ok(best.choice)
}

/// Groups of which one has a step behind one of the other, of so many `steps`.
fn neighbours(steps: usize, groups: &[Group]) -> Vec<(usize, usize)> {
    let mut group_of = vec![None; steps];
    for (at, group) in groups.iter().enumerate() {
        group.steps.iter().for_each(|&step| group_of[step] = Some(at));
    }
    let in_order: Vec<usize> = group_of.into_iter().flatten().collect();
    let both = in_order.windows(2).map(|both| (both[0].min(both[1]), both[0].max(both[1])));
    let both: BTreeSet<(usize, usize)> = both.filter(|(a, b)| a != b).collect();
    both.into_iter().collect()
}

/// Of every two groups that follow each other the candidates that come first among `single`, at once, in that order.
fn pairs(follows: &[(usize, usize)], single: &[(usize, usize)]) -> Vec<Exchange> {
    let first = |group: usize| {
        let of = single.iter().enumerate().filter(move |(_, (at, _))| *at == group);
        of.map(|(rank, &one)| (rank, one)).take(PAIRED)
    };
    let both = |&(a, b): &(usize, usize)| {
        first(a).flat_map(move |one| first(b).map(move |other| (one.0 + other.0, vec![one.1, other.1])))
    };
    let mut pairs: Vec<(usize, Exchange)> = follows.iter().flat_map(both).collect();
    pairs.sort_by_key(|(rank, _)| *rank);
    pairs.into_iter().map(|(_, pair)| pair).collect()
}

/// How many candidates of a step are compared in any case, and how much slower by itself one may be.
fn reach(program: &Program) -> (usize, f64) {
    if program.states.is_empty() { (FINALISTS, SLACK) } else { (FINALISTS_OF_ROWS, SLACK_OF_ROWS) }
}

/// Those of a step's candidates that may be compared.
pub(super) fn finalists<'a>(program: &Program, tried: &'a [Timed]) -> impl Iterator<Item = &'a Timed> {
    let (_, slack) = reach(program);
    tried.iter().filter(move |timed| timed.us <= tried[0].us * slack).take(MOST_CANDIDATES)
}

/// The steps that are compared, with as many candidates as so many `graphs` tell apart.
fn groups(program: &Program, tuned: &Tuned, whole_ms: f64, graphs: usize) -> Vec<Group> {
    let (least, _) = reach(program);
    let of = |tried: &[Timed]| finalists(program, tried).cloned().collect();
    let mut groups = Group::all(program, &tuned.tried, &of, whole_ms);
    let unknowns = |most: usize| groups.iter().map(|group| group.candidates.len().min(most) - 1).sum::<usize>();
    // Few steps have time for many candidates, many for those that are likely the best.
    let each = |most: usize| if most > least { GRAPHS_EACH.end } else { GRAPHS_EACH.start };
    let most = (2..=MANY_FINALISTS).rev().find(|most| unknowns(*most) * each(*most) <= graphs).unwrap_or(2);
    groups.iter_mut().for_each(|group| group.compared = group.candidates.len().min(most));
    groups
}

/// Gives up the candidates with which, alone, the whole does not run.
fn weed(graph: &mut Whole<'_>, groups: &mut [Group], screen: &mut Screen) -> Result<()> {
    for at in 0..groups.len() {
        for candidate in 1..groups[at].compared {
            let mut choice = vec![0; groups.len()];
            choice[at] = candidate;
            if graph.ms_of(groups, &choice, 1)?.is_none() {
                screen.give_up(at, candidate);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::whole::tests::group;
    use super::*;

    #[test]
    fn steps_that_follow_each_other_are_paired_by_their_groups() {
        // Steps 2 and 5 have no choice; step 4 follows its like.
        let groups = [group(&[0, 6], 1, &[1.0]), group(&[1], 1, &[1.0]), group(&[3, 4], 1, &[1.0])];
        assert_eq!(neighbours(7, &groups), [(0, 1), (0, 2), (1, 2)]);
        assert_eq!(neighbours(0, &[]), []);
    }

    #[test]
    fn pairs_begin_with_what_is_most_promising() {
        let single = [(1, 2), (0, 1), (2, 0), (1, 0), (0, 0), (1, 1), (1, 3)];
        let pairs = pairs(&[(0, 1)], &single);
        assert_eq!(pairs.len(), 2 * PAIRED);
        assert_eq!(pairs[0], [(0, 1), (1, 2)]);
        assert!(pairs.iter().all(|pair| !pair.contains(&(1, 3)) && pair.iter().all(|(group, _)| *group < 2)));
    }
}
