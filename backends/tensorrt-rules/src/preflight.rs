//! What can be said before anything runs: refusals, and warnings where it is not certain.
//!
//! A spec is checked by writing every command line that its job would run, and by the rules of what the version's parser
//! reads (`operators`) and what the GPU can do with it ([`crate::hardware`]).

use crate::{
    command::{self, Benchmark, BuildFiles, CommandLine, Mode, Outputs, Profile, Run},
    flags::{Capabilities, table::COLUMNS},
    hardware::{self, Board},
    model::ModelFacts,
    operators,
    options::{ALLOW_UNKNOWN_TOOLCHAIN, Options},
    refusal::Refusal,
    version::Version,
};
use planforge_stats::COMPARABLE_WINDOWS;
use planforge_types::{BuildSpec, OptimizationProfile, Toolchain};
use std::path::{Path, PathBuf};

/// A command line with what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// `build`, `benchmark profile 0 at opt`, `profile`, `outputs`.
    pub name: String,
    pub command: CommandLine,
}

/// Files of the steps as they are named before a job exists.
const PLAN: &str = "engine.plan";
const TIMING_CACHE: &str = "timing.cache";
const CALIBRATION: &str = "calibration.cache";
const LEAN_RUNTIME: &str = "libnvinfer_lean.so";
/// What one measurement asks for before anything was measured.
const ITERATIONS: u32 = 10;

/// How long each process warms up before it times.
pub const WARM_UP_MS: u32 = 200;

/// Shortest window: the tool counts whole seconds, and starting a process costs more than that.
pub const WINDOW_MS: f64 = 1_000.0;

/// Timed processes that a report has at least where it can be compared.
pub const TIMED_PROCESSES: usize = COMPARABLE_WINDOWS;

/// Seconds that they take at least, warming up and timing; loading the engine in each comes on top.
pub fn timed_processes_s() -> f64 {
    (WINDOW_MS + f64::from(WARM_UP_MS)) * TIMED_PROCESSES as f64 / 1e3
}

/// Every command line that a job of `spec` runs, with relative names for the files of its scratch folder.
pub fn steps(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    model_path: &Path,
    model: Option<&ModelFacts>,
) -> Result<Vec<Step>, Refusal> {
    let plugins: Vec<PathBuf> = (0..spec.plugins.len()).map(|index| format!("plugin-{index}.so").into()).collect();
    let files = BuildFiles {
        model: model_path,
        plan: Path::new(PLAN),
        timing_cache: capabilities.has("--timingCacheFile").then(|| Path::new(TIMING_CACHE)),
        calibration: spec.calibration.is_some().then(|| Path::new(CALIBRATION)),
        plugins: &plugins,
    };
    let mut steps = vec![Step { name: "build".into(), command: command::build(capabilities, spec, &files, model)? }];
    let fixed = [OptimizationProfile::default()];
    let profiles = if spec.profiles.is_empty() { &fixed[..] } else { &spec.profiles };
    for (index, profile) in profiles.iter().enumerate() {
        let varying = command::varying(profile, model);
        for point in command::distinct_points(&varying) {
            let shapes = point.shapes(&varying);
            let run = Run {
                plan: Path::new(PLAN),
                plugins: &plugins,
                model: Some(model_path),
                profile: index,
                shapes: &shapes,
                inputs: &[],
                lean_runtime: Some(Path::new(LEAN_RUNTIME)),
            };
            let name = |what: &str| match (profiles.len(), varying.inputs.is_empty()) {
                (1, true) => what.to_owned(),
                (1, false) => format!("{what} at {}", point.name()),
                _ => format!("{what} of profile {index} at {}", point.name()),
            };
            let outputs = Outputs { outputs: Path::new("outputs.json") };
            let benchmark = Benchmark {
                mode: Mode::default(),
                warm_up_ms: WARM_UP_MS,
                iterations: ITERATIONS,
                duration_s: 0,
                streams: 1,
                times: Some(Path::new("times.json")),
            };
            let profile = Profile {
                warm_up_ms: WARM_UP_MS,
                iterations: ITERATIONS,
                layer_times: Path::new("profile.json"),
                layer_info: Path::new("layers.json"),
            };
            steps.push(Step { name: name("outputs"), command: command::outputs(capabilities, spec, &run, &outputs)? });
            steps.push(Step {
                name: name("benchmark"),
                command: command::benchmark(capabilities, spec, &run, &benchmark)?,
            });
            steps.push(Step { name: name("profile"), command: command::profile(capabilities, spec, &run, &profile)? });
        }
    }
    Ok(steps)
}

/// Refuses what cannot be built, and says what may go wrong. Without `model` or `board`, what depends on them is left
/// open.
pub fn check(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    model: Option<&ModelFacts>,
    board: Option<&Board<'_>>,
) -> Result<Vec<String>, Refusal> {
    let version = capabilities.version();
    Options::parse(&spec.options)?;
    let mut warnings = match board {
        Some(board) => hardware::check(version, board, spec, model)?,
        None => Vec::new(),
    };
    steps(capabilities, spec, Path::new("model.onnx"), model)?;
    if let Some(model) = model {
        warnings.extend(operators::check(version, model, !spec.plugins.is_empty())?);
    }
    Ok(warnings)
}

/// Older ones are not driven: their options, logs and exports are unknown here.
pub const OLDEST: Version = Version::new(8, 4, 0);

/// Refuses versions that nothing is known of. What is newer than the table within its last major version only adds to
/// it, so it is used as far as its help goes, and said; a newer major version may mean other things by the same words,
/// and takes `allow_unknown`.
pub fn known(version: Version, allow_unknown: bool) -> Result<Option<String>, Refusal> {
    let newest = COLUMNS[COLUMNS.len() - 1];
    let range = format!("{}.{} to {}.{}", OLDEST.major, OLDEST.minor, newest.major, newest.minor);
    if version.release() < OLDEST {
        return Err(Refusal::Toolchain {
            version,
            problem: format!("older than the versions that are known here, {range}"),
            hint: format!("ask for a toolchain from {}.{} on", OLDEST.major, OLDEST.minor),
        });
    }
    if version.major > newest.major && !allow_unknown {
        return Err(Refusal::Toolchain {
            version,
            problem: format!("newer than the versions that are known here, {range}"),
            hint: format!(
                "ask for one of {range}, or try it with --allow-unknown-toolchain (option {ALLOW_UNKNOWN_TOOLCHAIN}=true)"
            ),
        });
    }
    let newer = (version.major, version.minor) > (newest.major, newest.minor);
    Ok(newer.then(|| {
        format!("TensorRT {version} is newer than the versions that are known here, {range}: it is used as far as its help goes")
    }))
}

/// What the table says of a toolchain of this backend; `None` for a version that cannot be read.
pub fn capabilities_of(toolchain: &Toolchain) -> Option<Capabilities> {
    toolchain.version.parse().ok().map(Capabilities::of_version)
}

/// Whether the rules refuse `spec` on `toolchain`, for where neither installation nor model are at hand. Toolchains of
/// other backends, and versions that cannot be read, are not for this to judge.
pub fn admit(
    toolchain: &Toolchain,
    spec: &BuildSpec,
    board: Option<&Board<'_>>,
    allow_unknown: bool,
) -> Result<(), Refusal> {
    if toolchain.backend != crate::BACKEND {
        return Ok(());
    }
    match capabilities_of(toolchain) {
        Some(capabilities) => {
            known(capabilities.version(), allow_unknown)?;
            check(&capabilities, spec, None, board).map(drop)
        }
        None => Ok(()),
    }
}

/// Whether `toolchain` can be used on this GPU at all, whatever is asked of it.
pub fn usable(toolchain: &Toolchain, board: Option<&Board<'_>>, allow_unknown: bool) -> bool {
    let Some(capabilities) = capabilities_of(toolchain).filter(|_| toolchain.backend == crate::BACKEND) else {
        return true;
    };
    let version = capabilities.version();
    known(version, allow_unknown).is_ok()
        && board.is_none_or(|board| hardware::knows(version, board.capability).is_ok())
}

/// Takes the permission to use unknown versions out of `spec`: it decides who may build, and is no part of what is
/// built.
pub fn take_permission(spec: &mut BuildSpec) -> bool {
    spec.options.remove(ALLOW_UNKNOWN_TOOLCHAIN).is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn tensorrt(version: &str) -> Toolchain {
        Toolchain { backend: crate::BACKEND.into(), version: version.into(), components: BTreeMap::new() }
    }

    #[test]
    fn only_known_versions_are_admitted() {
        let plain = BuildSpec::default();
        let admitted = |version: &str, allowed| admit(&tensorrt(version), &plain, None, allowed);
        for version in ["8.0.1", "8.2.0", "8.2.1", "7.2.3"] {
            for allowed in [false, true] {
                let refusal = admitted(version, allowed).unwrap_err();
                assert!(
                    refusal.to_string().contains("older than the versions that are known here, 8.4 to 11.1"),
                    "{refusal}"
                );
            }
        }
        let newer = admitted("12.0", false).unwrap_err();
        assert!(newer.to_string().contains("TensorRT 12.0.0 is newer"), "{newer}");
        assert!(newer.hint().contains("--allow-unknown-toolchain"), "{}", newer.hint());
        assert_eq!(admitted("12.0", true), Ok(()));
        for version in ["8.4.0", "8.4.1", "9.2.0", "11.1.0", "11.4.1"] {
            assert_eq!(admitted(version, false), Ok(()), "{version}");
        }
        assert!(known(Version::new(11, 4, 1), false).unwrap().is_some());
        assert_eq!(known(Version::new(11, 1, 0), false), Ok(None));
    }

    #[test]
    fn the_permission_is_no_part_of_what_is_built() {
        let mut spec = BuildSpec::default();
        assert!(!take_permission(&mut spec));
        spec.options.insert(ALLOW_UNKNOWN_TOOLCHAIN.into(), "true".into());
        assert!(take_permission(&mut spec));
        assert_eq!(spec, BuildSpec::default());
    }

    #[test]
    fn a_toolchain_that_does_not_know_the_gpu_is_of_no_use_to_it() {
        let volta = Board { capability: "7.0".parse().unwrap(), driver: None };
        assert!(!usable(&tensorrt("10.13.0"), Some(&volta), false));
        assert!(usable(&tensorrt("10.3.0"), Some(&volta), false) && usable(&tensorrt("10.13.0"), None, false));
        assert!(!usable(&tensorrt("12.0"), None, false) && usable(&tensorrt("12.0"), None, true));
        let other = Toolchain { backend: "native".into(), ..tensorrt("1") };
        assert!(usable(&other, Some(&volta), false));
    }
}
