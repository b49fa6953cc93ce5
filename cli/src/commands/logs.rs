//! `planforge logs`: why an attempt failed, and what it said.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
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
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let need = if args.follow { Need::Work } else { Need::Answers };
    let (attempt, whole) = Farm::with(context, need, async |farm| read(context, farm, &args).await).await?;
    context.printer.object(&serde_json::json!({ "job": args.id, "attempt": attempt, "log": whole }))
}

/// Prints the log as it comes; with `--json` it is given whole. And the attempt that it is of.
async fn read(context: &Context<'_>, farm: &Farm, args: &Args) -> Result<(u32, String), Failure> {
    let request =
        v1::ReadLogRequest { id: args.id.clone(), attempt: args.attempt, follow: args.follow, offset_bytes: 0 };
    let mut chunks = farm.rpc().read_log(request).await.map_err(|e| farm.error(e))?.into_inner();
    let (mut whole, mut stream) = (Vec::new(), Stream::default());
    let mut attempt = args.attempt;
    if !context.printer.json
        && let Some(cause) = cause(farm, args).await
    {
        context.printer.lines([cause])?;
    }
    while let Some(chunk) = chunks.message().await.map_err(|e| farm.error(e))? {
        attempt = chunk.attempt;
        if context.printer.json {
            whole.extend_from_slice(&chunk.data);
        } else {
            context.printer.stream(&mut stream, &chunk.data)?;
        }
    }
    context.printer.stream_end(stream)?;
    Ok((attempt, String::from_utf8_lossy(&whole).into_owned()))
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
