//! Nodes computed while they are lowered: how what follows a graph is run when every size in it is known.

use super::Builder;
use crate::{
    error::{Problem, Refusal},
    label,
};
use planforge_graph::{
    ir::{Computer, Op, Tensor, ValueId},
    shape::TensorType,
};
use planforge_onnx::proto::NodeProto;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// Most bytes that values whose sizes data decides may take at once.
pub const TAIL_BYTES_MAX: u64 = 8 << 30;

/// Values are looked through for what is no longer needed when those that came since are this large.
const SWEEP_BYTES: u64 = 16 << 20;

/// Who computes, and what it has come to.
pub struct Eager {
    computer: Arc<dyn Computer>,
    /// Largest dimension of values by name.
    bounds: BTreeMap<String, u64>,
    /// The first value whose bytes are not counted in `held_bytes` yet.
    counted: usize,
    /// Bytes of the values that are known.
    held_bytes: u64,
    /// Bytes at the last sweep.
    swept_bytes: u64,
}

impl fmt::Debug for Eager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Eager").field("bounds", &self.bounds).field("held_bytes", &self.held_bytes).finish()
    }
}

impl Eager {
    pub fn new(computer: Arc<dyn Computer>, bounds: BTreeMap<String, u64>) -> Self {
        Self { computer, bounds, counted: 0, held_bytes: 0, swept_bytes: 0 }
    }

    pub fn compute(
        &self,
        op: &Op,
        inputs: &[Option<&Tensor>],
        results: Vec<TensorType>,
    ) -> Result<Vec<Tensor>, Refusal> {
        let sized: Vec<_> = results.into_iter().map(|ty| (ty.element, ty.shape)).collect();
        self.computer.compute(op, inputs, &sized).map_err(|reason| Refusal::Run { reason })
    }
}

impl Builder {
    /// Whether so much came since the last look that what is no longer needed should go.
    pub fn is_sweep_due(&mut self) -> bool {
        let Some(from) = self.eager.as_ref().map(|eager| eager.counted) else { return false };
        let fresh = self.graph.constants.range(ValueId(from as u32)..);
        let fresh: u64 = fresh.map(|(_, tensor)| tensor.bytes().len() as u64).sum();
        let count = self.graph.values.len();
        let Some(eager) = &mut self.eager else { return false };
        eager.counted = count;
        eager.held_bytes += fresh;
        eager.held_bytes >= eager.swept_bytes + SWEEP_BYTES
    }

    /// Forgets known values from `first` on but for those to be kept, where they have become many.
    pub fn forget(&mut self, first: usize, kept: impl Iterator<Item = ValueId>) {
        if !self.is_sweep_due() {
            return;
        }
        let kept = self.with_members(kept);
        let mut later = self.graph.constants.split_off(&ValueId(first as u32));
        later.retain(|id, _| kept.contains(id));
        self.graph.constants.append(&mut later);
        self.recount();
    }

    /// Forgets every known value but those to be kept; more than may be held is a problem of `node`.
    pub fn keep_only(&mut self, node: &str, kept: &[ValueId]) {
        let kept = self.with_members(kept.iter().copied());
        self.graph.constants.retain(|id, _| kept.contains(id));
        let bytes = self.recount();
        if bytes > TAIL_BYTES_MAX {
            self.problems.push(Problem::Held { node: node.to_owned(), bytes, bound: TAIL_BYTES_MAX });
        }
    }

    /// Values, and the tensors of those that are sequences.
    fn with_members(&self, kept: impl Iterator<Item = ValueId>) -> BTreeSet<ValueId> {
        let mut kept: BTreeSet<ValueId> = kept.collect();
        let members: Vec<ValueId> = kept.iter().filter_map(|id| self.sequences.get(id)).flatten().copied().collect();
        kept.extend(members);
        kept
    }

    fn recount(&mut self) -> u64 {
        let bytes = self.graph.constants.values().map(|tensor| tensor.bytes().len() as u64).sum();
        if let Some(eager) = &mut self.eager {
            (eager.held_bytes, eager.swept_bytes) = (bytes, bytes);
        }
        bytes
    }

    /// Notes every output of a node that is larger than its bound.
    pub fn check_bounds(&mut self, node: &NodeProto) {
        let Some(eager) = self.eager.as_ref().filter(|eager| !eager.bounds.is_empty()) else { return };
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            let Some(&bound) = eager.bounds.get(name) else { continue };
            let id = self.scopes.iter().rev().find_map(|scope| scope.named.get(name));
            let Some(shape) = id.map(|&id| self.ty(id).shape.clone()) else { continue };
            if shape.iter().any(|&size| size as u64 > bound) {
                self.problems.push(Problem::Bound { name: name.clone(), shape, bound });
            }
        }
    }
}

/// Who is named where the values behind a node have become too large.
pub fn place(node: &NodeProto) -> String {
    format!("node {}", label(node))
}
