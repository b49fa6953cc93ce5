//! What `/metrics` says: the farm's own snapshot and what the server counts itself, as OpenMetrics text.
//!
//! Names end in their unit; labels are few and bounded, never an id.

use crate::{DeviceReading, FarmStats, Histogram, LATENCY_BOUNDS_MS, devices};
use http::{Method, StatusCode};
use planforge_blobs::ScrubState;
use planforge_callers::doors::{Doors, Ending};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet, text},
    metrics::{
        MetricType, counter::ConstCounter, counter::Counter, family::Family, gauge::ConstGauge, gauge::Gauge,
        histogram::Histogram as LiveHistogram,
    },
    registry::{Registry, Unit},
};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// Upper bounds of request durations: from an answer out of memory to a large download.
const REQUEST_BOUNDS_S: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    /// Pattern of the route, not the path.
    route: String,
    method: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EndingLabel {
    reason: &'static str,
}

/// Counters of the server. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Live>);

#[derive(Debug)]
struct Live {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabel, LiveHistogram, fn() -> LiveHistogram>,
    connections: Gauge,
    /// Of connections that were ended here, by why.
    ended: Family<EndingLabel, Counter>,
    doors: Doors,
    sent: Counter,
    received: Counter,
    deduplicated: Counter,
}

/// Counts a connection as open for as long as it lives.
#[derive(Debug)]
pub struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub const CONTENT_TYPE: &'static str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    pub fn new(doors: Doors) -> Self {
        let mut registry = Registry::with_prefix("planforge");
        let requests = Family::default();
        let durations: Family<_, _, fn() -> LiveHistogram> =
            Family::new_with_constructor(|| LiveHistogram::new(REQUEST_BOUNDS_S));
        let (connections, ended) = (Gauge::default(), Family::default());
        let (sent, received, deduplicated) = (Counter::default(), Counter::default(), Counter::default());
        registry.register("http_requests", "Requests answered", Family::clone(&requests));
        registry.register_with_unit(
            "http_request_duration",
            "Time until the answer's headers",
            Unit::Seconds,
            Family::clone(&durations),
        );
        registry.register("connections", "Open connections", connections.clone());
        registry.register("connections_ended", "Connections ended here", Family::clone(&ended));
        registry.register_with_unit("blob_sent", "Bytes of blobs sent", Unit::Bytes, sent.clone());
        registry.register_with_unit("blob_received", "Bytes of blobs received", Unit::Bytes, received.clone());
        registry.register("blob_uploads_deduplicated", "Uploads whose blob was stored already", deduplicated.clone());
        Self(Arc::new(Live { registry, requests, durations, connections, ended, doors, sent, received, deduplicated }))
    }

    pub fn connection_opened(&self) -> OpenConnection {
        self.0.connections.inc();
        OpenConnection(self.0.connections.clone())
    }

    pub fn connection_ended(&self, why: Ending) {
        let reason = match why {
            Ending::Displaced => "displaced",
            Ending::NoRequest => "no_request",
            Ending::Idle => "idle",
            Ending::Unread => "unread",
            Ending::ProofOver => "token_over",
            Ending::CertificateOver => "certificate_over",
        };
        self.0.ended.get_or_create(&EndingLabel { reason }).inc();
    }

    pub fn request_ended(&self, route: &str, method: &Method, status: StatusCode, took: Duration) {
        // Methods of a client's own making would make labels without bound.
        let known = [Method::GET, Method::HEAD, Method::POST, Method::PATCH, Method::DELETE];
        let method = if known.contains(method) { method.to_string() } else { "other".into() };
        let labels = RequestLabels { route: route.to_owned(), method, status: status.as_u16() };
        self.0.requests.get_or_create(&labels).inc();
        self.0.durations.get_or_create(&RouteLabel { route: route.to_owned() }).observe(took.as_secs_f64());
    }

    pub fn blob_bytes_sent(&self, bytes: usize) {
        self.0.sent.inc_by(bytes as u64);
    }

    pub fn blob_bytes_received(&self, bytes: usize) {
        self.0.received.inc_by(bytes as u64);
    }

    pub fn blob_deduplicated(&self) {
        self.0.deduplicated.inc();
    }

    /// All metrics as text.
    pub fn encode(&self, farm: FarmStats, blobs: BlobFacts) -> String {
        // These carry names that others gave.
        let mut readings = Registry::default();
        readings.register_collector(Box::new(Readings(farm.devices.clone())));
        let mut snapshot = Registry::with_prefix("planforge");
        snapshot.register_collector(Box::new(Snapshot { farm, blobs, doors: self.0.doors.clone() }));
        let mut text = String::new();
        text::encode_registry(&mut text, &self.0.registry)
            .and_then(|()| text::encode_registry(&mut text, &snapshot))
            .and_then(|()| text::encode_registry(&mut text, &readings))
            .and_then(|()| text::encode_eof(&mut text))
            .expect("writing to a string does not fail");
        text
    }
}

/// What is told of the stored bytes.
#[derive(Debug, Default)]
pub struct BlobFacts {
    pub available_bytes: Option<u64>,
    /// Set aside as damaged and not stored again since.
    pub quarantined: u64,
    pub scrub: ScrubState,
}

/// A snapshot of the farm as metrics.
#[derive(Debug)]
struct Snapshot {
    farm: FarmStats,
    blobs: BlobFacts,
    doors: Doors,
}

/// What is read of devices.
#[derive(Debug)]
struct Readings(Vec<DeviceReading>);

impl Collector for Readings {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Encoded {
        devices::encode_readings(&self.0, &mut to)
    }
}

type Encoded = Result<(), fmt::Error>;

fn counter(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Encoded {
    ConstCounter::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Counter)?)
}

fn gauge(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Encoded {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    ConstGauge::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// One metric per label value.
fn labelled<K: AsRef<str>>(
    to: &mut DescriptorEncoder<'_>,
    (name, help, label, kind): (&str, &str, &str, MetricType),
    values: &BTreeMap<K, u64>,
) -> Encoded {
    let mut encoder = to.encode_descriptor(name, help, None, kind)?;
    for (key, value) in values {
        let labels = [(label, key.as_ref())];
        let one = encoder.encode_family(&labels)?;
        match kind {
            MetricType::Counter => ConstCounter::new(*value).encode(one)?,
            _ => ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX)).encode(one)?,
        }
    }
    Ok(())
}

/// One histogram, of seconds, per label value.
fn histograms<'a>(
    to: &mut DescriptorEncoder<'_>,
    (name, help, label): (&str, &str, &str),
    values: impl Iterator<Item = (&'a str, &'a Histogram)>,
) -> Encoded {
    let mut encoder = to.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (key, latency) in values {
        encoder.encode_family(&[(label, key)])?.encode_histogram::<NoLabelSet>(
            latency.sum_ms / 1e3,
            latency.count,
            &buckets(latency),
            None,
        )?;
    }
    Ok(())
}

/// Cumulative buckets in seconds.
fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let bounds = LATENCY_BOUNDS_MS.iter().map(|ms| ms / 1e3).chain([f64::INFINITY]);
    bounds.zip(histogram.counts).collect()
}

impl Collector for Snapshot {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Encoded {
        use MetricType as Kind;
        let (farm, to) = (&self.farm, &mut to);
        labelled(to, ("jobs", "Jobs that have not ended", "state", Kind::Gauge), &farm.live_jobs)?;
        labelled(to, ("jobs_ended", "Jobs ended since start", "state", Kind::Counter), &farm.ended_jobs)?;
        labelled(to, ("attempts", "Attempts ended since start", "outcome", Kind::Counter), &farm.attempts)?;
        let pending: BTreeMap<_, _> = farm.oldest_pending_ms.iter().map(|(sku, ms)| (sku, ms / 1000)).collect();
        labelled(to, ("oldest_pending_seconds", "Age of the oldest job that waits", "sku", Kind::Gauge), &pending)?;
        to.encode_descriptor("claim_latency", "From queued to leased", Some(&Unit::Seconds), Kind::Histogram)?
            .encode_histogram::<NoLabelSet>(
            farm.claim_latency.sum_ms / 1e3,
            farm.claim_latency.count,
            &buckets(&farm.claim_latency),
            None,
        )?;
        counter(to, "lease_expiries", "Leases that ran out", farm.lease_expiries)?;
        counter(to, "lease_revivals", "Expired leases whose holder came back in time", farm.revivals)?;
        counter(to, "wakeups_rescued", "Jobs that only the sweep gave to a device", farm.rescued_wakeups)?;
        counter(to, "broken_states", "Times that the scheduler broke its own rules", farm.broken_states)?;
        gauge(to, "store_unreadable_rows", "Rows left out because they cannot be decoded", farm.unreadable_rows)?;
        counter(to, "requests_merged", "Requests that joined a job in flight", farm.merged)?;
        counter(to, "requests_answered_from_store", "Requests answered with a finished engine", farm.answered)?;
        gauge(to, "agents_connected", "Agents connected now", farm.agents_up)?;
        gauge(to, "agents_known", "Agents ever seen", farm.agents_known)?;
        gauge(to, "devices_online", "Devices of connected agents", farm.devices_up)?;
        gauge(to, "devices_busy", "Devices that hold a lease", farm.devices_busy)?;
        gauge(to, "devices_quarantined", "Devices that get no jobs", farm.devices_quarantined)?;
        gauge(to, "watchers", "Open event streams", farm.watchers)?;
        gauge(to, "leader_epoch", "Epoch of the scheduling leader", farm.epoch)?;
        gauge(to, "leader_inbox", "Inputs that wait for the leader", farm.inbox)?;
        gauge(to, "last_event", "Number of the newest event", farm.last_event)?;
        let (counts, places) = (self.doors.counts(), self.doors.places());
        let here = BTreeMap::from([("stranger", counts.strangers as u64), ("known", counts.known as u64)]);
        let room = BTreeMap::from([("stranger", places.strangers as u64), ("known", places.known as u64)]);
        let help = "Connections that have shown a good token, and others";
        labelled(to, ("connections_by_standing", help, "standing", Kind::Gauge), &here)?;
        labelled(to, ("connection_places", "Connections there may be", "standing", Kind::Gauge), &room)?;
        counter(to, "connections_turned_away", "Good tokens that found no place", counts.turned_away)?;
        let BlobFacts { available_bytes, quarantined, scrub } = &self.blobs;
        if let Some(bytes) = available_bytes {
            gauge(to, "blob_available_bytes", "Room left for blobs, by quota and by disk", *bytes)?;
        }
        gauge(to, "blobs_quarantined", "Blobs set aside as damaged and not stored again since", *quarantined)?;
        counter(to, "blobs_damaged", "Blobs that a scrub found damaged", scrub.damaged_total)?;
        counter(to, "blob_scrubbed_bytes", "Bytes of blobs that were looked through", scrub.bytes_total)?;
        let help = "When all blobs were last looked through, Unix time; 0: never";
        gauge(to, "blob_scrub_ended_timestamp_seconds", help, scrub.ended_ms / 1_000)?;
        let errors: BTreeMap<_, _> = farm.store.iter().map(|(op, stats)| (*op, stats.errors)).collect();
        labelled(to, ("store_errors", "Store operations that failed", "op", Kind::Counter), &errors)?;
        let store = farm.store.iter().map(|(op, stats)| (*op, &stats.latency));
        histograms(to, ("store_duration", "Store operations", "op"), store)?;
        let attempts = farm.attempt_durations.iter().map(|(outcome, durations)| (*outcome, durations));
        histograms(to, ("attempt_duration", "From lease to end", "outcome"), attempts)?;
        let untold = farm.devices_up.saturating_sub(farm.devices.len() as u64);
        gauge(to, "devices_untold", "Devices of connected agents whose readings are not told", untold)?;
        devices::encode_standing(&farm.devices, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_callers::doors::{FIRST_REQUEST_WITHIN, Places};

    #[test]
    fn a_scrape_is_openmetrics_with_the_farms_figures() {
        let metrics = Metrics::new(Doors::new(Places::of(64), FIRST_REQUEST_WITHIN));
        metrics.connection_ended(Ending::NoRequest);
        metrics.request_ended("/api/v1/jobs", &Method::GET, StatusCode::OK, Duration::from_millis(3));
        metrics.request_ended("none", &Method::from_bytes(b"BREW").unwrap(), StatusCode::NOT_FOUND, Duration::ZERO);
        metrics.blob_bytes_sent(7);
        let mut farm = FarmStats { agents_up: 3, ..Default::default() };
        farm.live_jobs.insert("queued", 5);
        farm.oldest_pending_ms.insert("t4".into(), 61_500);
        farm.claim_latency.observe(3.0);
        farm.claim_latency.observe(30.0);
        let text =
            metrics.encode(farm, BlobFacts { available_bytes: Some(1 << 30), quarantined: 2, ..Default::default() });
        for line in [
            r#"planforge_jobs{state="queued"} 5"#,
            r#"planforge_oldest_pending_seconds{sku="t4"} 61"#,
            r#"planforge_http_requests_total{route="/api/v1/jobs",method="GET",status="200"} 1"#,
            r#"planforge_http_requests_total{route="none",method="other",status="404"} 1"#,
            "planforge_blob_sent_bytes_total 7",
            "planforge_agents_connected 3",
            r#"planforge_connections_ended_total{reason="no_request"} 1"#,
            r#"planforge_connection_places{standing="stranger"} 8"#,
            r#"planforge_claim_latency_seconds_bucket{le="0.005"} 1"#,
            r#"planforge_claim_latency_seconds_bucket{le="+Inf"} 2"#,
            "planforge_claim_latency_seconds_count 2",
            "planforge_blob_available_bytes 1073741824",
            "planforge_blobs_quarantined 2",
        ] {
            assert!(text.lines().any(|l| l == line), "missing: {line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn readings_of_devices_have_dcgms_names_and_one_that_measures_has_none() {
        let device = |id: &str, telemetry: &str| {
            let is_gpu = id.starts_with("GPU");
            let host = "a\"\n".into();
            let named = DeviceReading { id: id.into(), host, is_gpu, memory_mib: 143_771, ..Default::default() };
            named.with_telemetry(telemetry)
        };
        let told = r#"{"sm_clock_mhz":1980,"power_w":701.5,"energy_uj":5000000,"memory_used_mib":12,"throttle":["power"],"at_unix_ms":1}"#;
        let farm = FarmStats {
            devices: vec![
                device("GPU-1", told),
                device("GPU-2", r#"{"measuring_from_unix_ms":7}"#),
                device("cpu0", r#"{"cpu_mhz":2400,"load_1m":0.5,"energy_uj":7000000,"temperature_c":50.0}"#),
                device("GPU-3", "no JSON"),
            ],
            devices_up: 9,
            ..Default::default()
        };
        let metrics = Metrics::new(Doors::new(Places::of(64), FIRST_REQUEST_WITHIN));
        let text = metrics.encode(farm, BlobFacts::default());
        let labels = |id: &str| format!(r#"{{UUID="{id}",modelName="",Hostname="a\"\n",sku=""}}"#);
        for line in [
            "# TYPE DCGM_FI_DEV_SM_CLOCK unknown".to_owned(),
            format!("DCGM_FI_DEV_SM_CLOCK{} 1980.0", labels("GPU-1")),
            format!("DCGM_FI_DEV_POWER_USAGE{} 701.5", labels("GPU-1")),
            format!("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{} 5000.0", labels("GPU-1")),
            format!("DCGM_FI_DEV_FB_TOTAL{} 143771.0", labels("GPU-1")),
            format!("planforge_device_measuring{} 1.0", labels("GPU-2")),
            format!("planforge_device_measuring{} 0.0", labels("cpu0")),
            format!("planforge_device_cpu_clock_mhz{} 2400.0", labels("cpu0")),
            r#"planforge_device_throttled{UUID="GPU-1",modelName="",Hostname="a\"\n",sku="",reason="power"} 1.0"#
                .into(),
            "planforge_devices_untold 5".into(),
        ] {
            assert!(text.lines().any(|l| l == line), "missing: {line}\n{text}");
        }
        for absent in ["DCGM_FI_DEV_GPU_TEMP", "XID"] {
            assert!(!text.contains(absent), "{absent} was told by none:\n{text}");
        }
        let clocks = text.lines().filter(|line| line.starts_with("DCGM_FI_DEV_SM_CLOCK{")).count();
        assert_eq!(clocks, 1, "a device that measures is not asked");
        let of_processors = text.lines().find(|line| line.starts_with("DCGM") && line.contains("cpu0"));
        assert_eq!(of_processors, None, "a processor is no device of DCGM's");
    }
}
