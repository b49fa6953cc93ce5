//! Elements of the file.

use crate::figure::Figure;
use planforge_charts::escaped;
use planforge_types::shown;
use std::fmt::Write as _;

/// Words from a report, for a page.
pub(super) fn words(text: &str) -> String {
    escaped(&shown::line(text))
}

/// A figure as people read it, with its exact value for who reads the file by program.
pub(super) fn data(figure: &Figure) -> String {
    exact(figure.value, &figure.text)
}

pub(super) fn exact(value: f64, text: &str) -> String {
    format!("<data value=\"{value}\">{}</data>", words(text))
}

/// A long name by its beginning, up to the end of a word, and its end.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most * 2 / 3).collect();
    let tail: String = text.chars().skip(count - most / 3).collect();
    format!("{head}…{tail}")
}

/// A table in a part that scrolls by itself; cells are markup, `numeric` columns line up on the right.
pub(super) struct Table(String);

impl Table {
    /// `label` is what the part is called by who does not see it.
    pub fn new(label: &str, caption: &str, columns: &[(&str, bool)]) -> Self {
        // Once for a column, not in every cell: a tenth of a long table.
        let numeric: Vec<String> =
            (1..=columns.len()).filter(|number| columns[number - 1].1).map(|number| format!("n{number}")).collect();
        let mut markup = format!(
            "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table class=\"{}\">\
             <caption>{}</caption><thead><tr>",
            words(label),
            numeric.join(" "),
            words(caption)
        );
        for (name, _) in columns {
            let _ = write!(markup, "<th scope=\"col\">{}</th>", words(name));
        }
        markup.push_str("</tr></thead><tbody>\n");
        Self(markup)
    }

    /// The first cell is the row's heading.
    pub fn row(&mut self, cells: &[String]) {
        // End tags of cells and rows may be left out, which is a tenth of a long table, too.
        self.0.push_str("<tr>");
        for (index, cell) in cells.iter().enumerate() {
            let name = if index == 0 { "th scope=\"row\"" } else { "td" };
            let _ = write!(self.0, "<{name}>{cell}");
        }
        self.0.push('\n');
    }

    pub fn end(mut self) -> String {
        self.0.push_str("</tbody></table></div>\n");
        self.0
    }
}

/// A chart in a frame of its own.
pub(super) fn figure(svg: &str) -> String {
    format!("<figure>{svg}</figure>\n")
}

/// Charts beside each other where there is room.
pub(super) fn pair(svgs: &[String]) -> String {
    let figures: String = svgs.iter().map(|svg| figure(svg)).collect();
    format!("<div class=\"pair\">{figures}</div>\n")
}
