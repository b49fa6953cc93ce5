//! Every generated kernel compiles for every architecture that NVRTC knows, without a toolkit or a GPU.

mod common;
#[expect(dead_code, reason = "operators of other tests")]
mod operators;

use common::{ARCHITECTURES, compile_for, image, rows, supported};
use planforge_cuda::{
    codegen::{
        Generated, any, attention, best, chain,
        depthwise::{self, Depthwise},
        expr::{Class, Expr, Index, Load},
        gemm::Device,
        heads, late, matvec,
        norm::{self, Row},
        one_token, pack, pointwise,
        pool::{self, Window},
        reduce::{self, How},
        staged,
    },
    lower::lower,
    program::{
        Append, AttentionWork, ChainWork, ConvWork, First, HeadsWork, Norm, OneTokenWork, ProductWork, Seen, Tail, Work,
    },
    view::{Kind, View},
};
use planforge_graph::ir::{Activation, Binary, Compare, GeluForm, ReduceKind, Unary};
use planforge_kernels_cuda::nvrtc;
use std::collections::BTreeSet;

/// Compiles where NVRTC is found; says so where it is not.
fn compile(all: &[Generated]) {
    let supported = supported();
    for (index, generated) in all.iter().enumerate() {
        // Each for Hopper, whose branch is the longest, and in turn for one of the others: they differ in next to nothing.
        let other = ARCHITECTURES[index % ARCHITECTURES.len()];
        for capability in BTreeSet::from([90, other]).into_iter().filter(|arch| supported.contains(arch)) {
            compile_for(capability, generated);
        }
    }
}

/// How many loads from memory stand ahead of the wait for kernels ahead in the instructions for sm_90, where there is one.
fn loads_ahead_of_the_wait(generated: &Generated) -> Option<usize> {
    const ADDRESSED: u64 = 0x980;
    const GLOBAL: u64 = 0x981;
    const WAIT: u64 = 0x82e;
    const EXIT: u64 = 0x94d;
    let source = nvrtc::Source { name: &generated.source.name, text: &generated.source.text, options: &[] };
    let image = nvrtc::compile(source, nvrtc::Arch { capability: 90, specific: true }).expect("it compiles").bytes;
    let number = |at: usize, bytes: usize| (0..bytes).fold(0, |sum, i| sum | u64::from(image[at + i]) << (8 * i));
    let headers = (0..number(0x3c, 2)).map(|section| number(0x28, 8) as usize + 64 * section as usize);
    // Instructions alone are run.
    let code =
        headers.map(|at| (number(at + 8, 8), number(at + 24, 8), number(at + 32, 8))).find(|of| of.0 & 4 != 0)?;
    let opcodes: Vec<u64> = (code.1..code.1 + code.2).step_by(16).map(|at| number(at as usize, 8) & 0xfff).collect();
    // Blocks that do nothing but wait have a wait of their own.
    let goes_on = |at: usize| !opcodes[at + 1..].iter().take(3).any(|opcode| *opcode == EXIT);
    let mut waits = (0..opcodes.len()).filter(|at| opcodes[*at] == WAIT && goes_on(*at));
    let wait = waits.next()?;
    assert_eq!(waits.next(), None, "{}: it waits once", generated.source.name);
    Some(opcodes[..wait].iter().filter(|opcode| [ADDRESSED, GLOBAL].contains(opcode)).count())
}

/// A compiler may read what is read through `const` and `restrict` whenever it likes.
#[test]
fn what_steps_write_is_not_read_ahead_of_the_wait() {
    if !supported().contains(&90) {
        return;
    }
    let row = rows(Kind::F16, &[1, 1, 768]);
    let work = |k: u64| ProductWork {
        a: rows(Kind::F16, &[1, 1, k]),
        b: rows(Kind::F16, &[1, 768, k]).permuted(&[0, 2, 1]),
        bias: None,
        residual: Some(row.clone()),
        y: row.clone(),
        alpha: 1.0,
        activation: None,
        norm: None,
    };
    let device = Device { capability: 90, sm_count: 132, shared_block_bytes: 227 * 1024 };
    for k in [768, 3072] {
        let problem = matvec::Problem::of(&work(k), |_| true).unwrap();
        for tile in staged::tiles(&problem, device) {
            assert_eq!(loads_ahead_of_the_wait(&staged::generate(&problem, tile)), Some(0), "{k} {tile:?}");
        }
        for tile in matvec::tiles(&problem) {
            assert_eq!(loads_ahead_of_the_wait(&matvec::generate(&problem, tile)), Some(0), "{k} {tile:?}");
        }
    }
    let keys = one_token::keys_of_block(12, 1, 1024, 64);
    let (cache, new) = (rows(Kind::F16, &[1, 12, 1024, 64]), rows(Kind::F16, &[1, 12, 1, 64]));
    let attention = OneTokenWork {
        q: new.clone(),
        k: cache.clone(),
        v: cache,
        mask: None,
        append: Some(Append { k: new.clone(), v: new, place: rows(Kind::I64, &[1]) }),
        turn: None,
        seen: Some(Seen { finite: true, early: true }),
        parts: rows(Kind::F32, &[1, 12, 1024_u64.div_ceil(keys), 66]),
        scale: 0.125,
        keys,
        guarded: false,
    };
    let joined = one_token::joined(&attention, &attention.q);
    let mut heads =
        head_work(Kind::F16, (12, 1024, 64), Norm { epsilon: 1e-5, centred: true, scale: None, bias: None });
    heads.product.bias = None;
    let mut all = vec![one_token::generate(&attention), joined];
    all.extend(heads::kernels(&heads, device));
    assert_eq!(all.len(), 3, "a head has a kernel");
    for kernel in all {
        let loads = loads_ahead_of_the_wait(&kernel);
        assert!(
            loads.is_some_and(|loads| loads <= 1),
            "{}: {loads:?}, of the place, which is an input",
            kernel.source.name
        );
    }
    // Biases are constants.
    for link in chain_works(&heads) {
        let constants = u32::from(link.tail.is_some()) + u32::from(link.product().bias.is_some());
        let place = u32::from(matches!(link.first, First::Heads(_)));
        let kernel = chain::kernels(&link, device).remove(0);
        let loads = loads_ahead_of_the_wait(&kernel);
        assert!(
            loads.is_some_and(|loads| loads as u32 <= constants + place),
            "{}: {loads:?} where {constants} constants are read, and {place} place",
            kernel.source.name
        );
    }
}

/// A decoder's heads by so many, over caches of so many places of this size, behind a norm.
fn head_work(kind: Kind, (heads, places, size): (u64, u64, u64), norm: Norm) -> HeadsWork {
    let (k, n) = (heads * size, 3 * heads * size);
    let y = rows(kind, &[1, 1, n]);
    let part = |at: u64| View { offset: at * k, ..rows(kind, &[1, heads, 1, size]) };
    let cache = rows(kind, &[1, heads, places, size]);
    let product = ProductWork {
        a: rows(kind, &[1, 1, k]),
        b: rows(kind, &[1, n, k]).permuted(&[0, 2, 1]),
        bias: Some(rows(kind, &[n])),
        residual: None,
        y,
        alpha: 1.0,
        activation: None,
        norm: Some(norm),
    };
    let attention = OneTokenWork {
        q: part(0),
        k: cache.clone(),
        v: cache,
        mask: None,
        append: Some(Append { k: part(1), v: part(2), place: rows(Kind::I64, &[1]) }),
        turn: None,
        seen: Some(Seen { finite: true, early: true }),
        parts: rows(Kind::F32, &[1, heads, 1, size + 2]),
        scale: 0.125,
        keys: places,
        guarded: false,
    };
    HeadsWork { product, attention, o: rows(kind, &[1, heads, 1, size]) }
}

/// Links of a chain with such heads: those, a pair of products, and the last product; none where there are none.
fn chain_works(heads: &HeadsWork) -> Vec<ChainWork> {
    let kind = heads.product.a.kind;
    let width = heads.product.a.dims[2];
    let sums = rows(Kind::I64, &[1, 1, width]);
    let tail = |k: u64| Tail {
        b: rows(kind, &[1, width, k]).permuted(&[0, 2, 1]),
        bias: Some(rows(kind, &[width])),
        y: sums.clone(),
    };
    let pair = ProductWork {
        b: rows(kind, &[1, 4 * width, width]).permuted(&[0, 2, 1]),
        bias: Some(rows(kind, &[4 * width])),
        y: rows(kind, &[1, 1, 4 * width]),
        activation: Some(Activation::Gelu(GeluForm::Tanh)),
        ..heads.product.clone()
    };
    let last = ProductWork { activation: None, ..pair.clone() };
    let works = [
        ChainWork { first: First::Heads(Box::new(heads.clone())), sums: None, tail: Some(tail(width)) },
        ChainWork { first: First::Product(Box::new(pair)), sums: Some(sums.clone()), tail: Some(tail(4 * width)) },
        ChainWork { first: First::Product(Box::new(last)), sums: Some(sums.clone()), tail: None },
    ];
    // As passes do, which see to it that a program holds together.
    works.into_iter().filter(|_| kind == Kind::F16).collect()
}

fn load(view: View) -> Box<Expr> {
    Box::new(Expr::Load(Load { view, index: None }))
}

#[test]
fn pointwise_kernels() {
    let dims = [2, 16, 5, 6];
    let mut all = Vec::new();
    for kind in [Kind::F16, Kind::Bf16, Kind::F32] {
        let x = || load(image(kind, &dims));
        let bias = load(rows(kind, &[16, 1, 1]).broadcast(&dims).unwrap());
        let activations = [
            Activation::Relu,
            Activation::Clip { min: Some(0.0), max: None },
            Activation::Clip { min: Some(-1.5), max: Some(6.0) },
            Activation::LeakyRelu { alpha: 0.1 },
            Activation::Elu { alpha: 1.0 },
            Activation::Elu { alpha: 0.5 },
            Activation::Selu { alpha: 1.67, gamma: 1.05 },
            Activation::Celu { alpha: 2.0 },
            Activation::ThresholdedRelu { alpha: 1.0 },
            Activation::Sigmoid,
            Activation::Tanh,
            Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Activation::HardSwish,
            Activation::Softplus,
            Activation::Softsign,
            Activation::Gelu(GeluForm::Erf),
            Activation::Gelu(GeluForm::Tanh),
            Activation::Silu,
            Activation::Mish,
        ];
        let mut sum = Expr::Binary(Binary::Add, x(), bias);
        for activation in activations {
            sum = Expr::Binary(Binary::Add, Box::new(sum), Box::new(Expr::Activation(activation, x())));
        }
        for unary in [
            Unary::Neg,
            Unary::Abs,
            Unary::Exp,
            Unary::Log,
            Unary::Sqrt,
            Unary::Reciprocal,
            Unary::Floor,
            Unary::Ceil,
            Unary::Round,
            Unary::Sign,
            Unary::Erf,
            Unary::Sin,
            Unary::Cos,
            Unary::Tan,
            Unary::Asin,
            Unary::Acos,
            Unary::Atan,
            Unary::Sinh,
            Unary::Cosh,
            Unary::Asinh,
            Unary::Acosh,
            Unary::Atanh,
        ] {
            sum = Expr::Binary(Binary::Mul, Box::new(sum), Box::new(Expr::Unary(unary, x())));
        }
        for binary in [Binary::Sub, Binary::Div, Binary::Pow, Binary::Min, Binary::Max, Binary::PRelu, Binary::FMod] {
            sum = Expr::Binary(binary, Box::new(sum), x());
        }
        // To where nothing is aligned: one element at a time is enough text to compile.
        all.push(pointwise::generate(&sum, &image(kind, &[2, 48, 5, 6]).slice(1, 1, 16)).unwrap());
        // To another arrangement and another type; a slice of a wider image; one element.
        all.push(pointwise::generate(&x(), &rows(Kind::F32, &dims)).unwrap());
        all.push(pointwise::generate(&x(), &image(kind, &[2, 48, 5, 6]).slice(1, 16, 16)).unwrap());
        all.push(pointwise::generate(&Expr::Float(f32::NEG_INFINITY), &rows(kind, &[1])).unwrap());
        let condition = Expr::Compare(Compare::LessOrEqual, x(), Box::new(Expr::Float(0.5)));
        let chosen = Expr::Select(Box::new(condition), x(), Box::new(Expr::Float(f32::NAN)));
        all.push(pointwise::generate(&chosen, &image(kind, &dims)).unwrap());
    }
    let whole = || load(rows(Kind::I64, &[7, 3]));
    let mut number = Expr::Binary(Binary::Add, whole(), Box::new(Expr::Int(-3)));
    for binary in [
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Mod,
        Binary::FMod,
        Binary::Min,
        Binary::Max,
        Binary::BitwiseAnd,
        Binary::BitwiseOr,
        Binary::BitwiseXor,
        Binary::PRelu,
    ] {
        number = Expr::Binary(binary, Box::new(number), whole());
    }
    all.push(pointwise::generate(&number, &rows(Kind::I32, &[7, 3])).unwrap());
    let truth = Expr::Unary(Unary::Not, Box::new(Expr::Cast(Class::Bool, whole())));
    let truth = Expr::Binary(Binary::And, Box::new(truth), load(rows(Kind::Bool, &[7, 3])));
    all.push(pointwise::generate(&truth, &rows(Kind::Bool, &[7, 3])).unwrap());
    all.push(pointwise::generate(&Expr::Cast(Class::Float, Box::new(truth)), &rows(Kind::F16, &[7, 3])).unwrap());
    compile(&all);
}

/// What follows a library's product, in each type; of vectors, of two at once and of single elements.
#[test]
fn activations_in_place() {
    let mut all = Vec::new();
    for kind in [Kind::F16, Kind::Bf16, Kind::F32] {
        let gelu = [GeluForm::Erf, GeluForm::Tanh].map(Activation::Gelu);
        for activation in gelu.into_iter().chain([Activation::Silu, Activation::Tanh, Activation::Mish]) {
            all.push(pointwise::in_place(activation, &rows(kind, &[1, 33, 64])).unwrap());
        }
        all.push(pointwise::in_place(gelu[0], &rows(kind, &[1, 1 << 15, 256])).unwrap());
        all.push(pointwise::in_place(gelu[0], &rows(kind, &[2, 5, 7])).unwrap());
    }
    compile(&all);
}

/// Operands that are too long to be repeated have names.
#[test]
fn long_chains() {
    let floats = (0..8).fold(load(rows(Kind::F16, &[7, 16])), |x, _| {
        let x = Box::new(Expr::Activation(Activation::LeakyRelu { alpha: 0.1 }, x));
        let x = Box::new(Expr::Activation(Activation::Gelu(GeluForm::Tanh), x));
        let x = Box::new(Expr::Binary(Binary::Pow, x, Box::new(Expr::Float(2.0))));
        Box::new(Expr::Binary(Binary::PRelu, Box::new(Expr::Unary(Unary::Sign, x)), load(rows(Kind::F16, &[7, 16]))))
    });
    let whole = || load(rows(Kind::I64, &[7, 3]));
    let numbers = (0..6).fold(whole(), |x, _| {
        let x = Box::new(Expr::Binary(Binary::Min, x, Box::new(Expr::Unary(Unary::Sign, whole()))));
        let x = Box::new(Expr::Binary(Binary::Mod, whole(), x));
        Box::new(Expr::Binary(Binary::Max, Box::new(Expr::Binary(Binary::PRelu, x, whole())), whole()))
    });
    let all = [
        pointwise::generate(&floats, &rows(Kind::F16, &[7, 16])).unwrap(),
        pointwise::generate(&numbers, &rows(Kind::I64, &[7, 3])).unwrap(),
    ];
    assert!(all.iter().all(|generated| generated.source.text.contains("[&](")));
    compile(&all);
}

#[test]
fn gathers_read_rows_by_index() {
    let (table, indices) = (rows(Kind::F16, &[100, 64]), rows(Kind::I64, &[2, 5]));
    let dims = vec![2, 5, 64];
    let index = Index { view: View { dims: dims.clone(), strides: vec![5, 1, 0], ..indices }, stride: 64, rows: 100 };
    let view = View { dims: dims.clone(), strides: vec![0, 0, 1], ..table };
    let gather = || Box::new(Expr::Load(Load { view: view.clone(), index: Some(Box::new(index.clone())) }));
    let sum = Expr::Binary(Binary::Add, gather(), gather());
    compile(&[pointwise::generate(&sum, &rows(Kind::F16, &dims)).unwrap()]);
}

/// Anchors of 85 values out of an image of 256 channels, to rows: nothing that could be read in vectors.
#[test]
fn scattered_kernels() {
    let head = image(Kind::F16, &[2, 256, 80, 80]).slice(1, 0, 255);
    let anchors = head.reshaped(&[2, 3, 85, 80, 80]).expect("channels lie evenly").permuted(&[0, 1, 3, 4, 2]);
    let sigmoid = Expr::Activation(Activation::Sigmoid, load(anchors));
    let large = pointwise::generate(&sigmoid, &rows(Kind::F32, &[2, 3, 80, 80, 85])).unwrap();
    assert!(u64::from(large.grid[0]) * u64::from(large.block[0]) < 2 * 255 * 6400, "several elements a thread");
    let pairs = pack::pairs(&rows(Kind::F32, &[2, 3, 17, 19]), &image(Kind::F16, &[2, 8, 17, 11]), 1);
    compile(&[large, pairs]);
}

#[test]
fn reductions() {
    let mut all = Vec::new();
    for kind in [Kind::F16, Kind::Bf16, Kind::F32, Kind::I64] {
        // A thread each, a warp each, a block each.
        for (dims, axes) in [([5000, 3, 7], &[1][..]), ([5, 3, 70], &[2]), ([4, 3, 4000], &[0, 2])] {
            let x = rows(kind, &dims);
            let kept: Vec<u64> = (0..3).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).collect();
            for how in [ReduceKind::LogSumExp, ReduceKind::Max, ReduceKind::L1].map(How::Reduce) {
                all.push(reduce::generate(&x, &rows(kind, &kept), axes, how).unwrap());
            }
            if let [axis] = axes {
                let how = How::Arg { largest: kind.is_float(), last: kind == Kind::F16 };
                all.push(reduce::generate(&x, &rows(Kind::I64, &kept), &[*axis], how).unwrap());
            }
        }
    }
    for kind in [Kind::F16, Kind::I64] {
        all.push(reduce::running_sum(&rows(kind, &[5, 3, 70]), &rows(kind, &[5, 3, 70]), 2, true, true).unwrap());
    }
    compile(&all);
}

#[test]
fn image_kernels() {
    let mut all = vec![
        pack::generate(&rows(Kind::F32, &[2, 3, 17, 19]), &image(Kind::F16, &[2, 8, 17, 19])),
        pack::generate(&rows(Kind::F16, &[1, 3, 4, 4]), &image(Kind::Bf16, &[1, 4, 4, 4])),
    ];
    for (c, is_max, count_pad) in [(64, true, false), (6, false, true), (5, false, false)] {
        let window = Window {
            is_max,
            count_pad,
            kernel: [3, 2],
            strides: [2, 1],
            pads_before: [1, 0],
            padded: [18, 19],
            dilations: [1, 2],
        };
        all.push(pool::window(&image(Kind::F16, &[2, c, 17, 19]), &image(Kind::F16, &[2, c, 9, 17]), window));
        all.push(pool::spatial_mean(&image(Kind::Bf16, &[2, c, 17, 19]), &rows(Kind::Bf16, &[2, c])));
    }
    for (kind, c) in [(Kind::F16, 240), (Kind::F32, 12), (Kind::Bf16, 7)] {
        let (x, y) = (image(kind, &[1, c, 14, 15]), image(kind, &[1, c, 7, 15]));
        let conv = Depthwise {
            kernel: [5, 3],
            strides: [2, 1],
            pads_before: [2, 1],
            dilations: [1, 1],
            bias: true,
            activation: Some(Activation::HardSwish),
        };
        let residual = (c == 12).then(|| image(kind, &[1, 3 * c, 7, 15]).slice(1, c, c));
        let tiles = depthwise::tiles(&x, residual.as_ref(), &y);
        all.extend(tiles.into_iter().map(|tile| depthwise::generate(&x, residual.as_ref(), &y, conv, tile)));
    }
    compile(&all);
}

#[test]
fn row_kernels() {
    let mut all = Vec::new();
    for (kind, length) in [(Kind::F16, 768), (Kind::F32, 77), (Kind::Bf16, 5000)] {
        let (x, p) = (rows(kind, &[3, 4, length]), rows(kind, &[length]));
        for (scale, bias) in [(true, true), (true, false), (false, true), (false, false)] {
            let parameters: Vec<&View> = [&p, &p].into_iter().take(usize::from(scale) + usize::from(bias)).collect();
            all.push(norm::rows(&x, &x, &parameters, Row::LayerNorm { epsilon: 1e-5, scale, bias }));
        }
        all.push(norm::rows(&x, &x, &[], Row::Softmax { guarded: true }));
        all.push(norm::rows(&x, &rows(Kind::F32, &[3, 4, length]), &[], Row::LogSoftmax));
    }
    compile(&all);
}

/// Groups, odd channels, batches, sums that run along no row: there is always a kernel.
#[test]
fn kernels_of_any_shape() {
    let mut all = Vec::new();
    let mut add = |problem: Option<any::Problem>| {
        let problem = problem.expect("every convolution and product is computed");
        let tiles = any::tiles(&problem);
        assert!(!tiles.is_empty());
        all.extend(tiles.into_iter().map(|tile| any::generate(&problem, tile)));
    };
    for kind in [Kind::F16, Kind::Bf16, Kind::F32] {
        let conv = |channels: u64, out: u64, size: u64, groups: u64| ConvWork {
            x: image(kind, &[2, channels, size, size]),
            w: image(kind, &[out, channels / groups, 3, 3]),
            taps: None,
            bias: Some(rows(kind, &[out])),
            residual: (groups > 1).then(|| image(kind, &[2, out, size, size])),
            y: image(kind, &[2, 2 * out, size, size]).slice(1, out, out),
            strides: [1, 1],
            pads_before: [1, 1],
            pads_after: [1, 1],
            dilations: [1, 1],
            groups,
            activation: Some(Activation::HardSwish),
        };
        add(any::Problem::of_conv(&conv(15, 21, 9, 3)));
        add(any::Problem::of_conv(&conv(32, 10, 1, 1)));
        let product = |m: u64| ProductWork {
            a: rows(kind, &[3, 40, m]).permuted(&[0, 2, 1]),
            b: rows(kind, &[3, 40, 24]),
            bias: None,
            residual: Some(rows(kind, &[m, 24]).broadcast(&[3, m, 24]).unwrap()),
            y: rows(kind, &[3, m, 24]),
            alpha: 0.5,
            activation: None,
            norm: None,
        };
        add(any::Problem::of_product(&product(70)));
        add(any::Problem::of_product(&product(1)));
    }
    compile(&all);
    let mixed = ProductWork {
        a: rows(Kind::F16, &[1, 4, 8]),
        b: rows(Kind::F32, &[1, 8, 4]),
        bias: None,
        residual: None,
        y: rows(Kind::F32, &[1, 4, 4]),
        alpha: 1.0,
        activation: None,
        norm: None,
    };
    assert_eq!(any::Problem::of_product(&mixed), None);
}

#[test]
fn a_kernel_that_is_late() {
    compile(&[late::generate()]);
}

/// Attention of a few queries fills no tile, and has one all the same.
#[test]
fn attention_of_a_few_queries() {
    let heads = |length: u64| rows(Kind::F16, &[1, 2, length, 16]);
    let work = AttentionWork { q: heads(5), k: heads(9), v: heads(9), mask: None, o: heads(5), scale: 0.25 };
    let tiles = attention::tiles(&work, 90);
    assert_eq!(tiles.len(), 1);
    compile(&[attention::generate(&work, tiles[0])]);
}

#[test]
fn loops() {
    use operators::loops::{cells, convolutions, indexed, long_rows, numbers, regions, windows};
    let all = [convolutions(), windows(), indexed(), numbers(), long_rows(), cells(), regions()];
    let mut seen = BTreeSet::new();
    let mut kernels = Vec::new();
    for (what, case) in all.into_iter().flatten() {
        for kind in [Kind::F16, Kind::F32] {
            let program = lower(&case.graph, kind).unwrap_or_else(|error| panic!("{what}: {error}")).program;
            for step in &program.steps {
                let Work::Kernel(work) = &step.work else { continue };
                let source = program.sources[work.source].clone();
                if seen.insert(source.text.clone()) {
                    kernels.push(Generated { source, grid: work.grid, block: work.block, shared_bytes: 0 });
                }
            }
        }
    }
    compile(&kernels);
}

/// Attention of one query over caches of these sizes, products of one row, and where the largest of a long row is.
#[test]
fn kernels_of_decoders() {
    let mut all = Vec::new();
    for (kind, heads, shared, places, size) in [
        (Kind::F16, 12, 12, 1024, 64),
        (Kind::F16, 32, 8, 2048, 64),
        (Kind::Bf16, 8, 1, 300, 128),
        (Kind::F32, 4, 4, 48, 16),
    ] {
        let keys = one_token::keys_of_block(shared, heads / shared, places, size);
        let cache = rows(kind, &[1, shared, places, size]);
        let new = rows(kind, &[1, shared, 1, size]);
        let work = OneTokenWork {
            q: rows(kind, &[1, heads, 1, size]),
            k: cache.clone(),
            v: cache,
            mask: Some(rows(kind, &[places]).broadcast(&[1, heads, 1, places]).unwrap()),
            append: Some(Append { k: new.clone(), v: new, place: rows(Kind::I64, &[1]) }),
            turn: None,
            seen: None,
            parts: rows(Kind::F32, &[1, heads, places.div_ceil(keys), size + 2]),
            scale: 0.125,
            keys,
            guarded: false,
        };
        all.push(one_token::generate(&work));
        all.push(one_token::joined(&work, &work.q));
        let turn = Some([rows(kind, &[size]), rows(kind, &[size])]);
        let seen = Some(Seen { finite: true, early: true });
        let limited = OneTokenWork { mask: None, turn, seen, ..work.clone() };
        all.push(one_token::generate(&limited));
        all.push(one_token::joined(&OneTokenWork { guarded: true, ..limited.clone() }, &work.q));
        all.push(one_token::generate(&OneTokenWork { mask: None, append: None, ..work }));
    }
    let norm = |kind: Kind, k: u64, centred: bool| Norm {
        epsilon: 1e-5,
        centred,
        scale: Some(rows(kind, &[k])),
        bias: centred.then(|| rows(kind, &[k])),
    };
    for (kind, n, k, centred) in
        [(Kind::F16, 50257, 768, true), (Kind::F16, 2048, 4096, false), (Kind::F32, 96, 64, true)]
    {
        let row = rows(kind, &[1, 1, n]);
        let work = ProductWork {
            a: rows(kind, &[1, 1, k]),
            b: rows(kind, &[1, n, k]).permuted(&[0, 2, 1]),
            bias: Some(rows(kind, &[n])),
            residual: Some(row.clone()),
            y: row,
            alpha: 1.0,
            activation: Some(Activation::Gelu(GeluForm::Tanh)),
            norm: Some(norm(kind, k, centred)),
        };
        let problem = matvec::Problem::of(&work, |_| true).unwrap();
        all.extend(matvec::tiles(&problem).into_iter().map(|tile| matvec::generate(&problem, tile)));
        for capability in [75, 90] {
            let device = Device { capability, sm_count: 132, shared_block_bytes: 64 * 1024 };
            all.extend(staged::tiles(&problem, device).into_iter().map(|tile| staged::generate(&problem, tile)));
        }
        let plain =
            matvec::Problem::of(&ProductWork { norm: None, bias: None, residual: None, ..work }, |_| false).unwrap();
        all.extend(matvec::tiles(&plain).into_iter().take(1).map(|tile| matvec::generate(&plain, tile)));
    }
    let clusters = Device { capability: 90, sm_count: 132, shared_block_bytes: 227 * 1024 };
    for (kind, heads, places, size) in
        [(Kind::F16, 12, 1024, 64), (Kind::Bf16, 12, 2048, 64), (Kind::F16, 16, 48, 32), (Kind::Bf16, 4, 4096, 16)]
    {
        let work = head_work(kind, (heads, places, size), norm(kind, heads * size, true));
        let kernels = heads::kernels(&work, clusters);
        assert_eq!(kernels.len(), 1, "{heads} heads of {places} places of {size}");
        assert!(heads::kernels(&work, Device { capability: 89, ..clusters }).is_empty(), "there are no clusters");
        assert!(heads::kernels(&work, Device { sm_count: 8 * heads as u32 - 1, ..clusters }).is_empty(), "too few");
        let supported = supported();
        let with_clusters = ARCHITECTURES.iter().filter(|arch| **arch >= 90 && supported.contains(arch));
        let links = chain_works(&work).into_iter().flat_map(|link| chain::kernels(&link, clusters).into_iter().take(1));
        let kernels: Vec<Generated> = kernels.into_iter().chain(links).collect();
        assert_eq!(kernels.len(), if kind == Kind::F16 { 4 } else { 1 }, "sums are of halves");
        with_clusters.for_each(|arch| kernels.iter().for_each(|kernel| compile_for(*arch, kernel)));
    }
    all.push(best::of_parts(&rows(Kind::F16, &[1, 50257]), true, false));
    all.push(best::of_all(25, &rows(Kind::I64, &[1]), true, false));
    compile(&all);
}
