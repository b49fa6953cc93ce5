//! What a plan loses on a device kind that it was not built for: one cell of the matrix *built on A × measured on B*.
//!
//! The cell is filled only where both were measured under the same conditions on B: the foreign plan, and the engine of
//! the same model, spec and toolchain that was built for B. Otherwise it says why it is empty.

use super::{Known, disturbed, incomparable, measured_on, place, unknown};
use crate::{
    OTHER_LIBRARIES, Report,
    format::{milliseconds, percent},
};
use planforge_stats::{CI_CONFIDENCE, NoInterval, ratio_interval};
use planforge_types::{Digest, EngineKey, Sku};
use serde::{Deserialize, Serialize};

/// A foreign plan held against the engine that was built for the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Portability {
    pub built_for: Sku,
    pub measured_on: Sku,
    /// Absent when it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Why there is no loss to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<String>,
}

/// How much slower the foreign plan is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Median latency of the foreign plan over the own engine's, less 1: 0.12 is 12 % slower, below 0 faster.
    pub relative: f64,
    /// Where it lies with 95 % confidence.
    pub low: f64,
    pub high: f64,
    pub foreign_ms: f64,
    pub own_ms: f64,
    /// The engine that was built for the device, and the job that measured it.
    pub own_plan: Digest,
    pub own_job: String,
}

/// A foreign plan that is this much faster says that the device's own engine could be better.
const OWN_IS_SLOW: f64 = -0.02;

impl Portability {
    /// As people read it: `12.00 % (...)` or `not measured: ...`.
    pub fn words(&self) -> String {
        match (&self.loss, &self.not_measured) {
            (Some(loss), _) => format!(
                "{} (95 % interval {} to {}): {} against {} of the engine built for {}{}",
                percent(loss.relative),
                percent(loss.low),
                percent(loss.high),
                milliseconds(loss.foreign_ms),
                milliseconds(loss.own_ms),
                self.measured_on,
                if loss.high < OWN_IS_SLOW {
                    ", which a better search would beat: build it again with --builds 5"
                } else {
                    ""
                }
            ),
            (None, reason) => format!("not measured: {}", reason.as_deref().unwrap_or("no reason told")),
        }
    }
}

/// The key of the engine that a foreign plan is held against: the same, built for the device it was measured on. `None`
/// when the plan is not foreign.
pub fn own_key(report: &Report) -> Option<EngineKey> {
    let foreign = report.foreign.as_ref()?;
    Some(EngineKey::new(&report.model.digest, &foreign.measured_on, &report.toolchain, &report.spec))
}

/// What the plan of `report` loses, by the newest of the `others` that it can be held against; `None` when it is not
/// foreign.
pub fn portability<'a>(report: &Report, others: impl IntoIterator<Item = &'a Report>) -> Option<Portability> {
    let foreign = report.foreign.clone()?;
    let (loss, not_measured) = match loss(report, others) {
        Ok(loss) => (Some(loss), None),
        Err(reason) => (None, Some(reason)),
    };
    Some(Portability { built_for: foreign.built_for, measured_on: foreign.measured_on, loss, not_measured })
}

fn loss<'a>(report: &Report, others: impl IntoIterator<Item = &'a Report>) -> Result<Loss, String> {
    fit("the foreign plan", report)?;
    let mut own: Vec<&Report> = others.into_iter().filter(|other| is_own_engine(report, other)).collect();
    own.sort_by_key(|other| std::cmp::Reverse(other.provenance.measured_unix_ms));
    let mut reason = None;
    for other in own {
        match against(report, other) {
            Ok(loss) => return Ok(loss),
            // Of several that do not serve, the newest says why.
            Err(why) => reason = reason.or(Some(why)),
        }
    }
    let sku = measured_on(report);
    Err(reason
        .unwrap_or_else(|| format!("no engine of the same model, spec and toolchain was built for {sku} and measured")))
}

/// Whether `other` measured the engine that `report` would have been, had it been built for the device.
fn is_own_engine(report: &Report, other: &Report) -> bool {
    other.foreign.is_none()
        && other.sku == *measured_on(report)
        && other.model.digest == report.model.digest
        && other.toolchain == report.toolchain
        && other.spec.clone().canonical() == report.spec.clone().canonical()
}

fn against(report: &Report, own: &Report) -> Result<Loss, String> {
    fit("the device's own engine", own)?;
    if report.device.class_digest() != own.device.class_digest() {
        return Err(format!(
            "the device's own engine was measured on {}, this plan on {}, which is not the same device",
            own.device.name, report.device.name
        ));
    }
    if let Some(reason) = incomparable(own, report) {
        return Err(reason);
    }
    let damaged = |_| "the samples of a report are damaged".to_owned();
    // Bounds of a loss are stated with their confidence: a rough place has none.
    let place = |report: &Report| match place(report, CI_CONFIDENCE).map_err(damaged)? {
        Known::Surely(place) => Ok(place),
        Known::Roughly(_) => Err(unknown(report, NoInterval::Alike)),
        Known::Not(reason) => Err(unknown(report, reason)),
    };
    let interval = ratio_interval(&place(own)?, &place(report)?).ok_or("a report holds no latency to divide by")?;
    if !interval.log_high.is_finite() || !interval.log_low.is_finite() {
        return Err("the windows differ so much that the loss has no bounds".into());
    }
    Ok(Loss {
        relative: interval.ratio() - 1.0,
        low: interval.low() - 1.0,
        high: interval.high() - 1.0,
        foreign_ms: report.latency_ms.median,
        own_ms: own.latency_ms.median,
        own_plan: own.plan.digest,
        own_job: own.provenance.job.clone(),
    })
}

/// Refuses a measurement that tells more of its circumstances than of the plan.
fn fit(what: &str, report: &Report) -> Result<(), String> {
    if disturbed(report) {
        return Err(format!("the device was disturbed while {what} was measured"));
    }
    if report.findings.iter().any(|finding| finding.code == OTHER_LIBRARIES) {
        return Err(format!("{what} ran with other libraries than it was tuned with"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Finding, Foreign, testing::sample_report};

    const HERE: &str = "cpu-x86-64-v3";

    /// An engine of this device kind at `ms`, and a plan from elsewhere at twice that.
    fn pair() -> (Report, Report) {
        let own = sample_report(1.0);
        assert_eq!(own.sku.as_str(), HERE);
        let (built_for, measured_on) = ("cpu-x86-64-v2".parse().unwrap(), HERE.parse().unwrap());
        (Report { foreign: Some(Foreign { built_for, measured_on }), ..sample_report(1.5) }, own)
    }

    #[test]
    fn the_loss_is_what_the_raw_samples_say() {
        let (foreign, own) = pair();
        let cell = portability(&foreign, &[foreign.clone(), own.clone()]).unwrap();
        let loss = cell.loss.clone().unwrap();
        let expected = foreign.latency_ms.median / own.latency_ms.median - 1.0;
        assert!((loss.relative - expected).abs() < 1e-12 && loss.low < loss.relative && loss.relative < loss.high);
        assert_eq!((loss.foreign_ms, loss.own_ms), (foreign.latency_ms.median, own.latency_ms.median));
        assert_eq!((loss.own_plan, &loss.own_job), (own.plan.digest, &own.provenance.job));
        assert!(cell.words().ends_with("of the engine built for cpu-x86-64-v3"), "{}", cell.words());

        // The other way round the foreign plan is faster, which is a loss below 0.
        let swapped = Report { foreign: foreign.foreign.clone(), ..own.clone() };
        let cell = portability(&swapped, &[Report { foreign: None, ..foreign.clone() }]).unwrap();
        assert!(cell.words().ends_with("build it again with --builds 5"), "{}", cell.words());
        let faster = cell.loss.unwrap();
        assert!(faster.relative < -0.3, "{faster:?}");
        assert_eq!(portability(&own, &[own.clone(), foreign]), None, "a plan at home loses nothing");
    }

    #[test]
    fn the_key_is_that_of_the_same_engine_built_for_the_device() {
        let (foreign, own) = pair();
        let key = EngineKey::new(&own.model.digest, &own.sku, &own.toolchain, &own.spec);
        assert_eq!((own_key(&foreign), own_key(&own)), (Some(key), None));
    }

    #[test]
    fn only_what_was_measured_alike_fills_a_cell() {
        let (foreign, own) = pair();
        for (change, reason) in [
            ((|r| r.sku = "cpu-x86-64-v2".parse().unwrap()) as fn(&mut Report), "no engine of the same model"),
            (|r| r.model.digest = Digest::of(b"other"), "no engine of the same model"),
            (|r| r.toolchain.version = "99".into(), "no engine of the same model"),
            (|r| r.spec.workspace_mib = Some(1), "no engine of the same model"),
            (|r| r.inputs[0].shape[0] = Some(8), "inputs differ"),
            (|r| r.simulated = !r.simulated, "simulated"),
            (|r| r.accurate = false, "are wrong"),
            (|r| r.device.name.push('+'), "not the same device"),
            (|r| r.windows[0].kept_tainted = true, "disturbed while the device's own engine"),
            (|r| r.findings.push(Finding::warning(OTHER_LIBRARIES, "")), "other libraries"),
        ] {
            let mut other = own.clone();
            change(&mut other);
            let cell = portability(&foreign, &[other]).unwrap();
            assert!(cell.loss.is_none() && cell.words().starts_with("not measured: "), "{cell:?}");
            assert!(cell.words().contains(reason), "{}", cell.words());
        }
        let mut disturbed = foreign.clone();
        disturbed.windows[0].kept_tainted = true;
        assert!(portability(&disturbed, &[own]).unwrap().words().contains("while the foreign plan was measured"));
    }

    #[test]
    fn the_newest_that_serves_is_taken() {
        let (foreign, own) = pair();
        let at = |unix_ms: u64, report: &Report| {
            let mut report = report.clone();
            report.provenance.measured_unix_ms = unix_ms;
            report.provenance.job = unix_ms.to_string();
            report
        };
        let mut newest = at(3, &own);
        newest.accurate = false;
        let cell = portability(&foreign, &[at(1, &own), newest.clone(), at(2, &own)]).unwrap();
        assert_eq!(cell.loss.unwrap().own_job, "2");
        let mut older = at(1, &own);
        older.simulated = !own.simulated;
        assert!(portability(&foreign, &[older, newest]).unwrap().words().contains("are wrong"));
    }
}
