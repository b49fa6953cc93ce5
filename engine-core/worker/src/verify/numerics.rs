//! Outputs of a plan against those of a reference: how far apart, and is that too far?

use planforge_graph::ir::{Graph, Op, Tensor};
use planforge_report::OutputNumerics;
use planforge_types::{ElementType, HostTensor, NamedTensors, Precision};
use std::collections::BTreeMap;

/// How small a reference probability must be to say nothing about the number before softmax: it may have been rounded to
/// zero, or not. All that is asked of the plan's is that it is as small.
const MIN_PROBABILITY: f64 = 1e-20;

/// Stands in for a probability of zero, the smallest an f32 can hold.
const ZERO_PROBABILITY: f64 = 1e-45;

/// How far the worst of many elements may lie beyond what a precision explains while the whole stays within it: rounding
/// grows through a deep network here and there, and of millions of elements some are always hit.
const WORST: f64 = 5.0;

/// Largest error over the output's scale that a precision explains.
pub fn threshold(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 => 1e-3,
        // Ten bits of mantissa, summed over deep networks.
        Precision::Tf32 => 1e-2,
        Precision::Fp16 => 2e-2,
        Precision::Bf16 => 5e-2,
        // Quantised networks are judged by their accuracy first; this catches the ones that are broken.
        Precision::Int8 | Precision::Fp8 | Precision::Best => 1e-1,
    }
}

/// Axis of the softmax that makes an output, by output name, for outputs that end in one.
pub fn final_softmaxes(graph: &Graph) -> BTreeMap<String, usize> {
    let definitions = graph.def_use().definition;
    let softmax = |output: &planforge_graph::ir::Output| {
        let node = &graph.nodes[definitions[output.value.index()]?];
        match node.op {
            Op::Softmax { axis, log: false } => Some((output.name.clone(), axis)),
            _ => None,
        }
    };
    graph.outputs.iter().filter_map(softmax).collect()
}

/// Compares every output of the reference with the plan's, element by element. An output that only the plan gives is
/// wrong too: nothing says what it should be.
pub fn compare(
    plan: &NamedTensors,
    reference: &NamedTensors,
    softmaxes: &BTreeMap<String, usize>,
) -> Vec<OutputNumerics> {
    let expected =
        reference.iter().map(|(name, expected)| output(name, plan.get(name), expected, softmaxes.get(name).copied()));
    let unknown = plan.iter().filter(|(name, _)| !reference.contains_key(*name)).map(|(name, tensor)| OutputNumerics {
        problem: Some("the reference does not give this output".into()),
        ..blank(name, tensor)
    });
    expected.chain(unknown).collect()
}

/// Whether all outputs are right within `threshold`, or within what they were allowed besides. Probabilities of a row
/// must add up, too.
pub fn passes(outputs: &[OutputNumerics], threshold: f64) -> bool {
    outputs.iter().all(|output| {
        let near = match (&output.allowed, output.whole_difference) {
            (Some(allowed), _) => allowed.within,
            (None, Some(_)) => output.max_error == 0.0,
            (None, None) => near(output.max_error, output.relative_rms, threshold),
        };
        output.problem.is_none() && output.not_finite == 0 && output.total_error <= threshold && near
    })
}

/// Whether floats are near enough: every element, or all of them on the whole while none is off by more than `WORST`
/// times as much.
pub(super) fn near(max_error: f64, relative_rms: f64, threshold: f64) -> bool {
    // Squares of the smallest numbers vanish, and then say nothing of the whole.
    let on_the_whole = (f64::MIN_POSITIVE..=threshold).contains(&relative_rms);
    max_error <= threshold || (on_the_whole && max_error <= WORST * threshold)
}

/// By how much an output differs from the reference's.
#[derive(Clone, Debug, Default)]
pub(super) struct Differences {
    /// Place and size of the difference, for every element that has one: of floats all that are finite on both sides, of
    /// integers those that differ.
    pub errors: Vec<(usize, f64)>,
    /// Places where one side is NaN or infinite and the other is not, or otherwise.
    pub not_finite: Vec<usize>,
    /// Largest absolute value of the reference.
    pub scale: f64,
    pub squared_reference: f64,
    /// Values below zero where probabilities stand.
    pub negative: u64,
    /// How far the worst row of probabilities adds up to another total.
    pub total_error: f64,
    /// Integers or bools.
    pub whole: bool,
    pub elements: usize,
}

impl Differences {
    /// Compares both, behind a softmax along that axis; an error says why they cannot be compared.
    pub fn between(actual: &HostTensor, expected: &HostTensor, softmax: Option<usize>) -> Result<Self, String> {
        if actual.shape != expected.shape {
            return Err(format!("shape {:?}, where the reference gives {:?}", actual.shape, expected.shape));
        }
        let values = |tensor: &HostTensor| Tensor::try_from(tensor.clone()).map_err(|error| error.to_string());
        let (a, r) = (values(actual)?, values(expected)?);
        let mut found = Self { elements: r.len(), whole: !is_float(expected.element), ..Self::default() };
        match softmax {
            _ if found.whole && actual.element == expected.element => found.integers(actual, expected, &r.to_f64s()),
            _ if found.whole => {
                let (a, r) = (a.to_f64s(), r.to_f64s());
                found.scale = r.iter().fold(0.0, |scale, x| scale.max(x.abs()));
                let pairs = a.iter().zip(&r).enumerate();
                found.errors = pairs.filter(|(_, (a, r))| a != r).map(|(at, (a, r))| (at, (a - r).abs())).collect();
            }
            Some(axis) => found.probabilities(&a.to_f64s(), &r.to_f64s(), &expected.shape, axis),
            None => {
                let pairs = a.to_f64s().into_iter().zip(r.to_f64s()).enumerate();
                pairs.for_each(|(at, (a, r))| found.float(at, a, r));
            }
        }
        Ok(found)
    }

    /// Beyond 2^53 neighbours are one and the same f64: bytes tell which differ.
    fn integers(&mut self, actual: &HostTensor, expected: &HostTensor, reference: &[f64]) {
        let wide = |bytes: &[u8]| match expected.element {
            ElementType::U64 => bytes.try_into().map_or(0, |bytes| i128::from(u64::from_le_bytes(bytes))),
            ElementType::I64 => bytes.try_into().map_or(0, |bytes| i128::from(i64::from_le_bytes(bytes))),
            element => {
                let tensor = HostTensor { element, shape: vec![1], bytes: bytes.to_vec() };
                Tensor::try_from(tensor).ok().and_then(|tensor| tensor.to_i64s()).map_or(0, |values| values[0].into())
            }
        };
        self.scale = reference.iter().fold(0.0, |scale, x| scale.max(x.abs()));
        let size = expected.element.bytes();
        let pairs = actual.bytes.chunks(size).zip(expected.bytes.chunks(size)).enumerate();
        let differ = pairs.filter(|(_, (a, r))| a != r);
        // What differs in its bytes alone, as a bool of 2, is no number apart; it differs all the same.
        self.errors = differ.map(|(at, (a, r))| (at, ((wide(a) - wide(r)).abs() as f64).max(1.0))).collect();
    }

    fn float(&mut self, at: usize, actual: f64, reference: f64) {
        if let Some(agree) = beyond_numbers(actual, reference) {
            if !agree {
                self.not_finite.push(at);
            }
            return;
        }
        self.scale = self.scale.max(reference.abs());
        self.squared_reference += reference * reference;
        self.errors.push((at, (actual - reference).abs()));
    }

    /// Compares what stood before softmax, as far as probabilities tell: their logarithms, counted from the row's most
    /// probable element. What logarithms cannot tell is looked at as it is: values that are NaN, infinite or negative,
    /// probabilities too small to have one, and whether a row adds up to what it should, which a shift of all its
    /// logarithms hides.
    fn probabilities(&mut self, actual: &[f64], reference: &[f64], shape: &[usize], axis: usize) {
        let size = shape.get(axis).copied().unwrap_or(1);
        let inner: usize = shape.iter().skip(axis + 1).product();
        let rows = if size * inner == 0 { 0 } else { reference.len() / size };
        for row in 0..rows {
            let at = |k: usize| (row / inner * size + k) * inner + row % inner;
            let (beyond, numbers): (Vec<usize>, Vec<usize>) =
                (0..size).map(at).partition(|i| beyond_numbers(actual[*i], reference[*i]).is_some());
            // As they are: their logarithms would be NaN too, whatever the other side holds.
            beyond.iter().for_each(|i| self.float(*i, actual[*i], reference[*i]));
            let Some(top) = numbers.iter().copied().max_by(|a, b| reference[*a].total_cmp(&reference[*b])) else {
                continue;
            };
            let log = |p: f64| p.max(ZERO_PROBABILITY).ln();
            let (actual_top, reference_top) = (log(actual[top]), log(reference[top]));
            for i in &numbers {
                self.negative += u64::from(actual[*i] < 0.0);
                if reference[*i] >= MIN_PROBABILITY {
                    self.float(*i, log(actual[*i]) - actual_top, log(reference[*i]) - reference_top);
                } else if actual[*i] > MIN_PROBABILITY {
                    self.float(*i, log(actual[*i]) - actual_top, MIN_PROBABILITY.ln() - reference_top);
                }
            }
            let total = |values: &[f64]| numbers.iter().map(|i| values[*i]).sum::<f64>();
            let error = (total(actual) - total(reference)).abs().min(f64::MAX);
            self.total_error = self.total_error.max(error);
        }
    }

    /// What errors are counted in: an output of zeros has no scale of its own; then differences count as they are.
    pub fn unit(&self) -> f64 {
        if self.scale > 0.0 { self.scale } else { 1.0 }
    }

    pub fn worst(&self) -> f64 {
        self.errors.iter().fold(0.0, |worst: f64, (_, error)| worst.max(*error))
    }

    /// Root of the mean of the squared errors, counted in the reference's; squares of an output of zeros are not divided
    /// by their number.
    pub fn relative_rms(&self, errors: impl Iterator<Item = f64>) -> f64 {
        let squared: f64 = errors.map(|error| error * error).sum();
        let rms = if self.squared_reference > 0.0 { (squared / self.squared_reference).sqrt() } else { squared.sqrt() };
        // Squares of the largest numbers overflow, and a report holds no infinity and no NaN.
        rms.min(f64::MAX)
    }

    /// Writes down what there is, with nothing allowed beyond the threshold.
    fn into_record(self, found: &mut OutputNumerics) {
        found.not_finite = self.not_finite.len() as u64;
        found.total_error = self.total_error;
        found.scale = self.scale;
        if self.whole {
            found.max_error = self.errors.len() as f64 / self.elements.max(1) as f64;
            found.whole_difference = Some(self.worst().min(f64::MAX));
        } else {
            found.max_error = (self.worst() / self.unit()).min(f64::MAX);
            found.relative_rms = self.relative_rms(self.errors.iter().map(|(_, error)| *error));
        }
        if self.negative > 0 {
            found.problem = Some(format!("{} values are negative, which no probability is", self.negative));
        }
    }
}

fn output(name: &str, plan: Option<&HostTensor>, expected: &HostTensor, softmax: Option<usize>) -> OutputNumerics {
    let softmax = softmax.filter(|_| is_float(expected.element));
    let mut found = OutputNumerics { before_softmax: softmax.is_some(), ..blank(name, expected) };
    match plan.map(|plan| Differences::between(plan, expected, softmax)) {
        None => found.problem = Some("the plan does not give this output".into()),
        Some(Err(problem)) => found.problem = Some(problem),
        Some(Ok(differences)) => differences.into_record(&mut found),
    }
    found
}

/// What outputs tell by themselves, where no reference says what is right: how many values are NaN or infinite.
pub fn scan(plan: &NamedTensors) -> Vec<OutputNumerics> {
    let look = |(name, tensor): (&String, &HostTensor)| {
        let mut found = blank(name, tensor);
        match Tensor::try_from(tensor.clone()) {
            Ok(tensor) => found.not_finite = tensor.to_f64s().iter().filter(|value| !value.is_finite()).count() as u64,
            Err(error) => found.problem = Some(error.to_string()),
        }
        found
    };
    plan.iter().map(look).collect()
}

/// The record of an output of which nothing was found yet.
fn blank(name: &str, expected: &HostTensor) -> OutputNumerics {
    let elements = expected.shape.iter().product::<usize>() as u64;
    OutputNumerics { name: name.to_owned(), elements, ..OutputNumerics::default() }
}

fn is_float(element: ElementType) -> bool {
    matches!(element, ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::F64)
}

/// Where either is NaN or infinite, whether they agree: NaN with NaN, and an infinity with itself.
fn beyond_numbers(actual: f64, reference: f64) -> Option<bool> {
    let numbers = actual.is_finite() && reference.is_finite();
    (!numbers).then(|| actual == reference || (actual.is_nan() && reference.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_graph::ir::{Node, ValueId};

    fn tensor(values: &[f32]) -> HostTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        HostTensor { element: ElementType::F32, shape: vec![1, values.len()], bytes }
    }

    fn named(values: &[f32]) -> NamedTensors {
        [("y".to_owned(), tensor(values))].into()
    }

    fn one(plan: &[f32], reference: &[f32]) -> OutputNumerics {
        compare(&named(plan), &named(reference), &BTreeMap::new()).remove(0)
    }

    fn softmax(logits: &[f32]) -> Vec<f32> {
        let top = logits.iter().fold(f32::MIN, |a, b| a.max(*b));
        let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
        logits.iter().map(|x| (f64::from(x - top).exp() / sum) as f32).collect()
    }

    #[test]
    fn errors_are_relative_to_the_outputs_scale() {
        let found = one(&[10.0, -0.5, 0.01], &[10.0, -0.5, 0.0]);
        assert!((found.max_error - 0.001).abs() < 1e-8 && found.scale == 10.0, "{found:?}");
        assert!((found.relative_rms - 0.01 / 100.25f64.sqrt()).abs() < 1e-8);
        assert!(passes(&[found], 1.1e-3));
        assert!(!passes(&[one(&[10.0, 0.02], &[10.0, 0.0])], 1e-3));
        assert_eq!(one(&[0.0, 0.5], &[0.0, 0.0]).max_error, 0.5);
    }

    #[test]
    fn one_of_many_may_be_further_off_than_the_whole() {
        let reference: Vec<f32> = (0..10_000).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let spoilt = |count: usize, by: f32| {
            let mut values = reference.clone();
            values.iter_mut().take(count).for_each(|value| *value += by);
            passes(&[one(&values, &reference)], 2e-2)
        };
        assert!(spoilt(3, 0.08), "a few elements, by four times the threshold");
        assert!(!spoilt(3, 0.11), "too far");
        assert!(!spoilt(1_000, 0.08), "too many");
        // A tile of a result that another tactic would have written.
        assert!(!spoilt(64, 1.0));
    }

    #[test]
    fn nan_infinity_shape_and_absence_are_wrong() {
        for bad in [f32::NAN, f32::INFINITY] {
            let found = one(&[1.0, bad], &[1.0, 2.0]);
            assert_eq!((found.not_finite, passes(&[found], 1.0)), (1, false));
        }
        assert_eq!(one(&[1.0, f32::INFINITY], &[1.0, f32::INFINITY]).not_finite, 0);
        let shorter = one(&[1.0], &[1.0, 2.0]);
        assert!(shorter.problem.as_deref().unwrap().contains("shape [1, 1]") && !passes(&[shorter], 1.0));
        let missing = compare(&NamedTensors::new(), &named(&[1.0]), &BTreeMap::new());
        assert!(!passes(&missing, 1.0));
        // JSON has no infinity: whatever was found can be written and read back.
        let json = serde_json::to_string(&one(&[f32::NAN], &[1.0])).unwrap();
        assert!(serde_json::from_str::<OutputNumerics>(&json).is_ok(), "{json}");
    }

    #[test]
    fn softmax_hides_nothing() {
        // Both give the same winner with probability near 1; before softmax they are 20 % apart.
        let reference = [20.0f32, 0.0, -10.0];
        let wrong = [20.0f32, 4.0, -10.0];
        let axes = [("y".to_owned(), 1)].into();
        let found = compare(&named(&softmax(&wrong)), &named(&softmax(&reference)), &axes).remove(0);
        assert!(found.before_softmax && found.max_error > 0.1, "{found:?}");
        assert!(one(&softmax(&wrong), &softmax(&reference)).max_error < 1e-3, "unseen after softmax");
        let same = compare(&named(&softmax(&reference)), &named(&softmax(&reference)), &axes).remove(0);
        assert!(same.max_error < 1e-6 && (same.scale - 30.0).abs() < 0.1, "{same:?}");
    }

    #[test]
    fn softmax_over_an_inner_axis_groups_the_right_elements() {
        let logits = [[1.0f32, 3.0], [2.0, -1.0], [0.5, 0.0]];
        let columns: Vec<Vec<f32>> = (0..2).map(|c| softmax(&[logits[0][c], logits[1][c], logits[2][c]])).collect();
        let flat: Vec<f32> = (0..3).flat_map(|r| [columns[0][r], columns[1][r]]).collect();
        let tensor = HostTensor { shape: vec![1, 3, 2], ..tensor(&flat) };
        let outputs: NamedTensors = [("y".to_owned(), tensor)].into();
        let found = compare(&outputs, &outputs, &[("y".to_owned(), 1)].into()).remove(0);
        // Column 1 spans from 3 to -1.
        assert!((found.scale - 4.0).abs() < 1e-5 && found.max_error == 0.0, "{found:?}");
    }

    #[test]
    fn integers_count_as_equal_or_not() {
        let ints = |values: &[i64]| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let tensor = HostTensor { element: ElementType::I64, shape: vec![values.len()], bytes };
            NamedTensors::from([("y".to_owned(), tensor)])
        };
        let found = compare(&ints(&[1, 2, 3, 9]), &ints(&[1, 2, 3, 4]), &BTreeMap::new()).remove(0);
        assert_eq!((found.max_error, found.whole_difference), (0.25, Some(5.0)));
        assert!(!passes(std::slice::from_ref(&found), 0.5), "no threshold of floats explains a wrong integer");
        let same = compare(&ints(&[1, 2]), &ints(&[1, 2]), &BTreeMap::new());
        assert!(passes(&same, 0.0));
    }

    #[test]
    fn final_softmaxes_are_found_by_output() {
        let mut graph = Graph::default();
        let x = graph.add_value("x", ElementType::F32, &[1, 4]);
        let y = graph.add_value("y", ElementType::F32, &[1, 4]);
        let node =
            |op, from: ValueId, to| Node { op, inputs: vec![Some(from)], outputs: vec![to], origins: Vec::new() };
        graph.inputs = vec![x];
        graph.nodes = vec![node(Op::Softmax { axis: 1, log: false }, x, y)];
        graph.outputs = vec![
            planforge_graph::ir::Output { name: "probabilities".into(), value: y },
            planforge_graph::ir::Output { name: "x".into(), value: x },
        ];
        assert_eq!(final_softmaxes(&graph), [("probabilities".to_owned(), 1)].into());
    }
}
