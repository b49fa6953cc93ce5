//! Steps on several streams compute what they compute one after another, in whatever order the schedule lets them run.

use planforge_cuda::{
    program::{Buffer, Edge, KernelWork, MAX_STREAMS, Place, Program, Step, Work},
    schedule::{self, Order, Schedule, Tried},
    view::{BufferId, Kind, View},
};
use planforge_types::ElementType;
use rand::{RngExt as _, SeedableRng, rngs::StdRng};
use std::{cell::RefCell, convert::Infallible};

/// Pixels and channels of every buffer.
const PIXELS: u64 = 3;
const CHANNELS: u64 = 8;
const ALIGNMENT: u64 = 256;

/// A random program: steps that read some of what was written before, whole or by channels, and write a buffer of their
/// own or their share of one that several fill.
fn random_program(rng: &mut StdRng) -> Program {
    let bytes = PIXELS * CHANNELS;
    let mut program = Program { weight_bytes: 0, ..Program::default() };
    let edge = |name: &str, buffer| Edge {
        name: name.into(),
        element: ElementType::U8,
        shape: vec![1, CHANNELS, 1, PIXELS],
        buffer: BufferId(buffer),
    };
    let mut buffer = |place, name: String| {
        program.buffers.push(Buffer { name, bytes, place });
        program.buffers.len() as u32 - 1
    };
    let input = buffer(Place::Input(0), "x".into());
    let output = buffer(Place::Output(0), "y".into());
    let mut known = vec![View::channels_last(BufferId(input), Kind::U8, &[1, CHANNELS, 1, PIXELS])];
    let mut steps: Vec<(Vec<View>, View)> = Vec::new();
    for number in 0..rng.random_range(3..14) {
        let reads = |rng: &mut StdRng, known: &[View]| -> Vec<View> {
            let count = rng.random_range(1..=2);
            (0..count).map(|_| known[rng.random_range(0..known.len())].clone()).collect()
        };
        let whole = View::channels_last(
            BufferId(buffer(Place::Arena(0), format!("b{number}"))),
            Kind::U8,
            &[1, CHANNELS, 1, PIXELS],
        );
        if rng.random_bool(0.3) {
            // Two or three steps fill it, as a concatenation is filled.
            let mut cuts = vec![0, rng.random_range(1..4), rng.random_range(4..CHANNELS), CHANNELS];
            cuts.dedup();
            for cut in cuts.windows(2) {
                let part = whole.slice(1, cut[0], cut[1] - cut[0]);
                steps.push((reads(rng, &known), part.clone()));
                if rng.random_bool(0.5) {
                    known.push(part);
                }
            }
        } else {
            steps.push((reads(rng, &known), whole.clone()));
        }
        known.push(whole);
    }
    let y = View::channels_last(BufferId(output), Kind::U8, &[1, CHANNELS, 1, PIXELS]);
    steps.push((known[known.len().saturating_sub(4)..].to_vec(), y));
    program.steps = steps
        .into_iter()
        .enumerate()
        .map(|(number, (mut operands, written))| {
            operands.push(written);
            let work =
                KernelWork { role: "test".into(), source: 0, grid: [1; 3], block: [1; 3], operands, gelus: Vec::new() };
            Step {
                name: number.to_string(),
                origins: Vec::new(),
                work: Work::Kernel(work),
                tactic: None,
                stream: 0,
                flops: 0,
                bytes: 0,
            }
        })
        .collect();
    program.inputs = vec![edge("x", input)];
    program.outputs = vec![edge("y", output)];
    // Nothing shares memory at first.
    let mut at = 0;
    for buffer in &mut program.buffers {
        if let Place::Arena(place) = &mut buffer.place {
            *place = at;
            at += ALIGNMENT;
        }
    }
    program.arena_bytes = at;
    program
}

/// Every byte that a view touches, in a memory with the arena first and the edges behind it.
fn bytes_of(program: &Program, view: &View) -> Vec<usize> {
    let base = match program.buffer(view.buffer).place {
        Place::Arena(at) => at,
        Place::Input(_) => program.arena_bytes,
        _ => program.arena_bytes + ALIGNMENT,
    };
    let mut places = vec![base + view.offset];
    for (dim, stride) in view.dims.iter().zip(&view.strides) {
        places = places.iter().flat_map(|at| (0..*dim).map(move |index| at + index * stride)).collect();
    }
    places.into_iter().map(|at| at as usize).collect()
}

/// The output after the steps ran in `order`; what a step writes depends on all that it reads and on which step it is.
fn run(program: &Program, order: &[usize]) -> Vec<u8> {
    let mut memory = vec![0u8; (program.arena_bytes + 2 * ALIGNMENT) as usize];
    for (index, byte) in memory[program.arena_bytes as usize..][..ALIGNMENT as usize].iter_mut().enumerate() {
        *byte = index as u8;
    }
    for &number in order {
        let (read, written) = program.steps[number].work.views();
        let mut state = number as u32 + 1;
        for view in read {
            for at in bytes_of(program, view) {
                state = state.wrapping_mul(31).wrapping_add(u32::from(memory[at]) + 7);
            }
        }
        for at in bytes_of(program, written) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            memory[at] = (state >> 24) as u8;
        }
    }
    memory[(program.arena_bytes + ALIGNMENT) as usize..].to_vec()
}

/// A random order that streams and waits allow.
fn allowed_order(program: &Program, schedule: &Schedule, rng: &mut StdRng) -> Vec<usize> {
    let count = program.steps.len();
    let (mut done, mut order) = (vec![false; count], Vec::new());
    while order.len() < count {
        let free: Vec<usize> = (0..count)
            .filter(|&number| {
                let stream = program.steps[number].stream;
                !done[number]
                    && schedule.waits[number].iter().all(|&earlier| done[earlier])
                    && (0..number).all(|earlier| done[earlier] || program.steps[earlier].stream != stream)
            })
            .collect();
        let next = free[rng.random_range(0..free.len())];
        done[next] = true;
        order.push(next);
    }
    order
}

/// Ways to spread the steps as a search tries them, of which every third gains.
fn ways(program: &Program, cost_us: &[f64], most: usize) -> Vec<Vec<u32>> {
    let order = Order::of(program).expect("few steps");
    let tried = RefCell::new(Vec::new());
    let mut try_one = |way: &[u32]| {
        tried.borrow_mut().push(way.to_vec());
        let gains = tried.borrow().len().is_multiple_of(3);
        Ok::<Tried, Infallible>(if gains { Tried::Gains } else { Tried::Near })
    };
    let Ok(()) = schedule::search(&order, cost_us, &mut try_one, &|| tried.borrow().len() < most);
    tried.into_inner()
}

#[test]
fn any_order_that_the_schedule_allows_computes_the_same() {
    let (mut aside, mut shared, mut searched) = (0, 0, 0);
    for seed in 0..150 {
        let mut rng = StdRng::seed_from_u64(seed);
        let program = random_program(&mut rng);
        let in_order: Vec<usize> = (0..program.steps.len()).collect();
        let expected = run(&program, &in_order);
        let cost_us: Vec<f64> = program.steps.iter().map(|_| rng.random_range(1.0..20.0)).collect();
        let streams: Vec<u32> = program.steps.iter().map(|_| rng.random_range(0..MAX_STREAMS)).collect();
        let spread = [2, MAX_STREAMS].map(|streams| schedule::spread(&program, streams, &cost_us));
        let ways = ways(&program, &cost_us, 40);
        searched += ways.len();
        // Every fourth runs: most differ little from one another.
        let ways = ways.iter().step_by(4).chain([&streams]).filter_map(|way| schedule::on_streams(&program, way));
        for spread in spread.into_iter().flatten().chain(ways) {
            aside += spread.steps.iter().filter(|step| step.stream > 0).count();
            shared += usize::from(spread.arena_bytes < program.arena_bytes);
            let schedule = Schedule::of(&spread);
            assert_eq!(run(&spread, &in_order), expected, "seed {seed}: in order");
            for _ in 0..20 {
                let order = allowed_order(&spread, &schedule, &mut rng);
                assert_eq!(run(&spread, &order), expected, "seed {seed}: {order:?} of {schedule:?}");
            }
        }
    }
    assert!(aside > 500 && shared > 50, "{aside} steps ran aside, {shared} programs shared memory");
    assert!(searched > 2000, "{searched} ways were searched");
}

/// Two steps that fill the halves of one buffer, and one that reads it.
fn branches() -> Program {
    let view = |buffer| View::channels_last(BufferId(buffer), Kind::U8, &[1, CHANNELS, 1, PIXELS]);
    let mut rng = StdRng::seed_from_u64(0);
    let mut program = random_program(&mut rng);
    program.buffers.truncate(3);
    let halves = [view(2).slice(1, 0, 4), view(2).slice(1, 4, 4)];
    let operands = [vec![view(0), halves[0].clone()], vec![view(0), halves[1].clone()], vec![view(2), view(1)]];
    program.steps.truncate(3);
    for (step, operands) in program.steps.iter_mut().zip(operands) {
        let Work::Kernel(kernel) = &mut step.work else { unreachable!("all are kernels") };
        kernel.operands = operands;
    }
    program
}

#[test]
fn branches_run_side_by_side_and_parts_of_one_buffer_are_filled_at_once() {
    let program = branches();
    let spread = schedule::spread(&program, 2, &[10.0, 10.0, 1.0]).expect("two of them fit beside each other");
    let streams: Vec<u32> = spread.steps.iter().map(|step| step.stream).collect();
    assert_eq!(streams[..2], [0, 1]);
    let schedule = Schedule::of(&spread);
    assert_eq!((&schedule.waits[1], schedule.waits[2].len()), (&Vec::new(), 1), "{schedule:?}");
    assert_eq!(schedule::spread(&program, 1, &[10.0; 3]), None);
    assert_eq!(schedule::on_streams(&program, &[0, 1]), None, "another program's");
}

#[test]
fn what_a_library_waits_for_is_known_on_every_stream() {
    let spread = schedule::on_streams(&branches(), &[0, 1, 0]).expect("its own streams");
    let schedule = Schedule::of(&spread);
    assert_eq!(schedule.waits[2], [1]);
    let before = |these: [bool; 3]| schedule.ahead_of(&spread.steps, &these);
    assert_eq!(before([false, false, true]), [true, true, false], "the next on its stream, and what waits elsewhere");
    assert_eq!(before([true, true, false]), [false; 3], "own kernels wait themselves");
}
