//! Real architectures become programs that keep every promise of a plan, without a GPU.

use planforge_cuda::{
    lower::lower,
    program::Work,
    view::{Kind, View},
};
use planforge_modelgen::Options;
use planforge_passes::Target;

/// Lowers a generated model and counts its steps by kind.
fn steps(name: &str, float: Kind) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.onnx");
    planforge_modelgen::generate(name, &Options::default(), &path).expect("the model is written");
    let model = planforge_onnx::Model::open(&path).expect("the model is read");
    let graph = planforge_import::import(&model, None).expect("the model is imported");
    let graph = planforge_passes::pipeline(graph, Target::default()).expect("the passes keep the graph").graph;
    let lowered = lower(&graph, float).expect("every node has device code");
    lowered.program.check().expect("every view lies inside its buffer");
    assert_eq!(lowered.program.weight_bytes, lowered.weights.len() as u64);
    let mut names: Vec<&str> = lowered.program.steps.iter().map(|step| step.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), lowered.program.steps.len(), "names are unique");
    for step in &lowered.program.steps {
        let (read, written) = step.work.views();
        let mut buffers: Vec<usize> = read.into_iter().map(|view| view.buffer.0 as usize).collect();
        buffers.sort_unstable();
        buffers.dedup();
        buffers.push(written.buffer.0 as usize);
        let held: u64 = buffers.into_iter().map(|index| lowered.program.buffers[index].bytes).sum();
        assert!((1..=held).contains(&step.bytes), "{} moves {} bytes of {held}", step.name, step.bytes);
    }
    for step in lowered.program.steps.iter().filter(|step| step.work.kind() == "copy") {
        let (read, written) = step.work.views();
        let moved = |view: &&View| view.buffer != written.buffer || view.offset != written.offset;
        assert!(read.iter().any(moved), "{} copies what lies in its place", step.name);
    }
    lowered.program.steps.iter().map(|step| step.work.kind().to_owned()).collect()
}

fn count(steps: &[String], kind: &str) -> usize {
    steps.iter().filter(|step| *step == kind).count()
}

#[test]
fn a_detector_concatenates_without_copies() {
    let steps = steps("yolo-s", Kind::F16);
    assert_eq!(count(&steps, "pool"), 3);
    // Two upsamplings are copies that repeat; nothing else moves.
    assert!(count(&steps, "copy") <= 5, "{steps:?}");
    assert_eq!(count(&steps, "conv"), 60);
}

#[test]
fn mobile_networks_have_their_depthwise_convolutions() {
    for float in [Kind::F16, Kind::Bf16, Kind::F32] {
        assert_eq!(count(&steps("mobilenet-v3-large", float), "depthwise_conv"), 15);
    }
    assert_eq!(count(&steps("efficientnet-b0", Kind::F16), "depthwise_conv"), 16);
}

#[test]
fn programs_survive_being_written_down() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("digits.onnx");
    planforge_modelgen::generate("digits", &Options::default(), &path).expect("the model is written");
    let graph = planforge_import::import(&planforge_onnx::Model::open(&path).expect("read"), None).expect("imported");
    let program = lower(&planforge_passes::pipeline(graph, Target::default()).expect("passes").graph, Kind::F16)
        .expect("lowered")
        .program;
    let text = serde_json::to_string(&program).expect("a program has only JSON types");
    let again: planforge_cuda::program::Program = serde_json::from_str(&text).expect("and is read back");
    assert_eq!(again, program);
    assert!(program.steps.iter().any(|step| matches!(step.work, Work::Conv(_) | Work::Product(_))));
    let mut broken = program.clone();
    broken.buffers[0].bytes = 1;
    broken.arena_bytes = 1;
    assert!(broken.check().is_err());
}
