//! From the command line, once it is parsed, to the command that does it.

#[cfg(feature = "local")]
use crate::commands::{
    admin, agent, bench, coordinator, doctor, eval, explain, inspect, ops, prepare, probe, run, testmodel, token, up,
};
use crate::{
    cli::{Cli, Command},
    commands::{
        agents, audit, best, build, caches, cancel, check, compare, completions, config, devices, diff, engines,
        events, fetch, gc, history, jobs, login, logs, man_pages, matrix, open, pause, pins, plugins, priority,
        projects, refresh, report, requests, retry, share, submit, sync, watch,
    },
    context::Context,
    failure::Failure,
    printer::Printer,
    settings::{Key, Settings},
    telemetry::{self, Service},
    traces,
};

/// Runs the command that was asked for.
pub fn dispatch(parsed: Cli, printer: &Printer) -> Result<(), Failure> {
    let settings = Settings::of_process(parsed.global.layer())?;
    let context = Context { printer, settings, verbose: parsed.global.verbose };
    let service = match parsed.command {
        #[cfg(feature = "local")]
        Command::Up(_) | Command::Coordinator(_) | Command::Agent(_) => Service::Yes,
        _ => Service::No,
    };
    if service == Service::Yes {
        // What a service writes is its user's business: models, plans, tokens, keys.
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
    telemetry::start(&context.settings, context.verbose, service)?;
    if service == Service::Yes && context.settings.get(Key::LogFormat) == Some("json") {
        printer.say_as_log();
    }
    #[cfg(feature = "otlp")]
    let _exporter = traces::export(printer);
    let result = run_command(parsed.command, &context);
    traces::ended(result.as_ref().err().map(Failure::to_string));
    result
}

fn run_command(command: Command, context: &Context<'_>) -> Result<(), Failure> {
    match command {
        #[cfg(feature = "local")]
        Command::Up(args) => context.block_on(up::run(context, args)),
        #[cfg(feature = "local")]
        Command::Coordinator(args) => context.block_on(coordinator::run(context, args)),
        #[cfg(feature = "local")]
        Command::Agent(args) => context.block_on(agent::run(context, args)),
        Command::Report(args) => context.block_on(report::run(context, args)),
        Command::Compare(args) => compare::run(context, args),
        Command::Best(args) => context.block_on(best::run(context, args)),
        Command::Matrix(args) => context.block_on(matrix::run(context, args)),
        #[cfg(feature = "local")]
        Command::Inspect(args) => inspect::run(context, args),
        #[cfg(feature = "local")]
        Command::Explain(args) => explain::run(context, args),
        #[cfg(feature = "local")]
        Command::Bench(args) => bench::run(context, args),
        #[cfg(feature = "local")]
        Command::Run(args) => run::run(context, args),
        #[cfg(feature = "local")]
        Command::Prepare(args) => prepare::run(context, args),
        #[cfg(feature = "local")]
        Command::Eval(args) => eval::run(context, args),
        #[cfg(feature = "local")]
        Command::Testmodel(args) => testmodel::run(context, args),
        Command::Build(args) => build::run(context, args),
        Command::Submit(args) => submit::run(context, args),
        Command::Retry(args) => context.block_on(retry::run(context, args)),
        Command::Fetch(args) => fetch::run(context, args),
        Command::Sync(args) => context.block_on(sync::run(context, args)),
        Command::Check(args) => context.block_on(check::run(context, args)),
        Command::Diff(args) => context.block_on(diff::run(context, args)),
        Command::Config(args) => config::run(context, args),
        Command::Pins(args) => context.block_on(pins::run(context, args)),
        Command::Share(args) => context.block_on(share::run(context, args)),
        Command::Jobs(args) => context.block_on(jobs::run(context, args)),
        Command::Requests(args) => context.block_on(requests::run(context, args)),
        Command::Events(args) => context.block_on(events::run(context, args)),
        Command::Watch(args) => context.block_on(watch::run(context, args)),
        Command::Logs(args) => context.block_on(logs::run(context, args)),
        Command::Cancel(args) => context.block_on(cancel::run(context, args)),
        Command::Priority(args) => context.block_on(priority::run(context, args)),
        Command::Refresh(args) => context.block_on(refresh::run(context, args)),
        Command::Devices(args) => context.block_on(devices::run(context, args)),
        Command::Agents(args) => context.block_on(agents::run(context, args)),
        Command::Projects(args) => context.block_on(projects::run(context, args)),
        Command::Gc(args) => context.block_on(gc::run(context, args)),
        Command::Audit(args) => context.block_on(audit::run(context, args)),
        #[cfg(feature = "local")]
        Command::Admin(args) => context.block_on(admin::run(context, args)),
        #[cfg(feature = "local")]
        Command::Doctor(args) => doctor::run(context, args),
        Command::Engines(args) => context.block_on(engines::run(context, args)),
        Command::History(args) => context.block_on(history::run(context, args)),
        Command::Caches(args) => context.block_on(caches::run(context, args)),
        #[cfg(feature = "local")]
        Command::Probe(args) => probe::run(context, args),
        #[cfg(feature = "local")]
        Command::Ops(args) => ops::run(context, args),
        Command::Pause(args) => context.block_on(pause::run(context, args)),
        Command::Resume(args) => context.block_on(pause::resume(context, args)),
        Command::Plugins(args) => context.block_on(plugins::run(context, args)),
        Command::Login(args) => context.block_on(login::run(context, args)),
        Command::Logout(args) => login::log_out(context, args),
        Command::Open(args) => context.block_on(open::run(context, args)),
        #[cfg(feature = "local")]
        Command::Token(args) => context.block_on(token::run(context, args)),
        #[cfg(feature = "local")]
        Command::Worker
        | Command::CheckDevice { .. }
        | Command::RunSteps { .. }
        | Command::CompileKernels
        | Command::TimeCandidates => {
            unreachable!("main runs what agents and workers start")
        }
        Command::Completions(args) => completions::run(context, args, Cli::grammar()),
        Command::ManPages(args) => man_pages::run(args, Cli::grammar()),
    }
}
