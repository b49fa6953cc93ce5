//! The backend `onnxruntime`: a session is made from the model, and the model as the library optimised it is the plan.
//!
//! The library picks its instructions by detection, so of a CPU's levels only the best one is what is really used:
//! builds for a lower level are refused. A plan of optimization level 3 and up has weights in the order that level's
//! kernels read, so it runs on that level alone.

use crate::{
    BACKEND,
    library::{Library, Search},
    meter::OrtSession,
    oracle::OrtOracle,
    plan::{self, PlanManifest},
    session::{Provider, Runtime, Setup, Spinning},
    settings::{OPTIONS, check_level, check_spec, optimization, provider_of, refuse, threads},
};
use planforge_backend::{
    Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter, Oracle, PlanIdentity,
};
use planforge_onnx::{Model, proto};
use planforge_types::{
    BackendError, BuildSpec, FailureClass, Sku, Toolchain,
    fingerprint::{DeviceKind, DiscoveredDevice},
    order::extras,
};
use std::{collections::BTreeMap, path::Path};

/// Components of the toolchain.
const COMPONENT_PROVIDER: &str = "provider";
const COMPONENT_CUDA: &str = "cuda";

/// Largest model whose optimised form is one protobuf message: these stop below 2 GiB, and folding may add some.
const MODEL_MAX_BYTES: u64 = (2 << 30) - (16 << 20);

/// ONNX Runtime, where it is found.
#[derive(Clone, Debug, Default)]
pub struct OnnxRuntimeCompiler {
    search: Search,
}

fn host_error(message: impl Into<String>, hint: &str) -> BackendError {
    BackendError::new(FailureClass::Infrastructure, message).with_hint(hint)
}

impl OnnxRuntimeCompiler {
    /// Looks where `search` says.
    pub fn new(search: Search) -> Self {
        Self { search }
    }

    /// Looks where this process's environment says.
    pub fn of_environment() -> Self {
        Self::new(Search::of_environment())
    }

    /// The library that is used, else why there is none.
    pub fn library(&self) -> Result<Library, BackendError> {
        let hint = "install it (pip install onnxruntime), or name it with PLANFORGE_ONNXRUNTIME";
        match self.search.find() {
            Ok(Some(library)) => Ok(library),
            Ok(None) => Err(host_error("no libonnxruntime was found on this host", hint)),
            Err(reason) => Err(host_error(reason, hint)),
        }
    }

    /// Loads the library that `toolchain` names.
    pub(crate) fn runtime(&self, toolchain: &Toolchain) -> Result<Runtime, BackendError> {
        let library = self.library()?;
        if library.version != toolchain.version {
            return Err(host_error(
                format!("{} is {BACKEND} {}, not {}", library.path.display(), library.version, toolchain.version),
                "install that version, or build again with the one that is here",
            ));
        }
        Runtime::load(&library)
    }
}

/// The toolchain of `library` with `provider`; `None` where the provider is not beside it.
fn toolchain(library: &Library, provider: Provider) -> Option<Toolchain> {
    let mut components = BTreeMap::from([(COMPONENT_PROVIDER.to_owned(), provider.name().to_owned())]);
    if provider == Provider::Cuda {
        components.insert(COMPONENT_CUDA.to_owned(), library.cuda.clone()?);
    }
    Some(Toolchain { backend: BACKEND.into(), version: library.version.clone(), components })
}

/// Sizes of the model's named dimensions that every profile fixes alike.
fn fixed_dimensions(graph: &proto::GraphProto, spec: &BuildSpec) -> Result<Vec<(String, i64)>, BackendError> {
    let [profile] = &spec.profiles[..] else { return Ok(Vec::new()) };
    let mut fixed = BTreeMap::new();
    for input in &graph.input {
        let Some(ranges) = profile.inputs.get(&input.name) else { continue };
        let dims = dimensions(input);
        if dims.len() != ranges.len() {
            return Err(refuse(
                format!("the profile gives input {} {} dimensions, the model {}", input.name, ranges.len(), dims.len()),
                "give one range per dimension",
            ));
        }
        for (dim, range) in dims.iter().zip(ranges).filter(|(_, range)| range.min == range.max) {
            let Some(proto::tensor_shape_proto::dimension::Value::DimParam(name)) = &dim.value else { continue };
            let size = i64::try_from(range.min).unwrap_or(i64::MAX);
            if *fixed.entry(name.clone()).or_insert(size) != size {
                return Err(refuse(
                    format!("the profile gives dimension '{name}' different sizes; input {} says {size}", input.name),
                    "give the dimension one size wherever the model names it",
                ));
            }
        }
    }
    Ok(fixed.into_iter().filter(|(name, _)| !name.is_empty()).collect())
}

fn dimensions(info: &proto::ValueInfoProto) -> &[proto::tensor_shape_proto::Dimension] {
    match info.r#type.as_ref().and_then(|of| of.value.as_ref()) {
        Some(proto::type_proto::Value::TensorType(tensor)) => {
            tensor.shape.as_ref().map(|shape| &shape.dim[..]).unwrap_or_default()
        }
        _ => &[],
    }
}

/// How many nodes of each operator a graph has; those of the library's own domains carry them.
fn operators(graph: &proto::GraphProto) -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    for node in &graph.node {
        let domain = if node.domain.is_empty() { String::new() } else { format!("{}.", node.domain) };
        *counted.entry(domain + &node.op_type).or_default() += 1;
    }
    counted
}

impl Compiler for OnnxRuntimeCompiler {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn toolchains(&self, device: &DiscoveredDevice) -> Vec<Toolchain> {
        let provider = match device.fingerprint.kind {
            DeviceKind::Cpu if !device.skus.is_empty() => Provider::Cpu,
            DeviceKind::Cpu => return Vec::new(),
            DeviceKind::Gpu => Provider::Cuda,
        };
        match self.search.find() {
            Ok(found) => found.and_then(|library| toolchain(&library, provider)).into_iter().collect(),
            Err(reason) => {
                tracing::warn!(reason, "the configured onnxruntime cannot be used");
                Vec::new()
            }
        }
    }

    fn never_measures(&self, _sku: &Sku) -> &'static [&'static str] {
        &[extras::SWEEP_STREAMS, extras::TRACE]
    }

    fn options(&self, _sku: &Sku) -> Option<&'static [&'static str]> {
        Some(&OPTIONS)
    }

    fn check(&self, request: &CompileRequest) -> Result<(), BackendError> {
        let library = self.library()?;
        let here = toolchain(&library, provider_of(&request.sku));
        if here.as_ref() != Some(&request.toolchain) {
            let here = here.map_or("nothing for it".to_owned(), |toolchain| toolchain.to_string());
            return Err(host_error(
                format!("{} is asked for {}; this host has {here}", request.toolchain, request.sku),
                "ask for the toolchain that is offered",
            ));
        }
        check_level(&request.sku)?;
        check_spec(&request.spec, &request.sku)
    }

    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        self.check(request)?;
        let stop = || BackendError::cancelled("the build was cancelled");
        events.progress("import", 0.0, "");
        let model = Model::open(&request.model).map_err(|error| refuse(error.to_string(), error.hint()))?;
        let bytes: u64 = model.files().iter().map(|file| file.size_bytes).sum();
        if bytes > MODEL_MAX_BYTES {
            return Err(refuse(
                format!("the model has {bytes} bytes; an optimised model is one ONNX file, which ends below 2 GiB"),
                "build it with another toolchain",
            ));
        }
        let before = operators(model.graph());
        let dimensions = fixed_dimensions(model.graph(), &request.spec)?;
        let name = model.graph().name.clone();
        let opset = model.opset();
        drop(model);
        if cancel.is_cancelled() {
            return Err(stop());
        }

        events.progress("optimize", 0.1, "");
        let runtime = self.runtime(&request.toolchain)?;
        let optimised = request.scratch.join("optimised.onnx");
        let provider = provider_of(&request.sku);
        let setup = Setup {
            provider,
            threads: threads(&request.spec, None),
            optimization: optimization(&request.spec),
            spinning: Spinning::Never,
            dimensions: &dimensions,
            optimised: Some(&optimised),
            profile: None,
        };
        let session = runtime.session(&request.model, &setup)?;
        for outlet in session.inputs().iter().chain(session.outputs()) {
            crate::tensors::port(outlet.name(), outlet.dtype())?;
        }
        drop(session);
        if cancel.is_cancelled() {
            return Err(stop());
        }

        events.progress("write", 0.8, "");
        let written = Model::open(&optimised)
            .map_err(|error| refuse(format!("the optimised model cannot be read: {error}"), error.hint()))?;
        let after = operators(written.graph());
        drop(written);
        let path = request.scratch.join("engine.plan");
        let manifest = PlanManifest::new(
            name,
            request.model_digest,
            request.sku.clone(),
            request.toolchain.clone(),
            request.spec.clone(),
        );
        plan::write(&path, &manifest, &optimised)?;
        let facts = serde_json::json!({
            "library_version": runtime.version,
            "library_build": runtime.build_info(),
            "provider": provider.name(),
            "optimization": (["none", "basic", "extended", "all"])[usize::from(setup.optimization)],
            "fixed_dimensions": BTreeMap::from_iter(dimensions.iter().cloned()),
            "opset": opset,
            "nodes_before": before.values().sum::<usize>(),
            "nodes_after": after.values().sum::<usize>(),
            "operators_after": after,
        });
        events.progress("write", 1.0, "");
        Ok(CompiledPlan { path, facts, findings: Vec::new() })
    }

    fn recognises(&self, head: &[u8]) -> bool {
        plan::recognises(head)
    }

    fn identify(&self, plan: &Path) -> Result<PlanIdentity, BackendError> {
        let manifest = plan::read(plan)?;
        Ok(PlanIdentity {
            model_name: manifest.model,
            model_digest: manifest.model_digest,
            sku: manifest.sku,
            toolchain: manifest.toolchain,
            threads: manifest.spec.threads,
            spec: manifest.spec,
            foreign: false,
        })
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        Ok(Box::new(OrtSession::load(plan, options, |toolchain| self.runtime(toolchain))?))
    }

    fn oracle(&self) -> Option<Box<dyn Oracle>> {
        Some(Box::new(OrtOracle::new(self.library().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::{DimRange, OptimizationProfile, Precision, Sku};

    fn cpu() -> Sku {
        "cpu-x86-64-v3".parse().unwrap()
    }

    #[test]
    fn what_the_library_cannot_do_is_refused_by_name() {
        let refusal = |spec: BuildSpec| check_spec(&spec, &cpu()).unwrap_err().message;
        assert!(check_spec(&BuildSpec::default(), &cpu()).is_ok());
        let fp16 = BuildSpec { precision: Precision::Fp16, ..BuildSpec::default() };
        assert!(refusal(fp16).contains("precision fp16"));
        let approximate = BuildSpec { approximate_gelu: true, ..BuildSpec::default() };
        assert!(refusal(approximate).contains("an approximate GELU: only native engines for NVIDIA devices have one"));
        let option = |name: &str, value: &str| BuildSpec {
            options: [(name.to_owned(), value.to_owned())].into(),
            ..BuildSpec::default()
        };
        assert!(refusal(option("force_tactic", "x")).contains("has no option force_tactic"));
        assert!(refusal(option("provider", "cuda")).contains("run on 'cpu'"));
        assert!(refusal(option("spinning", "on")).contains("spinning is 'on'"));
        assert!(check_spec(&option("provider", "cpu"), &cpu()).is_ok());
        assert!(check_spec(&option("provider", "cuda"), &"t4".parse().unwrap()).is_ok());
    }

    #[test]
    fn a_cuda_toolchain_needs_the_provider() {
        let plain = Library { path: "/x/libonnxruntime.so".into(), version: "1.31.1".into(), cuda: None };
        assert_eq!(toolchain(&plain, Provider::Cpu).unwrap().to_string(), "onnxruntime 1.31.1, provider cpu");
        assert_eq!(toolchain(&plain, Provider::Cuda), None);
        let cuda = Library { cuda: Some("12".into()), ..plain };
        assert_eq!(toolchain(&cuda, Provider::Cuda).unwrap().to_string(), "onnxruntime 1.31.1, cuda 12, provider cuda");
    }

    #[test]
    fn named_dimensions_are_fixed_where_the_profile_fixes_them() {
        let dim = |name: &str| proto::tensor_shape_proto::Dimension {
            value: Some(proto::tensor_shape_proto::dimension::Value::DimParam(name.into())),
            ..Default::default()
        };
        let shape = proto::TensorShapeProto { dim: vec![dim("batch"), dim("length")] };
        let tensor = proto::type_proto::Tensor { elem_type: 1, shape: Some(shape) };
        let of = proto::TypeProto { value: Some(proto::type_proto::Value::TensorType(tensor)), ..Default::default() };
        let info =
            |name: &str| proto::ValueInfoProto { name: name.into(), r#type: Some(of.clone()), ..Default::default() };
        let graph = proto::GraphProto { input: vec![info("a"), info("b")], ..Default::default() };
        let range = |min, max| DimRange { min, opt: min, max };
        let spec = |a: [DimRange; 2], b: [DimRange; 2]| BuildSpec {
            profiles: vec![OptimizationProfile {
                inputs: [("a".to_owned(), a.to_vec()), ("b".to_owned(), b.to_vec())].into(),
            }],
            ..BuildSpec::default()
        };
        let fixed = fixed_dimensions(&graph, &spec([range(4, 4), range(1, 9)], [range(4, 4), range(1, 9)])).unwrap();
        assert_eq!(fixed, [("batch".to_owned(), 4)]);
        let error = fixed_dimensions(&graph, &spec([range(4, 4), range(1, 9)], [range(5, 5), range(1, 9)]));
        assert!(error.unwrap_err().message.contains("dimension 'batch' different sizes"));
    }
}
