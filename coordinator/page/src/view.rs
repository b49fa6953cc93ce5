//! A page as its parts: what stands around them, and what updates replace.

use crate::{assets, table::Table};
use askama::Template;
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

/// The frame of every page.
#[derive(Clone, Debug)]
pub struct Frame {
    pub assets: &'static assets::Paths,
    pub title: String,
    /// Address of the page, which its updates are asked for by; empty: it has none.
    pub topic: String,
    /// Tag of the state that the page shows.
    pub state: String,
    /// Where its updates come from, but for the tag; empty: where those of all pages do.
    pub events: String,
    /// Who looks at it; empty before log-in.
    pub actor: String,
    /// Came by a cookie: can log out.
    pub logged_in: bool,
    /// Shown to who has a link to just this: nothing leads elsewhere.
    pub is_alone: bool,
    pub version: &'static str,
}

/// A section that the head of every page leads to.
#[derive(Debug)]
pub struct Place {
    pub href: &'static str,
    pub name: &'static str,
}

pub const PLACES: [Place; 7] = [
    Place { href: "/", name: "Coverage" },
    Place { href: "/jobs", name: "Jobs" },
    Place { href: "/engines", name: "Engines" },
    Place { href: "/compare", name: "Compare" },
    Place { href: "/devices", name: "Devices" },
    Place { href: "/farm", name: "Farm" },
    Place { href: "/activity", name: "Activity" },
];

impl Frame {
    pub fn new(title: impl Into<String>, version: &'static str) -> Self {
        Self {
            assets: &assets::PATHS,
            title: title.into(),
            topic: String::new(),
            state: String::new(),
            events: String::new(),
            actor: String::new(),
            logged_in: false,
            is_alone: false,
            version,
        }
    }

    pub(crate) fn places(&self) -> &'static [Place] {
        &PLACES
    }

    pub(crate) fn is_here(&self, place: &Place) -> bool {
        self.topic.split('?').next().is_some_and(|path| path == place.href)
    }
}

/// What a page shows of the farm, now.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub heading: String,
    /// The heading says nothing that the title does not.
    pub heading_is_hidden: bool,
    /// Where this page belongs to: address and name.
    pub above: Option<(String, &'static str)>,
    pub lead: String,
    /// Where else to look: address and words.
    pub links: Vec<(String, &'static str)>,
    pub filters: Vec<Filter>,
    /// Sections that stand above the filters, which narrow only what is below.
    pub above_filters: usize,
    pub sections: Vec<Section>,
}

/// A field that narrows a list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub name: &'static str,
    pub label: &'static str,
    pub value: String,
    /// To choose from; none: text is typed.
    pub choices: Vec<&'static str>,
    /// What the empty choice is called.
    pub otherwise: &'static str,
}

impl Filter {
    pub fn typed(name: &'static str, label: &'static str, value: &str) -> Self {
        Self { name, label, value: value.into(), choices: Vec::new(), otherwise: "any" }
    }

    pub fn chosen(name: &'static str, label: &'static str, value: &str, choices: &[&'static str]) -> Self {
        Self { choices: choices.to_vec(), ..Self::typed(name, label, value) }
    }

    /// What it is to choose nothing.
    #[must_use]
    pub fn otherwise(self, otherwise: &'static str) -> Self {
        Self { otherwise, ..self }
    }
}

#[derive(Clone, Debug)]
pub struct Section {
    /// Empty: the body says what it is.
    pub title: &'static str,
    pub body: Body,
}

#[derive(Clone, Debug)]
pub enum Body {
    /// An element of that id.
    Html {
        id: &'static str,
        html: String,
    },
    /// The same, which follows by itself: no update brings it.
    Fixed {
        id: &'static str,
        html: String,
    },
    Table(Arc<Table>),
}

impl Body {
    pub fn id(&self) -> &'static str {
        match self {
            Self::Html { id, .. } | Self::Fixed { id, .. } => id,
            Self::Table(table) => table.id,
        }
    }

    fn html(&self) -> String {
        match self {
            Self::Html { html, .. } | Self::Fixed { html, .. } => html.clone(),
            Self::Table(table) => rendered(&**table),
        }
    }
}

impl Section {
    pub fn table(title: &'static str, table: Table) -> Self {
        Self { title, body: Body::Table(Arc::new(table)) }
    }

    pub fn fixed(id: &'static str, template: &impl Template) -> Self {
        Self { title: "", body: Body::Fixed { id, html: rendered(template) } }
    }

    pub fn html(title: &'static str, id: &'static str, template: &impl Template) -> Self {
        Self { title, body: Body::Html { id, html: rendered(template) } }
    }
}

fn rendered(template: &impl Template) -> String {
    template.render().unwrap_or_else(|error| {
        tracing::error!(%error, "cannot render a part of a page");
        String::new()
    })
}

#[derive(Debug, Template)]
#[template(path = "view.html")]
pub struct Page {
    pub frame: Frame,
    pub view: View,
    /// Address of the same as JSON.
    pub json: String,
}

/// A view as updates know it: each part with a tag of what it says.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub tag: u64,
    pub parts: Vec<Snap>,
}

#[derive(Clone, Debug)]
pub struct Snap {
    pub id: String,
    /// Of everything but the rows.
    pub tag: u64,
    whole: Whole,
    pub rows: Vec<SnapRow>,
}

/// What replaces all of a part; that of a list is seldom asked for.
#[derive(Clone, Debug)]
enum Whole {
    Html(String),
    Table(Arc<Table>),
}

impl Whole {
    fn html(&self) -> String {
        match self {
            Self::Html(html) => html.clone(),
            Self::Table(table) => rendered(&**table),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SnapRow {
    pub key: String,
    pub tag: u64,
    pub html: String,
}

fn tag_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Snapshot {
    pub fn of(view: &View) -> Self {
        let bodies = view.sections.iter().map(|section| &section.body);
        let parts: Vec<Snap> = bodies.flat_map(Snap::of).collect();
        let mut hasher = DefaultHasher::new();
        for part in &parts {
            let rows: Vec<(&str, u64)> = part.rows.iter().map(|row| (row.key.as_str(), row.tag)).collect();
            (part.tag, rows).hash(&mut hasher);
        }
        Self { tag: hasher.finish(), parts }
    }
}

/// What an update replaces.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Change {
    Whole {
        id: String,
        html: String,
    },
    /// Rows of a list by their keys.
    Rows {
        id: String,
        rows: BTreeMap<String, String>,
        /// Keys of all rows; left out where it is as it was.
        #[serde(skip_serializing_if = "Option::is_none")]
        order: Option<Vec<String>>,
    },
}

impl Snapshot {
    /// What whoever has `before` lacks; `None`: has nothing that is known here.
    pub fn since(&self, before: Option<&Self>) -> Vec<Change> {
        let known = |id: &str| before.and_then(|before| before.parts.iter().find(|part| part.id == id));
        self.parts.iter().filter_map(|part| part.since(known(&part.id))).collect()
    }
}

impl Snap {
    fn since(&self, before: Option<&Self>) -> Option<Change> {
        let whole = || Change::Whole { id: self.id.clone(), html: self.whole.html() };
        let Some(before) = before else { return Some(whole()) };
        if before.tag != self.tag {
            return Some(whole());
        }
        let known: HashMap<&str, u64> = before.rows.iter().map(|row| (row.key.as_str(), row.tag)).collect();
        let changed = self.rows.iter().filter(|row| known.get(row.key.as_str()) != Some(&row.tag));
        let rows: BTreeMap<String, String> = changed.map(|row| (row.key.clone(), row.html.clone())).collect();
        let same_order = self.rows.iter().map(|row| &row.key).eq(before.rows.iter().map(|row| &row.key));
        if rows.is_empty() && same_order {
            return None;
        }
        let order = (!same_order).then(|| self.rows.iter().map(|row| row.key.clone()).collect());
        Some(Change::Rows { id: format!("{}-rows", self.id), rows, order })
    }

    fn of(body: &Body) -> Vec<Self> {
        let of_html =
            |id: String, whole: String| Self { id, tag: tag_of(&whole), whole: Whole::Html(whole), rows: Vec::new() };
        match body {
            Body::Fixed { .. } => Vec::new(),
            Body::Html { id, html } => vec![of_html((*id).into(), html.clone())],
            Body::Table(table) => {
                let row = |row: &crate::table::Row| {
                    let html = rendered(row);
                    SnapRow { key: row.key.clone(), tag: tag_of(&html), html }
                };
                let (tag, rows) = (tag_of(&rendered(&table.frame())), table.rows.iter().map(row).collect());
                let list = Self { id: table.id.into(), tag, whole: Whole::Table(table.clone()), rows };
                vec![list, of_html(format!("{}-foot", table.id), rendered(&table.foot()))]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Cell, words};

    fn view(rows: &[(&str, &str)]) -> Snapshot {
        let mut table = Table::new("things", "Things", &[words("Name")]);
        for (key, text) in rows {
            table.push(*key, "", [Cell::text(*text)]);
        }
        Snapshot::of(&View { sections: vec![Section::table("Things", table)], ..View::default() })
    }

    #[test]
    fn what_changes_in_a_row_changes_nothing_else() {
        let (one, two) = (view(&[("a", "1"), ("b", "2")]), view(&[("c", "3"), ("a", "1"), ("b", "x")]));
        assert_eq!(one.tag, view(&[("a", "1"), ("b", "2")]).tag);
        assert_ne!(one.tag, view(&[("b", "2"), ("a", "1")]).tag, "the order is part of what a list says");
        assert_ne!(one.tag, two.tag);
        assert_eq!(one.parts[0].tag, two.parts[0].tag, "the frame of the table is the same");
        assert_eq!(one.parts[0].rows[0], two.parts[0].rows[1]);
        assert_ne!(one.parts[0].rows[1], two.parts[0].rows[2]);
        let Change::Rows { id, rows, order } = two.since(Some(&one)).remove(0) else { panic!("rows changed") };
        assert_eq!((id.as_str(), rows.keys().map(String::as_str).collect::<Vec<_>>()), ("things-rows", vec!["b", "c"]));
        assert_eq!(order.unwrap(), ["c", "a", "b"]);
        let gone = view(&[("a", "1")]).since(Some(&one));
        assert!(
            matches!(&gone[..], [Change::Rows { rows, order: Some(order), .. }] if rows.is_empty() && order == &["a"])
        );
        assert!(one.since(Some(&one)).is_empty());
        assert!(matches!(&one.since(None)[..], [Change::Whole { id, .. }, _] if id == "things"));
        assert_ne!(view(&[]).parts[0].tag, one.parts[0].tag, "an empty list is another thing");
    }
}
