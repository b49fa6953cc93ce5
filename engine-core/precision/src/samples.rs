//! Rows of data, fitted to a model's inputs: what ranges are observed on, and what accuracy is measured on.

use crate::{
    error::{DataError, Finding},
    ranges::Extent,
};
use bytes::Bytes;
use planforge_graph::ir::Tensor;
use planforge_import::element_type;
use planforge_onnx::{
    Model,
    proto::{TensorShapeProto, ValueInfoProto, tensor_shape_proto::dimension, type_proto},
};
use planforge_types::{DimRange, ElementType, HostTensor, NamedTensors, OptimizationProfile, Port};
use rayon::prelude::*;
use std::sync::Arc;

/// Names an array of labels may have, first match first.
const LABEL_NAMES: [&str; 4] = ["labels", "label", "targets", "y"];

/// Fewer samples than this leave ranges to chance.
pub const FEW_SAMPLES: usize = 100;

/// A share of one label or one half of the data above this is one-sided.
const ONE_SIDED: f64 = 0.9;

/// Data cut to a model's inputs: all rows of it, or some.
#[derive(Clone, Debug)]
pub struct Samples {
    /// By input, of the input's type; all have equally many rows.
    arrays: Arc<Vec<(Port, HostTensor)>>,
    /// Of all rows of the arrays.
    labels: Option<Arc<Vec<i64>>>,
    /// Which rows of the arrays these are.
    rows: Vec<usize>,
    /// Rows of one execution.
    batch: usize,
}

/// What a model takes, weights that old files list among the inputs left out.
pub fn ports(model: &Model) -> Vec<Port> {
    let graph = model.graph();
    let is_weight = |info: &&ValueInfoProto| !graph.initializer.iter().any(|tensor| tensor.name == info.name);
    let port = |info: &ValueInfoProto| {
        let of = info.r#type.as_ref().and_then(|of| of.value.as_ref());
        let Some(type_proto::Value::TensorType(tensor)) = of else { return None };
        let dims = tensor.shape.as_ref().map(|shape: &TensorShapeProto| &shape.dim[..]).unwrap_or_default();
        let size = |dim: &planforge_onnx::proto::tensor_shape_proto::Dimension| match &dim.value {
            Some(dimension::Value::DimValue(size)) => u64::try_from(*size).ok().filter(|size| *size > 0),
            _ => None,
        };
        let element = element_type(tensor.elem_type).ok()?;
        Some(Port { name: info.name.clone(), element, shape: dims.iter().map(size).collect() })
    };
    graph.input.iter().filter(is_weight).filter_map(port).collect()
}

/// The arrays of several archives as those of one: rows of `part` behind those of `whole`.
///
/// # Errors
///
/// When `part` has other arrays, or rows of another type or shape.
pub fn joined(mut whole: NamedTensors, part: NamedTensors) -> Result<NamedTensors, DataError> {
    if whole.is_empty() {
        return Ok(part);
    }
    if !whole.keys().eq(part.keys()) {
        let names = |arrays: &NamedTensors| arrays.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(DataError::OtherArrays { found: names(&part), before: names(&whole) });
    }
    for (name, tensor) in part {
        let Some(into) = whole.get_mut(&name) else { continue };
        let row = |tensor: &HostTensor| tensor.shape.split_first().map(|(_, row)| row.to_vec());
        if into.element != tensor.element || row(into).is_none() || row(into) != row(&tensor) {
            return Err(DataError::OtherRows { array: name });
        }
        into.shape[0] += tensor.shape[0];
        into.bytes.extend(tensor.bytes);
    }
    Ok(whole)
}

impl Samples {
    /// Fits arrays to inputs. Labels are taken where there are some.
    ///
    /// # Errors
    ///
    /// When names, shapes or types are not those of the inputs, when there is nothing, when a number is none, or when
    /// every input is the same number everywhere.
    pub fn fit(mut arrays: NamedTensors, ports: &[Port]) -> Result<Self, DataError> {
        let found = arrays.keys().cloned().collect::<Vec<_>>().join(", ");
        let label = LABEL_NAMES.iter().find(|name| {
            arrays.contains_key(**name) && ports.iter().all(|port| port.name != **name) && arrays.len() > 1
        });
        let labels = label.and_then(|name| arrays.remove(*name)).map(labels).transpose()?;
        // A single input takes the only other array, whatever its name.
        if let ([port], [only]) = (ports, &arrays.keys().cloned().collect::<Vec<_>>()[..])
            && let Some(array) = arrays.remove(only)
        {
            arrays.insert(port.name.clone(), array);
        }
        let mut fitted: Vec<(Port, HostTensor)> = Vec::new();
        let mut first: Option<(String, usize)> = None;
        let mut batch = None;
        for port in ports {
            let array = arrays.remove(&port.name);
            let array = array.ok_or_else(|| DataError::NoInput { input: port.name.clone(), found: found.clone() })?;
            if array.shape.contains(&0) {
                return Err(DataError::Empty);
            }
            let Some((size, row)) = port.shape.split_first() else {
                return Err(DataError::NoBatch { input: port.name.clone() });
            };
            let array = fit_array(port, array, row)?;
            let rows = array.shape[0];
            match &first {
                Some((other, known)) if *known != rows => {
                    return Err(DataError::Rows {
                        array: port.name.clone(),
                        found: rows,
                        other: other.clone(),
                        rows: *known,
                    });
                }
                _ => first = Some((port.name.clone(), rows)),
            }
            let takes = size.unwrap_or(1) as usize;
            batch = Some(batch.map_or(takes, |batch: usize| batch.min(takes)));
            fitted.push((port.clone(), array));
        }
        if let Some(array) = arrays.into_keys().next() {
            let inputs = ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(DataError::Unknown { array, inputs });
        }
        let (_, rows) = first.ok_or(DataError::Empty)?;
        if let Some(labels) = &labels
            && labels.len() != rows
        {
            return Err(DataError::Rows {
                array: "labels".to_owned(),
                found: labels.len(),
                other: fitted[0].0.name.clone(),
                rows,
            });
        }
        let samples = Self {
            arrays: Arc::new(fitted),
            labels: labels.map(Arc::new),
            rows: (0..rows).collect(),
            batch: batch.unwrap_or(1).max(1),
        };
        samples.check_numbers()?;
        Ok(samples)
    }

    fn check_numbers(&self) -> Result<(), DataError> {
        let (mut constant, mut any_varies) = (None, false);
        for (port, array) in self.arrays.iter().filter(|(port, _)| is_float(port.element)) {
            let bytes = array.bytes.len() / array.shape[0];
            let rows: Vec<Row> =
                array.bytes.par_chunks_exact(bytes.max(1)).map(|bytes| Row::of(array.element, bytes)).collect();
            if let Some((row, value)) =
                rows.iter().enumerate().find_map(|(at, row)| row.not_finite.map(|value| (at, value)))
            {
                return Err(DataError::NotFinite { array: port.name.clone(), row, value });
            }
            let Some(&Row { first, .. }) = rows.first() else { continue };
            any_varies |= rows.iter().any(|row| row.varies || row.first != first);
            constant = constant.or(Some(DataError::Constant { array: port.name.clone(), value: first }));
        }
        if any_varies {
            return Ok(());
        }
        constant.map_or(Ok(()), Err)
    }

    /// What is doubtful about the data as something to calibrate on.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let count = self.rows.len();
        if count < FEW_SAMPLES {
            let text = format!("{count} samples are few: ranges from fewer than {FEW_SAMPLES} are left to chance");
            findings.push(Finding::new("few-samples", text));
        }
        if let Some(labels) = &self.labels {
            let mut sorted: Vec<i64> = self.rows.iter().map(|row| labels[*row]).collect();
            sorted.sort_unstable();
            let most = sorted.chunk_by(|a, b| a == b).max_by_key(|run| run.len()).unwrap_or_default();
            if sorted.len() > 1 && most.len() as f64 > ONE_SIDED * count as f64 {
                let share = 100 * most.len() / count;
                let text = format!("the data is one-sided: {share} % of the samples have the label {}", most[0]);
                findings.push(Finding::new("one-sided-data", text));
            }
        }
        for (port, array) in self.arrays.iter() {
            let mut rows: Vec<&[u8]> = self.rows.iter().map(|row| row_of(array, *row)).collect();
            rows.sort_unstable();
            let most = rows.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap_or(0);
            if is_float(port.element) && count > 1 && most as f64 > ONE_SIDED * count as f64 {
                let text = format!("the data is one-sided: {most} of {count} rows of '{}' are the same", port.name);
                findings.push(Finding::new("one-sided-data", text));
            }
        }
        findings
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Rows of one execution.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// How many executions take all rows.
    pub fn batches(&self) -> usize {
        self.rows.len().div_ceil(self.batch)
    }

    /// Whether it says what is right of every row.
    pub fn has_labels(&self) -> bool {
        self.labels.is_some()
    }

    /// Every so many-th row, at most `most` of them: what is measured often is measured on these.
    pub fn thinned(&self, most: usize) -> Self {
        if self.rows.len() <= most.max(1) {
            return self.clone();
        }
        self.picked(&self.evenly(most.max(1)))
    }

    /// The same rows, and those that are left, if any. They are as many as fill whole executions.
    pub fn parted(&self, most: usize) -> (Self, Option<Self>) {
        let most = most.max(1).next_multiple_of(self.batch);
        if self.rows.len() <= most {
            return (self.clone(), None);
        }
        let few = self.evenly(most);
        let rest: Vec<usize> = (0..self.rows.len()).filter(|row| few.binary_search(row).is_err()).collect();
        (self.picked(&few), Some(self.picked(&rest)))
    }

    /// These rows, and behind them others of the same data.
    pub fn followed_by(&self, others: &Self) -> Self {
        debug_assert!(Arc::ptr_eq(&self.arrays, &others.arrays), "rows of other data");
        Self { rows: [&self.rows[..], &others.rows].concat(), ..self.clone() }
    }

    fn evenly(&self, count: usize) -> Vec<usize> {
        (0..count).map(|at| at * self.rows.len() / count).collect()
    }

    /// Those of its rows.
    fn picked(&self, picked: &[usize]) -> Self {
        Self { rows: picked.iter().map(|at| self.rows[*at]).collect(), ..self.clone() }
    }

    /// Inputs of one execution; a last batch that is not full repeats its last row.
    pub fn inputs(&self, index: usize) -> NamedTensors {
        let cut = |(port, array): &(Port, HostTensor)| {
            let mut bytes = Vec::with_capacity(self.batch * array.bytes.len() / array.shape[0]);
            let rows = (index * self.batch..).take(self.batch).map(|at| self.rows[at.min(self.rows.len() - 1)]);
            rows.for_each(|row| bytes.extend_from_slice(row_of(array, row)));
            let shape = [&[self.batch], &array.shape[1..]].concat();
            (port.name.clone(), HostTensor { element: array.element, shape, bytes })
        };
        self.arrays.iter().map(cut).collect()
    }

    /// Rows of execution `index` that count.
    pub fn rows_of(&self, index: usize) -> usize {
        self.batch.min(self.rows.len() - index * self.batch)
    }

    /// The sizes that the data gives to dimensions that the model leaves open; `None` where it leaves none open.
    pub fn profile(&self) -> Option<OptimizationProfile> {
        if self.arrays.iter().all(|(port, _)| port.shape.iter().all(Option::is_some)) {
            return None;
        }
        let one = |size: usize| DimRange { min: size as u64, opt: size as u64, max: size as u64 };
        let ranges = |(port, array): &(Port, HostTensor)| {
            let sizes = std::iter::once(self.batch).chain(array.shape[1..].iter().copied());
            (port.name.clone(), sizes.map(one).collect())
        };
        Some(OptimizationProfile { inputs: self.arrays.iter().map(ranges).collect() })
    }

    /// How many rows of one execution have their label among the `top` highest scores of its output.
    ///
    /// # Errors
    ///
    /// When there are no labels, or the output has no scores.
    pub fn correct(&self, index: usize, output: &str, scores: &HostTensor, top: usize) -> Result<usize, DataError> {
        let labels = self.labels.as_ref().ok_or_else(|| DataError::NoLabels {
            found: self.arrays.iter().map(|(port, _)| port.name.clone()).collect::<Vec<_>>().join(", "),
        })?;
        let none = || DataError::NoScores { output: output.to_owned(), shape: scores.shape.clone(), rows: self.batch };
        let values = Tensor::try_from(scores.clone()).map_err(|_| none())?.to_f64s();
        let classes = values.len() / self.batch;
        if scores.shape.first() != Some(&self.batch) || classes < 2 || values.len() % self.batch != 0 {
            return Err(none());
        }
        let rows = values.chunks_exact(classes).zip(&self.rows[index * self.batch..]);
        Ok(rows.filter(|(scores, row)| is_among(scores, labels[**row], top)).count())
    }
}

/// The bytes of a row.
fn row_of(array: &HostTensor, row: usize) -> &[u8] {
    let bytes = array.bytes.len() / array.shape[0];
    &array.bytes[row * bytes..][..bytes]
}

/// What is checked of a row of numbers.
#[derive(Clone, Copy, Debug)]
struct Row {
    first: f64,
    /// Not all of them are that.
    varies: bool,
    /// The first that is no number, or none that is finite.
    not_finite: Option<f64>,
}

impl Row {
    fn of(element: ElementType, bytes: &[u8]) -> Self {
        if element == ElementType::F32
            && let Ok(values) = bytemuck::try_cast_slice::<u8, f32>(bytes)
        {
            let Extent { min, max, count } = Extent::of(values);
            if count == values.len() as u64 {
                let first = values.first().copied().unwrap_or_default();
                return Self { first: first.into(), varies: min != max, not_finite: None };
            }
        }
        let count = bytes.len() / element.bytes();
        let tensor = Tensor::new(element, vec![count], Bytes::copy_from_slice(bytes));
        let values = tensor.map(|tensor| tensor.to_f64s()).unwrap_or_default();
        let first = values.first().copied().unwrap_or_default();
        let not_finite = values.iter().copied().find(|value| !value.is_finite());
        Self { first, varies: values.iter().any(|value| *value != first), not_finite }
    }
}

/// Whether the label's score is among the highest; of equals the first counts, and a score that is no number is never right.
fn is_among(scores: &[f64], label: i64, top: usize) -> bool {
    let Some(at) = usize::try_from(label).ok().filter(|at| *at < scores.len()) else { return false };
    if scores.iter().any(|score| score.is_nan()) {
        return false;
    }
    let before = |(other, score): (usize, &f64)| *score > scores[at] || (*score == scores[at] && other < at);
    scores.iter().enumerate().filter(|pair| before(*pair)).count() < top
}

fn labels(array: HostTensor) -> Result<Vec<i64>, DataError> {
    let found = format!("{} {:?}", array.element, array.shape);
    let one_axis = array.shape.iter().filter(|size| **size != 1).count() <= 1;
    let tensor = Tensor::try_from(array).ok().filter(|_| one_axis);
    tensor.and_then(|tensor| tensor.to_i64s()).ok_or(DataError::Labels { found })
}

fn is_float(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::Bf16 | ElementType::F32 | ElementType::F64)
}

/// Checks rows and converts elements; rows may lack or have axes of size 1.
fn fit_array(port: &Port, array: HostTensor, row: &[Option<u64>]) -> Result<HostTensor, DataError> {
    let wrong = |found: &HostTensor| DataError::Shape {
        array: port.name.clone(),
        found: found.shape.clone(),
        expected: format!("[{}]", Port { shape: row.to_vec(), ..port.clone() }.sizes()),
    };
    let (rows, given) = array.shape.split_first().ok_or_else(|| wrong(&array))?;
    let matches = |sizes: &[usize]| {
        sizes.len() == row.len()
            && sizes.iter().zip(row).all(|(size, declared)| declared.is_none_or(|declared| declared == *size as u64))
    };
    let fixed: Option<Vec<usize>> = row.iter().map(|size| size.map(|size| size as usize)).collect();
    let significant = |sizes: &[usize]| sizes.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
    let sizes = match fixed {
        _ if matches(given) => given.to_vec(),
        Some(fixed) if significant(&fixed) == significant(given) => fixed,
        _ => return Err(wrong(&array)),
    };
    let shape = [&[*rows], &sizes[..]].concat();
    if array.element == port.element {
        return Ok(HostTensor { shape, ..array });
    }
    if is_float(array.element) != is_float(port.element) {
        return Err(DataError::Element { array: port.name.clone(), found: array.element, expected: port.element });
    }
    let values = Tensor::try_from(array.clone()).map_err(|_| wrong(&array))?.to_f64s();
    Ok(HostTensor::of_values(port.element, shape, &values))
}

/// Multiplications of one row; `None` where the model is not understood at the shapes of the data.
pub fn work(model: &Model, samples: Option<&Samples>) -> Option<u64> {
    let profile = samples.and_then(Samples::profile);
    let graph = planforge_import::import(model, profile.as_ref()).ok()?;
    let rows = samples.map_or(1, Samples::batch) as u64;
    Some(planforge_graph::shape::multiply_accumulates(&graph) / rows.max(1))
}
