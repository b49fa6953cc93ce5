//! Engines that the project's lock names.

use super::{
    Args, For, Spec, compatible,
    deliver::{Chosen, Delivery, Origin},
    stand_in::{self, Candidate, Evidence},
};
use crate::{
    context::Context,
    declared::{LOCK_FILE, Project, engine_of_plan},
    failure::Failure,
    farm::{Farm, Need},
    plan_check::Said,
    plans,
    request::models,
    settings::Key,
};
use planforge_fleet::{CellId, Lock, Locked, Standing};
use planforge_proto::ErrorCode;
use planforge_types::{Digest, Sku};
use std::{collections::BTreeSet, fs, path::Path};

/// What of the lock is asked for.
#[derive(Debug)]
pub(super) struct Asked {
    cells: Vec<(CellId, Locked)>,
    /// Models that have no engine for a device kind that was named.
    missing: Vec<(String, Sku)>,
    /// Of all that is locked of these models, what else there is.
    others: Vec<(CellId, Locked)>,
    /// What stands in, by the cell whose engine it is: for which device kind, and what is known of it.
    standing: Vec<(CellId, Sku, Standing)>,
}

/// The cells of the lock that are asked for; `None` where something else is asked for.
pub(super) fn choose(
    context: &Context<'_>,
    args: &Args,
    project: &Project,
    lock: &Lock,
) -> Result<Option<Asked>, Failure> {
    if args.toolchain.is_some() || matches!(args.spec, Some(Spec::Document(_))) {
        return Ok(None);
    }
    let Some(models) = models_asked(context, args, project, lock)? else { return Ok(None) };
    let spec = match &args.spec {
        Some(Spec::Name(name)) => Some(name.as_str()),
        _ => None,
    };
    let asked = |id: &CellId| models.contains(&id.model) && spec.is_none_or(|spec| id.spec == spec);
    let cells: Vec<(&CellId, &Locked)> = lock.cells.iter().filter(|(id, _)| asked(id)).collect();
    let wanted = For::of(context, args)?;
    let mut chosen: Vec<(CellId, Locked)> = Vec::new();
    let (mut missing, mut standing) = (Vec::new(), Vec::new());
    for model in &models {
        let of_model: Vec<_> = cells.iter().filter(|(id, _)| id.model == *model).collect();
        let specs: BTreeSet<&str> = of_model.iter().map(|(id, _)| id.spec.as_str()).collect();
        let before = chosen.len();
        match &wanted {
            For::Named(skus) => {
                for sku in skus {
                    let found = of_model.iter().filter(|(id, _)| id.sku == *sku);
                    let count = chosen.len();
                    chosen.extend(found.map(|(id, locked)| ((*id).clone(), (*locked).clone())));
                    if chosen.len() == count {
                        let stands =
                            lock.standing(model, sku).filter(|(id, ..)| spec.is_none_or(|spec| id.spec == spec));
                        for (_, stands, own) in stands {
                            context
                                .printer
                                .warn(&format!("{own}: {}", stand_in::words(&stands.stand_in, sku, LOCK_FILE)));
                            chosen.extend(lock.cells.get(&own).map(|locked| (own.clone(), locked.clone())));
                            standing.push((own, sku.clone(), stands.clone()));
                        }
                    }
                    if chosen.len() == count {
                        missing.push((model.clone(), sku.clone()));
                    }
                }
            }
            For::ThisMachine(devices) => {
                for (spec, device) in specs.iter().flat_map(|spec| devices.iter().map(move |device| (*spec, device))) {
                    let of = |sku: &Sku| of_model.iter().find(|(id, _)| id.spec == spec && id.sku == *sku);
                    if let Some((id, locked)) = device.iter().rev().find_map(of) {
                        chosen.push(((*id).clone(), (*locked).clone()));
                    }
                }
                if chosen.len() == before {
                    let best = devices.iter().filter_map(|skus| skus.last());
                    missing.extend(best.map(|sku| (model.clone(), sku.clone())));
                }
            }
        }
    }
    chosen.sort_by(|a, b| a.0.cmp(&b.0));
    chosen.dedup_by(|a, b| a.0 == b.0);
    let others = cells.into_iter().map(|(id, locked)| (id.clone(), locked.clone())).collect();
    Ok(Some(Asked { cells: chosen, missing, others, standing }))
}

impl Asked {
    /// Where nothing was built for a device kind, the fastest locked engine that was measured there.
    async fn complete(
        &mut self,
        context: &Context<'_>,
        args: &Args,
        evidence: Option<&Evidence>,
        farm: &Farm,
    ) -> Result<(), Failure> {
        for (model, sku) in std::mem::take(&mut self.missing) {
            let candidates: Vec<_> = self.others.iter().filter(|(id, _)| id.model == model && id.sku != sku).collect();
            let plans: Vec<Digest> = candidates.iter().map(|(_, locked)| locked.plan).collect();
            let search = compatible::fastest(farm, &plans, &sku, args.allow_inaccurate).await?;
            for (index, why) in search.rejected.iter().filter(|_| args.explain || search.best.is_none()) {
                context.printer.note(&format!("not {}: {why}", candidates[*index].0));
            }
            let (id, locked) = match search.best {
                Some(best) => {
                    let (id, locked) = candidates[best.index];
                    context.printer.warn(&format!("{id}: {}", best.words(&sku)));
                    (id, locked)
                }
                None => {
                    let known: Vec<Candidate> = candidates.iter().map(|(id, locked)| candidate(id, locked)).collect();
                    let stand_in::Search { best, rejected } =
                        evidence.map(|known_by| known_by.choose(&known, &sku)).unwrap_or_default();
                    for (index, why) in rejected.iter().filter(|_| args.explain || best.is_none()) {
                        context.printer.note(&format!("not {}: {why}", candidates[*index].0));
                    }
                    let Some(((index, found), known_by)) = best.zip(evidence) else {
                        self.missing.push((model, sku));
                        continue;
                    };
                    let (id, locked) = candidates[index];
                    context.printer.warn(&format!("{id}: {}", known_by.words(&found, &sku)));
                    let standing = Standing { plan: locked.plan, stand_in: found };
                    self.standing.push((id.clone(), sku.clone(), standing));
                    (id, locked)
                }
            };
            if !self.cells.iter().any(|(known, _)| known == id) {
                self.cells.push((id.clone(), locked.clone()));
            }
        }
        if self.missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<String> = self.missing.iter().map(|(model, sku)| format!("{model} for {sku}")).collect();
        let skus: BTreeSet<&str> = self.others.iter().map(|(id, _)| id.sku.as_str()).collect();
        let locked = if skus.is_empty() { "nothing".into() } else { skus.into_iter().collect::<Vec<_>>().join(", ") };
        let message = format!("{LOCK_FILE} has no engine of {}", missing.join(", "));
        Err(Failure::new(ErrorCode::NotFound, message).hint(format!(
            "locked are engines for {locked}; planforge check says what is declared, planforge sync builds it"
        )))
    }
}

fn candidate(id: &CellId, locked: &Locked) -> Candidate {
    Candidate { sku: id.sku.clone(), toolchain: locked.toolchain.clone(), spec: locked.spec.clone() }
}

/// Names of the models that are asked for; `None` where the lock and the project know nothing of what is.
fn models_asked(
    context: &Context<'_>,
    args: &Args,
    project: &Project,
    lock: &Lock,
) -> Result<Option<BTreeSet<String>>, Failure> {
    let names = |keep: &dyn Fn(&CellId, &Locked) -> bool| -> BTreeSet<String> {
        lock.cells.iter().filter(|(id, locked)| keep(id, locked)).map(|(id, _)| id.model.clone()).collect()
    };
    let Some(what) = args.what.as_deref() else {
        let all = names(&|_, _| true);
        if all.is_empty() {
            return Err(Failure::new(ErrorCode::NotFound, format!("{LOCK_FILE} names no engine"))
                .hint("planforge sync builds what planforge.toml declares"));
        }
        return Ok(Some(all));
    };
    let path = Path::new(what);
    let of_name = names(&|id, _| id.model == what);
    if !of_name.is_empty() && !path.exists() {
        return Ok(Some(of_name));
    }
    if project.declaration.models.contains_key(what) && of_name.is_empty() && !path.exists() {
        return Err(nothing_locked(what));
    }
    if !path.exists() {
        let of_digest = what.parse::<Digest>().ok().map(|digest| names(&|_, locked| locked.model == digest));
        return Ok(of_digest.filter(|found| !found.is_empty()));
    }
    let digest = models::identify(&context.settings, path)?.model.digest;
    let of_file = names(&|_, locked| locked.model.to_string() == digest);
    if !of_file.is_empty() {
        return Ok(Some(of_file));
    }
    // A declared model that is not the locked one any more gets no engine of what it was.
    let same = |name: &String| {
        let declared = project.model_path(name).and_then(|path| fs::canonicalize(path).ok());
        declared.is_some() && declared == fs::canonicalize(path).ok()
    };
    match project.declaration.models.keys().find(|name| same(name)) {
        None => Ok(None),
        Some(name) if lock.cells.keys().any(|id| id.model == *name) => {
            let message =
                format!("{what} changed since {LOCK_FILE} was written: its engines are those of another model");
            Err(Failure::new(ErrorCode::NotFound, message)
                .hint(format!("planforge sync builds them; planforge fetch {name} takes those that are locked")))
        }
        Some(name) => Err(nothing_locked(name)),
    }
}

fn nothing_locked(name: &str) -> Failure {
    Failure::new(ErrorCode::NotFound, format!("{LOCK_FILE} has no engine of {name}"))
        .hint("planforge sync builds what planforge.toml declares")
}

/// Brings the cells' engines to where they belong.
pub(super) fn run(context: &Context<'_>, args: &Args, project: &Project, mut asked: Asked) -> Result<(), Failure> {
    let evidence = Evidence::read(args.classes.as_deref())?;
    if !asked.missing.is_empty() {
        context.block_on(Farm::with(context, Need::Answers, async |farm| {
            asked.complete(context, args, evidence.as_ref(), farm).await
        }))?;
        remember(context, project, &asked.standing)?;
    }
    let (cells, standing) = (asked.cells, asked.standing);
    let layout = &project.declaration.layout;
    let (folder, single) = match &args.output {
        None => (project.folder.join(&layout.folder), None),
        Some(output) if is_folder(output) => (output.clone(), None),
        Some(output) if cells.len() == 1 => {
            (output.parent().map(Path::to_owned).unwrap_or_default(), Some(output.clone()))
        }
        Some(output) if output.exists() => {
            let message = format!("{} is a file, but there are {} engines", output.display(), cells.len());
            return Err(Failure::usage(message).hint("name a folder with -o DIR/, or one engine with --sku and --spec"));
        }
        Some(output) => (output.clone(), None),
    };
    let chosen = cells.into_iter().map(|(id, locked)| Chosen {
        words: format!("{} for {}, spec {}, {}", id.model, id.sku, id.spec, locked.toolchain),
        plan: locked.plan,
        plan_bytes: locked.plan_bytes,
        said: Said::of_locked(&id.sku, &locked),
        path: single.clone().unwrap_or_else(|| folder.join(layout.file(&id))),
        card: None,
        engine: document(&id, &locked, &standing),
        older_compiler: None,
    });
    let mut chosen: Vec<Chosen> = chosen.collect();
    if args.output.is_none() {
        for one in &chosen {
            stays_inside(&project.folder, &one.path)?;
        }
    }
    let explain = |chosen: &[Chosen]| {
        for one in chosen.iter().filter(|_| args.explain) {
            context.printer.note(&format!("{}: named by {}", one.words, project.lock_path().display()));
        }
    };
    explain(&chosen);
    if args.card {
        return context.block_on(Farm::with(context, Need::Answers, async |farm| {
            for one in &mut chosen {
                let engine = engine_of_plan(context, farm, one.plan).await?;
                one.card = engine.ok().map(|engine| engine.card_digest);
            }
            let delivery = Delivery::new(context, args, &folder, chosen.clone())?;
            delivery.download(Origin::Farm(farm)).await?;
            delivery.tell(&delivery.cards(farm).await?)
        }));
    }
    let delivery = Delivery::new(context, args, &folder, chosen)?;
    if !delivery.is_complete() {
        context.block_on(bring(context, args, &delivery))?;
    }
    delivery.tell(&[])
}

/// Downloads what is not here: from the copy of the blobs that the command line names, else from the farm; where that is
/// away, from the copy that the settings name.
async fn bring(context: &Context<'_>, args: &Args, delivery: &Delivery<'_>) -> Result<(), Failure> {
    if let Some(blobs) = &args.blobs {
        return delivery.download(Origin::Blobs(blobs)).await;
    }
    let from_farm = Farm::with(context, Need::Answers, async |farm| delivery.download(Origin::Farm(farm)).await).await;
    match (from_farm, context.settings.get(Key::Blobs)) {
        (Err(away), Some(blobs)) if away.is_unavailable() => {
            context.printer.warn(&format!(
                "{away}; taking {} engines from the copy of its blobs at {blobs}, each held against {LOCK_FILE}",
                delivery.missing()
            ));
            delivery.download(Origin::Blobs(blobs)).await
        }
        (Err(away), None) if away.is_unavailable() => {
            let copy = "or name a copy of its blobs by --blobs DIR|URL, or for such times by PLANFORGE_BLOBS";
            let hint = if away.hint.is_empty() { copy.to_owned() } else { format!("{}; {copy}", away.hint) };
            Err(away.hint(hint))
        }
        (result, _) => result,
    }
}

/// Refuses a place that a link of the project leads out of it: whoever wrote the repository would say where this user's
/// files are written over.
fn stays_inside(root: &Path, path: &Path) -> Result<(), Failure> {
    let real = |path: &Path| fs::canonicalize(path);
    let root = real(root).map_err(|e| Failure::io("read", root, &e))?;
    let deepest = path.ancestors().skip(1).find_map(|folder| real(folder).ok());
    if deepest.is_some_and(|folder| folder.starts_with(&root)) {
        return Ok(());
    }
    let message = format!("{} leads out of {}", path.display(), root.display());
    Err(Failure::usage(message).hint("name the folder yourself, if it is meant: planforge fetch -o DIR/"))
}

fn is_folder(output: &Path) -> bool {
    let file = plans::destination(output, "x");
    file.as_path() != output
}

/// Writes down what stands in, so that whoever fetches next gets the same, and knows.
fn remember(context: &Context<'_>, project: &Project, standing: &[(CellId, Sku, Standing)]) -> Result<(), Failure> {
    if standing.is_empty() {
        return Ok(());
    }
    let mut lock = project.lock()?.unwrap_or_default();
    for (own, sku, stands) in standing {
        lock.stand_ins.insert(CellId { sku: sku.clone(), ..own.clone() }, stands.clone());
    }
    if project.write_lock(&lock)? {
        context.printer.note(&format!("{LOCK_FILE} says which engines stand in, and for what: commit it"));
    }
    Ok(())
}

fn document(id: &CellId, locked: &Locked, standing: &[(CellId, Sku, Standing)]) -> serde_json::Value {
    let mut document = serde_json::to_value(locked).unwrap_or_default();
    if let Some(members) = document.as_object_mut() {
        members.insert("model_digest".into(), locked.model.to_string().into());
        members.insert("model".into(), id.model.clone().into());
        members.insert("sku".into(), id.sku.to_string().into());
        members.insert("spec_name".into(), id.spec.clone().into());
        let stands = standing.iter().filter(|(own, ..)| own == id);
        let stands: Vec<_> = stands.map(|(_, sku, stands)| stand_in::document(sku, &stands.stand_in)).collect();
        if !stands.is_empty() {
            members.insert("stands_in_for".into(), stands.into());
        }
    }
    document
}
