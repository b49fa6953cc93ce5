//! Engines of varying shapes: right at every shape inside the profile, an error at once outside of it.

mod support;

use planforge_backend::{Cancel, CompileRequest, Compiler, LoadOptions, Meter};
use planforge_cpu::CpuCompiler;
use planforge_device::CpuLevel;
use planforge_graph::{interpreter, ir::Tensor};
use planforge_import::import;
use planforge_modelgen::{Batch, Options, Style, generate};
use planforge_onnx::Model;
use planforge_types::{BackendError, BuildSpec, DimRange, OptimizationProfile};
use planforge_worker::verify::inputs;
use std::{
    collections::BTreeMap,
    error::Error,
    path::{Path, PathBuf},
};
use support::Silent;
use tempfile::TempDir;

type Failure = Box<dyn Error>;

/// Smallest, usual and largest size of a dimension.
type Sizes = (u64, u64, u64);

/// A profile of inputs by name.
fn profile(inputs: &[(&str, &[Sizes])]) -> OptimizationProfile {
    let dims = |dims: &[Sizes]| dims.iter().map(|&(min, opt, max)| DimRange { min, opt, max }).collect();
    OptimizationProfile { inputs: inputs.iter().map(|(name, sizes)| ((*name).to_owned(), dims(sizes))).collect() }
}

/// A model and the folder its plans go to.
struct Built {
    _folder: TempDir,
    model: PathBuf,
    plan: PathBuf,
}

fn request(model: &Path, scratch: &Path, profiles: Vec<OptimizationProfile>) -> Result<CompileRequest, Failure> {
    let level = *CpuLevel::detect().last().ok_or("this CPU is below every level")?;
    let plain = support::request(model, level, scratch);
    let spec = BuildSpec { threads: Some(2), profiles, ..plain.spec };
    Ok(CompileRequest { spec, ..plain })
}

fn build(
    model: impl FnOnce(&Path) -> Result<(), Failure>,
    profiles: Vec<OptimizationProfile>,
) -> Result<Built, Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.onnx");
    model(&path)?;
    let request = request(&path, folder.path(), profiles)?;
    let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default())?.path;
    Ok(Built { _folder: folder, model: path, plan })
}

impl Built {
    fn load(&self, profile: usize) -> Result<Box<dyn Meter>, BackendError> {
        CpuCompiler.load(&self.plan, &LoadOptions { profile, ..LoadOptions::default() })
    }

    /// Runs the engine at `shapes` and compares every output with the reference operators.
    fn check(&self, meter: &mut dyn Meter, shapes: &[(&str, &[usize])]) -> Result<(), Failure> {
        let fixed = OptimizationProfile::of_shapes(shapes.iter().copied());
        let graph = import(&Model::open(&self.model)?, Some(&fixed))?;
        let specs = inputs::of_graph(&graph).ok_or("every shape is known")?;
        let given = inputs::generate(&specs, inputs::REFERENCE_SEED);
        meter.bind(&given)?;
        let answers = meter.run()?;
        let given = given.into_iter().map(|(name, tensor)| Ok((name, Tensor::try_from(tensor)?)));
        let given = given.collect::<Result<BTreeMap<_, _>, Failure>>()?;
        let wanted = interpreter::execute(&graph, &given)?;
        assert_eq!(answers.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
        for (name, wanted) in wanted {
            let answer = &answers[&name];
            assert_eq!(answer.shape, wanted.shape(), "{name} at {shapes:?}");
            let answer = Tensor::try_from(answer.clone())?.to_f64s();
            let wanted = wanted.to_f64s();
            let scale = wanted.iter().fold(1e-3f64, |top, value| top.max(value.abs()));
            let worst = answer.iter().zip(&wanted).fold(0f64, |worst, (a, b)| worst.max((a - b).abs()));
            assert!(worst <= 1e-4 * scale, "{name} at {shapes:?}: off by {worst} of {scale}");
        }
        Ok(())
    }
}

fn zoo(name: &'static str) -> impl FnOnce(&Path) -> Result<(), Failure> {
    move |path| {
        let style = Style { batch: Batch::Dynamic, open_sequence: name == "bert-base", ..Style::default() };
        generate(name, &Options { style, ..Options::default() }, path)?;
        Ok(())
    }
}

#[test]
fn an_image_model_is_right_at_every_batch() -> Result<(), Failure> {
    let dims: &[(u64, u64, u64)] = &[(1, 2, 3), (3, 3, 3), (224, 224, 224), (224, 224, 224)];
    let built = build(zoo("mobilenet-v3-large"), vec![profile(&[("input", dims)])])?;
    let mut meter = built.load(0)?;
    assert_eq!(meter.inputs()[0].shape, [None, Some(3), Some(224), Some(224)]);
    assert_eq!(meter.outputs()[0].shape, [None, Some(1000)]);
    for batch in [2, 1, 3] {
        built.check(&mut *meter, &[("input", &[batch, 3, 224, 224])])?;
    }
    Ok(())
}

#[test]
fn a_text_model_is_right_at_every_batch_and_length() -> Result<(), Failure> {
    let dims: &[(u64, u64, u64)] = &[(1, 1, 2), (2, 8, 24)];
    // The mask's sizes follow from the symbols it shares.
    let built = build(zoo("bert-base"), vec![profile(&[("input_ids", dims)])])?;
    let mut meter = built.load(0)?;
    for (batch, length) in [(1, 8), (2, 3), (1, 24)] {
        built.check(&mut *meter, &[("input_ids", &[batch, length]), ("attention_mask", &[batch, length])])?;
    }
    Ok(())
}
