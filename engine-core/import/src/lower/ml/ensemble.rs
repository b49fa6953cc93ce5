//! The nodes of an ensemble as one list, whatever attributes they come in.

use super::wrong;
use crate::error::Refusal;
use planforge_graph::named::trees::{LEAF, MODES, NODE};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes of all trees, as `trees` of the graph has them.
#[derive(Debug, Default)]
pub struct Ensemble {
    pub roots: Vec<i32>,
    pub nodes: Vec<[i32; NODE]>,
    pub thresholds: Vec<f64>,
    pub leaf_targets: Vec<i32>,
    pub leaf_weights: Vec<f64>,
}

/// The attributes of versions 1 and 3: lists over nodes, and lists over the weights of leaves.
#[derive(Debug)]
pub struct Lists<'a> {
    pub trees: &'a [i64],
    pub ids: &'a [i64],
    pub features: &'a [i64],
    pub modes: &'a [&'a str],
    pub values: Vec<f64>,
    pub yes: &'a [i64],
    pub no: &'a [i64],
    /// Empty: no missing value holds.
    pub missing: &'a [i64],
    pub weight_trees: &'a [i64],
    pub weight_nodes: &'a [i64],
    pub weight_targets: &'a [i64],
    pub weights: Vec<f64>,
}

/// What is known of a score before any row is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    Always,
    Never,
    Sometimes,
}

fn index(what: &str, value: i64) -> Result<i32, Refusal> {
    i32::try_from(value).ok().filter(|&value| value >= 0).ok_or_else(|| wrong(what, &format!("holds {value}")))
}

impl Ensemble {
    pub fn of(lists: &Lists<'_>, targets: usize) -> Result<Self, Refusal> {
        let count = lists.trees.len();
        let lengths = [lists.ids.len(), lists.features.len(), lists.modes.len(), lists.values.len()];
        let more = [lists.yes.len(), lists.no.len()];
        if count == 0 || lengths.iter().chain(&more).any(|&length| length != count) {
            return Err(wrong("nodes_treeids", "is not as long as the other lists of nodes, or empty"));
        }
        let weights = lists.weights.len();
        if [lists.weight_trees.len(), lists.weight_nodes.len(), lists.weight_targets.len()] != [weights; 3] {
            return Err(wrong("the lists of weights", "are not of one length"));
        }
        let mut places = BTreeMap::new();
        for (place, key) in lists.trees.iter().zip(lists.ids).enumerate() {
            if places.insert(key, place).is_some() {
                return Err(wrong("nodes_nodeids", &format!("holds node {} of tree {} twice", key.1, key.0)));
            }
        }
        let find = |tree: &i64, node: &i64| {
            let missing = || wrong("nodes_nodeids", &format!("lacks node {node} of tree {tree}"));
            places.get(&(tree, node)).copied().ok_or_else(missing)
        };
        let mut of_leaf: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (weight, (tree, node)) in lists.weight_trees.iter().zip(lists.weight_nodes).enumerate() {
            of_leaf[find(tree, node)?].push(weight);
        }
        let mut ensemble = Self { thresholds: lists.values.clone(), ..Self::default() };
        for (place, own) in of_leaf.iter().enumerate() {
            let tree = &lists.trees[place];
            let mode = MODES.iter().position(|name| *name == lists.modes[place]);
            let mode = mode.ok_or_else(|| wrong("nodes_modes", &format!("holds '{}'", lists.modes[place])))? as i64;
            if place == 0 || lists.trees[place - 1] != *tree {
                ensemble.roots.push(index("nodes_treeids", place as i64)?);
            }
            if mode == LEAF {
                let weights = own.iter().map(|&weight| (lists.weight_targets[weight], lists.weights[weight]));
                let leaf = ensemble.leaf(weights, targets)?;
                ensemble.nodes.push(leaf);
                continue;
            }
            let feature = index("nodes_featureids", lists.features[place])?;
            let missing = i32::from(lists.missing.get(place).is_some_and(|&missing| missing == 1));
            let (yes, no) = (find(tree, &lists.yes[place])?, find(tree, &lists.no[place])?);
            ensemble.nodes.push([mode as i32, feature, yes as i32, no as i32, missing]);
        }
        Ok(ensemble)
    }

    /// Adds the weights of a leaf; gives its node.
    pub fn leaf(&mut self, weights: impl Iterator<Item = (i64, f64)>, targets: usize) -> Result<[i32; NODE], Refusal> {
        let first = index("the number of weights", self.leaf_weights.len() as i64)?;
        for (target, weight) in weights {
            let target = index("the list of targets", target)?;
            if target as usize >= targets {
                return Err(wrong("the list of targets", &format!("holds {target}, of {targets}")));
            }
            self.leaf_targets.push(target);
            self.leaf_weights.push(weight);
        }
        let count = self.leaf_weights.len() as i32 - first;
        Ok([LEAF as i32, 0, first, count, 0])
    }

    /// Refuses nodes that lead back to themselves, and features that there are not.
    pub fn check(&self, features: usize) -> Result<(), Refusal> {
        let branches = || self.nodes.iter().filter(|node| i64::from(node[0]) != LEAF);
        if let Some(node) = branches().find(|node| node[1] as usize >= features) {
            return Err(wrong("nodes_featureids", &format!("holds {}, but X has {features} features", node[1])));
        }
        let mut parents = vec![0u32; self.nodes.len()];
        branches().flat_map(|node| [node[2], node[3]]).for_each(|child| parents[child as usize] += 1);
        let mut free: Vec<usize> = (0..parents.len()).filter(|&node| parents[node] == 0).collect();
        let mut seen = 0;
        while let Some(place) = free.pop() {
            seen += 1;
            let node = &self.nodes[place];
            if i64::from(node[0]) == LEAF {
                continue;
            }
            for child in [node[2] as usize, node[3] as usize] {
                parents[child] -= 1;
                if parents[child] == 0 {
                    free.push(child);
                }
            }
        }
        match seen == self.nodes.len() {
            true => Ok(()),
            false => Err(wrong("nodes_truenodeids", "and nodes_falsenodeids lead in a circle")),
        }
    }

    /// What is known of each score: one is always given when some tree gives it at every leaf.
    pub fn given(&self, targets: usize) -> Vec<Given> {
        let mut given = vec![Given::Never; targets];
        self.leaf_targets.iter().for_each(|&target| given[target as usize] = Given::Sometimes);
        for &root in &self.roots {
            let (mut seen, mut open) = (BTreeSet::new(), vec![root]);
            let mut everywhere: Option<BTreeSet<i32>> = None;
            while let Some(place) = open.pop().filter(|_| everywhere.as_ref().is_none_or(|all| !all.is_empty())) {
                if !seen.insert(place) {
                    continue;
                }
                let [mode, _, first, second, _] = self.nodes[place as usize];
                if i64::from(mode) != LEAF {
                    open.extend([first, second]);
                    continue;
                }
                let own = self.leaf_targets[first as usize..(first + second) as usize].iter().copied();
                everywhere = Some(match everywhere {
                    None => own.collect(),
                    Some(all) => own.filter(|target| all.contains(target)).collect(),
                });
            }
            everywhere.unwrap_or_default().into_iter().for_each(|target| given[target as usize] = Given::Always);
        }
        given
    }
}
