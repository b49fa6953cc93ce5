//! A plan in words and as JSON, without a device.

use crate::{
    plan::{self, KernelCode, PlanError, Tried, TunedOn},
    program::{Place, Work},
    versions::Versions,
};
use planforge_device::gpu;
use planforge_kernels_cuda::nvrtc::Arch;
use planforge_plan::{
    GraphSummary, PassSummary,
    container::{MAJOR, MINOR},
    lines::{self, LABEL_WIDTH},
};
use planforge_report::{format::mib, gelu};
use planforge_types::{BuildSpec, Digest, Port, Sku, Toolchain, fingerprint::HostFacts, shown::Lines};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, path::Path};

/// What a plan holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    pub format: String,
    pub model_digest: Digest,
    pub sku: Sku,
    pub tuned_on: TunedOn,
    /// Whether a device of its architecture is here.
    pub runs_here: bool,
    /// Devices of its architecture are here, none of the class that it was tuned on.
    pub foreign: bool,
    pub toolchain: Toolchain,
    pub versions: Versions,
    pub spec: BuildSpec,
    pub graph: GraphSummary,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub passes: Vec<PassSummary>,
    pub profiles: Vec<InspectedProfile>,
    pub kernels: Vec<KernelCode>,
    /// cuDNN's own plans inside, and whether the model is, for graphs of other shapes.
    pub library_plans: usize,
    pub holds_model: bool,
    pub weight_bytes: u64,
}

/// The program of one optimization profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedProfile {
    /// Usual shapes of the inputs.
    pub shapes: BTreeMap<String, Vec<u64>>,
    /// Smaller batches run in the same graph.
    pub pads_batch: bool,
    pub arena_bytes: u64,
    /// What the arena would be if no two buffers shared a place.
    pub without_reuse_bytes: u64,
    pub workspace_bytes: u64,
    /// Streams that its steps run on side by side.
    #[serde(default = "one_stream")]
    pub streams: u32,
    /// How many steps each way of computing has.
    pub tactics: BTreeMap<String, usize>,
    /// Inputs that are changed in place, by name: the output that each then is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub states: BTreeMap<String, String>,
    /// Those that come out one place longer, in the same memory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub growing: BTreeMap<String, String>,
    /// How many GELUs are computed in which form.
    #[serde(default)]
    pub gelu: BTreeMap<String, u64>,
    pub steps: Vec<InspectedStep>,
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedStep {
    pub kind: String,
    pub tactic: String,
    pub precision: String,
    /// Which of the streams it runs on.
    #[serde(default)]
    pub stream: u32,
    /// The model's nodes it computes; more than one: they were fused.
    pub nodes: Vec<String>,
    pub flops: u64,
    pub bytes: u64,
    /// Tactics tried, fastest first.
    pub tried: Vec<Tried>,
}

fn one_stream() -> u32 {
    1
}

/// Reads a plan, checks all of it, and says what it holds.
pub fn inspect(path: &Path) -> Result<Inspection, PlanError> {
    let plan = plan::read(path)?;
    let (library_plans, holds_model) = (plan.library_plans().len(), plan.holds_model());
    let weight_bytes = plan.weights().len() as u64;
    let manifest = plan.manifest;
    let gpus = gpu::detect(&HostFacts::default());
    let fitting: Vec<_> = gpus.iter().filter(|found| architecture(found) == manifest.tuned_on.architecture).collect();
    let runs_here = !fitting.is_empty();
    let foreign = runs_here && !fitting.iter().any(|found| found.class_digest() == manifest.device_class);
    let profiles = manifest.programs.iter().map(inspected).collect();
    Ok(Inspection {
        format: format!("{MAJOR}.{MINOR}"),
        model_digest: manifest.model_digest,
        sku: manifest.sku,
        tuned_on: manifest.tuned_on,
        runs_here,
        foreign,
        toolchain: manifest.toolchain,
        versions: manifest.versions,
        spec: manifest.spec,
        graph: manifest.graph,
        inputs: manifest.inputs,
        outputs: manifest.outputs,
        passes: manifest.passes,
        profiles,
        kernels: manifest.kernels,
        library_plans,
        holds_model,
        weight_bytes,
    })
}

fn architecture(found: &planforge_types::fingerprint::DeviceFingerprint) -> String {
    let capability = found.gpu.as_ref().map_or("", |gpu| gpu.compute_capability.as_str());
    let mut parts = capability.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    Arch::of_device(parts.next().unwrap_or(0), parts.next().unwrap_or(0)).to_string()
}

fn inspected(profile: &plan::ProfileProgram) -> InspectedProfile {
    let program = &profile.program;
    let mut tactics = BTreeMap::new();
    let steps: Vec<InspectedStep> = program
        .steps
        .iter()
        .map(|step| {
            let (by, tactic) = match (&step.tactic, &step.work) {
                (Some(tactic), _) => (tactic.library(), tactic.name()),
                (None, Work::Kernel(kernel)) => ("kernel", format!("kernel {}", program.sources[kernel.source].name)),
                (None, _) => ("none", String::new()),
            };
            *tactics.entry(format!("{by} {}", step.work.kind())).or_default() += 1;
            InspectedStep {
                kind: step.work.kind().to_owned(),
                tactic,
                precision: step.work.views().1.kind.name().to_owned(),
                stream: step.stream,
                nodes: step.origins.clone(),
                flops: step.flops,
                bytes: step.bytes,
                tried: profile.tried.get(&step.name).cloned().unwrap_or_default(),
            }
        })
        .collect();
    let in_arena = program.buffers.iter().filter(|buffer| matches!(buffer.place, Place::Arena(_)));
    InspectedProfile {
        shapes: program.inputs.iter().map(|edge| (edge.name.clone(), edge.shape.clone())).collect(),
        pads_batch: profile.rows_apart,
        arena_bytes: program.arena_bytes,
        without_reuse_bytes: in_arena.map(|buffer| buffer.bytes).sum(),
        workspace_bytes: program.workspace_bytes(),
        streams: program.steps.iter().map(|step| step.stream + 1).max().unwrap_or(1),
        tactics,
        states: program.state_names(false).collect(),
        growing: program.state_names(true).collect(),
        gelu: program.gelus(),
        steps,
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Lines::new(f);
        writeln!(
            f,
            "plan format {} for {} ({}), {}",
            self.format, self.sku, self.tuned_on.architecture, self.toolchain
        )?;
        writeln!(f, "model   {} {}", self.model_digest, self.graph.name)?;
        writeln!(f, "tuned   on {}, {} multiprocessors", self.tuned_on.name, self.tuned_on.sm_count)?;
        let graph = &self.graph;
        writeln!(
            f,
            "graph   {} nodes imported, {} after optimisation, {:.2} M parameters",
            graph.imported_nodes,
            graph.nodes,
            graph.parameters as f64 / 1e6
        )?;
        let precision = self.spec.precision.to_string();
        writeln!(
            f,
            "stored  {precision}, {} weights, {} kernels, {} library plans",
            mib(self.weight_bytes),
            self.kernels.len(),
            self.library_plans
        )?;
        match (self.runs_here, self.foreign) {
            (false, _) => writeln!(f, "note    no device of its architecture is here")?,
            (true, true) => writeln!(f, "note    foreign: it was tuned on another kind of device than is here")?,
            (true, false) => {}
        }
        lines::ports(f, LABEL_WIDTH, &self.inputs, &self.outputs)?;
        lines::passes(f, LABEL_WIDTH, &self.passes)?;
        for (index, profile) in self.profiles.iter().enumerate() {
            let shapes: Vec<String> = profile.shapes.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect();
            let pads = if profile.pads_batch { ", smaller batches run in it" } else { "" };
            writeln!(f, "profile {index}: {}{pads}", shapes.join(", "))?;
            writeln!(
                f,
                "memory  {} activations ({} without reuse), {} workspace",
                mib(profile.arena_bytes),
                mib(profile.without_reuse_bytes),
                mib(profile.workspace_bytes)
            )?;
            if profile.streams > 1 {
                let aside = profile.steps.iter().filter(|step| step.stream > 0).count();
                writeln!(f, "streams {}, {aside} of {} steps beside the first", profile.streams, profile.steps.len())?;
            }
            if !profile.states.is_empty() {
                writeln!(f, "states  {} inputs are changed in place, and are outputs:", profile.states.len())?;
            }
            for (input, output) in &profile.states {
                writeln!(f, "        {input} -> {output}")?;
            }
            if !profile.growing.is_empty() {
                let count = profile.growing.len();
                writeln!(f, "states  {count} inputs are outputs with one place more, in the same memory:")?;
            }
            for (input, output) in &profile.growing {
                writeln!(f, "        {input} -> {output}")?;
            }
            if let Some(words) = gelu::words(&profile.gelu) {
                writeln!(f, "GELU    {words}")?;
            }
            for (tactic, count) in &profile.tactics {
                writeln!(f, "tactic  {tactic} x {count}")?;
            }
            for (number, step) in profile.steps.iter().enumerate() {
                let stream = if step.stream > 0 { format!("s{}", step.stream) } else { String::new() };
                writeln!(
                    f,
                    "{number:4}{stream:<2} {:<14} {:<5} {:<40} {}",
                    step.kind,
                    step.precision,
                    step.tactic,
                    step.nodes.join(" + ")
                )?;
                for tried in &step.tried {
                    writeln!(f, "        {:10.1} us  {}", tried.us, tried.tactic)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `inspect --json` is kept beside plans and read again, by programs that say more since.
    #[test]
    fn what_an_older_program_said_of_a_profile_is_read() {
        let older = serde_json::json!({
            "shapes": { "x": [1, 3, 8, 8] },
            "pads_batch": false,
            "arena_bytes": 4096,
            "without_reuse_bytes": 8192,
            "workspace_bytes": 0,
            "tactics": { "cuDNN": 1 },
            "steps": [{
                "kind": "convolution", "tactic": "cuDNN engine 5", "precision": "fp16", "nodes": ["conv"],
                "flops": 1, "bytes": 2, "tried": [],
            }],
        });
        let profile: InspectedProfile = serde_json::from_value(older).expect("it is read");
        assert_eq!((profile.streams, profile.steps[0].stream), (1, 0));
        assert!(profile.states.is_empty() && profile.growing.is_empty() && profile.gelu.is_empty());
        let again = serde_json::to_value(&profile).expect("JSON");
        assert!(
            again.get("growing").is_none() && again.get("states").is_none(),
            "said where there is something: {again}"
        );
    }
}
