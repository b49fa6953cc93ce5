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
use std::path::{Path, PathBuf};

/// The arrays of an archive, or of every archive of a folder, one after the other along the first axis; and their digests.
pub fn arrays(path: &Path) -> Result<(NamedTensors, Vec<Digest>), Failure> {
    let files = archives(path)?;
    let digests = files.iter().map(|file| digest_of(file)).collect::<Result<Vec<_>, _>>()?;
    let arrays = work::arrays(&files).map_err(|error| match error {
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
