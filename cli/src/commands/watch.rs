//! `planforge watch`: jobs as they change, however often the coordinator restarts meanwhile.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    settings::Key,
    signals, tables,
    wait::{self, Away, Events, Patience},
};
use planforge_proto::{
    ErrorCode, v1,
    view::{self, JobView},
};
use std::collections::BTreeMap;

/// What the coordinator calls progress between events; it has no number of its own.
const PROGRESS: &str = "progress";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs to follow until they end, with what they went through already; without any, everything in the project from now
    /// on until Ctrl-C
    #[arg(value_name = "JOB")]
    ids: Vec<String>,
    /// Begin behind the event of this number, as --json tells it; 0: with the first that there is
    #[arg(long, value_name = "SEQ")]
    since: Option<u64>,
    #[command(flatten)]
    patience: Patience,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    tokio::select! {
        result = watch(context, &args) => result,
        () = signals::interrupted() => Err(Failure::interrupted()),
        failure = args.patience.over() => Err(failure.hint("the jobs go on")),
    }
}

/// Watches over as many connections as that takes. Of this machine's own farm the host may end: the next one goes on.
async fn watch(context: &Context<'_>, args: &Args) -> Result<(), Failure> {
    let ids = args.ids.clone();
    let mut watched =
        Watched { context, named: !ids.is_empty(), ids, ended: Vec::new(), after: args.since, shown: BTreeMap::new() };
    let mut away = Away::default();
    let mut began = false;
    loop {
        let before = watched.after;
        let result = match Farm::open(context, Need::Work).await {
            Ok(farm) => {
                began = true;
                let followed = watched.follow(&farm).await;
                farm.close(context.printer).await;
                followed
            }
            // Nobody was ever there.
            Err(failure) if !began => return Err(failure),
            Err(failure) => Err(failure),
        };
        match result {
            Err(failure) if failure.is_unavailable() => {
                if watched.after > before {
                    away.is_back();
                }
                away.wait(context.printer, failure, "watching again when it is back").await?;
            }
            other => return other,
        }
    }
}

/// What was seen so far.
struct Watched<'a> {
    context: &'a Context<'a>,
    /// Jobs that are followed now, none: all.
    ids: Vec<String>,
    /// Jobs that were followed to their end.
    ended: Vec<v1::Job>,
    /// Ends with the jobs that were named.
    named: bool,
    /// Every event up to this one was shown; `None`: not known yet where to begin.
    after: Option<u64>,
    /// The newest event that was shown of each job: streams begin again where the slowest of them was.
    shown: BTreeMap<String, u64>,
}

impl Watched<'_> {
    /// Shows what one connection brings. Ends well only when the named jobs have ended.
    async fn follow(&mut self, farm: &Farm) -> Result<(), Failure> {
        loop {
            self.follow_once(farm).await?;
            if self.end(farm).await? {
                return Ok(());
            }
        }
    }

    async fn follow_once(&mut self, farm: &Farm) -> Result<(), Failure> {
        let after = match self.after {
            Some(after) => after,
            None if self.named => 0,
            None => {
                let info = farm.rpc().get_server_info(v1::GetServerInfoRequest {}).await;
                let last = info.map_err(|e| farm.error(e))?.into_inner().last_event;
                self.context.printer.note(&format!("watching what comes behind event {last}"));
                last
            }
        };
        self.after = Some(after);
        let request = v1::WatchJobsRequest {
            ids: self.ids.clone(),
            after_event: after,
            project: self.context.settings.get(Key::Project).unwrap_or_default().into(),
            until_ended: self.named,
        };
        let mut events = Events::open(farm, request).await?;
        let mut seen = vec![after; events.streams()];
        while let Some((stream, event)) = events.next(farm).await? {
            seen[stream] = seen[stream].max(event.seq);
            self.after = seen.iter().copied().min();
            self.show(event)?;
        }
        Ok(())
    }

    /// The streams have ended: with the coordinator, or with the jobs. Whether all is over; else others took the places of
    /// some, which are followed next.
    async fn end(&mut self, farm: &Farm) -> Result<bool, Failure> {
        if !self.named {
            return Err(ended());
        }
        let mut jobs = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            let request = v1::GetJobRequest { id: id.clone() };
            jobs.push(farm.rpc().get_job(request).await.map_err(|e| farm.error(e))?.into_inner());
        }
        if jobs.iter().any(|job| !view::is_ended(job.state())) {
            return Err(ended());
        }
        let (replaced, ended): (Vec<v1::Job>, _) = jobs.into_iter().partition(|job| !job.fallback.is_empty());
        self.ended.extend(ended);
        if !replaced.is_empty() {
            self.ids = replaced.into_iter().map(|job| job.fallback).collect();
            // They began before the others ended.
            self.after = Some(0);
            return Ok(false);
        }
        if wait::tell_failures(self.context.printer, &self.ended) { Ok(true) } else { Err(Failure::jobs_failed()) }
    }

    fn show(&mut self, event: v1::JobEvent) -> Result<(), Failure> {
        let Some(job) = event.job else { return Ok(()) };
        if event.what != PROGRESS && self.shown.insert(job.id.clone(), event.seq).is_some_and(|seq| seq >= event.seq) {
            return Ok(());
        }
        let printer = self.context.printer;
        if printer.json {
            // A stream has no end to wait for: one object a line.
            printer.line_object(&serde_json::json!({
                "seq": event.seq,
                "at_ms": event.at_ms,
                "actor": event.actor,
                "what": event.what,
                "detail": event.detail,
                "job": JobView::from(job),
            }))?;
        } else {
            let name = tables::model_name(job.model.as_ref());
            let detail = if event.detail.is_empty() { String::new() } else { format!("  {}", event.detail) };
            let line = format!("{}  {name}  {}  {}  {}{detail}", job.id, job.sku, event.what, tables::state(&job));
            printer.endless_line(&line)?;
        }
        Ok(())
    }
}

/// A stream that ends while there is something to come is a coordinator that ends.
fn ended() -> Failure {
    Failure::new(ErrorCode::Unavailable, "the coordinator ended")
}
