//! Operators without a kernel of their own, as plain loops: any rank, any type, one thread for each element of the
//! result wherever one does not depend on another.
//!
//! | file | lowers |
//! |---|---|
//! | `windows` | convolutions and pools that are not of images, transposed convolutions, what slides otherwise |
//! | `indexed` | elements that are found, put or ordered by what others say |
//! | `numbers` | products of any type, sums over named axes, rounding to few bits, Fourier transforms |
//! | `cells` | recurrent networks |
//! | `regions` | regions of images |
//! | `text` | n-grams that are counted |
//! | `norms` | normalisation and softmax of rows of any length and type, reductions in parts |

mod cells;
mod indexed;
mod norms;
mod numbers;
mod regions;
mod text;
mod windows;

pub(super) use numbers::Rounded;

use super::{Lowering, Outcome};
use crate::{
    codegen::nest,
    view::{Kind, View},
};
use planforge_graph::ir::{NamedOp, Node, ValueId};

impl Lowering<'_> {
    /// Operators that the graph knows by name.
    pub(super) fn named(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        match named.name.as_str() {
            "bit_cast" => self.bit_cast(node),
            "narrow_float" => self.narrow_float(node, named),
            "einsum" => self.einsum(node, named),
            "dft" => self.fourier(node, named),
            "stft" => self.short_fourier(node, named),
            "col2im" => self.columns_to_image(node, named),
            "lp_pool" => self.power_pool(node, named),
            "max_places" => self.max_places(node, named),
            "scatter_elements" => self.scatter_elements(node, named),
            "scatter_nd" => self.scatter_nd(node, named),
            "reverse_sequence" => self.reverse_sequence(node, named),
            "lookup" => self.lookup(node, named),
            "tf_idf" => self.count_grams(node, named),
            "roi_align" => self.roi_align(node, named),
            "rnn" | "gru" | "lstm" => self.cell(node, named),
            other => Err(format!("the operator {other} has no device code yet")),
        }
    }

    /// Emits one loop nest: see [`nest`].
    fn nest(&mut self, node: &Node, name: &str, reads: &[View], out: &View, dims: &[u64], body: &str) -> Outcome<()> {
        if dims.contains(&0) {
            return Ok(());
        }
        let generated = nest::generate(name, reads, out, dims, body).map_err(|error| error.to_string())?;
        let operands = [reads, std::slice::from_ref(out)].concat();
        let flops = dims.iter().product();
        self.emit(generated, name, operands, &node.origins, flops);
        Ok(())
    }

    /// The same with one thread for each element of the only result.
    pub(in crate::lower) fn nest_of_result(
        &mut self,
        node: &Node,
        name: &str,
        reads: &[View],
        body: &str,
    ) -> Outcome<()> {
        let y = self.place(node.outputs[0])?;
        let dims = y.dims.clone();
        self.nest(node, name, reads, &y, &dims, body)?;
        self.bind(node.outputs[0], y)
    }

    /// A value as exactly as it is known: constants are not rounded to the engine's floats.
    fn exact(&mut self, id: ValueId) -> Outcome<View> {
        let dims = self.dims(id)?;
        if self.graph.constant(id).is_some() && self.kind(id).is_float() {
            return self.constant(id, Kind::F32, "rows", &dims, |tensor| tensor.to_f64s());
        }
        self.view(id)
    }

    fn exact_input(&mut self, node: &Node, position: usize) -> Outcome<View> {
        let id = node.input(position).ok_or_else(|| format!("input {position} is missing"))?;
        self.exact(id)
    }
}

/// The place of the thread with `at` along one axis.
fn with_index(rank: usize, axis: usize, at: &str) -> String {
    let place = |index: usize| if index == axis { at.to_owned() } else { format!("i{index}") };
    (0..rank).map(place).collect::<Vec<_>>().join(", ")
}
