//! From flags to how models are prepared before they are built: on which data, by which method, for whom.

use super::{LocalFiles, extras::digest_of};
use crate::{context::Context, failure::Failure};
use planforge_proto::{ErrorCode, v1};
use planforge_types::{
    BuildSpec, Digest, Precision,
    preparation::{Budget, DATA_FILES_MAX, Int8Way, Kind, Method, PrepareAsk, Target},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Flags that say how data given to `--calibration` is used; `build` and `submit` share them.
#[derive(Debug, Default, clap::Args)]
pub struct PrepareArgs {
    /// How int8 ranges are chosen on calibration data: mse (the usual), min-max, percentile or entropy
    #[arg(long, value_name = "METHOD", value_parser = method)]
    calibration_method: Option<Method>,
    /// Who is to run the prepared model: any, tensorrt, onnxruntime or cpu; as the toolchains say by default
    #[arg(long, value_name = "NAME", value_parser = target)]
    prepare_for: Option<Target>,
    /// Points of top-1 accuracy that preparing may cost, such as 0.5; needs labels, in the data or in --eval's
    #[arg(long, value_name = "POINTS", conflicts_with = "max_output_error")]
    max_accuracy_drop: Option<f64>,
    /// Relative error of the outputs that preparing may cost, such as 0.02
    #[arg(long, value_name = "ERROR")]
    max_output_error: Option<f64>,
}

fn named<T: Copy>(text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, String> {
    all.iter().copied().find(|one| name(*one) == text).ok_or_else(|| {
        let names = all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", ");
        format!("'{text}' is none of {names}")
    })
}

pub fn kind(text: &str) -> Result<Kind, String> {
    named(text, &Kind::ALL, Kind::name)
}

pub fn target(text: &str) -> Result<Target, String> {
    named(text, &Target::ALL, Target::name)
}

pub fn method(text: &str) -> Result<Method, String> {
    named(text, &Method::ALL, Method::name)
}

/// What a model becomes for engines of this precision; `None`: it is built as it is.
pub fn kind_of(precision: Precision) -> Option<Kind> {
    match precision {
        Precision::Int8 => Some(Kind::Int8),
        Precision::Fp16 => Some(Kind::Fp16),
        Precision::Bf16 => Some(Kind::Bf16),
        _ => None,
    }
}

impl PrepareArgs {
    /// What `kind` of model is made for engines by `toolchains`, without its data.
    pub fn ask(&self, kind: Kind, toolchains: &[String]) -> PrepareAsk {
        let all = |name: &str| !toolchains.is_empty() && toolchains.iter().all(|toolchain| toolchain.starts_with(name));
        let usual = match () {
            () if all("tensorrt") => Target::TensorRt,
            () if all("onnxruntime") => Target::OnnxRuntime,
            () => Target::Any,
        };
        let usual = PrepareAsk::new(kind, self.prepare_for.unwrap_or(usual));
        let drop = self.max_accuracy_drop.map(Budget::AccuracyDrop);
        PrepareAsk {
            method: self.calibration_method.unwrap_or(usual.method),
            budget: drop.or(self.max_output_error.map(Budget::OutputError)),
            ..usual
        }
    }

    /// Whether any of it is said, which means nothing without data.
    fn is_said(&self) -> bool {
        self.calibration_method.is_some()
            || self.prepare_for.is_some()
            || self.max_accuracy_drop.is_some()
            || self.max_output_error.is_some()
    }

    /// Refuses what means nothing without data.
    pub fn unused(&self) -> Result<(), Failure> {
        match self.is_said() {
            false => Ok(()),
            true => Err(Failure::usage("how a model is prepared was said, but there is no data to prepare it on")
                .hint("give --calibration an .npz with one array per input, or a folder of such files")),
        }
    }
}

/// The archives that `path` names: itself, or every one of a folder, in the order of their names.
pub fn archives(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).map_err(|e| Failure::io("read", path, &e))?;
    let entries: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut files = entries.map_err(|e| Failure::io("read", path, &e))?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "npz"));
    files.sort();
    if files.is_empty() {
        return Err(Failure::usage(format!("{} holds no .npz file", path.display()))
            .hint("give an .npz with one array per input, named like the input, rows along its first axis"));
    }
    if files.len() > DATA_FILES_MAX {
        let message =
            format!("{} holds {} .npz files; at most {DATA_FILES_MAX} go together", path.display(), files.len());
        return Err(Failure::usage(message).hint("put the rows of several into one file"));
    }
    Ok(files)
}

/// How the models of a request are prepared, and the files that it takes.
#[derive(Debug, Default)]
pub struct Preparations {
    data: Vec<Digest>,
    eval: Option<Digest>,
    pub files: LocalFiles,
}

impl Preparations {
    /// The data at `path`, and what losses are measured on where that is other data.
    pub fn of(path: &Path, eval: Option<&Path>) -> Result<Self, Failure> {
        let mut own = Self::default();
        for file in archives(path)? {
            let digest = digest_of(&file)?;
            own.data.push(digest);
            own.files.insert(digest.to_string(), file);
        }
        if let Some(path) = eval {
            let digest = digest_of(path)?;
            own.eval = Some(digest);
            own.files.insert(digest.to_string(), path.to_owned());
        }
        Ok(own)
    }

    /// Puts into a request how its models are prepared for each of its specs; `ways` lead to them, where that is said.
    pub fn onto(
        &self,
        context: &Context<'_>,
        how: &PrepareArgs,
        ways: &[Option<Int8Way>],
        request: &mut v1::SubmitRequest,
    ) -> Result<(), Failure> {
        let mut asks = Vec::with_capacity(request.specs_json.len());
        let (mut calibrates, mut as_it_is) = (Vec::new(), false);
        for (place, text) in (0u32..).zip(&request.specs_json) {
            let spec = BuildSpec::parse(text)
                .map_err(|e| Failure::new(ErrorCode::Internal, format!("a build spec of the request: {e}")))?;
            let way = ways.get(place as usize).copied().flatten();
            if way == Some(Int8Way::Calibrated) {
                calibrates.push(place);
            }
            asks.push(match kind_of(spec.precision).filter(|_| way != Some(Int8Way::Uncalibrated)) {
                None => {
                    as_it_is |= way.is_none();
                    String::new()
                }
                Some(kind) => {
                    let ask = how.ask(kind, &request.toolchains);
                    let ask = PrepareAsk { data: self.data.clone(), eval: self.eval, ..ask }.canonical();
                    ask.validate().map_err(|why| Failure::usage(format!("the models cannot be prepared: {why}")))?;
                    serde_json::to_string(&ask)
                        .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot write a preparation: {e}")))?
                }
            });
        }
        if asks.iter().all(String::is_empty) {
            return Err(Failure::usage("data to calibrate on is for --precision int8, fp16 and bf16")
                .hint("planforge prepare makes other models, too"));
        }
        if as_it_is {
            context
                .printer
                .note("engines of other precisions than int8, fp16 and bf16 are built from the model as it is");
        }
        request.prepares_json = asks;
        request.calibrates = calibrates;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_prepared_for_who_is_to_run_it() {
        let ask = |args: &PrepareArgs, toolchains: &[&str]| {
            args.ask(Kind::Int8, &toolchains.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
        };
        let usual = PrepareArgs::default();
        assert_eq!(ask(&usual, &[]).target, Target::Any);
        assert_eq!(ask(&usual, &["tensorrt>=10", "tensorrt<9"]).target, Target::TensorRt);
        assert_eq!(ask(&usual, &["onnxruntime", "native"]).target, Target::Any);
        let said = PrepareArgs {
            calibration_method: Some(Method::Entropy),
            prepare_for: Some(Target::Cpu),
            max_accuracy_drop: Some(0.5),
            ..PrepareArgs::default()
        };
        let asked = ask(&said, &["onnxruntime"]);
        assert_eq!((asked.target, asked.method), (Target::Cpu, Method::Entropy));
        assert_eq!(asked.budget, Some(Budget::AccuracyDrop(0.5)));
        assert!(usual.unused().is_ok() && said.unused().unwrap_err().to_string().contains("no data"));
    }

    #[test]
    fn a_folder_is_its_archives_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.npz", "a.npz", "notes.txt"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let own = Preparations::of(folder.path(), None).unwrap();
        assert_eq!(own.data, [Digest::of(b"a.npz"), Digest::of(b"b.npz")]);
        let empty = tempfile::tempdir().unwrap();
        assert!(archives(empty.path()).unwrap_err().to_string().contains("holds no .npz"));
    }
}
