//! Everything that is wrong with a model, listed at once.

use planforge_graph::{
    ir::ElementType,
    reference::OpError,
    shape::{BindError, ShapeError},
};
use planforge_types::{BackendError, FailureClass, Reason};
use std::fmt;

/// Problems shown in one message; the rest is counted.
const MAX_SHOWN: usize = 50;

/// Who may take what the importer does not.
const ELSEWHERE: &str = "`--toolchain onnxruntime` builds with ONNX Runtime where it is installed";

/// What to do about strings.
const NO_STRINGS: &str = "train with integers as labels and categories (LabelEncoder or OrdinalEncoder before the model), or export without the label";

/// Nodes named for one unsupported operator; the rest is counted.
const MAX_NODES_NAMED: usize = 8;

/// Why a model cannot be compiled: every problem that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    /// Never empty.
    pub problems: Vec<Problem>,
    /// Sizes were given.
    pub sized: bool,
    /// Sizes to give, in the words of `--shapes`: where they are open, and not given or not fitting.
    pub proposal: Option<String>,
}

/// Something that an importer did, or saw, and that does not stop it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Note {
    #[error("output {name} is declared as {declared}, but is {inferred}, which is what the engine gives")]
    OutputDiffers { name: String, declared: String, inferred: String },
    #[error(
        "dimension {axis} of input {input} is open in the model and was not given; it is {size}, for the graph takes no other"
    )]
    Solved { input: String, axis: usize, size: i64 },
    #[error(
        "output {name} is a list of maps in the model; the engine gives the scores themselves as a tensor, one column for each label (an export with zipmap=False says the same)"
    )]
    MapsLeftOut { name: String },
    #[error(
        "{place} is {declared} in the model; the engine has it as {element}, one to a byte: {}",
        if declared.contains("INT") { "the integers themselves" } else { "the codes of the numbers" }
    )]
    KeptAs { place: String, declared: String, element: ElementType },
}

impl Note {
    /// A name that stays.
    pub fn code(&self) -> &'static str {
        match self {
            Self::OutputDiffers { .. } => "declared-output",
            Self::Solved { .. } => "solved-size",
            Self::MapsLeftOut { .. } => "maps-left-out",
            Self::KeptAs { .. } => "narrow-type",
        }
    }

    /// It contradicts the model, rather than adding to it.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::OutputDiffers { .. } | Self::MapsLeftOut { .. } | Self::KeptAs { .. })
    }
}

/// One thing in a model that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("operator {}{op_type} (opset {}) is not supported; used by {}", domain_prefix(domain), version(.opset), list(nodes))]
    Operator {
        domain: String,
        op_type: String,
        /// The version the model asks for; `None`: it imports no such domain.
        opset: Option<i64>,
        nodes: Vec<String>,
    },
    #[error("opset {version} of the standard operators is not supported (supported: {oldest} to {newest})")]
    Opset { version: i64, oldest: i64, newest: i64 },
    #[error("the model does not say which opset of the standard operators it uses")]
    NoOpset,
    #[error("the model uses {what}, which is not supported")]
    Feature { what: String },
    #[error("attribute {attribute} of node {node} ({op_type}) {reason}")]
    Attribute { node: String, op_type: String, attribute: String, reason: String },
    #[error("{place} has the element type {element}, which is not supported")]
    Element { place: String, element: String },
    #[error("tensor {name} cannot be read: {reason}")]
    Tensor { name: String, reason: String },
    #[error("the name {name} is defined by {first} and again by {second}")]
    DefinedTwice { name: String, first: String, second: String },
    #[error("{place} reads {name}, which nothing defines")]
    NotDefined { place: String, name: String },
    #[error("the graph is cyclic: {}", nodes.join(" -> "))]
    Cycle { nodes: Vec<String> },
    #[error("node {node} ({op_type}, opset {opset}): {refusal}")]
    Node { node: String, op_type: String, opset: i64, refusal: Refusal },
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the profile names input {name}, which the model does not have (it has {inputs})")]
    ProfileInput { name: String, inputs: String },
    #[error("output {name} is declared as {declared}, but is {inferred}")]
    OutputDiffers { name: String, declared: String, inferred: String },
    #[error("output {name} is a list of maps, in place of which engines give a tensor")]
    Maps { name: String },
    #[error("value {name} has the shape {shape:?}, of which a dimension is larger than its bound of {bound}")]
    Bound { name: String, shape: Vec<usize>, bound: u64 },
    #[error("the values behind {node} take {bytes} bytes, more than their bound of {bound}")]
    Held { node: String, bytes: u64, bound: u64 },
    #[error("the graph has {count} {what}, more than the {most} this compiler takes")]
    TooLarge { what: &'static str, count: u128, most: u128 },
}

/// Why one node cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("attribute {name} {reason}")]
    Attribute { name: String, reason: String },
    #[error("input {position} ({what}) is missing")]
    MissingInput { position: usize, what: &'static str },
    #[error("{given} inputs are given, at most {most} are known")]
    Inputs { given: usize, most: usize },
    #[error("output {position} is asked for, which is not supported")]
    Output { position: usize },
    #[error("{what} must be a constant, for shapes follow from it")]
    NotConstant { what: &'static str },
    #[error("{what} is {value}, which is impossible for the shape {shape:?}")]
    Impossible { what: &'static str, value: String, shape: Vec<usize> },
    #[error("{what} is not supported")]
    Unsupported { what: String },
    #[error("element type {0} is not supported")]
    Element(String),
    #[error("{what} are strings, which engines do not have")]
    Strings { what: String },
    #[error("{reason}")]
    Run { reason: String },
    /// Something inside of a function or subgraph was refused, which is listed apart.
    #[error("something it needs was refused")]
    Inner,
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Size(#[from] BindError),
    #[error(transparent)]
    Op(#[from] OpError),
}

fn domain_prefix(domain: &str) -> String {
    if domain.is_empty() { String::new() } else { format!("{domain}.") }
}

fn version(opset: &Option<i64>) -> String {
    opset.map_or_else(|| "not imported".into(), |opset| opset.to_string())
}

fn list(nodes: &[String]) -> String {
    let named = nodes.iter().take(MAX_NODES_NAMED).cloned().collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(MAX_NODES_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [problem] = self.problems.as_slice() {
            return write!(f, "the model cannot be compiled: {problem}");
        }
        write!(f, "the model cannot be compiled, for {} reasons:", self.problems.len())?;
        for problem in self.problems.iter().take(MAX_SHOWN) {
            write!(f, "\n  {problem}")?;
        }
        match self.problems.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for ImportError {}

impl ImportError {
    fn any(&self, matches: impl Fn(&Problem) -> bool) -> bool {
        self.problems.iter().any(matches)
    }

    /// Whether other sizes of the inputs may be all that it takes.
    pub(crate) fn is_about_sizes(&self) -> bool {
        self.any(|problem| match problem {
            Problem::Bind(_) | Problem::ProfileInput { .. } => true,
            Problem::Node { refusal, .. } => {
                matches!(refusal, Refusal::Shape(_) | Refusal::Size(_) | Refusal::Op(_) | Refusal::Impossible { .. })
            }
            _ => false,
        })
    }

    /// Whether everything that is wrong is what this importer does not know, so that another one may take the model as it is.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.problems.iter().all(|problem| match problem {
            Problem::Operator { .. }
            | Problem::Opset { .. }
            | Problem::Feature { .. }
            | Problem::Attribute { .. }
            | Problem::TooLarge { .. } => true,
            Problem::Element { element, .. } => element != "STRING",
            Problem::Node { refusal, .. } => matches!(
                refusal,
                Refusal::Attribute { .. }
                    | Refusal::Inputs { .. }
                    | Refusal::Output { .. }
                    | Refusal::NotConstant { .. }
                    | Refusal::Unsupported { .. }
                    | Refusal::Element(_)
                    | Refusal::Inner
            ),
            _ => false,
        })
    }

    /// What to do next, by the gravest kind of problem.
    pub fn hint(&self) -> String {
        let such_as = self.proposal.as_ref().map(|proposal| format!(", such as --shapes {proposal}"));
        let such_as = such_as.unwrap_or_default();
        if self.any(|problem| {
            matches!(
                problem,
                Problem::DefinedTwice { .. }
                    | Problem::NotDefined { .. }
                    | Problem::Cycle { .. }
                    | Problem::Tensor { .. }
            )
        }) {
            return "the file is not valid ONNX: onnx.checker.check_model says so, too; export it again".into();
        }
        let is_string = |problem: &Problem| match problem {
            Problem::Element { element, .. } => element == "STRING",
            Problem::Node { refusal, .. } => matches!(refusal, Refusal::Strings { .. }),
            _ => false,
        };
        if self.any(is_string) {
            return NO_STRINGS.into();
        }
        if self.any(|problem| matches!(problem, Problem::Maps { .. })) {
            return "export with zipmap=False, or leave --strict out".into();
        }
        if self.any(|problem| {
            matches!(
                problem,
                Problem::Operator { .. } | Problem::Opset { .. } | Problem::Element { .. } | Problem::Feature { .. }
            )
        }) {
            return format!("`planforge ops` lists the operators that are known; {ELSEWHERE}");
        }
        if self.any(|problem| matches!(problem, Problem::Bind(BindError::Unknown { .. } | BindError::NoRank { .. }))) {
            let example = if such_as.is_empty() { ", such as --shapes NAME:1x3x224x224" } else { &such_as };
            return format!("give the open sizes{example}; a range such as 1..4..8 lets a dimension vary");
        }
        if self.any(|problem| matches!(problem, Problem::Bind(_) | Problem::ProfileInput { .. })) {
            return match self.sized {
                true => format!("give sizes that the model takes{such_as}"),
                false => format!("export the model with sizes that are possible; {ELSEWHERE}"),
            };
        }
        if self.is_about_sizes() && self.proposal.is_some() {
            return format!("the model may be fine: it does not take these sizes. Give others{such_as}");
        }
        if self.any(|problem| matches!(problem, Problem::OutputDiffers { .. })) {
            return "the engine would be right by its nodes: leave --strict out, or correct what the model declares"
                .into();
        }
        if self.any(|problem| matches!(problem, Problem::Node { refusal: Refusal::NotConstant { .. }, .. })) {
            return format!("only data decides sizes here, which native engines take on processors alone; {ELSEWHERE}");
        }
        if self.any(|problem| matches!(problem, Problem::NoOpset)) {
            return "the file says nothing of the operators' version: add opset_import, or export it again".into();
        }
        ELSEWHERE.to_owned()
    }
}

impl From<ImportError> for BackendError {
    fn from(error: ImportError) -> Self {
        let refused = BackendError::new(FailureClass::Model, error.to_string()).with_hint(error.hint());
        if error.is_unsupported() { refused.because(Reason::Unsupported) } else { refused }
    }
}
