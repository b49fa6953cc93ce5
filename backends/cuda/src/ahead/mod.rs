//! What can be compiled for a device that is elsewhere: every kernel of our own that its engine's steps may be computed by.
//!
//! Which they are follows from the graph and from what is known of the device; NVRTC compiles for any architecture, and
//! cuDNN for a device that is described to it (`plans`). A build on the device finds the code under the
//! digest of its source, times it as if it had compiled it itself, and decides; code that it does not ask for is as good
//! as absent.

mod plans;

pub use plans::{LibraryPlans, Made};

use crate::{
    build::Draft,
    codegen::gemm,
    source::{Source, source_digest},
    tune::{Effort, forms, own_sources},
};
use planforge_kernels_cuda::{
    compilers::Compilers,
    nvrtc::{self, Arch},
};
use planforge_types::{
    Digest,
    fingerprint::{DeviceFingerprint, GpuFacts},
};
use rayon::prelude::*;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Most shared memory that one block may ask for, by compute capability. One that is not known here has at least what
/// the smallest of the later ones has.
const SHARED_BLOCK_KIB: [(u32, u32); 9] =
    [(75, 64), (80, 163), (86, 99), (87, 163), (89, 99), (90, 227), (100, 227), (103, 227), (120, 99)];
const SHARED_BLOCK_LEAST_KIB: u32 = 99;

/// Multiprocessors that are reckoned with where the device did not say.
const USUAL_SM_COUNT: u32 = 80;

/// The architecture of a described device; `None` where it does not say.
pub fn arch_of(gpu: &GpuFacts) -> Option<Arch> {
    let (major, minor) = gpu.compute_capability.split_once('.')?;
    Some(Arch::of_device(major.parse().ok()?, minor.parse().ok()?))
}

fn shared_block_kib(capability: u32) -> Option<u32> {
    SHARED_BLOCK_KIB.iter().find(|(known, _)| *known == capability).map(|(_, kib)| *kib)
}

fn target_of_device(device: &DeviceFingerprint, arch: Arch) -> gemm::Device {
    target_of(&device.gpu.clone().unwrap_or_default(), arch)
}

/// A described device as the choice of kernels knows it.
fn target_of(gpu: &GpuFacts, arch: Arch) -> gemm::Device {
    let kib = shared_block_kib(arch.capability).unwrap_or(SHARED_BLOCK_LEAST_KIB);
    let sm_count = gpu.sm_count.unwrap_or(USUAL_SM_COUNT);
    gemm::Device { capability: arch.capability, sm_count, shared_block_bytes: kib << 10 }
}

/// The sources of every kernel that the steps of the engine may be computed by on such a device, by digest.
pub fn sources(draft: &Draft, gpu: &GpuFacts, arch: Arch, level: u8) -> BTreeMap<Digest, Source> {
    let (target, effort) = (target_of(gpu, arch), Effort::of_level(level));
    let mut all = BTreeMap::new();
    for mut program in draft.programs.iter().flat_map(|program| forms(program, target, effort)) {
        let (own, _) = own_sources(target, &mut program, &BTreeMap::new(), effort);
        all.extend(program.sources.into_iter().chain(own).map(|source| (source_digest(&source), source)));
    }
    all
}

/// Compiles on all cores. What does not compile is left out: the device's own build says so again. `None`: cancelled.
pub fn compile(
    sources: &BTreeMap<Digest, Source>,
    arch: Arch,
    go_on: &(dyn Fn(usize) -> bool + Sync),
) -> Option<BTreeMap<Digest, Vec<u8>>> {
    let (done, compilers) = (AtomicUsize::new(0), Compilers::here());
    let compiled: Vec<Option<(Digest, Vec<u8>)>> = sources
        .par_iter()
        .map(|(digest, source)| {
            if !go_on(done.fetch_add(1, Ordering::Relaxed)) {
                return None;
            }
            let source = nvrtc::Source { name: &source.name, text: &source.text, options: &[] };
            match compilers.compile(source, arch) {
                Ok(compiled) => Some((*digest, compiled.bytes)),
                Err(error) => {
                    tracing::debug!(%error, "a candidate does not compile");
                    Some((*digest, Vec::new()))
                }
            }
        })
        .collect();
    let compiled: Option<BTreeMap<Digest, Vec<u8>>> = compiled.into_iter().collect();
    compiled.map(|code| code.into_iter().filter(|(_, code)| !code.is_empty()).collect())
}
