//! Waiting for a device's lock on this host: what a dead agent left on it is killed, and who else has it is named.

use super::{Attempt, Failed, log::AttemptLog};
use crate::host::{
    lock::{self, DeviceLock, Holder, LockError, Taken},
    proc,
};
use planforge_client::blocking::blocking;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a held device is tried again, and how soon after its orphans were killed.
const DEVICE_RETRY: Duration = Duration::from_millis(500);
const ORPHAN_RETRY: Duration = Duration::from_millis(20);

impl Attempt {
    /// Takes the attempt's device and every other one of this host, once nobody uses any: a compile job keeps the cores
    /// busy, which would show in what is measured beside it. Whoever comes meanwhile waits for it as for any other holder.
    pub(super) async fn take_host(
        &self,
        marker: &str,
        log: &AttemptLog,
    ) -> Result<(DeviceLock, Vec<DeviceLock>), Failed> {
        let give_up = Instant::now() + Duration::from_millis(self.shared.limits.device_wait_ms);
        let mut told = false;
        loop {
            let own = self.take_device(marker, log).await?;
            let (folder, device, holder) =
                (self.shared.lock_folder.clone(), self.device.id.clone(), self.holder(marker));
            let taken = blocking(move || lock::try_take_others(&folder, &device, &holder));
            let busy = match taken.await? {
                Ok(others) => return Ok((own, others)),
                Err(busy) => busy,
            };
            // Held while it waits, it would keep others from a device that it does not use.
            drop(own);
            let detail = format!("a compile job runs beside nothing else of its host, and a device is used by {busy}");
            if Instant::now() >= give_up {
                return Err(Failed::infrastructure(detail).with_hint("submit again when the host is free"));
            }
            if !std::mem::replace(&mut told, true) {
                log.note(&format!("waiting: {detail}"));
            }
            self.phase("wait", 0.0, detail).await;
            sleep(DEVICE_RETRY).await;
        }
    }

    /// What this attempt says of itself in the lock file.
    pub(super) fn holder(&self, marker: &str) -> Holder {
        Holder {
            agent: self.shared.process,
            agent_name: self.shared.agent_name.clone(),
            job: self.key.job.clone(),
            marker: marker.to_owned(),
            worker: None,
            pid_namespace: proc::pid_namespace(),
        }
    }

    /// Takes the device's lock, once nobody else of this host has it. The farm sees at once whom it waits for; after a few
    /// seconds the agent's log and the attempt's say so too, and again when it is somebody else.
    pub(super) async fn take_device(&self, marker: &str, log: &AttemptLog) -> Result<DeviceLock, Failed> {
        let began = Instant::now();
        let give_up = began + Duration::from_millis(self.shared.limits.device_wait_ms);
        let tell_from = began + Duration::from_millis(self.shared.limits.device_wait_told_ms);
        let mut told = None;
        loop {
            let (folder, device) = (self.shared.lock_folder.clone(), self.device.id.clone());
            let taken = blocking(move || {
                let taken = lock::try_take(&folder, &device)?;
                let holder = if let Taken::Busy(busy) = &taken { busy.holder.as_ref() } else { None };
                let orphaned = holder.is_some_and(Holder::kill_if_orphaned);
                Ok::<_, LockError>((taken, orphaned))
            });
            let (held, orphaned) = match taken.await? {
                (Taken::Ours(lock), _) => {
                    lock.name_holder(&self.holder(marker))?;
                    if told.is_some() {
                        let waited_s = began.elapsed().as_secs();
                        log.note(&format!("device {} is free after {waited_s} s", self.device.id));
                    }
                    return Ok(lock);
                }
                (Taken::Busy(busy), orphaned) => (busy.to_string(), orphaned),
            };
            let detail = format!("device {} of this host is used by {held}", self.device.id);
            if Instant::now() >= give_up {
                let hint = "end that process, or wait until it is done and submit again";
                return Err(Failed::infrastructure(detail).with_hint(hint));
            }
            if Instant::now() >= tell_from && told.as_ref() != Some(&held) {
                tracing::warn!(device = self.device.id, %held, "waiting for a device that somebody else of this host uses");
                log.note(&format!("waiting: {detail}"));
                told = Some(held);
            }
            self.phase("wait", 0.0, detail).await;
            sleep(if orphaned { ORPHAN_RETRY } else { DEVICE_RETRY }).await;
        }
    }
}
