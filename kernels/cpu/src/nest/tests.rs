use super::{
    fold::{Finish, Fold, Reduction},
    scan::{Around, cum_sum, softmax},
    *,
};
use proptest::prelude::*;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn numbers(raw: &[u8]) -> Vec<f32> {
    raw.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
}

/// Calls `visit` with every index over `sizes`, the last axis fastest.
fn each(sizes: &[usize], mut visit: impl FnMut(&[usize])) {
    let count: usize = sizes.iter().product();
    for linear in 0..count {
        let mut rest = linear;
        let mut index = vec![0; sizes.len()];
        for axis in (0..sizes.len()).rev() {
            index[axis] = rest % sizes[axis];
            rest /= sizes[axis];
        }
        visit(&index);
    }
}

fn at(first: usize, strides: &[isize], index: &[usize]) -> usize {
    let offset: isize = strides.iter().zip(index).map(|(stride, &at)| stride * at as isize).sum();
    first.strict_add_signed(offset)
}

/// Strides of a dense operand whose axes lie in the order of the keys, some of them turned round or repeated.
fn strides(sizes: &[usize], keys: &[(u32, bool, bool)]) -> (usize, Vec<isize>) {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&axis| keys[axis].0);
    let (mut first, mut strides, mut step) = (0, vec![0isize; sizes.len()], 1usize);
    for axis in order {
        let (_, turned, repeated) = keys[axis];
        if repeated {
            continue;
        }
        strides[axis] = step as isize;
        if turned {
            first += step * (sizes[axis] - 1);
            strides[axis] = -strides[axis];
        }
        step *= sizes[axis];
    }
    (first, strides)
}

fn keys() -> impl Strategy<Value = Vec<(u32, bool, bool)>> {
    proptest::collection::vec((any::<u32>(), any::<bool>(), any::<bool>()), 5)
}

proptest! {
    #[test]
    fn nests_agree_with_index_arithmetic(
        sizes in proptest::collection::vec(1usize..6, 0..5), scale in 1usize..300, a in keys(), b in keys(), threads in 1usize..3,
    ) {
        let mut sizes = sizes;
        if let Some(last) = sizes.last_mut() { *last *= scale; }
        let count: usize = sizes.iter().product();
        let data: Vec<f32> = (0..count).map(|i| (i * 41 % 97) as f32 - 40.0).collect();
        let small: Vec<u8> = (0..count).map(|i| (i * 13 % 251) as u8).collect();
        let ((a_first, a), (b_first, b)) = (strides(&sizes, &a), strides(&sizes, &b));
        let sources = || vec![
            Source::new(ElementType::F32, Class::Single, a_first, &a),
            Source::new(ElementType::U8, Class::Single, b_first, &b),
        ];
        let code = [
            Instruction::Load(0),
            Instruction::Load(1),
            Instruction::Binary(Binary::Mul, 0, 1),
            Instruction::Unary(Unary::Neg, 2),
            Instruction::Compare(Compare::Less, 0, 1),
            Instruction::Select(4, 3, 0),
        ];
        for isa in Isa::available() {
            let nest = Nest::new(&sizes, sources(), &code, ElementType::F32).unwrap();
            let mut got = vec![0; count * 4];
            nest.run(isa, &ThreadPool::new(threads).unwrap(), &[&bytes(&data), &small], &mut got).unwrap();
            let mut got = numbers(&got).into_iter();
            each(&sizes, |index| {
                let (x, y) = (data[at(a_first, &a, index)], f32::from(small[at(b_first, &b, index)]));
                assert_eq!(got.next(), Some(if x < y { -(x * y) } else { x }));
            });
        }
    }

    #[test]
    fn reductions_agree_with_plain_sums(
        sizes in proptest::collection::vec(1usize..7, 1..5), scale in (0usize..5, 1usize..120), keys in keys(),
        gone in proptest::collection::vec(any::<bool>(), 5), threads in 1usize..3,
    ) {
        let mut sizes = sizes;
        if let Some(size) = sizes.get_mut(scale.0) { *size *= scale.1; }
        let gone = &gone[..sizes.len()];
        let keys: Vec<_> = keys.into_iter().map(|(key, _, _)| (key, false, false)).collect();
        let count: usize = sizes.iter().product();
        let data: Vec<f32> = (0..count).map(|i| ((i * 41 % 97) as f32 - 40.0) / 16.0).collect();
        let (_, strides) = strides(&sizes, &keys);
        let pick = |wanted: bool| (0..sizes.len()).filter(move |&axis| gone[axis] == wanted);
        let kept: Vec<usize> = pick(false).map(|axis| sizes[axis]).collect();
        let mut groups: Vec<Vec<f32>> = vec![Vec::new(); kept.iter().product()];
        each(&sizes, |index| {
            let group = pick(false).fold(0, |linear, axis| linear * sizes[axis] + index[axis]);
            groups[group].push(data[at(0, &strides, index)]);
        });
        for isa in Isa::available() {
            let pool = ThreadPool::new(threads).unwrap();
            let reduction = Reduction::new(&sizes, gone, ElementType::F32, &strides, ElementType::F32).unwrap();
            let mut got = vec![0; groups.len() * 4];
            for (fold, finish) in [(Fold::Sum, Finish::Mean), (Fold::Max, Finish::Nothing), (Fold::SumOfSquares, Finish::Root)] {
                reduction.run(isa, &pool, fold, finish, &bytes(&data), &mut got);
                for (got, group) in numbers(&got).iter().zip(&groups) {
                    let each = || group.iter().map(|&x| f64::from(x));
                    let want = match fold {
                        Fold::Sum => each().sum::<f64>() / group.len() as f64,
                        Fold::Max => each().fold(f64::NEG_INFINITY, f64::max),
                        _ => each().map(|x| x * x).sum::<f64>().sqrt(),
                    };
                    prop_assert!((f64::from(*got) - want).abs() <= 1e-6 * want.abs().max(1.0), "{fold:?}: {got}, not {want}");
                }
            }
            let mut places = vec![0; groups.len() * 8];
            for last in [false, true] {
                reduction.run_places(isa, &pool, true, last, &bytes(&data), &mut places);
                for (place, group) in places.as_chunks::<8>().0.iter().zip(&groups) {
                    let top = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let want = if last { group.iter().rposition(|&x| x == top) } else { group.iter().position(|&x| x == top) };
                    prop_assert_eq!(i64::from_le_bytes(*place) as usize, want.unwrap());
                }
            }
        }
    }

    #[test]
    fn softmax_and_running_sums_along_any_axis(outer in 1usize..4, size in 1usize..20, inner in 1usize..400, flags: (bool, bool, bool)) {
        let around = Around { outer, size, inner };
        let data: Vec<f32> = (0..outer * size * inner).map(|i| ((i * 41 % 97) as f32 - 40.0) / 8.0).collect();
        let pool = ThreadPool::new(2).unwrap();
        let place = |image: usize, step: usize, line: usize| (image * size + step) * inner + line;
        for isa in Isa::available() {
            let mut got = vec![f32::NAN; data.len()];
            softmax(isa, &pool, around, flags.2, &data, &mut got);
            for (image, line) in (0..outer).flat_map(|image| (0..inner).map(move |line| (image, line))) {
                let sum: f64 = (0..size).map(|step| f64::from(data[place(image, step, line)]).exp()).sum();
                for step in 0..size {
                    let x = f64::from(data[place(image, step, line)]);
                    let want = if flags.2 { x - sum.ln() } else { x.exp() / sum };
                    let got = f64::from(got[place(image, step, line)]);
                    prop_assert!((got - want).abs() <= 3e-6 * want.abs().max(1.0), "{got}, not {want}");
                }
            }
        }
        let whole: Vec<i64> = data.iter().map(|&x| x as i64).collect();
        let mut got = vec![0; whole.len()];
        cum_sum(&pool, around, (flags.0, flags.1), i64::wrapping_add, &whole, &mut got);
        for (image, line) in (0..outer).flat_map(|image| (0..inner).map(move |line| (image, line))) {
            for step in 0..size {
                let seen: i64 = (0..size)
                    .filter(|&other| if flags.1 { other >= step } else { other <= step } && !(flags.0 && other == step))
                    .map(|other| whole[place(image, other, line)])
                    .sum();
                prop_assert_eq!(got[place(image, step, line)], seen);
            }
        }
    }
}

#[test]
fn integers_divided_by_zero_are_an_error_and_types_keep_their_range() {
    let pool = ThreadPool::new(1).unwrap();
    let source = || {
        vec![Source::new(ElementType::I32, Class::Whole, 0, &[1]), Source::new(ElementType::I32, Class::Whole, 0, &[1])]
    };
    let raw = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let divide = [Instruction::Load(0), Instruction::Load(1), Instruction::Binary(Binary::Div, 0, 1)];
    let nest = Nest::new(&[2], source(), &divide, ElementType::I32).unwrap();
    let mut to = vec![0; 8];
    let run = |b: &[i32], to: &mut Vec<u8>| nest.run(Isa::best(), &pool, &[&raw(&[-7, 9]), &raw(b)], to);
    assert_eq!(run(&[2, 0], &mut to), Err(NestError::DivisionByZero));
    assert_eq!(run(&[2, -2], &mut to), Ok(()));
    assert_eq!(to, raw(&[-3, -4]));
    let add = [
        Instruction::Load(0),
        Instruction::Load(1),
        Instruction::Binary(Binary::Add, 0, 1),
        Instruction::Convert { from: 2, to: ElementType::I32 },
    ];
    let nest = Nest::new(&[2], source(), &add, ElementType::I32).unwrap();
    nest.run(Isa::best(), &pool, &[&raw(&[i32::MAX, 1]), &raw(&[1, 2])], &mut to).unwrap();
    assert_eq!(to, raw(&[i32::MIN, 3]));
}

/// A chain over bytes, which a table answers, is what it is where there are too few of them for one.
#[test]
fn functions_of_one_byte_are_looked_up_exactly() {
    let code = [
        Instruction::Load(0),
        Instruction::Load(1),
        Instruction::Binary(Binary::Mul, 0, 1),
        Instruction::Activate(Activation::HardSwish, 2),
        Instruction::Load(2),
        Instruction::Binary(Binary::Add, 3, 4),
        Instruction::Quantize { x: 5, scale: 1, zero: None, low: -128.0, high: 127.0 },
    ];
    let raw: Vec<u8> = (0..3 * 4_096usize).map(|at| (at * 167 % 256) as u8).collect();
    let scale = bytes(&[0.037]);
    for (element, out) in [
        (ElementType::I8, ElementType::I8),
        (ElementType::U8, ElementType::I8),
        (ElementType::I8, ElementType::F32),
        (ElementType::U8, ElementType::I64),
        (ElementType::U8, ElementType::F16),
    ] {
        let nest = |sizes: &[usize], strides: &[isize]| {
            let sources = vec![
                Source::new(element, Class::Single, 5, strides),
                Source::new(ElementType::F32, Class::Single, 0, &vec![0; sizes.len()]),
                // The same once more, held as it is for another use.
                Source::new(element, Class::Single, 5, strides),
            ];
            Nest::new(sizes, sources, &code, out).unwrap()
        };
        for isa in Isa::available() {
            let pool = ThreadPool::new(2).unwrap();
            let (whole, few) = (nest(&[3, 4_000], &[4_000, 1]), nest(&[100], &[1]));
            assert!(whole.table.is_some() && few.table.is_none());
            let mut got = vec![0; whole.len() * out.bytes()];
            whole.run(isa, &pool, &[&raw, &scale, &raw], &mut got).unwrap();
            let (mut want, mut part) = (Vec::new(), vec![0; 100 * out.bytes()]);
            for at in (0..whole.len()).step_by(100) {
                few.run(isa, &pool, &[&raw[at..], &scale, &raw[at..]], &mut part).unwrap();
                want.extend_from_slice(&part);
            }
            assert_eq!(got, want, "{element} to {out}, {isa:?}");
            // Two operands that are not one.
            let other: Vec<u8> = raw.iter().map(|byte| byte ^ 0x55).collect();
            whole.run(isa, &pool, &[&raw, &scale, &other], &mut got).unwrap();
            few.run(isa, &pool, &[&raw, &scale, &other], &mut part).unwrap();
            assert_eq!(got[..part.len()], part);
        }
    }
}

#[test]
fn a_byte_that_does_not_occur_divides_nothing() {
    let sources = || {
        vec![Source::new(ElementType::U8, Class::Whole, 0, &[1]), Source::new(ElementType::I64, Class::Whole, 0, &[0])]
    };
    let code = [Instruction::Load(0), Instruction::Load(1), Instruction::Binary(Binary::Div, 1, 0)];
    let nest = Nest::new(&[4_096], sources(), &code, ElementType::I64).unwrap();
    let (twos, thousand) = (vec![2; 4_096], 1_000i64.to_le_bytes());
    let mut got = vec![0; 4_096 * 8];
    nest.run(Isa::available()[0], &ThreadPool::new(1).unwrap(), &[&twos, &thousand], &mut got).unwrap();
    assert!(got.as_chunks::<8>().0.iter().all(|raw| i64::from_le_bytes(*raw) == 500));
}
