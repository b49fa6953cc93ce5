//! `planforge devices`: what the farm can build for; the last column is the flag to paste.

#[cfg(feature = "local")]
use crate::{backends, local::state_folder, request::host_name};
use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    tables,
};
#[cfg(feature = "local")]
use planforge_agent::HostDevices;
use planforge_proto::{v1, view::DeviceView};
#[cfg(feature = "local")]
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave out devices whose agent is away
    #[arg(long)]
    online: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let found = Farm::with(context, Need::Answers, async |farm| {
        let devices = farm.rpc().list_devices(v1::ListDevicesRequest { online_only: false }).await;
        let devices = devices.map_err(|e| farm.error(e))?.into_inner().devices;
        Ok((devices, farm.is_embedded().await?))
    });
    let (mut devices, embedded) = found.await?;
    #[cfg(feature = "local")]
    if embedded {
        devices = with_those_here(devices, scan(state_folder(&context.settings.data_folder()?)).await?);
    }
    devices.retain(|device| device.online || !args.online);
    if devices.is_empty() {
        context.printer.note("no devices: no agent has joined yet");
    } else {
        context.printer.data(&tables::devices(&devices, embedded))?;
    }
    let devices: Vec<Listed> = devices.into_iter().map(|device| Listed { device: device.into(), embedded }).collect();
    context.printer.object(&serde_json::json!({ "devices": devices }))
}

/// A device, and whether the farm that has it is a command's own, whose agent comes and goes with its builds.
#[derive(serde::Serialize)]
struct Listed {
    #[serde(flatten)]
    device: DeviceView,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    embedded: bool,
}

/// Looks at this machine as its agent would. `state` is where that keeps slow findings.
#[cfg(feature = "local")]
async fn scan(state: PathBuf) -> Result<Vec<v1::Device>, Failure> {
    let look = move || HostDevices::new(backends::compilers(), Some(state)).describe(&host_name());
    tokio::task::spawn_blocking(look).await.map_err(|error| {
        Failure::new(planforge_proto::ErrorCode::Internal, format!("looking for devices ended badly: {error}"))
    })
}

/// The farm's devices, with those of this machine as they are `here` now: what a build remembered of them may be out of
/// date, and its agent has ended with it. One that works is told as the farm knows it.
#[cfg(feature = "local")]
fn with_those_here(known: Vec<v1::Device>, here: Vec<v1::Device>) -> Vec<v1::Device> {
    let is_here = |device: &v1::Device| here.iter().any(|other| other.agent == device.agent);
    let works = |device: &v1::Device| {
        known.iter().any(|other| other.online && (&other.agent, &other.id) == (&device.agent, &device.id))
    };
    let found: Vec<_> = here.iter().filter(|device| !works(device)).cloned().collect();
    known.iter().filter(|device| device.online || !is_here(device)).cloned().chain(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(agent: &str, id: &str, online: bool, busy: &str) -> v1::Device {
        v1::Device { agent: agent.into(), id: id.into(), online, busy_job: busy.into(), ..Default::default() }
    }

    #[test]
    fn what_is_here_takes_the_place_of_what_was_known_unless_that_works() {
        let known = [
            device("me", "cpu0", false, ""),
            device("me", "gone", false, ""),
            device("me", "gpu0", true, "job"),
            device("you", "cpu0", false, ""),
        ];
        let here = ["cpu0", "gpu0", "gpu1"].map(|id| device("me", id, true, ""));
        let listed = with_those_here(known.to_vec(), here.to_vec());
        let told: Vec<_> = listed.iter().map(|d| (&*d.agent, &*d.id, d.online, &*d.busy_job)).collect();
        let expected = [
            ("me", "gpu0", true, "job"),
            ("you", "cpu0", false, ""),
            ("me", "cpu0", true, ""),
            ("me", "gpu1", true, ""),
        ];
        assert_eq!(told, expected);
    }
}
