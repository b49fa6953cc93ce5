//! Ensembles of trees, held to a walk that asks one node after another.

use planforge_kernels_cpu::{
    pool::ThreadPool,
    trees::{Aggregate, Mode, TreeNode, Trees, TreesError},
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const MODES: [Mode; 6] = [Mode::AtMost, Mode::Less, Mode::AtLeast, Mode::More, Mode::Equal, Mode::NotEqual];
const AGGREGATES: [Aggregate; 4] = [Aggregate::Sum, Aggregate::Average, Aggregate::Min, Aggregate::Max];

/// Values and thresholds at which comparisons differ.
const CORNERS: [f32; 10] =
    [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, -1e-45];

fn holds(mode: Mode, value: f32, threshold: f32) -> bool {
    match mode {
        Mode::AtMost => value <= threshold,
        Mode::Less => value < threshold,
        Mode::AtLeast => value >= threshold,
        Mode::More => value > threshold,
        Mode::Equal => value == threshold,
        Mode::NotEqual => value != threshold,
    }
}

/// Random trees, each with its children behind it, and their weights.
struct Forest {
    nodes: Vec<TreeNode<f32>>,
    roots: Vec<usize>,
    weights: Vec<(usize, f32)>,
}

impl Forest {
    fn draw(rng: &mut StdRng, trees: usize, depth: usize, features: usize, targets: usize) -> Self {
        let mut forest = Self { nodes: Vec::new(), roots: Vec::new(), weights: Vec::new() };
        for _ in 0..trees {
            let root = forest.grow(rng, depth, features, targets);
            forest.roots.push(root);
        }
        forest
    }

    fn grow(&mut self, rng: &mut StdRng, depth: usize, features: usize, targets: usize) -> usize {
        let place = self.nodes.len();
        if depth == 0 || rng.random_bool(0.15) {
            let (first, count) = (self.weights.len(), rng.random_range(0..=targets));
            for target in 0..count {
                self.weights.push((target, rng.random_range(-8..8) as f32));
            }
            self.nodes.push(TreeNode::Leaf { first, count });
            return place;
        }
        self.nodes.push(TreeNode::Leaf { first: 0, count: 0 });
        let (yes, no) = (self.grow(rng, depth - 1, features, targets), self.grow(rng, depth - 1, features, targets));
        self.nodes[place] = TreeNode::Branch {
            mode: MODES[rng.random_range(0..MODES.len())],
            feature: rng.random_range(0..features),
            threshold: CORNERS[rng.random_range(0..CORNERS.len())],
            yes,
            no,
            missing: rng.random_bool(0.5),
        };
        place
    }

    /// The same with thresholds and weights as f64.
    fn wide(&self, sizes: [usize; 2], aggregate: Aggregate) -> Trees<f64> {
        let node = |node: &TreeNode<f32>| match *node {
            TreeNode::Leaf { first, count } => TreeNode::Leaf { first, count },
            TreeNode::Branch { mode, feature, threshold, yes, no, missing } => {
                TreeNode::Branch { mode, feature, threshold: threshold.into(), yes, no, missing }
            }
        };
        let nodes: Vec<TreeNode<f64>> = self.nodes.iter().map(node).collect();
        let weights: Vec<(usize, f64)> = self.weights.iter().map(|&(target, weight)| (target, weight.into())).collect();
        Trees::new(&nodes, &self.roots, &weights, sizes, aggregate).unwrap()
    }

    fn score(&self, row: &[f32], targets: usize, aggregate: Aggregate) -> Vec<f32> {
        let mut scores: Vec<Option<f32>> = vec![None; targets];
        for &root in &self.roots {
            let mut at = root;
            while let TreeNode::Branch { mode, feature, threshold, yes, no, missing } = self.nodes[at] {
                let value = row[feature];
                at = if holds(mode, value, threshold) || (missing && value.is_nan()) { yes } else { no };
            }
            let TreeNode::Leaf { first, count } = self.nodes[at] else { unreachable!() };
            for &(target, weight) in &self.weights[first..first + count] {
                scores[target] = Some(match (scores[target], aggregate) {
                    (None, _) => weight,
                    (Some(score), Aggregate::Min) => score.min(weight),
                    (Some(score), Aggregate::Max) => score.max(weight),
                    (Some(score), _) => score + weight,
                });
            }
        }
        let trees = self.roots.len() as f32;
        let end = |score: Option<f32>| match aggregate {
            Aggregate::Average => score.unwrap_or(0.0) / trees,
            _ => score.unwrap_or(0.0),
        };
        scores.into_iter().map(end).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn scores_are_those_of_a_plain_walk(
        seed in any::<u64>(),
        [rows, trees] in [1usize..150, 1usize..40],
        depth in 0usize..8,
        targets in 1usize..4,
        aggregate in 0usize..4,
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let (features, aggregate) = (5, AGGREGATES[aggregate]);
        let forest = Forest::draw(rng, trees, depth, features, targets);
        let sizes = [features, targets];
        let kernel = Trees::new(&forest.nodes, &forest.roots, &forest.weights, sizes, aggregate).unwrap();
        let x: Vec<f32> = (0..rows * features).map(|_| CORNERS[rng.random_range(0..CORNERS.len())]).collect();
        let wanted: Vec<f32> =
            x.chunks(features).flat_map(|row| forest.score(row, targets, aggregate)).collect();
        for threads in [1, 2] {
            let mut scores = vec![f32::NAN; rows * targets];
            kernel.score(&ThreadPool::new(threads).unwrap(), &x, &mut scores);
            prop_assert_eq!(&scores, &wanted);
            // Whole weights are added exactly in either type.
            if aggregate != Aggregate::Average {
                let wide: Vec<f64> = x.iter().copied().map(f64::from).collect();
                let mut scores = vec![f64::NAN; rows * targets];
                forest.wide(sizes, aggregate).score(&ThreadPool::new(threads).unwrap(), &wide, &mut scores);
                prop_assert!(scores.iter().zip(&wanted).all(|(wide, score)| *wide == f64::from(*score)));
            }
        }
    }
}

#[test]
fn what_is_no_ensemble_is_refused() {
    let branch = |feature: usize, yes: usize, no: usize| TreeNode::Branch {
        mode: Mode::AtMost,
        feature,
        threshold: 0.0,
        yes,
        no,
        missing: false,
    };
    let leaf = TreeNode::<f32>::Leaf { first: 0, count: 1 };
    let refused = |nodes: &[TreeNode<f32>], roots: &[usize], weights: &[(usize, f32)]| {
        Trees::new(nodes, roots, weights, [2, 1], Aggregate::Sum).unwrap_err()
    };
    let weight = [(0, 1.0)];
    assert_eq!(refused(&[branch(0, 1, 2), leaf], &[0], &weight), TreesError::Child { node: 0 });
    assert_eq!(refused(&[branch(0, 0, 1), leaf], &[0], &weight), TreesError::Circle);
    assert_eq!(refused(&[branch(0, 2, 1), leaf, branch(0, 1, 0)], &[0], &weight), TreesError::Circle);
    let wrong = TreesError::Feature { node: 0, feature: 2, features: 2 };
    assert_eq!(refused(&[branch(2, 1, 1), leaf], &[0], &weight), wrong);
    assert_eq!(refused(&[leaf], &[1], &weight), TreesError::Missing);
    assert_eq!(refused(&[leaf], &[0], &[(1, 1.0)]), TreesError::Missing);
    assert_eq!(refused(&[leaf], &[0], &[]), TreesError::Missing);
    assert_eq!(refused(&[TreeNode::Leaf { first: usize::MAX, count: 2 }], &[0], &weight), TreesError::Missing);
    // Nodes that are shared make no circle.
    let shared = [branch(0, 1, 1), branch(1, 2, 2), leaf];
    assert!(Trees::new(&shared, &[0, 0], &weight, [2, 1], Aggregate::Sum).is_ok());
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let leaf = [TreeNode::<f32>::Leaf { first: 0, count: 1 }];
    let trees = Trees::new(&leaf, &[0], &[(0, 1.0)], [2, 1], Aggregate::Sum).unwrap();
    let pool = ThreadPool::new(1).unwrap();
    let call = || trees.score(&pool, &[0.0; 3], &mut [0.0; 2]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
}
