//! Building and measuring what a matrix lacks.

use super::lookup::{Looked, Wanted, lacks_measurement};
use crate::{
    context::Context,
    failure::Failure,
    farm::Farm,
    request::{self, LocalFiles},
    settings::Key,
    wait::{self, Patience, Waiting},
};
use planforge_proto::{ErrorCode, v1};
use planforge_report::matrix::State;
use planforge_types::Sku;
use std::collections::BTreeSet;

pub struct Measuring<'a> {
    pub context: &'a Context<'a>,
    pub farm: &'a Farm,
    pub wait_for_device: bool,
    /// What is asked of every device, beside its kind.
    pub requires: &'a [String],
    pub patience: Patience,
}

impl Measuring<'_> {
    /// Fills what is missing, as far as devices can; whether every job did what it could.
    pub async fn complete(&self, wanted: &Wanted, looked: &mut Looked) -> Result<bool, Failure> {
        let missing: Vec<&Sku> = wanted
            .skus
            .iter()
            .zip(&looked.engines)
            .filter(|(_, engine)| engine.is_none())
            .map(|(sku, _)| sku)
            .collect();
        let mut all_done = true;
        if !missing.is_empty() {
            all_done &= self.build(wanted, looked, &missing).await?;
            *looked = Looked::at(self.context, self.farm, wanted).await?;
        }
        let jobs = self.bench(wanted, looked).await?;
        if !jobs.is_empty() {
            all_done &= self.wait(jobs).await?;
            *looked = Looked::at(self.context, self.farm, wanted).await?;
        }
        Ok(all_done)
    }

    /// Builds for the kinds that have no engine, as those that have one were built.
    async fn build(&self, wanted: &Wanted, looked: &Looked, skus: &[&Sku]) -> Result<bool, Failure> {
        let like = looked.engines.iter().flatten().next();
        let stored = like.and_then(|one| one.engine.model.clone()).map(|model| (model, LocalFiles::new()));
        let Some((model, files)) = wanted.local.clone().or(stored) else {
            let message = format!("the farm has no engine of '{}' to go by", wanted.named);
            return Err(Failure::new(ErrorCode::NotFound, message).hint("name the ONNX file itself"));
        };
        let toolchain = like.map(|one| format!("{}={}", one.toolchain.backend, one.toolchain.version));
        let spec = like.map_or(&wanted.spec, |one| &one.spec);
        let request = v1::SubmitRequest {
            idempotency_key: ulid::Ulid::generate().to_string(),
            project: self.project(),
            models: vec![model],
            skus: skus.iter().map(ToString::to_string).collect(),
            specs_json: request::spec_documents(std::slice::from_ref(spec))?,
            toolchains: vec![toolchain.unwrap_or_else(|| wanted.toolchain.to_string())],
            kind: v1::JobKind::Build.into(),
            wait_for_device: self.wait_for_device,
            requires: self.requires.to_vec(),
            ..Default::default()
        };
        let reply = request::submit(self.context, self.farm, &request, &files).await?;
        self.wait(reply.jobs).await
    }

    /// Submits the measurements that are missing; those that nobody can take are told of and left out.
    async fn bench(&self, wanted: &Wanted, looked: &Looked) -> Result<Vec<v1::Job>, Failure> {
        let Ok(matrix) = looked.matrix(wanted) else { return Ok(Vec::new()) };
        let lacking: Vec<_> = matrix.cells.iter().filter(|cell| lacks_measurement(cell)).collect();
        // Where a plan was measured and could not be judged, what it is held against may be at fault.
        let own = lacking.iter().filter(|cell| cell.state == State::Undecided);
        let mut pairs: BTreeSet<(&Sku, &Sku)> = own.map(|cell| (&cell.measured_on, &cell.measured_on)).collect();
        pairs.extend(lacking.iter().map(|cell| (&cell.built_for, &cell.measured_on)));
        let mut jobs = Vec::new();
        for (built_for, measured_on) in pairs {
            let row = wanted.skus.iter().position(|sku| sku == built_for);
            let Some(engine) = row.and_then(|row| looked.engines[row].as_ref()) else { continue };
            let request = v1::SubmitRequest {
                idempotency_key: ulid::Ulid::generate().to_string(),
                project: self.project(),
                skus: vec![measured_on.to_string()],
                wait_for_device: self.wait_for_device,
                requires: self.requires.to_vec(),
                allow_inaccurate: true,
                kind: v1::JobKind::Benchmark.into(),
                plan_digest: engine.engine.plan_digest.clone(),
                ..Default::default()
            };
            match request::submit(self.context, self.farm, &request, &LocalFiles::new()).await {
                Ok(reply) => jobs.extend(reply.jobs),
                Err(failure) if failure.name == ErrorCode::Refused.name() => {
                    self.context.printer.warn(&format!("{built_for} on {measured_on} is not measured: {failure}"));
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(jobs)
    }

    /// Waits for jobs; whether each succeeded, or says of its plan that it does not run there.
    async fn wait(&self, jobs: Vec<v1::Job>) -> Result<bool, Failure> {
        let ids: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
        let mut jobs = Waiting::new(self.context.printer, &jobs).finish(self.farm, &ids, self.patience).await?;
        // The matrix says so.
        jobs.retain(|job| !is_refusal(job));
        Ok(wait::tell_failures(self.context.printer, &jobs))
    }

    fn project(&self) -> String {
        self.context.settings.get(Key::Project).unwrap_or_default().into()
    }
}

fn is_refusal(job: &v1::Job) -> bool {
    let of_plan = job.kind() == v1::JobKind::Benchmark && job.state() == v1::JobState::Failed;
    of_plan && job.failure.as_ref().is_some_and(|failure| failure.class() == v1::FailureClass::Model)
}
