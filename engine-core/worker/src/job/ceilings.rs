//! What this host's devices were measured to reach, kept so that each is measured once.
//!
//! A folder holds one file per device and conditions: `DEVICE-CONDITIONS.json`, both as digests. *Device* is the whole
//! description of one specimen with its driver, *conditions* are what the backend names: library versions, threads. So
//! a new driver or library is measured anew, and another specimen of the same board too.
//!
//! Rates that were measured while something disturbed the device are measured again at once, say so in their report
//! where that did not help, and are not kept: the next job measures them again. Known rates that a step of the engine comes
//! above are measured again too, as often as [`REMEASURES_MAX`] says; of several measurements the highest rates count. None
//! is begun once they have taken as long as the job may measure its engine.

use super::run::Job;
use crate::measure::Clock as _;
use planforge_backend::Meter;
use planforge_device::telemetry::{Telemetry, contention, unix_ms};
use planforge_report::{Ceilings, LayerTime, Rates, Roofline};
use planforge_types::{
    BackendError, Digest, durable,
    fingerprint::{DeviceFingerprint, DeviceKind, HostFacts},
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Digits of a digest in file names.
const NAME_DIGITS: usize = 24;

/// Measurements of the rates in one job; each takes about a second.
const TRIES: u32 = 3;

/// How often rates are measured again because a step came above them. Bytes that a cache holds may bring it there whatever
/// is measured, so that it must end.
const REMEASURES_MAX: u32 = 2;

/// Largest file that is read: a real one has a few hundred bytes.
const FILE_MAX_BYTES: u64 = 64 << 10;

/// Rates of one device in this host's folder.
#[derive(Clone, Debug)]
pub struct CeilingStore {
    folder: PathBuf,
    device: String,
    driver: Option<String>,
}

impl CeilingStore {
    pub fn new(folder: &Path, device: &DeviceFingerprint) -> Self {
        let named = DeviceFingerprint { host: HostFacts::default(), ..device.clone() };
        let driver = device.gpu.as_ref().map(|gpu| gpu.driver.clone()).filter(|driver| !driver.is_empty());
        Self { folder: folder.to_owned(), device: name(&named), driver }
    }

    /// `conditions` and the driver.
    fn whole(&self, mut conditions: BTreeMap<String, String>) -> BTreeMap<String, String> {
        conditions.extend(self.driver.clone().map(|driver| ("driver".to_owned(), driver)));
        conditions
    }

    fn path(&self, conditions: &BTreeMap<String, String>) -> PathBuf {
        self.folder.join(format!("{}-{}.json", self.device, name(conditions)))
    }

    /// What is known under exactly these conditions.
    pub fn known(&self, conditions: BTreeMap<String, String>) -> Option<Ceilings> {
        let conditions = self.whole(conditions);
        read(&self.path(&conditions)).filter(|ceilings| ceilings.conditions == conditions)
    }

    /// What was measured last on this device, under any conditions.
    pub fn newest(&self) -> Option<Ceilings> {
        let ours = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.starts_with(&self.device))
        };
        let files = fs::read_dir(&self.folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).filter(ours);
        files.filter_map(|path| read(&path)).max_by_key(|ceilings| ceilings.measured_unix_ms)
    }

    /// Rates measured now, with what they hold under.
    pub fn dated(&self, conditions: BTreeMap<String, String>, rates: Rates, disturbed: Vec<String>) -> Ceilings {
        let conditions = self.whole(conditions);
        Ceilings { measured_unix_ms: unix_ms(), conditions, rates, disturbed, remeasured: 0 }
    }

    /// Keeps what nothing disturbed.
    pub fn keep(&self, ceilings: &Ceilings) -> io::Result<()> {
        if !ceilings.disturbed.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        let path = self.path(&ceilings.conditions);
        // Several workers of this host may get here at once, each with a device of its own.
        durable::write_cache(&path, &serde_json::to_vec_pretty(ceilings)?)
    }
}

fn name(of: &impl serde::Serialize) -> String {
    let bytes = serde_json_canonicalizer::to_vec(of).expect("only JSON types");
    let mut digits = Digest::of(&bytes).to_string();
    digits.truncate(NAME_DIGITS);
    digits
}

/// Whatever cannot be read is measured again.
fn read(path: &Path) -> Option<Ceilings> {
    let small = fs::metadata(path).is_ok_and(|facts| facts.len() <= FILE_MAX_BYTES);
    small.then(|| serde_json::from_slice(&fs::read(path).ok()?).ok()).flatten()
}

/// Whether another measurement may find higher rates: something disturbed them, or one of `layers` comes above them.
fn may_be_low(ceilings: &Ceilings, layers: &[LayerTime]) -> bool {
    let above = |layer: &LayerTime| Roofline::of(layer, Some(ceilings)).is_some_and(|line| line.is_above());
    !ceilings.disturbed.is_empty() || (ceilings.remeasured < REMEASURES_MAX && layers.iter().any(above))
}

/// What is `known`, else measured, until nothing speaks for rates above it, or no time is left for another measurement.
fn settled(
    known: Option<Ceilings>,
    layers: &[LayerTime],
    has_time: &dyn Fn() -> bool,
    measure: &mut dyn FnMut() -> Result<Ceilings, BackendError>,
) -> Result<Ceilings, BackendError> {
    let mut tries = 0;
    let mut ceilings = match known {
        Some(known) => known,
        None => {
            tries += 1;
            measure()?
        }
    };
    while tries < TRIES && may_be_low(&ceilings, layers) && (tries == 0 || has_time()) {
        tries += 1;
        // What is known is worth something without more.
        let Ok(more) = measure() else { break };
        ceilings = ceilings.joined(more);
    }
    Ok(ceilings)
}

impl Job<'_> {
    /// The device's rates: as this host knows them, else measured now; again where `layers` or a disturbance say that they
    /// are too low. `None` where neither is possible.
    pub(super) fn ceilings(
        &self,
        meter: &mut dyn Meter,
        layers: &[LayerTime],
        telemetry: &mut dyn Telemetry,
    ) -> Result<Option<Ceilings>, BackendError> {
        let Some(folder) = self.order.ceilings.as_deref().filter(|_| !self.order.simulated) else { return Ok(None) };
        let store = CeilingStore::new(folder, &self.device);
        let Some(conditions) = meter.rate_conditions() else {
            // A GPU reaches what it reaches, whoever built the engine; of a CPU it depends on the engine's threads.
            return Ok((self.device.kind == DeviceKind::Gpu).then(|| store.newest()).flatten());
        };
        let threads = self.order.spec.threads.unwrap_or(1);
        let mut measure = || {
            self.may_go_on("the device's ceilings")?;
            self.outlet.progress("ceilings", 0.0, "");
            let (before, began_ms) = (telemetry.sample(), self.clock.now_ms());
            let rates = meter.rates()?;
            let took_ms = self.clock.now_ms() - began_ms;
            let disturbed = contention::assess(&before, &telemetry.sample(), took_ms, threads);
            Ok(store.dated(conditions.clone(), rates, disturbed))
        };
        let known = store.known(conditions.clone());
        let (began_ms, budget_ms) = (self.clock.now_ms(), self.order.measure_budget_ms as f64);
        let has_time = || self.clock.now_ms() - began_ms < budget_ms;
        let ceilings = settled(known.clone(), layers, &has_time, &mut measure)?;
        if known.as_ref() != Some(&ceilings)
            && let Err(error) = store.keep(&ceilings)
        {
            super::outlet::log(&format!("the device's rates cannot be kept in {}: {error}", folder.display()));
        }
        Ok(Some(ceilings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::fingerprint::GpuFacts;

    fn device(uuid: &str, driver: &str) -> DeviceFingerprint {
        let gpu = GpuFacts { uuid: uuid.into(), driver: driver.into(), ..GpuFacts::default() };
        DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: "GPU".into(),
            memory_mib: 1024,
            gpu: Some(gpu),
            cpu: None,
            host: HostFacts { os: "Linux".into(), kernel: "6.1".into() },
        }
    }

    fn conditions(library: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("cublaslt".to_owned(), library.to_owned())])
    }

    fn rates(copy_gb_s: f64) -> Rates {
        Rates { copy_gb_s, ..Rates::default() }
    }

    #[test]
    fn rates_are_known_for_the_same_device_driver_and_libraries_only() {
        let folder = tempfile::tempdir().unwrap();
        let at = |device: &DeviceFingerprint| CeilingStore::new(&folder.path().join("ceilings"), device);
        let own = device("GPU-1", "580.1");
        let store = at(&own);
        assert_eq!(store.known(conditions("13.1")), None);
        let ceilings = store.dated(conditions("13.1"), rates(4000.0), Vec::new());
        store.keep(&ceilings).unwrap();
        assert_eq!(ceilings.conditions["driver"], "580.1");
        assert_eq!(at(&own).known(conditions("13.1")).as_ref(), Some(&ceilings));
        let mut rebooted = own.clone();
        rebooted.host.kernel = "6.2".into();
        assert!(at(&rebooted).known(conditions("13.1")).is_some());
        assert_eq!(store.known(conditions("13.2")), None);
        for other in [device("GPU-2", "580.1"), device("GPU-1", "590.1")] {
            assert_eq!(at(&other).known(conditions("13.1")), None);
            assert_eq!(at(&other).newest(), None);
        }
        assert_eq!(store.newest(), Some(ceilings));
    }

    #[test]
    fn the_newest_are_taken_where_conditions_do_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let store = CeilingStore::new(folder.path(), &device("GPU-1", "580.1"));
        for (at, library) in [(2, "13.2"), (1, "13.1")] {
            let ceilings = store.dated(conditions(library), rates(f64::from(at)), Vec::new());
            store.keep(&Ceilings { measured_unix_ms: at.try_into().unwrap(), ..ceilings }).unwrap();
        }
        assert_eq!(store.newest().unwrap().rates, rates(2.0));
    }

    /// What `settled` makes of measurements that reach so many GB/s, each disturbed or not, and how many it took.
    fn settle(known: Option<(f64, u32)>, layer_gb_s: u64, measurements: &[(f64, bool)]) -> (Ceilings, usize) {
        let layer = LayerTime { median_ms: 1.0, bytes: layer_gb_s * 1_000_000, ..LayerTime::default() };
        let known = known.map(|(rate, remeasured)| Ceilings { rates: rates(rate), remeasured, ..Ceilings::default() });
        let mut next = measurements.iter();
        let mut measure = || {
            let (rate, is_disturbed) = next.next().expect("no further measurement");
            let disturbed = is_disturbed.then(|| "throttled: thermal".to_owned()).into_iter().collect();
            Ok(Ceilings { rates: rates(*rate), disturbed, ..Ceilings::default() })
        };
        let ceilings = settled(known, &[layer], &|| true, &mut measure).unwrap();
        let taken = measurements.len() - next.len();
        (ceilings, taken)
    }

    #[test]
    fn a_job_without_time_measures_once_however_disturbed_that_was() {
        let disturbed = || Ceilings { disturbed: vec!["throttled: thermal".to_owned()], ..Ceilings::default() };
        for known in [None, Some(disturbed())] {
            for (has_time, expected) in [(false, 1), (true, TRIES)] {
                let mut taken = 0;
                let mut measure = || {
                    taken += 1;
                    Ok(disturbed())
                };
                settled(known.clone(), &[], &|| has_time, &mut measure).unwrap();
                assert_eq!(taken, expected, "{known:?}");
            }
        }
    }

    #[test]
    fn rates_that_a_step_comes_above_are_measured_again_and_the_highest_count() {
        let told = |(ceilings, taken): (Ceilings, usize)| (ceilings.rates.copy_gb_s, ceilings.remeasured, taken);
        assert_eq!(told(settle(Some((20.0, 0)), 20, &[])), (20.0, 0, 0));
        assert_eq!(told(settle(Some((20.0, 0)), 23, &[(25.0, false)])), (25.0, 1, 1));
        // What a cache holds stays above: it ends, and the next job does not begin again.
        assert_eq!(told(settle(Some((20.0, 0)), 23, &[(19.0, false), (21.0, false)])), (21.0, 2, 2));
        assert_eq!(told(settle(Some((21.0, 2)), 23, &[])), (21.0, 2, 0));
        assert_eq!(told(settle(None, 23, &[(20.0, false), (24.0, false)])), (24.0, 1, 2));
    }

    #[test]
    fn rates_that_were_disturbed_are_measured_again_and_stay_marked_where_that_does_not_help() {
        let told = |(ceilings, taken): (Ceilings, usize)| (ceilings.rates.copy_gb_s, ceilings.disturbed.len(), taken);
        assert_eq!(told(settle(None, 5, &[(10.0, true), (20.0, false)])), (20.0, 0, 2));
        assert_eq!(told(settle(None, 5, &[(10.0, true), (12.0, true), (11.0, true)])), (12.0, 1, 3));
        // What is kept was undisturbed once; a disturbed attempt to better it takes nothing away.
        assert_eq!(told(settle(Some((20.0, 0)), 23, &[(10.0, true), (11.0, true), (9.0, true)])), (20.0, 0, 3));
    }

    #[test]
    fn what_was_disturbed_or_cannot_be_read_is_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = CeilingStore::new(folder.path(), &device("GPU-1", "580.1"));
        store.keep(&store.dated(conditions("13.1"), rates(1.0), vec!["throttled: thermal".into()])).unwrap();
        assert_eq!(store.known(conditions("13.1")), None);
        store.keep(&store.dated(conditions("13.1"), rates(1.0), Vec::new())).unwrap();
        fs::write(store.path(&store.whole(conditions("13.1"))), "{").unwrap();
        assert_eq!(store.known(conditions("13.1")), None);
    }
}
