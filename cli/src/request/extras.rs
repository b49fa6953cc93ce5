//! What a request asks for beside its spec: several builds, more measurements, and files that travel with it.

use super::{LocalFiles, models, prepare::PrepareArgs, script::is_script};
use crate::failure::Failure;
use planforge_proto::{ErrorCode, v1};
use planforge_types::{
    BuildSpec, Digest,
    order::{BUILDS_MAX, BaselineAsk, MeasureAsk, WARM_UP_MAX_MS, WINDOWS_MAX, in_order},
};
#[cfg(feature = "local")]
use planforge_worker::verify::given::{self, GivenError};
use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

/// Flags that say what is measured beside the usual.
#[derive(Debug, Default, clap::Args)]
pub struct MeasureArgs {
    /// Measure with these numbers of parallel streams too, such as 1,2,4,8
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    sweep_streams: Vec<u32>,
    /// Measure these batches too, such as 1,8,32, where the engine's batch varies (--shapes)
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    sweep_batch: Vec<u32>,
    /// Record a timeline of one measurement and keep it beside the report
    #[arg(long)]
    trace: bool,
    /// Warm up at least this long before the first timed window
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(..=i64::from(WARM_UP_MAX_MS)))]
    warm_up_ms: Option<u32>,
    /// Time at least this many windows, whatever the usual budget
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(WINDOWS_MAX)))]
    min_windows: Option<u32>,
    /// Real inputs (.npz with an array per input, by its name) to compare outputs on, in place of made ones
    #[arg(long, value_name = "FILE.npz")]
    pub inputs: Option<PathBuf>,
    /// Time those inputs too
    #[arg(long, requires = "inputs")]
    time_inputs: bool,
    /// Measure another runtime beside the engine, under the same lease: onnxruntime, or what the agent's host has in the folder that PLANFORGE_BASELINES names there, with the model in the form it takes; repeat for several
    #[arg(long, value_name = "NAME[=MODULE]", value_parser = Beside::parse)]
    pub beside: Vec<Beside>,
}

/// Another runtime to be measured beside an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    pub name: String,
    /// The model in the form that it takes, such as an exported module of PyTorch's.
    pub module: Option<PathBuf>,
}

impl Beside {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, module) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
        match module {
            Some("") => Err(format!("'{text}' names no file behind the =")),
            _ => Ok(Self { name: name.to_owned(), module: module.map(PathBuf::from) }),
        }
    }

    /// What is asked for, the file by its digest.
    pub fn ask(&self) -> Result<BaselineAsk, Failure> {
        let module = self.module.as_deref().map(digest_of).transpose()?;
        Ok(BaselineAsk { name: self.name.clone(), module })
    }
}

impl MeasureArgs {
    /// What is asked for, in the one form it travels in.
    pub fn ask(&self) -> Result<MeasureAsk, Failure> {
        self.ask_with([])
    }

    /// The same, with these streams too.
    pub fn ask_with(&self, streams: impl IntoIterator<Item = u32>) -> Result<MeasureAsk, Failure> {
        let streams = in_order(self.sweep_streams.iter().copied().chain(streams).collect());
        let batches = in_order(self.sweep_batch.clone());
        let (warm_up_ms, min_windows) = (self.warm_up_ms.unwrap_or(0), self.min_windows.unwrap_or(0));
        let (inputs, time_inputs) = (self.inputs.as_deref().map(digest_of).transpose()?, self.time_inputs);
        let mut baselines = self.beside.iter().map(Beside::ask).collect::<Result<Vec<_>, _>>()?;
        baselines.sort();
        let trace = self.trace;
        let ask = MeasureAsk { streams, trace, batches, warm_up_ms, min_windows, inputs, time_inputs, baselines };
        let example = "for example --sweep-streams 1,2,4,8, --sweep-batch 1,8,32";
        ask.validate().map_err(|why| Failure::usage(why).hint(example))?;
        Ok(ask)
    }
}

/// What is asked for, as it travels; `None`: the usual.
pub fn ask_out(ask: &MeasureAsk) -> Option<v1::MeasureAsk> {
    (!ask.is_empty()).then(|| v1::MeasureAsk {
        streams: ask.streams.clone(),
        trace: ask.trace,
        batches: ask.batches.clone(),
        warm_up_ms: ask.warm_up_ms,
        min_windows: ask.min_windows,
        inputs_digest: ask.inputs.map(|inputs| inputs.to_string()).unwrap_or_default(),
        time_inputs: ask.time_inputs,
        baselines: ask
            .baselines
            .iter()
            .map(|baseline| v1::Baseline {
                name: baseline.name.clone(),
                module_digest: baseline.module.map(|module| module.to_string()).unwrap_or_default(),
            })
            .collect(),
    })
}

/// Flags beside the spec; `build` and `submit` share them.
#[derive(Debug, Default, clap::Args)]
pub struct ExtraArgs {
    /// Build and measure this often, one after the other on one device, and keep the fastest accurate plan
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(BUILDS_MAX)))]
    pub builds: Option<u32>,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Where int8 scales come from: a calibration cache, or data (.npz, a folder of them, or a script that writes one) on which
    /// the model is prepared first, by build on this machine, by submit as a job of the farm
    #[arg(long, value_name = "FILE|DIR|SCRIPT")]
    calibration: Option<PathBuf>,
    #[command(flatten)]
    pub prepare: PrepareArgs,
    /// Plugin library that the engine needs; the farm's operator has to allow it (planforge plugins); repeat for several
    #[arg(long = "plugin", value_name = "FILE")]
    plugins: Vec<PathBuf>,
}

/// What an archive of arrays begins with.
const ARCHIVE: [u8; 2] = *b"PK";

/// Whether `--calibration` names data to calibrate on, or what makes some, rather than a cache that somebody made.
pub fn is_data(path: &Path) -> bool {
    let mut head = [0; ARCHIVE.len()];
    path.is_dir()
        || is_script(path)
        || File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == ARCHIVE
}

impl ExtraArgs {
    /// How data is used; the flags are as if they had not been given then.
    pub fn take_prepare(&mut self) -> PrepareArgs {
        std::mem::take(&mut self.prepare)
    }

    /// The data that is to be calibrated on, where some is named; the flag is as if it had not been given then.
    pub fn take_data(&mut self) -> Option<PathBuf> {
        self.calibration.take_if(|path| is_data(path))
    }
}

pub(super) fn digest_of(path: &Path) -> Result<Digest, Failure> {
    let (text, _) = models::hash(path)?;
    text.parse().map_err(|e| Failure::new(ErrorCode::Internal, format!("the digest of {}: {e}", path.display())))
}

/// The small client leaves what is in the file to the worker that reads it.
#[cfg(not(feature = "local"))]
pub fn readable_inputs(path: &Path) -> Result<(), Failure> {
    std::fs::File::open(path).map(drop).map_err(|e| Failure::io("read", path, &e))
}

/// Refuses a file of inputs that cannot be read.
#[cfg(feature = "local")]
pub fn readable_inputs(path: &Path) -> Result<(), Failure> {
    let told = |error: GivenError| Failure::usage(format!("{}: {}", path.display(), error.words())).hint(error.hint());
    given::readable(path).map_err(told)
}

/// Files that a request names by digest.
#[derive(Debug, Default)]
pub struct Attached {
    calibration: Option<Digest>,
    plugins: Vec<Digest>,
    pub eval: Option<Digest>,
    pub files: LocalFiles,
}

impl Attached {
    /// Hashes the files that `args` and `eval` name.
    pub fn of(args: &ExtraArgs, eval: Option<&Path>) -> Result<Self, Failure> {
        let mut attached = Self::measuring(&args.measure, eval)?;
        if let Some(data) = args.calibration.as_deref().filter(|path| is_data(path)) {
            return Err(Failure::usage(format!("{} is data, not a calibration cache", data.display()))
                .hint("planforge prepare calibrates a model on it; build what it writes"));
        }
        args.prepare.unused()?;
        attached.calibration = args.calibration.as_deref().map(|path| attached.add(path)).transpose()?;
        attached.plugins = args.plugins.iter().map(|path| attached.add(path)).collect::<Result<_, _>>()?;
        Ok(attached)
    }

    /// Hashes the files that `measure` and `eval` name.
    pub fn measuring(measure: &MeasureArgs, eval: Option<&Path>) -> Result<Self, Failure> {
        let mut attached = Self::default();
        attached.eval = eval.map(|path| attached.add(path)).transpose()?;
        measure.inputs.as_deref().map(|path| attached.add(path)).transpose()?;
        for module in measure.beside.iter().filter_map(|beside| beside.module.as_deref()) {
            attached.add(module)?;
        }
        Ok(attached)
    }

    fn add(&mut self, path: &Path) -> Result<Digest, Failure> {
        let digest = digest_of(path)?;
        self.files.insert(digest.to_string(), path.to_owned());
        Ok(digest)
    }

    /// The spec with these files in it; what no flag names stays as the template has it.
    pub fn onto(&self, base: &BuildSpec) -> BuildSpec {
        let mut spec = base.clone();
        spec.calibration = self.calibration.or(spec.calibration);
        if !self.plugins.is_empty() {
            spec.plugins.clone_from(&self.plugins);
        }
        spec.canonical()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_brought_in_order_and_bounded() {
        let ask = |streams: &[u32]| MeasureArgs { sweep_streams: streams.to_vec(), ..MeasureArgs::default() }.ask();
        assert_eq!(ask(&[8, 1, 4, 1]).unwrap().streams, [1, 4, 8]);
        assert_eq!(ask(&[0]).unwrap_err().exit_code, 2);
        assert_eq!(ask(&[65]).unwrap_err().exit_code, 2);
        assert!(ask(&[]).unwrap().is_empty());
        let batches = |batches: &[u32]| MeasureArgs { sweep_batch: batches.to_vec(), ..MeasureArgs::default() }.ask();
        assert_eq!(batches(&[32, 1, 8, 8]).unwrap().batches, [1, 8, 32]);
        assert_eq!(batches(&[0]).unwrap_err().exit_code, 2);
    }

    #[test]
    fn files_are_named_by_what_they_hold() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).unwrap();
            path
        };
        let args = ExtraArgs {
            calibration: Some(file("scales")),
            plugins: vec![file("b.so"), file("a.so"), file("b.so")],
            ..ExtraArgs::default()
        };
        let attached = Attached::of(&args, Some(&file("labels"))).unwrap();
        let spec = attached.onto(&BuildSpec::default());
        assert_eq!(spec.calibration, Some(Digest::of(b"scales")));
        let mut plugins = vec![Digest::of(b"a.so"), Digest::of(b"b.so")];
        plugins.sort_unstable();
        assert_eq!(spec.plugins, plugins);
        assert_eq!(attached.files.len(), 4);
        assert_eq!(attached.files[&Digest::of(b"labels").to_string()], folder.path().join("labels"));
        let kept = Attached::default().onto(&spec);
        assert_eq!(kept, spec, "a template's files stay");
        let absent = ExtraArgs { calibration: Some(folder.path().join("none")), ..ExtraArgs::default() };
        assert!(Attached::of(&absent, None).unwrap_err().to_string().contains("none"));
    }
}
