//! A device is looked at after a failure that may be its own, before anything else runs on it.

use crate::farm::{Bench, eventually};
use planforge_agent::{
    DeviceError, DeviceSource,
    host::lock::{self, Taken},
};
use planforge_proto::v1::{FailureClass, Finished, agent_message::Kind as Said};
use planforge_types::{
    fingerprint::{DeviceFingerprint, DeviceKind, DiscoveredDevice, GpuFacts, HostFacts},
    telemetry::TelemetrySample,
};
use std::{path::PathBuf, sync::Arc};

const GPU: &str = "GPU-1";

/// One scripted GPU, found as long as the file is there.
struct OneGpu {
    found: PathBuf,
}

impl DeviceSource for OneGpu {
    fn devices(&self) -> Result<Vec<DiscoveredDevice>, DeviceError> {
        let fingerprint = DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: "scripted".into(),
            memory_mib: 1024,
            gpu: Some(GpuFacts { uuid: GPU.into(), ..GpuFacts::default() }),
            cpu: None,
            host: HostFacts::default(),
        };
        let skus = vec!["h200-sxm".parse().unwrap()];
        let device =
            DiscoveredDevice { id: GPU.into(), fingerprint, skus, threads: 0, offers: Vec::new(), simulated: true };
        Ok(self.found.exists().then_some(device).into_iter().collect())
    }

    fn telemetry(&self, _: &str) -> Option<TelemetrySample> {
        None
    }
}

/// Fails as a faulty kernel does when `$OUT/faulty` exists.
const MAY_FAULT: &str = r#"
    echo x >> "$OUT/runs"
    if [ -e "$OUT/faulty" ]; then
        rm "$OUT/faulty"
        say '{"event":"failed","class":"infrastructure","message":"the device stopped at a faulty kernel","hint":""}'
        exit 1
    fi
    build
    finish
"#;

/// An agent with one GPU that is looked at by the shell script `check`; `$0` is the device.
async fn bench(check: &str) -> Bench {
    let mut bench = Bench::new(MAY_FAULT).await;
    std::fs::write(bench.path("found"), "").unwrap();
    bench.config.devices = Arc::new(OneGpu { found: bench.path("found") });
    let check = format!("OUT={}; echo \"$0\" >> \"$OUT/checks\"\n{check}", bench.folder.path().display());
    bench.config.check_command = ["sh", "-c", &check].map(Into::into).to_vec();
    bench.config.limits.device_retry_ms = 20;
    bench
}

async fn assign(bench: &Bench, job: &str) {
    let onto_gpu = |assign: &mut planforge_proto::v1::Assign| {
        assign.lease.as_mut().unwrap().device = GPU.into();
        assign.job.as_mut().unwrap().sku = "h200-sxm".into();
    };
    bench.farm.assign_with(job, onto_gpu).await;
}

/// Starts the agent and has its first job fail as if the device were broken.
async fn after_a_fault(bench: &Bench) -> (crate::farm::Running, Finished) {
    std::fs::write(bench.path("faulty"), "").unwrap();
    let agent = bench.start();
    bench.farm.hello(0).await;
    assign(bench, "faulty").await;
    let finished = bench.farm.finished("faulty").await;
    assert_eq!(finished.failure.as_ref().unwrap().class(), FailureClass::Infrastructure);
    (agent, finished)
}

fn checks(bench: &Bench) -> usize {
    std::fs::read_to_string(bench.path("checks")).unwrap_or_default().lines().filter(|line| *line == GPU).count()
}

/// What the newest inventory says of the device: why it cannot be used, if so.
fn newest_word(bench: &Bench) -> Option<Option<String>> {
    bench.farm.said().iter().rev().find_map(|said| match said {
        Said::Inventory(inventory) => {
            let device = inventory.devices.iter().find(|device| device.id == GPU)?;
            Some(device.quarantined.then(|| device.quarantine_reason.clone()))
        }
        _ => None,
    })
}

#[tokio::test]
async fn a_device_that_is_fine_after_a_fault_serves_the_next_job() {
    let bench = bench("exit 0").await;
    let (_agent, finished) = after_a_fault(&bench).await;
    assert_eq!(checks(&bench), 1, "before the end of the job was told");
    assert!(bench.farm.log_of(&finished).await.contains("looked at again and can be used"));
    assign(&bench, "next").await;
    assert_eq!(bench.farm.finished("next").await.outcome, "succeeded");
    assert_eq!((newest_word(&bench), checks(&bench)), (None, 1), "nothing changed, and nothing failed again");
}

#[tokio::test]
async fn a_broken_device_gets_no_jobs_until_it_can_be_used_again() {
    let bench = bench(r#"[ -e "$OUT/mended" ] && exit 0; echo "cuInit says" >&2; echo "error 999" >&2; exit 1"#).await;
    let (_agent, finished) = after_a_fault(&bench).await;
    assert!(bench.farm.log_of(&finished).await.contains("cannot be used: error 999"));
    let said = bench.farm.said();
    let told = said.iter().position(|s| matches!(s, Said::Inventory(_))).expect("an inventory");
    let ended = said.iter().position(|s| matches!(s, Said::Finished(_))).expect("an end");
    assert!(told < ended, "known before the job's lease ends");
    assert_eq!(newest_word(&bench), Some(Some("error 999".into())));
    assign(&bench, "refused").await;
    let refused = bench.farm.finished("refused").await.failure.unwrap();
    assert_eq!(refused.class(), FailureClass::Infrastructure);
    assert!(refused.message.contains(GPU) && refused.message.contains("error 999"), "{refused:?}");
    eventually("it is looked at again", || (checks(&bench) > 2).then_some(())).await;
    assert_eq!(std::fs::read_to_string(bench.path("runs")).unwrap(), "x\n", "no worker ran on it");
    std::fs::write(bench.path("mended"), "").unwrap();
    eventually("it is offered again", || (newest_word(&bench) == Some(None)).then_some(())).await;
    assign(&bench, "next").await;
    assert_eq!(bench.farm.finished("next").await.outcome, "succeeded");
}

#[tokio::test]
async fn a_device_that_does_not_answer_is_given_up_in_time() {
    let mut bench = bench(r#"echo $$ > "$OUT/stuck"; trap '' TERM; while :; do sleep 0.1; done"#).await;
    bench.config.limits.device_check_ms = 300;
    bench.config.limits.device_retry_ms = 3_600_000;
    let (_agent, _) = after_a_fault(&bench).await;
    assert_eq!(newest_word(&bench), Some(Some("the device did not answer within 0.3 s".into())));
    let stuck = std::fs::read_to_string(bench.path("stuck")).unwrap().trim().parse().unwrap();
    let gone = || planforge_agent::host::proc::ProcessId::of(stuck).is_none().then_some(());
    eventually("whoever asked is dead", gone).await;
    let free = || matches!(lock::try_take(&bench.config.lock_dir, GPU).unwrap(), Taken::Ours(_)).then_some(());
    eventually("the device is nobody's", free).await;
}

#[tokio::test]
async fn a_device_that_is_not_found_any_more_is_said_to_be_gone() {
    let bench = bench("exit 0").await;
    std::fs::write(bench.path("faulty"), "").unwrap();
    let _agent = bench.start();
    bench.farm.hello(0).await;
    std::fs::remove_file(bench.path("found")).unwrap();
    assign(&bench, "faulty").await;
    bench.farm.finished("faulty").await;
    assert_eq!(newest_word(&bench), Some(Some("the device is not found any more".into())));
    assert_eq!(checks(&bench), 0, "there is nothing to ask");
    std::fs::write(bench.path("found"), "").unwrap();
    eventually("it is back", || (newest_word(&bench) == Some(None)).then_some(())).await;
}

#[tokio::test]
async fn a_failure_of_the_model_says_nothing_of_the_device() {
    let mut bench = bench("exit 1").await;
    let refuse = r#"say '{"event":"failed","class":"model","message":"no such operator","hint":""}'; exit 1"#;
    let script = bench.config.worker_command.pop().unwrap().into_string().unwrap().replace(MAY_FAULT, refuse);
    bench.config.worker_command.push(script.into());
    let _agent = bench.start();
    bench.farm.hello(0).await;
    assign(&bench, "j1").await;
    assert_eq!(bench.farm.finished("j1").await.failure.unwrap().class(), FailureClass::Model);
    assert_eq!((checks(&bench), newest_word(&bench)), (0, None));
}
