//! Plans that fit, plans that do not, and bytes that are no plan.

use super::*;
use bytes::Bytes;
use planforge_plan::container::{KIND_CUDA_MANIFEST, KIND_MANIFEST, KIND_WEIGHTS, Writer};
use proptest::prelude::*;
use std::{collections::BTreeMap, convert::Infallible, io};

/// Bytes that count how much of them is asked for.
struct Memory(Bytes);

impl Source for Memory {
    type Error = Infallible;

    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, Infallible> {
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}

struct Job {
    model: Digest,
    sku: Sku,
    toolchain: Toolchain,
    spec: BuildSpec,
}

impl Job {
    fn of(backend: &str, version: &str, sku: &str) -> Self {
        Self {
            model: Digest::of(b"model"),
            sku: sku.parse().unwrap(),
            toolchain: Toolchain { backend: backend.into(), version: version.into(), components: BTreeMap::new() },
            spec: BuildSpec { threads: Some(2), ..BuildSpec::default() },
        }
    }

    fn native() -> Self {
        Self::of("native", "3", "cpu-x86-64-v3")
    }

    fn manifest(&self) -> serde_json::Value {
        serde_json::json!({
            "format": 1,
            "model": "digits",
            "model_digest": self.model.to_string(),
            "sku": self.sku.to_string(),
            "toolchain": self.toolchain,
            "spec": self.spec,
        })
    }

    fn check(&self, plan: &[u8]) -> Result<(), String> {
        let expected = Expected { model: self.model, sku: &self.sku, toolchain: &self.toolchain, spec: &self.spec };
        let checked = futures::executor::block_on(check(&Memory(Bytes::copy_from_slice(plan)), &expected));
        checked.map_err(|error| error.to_string())
    }

    fn refused(&self, plan: &[u8]) -> String {
        self.check(plan).expect_err("no plan of this job")
    }
}

fn container(kind: u32, manifest: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan");
    let mut writer = Writer::create(&path, 2).unwrap();
    writer.section::<io::Error>(kind, |out| out.write_all(manifest)).unwrap();
    writer.section::<io::Error>(KIND_WEIGHTS, |out| out.write_all(&[7; 5_000])).unwrap();
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}

fn native_plan(job: &Job) -> Vec<u8> {
    container(KIND_MANIFEST, job.manifest().to_string().as_bytes())
}

#[test]
fn a_native_plan_is_the_jobs_or_it_says_what_does_not_fit() {
    let job = Job::native();
    let plan = native_plan(&job);
    job.check(&plan).unwrap();
    for (words, other) in [
        ("from the model", Job { model: Digest::of(b"other"), ..Job::native() }),
        ("for cpu-x86-64-v3, not cpu-x86-64-v2", Job { sku: "cpu-x86-64-v2".parse().unwrap(), ..Job::native() }),
        ("by native 3, not native 4", Job::of("native", "4", "cpu-x86-64-v3")),
        ("as {", Job { spec: BuildSpec { threads: Some(3), ..BuildSpec::default() }, ..Job::native() }),
        ("lacks its manifest", Job::of("native", "3", "h100-sxm")),
    ] {
        let said = other.refused(&plan);
        assert!(said.contains(words), "{words}: {said}");
    }
    let cuda = Job::of("native", "3", "h100-sxm");
    let plan = container(KIND_CUDA_MANIFEST, cuda.manifest().to_string().as_bytes());
    cuda.check(&plan).unwrap();
}

#[test]
fn a_spec_is_compared_in_its_canonical_form() {
    let job = Job::native();
    let mut manifest = job.manifest();
    manifest["spec"] = serde_json::json!({ "threads": 2 });
    job.check(&container(KIND_MANIFEST, manifest.to_string().as_bytes())).unwrap();
}

#[test]
fn random_bytes_are_nobodys_plan() {
    let random: Vec<u8> = (0..5_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (backend, version) in [("native", "3"), ("tensorrt", "10.3.0.26"), ("onnxruntime", "1.23.0"), ("other", "1")] {
        let job = Job::of(backend, version, "cpu-x86-64-v3");
        for plan in [&random[..], &[], &random[..1]] {
            job.refused(plan);
        }
    }
}

#[test]
fn a_damaged_manifest_or_a_cut_is_seen() {
    let job = Job::native();
    let plan = native_plan(&job);
    for length in [1, 47, 48, 100, 4_096, plan.len() - 1] {
        job.refused(&plan[..length]);
    }
    let mut longer = plan.clone();
    longer.push(0);
    job.refused(&longer);
    for at in (0..160).chain(4_096..4_200) {
        let mut damaged = plan.clone();
        damaged[at] ^= 1;
        job.refused(&damaged);
    }
    let said = job.refused(&container(KIND_MANIFEST, b"{}"));
    assert!(said.contains("manifest cannot be read"), "{said}");
}

fn framed(version: [u8; 4], bytes: usize) -> Vec<u8> {
    let mut plan = vec![0; bytes];
    plan[..4].copy_from_slice(b"ftrt");
    plan[8] = 1;
    plan[16..24].copy_from_slice(&(bytes as u64).to_le_bytes());
    plan[24..28].copy_from_slice(&version);
    plan
}

#[test]
fn a_tensorrt_plan_has_magic_size_and_version() {
    let job = Job::of("tensorrt", "10.3.0.26", "l4");
    job.check(&framed([10, 3, 0, 26], 400)).unwrap();
    job.check(b"ptrt\xe8\0\0\0older ones tell no more").unwrap();
    let other = job.refused(&framed([10, 5, 0, 18], 400));
    assert!(other.contains("10.5.0.18") && other.contains("10.3.0.26"), "{other}");
    let cut = job.refused(&framed([10, 3, 0, 26], 400)[..399]);
    assert!(cut.contains("400 bytes"), "{cut}");
    let wrapped = [&13_u32.to_le_bytes()[..], br#"{"task": "a"}"#, &framed([10, 3, 0, 26], 400)].concat();
    assert!(job.refused(&wrapped).contains("in front"));
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

fn onnxruntime_plan(job: &Job, model: &[u8]) -> Vec<u8> {
    let entry = [field(1, b"planforge.onnxruntime"), field(2, job.manifest().to_string().as_bytes())].concat();
    [field(14, &entry), model.to_vec()].concat()
}

/// One node, one input, one output.
fn tiny_model() -> Vec<u8> {
    let edge = |name: &str| field(1, name.as_bytes());
    let node = [field(1, b"x"), field(2, b"y"), field(4, b"Relu")].concat();
    let graph = [field(1, &node), field(2, b"g"), field(11, &edge("x")), field(12, &edge("y"))].concat();
    let opset = [vec![0x10, 17]].concat();
    [vec![0x08, 8], field(7, &graph), field(8, &opset)].concat()
}

#[test]
fn an_onnx_runtime_plan_has_its_manifest_and_a_graph_that_reads() {
    let job = Job::of("onnxruntime", "1.23.0", "cpu-x86-64-v3");
    let plan = onnxruntime_plan(&job, &tiny_model());
    job.check(&plan).unwrap();
    let other = Job { sku: "cpu-x86-64-v2".parse().unwrap(), ..Job::of("onnxruntime", "1.23.0", "cpu-x86-64-v3") };
    assert!(other.refused(&plan).contains("not cpu-x86-64-v2"));
    let broken = job.refused(&onnxruntime_plan(&job, &[0x3a, 0x10, 1, 2, 3]));
    assert!(broken.contains("graph cannot be read"), "{broken}");
    assert!(job.refused(&tiny_model()).contains("manifest"));
    for length in 0..plan.len() - tiny_model().len() {
        job.refused(&plan[..length]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes and whatever is changed in good ones: an answer, and never more memory than the plan has.
    #[test]
    fn hostile_bytes_are_answered(
        backend in 0..3_usize, at in 0..300_usize, with in any::<[u8; 8]>(), tail in prop::collection::vec(any::<u8>(), 0..64)
    ) {
        let (job, mut plan) = match backend {
            0 => (Job::native(), native_plan(&Job::native())),
            1 => (Job::of("tensorrt", "10.3.0.26", "l4"), framed([10, 3, 0, 26], 400)),
            _ => {
                let job = Job::of("onnxruntime", "1.23.0", "cpu-x86-64-v3");
                let plan = onnxruntime_plan(&job, &tiny_model());
                (job, plan)
            }
        };
        let end = (at + with.len()).min(plan.len());
        if at < end {
            plan[at..end].copy_from_slice(&with[..end - at]);
        }
        plan.extend_from_slice(&tail);
        let _ = job.check(&plan);
    }
}
