//! The operators of models that the compiler knows.

use planforge_plan::operators::Operator;

/// Every operator that the importer has a rule for, by domain and name. All of them run, by a kernel or by their
/// reference implementation; a form that is not known is refused by name.
pub fn operators() -> Vec<Operator> {
    let operator = |known: planforge_import::Known| Operator {
        domain: known.domain.to_owned(),
        name: known.op_type.to_owned(),
        opsets: known.opsets.map(|(first, last)| [first, last]),
    };
    planforge_import::known_operators().into_iter().map(operator).collect()
}
