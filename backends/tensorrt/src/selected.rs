//! Did the tool run on the device that was leased?
//!
//! A process is shown its own device alone, by `CUDA_VISIBLE_DEVICES`; what undoes that (a wrapper around the tool, a
//! library that sets the variable again, a board that changed its place) is seen only in the log. From TensorRT 10.0 on
//! the log has the device's UUID, which is proof. Before, name, compute capability and number of SMs must be the lease's:
//! two boards of one kind are then the same to us, and to whoever uses the engine.
//!
//! # What is not refused
//!
//! - **Slices and virtual GPUs.** Nobody here has seen what the tool prints on them. It writes `GPU-` before any UUID, so
//!   the slice's own digits count whatever stands before them, and other digits may be those of the board around it. Where
//!   the UUID does not settle it, the description does: the board's name, alone or with the slice's profile, and the
//!   slice's own SMs. The report says so.
//! - **A log that does not say.** A version that words its log anew would otherwise stop a farm of devices that are right.
//!   The result is kept, with a warning in its report.

use crate::log::DeviceFacts;
use planforge_report::Finding;
use planforge_tensorrt_rules::version::Version;
use planforge_types::fingerprint::{DeviceFingerprint, GpuFacts};

/// First version that prints the UUID of what it selected.
const PRINTS_UUID: Version = Version::new(10, 0, 0);

/// Code of the finding that a run's device could not be confirmed.
const UNCONFIRMED: &str = "device-unconfirmed";

/// The tool ran on another device than the one that was leased.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("trtexec ran on {selected}, not on the leased {leased}")]
pub struct OtherDevice {
    selected: String,
    leased: String,
}

/// Holds what a run's log says of its device to the lease. What is said and agrees, but is no proof, is a finding.
pub fn hold(leased: &DeviceFingerprint, said: &DeviceFacts, version: Version) -> Result<Option<Finding>, OtherDevice> {
    let Some(gpu) = &leased.gpu else {
        return Ok(Some(Finding::warning(UNCONFIRMED, "the lease names no GPU to hold trtexec's log to")));
    };
    let other = || Err(OtherDevice { selected: of_log(said), leased: of_lease(leased, gpu) });
    let part = is_part(gpu);
    let uuid = said.uuid.as_deref().filter(|_| !gpu.uuid.is_empty());
    match uuid {
        Some(uuid) if digits(uuid) == digits(&gpu.uuid) => return Ok(None),
        Some(_) if !part => return other(),
        _ => {}
    }
    let agree = [
        said.name.as_deref().map(|name| is_named(name, leased, gpu)),
        said.compute_capability.map(|(major, minor)| gpu.compute_capability == format!("{major}.{minor}")),
        said.sm_count.map(|sms| gpu.sm_count.is_none_or(|leased| leased == sms)),
    ];
    if agree.contains(&Some(false)) {
        return other();
    }
    if let Some(uuid) = uuid {
        let (name, uuid) = (&leased.name, cut(uuid));
        let message = format!(
            "trtexec names its device {uuid}, where {} of {name} was leased; name, compute capability and SMs agree",
            gpu.uuid
        );
        return Ok(Some(Finding::note(UNCONFIRMED, message)));
    }
    let names = ["the name", "the compute capability", "the SMs"];
    let mut missing: Vec<&str> =
        names.iter().zip(agree).filter(|(_, said)| said.is_none()).map(|(name, _)| *name).collect();
    if version >= PRINTS_UUID {
        missing.insert(0, "the UUID");
    }
    if missing.is_empty() {
        return Ok(None);
    }
    let message = format!(
        "trtexec's log does not say {} of the device that it ran on; {} was all that it was shown",
        missing.join(", "),
        of_lease(leased, gpu)
    );
    Ok(Some(Finding::warning(UNCONFIRMED, message)))
}

/// A slice of a board, or a virtual GPU.
fn is_part(gpu: &GpuFacts) -> bool {
    gpu.mig.is_some() || gpu.virtualization.as_deref() == Some("vgpu") || gpu.uuid.starts_with("MIG-")
}

/// A UUID's own digits: `GPU-1234`, `MIG-1234`.
fn digits(uuid: &str) -> String {
    let uuid = uuid.trim().to_ascii_lowercase();
    uuid.strip_prefix("gpu-").or_else(|| uuid.strip_prefix("mig-")).unwrap_or(&uuid).to_owned()
}

/// Whether the tool's name is the leased device's: drivers differ in whether they put the vendor before it.
fn is_named(name: &str, leased: &DeviceFingerprint, gpu: &GpuFacts) -> bool {
    let plain = |name: &str| {
        let name = name.to_ascii_lowercase();
        let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
        name.strip_prefix("nvidia ").map(str::to_owned).unwrap_or(name)
    };
    let (name, board) = (plain(name), plain(&leased.name));
    let profile = gpu.mig.as_deref().map(|profile| format!("{board} mig {}", plain(profile)));
    name == board || profile.is_some_and(|whole| name == whole)
}

fn of_log(said: &DeviceFacts) -> String {
    let mut facts: Vec<String> = said.uuid.iter().map(|uuid| cut(uuid).to_owned()).collect();
    facts.extend(said.compute_capability.map(|(major, minor)| format!("compute capability {major}.{minor}")));
    facts.extend(said.sm_count.map(|sms| format!("{sms} SMs")));
    described(cut(said.name.as_deref().unwrap_or("a device without a name")), &facts)
}

fn of_lease(leased: &DeviceFingerprint, gpu: &GpuFacts) -> String {
    let mut facts: Vec<String> = [&gpu.uuid].into_iter().filter(|uuid| !uuid.is_empty()).cloned().collect();
    facts.extend(gpu.mig.as_ref().map(|profile| format!("slice {profile}")));
    facts.push(format!("compute capability {}", gpu.compute_capability));
    facts.extend(gpu.sm_count.map(|sms| format!("{sms} SMs")));
    described(&leased.name, &facts)
}

fn described(name: &str, facts: &[String]) -> String {
    if facts.is_empty() { name.to_owned() } else { format!("{name} ({})", facts.join(", ")) }
}

/// The beginning of what a log says, for messages.
fn cut(text: &str) -> &str {
    const LONGEST: usize = 100;
    text.char_indices().nth(LONGEST).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{LogReader, Stream};
    use planforge_types::fingerprint::{DeviceKind, HostFacts};

    const UUID: &str = "GPU-6794f491-ac89-5cef-cdc5-a41123217fbd";
    const OTHER_UUID: &str = "GPU-11111111-2222-3333-4444-555555555555";
    const OLD: Version = Version::new(8, 6, 1);
    const NEW: Version = Version::new(10, 14, 1);

    fn board(uuid: &str) -> DeviceFingerprint {
        let gpu = GpuFacts {
            uuid: uuid.into(),
            compute_capability: "8.0".into(),
            sm_count: Some(108),
            ..GpuFacts::default()
        };
        DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: "NVIDIA A100-SXM4-80GB".into(),
            memory_mib: 81_153,
            gpu: Some(gpu),
            cpu: None,
            host: HostFacts::default(),
        }
    }

    fn changed(change: impl FnOnce(&mut GpuFacts)) -> DeviceFingerprint {
        let mut device = board(UUID);
        change(device.gpu.as_mut().unwrap());
        device
    }

    /// The lines as the tool prints them; of 10.0 and later with the UUID.
    fn said(name: &str, uuid: Option<&str>, capability: &str, sms: &str) -> DeviceFacts {
        let mut lines = vec!["=== Device Information ===".to_owned()];
        if let Some(uuid) = uuid {
            lines.push("Available Devices: ".into());
            lines.push(format!("  Device 0: \"{name}\" UUID: {uuid}"));
        }
        lines.push(format!("Selected Device: {name}"));
        if let Some(uuid) = uuid {
            lines.push("Selected Device ID: 0".into());
            lines.push(format!("Selected Device UUID: {uuid}"));
        }
        lines.push(format!("Compute Capability: {capability}"));
        lines.push(format!("SMs: {sms}"));
        read(&lines)
    }

    fn read(lines: &[String]) -> DeviceFacts {
        let mut reader = LogReader::new();
        for line in lines {
            reader.line(Stream::Stdout, format!("[04/25/2026-00:54:40] [I] {line}").as_bytes());
        }
        reader.finish().device
    }

    const NAME: &str = "NVIDIA A100-SXM4-80GB";

    #[test]
    fn from_10_on_the_uuid_decides() {
        assert_eq!(hold(&board(UUID), &said(NAME, Some(UUID), "8.0", "108"), NEW), Ok(None));
        let shouted = UUID.to_ascii_uppercase();
        assert_eq!(hold(&board(UUID), &said(NAME, Some(&shouted), "8.0", "108"), NEW), Ok(None));
        // A board of the same kind is another board all the same.
        let twin = hold(&board(UUID), &said(NAME, Some(OTHER_UUID), "8.0", "108"), NEW).unwrap_err();
        assert_eq!(
            twin.to_string(),
            format!(
                "trtexec ran on {NAME} ({OTHER_UUID}, compute capability 8.0, 108 SMs), not on the leased {NAME} ({UUID}, \
                 compute capability 8.0, 108 SMs)"
            )
        );
        let far = hold(&board(UUID), &said("NVIDIA H100 PCIe", Some(OTHER_UUID), "9.0", "114"), NEW);
        assert!(far.unwrap_err().to_string().starts_with("trtexec ran on NVIDIA H100 PCIe (GPU-11111111"));
    }

    #[test]
    fn before_10_the_description_decides() {
        for name in [NAME, "A100-SXM4-80GB", "nvidia  a100-sxm4-80gb"] {
            assert_eq!(hold(&board(UUID), &said(name, None, "8.0", "108"), OLD), Ok(None), "{name}");
        }
        for (name, capability, sms) in [
            ("NVIDIA A100-PCIE-40GB", "8.0", "108"),
            (NAME, "8.6", "108"),
            (NAME, "8.0", "98"),
            ("Tesla T4", "7.5", "40"),
        ] {
            let other = hold(&board(UUID), &said(name, None, capability, sms), OLD).unwrap_err().to_string();
            assert!(other.contains(name) && other.ends_with("108 SMs)"), "{other}");
        }
        let unknown = changed(|gpu| gpu.sm_count = None);
        assert_eq!(hold(&unknown, &said(NAME, None, "8.0", "108"), OLD), Ok(None));
    }

    #[test]
    fn what_a_log_does_not_say_is_told() {
        let finding = |device: &DeviceFingerprint, said: &DeviceFacts, version| {
            let finding = hold(device, said, version).unwrap().unwrap();
            assert_eq!(finding.code, UNCONFIRMED);
            finding.message
        };
        let nothing = finding(&board(UUID), &DeviceFacts::default(), NEW);
        assert!(nothing.contains("does not say the UUID, the name, the compute capability, the SMs"), "{nothing}");
        assert!(nothing.contains(UUID), "{nothing}");
        let old = finding(&board(UUID), &read(&[format!("Selected Device: {NAME}")]), OLD);
        assert!(old.contains("does not say the compute capability, the SMs"), "{old}");
        // The rest agrees, but twins are not told apart any more.
        let no_uuid = finding(&board(UUID), &said(NAME, None, "8.0", "108"), NEW);
        assert!(no_uuid.contains("does not say the UUID of"), "{no_uuid}");
        // What it does say must be right.
        assert!(hold(&board(UUID), &read(&["Selected Device: Tesla T4".into()]), NEW).is_err());
        let no_gpu = DeviceFingerprint { gpu: None, ..board(UUID) };
        finding(&no_gpu, &said(NAME, Some(UUID), "8.0", "108"), NEW);
    }

    #[test]
    fn slices_and_virtual_gpus_are_not_refused_for_how_they_are_named() {
        let slice = changed(|gpu| {
            gpu.uuid = "MIG-6794f491-ac89-5cef-cdc5-a41123217fbd".into();
            (gpu.mig, gpu.sm_count) = (Some("1g.10gb".into()), Some(14));
        });
        // Its own digits, which the tool puts `GPU-` before.
        assert_eq!(hold(&slice, &said(NAME, Some(UUID), "8.0", "14"), NEW), Ok(None));
        // The board's UUID around it, or one that nobody knows: the description must be the slice's.
        for name in [NAME.to_owned(), format!("{NAME} MIG 1g.10gb")] {
            let told = hold(&slice, &said(&name, Some(OTHER_UUID), "8.0", "14"), NEW).unwrap().unwrap();
            assert!(told.message.contains(OTHER_UUID) && told.message.contains("MIG-6794f491"), "{told:?}");
            assert_eq!(hold(&slice, &said(&name, None, "8.0", "14"), OLD), Ok(None));
        }
        for (name, sms) in [(NAME.to_owned(), "108"), (format!("{NAME} MIG 2g.20gb"), "14"), ("Tesla T4".into(), "14")]
        {
            assert!(hold(&slice, &said(&name, Some(OTHER_UUID), "8.0", sms), NEW).is_err(), "{name} {sms}");
            assert!(hold(&slice, &said(&name, None, "8.0", sms), OLD).is_err(), "{name} {sms}");
        }
        let virtual_gpu = changed(|gpu| gpu.virtualization = Some("vgpu".into()));
        assert!(hold(&virtual_gpu, &said(NAME, Some(OTHER_UUID), "8.0", "108"), NEW).unwrap().is_some());
        assert!(hold(&virtual_gpu, &said("Tesla T4", Some(OTHER_UUID), "7.5", "40"), NEW).is_err());
        let passed_through = changed(|gpu| gpu.virtualization = Some("passthrough".into()));
        assert!(hold(&passed_through, &said(NAME, Some(OTHER_UUID), "8.0", "108"), NEW).is_err());
    }
}
