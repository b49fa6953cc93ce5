//! What a model says of data before anything is done to it, and how near to that a changed one is.

use crate::{
    error::PrecisionError,
    net::Net,
    observe::Observer,
    run::{Runner, Seen, Session},
    samples::Samples,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a model says of samples before anything is done to it: what everything later is compared with.
#[derive(Clone, Debug)]
pub struct Truth {
    /// Values compared, by batch: every output that is a float, or what its softmax reads.
    values: Vec<BTreeMap<String, Vec<f64>>>,
    watched: BTreeSet<String>,
    /// The output that scores are read from.
    scores: String,
    /// Rows whose label had the highest score; `None` without labels.
    correct: Option<usize>,
    rows: usize,
}

/// How near a model's results are to the truth's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Root of the mean squared difference over that of the values themselves; of the output that differs most.
    pub relative_rms: f64,
    /// Rows whose label had the highest score; `None` without labels.
    pub correct: Option<usize>,
    pub rows: usize,
}

impl Agreement {
    /// Share of rows that are right.
    pub fn top1(&self) -> Option<f64> {
        self.correct.map(|correct| correct as f64 / self.rows.max(1) as f64)
    }
}

impl Truth {
    /// Runs the model as it is.
    ///
    /// # Errors
    ///
    /// When it does not run, or labels are given and its output has no scores.
    pub fn of(net: &Net, runner: &dyn Runner, samples: &Samples) -> Result<Self, PrecisionError> {
        let mut truth = Self::about(net);
        let mut session = runner.open(&net.model()?, samples.profile().as_ref(), &truth.watched, samples.batches())?;
        truth.hear(session.as_mut(), samples, None)?;
        Ok(truth)
    }

    /// What is compared of a model that has said nothing yet.
    pub fn about(net: &Net) -> Self {
        let graph = net.graph();
        let makers = net.makers();
        let compared = graph.output.iter().map(|output| match makers.get(output.name.as_str()) {
            Some(&at) if matches!(graph.node[at].op_type.as_str(), "Softmax" | "LogSoftmax") => {
                graph.node[at].input[0].clone()
            }
            _ => output.name.clone(),
        });
        let watched: BTreeSet<String> = compared.filter(|name| net.is_single(name)).collect();
        let scores = graph.output.first().map(|output| output.name.clone()).unwrap_or_default();
        Self { values: Vec::new(), watched, scores, correct: None, rows: 0 }
    }

    /// The values that a run has to show.
    pub fn wanted(&self) -> impl Iterator<Item = &String> {
        self.watched.iter()
    }

    /// Adds what the model says of more samples, before the eyes of an observer where there is one. All but the last ones
    /// fill their executions.
    ///
    /// # Errors
    ///
    /// When it does not run, or labels are given and its output has no scores.
    pub fn hear(
        &mut self,
        session: &mut dyn Session,
        samples: &Samples,
        observer: Option<&mut Observer>,
    ) -> Result<(), PrecisionError> {
        let (values, correct) = self.run(session, samples, observer)?;
        self.values.extend(values);
        self.rows += samples.rows();
        self.correct = correct.map(|correct| correct + self.correct.unwrap_or(0));
        Ok(())
    }

    /// What the model itself reaches.
    pub fn own(&self) -> Agreement {
        Agreement { relative_rms: 0.0, correct: self.correct, rows: self.rows }
    }

    /// Runs a changed model on the same samples and compares.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn compare(&self, net: &Net, runner: &dyn Runner, samples: &Samples) -> Result<Agreement, PrecisionError> {
        let mut session = runner.open(&net.model()?, samples.profile().as_ref(), &self.watched, samples.batches())?;
        let (values, correct) = self.run(session.as_mut(), samples, None)?;
        let mut relative_rms = 0.0_f64;
        for name in &self.watched {
            let (mut squares, mut differences) = (0.0, 0.0);
            for (true_values, values) in self.values.iter().zip(&values) {
                let (Some(true_values), Some(values)) = (true_values.get(name), values.get(name)) else { continue };
                for (a, b) in true_values.iter().zip(values) {
                    squares += a * a;
                    differences += (a - b) * (a - b);
                }
            }
            let relative = if differences == 0.0 { 0.0 } else { (differences / squares).sqrt() };
            // What is no number is as wrong as can be.
            relative_rms = if relative.is_nan() { f64::INFINITY } else { relative_rms.max(relative) };
        }
        Ok(Agreement { relative_rms, correct, rows: self.rows })
    }

    #[expect(clippy::type_complexity, reason = "both of its parts, once")]
    fn run(
        &self,
        session: &mut dyn Session,
        samples: &Samples,
        mut observer: Option<&mut Observer>,
    ) -> Result<(Vec<BTreeMap<String, Vec<f64>>>, Option<usize>), PrecisionError> {
        let (mut all, mut correct) = (Vec::new(), 0);
        for index in 0..samples.batches() {
            let rows = samples.rows_of(index);
            let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            // Rows that only fill a batch do not count.
            let counted = |shape: &[usize], mut all: Vec<f64>| {
                if shape.first() == Some(&samples.batch()) {
                    all.truncate(all.len() / samples.batch() * rows);
                }
                all
            };
            let inputs = samples.inputs(index);
            let outputs = session.run(&inputs, &mut |all| {
                if let Some(observer) = &mut observer {
                    observer.look(all);
                }
                for seen in all.iter().filter(|seen| self.watched.contains(seen.name)) {
                    values.insert(seen.name.to_owned(), counted(seen.shape, seen.in_order()));
                }
            })?;
            if let Some(observer) = &mut observer {
                observer.count(&inputs);
            }
            for (name, tensor) in &outputs {
                if self.watched.contains(name) && !values.contains_key(name) {
                    values.insert(name.clone(), counted(&tensor.shape, Seen::plain(name, tensor).in_order()));
                }
            }
            if samples.has_labels()
                && let Some(scores) = outputs.get(&self.scores)
            {
                correct += samples.correct(index, &self.scores, scores, 1)?;
            }
            all.push(values);
        }
        Ok((all, samples.has_labels().then_some(correct)))
    }
}
