//! A graph as text, one node a line.

use super::{Dim, Graph, ValueId};
use std::fmt;

impl Graph {
    fn write_value(&self, f: &mut fmt::Formatter<'_>, id: ValueId) -> fmt::Result {
        let value = self.value(id);
        write!(f, "%{}:{:?}[", id.0, value.element)?;
        for (index, dim) in value.shape.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match dim {
                Dim::Static(size) => write!(f, "{comma}{size}")?,
                Dim::Symbol(name) => write!(f, "{comma}{name}")?,
            }
        }
        f.write_str("]")
    }
}

/// `%4:F32[1,64,112,112] = Conv(..) %0 %1 const %2  # names of the model's nodes`
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}", self.name)?;
        for &id in &self.inputs {
            write!(f, "  input ")?;
            self.write_value(f, id)?;
            writeln!(f, " {}", self.value(id).name)?;
        }
        writeln!(f, "  constants: {} of {} bytes", self.constants.len(), self.constant_bytes())?;
        for node in &self.nodes {
            f.write_str("  ")?;
            for (index, &id) in node.outputs.iter().enumerate() {
                if index > 0 {
                    f.write_str(", ")?;
                }
                self.write_value(f, id)?;
            }
            write!(f, " = {:?}", node.op)?;
            for input in &node.inputs {
                match input {
                    Some(id) if self.constants.contains_key(id) => {
                        f.write_str(" const ")?;
                        self.write_value(f, *id)?;
                    }
                    Some(id) => write!(f, " %{}", id.0)?,
                    None => f.write_str(" -")?,
                }
            }
            writeln!(f, "  # {}", node.origins.join(" + "))?;
        }
        for output in &self.outputs {
            writeln!(f, "  output %{} {}", output.value.0, output.name)?;
        }
        Ok(())
    }
}
