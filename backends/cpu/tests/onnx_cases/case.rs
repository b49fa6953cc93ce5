//! The list of cases and their data.

use planforge_graph::ir::{ElementType, Tensor};
use planforge_import::{ImportError, Problem, Refusal, engine_tensor};
use planforge_onnx::proto::{ModelProto, TensorProto};
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

    /// Relative tolerance: the case's own, and for narrow floats a few units in the last place, for a case may round
    /// between its steps.
    fn relative(&self, element: ElementType) -> f64 {
        let least = match element {
            ElementType::Bf16 => 2f64.powi(-6),
            ElementType::F16 => 2f64.powi(-9),
            _ => 0.0,
        };
        self.rtol.max(least)
    }

    fn absolute(&self) -> f64 {
        NOISY.iter().find(|(name, _)| *name == self.name).map_or(self.atol, |(_, noise)| *noise)
    }

    /// The first difference of an output from what the case expects.
    pub fn differs(&self, actual: &Tensor, expected: &Tensor) -> Option<String> {
        if (actual.element(), actual.shape()) != (expected.element(), expected.shape()) {
            return Some(format!("{actual:?} instead of {expected:?}"));
        }
        let (a, e, relative) = (actual.to_f64s(), expected.to_f64s(), self.relative(expected.element()));
        let close = |a: f64, e: f64| {
            (a.is_nan() && e.is_nan()) || a == e || (a - e).abs() <= self.absolute() + relative * e.abs()
        };
        let first = a.iter().zip(&e).position(|(&a, &e)| !close(a, e))?;
        Some(format!("element {first} is {} instead of {}", a[first], e[first]))
    }
}

/// Cases whose expected values hold rounding noise of their own where the exact answer is zero, and how much.
const NOISY: &[(&str, f64)] = &[("test_dft_inverse", 1e-6), ("test_dft_inverse_opset19", 1e-6)];

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

/// As an engine takes and gives it.
pub fn tensor(proto: &TensorProto) -> Result<Tensor, Failure> {
    Ok(engine_tensor(proto)?)
}

/// Inputs after the first `kept` become constants: shapes may follow from them, as they do in real models.
pub fn bake(model: &[u8], inputs: &[TensorProto], kept: usize) -> Result<Vec<u8>, Failure> {
    let mut proto = ModelProto::decode(model)?;
    if let Some(graph) = &mut proto.graph {
        let baked = graph.input.drain(kept.min(graph.input.len())..).zip(inputs.iter().skip(kept));
        for (info, value) in baked.collect::<Vec<_>>() {
            graph.initializer.push(TensorProto { name: info.name, ..value.clone() });
        }
    }
    Ok(proto.encode_to_vec())
}

pub fn needs_constants(error: &ImportError) -> bool {
    let not_constant =
        |problem: &Problem| matches!(problem, Problem::Node { refusal: Refusal::NotConstant { .. }, .. });
    error.problems.iter().any(not_constant)
}
