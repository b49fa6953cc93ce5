//! The invariants every pass must keep; cheap enough to run after each of them.

use super::{Graph, ValueId};
use std::collections::BTreeMap;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("{place} names value {value}, but the graph has {count}")]
    NoSuchValue { place: String, value: u32, count: usize },
    #[error("value {name} is defined twice")]
    DefinedTwice { name: String },
    #[error("{place} reads value {name} before anything defines it")]
    NotDefined { place: String, name: String },
    #[error("the name {name} is used for two values")]
    NameTwice { name: String },
    #[error("constant {name} is stored as {stored} but declared as {declared}")]
    ConstantDiffers { name: String, stored: String, declared: String },
}

impl Graph {
    /// Checks that ids exist, every value is defined once and before it is read, names are unique and constants
    /// are what their values declare.
    pub fn check(&self) -> Result<(), GraphError> {
        let count = self.values.len();
        let exists = |id: ValueId, place: &dyn Fn() -> String| match self.values.get(id.index()) {
            Some(_) => Ok(()),
            None => Err(GraphError::NoSuchValue { place: place(), value: id.0, count }),
        };
        let mut names = BTreeMap::new();
        for value in &self.values {
            if names.insert(value.name.as_str(), ()).is_some() {
                return Err(GraphError::NameTwice { name: value.name.clone() });
            }
        }
        let mut defined = vec![false; count];
        let mut define = |id: ValueId, place: &dyn Fn() -> String| {
            exists(id, place)?;
            match std::mem::replace(&mut defined[id.index()], true) {
                true => Err(GraphError::DefinedTwice { name: self.value(id).name.clone() }),
                false => Ok(()),
            }
        };
        for &id in &self.inputs {
            define(id, &|| "the list of inputs".into())?;
        }
        for (&id, tensor) in &self.constants {
            define(id, &|| "the list of constants".into())?;
            let value = self.value(id);
            if value.element != tensor.element() || self.static_shape(id).as_deref() != Some(tensor.shape()) {
                return Err(GraphError::ConstantDiffers {
                    name: value.name.clone(),
                    stored: format!("{tensor:?}"),
                    declared: format!("{:?} {:?}", value.element, value.shape),
                });
            }
        }
        let read = |defined: &[bool], id: ValueId, place: &dyn Fn() -> String| {
            exists(id, place)?;
            match defined[id.index()] {
                true => Ok(()),
                false => Err(GraphError::NotDefined { place: place(), name: self.value(id).name.clone() }),
            }
        };
        for (index, node) in self.nodes.iter().enumerate() {
            let place = || format!("node {index} ({} {:?})", node.op.kind(), node.origins);
            for &id in node.inputs.iter().flatten() {
                read(&defined, id, &place)?;
            }
            for &id in &node.outputs {
                exists(id, &place)?;
                if std::mem::replace(&mut defined[id.index()], true) {
                    return Err(GraphError::DefinedTwice { name: self.value(id).name.clone() });
                }
            }
        }
        for output in &self.outputs {
            read(&defined, output.value, &|| format!("output {}", output.name))?;
        }
        Ok(())
    }
}
