//! An engine for this machine's CPU as what runs a model on calibration data: values that are looked at become outputs of
//! the engine.

use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Meter};
use planforge_device::cpu;
use planforge_graph::ir::Tensor;
use planforge_onnx::{
    Model,
    proto::{TypeProto, ValueInfoProto, type_proto},
    write,
};
use planforge_precision::{PrecisionError, Reference, Runner, See, Session};
use planforge_types::{
    BuildSpec, Digest, NamedTensors, OptimizationLevel, OptimizationProfile, Toolchain, fingerprint::DiscoveredDevice,
};
use std::collections::BTreeSet;
use tempfile::TempDir;

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

/// A loaded engine, and the folder that its plan lies in.
struct Loaded {
    meter: Box<dyn Meter>,
    watched: BTreeSet<String>,
    outputs: BTreeSet<String>,
    _folder: TempDir,
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
    ) -> Result<Box<dyn Session>, PrecisionError> {
        match self.load(model, profile, watched) {
            Ok(loaded) => Ok(Box::new(loaded)),
            Err(error) => {
                tracing::debug!(%error, "no engine for this model: running it with the reference");
                Reference.open(model, profile, watched)
            }
        }
    }
}

impl EngineRunner<'_> {
    fn load(
        &self,
        model: &Model,
        profile: Option<&OptimizationProfile>,
        watched: &BTreeSet<String>,
    ) -> Result<Loaded, PrecisionError> {
        let failed = |message: String| PrecisionError::Run { message };
        let folder = tempfile::tempdir().map_err(|e| failed(format!("cannot create a folder: {e}")))?;
        let mut proto = model.proto.clone();
        let graph = proto.graph.get_or_insert_default();
        let outputs: BTreeSet<String> = graph.output.iter().map(|output| output.name.clone()).collect();
        let inputs: BTreeSet<&String> = graph.input.iter().map(|input| &input.name).collect();
        let more: Vec<String> =
            watched.iter().filter(|name| !outputs.contains(*name) && !inputs.contains(name)).cloned().collect();
        for name in more {
            let value = type_proto::Value::TensorType(type_proto::Tensor { elem_type: FLOAT, shape: None });
            let r#type = TypeProto { value: Some(value), ..Default::default() };
            graph.output.push(ValueInfoProto { name, r#type: Some(r#type), ..Default::default() });
        }
        let path = folder.path().join("model.onnx");
        write::save(&path, &proto)?;
        let bytes = std::fs::read(&path).map_err(|e| failed(e.to_string()))?;
        let spec = BuildSpec {
            threads: Some(self.device.threads),
            profiles: profile.into_iter().cloned().collect(),
            optimization_level: OptimizationLevel(0),
            ..BuildSpec::default()
        };
        let request = CompileRequest {
            model: path,
            model_digest: Digest::of(&bytes),
            sku: self.device.skus.last().cloned().ok_or_else(|| failed("this CPU has no name".to_owned()))?,
            device: self.device.fingerprint.clone(),
            toolchain: self.toolchain.clone(),
            spec,
            scratch: folder.path().to_owned(),
            cache: None,
            calibration: None,
            plugins: Vec::new(),
        };
        let plan = self.compiler.compile(&request, &Silent, &Cancel::default()).map_err(|e| failed(e.message))?;
        let meter = self.compiler.load(&plan.path, &LoadOptions::default()).map_err(|e| failed(e.message))?;
        Ok(Loaded { meter, watched: watched.clone(), outputs, _folder: folder })
    }
}

impl Session for Loaded {
    fn run(&mut self, inputs: &NamedTensors, see: &mut See<'_>) -> Result<NamedTensors, PrecisionError> {
        let failed = |message: String| PrecisionError::Run { message };
        self.meter.bind(inputs).map_err(|e| failed(e.message))?;
        let outputs = self.meter.run().map_err(|e| failed(e.message))?;
        let mut given = NamedTensors::new();
        for (name, tensor) in outputs {
            if self.outputs.contains(&name) {
                given.insert(name.clone(), tensor.clone());
            }
            if self.watched.contains(&name) {
                see(&name, &Tensor::try_from(tensor).map_err(|e| failed(e.to_string()))?);
            }
        }
        Ok(given)
    }
}
