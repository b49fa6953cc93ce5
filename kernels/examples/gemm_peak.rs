//! Prints the speed of every GEMM kernel of this machine on shapes of ResNet-50 and BERT-base, one thread.

use planforge_kernels::{gemm::*, isa::Isa, pool::ThreadPool};
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
