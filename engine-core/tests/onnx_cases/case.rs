//! The list of cases and their data.

use planforge_engine_core::{import::element_type, ir::Tensor};
use planforge_onnx::{proto::TensorProto, tensor::inline_bytes};
use prost::Message;
use serde::Deserialize;
use std::{error::Error, fs, path::Path};

pub type Failure = Box<dyn Error + Send + Sync>;

/// Newest opset of the filtered cases.
const FILTER_OPSET: i64 = 18;

/// One case as `generate.py` lists it.
#[derive(Debug, Deserialize)]
pub struct Case {
    pub name: String,
    /// Relative and absolute tolerance of the case itself.
    pub rtol: f64,
    pub atol: f64,
    /// Version of the standard operators.
    pub opset: i64,
    /// Nothing but standard operators.
    pub default_domain: bool,
    /// The body of a function in place of the operator itself.
    pub expanded: bool,
    /// Sequence, optional, map or string types occur.
    pub exotic: bool,
    /// Names of the operators in the model, sorted.
    pub operators: Vec<String>,
}

impl Case {
    /// Whether the case is one of those that the product must answer for: an operator itself, of the default domain,
    /// up to opset 18, on tensors of numbers.
    pub fn in_filter(&self) -> bool {
        !self.expanded && self.default_domain && self.opset <= FILTER_OPSET && !self.exotic
    }
}

/// Every case in `root`, in order of names.
pub fn list(root: &Path) -> Result<Vec<Case>, Failure> {
    #[derive(Deserialize)]
    struct Index {
        cases: Vec<Case>,
    }
    let path = root.join("cases.json");
    let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_slice::<Index>(&text)?.cases)
}

/// `STEM_0.pb`, `STEM_1.pb`, ... of a folder.
pub fn read_protos(folder: &Path, stem: &str) -> Result<Vec<TensorProto>, Failure> {
    (0..)
        .map(|index| folder.join(format!("{stem}_{index}.pb")))
        .take_while(|path| path.exists())
        .map(|path| Ok(TensorProto::decode(fs::read(path)?.as_slice())?))
        .collect()
}

pub fn tensor(proto: &TensorProto) -> Result<Tensor, Failure> {
    let shape = proto.dims.iter().map(|&size| usize::try_from(size)).collect::<Result<_, _>>()?;
    Ok(Tensor::new(element_type(proto.data_type)?, shape, inline_bytes(proto)?)?)
}
