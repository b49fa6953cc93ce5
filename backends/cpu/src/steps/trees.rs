//! Ensembles of trees.

use super::{Operands, Prepared, Ready, checker::Checker, checker::product};
use crate::{
    error::EngineError,
    program::{Place, TreeAggregate, TreeSizes},
};
use planforge_graph::{
    ir::ElementType,
    named::trees::{LEAF, NODE},
};
use planforge_kernels_cpu::trees::{Aggregate, Mode, Number, TreeNode, Trees as Kernel, TreesError};
use std::sync::OnceLock;

#[derive(Debug)]
struct Trees<T> {
    sizes: TreeSizes,
    /// Laid out by the first run, of what lies in the plan and never changes.
    kernel: OnceLock<Result<Kernel<T>, TreesError>>,
}

pub(super) fn trees(check: &Checker<'_>, sizes: &TreeSizes) -> Prepared {
    let TreeSizes { rows, features, targets, trees, nodes, weights, .. } = *sizes;
    if targets == 0 || features == 0 {
        return Err("it has no features or no scores".to_owned());
    }
    let float = sizes.element.bytes();
    check.holds("input 0", check.input(0), product(&[rows, features])?, float)?;
    let lists = [(trees, 4), (product(&[nodes, NODE])?, 4), (nodes, float), (weights, 4), (weights, float)];
    for (position, (elements, bytes)) in (1..).zip(lists) {
        check.holds(&format!("input {position}"), check.input(position), elements, bytes)?;
        let place = check.input(position).map(|id| check.program.buffer(id).place);
        if !matches!(place, Some(Place::Weights(_))) {
            return Err("its trees are no constants".to_owned());
        }
    }
    let [output] = check.step.outputs[..] else { return Err("it has not one output".to_owned()) };
    check.holds("output", Some(output), product(&[rows, targets])?, float)?;
    match sizes.element {
        ElementType::F32 => Ok(Box::new(Trees::<f32> { sizes: *sizes, kernel: OnceLock::new() })),
        ElementType::F64 => Ok(Box::new(Trees::<f64> { sizes: *sizes, kernel: OnceLock::new() })),
        other => Err(format!("there are no trees of {other}")),
    }
}

impl<T: Number + bytemuck::Pod> Trees<T> {
    fn lay_out(&self, on: &Operands<'_>) -> Result<Kernel<T>, TreesError> {
        let list = |position: usize| on.input::<i32>(position).unwrap_or_default();
        let floats = |position: usize| on.input::<T>(position).unwrap_or_default();
        let place = |value: i32| usize::try_from(value).map_err(|_| TreesError::Missing);
        let modes = [Mode::AtMost, Mode::Less, Mode::AtLeast, Mode::More, Mode::Equal, Mode::NotEqual];
        let node = |line: &[i32; NODE], threshold: T| -> Result<TreeNode<T>, TreesError> {
            let [mode, feature, yes, no, missing] = *line;
            let (yes, no) = (place(yes)?, place(no)?);
            if i64::from(mode) == LEAF {
                return Ok(TreeNode::Leaf { first: yes, count: no });
            }
            let mode = modes.get(place(mode)?).copied().ok_or(TreesError::Missing)?;
            Ok(TreeNode::Branch { mode, feature: place(feature)?, threshold, yes, no, missing: missing != 0 })
        };
        let (lines, _) = list(2).as_chunks::<NODE>();
        let nodes = lines.iter().zip(floats(3)).map(|(line, &threshold)| node(line, threshold));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let roots = list(1).iter().map(|&root| place(root)).collect::<Result<Vec<_>, _>>()?;
        let weights = list(4).iter().zip(floats(5)).map(|(&target, &weight)| Ok((place(target)?, weight)));
        let weights = weights.collect::<Result<Vec<_>, TreesError>>()?;
        let aggregate = match self.sizes.aggregate {
            TreeAggregate::Sum => Aggregate::Sum,
            TreeAggregate::Average => Aggregate::Average,
            TreeAggregate::Min => Aggregate::Min,
            TreeAggregate::Max => Aggregate::Max,
        };
        Kernel::new(&nodes, &roots, &weights, [self.sizes.features, self.sizes.targets], aggregate)
    }
}

impl<T: Number + bytemuck::Pod> Ready for Trees<T> {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let kernel = self.kernel.get_or_init(|| self.lay_out(on));
        let failed = |source: &TreesError| EngineError::Trees { step: on.step.origins.join(" + "), source: *source };
        let kernel = kernel.as_ref().map_err(failed)?;
        let (pool, x) = (on.pool, on.input::<T>(0).unwrap_or_default());
        kernel.score(pool, x, on.output(0));
        Ok(())
    }
}
