//! The command line as the tool reads it.
//!
//! One form only, `--name=value`, split at the first `=`. What is known is taken out; what is left is unknown, a
//! second giving of an option included.

use super::{
    flags::{self, Kind},
    version::Version,
};
use std::collections::BTreeMap;

/// Why a command line is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// What was left after everything known was taken.
    Unknown(Vec<(String, String)>),
    /// What the tool says of a value or a combination.
    Value(String),
    /// A number that fits no integer: an exception that nothing catches.
    Overflow,
}

/// Shapes of one input: smallest, usual, largest.
pub type Range = [Vec<i64>; 3];

/// An accepted command line.
#[derive(Clone, Debug, Default)]
pub struct Options {
    values: BTreeMap<String, Vec<String>>,
    /// By input name, one map a profile; what was given, the missing ones filled in.
    pub profiles: Vec<BTreeMap<String, Range>>,
    /// Shapes to infer with.
    pub shapes: BTreeMap<String, Vec<i64>>,
    /// What is to be said before the banner.
    pub warnings: Vec<String>,
}

impl Options {
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).and_then(|values| values.first()).map(String::as_str)
    }

    pub fn list(&self, name: &str) -> &[String] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    pub fn integer(&self, name: &str, default: i64) -> i64 {
        self.value(name).and_then(|text| stoi(text).ok()).map_or(default, i64::from)
    }

    pub fn number(&self, name: &str, default: f64) -> f64 {
        self.value(name).and_then(leading_number).unwrap_or(default)
    }

    /// `name:file` pairs.
    pub fn pairs(&self, name: &str) -> Vec<(String, String)> {
        let text = self.value(name).unwrap_or("");
        let split = |item: &str| item.rsplit_once(':').map(|(k, v)| (unquoted(k).to_owned(), v.to_owned()));
        text.split(',').filter_map(split).collect()
    }
}

/// Reads the arguments as `version` does.
pub fn parse(version: Version, arguments: &[String]) -> Result<Options, Rejection> {
    let mut options = Options::default();
    let mut unknown = Vec::new();
    let mut profile: Option<i64> = None;
    let mut profiles_given: Vec<i64> = Vec::new();
    let mut shape_texts: BTreeMap<(i64, usize), String> = BTreeMap::new();
    for argument in arguments {
        let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
        let left = || (name.to_owned(), value.to_owned());
        let Some(bare) = name.strip_prefix("--") else {
            unknown.push(left());
            continue;
        };
        let Some(kind) = flags::kind(version, bare) else {
            unknown.push(left());
            continue;
        };
        if kind == Kind::Integer {
            stoi(value)?;
        }
        if kind == Kind::Number {
            leading_number(value).ok_or_else(|| Rejection::Value("stof".into()))?;
        }
        if bare == "profile" {
            let index = i64::from(stoi(value)?);
            if profiles_given.contains(&index) {
                return Err(Rejection::Value(format!("Optimization profile index {index} was given twice")));
            }
            profiles_given.push(index);
            profile = Some(index);
            continue;
        }
        if let Some(which) = ["minShapes", "optShapes", "maxShapes"].iter().position(|shapes| *shapes == bare) {
            if shape_texts.insert((profile.unwrap_or(0), which), value.to_owned()).is_some() {
                unknown.push(left());
            }
            continue;
        }
        let given = options.values.entry(bare.to_owned()).or_default();
        if !given.is_empty() && kind != Kind::List {
            unknown.push(left());
            continue;
        }
        given.push(value.to_owned());
    }
    read_shapes(version, &mut options, &shape_texts, &profiles_given)?;
    check(version, &options)?;
    if unknown.is_empty() { Ok(options) } else { Err(Rejection::Unknown(unknown)) }
}

fn read_shapes(
    version: Version,
    options: &mut Options,
    texts: &BTreeMap<(i64, usize), String>,
    given: &[i64],
) -> Result<(), Rejection> {
    let mut indices: Vec<i64> = texts.keys().map(|(index, _)| *index).chain(given.iter().copied()).collect();
    indices.sort_unstable();
    indices.dedup();
    if indices.iter().enumerate().any(|(expected, index)| expected as i64 != *index) {
        return Err(Rejection::Value("Optimization profile indices must be contiguous from 0".into()));
    }
    for index in indices {
        let read = |which: usize| texts.get(&(index, which)).map(|text| shapes(text)).transpose();
        let mut found = [read(0)?, read(1)?, read(2)?];
        let count = found.iter().flatten().count();
        let opt_alone = count == 1 && found[1].is_some();
        if count != 0 && count != 3 && !opt_alone && version < Version::new(8, 5, 0) {
            return Err(Rejection::Value("All of --minShapes, --optShapes, --maxShapes should be supplied.".into()));
        }
        if count != 0 && count != 3 {
            let fallback = found.iter().flatten().next().cloned().unwrap_or_default();
            // The usual shape stands in where it is there, else whichever is.
            let fallback = found[1].clone().unwrap_or(fallback);
            for (slot, name) in found.iter_mut().zip(["minShapes", "optShapes", "maxShapes"]) {
                if slot.is_none() {
                    if !opt_alone {
                        options.warnings.push(format!("--{name} is not given; it becomes that of the others"));
                    }
                    *slot = Some(fallback.clone());
                }
            }
        }
        let [Some(min), Some(opt), Some(max)] = found else { continue };
        let mut profile = BTreeMap::new();
        for (name, dims) in &opt {
            let of = |shapes: &BTreeMap<String, Vec<i64>>| shapes.get(name).cloned().unwrap_or_else(|| dims.clone());
            profile.insert(name.clone(), [of(&min), dims.clone(), of(&max)]);
        }
        options.profiles.push(profile);
    }
    if let Some(text) = options.value("shapes") {
        options.shapes = shapes(text)?;
    }
    Ok(())
}

/// What the parser refuses although every option is known.
fn check(version: Version, options: &Options) -> Result<(), Rejection> {
    let refuse = |text: &str| Err(Rejection::Value(text.to_owned()));
    if options.has("loadEngine") && options.has("saveEngine") {
        return refuse("Incompatible load and save engine options selected");
    }
    if !options.has("loadEngine") && !options.has("onnx") && !options.has("getPlanVersionOnly") {
        return refuse("Model missing or format not recognized");
    }
    let typed_rule = version >= Version::new(10, 8, 0) && version.major() < 11;
    if typed_rule && options.has("best") && options.has("stronglyTyped") {
        return refuse("--best cannot be used together with --stronglyTyped");
    }
    if options.has("fp8") && options.has("int8") {
        return refuse("Invalid usage, fp8 and int8 aren't allowed to be enabled together.");
    }
    let compatible = options.has("versionCompatible") || options.has("vc");
    let any_ampere = options.value("hardwareCompatibilityLevel").is_some_and(|level| level == "ampere+");
    if (options.has("pluginInstanceNorm") || options.has("pi")) && (compatible || any_ampere) {
        return refuse("Plugin InstanceNorm cannot be used with version or hardware compatibility");
    }
    if options.has("weightStreamingBudget") && !options.has("allowWeightStreaming") {
        return refuse("The weight streaming budget can only be set with --allowWeightStreaming specified.");
    }
    let lean = options.value("useRuntime").is_some_and(|runtime| runtime != "full");
    if lean && !options.has("loadEngine") {
        return refuse("Please use --loadEngine with --useRuntime=lean or --useRuntime=dispatch");
    }
    if (options.has("remoteAutoTuningConfig") || options.has("cpuOnly")) && !options.has("safe") {
        return refuse("remote auto tuning and building without a GPU are only for --safe");
    }
    if let Some(level) = options.value("hardwareCompatibilityLevel") {
        let newer = version >= Version::new(10, 9, 0);
        if !(level.is_empty() || level == "none" || level == "ampere+" || (newer && level == "sameComputeCapability")) {
            return refuse(&format!("Unknown hardwareCompatibilityLevel option: {level}"));
        }
    }
    if let Some(level) = options.value("profilingVerbosity")
        && !["layer_names_only", "detailed", "none", "default", "verbose"].contains(&level)
    {
        return refuse(&format!("Unknown profilingVerbosity: {level}"));
    }
    for name in ["inputIOFormats", "outputIOFormats"] {
        let Some(text) = options.value(name) else { continue };
        for item in text.split(',') {
            if item.contains(':') == (version.major() >= 11) {
                return refuse(&format!("Invalid format of --{name}: {item}"));
            }
        }
    }
    check_pools(options)?;
    check_sources(version, options)?;
    for part in options.value("percentile").unwrap_or("99").split(',') {
        let percentile = leading_number(part).ok_or_else(|| Rejection::Value("stof".into()))?;
        if !(0.0..=100.0).contains(&percentile) {
            return refuse(&format!("Percentile {part} is not in [0,100]"));
        }
    }
    Ok(())
}

fn check_pools(options: &Options) -> Result<(), Rejection> {
    const POOLS: [&str; 5] = ["workspace", "dlaSRAM", "dlaLocalDRAM", "dlaGlobalDRAM", "tacticSharedMem"];
    for item in options.value("memPoolSize").unwrap_or("").split(',').filter(|item| !item.is_empty()) {
        let Some((pool, size)) = item.split_once(':').filter(|(pool, _)| POOLS.contains(pool)) else {
            return Err(Rejection::Value(format!("Unknown memory pool: {item}")));
        };
        leading_number(size).ok_or_else(|| Rejection::Value(format!("Invalid size of {pool}: {size}")))?;
    }
    Ok(())
}

fn check_sources(version: Version, options: &Options) -> Result<(), Rejection> {
    let known: &[&str] = if version.major() >= 11 {
        &["EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"]
    } else {
        &["CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"]
    };
    for item in options.value("tacticSources").unwrap_or("").split(',').filter(|item| !item.is_empty()) {
        if !known.contains(&item.trim_start_matches(['+', '-'])) || !item.starts_with(['+', '-']) {
            return Err(Rejection::Value(format!("Unknown tactic source: {item}")));
        }
    }
    Ok(())
}

/// The leading integer of `text`, as the C library reads it: trailing junk passes.
fn stoi(text: &str) -> Result<i32, Rejection> {
    let text = text.trim_start();
    let end =
        text.char_indices().find(|(i, c)| !(c.is_ascii_digit() || (*i == 0 && "+-".contains(*c)))).map(|(i, _)| i);
    let digits = &text[..end.unwrap_or(text.len())];
    if !digits.bytes().any(|b| b.is_ascii_digit()) {
        return Err(Rejection::Value("stoi".into()));
    }
    digits.trim_start_matches('+').parse().map_err(|_| Rejection::Overflow)
}

/// The leading number of `text`.
fn leading_number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    (1..=text.len()).rev().filter_map(|end| text.get(..end)?.parse::<f64>().ok()).next()
}

/// `name:1x3x224x224,other:8x128`, split at the last colon; quotes around a name fall away.
fn shapes(text: &str) -> Result<BTreeMap<String, Vec<i64>>, Rejection> {
    let mut found = BTreeMap::new();
    for item in split_outside_quotes(text) {
        let Some((name, dims)) = item.rsplit_once(':') else {
            return Err(Rejection::Value(format!("Invalid shape: {item}")));
        };
        let dims = match dims {
            "scalar" => Vec::new(),
            dims => dims.split('x').map(|d| stoi(d).map(i64::from)).collect::<Result<_, _>>()?,
        };
        found.insert(unquoted(name).to_owned(), dims);
    }
    Ok(found)
}

fn split_outside_quotes(text: &str) -> Vec<String> {
    let (mut items, mut current, mut quoted) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        if c == '\'' {
            quoted = !quoted;
        }
        if c == ',' && !quoted {
            items.push(std::mem::take(&mut current));
        } else {
            current.push(c);
        }
    }
    items.push(current);
    items
}

fn unquoted(name: &str) -> &str {
    name.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(version: &str, arguments: &[&str]) -> Result<Options, Rejection> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        parse(version.parse().unwrap(), &arguments)
    }

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        let options = given("8.4.1", &["--onnx=m", "--iterations=10x", "--percentile=50,90"]).unwrap();
        assert_eq!(options.integer("iterations", 0), 10);
        assert_eq!(given("8.4.1", &["--onnx=m", "--iterations=x"]).unwrap_err(), Rejection::Value("stoi".into()));
        let huge = given("10.3", &["--onnx=m", "--shapes=x:4294967296"]).unwrap_err();
        assert_eq!(huge, Rejection::Overflow);
    }

    #[test]
    fn presence_is_what_counts_of_a_switch() {
        assert!(given("8.6.1", &["--onnx=m", "--fp16=false"]).unwrap().has("fp16"));
    }

    #[test]
    fn what_is_left_is_unknown() {
        let unknown = |version: &str, arguments: &[&str]| match given(version, arguments).unwrap_err() {
            Rejection::Unknown(left) => left.into_iter().map(|(name, _)| name).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(unknown("10.3", &["--onnx=m", "--verbose", "--verbose"]), ["--verbose"]);
        assert_eq!(unknown("10.3", &["--onnx=m", "--workspace=1"]), ["--workspace"]);
        assert_eq!(unknown("11.0", &["--onnx=m", "--fp16"]), ["--fp16"]);
        assert_eq!(unknown("8.5.1", &["--onnx=m", "--skipInference"]), ["--skipInference"]);
        assert_eq!(unknown("10.3", &["--onnx=m", "--iterations=1", "10"]), ["10"]);
        assert!(given("10.3", &["--onnx=m", "--staticPlugins=a.so", "--staticPlugins=b.so"]).is_ok());
    }

    #[test]
    fn shapes_split_at_the_last_colon() {
        let options = given("10.3", &["--onnx=m", "--shapes='a:0':1x3,b:scalar"]).unwrap();
        assert_eq!(options.shapes["a:0"], [1, 3]);
        assert!(options.shapes["b"].is_empty());
    }

    #[test]
    fn several_profiles_each_follow_their_index() {
        let flags = ["--onnx=m", "--profile=0", "--minShapes=x:1", "--optShapes=x:2", "--maxShapes=x:4"];
        let more = ["--profile=1", "--minShapes=x:8", "--optShapes=x:8", "--maxShapes=x:8"];
        let options = given("10.0", &[&flags[..], &more[..]].concat()).unwrap();
        assert_eq!(options.profiles[1]["x"], [vec![8], vec![8], vec![8]]);
        assert!(matches!(given("8.6.1", &flags), Err(Rejection::Unknown(_))));
        let gap = given("10.0", &["--onnx=m", "--profile=1", "--optShapes=x:2"]);
        assert!(matches!(gap, Err(Rejection::Value(_))), "{gap:?}");
    }

    #[test]
    fn shapes_must_be_complete_only_in_the_oldest_version() {
        let flags = ["--onnx=m", "--minShapes=x:1", "--maxShapes=x:4"];
        assert!(matches!(given("8.4.1", &flags), Err(Rejection::Value(_))));
        let options = given("8.5.1", &flags).unwrap();
        assert!(!options.warnings.is_empty() && options.profiles[0].len() == 1);
        assert!(given("8.4.1", &["--onnx=m", "--optShapes=x:1"]).is_ok());
    }

    #[test]
    fn combinations_and_values_are_refused_as_the_version_refuses_them() {
        let refused = |version: &str, arguments: &[&str]| {
            let mut all = vec!["--onnx=m"];
            all.extend(arguments);
            matches!(given(version, &all), Err(Rejection::Value(_)))
        };
        assert!(given("10.3", &["--loadEngine=a", "--saveEngine=b"]).is_err());
        assert!(given("10.3", &["--verbose"]).is_err(), "no model");
        assert!(refused("10.8", &["--best", "--stronglyTyped"]) && !refused("10.6", &["--best", "--stronglyTyped"]));
        assert!(refused("8.6.1", &["--fp8", "--int8"]));
        assert!(refused("10.3", &["--weightStreamingBudget=1"]));
        assert!(refused("10.8", &["--hardwareCompatibilityLevel=sameComputeCapability"]));
        assert!(!refused("10.9", &["--hardwareCompatibilityLevel=sameComputeCapability"]));
        assert!(refused("11.0", &["--inputIOFormats=fp16:chw"]) && !refused("11.0", &["--inputIOFormats=chw"]));
        assert!(refused("10.3", &["--inputIOFormats=chw"]) && !refused("10.3", &["--inputIOFormats=fp16:chw"]));
        assert!(refused("10.3", &["--percentile=101"]) && refused("11.0", &["--tacticSources=-CUBLAS"]));
    }
}
