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
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, task::JoinSet};

/// First and longest wait before asking a coordinator again that went away.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// How long a coordinator may stay away before waiting for it ends: an upgrade with a reboot fits.
const AWAY_LIMIT: Duration = Duration::from_secs(300);

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
    pub async fn finish(mut self, farm: &Farm, ids: &[String]) -> Result<Vec<v1::Job>, Failure> {
        tokio::select! {
            result = async {
                match farm.is_local() {
                    true => self.follow(farm).await,
                    false => self.until_ended(farm).await,
                }
            } => result?,
            () = signals::interrupted() => {
                self.clear();
                let hint = format!("the jobs go on; planforge cancel {} ends them", ids.join(" "));
                return Err(Failure::interrupted().hint(hint));
            }
        }
        Self::results(farm, ids).await
    }

    pub fn new(printer: &'a Printer, jobs: &[v1::Job]) -> Self {
        let jobs = jobs.iter().map(|job| (job.id.clone(), job.clone())).collect();
        Self { printer, jobs, bars: BTreeMap::new(), said: BTreeMap::new(), seen: 0, changes_seen: 0 }
    }

    /// Ids of the jobs that have not ended.
    pub fn live(&self) -> Vec<String> {
        self.jobs.values().filter(|job| !view::is_ended(job.state())).map(|job| job.id.clone()).collect()
    }

    /// Follows the jobs of a coordinator by URL to their end, however often it restarts meanwhile.
    pub async fn until_ended(&mut self, farm: &Farm) -> Result<(), Failure> {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        let mut away: Option<Instant> = None;
        loop {
            let before = self.changes_seen;
            match self.follow(farm).await {
                Err(failure) if failure.is_unavailable() => {
                    if self.changes_seen > before {
                        (away, backoff) = (None, Backoff::new(RETRY_FIRST, RETRY_LONGEST));
                    }
                    let since = *away.get_or_insert_with(|| {
                        self.printer.warn(&format!("{failure}; the jobs go on, asking again"));
                        Instant::now()
                    });
                    if since.elapsed() > AWAY_LIMIT {
                        return Err(failure);
                    }
                    tokio::time::sleep(backoff.next_delay()).await;
                }
                other => return other,
            }
        }
    }

    /// Follows the jobs to their end over one connection.
    pub async fn follow(&mut self, farm: &Farm) -> Result<(), Failure> {
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
            while let Some((stream, event)) = events.next(farm).await? {
                seen[stream] = seen[stream].max(event.seq);
                self.seen = seen.iter().copied().min().unwrap_or(self.seen);
                self.take(event);
            }
            // The stream's end and the jobs' end are not the same thing: ask before believing.
            for id in self.live() {
                let job = farm.rpc().get_job(v1::GetJobRequest { id }).await.map_err(|e| farm.error(e))?;
                self.update(job.into_inner());
            }
            if !self.live().is_empty() {
                tokio::time::sleep(RETRY_FIRST).await;
            }
        }
        self.clear();
        Ok(())
    }

    /// The jobs as they ended, with attempts and reports, in the order given.
    pub async fn results(farm: &Farm, ids: &[String]) -> Result<Vec<v1::Job>, Failure> {
        let mut jobs = Vec::with_capacity(ids.len());
        for id in ids {
            let request = v1::GetJobRequest { id: id.clone() };
            jobs.push(farm.rpc().get_job(request).await.map_err(|e| farm.error(e))?.into_inner());
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
