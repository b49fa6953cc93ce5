//! Tables whose rows have keys, so that an update sends the rows that changed and the order of all.

use crate::{
    format,
    rows::{Act, Pill},
};
use askama::Template;

/// A list with its head; the same HTML in the page and in its updates.
#[derive(Clone, Debug, Default, Template)]
#[template(path = "table.html")]
pub struct Table {
    pub id: &'static str,
    /// For who hears the page.
    pub label: &'static str,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// What stands there instead of no rows.
    pub empty: Empty,
    pub notes: Vec<String>,
    /// Where the list goes on, and where what is before it stands; empty: nothing does.
    pub more: String,
    pub back: String,
}

#[derive(Debug, Template)]
#[template(path = "foot.html")]
pub struct Foot<'a> {
    id: &'a str,
    notes: &'a [String],
    more: &'a str,
    back: &'a str,
}

/// What an empty list says, and what to type next.
#[derive(Clone, Debug, Default)]
pub struct Empty {
    pub text: String,
    pub commands: Vec<String>,
}

impl Empty {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), commands: Vec::new() }
    }

    #[must_use]
    pub fn typing(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }
}

#[derive(Clone, Debug, Default)]
pub struct Column {
    pub name: String,
    /// Of all cells below it, too.
    pub class: &'static str,
    /// The same list sorted by it; empty: it does not sort.
    pub href: String,
    /// `ascending` or `descending`, where it is sorted by it now.
    pub sorted: &'static str,
}

impl Column {
    /// A column that the list can be sorted by, and whether it is, with the largest first.
    #[must_use]
    pub fn sorted_by(self, href: String, descending: Option<bool>) -> Self {
        let sorted = descending.map_or("", |descending| if descending { "descending" } else { "ascending" });
        Self { href, sorted, ..self }
    }

    fn is_unseen(&self) -> bool {
        self.class.ends_with("unseen")
    }
}

/// A column of words.
pub fn words(name: &str) -> Column {
    column(name, "")
}

/// A column of figures.
pub fn figures(name: &str) -> Column {
    column(name, "num")
}

pub fn column(name: &str, class: &'static str) -> Column {
    Column { name: name.into(), class, ..Column::default() }
}

#[derive(Clone, Debug, Default, Template)]
#[template(path = "row.html")]
pub struct Row {
    pub key: String,
    pub class: &'static str,
    pub cells: Vec<Cell>,
}

#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub class: String,
    /// Name of the column where a phone shows no head.
    pub label: String,
    pub parts: Vec<Part>,
}

/// Something in a cell.
#[derive(Clone, Debug)]
pub enum Part {
    Text(String),
    Strong(String),
    Muted(String),
    Code(String),
    /// The beginning of a digest.
    Digest(String),
    Link {
        href: String,
        text: String,
    },
    /// A pill that leads somewhere, or nowhere.
    Pill {
        href: String,
        pill: Pill,
    },
    Tag {
        text: String,
        class: &'static str,
    },
    Time(Option<String>),
    Progress(u32),
    /// How long something is, of 100, beside the number that says it.
    Bar(u32),
    Command(String),
    Break,
    /// A form that does something to what the row is about.
    Act(Act),
}

impl Cell {
    pub fn of(parts: impl IntoIterator<Item = Part>) -> Self {
        Self { parts: parts.into_iter().collect(), ..Self::default() }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Self::of([Part::Text(text.into())])
    }

    pub fn code(text: impl Into<String>) -> Self {
        Self::of([Part::Code(text.into())])
    }

    pub fn time(at: Option<String>) -> Self {
        Self::of([Part::Time(at)])
    }

    fn is_blank(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(text) if text.is_empty()))
    }

    /// What it says, without what it looks like.
    pub fn words(&self) -> String {
        let word = |part: &Part| match part {
            Part::Text(text) | Part::Strong(text) | Part::Muted(text) | Part::Code(text) | Part::Digest(text) => {
                text.clone()
            }
            Part::Link { text, .. } | Part::Tag { text, .. } | Part::Command(text) => text.clone(),
            Part::Pill { pill, .. } => pill.text.clone(),
            Part::Time(at) => at.clone().unwrap_or_default(),
            Part::Progress(percent) | Part::Bar(percent) => percent.to_string(),
            Part::Break => " ".into(),
            Part::Act(_) => String::new(),
        };
        self.parts.iter().map(word).collect::<String>().trim().to_owned()
    }

    #[must_use]
    pub fn strong(mut self, is_strong: bool) -> Self {
        if is_strong {
            self.class.push_str("strong ");
        }
        self
    }
}

impl Part {
    pub fn link(href: impl Into<String>, text: impl Into<String>) -> Self {
        Self::Link { href: href.into(), text: text.into() }
    }

    pub fn tag(text: impl Into<String>, class: &'static str) -> Self {
        Self::Tag { text: text.into(), class }
    }

    pub fn pill(pill: Pill) -> Self {
        Self::Pill { href: String::new(), pill }
    }
}

impl Table {
    pub fn new(id: &'static str, label: &'static str, columns: &[Column]) -> Self {
        Self { id, label, columns: columns.to_vec(), ..Self::default() }
    }

    /// A row whose cells stand below the columns, in their order.
    pub fn push(&mut self, key: impl Into<String>, class: &'static str, cells: impl IntoIterator<Item = Cell>) {
        let labelled = |(mut cell, column): (Cell, &Column)| {
            cell.class.push_str(column.class.trim_end_matches(" unseen"));
            // Words say themselves what they are; figures do not.
            if column.class.starts_with("num") {
                cell.label.clone_from(&column.name);
            }
            cell
        };
        let cells = cells.into_iter().zip(&self.columns).map(labelled).collect();
        self.rows.push(Row { key: key.into(), class, cells });
    }

    /// The same without the column of that name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        if let Some(at) = self.columns.iter().position(|column| column.name == name) {
            self.columns.remove(at);
            self.rows.iter_mut().filter(|row| at < row.cells.len()).for_each(|row| drop(row.cells.remove(at)));
        }
        self
    }

    /// The first `most` rows; where there are more, how many, and what tells of all.
    #[must_use]
    pub fn at_most(mut self, most: usize, all: &str) -> Self {
        let count = self.rows.len();
        if count > most {
            self.rows.truncate(most);
            self.notes.push(format!("{most} of {}: {all} tells all of them.", format::grouped(count as u64)));
        }
        self
    }

    /// A page of the rows, and the addresses of those before and behind it, made by `to`.
    #[must_use]
    pub fn page(mut self, from: usize, most: usize, to: impl Fn(usize) -> String) -> Self {
        let count = self.rows.len();
        if count > most {
            let from = from.min((count - 1) / most * most);
            let last = (from + most).min(count);
            self.rows = self.rows.drain(from..last).collect();
            self.notes.push(format!("{} to {last} of {}", from + 1, format::grouped(count as u64)));
            self.back = if from > 0 { to(from.saturating_sub(most)) } else { String::new() };
            self.more = if last < count { to(last) } else { String::new() };
        }
        self
    }

    /// The same without columns of these names in which nothing stands.
    #[must_use]
    pub fn without_empty(mut self, names: &[&str]) -> Self {
        for name in names {
            let at = self.columns.iter().position(|column| column.name == *name);
            let is_empty = |at: usize| {
                self.rows
                    .iter()
                    .all(|row| row.cells.get(at).is_none_or(|cell| cell.parts.is_empty() || cell.is_blank()))
            };
            if at.is_some_and(is_empty) {
                self = self.without(name);
            }
        }
        self
    }

    /// The same for somebody with a link to one thing, whose address is `within`: what `is_part` of that is reached below
    /// it, and nothing else is reached at all.
    #[must_use]
    pub fn for_readers(mut self, within: &str, is_part: impl Fn(&str) -> bool) -> Self {
        let parts = self.rows.iter_mut().flat_map(|row| &mut row.cells).flat_map(|cell| &mut cell.parts);
        for part in parts {
            match part {
                Part::Link { href, .. } | Part::Pill { href, .. } if is_part(href) => *href = format!("{within}{href}"),
                Part::Link { text, .. } => *part = Part::Text(std::mem::take(text)),
                Part::Pill { href, .. } => href.clear(),
                Part::Act(_) | Part::Command(_) => *part = Part::Text(String::new()),
                _ => {}
            }
        }
        self.empty.commands.clear();
        self.more.clear();
        self.back.clear();
        self
    }

    /// Everything but rows and foot: while it stays the same, an update is of rows alone.
    pub fn frame(&self) -> Self {
        let rows = if self.rows.is_empty() { Vec::new() } else { vec![Row::default()] };
        let (columns, empty) = (self.columns.clone(), self.empty.clone());
        Self { id: self.id, label: self.label, columns, rows, empty, ..Self::default() }
    }

    /// What stands below the rows.
    pub fn foot(&self) -> Foot<'_> {
        Foot { id: self.id, notes: &self.notes, more: &self.more, back: &self.back }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_escaped_and_figures_keep_their_name() {
        let mut table = Table::new("things", "Things", &[words("Name"), figures("Size")]);
        table.empty = Empty::new("Nothing").typing("planforge <up>");
        let empty = table.render().unwrap();
        assert!(empty.contains("planforge &#60;up&#62;") && !empty.contains("<table"), "{empty}");
        table.push("k\"1", "", [Cell::text("<b>"), Cell::text("3").strong(true)]);
        let html = table.render().unwrap();
        assert!(html.contains("&#60;b&#62;") && html.contains("data-key=\"k&#34;1\""), "{html}");
        assert!(html.contains("class=\"strong num\" data-label=\"Size\">3<"), "{html}");
        assert_eq!(table.frame().render().unwrap(), table.clone().frame().render().unwrap());
    }

    #[test]
    fn who_has_a_link_reaches_what_it_is_of_and_nothing_else() {
        let mut table = Table::new("jobs", "Jobs", &[words("Job"), words("Of"), words("Fetch")]);
        table.empty = Empty::new("Nothing").typing("planforge up");
        table.more = "/jobs?cursor=1".into();
        let pill = Part::Pill { href: "/jobs/b".into(), pill: Pill::new("failed", "x", "bad") };
        let cells = [Part::link("/jobs/a", "a"), Part::link("/models/m", "m"), Part::Command("planforge fetch".into())];
        table.push("a", "", cells.map(|part| Cell::of([part])));
        table.push("b", "", [Cell::of([pill])]);
        let shown = table.without("Of").for_readers("/shared/s", |href| href == "/jobs/a");
        let html = shown.render().unwrap();
        assert!(html.contains("href=\"/shared/s/jobs/a\"") && html.contains("failed"), "{html}");
        for gone in ["/models", ">m<", "planforge fetch", "/jobs/b", "cursor"] {
            assert!(!html.contains(gone), "{gone} in {html}");
        }
        assert!(shown.empty.commands.is_empty());
    }
}
