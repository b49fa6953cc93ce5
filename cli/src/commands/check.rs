//! `planforge check`: whether every declared engine is there, is what is declared, and is fast enough. Builds nothing.

use crate::{
    context::Context,
    declared::{Inputs, Project, Survey, kept, view},
    failure::Failure,
    farm::{Farm, Need},
};
use planforge_fleet::State;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Fail also where a newer toolchain or compiler revision would build another engine now
    #[arg(long)]
    strict: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let project = Project::must()?;
    let lock = project.lock()?.unwrap_or_default();
    let inputs = Inputs::of(context, &project)?;
    let survey = Farm::with(context, Need::Answers, async |farm| {
        let survey = Survey::of(context, farm, &project, (&lock, true), &inputs).await?;
        Ok((survey, kept::pin(context, farm, &project, &lock).await))
    });
    let (survey, pinned) = survey.await?;
    let views = survey.views(&lock);
    context.printer.data(&view::table(&views))?;
    let red: Vec<&view::CellView> = views.iter().filter(|cell| !cell.state.is_fine(args.strict)).collect();
    for cell in &red {
        context.printer.problem(&format!("{}: {}: {}", cell.id, cell.state.name(), cell.state.why()));
    }
    let outdated = views.iter().filter(|cell| matches!(cell.state, State::Outdated(_))).count();
    if red.is_empty() {
        let rest = if outdated > 0 { format!(", {outdated} of them outdated") } else { String::new() };
        context.printer.note(&format!("{} engines are there and are what is declared{rest}", views.len()));
    } else {
        context.printer.hint("planforge sync builds what is missing or stale, and writes engines.lock");
    }
    context.printer.object(&serde_json::json!({
        "ok": red.is_empty(),
        "strict": args.strict,
        "lock": project.lock_path(),
        "pinned": pinned,
        "cells": views,
    }))?;
    view::verdict(red.into_iter().map(|cell| &cell.state))
}
