//! Following jobs to their end: progress on stderr, the coordinator's restarts survived.

use crate::{
    failure::Failure,
    farm::Farm,
    lists,
    printer::{Printer, Progress},
    signals, tables,
};
use planforge_client::backoff::Backoff;
use planforge_proto::{ErrorCode, v1, view};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, pending},
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, task::JoinSet};

/// First and longest wait before asking a coordinator again that went away.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// How long a coordinator may stay away before waiting for it ends: an upgrade with a reboot fits.
const AWAY_LIMIT: Duration = Duration::from_secs(300);

/// When it is first looked whether anybody offers what is waited for, and how often then.
const OFFERS_FIRST: Duration = Duration::from_secs(3);
const OFFERS_EVERY: Duration = Duration::from_secs(30);

/// How long a command waits, for every command that does.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Patience {
    /// Seconds to wait, at most; then the exit code is 10
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub timeout: Option<u64>,
}

impl Patience {
    /// Ends when the time is over; never where there is no limit.
    pub async fn over(self) -> Failure {
        match self.timeout {
            Some(seconds) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Failure::timed_out(seconds)
            }
            None => pending().await,
        }
    }

    /// What `work` comes to, if it does in time.
    pub async fn limit<T>(self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            biased;
            result = work => result,
            failure = self.over() => Err(failure),
        }
    }
}

/// A coordinator that goes away and comes back while somebody waits for it.
#[derive(Debug)]
pub struct Away {
    since: Option<Instant>,
    backoff: Backoff,
}

impl Default for Away {
    fn default() -> Self {
        Self { since: None, backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST) }
    }
}

impl Away {
    /// It answered.
    pub fn is_back(&mut self) {
        *self = Self::default();
    }

    /// Says once that it is away, with what goes on meanwhile, and waits for the next try; an error when it has been for
    /// too long.
    pub async fn wait(&mut self, printer: &Printer, failure: Failure, meanwhile: &str) -> Result<(), Failure> {
        let since = *self.since.get_or_insert_with(|| {
            printer.warn(&format!("{failure}; {meanwhile}"));
            Instant::now()
        });
        if since.elapsed() > AWAY_LIMIT {
            return Err(failure);
        }
        tokio::time::sleep(self.backoff.next_delay()).await;
        Ok(())
    }
}

/// What is known of the jobs waited for, and how it is shown.
#[derive(Debug)]
pub struct Waiting<'a> {
    printer: &'a Printer,
    jobs: BTreeMap<String, v1::Job>,
    bars: BTreeMap<String, Progress>,
    /// Line last said of each job where no bars are drawn.
    said: BTreeMap<String, String>,
    /// Durable event to go on after: every stream has brought what came before it.
    seen: u64,
    /// Events that came: whether a coordinator was there since it was last looked for.
    changes_seen: u64,
    /// Device kinds of which it was said that nobody offers them.
    unoffered: BTreeSet<String>,
    /// Jobs of which it was said which toolchains refused their models.
    told: BTreeSet<String>,
}

/// Events that may wait to be shown.
const EVENTS_AHEAD: usize = 64;

/// The events of any number of jobs, over as many streams as that takes.
#[derive(Debug)]
pub struct Events {
    events: mpsc::Receiver<(usize, v1::JobEvent)>,
    streams: JoinSet<Result<(), tonic::Status>>,
    count: usize,
}

impl Events {
    /// Follows `request.ids`; the whole project where it names none.
    pub async fn open(farm: &Farm, request: v1::WatchJobsRequest) -> Result<Self, Failure> {
        let mut parts: Vec<Vec<String>> = request.ids.chunks(lists::WATCHED_MAX).map(<[String]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let count = parts.len();
        let (out, events) = mpsc::channel(EVENTS_AHEAD);
        let mut streams = JoinSet::new();
        for (number, ids) in parts.into_iter().enumerate() {
            let request = v1::WatchJobsRequest { ids, ..request.clone() };
            let mut stream = farm.rpc().watch_jobs(request).await.map_err(|e| farm.error(e))?.into_inner();
            let out = out.clone();
            streams.spawn(async move {
                while let Some(event) = stream.message().await? {
                    if out.send((number, event)).await.is_err() {
                        break;
                    }
                }
                Ok(())
            });
        }
        Ok(Self { events, streams, count })
    }

    /// How many there are.
    pub fn streams(&self) -> usize {
        self.count
    }

    /// The next event with the number of its stream; `None` when all streams have ended well.
    pub async fn next(&mut self, farm: &Farm) -> Result<Option<(usize, v1::JobEvent)>, Failure> {
        loop {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => return Ok(Some(event)),
                ended = self.streams.join_next() => match ended {
                    None => return Ok(self.events.recv().await),
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(status))) => return Err(farm.error(status)),
                    Some(Err(error)) => {
                        let message = format!("following jobs ended badly: {error}");
                        return Err(Failure::new(ErrorCode::Internal, message));
                    }
                },
            }
        }
    }
}

impl<'a> Waiting<'a> {
    /// The jobs once all have ended; an interruption leaves them going on, and says how to end them.
    pub async fn finish(mut self, farm: &Farm, ids: &[String], patience: Patience) -> Result<Vec<v1::Job>, Failure> {
        let hint = format!("the jobs go on; planforge cancel {} ends them", ids.join(" "));
        tokio::select! {
            result = async {
                match farm.comes_back() {
                    true => self.until_ended(farm).await,
                    false => self.follow(farm).await,
                }
            } => result?,
            () = signals::interrupted() => {
                self.clear();
                return Err(Failure::interrupted().hint(hint));
            }
            failure = patience.over() => {
                self.clear();
                return Err(failure.hint(hint));
            }
        }
        Self::results(farm, ids).await
    }

    pub fn new(printer: &'a Printer, jobs: &[v1::Job]) -> Self {
        let jobs = jobs.iter().map(|job| (job.id.clone(), job.clone())).collect();
        let (bars, said, unoffered, told) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { printer, jobs, bars, said, seen: 0, changes_seen: 0, unoffered, told }
    }

    /// Ids of the jobs that have not ended.
    pub fn live(&self) -> Vec<String> {
        self.jobs.values().filter(|job| !view::is_ended(job.state())).map(|job| job.id.clone()).collect()
    }

    /// Follows the jobs of a coordinator by URL to their end, however often it restarts meanwhile.
    pub async fn until_ended(&mut self, farm: &Farm) -> Result<(), Failure> {
        let mut away = Away::default();
        loop {
            let before = self.changes_seen;
            match self.follow(farm).await {
                Err(failure) if failure.is_unavailable() => {
                    if self.changes_seen > before {
                        away.is_back();
                    }
                    away.wait(self.printer, failure, "the jobs go on, asking again").await?;
                }
                other => return other,
            }
        }
    }

    /// Takes up the jobs that took the place of others, and says of each why that is.
    async fn follow_fallbacks(&mut self, farm: &Farm) -> Result<(), Failure> {
        let next =
            |job: &v1::Job| Some(job.fallback.clone()).filter(|id| !id.is_empty() && !self.jobs.contains_key(id));
        let new: BTreeSet<String> = self.jobs.values().filter_map(next).collect();
        for id in new {
            let job = get(farm, id).await?;
            self.jobs.insert(job.id.clone(), job);
        }
        for job in self.jobs.values().filter(|job| self.told.insert(job.id.clone())) {
            tell_tried(self.printer, [job]);
        }
        Ok(())
    }

    /// Follows the jobs to their end over one connection.
    pub async fn follow(&mut self, farm: &Farm) -> Result<(), Failure> {
        self.follow_fallbacks(farm).await?;
        let mut look = tokio::time::interval_at(tokio::time::Instant::now() + OFFERS_FIRST, OFFERS_EVERY);
        while !self.live().is_empty() {
            let request = v1::WatchJobsRequest {
                ids: self.live(),
                after_event: self.seen,
                until_ended: true,
                ..Default::default()
            };
            let mut events = Events::open(farm, request).await?;
            // Streams are not equally far: only what all have brought is not asked for again.
            let mut seen = vec![self.seen; events.count];
            loop {
                let next = tokio::select! {
                    next = events.next(farm) => next?,
                    _ = look.tick() => {
                        self.tell_unoffered(farm).await?;
                        continue;
                    }
                };
                let Some((stream, event)) = next else { break };
                seen[stream] = seen[stream].max(event.seq);
                self.seen = seen.iter().copied().min().unwrap_or(self.seen);
                self.take(event);
            }
            // The stream's end and the jobs' end are not the same thing: ask before believing.
            for id in self.live() {
                self.update(get(farm, id).await?);
            }
            self.follow_fallbacks(farm).await?;
            if !self.live().is_empty() {
                tokio::time::sleep(RETRY_FIRST).await;
            }
        }
        self.clear();
        Ok(())
    }

    /// Says which jobs wait for devices that nobody offers now; the waiting goes on, for an agent may come.
    async fn tell_unoffered(&mut self, farm: &Farm) -> Result<(), Failure> {
        use v1::JobState::{Queued, Unplaceable};
        let waiting: BTreeSet<&str> = self
            .jobs
            .values()
            .filter(|job| matches!(job.state(), Queued | Unplaceable))
            // A model is prepared wherever there is a processor.
            .filter(|job| job.kind() != v1::JobKind::Prepare)
            .map(|job| job.sku.as_str())
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let online = farm.rpc().list_devices(v1::ListDevicesRequest { online_only: true }).await;
        let online = online.map_err(|e| farm.error(e))?.into_inner().devices;
        let offered: BTreeSet<&str> = online.iter().flat_map(|device| &device.skus).map(String::as_str).collect();
        let unoffered: BTreeSet<String> = waiting.difference(&offered).map(|sku| (*sku).to_owned()).collect();
        for sku in unoffered.difference(&self.unoffered) {
            self.printer
                .warn(&format!("no device with {sku} is online; its jobs wait until one is (planforge devices)"));
        }
        self.unoffered = unoffered;
        Ok(())
    }

    /// The jobs as they ended, or those that took their places, with attempts and reports, in the order given.
    pub async fn results(farm: &Farm, ids: &[String]) -> Result<Vec<v1::Job>, Failure> {
        let mut jobs = Vec::with_capacity(ids.len());
        for id in ids {
            let mut job = get(farm, id.clone()).await?;
            while !job.fallback.is_empty() {
                job = get(farm, job.fallback).await?;
            }
            jobs.push(job);
        }
        Ok(jobs)
    }

    /// Takes the progress lines away.
    pub fn clear(&mut self) {
        for bar in std::mem::take(&mut self.bars).into_values() {
            bar.clear();
        }
    }

    fn take(&mut self, event: v1::JobEvent) {
        self.changes_seen += 1;
        if let Some(job) = event.job {
            self.update(job);
        }
    }

    fn update(&mut self, job: v1::Job) {
        let name = tables::model_name(job.model.as_ref());
        let ended = view::is_ended(job.state());
        if self.printer.shows_progress() {
            let bar = self.bars.entry(job.id.clone()).or_insert_with(|| self.printer.spinner(""));
            bar.say(&format!("{name} for {}: {}", job.sku, tables::state(&job)));
            if ended {
                bar.clear();
            }
        } else {
            // Without a terminal: a line when the state or the phase changes, none for every percent.
            let mut words = view::state_name(job.state());
            if !ended && !job.phase.is_empty() {
                words = format!("{words}: {}", job.phase);
            } else if !ended && !job.waiting_reason.is_empty() {
                words = format!("{words}: {}", job.waiting_reason);
            }
            let line = format!("{name} for {}: {words}", job.sku);
            if self.said.get(&job.id) != Some(&line) {
                self.printer.note(&line);
                self.said.insert(job.id.clone(), line);
            }
        }
        self.jobs.insert(job.id.clone(), job);
    }
}

async fn get(farm: &Farm, id: String) -> Result<v1::Job, Failure> {
    Ok(farm.rpc().get_job(v1::GetJobRequest { id }).await.map_err(|e| farm.error(e))?.into_inner())
}

/// Says of jobs which toolchains cannot build their models, and which one is asked instead. Of those that failed that is
/// part of the failure.
pub fn tell_tried<'a>(printer: &Printer, jobs: impl IntoIterator<Item = &'a v1::Job>) {
    let failed = |job: &v1::Job| view::is_ended(job.state()) && job.state() != v1::JobState::Succeeded;
    for job in jobs.into_iter().filter(|job| !job.tried.is_empty() && !failed(job)) {
        let refused = |one: &v1::Tried| {
            let reason = one.message.lines().next().unwrap_or_default();
            format!("{} cannot build it: {reason}", tables::toolchain(&one.toolchain_json))
        };
        let reasons: Vec<String> = job.tried.iter().map(refused).collect();
        let now = match (job.toolchain_json.as_str(), job.state()) {
            ("", _) => "another toolchain is asked".to_owned(),
            (document, v1::JobState::Succeeded) => format!("the engine is of {}", tables::toolchain(document)),
            (document, _) => format!("{} is asked", tables::toolchain(document)),
        };
        let name = tables::model_name(job.model.as_ref());
        printer.note(&format!("{name} for {}: {}; {now}", job.sku, reasons.join("; ")));
    }
}

/// Says why jobs did not succeed; whether all did.
pub fn tell_failures(printer: &Printer, jobs: &[v1::Job]) -> bool {
    let mut all_succeeded = true;
    for job in jobs.iter().filter(|job| job.state() != v1::JobState::Succeeded) {
        all_succeeded = false;
        let name = tables::model_name(job.model.as_ref());
        let state = view::state_name(job.state());
        let reason = job.failure.as_ref().map_or(String::new(), |f| format!(": {}", f.message));
        printer.problem(&format!("{name} for {} {state}{reason}", job.sku));
        match job.failure.as_ref().map(|f| f.hint.as_str()) {
            Some(hint) if !hint.is_empty() => printer.hint(hint),
            _ if job.attempt > 0 => printer.hint(&format!("planforge logs {} shows what it said", job.id)),
            _ => {}
        }
    }
    all_succeeded
}
