//! Which of the operators that the importer knows have device code.

use planforge_plan::operators::Operator;

/// Operators of `ai.onnx.ml` none of whose forms has any; `tests/operators_with_device_code` holds it to the committed
/// cases of that domain, and the standard operators, which all have some, to the backend cases.
const WITHOUT_ML: &[&str] = &[
    "LinearClassifier",
    "OneHotEncoder",
    "SVMClassifier",
    "TreeEnsemble",
    "TreeEnsembleClassifier",
    "TreeEnsembleRegressor",
];

/// Whether an engine for an NVIDIA device may have this operator; some of its forms may be refused all the same.
pub fn has_device_code(operator: &Operator) -> bool {
    operator.domain != "ai.onnx.ml" || !WITHOUT_ML.contains(&operator.name.as_str())
}
