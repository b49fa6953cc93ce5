//! Every kernel of every level against sums in 64 bits: nothing may differ, whatever the bytes are.

use super::*;
use crate::{
    conv::ConvShape,
    gemm::{Place, Workspace},
    isa::Isa,
    pool::ThreadPool,
};
use proptest::prelude::*;

/// Bytes that are often the extremes, where sums overflow first.
fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..count)
        .map(|_| match next() % 4 {
            0 => 255,
            1 => 128,
            2 => 127,
            _ => next(),
        })
        .collect()
}

fn number(byte: u8, signed: bool) -> i64 {
    if signed { i64::from(byte as i8) } else { byte.into() }
}

/// A right operand as the caller of `pack` moves it.
fn moved(byte: u8, signed: bool) -> i8 {
    if signed { byte as i8 } else { (byte ^ 0x80) as i8 }
}

/// What the sums become, told another way: in steps, with a rounding of the standard library.
fn integers(sum: i64, bias: f64, factor: f64, [zero, low, high]: [i32; 3]) -> u8 {
    let rounded = ((sum as f64 + bias) * factor).round_ties_even() + f64::from(zero);
    rounded.clamp(low.into(), high.into()) as i64 as u8
}

struct Case {
    rows: usize,
    columns: usize,
    depth: usize,
    signed: [bool; 2],
    zeros: [u8; 2],
    /// Zero points of columns differ.
    many: bool,
    seed: u64,
}

impl Case {
    fn left(&self) -> Vec<u8> {
        bytes(self.rows * self.depth, self.seed)
    }

    fn right(&self) -> Vec<u8> {
        bytes(self.depth * self.columns, self.seed + 1)
    }

    fn column_zero(&self, column: usize) -> u8 {
        if self.many { self.zeros[1].wrapping_add(column as u8) } else { self.zeros[1] }
    }

    fn sums(&self) -> Vec<i64> {
        let (left, right) = (self.left(), self.right());
        let [a_signed, b_signed] = self.signed;
        let mut sums = vec![0i64; self.rows * self.columns];
        for row in 0..self.rows {
            for column in 0..self.columns {
                let zero = number(self.column_zero(column), b_signed);
                sums[row * self.columns + column] = (0..self.depth)
                    .map(|step| {
                        let a = number(left[row * self.depth + step], a_signed) - number(self.zeros[0], a_signed);
                        a * (number(right[step * self.columns + column], b_signed) - zero)
                    })
                    .sum();
            }
        }
        sums
    }

    fn run(&self, isa: Isa, kernel: &'static Kernel, finish: Finish<'_>, mut to: Output<'_>) {
        let (left, right) = (self.left(), self.right());
        let size = PackedSize::new(kernel, self.depth, self.columns).unwrap();
        let mut packed = vec![0xaa; size.bytes];
        pack(kernel, self.depth, self.columns, &mut packed, |step, column| {
            moved(right[step * self.columns + column], self.signed[1])
        });
        let zeros = if self.many { self.columns } else { 1 };
        let zeros: Vec<i32> = (0..zeros).map(|column| moved(self.column_zero(column), self.signed[1]).into()).collect();
        let product = Product {
            packed: &packed,
            columns: self.columns,
            signed: self.signed[0],
            zero: self.zeros[0],
            column_zeros: &zeros,
            finish,
        };
        let pool = ThreadPool::new(2).unwrap();
        let rows = MatrixRows::new(&left, self.rows, self.depth);
        let place = Place { offset: 0, stride: self.columns };
        for (row_block, column_block) in [(usize::MAX, usize::MAX), (kernel.mr + 1, kernel.nr)] {
            let blocking = Blocking { kernel, row_block, column_block };
            let to = match &mut to {
                Output::Sums(to) => Output::Sums(to),
                Output::Bytes(to) => Output::Bytes(to),
                Output::Floats(to) => Output::Floats(to),
            };
            multiply(isa, &pool, &Workspace::new(2), &blocking, &rows, &product, (to, place));
        }
    }
}

fn all_kernels() -> Vec<(Isa, &'static Kernel)> {
    Isa::available().into_iter().flat_map(|isa| kernels(isa.level()).iter().map(move |kernel| (isa, *kernel))).collect()
}

fn assert_exact(case: &Case) {
    let sums = case.sums();
    let columns = case.columns;
    let bias: Vec<f64> = (0..columns).map(|column| column as f64 * 3.0 - 7.0).collect();
    let most = sums.iter().fold(1i64, |most, sum| most.max(sum.abs())) as f64;
    let factor: Vec<f64> = (0..columns).map(|column| 200.0 / most * (1.0 + column as f64 / 7.0)).collect();
    let limits = [[3, 0, 255], [-5, -128, 127], [0, 17, 101]];
    for (isa, kernel) in all_kernels() {
        let mut whole = vec![0i32; sums.len()];
        case.run(isa, kernel, Finish::Sums, Output::Sums(&mut whole));
        for (at, (&got, &want)) in whole.iter().zip(&sums).enumerate() {
            assert_eq!(got, want as i32, "{} gives another sum at {at}", kernel.name);
        }
        for [zero, low, high] in limits {
            let mut to = vec![0u8; sums.len()];
            let finish = Finish::Integers { bias: Some(&bias), factor: &factor, zero, low, high };
            case.run(isa, kernel, finish, Output::Bytes(&mut to));
            for (at, (&got, &sum)) in to.iter().zip(&sums).enumerate() {
                let want = integers(sum, bias[at % columns], factor[at % columns], [zero, low, high]);
                assert_eq!(got, want, "{} rounds {sum} another way at {at}", kernel.name);
            }
        }
        let mut floats = vec![0f32; sums.len()];
        case.run(isa, kernel, Finish::Scaled { bias: None, factor: &[0.3] }, Output::Floats(&mut floats));
        assert!(floats.iter().zip(&sums).all(|(got, &sum)| *got == (sum as f64 * 0.3) as f32), "{}", kernel.name);
        let single: Vec<f32> = bias.iter().map(|&bias| bias as f32).collect();
        let finish = Finish::Floats { bias: Some(&single), factor: &[0.3] };
        case.run(isa, kernel, finish, Output::Floats(&mut floats));
        let want = |at: usize| sums[at] as i32 as f32 * 0.3 + single[at % columns];
        assert!(floats.iter().enumerate().all(|(at, &got)| got == want(at)), "{}", kernel.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn products_are_exact(
        rows in 1usize..40, columns in 1usize..80, depth in 0usize..70, signed: [bool; 2], zeros: [u8; 2], many: bool,
        seed in 0u64..1 << 32,
    ) {
        assert_exact(&Case { rows, columns, depth, signed, zeros, many, seed });
    }

    #[test]
    fn windows_are_exact(
        batch in 1usize..3, per_group in 1usize..9, groups in 1usize..4, size in (1usize..9, 1usize..9),
        out_per_group in 1usize..9, kernel in (1usize..5, 1usize..5), strides in (1usize..3, 1usize..3),
        pads in (0usize..4, 0usize..4), dilations in (1usize..3, 1usize..3), signed: bool, zero: u8, depthwise: bool,
        seed in 0u64..1 << 32,
    ) {
        let (channels, groups) = if depthwise { (per_group * 19, per_group * 19) } else { (per_group * groups, groups) };
        let out = |size: usize, pad: usize, kernel: usize, stride: usize, dilation: usize| {
            (size + 2 * pad).checked_sub((kernel - 1) * dilation + 1).map(|room| room / stride + 1)
        };
        let sizes = (
            out(size.0, pads.0, kernel.0, strides.0, dilations.0),
            out(size.1, pads.1, kernel.1, strides.1, dilations.1),
        );
        prop_assume!(sizes.0.is_some() && sizes.1.is_some());
        let shape = ConvShape {
            batch, height: size.0, width: size.1, channels,
            out_height: sizes.0.unwrap(), out_width: sizes.1.unwrap(),
            out_channels: if depthwise { channels } else { out_per_group * groups },
            kernel: [kernel.0, kernel.1], strides: [strides.0, strides.1], dilations: [dilations.0, dilations.1],
            pads: [pads.0, pads.1], groups,
        };
        assert_windows(&shape, signed, zero, seed);
    }
}

/// Lines that are longer than what is copied or summed up at once, of few channels and of many.
#[test]
fn wide_windows_are_exact() {
    let square =
        |channels: usize, size: [usize; 2], kernel: usize, stride: usize, dilation: usize, out_channels: usize| {
            let pad = kernel / 2;
            let out = |size: usize| (size + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1;
            ConvShape {
                batch: 2,
                height: size[0],
                width: size[1],
                channels,
                out_height: out(size[0]),
                out_width: out(size[1]),
                out_channels,
                kernel: [kernel; 2],
                strides: [stride; 2],
                dilations: [dilation; 2],
                pads: [pad; 2],
                groups: if out_channels == channels { channels } else { 1 },
            }
        };
    for (channels, out_channels) in
        [(1, 2), (3, 16), (4, 5), (11, 3), (3, 3), (8, 8), (13, 13), (24, 24), (63, 63), (72, 72)]
    {
        for (kernel, stride, dilation) in [(3, 1, 1), (3, 2, 1), (5, 2, 1), (7, 2, 1), (3, 1, 2), (1, 1, 1)] {
            for signed in [false, true] {
                let shape = square(channels, [9, 75], kernel, stride, dilation, out_channels);
                assert_windows(&shape, signed, 77, (channels + kernel) as u64);
            }
        }
    }
}

/// The byte that a tap of an output pixel meets, `None` beyond the image.
fn met(shape: &ConvShape, image: &[u8], [n, y, x]: [usize; 3], [ky, kx]: [usize; 2], channel: usize) -> Option<u8> {
    let line = (y * shape.strides[0] + ky * shape.dilations[0]).checked_sub(shape.pads[0])?;
    let column = (x * shape.strides[1] + kx * shape.dilations[1]).checked_sub(shape.pads[1])?;
    let inside = line < shape.height && column < shape.width;
    inside.then(|| image[((n * shape.height + line) * shape.width + column) * shape.channels + channel])
}

fn assert_windows(shape: &ConvShape, signed: bool, zero: u8, seed: u64) {
    let image = bytes(shape.image_len(), seed);
    let (per_group, out_per_group) = (shape.channels / shape.groups, shape.out_channels / shape.groups);
    let taps = shape.kernel[0] * shape.kernel[1];
    let weights = bytes(shape.out_channels * taps * per_group, seed + 9);
    // [out channel][tap][channel of the group]
    let weight = |filter: usize, tap: usize, channel: usize| weights[(filter * taps + tap) * per_group + channel] as i8;
    let pixels = |row: usize| {
        let (x, rest) = (row % shape.out_width, row / shape.out_width);
        [rest / shape.out_height, rest % shape.out_height, x]
    };
    let mut sums = vec![0i64; shape.output_len()];
    let mut largest = vec![if signed { 0x80 } else { 0u8 }; shape.pixels() * shape.channels];
    for row in 0..shape.pixels() {
        for tap in 0..taps {
            let at = [tap / shape.kernel[1], tap % shape.kernel[1]];
            for filter in 0..shape.out_channels {
                for channel in 0..per_group {
                    let of = filter / out_per_group * per_group + channel;
                    let x =
                        met(shape, &image, pixels(row), at, of).map_or(0, |x| number(x, signed) - number(zero, signed));
                    sums[row * shape.out_channels + filter] += x * i64::from(weight(filter, tap, channel));
                }
            }
            for channel in 0..shape.channels {
                let to = &mut largest[row * shape.channels + channel];
                if let Some(x) = met(shape, &image, pixels(row), at, channel)
                    && number(x, signed) > number(*to, signed)
                {
                    *to = x;
                }
            }
        }
    }
    let pool = ThreadPool::new(2).unwrap();
    for (isa, kernel) in all_kernels() {
        let mut to = vec![0i32; shape.output_len()];
        for group in 0..shape.groups {
            let size = PackedSize::new(kernel, shape.depth(), out_per_group).unwrap();
            let mut packed = vec![0; size.bytes];
            pack(kernel, shape.depth(), out_per_group, &mut packed, |step, column| {
                weight(group * out_per_group + column, step / per_group, step % per_group)
            });
            let product = Product {
                packed: &packed,
                columns: out_per_group,
                signed,
                zero,
                column_zeros: &[],
                finish: Finish::Sums,
            };
            let rows = ImageRows::new(*shape, &image, group, zero);
            let blocking = Blocking { kernel, row_block: 2 * kernel.mr, column_block: usize::MAX };
            let out = (Output::Sums(&mut to), shape.group_place(group));
            multiply(isa, &pool, &Workspace::new(2), &blocking, &rows, &product, out);
        }
        assert!(to.iter().zip(&sums).all(|(&got, &want)| i64::from(got) == want), "{} over {shape:?}", kernel.name);
    }
    for isa in Isa::available() {
        if shape.groups == shape.channels && shape.out_channels == shape.channels {
            let by_tap = depthwise_weights(taps, shape.channels, |tap, channel| weight(channel, tap, 0).into());
            let numbers: Vec<i16> = by_tap[..taps * shape.channels * 2]
                .chunks_exact(2)
                .map(|raw| i16::from_le_bytes(raw.try_into().unwrap()))
                .collect();
            let totals: Vec<i32> = by_tap[(taps * shape.channels * 2).next_multiple_of(64)..]
                .chunks_exact(4)
                .map(|raw| i32::from_le_bytes(raw.try_into().unwrap()))
                .collect();
            let of = Depthwise { image: &image, weights: &numbers, sums: &totals, signed, zero, finish: Finish::Sums };
            let mut to = vec![0i32; shape.output_len()];
            depthwise(isa, &pool, shape, &of, Output::Sums(&mut to));
            assert!(to.iter().zip(&sums).all(|(&got, &want)| i64::from(got) == want), "{} {shape:?}", isa.level());
            let factor: Vec<f64> = (0..shape.channels).map(|channel| 1e-3 * (1.0 + channel as f64)).collect();
            let finish = Finish::Integers { bias: None, factor: &factor, zero: 3, low: 0, high: 255 };
            let mut to = vec![0u8; shape.output_len()];
            depthwise(isa, &pool, shape, &Depthwise { finish, ..of }, Output::Bytes(&mut to));
            for (at, (&got, &sum)) in to.iter().zip(&sums).enumerate() {
                assert_eq!(got, integers(sum, 0.0, factor[at % shape.channels], [3, 0, 255]), "{}", isa.level());
            }
        }
        let pooled = ConvShape { out_channels: shape.channels, groups: 1, ..*shape };
        let mut to = vec![0u8; pooled.output_len()];
        max_pool(isa, &pool, &pooled, signed, &image, &mut to);
        assert_eq!(to, largest, "{}", isa.level());
    }
}

/// The sums that saturating instructions get wrong, and the longest that are exact.
#[test]
fn extremes_neither_saturate_nor_wrap() {
    for (isa, kernel) in all_kernels() {
        let depth = 32_768;
        for (a, b, signed) in [(255u8, 127u8, [false, true]), (255, 128, [false, true]), (0, 0, [true, false])] {
            let (left, right) = (vec![a; depth], vec![b; depth]);
            let size = PackedSize::new(kernel, depth, 1).unwrap();
            let mut packed = vec![0; size.bytes];
            pack(kernel, depth, 1, &mut packed, |step, _| moved(right[step], signed[1]));
            let zero = if signed[0] { 0x80 } else { 0 };
            let zeros = [moved(0, signed[1]).into()];
            let product = Product {
                packed: &packed,
                columns: 1,
                signed: signed[0],
                zero,
                column_zeros: &zeros,
                finish: Finish::Sums,
            };
            let mut to = [0];
            let rows = MatrixRows::new(&left, 1, depth);
            let blocking = Blocking { kernel, row_block: 1, column_block: 1 };
            let place = Place { offset: 0, stride: 1 };
            let pool = ThreadPool::new(1).unwrap();
            let out = (Output::Sums(&mut to), place);
            multiply(isa, &pool, &Workspace::new(1), &blocking, &rows, &product, out);
            let want = depth as i64 * (number(a, signed[0]) - number(zero, signed[0])) * number(b, signed[1]);
            assert_eq!(i64::from(to[0]), want, "{}", kernel.name);
        }
    }
}

/// Ties go to even, and what is no number does no harm.
#[test]
fn halves_are_rounded_to_even() {
    for (isa, kernel) in all_kernels() {
        let left: Vec<u8> = (0..9).collect();
        let size = PackedSize::new(kernel, 1, 1).unwrap();
        let mut packed = vec![0; size.bytes];
        pack(kernel, 1, 1, &mut packed, |_, _| 1);
        let run = |factor: f64, bias: f64, zero: i32| {
            let finish = Finish::Integers { bias: Some(&[bias]), factor: &[factor], zero, low: -128, high: 127 };
            let product = Product { packed: &packed, columns: 1, signed: false, zero: 0, column_zeros: &[], finish };
            let mut to = vec![0u8; 9];
            let rows = MatrixRows::new(&left, 9, 1);
            let blocking = Blocking { kernel, row_block: 4, column_block: 1 };
            let out = (Output::Bytes(&mut to), Place { offset: 0, stride: 1 });
            multiply(isa, &ThreadPool::new(1).unwrap(), &Workspace::new(1), &blocking, &rows, &product, out);
            to.into_iter().map(|byte| byte as i8).collect::<Vec<_>>()
        };
        assert_eq!(run(0.5, 0.0, 0), [0, 0, 1, 2, 2, 2, 3, 4, 4]);
        assert_eq!(run(0.5, -4.0, -1), [-3, -3, -2, -1, -1, -1, 0, 1, 1]);
        assert_eq!(run(1e300, 0.0, 5)[1..], [127; 8]);
        assert_eq!(run(-1e300, 0.0, 5)[1..], [-128; 8]);
        run(f64::NAN, 0.0, 0);
        run(f64::INFINITY, f64::NEG_INFINITY, 0);
    }
}
