//! Every kernel of every level on sizes around its registers and blocks, in buffers exactly as long as they must be: what
//! reads or writes one element too many is seen under AddressSanitizer, with which `fuzz/sanitize.sh` builds this. That results
//! are right is for the kernels' own tests; here each kind is only held to one number that is easily told.

use planforge_kernels_cpu::{
    conv::{ConvShape, LineRows, TapRows, add_border},
    depthwise::{Depthwise, depthwise},
    gemm::*,
    isa::{Isa, IsaLevel},
    pointwise::{Activation, Binary, Left, Right, Unary, activate, binary, binary_lines, unary},
    pool::ThreadPool,
    rows::{NormParameters, layer_norm, softmax},
    shuffle::{Move, MoveAxis, Transpose},
    window::{PoolKind, global_mean, pool as pool_image},
};

/// Around the widths of registers (4, 8, 16) and panels (8 to 64), and nothing.
const SIZES: [usize; 12] = [0, 1, 3, 4, 5, 8, 15, 17, 31, 33, 47, 65];

/// On the heap by itself, so that its ends are watched.
fn ones(len: usize) -> Box<[f32]> {
    vec![1.0; len].into_boxed_slice()
}

fn all(values: &[f32], wanted: f32) -> bool {
    values.iter().all(|value| (value - wanted).abs() < 1e-3)
}

/// Every kernel of this machine with the token of its level, both ways of reading rows, in one pass and in several.
fn blockings() -> impl Iterator<Item = (Isa, Blocking)> {
    blockings_of(kernels)
}

/// Likewise, of the kernels that a level has by `of`.
fn blockings_of(of: fn(IsaLevel) -> &'static [&'static Kernel]) -> impl Iterator<Item = (Isa, Blocking)> {
    let kernels = Isa::available().into_iter().flat_map(move |isa| of(isa.level()).iter().map(move |&k| (isa, k)));
    kernels.flat_map(|(isa, kernel)| {
        let ways = [(false, usize::MAX), (true, usize::MAX), (false, 3), (true, 3)];
        ways.map(|(pack_rows, depth_block)| {
            (isa, Blocking { kernel, pack_rows, row_block: kernel.mr + 1, column_block: kernel.nr, depth_block })
        })
    })
}

#[test]
fn products() {
    let (pool, workspace) = (ThreadPool::new(2).unwrap(), Workspace::new(2));
    for (isa, blocking) in blockings().chain(blockings_of(bf16_kernels)) {
        for (m, n, k) in
            [(1, 1, 1), (33, 33, 65), (1, 65, 7), (15, 33, 1), (17, 5, 9), (8, 16, 4), (3, 47, 0), (0, 4, 4), (4, 0, 4)]
        {
            let size = PackedSize::new(blocking.kernel, k, n).unwrap();
            let mut packed = ones(size.elements);
            pack_columns(blocking.kernel, &ones(k * n), (k, n), (n, 1), &mut packed);
            let (a, bias, residual, mut c) = (ones(m * k), ones(size.columns), ones(m * n), ones(m * n));
            let place = Place { offset: 0, stride: n };
            for activation in [Activation::Relu, Activation::HardSwish] {
                let residual = Some((&residual[..], place));
                let epilogue = Epilogue { alpha: 1.0, bias: Some(&bias), residual, activation };
                let rows = MatrixRows::new(&a, m, k, k);
                multiply(isa, &pool, &workspace, &blocking, &rows, (&packed, n), (&mut c, place), &epilogue);
                assert!(activation != Activation::Relu || all(&c, k as f32 + 2.0), "{blocking:?} {m}x{n}x{k}");
            }
            if m > 0 && n > 0 && blocking.kernel.factors == Factors::F32 {
                let item = BatchItem {
                    a: View { offset: 0, row_stride: 1, column_stride: m },
                    b: View { offset: 0, row_stride: 1, column_stride: k },
                    c: place,
                    residual: place,
                };
                let shape = BatchShape { rows: m, columns: n, depth: k };
                let batch = Batch::new(shape, vec![item], [m * k, n * k, m * n]).unwrap();
                let plain = Epilogue::default();
                multiply_batch(isa, &pool, &workspace, &blocking, &batch, (&a, &ones(n * k)), &mut c, &plain);
                assert!(all(&c, k as f32), "batch {blocking:?} {m}x{n}x{k}");
            }
        }
    }
}

#[test]
fn attentions() {
    let (pool, workspace) = (ThreadPool::new(2).unwrap(), Workspace::new(2));
    for (isa, blocking) in blockings() {
        for (heads, queries, keys, depth, value_depth) in [(1, 1, 1, 1, 1), (2, 5, 17, 3, 9), (3, 9, 33, 8, 16)] {
            let shape =
                AttentionShape { batch: 1, heads, queries, keys, depth, value_depth, scale: 0.5, guarded: true };
            let [q, k, v] = [(queries, depth), (keys, depth), (keys, value_depth)]
                .map(|(rows, of)| (ones(rows * heads * of), heads * of));
            let rows = |of: &'_ (Box<[f32]>, usize)| of.1;
            let (mask, mut to) = (ones(queries * keys), ones(queries * heads * value_depth));
            let of = Attention {
                shape,
                queries: HeadRows { data: &q.0, offset: 0, stride: rows(&q) },
                keys: HeadRows { data: &k.0, offset: 0, stride: rows(&k) },
                values: HeadRows { data: &v.0, offset: 0, stride: rows(&v) },
                mask: Some(Mask { data: &mask, strides: [0, 0, keys, 1] }),
            };
            to.fill(f32::NAN);
            attention(isa, &pool, &workspace, &blocking, &of, &mut to);
            assert!(all(&to, 1.0), "{blocking:?}");
            to.fill(f32::NAN);
            let mut scores = ones(score_count(&shape).unwrap());
            attention_in_passes(isa, &pool, &workspace, &blocking, &of, &mut scores, &mut to);
            assert!(all(&to, 1.0), "in passes {blocking:?}");
        }
    }
}

/// Convolutions whose kernels hang over edges, leave some of the image out, and have one pixel.
fn images() -> impl Iterator<Item = ConvShape> {
    let one = ConvShape {
        batch: 1,
        height: 1,
        width: 1,
        channels: 1,
        out_height: 1,
        out_width: 1,
        out_channels: 1,
        kernel: [1, 1],
        strides: [1, 1],
        dilations: [1, 1],
        pads: [0, 0],
        groups: 1,
    };
    let edges =
        ConvShape { batch: 2, height: 7, width: 9, out_height: 7, out_width: 9, kernel: [3, 3], pads: [1, 1], ..one };
    let steps = ConvShape { height: 8, width: 11, out_height: 4, out_width: 5, strides: [2, 2], ..edges };
    let far = ConvShape { height: 6, width: 6, out_height: 6, out_width: 6, dilations: [2, 2], pads: [2, 2], ..edges };
    let wide = [1, 3, 8, 17, 33].into_iter();
    wide.flat_map(move |channels| [one, edges, steps, far].map(|shape| ConvShape { channels, ..shape }))
}

#[test]
fn convolutions() {
    let (pool, workspace) = (ThreadPool::new(2).unwrap(), Workspace::new(2));
    for (isa, blocking) in blockings().filter(|(_, blocking)| blocking.depth_block == usize::MAX) {
        for shape in images().map(|shape| ConvShape { out_channels: 5, ..shape }) {
            let (image, mut c) = (ones(shape.image_len()), ones(shape.output_len()));
            let packed = ones(PackedSize::new(blocking.kernel, shape.depth(), 5).unwrap().elements);
            let (place, plain) = (shape.group_place(0), Epilogue::default());
            let rows = TapRows::new(shape, &image, 0);
            multiply(isa, &pool, &workspace, &blocking, &rows, (&packed, 5), (&mut c, place), &plain);
            let most = c.iter().copied().fold(0.0, f32::max);
            assert_eq!(most, shape.depth() as f32, "{blocking:?} {shape:?}");
            if shape.has_lines() {
                let mut bordered = ones(shape.bordered_len());
                add_border(&pool, &shape, &image, &mut bordered);
                let (mut again, rows) = (ones(c.len()), LineRows::new(shape, &bordered));
                multiply(isa, &pool, &workspace, &blocking, &rows, (&packed, 5), (&mut again, place), &plain);
                assert_eq!(c, again, "{blocking:?} {shape:?}");
            }
        }
    }
}

#[test]
fn images_channel_by_channel() {
    let pool = ThreadPool::new(2).unwrap();
    for isa in Isa::available() {
        for shape in images().map(|shape| ConvShape { out_channels: shape.channels, groups: shape.channels, ..shape }) {
            let (image, mut to) = (ones(shape.image_len()), ones(shape.output_len()));
            let (weights, bias) = (ones(shape.depth() * shape.channels), ones(shape.channels));
            let residual = ones(to.len());
            let activation = Activation::Clip { low: 0.0, high: 100.0 };
            let of = Depthwise { image: &image, weights: &weights, bias: &bias, residual: Some(&residual), activation };
            depthwise(isa, &pool, &shape, &of, &mut to);
            let most = to.iter().copied().fold(0.0, f32::max);
            assert_eq!(most, shape.depth() as f32 + 2.0, "{isa:?} {shape:?}");
            let padded = [shape.height + 2 * shape.pads[0], shape.width + 2 * shape.pads[1]];
            for kind in [PoolKind::Max, PoolKind::Average { count_pad: false }] {
                pool_image(isa, &pool, kind, &shape, padded, &image, &mut to);
                assert!(all(&to, 1.0), "{isa:?} {kind:?} {shape:?}");
            }
            let mut means = ones(shape.batch * shape.channels);
            global_mean(isa, &pool, shape.channels, &image, &mut means);
            assert!(all(&means, 1.0), "{isa:?} {shape:?}");
        }
    }
}

#[test]
fn rows_and_elements() {
    let pool = ThreadPool::new(2).unwrap();
    for isa in Isa::available() {
        for len in SIZES {
            let (mut to, from) = (ones(len), ones(len));
            activate(isa, Activation::Gelu, &mut to);
            unary(isa, Unary::Sqrt, &mut to);
            binary(isa, Binary::Add, Left::Each(&from), Right::Each(&from), &mut to);
            assert!(all(&to, 2.0));
            binary(isa, Binary::Max, Left::Each(&from), Right::Same(3.0), &mut to);
            assert!(all(&to, 3.0));
            if len > 0 {
                binary_lines(isa, Binary::Mul, &ones(3 * len), &from, &mut ones(3 * len));
                softmax(isa, &pool, len, false, &mut to);
                assert!(all(&to, 1.0 / len as f32));
                let parameters = NormParameters { scale: Some(&from), bias: Some(&from), epsilon: 1e-5 };
                layer_norm(isa, &pool, len, &from, parameters, &mut to);
                assert!(all(&to, 1.0));
            }
        }
    }
}

#[test]
fn copies() {
    let pool = ThreadPool::new(2).unwrap();
    for (rows, columns) in SIZES.iter().flat_map(|&rows| SIZES.map(|columns| (rows, columns))) {
        let from: Box<[f32]> = (0..rows * columns).map(|i| i as f32).collect();
        let mut to = ones(from.len());
        Transpose::new(&[rows, columns], &[1, 0]).unwrap().run(&pool, &from, &mut to);
        let there = |index: usize| from[index % rows * columns + index / rows];
        assert!((0..to.len()).all(|index| to[index] == there(index)), "{rows}x{columns}");
        let axes = [
            MoveAxis { size: rows, from: columns as isize, to: 1 },
            MoveAxis { size: columns, from: 1, to: rows.max(1) },
        ];
        for bytes in [1, 2, 4, 8] {
            let copy = Move::new(bytes, (0, 0), &axes).unwrap();
            let from: Box<[u8]> = (0..rows * columns * bytes).map(|at| (at / bytes) as u8).collect();
            let mut to = vec![0u8; from.len()].into_boxed_slice();
            copy.run(&pool, &from, &mut to);
            let there = |index: usize| (index % rows * columns + index / rows) as u8;
            assert!((0..rows * columns).all(|index| to[index * bytes] == there(index)), "{rows}x{columns} of {bytes}");
        }
    }
}
