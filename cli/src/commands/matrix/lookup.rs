//! What the farm knows of a model's plans: engines, measurements wherever they were taken, refusals.

use crate::{
    context::Context,
    failure::Failure,
    farm::Farm,
    lists, reports,
    request::{LocalFiles, models},
    settings::Key,
    tables,
};
use planforge_device::CpuLevel;
use planforge_fleet::cell::is_of_spec;
use planforge_proto::{ErrorCode, v1};
use planforge_report::{
    Report,
    matrix::{Built, Cell, Matrix, Refusal, State, Subject, spec_words},
};
use planforge_types::{BuildSpec, Digest, Sku, Toolchain, ToolchainConstraint};
use std::path::Path;

/// Newest jobs among which it is looked for plans that did not run.
const FAILED_JOBS_LOOKED_AT: u32 = 1_000;

/// What a matrix is asked for.
#[derive(Debug)]
pub struct Wanted {
    /// As it was named.
    pub named: String,
    /// Name, or digest or its beginning, as the farm is asked.
    pub model: String,
    /// The model's file, where one was named, so that engines can be built.
    pub local: Option<(v1::Model, LocalFiles)>,
    pub skus: Vec<Sku>,
    pub spec: BuildSpec,
    pub toolchain: ToolchainConstraint,
}

impl Wanted {
    pub fn of(
        context: &Context<'_>,
        named: &str,
        skus: &[Sku],
        spec: &BuildSpec,
        toolchain: &ToolchainConstraint,
    ) -> Result<Self, Failure> {
        let path = Path::new(named);
        let local = path.is_file().then(|| models::identify(&context.settings, path)).transpose()?;
        let local = local.map(|local| (local.model, local.files));
        let model = local.as_ref().map_or_else(|| named.to_owned(), |(model, _)| model.digest.clone());
        let (skus, spec, toolchain) = (skus.to_vec(), spec.clone(), toolchain.clone());
        Ok(Self { named: named.to_owned(), model, local, skus, spec, toolchain })
    }
}

/// An engine with what decides about it.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub engine: v1::Engine,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    sku: Sku,
    pub plan: Digest,
}

/// What is known.
#[derive(Debug, Default)]
pub struct Looked {
    /// The engine for each of the device kinds, all of one toolchain and spec.
    pub engines: Vec<Option<Candidate>>,
    reports: Vec<Report>,
    refusals: Vec<Refusal>,
}

impl Looked {
    pub async fn at(context: &Context<'_>, farm: &Farm, wanted: &Wanted) -> Result<Self, Failure> {
        let project: String = context.settings.get(Key::Project).unwrap_or_default().into();
        let request = v1::ListEnginesRequest {
            model: wanted.model.clone(),
            project: project.clone(),
            limit: u32::MAX,
            ..Default::default()
        };
        let engines = choose(lists::engines(farm, request).await?, wanted)?;
        let mut reports = Vec::new();
        for candidate in engines.iter().flatten() {
            let plan = candidate.plan.to_string();
            let request = v1::ListReportsRequest { plan_digest: plan.clone(), ..Default::default() };
            reports.extend(reports::listed(farm, request, &plan).await?.into_iter().map(|found| found.report));
        }
        let mut looked = Self { engines, reports, refusals: impossible(&wanted.skus) };
        if looked.engines.iter().flatten().count() > 0 {
            let request = v1::ListJobsRequest {
                project,
                model: wanted.model.clone(),
                states: vec![v1::JobState::Failed.into()],
                limit: FAILED_JOBS_LOOKED_AT,
                ..Default::default()
            };
            let failed = lists::jobs(farm, request).await?;
            let found: Vec<Refusal> = failed.iter().filter_map(|job| looked.refused(job)).collect();
            looked.refusals.extend(found);
        }
        Ok(looked)
    }

    /// What a job that failed says of a plan of these.
    fn refused(&self, job: &v1::Job) -> Option<Refusal> {
        let candidate = self
            .engines
            .iter()
            .flatten()
            .find(|one| one.engine.plan_digest == job.plan_digest && !job.built_for.is_empty())?;
        let failure = job.failure.as_ref()?;
        // The plan's own fault, or the device's limits; not a host's that broke down.
        let lasting = matches!(failure.class(), v1::FailureClass::Model | v1::FailureClass::Resource);
        let measured_on = job.sku.parse().ok().filter(|_| lasting)?;
        let (built_for, reason) = (candidate.sku.clone(), failure.message.clone());
        Some(Refusal { built_for, measured_on, reason, at_unix_ms: job.ended_ms })
    }

    pub fn matrix(&self, wanted: &Wanted) -> Result<Matrix, Failure> {
        let Some(first) = self.engines.iter().flatten().next() else {
            let skus = wanted.skus.iter().map(Sku::to_string).collect::<Vec<_>>();
            let message = format!("no engine of {} for any of {}", wanted.named, skus.join(", "));
            let hint = format!(
                "planforge matrix {} --sku {} --measure builds and measures them",
                wanted.named,
                skus.join(",")
            );
            return Err(Failure::new(ErrorCode::NotFound, message).hint(hint));
        };
        let model = first.engine.model.clone().unwrap_or_default();
        let digest = model.digest.parse().map_err(|error| {
            Failure::new(ErrorCode::Internal, format!("the coordinator names the model by something else: {error}"))
        })?;
        let subject = Subject {
            model: tables::model_name(Some(&model)).to_owned(),
            model_digest: digest,
            structure_digest: model.structure_digest.parse().ok(),
            toolchain: first.toolchain.to_string(),
            spec: spec_words(&first.spec),
        };
        let rows = wanted.skus.iter().zip(&self.engines);
        let built = rows.map(|(sku, one)| Built { sku: sku.clone(), plan: one.as_ref().map(|one| one.plan) });
        Ok(Matrix::of(subject, &built.collect::<Vec<_>>(), &self.reports, &self.refusals))
    }
}

/// What no measurement here could make right: code of an instruction-set level that the other level's devices may lack,
/// and code for another sort of device. Where it happens to run, the device is more than its kind promises.
fn impossible(skus: &[Sku]) -> Vec<Refusal> {
    let pairs = skus.iter().flat_map(|row| skus.iter().map(move |column| (row, column)));
    let refused = pairs.filter_map(|(built_for, measured_on)| {
        let reason = match (CpuLevel::of_sku(built_for), CpuLevel::of_sku(measured_on)) {
            (Some(code), Some(device)) if !device.includes(code) => {
                format!("code for {built_for} takes instructions that {measured_on} does not promise")
            }
            (Some(_), None) | (None, Some(_)) => format!("a plan for {built_for} is no code for {measured_on}"),
            _ => return None,
        };
        Some(Refusal { built_for: built_for.clone(), measured_on: measured_on.clone(), reason, at_unix_ms: u64::MAX })
    });
    refused.collect()
}

/// The engines of one toolchain and spec that were built for most of the device kinds; of several such the newest.
fn choose(engines: Vec<v1::Engine>, wanted: &Wanted) -> Result<Vec<Option<Candidate>>, Failure> {
    let mut models: Vec<&str> = engines.iter().filter_map(|one| Some(one.model.as_ref()?.digest.as_str())).collect();
    models.sort_unstable();
    models.dedup();
    if models.len() > 1 {
        let short: Vec<&str> = models.iter().map(|digest| tables::short(digest)).collect();
        let message = format!("{} models are called '{}': {}", models.len(), wanted.named, short.join(", "));
        return Err(Failure::usage(message).hint("name one by the beginning of its digest"));
    }
    let read = |engine: v1::Engine| {
        let (toolchain, spec) =
            (serde_json::from_str(&engine.toolchain_json).ok()?, BuildSpec::parse(&engine.spec_json).ok()?);
        let (sku, plan) = (engine.sku.parse().ok()?, engine.plan_digest.parse().ok()?);
        Some(Candidate { engine, toolchain, spec: spec.canonical(), sku, plan })
    };
    let fits = |one: &Candidate| {
        wanted.skus.contains(&one.sku)
            && wanted.toolchain.matches(&one.toolchain)
            && is_of_spec(&wanted.spec, &one.spec)
    };
    let mut candidates: Vec<Candidate> = engines.into_iter().filter_map(read).filter(fits).collect();
    candidates.sort_by_key(|one| std::cmp::Reverse(one.engine.created_ms));
    let row = |like: &Candidate| -> Vec<Option<Candidate>> {
        let same = |one: &&Candidate| one.toolchain == like.toolchain && one.spec == like.spec;
        let of = |sku: &Sku| candidates.iter().filter(same).find(|one| one.sku == *sku).cloned();
        wanted.skus.iter().map(of).collect()
    };
    let mut best = vec![None; wanted.skus.len()];
    for like in &candidates {
        let row = row(like);
        if row.iter().flatten().count() > best.iter().flatten().count() {
            best = row;
        }
    }
    Ok(best)
}

/// Whether a cell is measured anew where what is missing is.
pub fn lacks_measurement(cell: &Cell) -> bool {
    let no_verdict = cell.state == State::Undecided && cell.loss.is_none();
    cell.state == State::Unmeasured || no_verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(skus: &[&str]) -> Wanted {
        Wanted {
            named: "net".into(),
            model: "net".into(),
            local: None,
            skus: skus.iter().map(|sku| sku.parse().unwrap()).collect(),
            spec: BuildSpec::default(),
            toolchain: ToolchainConstraint::default(),
        }
    }

    fn engine(sku: &str, version: &str, created_ms: u64) -> v1::Engine {
        v1::Engine {
            model: Some(v1::Model { digest: "aa".into(), ..v1::Model::default() }),
            sku: sku.into(),
            plan_digest: Digest::of(format!("{sku}{created_ms}").as_bytes()).to_string(),
            spec_json: "{}".into(),
            toolchain_json: format!(r#"{{"backend":"native","version":"{version}","components":{{}}}}"#),
            created_ms,
            ..v1::Engine::default()
        }
    }

    #[test]
    fn one_toolchain_is_taken_for_all_rows_the_one_with_most_of_them() {
        let engines = vec![engine("t4", "7", 9), engine("t4", "6", 2), engine("l4", "6", 1), engine("l4", "6", 3)];
        let found = choose(engines, &wanted(&["t4", "l4", "a10"])).unwrap();
        let told: Vec<Option<u64>> = found.iter().map(|one| one.as_ref().map(|one| one.engine.created_ms)).collect();
        assert_eq!(told, [Some(2), Some(3), None]);
        let mut other = engine("t4", "6", 1);
        other.model = Some(v1::Model { digest: "bb".into(), ..v1::Model::default() });
        let failure = choose(vec![engine("t4", "6", 1), other], &wanted(&["t4", "l4"])).unwrap_err();
        assert!(failure.to_string().contains("2 models are called 'net'"), "{failure}");
    }

    #[test]
    fn code_that_a_level_does_not_promise_is_refused_wherever_it_happens_to_run() {
        let skus = ["cpu-x86-64-v2", "cpu-x86-64-v4", "t4"].map(|sku| sku.parse().unwrap());
        let told: Vec<(String, String)> =
            impossible(&skus).iter().map(|one| (one.built_for.to_string(), one.measured_on.to_string())).collect();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(told.len(), 5);
        assert!(
            told.contains(&pair("cpu-x86-64-v4", "cpu-x86-64-v2"))
                && !told.contains(&pair("cpu-x86-64-v2", "cpu-x86-64-v4"))
        );
    }
}
