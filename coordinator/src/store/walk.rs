//! How a long list is read: along one index, in order, from where the part before ended.
//!
//! What the index does not hold is asked of each row that comes by (`fits`), and no more rows are looked at for one part
//! than [`ROWS_LOOKED_AT_MAX`]: a part may be short, or empty, and still say where the list goes on. So a part takes the
//! same time however many rows there are, and none is left out.

use super::{
    StoreError,
    sql::{Statement, Value},
};
use std::fmt::Write as _;

/// Rows that are looked at for one part of a list.
const ROWS_LOOKED_AT_MAX: usize = 4_096;
/// Rows that one statement brings, at most.
const ROWS_AT_ONCE_MAX: usize = 1_024;
/// Where only some rows fit, the first statement brings as many as are missing, and each further one so many times more.
const ROWS_TRIED_GROWTH: usize = 4;

/// Names of the place columns of a walk's statement, in order.
const PLACE: [&str; 3] = ["a", "b", "c"];

/// A row's place in its list: a time, and the names that tell rows of one time apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub at_ms: u64,
    pub names: Vec<String>,
}

/// Rows of one index with the same beginning: they stand in the order of the list.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Table and index.
    pub from: &'static str,
    /// What every row has, beside `equal`; empty: nothing.
    pub only: &'static str,
    pub equal: Vec<(&'static str, Value)>,
    /// The column of the time.
    pub at: &'static str,
    /// The columns of the names.
    pub names: &'static [&'static str],
}

/// A list: streams that are merged, and what their rows must be beside.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub streams: Vec<Stream>,
    pub newest_first: bool,
    /// Bounds of the time, both inclusive.
    pub since_ms: Option<u64>,
    pub until_ms: Option<u64>,
    /// A condition on `w.a`, `w.b`, `w.c` with `#` for each of the values, in order; empty: all fit.
    pub fits: String,
    pub fits_values: Vec<Value>,
}

/// What a walk came by.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walked {
    pub places: Vec<Place>,
    /// Where the list goes on; `None`: it ends here.
    pub rest: Option<Place>,
}

/// A row of a walk's statement.
#[derive(Debug)]
pub(super) struct Step {
    pub place: Place,
    pub fits: bool,
}

/// A statement in the making.
#[derive(Default)]
struct Text {
    sql: String,
    values: Vec<Value>,
}

impl Text {
    fn bind(&mut self, value: Value) -> &mut Self {
        self.values.push(value);
        let _ = write!(self.sql, "${}", self.values.len());
        self
    }

    fn push(&mut self, text: &str) -> &mut Self {
        self.sql.push_str(text);
        self
    }
}

impl Walk {
    /// How many names tell rows of one time apart.
    pub fn names(&self) -> usize {
        self.streams.first().map_or(0, |stream| stream.names.len())
    }

    /// The next `rows` rows behind a place.
    pub(super) fn statement(&self, behind: Option<&Place>, rows: usize) -> Statement {
        let (direction, beyond) = if self.newest_first { ("DESC", "<") } else { ("ASC", ">") };
        let columns = &PLACE[..=self.names().min(PLACE.len() - 1)];
        let ordered = |columns: &[&str]| {
            columns.iter().map(|column| format!("{column} {direction}")).collect::<Vec<_>>().join(", ")
        };
        let rows = Value::from(rows as u64);
        let mut text = Text::default();
        text.push("SELECT ").push(&columns.join(", ")).push(", (");
        if self.fits.is_empty() {
            text.push("1");
        } else {
            let mut values = self.fits_values.iter();
            for (index, piece) in self.fits.split('#').enumerate() {
                if index > 0 {
                    text.bind(values.next().cloned().unwrap_or(Value::Int(0)));
                }
                text.push(piece);
            }
        }
        text.push(") AS fits FROM (SELECT * FROM (");
        for (index, stream) in self.streams.iter().enumerate() {
            text.push(if index > 0 { " UNION ALL " } else { "" });
            let places: Vec<&str> = std::iter::once(stream.at).chain(stream.names.iter().copied()).collect();
            let named: Vec<String> =
                places.iter().zip(PLACE).map(|(place, name)| format!("{place} AS {name}")).collect();
            text.push("SELECT * FROM (SELECT ").push(&named.join(", ")).push(" FROM ").push(stream.from);
            let mut and = " WHERE ";
            if !stream.only.is_empty() {
                text.push(std::mem::replace(&mut and, " AND ")).push(stream.only);
            }
            for (column, value) in &stream.equal {
                text.push(std::mem::replace(&mut and, " AND ")).push(column).push(" = ").bind(value.clone());
            }
            for (bound, comparison) in [(self.since_ms, " >= "), (self.until_ms, " <= ")] {
                if let Some(bound) = bound {
                    text.push(std::mem::replace(&mut and, " AND ")).push(stream.at).push(comparison).bind(bound.into());
                }
            }
            if let Some(behind) = behind {
                text.push(and).push("(").push(&places.join(", ")).push(") ").push(beyond).push(" (");
                text.bind(behind.at_ms.into());
                for name in &behind.names {
                    text.push(", ").bind(name.clone().into());
                }
                text.push(")");
            }
            text.push(" ORDER BY ").push(&ordered(&places)).push(" LIMIT ").bind(rows.clone()).push(") AS stream");
        }
        text.push(") AS streams ORDER BY ").push(&ordered(columns)).push(" LIMIT ").bind(rows).push(") AS w ORDER BY ");
        text.push(&ordered(columns));
        Statement { sql: text.sql, values: text.values }
    }

    /// Up to `limit` rows that fit, behind a place. `read` runs a statement.
    pub async fn go<F>(
        &self,
        mut behind: Option<Place>,
        limit: usize,
        read: impl Fn(Statement) -> F,
    ) -> Result<Walked, StoreError>
    where
        F: Future<Output = Result<Vec<Step>, StoreError>>,
    {
        let (mut places, mut looked_at, mut rows) = (Vec::new(), 0, 0);
        if self.streams.is_empty() {
            return Ok(Walked { places, rest: None });
        }
        while looked_at < ROWS_LOOKED_AT_MAX || self.fits.is_empty() {
            // One more tells whether the list goes on.
            let left = limit.saturating_sub(places.len()).saturating_add(1);
            rows = if self.fits.is_empty() {
                left.min(ROWS_AT_ONCE_MAX)
            } else {
                left.max(rows * ROWS_TRIED_GROWTH).min(ROWS_AT_ONCE_MAX).min(ROWS_LOOKED_AT_MAX - looked_at)
            };
            let steps = read(self.statement(behind.as_ref(), rows)).await?;
            let is_end = steps.len() < rows;
            for Step { place, fits } in steps {
                looked_at += 1;
                // A row may stand in two streams.
                if behind.as_ref() == Some(&place) {
                    continue;
                }
                if fits && places.len() == limit {
                    return Ok(Walked { places, rest: behind });
                }
                if fits {
                    places.push(place.clone());
                }
                behind = Some(place);
            }
            if is_end {
                return Ok(Walked { places, rest: None });
            }
        }
        Ok(Walked { places, rest: behind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        cell::{Cell, RefCell},
        future::ready,
    };

    fn place(at_ms: u64) -> Place {
        Place { at_ms, names: vec!["x".into()] }
    }

    fn walk(fits: &str) -> Walk {
        let stream = Stream { from: "jobs", only: "", equal: Vec::new(), at: "created_ms", names: &["id"] };
        let (since_ms, until_ms) = (None, None);
        Walk {
            streams: vec![stream],
            newest_first: true,
            since_ms,
            until_ms,
            fits: fits.into(),
            fits_values: Vec::new(),
        }
    }

    /// Rows 10,000, 9,999, ... of which every `nth` fits; counts how many were brought.
    fn rows(
        nth: u64,
        brought: &Cell<usize>,
        at: &RefCell<u64>,
    ) -> impl Fn(Statement) -> std::future::Ready<Result<Vec<Step>, StoreError>> {
        move |statement| {
            let Some(Value::Int(count)) = statement.values.last() else { panic!("{statement:?}") };
            let mut next = at.borrow_mut();
            let steps: Vec<Step> = (0..*count)
                .map_while(|_| {
                    *next = next.checked_sub(1)?;
                    Some(Step { place: place(*next), fits: next.is_multiple_of(nth) })
                })
                .collect();
            brought.set(brought.get() + steps.len());
            ready(Ok(steps))
        }
    }

    #[test]
    fn a_part_looks_at_so_many_rows_and_says_where_the_list_goes_on() {
        let (brought, at) = (Cell::new(0), RefCell::new(10_000));
        let rare = walk("rare");
        let part = futures::executor::block_on(rare.go(None, 10, rows(5_000, &brought, &at))).unwrap();
        assert_eq!(brought.get(), ROWS_LOOKED_AT_MAX);
        assert_eq!(part, Walked { places: Vec::new(), rest: Some(place(10_000 - ROWS_LOOKED_AT_MAX as u64)) });
        let part = futures::executor::block_on(rare.go(part.rest, 10, rows(5_000, &brought, &at))).unwrap();
        assert_eq!(part.places, [place(5_000)]);
        let part = futures::executor::block_on(rare.go(part.rest, 10, rows(5_000, &brought, &at))).unwrap();
        assert_eq!(part, Walked { places: vec![place(0)], rest: None });
    }

    #[test]
    fn where_all_fit_a_part_brings_one_row_more_than_it_gives() {
        let (brought, at) = (Cell::new(0), RefCell::new(10_000));
        let part = futures::executor::block_on(walk("").go(None, 3, rows(1, &brought, &at))).unwrap();
        assert_eq!(part, Walked { places: vec![place(9_999), place(9_998), place(9_997)], rest: Some(place(9_997)) });
        assert_eq!(brought.get(), 4);
    }

    #[test]
    fn where_most_rows_fit_few_more_are_tried_than_a_part_gives() {
        let (brought, at) = (Cell::new(0), RefCell::new(10_000));
        let part = futures::executor::block_on(walk("half").go(None, 5, rows(2, &brought, &at))).unwrap();
        assert_eq!((part.places.len(), part.rest), (5, Some(place(9_989))));
        assert_eq!(brought.get(), 6 + 6 * ROWS_TRIED_GROWTH);
    }

    #[test]
    fn a_list_that_ends_with_its_part_says_so() {
        let (brought, at) = (Cell::new(0), RefCell::new(3));
        let part = futures::executor::block_on(walk("").go(None, 3, rows(1, &brought, &at))).unwrap();
        assert_eq!((part.places.len(), part.rest), (3, None));
    }
}
