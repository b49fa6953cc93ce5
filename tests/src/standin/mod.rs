//! A stand-in for `trtexec`: behaves like the version that its scenario names, on the GPUs that its scenario names.
//!
//! Written from what is known of the tool, apart from the product's flag table and parsers, so that a common mistake
//! would show. It parses its arguments as the tool does, prints what the tool prints where the tool prints it, writes
//! plans with a true header, keeps timing caches, exports the same files, and computes the outputs of the model it
//! was given on the inputs it is handed. Latencies are drawn, never slept.
//!
//! | module | holds |
//! |---|---|
//! | [`scenario`] | what a test wants of it: version, GPUs, latencies, what goes wrong |
//! | [`version`] | versions, and what changed between them |
//! | [`flags`] | which options a version takes, and its help text |
//! | [`options`] | the command line as the tool reads it |
//! | [`console`] | log lines in the right stream, the verdict |
//! | [`banner`] | the blocks of options at the start of a run |
//! | [`model`] | the ONNX file: tensors, layers, outputs |
//! | [`plan`] | the plan file |
//! | [`cache`] | the timing cache file |
//! | [`build`] | from model to plan |
//! | [`infer`] | loading, timing, profiling |
//! | [`latency`] | what a run would have taken |
//! | [`exports`] | the JSON files |
//! | [`failures`] | what goes wrong, in the tool's words |

pub mod banner;
pub mod build;
pub mod cache;
pub mod console;
pub mod exports;
pub mod failures;
pub mod flags;
pub mod infer;
pub mod latency;
pub mod model;
pub mod options;
pub mod plan;
pub mod scenario;
pub mod version;

use console::Console;
use options::Options;
use scenario::{Behaviour, Phase, Scenario};
use std::process::ExitCode;
use version::Version;

/// How a run went wrong.
#[derive(Debug)]
pub enum Stop {
    /// With the verdict FAILED; everything that is to be said was said.
    Failed,
    /// Without a verdict, as assertions and CUDA checks end: abort up to 9.x, exit 1 from 10.0.
    Dead,
}

/// One run's surroundings.
#[derive(Debug)]
pub struct Run {
    pub version: Version,
    pub scenario: Scenario,
    pub options: Options,
    pub console: Console,
    /// How many runs of this toolchain came before.
    pub call: u64,
}

/// Runs the stand-in with the process's own arguments.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let (name, arguments) = arguments.split_first().map_or(("trtexec", &[][..]), |(name, rest)| (name.as_str(), rest));
    let (scenario, folder) = match Scenario::find(name) {
        Ok(found) => found,
        Err(problem) => {
            console::complain(&format!("the stand-in trtexec has no scenario: {problem}"));
            return ExitCode::from(2);
        }
    };
    let call = scenario::record_call(&folder, arguments);
    let version = scenario.version;
    if let Some(Behaviour::MissingLibrary { library }) = scenario.rule("", Phase::Start, &folder) {
        console::complain(&format!(
            "{name}: error while loading shared libraries: {library}: cannot open shared object file: No such file or directory"
        ));
        return ExitCode::from(127);
    }
    let shown = std::path::Path::new(name).file_name().map_or("trtexec".into(), |n| n.to_string_lossy().into_owned());
    let mut console = Console::new(version, &shown, arguments);
    console.verdict("RUNNING");
    if arguments.is_empty() || arguments.iter().any(|a| a == "--help" || a == "-h") {
        console.raw(&flags::help(version));
        if arguments.is_empty() {
            console.verdict("PASSED");
        }
        return ExitCode::SUCCESS;
    }
    let options = match options::parse(version, arguments) {
        Ok(options) => options,
        Err(rejection) => return reject(&mut console, version, &rejection),
    };
    console.verbose = options.has("verbose");
    let mut run = Run { version, scenario, options, console, call };
    match run.whole(&folder) {
        Ok(()) => {
            run.console.verdict("PASSED");
            ExitCode::SUCCESS
        }
        Err(Stop::Failed) => {
            run.console.verdict("FAILED");
            ExitCode::FAILURE
        }
        Err(Stop::Dead) if run.version.major() < 10 => std::process::abort(),
        Err(Stop::Dead) => ExitCode::FAILURE,
    }
}

fn reject(console: &mut Console, version: Version, rejection: &options::Rejection) -> ExitCode {
    match rejection {
        options::Rejection::Overflow if version < Version::new(8, 6, 0) => std::process::abort(),
        options::Rejection::Overflow => {
            console.bare_error("Uncaught exception detected: stoi");
            return ExitCode::FAILURE;
        }
        options::Rejection::Value(message) => {
            console.error(message);
            console.raw(&flags::help(version));
        }
        options::Rejection::Unknown(left) => {
            console.raw(&flags::help(version));
            for (name, value) in left {
                console.error(&format!("Unknown option: {name} {value}"));
            }
        }
    }
    // The newest version leaves without a verdict here.
    if version < Version::new(11, 1, 0) {
        console.verdict("FAILED");
    }
    ExitCode::FAILURE
}

impl Run {
    /// Everything between the two verdict lines.
    fn whole(&mut self, folder: &std::path::Path) -> Result<(), Stop> {
        banner::print(self);
        let gpu = infer::select_device(self)?;
        let (plan, behaviour) = match self.options.value("loadEngine") {
            Some(_) => infer::read_plan(self, &gpu, folder)?,
            None => {
                let built = build::build(self, &gpu, folder)?;
                if self.options.has("skipInference") || self.options.has("buildOnly") {
                    build::skip_inference(self, &built, folder);
                    return Ok(());
                }
                let behaviour = self.scenario.rule(&built.graph, Phase::Load, folder);
                (built, behaviour)
            }
        };
        infer::infer(self, &gpu, &plan, behaviour.as_ref())
    }
}
