//! `planforge logs`: why an attempt failed, and what it said.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    wait::{Away, Patience},
};
use planforge_proto::{v1, view};
use planforge_types::shown::Stream;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Job whose log to print
    #[arg(value_name = "JOB")]
    id: String,
    /// Go on until the attempt ends
    #[arg(short, long)]
    follow: bool,
    /// Number of the attempt; the newest by default
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    attempt: u32,
    #[command(flatten)]
    patience: Patience,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let need = if args.follow { Need::Work } else { Need::Answers };
    let read = Farm::with(context, need, async |farm| args.patience.limit(read(context, farm, &args)).await);
    let (attempt, whole) = read.await?;
    context.printer.object(&serde_json::json!({ "job": args.id, "attempt": attempt, "log": whole }))
}

/// Prints the log as it comes; with `--json` it is given whole. And the attempt that it is of.
async fn read(context: &Context<'_>, farm: &Farm, args: &Args) -> Result<(u32, String), Failure> {
    let mut request =
        v1::ReadLogRequest { id: args.id.clone(), attempt: args.attempt, follow: args.follow, offset_bytes: 0 };
    let (mut whole, mut stream) = (Vec::new(), Stream::default());
    if !context.printer.json
        && let Some(cause) = cause(farm, args).await
    {
        context.printer.lines([cause])?;
    }
    let mut away = Away::default();
    loop {
        let (asked, before) = (request.clone(), request.offset_bytes);
        let take = |chunk: v1::LogChunk| {
            // What goes on after a restart is of the attempt that was begun with.
            (request.attempt, request.offset_bytes) = (chunk.attempt, chunk.offset_bytes + chunk.data.len() as u64);
            if context.printer.json {
                whole.extend_from_slice(&chunk.data);
                return Ok(());
            }
            context.printer.stream(&mut stream, &chunk.data)
        };
        match follow(farm, asked, take).await {
            Err(failure) if args.follow && failure.is_unavailable() && farm.comes_back() => {
                if request.offset_bytes > before {
                    away.is_back();
                }
                away.wait(context.printer, failure, "asking again for the rest of the log").await?;
            }
            other => break other?,
        }
    }
    context.printer.stream_end(stream)?;
    Ok((request.attempt, String::from_utf8_lossy(&whole).into_owned()))
}

/// One connection's part of the log.
async fn follow(
    farm: &Farm,
    request: v1::ReadLogRequest,
    mut take: impl FnMut(v1::LogChunk) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut chunks = farm.rpc().read_log(request).await.map_err(|e| farm.error(e))?.into_inner();
    while let Some(chunk) = chunks.message().await.map_err(|e| farm.error(e))? {
        take(chunk)?;
    }
    Ok(())
}

/// Why the attempt failed, which its log says last: tools write much before their error and more after it. Nothing while
/// it runs, and of one that succeeded.
async fn cause(farm: &Farm, args: &Args) -> Option<String> {
    let job = farm.rpc().get_job(v1::GetJobRequest { id: args.id.clone() }).await.ok()?.into_inner();
    let number = if args.attempt == 0 { job.attempt } else { args.attempt };
    let attempt = job.attempts.into_iter().find(|attempt| attempt.number == number)?;
    let failure = attempt.failure?;
    let class = view::failure_class_name(failure.class());
    Some(format!("attempt {number} failed [{class}]: {}", failure.message))
}
