//! Preparing a model on this machine, for `planforge prepare` and `planforge build`: data from files, the engine that runs
//! the model on it, the prepared file and its report, written whole or not at all.

use crate::{context::Context, failure::Failure, request::prepare::archives};
use planforge_backend::Compiler;
use planforge_cpu::CpuCompiler;
use planforge_onnx::{Model, write};
use planforge_precision::{DataError, Document, Options, PrecisionError, Preparation, Prepared, Samples, ports};
use planforge_proto::ErrorCode;
use planforge_types::{Digest, DigestWriter, NamedTensors, durable};
use planforge_worker::preparation::{self as work, ArraysError};
use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

/// The arrays of an archive, or of every archive of a folder, one after the other along the first axis; and their digests.
pub fn arrays(path: &Path) -> Result<(NamedTensors, Vec<Digest>), Failure> {
    let files = archives(path)?;
    let (digests, arrays) = thread::scope(|scope| {
        let digests = scope.spawn(|| files.iter().map(|file| digest_of(file)).collect::<Result<Vec<_>, _>>());
        let arrays = work::arrays(&files);
        (digests.join().unwrap_or_else(|panic| resume_unwind(panic)), arrays)
    });
    let digests = digests?;
    let arrays = arrays.map_err(|error| match error {
        ArraysError::Archive(error) => error.into(),
        ArraysError::Data { error: ref inner, .. } => Failure::usage(error.to_string()).hint(inner.hint()),
    })?;
    Ok((arrays, digests))
}

/// Refuses data that does not fit one of the `models`, before anything is sent.
pub fn check_data(data: &Path, eval: Option<&Path>, models: &[PathBuf]) -> Result<(), Failure> {
    for path in models {
        let model = Model::open(path).map_err(|e| Failure::usage(e.to_string()).hint(e.hint()))?;
        for given in [Some(data), eval].into_iter().flatten() {
            let (arrays, _) = arrays(given)?;
            Samples::fit(arrays, &ports(&model)).map_err(|error| {
                let message = format!("{} does not fit {}: {error}", given.display(), path.display());
                Failure::usage(message).hint(error.hint())
            })?;
        }
    }
    Ok(())
}

/// Where the data for a preparation lies.
#[derive(Debug, Default)]
pub struct Data<'a> {
    pub calibration: Option<&'a Path>,
    /// What losses are measured on, where that is other data.
    pub eval: Option<&'a Path>,
}

/// A prepared model before it is written.
#[derive(Debug)]
pub struct Ready {
    pub prepared: Prepared,
    source: Digest,
    data: Vec<Digest>,
}

/// Prepares the model in the file `path`.
pub fn run(context: &Context<'_>, path: &Path, data: &Data<'_>, options: &Options) -> Result<Ready, Failure> {
    let model = Model::open(path).map_err(|e| Failure::usage(e.to_string()).hint(e.hint()))?;
    let source = digest_of(path)?;
    let ports = ports(&model);
    let mut digests = Vec::new();
    let mut fitted = |path: Option<&Path>| -> Result<Option<Samples>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let (arrays, found) = arrays(path)?;
        digests.extend(found);
        let told = |error: DataError| Failure::usage(format!("{}: {error}", path.display())).hint(error.hint());
        Samples::fit(arrays, &ports).map(Some).map_err(told)
    };
    let (samples, judged) = (fitted(data.calibration)?, fitted(data.eval)?);
    let spinner = context.printer.spinner(&format!("preparing {}", path.display()));
    let native: &dyn Compiler = &CpuCompiler;
    let prepared = work::prepared(&model, samples.as_ref(), judged.as_ref(), options, &[native]);
    spinner.clear();
    Ok(Ready { prepared: prepared?, source, data: digests })
}

impl Ready {
    /// Writes the model to `output` and the report beside it, each by a rename; gives the report's path.
    pub fn write(&self, output: &Path) -> Result<(PathBuf, serde_json::Value), Failure> {
        crate::plans::make_parent(output)?;
        write::save(output, &self.prepared.proto).map_err(|e| Failure::usage(e.to_string()).hint(e.hint()))?;
        let prepared = digest_of(output)?;
        let data = self.data.clone();
        let Prepared { report, scales, .. } = &self.prepared;
        let document = Document { source: self.source, prepared, data, calibration: scales, report };
        let document = serde_json::to_value(&document)
            .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot write the report as JSON: {e}")))?;
        let path = output.with_extension("preparation.json");
        write_whole(&path, format!("{document:#}\n").as_bytes())?;
        Ok((path, document))
    }
}

/// Writes a file that appears whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    durable::write(path, bytes).map_err(|e| Failure::io("write", path, &e))
}

fn digest_of(path: &Path) -> Result<Digest, Failure> {
    let (digest, _) = DigestWriter::of_file(path).map_err(|e| Failure::io("read", path, &e))?;
    Ok(digest)
}

/// What a person reads of a report.
pub fn lines(report: &Preparation) -> Vec<String> {
    let coverage = &report.coverage;
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let mut lines = vec![format!(
        "{}: {} of {} layers, {:.0} % of their weights, {:.0} % of the multiplications",
        report.precision.name(),
        coverage.layers_lowered,
        coverage.layers,
        share(coverage.weights_lowered, coverage.weights),
        share(coverage.macs_lowered, coverage.macs),
    )];
    if let Some(measured) = &report.measured {
        let mut text = format!("relative error of the outputs {:.4} on {} rows", measured.relative_rms, measured.rows);
        if let (Some(before), Some(after)) = (measured.top1_before, measured.top1_after) {
            text += &format!("; top-1 {:.2} %, before {:.2} %", 100.0 * after, 100.0 * before);
        }
        lines.push(text);
    }
    for layer in report.layers.iter().filter(|layer| layer.precision == "fp32") {
        lines.push(format!("{} stays fp32: {}", layer.name, layer.why));
    }
    lines.extend(report.answers.iter().cloned());
    lines
}

impl From<PrecisionError> for Failure {
    fn from(error: PrecisionError) -> Self {
        let code = match &error {
            PrecisionError::Budget { .. }
            | PrecisionError::Target { .. }
            | PrecisionError::Nothing { .. }
            | PrecisionError::Import(_)
            | PrecisionError::Opset { .. } => ErrorCode::Refused,
            _ => ErrorCode::InvalidArgument,
        };
        Self::new(code, work::words(&error)).hint(error.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_precision::{Budget, Kind, Reference, Runner, Seen, Target, prepare};
    use planforge_worker::preparation::EngineRunner;
    use std::collections::{BTreeMap, BTreeSet};

    /// What a runner shows of a model on a few rows: the numbers of each value in the model's order, and whether they lay so.
    fn seen(runner: &dyn Runner, model: &Model, samples: &Samples) -> BTreeMap<String, (bool, Vec<f64>)> {
        let values: BTreeSet<String> = model.graph().node.iter().flat_map(|node| node.output.clone()).collect();
        let mut session = runner.open(model, samples.profile().as_ref(), &values, samples.batches()).unwrap();
        let mut all: BTreeMap<String, (bool, Vec<f64>)> = BTreeMap::new();
        for batch in 0..samples.batches() {
            let look = &mut |seen: &[Seen<'_>]| {
                for seen in seen {
                    let of = all.entry(seen.name.to_owned()).or_insert((seen.channels_last, Vec::new()));
                    of.1.extend(seen.in_order());
                }
            };
            session.run(&samples.inputs(batch), look).unwrap();
        }
        all
    }

    #[test]
    fn an_engine_and_the_interpreter_show_the_same_values_and_lead_to_the_same_ranges() {
        for name in ["shapes", "boxes", "letters"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/trained");
            let model = Model::open(&folder.join(format!("{name}.onnx"))).unwrap();
            let (arrays, _) = arrays(&folder.join(format!("{name}-calibration.npz"))).unwrap();
            let samples = Samples::fit(arrays, &ports(&model)).unwrap().thinned(4);
            let engine = EngineRunner::here(&CpuCompiler).unwrap();
            let (there, here) = (seen(&Reference, &model, &samples), seen(&engine, &model, &samples));
            let mut images = 0;
            for (value, (channels_last, here)) in &here {
                let (_, there) = &there[value];
                images += usize::from(*channels_last);
                assert_eq!(here.len(), there.len(), "{name}: {value}");
                let largest = there.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
                for (a, b) in here.iter().zip(there) {
                    assert!((a - b).abs() <= 1e-3 * largest, "{name}: {value}: {a} for {b} of {largest}");
                }
            }
            assert!(here.len() > 10, "{name}: {} values", here.len());
            assert_eq!(images > 0, name != "letters", "{name}: {images}");
            for target in [Target::Any, Target::OnnxRuntime] {
                let options = Options::new(Kind::Int8, target);
                let scales = |runner: &dyn Runner| {
                    let prepared = prepare(&model, Some(&samples), None, &options, runner).unwrap();
                    assert_eq!(prepared.scales.is_empty(), target == Target::OnnxRuntime);
                    (prepared.report.measured.unwrap().relative_rms, prepared.scales)
                };
                let (here, there) = (scales(&engine), scales(&Reference));
                assert!((here.0 - there.0).abs() < 0.02, "{name}: {} and {}", here.0, there.0);
                assert!(here.1.keys().eq(there.1.keys()), "{name}");
                for (value, scale) in &here.1 {
                    assert!(
                        (scale / there.1[value] - 1.0).abs() < 0.05,
                        "{name}: {value}: {scale} and {}",
                        there.1[value]
                    );
                }
            }
        }
    }

    #[test]
    fn an_engine_tells_what_each_layer_takes_in_either_precision_and_a_budget_weighs_that() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/trained");
        let model = Model::open(&folder.join("shapes.onnx")).unwrap();
        let (arrays, _) = arrays(&folder.join("shapes-calibration.npz")).unwrap();
        let samples = Samples::fit(arrays, &ports(&model)).unwrap().thinned(4);
        let engine = EngineRunner::here(&CpuCompiler).unwrap();
        let saved = |target: Target| {
            let options = Options::new(Kind::Int8, target);
            let whole = prepare(&model, Some(&samples), None, &options, &engine).unwrap();
            let most = whole.report.measured.unwrap().relative_rms * 0.8;
            let options = Options { budget: Some(Budget::OutputError(most)), ..options };
            let prepared = prepare(&model, Some(&samples), None, &options, &engine).unwrap();
            let lowered = prepared.report.coverage.layers_lowered;
            assert!(lowered < prepared.report.coverage.layers, "{lowered}");
            prepared.report.layers.into_iter().map(|layer| layer.saved_us).collect::<Vec<_>>()
        };
        let times = saved(Target::Cpu);
        assert!(times.iter().all(|us| us.is_some_and(f64::is_finite)), "every layer is timed: {times:?}");
        assert!(saved(Target::Any).iter().all(Option::is_none), "of what runs elsewhere nothing is known");
    }
}
