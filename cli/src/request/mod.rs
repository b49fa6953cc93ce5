//! From flags and model files to a request.

pub mod axis;
pub mod extras;
pub mod models;
pub mod prepare;
pub mod script;

use crate::{context::Context, failure::Failure, farm::Farm, lists, settings::Key, traces, wait::Away};
use axis::Axis;
use extras::{Attached, ExtraArgs};
use planforge_device::CpuLevel;
use planforge_fleet::shapes;
use planforge_proto::{ErrorCode, v1};
use planforge_tensorrt_rules::options::ALLOW_UNKNOWN_TOOLCHAIN;
use planforge_types::{
    BuildSpec, Digest, OptimizationProfile, Precision, Requirement, Sku, ToolchainConstraint, preparation::Int8Way,
    spec::OptimizationLevel,
};
#[cfg(feature = "local")]
use planforge_worker::verify::given;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    path::{Path, PathBuf},
};

/// Flags that say what to build; `build` and `submit` share them.
#[derive(Debug, clap::Args)]
pub struct RequestArgs {
    /// Device kind to build for, as `planforge devices` lists it; repeat for several [env: PLANFORGE_SKUS]
    #[arg(long = "sku", value_name = "SKU", value_delimiter = ',')]
    pub skus: Vec<Sku>,
    /// Arithmetic: fp32, tf32, fp16, bf16, int8, fp8 or best; repeat for several engines. 'submit --calibration' also takes
    /// int8-uncalibrated, int8-calibrated and int8-qdq, TensorRT's three ways to int8, in one request
    #[arg(long, value_name = "PRECISION", value_delimiter = ',', value_parser = Arithmetic::parse)]
    pub precision: Vec<Arithmetic>,
    /// Input shapes, such as images:1x3x224x224 or ids:1..8x128; repeat for several optimization profiles
    #[arg(long, value_name = "NAME:SHAPE,...", value_parser = shapes::parse)]
    pub shapes: Vec<OptimizationProfile>,
    /// CPU threads the engine runs on; the cores of the smallest known device by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Toolchain, such as native or 'tensorrt>=10.3,<11'; repeat for several engines
    #[arg(long, value_name = "CONSTRAINT")]
    pub toolchain: Vec<ToolchainConstraint>,
    /// Where no toolchain is named and the best one cannot build a model, do not ask the device's other ones
    #[arg(long)]
    pub no_fallback: bool,
    /// Build with this toolchain too, such as onnxruntime, as a baseline to compare with
    #[arg(long, value_name = "CONSTRAINT")]
    pub baseline: Option<ToolchainConstraint>,
    /// How hard to search for tactics, 0 to 5
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=5))]
    pub optimization_level: Option<u8>,
    /// Most scratch memory a tactic may use, in MiB
    #[arg(long, value_name = "MIB")]
    pub workspace_mib: Option<u64>,
    /// TensorRT: run on other boards too, none, ampere+ or same_compute_capability; repeat for several engines
    #[arg(long, value_name = "LEVEL", value_delimiter = ',', value_parser = parse_hardware)]
    pub hardware_compatibility: Vec<String>,
    /// TensorRT: run on newer versions too, on or off; 'on,off' for both engines
    #[arg(
        long,
        value_name = "on|off",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        value_parser = parse_switch
    )]
    pub version_compatible: Vec<bool>,
    /// Native engines for NVIDIA devices: GELU by tanh may stand in for GELU by erf where that is quicker
    #[arg(long)]
    pub approximate_gelu: bool,
    /// Native engines: refuse a model whose declared outputs contradict its nodes, which is a warning otherwise
    #[arg(long)]
    pub strict: bool,
    /// One engine for every combination of values: precision, threads, workspace, level, hardware-compatibility,
    /// version-compatible, batch (with --shapes), shapes (static, dynamic) or option.NAME; of the same engines also builds,
    /// streams and cuda-graph; repeat for several axes
    #[arg(long, value_name = "AXIS=V,V,...", value_parser = Axis::parse)]
    pub sweep: Vec<Axis>,
    /// Build spec as JSON, which other flags override; repeat for several engines
    #[arg(long = "spec", value_name = "FILE.json")]
    pub spec_files: Vec<PathBuf>,
    /// Backend option NAME=VALUE; repeat for several
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = parse_option)]
    pub options: Vec<(String, String)>,
    /// TensorRT: build with a version newer than all that are known here, as far as its help goes
    #[arg(long)]
    pub allow_unknown_toolchain: bool,
    /// Labelled test set (.npz with inputs by name and 'labels') for the accuracy in the report
    #[arg(long, value_name = "FILE.npz")]
    pub eval: Option<PathBuf>,
    #[command(flatten)]
    pub extra: ExtraArgs,
    /// Build even when an engine is stored or being built
    #[arg(long)]
    pub force: bool,
    /// Build again, its tactics timed anew, where every window of the stored engine's measurement was disturbed
    #[arg(long)]
    pub refresh_disturbed: bool,
    /// Run only on a device with this: memory=40GiB or more, driver=570 or newer, mig=none, mig=any or a profile such as
    /// mig=1g.10gb, label=NAME or label=NAME=VALUE (planforge agent --label); repeat for several. An engine that is stored is
    /// the answer all the same
    #[arg(long = "require", value_name = "KEY=VALUE")]
    pub requires: Vec<Requirement>,
    /// Higher goes first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-100..=100))]
    pub priority: Option<i32>,
    /// Keep an engine whose outputs differ from the reference; it is marked
    #[arg(long)]
    pub allow_inaccurate: bool,
    /// Tag the jobs, to find them by with `planforge jobs --tag`; repeat for several
    #[arg(long = "tag", value_name = "NAME[=VALUE]")]
    pub tags: Vec<String>,
}

/// A precision, and which of several ways leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    pub precision: Precision,
    pub way: Option<Int8Way>,
}

impl Arithmetic {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.to_ascii_lowercase();
        if let Some(way) = Int8Way::ALL.into_iter().find(|way| way.name() == text) {
            return Ok(Self { precision: Precision::Int8, way: Some(way) });
        }
        parse_precision(&text).map(Self::from)
    }
}

impl From<Precision> for Arithmetic {
    fn from(precision: Precision) -> Self {
        Self { precision, way: None }
    }
}

pub fn parse_precision(text: &str) -> Result<Precision, String> {
    serde_json::from_value(serde_json::Value::String(text.to_ascii_lowercase()))
        .map_err(|_| format!("'{text}' is not a precision: fp32, tf32, fp16, bf16, int8, fp8 or best"))
}

fn parse_option(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    pair.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| format!("'{text}' is not NAME=VALUE"))
}

fn parse_hardware(text: &str) -> Result<String, String> {
    let spec = BuildSpec { hardware_compatibility: Some(text.to_owned()), ..BuildSpec::default() }.canonical();
    spec.validate().map_err(|error| error.to_string())?;
    Ok(spec.hardware_compatibility.unwrap_or_default())
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

/// Far more than any spec needs.
const MAX_SPEC_BYTES: u64 = 1 << 20;

/// Reads a build spec from a file.
fn read_spec(path: &Path) -> Result<BuildSpec, Failure> {
    let failed = |error: std::io::Error| Failure::io("read", path, &error);
    let mut text = String::new();
    std::fs::File::open(path).map_err(failed)?.take(MAX_SPEC_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_SPEC_BYTES {
        return Err(Failure::usage(format!("{} is larger than {MAX_SPEC_BYTES} bytes: no build spec", path.display())));
    }
    BuildSpec::parse(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// What `--require` asks of devices, as it travels.
pub fn requires(asked: &[Requirement]) -> Result<Vec<String>, Failure> {
    let all = asked.iter().try_fold(Requirement::default(), |all, one| all.and(one));
    let all = all.map_err(|error| Failure::usage(error.to_string()).hint("name one of them with --require"))?;
    Ok(all.texts())
}

/// Each of `values`, or what the template has when none is given.
fn or_template<T: Clone>(values: &[T], template: T) -> Vec<T> {
    if values.is_empty() { vec![template] } else { values.to_vec() }
}

impl RequestArgs {
    /// The files that the flags name.
    pub fn attached(&self) -> Result<Attached, Failure> {
        Attached::of(&self.extra, self.eval.as_deref())
    }

    /// SKUs from flags, else from the settings; empty when nobody named any.
    pub fn skus(&self, context: &Context<'_>) -> Result<Vec<String>, Failure> {
        if !self.skus.is_empty() {
            return Ok(unique(self.skus.iter().map(ToString::to_string)));
        }
        let listed = context.settings.list(Key::Skus);
        let skus = listed.iter().map(|text| text.parse::<Sku>()).collect::<Result<Vec<_>, _>>();
        let skus = skus.map_err(|e| Failure::usage(format!("the setting 'skus': {e}")))?;
        Ok(unique(skus.iter().map(ToString::to_string)))
    }

    /// How often each engine is built, where somebody says.
    pub fn builds(&self) -> Result<Option<u32>, Failure> {
        axis::builds(self.extra.builds, &self.sweep)
    }

    /// What is measured beside the usual.
    fn measure(&self) -> Result<Option<v1::MeasureAsk>, Failure> {
        Ok(extras::ask_out(&self.extra.measure.ask_with(axis::streams(&self.sweep))?))
    }

    /// Toolchain constraints as they travel; none: whatever is best.
    pub fn toolchains(&self) -> Vec<String> {
        let Some(baseline) = &self.baseline else {
            return self.toolchain.iter().map(ToString::to_string).collect();
        };
        let best = [ToolchainConstraint::default()];
        let wanted = if self.toolchain.is_empty() { &best[..] } else { &self.toolchain };
        unique(wanted.iter().chain([baseline]).map(ToString::to_string))
    }

    /// One spec for every combination of precision and compatibility, over every `--spec`, or over `base` where an
    /// earlier job is the template; equal ones once, but for each way to one.
    pub fn specs(&self, base: &BuildSpec) -> Result<Vec<BuildSpec>, Failure> {
        Ok(self.specs_by_way(base)?.into_iter().map(|(spec, _)| spec).collect())
    }

    /// The same, with the way to each where the flags say one.
    pub fn specs_by_way(&self, base: &BuildSpec) -> Result<Vec<(BuildSpec, Option<Int8Way>)>, Failure> {
        let mut ways: Vec<Option<Int8Way>> = Vec::new();
        for one in &self.precision {
            if !ways.contains(&one.way) {
                ways.push(one.way);
            }
        }
        let mut all = Vec::new();
        for way in or_template(&ways, None) {
            let precisions: Vec<Precision> =
                self.precision.iter().filter(|one| one.way == way).map(|one| one.precision).collect();
            all.extend(self.specs_of(&precisions, base)?.into_iter().map(|spec| (spec, way)));
        }
        Ok(all)
    }

    /// Refuses ways to int8 where nothing is prepared that could lead there.
    pub fn no_ways(&self) -> Result<(), Failure> {
        match self.precision.iter().find_map(|one| one.way) {
            None => Ok(()),
            Some(way) => Err(Failure::usage(format!("{} is for models that the farm prepares on data", way.name()))
                .hint(format!("planforge submit MODEL --precision {} --calibration DATA.npz", way.name()))),
        }
    }

    fn specs_of(&self, precisions: &[Precision], base: &BuildSpec) -> Result<Vec<BuildSpec>, Failure> {
        let files = self.spec_files.iter().map(|path| read_spec(path)).collect::<Result<Vec<_>, _>>()?;
        let mut specs: Vec<BuildSpec> = Vec::new();
        for base in or_template(&files, base.clone()) {
            for precision in or_template(precisions, base.precision) {
                let levels: Vec<Option<String>> = self.hardware_compatibility.iter().cloned().map(Some).collect();
                for hardware in or_template(&levels, base.hardware_compatibility.clone()) {
                    for version_compatible in or_template(&self.version_compatible, base.version_compatible) {
                        let mut spec = BuildSpec { precision, version_compatible, ..base.clone() };
                        spec.hardware_compatibility.clone_from(&hardware);
                        let spec = self.over(spec);
                        if !specs.contains(&spec) {
                            specs.push(spec);
                        }
                    }
                }
            }
        }
        axis::combinations(specs, &self.sweep)
    }

    /// `spec` with the flags that have one value.
    fn over(&self, mut spec: BuildSpec) -> BuildSpec {
        if !self.shapes.is_empty() {
            spec.profiles.clone_from(&self.shapes);
        }
        spec.threads = self.threads.or(spec.threads);
        spec.workspace_mib = self.workspace_mib.or(spec.workspace_mib);
        if let Some(level) = self.optimization_level {
            spec.optimization_level = OptimizationLevel(level);
        }
        spec.approximate_gelu |= self.approximate_gelu;
        spec.strict |= self.strict;
        spec.options.extend(self.options.iter().cloned());
        if self.allow_unknown_toolchain {
            spec.options.insert(ALLOW_UNKNOWN_TOOLCHAIN.to_owned(), "true".to_owned());
        }
        spec.canonical()
    }
}

/// Texts without repeats, in the order first said.
fn unique(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    texts.filter(|text| seen.insert(text.clone())).collect()
}

/// Specs as the documents that travel.
pub fn spec_documents(specs: &[BuildSpec]) -> Result<Vec<String>, Failure> {
    let text = |spec| {
        serde_json::to_string(spec)
            .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot write the build spec: {e}")))
    };
    specs.iter().map(text).collect()
}

/// Files on this machine by digest: what can be uploaded when the coordinator lacks it.
pub type LocalFiles = BTreeMap<String, PathBuf>;

/// Refuses given inputs that do not fit one of the `models` as it is to be built, before anybody is asked for a device.
/// Of a model that is not on this machine the file is only read.
pub fn check_inputs(args: &RequestArgs, models: &[PathBuf], base: &BuildSpec) -> Result<(), Failure> {
    let Some(inputs) = &args.extra.measure.inputs else { return Ok(()) };
    if models.is_empty() {
        return extras::readable_inputs(inputs);
    }
    let profiles: BTreeSet<_> = args.specs(base)?.iter().map(|spec| spec.profiles.first().cloned()).collect();
    for (model, profile) in models.iter().flat_map(|model| profiles.iter().map(move |profile| (model, profile))) {
        check_fit(inputs, model, profile.as_ref())?;
    }
    Ok(())
}

/// The small client leaves it to the worker whether they fit.
#[cfg(not(feature = "local"))]
pub fn check_fit(inputs: &Path, _model: &Path, _profile: Option<&OptimizationProfile>) -> Result<(), Failure> {
    extras::readable_inputs(inputs)
}

/// Refuses given inputs that do not fit `model` as it is built for `profile`.
#[cfg(feature = "local")]
pub fn check_fit(inputs: &Path, model: &Path, profile: Option<&OptimizationProfile>) -> Result<(), Failure> {
    given::check(inputs, model, profile).map_err(|error| {
        let message = format!("{} does not fit {}: {}", inputs.display(), model.display(), error.words());
        Failure::usage(message).hint(error.hint())
    })
}

/// The request that `args` asks for: `models` by their digests, `skus` and specs as they are.
pub fn assemble(
    context: &Context<'_>,
    args: &RequestArgs,
    models: Vec<v1::Model>,
    skus: Vec<String>,
    base: &BuildSpec,
    attached: &Attached,
) -> Result<v1::SubmitRequest, Failure> {
    axis::suit(&args.sweep, &skus)?;
    let specs: Vec<BuildSpec> = args.specs(base)?.iter().map(|spec| attached.onto(spec)).collect();
    Ok(v1::SubmitRequest {
        idempotency_key: ulid::Ulid::generate().to_string(),
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        models,
        skus,
        specs_json: spec_documents(&specs)?,
        toolchains: args.toolchains(),
        priority: args.priority.unwrap_or(0),
        tags: args.tags.clone(),
        force: args.force,
        refresh_disturbed: args.refresh_disturbed,
        allow_inaccurate: args.allow_inaccurate,
        no_fallback: args.no_fallback,
        requires: requires(&args.requires)?,
        kind: v1::JobKind::Build.into(),
        eval_digest: attached.eval.map(|eval| eval.to_string()).unwrap_or_default(),
        builds: args.builds()?.unwrap_or(1),
        measure: args.measure()?,
        ..Default::default()
    })
}

/// The best device kind of each device of this machine that something can build for.
///
/// `here` says which of a coordinator's devices are this machine's.
pub fn default_skus(devices: &[v1::Device], here: impl Fn(&v1::Device) -> bool) -> Vec<String> {
    let usable = devices.iter().filter(|d| here(d) && !d.offers.is_empty() && !d.quarantined);
    let mut skus = unique(usable.filter_map(|device| device.skus.iter().rev().find(|sku| runs_here(sku)).cloned()));
    // Who has a GPU builds for it; its host's processor is built for when it is named.
    let is_cpu = |sku: &String| sku.parse::<Sku>().is_ok_and(|sku| sku.is_cpu());
    if skus.iter().any(|sku| !is_cpu(sku)) {
        skus.retain(|sku| !is_cpu(sku));
    }
    skus
}

/// The best device kinds of this machine, as its own `farm` knows them.
pub async fn skus_of_this_machine(farm: &mut Farm) -> Result<Vec<String>, Failure> {
    let mut agent_has_joined = false;
    loop {
        let devices = farm.rpc().list_devices(v1::ListDevicesRequest { online_only: false }).await;
        let devices = devices.map_err(|e| farm.error(e))?.into_inner().devices;
        let skus = default_skus(&devices, |_| true);
        if !skus.is_empty() {
            return Ok(skus);
        }
        if agent_has_joined {
            return Err(Failure::new(ErrorCode::Refused, "nothing on this machine can be built for")
                .hint("planforge devices shows what was found"));
        }
        // Another process's agent may join between the look above and this wait, so the list is read once more.
        farm.start_work().await?;
        agent_has_joined = true;
    }
}

/// Device kinds to build for when nobody named any and a coordinator elsewhere has the devices: those of the agent on
/// this host.
pub async fn skus_of_this_host(farm: &Farm) -> Result<Vec<String>, Failure> {
    let devices = farm.rpc().list_devices(v1::ListDevicesRequest { online_only: false }).await;
    let devices = devices.map_err(|e| farm.error(e))?.into_inner().devices;
    let host = host_name();
    let skus = default_skus(&devices, |device| device.agent == host);
    if skus.is_empty() {
        let all = unique(devices.iter().flat_map(|d| d.skus.iter().cloned()));
        let failure = Failure::usage("no device kind was named, and no agent of this host is known to the coordinator");
        return Err(match all.is_empty() {
            true => failure.hint("the coordinator knows no device yet: start `planforge agent` on a host that has one"),
            false => failure.hint(format!("name one with --sku; the coordinator knows {}", all.join(", "))),
        });
    }
    Ok(skus)
}

/// The name under which this host's agent is known.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether a CPU level is one of this processor's; any other device kind is taken at its agent's word.
fn runs_here(sku: &str) -> bool {
    let level = sku.parse::<Sku>().ok().filter(Sku::is_cpu);
    level.is_none_or(|sku| CpuLevel::of_sku(&sku).is_some_and(CpuLevel::runs_here))
}

/// Submits, uploads what the coordinator lacks, submits again.
pub async fn submit(
    context: &Context<'_>,
    farm: &Farm,
    request: &v1::SubmitRequest,
    files: &LocalFiles,
) -> Result<v1::SubmitReply, Failure> {
    let (mut uploaded, mut away) = (BTreeSet::new(), Away::default());
    loop {
        let mut reply = match traces::submit(&mut farm.rpc(), request.clone()).await.map_err(|e| farm.error(e)) {
            Ok(reply) => reply,
            // It may have been taken before the coordinator went: by its idempotency key it is the same request.
            Err(failure) if failure.is_unavailable() && !request.idempotency_key.is_empty() && farm.comes_back() => {
                away.wait(context.printer, failure, "submitting the same again when it is back").await?;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        if reply.missing_blobs.is_empty() {
            took_notice_of_inputs(request, &reply)?;
            took_notice_of_calibration(request, &reply)?;
            lists::complete(farm, &mut reply.jobs).await?;
            return Ok(reply);
        }
        for text in &reply.missing_blobs {
            let Some(path) = files.get(text) else {
                let message = format!("the coordinator lacks the file sha256:{text}, and it is not on this machine");
                return Err(Failure::new(ErrorCode::NotFound, message).hint("submit the model file itself"));
            };
            if !uploaded.insert(text.clone()) {
                let message = format!("the coordinator asks again for {} after it was uploaded", path.display());
                return Err(Failure::new(ErrorCode::Internal, message));
            }
            upload(context, farm, text, path).await?;
        }
    }
}

/// A coordinator of an older version leaves out what it does not know.
fn took_notice_of_inputs(request: &v1::SubmitRequest, reply: &v1::SubmitReply) -> Result<(), Failure> {
    let given = |ask: &Option<v1::MeasureAsk>| ask.as_ref().map(|ask| ask.inputs_digest.clone()).unwrap_or_default();
    let asked = given(&request.measure);
    match reply.jobs.iter().find(|job| given(&job.measure) != asked) {
        Some(job) if !asked.is_empty() => {
            let message =
                format!("the coordinator took no notice of the given inputs: job {} runs without them", job.id);
            Err(Failure::new(ErrorCode::Refused, message)
                .hint(format!("its version is older; update it, and end the job with planforge cancel {}", job.id)))
        }
        _ => Ok(()),
    }
}

/// Likewise of engines that take the ranges of a preparation: it would have made them of the prepared model.
fn took_notice_of_calibration(request: &v1::SubmitRequest, reply: &v1::SubmitReply) -> Result<(), Failure> {
    let calibrates = |job: &v1::Job| {
        // What is calibrated already says so in its spec.
        let spec: BuildSpec = serde_json::from_str(&job.spec_json).unwrap_or_default();
        job.preparation.as_ref().is_some_and(|from| from.as_calibration) || spec.calibration.is_some()
    };
    if request.calibrates.is_empty() || reply.jobs.iter().any(calibrates) {
        return Ok(());
    }
    let ids: Vec<&str> = reply.jobs.iter().map(|job| job.id.as_str()).collect();
    let message = "the coordinator took no notice of int8-calibrated: it builds the prepared model in its place";
    let hint = format!("its version is older; update it, and end the jobs with planforge cancel {}", ids.join(" "));
    Err(Failure::new(ErrorCode::Refused, message).hint(hint))
}

async fn upload(context: &Context<'_>, farm: &Farm, digest: &str, path: &Path) -> Result<(), Failure> {
    let digest: Digest = digest.parse().map_err(|e| {
        Failure::new(ErrorCode::Internal, format!("the coordinator names a blob by something else: {e}"))
    })?;
    let bytes = std::fs::metadata(path).map_err(|e| Failure::io("read", path, &e))?.len();
    let bar = context.printer.transfer(&format!("uploading {}", path.display()), bytes);
    let result = farm.blobs().upload_with(path, digest, &|done| bar.done(done)).await;
    bar.clear();
    result.map_err(|e| match Failure::from(e) {
        cut if cut.is_unavailable() => cut.hint_if_none("run the command again: uploads resume where they stopped"),
        refused => refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        request: RequestArgs,
    }

    fn args(line: &[&str]) -> RequestArgs {
        Line::try_parse_from(["x"].iter().chain(line)).unwrap().request
    }

    #[test]
    fn a_baseline_is_one_toolchain_more() {
        assert!(args(&[]).toolchains().is_empty());
        assert_eq!(args(&["--baseline", "onnxruntime"]).toolchains(), ["", "onnxruntime"]);
        let both = args(&["--toolchain", "native", "--baseline", "onnxruntime>=1.20"]);
        assert_eq!(both.toolchains(), ["native", "onnxruntime>=1.20"]);
        assert_eq!(args(&["--toolchain", "native", "--baseline", "native"]).toolchains(), ["native"]);
    }

    #[test]
    fn ways_to_int8_are_told_apart_where_their_specs_are_alike() {
        let ways = |line: &[&str]| {
            let all = args(line).specs_by_way(&BuildSpec::default()).unwrap();
            all.into_iter().map(|(spec, way)| (spec.precision, way)).collect::<Vec<_>>()
        };
        let (int8, fp16) = (Precision::Int8, Precision::Fp16);
        let [uncalibrated, calibrated, qdq] = Int8Way::ALL.map(|way| (int8, Some(way)));
        let asked = ["--precision", "fp16,int8-uncalibrated,int8-Calibrated,int8-qdq,int8-qdq,int8"];
        assert_eq!(ways(&asked), [(fp16, None), (int8, None), uncalibrated, calibrated, qdq]);
        let swept = ways(&["--precision", "int8-qdq", "--sweep", "workspace=1,2"]);
        assert_eq!(swept, [qdq, qdq]);
        assert_eq!(ways(&[]), [(Precision::Fp32, None)]);
        assert!(Line::try_parse_from(["x", "--precision", "int8-unknown"]).is_err());
        let refused = args(&["--precision", "int8,int8-qdq"]).no_ways().unwrap_err().to_string();
        assert!(refused.contains("int8-qdq is for models that the farm prepares"), "{refused}");
        args(&["--precision", "int8,fp16"]).no_ways().unwrap();
    }

    #[test]
    fn an_older_coordinator_that_knows_no_calibration_by_preparation_is_told_of() {
        let request = v1::SubmitRequest { calibrates: vec![1], ..Default::default() };
        let reply = |as_calibration| {
            let preparation = Some(v1::Preparation { as_calibration, ..Default::default() });
            let job = v1::Job { id: "j1".into(), spec_json: "{}".into(), preparation, ..Default::default() };
            v1::SubmitReply { jobs: vec![job], ..Default::default() }
        };
        took_notice_of_calibration(&request, &reply(true)).unwrap();
        took_notice_of_calibration(&v1::SubmitRequest::default(), &reply(false)).unwrap();
        let refused = took_notice_of_calibration(&request, &reply(false)).unwrap_err().to_string();
        assert!(refused.contains("took no notice of int8-calibrated"), "{refused}");
    }

    #[test]
    fn each_precision_is_a_spec_of_its_own() {
        let args = args(&["--precision", "fp16,fp32", "--threads", "2", "--option", "a=b=c", "--shapes", "x:1x3"]);
        let specs = args.specs(&BuildSpec::default()).unwrap();
        assert_eq!(specs.iter().map(|s| s.precision).collect::<Vec<_>>(), [Precision::Fp16, Precision::Fp32]);
        for spec in &specs {
            assert_eq!((spec.threads, spec.profiles.len(), spec.options["a"].as_str()), (Some(2), 1, "b=c"));
        }
    }

    #[test]
    fn a_template_stands_where_no_flag_says_otherwise() {
        let base = BuildSpec { precision: Precision::Bf16, threads: Some(4), ..BuildSpec::default() };
        assert_eq!(args(&[]).specs(&base).unwrap(), std::slice::from_ref(&base));
        let changed = args(&["--threads", "1"]).specs(&base).unwrap();
        assert_eq!(changed, [BuildSpec { threads: Some(1), ..base }]);
    }

    #[test]
    fn compatible_builds_are_specs_beside_the_plain_one() {
        let line =
            args(&["--hardware-compatibility", "none,ampere+", "--version-compatible=off,on", "--precision", "fp16"]);
        let specs = line.specs(&BuildSpec::default()).unwrap();
        let said: Vec<_> = specs.iter().map(|s| (s.hardware_compatibility.as_deref(), s.version_compatible)).collect();
        assert_eq!(said, [(None, false), (None, true), (Some("ampere+"), false), (Some("ampere+"), true)]);
        assert!(
            args(&["--version-compatible", "--threads", "1"]).specs(&BuildSpec::default()).unwrap()[0]
                .version_compatible
        );
        let both = BuildSpec { version_compatible: true, ..BuildSpec::default() };
        assert!(!args(&["--version-compatible=off"]).specs(&both).unwrap()[0].version_compatible);
        assert!(Line::try_parse_from(["x", "--hardware-compatibility", "turing"]).is_err());
        assert!(Line::try_parse_from(["x", "--version-compatible=maybe"]).is_err());
    }

    #[test]
    fn an_approximate_gelu_is_asked_for_and_never_taken_back() {
        let asked = args(&["--approximate-gelu"]).specs(&BuildSpec::default()).unwrap();
        assert_eq!(asked, [BuildSpec { approximate_gelu: true, ..BuildSpec::default() }]);
        assert_eq!(args(&[]).specs(&asked[0]).unwrap(), asked);
        assert!(!args(&[]).specs(&BuildSpec::default()).unwrap()[0].approximate_gelu);
    }

    #[test]
    fn strictness_is_asked_for_and_never_taken_back() {
        let asked = args(&["--strict"]).specs(&BuildSpec::default()).unwrap();
        assert_eq!(asked, [BuildSpec { strict: true, ..BuildSpec::default() }]);
        assert_eq!(args(&[]).specs(&asked[0]).unwrap(), asked);
    }

    #[test]
    fn spec_files_are_templates_and_equal_specs_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_string_lossy().into_owned()
        };
        let one = file("a.json", r#"{"precision": "fp16", "workspace_mib": 64}"#);
        let two = file("b.json", r#"{"options": {"tactic_sources": "-CUDNN"}}"#);
        let specs = args(&["--spec", &one, "--spec", &two, "--spec", &one, "--workspace-mib", "32"])
            .specs(&BuildSpec::default());
        let specs = specs.unwrap();
        assert_eq!(
            specs.iter().map(|s| (s.precision, s.workspace_mib)).collect::<Vec<_>>(),
            [(Precision::Fp16, Some(32)), (Precision::Fp32, Some(32))]
        );
        for (name, text) in [("c.json", "{"), ("d.json", r#"{"precison": "fp16"}"#)] {
            let failure = args(&["--spec", &file(name, text)]).specs(&BuildSpec::default()).unwrap_err();
            assert!(failure.to_string().contains(name), "{failure}");
        }
        assert!(args(&["--spec", "/nonexistent.json"]).specs(&BuildSpec::default()).is_err());
    }

    #[test]
    fn default_skus_are_the_best_of_each_buildable_device_here() {
        let offer = v1::Offer { toolchain_json: "{}".into(), ..v1::Offer::default() };
        let device = |agent: &str, skus: &[&str], offers: &[v1::Offer]| v1::Device {
            agent: agent.into(),
            skus: skus.iter().map(|s| (*s).to_owned()).collect(),
            offers: offers.to_vec(),
            ..Default::default()
        };
        let devices = [
            device("me", &["t4"], std::slice::from_ref(&offer)),
            device("me", &["t4"], std::slice::from_ref(&offer)),
            device("me", &["l4"], &[]),
            device("you", &["a100-sxm4-40gb"], std::slice::from_ref(&offer)),
            device("me", &["cpu-x86-64-v2"], std::slice::from_ref(&offer)),
        ];
        assert_eq!(default_skus(&devices, |d| d.agent == "me"), ["t4"]);
    }
}
