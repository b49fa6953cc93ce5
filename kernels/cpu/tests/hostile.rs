//! Arguments that no engine gives: sizes that overflow, buffers that are too short, places that overlap. Every kernel
//! refuses them, in builds without overflow checks too (`fuzz/sanitize.sh` runs this under AddressSanitizer in such a build), so
//! that safe callers can do no harm with them.

use planforge_kernels_cpu::{
    classes::{Classes, Decision, Transform, Written},
    conv::{ConvShape, LineRows, TapRows, VolumeRows, VolumeShape, add_border},
    depthwise::{Depthwise, depthwise},
    gemm::*,
    isa::Isa,
    lookup::{Indices, Lookup},
    nest::{
        self, Class, Instruction, Nest, Source,
        fold::{Finish, Fold, Reduction},
        scan::{Around, softmax as softmax_along},
    },
    pointwise::{Activation, Binary, binary_lines},
    pool::ThreadPool,
    quantized,
    resample::{Taps, resample},
    rows::{NormParameters, layer_norm, softmax},
    shuffle::{Move, MoveAxis, Transpose},
    window::{PoolKind, global_mean, pool as pool_image},
};
use planforge_types::ElementType;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A power of two whose small multiples are zero where nobody checks.
const HALF: usize = 1 << (usize::BITS - 1);

#[track_caller]
fn refused<T>(what: &str, call: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "{what} was not refused");
}

fn one_thread() -> (ThreadPool, Workspace) {
    (ThreadPool::new(1).unwrap(), Workspace::new(1))
}

fn blocking() -> Blocking {
    let kernel = kernels(Isa::best().level())[0];
    Blocking { kernel, pack_rows: false, row_block: 8, column_block: 16, depth_block: usize::MAX }
}

/// One pixel of one channel.
fn pixel() -> ConvShape {
    ConvShape {
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
    }
}

/// Shapes whose sizes overflow to what a buffer of one element, or none, would fit.
fn impossible() -> [(&'static str, ConvShape, usize); 6] {
    [
        ("an image of 2^64 elements", ConvShape { height: 2, width: HALF, ..pixel() }, 0),
        ("channels without end", ConvShape { height: 2, channels: HALF, out_channels: 2, ..pixel() }, 0),
        ("a kernel of 2^64 positions", ConvShape { kernel: [2, HALF], dilations: [0, 0], ..pixel() }, 1),
        ("a kernel that comes round", ConvShape { kernel: [1, 3], dilations: [1, HALF], ..pixel() }, 1),
        ("a padding that comes round", ConvShape { pads: [0, usize::MAX], ..pixel() }, 1),
        ("a kernel without positions", ConvShape { kernel: [0, 1], ..pixel() }, 1),
    ]
}

#[test]
fn images_of_impossible_sizes_are_refused() {
    let (pool, _) = one_thread();
    for (what, shape, len) in impossible() {
        let image = vec![1.0; len];
        refused(what, || TapRows::new(shape, &image, 0));
        if shape.dilations[1] == 1 {
            refused(what, || LineRows::new(shape, &image));
        }
        refused(what, || add_border(&pool, &shape, &image, &mut vec![0.0; len]));
        let depthwise_shape = ConvShape { groups: shape.channels, out_channels: shape.channels, ..shape };
        let activation = Activation::None;
        let of = Depthwise { image: &image, weights: &[1.0; 3], bias: &[1.0], residual: None, activation };
        for weights in [0, 1, 3] {
            let of = Depthwise { weights: &of.weights[..weights], ..of };
            refused(what, || depthwise(Isa::best(), &pool, &depthwise_shape, &of, &mut [0.0]));
        }
        let pooled = ConvShape { out_channels: shape.channels, ..shape };
        refused(what, || pool_image(Isa::best(), &pool, PoolKind::Max, &pooled, [1, 1], &image, &mut [0.0]));
    }
}

#[test]
fn volumes_of_impossible_sizes_are_refused() {
    let volume = VolumeShape { plane: pixel(), depth: 1, out_depth: 1, kernel: 1, stride: 1, dilation: 1, pad: 0 };
    VolumeRows::new(volume, &[1.0], 0);
    refused("a short volume", || VolumeRows::new(volume, &[], 0));
    refused("a group that is not there", || VolumeRows::new(volume, &[1.0], 1));
    let wrong = [
        VolumeShape { depth: HALF, plane: ConvShape { height: 2, ..pixel() }, ..volume },
        VolumeShape { out_depth: HALF, plane: ConvShape { out_width: 2, ..pixel() }, ..volume },
        VolumeShape { out_depth: 3, stride: HALF, ..volume },
        VolumeShape { kernel: 3, dilation: HALF, ..volume },
        VolumeShape { kernel: 0, ..volume },
        VolumeShape { plane: ConvShape { groups: 0, ..pixel() }, ..volume },
    ];
    for shape in wrong {
        refused("a volume without end", || VolumeRows::new(shape, &[], 0));
        refused("a volume without end", || VolumeRows::new(shape, &[1.0], 0));
    }
}

#[test]
fn outputs_of_impossible_sizes_are_refused() {
    let (pool, _) = one_thread();
    let shape = ConvShape { out_height: 2, out_width: HALF, strides: [0, 0], ..pixel() };
    refused("an output of 2^64 pixels", || shape.pixels());
    let of = Depthwise { image: &[1.0], weights: &[1.0], bias: &[1.0], residual: None, activation: Activation::None };
    refused("an output of 2^64 pixels", || depthwise(Isa::best(), &pool, &shape, &of, &mut []));
    let far = ConvShape { out_height: 3, strides: [HALF, 1], ..pixel() };
    refused("steps that come round", || TapRows::new(far, &[1.0], 0));
    refused("steps that come round", || depthwise(Isa::best(), &pool, &far, &of, &mut [0.0; 3]));
    refused("steps that come round", || {
        pool_image(Isa::best(), &pool, PoolKind::Max, &far, [1, 1], &[1.0], &mut [0.0; 3]);
    });
}

#[test]
fn images_that_are_too_short_are_refused() {
    let (pool, _) = one_thread();
    let shape = ConvShape { height: 3, width: 3, out_height: 3, out_width: 3, ..pixel() };
    let fit = [1.0; 9];
    refused("a short image", || TapRows::new(shape, &fit[1..], 0));
    refused("a group that is not there", || TapRows::new(shape, &fit, 1));
    refused("a short image", || LineRows::new(shape, &fit[1..]));
    refused("a short copy", || add_border(&pool, &shape, &fit, &mut [0.0; 8]));
    let whole = Depthwise { image: &fit, weights: &[1.0], bias: &[1.0], residual: None, activation: Activation::None };
    depthwise(Isa::best(), &pool, &shape, &whole, &mut [0.0; 9]);
    let wrong = [
        ("a short image", Depthwise { image: &fit[1..], ..whole }),
        ("short weights", Depthwise { weights: &[], ..whole }),
        ("a short bias", Depthwise { bias: &[], ..whole }),
        ("a short residual", Depthwise { residual: Some(&fit[1..]), ..whole }),
    ];
    for (what, of) in wrong {
        refused(what, || depthwise(Isa::best(), &pool, &shape, &of, &mut [0.0; 9]));
    }
    refused("a short result", || depthwise(Isa::best(), &pool, &shape, &whole, &mut [0.0; 8]));
    refused("a short result", || {
        pool_image(Isa::best(), &pool, PoolKind::Max, &shape, [3, 3], &fit, &mut [0.0; 8]);
    });
    refused("channels of no size", || global_mean(Isa::best(), &pool, 0, &fit, &mut [0.0]));
    refused("half a pixel", || global_mean(Isa::best(), &pool, 2, &fit, &mut [0.0; 2]));
}

#[test]
fn matrices_that_leave_their_data_are_refused() {
    let data = [1.0; 4];
    assert_eq!(MatrixRows::new(&data, 2, 2, 2).count(), 2);
    for (rows, columns, stride) in [(3, 2, HALF), (2, usize::MAX, 2), (2, 2, 3), (usize::MAX, 1, 1)] {
        refused("a matrix beyond its data", || MatrixRows::new(&data, rows, columns, stride));
    }
}

#[test]
fn products_that_leave_their_operands_are_refused() {
    let ((pool, workspace), blocking) = (one_thread(), blocking());
    let nr = blocking.kernel.nr;
    let (a, packed, bias) = ([1.0; 4], vec![1.0; 2 * nr], vec![1.0; nr]);
    let multiply_with = |b: (&[f32], usize), place: Place, epilogue: &Epilogue<'_>| {
        let mut c = [0.0; 4];
        let rows = MatrixRows::new(&a, 2, 2, 2);
        multiply(Isa::best(), &pool, &workspace, &blocking, &rows, b, (&mut c, place), epilogue);
        c
    };
    let (place, plain) = (Place { offset: 0, stride: 2 }, Epilogue::default());
    assert_eq!(multiply_with((&packed, 2), place, &plain), [2.0; 4]);
    for (offset, stride) in [(usize::MAX, 2), (1, 2), (0, 3), (0, 1), (4, HALF), (usize::MAX - 1, 2)] {
        let place = Place { offset, stride };
        refused("a result beyond its buffer", || multiply_with((&packed, 2), place, &plain));
        let residual = Epilogue { residual: Some((&a, place)), ..plain };
        refused("a residual beyond its buffer", || {
            multiply_with((&packed, 2), Place { offset: 0, stride: 2 }, &residual)
        });
    }
    refused("short weights", || multiply_with((&packed[1..], 2), place, &plain));
    refused("a short bias", || multiply_with((&packed, 2), place, &Epilogue { bias: Some(&bias[1..]), ..plain }));
    let mut none = [0.0; 0];
    for columns in [usize::MAX, usize::MAX - nr + 2] {
        refused("columns without end", || {
            let rows = MatrixRows::new(&a, 1, 4, 4);
            let out = (&mut none[..], Place { offset: 0, stride: columns });
            multiply(Isa::best(), &pool, &workspace, &blocking, &rows, (&packed, columns), out, &plain);
        });
    }
}

#[test]
fn blocks_larger_than_a_product_are_cut_to_it() {
    let ((pool, workspace), blocking) = (one_thread(), blocking());
    let blocking = Blocking { row_block: usize::MAX, column_block: usize::MAX, ..blocking };
    let packed = vec![1.0; 2 * blocking.kernel.nr];
    let (mut c, place) = ([0.0; 4], Place { offset: 0, stride: 2 });
    let rows = MatrixRows::new(&[1.0; 4], 2, 2, 2);
    multiply(Isa::best(), &pool, &workspace, &blocking, &rows, (&packed, 2), (&mut c, place), &Epilogue::default());
    assert_eq!(c, [2.0; 4]);
}

#[test]
fn rows_of_more_pieces_than_can_be_counted_are_refused() {
    struct Endless([f32; 2]);
    // SAFETY: one row of pieces of two elements, each of which is there; `pointers` is never asked for so many.
    unsafe impl Rows for Endless {
        fn count(&self) -> usize {
            1
        }
        fn taps(&self) -> usize {
            HALF
        }
        fn tap_len(&self) -> usize {
            2
        }
        fn pointers(&self, _first: usize, _rows: usize, to: &mut [*const f32]) {
            to.fill(self.0.as_ptr());
        }
    }
    let ((pool, workspace), blocking) = (one_thread(), blocking());
    refused("a depth of 2^64", || {
        let out = (&mut [0.0][..], Place { offset: 0, stride: 1 });
        let rows = Endless([1.0; 2]);
        multiply(Isa::best(), &pool, &workspace, &blocking, &rows, (&[], 1), out, &Epilogue::default());
    });
}

fn item(a: usize, b: usize, c: usize) -> BatchItem {
    let view = |offset| View { offset, row_stride: 2, column_stride: 1 };
    let place = Place { offset: c, stride: 2 };
    BatchItem { a: view(a), b: view(b), c: place, residual: place }
}

#[test]
fn batches_that_overlap_or_leave_their_operands_are_refused() {
    let shape = BatchShape { rows: 2, columns: 2, depth: 2 };
    let lens = [8, 8, 8];
    let made = |items: &[BatchItem], lens| Batch::new(shape, items.to_vec(), lens).map(drop);
    assert_eq!(made(&[item(0, 0, 0), item(4, 4, 4)], lens), Ok(()));
    assert_eq!(made(&[item(0, 0, 0), item(4, 4, 3)], lens), Err(BatchError::ItemsOverlap));
    assert_eq!(made(&[item(0, 0, 4), item(4, 4, 4)], lens), Err(BatchError::ItemsOverlap));
    // Side by side in the rows of one matrix they have nothing in common, though their ranges do.
    let beside = |c: usize, stride: usize| BatchItem { c: Place { offset: c, stride }, ..item(0, 0, 0) };
    assert_eq!(made(&[beside(0, 4), beside(2, 4)], lens), Ok(()));
    assert_eq!(made(&[beside(0, 4), beside(1, 4)], lens), Err(BatchError::ItemsOverlap));
    assert_eq!(made(&[beside(0, 1)], lens), Err(BatchError::RowsOverlap));
    for item in [item(5, 0, 0), item(0, 5, 0), item(0, 0, 5), item(usize::MAX, 0, 0), item(0, 0, usize::MAX - 2)] {
        assert_eq!(made(&[item], lens), Err(BatchError::Outside));
    }
    let far = |row_stride| View { offset: 0, row_stride, column_stride: 1 };
    assert_eq!(made(&[BatchItem { a: far(usize::MAX), ..item(0, 0, 0) }], lens), Err(BatchError::Outside));
    assert_eq!(made(&[BatchItem { b: far(usize::MAX), ..item(0, 0, 0) }], lens), Err(BatchError::Outside));
    assert_eq!(made(&[beside(0, usize::MAX)], lens), Err(BatchError::Outside));
}

#[test]
fn batches_are_compared_with_what_they_are_given() {
    let ((pool, workspace), blocking) = (one_thread(), blocking());
    let shape = BatchShape { rows: 2, columns: 2, depth: 2 };
    let batch = Batch::new(shape, vec![item(0, 0, 0)], [4; 3]).unwrap();
    let (four, three) = ([1.0; 4], [1.0; 3]);
    let run = |a: &[f32], b: &[f32], c: &mut [f32], residual: Option<&[f32]>| {
        let residual = residual.map(|data| (data, Place { offset: 0, stride: 0 }));
        let epilogue = Epilogue { residual, ..Epilogue::default() };
        multiply_batch(Isa::best(), &pool, &workspace, &blocking, &batch, (a, b), c, &epilogue);
    };
    let mut c = [0.0; 4];
    run(&four, &four, &mut c, Some(&four));
    assert_eq!(c, [3.0; 4]);
    refused("a short left operand", || run(&three, &four, &mut [0.0; 4], None));
    refused("a short right operand", || run(&four, &three, &mut [0.0; 4], None));
    refused("a short result", || run(&four, &four, &mut [0.0; 3], None));
    refused("a short residual", || run(&four, &four, &mut [0.0; 4], Some(&three)));
    let astray = BatchItem { residual: Place { offset: usize::MAX, stride: 2 }, ..item(0, 0, 0) };
    let astray = Batch::new(shape, vec![astray], [4; 3]).unwrap();
    refused("a residual nowhere", || {
        let epilogue = Epilogue { residual: Some((&four, Place { offset: 0, stride: 0 })), ..Epilogue::default() };
        multiply_batch(Isa::best(), &pool, &workspace, &blocking, &astray, (&four, &four), &mut [0.0; 4], &epilogue);
    });
    // Views that stand still can be of any depth; packing them cannot.
    let still = View { offset: 0, row_stride: 0, column_stride: 0 };
    let endless = BatchItem { a: still, b: still, ..item(0, 0, 0) };
    for depth in [HALF, usize::MAX / blocking.kernel.nr + 2] {
        let shape = BatchShape { rows: 2, columns: 2, depth };
        let batch = Batch::new(shape, vec![endless], [4; 3]).unwrap();
        refused("a depth without end", || {
            let plain = Epilogue::default();
            multiply_batch(Isa::best(), &pool, &workspace, &blocking, &batch, (&four, &four), &mut [0.0; 4], &plain);
        });
    }
}

#[test]
fn attention_that_leaves_its_operands_is_refused() {
    let ((pool, workspace), blocking) = (one_thread(), blocking());
    let data = [1.0; 4];
    let small = AttentionShape {
        batch: 1,
        heads: 1,
        queries: 2,
        keys: 2,
        depth: 2,
        value_depth: 2,
        scale: 1.0,
        guarded: false,
    };
    let rows = HeadRows { data: &data, offset: 0, stride: 2 };
    let fine = Attention { shape: small, queries: rows, keys: rows, values: rows, mask: None };
    let run = |of: &Attention<'_>, to: usize| {
        let mut to = vec![0.0; to];
        attention(Isa::best(), &pool, &workspace, &blocking, of, &mut to);
    };
    let passes = |of: &Attention<'_>, to: usize, scores: usize| {
        let (mut to, mut scores) = (vec![0.0; to], vec![0.0; scores]);
        attention_in_passes(Isa::best(), &pool, &workspace, &blocking, of, &mut scores, &mut to);
    };
    run(&fine, 4);
    passes(&fine, 4, 4);
    refused("scores without a place", || passes(&fine, 4, 3));
    let shapes = [
        ("heads without end", AttentionShape { heads: HALF, ..small }, 0),
        ("keys without end", AttentionShape { batch: 2, queries: 1, keys: HALF, ..small }, 4),
        ("queries without end", AttentionShape { batch: 2, queries: HALF, ..small }, 0),
        ("a depth without end", AttentionShape { heads: 2, depth: HALF, queries: 1, keys: 1, ..small }, 4),
        ("values without end", AttentionShape { heads: 2, value_depth: HALF, ..small }, 0),
        ("a result of another size", small, 3),
    ];
    for (what, shape, to) in shapes {
        let of = Attention { shape, ..fine };
        refused(what, || run(&of, to));
        refused(what, || passes(&of, to, score_count(&shape).filter(|&count| count < 100).unwrap_or(0)));
    }
    for stray in [
        HeadRows { offset: 1, ..rows },
        HeadRows { offset: usize::MAX, ..rows },
        HeadRows { stride: 3, ..rows },
        HeadRows { stride: usize::MAX, ..rows },
        HeadRows { stride: 1, ..rows },
    ] {
        for of in [
            Attention { queries: stray, ..fine },
            Attention { keys: stray, ..fine },
            Attention { values: stray, ..fine },
        ] {
            refused("rows beyond their operand", || run(&of, 4));
            refused("rows beyond their operand", || passes(&of, 4, 4));
        }
    }
    for strides in [[0, 0, 3, 1], [0, 0, usize::MAX, 1], [0, 0, HALF, HALF]] {
        let of = Attention { mask: Some(Mask { data: &data, strides }), ..fine };
        refused("a mask beyond its data", || run(&of, 4));
    }
}

#[test]
fn packing_what_is_not_there_is_refused() {
    let kernel = blocking().kernel;
    let mut to = vec![0.0; 2 * kernel.nr];
    pack_columns(kernel, &[1.0; 4], (2, 2), (2, 1), &mut to);
    for (depth, columns) in [((2, 3), (2, 1)), ((2, 2), (2, 2)), ((2, usize::MAX), (2, 1)), ((2, HALF), (2, HALF))] {
        refused("a view beyond its data", || pack_columns(kernel, &[1.0; 4], depth, columns, &mut to));
    }
    refused("a short buffer", || pack_columns(kernel, &[1.0; 4], (2, 2), (2, 1), &mut to[1..]));
    // Nothing to pack is no mistake, however it is strided.
    pack_columns(kernel, &[], (usize::MAX, usize::MAX), (0, 1), &mut []);
}

#[test]
fn copies_that_leave_their_buffers_are_refused() {
    let pool = ThreadPool::new(1).unwrap();
    let axis = |size, from, to| MoveAxis { size, from, to };
    // Offsets that come round when they are counted in bytes.
    assert!(Move::new(8, (1 << 61, 0), &[]).is_none());
    assert!(Move::new(8, (0, 0), &[axis(2, (1 << 61) + 1, 1)]).is_none());
    // Backwards beyond the beginning.
    assert!(Move::new(4, (1, 0), &[axis(3, -1, 1)]).is_none());
    assert!(Move::new(4, (2, 0), &[axis(3, -1, 1)]).is_some_and(|copy| copy.needs() == (3, 3)));
    assert!(Move::new(4, (0, 0), &[axis(2, isize::MIN, 1)]).is_none());
    assert!(Move::new(4, (0, 0), &[axis(2, 1, 1 << 62)]).is_none());
    assert!(Move::new(2, (0, 0), &[axis(HALF, 1, 1)]).is_none());
    let copy = Move::new(4, (1, 0), &[axis(3, 1, 1)]).unwrap();
    copy.run(&pool, &[0; 16], &mut [0; 12]);
    refused("a short input", || copy.run(&pool, &[0; 15], &mut [0; 12]));
    refused("a short output", || copy.run(&pool, &[0; 16], &mut [0; 11]));
    assert!(Transpose::new(&[0, HALF, 2], &[2, 1, 0]).is_none());
    // Axes that would merge into one too large to count, beside one of no size.
    assert!(Transpose::new(&[HALF, 2, 0], &[0, 1, 2]).is_none_or(|empty| {
        empty.run(&pool, &[], &mut []);
        true
    }));
    let transpose = Transpose::new(&[2, 2], &[1, 0]).unwrap();
    refused("a short input", || transpose.run(&pool, &[0.0; 3], &mut [0.0; 4]));
    refused("a short output", || transpose.run(&pool, &[0.0; 4], &mut [0.0; 3]));
}

#[test]
fn loops_that_leave_their_operands_are_refused() {
    let pool = ThreadPool::new(1).unwrap();
    let source = |first, strides: &[isize]| vec![Source::new(ElementType::F32, Class::Single, first, strides)];
    let nest = |sizes: &[usize], source, code: &[Instruction]| Nest::new(sizes, source, code, ElementType::F32);
    let load = [Instruction::Load(0)];
    assert!(nest(&[3], source(1, &[-1]), &load).is_err());
    assert!(nest(&[2, HALF], source(0, &[0, 0]), &load).is_err());
    assert!(nest(&[2], source(0, &[isize::MAX]), &load).is_err());
    assert!(nest(&[2], source(0, &[]), &load).is_err());
    assert!(nest(&[2], source(0, &[1]), &[]).is_err());
    assert!(nest(&[2], source(0, &[1]), &[Instruction::Load(1)]).is_err());
    assert!(nest(&[2], source(0, &[1]), &[Instruction::Unary(nest::Unary::Neg, 0)]).is_err());
    assert!(nest(&[2], source(0, &[1]), &[load[0], Instruction::Select(0, 0, 0)]).is_err());
    let fine = nest(&[2], source(1, &[1]), &load).unwrap();
    assert_eq!(fine.needs(0), 12);
    fine.run(Isa::best(), &pool, &[&[0; 12]], &mut [0; 8]).unwrap();
    refused("a short operand", || fine.run(Isa::best(), &pool, &[&[0; 11]], &mut [0; 8]));
    refused("no operand", || fine.run(Isa::best(), &pool, &[], &mut [0; 8]));
    refused("a short result", || fine.run(Isa::best(), &pool, &[&[0; 12]], &mut [0; 7]));
    let fold = |sizes: &[usize], gone: &[bool], strides: &[isize]| {
        Reduction::new(sizes, gone, ElementType::F32, strides, ElementType::F32)
    };
    assert!(fold(&[2, 0], &[false, true], &[1, 1]).is_err());
    assert!(fold(&[2, HALF], &[false, true], &[1, 1]).is_err());
    assert!(fold(&[2], &[true], &[-1]).is_err());
    let sums = fold(&[2, 3], &[false, true], &[3, 1]).unwrap();
    refused("a short operand", || sums.run(Isa::best(), &pool, Fold::Sum, Finish::Nothing, &[0; 23], &mut [0; 8]));
    refused("a short result", || sums.run(Isa::best(), &pool, Fold::Sum, Finish::Nothing, &[0; 24], &mut [0; 7]));
    let around = Around { outer: 1, size: 2, inner: 2 };
    refused("half a line", || softmax_along(Isa::best(), &pool, around, false, &[0.0; 3], &mut [0.0; 3]));
    refused("lines without end", || {
        softmax_along(Isa::best(), &pool, Around { outer: 2, size: HALF, inner: 2 }, false, &[], &mut []);
    });
    let taps = Taps { count: 1, lines: &[2], weights: &[1.0] };
    refused("a line that is not there", || resample(Isa::best(), &pool, around, taps, &[0.0; 4], &mut [0.0; 2]));
    let rows = Lookup::new(&[2], &[0], &[(4, 3)], 3).unwrap();
    refused("a short table", || rows.take(1, &[0; 11], Indices::Wide(&[0, 0]), &mut [0; 6]));
    refused("too few indices", || rows.take(1, &[0; 12], Indices::Wide(&[0]), &mut [0; 6]));
    refused("a short result", || rows.take(1, &[0; 12], Indices::Wide(&[0, 0]), &mut [0; 5]));
}

#[test]
fn rows_that_are_not_whole_are_refused() {
    let pool = ThreadPool::new(1).unwrap();
    let none = NormParameters { scale: None, bias: None, epsilon: 1e-5 };
    for columns in [0, 3, usize::MAX] {
        refused("rows that are not whole", || softmax(Isa::best(), &pool, columns, false, &mut [1.0; 4]));
        refused("rows that are not whole", || {
            layer_norm(Isa::best(), &pool, columns, &[1.0; 4], none, &mut [1.0; 4]);
        });
    }
    let short = NormParameters { scale: Some(&[1.0]), ..none };
    refused("a short scale", || layer_norm(Isa::best(), &pool, 2, &[1.0; 4], short, &mut [1.0; 4]));
    refused("a short input", || layer_norm(Isa::best(), &pool, 2, &[1.0; 2], none, &mut [1.0; 4]));
    refused("lines of nothing", || binary_lines(Isa::best(), Binary::Add, &[1.0], &[], &mut [1.0]));
}

#[test]
fn products_of_bytes_that_leave_their_operands_are_refused() {
    let isa = Isa::best();
    let (pool, workspace) = one_thread();
    for (what, shape, len) in impossible() {
        let image = vec![1u8; len];
        refused(what, || quantized::ImageRows::new(shape, &image, 0, 0));
        refused(what, || quantized::max_pool(isa, &pool, &shape, false, &image, &mut [0; 1]));
        let of = quantized::Depthwise {
            image: &image,
            weights: &[1],
            sums: &[1],
            signed: false,
            zero: 0,
            finish: quantized::Finish::Sums,
        };
        refused(what, || quantized::depthwise(isa, &pool, &shape, &of, quantized::Output::Sums(&mut [0; 1])));
    }
    refused("a matrix of 2^64 bytes", || quantized::MatrixRows::new(&[], 2, HALF));
    let kernel = quantized::kernels(isa.level())[0];
    let size = quantized::PackedSize::new(kernel, 3, 2).unwrap();
    let packed = vec![1u8; size.bytes];
    let run =
        |packed: &[u8], columns: usize, finish: quantized::Finish<'_>, to: quantized::Output<'_>, offset: usize| {
            let rows = quantized::MatrixRows::new(&[1; 6], 2, 3);
            let product = quantized::Product { packed, columns, signed: false, zero: 0, column_zeros: &[], finish };
            let blocking = quantized::Blocking { kernel, row_block: usize::MAX, column_block: 1 };
            let place = Place { offset, stride: 2 };
            quantized::multiply(isa, &pool, &workspace, &blocking, &rows, &product, (to, place));
        };
    let sums = quantized::Finish::Sums;
    run(&packed, 2, sums, quantized::Output::Sums(&mut [0; 4]), 0);
    refused("short weights", || run(&packed[1..], 2, sums, quantized::Output::Sums(&mut [0; 4]), 0));
    refused("a short result", || run(&packed, 2, sums, quantized::Output::Sums(&mut [0; 3]), 0));
    refused("a place that comes round", || run(&packed, 2, sums, quantized::Output::Sums(&mut [0; 4]), usize::MAX));
    refused("another type", || run(&packed, 2, sums, quantized::Output::Bytes(&mut [0; 4]), 0));
    let few = quantized::Finish::Floats { bias: None, factor: &[1.0; 3] };
    refused("factors of other columns", || run(&packed, 2, few, quantized::Output::Floats(&mut [0.0; 4]), 0));
    refused("columns without end", || run(&packed, usize::MAX, sums, quantized::Output::Sums(&mut [0; 4]), 0));
}

#[test]
fn classes_that_do_not_hold_together_are_refused() {
    let (pool, _) = one_thread();
    let good = Classes {
        labels: vec![1, 2],
        base: vec![0.0; 2],
        counts: vec![true; 2],
        decision: Decision::Largest,
        written: Written::Columns,
        transform: Transform::None,
    };
    let run = |classes: &Classes, scores: usize, labels: usize, out: usize| {
        classes.run(Isa::best(), &pool, &vec![0.0; scores], &mut vec![0; labels], &mut vec![0.0; out]);
    };
    run(&good, 6, 3, 6);
    refused("scores of half a row", || run(&good, 5, 3, 6));
    refused("too few places", || run(&good, 6, 3, 4));
    refused("too few labels", || run(&Classes { labels: vec![1], ..good.clone() }, 6, 3, 6));
    refused("a short base", || run(&Classes { base: vec![0.0], ..good.clone() }, 6, 3, 6));
    let written = Written::Rest { column: 2 };
    refused("a column that is not there", || run(&Classes { written, ..good.clone() }, 6, 3, 6));
    let decision = Decision::Above { column: HALF, threshold: 0.0 };
    refused("a decision by what is not there", || run(&Classes { decision, ..good.clone() }, 6, 3, 6));
}
