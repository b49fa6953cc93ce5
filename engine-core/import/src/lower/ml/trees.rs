//! Ensembles of trees.

use super::{
    class_labels,
    ensemble::{Ensemble, Given, Lists},
    floats_of, rows, transform, transformed, wrong,
};
use crate::{builder::Lowering, error::Refusal, lower::Rule};
use planforge_graph::{
    ir::{Binary, ElementType, NamedOp, Op, Tensor, ValueId},
    named::trees::{AGGREGATES, LEAF, NODE},
};

/// Attributes that regressors and classifiers of trees have in common.
macro_rules! tree_attributes {
    ($($own:literal),*) => {
        &[
            "base_values", "base_values_as_tensor", "nodes_falsenodeids", "nodes_featureids", "nodes_hitrates",
            "nodes_hitrates_as_tensor", "nodes_missing_value_tracks_true", "nodes_modes", "nodes_nodeids",
            "nodes_treeids", "nodes_truenodeids", "nodes_values", "nodes_values_as_tensor", "post_transform", $($own),*
        ]
    };
}

pub const RULES: &[Rule] = &[
    Rule {
        op_type: "TreeEnsembleRegressor",
        attributes: tree_attributes!(
            "aggregate_function",
            "n_targets",
            "target_ids",
            "target_nodeids",
            "target_treeids",
            "target_weights",
            "target_weights_as_tensor"
        ),
        lower: regressor,
    },
    Rule {
        op_type: "TreeEnsembleClassifier",
        attributes: tree_attributes!(
            "class_ids",
            "class_nodeids",
            "class_treeids",
            "class_weights",
            "class_weights_as_tensor",
            "classlabels_int64s",
            "classlabels_strings"
        ),
        lower: classifier,
    },
    Rule {
        op_type: "TreeEnsemble",
        attributes: &[
            "aggregate_function",
            "leaf_targetids",
            "leaf_weights",
            "membership_values",
            "n_targets",
            "nodes_falseleafs",
            "nodes_falsenodeids",
            "nodes_featureids",
            "nodes_hitrates",
            "nodes_missing_value_tracks_true",
            "nodes_modes",
            "nodes_splits",
            "nodes_trueleafs",
            "nodes_truenodeids",
            "post_transform",
            "tree_roots",
        ],
        lower: ensemble,
    },
];

/// The mode of a set's members, in the numbers of `TreeEnsemble`.
const MEMBER: i64 = 6;

/// Equal to its threshold, in the numbers of [`planforge_graph::named::trees::MODES`].
const EQUAL: i32 = 4;

/// A list of floats, which may be given as a tensor.
fn numbers(node: &Lowering<'_>, list: &'static str, tensor: &'static str) -> Result<Vec<f64>, Refusal> {
    let given = node.attributes.floats(list)?.filter(|list| !list.is_empty());
    match (given, node.attributes.tensor(tensor)?) {
        (Some(list), _) => Ok(list.iter().map(|&value| value.into()).collect()),
        (None, Some(tensor)) => Ok(node.read_tensor(tensor)?.to_f64s()),
        (None, None) => Ok(Vec::new()),
    }
}

fn ints<'a>(node: &Lowering<'a>, name: &'static str) -> Result<&'a [i64], Refusal> {
    Ok(node.attributes.ints(name)?.unwrap_or_default())
}

/// The ensemble of versions 1 and 3; `stem` is what lists of weights are named after.
fn listed(node: &Lowering<'_>, names: [&'static str; 5], targets: usize) -> Result<Ensemble, Refusal> {
    node.attributes.without_effect("nodes_hitrates");
    node.attributes.without_effect("nodes_hitrates_as_tensor");
    let modes = node.attributes.texts("nodes_modes")?.unwrap_or_default();
    let [weight_trees, weight_nodes, weight_targets, weights, weights_tensor] = names;
    let lists = Lists {
        trees: ints(node, "nodes_treeids")?,
        ids: ints(node, "nodes_nodeids")?,
        features: ints(node, "nodes_featureids")?,
        modes: &modes,
        values: numbers(node, "nodes_values", "nodes_values_as_tensor")?,
        yes: ints(node, "nodes_truenodeids")?,
        no: ints(node, "nodes_falsenodeids")?,
        missing: ints(node, "nodes_missing_value_tracks_true")?,
        weight_trees: ints(node, weight_trees)?,
        weight_nodes: ints(node, weight_nodes)?,
        weight_targets: ints(node, weight_targets)?,
        weights: numbers(node, weights, weights_tensor)?,
    };
    Ensemble::of(&lists, targets)
}

/// The rows as floats: doubles stay, integers are compared as f32.
fn float_rows(node: &mut Lowering<'_>) -> Result<ValueId, Refusal> {
    let x = rows(node)?;
    match node.ty(x).element {
        ElementType::F32 | ElementType::F64 => Ok(x),
        ElementType::I32 | ElementType::I64 => node.cast(x, ElementType::F32),
        other => Err(Refusal::Element(other.to_string())),
    }
}

/// The scores of an ensemble, and which were given, where that is asked for.
fn walk(
    node: &mut Lowering<'_>,
    x: ValueId,
    ensemble: &Ensemble,
    targets: usize,
    aggregate: &str,
    presence: bool,
) -> Result<Vec<ValueId>, Refusal> {
    ensemble.check(node.shape(x)[1])?;
    let element = node.ty(x).element;
    let flat: Vec<i32> = ensemble.nodes.iter().flatten().copied().collect();
    let roots = node.add_constant(Tensor::from_vec(vec![ensemble.roots.len()], ensemble.roots.clone())?);
    let nodes = node.add_constant(Tensor::from_vec(vec![ensemble.nodes.len(), NODE], flat)?);
    let thresholds = floats_of(node, element, &ensemble.thresholds)?;
    let leaf_targets = ensemble.leaf_targets.clone();
    let leaf_targets = node.add_constant(Tensor::from_vec(vec![leaf_targets.len()], leaf_targets)?);
    let weights = floats_of(node, element, &ensemble.leaf_weights)?;
    let mut op = NamedOp::new("trees").with_sizes("targets", &[targets]).with_text("aggregate", aggregate);
    if presence {
        op = op.with_int("presence", 1);
    }
    let inputs = [x, roots, nodes, thresholds, leaf_targets, weights];
    node.emit_all(Op::Named(op.into()), inputs.into_iter().map(Some).collect(), &[])
}

fn aggregate(name: &str) -> Result<&str, Refusal> {
    match AGGREGATES.contains(&name) {
        true => Ok(name),
        false => Err(wrong("aggregate_function", &format!("is '{name}', which is unknown"))),
    }
}

fn target_count(node: &Lowering<'_>) -> Result<usize, Refusal> {
    let given = node.attributes.int_or("n_targets", 1)?;
    let count = usize::try_from(given).ok().filter(|&count| count > 0);
    count.ok_or_else(|| wrong("n_targets", &format!("is {given}")))
}

fn regressor(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = float_rows(node)?;
    let targets = target_count(node)?;
    let names = ["target_treeids", "target_nodeids", "target_ids", "target_weights", "target_weights_as_tensor"];
    let ensemble = listed(node, names, targets)?;
    let aggregate = aggregate(node.attributes.text_or("aggregate_function", "SUM")?)?;
    let base = numbers(node, "base_values", "base_values_as_tensor")?;
    let transform = transform(node)?;
    let mut scores = walk(node, x, &ensemble, targets, aggregate, false)?[0];
    if base.len() == targets {
        let base = floats_of(node, node.ty(x).element, &base)?;
        scores = node.binary(Binary::Add, scores, base)?;
    }
    let scores = transformed(node, scores, transform)?;
    Ok(vec![node.cast(scores, ElementType::F32)?])
}

fn classifier(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = float_rows(node)?;
    let labels = class_labels(node, "classlabels_int64s")?;
    let classes = labels.len();
    let names = ["class_treeids", "class_nodeids", "class_ids", "class_weights", "class_weights_as_tensor"];
    let ensemble = listed(node, names, classes)?;
    let base = numbers(node, "base_values", "base_values_as_tensor")?;
    if base.len() > classes {
        return Err(wrong("base_values", &format!("has {} values for {classes} classes", base.len())));
    }
    let transform = transform(node)?;
    let given = ensemble.given(classes);
    let presence = given.contains(&Given::Sometimes);
    let walked = walk(node, x, &ensemble, classes, "SUM", presence)?;
    let named: std::collections::BTreeSet<_> = ensemble.leaf_targets.iter().collect();
    let never: Vec<i64> = (0..classes as i64).filter(|&class| given[class as usize] == Given::Never).collect();
    let op = NamedOp::new("tree_classes")
        .with_ints("labels", &labels)
        .with_ints("never", &never)
        .with_text("transform", transform)
        .with_int("binary", i64::from(classes == 2 && named.len() == 1))
        .with_int("positive", i64::from(ensemble.leaf_weights.iter().all(|&weight| weight >= 0.0)));
    let base = match base.is_empty() {
        true => None,
        false => Some(floats_of(node, node.ty(x).element, &base)?),
    };
    node.emit_all(Op::Named(op.into()), vec![Some(walked[0]), walked.get(1).copied(), base], &[])
}

/// `TreeEnsemble`: branches and leaves are lists of their own, and sets are told apart by NaN.
fn ensemble(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = float_rows(node)?;
    let targets = target_count(node)?;
    node.attributes.without_effect("nodes_hitrates");
    let tensor = |name: &'static str| -> Result<Option<Tensor>, Refusal> {
        node.attributes.tensor(name)?.map(|tensor| node.read_tensor(tensor)).transpose()
    };
    let needed = |name: &'static str| tensor(name)?.ok_or_else(|| wrong(name, "is missing"));
    let modes = needed("nodes_modes")?.to_i64s().ok_or_else(|| wrong("nodes_modes", "holds no integers"))?;
    let splits = needed("nodes_splits")?.to_f64s();
    let weights = needed("leaf_weights")?.to_f64s();
    let mut members = tensor("membership_values")?.map(|tensor| tensor.to_f64s()).unwrap_or_default().into_iter();
    let (features, missing) = (ints(node, "nodes_featureids")?, ints(node, "nodes_missing_value_tracks_true")?);
    let (yes, yes_leaf) = (ints(node, "nodes_truenodeids")?, ints(node, "nodes_trueleafs")?);
    let (no, no_leaf) = (ints(node, "nodes_falsenodeids")?, ints(node, "nodes_falseleafs")?);
    let (roots, leaf_targets) = (ints(node, "tree_roots")?, ints(node, "leaf_targetids")?);
    let count = modes.len();
    if [splits.len(), features.len(), yes.len(), yes_leaf.len(), no.len(), no_leaf.len()] != [count; 6] {
        return Err(wrong("nodes_modes", "is not as long as the other lists of nodes"));
    }
    if leaf_targets.len() != weights.len() {
        return Err(wrong("leaf_targetids", "is not as long as leaf_weights"));
    }
    // Branches come first, then leaves, then what sets add.
    let mut all = Ensemble { thresholds: splits, ..Ensemble::default() };
    let place = |name: &str, child: i64, is_leaf: i64| -> Result<i32, Refusal> {
        let (size, first) = if is_leaf != 0 { (weights.len(), count) } else { (count, 0) };
        let child = usize::try_from(child).ok().filter(|&child| child < size);
        let child = child.and_then(|child| i32::try_from(first + child).ok());
        child.ok_or_else(|| wrong(name, "leads to what is not there"))
    };
    let mut added: Vec<([i32; NODE], f64)> = Vec::new();
    for at in 0..count {
        let feature = i32::try_from(features[at]).ok().filter(|&feature| feature >= 0);
        let feature = feature.ok_or_else(|| wrong("nodes_featureids", "holds what is no feature"))?;
        let (then, or) =
            (place("nodes_truenodeids", yes[at], yes_leaf[at])?, place("nodes_falsenodeids", no[at], no_leaf[at])?);
        let tracked = i32::from(missing.get(at) == Some(&1));
        let mode = match modes[at] {
            MEMBER => {
                let set: Vec<f64> = members.by_ref().take_while(|value| !value.is_nan()).collect();
                let Some((&first, rest)) = set.split_first() else {
                    return Err(wrong("membership_values", "has fewer sets than there are nodes for them"));
                };
                all.thresholds[at] = first;
                // Each further member is a node of its own behind the one before.
                let mut otherwise = or;
                for &member in rest {
                    added.push(([EQUAL, feature, then, otherwise, 0], member));
                    otherwise = i32::try_from(count + weights.len() + added.len() - 1)
                        .map_err(|_| wrong("membership_values", "has too many values"))?;
                }
                all.nodes.push([EQUAL, feature, then, otherwise, tracked]);
                continue;
            }
            mode if (0..LEAF).contains(&mode) => mode as i32,
            mode => return Err(wrong("nodes_modes", &format!("holds {mode}"))),
        };
        all.nodes.push([mode, feature, then, or, tracked]);
    }
    for (&target, &weight) in leaf_targets.iter().zip(&weights) {
        let leaf = all.leaf([(target, weight)].into_iter(), targets)?;
        all.nodes.push(leaf);
        all.thresholds.push(0.0);
    }
    for (of, threshold) in added {
        all.nodes.push(of);
        all.thresholds.push(threshold);
    }
    all.roots = roots.iter().map(|&root| place("tree_roots", root, 0)).collect::<Result<_, _>>()?;
    let names = ["AVERAGE", "SUM", "MIN", "MAX"];
    let aggregate = usize::try_from(node.attributes.int_or("aggregate_function", 1)?).ok();
    let aggregate = aggregate.and_then(|number| names.get(number));
    let aggregate = aggregate.ok_or_else(|| wrong("aggregate_function", "is a number that is unknown"))?;
    let transforms = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"];
    let transform = usize::try_from(node.attributes.int_or("post_transform", 0)?).ok();
    let transform = transform.and_then(|number| transforms.get(number));
    let transform = transform.ok_or_else(|| wrong("post_transform", "is a number that is unknown"))?;
    let scores = walk(node, x, &all, targets, aggregate, false)?[0];
    Ok(vec![transformed(node, scores, transform)?])
}
