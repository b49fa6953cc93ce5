//! `planforge admin`: keeping a farm whole: checks, backups, and looking stored bytes through.
//!
//! All but `scrub` work on the data folder itself, whether or not its coordinator runs: that may be what does not start.

mod moving;

use crate::{
    cloud::CloudArgs,
    context::Context,
    failure::Failure,
    farm::{Farm, Need, Place},
    local::OwnersWay,
    tables,
};
use clap::Subcommand;
use planforge_backup::{BackupError, Checked, How};
use planforge_coordinator::{
    server,
    store::{self, BadRow},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_report::format::date;
use planforge_types::Digest;
use std::path::{Path, PathBuf};

/// Digests and rows that are shown to people; `--json` has all.
const SHOWN: usize = 10;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say whether the database is sound, and every blob there that it names; change nothing
    Check {
        /// Read every blob and hold it against its digest
        #[arg(long)]
        read: bool,
    },
    /// Copy the farm, which may be at work, into a folder that does not exist yet
    Backup {
        /// Where to; best on another disk
        folder: PathBuf,
        /// Let blobs be hard links where that is possible: quick and small, and no second copy of their bytes
        #[arg(long)]
        link: bool,
    },
    /// Make the farm of a backup in the folder of --data, which must be empty, every byte verified
    Restore {
        /// A folder that `admin backup` made
        backup: PathBuf,
    },
    /// Move the farm of the folder of --data to an empty PostgreSQL database, whose URL PLANFORGE_STORE or a file holds; its
    /// coordinator must not run. Every table is read back. Broken off, it goes on where it was
    Migrate {
        /// File that holds the URL of the database [env: PLANFORGE_STORE]
        #[arg(long, value_name = "FILE")]
        store_file: Option<PathBuf>,
    },
    /// Move the blobs of the farm of the folder of --data to a folder or a cloud (s3://BUCKET/PREFIX); its coordinator must
    /// not run. Every blob is held against its digest. Broken off, it goes on where it was
    Blobs {
        /// Where to: a folder, or s3://BUCKET/PREFIX
        place: String,
        /// Folder where they lie, if not in the folder of the farm
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// File that holds the URL of the farm's database, where that is PostgreSQL [env: PLANFORGE_STORE]
        #[arg(long, value_name = "FILE")]
        store_file: Option<PathBuf>,
        #[command(flatten)]
        cloud: CloudArgs,
    },
    /// Copy the farm of the folder of --data, wherever its rows and blobs lie, into a data folder of its own; its coordinator
    /// must not run. Every table and blob is held against its digest. Broken off, it goes on where it was
    Export {
        /// Where to: a folder that does not exist yet
        folder: PathBuf,
        /// Folder where the blobs lie, if not in the folder of the farm
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// File that holds the URL of the farm's database, where that is PostgreSQL [env: PLANFORGE_STORE]
        #[arg(long, value_name = "FILE")]
        store_file: Option<PathBuf>,
        #[command(flatten)]
        cloud: CloudArgs,
    },
    /// Put the farm of an exported folder into the folder of --data, which must be empty, or into an empty PostgreSQL
    /// database, its blobs into a folder or a cloud. The exported folder stays as it is
    Import {
        /// A folder that `admin export` or `admin backup` made
        folder: PathBuf,
        /// Where the blobs go, if not into the folder of --data: a folder, or s3://BUCKET/PREFIX
        #[arg(long, value_name = "PLACE")]
        blobs: Option<String>,
        /// File that holds the URL of an empty database, where the farm goes to PostgreSQL [env: PLANFORGE_STORE]
        #[arg(long, value_name = "FILE")]
        store_file: Option<PathBuf>,
        #[command(flatten)]
        cloud: CloudArgs,
    },
    /// Have the coordinator look now whether stored blobs still have their bytes; damaged ones are set aside
    Scrub {
        /// Bytes that it reads in a second, at most
        #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        rate: u64,
    },
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Check { read } => check(context, &folder(context, "check")?, read).await,
        Action::Backup { folder: to, link } => {
            backup(context, &folder(context, "backup DIR")?, &to, if link { How::Link } else { How::Copy }).await
        }
        Action::Restore { backup } => restore(context, &backup, &context.settings.data_folder()?).await,
        Action::Migrate { store_file } => moving::migrate(context, store_file.as_deref()).await,
        Action::Blobs { place, from, store_file, cloud } => {
            moving::blobs(context, &place, from, store_file.as_deref(), &cloud).await
        }
        Action::Export { folder, from, store_file, cloud } => {
            moving::export(context, folder, from, store_file.as_deref(), &cloud).await
        }
        Action::Import { folder, blobs, store_file, cloud } => {
            moving::import(context, folder, blobs.as_deref(), store_file.as_deref(), &cloud).await
        }
        Action::Scrub { rate } => {
            Farm::with(context, Need::Answers, async |farm| scrub(context, farm, rate << 20).await).await
        }
    }
}

/// The data folder of the farm that is meant, which has to lie here.
fn folder(context: &Context<'_>, action: &str) -> Result<PathBuf, Failure> {
    let endpoint = match Place::choose(&context.settings)? {
        Place::ThisMachine(data) => return Ok(data),
        Place::Server(endpoint) => endpoint,
    };
    match OwnersWay::find(&endpoint)? {
        Some(way) => Ok(way.data().to_owned()),
        None => Err(Failure::usage(format!("{endpoint} is no coordinator that you run on this machine"))
            .hint(format!("on its machine, as the user that runs it: planforge admin {action} --data DIR"))),
    }
}

/// Refuses what works on a folder of blobs where they lie in a cloud.
async fn must_lie_here(data: &Path, action: &str) -> Result<(), Failure> {
    match server::blobs_elsewhere(data).await {
        None => Ok(()),
        Some(place) => {
            Err(Failure::usage(format!("admin {action} knows blobs in folders, and those of this farm lie in {place}"))
                .hint("docs/operations.md says how a farm with blobs in a cloud is checked and backed up"))
        }
    }
}

async fn check(context: &Context<'_>, data: &Path, read: bool) -> Result<(), Failure> {
    must_lie_here(data, "check").await?;
    let checked = planforge_backup::check(data, read).await?;
    let rows = match checked.problems.is_empty() {
        true => store::unreadable_rows(&checked.database).await.map_err(ApiError::from)?,
        false => Vec::new(),
    };
    context.printer.data(&words(&checked, &rows))?;
    context.printer.object(&serde_json::json!({
        "database": { "path": checked.database, "problems": checked.problems },
        "unreadable_rows": rows.iter().map(|bad| {
            serde_json::json!({ "table": bad.table, "row": bad.row, "problem": bad.problem })
        }).collect::<Vec<_>>(),
        "blobs": {
            "stored": checked.blobs,
            "bytes": checked.blob_bytes,
            "read": checked.read,
            "missing": texts(&checked.missing),
            "damaged": texts(&checked.damaged),
            "quarantined": texts(&checked.quarantined),
            "unnamed": checked.unnamed,
            "unnamed_bytes": checked.unnamed_bytes,
        },
    }))?;
    if let Some(problem) = checked.problems.first() {
        let message = format!("the database {} is damaged: {problem}", checked.database.display());
        return Err(Failure::new(ErrorCode::Internal, message)
            .hint("restore the newest backup into another folder: planforge admin restore BACKUP --data DIR"));
    }
    if !checked.is_sound() {
        context.printer.hint(
            "blobs come back when they are stored again: plans by building their engines (planforge submit), models by \
             submitting them, all else from a backup",
        );
    }
    if !rows.is_empty() {
        context.printer.hint("rows that cannot be read hide nothing but themselves; a backup may still have them");
    }
    if checked.is_sound() && rows.is_empty() { Ok(()) } else { Err(Failure::problems_found()) }
}

fn words(checked: &Checked, rows: &[BadRow]) -> String {
    let mut lines = Vec::new();
    let mut say = |what: &str, words: String| lines.push(format!("{what:<12}{words}"));
    let path = checked.database.display();
    match checked.problems.as_slice() {
        [] => say("database", format!("{path} is sound")),
        problems => {
            say("database", format!("{path} is damaged"));
            problems.iter().take(SHOWN).for_each(|problem| say("", problem.replace('\n', " ")));
            return lines.join("\n");
        }
    }
    say("rows", if rows.is_empty() { "all can be read".into() } else { format!("{} cannot be read", rows.len()) });
    rows.iter().take(SHOWN).for_each(|bad| say("", format!("{} {}: {}", bad.table, bad.row, bad.problem)));
    let how = if checked.read { "stored and read" } else { "stored" };
    say("blobs", format!("{} {how}, {}", checked.blobs, tables::bytes(checked.blob_bytes)));
    for (what, digests) in [
        ("missing", &checked.missing),
        ("damaged", &checked.damaged),
        ("set aside as damaged earlier", &checked.quarantined),
    ] {
        if !digests.is_empty() {
            say("", format!("{} {what}", digests.len()));
            digests.iter().take(SHOWN).for_each(|digest| say("", format!("  sha256:{digest}")));
        }
    }
    if checked.unnamed > 0 {
        say("", format!("{} more that nothing names, {}", checked.unnamed, tables::bytes(checked.unnamed_bytes)));
    }
    lines.join("\n")
}

async fn backup(context: &Context<'_>, data: &Path, to: &Path, how: How) -> Result<(), Failure> {
    must_lie_here(data, "backup").await?;
    let spinner = context.printer.spinner("copying the farm");
    let made = planforge_backup::backup(data, to, how, env!("CARGO_PKG_VERSION")).await;
    spinner.clear();
    let made = made?;
    let size = tables::bytes(made.blob_bytes + made.database_bytes);
    context.printer.data(&format!("{}: the database and {} blobs, {size}", made.path.display(), made.blobs))?;
    context.printer.object(&serde_json::json!({
        "path": made.path,
        "blobs": made.blobs,
        "blob_bytes": made.blob_bytes,
        "database_bytes": made.database_bytes,
        "lacking": texts(&made.lacking),
    }))?;
    if made.lacking.is_empty() {
        return Ok(());
    }
    let count = made.lacking.len();
    context.printer.problem(&format!("{count} blobs are missing or damaged in the farm, and so in the backup"));
    context.printer.hint("`planforge admin check --read` names them; the backup is whole but for them");
    Err(Failure::problems_found())
}

async fn restore(context: &Context<'_>, backup: &Path, data: &Path) -> Result<(), Failure> {
    let spinner = context.printer.spinner("restoring the farm");
    let restored = planforge_backup::restore(backup, data).await;
    spinner.clear();
    let restored = restored?;
    let (path, made) = (restored.path.display(), date(restored.made_ms));
    let size = tables::bytes(restored.blob_bytes);
    context.printer.data(&format!("{path}: the farm of {made} (UTC), {} blobs, {size}", restored.blobs))?;
    context.printer.note(
        "what came after the backup is not there: tokens that were revoked since then are good again, and jobs that \
         ran then are given out anew",
    );
    if !restored.lacking.is_empty() {
        context.printer.warn(&format!("{} blobs were missing already when it was made", restored.lacking.len()));
    }
    context.printer.object(&serde_json::json!({
        "path": restored.path,
        "made_ms": restored.made_ms,
        "blobs": restored.blobs,
        "blob_bytes": restored.blob_bytes,
        "lacking": texts(&restored.lacking),
    }))
}

async fn scrub(context: &Context<'_>, farm: &Farm, bytes_per_s: u64) -> Result<(), Failure> {
    let request = v1::ScrubRequest { bytes_per_s };
    let mut told = farm.rpc().scrub(request).await.map_err(|e| farm.error(e))?.into_inner();
    let spinner = context.printer.spinner("looking through the stored blobs");
    let mut last = v1::ScrubProgress::default();
    while let Some(progress) = told.message().await.map_err(|e| farm.error(e))? {
        spinner.say(&format!("{} blobs, {}", progress.blobs, tables::bytes(progress.bytes)));
        last = progress;
    }
    spinner.clear();
    if !last.done {
        return Err(Failure::new(ErrorCode::Unavailable, "the coordinator ended before it had looked at all blobs")
            .hint("its own round in the background goes on when it is there again"));
    }
    let (damaged, quarantined) = (last.damaged.len(), last.quarantined.len());
    let size = tables::bytes(last.bytes);
    let healed: Vec<&String> = last.damaged.iter().filter(|digest| !last.quarantined.contains(digest)).collect();
    let mut lines = vec![format!(
        "{} blobs, {size}: {damaged} damaged, {} of them healed from another copy; {quarantined} set aside",
        last.blobs,
        healed.len()
    )];
    lines.extend(last.quarantined.iter().take(SHOWN).map(|digest| format!("  sha256:{digest}")));
    context.printer.data(&lines.join("\n"))?;
    context.printer.object(&serde_json::json!({
        "blobs": last.blobs,
        "bytes": last.bytes,
        "damaged": last.damaged,
        "healed": healed,
        "quarantined": last.quarantined,
    }))?;
    if quarantined == 0 {
        return Ok(());
    }
    context.printer.hint(
        "what is stored again takes its place: plans by building their engines (planforge submit), models by submitting \
         them; have the coordinator's disk looked at",
    );
    Err(Failure::problems_found())
}

fn texts(digests: &[Digest]) -> Vec<String> {
    digests.iter().map(Digest::to_string).collect()
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        let hint = error.hint();
        match error {
            BackupError::Io { action, path, source } => Self::io(action, &path, &source),
            BackupError::Blob(blob) => Self::from(ApiError::from(blob)),
            other => {
                let code = match &other {
                    BackupError::NoFarm { .. } => ErrorCode::NotFound,
                    BackupError::NotEmpty { .. } => ErrorCode::Conflict,
                    _ => ErrorCode::Internal,
                };
                Self::new(code, other.to_string()).hint(hint)
            }
        }
    }
}
