//! The table: what each compute capability is, and which TensorRT and CUDA know it, a source with every row.
//!
//! A row says only what its source says. Where sources differ or say nothing, the row takes what refuses less: a build
//! that fails tells why, a refusal that is wrong cannot be got around.

use super::{Architecture, Capability, CudaDriver, Need, NeedRow, Toolkit};
use crate::version::Version;

const fn cc(major: u32, minor: u32) -> Capability {
    Capability { major, minor }
}

const fn v(major: u32, minor: u32, patch: u32) -> Version {
    Version::new(major, minor, patch)
}

const RELEASE_8_6: &str =
    "TensorRT release notes 8.6.0: 8.5.3 was the last for SM 3.x and 5.x (github.com/NVIDIA/TensorRT/issues/3589)";
const NO_PASCAL: &str = "TensorRT 10.1 support matrix: SM 7.0 or higher; 10.0.1 ends in 'Unsupported SM: 0x601' (github.com/NVIDIA/TensorRT/issues/3826)";
const NO_VOLTA: &str = "TensorRT release notes 10.5.0: support for compute capability 7.0 removed";
const SINCE_8_4: &str = "TensorRT 8.4.3 and 10.1 support matrices, hardware and precision";
const HOPPER: &str = "TensorRT 8.5.1 changelog and support matrix 8.5.3: 9.0; it is in none before";
const ADA: &str = "8.4.1 ends in 'Unsupported SM: 0x809', 8.5.1 builds (github.com/NVIDIA/TensorRT/issues/2727)";
const BLACKWELL: &str =
    "TensorRT release notes 10.8.0: first with Blackwell; 10.7.0 ends in 'Target GPU SM 120 is not supported'";

/// By capability. `until` is the first version that lacks it.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture { capability: cc(3, 5), name: "Kepler", since: None, until: Some(v(8, 6, 0)), source: RELEASE_8_6 },
    Architecture { capability: cc(3, 7), name: "Kepler", since: None, until: Some(v(8, 6, 0)), source: RELEASE_8_6 },
    Architecture { capability: cc(5, 0), name: "Maxwell", since: None, until: Some(v(8, 6, 0)), source: RELEASE_8_6 },
    Architecture { capability: cc(5, 2), name: "Maxwell", since: None, until: Some(v(8, 6, 0)), source: RELEASE_8_6 },
    Architecture { capability: cc(5, 3), name: "Maxwell", since: None, until: Some(v(8, 6, 0)), source: RELEASE_8_6 },
    Architecture { capability: cc(6, 0), name: "Pascal", since: None, until: Some(v(10, 0, 0)), source: NO_PASCAL },
    Architecture { capability: cc(6, 1), name: "Pascal", since: None, until: Some(v(10, 0, 0)), source: NO_PASCAL },
    Architecture { capability: cc(6, 2), name: "Pascal", since: None, until: Some(v(10, 0, 0)), source: NO_PASCAL },
    Architecture { capability: cc(7, 0), name: "Volta", since: None, until: Some(v(10, 5, 0)), source: NO_VOLTA },
    Architecture { capability: cc(7, 2), name: "Volta", since: None, until: Some(v(10, 5, 0)), source: NO_VOLTA },
    Architecture { capability: cc(7, 5), name: "Turing", since: None, until: None, source: SINCE_8_4 },
    Architecture { capability: cc(8, 0), name: "Ampere", since: None, until: None, source: SINCE_8_4 },
    Architecture { capability: cc(8, 6), name: "Ampere", since: None, until: None, source: SINCE_8_4 },
    Architecture { capability: cc(8, 7), name: "Ampere", since: None, until: None, source: SINCE_8_4 },
    Architecture { capability: cc(8, 9), name: "Ada", since: Some(v(8, 5, 1)), until: None, source: ADA },
    Architecture { capability: cc(9, 0), name: "Hopper", since: Some(v(8, 5, 1)), until: None, source: HOPPER },
    Architecture { capability: cc(10, 0), name: "Blackwell", since: Some(v(10, 8, 0)), until: None, source: BLACKWELL },
    Architecture { capability: cc(10, 1), name: "Blackwell", since: Some(v(10, 8, 0)), until: None, source: BLACKWELL },
    Architecture { capability: cc(10, 3), name: "Blackwell", since: Some(v(10, 8, 0)), until: None, source: BLACKWELL },
    Architecture { capability: cc(11, 0), name: "Blackwell", since: Some(v(10, 8, 0)), until: None, source: BLACKWELL },
    Architecture { capability: cc(12, 0), name: "Blackwell", since: Some(v(10, 8, 0)), until: None, source: BLACKWELL },
    Architecture { capability: cc(12, 1), name: "Blackwell", since: Some(v(10, 8, 0)), until: None, source: BLACKWELL },
];

const MATRIX: &str = "TensorRT 10.1 support matrix, hardware and precision";

/// What a spec may ask that not every board has.
pub const NEEDS: &[NeedRow] = &[
    NeedRow {
        need: Need::Bf16,
        name: "bf16",
        first: cc(8, 0),
        refused: true,
        source: "TensorRT 10.1 support matrix; from 8.0 on (github.com/microsoft/onnxruntime/pull/24915)",
    },
    NeedRow {
        need: Need::Fp8,
        name: "fp8",
        first: cc(8, 9),
        refused: true,
        source: "TensorRT 10.1 support matrix; 'Networks with FP8 precision require hardware with FP8 support' (github.com/NVIDIA/TensorRT-LLM/issues/1428)",
    },
    NeedRow {
        need: Need::AmperePlus,
        name: "hardware compatibility ampere+",
        first: cc(8, 0),
        refused: true,
        source: "TensorRT documentation, hardware compatibility: ampere+ builds on Ampere and newer",
    },
    NeedRow {
        need: Need::SameComputeCapability,
        name: "hardware compatibility same_compute_capability",
        first: cc(7, 5),
        refused: true,
        source: "TensorRT documentation, hardware compatibility: same compute capability from Turing on",
    },
    NeedRow { need: Need::Tf32, name: "tf32", first: cc(8, 0), refused: false, source: MATRIX },
    NeedRow {
        need: Need::Sparsity,
        name: "structured sparsity",
        first: cc(8, 0),
        refused: false,
        source: "TensorRT documentation, structured sparsity: Ampere and newer",
    },
    NeedRow { need: Need::FastFp16, name: "fast fp16", first: cc(7, 0), refused: false, source: MATRIX },
    NeedRow { need: Need::FastInt8, name: "fast int8", first: cc(6, 1), refused: false, source: MATRIX },
];

const CUDA_DRIVERS: &str =
    "CUDA documentation, minor version compatibility: 11.x from 450, 12.x from 525, 13.x from 580";

/// Oldest driver branch of each CUDA generation.
pub const DRIVERS: &[CudaDriver] = &[
    CudaDriver { cuda_major: 11, branch: 450, source: CUDA_DRIVERS },
    CudaDriver { cuda_major: 12, branch: 525, source: CUDA_DRIVERS },
    CudaDriver { cuda_major: 13, branch: 580, source: CUDA_DRIVERS },
];

/// Oldest CUDA generation that a version is published for, by first version.
pub const TOOLKITS: &[Toolkit] = &[
    Toolkit { since: v(8, 4, 0), cuda_major: 11, source: "TensorRT 8.4.3 support matrix" },
    Toolkit { since: v(10, 13, 2), cuda_major: 12, source: "TensorRT 10.13.2 changelog: CUDA 11.x dropped" },
    Toolkit {
        since: v(11, 1, 0),
        cuda_major: 13,
        source: "TensorRT release notes 11.1.0: CUDA 13.3 on every platform",
    },
];
