//! The steps of an attempt: fetch files, take the device, run the worker, upload, report.
//!
//! The plan is uploaded while the worker waits, so that nothing disturbs the measurement that follows. The device is
//! given back as soon as the worker and everything it started are dead, before report and log are uploaded.

use super::{
    Attempt, Ended, Facts, Failed, Measured, Note, Stop,
    caches::{CACHE_FILE, Offered, TakenCache},
    device_check,
    log::AttemptLog,
    order::{Bounds, JobOrder, OrderPaths, Scratch},
    process::{WorkerLimits, WorkerStart},
    stopped,
    supervise::Supervision,
};
use crate::host::{baselines, lock::Holder, state::new_id};
use futures::FutureExt as _;
use planforge_client::{BlobError, backoff::Backoff, blocking::blocking};
use planforge_proto::v1;
use planforge_types::{
    Digest, FailureClass,
    fingerprint::DeviceKind,
    order::{BaselineAsk, BaselineOrder, WorkKind, WorkOrder},
};
use std::{future::Future, panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// Waits between tries while the blob store is away or full. Short, so that a finished build is through within seconds of
/// the store's return; a refused try is one small request.
const STORE_RETRY_FIRST: Duration = Duration::from_secs(1);
const STORE_RETRY_LONGEST: Duration = Duration::from_secs(3);

impl Attempt {
    /// Runs the attempt to its end and says how it ended.
    pub async fn run(mut self) {
        let caught = AssertUnwindSafe(self.run_inner()).catch_unwind().await;
        let ended = caught.unwrap_or_else(|_| {
            tracing::error!("a bug ended an attempt");
            let failed =
                Failed::infrastructure(format!("agent {} has a bug; its log tells where", self.shared.agent_name));
            Some(v1::Finished {
                lease: Some(self.lease.clone()),
                outcome: "failed".into(),
                failure: Some(failed.to_wire()),
                ..v1::Finished::default()
            })
        });
        self.spans.end(match &ended {
            Some(finished) => finished.failure.as_ref().map(|failure| failure.message.clone()),
            None => Some("the lease was lost".into()),
        });
        if let Some(finished) = ended.clone() {
            let (outbox, key) = (self.shared.outbox.clone(), self.key.clone());
            let kept = blocking(move || outbox.end(&key, &finished)).await;
            if let Err(error) = kept {
                tracing::error!(%error, "cannot keep the end of an attempt; it is only in memory");
            }
        }
        let (key, notes) = (self.key.clone(), self.notes.clone());
        // The agent that would hear it is gone only when the process is ending.
        let _ = notes.send((key, Note::Ended(ended.map(Box::new)))).await;
    }

    async fn run_inner(&mut self) -> Option<v1::Finished> {
        let (root, key) = (self.shared.scratch.clone(), self.key.clone());
        let prepared = blocking(move || Scratch::create(&root, &key)).await;
        let mut finished = v1::Finished { lease: Some(self.lease.clone()), ..v1::Finished::default() };
        let scratch = match prepared {
            Ok(scratch) => scratch,
            Err(error) => {
                finished.outcome = "failed".into();
                finished.failure = Some(Failed::disk("make a scratch folder", &error).to_wire());
                return Some(finished);
            }
        };
        let log = match AttemptLog::create(&scratch.folder.join("log"), self.shared.limits.log_bytes) {
            Ok(log) => Arc::new(log),
            Err(error) => {
                finished.outcome = "failed".into();
                finished.failure = Some(Failed::disk("write the attempt's log", &error).to_wire());
                return Some(finished);
            }
        };
        self.note(Note::Log(log.clone())).await;
        let mut facts = Facts::default();
        let mut result = self.work(&scratch, &log, &mut facts).await;
        if let Some(built) = facts.built {
            finished.plan_digest = built.plan_digest;
            finished.plan_bytes = built.plan_bytes;
            finished.card_digest = built.card_digest;
            finished.builds = built.builds;
        }
        if let Err(Ended::Failed(failed)) = &result {
            self.spans.failed(&failed.message);
        }
        self.spans.phase("report");
        if let Ok(measured) = &result {
            match self.upload_results(measured).await {
                Ok(stored) => {
                    finished.report_digest = stored.report.map(|digest| digest.to_string()).unwrap_or_default();
                    if let Some((digest, bytes)) = stored.prepared {
                        (finished.prepared_digest, finished.prepared_bytes) = (digest.to_string(), bytes);
                    }
                    if let Some((made, document)) = stored.made {
                        finished.made = Some(made);
                        finished.made_document_digest = document.to_string();
                    }
                    finished.accurate = measured.accurate;
                    match self.upload_artifacts(measured, &log).await {
                        Ok(artifacts) => finished.artifacts = artifacts,
                        Err(ended) => result = Err(ended),
                    }
                }
                Err(ended) => result = Err(ended),
            }
        }
        if let Some(taken) = facts.cache {
            finished.suspects_cache = facts.broke_down && taken.origin.is_some();
            if result.is_ok() {
                let by = (self.key.job.as_str(), self.shared.agent_name.as_str());
                let keep = self.shared.caches.keep(&self.shared.blobs, taken, by, &log);
                match self.unless_stopped(keep).await {
                    Ok(update) => finished.cache = update,
                    Err(stop) => result = Err(Ended::Stopped(stop)),
                }
            }
        }
        match result {
            Ok(_) => finished.outcome = "succeeded".into(),
            Err(Ended::Stopped(Stop::LeaseLost { reason })) => {
                tracing::warn!(reason, "lease lost, attempt dropped");
                remove_scratch(scratch).await;
                return None;
            }
            Err(Ended::Stopped(Stop::Cancelled { reason })) => {
                log.note(&format!("cancelled: {reason}"));
                finished.outcome = "cancelled".into();
            }
            Err(Ended::Stopped(Stop::Drained)) => {
                let message = format!("agent {} was shut down before the job ended", self.shared.agent_name);
                log.note(&message);
                finished.outcome = "failed".into();
                finished.failure = Some(Failed::infrastructure(message).to_wire());
            }
            Err(Ended::Failed(failed)) => {
                log.note(&format!("failed: {failed}"));
                finished.outcome = "failed".into();
                finished.failure = Some(failed.to_wire());
            }
        }
        finished.log_digest = self.upload_log(&log).await.map(|digest| digest.to_string()).unwrap_or_default();
        remove_scratch(scratch).await;
        Some(finished)
    }

    pub(super) async fn note(&self, note: Note) {
        let _ = self.notes.send((self.key.clone(), note)).await;
    }

    pub(super) async fn phase(&self, phase: &str, fraction: f32, detail: impl Into<String>) {
        self.spans.phase(phase);
        self.note(Note::Progress { phase: phase.into(), fraction, detail: detail.into() }).await;
    }

    /// Runs `work`, unless the attempt is stopped first.
    pub(super) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Stop> {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            reason = stopped(&mut stop) => Err(reason),
            value = work => Ok(value),
        }
    }

    async fn work(&self, scratch: &Scratch, log: &Arc<AttemptLog>, facts: &mut Facts) -> Result<Measured, Ended> {
        let order = JobOrder::read(&self.job, &self.made_for)?;
        if !order.spec.plugins.is_empty() && self.shared.refuse_plugins {
            let message =
                format!("agent {} loads no plugins: its host's operator refuses them", self.shared.agent_name);
            let hint = "run the job where agents are started without --refuse-plugins";
            return Err(Failed::new(FailureClass::Resource, message).with_hint(hint).into());
        }
        let work = scratch.folder.join("work");
        let prepared = self.unless_stopped(self.fetch(&order, scratch, log)).await.map_err(Ended::Stopped)?;
        let (paths, taken) = prepared?;
        facts.cache = taken;
        // The limit is that of one build and its measurement.
        let limit_ms = self.shared.limits.job_ms.saturating_mul(order.builds.into());
        let limits = &self.shared.limits;
        let bounds = Bounds {
            limit_ms,
            measure_budget_ms: limits.measure_budget_ms,
            strict_measure_budget: limits.strict_measure_budget,
        };
        let order = order.into_work(&self.key, &self.shared.agent_name, &self.job, &self.device, bounds, paths);
        let order = WorkOrder { trace: self.trace, ..order };

        let _turn = self.unless_stopped(self.turn.lock()).await.map_err(Ended::Stopped)?;
        let marker = format!("{}.{}", self.key, new_id());
        let taking = async {
            match order.kind {
                WorkKind::Compile | WorkKind::Ahead | WorkKind::Prepare => self.take_host(&marker, log).await,
                WorkKind::Build | WorkKind::Benchmark => Ok((self.take_device(&marker, log).await?, Vec::new())),
            }
        };
        let (lock, _others) = self.unless_stopped(taking).await.map_err(Ended::Stopped)??;
        if self.suspected {
            let checked = device_check::check(&self.shared, &self.device, &lock).await;
            self.note(Note::Checked(checked.clone())).await;
            checked.map_err(|reason| {
                let device = &self.device.id;
                Failed::infrastructure(format!("device {device} was looked at and cannot be used: {reason}"))
            })?;
        }
        let start = WorkerStart {
            command: self.shared.worker_command.clone(),
            scratch: work,
            marker: marker.clone(),
            limits: WorkerLimits {
                file_bytes: self.shared.limits.file_bytes,
                address_space_bytes: match self.device.fingerprint.kind {
                    DeviceKind::Cpu => self.shared.limits.cpu_address_space_bytes,
                    DeviceKind::Gpu => None,
                },
            },
            visible: self.device.fingerprint.visibility(),
            lock_folder: self.shared.lock_folder.clone(),
        };
        let worker = self.shared.spawner.spawn(start, &lock).await.map_err(|error| {
            let program = self.shared.worker_command.first().map(|p| p.to_string_lossy().into_owned());
            Failed::infrastructure(format!("cannot start the worker {}: {error}", program.unwrap_or_default()))
        })?;
        lock.name_holder(&Holder { worker: Some(worker.id), ..self.holder(&marker) })?;
        self.note(Note::Started).await;
        let result = Supervision::new(self, worker, log.clone(), facts).run(&order).await;
        if facts.suspects_device && device_check::can_break(&self.device) {
            let checked = device_check::check(&self.shared, &self.device, &lock).await;
            log.note(&match &checked {
                Ok(()) => "the device was looked at again and can be used".to_owned(),
                Err(reason) => format!("the device was looked at again and cannot be used: {reason}"),
            });
            self.note(Note::Checked(checked)).await;
        }
        drop(lock);
        result
    }

    /// Model, plan, test set, calibration, plugins and timing cache, laid out for the worker.
    async fn fetch(
        &self,
        order: &JobOrder,
        scratch: &Scratch,
        log: &AttemptLog,
    ) -> Result<(OrderPaths, Option<TakenCache>), Failed> {
        self.spans.phase("fetch");
        let files = self.job.model.as_ref().map(|model| model.files.as_slice()).unwrap_or_default();
        let notes = self.notes.clone();
        let key = self.key.clone();
        let told = move |done: usize, of: usize| {
            let fraction = done as f32 / of as f32;
            let note =
                Note::Progress { phase: "fetch".into(), fraction, detail: format!("model file {} of {of}", done + 1) };
            // Progress that finds no room is replaced by the next.
            let _ = notes.try_send((key.clone(), note));
        };
        let models = &self.shared.models;
        let blobs = &self.shared.blobs;
        let inputs = scratch.folder.join("inputs");
        let model_folder = inputs.join("model");
        let model = self.patiently(|| models.lay_out(blobs, files, &model_folder, &told)).await?;
        let place = async |digest: Option<Digest>, name: &str| -> Result<Option<PathBuf>, Failed> {
            let Some(digest) = digest else { return Ok(None) };
            let path = inputs.join(name);
            self.patiently(|| models.place(blobs, digest, &path)).await?;
            Ok(Some(path))
        };
        let plan = place(order.plan, "engine.plan").await?;
        let prepared = place(order.prepared, "prepared").await?;
        let (mut data, mut judged) = (Vec::new(), None);
        if let Some(ask) = &order.prepare {
            for (index, digest) in ask.data.iter().enumerate() {
                data.extend(place(Some(*digest), &format!("data-{index}.npz")).await?);
            }
            judged = place(ask.eval, "judged.npz").await?;
        }
        let eval = place(order.eval, "eval.npz").await?;
        let given = place(order.measure.inputs, "inputs.npz").await?;
        let calibration = place(order.spec.calibration, "calibration.cache").await?;
        let mut plugins = Vec::with_capacity(order.spec.plugins.len());
        for (index, digest) in order.spec.plugins.iter().enumerate() {
            plugins.extend(place(Some(*digest), &format!("plugin-{index}.so")).await?);
        }
        let mut beside = Vec::with_capacity(order.measure.baselines.len());
        for BaselineAsk { name, module } in &order.measure.baselines {
            let module = place(*module, &format!("baseline-{name}.module")).await?;
            let found = baselines::program(self.shared.baselines.as_deref(), name);
            let (program, problem) = found.map_or_else(|why| (None, Some(why)), |program| (program, None));
            beside.push(BaselineOrder { name: name.clone(), program, problem, module });
        }
        let work = scratch.folder.join("work");
        let taken = match order.kind {
            WorkKind::Build | WorkKind::Compile => {
                let scope = self.device.fingerprint.tuning_scope(&order.sku, &order.toolchain, self.device.simulated);
                let offered = Offered {
                    scope,
                    backend: order.toolchain.backend.clone(),
                    sku: order.sku.clone(),
                    newest: self.cache.clone(),
                    without: self.without_cache,
                };
                Some(self.shared.caches.take(blobs, offered, work.join(CACHE_FILE), log).await)
            }
            WorkKind::Benchmark | WorkKind::Ahead | WorkKind::Prepare => None,
        };
        let cache = taken.as_ref().map(|taken| (taken.file.clone(), taken.origin.clone()));
        let (ceilings, oracles) = (self.shared.ceilings.clone(), self.shared.oracles.clone());
        Ok((
            OrderPaths {
                model,
                scratch: work,
                ceilings,
                oracles,
                cache,
                plan,
                prepared,
                data,
                judged,
                eval,
                inputs: given,
                calibration,
                plugins,
                baselines: beside,
            },
            taken,
        ))
    }

    /// Repeats store work while the coordinator is away or has no room: neither must cost a finished build.
    pub(super) async fn patiently<T, E: Into<Failed> + Retryable, F: Future<Output = Result<T, E>>>(
        &self,
        work: impl FnMut() -> F,
    ) -> Result<T, Failed> {
        self.patiently_for(Duration::from_millis(self.shared.limits.store_patience_ms), work).await
    }

    /// The same, for as long as the caller says.
    pub(super) async fn patiently_for<T, E: Into<Failed> + Retryable, F: Future<Output = Result<T, E>>>(
        &self,
        patience: Duration,
        mut work: impl FnMut() -> F,
    ) -> Result<T, Failed> {
        let give_up = Instant::now() + patience;
        let mut backoff = Backoff::new(STORE_RETRY_FIRST, STORE_RETRY_LONGEST);
        let mut told = false;
        loop {
            match work().await {
                Ok(value) => return Ok(value),
                Err(error) if error.is_retryable() && Instant::now() < give_up => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%error, "the blob store is away or full, trying again");
                    }
                    sleep(backoff.next_delay()).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Errors of which some are worth another try.
pub(super) trait Retryable: std::fmt::Display {
    fn is_retryable(&self) -> bool;
}

impl Retryable for BlobError {
    /// A full coordinator has room again once somebody frees some; this host's own disk is another matter.
    fn is_retryable(&self) -> bool {
        Self::is_retryable(self) || matches!(self, Self::NoRoom { .. })
    }
}

impl Retryable for super::models::ModelError {
    fn is_retryable(&self) -> bool {
        matches!(self, Self::Blob(error) if Retryable::is_retryable(error))
    }
}

async fn remove_scratch(scratch: Scratch) {
    blocking(move || drop(scratch)).await;
}
