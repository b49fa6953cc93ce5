//! Steps side by side: which of a program's streams a step runs on, what it waits for, and where its buffers then lie.
//!
//! In the order of its steps every program is right, on one stream. Two steps may change places, or run at once, unless
//! one writes memory that the other touches: only such pairs are ordered, by their stream or by an event. Buffers share
//! memory only where every use of the one is ordered before every use of the other.

mod order;
mod ways;

use crate::{
    program::{ALIGNMENT, MAX_STREAMS, Place, Program, Step},
    view::{BufferId, View},
};
use planforge_passes::memory::place_apart;
use std::collections::BTreeMap;

pub use order::Order;
pub use ways::{Tried, search};

/// Programs of more steps stay on one stream: pairs of steps are compared.
const MAX_STEPS: usize = 3000;
/// What waiting for another stream costs, in microseconds, as far as is known.
const WAIT_US: f64 = 1.5;

/// What orders the steps of a program on its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Streams that steps run on.
    pub streams: u32,
    /// By step: steps of other streams that it waits for; fewest that order what must be.
    pub waits: Vec<Vec<usize>>,
}

impl Schedule {
    /// The order that memory demands.
    pub fn of(program: &Program) -> Self {
        Self::by(program, &touches(program, true))
    }

    fn by(program: &Program, touches: &[Touched<'_>]) -> Self {
        let streams = program.steps.iter().map(|step| step.stream + 1).max().unwrap_or(1);
        let mut waits = vec![Vec::new(); program.steps.len()];
        if streams == 1 {
            return Self { streams, waits };
        }
        // How many steps (by number, plus one) of each stream are known to be done: for each stream now, and after each
        // step.
        let mut now = vec![vec![0; streams as usize]; streams as usize];
        let mut after: Vec<Vec<usize>> = Vec::with_capacity(program.steps.len());
        for (number, step) in program.steps.iter().enumerate() {
            let own = step.stream as usize;
            for earlier in (0..number).rev() {
                let other = program.steps[earlier].stream as usize;
                if now[own][other] <= earlier && touches[earlier].orders(&touches[number]) {
                    waits[number].push(earlier);
                    for (known, more) in now[own].iter_mut().zip(&after[earlier]) {
                        *known = (*known).max(*more);
                    }
                }
            }
            now[own][own] = number + 1;
            after.push(now[own].clone());
        }
        Self { streams, waits }
    }

    /// Whether anything waits for each step.
    pub fn awaited(&self) -> Vec<bool> {
        let mut awaited = vec![false; self.waits.len()];
        self.waits.iter().flatten().for_each(|&step| awaited[step] = true);
        awaited
    }

    /// By step: whether one of `these` comes right behind it, next on its stream or because that waits for it.
    pub fn ahead_of(&self, steps: &[Step], these: &[bool]) -> Vec<bool> {
        let mut before = vec![false; steps.len()];
        let mut last: BTreeMap<u32, usize> = BTreeMap::new();
        for (number, step) in steps.iter().enumerate() {
            let previous = last.insert(step.stream, number);
            if these[number] {
                self.waits[number].iter().copied().chain(previous).for_each(|earlier| before[earlier] = true);
            }
        }
        before
    }

    /// By step: which steps are done when it begins.
    fn done_before(&self, steps: &[Step]) -> Vec<Vec<bool>> {
        let mut done: Vec<Vec<bool>> = Vec::with_capacity(steps.len());
        let mut last: BTreeMap<u32, usize> = BTreeMap::new();
        for (number, step) in steps.iter().enumerate() {
            let mut before = vec![false; steps.len()];
            for &earlier in self.waits[number].iter().chain(last.get(&step.stream)) {
                before[earlier] = true;
                before.iter_mut().zip(&done[earlier]).for_each(|(known, more)| *known |= more);
            }
            last.insert(step.stream, number);
            done.push(before);
        }
        done
    }
}

/// The memory of a step.
struct Touched<'a> {
    read: Vec<Range<'a>>,
    written: Vec<Range<'a>>,
}

impl Touched<'_> {
    /// Whether this step and a later one must keep their order.
    fn orders(&self, later: &Self) -> bool {
        let meet = |written: &[Range<'_>], others: &[Range<'_>]| {
            written.iter().any(|range| others.iter().any(|other| range.meets(other)))
        };
        meet(&self.written, &later.written) || meet(&self.written, &later.read) || meet(&later.written, &self.read)
    }
}

/// What a view covers.
struct Range<'a> {
    view: &'a View,
    /// The kind of memory and, in it, the first byte and the byte after the last one; `None` when only the buffer counts.
    at: Option<(u32, u64, u64)>,
}

impl Range<'_> {
    fn meets(&self, other: &Self) -> bool {
        if self.view.buffer == other.view.buffer {
            return !disjoint(self.view, other.view);
        }
        match (self.at, other.at) {
            (Some((kind, begin, end)), Some((other_kind, other_begin, other_end))) => {
                kind == other_kind && begin < other_end && other_begin < end
            }
            _ => false,
        }
    }
}

/// Constants are left out: nobody writes them. With `by_address`, buffers that share memory meet.
fn touches(program: &Program, by_address: bool) -> Vec<Touched<'_>> {
    let range = |view| {
        let buffer = program.buffer(view);
        match buffer.place {
            // A buffer whole: kernels may read beside what they use.
            Place::Arena(at) if by_address => Some((0, at, at + buffer.bytes)),
            _ => None,
        }
    };
    program
        .steps
        .iter()
        .map(|step| {
            let (read, written) = step.work.views();
            let read = read.into_iter().filter(|view| !program.is_constant(view));
            Touched {
                read: read.map(|view| Range { view, at: range(view.buffer) }).collect(),
                written: [written]
                    .into_iter()
                    .chain(step.work.updates())
                    .map(|view| Range { view, at: range(view.buffer) })
                    .collect(),
            }
        })
        .collect()
}

/// Whether two views of one buffer certainly have no byte in common.
fn disjoint(a: &View, b: &View) -> bool {
    let end = |view: &View| view.end_bytes().unwrap_or(u64::MAX);
    let begin = |view: &View| view.offset * view.kind.bytes();
    if end(a) <= begin(b) || end(b) <= begin(a) {
        return true;
    }
    match (lane(a), lane(b)) {
        (Some((pitch, begin, end)), Some((other_pitch, other_begin, other_end))) => {
            pitch == other_pitch && (end <= other_begin || other_end <= begin)
        }
        _ => false,
    }
}

/// The bytes that a view has of every pitch, where it has the same of each: of an image's pixel, some channels.
fn lane(view: &View) -> Option<(u64, u64, u64)> {
    let axes = || view.dims.iter().zip(&view.strides).filter(|(dim, _)| **dim > 1);
    let width = 1 + axes().filter(|(_, stride)| **stride == 1).map(|(dim, _)| dim - 1).sum::<u64>();
    let pitch = axes().map(|(_, stride)| *stride).filter(|stride| *stride > 1).min()?;
    let begin = view.offset % pitch;
    let whole = axes().all(|(_, stride)| *stride == 1 || stride % pitch == 0);
    let bytes = view.kind.bytes();
    (whole && begin + width <= pitch).then_some((pitch * bytes, begin * bytes, (begin + width) * bytes))
}

/// The program with its steps on at most `streams` streams, by what each takes in microseconds, and its arena laid out
/// for that; `None` when all of them stay on one.
pub fn spread(program: &Program, streams: u32, cost_us: &[f64]) -> Option<Program> {
    let chosen = Order::of(program)?.greedy(streams.min(MAX_STREAMS), cost_us, WAIT_US);
    if chosen.iter().all(|&stream| stream == 0) {
        return None;
    }
    on_streams(program, &chosen)
}

/// The program with its steps on these streams; `None` when they are not its.
pub fn on_streams(program: &Program, streams: &[u32]) -> Option<Program> {
    if streams.len() != program.steps.len() || streams.iter().any(|&stream| stream >= MAX_STREAMS) {
        return None;
    }
    let mut spread = program.clone();
    spread.steps.iter_mut().zip(streams).for_each(|(step, &stream)| step.stream = stream);
    if streams.iter().any(|&stream| stream > 0) {
        lay_out(&mut spread);
    }
    Some(spread)
}

/// Places the arena's buffers so that two share memory only when all uses of one come before all uses of the other.
fn lay_out(program: &mut Program) {
    let schedule = Schedule::by(program, &touches(program, false));
    let before = schedule.done_before(&program.steps);
    let mut users: BTreeMap<BufferId, Vec<usize>> = BTreeMap::new();
    for (number, step) in program.steps.iter().enumerate() {
        let (read, written) = step.work.views();
        for view in read.into_iter().chain([written]) {
            if matches!(program.buffer(view.buffer).place, Place::Arena(_)) {
                users.entry(view.buffer).or_default().push(number);
            }
        }
    }
    let all_before = |first: &[usize], second: &[usize]| second.iter().all(|&b| first.iter().all(|&a| before[b][a]));
    let users: Vec<(BufferId, Vec<usize>)> = users.into_iter().collect();
    let sizes: Vec<u64> = users.iter().map(|(id, _)| program.buffer(*id).bytes).collect();
    let may_share = |a: usize, b: usize| {
        let (a, b) = (&users[a].1, &users[b].1);
        all_before(a, b) || all_before(b, a)
    };
    let (offsets, whole) = place_apart(&sizes, |index| users[index].1[0], may_share, ALIGNMENT);
    // Buffers that nobody uses keep the least of room, wherever.
    for buffer in program.buffers.iter_mut().filter(|buffer| matches!(buffer.place, Place::Arena(_))) {
        buffer.place = Place::Arena(0);
    }
    for ((id, _), offset) in users.iter().zip(offsets) {
        program.buffers[id.0 as usize].place = Place::Arena(offset);
    }
    let unused = program.buffers.iter().filter(|buffer| matches!(buffer.place, Place::Arena(0)));
    program.arena_bytes = unused.map(|buffer| buffer.bytes).fold(whole, u64::max);
}
