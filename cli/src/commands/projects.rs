//! `planforge projects`: what each project may take of the farm, and what it has.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists, tables,
};
use clap::Subcommand;
use planforge_proto::{v1, view::ProjectView};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List projects with their shares, limits, jobs and stored bytes
    List,
    /// Set a project's share and limits; an administrator of one project sets limits below the farm's
    Set {
        /// Name of the project
        name: String,
        /// Weight in the queue and in the farm's places; 1 is usual
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
        share: Option<u32>,
        /// Jobs that may wait or run at once, or 'none'
        #[arg(long, value_name = "N|none", value_parser = parse_count)]
        max_jobs: Option<u64>,
        /// Bytes that it may store, such as 200GiB, or 'none'
        #[arg(long, value_name = "SIZE|none", value_parser = parse_bytes)]
        max_bytes: Option<u64>,
    },
}

/// 0 stands for no limit.
fn parse_count(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        number => number
            .parse()
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| format!("'{text}' is neither a number of jobs from 1 on nor 'none'")),
    }
}

/// 0 stands for no limit.
fn parse_bytes(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    let wrong = || format!("'{text}' is neither a size such as 500MiB or 200GiB nor 'none'");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(unit).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Answers, async |farm| act(context, farm, args.action.clone()).await).await
}

async fn act(context: &Context<'_>, farm: &Farm, action: Action) -> Result<(), Failure> {
    match action {
        Action::List => {
            let reply = lists::projects(farm).await?;
            if reply.projects.is_empty() {
                context.printer.note("no projects: nothing was submitted yet");
            } else {
                context.printer.data(&tables::projects::render(&reply.projects))?;
            }
            if reply.max_live_jobs > 0 {
                let (live, most) = (reply.live_jobs, reply.max_live_jobs);
                context.printer.note(&format!("{live} of the farm's {most} places for jobs are taken"));
            }
            let projects: Vec<_> = reply.projects.into_iter().map(ProjectView::from).collect();
            let whole = |number: u64| (reply.max_live_jobs > 0).then_some(number);
            context.printer.object(&serde_json::json!({
                "projects": projects,
                "live_jobs": whole(reply.live_jobs),
                "max_live_jobs": whole(reply.max_live_jobs),
            }))
        }
        Action::Set { name, share, max_jobs, max_bytes } => {
            if share.is_none() && max_jobs.is_none() && max_bytes.is_none() {
                return Err(Failure::usage("nothing is to be set").hint("give --share, --max-jobs or --max-bytes"));
            }
            let request = v1::SetProjectRequest { name, share, max_jobs, max_stored_bytes: max_bytes };
            let reply = farm.rpc().set_project(request).await.map_err(|e| farm.error(e))?.into_inner();
            let project = reply.project.unwrap_or_default();
            context.printer.data(&tables::projects::render(std::slice::from_ref(&project)))?;
            context.printer.object(&serde_json::json!({ "project": ProjectView::from(project) }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_with_units_or_none() {
        assert_eq!(parse_bytes("none"), Ok(0));
        assert_eq!(parse_bytes("500"), Ok(500));
        assert_eq!(parse_bytes("3MiB"), Ok(3 << 20));
        assert_eq!(parse_count("none"), Ok(0));
        assert_eq!(parse_count("7"), Ok(7));
        for wrong in ["", "0", "GiB", "1.5GiB", "-1", "99999999TiB", "5mb"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
        assert!(parse_count("0").is_err() && parse_count("many").is_err());
    }
}
