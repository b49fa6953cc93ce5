//! Graph, nodes and values.

use super::{ElementType, Op, Tail, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Index of a value in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValueId(pub u32);

impl ValueId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One dimension of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    Static(u64),
    /// Varies within the profile, under this name.
    Symbol(String),
}

/// A tensor that some node, input or constant defines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// Name in the model, or one made from it; unique in the graph.
    pub name: String,
    pub element: ElementType,
    pub shape: Vec<Dim>,
}

/// One operator applied to values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    pub op: Op,
    /// By position as the operator documents them; a trailing optional input may be missing altogether.
    pub inputs: Vec<Option<ValueId>>,
    pub outputs: Vec<ValueId>,
    /// Names of the model's nodes this one computes, in the model's order.
    pub origins: Vec<String>,
}

impl Node {
    /// The input at `position`, when it is given.
    pub fn input(&self, position: usize) -> Option<ValueId> {
        self.inputs.get(position).copied().flatten()
    }
}

/// A result of the graph under the model's name for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Output {
    pub name: String,
    pub value: ValueId,
}

/// A typed data-flow graph; see the module for its invariants.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The model's name for itself; may be empty.
    pub name: String,
    /// In the model's order; their names are those of the values.
    pub inputs: Vec<ValueId>,
    /// In the model's order. One value may be given out under several names, and may be an input or a constant.
    pub outputs: Vec<Output>,
    pub values: Vec<Value>,
    /// In topological order.
    pub nodes: Vec<Node>,
    pub constants: BTreeMap<ValueId, Tensor>,
    /// What of the model follows behind the nodes, for only data decides its sizes. Then `outputs` has what it reads, too.
    pub tail: Option<Tail>,
}

/// Who defines and who uses each value; built once, valid until the graph changes.
#[derive(Clone, Debug)]
pub struct DefUse {
    /// Index of the node that defines the value; `None` for inputs and constants.
    pub definition: Vec<Option<usize>>,
    /// Indices of the nodes that read the value, ascending, once per read.
    pub uses: Vec<Vec<usize>>,
    /// Whether the value is a graph output.
    pub is_output: Vec<bool>,
}

impl DefUse {
    /// The only node that reads `value`, when there is exactly one read and it is no graph output.
    pub fn sole_use(&self, value: ValueId) -> Option<usize> {
        match self.uses[value.index()].as_slice() {
            [user] if !self.is_output[value.index()] => Some(*user),
            _ => None,
        }
    }
}

impl Graph {
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The value's shape when no dimension varies.
    pub fn static_shape(&self, id: ValueId) -> Option<Vec<usize>> {
        self.value(id)
            .shape
            .iter()
            .map(|dim| match dim {
                Dim::Static(size) => usize::try_from(*size).ok(),
                Dim::Symbol(_) => None,
            })
            .collect()
    }

    /// The constant behind `id`, when it is one.
    pub fn constant(&self, id: ValueId) -> Option<&Tensor> {
        self.constants.get(&id)
    }

    /// Adds a value of static shape; the caller keeps names unique or has them numbered in the end.
    pub fn add_value(&mut self, name: impl Into<String>, element: ElementType, shape: &[usize]) -> ValueId {
        let id = ValueId(u32::try_from(self.values.len()).expect("import bounds the number of values below 2^32"));
        let shape = shape.iter().map(|&size| Dim::Static(size as u64)).collect();
        self.values.push(Value { name: name.into(), element, shape });
        id
    }

    /// Adds a constant and its value.
    pub fn add_constant(&mut self, name: impl Into<String>, tensor: Tensor) -> ValueId {
        let id = self.add_value(name, tensor.element(), tensor.shape());
        self.constants.insert(id, tensor);
        id
    }

    /// Finds definitions and uses of every value.
    pub fn def_use(&self) -> DefUse {
        let mut found = DefUse {
            definition: vec![None; self.values.len()],
            uses: vec![Vec::new(); self.values.len()],
            is_output: vec![false; self.values.len()],
        };
        for (index, node) in self.nodes.iter().enumerate() {
            for output in &node.outputs {
                found.definition[output.index()] = Some(index);
            }
            for input in node.inputs.iter().flatten() {
                found.uses[input.index()].push(index);
            }
        }
        for output in &self.outputs {
            found.is_output[output.value.index()] = true;
        }
        found
    }

    /// Bytes of all constants.
    pub fn constant_bytes(&self) -> u64 {
        self.constants.values().map(|tensor| tensor.bytes().len() as u64).sum()
    }

    /// Adds a number to every name that an earlier value has, so that names are unique.
    pub fn number_repeated_names(&mut self) {
        let mut names = BTreeSet::new();
        let values = self.values.iter().enumerate();
        let repeated: Vec<usize> =
            values.filter(|&(_, value)| !names.insert(value.name.as_str())).map(|(at, _)| at).collect();
        if repeated.is_empty() {
            return;
        }
        let mut names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        for at in repeated {
            // Numbers begin at the value's own place, so that many values of one name do not try the same ones.
            let mut number = at;
            let stem = std::mem::take(&mut self.values[at].name);
            self.values[at].name = loop {
                let name = format!("{stem}/{number}");
                if names.insert(name.clone()) {
                    break name;
                }
                number += 1;
            };
        }
    }

    /// Drops values that nothing defines or uses and renumbers the rest, keeping their order.
    pub fn compact(&mut self) {
        let mut used = vec![false; self.values.len()];
        for node in &self.nodes {
            for id in node.inputs.iter().flatten().chain(&node.outputs) {
                used[id.index()] = true;
            }
        }
        for id in self.inputs.iter().chain(self.outputs.iter().map(|output| &output.value)) {
            used[id.index()] = true;
        }
        let mut renumbered = vec![ValueId(0); self.values.len()];
        let mut next = 0..;
        for (renumbered, _) in renumbered.iter_mut().zip(&used).filter(|(_, used)| **used) {
            *renumbered = ValueId(next.next().unwrap_or_default());
        }
        let mut index = 0;
        self.values.retain(|_| {
            index += 1;
            used[index - 1]
        });
        for node in &mut self.nodes {
            for id in node.inputs.iter_mut().flatten().chain(&mut node.outputs) {
                *id = renumbered[id.index()];
            }
        }
        for id in &mut self.inputs {
            *id = renumbered[id.index()];
        }
        for output in &mut self.outputs {
            output.value = renumbered[output.value.index()];
        }
        self.constants = std::mem::take(&mut self.constants)
            .into_iter()
            .filter(|(id, _)| used[id.index()])
            .map(|(id, tensor)| (renumbered[id.index()], tensor))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_repeat_are_numbered() {
        let mut graph = Graph::default();
        for name in ["a", "a", "b", "a", "a/1"] {
            graph.add_value(name, ElementType::F32, &[1]);
        }
        graph.number_repeated_names();
        let names: Vec<&str> = graph.values.iter().map(|value| value.name.as_str()).collect();
        assert_eq!(names, ["a", "a/2", "b", "a/3", "a/1"]);
        let numbered = graph.values.clone();
        graph.number_repeated_names();
        assert_eq!(graph.values, numbered);
    }
}
