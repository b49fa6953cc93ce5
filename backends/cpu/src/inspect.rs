//! A plan in words and as JSON: graph, steps with their kernels, tactics tried, memory.

use super::{
    meter::{input_port, output_ports},
    plan::{self, PlanError, TailSummary, isa_level},
    program::{Place, Program, StepKind},
};
use planforge_backend::Cache;
use planforge_device::CpuLevel;
use planforge_plan::{
    GraphSummary, PassSummary,
    container::MINOR,
    lines::{self, LABEL_WIDTH},
    signature::InputSignature,
};
use planforge_report::{format::mib, gelu};
use planforge_types::{BuildSpec, Digest, Port, Sku, Toolchain, shown::Lines};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, path::Path};

/// What a plan holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    pub format: String,
    pub model_digest: Digest,
    pub sku: Sku,
    /// Instruction set of its kernels.
    pub instruction_set: String,
    /// Whether this machine can run it.
    pub runs_here: bool,
    /// Its tactics were timed on a CPU of another class: it runs, but may not be the fastest here.
    pub foreign: bool,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    pub threads: u32,
    pub graph: GraphSummary,
    pub inputs: Vec<Port>,
    /// A dimension without size depends on the inputs'.
    pub outputs: Vec<Port>,
    /// What each optimization profile takes; one of fixed shapes where the plan has none.
    pub profiles: Vec<InspectedProfile>,
    /// What the optimiser did.
    pub passes: Vec<PassSummary>,
    /// Of the first profile at its usual shapes, in the order they run.
    pub steps: Vec<InspectedStep>,
    /// How many steps each kernel computes.
    pub kernels: BTreeMap<String, usize>,
    /// How many GELUs are computed in which form.
    #[serde(default)]
    pub gelu: BTreeMap<String, u64>,
    pub memory: InspectedMemory,
    /// What follows the steps, where only data decides some sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailSummary>,
    /// Inputs that an output takes the place of at the next run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<Cache>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedStep {
    pub kind: String,
    /// What computes it; begins with the instruction set.
    pub kernel: String,
    /// The model's nodes it computes; more than one: they were fused.
    pub nodes: Vec<String>,
    pub flops: u64,
    /// Tactics tried, fastest first, with their quickest run in microseconds.
    pub tried: Vec<InspectedTactic>,
    pub detail: serde_json::Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedTactic {
    pub name: String,
    pub best_us: Option<f64>,
}

/// One optimization profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedProfile {
    pub inputs: Vec<InputSignature>,
    /// Memory of its activations at the usual shapes.
    pub arena_bytes: u64,
}

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedMemory {
    pub arena_bytes: u64,
    /// What the arena would be if no two buffers shared a place.
    pub without_reuse_bytes: u64,
    pub weight_bytes: u64,
    pub buffers: Vec<InspectedBuffer>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedBuffer {
    pub name: String,
    /// `arena` or `weights`.
    pub place: String,
    pub offset: u64,
    pub bytes: u64,
    /// First and last step that need it; absent for weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<[usize; 2]>,
}

/// First and last step that need each buffer of the arena. Inputs are kept through every run, outputs to its end.
fn lifetimes(program: &Program) -> Vec<Option<[usize; 2]>> {
    let mut lives: Vec<Option<[usize; 2]>> = vec![None; program.buffers.len()];
    let end = program.steps.len().saturating_sub(1);
    let uses = program.steps.iter().enumerate().flat_map(|(at, step)| {
        let ids = step.reads().chain(step.writes());
        ids.map(move |id| (id, at))
    });
    let inputs = program.inputs.iter().flat_map(|port| [(port.buffer, 0), (port.buffer, end)]);
    let outputs = program.outputs.iter().map(|port| (port.buffer, end));
    for (id, at) in uses.chain(inputs).chain(outputs) {
        let life = lives[id.index()].get_or_insert([at, at]);
        *life = [life[0].min(at), life[1].max(at)];
    }
    lives
}

/// Reads a plan, checks all of it, and says what it holds.
pub fn inspect(path: &Path) -> Result<Inspection, PlanError> {
    let manifest = plan::read(path)?.manifest;
    let level = CpuLevel::of_sku(&manifest.sku).ok_or_else(|| PlanError::Sku { sku: manifest.sku.clone() })?;
    let isa = isa_level(level);
    let program = &manifest.program;
    let outputs = output_ports(&manifest);
    let profiles: Vec<InspectedProfile> = (0..manifest.profiles())
        .filter_map(|index| {
            let arena_bytes = manifest.program_of(index)?.arena_bytes;
            Some(InspectedProfile { inputs: manifest.signature(index)?, arena_bytes })
        })
        .collect();
    let lives = lifetimes(program);
    let steps: Vec<InspectedStep> = program
        .steps
        .iter()
        .map(|step| InspectedStep {
            kind: step.kind.name().to_owned(),
            kernel: step.kernel_name(isa.name()),
            nodes: step.origins.clone(),
            flops: step.kind.flops(),
            tried: step
                .tried
                .iter()
                .map(|tried| InspectedTactic {
                    name: tried.tactic.name(),
                    best_us: tried.best_ns.map(|ns| ns as f64 / 1e3),
                })
                .collect(),
            detail: detail(&step.kind),
        })
        .collect();
    let mut kernels = BTreeMap::new();
    for step in &program.steps {
        let name = step.tactic.as_ref().map_or_else(|| step.kernel_name(isa.name()), |tactic| tactic.kernel.clone());
        *kernels.entry(name).or_default() += 1;
    }
    let buffers: Vec<InspectedBuffer> = program
        .buffers
        .iter()
        .zip(lives)
        .map(|(buffer, steps)| {
            let (place, offset) = match buffer.place {
                Place::Arena(offset) => ("arena", offset),
                Place::Weights(offset) => ("weights", offset),
            };
            let steps = steps.filter(|_| place == "arena");
            InspectedBuffer { name: buffer.name.clone(), place: place.into(), offset, bytes: buffer.bytes, steps }
        })
        .collect();
    let without_reuse_bytes = buffers.iter().filter(|buffer| buffer.place == "arena").map(|buffer| buffer.bytes).sum();
    Ok(Inspection {
        format: format!("{}.{MINOR}", planforge_plan::container::MAJOR),
        instruction_set: isa.name().to_owned(),
        runs_here: plan::level_of(&manifest).is_ok(),
        foreign: manifest.device_class != crate::plan::device_class(),
        inputs: profiles.first().map(|profile| profile.inputs.iter().map(input_port).collect()).unwrap_or_default(),
        outputs,
        profiles,
        steps,
        kernels,
        gelu: crate::gelus::of(program),
        memory: InspectedMemory {
            arena_bytes: program.arena_bytes,
            without_reuse_bytes,
            weight_bytes: program.weight_bytes,
            buffers,
        },
        model_digest: manifest.model_digest,
        sku: manifest.sku,
        toolchain: manifest.toolchain,
        spec: manifest.spec,
        threads: manifest.threads,
        graph: manifest.graph,
        passes: manifest.passes,
        tail: manifest.tail,
        caches: manifest.caches,
    })
}

/// The attributes of a step, but for long lists.
fn detail(kind: &StepKind) -> serde_json::Value {
    let mut value = serde_json::to_value(kind).unwrap_or_default();
    if let Some(items) = value.pointer_mut("/batch_gemm/items") {
        *items = items.as_array().map_or(0, Vec::len).into();
    }
    value
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Lines::new(f);
        writeln!(f, "plan format {} for {} ({}), {}", self.format, self.sku, self.instruction_set, self.toolchain)?;
        writeln!(f, "model   {} {}", self.model_digest, self.graph.name)?;
        let graph = &self.graph;
        writeln!(
            f,
            "graph   {} nodes imported, {} after optimisation, {} steps, {:.2} M parameters",
            graph.imported_nodes,
            graph.nodes,
            self.steps.len(),
            graph.parameters as f64 / 1e6
        )?;
        writeln!(f, "threads {}", self.threads)?;
        match (self.runs_here, self.foreign) {
            (false, _) => writeln!(f, "note    this CPU lacks instructions it needs")?,
            (true, true) => writeln!(f, "note    foreign: its tactics were timed on another kind of CPU")?,
            (true, false) => {}
        }
        lines::ports(f, LABEL_WIDTH, &self.inputs, &self.outputs)?;
        for (index, profile) in self.profiles.iter().enumerate().filter(|_| self.has_profiles()) {
            let inputs: Vec<String> = profile.inputs.iter().map(described).collect();
            let arena = mib(profile.arena_bytes);
            writeln!(f, "profile {index}: {}; {arena} activations at usual shapes", inputs.join(", "))?;
        }
        lines::passes(f, LABEL_WIDTH, &self.passes)?;
        for Cache { input, output, places } in &self.caches {
            let places = places.map_or_else(String::new, |places| format!(", {places} places"));
            writeln!(f, "cache   {input} -> {output}{places}")?;
        }
        if let Some(words) = gelu::words(&self.gelu) {
            writeln!(f, "GELU    {words}")?;
        }
        for (kernel, count) in &self.kernels {
            writeln!(f, "kernel  {kernel} x {count}")?;
        }
        let memory = &self.memory;
        writeln!(
            f,
            "memory  {} activations ({} without reuse), {} weights",
            mib(memory.arena_bytes),
            mib(memory.without_reuse_bytes),
            mib(memory.weight_bytes)
        )?;
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{index:4}  {:<11} {:<40} {}", step.kind, step.kernel, step.nodes.join(" + "))?;
            for tried in step.tried.iter().filter(|tried| tried.best_us.is_some()) {
                writeln!(f, "        {:10.1} us  {}", tried.best_us.unwrap_or(0.0), tried.name)?;
            }
        }
        if let Some(tail) = &self.tail {
            writeln!(
                f,
                "behind  {} nodes whose sizes only data decides, reading {}",
                tail.nodes,
                tail.handed.join(", ")
            )?;
            for reason in &tail.reasons {
                writeln!(f, "        {reason}")?;
            }
        }
        let mut arena: Vec<_> = memory.buffers.iter().filter_map(|buffer| Some((buffer.steps?, buffer))).collect();
        arena.sort_by_key(|([first, last], buffer)| (*first, *last, buffer.offset));
        for ([first, last], buffer) in arena {
            let (from, to) = (buffer.offset, buffer.offset + buffer.bytes);
            writeln!(f, "buffer  {from:>12}..{to:<12} steps {first:>4}..{last:<4} {}", buffer.name)?;
        }
        Ok(())
    }
}

impl Inspection {
    /// Whether any dimension varies, or there is more than one profile.
    fn has_profiles(&self) -> bool {
        let varies = |input: &InputSignature| input.dims.iter().any(|dim| dim.range.min != dim.range.max);
        self.profiles.len() > 1 || self.profiles.iter().flat_map(|profile| &profile.inputs).any(varies)
    }
}

/// `x:1..4..8x3`, as `--shapes` takes it.
fn described(input: &InputSignature) -> String {
    let dims: Vec<String> = input
        .dims
        .iter()
        .map(|dim| match (dim.range.min, dim.range.opt, dim.range.max) {
            (min, _, max) if min == max => min.to_string(),
            (min, opt, max) => format!("{min}..{opt}..{max}"),
        })
        .collect();
    format!("{}:{}", input.name, dims.join("x"))
}
