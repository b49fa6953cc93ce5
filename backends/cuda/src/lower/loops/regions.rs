//! Regions of images, sampled.

use crate::{
    codegen::nest::{function, number},
    lower::{Lowering, Outcome},
    view::Kind,
};
use planforge_graph::ir::{NamedOp, Node};

/// Most samples along one axis of a cell where they follow from its size: a region may be given as anything.
const SAMPLES_MOST: u64 = 4096;

impl Lowering<'_> {
    /// A thread for each cell of each channel; where its samples lie is decided in the precision of the model.
    pub(super) fn roi_align(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let (x, regions, images) = (self.input_view(node, 0)?, self.exact_input(node, 1)?, self.index_view(node, 2)?);
        let [_, _, height, width] = <[u64; 4]>::try_from(x.dims.clone()).map_err(|_| "an input of another rank")?;
        let out = self.dims(node.outputs[0])?;
        let kind = if x.kind == Kind::F64 { Kind::F64 } else { Kind::F32 };
        let (half_pixel, largest) = (named.flag("half_pixel"), named.flag("largest"));
        let number = number(kind);
        let edge = |at: usize| {
            format!(
                "X1(i0, {at}) * ({number}){:e}{}",
                named.float("scale", 1.0),
                if half_pixel { " - (N)0.5" } else { "" }
            )
        };
        let count = |axis: &str| match named.int("samples", 0) {
            0 => format!(
                "(cell_{axis} < {SAMPLES_MOST} ? (int){}(cell_{axis}) : {SAMPLES_MOST})",
                function(kind, "ceil")
            ),
            given => given.to_string(),
        };
        let least = if half_pixel { "" } else { "if (size_y < 1) size_y = 1;\nif (size_x < 1) size_x = 1;\n" };
        let join = match largest {
            true => {
                "for (int corner = 0; corner < 4; corner++) { const N v = values[corner]; f = any && f >= v ? f : v; any = true; }"
            }
            false => "f += values[0] + values[1] + values[2] + values[3];",
        };
        let body = format!(
            "typedef {number} N;\nconst int given = (int)X2(i0), image = given < 0 ? 0 : given >= {images_count} ? {images_count} - 1 : given;\n\
             const N begin_y = {}, begin_x = {}, end_y = {}, end_x = {};\n\
             N size_y = end_y - begin_y, size_x = end_x - begin_x;\n{least}\
             const N cell_y = size_y / {}, cell_x = size_x / {};\n\
             const int rows = {}, columns = {};\nN f = 0; bool any = false;\n\
             for (int row = 0; row < rows; row++) for (int column = 0; column < columns; column++) {{\n\
             N y = begin_y + i2 * cell_y + (row + (N)0.5) * cell_y / rows, x = begin_x + i3 * cell_x + (column + (N)0.5) * cell_x / columns;\n\
             N values[4] = {{0, 0, 0, 0}};\n\
             if (y >= -1 && y <= {height} && x >= -1 && x <= {width}) {{\n\
             if (y < 0) y = 0; if (x < 0) x = 0;\n\
             int top = (int)y, left = (int)x, bottom = top + 1, right = left + 1; N down = y - top, along = x - left;\n\
             if (bottom >= {height}) {{ top = bottom = {height} - 1; down = 0; }}\n\
             if (right >= {width}) {{ left = right = {width} - 1; along = 0; }}\n\
             values[0] = X0(image, i1, top, left) * (1 - down) * (1 - along);\n\
             values[1] = X0(image, i1, top, right) * (1 - down) * along;\n\
             values[2] = X0(image, i1, bottom, left) * down * (1 - along);\n\
             values[3] = X0(image, i1, bottom, right) * down * along; }}\n{join}\n}}\n\
             const int samples = rows > 0 && columns > 0 ? rows * columns : 1;\nput(Y(i0, i1, i2, i3), {});",
            edge(1),
            edge(0),
            edge(3),
            edge(2),
            out[2],
            out[3],
            count("y"),
            count("x"),
            if largest { "f" } else { "f / samples" },
            images_count = x.dims[0],
        );
        self.nest_of_result(node, "roi_align", &[x, regions, images], &body)
    }
}
