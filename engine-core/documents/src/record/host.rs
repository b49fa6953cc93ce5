//! The machine around the device.

use super::{NOT_RECORDED, line, of_cpu, or_not, text};
use planforge_report::{Report, format::bytes};
use planforge_types::host::{ControlGroup, HostRecord, MemoryFacts, MemoryModule, StorageFacts};

const MIB: u64 = 1 << 20;

pub(super) fn lines(report: &Report) -> Vec<(String, String)> {
    let facts = &report.device.host;
    let mut lines = vec![line("system", text(&facts.os)), line("kernel", text(&facts.kernel))];
    let Some(host) = &report.host else {
        lines.push(line("the rest", format!("{NOT_RECORDED}: an older version measured")));
        return lines;
    };
    lines.extend(host.cpu_name.iter().map(|name| line("processor", name.clone())));
    lines.extend(host.cpu.iter().flat_map(of_cpu).map(|(name, text)| (format!("processor {name}"), text)));
    lines.extend(scaling(host));
    lines.extend(memory(&host.memory));
    lines.push(line("scratch folder on", or_not(host.storage.as_ref(), storage)));
    lines.push(line("container", host.container.clone().unwrap_or_else(|| "none seen".into())));
    lines.extend(limits(host.control_group.as_ref()));
    lines
}

fn scaling(host: &HostRecord) -> Vec<(String, String)> {
    let yes = |on: bool| if on { "on" } else { "off" }.to_owned();
    vec![
        line("clock governor", or_not(host.scaling.governor.clone(), |name| name)),
        line("clocks above nominal", or_not(host.scaling.boost, yes)),
        line("hardware threads", or_not(host.scaling.smt, yes)),
        line("huge pages", or_not(host.scaling.huge_pages.clone(), |mode| mode)),
    ]
}

fn memory(memory: &MemoryFacts) -> Vec<(String, String)> {
    let mib = |size: u64| bytes(size.saturating_mul(MIB));
    let free = memory.available_mib.map(|size| format!(", {} available before", mib(size))).unwrap_or_default();
    let mut lines = vec![line("memory", format!("{}{free}", mib(memory.total_mib)))];
    lines.extend(memory.swap_mib.map(|size| line("swap", if size == 0 { "none".into() } else { mib(size) })));
    if !memory.numa_mib.is_empty() {
        let nodes: Vec<String> = memory.numa_mib.iter().map(|size| mib(*size)).collect();
        lines.push(line("memory of NUMA nodes", nodes.join(", ")));
    }
    let module = |module: &MemoryModule| {
        let kind = module.kind.as_ref().map(|kind| format!(" {kind}")).unwrap_or_default();
        let speed = module.mt_per_s.map(|speed| format!(" at {speed} MT/s")).unwrap_or_default();
        format!("{} x {}{kind}{speed}", module.count, mib(module.size_mib))
    };
    let modules: Vec<String> = memory.modules.iter().map(module).collect();
    let unread = || "not available: the firmware's list is the administrator's to read".to_owned();
    lines.push(line("memory modules", if modules.is_empty() { unread() } else { modules.join(", ") }));
    lines
        .push(line("ECC of memory", memory.ecc.clone().unwrap_or_else(|| "not available: no controller tells".into())));
    lines
}

fn storage(storage: &StorageFacts) -> String {
    let kind = match storage.rotational {
        Some(true) => ", rotating",
        Some(false) => ", not rotating",
        None => "",
    };
    let drive = storage.drive.as_ref().map(|drive| format!(", {drive}")).unwrap_or_default();
    let room = storage.total_bytes.zip(storage.free_bytes);
    let room = room.map(|(total, free)| format!(", {} free of {}", bytes(free), bytes(total))).unwrap_or_default();
    format!("{} on {}{drive}{kind}{room}", storage.filesystem, storage.source)
}

fn limits(group: Option<&ControlGroup>) -> Vec<(String, String)> {
    let Some(group) = group else { return vec![line("control group", "none seen".into())] };
    let none = || "none".to_owned();
    vec![
        line("control group", format!("{} (version {})", group.path, group.version)),
        line("limit on processors", group.cpu_quota.map_or_else(none, |quota| format!("{quota:.2} at a time"))),
        line("processors allowed", or_not(group.cpus.clone(), |list| list)),
        line("limit on memory", group.memory_max_bytes.map_or_else(none, bytes)),
        line("limit on swap", group.swap_max_bytes.map_or_else(none, bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::testing::sample_report;
    use planforge_types::host::ScalingFacts;

    #[test]
    fn a_host_is_told_with_its_limits() {
        let mut report = sample_report(1.0);
        assert!(lines(&report).iter().any(|(_, text)| text.contains("older version")));
        let modules =
            vec![MemoryModule { count: 8, size_mib: 32 << 10, kind: Some("DDR5".into()), mt_per_s: Some(4800) }];
        report.host = Some(HostRecord {
            cpu_name: Some("Some Xeon".into()),
            scaling: ScalingFacts { boost: Some(false), ..ScalingFacts::default() },
            memory: MemoryFacts { total_mib: 256 << 10, modules, ..MemoryFacts::default() },
            storage: Some(StorageFacts {
                filesystem: "ext4".into(),
                source: "/dev/nvme0n1p2".into(),
                drive: Some("Fast SSD".into()),
                rotational: Some(false),
                ..StorageFacts::default()
            }),
            container: Some("kubernetes".into()),
            control_group: Some(ControlGroup {
                version: 2,
                path: "/pod".into(),
                cpu_quota: Some(1.5),
                memory_max_bytes: Some(8 << 30),
                ..ControlGroup::default()
            }),
            ..HostRecord::default()
        });
        let told = lines(&report);
        for (name, text) in [
            ("processor", "Some Xeon"),
            ("clocks above nominal", "off"),
            ("clock governor", NOT_RECORDED),
            ("memory modules", "8 x 32.0 GiB DDR5 at 4800 MT/s"),
            ("scratch folder on", "ext4 on /dev/nvme0n1p2, Fast SSD, not rotating"),
            ("container", "kubernetes"),
            ("control group", "/pod (version 2)"),
            ("limit on processors", "1.50 at a time"),
            ("limit on memory", "8.0 GiB"),
            ("limit on swap", "none"),
        ] {
            assert!(told.contains(&line(name, text.into())), "{name}: {text} is not in {told:?}");
        }
    }
}
