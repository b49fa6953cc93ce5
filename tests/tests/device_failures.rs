//! Errors of a device, as its driver tells them: what is measured again, what ends a job, and that the agent lives on.

use planforge_tests::{
    eventually,
    farm::{Farm, Link, id_of},
    fleet::{Host, HostLimits},
    models,
    scripted::{Script, Step},
};
use serde_json::Value;
use std::collections::BTreeMap;

const SKU: &str = "t4";

struct Case {
    farm: Farm,
    host: Host,
    models: u32,
}

impl Case {
    fn start() -> Self {
        let farm = Farm::start(Link::Loopback);
        // Windows may be discarded in the first half of the budget: far longer than a measurement takes.
        let limits = HostLimits { measure_budget_ms: 30_000, ..HostLimits::default() };
        let host = Host::start(&farm, SKU, &["10.13.3.9"], limits);
        farm.wait_agents(1);
        Self { farm, host, models: 0 }
    }

    /// What the board's driver tells from the next job on: some quiet samples, `step` once, then quiet again.
    fn tell(&self, quiet: u32, step: Step, broken: Option<&str>) {
        let silent_for_ever = step.silent;
        let mut telemetry =
            vec![Step { samples: quiet, ..Step::default() }, Step { samples: 1, ..step.clone() }, Step::default()];
        if silent_for_ever {
            telemetry.pop();
        }
        let broken: BTreeMap<_, _> = broken.map(|reason| (SKU.to_owned(), reason.to_owned())).into_iter().collect();
        Script { telemetry, broken, ..Script::healthy(SKU) }.write(&self.host.script);
    }

    fn submit(&mut self) -> String {
        self.models += 1;
        let file = self.farm.path().join(format!("m{}.onnx", self.models));
        let model = models::named_convolutions(&file, "plain", 2, 4, 8, 900 + self.models);
        id_of(&self.farm.submit(&model, &["--sku", SKU])[0])
    }

    fn detail(&self, id: &str) -> Value {
        self.farm.json(&["jobs", id])["jobs"][0].clone()
    }

    fn device(&self) -> Value {
        let devices = self.farm.json(&["devices"]);
        let all = devices["devices"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|device| device["skus"][0] == SKU).unwrap_or(Value::Null)
    }

    fn attempts(job: &Value) -> usize {
        job["attempts"].as_array().map_or(0, Vec::len)
    }
}

#[test]
fn disturbed_windows_are_measured_again_and_the_job_succeeds() {
    let mut case = Case::start();
    for (step, words) in [
        (Step { xids: vec![31], ..Step::default() }, "Xid 31"),
        (Step { throttle: vec!["hardware-thermal".into()], ..Step::default() }, "hardware-thermal"),
        (Step { foreign: vec!["python3".into()], ..Step::default() }, "python3"),
        (Step { ecc_uncorrected: 2, ..Step::default() }, "2 uncorrected"),
    ] {
        case.tell(1, step, None);
        let id = case.submit();
        let job = case.farm.wait_ended(&id);
        assert_eq!(job["state"], "succeeded", "{words}: {job}");
        let report = case.farm.json(&["report", &id]).to_string();
        assert!(report.contains(words) && report.contains("measured again"), "{words}: {report}");
    }
}

/// No job runs: what the driver tells between jobs has the device looked at too.
#[test]
fn an_idle_device_that_is_lost_is_set_aside_until_it_can_be_used_again() {
    let case = Case::start();
    let reason = "the driver asks for a reset of this GPU";
    let tells = |xid: u64, broken: Option<&str>| {
        let broken = broken.map(|reason| (SKU.to_owned(), reason.to_owned())).into_iter().collect();
        let telemetry = vec![Step { xids: vec![xid], ..Step::default() }];
        Script { telemetry, broken, ..Script::healthy(SKU) }.write(&case.host.script);
    };
    tells(79, Some(reason));
    let device = eventually("the device is set aside", || {
        let device = case.device();
        if device["quarantined"] == true { Ok(device) } else { Err(device.to_string()) }
    });
    assert!(device["quarantine_reason"].as_str().is_some_and(|told| told.contains(reason)), "{device}");
    // The look decides, not the error alone; an error of somebody's kernel is no reason to look.
    for xid in [79, 31] {
        tells(xid, None);
        eventually("the device can be used again", || {
            let device = case.device();
            if device["quarantined"] == false { Ok(()) } else { Err(device.to_string()) }
        });
    }
}

#[test]
fn a_lost_device_ends_the_job_and_gets_none_until_it_can_be_used_again() {
    let mut case = Case::start();
    for (step, words) in [
        (Step { xids: vec![79], ..Step::default() }, "Xid 79"),
        (Step { silent: true, ..Step::default() }, "no longer does"),
    ] {
        let reason = format!("the driver answers with error 15 after {words}");
        case.tell(1, step, Some(&reason));
        let id = case.submit();
        let device = eventually("the device is set aside", || {
            let device = case.device();
            if device["quarantined"] == true { Ok(device) } else { Err(device.to_string()) }
        });
        assert!(device["quarantine_reason"].as_str().is_some_and(|told| told.contains(&reason)), "{device}");
        case.farm.wait_job(&id, "waits for a device", |job| job["state"] == "queued");
        assert_eq!(Case::attempts(&case.detail(&id)), 1);
        // Once the device is mended the same job is tried again, by the same agent.
        Script::healthy(SKU).write(&case.host.script);
        let job = case.farm.wait_ended(&id);
        assert_eq!(job["state"], "succeeded", "{job}");
        let job = case.detail(&id);
        assert_eq!(Case::attempts(&job), 2, "{job}");
        assert!(job["attempts"].to_string().contains(words), "the first attempt's reason is kept: {job}");
        assert_eq!(case.device()["quarantined"], false);
    }
}
