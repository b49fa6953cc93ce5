//! `planforge bench --rate, --concurrency, --objective, --soak`: an engine under load on this machine.
//!
//! The plan is loaded here, once for each instance, each with processors of its own where there are so many. A model is
//! built first, as `bench` builds it.

use super::{Args, here};
use crate::{ages, backends, context::Context, failure::Failure, tables};
use planforge_backend::{Cancel, Compiler, LoadOptions, Meter, PlanIdentity};
use planforge_device::telemetry::{self, contention, unix_ms};
use planforge_identity::npz;
use planforge_report::{
    Finding,
    format::milliseconds,
    load::{Bounded, LOAD_SCHEMA_VERSION, LoadPoint, LoadReport, Objective, Slice},
};
use planforge_types::{BackendError, NamedTensors, fingerprint::DiscoveredDevice};
use planforge_worker::{
    load::{
        Rig, search,
        search::point,
        soak,
        soak::{SoakConfig, slice_length},
        with_rig,
    },
    verify::inputs,
};
use std::{path::Path, time::Duration};

/// How long each run is where nobody says.
const USUAL_S: u64 = 10;

/// Instances that are of any use on one machine.
const INSTANCES_MAX: u32 = 256;

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Load on this machine")]
pub struct LoadArgs {
    /// Serve requests that arrive by themselves, so many a second on average (a Poisson process); latencies count from when
    /// each was to arrive
    #[arg(long, value_name = "N/s", value_parser = rate, conflicts_with_all = ["on", "baseline", "objective"])]
    rate: Option<f64>,
    /// Serve with so many instances of the engine side by side, on cores of their own; without --rate each takes the next
    /// request at once
    #[arg(long, value_name = "N", conflicts_with_all = ["on", "baseline"],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(INSTANCES_MAX)))]
    concurrency: Option<u32>,
    /// Look for the highest rate that keeps this latency, such as p99=5ms; median, p90, p95, p99 or p999
    #[arg(long, value_name = "FIGURE=TIME", value_parser = objective, conflicts_with_all = ["on", "baseline", "soak"])]
    objective: Option<Objective>,
    /// How long each run at a rate is; 10s by default
    #[arg(long, value_name = "TIME", value_parser = ages::parse, conflicts_with_all = ["on", "soak"])]
    duration: Option<u64>,
    /// Go on for this long, such as 30m, and say what drifts, grows or is held down
    #[arg(long, value_name = "TIME", value_parser = ages::parse, conflicts_with_all = ["on", "baseline"])]
    soak: Option<u64>,
}

/// `200/s` or `200`.
fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).trim().parse::<f64>().ok();
    let usable = number.filter(|rate| rate.is_finite() && *rate > 0.0 && *rate <= 1e7);
    usable.ok_or_else(|| format!("'{text}' is no rate: requests a second, such as 200/s"))
}

/// `p99=5ms`.
fn objective(text: &str) -> Result<Objective, String> {
    let names = Bounded::ALL.map(Bounded::name).join(", ");
    let (name, time) = text.split_once('=').ok_or_else(|| format!("'{text}' is no objective: such as p99=5ms"))?;
    let figure = Bounded::ALL.into_iter().find(|figure| figure.name() == name);
    let figure = figure.ok_or_else(|| format!("'{name}' is no figure: name one of {names}"))?;
    Ok(Objective { figure, most_ms: ages::milliseconds(time)? })
}

impl LoadArgs {
    /// Whether load is asked for.
    pub fn is_asked(&self) -> bool {
        self.rate.is_some() || self.concurrency.is_some() || self.objective.is_some() || self.soak.is_some()
    }

    fn run_length(&self) -> Duration {
        self.duration.map_or(Duration::from_secs(USUAL_S), Duration::from_millis)
    }
}

pub fn run(context: &Context<'_>, args: &Args) -> Result<(), Failure> {
    // Built where the model was named; kept until the load is over.
    let built = here::built_plan(context, args)?;
    let plan = built.as_ref().map_or(args.plan.as_path(), |built| built.path.as_path());
    let compiler = backends::of_plan(plan)?.ok_or_else(|| {
        Failure::usage(format!("no backend of this planforge knows the format of {}", plan.display()))
    })?;
    let device = here::device_of(args, compiler.identify(plan).ok().as_ref())?;
    let loaded = Loaded::new(context, args, plan, &*compiler, device)?;
    let report = loaded.measure()?;
    context.printer.data(&tables::load::render(&report))?;
    if let Some(output) = &args.output {
        let json = serde_json::to_vec_pretty(&report).map_err(|error| here::no_json(&error))?;
        std::fs::write(output, json).map_err(|error| Failure::io("write", output, &error))?;
    }
    context.printer.object(&serde_json::json!({ "load": report }))
}

struct Loaded<'a> {
    context: &'a Context<'a>,
    load: &'a LoadArgs,
    plan: &'a Path,
    compiler: &'a dyn Compiler,
    device: DiscoveredDevice,
    identity: PlanIdentity,
    instances: u32,
    /// Of each instance, on a processor.
    threads: Option<u32>,
    given: Option<NamedTensors>,
    findings: Vec<Finding>,
}

impl<'a> Loaded<'a> {
    fn new(
        context: &'a Context<'a>,
        args: &'a Args,
        plan: &'a Path,
        compiler: &'a dyn Compiler,
        device: DiscoveredDevice,
    ) -> Result<Self, Failure> {
        let identity = compiler.identify(plan)?;
        let instances = args.load.concurrency.unwrap_or(1);
        let given = args.measure.inputs.as_deref().map(npz::read).transpose()?;
        let mut findings = Vec::new();
        let threads = identity.sku.is_cpu().then(|| {
            let usual = identity.threads.unwrap_or(device.threads).min(device.threads).max(1);
            let fitting = (device.threads / instances).max(1);
            args.threads.unwrap_or(usual.min(fitting))
        });
        if let Some(threads) = threads {
            let (wanted, have) = (threads * instances, device.threads);
            if wanted > have {
                let message = format!(
                    "{instances} instances of {threads} threads want {wanted} cores, and there are {have}: they share, and \
                     wait for each other"
                );
                findings.push(Finding::warning("too-few-cores", message));
            }
            if identity.threads.is_some_and(|built| built != threads) {
                let built = identity.threads.unwrap_or_default();
                let message =
                    format!("tuned for {built} threads and run with {threads}: build with --threads {threads}");
                findings.push(Finding::note("other-threads", message));
            }
        }
        findings.iter().for_each(|finding| context.printer.warn(&finding.message));
        Ok(Self { context, load: &args.load, plan, compiler, device, identity, instances, threads, given, findings })
    }

    /// Loads an instance and binds its inputs.
    fn instance(&self) -> Result<Box<dyn Meter>, BackendError> {
        let options = LoadOptions { threads: self.threads, profile: 0, allow_foreign: true, site: None };
        let mut meter = self.compiler.load(self.plan, &options)?;
        let bound = match &self.given {
            Some(given) => {
                let ports = meter.inputs();
                given
                    .iter()
                    .filter(|(name, _)| ports.iter().any(|port| port.name == **name))
                    .map(|(n, t)| (n.clone(), t.clone()))
                    .collect()
            }
            None => {
                let specs = inputs::of_ports(&meter.inputs(), self.identity.spec.profiles.first());
                inputs::generate(&specs, inputs::REFERENCE_SEED)
            }
        };
        meter.bind(&bound)?;
        Ok(meter)
    }

    /// Items of one request.
    fn batch(&self) -> Result<u64, BackendError> {
        let meter = self.instance()?;
        let usual = |port: &planforge_types::Port| {
            let dims = self.identity.spec.profiles.first().and_then(|profile| profile.inputs.get(&port.name));
            let given =
                self.given.as_ref().and_then(|given| given.get(&port.name)?.shape.first().map(|size| *size as u64));
            given.or(*port.shape.first()?).or_else(|| Some(dims?.first()?.opt))
        };
        let sizes: Vec<Option<u64>> = meter.inputs().iter().map(usual).collect();
        let first = sizes.first().copied().flatten().unwrap_or(1);
        Ok(if sizes.iter().all(|size| *size == Some(first)) { first } else { 1 })
    }

    fn measure(&self) -> Result<LoadReport, Failure> {
        let seed = inputs::REFERENCE_SEED;
        let mut report = LoadReport {
            schema_version: LOAD_SCHEMA_VERSION,
            model: self.identity.model_name.clone(),
            plan: here::plan_digest(self.plan)?,
            sku: self.identity.sku.clone(),
            toolchain: self.identity.toolchain.to_string(),
            precision: self.identity.spec.precision.to_string(),
            threads: self.threads,
            concurrency: self.instances as usize,
            batch: self.batch()?,
            device: self.device.fingerprint.clone(),
            seed,
            measured_unix_ms: unix_ms(),
            points: Vec::new(),
            objective: None,
            soak: None,
            findings: self.findings.clone(),
        };
        let cancel = Cancel::default();
        let spinner = self.context.printer.spinner("loading the engine");
        let result = with_rig(self.instances as usize, &|| self.instance(), &cancel, |rig| {
            if let Some(length) = self.load.soak {
                spinner.say(&format!("soaking for {}", tables::duration(length)));
                return self.soak(rig, Duration::from_millis(length), &mut report, &|words| spinner.say(&words));
            }
            let run = |rate: Option<f64>, length: Duration| {
                let at = rate.map_or_else(|| "as fast as it goes".to_owned(), |rate| format!("{rate:.1} requests/s"));
                spinner.say(&format!("serving {at} for {:.0} s", length.as_secs_f64()));
                self.watched(rig, rate, length, seed)
            };
            match &self.load.objective {
                Some(objective) => {
                    report.objective = Some(search(*objective, self.load.run_length(), &mut report.points, run)?);
                }
                None => report.points.push(run(self.load.rate, self.load.run_length())?),
            }
            Ok(())
        });
        spinner.clear();
        result?;
        report.findings.extend(told(&report.points));
        Ok(report)
    }

    fn total_threads(&self) -> u32 {
        self.threads.unwrap_or(1) * self.instances
    }

    /// A run with the device's state around it.
    fn watched(
        &self,
        rig: &Rig<'_>,
        rate: Option<f64>,
        length: Duration,
        seed: u64,
    ) -> Result<LoadPoint, BackendError> {
        let mut telemetry = telemetry::for_device(&self.device.fingerprint);
        let (before, pace_before) = (telemetry.sample(), rig.pace_ns());
        let mut found = point(rig, rate, length, seed)?;
        let (after, pace_after) = (telemetry.sample(), rig.pace_ns());
        if let Some(reason) = contention::device_lost(&before, &after) {
            return Err(BackendError::device_lost(&reason));
        }
        found.disturbed = contention::assess(&before, &after, found.duration_ms, self.total_threads());
        let paces = pace_before.zip(pace_after);
        found.disturbed.extend(paces.and_then(|(a, b)| contention::slow_cores(a.min(b), a.max(b))));
        Ok(found)
    }

    fn soak(
        &self,
        rig: &Rig<'_>,
        length: Duration,
        report: &mut LoadReport,
        say: &dyn Fn(String),
    ) -> Result<(), BackendError> {
        let config =
            SoakConfig { length, rate_per_s: self.load.rate, seed: report.seed, threads: self.total_threads() };
        let mut telemetry = telemetry::for_device(&self.device.fingerprint);
        let slice_s = slice_length(length).as_secs_f64();
        let mut heard = |slice: &Slice| {
            let (median, p99) = (milliseconds(slice.latency_ms.median), milliseconds(slice.latency_ms.p99));
            let left = tables::duration((length.as_millis() as u64).saturating_sub(slice.at_ms as u64));
            say(format!("{left} left; the last {slice_s:.0} s: median {median}, p99 {p99}"));
        };
        let (soaked, findings) = soak(rig, &mut *telemetry, &config, &mut heard)?;
        report.findings.extend(findings);
        report.soak = Some(soaked);
        Ok(())
    }
}

/// What a reader of runs should know.
fn told(points: &[LoadPoint]) -> Vec<Finding> {
    let mut found = Vec::new();
    let disturbed = points.iter().filter(|point| !point.disturbed.is_empty()).count();
    if let Some(first) = points.iter().flat_map(|point| &point.disturbed).next() {
        let message = format!("{disturbed} of {} runs were disturbed, the first by this: {first}", points.len());
        found.push(Finding::warning("contention", message));
    }
    if let [only] = points
        && only.fell_behind
    {
        let message = format!(
            "the instances fell behind: {:.1} requests a second were served of {:.1} that arrived, so latencies say how long \
             the run was",
            only.served_per_s,
            only.rate_per_s.unwrap_or_default()
        );
        found.push(Finding::warning("fell-behind", message));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_objectives_are_read_as_they_are_meant() {
        assert_eq!([rate("200/s"), rate("0.5")], [Ok(200.0), Ok(0.5)]);
        for bad in ["", "0", "-1/s", "fast", "nan", "inf", "1e9"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(objective("p99=5ms"), Ok(Objective { figure: Bounded::P99, most_ms: 5.0 }));
        assert_eq!(objective("median=800us"), Ok(Objective { figure: Bounded::Median, most_ms: 0.8 }));
        for (bad, why) in [("p99", "is no objective"), ("p98=1ms", "name one of median, p90"), ("p99=5", "is no time")]
        {
            assert!(objective(bad).unwrap_err().contains(why), "{bad}");
        }
    }
}
