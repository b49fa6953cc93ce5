//! From scores to classes: a label for each row, and what its scores become.

use crate::{
    isa::{Isa, per_level},
    math,
    pool::{ThreadPool, for_parts},
    rows::softmax_rows,
};

/// Rows of one task.
const TASK_ROWS: usize = 1024;

/// What becomes of the scores of a row at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    None,
    Logistic,
    Softmax,
}

/// What is written for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// A score for each class.
    Columns,
    /// One column is a probability: what is left of 1, and it.
    Rest { column: usize },
    /// One column is a margin: its opposite, and it.
    Opposite { column: usize },
}

/// Which label a row gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// The first of the largest scores of classes that count.
    Largest,
    /// The second label where the score of this column is above the threshold.
    Above { column: usize, threshold: f32 },
}

/// Classes of rows of scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    pub labels: Vec<i64>,
    /// Added to each column.
    pub base: Vec<f32>,
    /// Whether a column counts; one that does not is written as 0 and wins never.
    pub counts: Vec<bool>,
    pub decision: Decision,
    pub written: Written,
    pub transform: Transform,
}

per_level! {
    fn logistic(to: &mut [f32]) {
        for value in to.iter_mut() {
            *value = math::sigmoid::<FUSED>(*value);
        }
    }
}

impl Classes {
    fn columns(&self) -> usize {
        self.counts.len()
    }

    /// Columns of what is written.
    fn wide(&self) -> usize {
        if self.written == Written::Columns { self.columns() } else { 2 }
    }

    /// Whether lists are as long as they have to be, and columns are there.
    pub fn holds_together(&self) -> bool {
        let columns = self.columns();
        let written = match self.written {
            Written::Columns => true,
            Written::Rest { column } | Written::Opposite { column } => column < columns,
        };
        let decided = match self.decision {
            Decision::Largest => self.labels.len() >= columns,
            Decision::Above { column, .. } => column < columns && self.labels.len() >= 2,
        };
        columns > 0 && self.base.len() == columns && written && decided
    }

    fn label(&self, row: &[f32]) -> i64 {
        let at = |column: usize| row[column] + self.base[column];
        match self.decision {
            Decision::Above { column, threshold } => self.labels[usize::from(at(column) > threshold)],
            Decision::Largest => {
                let mut best: Option<(usize, f32)> = None;
                for column in (0..row.len()).filter(|&column| self.counts[column]) {
                    let score = at(column);
                    if best.is_none_or(|(_, most)| score > most) {
                        best = Some((column, score));
                    }
                }
                self.labels[best.map_or(0, |(column, _)| column)]
            }
        }
    }

    fn write(&self, isa: Isa, scores: &[f32], out: &mut [f32]) {
        let columns = self.columns();
        match self.written {
            Written::Columns => {
                for (from, to) in scores.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
                    for (column, to) in to.iter_mut().enumerate() {
                        *to = if self.counts[column] { from[column] + self.base[column] } else { 0.0 };
                    }
                }
            }
            Written::Rest { column } | Written::Opposite { column } => {
                let whole = if matches!(self.written, Written::Rest { .. }) { 1.0 } else { 0.0 };
                for (from, to) in scores.chunks_exact(columns).zip(out.chunks_exact_mut(2)) {
                    let score = from[column] + self.base[column];
                    to.copy_from_slice(&[whole - score, score]);
                }
            }
        }
        match self.transform {
            Transform::None => {}
            Transform::Logistic => logistic(isa, out),
            Transform::Softmax => softmax_rows(isa, self.wide(), false, out),
        }
    }

    /// Labels and scores of every row.
    ///
    /// # Panics
    /// When lengths do not fit together.
    pub fn run(&self, isa: Isa, pool: &ThreadPool, scores: &[f32], labels: &mut [i64], out: &mut [f32]) {
        let (columns, wide) = (self.columns(), self.wide());
        assert!(self.holds_together(), "the classes do not hold together");
        assert!(scores.len() == labels.len() * columns && out.len() == labels.len() * wide, "the rows are not whole");
        for (label, row) in labels.iter_mut().zip(scores.chunks_exact(columns)) {
            *label = self.label(row);
        }
        for_parts(pool, out, TASK_ROWS * wide, |task, out| {
            let first = task * TASK_ROWS * columns;
            self.write(isa, &scores[first..][..out.len() / wide * columns], out);
        });
    }
}
