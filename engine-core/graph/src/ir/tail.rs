//! What follows the nodes of a graph where only data decides how large values are.
//!
//! Every value of a graph has one shape. What a model computes from the hits of a search, boxes that overlap too much or
//! a loop that data ends has none: those of its nodes stay as the model has them, in a [`Remainder`] behind the graph.
//! When the graph has run, the remainder is given the values that it reads, and every size in it is known by the time
//! that it is needed.

use super::{ElementType, Op, Tensor};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// Why a remainder gives no outputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TailError {
    pub message: String,
    /// What was met is no operator, or none of a form, that is known; otherwise it is these inputs that are at fault.
    pub unsupported: bool,
}

/// Element type and shape of a result.
pub type Sized = (ElementType, Vec<usize>);

/// Computes operators of a remainder.
pub trait Computer: Send + Sync {
    /// Computes one operator, whose results are of these types.
    ///
    /// # Errors
    ///
    /// Why it cannot be computed, in words.
    fn compute(&self, op: &Op, inputs: &[Option<&Tensor>], outputs: &[Sized]) -> Result<Vec<Tensor>, String>;
}

/// The nodes behind a graph.
pub trait Remainder: fmt::Debug + Send + Sync {
    /// The outputs by name, of the values that the graph hands on.
    ///
    /// # Errors
    ///
    /// When a node cannot be computed, or a value is larger than its bound; both are named.
    fn run(
        &self,
        given: &BTreeMap<String, Tensor>,
        computer: &Arc<dyn Computer>,
    ) -> Result<BTreeMap<String, Tensor>, TailError>;
}

/// An output of a remainder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailOutput {
    pub name: String,
    /// Element type and dimensions, as the model declares them; a dimension without size is open.
    pub declared: Option<(ElementType, Vec<Option<u64>>)>,
}

/// A remainder and how it stands to its graph.
#[derive(Clone, Debug)]
pub struct Tail {
    /// Names of the graph's outputs that it reads.
    pub handed: Vec<String>,
    pub outputs: Vec<TailOutput>,
    /// Names of all outputs of the model, in its order; a name that is none of `outputs` is one of the graph's.
    pub order: Vec<String>,
    pub remainder: Arc<dyn Remainder>,
}

impl Tail {
    /// The model's outputs, of those of the graph.
    ///
    /// # Errors
    ///
    /// As [`Remainder::run`].
    pub fn finish(
        &self,
        graph: BTreeMap<String, Tensor>,
        computer: &Arc<dyn Computer>,
    ) -> Result<BTreeMap<String, Tensor>, TailError> {
        let mut all = self.remainder.run(&graph, computer)?;
        all.extend(graph);
        all.retain(|name, _| self.order.contains(name));
        Ok(all)
    }
}
