//! What the processor reaches on an engine's threads: copies beyond its caches, products by its best microkernel.

use planforge_kernels_cpu::{
    gemm::{self, Blocking, Epilogue, Kernel, MatrixRows, PackedSize, Place, Workspace},
    isa::Isa,
    pool::{ThreadPool, for_parts},
};
use planforge_report::Rates;
use std::{collections::BTreeMap, time::Instant};

/// Bytes of one side of a copy.
const COPY_BYTES: usize = 64 << 20;
/// Elements that a thread copies at a time.
const COPY_PART: usize = 64 << 10;
/// Rows, columns and depth of the product.
const SIZE: usize = 512;
const ROW_BLOCK: usize = 64;
const COLUMN_BLOCK: usize = 128;
/// The best of them counts: what disturbs makes slower, nothing makes faster.
const REPEATS: usize = 5;

/// Takes a second at most, on slow machines.
pub(super) fn measure(isa: Isa, pool: &ThreadPool) -> Rates {
    let best = |kernels: &'static [&'static Kernel]| {
        kernels.iter().map(|kernel| product_tflop_s(isa, pool, kernel)).max_by(f64::total_cmp)
    };
    let kinds = [("fp32", gemm::kernels(isa.level())), ("bf16", gemm::bf16_kernels(isa.level()))];
    let known = kinds.into_iter().filter_map(|(precision, kernels)| Some((precision.to_owned(), best(kernels)?)));
    let tflop_s = BTreeMap::from_iter(known);
    Rates { copy_gb_s: copy_gb_s(pool), tflop_s }
}

/// Seconds of the fastest of some repeats.
fn best_s(mut work: impl FnMut()) -> f64 {
    work();
    let mut time = || {
        let began = Instant::now();
        work();
        began.elapsed().as_secs_f64()
    };
    (0..REPEATS).map(|_| time()).fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE)
}

fn copy_gb_s(pool: &ThreadPool) -> f64 {
    let from: Vec<f32> = noise(COPY_BYTES / size_of::<f32>());
    let mut to = vec![0.0f32; from.len()];
    let seconds = best_s(|| {
        for_parts(pool, &mut to, COPY_PART, |task, part| {
            let start = task * COPY_PART;
            part.copy_from_slice(&from[start..start + part.len()]);
        });
    });
    2.0 * COPY_BYTES as f64 / seconds / 1e9
}

fn product_tflop_s(isa: Isa, pool: &ThreadPool, kernel: &'static Kernel) -> f64 {
    let Some(packed) = PackedSize::new(kernel, SIZE, SIZE) else { return 0.0 };
    let (a, b) = (noise(SIZE * SIZE), noise(packed.elements));
    let mut c = vec![0.0; SIZE * SIZE];
    let workspace = Workspace::new(pool.threads());
    let blocking =
        Blocking { kernel, pack_rows: true, row_block: ROW_BLOCK, column_block: COLUMN_BLOCK, depth_block: usize::MAX };
    let rows = MatrixRows::new(&a, SIZE, SIZE, SIZE);
    let place = Place { offset: 0, stride: SIZE };
    let seconds = best_s(|| {
        gemm::multiply(isa, pool, &workspace, &blocking, &rows, (&b, SIZE), (&mut c, place), &Epilogue::default());
    });
    2.0 * (SIZE as f64).powi(3) / seconds / 1e12
}

/// Numbers between -1 and 1 that are neither all alike nor small enough to slow arithmetic down.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 0x2545_f491_u32;
    let mut next = || {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_kernels_cpu::isa::IsaLevel;

    #[test]
    fn every_level_of_this_machine_has_rates() {
        let pool = ThreadPool::new(2).unwrap();
        for isa in [IsaLevel::Portable, IsaLevel::X86V2, IsaLevel::X86V3].into_iter().filter_map(Isa::new) {
            let rate = product_tflop_s(isa, &pool, gemm::kernels(isa.level())[0]);
            assert!(rate.is_finite() && rate > 0.0, "{rate}");
        }
        assert!(copy_gb_s(&pool).is_finite());
    }

    #[test]
    fn noise_has_no_number_twice_in_a_row() {
        let numbers = noise(1000);
        assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(numbers.iter().all(|number| (-1.0..=1.0).contains(number)));
    }
}
