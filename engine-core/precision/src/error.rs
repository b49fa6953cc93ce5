//! Why a model cannot be prepared, and what to do about it.

use planforge_import::ImportError;
use planforge_onnx::OnnxError;
use planforge_types::ElementType;

/// Why nothing was prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrecisionError {
    #[error("the model cannot be read")]
    Onnx(#[from] OnnxError),
    #[error("the model cannot be understood")]
    Import(#[from] ImportError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the model does not run on the calibration data: {message}")]
    Run { message: String },
    #[error("{precision} needs calibration data, and none is given")]
    NoData { precision: String },
    #[error("nothing in the model can be {precision}: {why}")]
    Nothing { precision: String, why: String },
    #[error("the target {target} has no {precision}")]
    Target { target: String, precision: String },
    #[error("opset {from} cannot be raised to {to}: {why}")]
    Opset { from: i64, to: i64, why: String },
    #[error("the scale of '{name}' is {scale}: no number can be kept with it")]
    Scale { name: String, scale: f32 },
    #[error("a budget of {budget} cannot be met: {best}")]
    Budget { budget: String, best: String },
    #[error("{0}")]
    Options(String),
}

impl PrecisionError {
    /// What to do about it; empty where the message says all.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Data(error) => error.hint(),
            Self::NoData { .. } => "give --calibration an .npz with one array per input, named like the input",
            Self::Run { .. } => "planforge explain says which operators are known",
            Self::Target { .. } => "choose another precision, or --target any",
            Self::Opset { .. } => "export the model anew with a newer opset",
            Self::Scale { .. } => "calibrate with data in which the value is not always zero",
            Self::Budget { .. } => "allow more, give more calibration data, or take another precision or method",
            _ => "",
        }
    }
}

/// What is wrong with calibration or labelled data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("the data has no array for input '{input}'; it has {found}")]
    NoInput { input: String, found: String },
    #[error("array '{array}' belongs to no input; the model takes {inputs}")]
    Unknown { array: String, inputs: String },
    #[error("array '{array}' has shape {found:?}, but the input takes rows of {expected}")]
    Shape { array: String, found: Vec<usize>, expected: String },
    #[error("array '{array}' is {found}, which the input of {expected} cannot take")]
    Element { array: String, found: ElementType, expected: ElementType },
    #[error("array '{array}' has {found} rows, and '{other}' has {rows}")]
    Rows { array: String, found: usize, other: String, rows: usize },
    #[error("the data is empty")]
    Empty,
    #[error("it has the arrays {found}, but the files before it have {before}")]
    OtherArrays { found: String, before: String },
    #[error("rows of '{array}' have another type or shape than in the files before it")]
    OtherRows { array: String },
    #[error("array '{array}' holds a number that is none, in row {row}: {value}")]
    NotFinite { array: String, row: usize, value: f64 },
    #[error("array '{array}' is {value} everywhere: nothing can be calibrated on that")]
    Constant { array: String, value: f64 },
    #[error(
        "there are no labels (an array 'labels'), and accuracy cannot be measured without them; the data has {found}"
    )]
    NoLabels { found: String },
    #[error("the labels are not one whole number per row, but {found}")]
    Labels { found: String },
    #[error("input '{input}' has no first dimension to put rows into")]
    NoBatch { input: String },
    #[error("no output gives one score per class: '{output}' has shape {shape:?} for {rows} rows")]
    NoScores { output: String, shape: Vec<usize>, rows: usize },
}

impl DataError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoLabels { .. } | Self::Labels { .. } => {
                "give an .npz with one array per input and 'labels', one whole number per row"
            }
            Self::Constant { .. } | Self::NotFinite { .. } => {
                "give samples like those that the engine will see, preprocessed in the same way"
            }
            _ => "give an .npz with one array per input, named like the input, rows along its first axis",
        }
    }
}

/// Something a reader of the preparation should know: it went on all the same.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Finding {
    /// Stable, such as `few-samples`.
    pub code: String,
    pub message: String,
}

impl Finding {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}
