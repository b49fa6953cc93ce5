//! `planforge doctor`: what this machine has, what is wrong with it and what to do. Sets nothing.

use crate::{
    backends,
    context::Context,
    doctor::{Check, State, farm, gpu, host, libraries, locks, room, selftest, toolchains},
    failure::Failure,
    printer::{Ink, Line},
    tables,
};
use planforge_agent::HostDevices;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave out the self-test: a real build and benchmark with every TensorRT found
    #[arg(long)]
    no_self_test: bool,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let spinner = context.printer.spinner("looking at devices and toolchains");
    let devices = HostDevices::new(backends::compilers(), None).discover();
    let has_gpu = devices.iter().any(|device| device.fingerprint.gpu.is_some());
    let cpu = devices.iter().find(|device| device.fingerprint.cpu.is_some()).map(|device| &device.fingerprint);
    let mut checks = host::checks(cpu, has_gpu);
    checks.push(locks::check());
    let mut folders = vec![("scratch", std::env::temp_dir())];
    match context.settings.data_folder() {
        Ok(folder) => folders.push(("data", folder)),
        Err(failure) => {
            let check = Check::ok("disk", "data", failure.to_string());
            checks.push(check.problem("engines have no place on this machine", failure.hint));
        }
    }
    checks.extend(room::checks(&folders));
    checks.extend(gpu::checks(&devices));
    checks.extend(libraries::checks(has_gpu));
    checks.extend(toolchains::checks(&devices));
    let mut of_farm = Vec::new();
    context.block_on(async {
        of_farm = farm::checks(context).await;
        Ok(())
    })?;
    checks.extend(of_farm);
    spinner.clear();
    if !args.no_self_test {
        checks.extend(selftest::checks(context, &devices));
    }
    print(context, &checks)
}

fn print(context: &Context<'_>, checks: &[Check]) -> Result<(), Failure> {
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let (problems, warnings) = (count(State::Problem), count(State::Warning));
    let mut lines: Vec<Line> = Vec::new();
    for check in checks {
        let seen = format!("  {:<10}  {}: {}", check.area, check.name, check.seen);
        lines.push(match check.state {
            State::Ok => format!("ok     {seen}").into(),
            State::Warning => Line::labelled(Ink::Warn, "warning", seen),
            State::Problem => Line::labelled(Ink::Bad, "problem", seen),
        });
        if !check.meaning.is_empty() {
            lines.push(format!("{:21}{}", "", check.meaning).into());
        }
        if !check.action.is_empty() {
            lines.push(format!("{:21}to do: {}", "", check.action).into());
        }
    }
    lines.push(format!("{} checks, {warnings} warnings, {problems} problems", checks.len()).into());
    context.printer.lines(lines)?;
    context.printer.object(&serde_json::json!({
        "at_ms": tables::now_ms(),
        "problems": problems,
        "warnings": warnings,
        "checks": checks,
    }))?;
    if problems > 0 { Err(Failure::problems_found()) } else { Ok(()) }
}
