//! In which form an engine computes GELU.

use super::program::{PointFunction, Program, StepKind};
use planforge_graph::ir::{Activation, GeluForm, Op};
use planforge_report::gelu;
use std::collections::BTreeMap;

/// How many GELUs are computed in which form, by the words of reports: always the one that the model has.
pub fn of(program: &Program) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for step in &program.steps {
        let activation = match &step.kind {
            StepKind::Conv { activation, .. }
            | StepKind::Depthwise { activation, .. }
            | StepKind::Gemm { activation, .. }
            | StepKind::BatchGemm { activation, .. } => *activation,
            StepKind::Point { function: PointFunction::Activation(activation) } => Some(*activation),
            StepKind::Reference { op: Op::Activation(activation), .. } => Some(*activation),
            StepKind::Reference { op, .. } => op.epilogue().and_then(|epilogue| epilogue.activation),
            _ => None,
        };
        let word = match activation {
            Some(Activation::Gelu(GeluForm::Erf)) => gelu::ERF,
            Some(Activation::Gelu(GeluForm::Tanh)) => gelu::TANH,
            _ => continue,
        };
        *found.entry(word.to_owned()).or_default() += 1;
    }
    found
}
