//! GPUs: driver, settings, state, and who else uses them.

use super::Check;
use planforge_device::telemetry::{self, Conditions};
use planforge_types::{
    fingerprint::{DiscoveredDevice, GpuFacts},
    telemetry::TelemetrySample,
};
use std::{fs, path::Path};

const AREA: &str = "gpu";
/// Hotter than this a device soon slows down.
const HOT_C: f64 = 83.0;
/// More PCI devices than a host has.
const MAX_PCI: usize = 4096;

/// Checks every GPU of the host.
pub fn checks(devices: &[DiscoveredDevice]) -> Vec<Check> {
    let gpus: Vec<_> = devices.iter().filter_map(|device| Some((device, device.fingerprint.gpu.as_ref()?))).collect();
    if gpus.is_empty() {
        return vec![none(boards(Path::new("/sys/bus/pci/devices")))];
    }
    let mut checks = Vec::new();
    for (device, facts) in gpus {
        let sku = device.skus.first().map(ToString::to_string).unwrap_or_default();
        let seen = format!(
            "{}, {} MiB, compute capability {}, driver {} for CUDA up to {}",
            device.fingerprint.name,
            device.fingerprint.memory_mib,
            facts.compute_capability,
            facts.driver,
            facts.cuda_driver
        );
        checks.push(Check::ok(AREA, format!("{sku} {}", facts.uuid), seen));
        match telemetry::conditions(&facts.uuid) {
            Ok(conditions) => checks.extend(settings(&sku, &conditions)),
            Err(error) => checks.push(
                Check::ok(AREA, format!("{sku} settings"), error.to_string())
                    .warning("its settings cannot be read", "check the driver with nvidia-smi"),
            ),
        }
        checks.extend(virtualised(&sku, facts));
        checks.extend(state(&sku, facts, &telemetry::for_device(&device.fingerprint).sample()));
    }
    checks
}

/// NVIDIA boards on the PCI bus, whether or not a driver knows them.
fn boards(folder: &Path) -> usize {
    let devices = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_PCI);
    let is_board = |path: &Path| {
        let file = |name| fs::read_to_string(path.join(name)).unwrap_or_default();
        // Vendor NVIDIA, class display controller.
        file("vendor").trim() == "0x10de" && file("class").trim().starts_with("0x03")
    };
    devices.filter(|entry| is_board(&entry.path())).count()
}

fn none(boards: usize) -> Check {
    if boards == 0 {
        return Check::ok(AREA, "devices", "none").meaning("this host builds engines for its processor alone");
    }
    Check::ok(AREA, "devices", format!("{boards} NVIDIA boards on the bus, none that the driver tells of")).problem(
        "the driver or its management library (libnvidia-ml.so.1) is missing, too old or mismatched",
        "install the driver; in a container, start it with its NVIDIA runtime and the utility capability",
    )
}

fn settings(sku: &str, conditions: &Conditions) -> Vec<Check> {
    let mut checks = Vec::new();
    let on = |on: bool| if on { "on" } else { "off" };
    if let Some(persistence) = conditions.persistence {
        let check = Check::ok(AREA, format!("{sku} persistence"), on(persistence));
        checks.push(if persistence {
            check
        } else {
            check.warning(
                "the driver unloads between jobs: every start is seconds slower and clocks begin low",
                "an administrator can set it: nvidia-smi -pm 1, or nvidia-persistenced",
            )
        });
    }
    if let Some(mode) = conditions.compute_mode {
        let check = Check::ok(AREA, format!("{sku} compute mode"), mode);
        checks.push(match mode {
            "prohibited" => {
                check.problem("no process may compute on it", "an administrator can set it: nvidia-smi -c 0")
            }
            "default" => check,
            _ => check.meaning("one process at a time: another one's work makes jobs fail rather than slow"),
        });
    }
    if let Some(now) = conditions.ecc {
        let check = Check::ok(AREA, format!("{sku} ecc"), on(now));
        checks.push(if conditions.ecc_pending.is_some_and(|pending| pending != now) {
            check.warning("it changes at the next reset, and bandwidth with it", "reset the device before measuring")
        } else {
            check
        });
    }
    if conditions.pages_pending == Some(true) {
        checks.push(
            Check::ok(AREA, format!("{sku} memory pages"), "some wait to be retired")
                .problem("the memory had errors", "reset the device; replace it if they come back"),
        );
    }
    if let Some(most) = conditions.max_sm_clock_mhz {
        let now = conditions.application_sm_clock_mhz.map_or("not told".to_owned(), |clock| format!("{clock} MHz"));
        checks.push(Check::ok(AREA, format!("{sku} clocks"), format!("application {now}, at most {most} MHz")));
    }
    checks
}

fn virtualised(sku: &str, facts: &GpuFacts) -> Option<Check> {
    let seen = match (&facts.mig, &facts.virtualization) {
        (Some(mig), _) => format!("MIG slice {mig}"),
        (None, Some(kind)) => kind.clone(),
        (None, None) => return None,
    };
    let check = Check::ok(AREA, format!("{sku} partition"), seen);
    Some(check.warning("neighbours may share its memory bandwidth and power", "compare only with like partitions"))
}

fn state(sku: &str, facts: &GpuFacts, sample: &TelemetrySample) -> Vec<Check> {
    let mut checks = Vec::new();
    let listed = |texts: &[String]| if texts.is_empty() { "none".to_owned() } else { texts.join(", ") };
    let clocks = match (sample.sm_clock_mhz, sample.memory_clock_mhz) {
        (Some(sm), Some(memory)) => format!(" at {sm} MHz, memory {memory} MHz"),
        _ => String::new(),
    };
    let check = Check::ok(AREA, format!("{sku} throttling"), format!("{}{clocks}", listed(&sample.throttle)));
    checks.push(if sample.throttle.is_empty() {
        check
    } else {
        check.warning("clocks are held down now", "look after cooling and power; measure when it has passed")
    });
    if let Some(temperature) = sample.temperature_c {
        let check = Check::ok(AREA, format!("{sku} temperature"), format!("{temperature:.0} C"));
        let hot = temperature >= HOT_C;
        checks.push(if hot { check.warning("it soon slows down", "look after cooling") } else { check });
    }
    if let Some(errors) = sample.ecc_uncorrected {
        let seen = format!("{errors} uncorrected since the driver was loaded");
        let check = Check::ok(AREA, format!("{sku} memory errors"), seen);
        checks.push(if errors > 0 {
            check.problem("results may be wrong", "reset the device; replace it if they come back")
        } else {
            check
        });
    }
    if let (Some(limit), Some(usual)) = (sample.power_limit_w, facts.power_limit_w)
        && limit + 0.5 < usual
    {
        checks.push(
            Check::ok(AREA, format!("{sku} power limit"), format!("{limit:.0} W now, {usual:.0} W when it was found"))
                .warning("clocks under load are lower than usual", "compare only with like limits"),
        );
    }
    let others: Vec<String> = sample
        .foreign_processes
        .iter()
        .map(|process| match process.name.as_str() {
            "" => format!("process {}", process.pid),
            name => format!("{name} ({})", process.pid),
        })
        .collect();
    let check = Check::ok(AREA, format!("{sku} other processes"), listed(&others));
    checks.push(if others.is_empty() {
        check
    } else {
        check.warning("they spoil tactic choice and measurements", "give the device to the agent alone")
    });
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;
    use planforge_types::telemetry::ForeignProcess;

    fn worst(checks: &[Check]) -> State {
        checks.iter().map(|check| check.state).max().unwrap()
    }

    #[test]
    fn boards_without_a_driver_are_a_problem() {
        assert_eq!(none(0).state, State::Ok);
        assert_eq!(none(2).state, State::Problem);
        let folder = tempfile::tempdir().unwrap();
        let slots = [("a", "0x10de\n", "0x030200\n"), ("b", "0x10de\n", "0x040300\n"), ("c", "0x8086\n", "0x030000\n")];
        for (slot, vendor, class) in slots {
            let place = folder.path().join(slot);
            fs::create_dir(&place).unwrap();
            fs::write(place.join("vendor"), vendor).unwrap();
            fs::write(place.join("class"), class).unwrap();
        }
        assert_eq!(boards(folder.path()), 1);
    }

    #[test]
    fn settings_are_judged() {
        let good = Conditions {
            persistence: Some(true),
            compute_mode: Some("default"),
            ecc: Some(true),
            ecc_pending: Some(true),
            ..Conditions::default()
        };
        let of = |conditions: Conditions| worst(&settings("x", &conditions));
        assert_eq!(of(good.clone()), State::Ok);
        assert_eq!(of(Conditions { persistence: Some(false), ..good.clone() }), State::Warning);
        assert_eq!(of(Conditions { ecc_pending: Some(false), ..good.clone() }), State::Warning);
        assert_eq!(of(Conditions { compute_mode: Some("prohibited"), ..good.clone() }), State::Problem);
        assert_eq!(of(Conditions { pages_pending: Some(true), ..good }), State::Problem);
    }

    #[test]
    fn a_shared_hot_or_faulty_device_is_told() {
        let calm =
            TelemetrySample { temperature_c: Some(40.0), ecc_uncorrected: Some(0), ..TelemetrySample::default() };
        let of = |sample: TelemetrySample| worst(&state("x", &GpuFacts::default(), &sample));
        assert_eq!(of(calm.clone()), State::Ok);
        assert_eq!(of(TelemetrySample { temperature_c: Some(90.0), ..calm.clone() }), State::Warning);
        assert_eq!(of(TelemetrySample { throttle: vec!["thermal".into()], ..calm.clone() }), State::Warning);
        assert_eq!(of(TelemetrySample { ecc_uncorrected: Some(1), ..calm.clone() }), State::Problem);
        let other = ForeignProcess { pid: 7, name: "game".into(), memory_mib: None };
        let sample = TelemetrySample { foreign_processes: vec![other], ..calm };
        let shared = state("x", &GpuFacts::default(), &sample);
        assert!(shared.iter().any(|check| check.state == State::Warning && check.seen == "game (7)"));
    }
}
