//! The portability matrix of models as a document of its own: a heat map with its numbers, and what each cell rests on.

use crate::markdown::{table, words};
use planforge_charts::{Basis, Caption, Cell as Shade, Heat, Unit};
use planforge_report::matrix::{Cell, Classes, Matrix, State};

/// What a matrix is about, on one line.
pub(crate) fn title(matrix: &Matrix) -> String {
    format!("{} with {}, {}", matrix.model, matrix.toolchain, matrix.spec)
}

/// The time of each plan over that of the device's own engine; `id` begins the names of the chart's elements.
pub(crate) fn heat(matrix: &Matrix, id: &str) -> String {
    let names: Vec<String> = matrix.skus.iter().map(ToString::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let shade = |cell: &Cell| match (&cell.loss, cell.state) {
        (Some(loss), _) => Shade::Value(1.0 + loss.relative),
        (None, State::Own) => Shade::Empty("its own"),
        (None, state) => Shade::Empty(state.words()),
    };
    let cells: Vec<Vec<Shade<'_>>> =
        matrix.cells.chunks(names.len().max(1)).map(|row| row.iter().map(shade).collect()).collect();
    let basis = if matrix.simulated { Basis::Simulated } else { Basis::Measured };
    let caption = Caption { id, title: "Time of each plan, over that of the device's own engine", basis };
    let axes = ("built for", "measured on");
    Heat { caption, unit: Unit::Times, axes, rows: &names, columns: &names, cells: &cells }.svg()
}

/// As a comment of a pull request.
pub fn markdown(matrices: &[Matrix], classes: &Classes) -> String {
    let mut out = String::new();
    for matrix in matrices {
        out.push_str(&format!("### {}: built for (rows), measured on (columns)\n\n", words(&title(matrix))));
        if matrix.simulated {
            out.push_str("> **SIMULATED**: measured on a scripted device, no number is real\n\n");
        }
        let names: Vec<String> = matrix.skus.iter().map(|sku| words(sku.as_str())).collect();
        let columns: Vec<&str> = ["built for"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let row = |cells: &[Cell]| -> Vec<String> {
            let name = cells.first().map(|cell| words(cell.built_for.as_str())).unwrap_or_default();
            [name].into_iter().chain(cells.iter().map(|cell| words(&cell.short()))).collect()
        };
        let rows: Vec<Vec<String>> = matrix.cells.chunks(names.len().max(1)).map(row).collect();
        out.push_str(&table(&columns, &[], &rows));
        for said in matrix.cells.iter().filter(|cell| cell.state != State::Own).filter_map(Cell::words) {
            out.push_str(&format!("- {}\n", words(&said)));
        }
        out.push('\n');
    }
    for pair in &classes.pairs {
        out.push_str(&format!("- {}\n", words(&pair.words())));
    }
    out
}
