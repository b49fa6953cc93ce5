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
    let mut watched = Watched { context, named: !args.ids.is_empty(), after: args.since, shown: BTreeMap::new() };
    let mut away = Away::default();
    let mut began = false;
    loop {
        let before = watched.after;
        let result = match Farm::open(context, Need::Work).await {
            Ok(farm) => {
                began = true;
                let followed = watched.follow(&farm, &args.ids).await;
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
    /// Ends with the jobs that were named.
    named: bool,
    /// Every event up to this one was shown; `None`: not known yet where to begin.
    after: Option<u64>,
    /// The newest event that was shown of each job: streams begin again where the slowest of them was.
    shown: BTreeMap<String, u64>,
}

impl Watched<'_> {
    /// Shows what one connection brings. Ends well only when the named jobs have ended.
    async fn follow(&mut self, farm: &Farm, ids: &[String]) -> Result<(), Failure> {
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
            ids: ids.to_vec(),
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
        self.end(farm, ids).await
    }

    /// The streams have ended: with the jobs, or with the coordinator.
    async fn end(&self, farm: &Farm, ids: &[String]) -> Result<(), Failure> {
        if !self.named {
            return Err(ended());
        }
        let mut jobs = Vec::with_capacity(ids.len());
        for id in ids {
            let request = v1::GetJobRequest { id: id.clone() };
            jobs.push(farm.rpc().get_job(request).await.map_err(|e| farm.error(e))?.into_inner());
        }
        if jobs.iter().any(|job| !view::is_ended(job.state())) {
            return Err(ended());
        }
        if wait::tell_failures(self.context.printer, &jobs) { Ok(()) } else { Err(Failure::jobs_failed()) }
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
