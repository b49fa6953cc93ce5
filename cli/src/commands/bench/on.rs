//! `planforge bench --on`: a stored plan on devices of the farm, wherever it was built.

use super::Args;
use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    portability, reports,
    request::{
        self,
        extras::{Attached, ask_out, readable_inputs},
        models,
    },
    settings::Key,
    tables,
    wait::{self, Waiting},
};
use planforge_proto::{ErrorCode, v1, view::JobView};
use planforge_report::{
    Report,
    compare::portability::{Portability, portability},
};
use planforge_types::{BuildSpec, Digest, Port};
use planforge_worker::verify::given;
use std::{collections::BTreeMap, path::Path};

pub async fn run(context: &Context<'_>, args: &Args) -> Result<(), Failure> {
    let attached = Attached::measuring(&args.measure, args.eval.as_deref())?;
    let named = named(&args.plan)?;
    let need = if args.detach { Need::Lasting } else { Need::Work };
    Farm::with(context, need, async |farm| measure(context, farm, args, named, &attached).await).await
}

/// The digest that the argument stands for: of a plan's bytes, or said as it is.
fn named(plan: &Path) -> Result<Digest, Failure> {
    let text = plan.to_string_lossy();
    if !plan.exists() {
        return text.parse().map_err(|_| {
            Failure::usage(format!("'{text}' is neither a plan file nor a digest"))
                .hint("name a plan file, or a plan digest or engine key in full (planforge engines --json)")
        });
    }
    let (digest, _) = models::hash(plan)?;
    digest.parse().map_err(|e| Failure::new(ErrorCode::Internal, format!("the digest of {text}: {e}")))
}

async fn measure(
    context: &Context<'_>,
    farm: &Farm,
    args: &Args,
    named: Digest,
    attached: &Attached,
) -> Result<(), Failure> {
    let requires = request::requires(&args.requires)?;
    let engine = find(context, farm, named).await?;
    if let Some(inputs) = &args.measure.inputs {
        fits(inputs, &engine)?;
    }
    let request = v1::SubmitRequest {
        idempotency_key: ulid::Ulid::generate().to_string(),
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        skus: args.on.iter().map(ToString::to_string).collect(),
        priority: args.priority.unwrap_or(0),
        wait_for_device: args.wait_for_device,
        requires,
        // It is measured, not handed out: what it gets wrong stands in the report.
        allow_inaccurate: true,
        eval_digest: attached.eval.map(|eval| eval.to_string()).unwrap_or_default(),
        kind: v1::JobKind::Benchmark.into(),
        plan_digest: engine.plan_digest.clone(),
        measure: ask_out(&args.measure.ask()?),
        ..Default::default()
    };
    let reply = request::submit(context, farm, &request, &attached.files).await?;
    let ids: Vec<_> = reply.jobs.iter().map(|job| job.id.clone()).collect();
    if args.detach {
        context.printer.data(&tables::jobs(&reply.jobs, tables::now_ms()))?;
        context.printer.note(&format!("follow with: planforge watch {}", ids.join(" ")));
        return object(context, &reply.request_id, reply.jobs, &BTreeMap::new());
    }
    let jobs = Waiting::new(context.printer, &reply.jobs).finish(farm, &ids, args.patience).await?;
    let mut cells = BTreeMap::new();
    for job in jobs.iter().filter(|job| job.state() == v1::JobState::Succeeded) {
        if job.built_for != job.sku {
            context.printer.warn(&format!("a foreign plan on {}: it was built for {}", job.sku, job.built_for));
        }
        if let Some(report) = reports::find(context, farm, &job.id).await?.first() {
            let cell = portability(report, &portability::own_engines(farm, [report]).await?);
            context.printer.data(&tables::report::render(report, cell.as_ref().map(Portability::words).as_deref()))?;
            cells.extend(cell.map(|cell| (job.id.clone(), cell)));
        }
    }
    let succeeded = wait::tell_failures(context.printer, &jobs);
    object(context, &reply.request_id, jobs, &cells)?;
    if succeeded { Ok(()) } else { Err(Failure::jobs_failed()) }
}

/// Refuses given inputs that do not fit the engine, as far as its newest report and its profile tell what it takes.
fn fits(inputs: &Path, engine: &v1::Engine) -> Result<(), Failure> {
    let spec: Option<BuildSpec> = serde_json::from_str(&engine.spec_json).ok();
    let profile = spec.and_then(|spec| spec.profiles.into_iter().next());
    let Ok(report) = Report::parse(engine.report_json.as_bytes()) else { return readable_inputs(inputs) };
    // Of what varies the report has the sizes that were measured; the profile has all of them.
    let varies = |port: &Port| profile.as_ref().is_some_and(|profile| profile.inputs.contains_key(&port.name));
    let open = |port: Port| match varies(&port) {
        true => Port { shape: vec![None; port.shape.len()], ..port },
        false => port,
    };
    let ports: Vec<Port> = report.inputs.into_iter().map(open).collect();
    given::read(inputs, &ports, profile.as_ref()).map(drop).map_err(|error| {
        let message = format!("{} does not fit the engine: {}", inputs.display(), error.words());
        Failure::usage(message).hint(error.hint())
    })
}

/// The engine whose plan or key `named` is.
async fn find(context: &Context<'_>, farm: &Farm, named: Digest) -> Result<v1::Engine, Failure> {
    let project: String = context.settings.get(Key::Project).unwrap_or_default().into();
    let by = |plan_digest: String, engine_key: String| v1::FindEngineRequest {
        plan_digest,
        engine_key,
        allow_inaccurate: true,
        project: project.clone(),
        ..Default::default()
    };
    for request in [by(named.to_string(), String::new()), by(String::new(), named.to_string())] {
        match farm.rpc().find_engine(request).await.map_err(|e| farm.error(e)) {
            Ok(engine) => return Ok(engine.into_inner()),
            Err(failure) if failure.name == ErrorCode::NotFound.name() => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::new(ErrorCode::NotFound, format!("the farm has no engine of sha256:{}", named.short()))
        .hint("planforge engines lists what is there; a plan that the farm did not build is measured without --on"))
}

/// `cells` is what foreign plans lose, by job.
fn object(
    context: &Context<'_>,
    request_id: &str,
    jobs: Vec<v1::Job>,
    cells: &BTreeMap<String, Portability>,
) -> Result<(), Failure> {
    let jobs: Vec<_> = jobs.into_iter().map(JobView::from).collect();
    context.printer.object(&serde_json::json!({ "request_id": request_id, "jobs": jobs, "portability": cells }))
}
