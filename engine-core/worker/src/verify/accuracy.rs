//! Top-1 accuracy on a labelled `.npz`: one array per input with rows along its first axis, and `labels`.

use super::{OracleEnd, reference};
use crate::measure::Clock;
use planforge_backend::{Cancel, Meter};
use planforge_graph::ir::{Graph, Tensor};
use planforge_identity::npz::{self, NpzError};
use planforge_report::Accuracy;
use planforge_types::{BackendError, ElementType, FailureClass, HostTensor, NamedTensors, Port};
use std::path::Path;

/// Names an array of labels may have, first match first.
const LABEL_NAMES: [&str; 4] = ["labels", "label", "targets", "y"];

/// Longest the reference may take over all rows: it serves to tell a bad model from a bad engine, no more.
const REFERENCE_BUDGET_MS: f64 = 10_000.0;

/// Why a test set does not fit an engine.
#[derive(Debug, thiserror::Error)]
pub enum TestSetError {
    #[error(transparent)]
    Npz(#[from] NpzError),
    #[error("the test set has no array of labels (one of {}); it has {found}", LABEL_NAMES.join(", "))]
    NoLabels { found: String },
    #[error("the labels are not one whole number per row, but {found}")]
    Labels { found: String },
    #[error("the test set has no array for input '{input}'; it has {found}")]
    NoInput { input: String, found: String },
    #[error("array '{array}' has shape {found:?}, but input '{input}' takes rows of {expected}")]
    Shape { array: String, input: String, found: Vec<usize>, expected: String },
    #[error("array '{array}' has {found} rows, but there are {labels} labels")]
    Rows { array: String, found: usize, labels: usize },
    #[error("array '{array}' is {found}, which input '{input}' of {expected} cannot take")]
    Element { array: String, input: String, found: ElementType, expected: ElementType },
    #[error("the test set is empty")]
    Empty,
    #[error("input '{input}' has no batch dimension to put rows into")]
    NoBatch { input: String },
    #[error("no output gives one score per class: the first, '{output}', has shape {shape:?} for {rows} rows")]
    NoScores { output: String, shape: Vec<usize>, rows: usize },
}

impl From<TestSetError> for BackendError {
    fn from(error: TestSetError) -> Self {
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            message += &format!(": {cause}");
            source = cause.source();
        }
        BackendError::new(FailureClass::Model, message)
            .with_hint("give --eval an .npz with one array per input, named like the input, and `labels`")
    }
}

/// A test set cut to the engine's inputs.
#[derive(Debug)]
pub struct TestSet {
    labels: Vec<i64>,
    /// By input; already of the input's element type.
    arrays: Vec<(Port, HostTensor)>,
    /// Rows one execution takes.
    batch: usize,
}

impl TestSet {
    /// Reads the set for inputs of `ports`; `usual` are the shapes that varying dimensions take.
    pub fn read(path: &Path, ports: &[Port], usual: &NamedTensors) -> Result<Self, TestSetError> {
        Self::fit(npz::read(path)?, ports, usual)
    }

    fn fit(mut arrays: NamedTensors, ports: &[Port], usual: &NamedTensors) -> Result<Self, TestSetError> {
        let found = arrays.keys().cloned().collect::<Vec<_>>().join(", ");
        let name =
            LABEL_NAMES.iter().find(|name| arrays.contains_key(**name) && ports.iter().all(|p| p.name != **name));
        let Some(labels) = name.and_then(|name| arrays.remove(*name)) else {
            return Err(TestSetError::NoLabels { found });
        };
        let described = format!("{} {:?}", labels.element, labels.shape);
        let one_axis = labels.shape.iter().filter(|size| **size != 1).count() <= 1;
        let labels = Tensor::try_from(labels).ok().filter(|_| one_axis).and_then(|labels| labels.to_i64s());
        let labels = labels.ok_or(TestSetError::Labels { found: described })?;
        if labels.is_empty() {
            return Err(TestSetError::Empty);
        }
        // A single input takes the only other array, whatever its name.
        if let ([port], [only]) = (ports, &arrays.keys().cloned().collect::<Vec<_>>()[..])
            && let Some(array) = arrays.remove(only)
        {
            arrays.insert(port.name.clone(), array);
        }
        let mut fitted = Vec::new();
        let mut batch = usize::MAX;
        for port in ports {
            let array = arrays.remove(&port.name);
            let array =
                array.ok_or_else(|| TestSetError::NoInput { input: port.name.clone(), found: found.clone() })?;
            let shape = usual.get(&port.name).map(|tensor| tensor.shape.clone());
            let shape = shape.unwrap_or_else(|| port.shape.iter().map(|size| size.unwrap_or(1) as usize).collect());
            let Some((rows, row_shape)) = shape.split_first() else {
                return Err(TestSetError::NoBatch { input: port.name.clone() });
            };
            batch = batch.min(*rows);
            fitted.push((port.clone(), fit_array(port, array, row_shape, labels.len())?));
        }
        Ok(Self { labels, arrays: fitted, batch: batch.max(1) })
    }

    fn batches(&self) -> usize {
        self.labels.len().div_ceil(self.batch)
    }

    /// Inputs of one execution; a last batch that is not full repeats its last row.
    fn inputs(&self, index: usize) -> NamedTensors {
        let cut = |(port, array): &(Port, HostTensor)| {
            let row_bytes = array.bytes.len() / array.shape[0];
            let rows = (index * self.batch..).take(self.batch).map(|row| row.min(self.labels.len() - 1));
            let bytes = rows.flat_map(|row| &array.bytes[row * row_bytes..][..row_bytes]).copied().collect();
            let mut shape = array.shape.clone();
            shape[0] = self.batch;
            (port.name.clone(), HostTensor { element: array.element, shape, bytes })
        };
        self.arrays.iter().map(cut).collect()
    }

    /// How many rows of one execution were guessed right.
    fn correct(&self, index: usize, outputs: &NamedTensors, first: &str) -> Result<u64, TestSetError> {
        let no_scores = |shape: &[usize]| TestSetError::NoScores {
            output: first.to_owned(),
            shape: shape.to_vec(),
            rows: self.batch,
        };
        let scores = outputs.get(first).ok_or_else(|| no_scores(&[]))?;
        let shape = scores.shape.clone();
        let values = Tensor::try_from(scores.clone()).map_err(|_| no_scores(&shape))?.to_f64s();
        if shape.first() != Some(&self.batch) || values.len() < 2 * self.batch || values.len() % self.batch != 0 {
            return Err(no_scores(&shape));
        }
        let labels = self.labels.iter().skip(index * self.batch);
        let rows = values.chunks(values.len() / self.batch);
        Ok(rows.zip(labels).filter(|(scores, label)| top1(scores) == Some(**label)).count() as u64)
    }
}

/// Index of the highest score, the first of equals; none when any is NaN.
fn top1(scores: &[f64]) -> Option<i64> {
    if scores.iter().any(|score| score.is_nan()) {
        return None;
    }
    let top = scores.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1))?;
    Some(top.0 as i64)
}

/// Checks rows and converts elements. Rows may lack or have axes of size 1.
fn fit_array(port: &Port, array: HostTensor, row_shape: &[usize], labels: usize) -> Result<HostTensor, TestSetError> {
    let wrong_shape = || TestSetError::Shape {
        array: port.name.clone(),
        input: port.name.clone(),
        found: array.shape.clone(),
        expected: format!("{row_shape:?}"),
    };
    let (rows, found_row) = array.shape.split_first().ok_or_else(wrong_shape)?;
    let significant = |shape: &[usize]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
    if significant(found_row) != significant(row_shape) {
        return Err(wrong_shape());
    }
    if *rows != labels {
        return Err(TestSetError::Rows { array: port.name.clone(), found: *rows, labels });
    }
    let shape = [&[*rows], row_shape].concat();
    if array.element == port.element {
        return Ok(HostTensor { shape, ..array });
    }
    let is_float = |e| matches!(e, ElementType::F16 | ElementType::Bf16 | ElementType::F32 | ElementType::F64);
    if is_float(array.element) != is_float(port.element) {
        return Err(TestSetError::Element {
            array: port.name.clone(),
            input: port.name.clone(),
            found: array.element,
            expected: port.element,
        });
    }
    let values = Tensor::try_from(array.clone()).map_err(|_| wrong_shape())?.to_f64s();
    Ok(HostTensor::of_values(port.element, shape, &values))
}

/// Runs the whole set through the plan, and through the reference where that is quick.
pub fn measure(
    meter: &mut dyn Meter,
    set: &TestSet,
    graph: Option<&Graph>,
    clock: &dyn Clock,
    cancel: &Cancel,
) -> Result<Accuracy, BackendError> {
    let Some(first) = meter.outputs().into_iter().next().map(|port| port.name) else {
        return Err(TestSetError::NoScores { output: String::new(), shape: Vec::new(), rows: set.batch }.into());
    };
    let rows = set.labels.len() as u64;
    let mut correct = 0;
    for index in 0..set.batches() {
        if cancel.is_cancelled() {
            return Err(BackendError::new(FailureClass::Infrastructure, "verification was cancelled"));
        }
        meter.bind(&set.inputs(index))?;
        correct += set.correct(index, &meter.run()?, &first)?;
    }
    let reference_correct = match graph {
        Some(graph) => reference_correct(graph, set, &first, clock, cancel)?,
        None => None,
    };
    Ok(Accuracy {
        rows,
        correct,
        top1: correct as f64 / rows as f64,
        reference_top1: reference_correct.map(|correct| correct as f64 / rows as f64),
    })
}

/// The reference's right guesses; `None` when it is too slow or silent.
fn reference_correct(
    graph: &Graph,
    set: &TestSet,
    first: &str,
    clock: &dyn Clock,
    cancel: &Cancel,
) -> Result<Option<u64>, BackendError> {
    let began_ms = clock.now_ms();
    let mut correct = 0;
    for index in 0..set.batches() {
        let spent_ms = clock.now_ms() - began_ms;
        // After the first execution it is known whether the rest fits.
        let expected_ms = spent_ms / index.max(1) as f64 * set.batches() as f64;
        if expected_ms > REFERENCE_BUDGET_MS {
            return Ok(None);
        }
        match reference(graph, &set.inputs(index), REFERENCE_BUDGET_MS - spent_ms, clock, cancel)? {
            OracleEnd::Outputs(outputs) => correct += set.correct(index, &outputs, first)?,
            OracleEnd::Silent(_) => return Ok(None),
        }
    }
    Ok(Some(correct))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(shape: &[u64]) -> Port {
        Port { name: "image".into(), element: ElementType::F32, shape: shape.iter().map(|size| Some(*size)).collect() }
    }

    fn floats(shape: &[usize], values: &[f32]) -> HostTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        HostTensor { element: ElementType::F32, shape: shape.to_vec(), bytes }
    }

    fn labels(values: &[i64]) -> HostTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        HostTensor { element: ElementType::I64, shape: vec![values.len()], bytes }
    }

    /// Five rows of two values.
    fn five(extra: &[(&str, HostTensor)]) -> NamedTensors {
        let rows: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let mut arrays = NamedTensors::from([("image".to_owned(), floats(&[5, 2], &rows))]);
        arrays.extend(extra.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())));
        arrays
    }

    #[test]
    fn rows_are_batched_and_the_last_batch_is_filled() {
        let arrays = five(&[("labels", labels(&[0, 1, 0, 1, 1]))]);
        let set = TestSet::fit(arrays, &[port(&[2, 2])], &NamedTensors::new()).unwrap();
        assert_eq!((set.batch, set.batches()), (2, 3));
        let last = Tensor::try_from(set.inputs(2)["image"].clone()).unwrap();
        assert_eq!((last.shape(), last.to_f64s()), (&[2, 2][..], vec![8.0, 9.0, 8.0, 9.0]));
        // Right, wrong; then one row that counts and one that only fills.
        let scores = |values: &[f32]| NamedTensors::from([("y".to_owned(), floats(&[2, 2], values))]);
        assert_eq!(set.correct(0, &scores(&[0.9, 0.1, 0.9, 0.1]), "y").unwrap(), 1);
        assert_eq!(set.correct(2, &scores(&[0.1, 0.9, 0.1, 0.9]), "y").unwrap(), 1);
        assert!(set.correct(0, &scores(&[f32::NAN, 0.1, 0.1, f32::NAN]), "y").unwrap() == 0);
    }

    #[test]
    fn varying_batches_take_the_usual_size() {
        let open = Port { shape: vec![None, Some(2)], ..port(&[1, 2]) };
        let usual = NamedTensors::from([("image".to_owned(), floats(&[4, 2], &[0.0; 8]))]);
        let set = TestSet::fit(five(&[("labels", labels(&[0; 5]))]), &[open], &usual).unwrap();
        assert_eq!(set.batch, 4);
    }

    #[test]
    fn a_single_input_takes_the_only_array_and_types_are_converted() {
        let doubles: Vec<u8> = (0..10).flat_map(|i| f64::from(i).to_le_bytes()).collect();
        let doubles = HostTensor { element: ElementType::F64, shape: vec![5, 1, 2], bytes: doubles };
        let arrays = NamedTensors::from([("x".to_owned(), doubles), ("y".to_owned(), labels(&[0; 5]))]);
        let set = TestSet::fit(arrays, &[port(&[1, 2])], &NamedTensors::new()).unwrap();
        assert_eq!(set.inputs(1)["image"], floats(&[1, 2], &[2.0, 3.0]));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let fail = |arrays, shape: &[u64]| TestSet::fit(arrays, &[port(shape)], &NamedTensors::new()).unwrap_err();
        assert!(matches!(fail(five(&[]), &[1, 2]), TestSetError::NoLabels { .. }));
        assert!(matches!(
            fail(five(&[("labels", labels(&[0; 4]))]), &[1, 2]),
            TestSetError::Rows { found: 5, labels: 4, .. }
        ));
        assert!(matches!(fail(five(&[("labels", labels(&[0; 5]))]), &[1, 3]), TestSetError::Shape { .. }));
        assert!(matches!(fail(five(&[("labels", floats(&[5], &[0.0; 5]))]), &[1, 2]), TestSetError::Labels { .. }));
        assert!(matches!(fail(five(&[("labels", labels(&[]))]), &[1, 2]), TestSetError::Empty));
        let two_inputs = [port(&[1, 2]), Port { name: "mask".into(), ..port(&[1, 2]) }];
        let error = TestSet::fit(five(&[("labels", labels(&[0; 5]))]), &two_inputs, &NamedTensors::new()).unwrap_err();
        assert_eq!(error.to_string(), "the test set has no array for input 'mask'; it has image, labels");
        let ints = NamedTensors::from([("image".to_owned(), labels(&[0, 1])), ("labels".to_owned(), labels(&[0, 1]))]);
        assert!(matches!(fail(ints, &[1, 1]), TestSetError::Element { .. }));
    }
}
