//! Says what a model's outputs are, for other backends' engines: a session on the CPU that fuses nothing, so that what
//! it computes is what the model's operators say, one after another.

use crate::{
    BACKEND,
    library::Library,
    session::{Provider, Runtime, Setup, Spinning},
    tensors,
};
use ort::{
    session::{RunOptions, SessionInputValue},
    value::ValueType,
};
use planforge_backend::{Cancel, Oracle};
use planforge_onnx::{Model, proto::NodeProto};
use planforge_types::{BackendError, FailureClass, NamedTensors};
use std::{
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Between looks at whether the work was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// The library as an oracle.
#[derive(Clone, Debug)]
pub struct OrtOracle {
    library: Library,
}

impl OrtOracle {
    pub(crate) fn new(library: Library) -> Self {
        Self { library }
    }
}

/// Operators that multiply bytes by bytes. Without VNNI the library saturates their sums; its precise form is a rewriting
/// of the graph, which a session that fuses nothing leaves out.
const MULTIPLY_BYTES: [&str; 9] = [
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QAttention",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
];

/// Whether this processor lacks what multiplies bytes without saturating.
fn saturates() -> bool {
    #[cfg(target_arch = "x86_64")]
    return !is_x86_feature_detected!("avx512vnni") && !is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// An operator of a model that multiplies bytes, in its graph or a function of its own.
fn multiplies_bytes(model: &Path) -> Result<Option<String>, BackendError> {
    let model = Model::open(model).map_err(|error| BackendError::model(error.to_string()))?;
    let nodes = model.graph().node.iter().chain(model.proto.functions.iter().flat_map(|function| &function.node));
    let found = nodes.map(|node| &node.op_type).find(|op| MULTIPLY_BYTES.contains(&op.as_str()));
    Ok(found.cloned())
}

/// The labels of the columns that a `ZipMap` makes output `name` of, in the order of the columns.
fn labels_of_maps(model: &Path, name: &str) -> Result<Vec<i64>, BackendError> {
    let unknown =
        || BackendError::model(format!("output '{name}' is a list of what no ZipMap with integer labels made"));
    let model = Model::open(model).map_err(|_| unknown())?;
    let makes = |node: &&NodeProto| node.op_type == "ZipMap" && node.output.first().is_some_and(|made| made == name);
    let node = model.graph().node.iter().find(makes).ok_or_else(unknown)?;
    let labels = node.attribute.iter().find(|attribute| attribute.name == "classlabels_int64s");
    Ok(labels.ok_or_else(unknown)?.ints.clone())
}

impl Oracle for OrtOracle {
    fn name(&self) -> String {
        format!("{BACKEND} {}", self.library.version)
    }

    fn outputs(
        &self,
        model: &Path,
        inputs: &NamedTensors,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<NamedTensors, BackendError> {
        let deadline = Instant::now() + limit;
        if saturates()
            && let Some(op) = multiplies_bytes(model)?
        {
            let message = format!("its sums of {op} saturate on this processor, which has no VNNI");
            return Err(BackendError::new(FailureClass::Infrastructure, message));
        }
        let runtime = Runtime::load(&self.library)?;
        let setup = Setup {
            provider: Provider::Cpu,
            threads: thread::available_parallelism().map_or(1, usize::from),
            optimization: 0,
            spinning: Spinning::Never,
            dimensions: &[],
            optimised: None,
            profile: None,
        };
        let mut session = runtime.session(model, &setup)?;
        let failed = |error: ort::Error| runtime.error("stopped", error.message());
        let options = RunOptions::new().map_err(failed)?;
        let values = inputs.iter().map(|(name, tensor)| Ok((name.clone(), tensors::to_value(tensor)?.into())));
        let values = values.collect::<Result<Vec<(String, SessionInputValue<'_>)>, BackendError>>()?;
        let too_long = || {
            let message = format!("it took longer than {:.0} s", limit.as_secs_f64());
            BackendError::new(FailureClass::Infrastructure, message)
        };
        if Instant::now() >= deadline {
            return Err(too_long());
        }
        let mut late = false;
        let outputs = thread::scope(|scope| {
            // Dropped when the run ends, however it ends.
            let (running, ended) = mpsc::channel::<()>();
            let options = &options;
            let watch = scope.spawn(move || {
                while ended.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let late = Instant::now() >= deadline;
                    if late || cancel.is_cancelled() {
                        // A run that has just ended is no loss.
                        let _ = options.terminate();
                        return late;
                    }
                }
                false
            });
            let outputs = session.run_with_options(values, options);
            drop(running);
            late = watch.join().unwrap_or(false);
            let outputs = outputs.map_err(failed)?;
            let tensors = outputs.iter().map(|(name, value)| {
                let tensor = match value.dtype() {
                    // Engines give the tensor that such maps are made of.
                    ValueType::Sequence(_) => tensors::from_maps(name, &value, &labels_of_maps(model, name)?)?,
                    _ => tensors::from_value(name, &value)?,
                };
                Ok((name.to_owned(), tensor))
            });
            tensors.collect::<Result<NamedTensors, BackendError>>()
        });
        match outputs {
            Err(_) if late => Err(too_long()),
            other => other,
        }
    }
}
