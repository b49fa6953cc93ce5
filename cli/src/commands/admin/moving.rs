//! Farms that move: to PostgreSQL, their blobs to a cloud or back, out into a folder and in again.

use super::{super::coordinator::store_url, texts};
use crate::{
    cloud::{self, CloudArgs},
    context::Context,
    failure::Failure,
    settings::Key,
    tables,
};
use planforge_coordinator::{
    server::{self, BlobsMove, BlobsPlace, Exchanged, Export, Import, MovedBlobs, StartError, Step},
    store::MovedTable,
};
use planforge_types::Digest;
use std::path::{Path, PathBuf};

pub async fn migrate(context: &Context<'_>, store_file: Option<&Path>) -> Result<(), Failure> {
    let url = store_url(context, store_file, None)?.ok_or_else(|| {
        Failure::usage("nobody said to which database")
            .hint("set PLANFORGE_STORE=postgres://USER@HOST/DATABASE, or write that into a file: --store-file FILE")
    })?;
    let data = context.settings.data_folder()?;
    let printer = context.printer;
    let mut tell = |moved: &MovedTable| {
        let how = if moved.was_there { "was there" } else { "copied" };
        printer.note(&format!("{}: {} rows, {how}, {}", moved.table, moved.rows, moved.digest.short()));
    };
    let moved = server::move_to_postgres(&data, &url, &mut tell).await?;
    let rows: u64 = moved.tables.iter().map(|table| table.rows).sum();
    context.printer.data(&format!(
        "{rows} rows in {} tables are in {}; blobs and the former database are where they were",
        moved.tables.len(),
        moved.database
    ))?;
    context.printer.object(&serde_json::json!({
        "database": moved.database,
        "tables": moved.tables.iter().map(table_object).collect::<Vec<_>>(),
    }))?;
    context.printer.hint("start the coordinator with the same URL (PLANFORGE_STORE, --store-file) on this folder");
    Ok(())
}

pub async fn blobs(
    context: &Context<'_>,
    place: &str,
    from_folder: Option<PathBuf>,
    store_file: Option<&Path>,
    cloud: &CloudArgs,
) -> Result<(), Failure> {
    let data_dir = context.settings.data_folder()?;
    let to = blobs_place(place)?;
    let what = BlobsMove {
        data_dir,
        postgres: store_url(context, store_file, None)?,
        from_folder,
        to,
        access: cloud.access(context.settings.switch(Key::AllowReadable)?),
        read_back: cloud.blobs_read_back,
        stay: true,
    };
    let spinner = context.printer.spinner("moving blobs");
    let mut tell = |moved: &MovedBlobs| {
        spinner.say(&format!("{} of {} blobs, {}", moved.blobs, moved.of_blobs, tables::bytes(moved.bytes)));
    };
    let moved = server::move_blobs(&what, &mut tell).await;
    spinner.clear();
    let moved = moved?;
    let MovedBlobs { from, to, blobs, bytes, was_there, damaged, .. } = &moved;
    let size = tables::bytes(*bytes);
    context
        .printer
        .data(&format!("{blobs} blobs, {size}, are in {to}; {was_there} were there before; {from} is as it was"))?;
    context.printer.object(&serde_json::json!({
        "from": from,
        "to": to,
        "blobs": blobs,
        "bytes": bytes,
        "was_there": was_there,
        "damaged": damaged.iter().map(Digest::to_string).collect::<Vec<_>>(),
    }))?;
    if !damaged.is_empty() {
        context.printer.problem(&format!("{} blobs are damaged in {from} and were left out", damaged.len()));
    }
    context.printer.hint(&format!("start the coordinator with --blobs {to}; remove {from} when all is well"));
    Ok(())
}

/// Copies the farm into a data folder of its own.
pub async fn export(
    context: &Context<'_>,
    folder: PathBuf,
    from_folder: Option<PathBuf>,
    store_file: Option<&Path>,
    cloud: &CloudArgs,
) -> Result<(), Failure> {
    let what = Export {
        data_dir: context.settings.data_folder()?,
        postgres: store_url(context, store_file, None)?,
        from_folder,
        access: cloud.access(context.settings.switch(Key::AllowReadable)?),
        to: absolute(folder),
    };
    let to = what.to.display().to_string();
    exchanged(context, &to, async |tell| server::export(&what, tell).await).await
}

/// Puts the farm of such a folder where it is asked.
pub async fn import(
    context: &Context<'_>,
    folder: PathBuf,
    blobs: Option<&str>,
    store_file: Option<&Path>,
    cloud: &CloudArgs,
) -> Result<(), Failure> {
    let what = Import {
        from: absolute(folder),
        data_dir: context.settings.data_folder()?,
        postgres: store_url(context, store_file, None)?,
        to: blobs.map(blobs_place).transpose()?,
        access: cloud.access(context.settings.switch(Key::AllowReadable)?),
        read_back: cloud.blobs_read_back,
    };
    let to = what.data_dir.display().to_string();
    exchanged(context, &to, async |tell| server::import(&what, tell).await).await
}

fn absolute(folder: PathBuf) -> PathBuf {
    std::path::absolute(&folder).unwrap_or(folder)
}

fn blobs_place(place: &str) -> Result<BlobsPlace, Failure> {
    Ok(match cloud::place(place)? {
        BlobsPlace::Folder(folder) => BlobsPlace::Folder(absolute(folder)),
        in_cloud => in_cloud,
    })
}

/// Runs an export or import, tells how far it is, and what came of it.
async fn exchanged(
    context: &Context<'_>,
    to: &str,
    run: impl AsyncFnOnce(&mut (dyn FnMut(Step<'_>) + Send)) -> Result<Exchanged, StartError>,
) -> Result<(), Failure> {
    let spinner = context.printer.spinner("copying the farm");
    let mut tell = |step: Step<'_>| match step {
        Step::Table(table) => spinner.say(&format!("{}: {} rows", table.table, table.rows)),
        Step::Blobs(moved) => {
            spinner.say(&format!("{} of {} blobs, {}", moved.blobs, moved.of_blobs, tables::bytes(moved.bytes)));
        }
    };
    let done = run(&mut tell).await;
    spinner.clear();
    let Exchanged { tables, blobs } = done?;
    let (rows, size) = (tables.iter().map(|table| table.rows).sum::<u64>(), tables::bytes(blobs.bytes));
    context.printer.data(&format!(
        "{to}: {rows} rows in {} tables, and {} blobs, {size}, in {}; {} were there before",
        tables.len(),
        blobs.blobs,
        blobs.to,
        blobs.was_there
    ))?;
    context.printer.object(&serde_json::json!({
        "path": to,
        "tables": tables.iter().map(table_object).collect::<Vec<_>>(),
        "blobs": blobs.blobs,
        "bytes": blobs.bytes,
        "blobs_in": blobs.to,
        "was_there": blobs.was_there,
        "damaged": texts(&blobs.damaged),
    }))?;
    if blobs.damaged.is_empty() {
        return Ok(());
    }
    context.printer.problem(&format!("{} blobs are damaged in {} and were left out", blobs.damaged.len(), blobs.from));
    Err(Failure::problems_found())
}

fn table_object(table: &MovedTable) -> serde_json::Value {
    serde_json::json!({ "table": table.table, "rows": table.rows, "digest": table.digest.to_string() })
}
