//! ONNX backend cases through the reference and the optimised path: a case passes or is refused by name.
//!
//! `PLANFORGE_ONNX_CASES` names a folder of cases, each with `model.onnx` and `test_data_set_0/{input,output}_N.pb`,
//! as the `onnx` Python package's own generator writes them. Without it there is nothing to do.
#![expect(clippy::print_stderr, reason = "a table for whoever runs this by hand")]

use planforge_engine_core::{
    import::{ImportError, Problem, Refusal, element_type, import},
    ir::{ElementType, Graph, Tensor},
    ops, passes,
};
use planforge_onnx::{
    Model,
    proto::{ModelProto, TensorProto},
    tensor::inline_bytes,
};
use prost::Message;
use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

/// Absolute tolerance of ONNX's own runner.
const ABSOLUTE: f64 = 1e-7;

/// Relative tolerance: ONNX's own, and for narrow floats a few units in the last place, for a case may round between
/// its steps.
fn relative(element: ElementType) -> f64 {
    match element {
        ElementType::Bf16 => 2f64.powi(-6),
        ElementType::F16 => 2f64.powi(-9),
        _ => 1e-3,
    }
}

type Failure = Box<dyn Error>;

enum Outcome {
    Passed,
    Refused(String),
    Wrong(String),
}

fn read_protos(folder: &Path, stem: &str) -> Result<Vec<TensorProto>, Failure> {
    (0..)
        .map(|index| folder.join(format!("{stem}_{index}.pb")))
        .take_while(|path| path.exists())
        .map(|path| Ok(TensorProto::decode(fs::read(path)?.as_slice())?))
        .collect()
}

fn tensor(proto: &TensorProto) -> Result<Tensor, Failure> {
    let shape = proto.dims.iter().map(|&size| usize::try_from(size)).collect::<Result<_, _>>()?;
    Ok(Tensor::new(element_type(proto.data_type)?, shape, inline_bytes(proto)?)?)
}

/// Inputs after the first `kept` become constants: shapes may follow from them, as they do in real models.
fn bake(model: &[u8], inputs: &[TensorProto], kept: usize) -> Result<Vec<u8>, Failure> {
    let mut proto = ModelProto::decode(model)?;
    if let Some(graph) = &mut proto.graph {
        let baked = graph.input.drain(kept.min(graph.input.len())..).zip(inputs.iter().skip(kept));
        for (info, value) in baked.collect::<Vec<_>>() {
            graph.initializer.push(TensorProto { name: info.name, ..value.clone() });
        }
    }
    Ok(proto.encode_to_vec())
}

fn needs_constants(error: &ImportError) -> bool {
    let not_constant =
        |problem: &Problem| matches!(problem, Problem::Node { refusal: Refusal::NotConstant { .. }, .. });
    error.problems.iter().any(not_constant)
}

fn differs(actual: &Tensor, expected: &Tensor) -> Option<String> {
    if (actual.element(), actual.shape()) != (expected.element(), expected.shape()) {
        return Some(format!("{actual:?} instead of {expected:?}"));
    }
    let (a, e, relative) = (actual.to_f64s(), expected.to_f64s(), relative(expected.element()));
    let close = |a: f64, e: f64| (a.is_nan() && e.is_nan()) || a == e || (a - e).abs() <= ABSOLUTE + relative * e.abs();
    let first = a.iter().zip(&e).position(|(&a, &e)| !close(a, e))?;
    Some(format!("element {first} is {} instead of {}", a[first], e[first]))
}

fn compare(graph: &Graph, inputs: &BTreeMap<String, Tensor>, expected: &[Tensor]) -> Option<String> {
    let outputs = match ops::execute(graph, inputs) {
        Ok(outputs) => outputs,
        Err(error) => return Some(error.to_string()),
    };
    graph.outputs.iter().zip(expected).find_map(|(output, expected)| differs(&outputs[&output.name], expected))
}

fn run(folder: &Path) -> Result<Outcome, Failure> {
    let bytes = fs::read(folder.join("model.onnx"))?;
    let data = folder.join("test_data_set_0");
    let protos = read_protos(&data, "input")?;
    let mut last = String::new();
    // All inputs variable first, then fewer and fewer, until what shapes follow from is constant.
    for kept in [usize::MAX, 1, 0] {
        let model = match Model::from_bytes(bake(&bytes, &protos, kept)?.into()) {
            Ok(model) => model,
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        let graph = match import(&model, None) {
            Ok(graph) => graph,
            Err(error) if needs_constants(&error) => {
                last = error.to_string();
                continue;
            }
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        let expected = read_protos(&data, "output")?.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
        let names = model.graph().input.iter().map(|input| input.name.clone());
        let inputs = names.zip(&protos).map(|(name, proto)| Ok((name, tensor(proto)?)));
        let inputs = inputs.collect::<Result<BTreeMap<_, _>, Failure>>()?;
        if let Some(wrong) = compare(&graph, &inputs, &expected) {
            return Ok(Outcome::Wrong(format!("reference: {wrong}")));
        }
        let optimized = passes::pipeline(graph)?.graph;
        return Ok(match compare(&optimized, &inputs, &expected) {
            Some(wrong) => Outcome::Wrong(format!("optimised: {wrong}")),
            None => Outcome::Passed,
        });
    }
    Ok(Outcome::Refused(last))
}

#[test]
fn backend_cases_pass_or_are_refused_by_name() -> Result<(), Failure> {
    let Some(root) = std::env::var_os("PLANFORGE_ONNX_CASES").map(PathBuf::from) else {
        eprintln!("skipped: PLANFORGE_ONNX_CASES names no folder of cases");
        return Ok(());
    };
    let entries = fs::read_dir(&root)?.map(|entry| Ok(entry?.path()));
    let mut folders: Vec<PathBuf> = entries.collect::<Result<_, Failure>>()?;
    folders.sort();
    let (mut passed, mut refused, mut wrong) = (0, 0, Vec::new());
    for folder in &folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match run(folder) {
            Ok(Outcome::Passed) => passed += 1,
            Ok(Outcome::Refused(reason)) => {
                refused += 1;
                eprintln!("refused {name}: {reason}");
            }
            Ok(Outcome::Wrong(reason)) => wrong.push(format!("{name}: {reason}")),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    eprintln!("{passed} passed, {refused} refused, {} wrong of {}", wrong.len(), folders.len());
    assert!(wrong.is_empty(), "wrong answers:\n{}", wrong.join("\n"));
    assert!(passed > 0, "no case passed under {}", root.display());
    Ok(())
}
