//! Which of the operators that the importer knows have device code.

use planforge_plan::operators::Operator;

/// Standard operators none of whose forms has any, apart from those that are computed of constants while a model is
/// built; `tests/operators_with_device_code` holds it to the backend cases.
const WITHOUT: &[&str] = &[
    "BitCast",
    "BitShift",
    "CausalConvWithState",
    "Col2Im",
    "ConvInteger",
    "ConvTranspose",
    "DFT",
    "DeformConv",
    "GRU",
    "GatherND",
    "GridSample",
    "LRN",
    "LSTM",
    "LpPool",
    "MatMulInteger",
    "MaxUnpool",
    "OneHot",
    "QLinearConv",
    "QLinearMatMul",
    "RNN",
    "ReverseSequence",
    "RoiAlign",
    "STFT",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "TensorScatter",
    "TfIdfVectorizer",
    "TopK",
];

/// The same of `ai.onnx.ml`, held to the committed cases of that domain.
const WITHOUT_ML: &[&str] = &[
    "LabelEncoder",
    "LinearClassifier",
    "OneHotEncoder",
    "SVMClassifier",
    "TreeEnsemble",
    "TreeEnsembleClassifier",
    "TreeEnsembleRegressor",
];

/// Whether an engine for an NVIDIA device may have this operator; some of its forms may be refused all the same.
pub fn has_device_code(operator: &Operator) -> bool {
    let without = match operator.domain.as_str() {
        "" => WITHOUT,
        "ai.onnx.ml" => WITHOUT_ML,
        _ => return true,
    };
    !without.contains(&operator.name.as_str())
}
