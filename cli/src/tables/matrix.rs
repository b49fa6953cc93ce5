//! A portability matrix as a table of the terminal.

use super::table;
use planforge_report::matrix::{Classes, Matrix, State};
use planforge_types::shown;

/// The matrix, and a line for each cell that needs words.
pub fn render(matrix: &Matrix) -> String {
    let names: Vec<String> = matrix.skus.iter().map(ToString::to_string).collect();
    let columns: Vec<&str> = ["built for"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut rows = table(&columns);
    for cells in matrix.cells.chunks(names.len().max(1)) {
        let Some(first) = cells.first() else { continue };
        let name = first.built_for.to_string();
        rows.add_row(
            [name].into_iter().chain(cells.iter().map(planforge_report::matrix::Cell::short)).collect::<Vec<_>>(),
        );
    }
    let simulated = if matrix.simulated { "; SIMULATED: no number is real" } else { "" };
    let head = format!(
        "{} with {}, {}: built for (rows), measured on (columns){simulated}",
        matrix.model, matrix.toolchain, matrix.spec
    );
    let mut text = format!("{}\n{}", shown::line(&head), super::render(rows, &[]));
    for words in matrix.cells.iter().filter(|cell| cell.state != State::Own).filter_map(|cell| cell.words()) {
        text.push_str(&format!("{}\n", shown::line(&words)));
    }
    text.push_str(&format!("losses up to {:.0} % count as none\n", matrix.margin * 100.0));
    text
}

/// Which device kinds may stand for each other.
pub fn classes(classes: &Classes) -> String {
    let line = |text: String| format!("{}\n", shown::line(&text));
    classes.pairs.iter().map(|pair| line(pair.words())).collect()
}
