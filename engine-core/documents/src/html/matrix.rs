//! The portability matrix as a file.

use super::{
    head,
    write::{Table, figure, words},
};
use crate::matrix::{heat, title};
use planforge_report::matrix::{Classes, Matrix};

/// The file.
pub fn render(matrices: &[Matrix], classes: &Classes) -> String {
    let name = match matrices {
        [one] => words(&format!("Portability of {}", one.model)),
        several => format!("Portability of {} models", several.len()),
    };
    let mut page = format!("{}<header>\n<h1>{name}</h1>\n", head(&name));
    if matrices.iter().any(|matrix| matrix.simulated) {
        page.push_str("<p class=\"simulated\">SIMULATED: measured on a scripted device, no number is real</p>\n");
    }
    let lead = "Each plan on the device kinds that it was not built for, over the engine that was built there. A plan is \
                valid where its loss is shown to be within the margin, suboptimal where it is shown to be more.";
    page.push_str(&format!("<p class=\"lead\">{lead}</p>\n</header>\n<main>\n"));
    for (index, matrix) in matrices.iter().enumerate() {
        let id = format!("matrix{}", index + 1);
        page.push_str(&format!(
            "<section aria-labelledby=\"{id}-h\">\n<h2 id=\"{id}-h\">{}</h2>\n",
            words(&title(matrix))
        ));
        page.push_str(&figure(&heat(matrix, &id)));
        page.push_str(&cells(matrix));
        page.push_str("</section>\n");
    }
    page.push_str(
        "<section aria-labelledby=\"classes\">\n<h2 id=\"classes\">Interchangeable device kinds</h2>\n<ul>\n",
    );
    for pair in &classes.pairs {
        page.push_str(&format!("<li>{}</li>\n", words(&pair.words())));
    }
    page.push_str("</ul>\n</section>\n</main>\n<footer>");
    page.push_str(&format!("Written by planforge {}.</footer>\n</body>\n</html>\n", env!("CARGO_PKG_VERSION")));
    page
}

fn cells(matrix: &Matrix) -> String {
    let columns = [("built for", false), ("measured on", false), ("result", false), ("boards", true), ("why", false)];
    let mut table = Table::new("Cells", "Every cell (measured), and what it rests on", &columns);
    for cell in &matrix.cells {
        let why = cell.words().unwrap_or_default();
        table.row(&[
            words(cell.built_for.as_str()),
            words(cell.measured_on.as_str()),
            words(&cell.short()),
            cell.boards.len().to_string(),
            words(&why),
        ]);
    }
    table.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::{
        matrix::{Built, Cell, Subject, classes},
        testing::sample_report,
    };
    use planforge_types::Digest;

    #[test]
    fn a_matrix_is_a_file_without_network_and_its_words_stay_words() {
        let report = sample_report(1.0);
        let subject = Subject {
            model: "<net>".into(),
            model_digest: report.model.digest,
            structure_digest: None,
            toolchain: report.toolchain.to_string(),
            spec: "fp32".into(),
        };
        let rows =
            ["cpu-x86-64-v3", "t4"].map(|sku| Built { sku: sku.parse().unwrap(), plan: Some(Digest::of(b"plan")) });
        let matrices = [Matrix::of(subject, &rows, &[report], &[])];
        let page = render(&matrices, &classes(&matrices));
        assert!(
            page.contains("default-src 'none'") && page.contains("&lt;net&gt;") && !page.contains("<net>"),
            "{page}"
        );
        assert!(page.contains("no measurement on t4") && page.contains("<svg"), "{page}");
        let text = crate::matrix::markdown(&matrices, &classes(&matrices));
        assert!(text.contains("| cpu-x86-64-v3 | 1.010 ms | not measured |"), "{text}");
    }

    #[test]
    fn rows_that_need_no_words_have_none() {
        let cell = Cell {
            built_for: "t4".parse().unwrap(),
            measured_on: "t4".parse().unwrap(),
            state: planforge_report::matrix::State::Own,
            median_ms: Some(1.0),
            loss: None,
            reason: None,
            job: None,
            differences: Vec::new(),
            boards: Vec::new(),
        };
        assert_eq!(cell.words(), None);
    }
}
