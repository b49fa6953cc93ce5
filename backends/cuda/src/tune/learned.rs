//! What tiles took on steps that were timed says which are worth compiling for steps like them.
//!
//! A network of a hundred distinct products has families of them that differ in the length of their sums alone, and
//! compiling every tile for every one takes most of a build. So a few of each family are searched whole, and of the others
//! those tiles are compiled that did best on the nearest of them.

use super::Effort;
use crate::{
    codegen::{
        candidates::product,
        gemm::{self, Problem, Tile},
    },
    program::{Program, Work},
    signature::signature,
};
use std::collections::{BTreeMap, BTreeSet};

/// Of fewer distinct products every one is searched whole.
const MANY: usize = 24;
/// How far a product may be from one that is searched whole, in doublings of its sizes.
const NEAR: f64 = 0.75;
/// Tiles for a product near to one that was timed, and for one of the same sizes.
const TILES_NEAR: usize = 4;
const TILES_SAME: usize = 2;
/// A library that took so many times as long on the nearest is not asked.
const BEATEN: f64 = 1.3;
/// Of many products each is tried with this part of the engines that compile: kernels of ours are nearly always better,
/// and one such engine takes more than twice as long to compile as one of them.
const PART_FOR_PRODUCT: usize = 3;

/// Which products wait for others, and what those took.
#[derive(Debug)]
pub(super) struct Learned {
    target: gemm::Device,
    tiles: usize,
    /// There are more distinct products than are searched whole.
    many: bool,
    /// Signatures of steps that are searched last.
    later: BTreeSet<String>,
    timed: Vec<Timed>,
    /// A library's kernel that compiles was the best of some step.
    compiled_won: bool,
}

/// What a product took.
#[derive(Debug)]
struct Timed {
    problem: Problem,
    us: Vec<(Tile, f64)>,
    /// The best of a library, over the best of these.
    library: f64,
}

impl Learned {
    /// `is_known`: whether the times of a step with such a signature are.
    pub fn of(target: gemm::Device, program: &Program, effort: Effort, is_known: impl Fn(&str) -> bool) -> Self {
        let mut products: BTreeMap<String, Problem> = BTreeMap::new();
        let mut order: Vec<String> = Vec::new();
        for step in &program.steps {
            let Some(problem) = product(program, &step.work) else { continue };
            let signature = signature(program, &step.work);
            if !is_known(&signature) && products.insert(signature.clone(), problem).is_none() {
                order.push(signature);
            }
        }
        let mut later = BTreeSet::new();
        let many = products.len() > MANY;
        if many {
            let mut whole: Vec<&Problem> = Vec::new();
            for signature in &order {
                let problem = &products[signature];
                let is_near = whole.iter().any(|other| distance(problem, other).is_some_and(|far| far <= NEAR));
                if is_near {
                    later.insert(signature.clone());
                } else {
                    whole.push(problem);
                }
            }
        }
        Self { target, tiles: effort.tiles, many, later, timed: Vec::new(), compiled_won: false }
    }

    /// Whether a step is searched after the others.
    pub fn is_later(&self, signature: &str) -> bool {
        self.later.contains(signature)
    }

    /// How hard a step is searched: libraries are not asked where they were beaten nearby, nor engines that compile where
    /// none has won; of many products each has few of those.
    pub fn effort(&self, effort: Effort, program: &Program, work: &Work) -> Effort {
        let is_product = match work {
            Work::Product(_) => true,
            Work::Conv(conv) => conv.is_pointwise(),
            _ => false,
        };
        let few = self.many && is_product;
        let compiled = if few { effort.compiled.div_ceil(PART_FOR_PRODUCT) } else { effort.compiled };
        let effort = Effort { compiled, ..effort };
        if !self.is_later(&signature(program, work)) {
            return effort;
        }
        let beaten = || self.near(&product(program, work)?).first().map(|(_, timed)| timed.library > BEATEN);
        let compiled = if self.compiled_won { effort.compiled } else { 0 };
        Effort { compiled, libraries: beaten() != Some(true), ..effort }
    }

    /// Products that were timed, the nearest first, and how far they are.
    fn near(&self, problem: &Problem) -> Vec<(f64, &Timed)> {
        let near = self.timed.iter().filter_map(|timed| Some((distance(problem, &timed.problem)?, timed)));
        let mut near: Vec<(f64, &Timed)> = near.collect();
        near.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        near
    }

    /// Tiles that are worth compiling for a step, most promising first.
    pub fn tiles(&self, program: &Program, work: &Work) -> Vec<Tile> {
        let Some(problem) = product(program, work) else { return Vec::new() };
        let tiles = gemm::tiles(&problem, self.target, self.tiles);
        if !self.is_later(&signature(program, work)) {
            return tiles;
        }
        let near = self.near(&problem);
        let Some((far, _)) = near.first() else { return tiles };
        let most = if *far == 0.0 { TILES_SAME } else { TILES_NEAR };
        // Microseconds of a cycle as the nearest saw them; a tile that none near has timed is taken for a middling one.
        let expected = |tile: &Tile| {
            let of = |other: &Timed| {
                let (_, us) = other.us.iter().find(|(timed, _)| timed == tile)?;
                Some(us / tile.cycles(&other.problem, self.target) as f64)
            };
            let ratio = near.iter().find_map(|(_, timed)| of(timed));
            Some(ratio? * tile.cycles(&problem, self.target) as f64)
        };
        let mut told: Vec<(Tile, f64)> = tiles.iter().filter_map(|tile| Some((*tile, expected(tile)?))).collect();
        if told.len() < most {
            return tiles.into_iter().take(most).collect();
        }
        told.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        told.into_iter().take(most).map(|(tile, _)| tile).collect()
    }

    /// Notes what the tiles of a step took, the best of a library (infinite without one), and the best of those that
    /// compile.
    pub fn note(&mut self, program: &Program, work: &Work, us: Vec<(Tile, f64)>, library_us: f64, compiled_us: f64) {
        let best_us = us.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
        self.compiled_won |= compiled_us <= library_us && compiled_us < best_us;
        if let Some(problem) = product(program, work)
            && best_us.is_finite()
        {
            self.timed.push(Timed { problem, us, library: library_us / best_us });
        }
    }
}

/// How far two products are from one another, in doublings of their sizes; `None` for what is not alike.
fn distance(a: &Problem, b: &Problem) -> Option<f64> {
    let doublings = |(a, b): (u64, u64)| (a.max(1) as f64 / b.max(1) as f64).log2().abs();
    a.is_like(b).then(|| a.sizes().into_iter().zip(b.sizes()).map(doublings).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        program::{Buffer, Place, ProductWork, Step},
        view::{BufferId, Kind, View},
    };

    const H200: gemm::Device = gemm::Device { capability: 90, sm_count: 132, shared_block_bytes: 227 << 10 };

    fn product_of(rows: u64, sums: u64, columns: u64) -> Work {
        let view = |dims: &[u64]| View::rows(BufferId(0), Kind::F16, dims);
        let mut b = view(&[1, columns, sums]);
        // The second factor's sums run along its rows.
        (b.dims, b.strides) = (vec![1, sums, columns], vec![sums * columns, 1, sums]);
        let (a, y) = (view(&[1, rows, sums]), view(&[1, rows, columns]));
        Work::Product(ProductWork { a, b, bias: None, residual: None, y, alpha: 1.0, activation: None, norm: None })
    }

    fn program(works: impl Iterator<Item = Work>) -> Program {
        let buffer = Buffer { name: "all".into(), bytes: 1 << 30, place: Place::Arena(0) };
        let step = |(at, work)| Step {
            name: format!("step {at}"),
            origins: Vec::new(),
            work,
            tactic: None,
            stream: 0,
            flops: 0,
            bytes: 0,
        };
        Program { buffers: vec![buffer], steps: works.enumerate().map(step).collect(), ..Program::default() }
    }

    #[test]
    fn products_near_to_one_that_is_searched_whole_wait_and_take_its_best_tiles() {
        let effort = Effort::of_level(3);
        let program = program((2..40).map(|at| product_of(784, at * 32, 128)));
        let mut learned = Learned::of(H200, &program, effort, |_| false);
        let waits = |learned: &Learned, step: &Step| learned.is_later(&signature(&program, &step.work));
        let whole: Vec<&Step> = program.steps.iter().filter(|step| !waits(&learned, step)).collect();
        assert!((4..10).contains(&whole.len()), "{} of 38 are searched whole", whole.len());
        let step = &program.steps[1];
        assert!(waits(&learned, step));
        // The model takes others for better.
        let guessed = gemm::tiles(&product(&program, &step.work).expect("a product"), H200, effort.tiles);
        let first = learned.tiles(&program, &whole[0].work);
        let good = *guessed[TILES_NEAR..].iter().find(|tile| first.contains(tile)).expect("one that both have");
        for step in &whole {
            let tiles = learned.tiles(&program, &step.work);
            assert!(tiles.len() > TILES_NEAR, "short sums have fewer tiles: {}", tiles.len());
            let times = tiles.iter().map(|tile| (*tile, if *tile == good { 5.0 } else { 18.0 })).collect();
            learned.note(&program, &step.work, times, 20.0, f64::INFINITY);
        }
        let tiles = learned.tiles(&program, &step.work);
        assert_eq!(tiles.len(), TILES_NEAR);
        assert!(tiles.contains(&good), "what was the best nearby is tried");
        let hard = learned.effort(effort, &program, &step.work);
        assert!(!hard.libraries && hard.compiled == 0, "the library took 20 us where the best tile took 5");
        let of_whole = learned.effort(effort, &program, &whole[0].work);
        assert_eq!(of_whole, Effort { compiled: 1, ..effort }, "of many products each is tried with one that compiles");
    }

    #[test]
    fn a_network_of_few_products_is_searched_whole() {
        let program = program((2..20).map(|at| product_of(784, at * 32, 128)));
        let learned = Learned::of(H200, &program, Effort::of_level(3), |_| false);
        assert!(program.steps.iter().all(|step| !learned.is_later(&signature(&program, &step.work))));
        let effort = Effort::of_level(3);
        assert_eq!(learned.effort(effort, &program, &program.steps[0].work), effort);
        let many = self::program((2..40).map(|at| product_of(784, at * 32, 128)));
        let known = signature(&many, &many.steps[30].work);
        let learned = Learned::of(H200, &many, Effort::of_level(3), |signature| signature == known);
        assert!(!learned.is_later(&known), "what is known is not searched");
    }
}
