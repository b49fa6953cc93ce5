//! An engine for this machine's CPU as what runs a model on calibration data: values that are looked at become outputs of
//! the engine that are lent as soon as they are there, images with their channels last, as the engine has them anyway.

use planforge_backend::{Cancel, CompileRequest, Compiler, Events, Lent, LoadOptions, Meter};
use planforge_device::cpu;
use planforge_onnx::{
    Model,
    proto::{
        AttributeProto, GraphProto, NodeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType, type_proto,
    },
    write,
};
use planforge_precision::{PrecisionError, Reference, Runner, See, Seen, Session};
use planforge_types::{
    BuildSpec, Digest, HostTensor, NamedTensors, OptimizationLevel, OptimizationProfile, Toolchain,
    fingerprint::DiscoveredDevice,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// For so many runs a search is worth what it takes.
const MANY_RUNS: usize = 128;
/// Runs of which the median says what each step takes.
const TIMED_RUNS: u32 = 15;
/// ONNX's number for single precision.
const FLOAT: i32 = 1;

/// A compiler's engines on this machine's CPU.
pub struct EngineRunner<'a> {
    compiler: &'a dyn Compiler,
    device: DiscoveredDevice,
    toolchain: Toolchain,
}

impl std::fmt::Debug for EngineRunner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineRunner").field("toolchain", &self.toolchain).finish_non_exhaustive()
    }
}

impl<'a> EngineRunner<'a> {
    /// `None` where the compiler does not know this CPU.
    pub fn here(compiler: &'a dyn Compiler) -> Option<Self> {
        let facts = cpu::host_facts();
        let (fingerprint, levels) = cpu::detect(&facts);
        let skus: Vec<_> = levels.iter().map(|level| level.sku()).collect();
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let device =
            DiscoveredDevice { id: "cpu0".into(), fingerprint, skus, threads, offers: Vec::new(), simulated: false };
        let toolchain = compiler.toolchains(&device).pop()?;
        (!device.skus.is_empty()).then_some(Self { compiler, device, toolchain })
    }
}

struct Silent;

impl Events for Silent {
    fn progress(&self, _: &str, _: f32, _: &str) {}
    fn log(&self, _: &str) {}
}

/// What an engine is for.
#[derive(Clone, Copy, Debug)]
enum For {
    /// To run so often, by lending.
    Runs(usize),
    /// To tell what its steps take: as quick as one that is kept.
    Times,
}

/// A loaded engine, and the folder that its plan lies in.
struct Loaded {
    meter: Box<dyn Meter>,
    /// By output of the engine: the value that is looked at, and whether its channels lie last.
    watched: BTreeMap<String, (String, bool)>,
    outputs: BTreeSet<String>,
    spent: Spent,
    _folder: TempDir,
}

/// Where the time of an engine's runs went.
#[derive(Debug, Default)]
struct Spent {
    runs: u32,
    running: Duration,
    looking: Duration,
}

impl Drop for Spent {
    fn drop(&mut self) {
        let (runs, run_s, look_s) = (self.runs, self.running.as_secs_f32(), self.looking.as_secs_f32());
        tracing::debug!(runs, run_s, look_s, "an engine has run the data");
    }
}

impl Runner for EngineRunner<'_> {
    fn name(&self) -> String {
        format!("{} {}", self.toolchain.backend, self.toolchain.version)
    }

    /// Falls back to the reference where the engine cannot be built: half a calibration is none.
    fn open(
        &self,
        model: &Model,
        profile: Option<&OptimizationProfile>,
        watched: &BTreeSet<String>,
        runs: usize,
    ) -> Result<Box<dyn Session>, PrecisionError> {
        match self.load(model, profile, watched, For::Runs(runs)) {
            Ok(loaded) => Ok(Box::new(loaded)),
            Err(error) => {
                tracing::debug!(%error, "no engine for this model: running it with the reference");
                Reference.open(model, profile, watched, runs)
            }
        }
    }

    fn node_us(
        &self,
        model: &Model,
        profile: Option<&OptimizationProfile>,
        inputs: &NamedTensors,
    ) -> Option<BTreeMap<String, f64>> {
        let mut loaded = self.load(model, profile, &BTreeSet::new(), For::Times).ok()?;
        loaded.meter.bind(inputs).ok()?;
        let mut all = BTreeMap::new();
        for layer in loaded.meter.layers(TIMED_RUNS).ok()? {
            for name in layer.name.split(" + ") {
                *all.entry(name.to_owned()).or_insert(0.0) += layer.median_ms * 1e3;
            }
        }
        Some(all)
    }
}

impl EngineRunner<'_> {
    fn load(
        &self,
        model: &Model,
        profile: Option<&OptimizationProfile>,
        watched: &BTreeSet<String>,
        wanted: For,
    ) -> Result<Loaded, PrecisionError> {
        let began = Instant::now();
        let failed = |message: String| PrecisionError::Run { message };
        let folder = tempfile::tempdir().map_err(|e| failed(format!("cannot create a folder: {e}")))?;
        let mut proto = model.proto.clone();
        let graph = proto.graph.get_or_insert_default();
        let outputs: BTreeSet<String> = graph.output.iter().map(|output| output.name.clone()).collect();
        let inputs: BTreeSet<String> = graph.input.iter().map(|input| input.name.clone()).collect();
        let images = images(graph);
        let mut seen = BTreeMap::new();
        for name in watched.iter().filter(|name| !inputs.contains(*name)) {
            let (output, channels_last) = match images.get(name) {
                _ if outputs.contains(name) => (name.clone(), false),
                None => (name.clone(), false),
                Some(&rank) => {
                    let output = format!("{name} (channels last)");
                    graph.node.push(turned(name, &output, rank));
                    (output, true)
                }
            };
            if !outputs.contains(name) {
                graph.output.push(single(&output));
            }
            seen.insert(output, (name.clone(), channels_last));
        }
        let path = folder.path().join("model.onnx");
        write::save(&path, &proto)?;
        let spec = BuildSpec {
            threads: Some(self.device.threads),
            profiles: profile.into_iter().cloned().collect(),
            // Tactics are not timed for few runs.
            optimization_level: OptimizationLevel(match wanted {
                For::Runs(runs) if runs < MANY_RUNS => 0,
                For::Runs(_) | For::Times => 2,
            }),
            ..BuildSpec::default()
        };
        let request = CompileRequest {
            model: path,
            // Nobody asks an engine that is gone with this call what it was made of.
            model_digest: Digest::of(b""),
            sku: self.device.skus.last().cloned().ok_or_else(|| failed("this CPU has no name".to_owned()))?,
            device: self.device.fingerprint.clone(),
            toolchain: self.toolchain.clone(),
            spec,
            scratch: folder.path().to_owned(),
            cache: None,
            calibration: None,
            plugins: Vec::new(),
        };
        let plan = match wanted {
            For::Runs(_) => {
                let passing = seen.keys().filter(|output| !outputs.contains(*output)).cloned().collect();
                self.compiler.compile_lending(&request, &passing, &Silent, &Cancel::default())
            }
            For::Times => self.compiler.compile(&request, &Silent, &Cancel::default()),
        };
        let plan = plan.map_err(|e| failed(e.message))?;
        let meter = self.compiler.load(&plan.path, &LoadOptions::default()).map_err(|e| failed(e.message))?;
        let (build_s, tuning_s) = (began.elapsed().as_secs_f32(), &plan.facts["tuning_seconds"]);
        tracing::debug!(watched = seen.len(), build_s, %tuning_s, "an engine runs the data");
        Ok(Loaded { meter, watched: seen, outputs, spent: Spent::default(), _folder: folder })
    }
}

impl Session for Loaded {
    fn run(&mut self, inputs: &NamedTensors, see: &mut See<'_>) -> Result<NamedTensors, PrecisionError> {
        let failed = |message: String| PrecisionError::Run { message };
        self.meter.bind(inputs).map_err(|e| failed(e.message))?;
        let mut given = NamedTensors::new();
        let Self { meter, watched, outputs, spent, .. } = self;
        let (began, mut looking) = (Instant::now(), Duration::ZERO);
        let mut look = |lent: &[Lent<'_>]| {
            let seen = lent.iter().filter_map(|lent| {
                let (name, channels_last) = watched.get(lent.name)?;
                let Lent { element, shape, bytes, .. } = *lent;
                Some(Seen { name, element, shape, channels_last: *channels_last, bytes })
            });
            let looked = Instant::now();
            see(&seen.collect::<Vec<_>>());
            looking += looked.elapsed();
            for lent in lent.iter().filter(|lent| outputs.contains(lent.name)) {
                let tensor =
                    HostTensor { element: lent.element, shape: lent.shape.to_vec(), bytes: lent.bytes.to_vec() };
                given.insert(lent.name.to_owned(), tensor);
            }
        };
        meter.run_lending(&mut look).map_err(|e| failed(e.message))?;
        spent.runs += 1;
        spent.looking += looking;
        spent.running += began.elapsed() - looking;
        Ok(given)
    }
}

/// A single-precision output of sizes that nobody says.
fn single(name: &str) -> ValueInfoProto {
    let value = type_proto::Value::TensorType(type_proto::Tensor { elem_type: FLOAT, shape: None });
    let r#type = TypeProto { value: Some(value), ..Default::default() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(r#type), ..Default::default() }
}

/// What convolutions and pools give, and what is computed from that element by element: engines have it with channels last.
/// By name, with the number of axes.
fn images(graph: &GraphProto) -> BTreeMap<String, usize> {
    let mut images: BTreeMap<String, usize> = BTreeMap::new();
    let stored = |name: &str| graph.initializer.iter().find(|tensor| tensor.name == name);
    for node in &graph.node {
        let rank = match node.op_type.as_str() {
            "Conv" => node.input.get(1).and_then(|weight| stored(weight)).map(|weight| weight.dims.len()),
            "MaxPool" | "AveragePool" | "BatchNormalization" | "Relu" | "Clip" | "Sigmoid" | "HardSwish"
            | "HardSigmoid" | "LeakyRelu" | "Elu" => node.input.first().and_then(|input| images.get(input)).copied(),
            "Add" | "Mul" if node.input.iter().all(|input| images.contains_key(input)) => {
                node.input.first().and_then(|input| images.get(input)).copied()
            }
            _ => None,
        };
        if let (Some(rank), Some(output)) = (rank.filter(|rank| *rank > 2), node.output.first()) {
            images.insert(output.clone(), rank);
        }
    }
    images
}

fn turned(value: &str, output: &str, rank: usize) -> NodeProto {
    let order = [0].into_iter().chain(2..rank as i64).chain([1]).collect();
    let perm = AttributeProto {
        name: "perm".to_owned(),
        r#type: AttributeType::Ints.into(),
        ints: order,
        ..Default::default()
    };
    NodeProto {
        name: output.to_owned(),
        op_type: "Transpose".to_owned(),
        input: vec![value.to_owned()],
        output: vec![output.to_owned()],
        attribute: vec![perm],
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_backend::CompiledPlan;
    use planforge_onnx::proto::ModelProto;
    use planforge_types::BackendError;
    use std::{path::Path, sync::Mutex};

    /// Compiles nothing, and remembers what it was asked for.
    #[derive(Default)]
    struct Asked(Mutex<Vec<&'static str>>);

    impl Asked {
        fn refuses(&self, what: &'static str) -> Result<CompiledPlan, BackendError> {
            self.0.lock().unwrap().push(what);
            Err(BackendError::model("it compiles nothing"))
        }
    }

    impl Compiler for Asked {
        fn backend(&self) -> &'static str {
            "asked"
        }

        fn toolchains(&self, _: &DiscoveredDevice) -> Vec<Toolchain> {
            vec![Toolchain { backend: "asked".into(), version: "1".into(), components: BTreeMap::new() }]
        }

        fn check(&self, _: &CompileRequest) -> Result<(), BackendError> {
            Ok(())
        }

        fn compile(&self, _: &CompileRequest, _: &dyn Events, _: &Cancel) -> Result<CompiledPlan, BackendError> {
            self.refuses("to be kept")
        }

        fn compile_lending(
            &self,
            _: &CompileRequest,
            _: &BTreeSet<String>,
            _: &dyn Events,
            _: &Cancel,
        ) -> Result<CompiledPlan, BackendError> {
            self.refuses("to lend")
        }

        fn recognises(&self, _: &[u8]) -> bool {
            false
        }

        fn load(&self, _: &Path, _: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
            Err(BackendError::model("it loads nothing"))
        }
    }

    #[test]
    fn what_steps_take_is_told_of_an_engine_like_one_that_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        write::save(&path, &ModelProto { graph: Some(GraphProto::default()), ..ModelProto::default() }).unwrap();
        let model = Model::open(&path).unwrap();
        let compiler = Asked::default();
        let runner = EngineRunner::here(&compiler).unwrap();
        assert!(runner.node_us(&model, None, &NamedTensors::new()).is_none());
        let _ = runner.open(&model, None, &BTreeSet::new(), MANY_RUNS);
        assert_eq!(*compiler.0.lock().unwrap(), ["to be kept", "to lend"]);
    }
}
