//! What agents read of their devices, under the names that NVIDIA's DCGM exporter gives the same things, so that panels
//! and rules made for it work, and by the same label, `UUID`. What a device does not tell is left out.
//!
//! While a timed window goes on nothing is asked of a device, so its series have gaps there: those of a device that
//! measures are not zero but absent.

use planforge_types::telemetry::TelemetrySample;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use std::fmt;

/// Devices whose readings are told; a scrape of a larger farm says so in `planforge_devices_untold`.
pub const DEVICES_MAX: usize = 2_048;
/// Longest host or board name in a label.
const LABEL_MAX_BYTES: usize = 128;

/// A device of an agent that is connected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceReading {
    /// The GPU's UUID, or `cpu0`.
    pub id: String,
    pub host: String,
    /// As its driver or processor reports it.
    pub name: String,
    /// Processors have readings of the same kinds, which are not DCGM's to name.
    pub is_gpu: bool,
    /// The one for which engines are best; empty where its agent said none.
    pub sku: String,
    pub busy: bool,
    pub quarantined: bool,
    pub draining: bool,
    /// A timed window goes on.
    pub measuring: bool,
    pub memory_mib: u64,
    pub telemetry: Option<TelemetrySample>,
}

impl DeviceReading {
    /// With what its agent last sent of it: a document of [`TelemetrySample`], or since when it measures.
    pub fn with_telemetry(self, json: &str) -> Self {
        let Ok(document) = serde_json::from_str::<serde_json::Value>(json) else { return self };
        let measuring = document.get("measuring_from_unix_ms").is_some();
        let telemetry = serde_json::from_value(document).ok().filter(|_| !measuring);
        Self { measuring, telemetry, ..self }
    }

    fn labels(&self) -> [(&'static str, &str); 4] {
        let clipped = |text: &'_ str| text.floor_char_boundary(LABEL_MAX_BYTES);
        [
            ("UUID", &self.id[..clipped(&self.id)]),
            ("modelName", &self.name[..clipped(&self.name)]),
            ("Hostname", &self.host[..clipped(&self.host)]),
            ("sku", &self.sku[..clipped(&self.sku)]),
        ]
    }
}

struct Field {
    name: &'static str,
    help: &'static str,
    value: fn(&DeviceReading, &TelemetrySample) -> Option<f64>,
}

/// Types are *unknown* where the exporter has counters: in OpenMetrics a counter's name ends in `_total`.
const FIELDS: [Field; 13] = [
    Field {
        name: "DCGM_FI_DEV_SM_CLOCK",
        help: "Clock of the SMs, MHz",
        value: |_, told| told.sm_clock_mhz.map(f64::from),
    },
    Field {
        name: "DCGM_FI_DEV_MEM_CLOCK",
        help: "Clock of the memory, MHz",
        value: |_, told| told.memory_clock_mhz.map(f64::from),
    },
    Field { name: "DCGM_FI_DEV_GPU_TEMP", help: "Temperature, degrees Celsius", value: |_, told| told.temperature_c },
    Field { name: "DCGM_FI_DEV_POWER_USAGE", help: "Power drawn, W", value: |_, told| told.power_w },
    Field { name: "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", help: "Power limit, W", value: |_, told| told.power_limit_w },
    Field {
        name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        help: "Energy used since the driver was loaded, mJ",
        value: |_, told| told.energy_uj.map(|uj| (uj / 1_000) as f64),
    },
    Field { name: "DCGM_FI_DEV_GPU_UTIL", help: "Utilisation, percent", value: |_, told| told.utilization_percent },
    Field {
        name: "DCGM_FI_DEV_FB_USED",
        help: "Device memory in use, MiB",
        value: |_, told| told.memory_used_mib.map(|mib| mib as f64),
    },
    Field {
        name: "DCGM_FI_DEV_FB_TOTAL",
        help: "Device memory, MiB",
        value: |device, told| told.memory_used_mib.map(|_| device.memory_mib as f64),
    },
    Field {
        name: "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        help: "Uncorrected memory errors since the driver was loaded",
        value: |_, told| told.ecc_uncorrected.map(|errors| errors as f64),
    },
    Field {
        name: "DCGM_FI_DEV_XID_ERRORS",
        help: "Number of the last Xid since the reading before; absent: none",
        value: |_, told| told.xids.last().map(|xid| *xid as f64),
    },
    Field {
        name: "DCGM_FI_DEV_PCIE_LINK_GEN",
        help: "PCIe generation as negotiated now",
        value: |_, told| told.pcie_generation.map(f64::from),
    },
    Field {
        name: "DCGM_FI_DEV_PCIE_LINK_WIDTH",
        help: "PCIe lanes as negotiated now",
        value: |_, told| told.pcie_width.map(f64::from),
    },
];

/// Readings of GPUs, under DCGM's names.
pub(crate) fn encode_readings(devices: &[DeviceReading], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for field in &FIELDS {
        let values = devices.iter().filter(|device| device.is_gpu).filter_map(|device| {
            let told = device.telemetry.as_ref()?;
            Some((device.labels(), (field.value)(device, told)?))
        });
        family(to, field.name, field.help, MetricType::Unknown, values)?;
    }
    Ok(())
}

/// Where every device stands, and what is read of processors.
pub(crate) fn encode_standing(devices: &[DeviceReading], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Standing = (&'static str, &'static str, fn(&DeviceReading) -> Option<f64>);
    let standings: [Standing; 6] = [
        ("device_busy", "A job of the farm holds the device", |device| one(device.busy)),
        ("device_measuring", "A timed window goes on", |device| one(device.measuring)),
        ("device_quarantined", "The device gets no jobs", |device| one(device.quarantined)),
        ("device_draining", "The device gets no new jobs", |device| one(device.draining)),
        ("device_cpu_clock_mhz", "Clock of a processor, MHz", |device| {
            device.telemetry.as_ref()?.cpu_mhz.map(f64::from)
        }),
        ("device_host_load_1m", "Load average of the device's host", |device| device.telemetry.as_ref()?.load_1m),
    ];
    for (name, help, value) in standings {
        let values = devices.iter().filter_map(|device| Some((device.labels(), value(device)?)));
        family(to, name, help, MetricType::Gauge, values)?;
    }
    let mut throttled = Vec::new();
    for device in devices {
        for reason in device.telemetry.iter().flat_map(|told| &told.throttle).take(8) {
            let [uuid, name, host, sku] = device.labels();
            throttled.push((
                [uuid, name, host, sku, ("reason", &reason[..reason.floor_char_boundary(LABEL_MAX_BYTES)])],
                1.0,
            ));
        }
    }
    family(to, "device_throttled", "Clocks are held down now, and why", MetricType::Gauge, throttled.into_iter())
}

fn one(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

/// A metric of several series; nothing at all where there is none.
fn family<'a, const LABELS: usize>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl Iterator<Item = ([(&'static str, &'a str); LABELS], f64)>,
) -> fmt::Result {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    let mut encoder = to.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}
