//! Every element of an output counts, whatever the reference holds in its place.

use super::numerics::{compare, passes, threshold};
use planforge_report::OutputNumerics;
use planforge_types::{ElementType, HostTensor, NamedTensors, Precision};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NAN: f64 = f64::NAN;
const INFINITY: f64 = f64::INFINITY;
const NEG_INFINITY: f64 = f64::NEG_INFINITY;

/// `values` in rows of `width`, as an output named `y`.
fn rows(element: ElementType, width: usize, values: &[f64]) -> NamedTensors {
    let shape = vec![values.len() / width.max(1), width];
    [("y".to_owned(), HostTensor::of_values(element, shape, values))].into()
}

fn look(plan: &NamedTensors, reference: &NamedTensors, softmax: bool) -> OutputNumerics {
    let softmaxes: BTreeMap<String, usize> = softmax.then(|| ("y".to_owned(), 1)).into_iter().collect();
    compare(plan, reference, &softmaxes).remove(0)
}

#[test]
fn behind_a_softmax_every_probability_is_looked_at() {
    // What the reference gives, what the plan gives, and whether that is right in single precision.
    let cases: &[(&[f64], &[f64], bool)] = &[
        // Too small for its logarithm to mean anything: all that is as small agrees, flushed to zero or not.
        (&[1.0, 1e-30], &[1.0, 1e-30], true),
        (&[1.0, 1e-30], &[1.0, 0.0], true),
        (&[1.0, 1e-30], &[1.0, -0.0], true),
        (&[1.0, 1e-30], &[1.0, 1e-25], true),
        (&[1.0, 0.0], &[1.0, 1e-30], true),
        (&[1.0, 1e-30], &[1.0, NAN], false),
        (&[1.0, 1e-30], &[1.0, INFINITY], false),
        (&[1.0, 1e-30], &[1.0, NEG_INFINITY], false),
        (&[1.0, 1e-30], &[1.0, 0.9], false),
        (&[1.0, 1e-30], &[0.1, 0.9], false),
        (&[1.0, 1e-30], &[1.0, 1e-12], false),
        (&[1.0, 1e-30], &[1.0, -0.9], false),
        (&[1.0, 0.0], &[1.0, NAN], false),
        (&[1.0, 0.0], &[1.0, 0.9], false),
        // The most probable element is what the others are counted from: by itself its logarithm says nothing.
        (&[1.0, 1e-30], &[0.9, 0.0], false),
        (&[1.0, 1e-30], &[NAN, 0.0], false),
        (&[1.0], &[0.9], false),
        (&[1.0], &[NAN], false),
        (&[1.0], &[-1.0], false),
        // All of a row by the same factor: before softmax nothing differs.
        (&[0.7, 0.3], &[0.35, 0.15], false),
        (&[0.7, 0.3], &[0.3, 0.7], false),
        // A row of NaN, as softmax makes of one that is masked everywhere, agrees with its like and nothing else.
        (&[NAN, NAN], &[NAN, NAN], true),
        (&[NAN, NAN], &[0.5, 0.5], false),
        (&[0.5, 0.5], &[NAN, NAN], false),
        // One NaN on both sides hides nothing of the rest of its row.
        (&[NAN, 0.5, 0.5], &[NAN, 0.5, 0.5], true),
        (&[NAN, 0.5, 0.5], &[NAN, 0.9, 0.5], false),
        (&[NAN, 0.5, 0.5], &[NAN, 0.9, 0.1], false),
        (&[NAN, 0.5, 1e-30], &[NAN, 0.5, INFINITY], false),
        (&[], &[], true),
    ];
    for (reference, plan, right) in cases {
        let width = reference.len();
        let found = look(&rows(ElementType::F32, width, plan), &rows(ElementType::F32, width, reference), true);
        assert_eq!(passes(std::slice::from_ref(&found), 1e-3), *right, "{plan:?} for {reference:?}: {found:?}");
        // Beside a row of which nothing is wrong, and in one that is longer.
        let right_row = [&[1.0][..], &vec![0.0; width]].concat();
        let longer = [&right_row[..], *reference, &[0.0]].concat();
        let given = [&right_row[..], *plan, &[0.0]].concat();
        let found = look(&rows(ElementType::F32, width + 1, &given), &rows(ElementType::F32, width + 1, &longer), true);
        assert_eq!(passes(std::slice::from_ref(&found), 1e-3), *right, "{given:?} for {longer:?}: {found:?}");
    }
}

#[test]
fn of_other_outputs_every_element_is_looked_at() {
    use ElementType::{Bool, F32, F64, I64, U8};
    let cases: &[(ElementType, &[f64], &[f64], bool)] = &[
        (F32, &[0.0, 5.0], &[-0.0, 5.0], true),
        (F32, &[NAN, 5.0], &[NAN, 5.0], true),
        (F32, &[NAN, 5.0], &[1.0, 5.0], false),
        (F32, &[1.0, 5.0], &[NAN, 5.0], false),
        (F32, &[INFINITY, 5.0], &[INFINITY, 5.0], true),
        (F32, &[INFINITY, 5.0], &[NEG_INFINITY, 5.0], false),
        (F32, &[INFINITY, 5.0], &[NAN, 5.0], false),
        (F32, &[INFINITY, 5.0], &[3e38, 5.0], false),
        (F32, &[NAN, 5.0], &[NAN, 6.0], false),
        (F32, &[0.0, 0.0], &[0.0, 0.9], false),
        (F32, &[1e-30, 0.0], &[1e-30, 1e-30], false),
        (F64, &[1e300, 1.0], &[-1e300, 1.0], false),
        (F64, &[f64::MAX, 1.0], &[f64::MIN, 1.0], false),
        (I64, &[1.0, 2.0], &[1.0, 3.0], false),
        (U8, &[1.0, 255.0], &[1.0, 255.0], true),
        (Bool, &[1.0, 0.0], &[1.0, 1.0], false),
        (F32, &[], &[], true),
        (I64, &[], &[], true),
    ];
    for (element, reference, plan, right) in cases {
        let found = look(&rows(*element, plan.len(), plan), &rows(*element, plan.len(), reference), false);
        assert_eq!(passes(std::slice::from_ref(&found), 1e-3), *right, "{plan:?} for {reference:?}: {found:?}");
        // JSON has neither infinity nor NaN.
        let json = serde_json::to_string(&found).unwrap();
        assert!(serde_json::from_str::<OutputNumerics>(&json).is_ok(), "{json}");
    }
}

#[test]
fn neighbours_among_large_integers_differ() {
    let large = |value: i64| {
        let tensor = HostTensor { element: ElementType::I64, shape: vec![1], bytes: value.to_le_bytes().to_vec() };
        NamedTensors::from([("y".to_owned(), tensor)])
    };
    let found = look(&large((1 << 53) + 1), &large(1 << 53), false);
    assert!(!passes(&[found], 1e-3));
}

#[test]
fn an_output_that_the_reference_lacks_is_wrong() {
    let plan = rows(ElementType::F32, 1, &[f64::NAN]);
    let found = compare(&plan, &NamedTensors::new(), &BTreeMap::new());
    assert!(!passes(&found, 1e-3), "{found:?}");
    assert_eq!(found[0].problem.as_deref(), Some("the reference does not give this output"));
}

/// Numbers before softmax, from flat to so steep that most probabilities are zero; and how long a row is.
fn numbers() -> impl Strategy<Value = (usize, Vec<f64>)> {
    (1usize..12, 1usize..5, prop_oneof![Just(0.1), Just(3.0), Just(30.0), Just(200.0)])
        .prop_flat_map(|(width, count, spread)| (Just(width), prop::collection::vec(-spread..spread, width * count)))
}

fn softmax(width: usize, numbers: &[f64]) -> Vec<f64> {
    let row = |row: &[f64]| {
        let top = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
        row.iter().map(|x| (x - top).exp() / sum).collect::<Vec<_>>()
    };
    numbers.chunks(width).flat_map(row).collect()
}

const PRECISIONS: [Precision; 6] =
    [Precision::Fp32, Precision::Tf32, Precision::Fp16, Precision::Bf16, Precision::Int8, Precision::Best];

proptest! {
    /// One element of any output, replaced: found wherever it is, at every precision.
    #[test]
    fn one_wrong_element_is_always_found(
        (width, numbers) in numbers(),
        behind_softmax: bool,
        at: prop::sample::Index,
        wrong in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(0.9)],
        precision in prop::sample::select(&PRECISIONS[..]),
    ) {
        let allowed = threshold(precision);
        let values = if behind_softmax { softmax(width, &numbers) } else { numbers };
        let reference = rows(ElementType::F32, width, &values);
        let same = look(&reference, &reference, behind_softmax);
        prop_assert!(passes(&[same], allowed));
        let mut plan = values.clone();
        let at = at.index(plan.len());
        // What a precision explains is not wrong: of probabilities by what their row adds up to, of others by scale.
        let scale = values.iter().fold(0.0f64, |scale, x| scale.max(x.abs()));
        let explained = if behind_softmax { allowed } else { 5.0 * allowed * scale };
        prop_assume!(!wrong.is_finite() || (wrong - values[at]).abs() > 1.01 * explained);
        plan[at] = wrong;
        let found = look(&rows(ElementType::F32, width, &plan), &reference, behind_softmax);
        prop_assert!(!passes(std::slice::from_ref(&found), allowed), "{:?}", found);
    }

    /// Probabilities that single precision or a flush of small numbers makes zero are right all the same.
    #[test]
    fn flushed_probabilities_are_right((width, numbers) in numbers()) {
        let reference = softmax(width, &numbers);
        let flushed: Vec<f64> = reference.iter().map(|p| if *p < 1e-20 { 0.0 } else { *p }).collect();
        let (plan, reference) = (rows(ElementType::F32, width, &flushed), rows(ElementType::F32, width, &reference));
        let found = look(&plan, &reference, true);
        prop_assert!(passes(std::slice::from_ref(&found), threshold(Precision::Fp32)), "{:?}", found);
    }
}
