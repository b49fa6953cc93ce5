//! Every kernel of every level this machine has, against plain loops.

use super::*;
use crate::conv::{ConvShape, LineRows, TapRows, add_border};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn random(rng: &mut StdRng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

/// Likewise; `short`: numbers that bf16 holds, so that kernels of either kind multiply the same.
fn numbers(rng: &mut StdRng, len: usize, short: bool) -> Vec<f32> {
    let all = random(rng, len).into_iter();
    all.map(|value| if short { half::bf16::from_f32(value).to_f32() } else { value }).collect()
}

fn assert_close(got: &[f32], want: &[f64], depth: usize, what: &str) {
    let bound = 1e-6 * (depth as f64 + 10.0);
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() <= bound, "{what}: element {i} is {got}, not {want}");
    }
}

/// Every kernel of this machine with the token of its level.
fn every_kernel() -> Vec<(Isa, &'static Kernel)> {
    Isa::available().into_iter().flat_map(|isa| kernels(isa.level()).iter().map(move |k| (isa, *k))).collect()
}

/// With those of bf16, for what those can multiply exactly.
fn every_kernel_for(short: bool) -> Vec<(Isa, &'static Kernel)> {
    let of = |isa: Isa| bf16_kernels(isa.level()).iter().map(move |kernel| (isa, *kernel));
    every_kernel().into_iter().chain(Isa::available().into_iter().filter(|_| short).flat_map(of)).collect()
}

fn blockings(kernel: &'static Kernel, rng: &mut StdRng) -> Vec<Blocking> {
    let mut all = Vec::new();
    for pack_rows in [false, true] {
        for depth_block in [usize::MAX, rng.random_range(1..9)] {
            let (row_block, column_block) = (rng.random_range(1..40), rng.random_range(1..100));
            all.push(Blocking { kernel, pack_rows, row_block, column_block, depth_block });
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn products_agree_with_a_plain_loop(
        m in 1usize..70, n in 1usize..80, k in 0usize..90, extra in 0usize..5, threads in 1usize..4, short: bool,
        seed: u64,
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let a = numbers(rng, m * (k + extra), short);
        let b = numbers(rng, k * n, short);
        let bias = random(rng, n);
        let residual = random(rng, m * n);
        let (low, high, alpha) = (-0.5, 0.8, 0.75);
        let mut want = vec![0.0; m * n];
        for row in 0..m {
            for column in 0..n {
                let sum: f64 = (0..k).map(|i| f64::from(a[row * (k + extra) + i]) * f64::from(b[i * n + column])).sum();
                let sum = sum * f64::from(alpha) + f64::from(bias[column]) + f64::from(residual[row * n + column]);
                want[row * n + column] = sum.clamp(f64::from(low), f64::from(high));
            }
        }
        let pool = ThreadPool::new(threads).unwrap();
        let workspace = Workspace::new(threads);
        for (isa, kernel) in every_kernel_for(short) {
            let size = PackedSize::new(kernel, k, n).unwrap();
            let mut packed = vec![f32::NAN; size.elements];
            pack_columns(kernel, &b, (k, n), (n, 1), &mut packed);
            let mut padded_bias = bias.clone();
            padded_bias.resize(size.columns, f32::NAN);
            for blocking in blockings(kernel, rng) {
                // C lies inside a larger matrix, whose other elements must stay.
                let place = Place { offset: 3, stride: n + extra };
                let mut c = vec![f32::NAN; 3 + m * (n + extra)];
                let epilogue = Epilogue {
                    alpha,
                    bias: Some(&padded_bias),
                    residual: Some((&residual, Place { offset: 0, stride: n })),
                    activation: Activation::Clip { low, high },
                };
                let rows = MatrixRows::new(&a, m, k, k + extra);
                multiply(isa, &pool, &workspace, &blocking, &rows, (&packed, n), (&mut c, place), &epilogue);
                let what = format!("{blocking:?}");
                for row in 0..m {
                    let line = &c[3 + row * (n + extra)..];
                    assert_close(&line[..n], &want[row * n..(row + 1) * n], k, &what);
                    prop_assert!(line[n..n + extra].iter().all(|v| v.is_nan()), "{} wrote beside C", what);
                }
            }
        }
    }

    #[test]
    fn batches_of_any_strides_agree_with_a_plain_loop(
        m in 1usize..30, n in 1usize..40, k in 1usize..30, batch in 1usize..5,
        trans_a: bool, trans_b: bool, threads in 1usize..4, seed: u64,
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let (a, b, residual) = (random(rng, batch * m * k), random(rng, batch * k * n), random(rng, batch * m * n));
        let items: Vec<BatchItem> = (0..batch).map(|i| {
            let a_strides = if trans_a { (1, m) } else { (k, 1) };
            let b_strides = if trans_b { (1, k) } else { (n, 1) };
            let place = Place { offset: i * m * n, stride: n };
            BatchItem {
                a: View { offset: i * m * k, row_stride: a_strides.0, column_stride: a_strides.1 },
                b: View { offset: i * k * n, row_stride: b_strides.0, column_stride: b_strides.1 },
                c: place,
                residual: place,
            }
        }).collect();
        let mut want = vec![0.0; batch * m * n];
        for item in &items {
            for row in 0..m {
                for column in 0..n {
                    let at = item.c.offset + row * n + column;
                    want[at] = f64::from(residual[at]) + (0..k).map(|i| {
                        f64::from(a[item.a.offset + row * item.a.row_stride + i * item.a.column_stride])
                            * f64::from(b[item.b.offset + i * item.b.row_stride + column * item.b.column_stride])
                    }).sum::<f64>();
                }
            }
        }
        let pool = ThreadPool::new(threads).unwrap();
        let workspace = Workspace::new(threads);
        let shape = BatchShape { rows: m, columns: n, depth: k };
        let products = Batch::new(shape, items, [a.len(), b.len(), batch * m * n]).unwrap();
        for (isa, kernel) in every_kernel() {
            for blocking in blockings(kernel, rng) {
                let mut c = vec![f32::NAN; batch * m * n];
                let epilogue = Epilogue { residual: Some((&residual, Place { offset: 0, stride: 0 })), ..Epilogue::default() };
                multiply_batch(isa, &pool, &workspace, &blocking, &products, (&a, &b), &mut c, &epilogue);
                assert_close(&c, &want, k, &format!("{blocking:?}"));
            }
        }
    }

    #[test]
    fn convolutions_agree_with_a_plain_loop(
        batch in 1usize..3, h in 1usize..9, w in 1usize..9, groups in 1usize..3, ci in 1usize..5, co in 1usize..20,
        kh in 1usize..4, kw in 1usize..4, sh in 1usize..3, sw in 1usize..3, dh in 1usize..3, dw in 1usize..3,
        ph in 0usize..3, pw in 0usize..3, short: bool, seed: u64,
    ) {
        let span = |size: usize, pad: usize, kernel: usize, dilation: usize| {
            (size + 2 * pad).checked_sub((kernel - 1) * dilation + 1)
        };
        let (Some(oh), Some(ow)) = (span(h, ph, kh, dh), span(w, pw, kw, dw)) else { return Ok(()) };
        let shape = ConvShape {
            batch, height: h, width: w, channels: ci * groups,
            out_height: oh / sh + 1, out_width: ow / sw + 1, out_channels: co * groups,
            kernel: [kh, kw], strides: [sh, sw], dilations: [dh, dw], pads: [ph, pw], groups,
        };
        let rng = &mut StdRng::seed_from_u64(seed);
        let image = numbers(rng, shape.image_len(), short);
        // [group][kernel line][kernel column][channel][output channel]
        let weights = numbers(rng, groups * shape.depth() * co, short);
        let mut want = vec![0.0; shape.pixels() * shape.out_channels];
        for (pixel, want) in want.chunks_exact_mut(shape.out_channels).enumerate() {
            let (x, y) = (pixel % shape.out_width, pixel / shape.out_width % shape.out_height);
            let index = pixel / shape.out_width / shape.out_height;
            for (channel, want) in want.iter_mut().enumerate() {
                let (group, o) = (channel / co, channel % co);
                for ky in 0..kh { for kx in 0..kw { for c in 0..ci {
                    let (iy, ix) = ((y * sh + ky * dh) as isize - ph as isize, (x * sw + kx * dw) as isize - pw as isize);
                    if iy < 0 || ix < 0 || iy >= h as isize || ix >= w as isize { continue; }
                    let at = ((index * h + iy as usize) * w + ix as usize) * shape.channels + group * ci + c;
                    let weight = weights[group * shape.depth() * co + ((ky * kw + kx) * ci + c) * co + o];
                    *want += f64::from(image[at]) * f64::from(weight);
                }}}
            }
        }
        let pool = ThreadPool::new(2).unwrap();
        let workspace = Workspace::new(2);
        let mut bordered = vec![f32::NAN; shape.bordered_len()];
        add_border(&pool, &shape, &image, &mut bordered);
        for (isa, kernel) in every_kernel_for(short) {
            let packed: Vec<Vec<f32>> = (0..groups).map(|group| {
                let mut packed = vec![f32::NAN; PackedSize::new(kernel, shape.depth(), co).unwrap().elements];
                let weights = &weights[group * shape.depth() * co..];
                pack_with(kernel, shape.depth(), co, &mut packed, |step, column| weights[step * co + column]);
                packed
            }).collect();
            for blocking in blockings(kernel, rng) {
                let mut c = vec![f32::NAN; want.len()];
                for (group, packed) in packed.iter().enumerate() {
                    let rows = TapRows::new(shape, &image, group);
                    let out = (&mut c[..], shape.group_place(group));
                    multiply(isa, &pool, &workspace, &blocking, &rows, (packed, co), out, &Epilogue::default());
                }
                assert_close(&c, &want, shape.depth(), &format!("taps {blocking:?}"));
                if shape.has_lines() {
                    c.fill(f32::NAN);
                    let rows = LineRows::new(shape, &bordered);
                    let out = (&mut c[..], shape.group_place(0));
                    multiply(isa, &pool, &workspace, &blocking, &rows, (&packed[0], co), out, &Epilogue::default());
                    assert_close(&c, &want, shape.depth(), &format!("lines {blocking:?}"));
                }
            }
        }
    }
}

#[test]
fn a_kernel_above_the_chosen_level_is_refused() {
    let Some(low) = Isa::new(crate::isa::IsaLevel::Portable) else { return };
    for (_, kernel) in every_kernel_for(true).into_iter().filter(|(isa, _)| *isa != low) {
        let blocking = Blocking { kernel, pack_rows: false, row_block: 1, column_block: 1, depth_block: 1 };
        let called = std::panic::catch_unwind(|| {
            let rows = MatrixRows::new(&[1.0], 1, 1, 1);
            let (pool, workspace) = (ThreadPool::new(1).unwrap(), Workspace::new(1));
            let place = Place { offset: 0, stride: 1 };
            multiply(
                low,
                &pool,
                &workspace,
                &blocking,
                &rows,
                (&[1.0; 64], 1),
                (&mut [0.0], place),
                &Epilogue::default(),
            );
        });
        assert!(called.is_err(), "{} ran at the portable level", kernel.name);
    }
}
