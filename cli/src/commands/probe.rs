//! `planforge probe`: what this machine's GPU reaches, measured now; needs no farm. What was found is kept for the
//! reports of this machine's farm and of `bench`, whose layers are held against it.

use crate::{backends, context::Context, failure::Failure, local::ceilings_folder};
use planforge_agent::HostDevices;
use planforge_cuda::{
    probe::{self, Launches, Probe, Transfers},
    runtime::RuntimeError,
    versions::Versions,
};
use planforge_device::telemetry::{self, Telemetry, contention};
use planforge_kernels_cuda::device::{DeviceError, Gpu};
use planforge_proto::ErrorCode;
use planforge_types::{
    fingerprint::{DeviceFingerprint, DeviceKind},
    shown,
};
use planforge_worker::job::CeilingStore;
use std::{fmt::Write as _, time::Instant};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// GPU by its UUID, as nvidia-smi -L lists it; the first one otherwise
    #[arg(long, value_name = "GPU-UUID")]
    gpu: Option<String>,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    // Opened before the device is, so that this process is told from others on it.
    let mut watched = watched();
    let gpu = match &args.gpu {
        Some(uuid) => Gpu::open_uuid(uuid),
        None => Gpu::open(0),
    };
    let gpu = gpu.map_err(|error| no_gpu(&error))?;
    let spinner = context.printer.spinner(&format!("measuring {}", gpu.properties().name));
    let of_gpu = |(device, _): &&mut Watched| {
        device.gpu.as_ref().is_some_and(|facts| gpu.has_uuid(&facts.uuid).unwrap_or(false))
    };
    let mut watched = watched.iter_mut().find(of_gpu);
    let (before, began) = (watched.as_mut().map(|(_, telemetry)| telemetry.sample()), Instant::now());
    let probe = Probe::measure(&gpu);
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    let after = watched.as_mut().map(|(_, telemetry)| telemetry.sample());
    spinner.clear();
    let probe = probe.map_err(|error| failed(&error))?;
    context.printer.data(&text(&probe))?;
    if let (Some((device, _)), Some(before), Some(after)) = (watched, before, after) {
        let disturbed = contention::assess(&before, &after, took_ms, 1);
        for reason in &disturbed {
            context.printer.warn(&format!("the rates may be too low, and are not kept for reports: {reason}"));
        }
        keep(context, device, &probe, disturbed);
    }
    context.printer.object(&probe)
}

/// A device as reports describe it, and its state.
type Watched = (DeviceFingerprint, Box<dyn Telemetry>);

/// The GPUs that NVML lists.
fn watched() -> Vec<Watched> {
    let devices = HostDevices::new(backends::compilers(), None).discover();
    let gpus = devices.into_iter().map(|device| device.fingerprint).filter(|device| device.kind == DeviceKind::Gpu);
    gpus.map(|device| (device.clone(), telemetry::for_device(&device))).collect()
}

/// Keeps the rates for reports; the command has told them all the same.
fn keep(context: &Context<'_>, device: &DeviceFingerprint, probe: &Probe, disturbed: Vec<String>) {
    let Some(folder) = ceilings_folder(&context.settings) else { return };
    let store = CeilingStore::new(&folder, device);
    let ceilings = store.dated(probe::conditions(&Versions::here()), probe.rates(), disturbed);
    if let Err(error) = store.keep(&ceilings) {
        context.printer.warn(&format!("the rates cannot be kept for reports in {}: {error}", folder.display()));
    }
}

fn no_gpu(error: &DeviceError) -> Failure {
    let hint = match error {
        DeviceError::NoSuchDevice { .. } => "see nvidia-smi -L for the UUIDs",
        _ => "planforge doctor says which NVIDIA libraries are there",
    };
    Failure::new(ErrorCode::Unavailable, error.to_string()).hint(hint)
}

fn failed(error: &RuntimeError) -> Failure {
    let failure = Failure::new(ErrorCode::Internal, format!("the probe ended early: {error}"));
    failure.hint("look whether another process uses the GPU: planforge doctor, nvidia-smi")
}

fn text(probe: &Probe) -> String {
    let mut text = format!("device               {}\n", shown::line(&probe.device));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<20} {value}");
    };
    line("copy", format!("{:.0} GB/s read and written", probe.copy_gb_s));
    for peak in &probe.products {
        let unit = if peak.element.starts_with("int") { "TOP/s" } else { "TFLOP/s" };
        let value = peak.tflop_s.map_or_else(|| "not here".into(), |rate| format!("{rate:.0} {unit}"));
        line(&format!("products {}", peak.element), value);
    }
    let Transfers {
        to_device_pinned_gb_s,
        from_device_pinned_gb_s,
        to_device_pageable_gb_s,
        from_device_pageable_gb_s,
    } = probe.transfers;
    line("to the device", format!("{to_device_pinned_gb_s:.1} GB/s pinned, {to_device_pageable_gb_s:.1} pageable"));
    line(
        "from the device",
        format!("{from_device_pinned_gb_s:.1} GB/s pinned, {from_device_pageable_gb_s:.1} pageable"),
    );
    match &probe.launches {
        Some(Launches { kernel_round_trip_us, kernel_queued_us, graph_round_trip_us, graph_kernel_us }) => {
            line("kernel", format!("{kernel_round_trip_us:.1} us there and back, {kernel_queued_us:.2} us queued"));
            line("graph", format!("{graph_round_trip_us:.1} us there and back, {graph_kernel_us:.2} us a kernel"));
        }
        None => {
            let reason = probe.launches_missing.as_deref().unwrap_or("no kernel can be compiled");
            line("launches", format!("not measured: {reason}"));
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_cuda::probe::Peak;

    #[test]
    fn what_is_missing_is_said() {
        let transfers = Transfers {
            to_device_pinned_gb_s: 55.2,
            from_device_pinned_gb_s: 54.9,
            to_device_pageable_gb_s: 9.1,
            from_device_pageable_gb_s: 8.0,
        };
        let peak = |element: &str, tflop_s| Peak { element: element.into(), tflop_s };
        let products = vec![peak("fp16", Some(790.2)), peak("int8", Some(1500.0)), peak("fp8-e4m3", None)];
        let probe = Probe {
            device: "GPU".into(),
            copy_gb_s: 4300.0,
            products,
            transfers,
            launches: None,
            launches_missing: Some("NVRTC was not found".into()),
        };
        insta::assert_snapshot!(text(&probe), @r"
        device               GPU
        copy                 4300 GB/s read and written
        products fp16        790 TFLOP/s
        products int8        1500 TOP/s
        products fp8-e4m3    not here
        to the device        55.2 GB/s pinned, 9.1 pageable
        from the device      54.9 GB/s pinned, 8.0 pageable
        launches             not measured: NVRTC was not found
        ");
    }
}
