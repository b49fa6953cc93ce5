//! Lists of finds: boxes with their scores and classes, whose order, and of ties whose choice, is not the model's.
//!
//! A detector keeps the best so many. Where more of them have one score than places are left, which of them is kept is a
//! matter of the last digit: any is right. That is believed of a box that the other list lacks only where the lists
//! themselves show it, see [`Lists::are_tied`].

use planforge_graph::ir::Tensor;
use planforge_types::{ElementType, NamedTensors};

/// By how much of themselves two scores may differ and be one: eight roundings of fp32. What sums before a score leave is
/// more; so this asks for scores that no runtime can tell apart.
const TIE: f64 = 8.0 / (1u64 << 23) as f64;

/// One box of so many may be another.
const ONE_OF: usize = 10;

/// The rows of outputs that are a list of finds: all have as many, and one of them is boxes. Each number is over the
/// largest of its output.
fn rows(outputs: &NamedTensors) -> Option<Vec<Vec<f64>>> {
    let boxes = outputs.values().find(|tensor| matches!(tensor.shape[..], [_, 4]))?;
    let count = boxes.shape[0];
    if count < 2 || outputs.len() < 2 || outputs.values().any(|tensor| tensor.shape.first() != Some(&count)) {
        return None;
    }
    let mut rows = vec![Vec::new(); count];
    for tensor in outputs.values() {
        let values = Tensor::try_from(tensor.clone()).ok()?.to_f64s();
        let largest = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let unit = if largest > 0.0 { largest } else { 1.0 };
        for (row, values) in rows.iter_mut().zip(values.chunks_exact((values.len() / count).max(1))) {
            row.extend(values.iter().map(|value| value / unit));
        }
    }
    Some(rows)
}

/// Boxes, scores and classes by row.
struct Lists {
    boxes: Vec<Vec<f64>>,
    scores: Vec<f64>,
    classes: Vec<f64>,
}

impl Lists {
    /// `None` where the outputs are anything else.
    fn of(outputs: &NamedTensors) -> Option<Self> {
        let values = |is: &dyn Fn(ElementType, &[usize]) -> bool| {
            let mut found = outputs.values().filter(|tensor| is(tensor.element, &tensor.shape));
            let tensor = found.next()?;
            let is_alone = found.next().is_none();
            Tensor::try_from(tensor.clone()).ok().filter(|_| is_alone).map(|tensor| tensor.to_f64s())
        };
        let boxes = values(&|element, shape| element == ElementType::F32 && matches!(shape, [_, 4]))?;
        let scores = values(&|element, shape| element == ElementType::F32 && shape.len() == 1)?;
        let classes = values(&|element, shape| element == ElementType::I64 && shape.len() == 1)?;
        let boxes: Vec<Vec<f64>> = boxes.chunks_exact(4).map(<[f64]>::to_vec).collect();
        let is_whole = outputs.len() == 3 && boxes.len() == scores.len() && scores.len() == classes.len();
        is_whole.then_some(Self { boxes, scores, classes })
    }

    /// The scores of a class, but for those of `without`.
    fn scores_of(&self, class: f64, without: &[usize]) -> Vec<f64> {
        let of = |&row: &usize| self.classes[row] == class && !without.contains(&row);
        (0..self.scores.len()).filter(of).map(|row| self.scores[row]).collect()
    }

    /// Whether a box is one: its corners in order, none outside of what all boxes of `others` span.
    fn is_box_among(&self, row: usize, others: &Self) -> bool {
        let [left, top, right, bottom] = self.boxes[row][..] else { return false };
        let spanned = |value: f64, axis: usize| {
            let along = || others.boxes.iter().flat_map(|corners| [corners[axis], corners[axis + 2]]);
            along().fold(f64::INFINITY, f64::min) <= value && value <= along().fold(f64::NEG_INFINITY, f64::max)
        };
        let is_in_order = left <= right && top <= bottom;
        is_in_order && spanned(left, 0) && spanned(right, 0) && spanned(top, 1) && spanned(bottom, 1)
    }

    /// Whether the rows `given` of this list may stand for the rows `wanted` of the other, which this one lacks. So it is
    /// where one for one their classes are the same, and their scores one that (a) no find of that class is below, in
    /// either list, so that it is where the list was cut, and (b) a find of that class which both lists have has, too.
    fn are_tied(&self, given: &[usize], other: &Self, wanted: &[usize]) -> bool {
        let is_one = |a: f64, b: f64| (a - b).abs() <= TIE * a.abs().max(b.abs());
        let mut free = wanted.to_vec();
        given.len() == wanted.len()
            && given.len() * ONE_OF <= self.scores.len()
            && given.iter().all(|&row| {
                let (class, score) = (self.classes[row], self.scores[row]);
                let is_peer = |&at: &usize| other.classes[at] == class && is_one(other.scores[at], score);
                let Some(at) = free.iter().position(is_peer) else { return false };
                free.swap_remove(at);
                let (own, others) = (self.scores_of(class, given), other.scores_of(class, wanted));
                let is_the_cut = own.iter().chain(&others).all(|&kept| kept >= score || is_one(kept, score));
                let is_shared = |scores: &[f64]| scores.iter().any(|&kept| is_one(kept, score));
                is_the_cut && is_shared(&own) && is_shared(&others) && self.is_box_among(row, other)
            })
    }
}

/// How many finds of a tie are others, where a list of finds is the same but for those and its order: of two that are
/// equal but for rounding, either may be first. `None` where it is not the same.
pub fn others_of_ties(given: &NamedTensors, expected: &NamedTensors, threshold: f64) -> Option<usize> {
    let (given_rows, expected_rows) = (rows(given)?, rows(expected)?);
    let same = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= threshold);
    if given_rows.len() != expected_rows.len() {
        return None;
    }
    let mut free: Vec<usize> = (0..given_rows.len()).collect();
    let mut wanted = Vec::new();
    for (at, row) in expected_rows.iter().enumerate() {
        match free.iter().position(|&other| same(&given_rows[other], row)) {
            Some(found) => {
                free.remove(found);
            }
            None => wanted.push(at),
        }
    }
    if wanted.is_empty() {
        return Some(0);
    }
    Lists::of(given)?.are_tied(&free, &Lists::of(expected)?, &wanted).then_some(wanted.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::HostTensor;

    const ROUNDING: f32 = f32::EPSILON / 2.0;

    /// Ten finds: the first seven of class 2 with a score of one, the others of class 5, each with a lower one.
    fn finds() -> Vec<([f32; 4], f32, i64)> {
        (0..10u8)
            .map(|at| {
                let x = f32::from(at) * 20.0;
                let (score, class) = if at < 7 { (1.0, 2) } else { (0.9 - f32::from(at) * 0.05, 5) };
                ([x, x / 2.0, x + 30.0, x / 2.0 + 40.0], score, class)
            })
            .collect()
    }

    fn outputs(finds: &[([f32; 4], f32, i64)]) -> NamedTensors {
        let tensor = |element, shape: &[usize], bytes| HostTensor { element, shape: shape.to_vec(), bytes };
        let count = finds.len();
        let boxes = finds.iter().flat_map(|find| find.0).flat_map(f32::to_le_bytes).collect();
        let scores = finds.iter().flat_map(|find| find.1.to_le_bytes()).collect();
        let classes = finds.iter().flat_map(|find| find.2.to_le_bytes()).collect();
        NamedTensors::from([
            ("boxes".to_owned(), tensor(ElementType::F32, &[count, 4], boxes)),
            ("scores".to_owned(), tensor(ElementType::F32, &[count], scores)),
            ("classes".to_owned(), tensor(ElementType::I64, &[count], classes)),
        ])
    }

    /// What is said of the finds when the box, score and class of `row` are others.
    fn told_of(row: usize, with: ([f32; 4], f32, i64)) -> Option<usize> {
        let mut given = finds();
        given[row] = with;
        others_of_ties(&outputs(&given), &outputs(&finds()), 1e-3)
    }

    const OTHER: [f32; 4] = [11.0, 70.0, 19.0, 75.0];

    #[test]
    fn the_order_of_finds_is_not_looked_at() {
        let turned: Vec<_> = finds().into_iter().rev().collect();
        assert_eq!(others_of_ties(&outputs(&turned), &outputs(&finds()), 1e-3), Some(0));
    }

    #[test]
    fn rows_of_anything_else_have_an_order() {
        let tensor = |values: &[f32], shape: &[usize]| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            HostTensor { element: ElementType::F32, shape: shape.to_vec(), bytes }
        };
        let one = |name: &str, tensor| NamedTensors::from([(name.to_owned(), tensor)]);
        let (first, second) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [5.0, 6.0, 7.0, 8.0, 1.0, 2.0, 3.0, 4.0]);
        let turned = |shape| others_of_ties(&one("x", tensor(&first, shape)), &one("x", tensor(&second, shape)), 1e-3);
        assert_eq!((turned(&[2, 4]), turned(&[2, 2, 2])), (None, None));
        let tiny = |value| one("x", tensor(&[value; 4], &[1, 4]));
        assert_eq!(others_of_ties(&tiny(1e-40), &tiny(2e-40), 1e-3), None, "one is twice the other");
    }

    #[test]
    fn another_box_of_a_tie_is_one_of_the_tie() {
        assert_eq!(told_of(3, (OTHER, 1.0, 2)), Some(1));
        assert_eq!(told_of(3, (OTHER, 1.0 - ROUNDING, 2)), Some(1), "to within rounding");
    }

    #[test]
    fn a_box_that_no_tie_excuses_is_wrong() {
        assert_eq!(told_of(3, (OTHER, 1.0, 5)), None, "of another class");
        assert_eq!(told_of(3, (OTHER, 1.0 - 1e-5, 2)), None, "its score is another");
        assert_eq!(told_of(8, (OTHER, finds()[8].1, 5)), None, "nothing else has its score, and others are below");
        assert_eq!(told_of(9, (OTHER, finds()[9].1, 5)), None, "nothing else has its score");
        assert_eq!(told_of(3, ([11.0, 70.0, 5.0, 75.0], 1.0, 2)), None, "its corners are out of order");
        assert_eq!(told_of(3, ([11.0, 70.0, 900.0, 75.0], 1.0, 2)), None, "it is outside of the picture");
        assert_eq!(told_of(3, ([f32::NAN; 4], 1.0, 2)), None, "it is no box");
    }

    #[test]
    fn a_tie_above_the_cut_excuses_nothing() {
        let mut expected = finds();
        expected[6].1 = 0.95;
        let mut given = expected.clone();
        given[3].0 = OTHER;
        assert_eq!(others_of_ties(&outputs(&given), &outputs(&expected), 1e-3), None);
    }

    #[test]
    fn many_others_are_no_tie() {
        let mut given = finds();
        given[3].0 = OTHER;
        given[4].0 = [12.0, 30.0, 15.0, 36.0];
        assert_eq!(others_of_ties(&outputs(&given), &outputs(&finds()), 1e-3), None);
    }

    #[test]
    fn outputs_that_are_no_boxes_have_to_be_the_same() {
        let (mut given, mut expected) = (outputs(&finds()), outputs(&finds()));
        let mask = |value: f32| HostTensor {
            element: ElementType::F32,
            shape: vec![10, 1, 1],
            bytes: (0..10).flat_map(|_| value.to_le_bytes()).collect(),
        };
        given.insert("masks".into(), mask(1.0));
        expected.insert("masks".into(), mask(1.0));
        assert_eq!(others_of_ties(&given, &expected, 1e-3), Some(0));
        let mut moved = finds();
        moved[3].0 = OTHER;
        given.extend(outputs(&moved));
        assert_eq!(others_of_ties(&given, &expected, 1e-3), None);
    }
}
