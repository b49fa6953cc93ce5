//! Kernels on tensor cores, and products in f32 beside them, compile for every architecture that NVRTC knows, without a
//! toolkit or a GPU.

mod common;

use common::{ARCHITECTURES, compile_for, image, rows, supported};
use planforge_cuda::{
    codegen::{Generated, attention, gemm},
    program::{AttentionWork, ConvWork, ProductWork},
    view::{Kind, View},
};
use planforge_graph::ir::Activation;

/// Calls `make` with every architecture and compiles what it gives.
fn compile(make: impl Fn(u32) -> Vec<Generated>) {
    let supported = supported();
    for capability in ARCHITECTURES.into_iter().filter(|arch| supported.contains(arch)) {
        for generated in make(capability) {
            compile_for(capability, &generated);
        }
    }
}

fn device(capability: u32) -> gemm::Device {
    gemm::Device { capability, sm_count: 100, shared_block_bytes: if capability == 75 { 64 << 10 } else { 99 << 10 } }
}

#[test]
fn products_and_convolutions() {
    let conv = |kind: Kind| ConvWork {
        x: image(kind, &[2, 16, 11, 13]),
        w: image(kind, &[24, 16, 3, 3]),
        taps: None,
        bias: Some(rows(kind, &[24])),
        residual: Some(image(kind, &[2, 24, 6, 13])),
        y: image(kind, &[2, 48, 6, 13]).slice(1, 24, 24),
        strides: [2, 1],
        pads_before: [1, 1],
        pads_after: [1, 1],
        dilations: [1, 1],
        groups: 1,
        activation: Some(Activation::HardSwish),
    };
    let product = |kind: Kind| ProductWork {
        a: rows(kind, &[1, 70, 256]),
        b: rows(kind, &[1, 40, 256]).permuted(&[0, 2, 1]),
        bias: Some(rows(kind, &[40])),
        residual: None,
        y: rows(kind, &[1, 70, 40]),
        alpha: 0.5,
        activation: None,
        norm: None,
    };
    compile(|capability| {
        let mut all = Vec::new();
        for kind in [Kind::F16, Kind::Bf16, Kind::F32] {
            let problem =
                gemm::Problem::of_product(&product(kind), kind == Kind::F16).expect("such a product is computed");
            let tiles = gemm::tiles(&problem, device(capability), 3);
            assert_eq!(tiles.is_empty(), kind == Kind::Bf16 && capability < 80);
            all.extend(tiles.into_iter().map(|tile| gemm::generate(&problem, tile)));
            let problem = gemm::Problem::of_conv(&conv(kind)).expect("such a convolution is computed");
            let tiles = gemm::tiles(&problem, device(capability), 2);
            all.extend(tiles.into_iter().map(|tile| gemm::generate(&problem, tile)));
        }
        all
    });
    assert_eq!(gemm::Problem::of_conv(&ConvWork { groups: 2, ..conv(Kind::F16) }), None);
    // Four channels of f32 are copied at once, where of halves it is eight.
    let narrow =
        |kind: Kind| ConvWork { x: image(kind, &[2, 12, 11, 13]), w: image(kind, &[24, 12, 3, 3]), ..conv(kind) };
    assert!(gemm::Problem::of_conv(&narrow(Kind::F32)).is_some());
    assert_eq!(gemm::Problem::of_conv(&narrow(Kind::F16)), None);
}

#[test]
fn every_tile_compiles() {
    for kind in [Kind::F16, Kind::F32] {
        let product = ProductWork {
            a: rows(kind, &[1, 4096, 2048]),
            b: rows(kind, &[1, 2048, 2048]).permuted(&[0, 2, 1]),
            bias: None,
            residual: Some(rows(kind, &[1, 4096, 2048])),
            y: rows(kind, &[1, 4096, 2048]),
            alpha: 1.0,
            activation: Some(Activation::Silu),
            norm: None,
        };
        let problem = gemm::Problem::of_product(&product, true).expect("such a product is computed");
        compile(|capability| {
            if capability != 90 {
                return Vec::new();
            }
            let all = gemm::tiles(&problem, device(capability), 100);
            // Sums in f32 that more than two blocks share differ from those of two by a number.
            let of_many = |made: &Generated| kind == Kind::F32 && made.grid[1] > 2;
            all.into_iter().map(|tile| gemm::generate(&problem, tile)).filter(|made| !of_many(made)).collect()
        });
    }
}

#[test]
fn attention_with_and_without_a_mask() {
    let work = |kind: Kind, size: u64, mask: Option<View>| {
        let packed = rows(kind, &[2, 77, 3 * 4 * size]);
        let part = |index: u64| {
            let part = packed.slice(2, index * 4 * size, 4 * size);
            part.reshaped(&[2, 77, 4, size]).expect("heads lie side by side").permuted(&[0, 2, 1, 3])
        };
        let o = rows(kind, &[2, 77, 4, size]).permuted(&[0, 2, 1, 3]);
        AttentionWork { q: part(0), k: part(1), v: part(2), mask, o, scale: 0.125 }
    };
    let mask = |kind: Kind, dims: &[u64]| rows(kind, dims).broadcast(&[2, 4, 77, 77]);
    compile(|capability| {
        let works = [
            work(Kind::F16, 64, mask(Kind::F32, &[2, 1, 1, 77])),
            work(Kind::F16, 40, mask(Kind::F16, &[1, 1, 77, 77])),
            work(Kind::Bf16, 128, None),
        ];
        let mut all = Vec::new();
        for work in &works {
            assert!(attention::fits(work));
            let tiles = attention::tiles(work, capability);
            assert_eq!(tiles.is_empty(), work.q.kind == Kind::Bf16 && capability < 80);
            // Everything for one architecture, some for the others.
            let most = if capability == 90 { tiles.len() } else { 2 };
            all.extend(tiles.into_iter().take(most).map(|tile| attention::generate(work, tile)));
        }
        all
    });
    assert!(!attention::fits(&work(Kind::F32, 64, None)));
    assert!(!attention::fits(&work(Kind::F16, 256, None)));
}
