//! `planforge diff`: what changed from one lock to another, with figures and verdicts.

use crate::{
    context::Context,
    declared::{self, LOCK_FILE, Project, engine_of_plan, report_of},
    failure::Failure,
    farm::{Farm, Need, Place},
    tables,
};
use planforge_fleet::{Diff, Lock, gate};
use planforge_proto::ErrorCode;
use std::{
    path::Path,
    process::{Command, Stdio},
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Lock file or git revision to start from; HEAD by default
    #[arg(value_name = "OLD|REVISION", default_value = "HEAD")]
    old: String,
    /// Lock file or git revision to compare with; engines.lock as it is here by default
    #[arg(value_name = "NEW")]
    new: Option<String>,
    /// Print Markdown, for a pull request or a job's summary
    #[arg(long)]
    markdown: bool,
    /// Leave the verdicts out: ask no farm
    #[arg(long)]
    offline: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let old = lock_of(&args.old)?;
    let new = match &args.new {
        Some(name) => lock_of(name)?,
        None => project()?.lock()?.unwrap_or_default(),
    };
    let mut diff = Diff::of(&old, &new);
    if !diff.changed.is_empty() && !args.offline {
        judge(context, &mut diff).await;
    }
    if args.markdown {
        context.printer.data(&diff.markdown())?;
    } else if diff.is_empty() {
        context.printer.note(&format!("no difference: {}", diff.summary()));
    } else {
        let mut rows = tables::table(&["model", "sku", "spec", "what", "before", "now", "verdict"]);
        for row in diff.rows() {
            rows.add_row(row);
        }
        context.printer.data(&format!("{}{}\n", tables::render(rows, &[4, 5]), diff.summary()))?;
    }
    context.printer.object(&diff)
}

fn project() -> Result<Project, Failure> {
    Project::find()?.ok_or_else(|| {
        Failure::usage("this is no project: there is no planforge.toml in this folder or above it")
            .hint("name two lock files: planforge diff OLD.lock NEW.lock")
    })
}

/// The lock in a file of that name, else of that revision.
pub(super) fn lock_of(name: &str) -> Result<Lock, Failure> {
    let path = Path::new(name);
    if path.is_file() {
        let text = declared::read_text(path, planforge_fleet::lock::MAX_BYTES)?.unwrap_or_default();
        return declared::parse_lock(&text, name);
    }
    let folder = project()?.folder;
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(&folder).args(arguments).stdin(Stdio::null());
        command.output().map_err(|e| Failure::io("run", Path::new("git"), &e))
    };
    let commit = format!("{name}^{{commit}}");
    if name.starts_with('-')
        || !git(&["rev-parse", "--verify", "--quiet", "--end-of-options", &commit])?.status.success()
    {
        return Err(Failure::usage(format!("'{name}' is neither a lock file nor a revision of the repository here"))
            .hint("planforge diff OLD.lock NEW.lock compares files, planforge diff main the lock of a branch with this one"));
    }
    let shown = git(&["show", "--no-textconv", &format!("{name}:./{LOCK_FILE}")])?;
    if !shown.status.success() {
        // The revision is there, its lock is not: nothing was locked then.
        return Ok(Lock::default());
    }
    let text = String::from_utf8(shown.stdout).map_err(|_| Failure::usage(format!("{name}:{LOCK_FILE} is no text")))?;
    declared::parse_lock(&text, &format!("{name}:{LOCK_FILE}"))
}

/// Holds the measurements of every changed cell's engines against each other. A farm that does not answer is only told of.
async fn judge(context: &Context<'_>, diff: &mut Diff) {
    let asked = async {
        if let Place::ThisMachine(data) = Place::choose(&context.settings)?
            && !data.exists()
        {
            return Err(Failure::new(ErrorCode::Unavailable, "no coordinator is named, and none is here"));
        }
        Farm::with(context, Need::Answers, async |farm| {
            for change in &mut diff.changed {
                let old = engine_of_plan(context, farm, change.old.plan).await?;
                let new = engine_of_plan(context, farm, change.new.plan).await?;
                let reports = (old.as_ref().ok().and_then(report_of), new.as_ref().ok().and_then(report_of));
                if let (Some(old), Some(new)) = reports {
                    let (verdict, reason) = gate::verdict(&old, &new);
                    (change.verdict, change.reason) = (Some(verdict), reason);
                }
            }
            Ok(())
        })
        .await
    };
    if let Err(failure) = asked.await {
        context.printer.warn(&format!("no verdicts: {failure}"));
    }
}
