//! What a build makes of profiles whose dimensions vary: one tuned program per profile at its usual shapes, and proof
//! that its smallest and largest shapes can be met with the same tactics and the same packed weights.

use super::{
    assemble::{WeightPlan, assemble},
    draft::Draft,
    plan::Dynamic,
    program::Program,
    specialize::{draft_at, follow},
};
use planforge_graph::shape::DeclaredDim;
use planforge_import::{Bounds, declared_dim};
use planforge_kernels_cpu::isa::Isa;
use planforge_onnx::{Model, proto::type_proto};
use planforge_passes::Target;
use planforge_plan::signature::{DimSignature, InputSignature};
use planforge_types::{BackendError, DimRange, FailureClass, OptimizationProfile, failure::chain};
use std::collections::BTreeMap;

/// The profiles of one build.
pub(crate) struct Shapes<'a> {
    model: &'a Model,
    isa: Isa,
    target: Target,
    threads: usize,
    weights: WeightPlan,
    /// One per profile.
    programs: Vec<Program>,
    takes: Vec<Vec<InputSignature>>,
    /// Output shapes at every point so far.
    outputs: Vec<Vec<Vec<usize>>>,
    symbols: BTreeMap<String, Vec<Option<String>>>,
}

/// The steps of `model` at a profile's usual shapes.
pub(crate) fn at(model: &Model, profile: &OptimizationProfile, target: Target) -> Result<Draft, BackendError> {
    let at = draft_at(model, &profile.fixed(|range| range.opt), target, &Bounds::new());
    at.map(|(draft, _)| draft).map_err(BackendError::from)
}

impl<'a> Shapes<'a> {
    pub(crate) fn of(model: &'a Model, isa: Isa, target: Target, threads: usize) -> Self {
        Self {
            model,
            isa,
            target,
            threads,
            weights: WeightPlan::of(model),
            programs: Vec::new(),
            takes: Vec::new(),
            outputs: Vec::new(),
            symbols: symbols(model),
        }
    }

    /// Takes the next profile with its tuned steps, and tries its smallest and largest shapes.
    pub(crate) fn add(&mut self, profile: &OptimizationProfile, tuned: Draft) -> Result<(), BackendError> {
        let usual = self.assemble(tuned, "usual")?;
        let mut ends = Vec::new();
        for (name, pick) in [("smallest", min as fn(&DimRange) -> u64), ("largest", max)] {
            let index = self.programs.len();
            let point = format!("at the {name} shapes of profile {index}");
            let fixed = profile.fixed(pick);
            let (mut draft, _) = draft_at(self.model, &fixed, self.target, &Bounds::new()).map_err(|error| {
                BackendError::new(FailureClass::Model, format!("{point}: {}", chain(&error)))
                    .with_hint("narrow the profile to shapes that suit the model")
            })?;
            follow(&mut draft, &usual, self.isa, self.threads);
            ends.push(self.assemble(draft, &point)?);
        }
        let [smallest, largest] = [&ends[0], &ends[1]];
        let inputs = usual.inputs.iter().zip(&smallest.inputs).zip(&largest.inputs);
        self.takes.push(
            inputs
                .map(|((usual, smallest), largest)| {
                    let symbols = self.symbols.get(&usual.name);
                    let sizes = usual.shape.iter().zip(&smallest.shape).zip(&largest.shape).enumerate();
                    let dims = sizes.map(|(axis, ((&opt, &min), &max))| DimSignature {
                        range: DimRange { min: min as u64, opt: opt as u64, max: max as u64 },
                        symbol: symbols.and_then(|symbols| symbols.get(axis).cloned().flatten()).filter(|_| min != max),
                    });
                    InputSignature { name: usual.name.clone(), element: usual.element, dims: dims.collect() }
                })
                .collect(),
        );
        self.programs.push(usual);
        Ok(())
    }

    fn assemble(&mut self, draft: Draft, point: &str) -> Result<Program, BackendError> {
        let program = assemble(draft, &mut self.weights);
        program.check().map_err(|error| BackendError::new(FailureClass::Model, format!("{point}: {error}")))?;
        let names = |program: &Program| program.outputs.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
        if self.programs.first().is_some_and(|first| names(first) != names(&program)) {
            // Which nodes follow the program is a property of the model, but for what a size of one leaves out.
            let message = format!("{point}: other values are handed to the nodes that only data sizes");
            return Err(BackendError::new(FailureClass::Model, message).with_hint("narrow the profile"));
        }
        self.outputs.push(program.outputs.iter().map(|port| port.shape.clone()).collect());
        Ok(program)
    }

    /// Program of profile 0, what the plan says of the others, and the constants of all.
    pub(crate) fn finish(mut self) -> (Program, Dynamic, WeightPlan) {
        let weight_bytes = self.weights.bytes();
        for program in &mut self.programs {
            program.weight_bytes = weight_bytes;
        }
        let first = self.programs.remove(0);
        let varies = |output: usize, axis: usize| {
            let size = |shapes: &Vec<Vec<usize>>| shapes[output].get(axis).copied();
            self.outputs.iter().any(|shapes| size(shapes) != size(&self.outputs[0]))
        };
        let outputs = first.outputs.iter().enumerate();
        let outputs =
            outputs.map(|(output, port)| (0..port.shape.len()).map(|axis| varies(output, axis)).collect()).collect();
        let packed = self.weights.shared().map(|shared| shared.places.clone()).unwrap_or_default();
        (first, Dynamic { profiles: self.takes, programs: self.programs, outputs, packed }, self.weights)
    }
}

fn min(range: &DimRange) -> u64 {
    range.min
}

fn max(range: &DimRange) -> u64 {
    range.max
}

/// The model's names for the dimensions of its inputs.
fn symbols(model: &Model) -> BTreeMap<String, Vec<Option<String>>> {
    let inputs = model.graph().input.iter().filter_map(|input| {
        let type_proto::Value::TensorType(tensor) = input.r#type.as_ref()?.value.as_ref()? else { return None };
        let dims = tensor.shape.as_ref()?.dim.iter().map(|dim| match declared_dim(dim) {
            DeclaredDim::Symbol(name) => Some(name),
            DeclaredDim::Size(_) | DeclaredDim::Unknown => None,
        });
        Some((input.name.clone(), dims.collect()))
    });
    inputs.collect()
}
