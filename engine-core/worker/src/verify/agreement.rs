//! Whether our own reading of a model is that of a runtime that shares nothing with it.
//!
//! Engines are held against the reference operators, and both come out of one importer: what that reads wrongly, both
//! compute alike, and every engine is found right. So the reference's own results are held against an independent
//! runtime's on the same inputs, once for every model, graph and set of inputs ([`Agreements`] remembers it), by the rules
//! that engines of single precision are judged by.

use super::{Check, cancelled, given, numerics, places, spread, tensors};
use planforge_backend::Oracle;
use planforge_graph::ir::{Graph, Tensor};
use planforge_report::{Agreement, OutputNumerics};
use planforge_types::{BackendError, Digest, DigestWriter, HostTensor, NamedTensors, Precision, durable};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Comparisons that a host remembers; the oldest go first.
const KEPT: usize = 512;

/// Largest file that is read: a real one has a few kilobytes.
const FILE_MAX_BYTES: u64 = 256 << 10;

/// How long it stands that a runtime did not say: it may have been in a hurry.
const SILENT_FOR: Duration = Duration::from_secs(24 * 3600);

/// Digits of a digest in file names.
const NAME_DIGITS: usize = 24;

/// A runtime that the reference is held against, where one is present.
#[derive(Clone, Copy)]
pub struct Second<'a> {
    /// `None`: none is present here.
    pub runtime: Option<&'a dyn Oracle>,
    /// The ONNX file.
    pub model: &'a Path,
    pub model_digest: Digest,
    /// What this host compared before; `None`: nothing is remembered.
    pub known: Option<&'a Agreements>,
}

impl std::fmt::Debug for Second<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let runtime = self.runtime.map(Oracle::name);
        f.debug_struct("Second").field("runtime", &runtime).field("model", &self.model).finish_non_exhaustive()
    }
}

/// Comparisons of this host, a file each.
#[derive(Clone, Debug)]
pub struct Agreements {
    folder: PathBuf,
}

/// What a file holds.
#[derive(Serialize, Deserialize)]
struct Remembered {
    /// Of everything that the comparison depends on.
    key: Digest,
    agreement: Agreement,
}

impl Agreements {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn path(&self, key: &Digest) -> PathBuf {
        let mut name = key.to_string();
        name.truncate(NAME_DIGITS);
        self.folder.join(format!("{name}.json"))
    }

    /// Whatever cannot be read is compared again.
    fn known(&self, key: &Digest, now_ms: u64) -> Option<Agreement> {
        let path = self.path(key);
        let small = fs::metadata(&path).is_ok_and(|facts| facts.len() <= FILE_MAX_BYTES);
        let found: Remembered = small.then(|| serde_json::from_slice(&fs::read(&path).ok()?).ok()).flatten()?;
        let age_ms = now_ms.saturating_sub(found.agreement.compared_unix_ms.unwrap_or(0));
        let stands = found.agreement.agrees.is_some() || u128::from(age_ms) < SILENT_FOR.as_millis();
        (found.key == *key && stands).then_some(found.agreement)
    }

    /// What cannot be kept is compared again by the next build; nothing else is lost.
    fn keep(&self, key: Digest, agreement: &Agreement) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let document = serde_json::to_vec_pretty(&Remembered { key, agreement: agreement.clone() })?;
        durable::write_cache(&self.path(&key), &document)?;
        let dated = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
        let mut files: Vec<_> = fs::read_dir(&self.folder)?.filter_map(|entry| dated(entry.ok()?)).collect();
        files.sort();
        let surplus = files.len().saturating_sub(KEPT);
        for (_, path) in files.into_iter().take(surplus) {
            // Another worker of this host may have been faster.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }
}

/// Of the model, of how it was read, of the inputs with their values, of the runtime and of this version of the program.
fn key(second: &Second<'_>, runtime: &str, graph: &Graph, inputs: &NamedTensors) -> Digest {
    let mut writer = DigestWriter::new();
    let nodes = serde_json::to_vec(&graph.nodes).unwrap_or_default();
    let head = format!("{} {runtime} {} ", second.model_digest, env!("CARGO_PKG_VERSION"));
    let parts = inputs.iter().flat_map(|(name, HostTensor { element, shape, bytes })| {
        [format!("{name} {element:?} {shape:?} {} ", bytes.len()).into_bytes(), bytes.clone()]
    });
    for part in [head.into_bytes(), nodes].into_iter().chain(parts) {
        writer.update(&part);
    }
    writer.finish()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64)
}

/// Holds the reference's outputs on the inputs of `check` against the independent runtime's, or remembers how that went.
pub(super) fn held(
    check: &Check<'_>,
    second: &Second<'_>,
    reference: &NamedTensors,
    softmaxes: &BTreeMap<String, usize>,
) -> Result<Agreement, BackendError> {
    let (Some(runtime), Ok(graph)) = (second.runtime, check.graph) else {
        return Ok(Agreement { reason: Some("none is present here".into()), ..Agreement::default() });
    };
    let (name, now_ms) = (runtime.name(), now_ms());
    let key = key(second, &name, graph, check.inputs);
    if let Some(known) = second.known.and_then(|known| known.known(&key, now_ms)) {
        return Ok(known);
    }
    let limit = Duration::from_secs_f64(check.budget_ms.max(0.0) / 1e3);
    let said = runtime.outputs(second.model, check.inputs, limit, check.cancel);
    if check.cancel.is_cancelled() {
        return Err(cancelled());
    }
    let agreement = Agreement { runtime: Some(name), compared_unix_ms: Some(now_ms), ..Agreement::default() };
    let agreement = match said {
        Ok(outputs) => compared(check, graph, &outputs, reference, softmaxes, agreement)?,
        Err(error) => Agreement { reason: Some(format!("it did not say: {error}")), ..agreement },
    };
    if let Some(known) = second.known
        && let Err(error) = known.keep(key, &agreement)
    {
        tracing::warn!(target: "attempt", folder = %known.folder.display(), %error, "cannot remember what was compared");
    }
    Ok(agreement)
}

fn compared(
    check: &Check<'_>,
    graph: &Graph,
    said: &NamedTensors,
    reference: &NamedTensors,
    softmaxes: &BTreeMap<String, usize>,
    agreement: Agreement,
) -> Result<Agreement, BackendError> {
    // The runtime computes as the model says, whatever the engine was asked for.
    let check = &Check { precision: Precision::Fp32, independent: None, ..*check };
    let threshold = numerics::threshold(check.precision);
    let mut outputs = numerics::compare(said, reference, softmaxes);
    if let Ok(inputs) = tensors(check.inputs) {
        let until_ms = check.clock.now_ms() + check.budget_ms;
        let stop = || check.cancel.is_cancelled() || check.clock.now_ms() > until_ms;
        places::judge(&mut outputs, graph, &inputs, [said, reference], threshold, &stop);
    }
    if !numerics::passes(&outputs, threshold) {
        // The runtime's integer softmax is not the reference's; that is no fault of how the model was read.
        spread(check, false, true, reference, softmaxes)?.judge(&mut outputs, said, reference, softmaxes, threshold);
    }
    let wrong = |output: &&OutputNumerics| !numerics::passes(std::slice::from_ref(*output), threshold);
    let name = agreement.runtime.clone().unwrap_or_default();
    let disagreements: Vec<String> =
        outputs.iter().filter(wrong).map(|output| evidence(output, &name, said, reference, softmaxes)).collect();
    Ok(Agreement {
        agrees: Some(disagreements.is_empty()),
        max_error: outputs.iter().map(|output| output.max_error).fold(0.0, f64::max),
        disagreements,
        ..agreement
    })
}

/// Where an output lies furthest apart, and what either side says there.
fn evidence(
    output: &OutputNumerics,
    runtime: &str,
    said: &NamedTensors,
    reference: &NamedTensors,
    softmaxes: &BTreeMap<String, usize>,
) -> String {
    let name = &output.name;
    if let Some(problem) = &output.problem {
        return format!("output '{name}' of {runtime}: {problem}");
    }
    let (Some(theirs), Some(ours)) = (said.get(name), reference.get(name)) else {
        return format!("output '{name}' is given by one side alone");
    };
    let softmax = softmaxes.get(name).copied();
    let worst = numerics::Differences::between(theirs, ours, softmax).ok().and_then(|found| {
        let beyond = found.not_finite.first().copied();
        let furthest = found.errors.iter().max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(at, _)| *at);
        beyond.or(furthest)
    });
    let value = |tensor: &HostTensor, at: usize| {
        Tensor::try_from(tensor.clone()).ok().and_then(|tensor| tensor.to_f64s().get(at).copied()).unwrap_or(f64::NAN)
    };
    let place = worst.map_or(String::new(), |at| {
        let place = given::place(at, &ours.shape);
        format!(" is {} at {place:?} by the {} and {} by {runtime};", value(ours, at), super::ORACLE, value(theirs, at))
    });
    let far = match output.whole_difference {
        Some(difference) => {
            format!("{:.2} % of its elements differ, by up to {difference}", output.max_error * 100.0)
        }
        None => format!(
            "it is off by {:.1e} of its scale, by root mean square {:.1e}",
            output.max_error, output.relative_rms
        ),
    };
    format!("output '{name}'{place} {far}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement(agrees: Option<bool>, at_ms: u64) -> Agreement {
        Agreement { runtime: Some("other 1".into()), agrees, compared_unix_ms: Some(at_ms), ..Agreement::default() }
    }

    #[test]
    fn what_was_compared_is_remembered_within_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let known = Agreements::new(&folder.path().join("oracles"));
        let key = |number: usize| Digest::of(format!("{number}").as_bytes());
        assert_eq!(known.known(&key(0), 5), None);
        known.keep(key(0), &agreement(Some(true), 5)).unwrap();
        assert_eq!(known.known(&key(0), u64::MAX), Some(agreement(Some(true), 5)));
        // That nobody said anything stands for a while only.
        known.keep(key(1), &agreement(None, 5)).unwrap();
        let day_ms = SILENT_FOR.as_millis() as u64;
        assert!(known.known(&key(1), 4 + day_ms).is_some() && known.known(&key(1), 5 + day_ms).is_none());
        fs::write(known.path(&key(1)), b"{").unwrap();
        assert_eq!(known.known(&key(1), 5), None);
        for number in 2..KEPT + 8 {
            known.keep(key(number), &agreement(Some(true), 5)).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path().join("oracles")).unwrap().count(), KEPT);
        assert!(known.known(&key(KEPT + 7), 5).is_some());
    }
}
