//! Preparing a model on this machine, for `planforge prepare` and `planforge build`: data from files, the engine that runs
//! the model on it, the prepared file and its report, written whole or not at all.

use crate::{context::Context, engine_runner::Native, failure::Failure};
use planforge_identity::npz;
use planforge_onnx::{Model, write};
use planforge_precision::{
    DataError, Options, PrecisionError, Preparation, Prepared, Reference, Runner, Samples, ports, prepare, work,
};
use planforge_proto::ErrorCode;
use planforge_types::{Digest, DigestWriter, HostTensor, NamedTensors, durable};
use serde::Serialize;
use std::{
    error::Error as _,
    fs, io,
    path::{Path, PathBuf},
};

/// Multiplications above which the interpreter would take minutes, and an engine is compiled.
const INTERPRETED_MACS: u64 = 2_000_000_000;

/// The report as it is written: what was prepared from what, then what came of it.
#[derive(Debug, Serialize)]
pub struct Written<'a> {
    /// Digest of the ONNX file that was prepared, and of the file that came of it.
    pub source: Digest,
    pub prepared: Digest,
    /// Digest of every file of calibration data, in order.
    pub data: Vec<Digest>,
    #[serde(flatten)]
    pub report: &'a Preparation,
}

/// The arrays of an archive, or of every archive of a folder, one after the other along the first axis; and their digests.
pub fn arrays(path: &Path) -> Result<(NamedTensors, Vec<Digest>), Failure> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(|e| Failure::io("read", path, &e))?;
        let entries: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
        files = entries.map_err(|e| Failure::io("read", path, &e))?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "npz"));
        files.sort();
        if files.is_empty() {
            return Err(Failure::usage(format!("{} holds no .npz file", path.display())).hint(DataError::Empty.hint()));
        }
    }
    let (mut whole, mut digests) = (NamedTensors::new(), Vec::new());
    for file in &files {
        digests.push(digest_of(file)?);
        append(&mut whole, npz::read(file)?, file)?;
    }
    Ok((whole, digests))
}

fn append(whole: &mut NamedTensors, part: NamedTensors, file: &Path) -> Result<(), Failure> {
    if whole.is_empty() {
        *whole = part;
        return Ok(());
    }
    let differs = |what: &str| Failure::usage(format!("{}: {what} than in the files before it", file.display()));
    if !whole.keys().eq(part.keys()) {
        return Err(differs("other arrays"));
    }
    for (name, tensor) in part {
        let Some(into) = whole.get_mut(&name) else { continue };
        let rows = |tensor: &HostTensor| tensor.shape.split_first().map(|(_, row)| row.to_vec());
        if into.element != tensor.element || rows(into).is_none() || rows(into) != rows(&tensor) {
            return Err(differs(&format!("rows of another type or shape in '{name}'")));
        }
        into.shape[0] += tensor.shape[0];
        into.bytes.extend(tensor.bytes);
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
    let rows = samples.iter().chain(&judged).map(|samples| samples.rows() as u64).max().unwrap_or(0);
    let heavy = work(&model, samples.as_ref().or(judged.as_ref()))
        .is_some_and(|macs| macs.saturating_mul(rows) > INTERPRETED_MACS);
    let native = if heavy { Native::here() } else { None };
    let runner: &dyn Runner = match &native {
        Some(native) => native,
        None => &Reference,
    };
    let prepared = prepare(&model, samples.as_ref(), judged.as_ref(), options, runner);
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
        let document = Written { source: self.source, prepared, data, report: &self.prepared.report };
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
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message += &format!(": {cause}");
            source = cause.source();
        }
        let code = match &error {
            PrecisionError::Budget { .. }
            | PrecisionError::Target { .. }
            | PrecisionError::Nothing { .. }
            | PrecisionError::Import(_)
            | PrecisionError::Opset { .. } => ErrorCode::Refused,
            _ => ErrorCode::InvalidArgument,
        };
        Self::new(code, message).hint(error.hint())
    }
}
