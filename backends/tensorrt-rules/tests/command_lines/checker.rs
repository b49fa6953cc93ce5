//! An option parser of our own, after the rules of `trtexec`'s, driven by the list of options per version.
//!
//! It shares nothing with the code under test: options, values and rules are written down here a second time.

use std::collections::{BTreeMap, BTreeSet};

/// Options by version, from `tests/data/flags-by-version.txt`, ascending.
pub struct Versions(Vec<(Number, BTreeSet<String>)>);

pub type Number = (u32, u32, u32);

pub fn number(text: &str) -> Number {
    let parts: Vec<u32> = text.split('.').map(|part| part.parse().unwrap()).collect();
    (parts[0], parts[1], parts[2])
}

impl Versions {
    pub fn read() -> Self {
        let text = include_str!("../data/flags-by-version.txt");
        let mut versions: Vec<(Number, BTreeSet<String>)> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let version = number(words.next().unwrap());
            let mut flags = versions.last().map(|(_, flags)| flags.clone()).unwrap_or_default();
            for word in words {
                match word.split_at(1) {
                    ("+", flag) => assert!(flags.insert(flag.into()), "{line}"),
                    ("-", flag) => assert!(flags.remove(flag), "{line}"),
                    _ => panic!("{line}"),
                }
            }
            versions.push((version, flags));
        }
        Self(versions)
    }

    pub fn all(&self) -> impl Iterator<Item = (Number, &BTreeSet<String>)> {
        self.0.iter().map(|(version, flags)| (*version, flags))
    }

    pub fn flags(&self, version: Number) -> &BTreeSet<String> {
        &self.0.iter().find(|(v, _)| *v == version).unwrap().1
    }
}

/// Options that are on by being there.
const BOOLEANS: &str = "--skipInference --buildOnly --noTF32 --fp16 --bf16 --int8 --fp8 --best --stronglyTyped --refit \
    --stripWeights --stripAllWeights --allowWeightStreaming --versionCompatible --excludeLeanRuntime \
    --pluginInstanceNorm --heuristic --noBuilderCache --errorOnTimingCacheMiss --noCompilationCache --useCudaGraph \
    --int4 --noCudaGraph --useSpinWait --noDataTransfers --includeDataTransfers --separateProfileRun --useManagedMemory \
    --dumpProfile --dumpLayerInfo";
const INTEGERS: &str = "--iterations --duration --warmUp --avgTiming --infStreams --streams \
    --builderOptimizationLevel --maxAuxStreams --maxTactics --tilingOptimizationLevel --l2LimitForTiling --useProfile \
    --profile --calibProfile";
const PATHS: &str = "--onnx --saveEngine --loadEngine --timingCacheFile --calib --plugins --staticPlugins \
    --dynamicPlugins --setPluginsToSerialize --exportTimes --exportOutput --exportProfile --exportLayerInfo \
    --refitFromOnnx --leanDLLPath";
const PLUGIN_LISTS: &str = "--plugins --staticPlugins --dynamicPlugins --setPluginsToSerialize";
const PROFILE_SHAPES: [&str; 3] = ["--minShapes", "--optShapes", "--maxShapes"];

fn among(list: &str, name: &str) -> bool {
    list.split(' ').any(|word| word == name)
}

type Options<'a> = Vec<(&'a str, Option<&'a str>)>;

/// Reads one command line as `version` would; the error says what it would reject.
pub fn check(flags: &BTreeSet<String>, version: Number, args: &[String]) -> Result<(), String> {
    let options: Options<'_> = args
        .iter()
        .map(|arg| arg.split_once('=').map_or((arg.as_str(), None), |(name, value)| (name, Some(value))))
        .collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, value) in &options {
        if !flags.contains(*name) {
            return Err(format!("unknown option {name}"));
        }
        *counts.entry(name).or_default() += 1;
        syntax(version, name, *value).map_err(|problem| format!("{name}={}: {problem}", value.unwrap_or("")))?;
    }
    let has = |name: &str| counts.contains_key(name);
    for (name, count) in &counts {
        let list =
            among(PLUGIN_LISTS, name) || has("--profile") && (*name == "--profile" || PROFILE_SHAPES.contains(name));
        if *count > 1 && !list {
            return Err(format!("{name} stands there {count} times"));
        }
    }
    together(version, &options, &has)
}

fn syntax(version: Number, name: &str, value: Option<&str>) -> Result<(), String> {
    if among(BOOLEANS, name) {
        return value.map_or(Ok(()), |_| Err("takes no value".into()));
    }
    let value = value.filter(|value| !value.is_empty()).ok_or("lacks its value")?;
    let one_of = |words: &[&str]| words.contains(&value).then_some(()).ok_or(format!("is none of {words:?}"));
    match name {
        _ if among(PATHS, name) => Ok(()),
        _ if among(INTEGERS, name) => {
            let number: i32 = value.parse().map_err(|_| "is no 32-bit number")?;
            let most = match name {
                "--builderOptimizationLevel" => 5,
                "--tilingOptimizationLevel" => 3,
                _ => i32::MAX,
            };
            (0..=most).contains(&number).then_some(()).ok_or("is out of range".into())
        }
        "--minShapes" | "--optShapes" | "--maxShapes" | "--shapes" | "--minShapesCalib" | "--optShapesCalib"
        | "--maxShapesCalib" => value.split(',').try_for_each(shape),
        "--memPoolSize" => value.split(',').try_for_each(|item| pool(version, item)),
        "--inputIOFormats" | "--outputIOFormats" => value.split(',').try_for_each(|item| io_format(version, item)),
        "--tacticSources" => switches(value, &tactic_sources(version)),
        "--preview" => switches(value, &preview_features(version)),
        "--hardwareCompatibilityLevel" => match version >= (10, 9, 0) {
            true => one_of(&["none", "ampere+", "sameComputeCapability"]),
            false => one_of(&["none", "ampere+"]),
        },
        "--useRuntime" => one_of(&["full", "lean", "dispatch"]),
        "--layerDeviceTypes" => value.split(',').try_for_each(|item| {
            let (layer, device) = item.rsplit_once(':').ok_or("has no colon")?;
            (device == "GPU" && !layer.is_empty()).then_some(()).ok_or(format!("{item} is no layer on the GPU"))
        }),
        "--profilingVerbosity" => one_of(&["layer_names_only", "detailed", "none"]),
        "--sparsity" => one_of(&["disable", "enable"]),
        "--precisionConstraints" => one_of(&["obey", "prefer"]),
        "--allocationStrategy" => one_of(&["static", "profile", "runtime"]),
        "--persistentCacheRatio" => {
            let ratio: f32 = value.parse().map_err(|_| "is no number")?;
            (0.0..=1.0).contains(&ratio).then_some(()).ok_or("is out of range".into())
        }
        "--weightStreamingBudget" => {
            let number: f64 = value.trim_end_matches('%').parse().map_err(|_| "is no number")?;
            let percent = value.ends_with('%') && (0.0..100.0).contains(&number);
            (percent || number == -1.0 || number > 0.0).then_some(()).ok_or("is out of range".into())
        }
        "--layerPrecisions" | "--layerOutputTypes" => value.split(',').try_for_each(|item| {
            let (layer, types) = item.rsplit_once(':').ok_or("has no colon")?;
            let several = name == "--layerOutputTypes";
            let types: Vec<_> = types.split('+').collect();
            let good = types.iter().all(|t| element_types(version).contains(t)) && (several || types.len() == 1);
            (good && !layer.is_empty() && !layer.contains('\'')).then_some(()).ok_or(format!("{item} is wrong"))
        }),
        "--loadInputs" => value.split(',').try_for_each(|item| {
            let (tensor, path) = item.rsplit_once(':').ok_or("has no colon")?;
            (!tensor.is_empty() && !path.is_empty() && !item.contains('\'')).then_some(()).ok_or("is no pair".into())
        }),
        _ => Err("is an option that this checker has no rule for".into()),
    }
}

fn shape(item: &str) -> Result<(), String> {
    let (name, dims) = item.rsplit_once(':').ok_or("has no colon")?;
    if name.is_empty() || name.contains(['*', '\'']) {
        return Err(format!("'{name}' means something else to the parser"));
    }
    dims.split('x').try_for_each(|dim| match dim.parse::<i32>() {
        Ok(size) if size > 0 && dim.bytes().all(|b| b.is_ascii_digit()) => Ok(()),
        _ => Err(format!("'{dim}' is no size")),
    })
}

fn pool(version: Number, item: &str) -> Result<(), String> {
    let (name, size) = item.split_once(':').ok_or("has no colon")?;
    let known = name == "workspace" || name == "tacticSharedMem" && version >= (10, 1, 0);
    // A plain number: suffixes mean something else to every generation.
    let plain = size.bytes().all(|b| b.is_ascii_digit() || b == b'.') && size.parse::<f64>().is_ok_and(|n| n > 0.0);
    (known && plain).then_some(()).ok_or(format!("{item} is no pool in plain MiB"))
}

fn element_types(version: Number) -> Vec<&'static str> {
    let mut types = vec!["fp32", "fp16", "int32", "int8"];
    if version >= (8, 6, 0) {
        types.push("fp8");
    }
    if version >= (9, 1, 0) {
        types.extend(["bf16", "int64", "uint8", "bool"]);
    }
    if version >= (10, 1, 0) {
        types.push("int4");
    }
    types
}

fn io_format(version: Number, item: &str) -> Result<(), String> {
    let layouts = match (version >= (11, 0, 0), item.split_once(':')) {
        (true, None) => item,
        (true, Some(_)) => return Err("names a type, which TensorRT 11 rejects".into()),
        (false, None) => return Err("names no type".into()),
        (false, Some((element, layouts))) => {
            if !element_types(version).contains(&element) {
                return Err(format!("{element} is no type"));
            }
            layouts
        }
    };
    let mut known = vec!["chw", "chw2", "chw4", "hwc8", "chw16", "chw32", "dhwc8", "hwc"];
    for (layout, since) in [("cdhw32", (8, 4, 0)), ("dhwc", (8, 6, 0)), ("hwc16", (10, 10, 0))] {
        if version >= since {
            known.push(layout);
        }
    }
    layouts.split('+').try_for_each(|l| known.contains(&l).then_some(()).ok_or(format!("{l} is no layout")))
}

fn tactic_sources(version: Number) -> Vec<&'static str> {
    let mut names = Vec::new();
    if version < (11, 0, 0) {
        names.extend(["CUBLAS", "CUBLAS_LT", "CUDNN"]);
    }
    if version >= (8, 4, 0) {
        names.push("EDGE_MASK_CONVOLUTIONS");
    }
    if version >= (8, 5, 0) {
        names.push("JIT_CONVOLUTIONS");
    }
    names
}

fn preview_features(version: Number) -> Vec<&'static str> {
    let mut names = Vec::new();
    if (8..10).contains(&version.0) {
        names.extend(["fasterDynamicShapes0805", "disableExternalTacticSourcesForCore0805"]);
    }
    if version >= (8, 6, 0) && version.0 < 11 {
        names.push("profileSharing0806");
    }
    for (name, since) in [("aliasedPluginIO1003", (10, 3, 0)), ("runtimeActivationResize", (10, 10, 0))] {
        if version >= since {
            names.push(name);
        }
    }
    if version.0 == 10 && version.1 >= 16 {
        names.push("multiDeviceRuntime");
    }
    names
}

fn switches(value: &str, known: &[&str]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    value.split(',').try_for_each(|item| {
        let name = item.strip_prefix(['+', '-']).ok_or("begins with neither + nor -")?;
        (known.contains(&name) && seen.insert(name)).then_some(()).ok_or(format!("{name} is unknown or repeated"))
    })
}

fn together(version: Number, options: &Options<'_>, has: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let value = |name: &str| options.iter().find(|(n, _)| *n == name).and_then(|(_, v)| *v);
    let ampere = value("--hardwareCompatibilityLevel") == Some("ampere+");
    let building = has("--saveEngine");
    let rules = [
        (has("--loadEngine") && building, "loads and saves"),
        (!has("--loadEngine") && !has("--onnx"), "has no model"),
        (has("--best") && has("--stronglyTyped"), "is best and strongly typed"),
        (has("--fp8") && has("--int8"), "is fp8 and int8"),
        (has("--pluginInstanceNorm") && (has("--versionCompatible") || ampere), "has plugin InstanceNorm"),
        (has("--weightStreamingBudget") && !has("--allowWeightStreaming"), "has a budget for nothing"),
        (
            building && has("--allowWeightStreaming") && version.0 < 11 && !has("--stronglyTyped"),
            "streams weights of a weakly typed network",
        ),
        (has("--setPluginsToSerialize") && !has("--versionCompatible"), "serializes plugins into a plain plan"),
        (has("--useRuntime") && (!has("--loadEngine") || !has("--versionCompatible")), "builds with another runtime"),
        (has("--leanDLLPath") && !has("--versionCompatible"), "names a lean runtime for a plain plan"),
        (has("--int4") && has("--stronglyTyped"), "is strongly typed and int4"),
        (has("--calibProfile") && (!has("--calib") || has("--minShapesCalib")), "calibrates in a profile of no effect"),
        (
            has("--minShapesCalib") != has("--optShapesCalib") || has("--minShapesCalib") != has("--maxShapesCalib"),
            "has part of the calibration shapes",
        ),
        (has("--minShapesCalib") && !has("--calib"), "has calibration shapes without calibration"),
        (has("--excludeLeanRuntime") && !has("--versionCompatible"), "excludes a runtime that it has not"),
        (has("--stronglyTyped") && (has("--fp16") || has("--int8")), "is strongly typed and has precision flags"),
        (building && !has("--skipInference") && !has("--buildOnly"), "runs what it builds"),
        (building && !has("--profilingVerbosity"), "leaves the profiling verbosity to the version"),
        (
            has("--precisionConstraints") && !has("--layerPrecisions") && !has("--layerOutputTypes"),
            "constrains nothing",
        ),
        (has("--loadEngine") && !has("--useSpinWait"), "leaves the waiting to the version"),
        (has("--loadEngine") && version.0 >= 11 && has("--useCudaGraph") == has("--noCudaGraph"), "is of two minds"),
        (
            has("--loadEngine") && version.0 >= 11 && has("--noDataTransfers") == has("--includeDataTransfers"),
            "is of two minds about transfers",
        ),
        (has("--dumpProfile") && !has("--separateProfileRun"), "profiles what it times"),
    ];
    if let Some((_, problem)) = rules.iter().find(|(broken, _)| *broken) {
        return Err((*problem).into());
    }
    profiles(options)
}

/// All three shape flags or none; each `--profile` directly before its three; indices without a gap.
fn profiles(options: &Options<'_>) -> Result<(), String> {
    let shapes = options.iter().filter(|(name, _)| PROFILE_SHAPES.contains(name)).count();
    let indices: Vec<usize> = (0..options.len()).filter(|at| options[*at].0 == "--profile").collect();
    let expected = if indices.is_empty() { shapes.min(3) } else { 3 * indices.len() };
    if shapes != expected || (shapes != 0 && shapes % 3 != 0) {
        return Err(format!("{shapes} shape flags for {} profiles", indices.len()));
    }
    for (nth, at) in indices.iter().enumerate() {
        let after: BTreeSet<_> = options.iter().skip(at + 1).take(3).map(|(name, _)| *name).collect();
        if options[*at].1 != Some(&nth.to_string()) || after != BTreeSet::from(PROFILE_SHAPES) {
            return Err(format!("profile {nth} is not followed by its shapes"));
        }
    }
    Ok(())
}

#[test]
fn the_checker_rejects_what_trtexec_rejects() {
    let versions = Versions::read();
    let check = |version: &str, line: &str| {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        check(versions.flags(number(version)), number(version), &args)
    };
    const BUILD: &str = "--onnx=m --saveEngine=p --skipInference --profilingVerbosity=detailed";
    assert_eq!(check("10.16.0", BUILD), Ok(()));
    for (version, more) in [
        ("10.16.0", "--fp16=false"),
        ("10.16.0", "--fp16 --fp16"),
        ("11.0.0", "--fp16"),
        ("8.5.3", ""),
        ("10.16.0", "--workspace=1024"),
        ("10.16.0", "--memPoolSize=workspace:1G"),
        ("10.16.0", "--memPoolSize=workspace:1024MiB"),
        ("10.16.0", "--loadEngine=p"),
        ("10.16.0", "--fp8 --int8"),
        ("10.16.0", "--best --stronglyTyped"),
        ("10.16.0", "--minShapes=x:1 --optShapes=x:1"),
        ("10.16.0", "--minShapes=x:1 --optShapes=x:1 --maxShapes=x:99999999999"),
        (
            "10.16.0",
            "--profile=0 --minShapes=x:1 --optShapes=x:1 --maxShapes=x:1 --profile=2 --minShapes=x:1 --optShapes=x:1 --maxShapes=x:1",
        ),
        ("10.16.0", "--minShapes=x:1 --optShapes=x:1 --maxShapes=x:1 --minShapes=x:1 --optShapes=x:1 --maxShapes=x:1"),
        ("8.6.1", "--hardwareCompatibilityLevel=sameComputeCapability"),
        ("11.0.0", "--inputIOFormats=fp16:chw"),
        ("10.16.0", "--inputIOFormats=chw"),
        ("11.0.0", "--tacticSources=-CUDNN"),
        ("10.16.0", "--allowWeightStreaming"),
        ("10.16.0", "--avgTiming 8"),
        ("10.16.0", "extra"),
    ] {
        let line = format!("{BUILD} {more}");
        assert!(check(version, line.trim()).is_err(), "{version}: {line}");
    }
}
