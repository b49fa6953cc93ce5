//! Engines that no lock names: one by its digest, or the newest of a model's default spec.

use super::{
    Args, Asked, For,
    choose::{Choice, choose},
    compatible,
    deliver::{Chosen, Delivery, Origin},
    stand_in::{self, Evidence},
};
use crate::{
    context::Context,
    declared::Fleet,
    failure::Failure,
    farm::{Farm, Need},
    lists,
    older::{self, OlderCompiler},
    plan_check::Said,
    plans,
    request::models,
    settings::Key,
    tables,
};
use planforge_fleet::cell::spec_difference;
use planforge_proto::{ErrorCode, v1, view::EngineView};
use planforge_report::matrix::StandIn;
use planforge_types::{BuildSpec, Digest, Sku};
use std::{collections::BTreeSet, path::Path};

/// Engines of other specs that a refusal names.
const OTHERS_LISTED: usize = 5;

/// What the argument stands for.
enum Wanted {
    Model {
        digest: String,
        name: String,
    },
    /// A digest that says nothing of what it is the digest of.
    Digest(Digest),
}

impl Wanted {
    fn of(context: &Context<'_>, what: &str) -> Result<Self, Failure> {
        let path = Path::new(what);
        if let (Ok(digest), false) = (what.parse(), path.exists()) {
            return Ok(Self::Digest(digest));
        }
        let local = models::identify(&context.settings, path)?;
        Ok(Self::Model { digest: local.model.digest, name: local.model.name })
    }

    fn words(&self) -> String {
        match self {
            Self::Model { digest, name } => format!("{name} (sha256:{})", tables::short(digest)),
            Self::Digest(digest) => format!("sha256:{}", digest.short()),
        }
    }
}

pub(super) fn run(context: &Context<'_>, args: &Args, what: &str, asked: &Asked) -> Result<(), Failure> {
    let wanted = Wanted::of(context, what)?;
    let evidence = Evidence::read(args.classes.as_deref())?;
    context.block_on(Farm::with(context, Need::Answers, async |farm| {
        let search = Search { context, args, asked, farm, what, wanted: &wanted, evidence: evidence.as_ref() };
        search.run().await
    }))
}

struct Search<'a> {
    context: &'a Context<'a>,
    args: &'a Args,
    asked: &'a Asked,
    farm: &'a Farm,
    what: &'a str,
    wanted: &'a Wanted,
    evidence: Option<&'a Evidence>,
}

/// An engine that is an answer.
struct Answer {
    engine: v1::Engine,
    /// It was looked for by its model, not named.
    by_model: bool,
    /// It was built for another kind than was asked for, and by classes it will do.
    stands_in: Option<(Sku, StandIn)>,
}

impl Answer {
    fn of_model(engine: v1::Engine) -> Self {
        Self { engine, by_model: true, stands_in: None }
    }
}

impl Search<'_> {
    async fn run(&self) -> Result<(), Failure> {
        let engines = match self.wanted {
            Wanted::Model { digest, .. } => self.of_model(digest).await?,
            Wanted::Digest(digest) => match self.named(*digest).await? {
                Some(engine) => vec![Answer { by_model: false, ..Answer::of_model(engine) }],
                None => self.of_model(&digest.to_string()).await?,
            },
        };
        let devices = older::devices(self.farm).await;
        let several = engines.len() > 1;
        let mut chosen = Vec::with_capacity(engines.len());
        for answer in engines {
            self.warn(&answer.engine);
            // Whoever names a key or a plan knows which one it is.
            let older_compiler = if answer.by_model { OlderCompiler::of(&answer.engine, &devices) } else { None };
            if let Some(older) = &older_compiler {
                older.tell(&answer.engine, self.context.printer);
            }
            chosen.push(self.chosen(answer, older_compiler, several)?);
        }
        let folder = chosen.first().and_then(|one| one.path.parent()).map(Path::to_owned).unwrap_or_default();
        let delivery = Delivery::new(self.context, self.args, &folder, chosen)?;
        delivery.download(Origin::Farm(self.farm)).await?;
        delivery.tell(&delivery.cards(self.farm).await?)
    }

    fn project(&self) -> String {
        self.context.settings.get(Key::Project).unwrap_or_default().into()
    }

    fn warn(&self, engine: &v1::Engine) {
        let printer = self.context.printer;
        if let Some(preparation) = &engine.preparation {
            printer.note(&tables::prepared_from(preparation));
        }
        if !engine.inputs_digest.is_empty() {
            printer.warn(&format!(
                "this engine's outputs were compared on given inputs sha256:{} when it was built, not on made ones",
                tables::short(&engine.inputs_digest)
            ));
        }
        if engine.unmeasured {
            printer.warn(&format!(
                "this engine is built, not measured: its outputs were checked, and nobody timed it; 'planforge bench {} --on {}' does",
                engine.plan_digest, engine.sku
            ));
        }
        if engine.simulated {
            printer.warn("simulated: a scripted device built this, so it is no engine and its numbers mean nothing");
        }
    }

    /// The engine and where it goes: a model's default engine under its name, digest and device kind, any other under its
    /// key, so that no two models and no two specs are one file.
    fn chosen(
        &self,
        Answer { engine, by_model, stands_in }: Answer,
        older_compiler: Option<OlderCompiler>,
        several: bool,
    ) -> Result<Chosen, Failure> {
        let plan = engine.plan_digest.parse().map_err(|e| {
            Failure::new(ErrorCode::Internal, format!("the coordinator names the plan by something else: {e}"))
        })?;
        let usual = by_model && self.asked.spec.is_none() && self.args.toolchain.is_none();
        let name = match usual {
            true => plans::shared_name(engine.model.as_ref(), &engine.sku),
            false => plans::with_key(&plans::file_name(engine.model.as_ref(), &engine.sku), &engine.engine_key),
        };
        let output = self.args.output.as_deref().unwrap_or(Path::new("./"));
        let path = plans::destination(output, &name);
        if several && path == output {
            let message = format!("{} is one file, and there are several engines", output.display());
            return Err(Failure::usage(message).hint("name a folder with -o DIR/"));
        }
        let words = format!(
            "{} for {}, {}",
            tables::model_name(engine.model.as_ref()),
            engine.sku,
            tables::toolchain(&engine.toolchain_json)
        );
        let mut document = serde_json::to_value(EngineView::from(engine.clone())).unwrap_or_default();
        if let Some((wanted, found)) = stands_in {
            document["stands_in_for"] = serde_json::json!([stand_in::document(&wanted, &found)]);
        }
        Ok(Chosen {
            words,
            plan,
            plan_bytes: engine.plan_bytes,
            said: Said::from(&engine),
            path,
            card: Some(engine.card_digest.clone()),
            engine: document,
            older_compiler,
        })
    }

    /// The engine whose plan or key `digest` is.
    async fn named(&self, digest: Digest) -> Result<Option<v1::Engine>, Failure> {
        let [sku, others @ ..] = self.args.skus.as_slice() else { return self.of_digest(digest, "").await };
        if !others.is_empty() {
            return Err(Failure::usage("a digest names one engine, and several device kinds were named"));
        }
        let found = self.of_digest(digest, sku.as_str()).await?;
        if found.is_none() {
            self.refuse_other_sku(digest, sku).await?;
        }
        Ok(found)
    }

    async fn of_digest(&self, digest: Digest, sku: &str) -> Result<Option<v1::Engine>, Failure> {
        let base = v1::FindEngineRequest {
            sku: sku.to_owned(),
            allow_inaccurate: self.args.allow_inaccurate,
            toolchain: self.args.toolchain.as_ref().map(ToString::to_string).unwrap_or_default(),
            project: self.project(),
            ..Default::default()
        };
        let by_plan = v1::FindEngineRequest { plan_digest: digest.to_string(), ..base.clone() };
        let by_key = v1::FindEngineRequest { engine_key: digest.to_string(), ..base };
        for request in [by_plan, by_key] {
            match self.farm.rpc().find_engine(request).await.map_err(|e| self.farm.error(e)) {
                Ok(engine) => return Ok(Some(engine.into_inner())),
                Err(failure) if failure.name == ErrorCode::NotFound.name() => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(None)
    }

    /// A plan or engine that is there, but for another device kind than `sku`, is refused by name.
    async fn refuse_other_sku(&self, digest: Digest, sku: &Sku) -> Result<(), Failure> {
        let by_plan = v1::FindEngineRequest { plan_digest: digest.to_string(), ..Default::default() };
        let by_key = v1::FindEngineRequest { engine_key: digest.to_string(), ..Default::default() };
        for request in [by_plan, by_key] {
            let request = v1::FindEngineRequest { allow_inaccurate: true, project: self.project(), ..request };
            let Ok(reply) = self.farm.rpc().find_engine(request).await else { continue };
            let engine = reply.into_inner();
            if engine.sku != sku.as_str() {
                let message = format!("sha256:{} is an engine for {}, not for {sku}", digest.short(), engine.sku);
                return Err(Failure::new(ErrorCode::Refused, message).hint(format!(
                    "an engine runs best, and often only, where it was built: planforge fetch MODEL --sku {sku}"
                )));
            }
        }
        Ok(())
    }

    /// One engine of the model for each device kind that is asked for.
    async fn of_model(&self, model: &str) -> Result<Vec<Answer>, Failure> {
        let request = v1::ListEnginesRequest {
            model: model.to_owned(),
            project: self.project(),
            limit: u32::MAX,
            ..Default::default()
        };
        let mut engines = lists::engines(self.farm, request).await?;
        engines.retain(|engine| engine.model.as_ref().is_some_and(|known| known.digest == model));
        let fleet = Fleet::ask(self.farm).await?;
        let wanted = For::of(self.context, self.args)?;
        let of = |sku: &Sku| {
            let here = engines.iter().filter(|engine| engine.sku == sku.as_str()).cloned().collect();
            let asked = (self.asked.spec.as_ref(), &self.asked.toolchain);
            choose(here, sku, asked, &fleet, self.args.allow_inaccurate)
        };
        let mut found = Vec::new();
        match &wanted {
            For::Named(skus) => {
                for sku in skus {
                    let choice = of(sku);
                    let foreign = match choice.taken.is_none() && choice.undecided.is_empty() {
                        true => self.foreign(&engines, sku, &fleet).await?,
                        false => None,
                    };
                    found.push(match foreign {
                        Some(answer) => answer,
                        None => Answer::of_model(self.taken(choice, sku.as_str()).await?),
                    });
                }
            }
            For::ThisMachine(devices) => {
                for device in devices {
                    let mut last = Choice::default();
                    for sku in device.iter().rev() {
                        let choice = of(sku);
                        let done = choice.taken.is_some();
                        let rejected = std::mem::take(&mut last.rejected);
                        last = choice;
                        last.rejected.extend(rejected);
                        if done {
                            break;
                        }
                    }
                    found.push(Answer::of_model(self.taken(last, &wanted.words()).await?));
                }
            }
        }
        Ok(found)
    }

    /// Where nothing was built for `sku`, the fastest of what would do for another kind that was measured there; where
    /// nothing was, what may stand in by classes.
    async fn foreign(&self, engines: &[v1::Engine], sku: &Sku, fleet: &Fleet) -> Result<Option<Answer>, Failure> {
        let kinds: BTreeSet<Sku> = engines.iter().filter_map(|engine| engine.sku.parse().ok()).collect();
        let mut candidates: Vec<v1::Engine> = Vec::new();
        for other in kinds.iter().filter(|other| *other != sku) {
            let here = engines.iter().filter(|engine| engine.sku == other.as_str()).cloned().collect();
            let asked = (self.asked.spec.as_ref(), &self.asked.toolchain);
            candidates.extend(choose(here, other, asked, fleet, self.args.allow_inaccurate).taken);
        }
        let plans: Vec<Digest> = candidates.iter().filter_map(|engine| engine.plan_digest.parse().ok()).collect();
        if plans.len() != candidates.len() {
            return Ok(None);
        }
        let search = compatible::fastest(self.farm, &plans, sku, self.args.allow_inaccurate).await?;
        for (index, why) in search.rejected.iter().filter(|_| self.args.explain) {
            let engine = &candidates[*index];
            self.context.printer.note(&format!("not {} for {}: {why}", tables::short(&engine.engine_key), engine.sku));
        }
        if let Some(best) = search.best {
            self.context.printer.warn(&best.words(sku));
            return Ok(Some(Answer::of_model(candidates.swap_remove(best.index))));
        }
        Ok(self.evidence.and_then(|evidence| self.standing(evidence, candidates, sku)))
    }

    /// What of `candidates` may stand in for an engine of `sku`; otherwise it is said why none may.
    fn standing(&self, evidence: &Evidence, candidates: Vec<v1::Engine>, sku: &Sku) -> Option<Answer> {
        let read = |engine: v1::Engine| Some((stand_in::Candidate::of(&engine)?, engine));
        let (known, mut engines): (Vec<_>, Vec<_>) = candidates.into_iter().filter_map(read).unzip();
        let stand_in::Search { best, rejected } = evidence.choose(&known, sku);
        for (index, why) in rejected.iter().filter(|_| self.args.explain || best.is_none()) {
            let engine = &engines[*index];
            self.context.printer.note(&format!("not {} for {}: {why}", tables::short(&engine.engine_key), engine.sku));
        }
        let (index, found) = best?;
        self.context.printer.warn(&evidence.words(&found, sku));
        Some(Answer { stands_in: Some((sku.clone(), found)), ..Answer::of_model(engines.swap_remove(index)) })
    }

    /// The engine that was chosen, if it is still there.
    async fn taken(&self, choice: Choice, sku: &str) -> Result<v1::Engine, Failure> {
        let printer = self.context.printer;
        if self.args.explain {
            for one in &choice.rejected {
                let toolchain = tables::toolchain(&one.engine.toolchain_json);
                let key = tables::short(&one.engine.engine_key);
                printer.note(&format!("not {key} for {}, {toolchain}: {}", one.engine.sku, one.why));
            }
        }
        let Some(engine) = choice.taken else { return Err(self.nothing(&choice, sku)) };
        if self.args.explain {
            let why = match &self.asked.spec {
                Some(_) => "the newest of the spec that is asked for",
                None => "the newest of the default spec",
            };
            printer.note(&format!("{} for {}: {why}", tables::short(&engine.engine_key), engine.sku));
        }
        // A plan that is gone is told of as such.
        let request = v1::FindEngineRequest {
            engine_key: engine.engine_key.clone(),
            sku: engine.sku.clone(),
            allow_inaccurate: self.args.allow_inaccurate,
            project: self.project(),
            ..Default::default()
        };
        Ok(self.farm.rpc().find_engine(request).await.map_err(|e| self.farm.error(e))?.into_inner())
    }

    fn nothing(&self, choice: &Choice, sku: &str) -> Failure {
        let described = self.wanted.words();
        if !choice.undecided.is_empty() {
            return Failure::new(
                ErrorCode::NotFound,
                format!("no engine of {described} can be chosen: {}", choice.undecided),
            )
            .hint("name the spec: --spec '{\"threads\": N}'");
        }
        let spec = match (&self.asked.spec_name, &self.asked.spec) {
            (Some(name), _) => format!(" of spec {name}"),
            (None, Some(_)) => " of that spec".into(),
            (None, None) => " of the default spec".into(),
        };
        let spec = if choice.rejected.is_empty() { String::new() } else { spec };
        let mut message = format!("no engine{spec} of {described} for {sku}");
        if let Some(toolchain) = &self.args.toolchain {
            message.push_str(&format!(" with {toolchain}"));
        }
        if choice.rejected.iter().any(|one| one.why.starts_with("its outputs are too far")) {
            return Failure::new(
                ErrorCode::Refused,
                format!("{message} is accurate: its outputs are too far from the reference's"),
            )
            .hint("--allow-inaccurate takes it anyway");
        }
        let failure = Failure::new(ErrorCode::NotFound, message);
        if choice.rejected.is_empty() {
            return failure.hint(match self.wanted {
                Wanted::Model { .. } => format!("build it with: planforge submit {}{} --wait", self.what, self.flags()),
                Wanted::Digest(_) => "planforge engines lists what is there".to_owned(),
            });
        }
        let others = choice.rejected.iter().take(OTHERS_LISTED).map(|one| {
            let spec: BuildSpec = serde_json::from_str(&one.engine.spec_json).unwrap_or_default();
            format!(
                "{} ({}; {})",
                tables::short(&one.engine.engine_key),
                tables::toolchain(&one.engine.toolchain_json),
                spec_difference(&BuildSpec::default(), &spec).join(", ")
            )
        });
        let more = choice.rejected.len().saturating_sub(OTHERS_LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        failure.hint(format!(
            "there are {}{more}: --spec JSON names a spec, --explain says why each is no answer, and the key alone takes one",
            others.collect::<Vec<_>>().join(", ")
        ))
    }

    fn flags(&self) -> String {
        self.args.skus.iter().map(|sku| format!(" --sku {sku}")).collect()
    }
}
