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
    ///
    /// # Errors
    ///
    /// What is wrong, and at which node.
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
                    declared: format!("{} {:?}", value.element, value.shape),
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
            let place = || format!("node {index} ({} of {})", node.op.kind(), node.origins.join(" + "));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{ElementType, Node, Op, Output, Tensor, Unary};

    /// x -> Neg -> y, with a constant nobody reads.
    fn graph() -> Graph {
        let mut graph = Graph::default();
        let x = graph.add_value("x", ElementType::F32, &[2]);
        let y = graph.add_value("y", ElementType::F32, &[2]);
        graph.add_constant("c", Tensor::scalar(1f32));
        graph.inputs.push(x);
        let node = Node { op: Op::Unary(Unary::Neg), inputs: vec![Some(x)], outputs: vec![y], origins: vec![] };
        graph.nodes.push(node);
        graph.outputs.push(Output { name: "y".into(), value: y });
        graph
    }

    #[test]
    fn broken_invariants_are_named() {
        assert_eq!(graph().check(), Ok(()));
        let mut unknown = graph();
        unknown.nodes[0].inputs = vec![Some(ValueId(9))];
        assert!(matches!(unknown.check(), Err(GraphError::NoSuchValue { value: 9, count: 3, .. })));
        let mut early = graph();
        early.nodes[0].inputs = vec![Some(ValueId(1))];
        assert!(matches!(early.check(), Err(GraphError::NotDefined { .. })));
        let mut twice = graph();
        twice.nodes.push(twice.nodes[0].clone());
        assert!(matches!(twice.check(), Err(GraphError::DefinedTwice { .. })));
        let mut named = graph();
        named.values[1].name = "x".into();
        assert!(matches!(named.check(), Err(GraphError::NameTwice { .. })));
        let mut differs = graph();
        differs.values[2].element = ElementType::I32;
        assert!(matches!(differs.check(), Err(GraphError::ConstantDiffers { .. })));
    }

    #[test]
    fn compacting_drops_and_renumbers() {
        let mut graph = graph();
        graph.add_value("unused", ElementType::F32, &[1]);
        graph.compact();
        assert_eq!(graph.values.len(), 2);
        assert!(graph.constants.is_empty());
        assert_eq!(graph.check(), Ok(()));
        assert_eq!(
            graph.to_string(),
            "graph \n  input %0:F32[2] x\n  constants: 0 of 0 bytes\n  %1:F32[2] = Unary(Neg) %0  # \n  output %1 y\n"
        );
    }
}
