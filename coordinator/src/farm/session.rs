//! One agent's stream: reads and checks what it says, hands it to the leader in order, and lets the leader's answers out.

use super::{
    Farm, Reply, canary, convert,
    gate::{self, HELLO_WITHIN_MS, Pass},
    leader::{Message, OUTBOX_MAX},
    plan_check, traces,
};
use crate::{
    auth::{Actor, Proof, Role},
    core::{
        Failure, Farewell, FinishedIn, FinishedOutcome, Input, LeaseRef, Made, PlanRef, ReportIn, SessionId, ToAgent,
    },
};
use futures::{StreamExt as _, TryStreamExt as _};
use planforge_proto::{
    ApiError, ErrorCode,
    v1::{self, agent_message::Kind, coordinator_message},
};
use planforge_report::check;
use planforge_types::{
    Digest, FailureClass,
    order::{PREPARED_MAX_BYTES, TUNING_CACHE_MAX_BYTES},
};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// Largest report document that is read; raw samples are compressed, so real ones stay far below.
const REPORT_MAX_BYTES: u64 = 8 * 1024 * 1024;

pub(super) async fn session(
    farm: &Farm,
    actor: &Actor,
    proof: Proof,
    inbound: Reply<v1::AgentMessage>,
) -> Result<Reply<v1::CoordinatorMessage>, ApiError> {
    if actor.role == Role::Admin {
        // An agent works for every project.
        super::tokens::admin(actor)?;
    }
    if !matches!(actor.role, Role::Agent | Role::Admin) {
        let message = format!("token '{}' has role {}; joining as an agent needs role agent", actor.name, actor.role);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message)
            .with_hint("have an administrator make one: planforge token create NAME --role agent"));
    }
    let pass = Pass::enter(farm, proof)?;
    let session = farm.next_session();
    let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
    farm.tell(Message::Attach { session, outbox }).await?;
    let over = CancellationToken::new();
    let opened_ms = farm.clock().mono_ms();
    let reader = Reader { farm: farm.clone(), actor: actor.clone(), proof, pass, session, opened_ms, agent: None };
    tokio::spawn(reader.run(inbound, over.clone()));
    // When the transport drops the outbound half, the guard ends the inbound one.
    let guard = over.drop_guard();
    let farm = farm.clone();
    let outbound = ReceiverStream::new(messages).filter_map(move |message| {
        let _held = &guard;
        let farm = farm.clone();
        async move { answer(&farm, message).await.map(Ok) }
    });
    Ok(Box::pin(outbound))
}

/// How often a stream is looked at beside its messages: what it rests on may have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Reads one stream to its end.
struct Reader {
    farm: Farm,
    actor: Actor,
    proof: Proof,
    pass: Pass,
    session: SessionId,
    /// On the monotonic hand.
    opened_ms: u64,
    /// Who said hello on it.
    agent: Option<String>,
}

/// Why a stream is read no further.
enum Over {
    /// Its other end, or the farm, is gone.
    Gone,
    /// It said what makes no sense, or too much: going on could lose what it meant. What its agent holds stays with it.
    Refused(ApiError),
    /// Who is behind it may not be an agent any more.
    ShutOut(ApiError),
}

impl From<ApiError> for Over {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

impl Reader {
    async fn run(mut self, inbound: Reply<v1::AgentMessage>, over: CancellationToken) {
        let end = self.read(inbound, &over).await;
        let session = self.session;
        // The leader may be gone already; then there is nothing to tell.
        let told = match end {
            Over::Refused(error) => {
                tracing::warn!(session, %error, hint = error.hint, "an agent sent a message that was refused");
                Some(Input::Refuse { session, why: farewell(error) })
            }
            Over::ShutOut(error) => {
                tracing::warn!(session, agent = self.agent, %error, "an agent is let in no longer");
                Some(Input::Expel { session, why: farewell(error) })
            }
            Over::Gone => None,
        };
        if let Some(input) = told {
            let _ = self.farm.tell(Message::Input { input, answer: None }).await;
            // The refusal is on its way out; the other end closes when it has read it, and is not waited for long.
            let _ = tokio::time::timeout(REFUSAL_LEAVES_WITHIN, over.cancelled()).await;
        }
        let _ = self.farm.tell(Message::Input { input: Input::Disconnected { session }, answer: None }).await;
    }

    async fn read(&mut self, mut inbound: Reply<v1::AgentMessage>, over: &CancellationToken) -> Over {
        let mut trouble = self.farm.shared().trouble.subscribe();
        let mut looks = tokio::time::interval(LOOK_AGAIN);
        let mut rate = gate::messages();
        loop {
            let message = tokio::select! {
                biased;
                () = over.cancelled() => return Over::Gone,
                _ = looks.tick() => {
                    if let Some(error) = self.farm.shut_out(self.proof, self.agent.as_deref()) {
                        return Over::ShutOut(error);
                    }
                    if self.agent.is_none() && self.farm.clock().mono_ms().saturating_sub(self.opened_ms) > HELLO_WITHIN_MS {
                        let message = format!("the stream said no hello within {HELLO_WITHIN_MS} ms");
                        return Over::Refused(ApiError::new(ErrorCode::InvalidArgument, message));
                    }
                    continue;
                }
                message = inbound.next() => message,
            };
            let Some(Ok(message)) = message else { return Over::Gone };
            if self.pass.is_counted()
                && let Err(wait_ms) = rate.take(self.farm.clock().mono_ms())
            {
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            }
            // What an agent says is not thrown away because the store takes no writes just now: it waits in its stream.
            let writes = over.run_until_cancelled(trouble.wait_for(Option::is_none)).await;
            if writes.is_none_or(|writes| writes.is_err()) {
                return Over::Gone;
            }
            if let Err(over) = self.hear(message).await {
                return over;
            }
        }
    }

    async fn hear(&mut self, message: v1::AgentMessage) -> Result<(), Over> {
        let Some(kind) = message.kind else { return Ok(()) };
        match &kind {
            // One stream is one agent: with a second name it could speak for both.
            Kind::Hello(_) if self.agent.is_some() => {
                return Err(convert::invalid("the agent said hello twice on one stream").into());
            }
            Kind::Hello(hello) => {
                self.pass.describe()?;
                // Before anything else that it says is looked at: it may be nobody's business here.
                let agent = convert::agent_id(&hello.agent_id)?;
                if let Some(error) = self.farm.shut_out(self.proof, agent.as_deref()) {
                    return Err(error.into());
                }
            }
            Kind::Inventory(_) => self.pass.describe()?,
            _ => {}
        }
        let Some(mut input) = understand(&self.farm, self.session, kind).await? else { return Ok(()) };
        if let Input::Hello { hello, .. } = &mut input {
            hello.joined_by = self.farm.bind(self.proof, &hello.agent).await?;
            self.agent = Some(hello.agent.clone());
            self.farm.note(&self.actor, "agent.join", &hello.agent, &hello.name);
        }
        // What it rests on may have ended while its message was understood.
        if let Some(error) = self.farm.shut_out(self.proof, self.agent.as_deref()) {
            return Err(Over::ShutOut(error));
        }
        self.farm.tell(Message::Input { input, answer: None }).await.map_err(|_| Over::Gone)
    }
}

/// How long a refused stream is kept for its other end to read why.
const REFUSAL_LEAVES_WITHIN: Duration = Duration::from_secs(5);

fn farewell(error: ApiError) -> Farewell {
    // What a coordinator lacks passes; what the agent is, or says, does not.
    let passing = matches!(error.code, ErrorCode::Unavailable | ErrorCode::ResourceExhausted | ErrorCode::Internal);
    let hint = match error.hint.is_empty() {
        true => "run the same release of planforge on both sides; the coordinator's log says more".to_owned(),
        false => error.hint,
    };
    Farewell { reason: error.message, hint, lasting: !passing }
}

async fn understand(farm: &Farm, session: SessionId, kind: Kind) -> Result<Option<Input>, ApiError> {
    Ok(Some(match kind {
        Kind::Hello(mut hello) => {
            let ended = std::mem::take(&mut hello.finished);
            if ended.len() > convert::LEASES_MAX {
                return Err(convert::invalid("too many finished attempts in one message"));
            }
            let mut hello = convert::hello(hello)?;
            for one in ended {
                hello.finished.push(finished(farm, &one).await?);
            }
            Input::Hello { session, hello: Box::new(hello) }
        }
        Kind::Inventory(inventory) => Input::Inventory { session, devices: convert::devices(inventory.devices)? },
        Kind::Heartbeat(beat) => Input::Heartbeat {
            session,
            leases: convert::leases(beat.leases)?,
            telemetry: beat.telemetry.into_iter().take(convert::LEASES_MAX).map(|t| (t.device, t.json)).collect(),
        },
        Kind::Started(started) => Input::Started { session, lease: convert::lease(started.lease)? },
        Kind::Progress(progress) => Input::Progress {
            session,
            lease: convert::lease(progress.lease)?,
            phase: progress.phase,
            fraction: progress.fraction,
            detail: progress.detail,
        },
        Kind::Log(lines) => {
            let LeaseRef { job, attempt, .. } = convert::lease(lines.lease)?;
            farm.shared().logs.append(session, &job, attempt, lines.offset_bytes, lines.data).await;
            return Ok(None);
        }
        Kind::Built(built) => {
            let lease = convert::lease(built.lease)?;
            let plan = convert::plan(&built.plan_digest, built.plan_bytes, &built.card_digest, built.builds)?;
            let plan = plan.ok_or_else(|| convert::invalid("a built plan has a digest"))?;
            if let Some(problem) = missing(farm, &plan).await? {
                return Err(convert::invalid(problem));
            }
            // Its end will say the same, and fail the attempt; until then it is as if nothing had been built.
            if plan_check::unfit(farm, &lease, &plan).await?.is_some() {
                return Ok(None);
            }
            Input::Built { session, lease, plan }
        }
        Kind::Finished(message) => Input::Finished { session, finished: Box::new(finished(farm, &message).await?) },
        Kind::Goodbye(_) => Input::Goodbye { session },
    }))
}

/// What is wrong with a plan that an agent says it stored; no row may name a blob that is not there.
async fn missing(farm: &Farm, plan: &PlanRef) -> Result<Option<String>, ApiError> {
    match farm.blobs().size(plan.digest).await? {
        Some(size) if size == plan.size_bytes => {}
        Some(size) => {
            return Ok(Some(format!("plan {} has {size} bytes, the agent says {}", plan.digest, plan.size_bytes)));
        }
        None => return Ok(Some(format!("plan {} is not in the blob store", plan.digest))),
    }
    if let Some(card) = plan.card
        && farm.blobs().size(card).await?.is_none()
    {
        return Ok(Some(format!("card {card} of plan {} is not in the blob store", plan.digest)));
    }
    Ok(None)
}

/// What to do about a success that names what is not there.
const NOT_UPLOADED: &str = "the agent must upload plan, card and report before it reports success";

/// What to do about a plan that is not what was asked for.
const ANOTHER_PLAN: &str = "run the same planforge on the agent's host as here; where it is the same, nobody may trust that host: \
                            planforge token revoke, planforge agents forget";

/// What to do about a report whose figures are not those of its samples.
const CONTRADICTORY: &str = "look at the agent's host: run 'planforge doctor' there, and the same planforge as here";

/// Reads what a finished attempt refers to. What is missing or makes no sense turns a success into a failed attempt.
async fn finished(farm: &Farm, message: &v1::Finished) -> Result<FinishedIn, ApiError> {
    let mut finished = convert::finished(message)?;
    let mut problem = None;
    if let Some(plan) = &finished.plan {
        problem = missing(farm, plan).await?.map(|problem| (problem, NOT_UPLOADED));
        if problem.is_none() {
            let unfit = plan_check::unfit(farm, &finished.lease, plan).await?;
            problem = unfit.map(|problem| (problem, ANOTHER_PLAN));
        }
    }
    if problem.is_some() {
        finished.plan = None;
    }
    if let Some(log) = finished.log
        && farm.blobs().size(log).await?.is_none()
    {
        finished.log = None;
    }
    let mut artifacts = Vec::with_capacity(finished.artifacts.len());
    for artifact in std::mem::take(&mut finished.artifacts) {
        // Beside the point of a job: one that is not there is left out.
        match farm.blobs().size(artifact.digest).await? {
            Some(size) if size == artifact.size_bytes => artifacts.push(artifact),
            _ => {
                tracing::warn!(name = artifact.name, digest = %artifact.digest, "an artifact is not in the blob store")
            }
        }
    }
    finished.artifacts = artifacts;
    if let Some(update) = &finished.cache
        && (update.cache.size_bytes > TUNING_CACHE_MAX_BYTES
            || farm.blobs().size(update.cache.digest).await? != Some(update.cache.size_bytes))
    {
        tracing::warn!(digest = %update.cache.digest, "a timing cache is too large or not in the blob store: not kept");
        finished.cache = None;
    }
    if let Some(prepared) = finished.prepared
        && (prepared.size_bytes > PREPARED_MAX_BYTES
            || farm.blobs().size(prepared.digest).await? != Some(prepared.size_bytes))
    {
        let told = format!("what it prepared, {}, is not in the blob store, or too large", prepared.digest);
        problem = problem.or(Some((told, NOT_UPLOADED)));
        finished.prepared = None;
    }
    if let Some(made) = &finished.made
        && let Some(told) = not_stored(farm, made).await?
    {
        problem = problem.or(Some((told, NOT_UPLOADED)));
        finished.made = None;
    }
    if let Some(digest) = convert::optional_digest("the report's digest", &message.report_digest)? {
        match report(farm, digest).await? {
            Ok(report) => match check::check_document(&report.document) {
                Ok(()) => finished.report = Some(report),
                Err(reason) => {
                    let message = format!("the report of job {} contradicts itself: {reason}", finished.lease.job);
                    problem = problem.or(Some((message, CONTRADICTORY)));
                }
            },
            Err(reason) => problem = problem.or(Some((reason, NOT_UPLOADED))),
        }
    }
    let succeeds = matches!(finished.outcome, FinishedOutcome::Succeeded) && problem.is_none();
    if succeeds && let Some(objection) = canary::objection(farm, &finished).await? {
        // Measured again before it is given up: only the measurement may have been unlucky.
        finished.outcome = FinishedOutcome::Failed(Failure::new(FailureClass::Unstable, objection, canary::HINT));
    }
    if let (Some((problem, hint)), FinishedOutcome::Succeeded) = (problem, &finished.outcome) {
        finished.outcome = FinishedOutcome::Failed(Failure::new(FailureClass::Infrastructure, problem, hint));
    }
    Ok(finished)
}

/// What of a prepared model is not in the blob store, in words.
async fn not_stored(farm: &Farm, made: &Made) -> Result<Option<String>, ApiError> {
    for file in &made.model.files {
        if farm.blobs().size(file.digest).await? != Some(file.size_bytes) {
            return Ok(Some(format!(
                "the file {} of what it prepared, {}, is not in the blob store",
                file.name, file.digest
            )));
        }
    }
    let is_there = farm.blobs().size(made.document).await?.is_some();
    Ok((!is_there).then(|| format!("the document of what it prepared, {}, is not in the blob store", made.document)))
}

async fn report(farm: &Farm, digest: Digest) -> Result<Result<ReportIn, String>, ApiError> {
    let Some(size) = farm.blobs().size(digest).await? else {
        return Ok(Err(format!("report {digest} is not in the blob store")));
    };
    if size > REPORT_MAX_BYTES {
        return Ok(Err(format!("report {digest} has {size} bytes; at most {REPORT_MAX_BYTES} are read")));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    let mut chunks = farm.blobs().read(digest, 0..size).await?;
    while let Some(chunk) = chunks.try_next().await? {
        bytes.extend_from_slice(&chunk);
    }
    let Ok(document) = String::from_utf8(bytes) else {
        return Ok(Err(format!("report {digest} is not text")));
    };
    let parsed: serde_json::Value = match serde_json::from_str(&document) {
        Ok(parsed) => parsed,
        Err(error) => return Ok(Err(format!("report {digest} is not JSON: {error}"))),
    };
    if !parsed.is_object() {
        return Ok(Err(format!("report {digest} is not a JSON object")));
    }
    Ok(Ok(ReportIn {
        digest,
        has_accuracy: parsed.get("accuracy").is_some_and(|accuracy| !accuracy.is_null()),
        inputs: parsed.pointer("/given_inputs/digest").and_then(|digest| digest.as_str()?.parse().ok()),
        simulated: parsed.get("simulated").and_then(serde_json::Value::as_bool).unwrap_or(false),
        document,
    }))
}

async fn answer(farm: &Farm, message: ToAgent) -> Option<v1::CoordinatorMessage> {
    use coordinator_message::Kind;
    let ack = |lease, accepted, reason| {
        Kind::FinishedAck(v1::FinishedAck { lease: Some(convert::lease_out(lease)), accepted, reason })
    };
    let kind = match message {
        ToAgent::Welcome { resumed, lost, protocol } => Kind::Welcome(v1::Welcome {
            epoch: farm.epoch(),
            heartbeat_ms: farm.config().heartbeat_ms,
            lease_ms: farm.config().lease_ms,
            resumed: resumed.into_iter().map(convert::lease_out).collect(),
            lost: lost.into_iter().map(convert::lease_out).collect(),
            protocol,
        }),
        ToAgent::Assign { lease, job, cache, without_cache } => Kind::Assign(v1::Assign {
            traceparent: traces::place_of_lease(&job, lease.attempt).map(String::from).unwrap_or_default(),
            lease: Some(convert::lease_out(lease)),
            job: Some(convert::assignment(&job)),
            cache: cache.as_deref().map(convert::cache_out),
            made_for_json: job.made_for.clone().unwrap_or_default(),
            without_cache,
        }),
        ToAgent::Cancel { lease, reason } => {
            Kind::Cancel(v1::CancelLease { lease: Some(convert::lease_out(lease)), reason })
        }
        ToAgent::FinishedAck { lease, accepted, reason } => ack(lease, accepted, reason),
        ToAgent::FinishedUnknown { lease } => match farm.store().job(&lease.job).await {
            // It ended before this coordinator began: what is stored tells whether this attempt ended it.
            Ok(job) => {
                let attempt = job.and_then(|job| job.attempts.into_iter().find(|a| a.number == lease.attempt));
                let known = attempt.is_some_and(|a| a.outcome != crate::core::Outcome::Lost);
                let reason = if known { "known already" } else { "no such attempt is waited for" };
                ack(lease, known, reason.into())
            }
            Err(error) => {
                tracing::warn!(job = %lease.job, %error, "a finished attempt was not answered");
                return None;
            }
        },
        ToAgent::LeaseLost { lease, reason } => {
            Kind::LeaseLost(v1::LeaseLost { lease: Some(convert::lease_out(lease)), reason })
        }
        ToAgent::Refused(Farewell { reason, hint, lasting }) => Kind::Refused(v1::Refused { reason, hint, lasting }),
        ToAgent::Replaced => {
            let reason = "a newer connection of this agent took over".to_owned();
            Kind::Refused(v1::Refused { reason, ..v1::Refused::default() })
        }
    };
    Some(v1::CoordinatorMessage { kind: Some(kind) })
}
