//! Ensembles of decision trees over rows of features.
//!
//! Trees lie flat, sixteen bytes a node, every condition as "at most the threshold" with its children in the order that
//! makes it so. Several walks go side by side, so that one waits for memory while the others compute: rows of a block
//! through one tree, or one row through several trees. A leaf leads to itself, so that no walk has to be asked whether
//! it has ended at every step. Scores are added in the order of the trees, whatever the number of threads.

use crate::pool::{ThreadPool, for_parts};

/// Walks side by side.
const LANES: usize = 16;

/// Steps between two looks whether every walk has come to a leaf.
const STRIDE: usize = 4;

/// Rows that go through all trees before the next ones.
const BLOCK_ROWS: usize = 64;

/// Feature of a node; the highest bit says that a missing value (NaN) goes to the first child.
const MISSING: u32 = 1 << 31;

/// What rows, thresholds and weights are made of.
pub trait Number:
    Copy + std::fmt::Debug + Send + Sync + PartialOrd + std::ops::AddAssign + std::ops::DivAssign + 'static
{
    const ZERO: Self;
    const NAN: Self;
    /// Below all other numbers.
    const LOWEST: Self;
    fn is_nan(self) -> bool;
    /// The largest number below it.
    fn next_down(self) -> Self;
    fn of_count(count: usize) -> Self;
    /// [`Trees::score`], made for this type here, where kernels are optimised, and not where it is called.
    #[doc(hidden)]
    fn score(trees: &Trees<Self>, pool: &ThreadPool, x: &[Self], scores: &mut [Self]);
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        impl Number for $number {
            const ZERO: Self = 0.0;
            const NAN: Self = $number::NAN;
            const LOWEST: Self = $number::NEG_INFINITY;
            fn is_nan(self) -> bool {
                $number::is_nan(self)
            }
            fn next_down(self) -> Self {
                $number::next_down(self)
            }
            fn of_count(count: usize) -> Self {
                count as $number
            }
            fn score(trees: &Trees<Self>, pool: &ThreadPool, x: &[Self], scores: &mut [Self]) {
                trees.score_rows(pool, x, scores);
            }
        }
    )*};
}
numbers!(f32 f64);

/// How the leaves that a row comes to are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// What a branch asks of its feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    AtMost,
    Less,
    AtLeast,
    More,
    Equal,
    NotEqual,
}

/// A node as models have it; children are places in the list of nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TreeNode<T> {
    Branch {
        mode: Mode,
        feature: usize,
        threshold: T,
        yes: usize,
        no: usize,
        /// A missing value counts as holding.
        missing: bool,
    },
    /// Its weights are those from `first` on.
    Leaf { first: usize, count: usize },
}

/// Why nodes are no ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreesError {
    #[error("node {node} leads to what is not there")]
    Child { node: usize },
    #[error("node {node} asks for feature {feature} of {features}")]
    Feature { node: usize, feature: usize, features: usize },
    #[error("a root or a weight is not there")]
    Missing,
    #[error("the nodes make a circle")]
    Circle,
    #[error("there are too many nodes")]
    TooMany,
}

/// One flat node: `first` where the feature is at most the threshold, else `second`.
#[derive(Clone, Copy, Debug)]
struct Flat<T> {
    threshold: T,
    /// With [`MISSING`].
    feature: u32,
    first: u32,
    second: u32,
}

/// An ensemble ready to be walked.
#[derive(Debug)]
pub struct Trees<T> {
    nodes: Vec<Flat<T>>,
    /// First weight and number of weights of each leaf; none for branches.
    leaves: Vec<(u32, u32)>,
    /// Root and depth of each tree.
    roots: Vec<(u32, u32)>,
    /// Score and weight.
    weights: Vec<(u32, T)>,
    features: usize,
    targets: usize,
    aggregate: Aggregate,
}

impl<T: Number> Trees<T> {
    /// Checks that every place is one, that no node leads back to itself, and lays the nodes out.
    ///
    /// # Errors
    /// When nodes, roots or weights do not hold together.
    pub fn new(
        nodes: &[TreeNode<T>],
        roots: &[usize],
        weights: &[(usize, T)],
        [features, targets]: [usize; 2],
        aggregate: Aggregate,
    ) -> Result<Self, TreesError> {
        let depths = depths(nodes)?;
        if nodes.len() > u32::MAX as usize / 4 || weights.len() > u32::MAX as usize {
            return Err(TreesError::TooMany);
        }
        if roots.iter().any(|&root| root >= nodes.len()) || weights.iter().any(|&(target, _)| target >= targets) {
            return Err(TreesError::Missing);
        }
        let mut trees = Self {
            nodes: Vec::with_capacity(nodes.len()),
            leaves: Vec::with_capacity(nodes.len()),
            roots: Vec::new(),
            weights: weights.iter().map(|&(target, weight)| (target as u32, weight)).collect(),
            features,
            targets,
            aggregate,
        };
        // What equality adds lies behind the nodes of the model.
        let mut added = Vec::new();
        for (place, node) in nodes.iter().enumerate() {
            trees.lay(place, *node, nodes.len() + added.len(), &mut added)?;
        }
        trees.leaves.extend(added.iter().map(|_| (0, 0)));
        trees.nodes.extend(added);
        trees.roots = roots.iter().map(|&root| (root as u32, depths[root])).collect();
        Ok(trees)
    }

    /// Lays out one node; `next` is the place of what it adds.
    fn lay(
        &mut self,
        place: usize,
        node: TreeNode<T>,
        next: usize,
        added: &mut Vec<Flat<T>>,
    ) -> Result<(), TreesError> {
        let TreeNode::Branch { mode, feature, threshold, yes, no, missing } = node else {
            let TreeNode::Leaf { first, count } = node else { return Ok(()) };
            let end = first.checked_add(count).ok_or(TreesError::Missing)?;
            if end > self.weights.len() {
                return Err(TreesError::Missing);
            }
            // It leads to itself, whatever the feature is.
            let own = place as u32;
            self.nodes.push(Flat { threshold: T::ZERO, feature: 0, first: own, second: own });
            self.leaves.push((first as u32, count as u32));
            return Ok(());
        };
        if feature >= self.features || feature >= MISSING as usize {
            return Err(TreesError::Feature { node: place, feature, features: self.features });
        }
        let flat = |threshold: T, first: usize, second: usize, missing_first: bool| Flat {
            threshold,
            feature: feature as u32 | if missing_first { MISSING } else { 0 },
            first: first as u32,
            second: second as u32,
        };
        // Nothing is less than -inf; everything is at most the number below any other threshold.
        let below = if threshold == T::LOWEST { T::NAN } else { threshold.next_down() };
        let unequal = mode == Mode::NotEqual;
        self.nodes.push(match mode {
            // No value compares with NaN, but that it is not equal to it.
            _ if threshold.is_nan() && unequal => flat(threshold, yes, yes, true),
            _ if threshold.is_nan() => flat(threshold, yes, no, missing),
            Mode::AtMost => flat(threshold, yes, no, missing),
            Mode::Less => flat(below, yes, no, missing),
            Mode::More => flat(threshold, no, yes, !missing),
            Mode::AtLeast => flat(below, no, yes, !missing),
            Mode::Equal | Mode::NotEqual => {
                let (same, other) = if unequal { (no, yes) } else { (yes, no) };
                // At most the threshold: below it, or equal. NaN is equal to nothing.
                added.push(flat(below, other, same, false));
                let missing_to_same = missing && !unequal;
                if missing_to_same {
                    // The node that was added takes a missing value to its second child.
                    flat(threshold, next, other, true)
                } else {
                    flat(threshold, next, other, false)
                }
            }
        });
        self.leaves.push((0, 0));
        Ok(())
    }

    /// One walk's next place.
    ///
    /// # Safety
    /// `at` is a place in the list of nodes, and `row` has as many features as the ensemble.
    #[inline(always)]
    unsafe fn step(&self, at: u32, row: &[T]) -> u32 {
        // SAFETY: the caller's promise, and `new` found that features are below their number.
        let (node, value) = unsafe {
            let node = self.nodes.get_unchecked(at as usize);
            (node, *row.get_unchecked((node.feature & !MISSING) as usize))
        };
        let first = (value <= node.threshold) | (value.is_nan() & (node.feature & MISSING != 0));
        if first { node.first } else { node.second }
    }

    /// Walks until every lane is at a leaf.
    #[inline(always)]
    fn walk<'a>(&self, at: &mut [u32; LANES], depth: u32, row: impl Fn(usize) -> &'a [T]) {
        let mut left = depth as usize;
        while left > 0 {
            for _ in 0..left.min(STRIDE) {
                for (lane, at) in at.iter_mut().enumerate() {
                    // SAFETY: `new` found that roots and children are places of the list; `add` hands out whole rows.
                    *at = unsafe { self.step(*at, row(lane)) };
                }
            }
            left = left.saturating_sub(STRIDE);
            if left > 0 && at.iter().all(|&at| self.nodes[at as usize].first == at) {
                break;
            }
        }
    }

    /// Adds the weights of the leaf `at` to a row of scores.
    #[inline(always)]
    fn take(&self, at: u32, scores: &mut [T]) {
        let (first, count) = self.leaves[at as usize];
        for &(target, weight) in &self.weights[first as usize..(first + count) as usize] {
            let score = &mut scores[target as usize];
            match self.aggregate {
                Aggregate::Sum | Aggregate::Average => *score += weight,
                Aggregate::Min if score.is_nan() || weight < *score => *score = weight,
                Aggregate::Max if score.is_nan() || weight > *score => *score = weight,
                Aggregate::Min | Aggregate::Max => {}
            }
        }
    }

    /// Scores of some rows.
    fn add(&self, x: &[T], scores: &mut [T]) {
        let (features, targets) = (self.features, self.targets);
        // Of the least and the largest, NaN is what no leaf has given yet.
        let start = if matches!(self.aggregate, Aggregate::Min | Aggregate::Max) { T::NAN } else { T::ZERO };
        scores.fill(start);
        let rows = scores.len() / targets;
        let whole = rows - rows % LANES;
        let row = |index: usize| &x[index * features..][..features];
        for first in (0..whole).step_by(BLOCK_ROWS) {
            let lines = (first..whole.min(first + BLOCK_ROWS)).step_by(LANES);
            for &(root, depth) in &self.roots {
                for first in lines.clone() {
                    let lines: [&[T]; LANES] = std::array::from_fn(|lane| row(first + lane));
                    let mut at = [root; LANES];
                    self.walk(&mut at, depth, |lane| lines[lane]);
                    for (lane, at) in at.into_iter().enumerate() {
                        self.take(at, &mut scores[(first + lane) * targets..][..targets]);
                    }
                }
            }
        }
        for index in whole..rows {
            let (own, scores) = (row(index), &mut scores[index * targets..][..targets]);
            for trees in self.roots.chunks(LANES) {
                // The last group repeats its first tree, and takes nothing from the repetitions.
                let mut at: [u32; LANES] = std::array::from_fn(|lane| trees.get(lane).unwrap_or(&trees[0]).0);
                let depth = trees.iter().map(|&(_, depth)| depth).max().unwrap_or(0);
                self.walk(&mut at, depth, |_| own);
                at.into_iter().take(trees.len()).for_each(|at| self.take(at, scores));
            }
        }
        match self.aggregate {
            Aggregate::Average => scores.iter_mut().for_each(|score| *score /= T::of_count(self.roots.len())),
            Aggregate::Min | Aggregate::Max => {
                scores.iter_mut().filter(|score| score.is_nan()).for_each(|score| *score = T::ZERO);
            }
            Aggregate::Sum => {}
        }
    }

    /// Scores of every row of `x`, which are as many as `scores` has rows of targets.
    ///
    /// # Panics
    /// When lengths do not fit together.
    pub fn score(&self, pool: &ThreadPool, x: &[T], scores: &mut [T]) {
        let rows = scores.len() / self.targets.max(1);
        assert!(rows * self.targets == scores.len() && rows * self.features == x.len(), "the rows are not whole");
        T::score(self, pool, x, scores);
    }

    fn score_rows(&self, pool: &ThreadPool, x: &[T], scores: &mut [T]) {
        for_parts(pool, scores, BLOCK_ROWS * self.targets, |task, scores| {
            let first = task * BLOCK_ROWS * self.features;
            self.add(&x[first..][..scores.len() / self.targets * self.features], scores);
        });
    }
}

/// The longest way from each node to a leaf, in steps; one more for each equality on it.
fn depths<T>(nodes: &[TreeNode<T>]) -> Result<Vec<u32>, TreesError> {
    let mut depths = vec![0u32; nodes.len()];
    // Open: its children are being looked at.
    let mut open = vec![false; nodes.len()];
    let mut done = vec![false; nodes.len()];
    for start in 0..nodes.len() {
        let mut stack = vec![start];
        while let Some(&place) = stack.last() {
            let TreeNode::Branch { mode, yes, no, .. } = nodes[place] else {
                done[place] = true;
                stack.pop();
                continue;
            };
            if done[place] {
                stack.pop();
                continue;
            }
            if yes >= nodes.len() || no >= nodes.len() {
                return Err(TreesError::Child { node: place });
            }
            if open[place] {
                let steps = if matches!(mode, Mode::Equal | Mode::NotEqual) { 2 } else { 1 };
                depths[place] = depths[yes].max(depths[no]) + steps;
                (open[place], done[place]) = (false, true);
                stack.pop();
                continue;
            }
            open[place] = true;
            for child in [yes, no] {
                if open[child] {
                    return Err(TreesError::Circle);
                }
                if !done[child] {
                    stack.push(child);
                }
            }
        }
    }
    Ok(depths)
}
