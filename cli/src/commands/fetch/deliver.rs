//! From engines that were chosen to files: what is here already stays, the rest is downloaded side by side.

use super::{Args, absolute};
use crate::{
    context::Context,
    failure::Failure,
    farm::Farm,
    fetched::{Record, TICK},
    older::OlderCompiler,
    plan_check::Said,
    plans, tables,
};
use planforge_identity::digest_cache::Stamp;
use planforge_proto::ErrorCode;
use planforge_types::Digest;
use serde::Serialize;
use std::{
    cell::RefCell,
    path::{Path, PathBuf},
};

/// An engine, and where it goes.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    /// `digits for cpu-x86-64-v3, spec default, native 6`.
    pub words: String,
    pub plan: Digest,
    pub plan_bytes: u64,
    pub said: Said,
    pub path: PathBuf,
    /// Looked up where `--card` asks for it.
    pub card: Option<String>,
    /// For `--json`.
    pub engine: serde_json::Value,
    pub older_compiler: Option<OlderCompiler>,
}

/// Where an engine came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum From {
    /// It was here, and nothing was read of it.
    Cache,
    /// It was here, and was read.
    Verified,
    Farm,
    Blobs,
}

/// Where engines come from that are not here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    Farm(&'a Farm),
    /// A copy of a farm's blobs, by folder or URL.
    Blobs(&'a str),
}

/// The command's JSON object; scripts read its first members line by line.
#[derive(Serialize)]
struct Object<'a> {
    /// These four where there is one engine.
    #[serde(flatten)]
    only: Option<&'a One<'a>>,
    engines: &'a [One<'a>],
}

#[derive(Serialize)]
struct One<'a> {
    path: &'a Path,
    plan_digest: String,
    card_path: Option<PathBuf>,
    engine: &'a serde_json::Value,
    from: From,
    #[serde(skip_serializing_if = "Option::is_none")]
    older_compiler: Option<&'a OlderCompiler>,
}

/// Engines on their way to their files.
pub(super) struct Delivery<'a> {
    context: &'a Context<'a>,
    args: &'a Args,
    chosen: Vec<Chosen>,
    record: RefCell<Record>,
    came: RefCell<Vec<Option<From>>>,
}

impl<'a> Delivery<'a> {
    /// Looks which of the engines are here already. `folder` is what the files lie in, or below.
    pub fn new(
        context: &'a Context<'a>,
        args: &'a Args,
        folder: &Path,
        mut chosen: Vec<Chosen>,
    ) -> Result<Self, Failure> {
        for one in &mut chosen {
            one.path = absolute(&one.path);
        }
        // Without a data folder nothing is remembered, which only costs time.
        let data = context.settings.data_folder().unwrap_or_default();
        let mut record = Record::open(&data, &absolute(folder));
        let here = |one: &Chosen| {
            if !args.verify && record.is_unchanged(&one.path, one.plan) {
                return Some(From::Cache);
            }
            record.verify(&one.path, one.plan, one.plan_bytes).then_some(From::Verified)
        };
        let came = chosen.iter().map(here).collect();
        Ok(Self { context, args, chosen, record: RefCell::new(record), came: RefCell::new(came) })
    }

    /// How many engines are not here.
    pub fn missing(&self) -> usize {
        self.came.borrow().iter().filter(|came| came.is_none()).count()
    }

    /// Whether nothing has to come from anywhere.
    pub fn is_complete(&self) -> bool {
        !self.args.card && self.came.borrow().iter().all(Option::is_some)
    }

    /// Downloads what is not here, several at once.
    pub async fn download(&self, origin: Origin<'_>) -> Result<(), Failure> {
        let missing: Vec<usize> = (0..self.chosen.len()).filter(|index| self.came.borrow()[*index].is_none()).collect();
        let queue = RefCell::new(missing.into_iter());
        let lane = async || -> Result<(), Failure> {
            loop {
                let Some(index) = queue.borrow_mut().next() else { return Ok(()) };
                let one = &self.chosen[index];
                let (plan, bytes, said, path) = (one.plan, one.plan_bytes, &one.said, &one.path);
                let from = match origin {
                    Origin::Farm(farm) => {
                        plans::download_plan(self.context, farm, plan, bytes, said, path).await?;
                        From::Farm
                    }
                    Origin::Blobs(blobs) => {
                        plans::take_plan(self.context, blobs, plan, bytes, said, path).await?;
                        From::Blobs
                    }
                };
                let stamp = Stamp::of(&one.path).map_err(|e| Failure::io("read", &one.path, &e))?;
                self.record.borrow_mut().remember(&one.path, one.plan, stamp);
                self.came.borrow_mut()[index] = Some(from);
            }
        };
        // What came is remembered whatever became of the others.
        let result = tokio::try_join!(lane(), lane(), lane(), lane());
        if self.came.borrow().iter().any(|came| matches!(came, Some(From::Farm | From::Blobs))) {
            tokio::time::sleep(TICK).await;
        }
        self.record.borrow_mut().save();
        result.map(drop)
    }

    /// Brings the card of each engine that has one.
    pub async fn cards(&self, farm: &Farm) -> Result<Vec<Option<PathBuf>>, Failure> {
        let mut paths = Vec::with_capacity(self.chosen.len());
        for one in &self.chosen {
            if !self.args.card {
                paths.push(None);
                continue;
            }
            let digest = one.card.as_deref().and_then(|card| card.parse().ok());
            let digest = digest
                .ok_or_else(|| Failure::new(ErrorCode::NotFound, format!("the engine of {} has no card", one.words)))?;
            let mut name = one.path.clone().into_os_string();
            name.push(".card.json");
            let path = PathBuf::from(name);
            plans::download(self.context, farm, digest, 0, &path).await?;
            paths.push(Some(path));
        }
        Ok(paths)
    }

    /// Says what is where, and why it is that.
    pub fn tell(&self, cards: &[Option<PathBuf>]) -> Result<(), Failure> {
        let printer = self.context.printer;
        self.record.borrow_mut().save();
        let came = self.came.borrow();
        let paths = self.chosen.iter().map(|one| self.shown(&one.path).display().to_string());
        printer.data(&paths.collect::<Vec<_>>().join("\n"))?;
        let mut engines = Vec::with_capacity(self.chosen.len());
        for (index, one) in self.chosen.iter().enumerate() {
            let from = came[index].unwrap_or(From::Farm);
            let how = match from {
                From::Cache => "unchanged",
                From::Verified | From::Farm | From::Blobs => "verified",
            };
            printer.note(&format!("{}: {}, sha256:{} {how}", one.words, tables::bytes(one.plan_bytes), one.plan));
            engines.push(One {
                path: self.shown(&one.path),
                plan_digest: one.plan.to_string(),
                card_path: cards.get(index).cloned().flatten().map(|path| self.shown(&path).to_owned()),
                engine: &one.engine,
                from,
                older_compiler: one.older_compiler.as_ref(),
            });
        }
        let only = if let [one] = engines.as_slice() { Some(one) } else { None };
        printer.object(&Object { only, engines: &engines })
    }

    /// The path as it is short: below the current folder without that folder's own, unless it was named with it.
    fn shown<'p>(&self, path: &'p Path) -> &'p Path {
        let whole = self.args.output.as_ref().is_some_and(|output| output.is_absolute());
        let here = std::env::current_dir().ok().filter(|_| !whole);
        here.and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path)
    }
}
