//! What of a request needs what: its jobs in columns, each right of all that it needs, with lines between them.

use crate::{format, rows::JobRow};
use askama::Template;
use planforge_charts::{escaped, shortened};
use planforge_proto::v1;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// Jobs that a picture has room for; the list has all.
const JOBS: usize = 60;
/// Characters of a name in a box.
const NAME_CHARACTERS: usize = 24;
/// Of a box, and between boxes, in units of the picture.
const BOX: (usize, usize) = (190, 46);
const GAP: (usize, usize) = (56, 14);

/// The picture, for a request whose jobs need each other.
#[derive(Clone, Debug, Template)]
#[template(path = "graph.html")]
pub struct Graph {
    width: usize,
    height: usize,
    words: String,
    /// Lines and boxes; every text in them is escaped.
    marks: String,
}

impl Graph {
    /// `None`: nothing of it needs anything of it, or there is more than a picture has room for.
    pub fn of(jobs: &[v1::Job]) -> Option<Self> {
        let known: BTreeMap<&str, usize> = jobs.iter().enumerate().map(|(at, job)| (job.id.as_str(), at)).collect();
        let needs: Vec<BTreeSet<usize>> = jobs
            .iter()
            .enumerate()
            .map(|(at, job)| {
                let named = job.needed.iter().chain(&job.needs).filter_map(|id| known.get(id.as_str()).copied());
                named.filter(|other| *other != at).collect()
            })
            .collect();
        if jobs.len() > JOBS || needs.iter().all(BTreeSet::is_empty) {
            return None;
        }
        // Each stands one column right of the rightmost that it needs. A circle, which there is none of, ends the search.
        let mut columns = vec![0; jobs.len()];
        for _ in 0..jobs.len() {
            let mut moved = false;
            for at in 0..jobs.len() {
                let column = needs[at].iter().map(|need| columns[*need] + 1).max().unwrap_or(0);
                if column != columns[at] && column < jobs.len() {
                    columns[at] = column;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let mut filled: BTreeMap<usize, usize> = BTreeMap::new();
        let places: Vec<(usize, usize)> = columns
            .iter()
            .map(|column| {
                let row = filled.entry(*column).or_default();
                *row += 1;
                (column * (BOX.0 + GAP.0), (*row - 1) * (BOX.1 + GAP.1))
            })
            .collect();
        let (last, most) = (columns.iter().max().copied()?, filled.values().max().copied()?);
        let mut marks = String::new();
        for (at, (x, y)) in places.iter().enumerate() {
            for need in &needs[at] {
                let (from_x, from_y) = (places[*need].0 + BOX.0, places[*need].1 + BOX.1 / 2);
                let (to_y, middle) = (y + BOX.1 / 2, (from_x + x) / 2);
                let _ = write!(
                    marks,
                    "<path class=\"edge\" d=\"M{from_x} {from_y}C{middle} {from_y} {middle} {to_y} {x} {to_y}\"/>"
                );
            }
        }
        for (job, (x, y)) in jobs.iter().zip(&places) {
            let row = JobRow::new(job);
            let (name, sku) = (shortened(&row.model, NAME_CHARACTERS), shortened(&row.sku, NAME_CHARACTERS));
            let progress = row.progress.map(|percent| format!(" {percent} %")).unwrap_or_default();
            let state = format!("{} {}{progress}", row.pill.sign, row.pill.text);
            let _ = write!(
                marks,
                "<a href=\"/jobs/{}\" class=\"node {}\"><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" \
                 rx=\"7\"/><text x=\"{}\" y=\"{}\">{}</text><text class=\"sub\" x=\"{}\" y=\"{}\">{}</text></a>",
                escaped(&job.id),
                row.pill.class,
                escaped(&format!("{} on {}: {}", row.model, row.sku, row.pill.text)),
                BOX.0,
                BOX.1,
                x + 12,
                y + 19,
                escaped(&name),
                x + 12,
                y + 36,
                escaped(&format!("{sku} · {state}")),
            );
        }
        Some(Self {
            width: (last + 1) * (BOX.0 + GAP.0) - GAP.0,
            height: most * (BOX.1 + GAP.1) - GAP.1,
            words: format!(
                "{} jobs in {} steps, each after what it needs",
                format::grouped(jobs.len() as u64),
                last + 1
            ),
            marks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, needed: &[&str]) -> v1::Job {
        v1::Job {
            id: id.into(),
            model: Some(v1::Model { name: "<m>.onnx".into(), ..Default::default() }),
            sku: "t4".into(),
            needed: needed.iter().map(|need| (*need).to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn a_job_stands_right_of_all_that_it_needs() {
        let graph = Graph::of(&[job("c", &["a", "b"]), job("a", &[]), job("b", &["a", "elsewhere"])]).unwrap();
        assert_eq!((graph.width, graph.height), (3 * BOX.0 + 2 * GAP.0, BOX.1));
        let html = graph.render().unwrap();
        assert_eq!(html.matches("class=\"edge\"").count(), 3, "{html}");
        assert!(html.contains("href=\"/jobs/c\"") && !html.contains("<m>") && !html.contains("style="), "{html}");
        assert!(html.contains("3 jobs in 3 steps"), "{html}");
    }

    #[test]
    fn jobs_without_needs_and_crowds_have_no_picture() {
        assert!(Graph::of(&[job("a", &[]), job("b", &["elsewhere"])]).is_none());
        let crowd: Vec<v1::Job> = (0..=JOBS).map(|number| job(&number.to_string(), &["0"])).collect();
        assert!(Graph::of(&crowd).is_none());
        // What no request has, and would be drawn without an end.
        assert!(Graph::of(&[job("a", &["b"]), job("b", &["a"])]).is_some());
    }
}
