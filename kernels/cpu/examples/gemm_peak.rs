//! Prints the speed of every GEMM kernel of this machine on shapes of ResNet-50 and BERT-base, and of row-wise
//! kernels, one thread. An argument limits the lines to those that contain it.

use planforge_kernels_cpu::{
    gemm::*,
    isa::Isa,
    pointwise::{Activation, activate},
    pool::ThreadPool,
    rows::{NormParameters, layer_norm, softmax},
};
use std::{io::Write, time::Instant};

fn main() {
    let shapes = [
        ("bert ffn1", 128, 3072, 768),
        ("bert qkv", 128, 768, 768),
        ("resnet 56x56 1x1", 3136, 256, 64),
        ("resnet 14x14", 196, 256, 1024),
        ("resnet 7x7", 49, 512, 2048),
    ];
    let pool = ThreadPool::new(1).expect("one thread is allowed");
    let workspace = Workspace::new(1);
    let mut out = std::io::stdout().lock();
    rows(&pool, &mut out);
    for (name, m, n, k) in shapes {
        let a = vec![0.5; m * k];
        let mut c = vec![0.0; m * n];
        for isa in Isa::available() {
            for kernel in kernels(isa.level()) {
                let packed = vec![0.25; PackedSize::new(kernel, k, n).expect("small").elements];
                for pack_rows in [false, true] {
                    for (row_block, depth_block) in [(m, usize::MAX), (m, 256), (kernel.mr * 8, usize::MAX)] {
                        let blocking = Blocking { kernel, pack_rows, row_block, column_block: n, depth_block };
                        let best = (0..15)
                            .map(|_| {
                                let start = Instant::now();
                                let rows = MatrixRows::new(&a, m, k, k);
                                let place = Place { offset: 0, stride: n };
                                multiply(
                                    isa,
                                    &pool,
                                    &workspace,
                                    &blocking,
                                    &rows,
                                    (&packed, n),
                                    (&mut c, place),
                                    &Epilogue::default(),
                                );
                                start.elapsed().as_secs_f64()
                            })
                            .fold(f64::INFINITY, f64::min);
                        let rate = 2.0 * (m * n * k) as f64 / best / 1e9;
                        writeln!(out, "{name:18} {:14} pack {pack_rows:5} rows {row_block:4} depth {:5} {:8.3} ms {rate:7.1} GFLOP/s", kernel.name, depth_block.min(k), best * 1e3).expect("stdout is open");
                    }
                }
            }
        }
    }
}

/// Nanoseconds per element of what works on rows.
fn rows(pool: &ThreadPool, out: &mut impl Write) {
    let from: Vec<f32> = (0..128 * 1536).map(|i| (i % 1000) as f32 / 500.0 - 1.0).collect();
    let mut to = from.clone();
    for isa in Isa::available() {
        let mut time = |name: &str, body: &mut dyn FnMut(&mut [f32])| {
            let best = (0..30)
                .map(|_| {
                    to.copy_from_slice(&from);
                    let start = Instant::now();
                    body(&mut to);
                    start.elapsed().as_secs_f64()
                })
                .fold(f64::INFINITY, f64::min);
            writeln!(out, "{name:12} {:10} {:7.3} ns per element", isa.level(), best * 1e9 / from.len() as f64)
                .expect("stdout is open");
        };
        time("softmax 128", &mut |to| softmax(isa, pool, 128, false, to));
        let none = NormParameters { scale: Some(&from[..768]), bias: Some(&from[..768]), epsilon: 1e-5 };
        time("norm 768", &mut |to| layer_norm(isa, pool, 768, &from, none, to));
        for activation in [Activation::Gelu, Activation::Silu, Activation::Tanh, Activation::Relu] {
            time(&format!("{activation:?}"), &mut |to| activate(isa, activation, to));
        }
    }
}
