//! Rules about where, by what and how steadily an engine was built and measured.

use crate::rule::{Advice, Case, Evidence, Rule, percent, times};
use planforge_report::{LayerTime, Report, Severity, compare::portability::portability};

pub(crate) const RULES: &[Rule] =
    &[built_elsewhere, compatibility, upgrade_slower, tainted, unstable, grows, reference_kernels];

/// Losses below this are no reason to do anything.
const LOSS: f64 = 0.02;

/// Share of the windows that count although they were disturbed.
const TAINTED: f64 = 0.2;

/// The last third's median over the first's, from which a measurement grows.
const GROWS: f64 = 1.05;

/// Windows that it takes to say so.
const GROWING_WINDOWS: usize = 9;

/// Share of the time in reference implementations.
const REFERENCE: f64 = 0.05;

fn built_elsewhere(case: &Case<'_>) -> Option<Advice> {
    let cell = portability(case.report, case.others())?;
    let loss = cell.loss.filter(|loss| loss.low > 0.0 && loss.relative >= LOSS)?;
    Some(Advice {
        code: "built-elsewhere",
        severity: Severity::Warning,
        message: format!(
            "built for {}, it takes {} longer on {} than the engine that was built there",
            cell.built_for,
            percent(loss.relative),
            cell.measured_on
        ),
        evidence: Evidence::measured("loss against the device's own engine", loss.relative, LOSS),
        advice: format!("build it for {} (--sku {})", cell.measured_on, cell.measured_on),
    })
}

fn compatibility(case: &Case<'_>) -> Option<Advice> {
    let spec = &case.report.spec;
    let level = match (&spec.hardware_compatibility, spec.version_compatible) {
        (Some(level), _) => format!("hardware compatibility {level}"),
        (None, true) => "version compatibility".to_owned(),
        (None, false) => return None,
    };
    let mut plain = spec.clone();
    (plain.hardware_compatibility, plain.version_compatible) = (None, false);
    let base = case.alike().find(|other| other.spec == plain && other.toolchain == case.report.toolchain)?;
    let (ratio, sure) = times(base, case.report)?;
    (sure && ratio - 1.0 >= LOSS).then(|| Advice {
        code: "compatibility-costs",
        severity: Severity::Note,
        message: format!("{level} costs {} against the engine without", percent(ratio - 1.0)),
        evidence: Evidence::measured("loss against the engine without", ratio - 1.0, LOSS),
        advice: "build per device kind and version where the engine need not move".into(),
    })
}

/// Dotted numbers, by which versions are ordered.
fn version(report: &Report) -> Vec<u64> {
    report.toolchain.version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

fn upgrade_slower(case: &Case<'_>) -> Option<Advice> {
    let is_older = |other: &&Report| {
        other.toolchain.backend == case.report.toolchain.backend
            && other.spec == case.report.spec
            && version(other) < version(case.report)
    };
    let older = case.alike().filter(is_older).max_by_key(|other| version(other))?;
    let (ratio, sure) = times(older, case.report)?;
    let (backend, from, to) = (&older.toolchain.backend, &older.toolchain.version, &case.report.toolchain.version);
    (sure && ratio - 1.0 >= LOSS).then(|| Advice {
        code: "upgrade-slower",
        severity: Severity::Warning,
        message: format!("{backend} {to} takes {} longer here than {from}", percent(ratio - 1.0)),
        evidence: Evidence::measured("loss against the older toolchain", ratio - 1.0, LOSS),
        advice: format!(
            "keep {backend} {from} for this engine, and see which layers differ (planforge compare --layers)"
        ),
    })
}

fn tainted(case: &Case<'_>) -> Option<Advice> {
    let counted = case.report.counted_windows().len();
    let kept = case.report.windows.iter().filter(|window| window.kept_tainted).count();
    let share = kept as f64 / counted.max(1) as f64;
    (share >= TAINTED).then(|| Advice {
        code: "tainted",
        severity: Severity::Warning,
        message: format!("{kept} of {counted} windows that count were disturbed"),
        evidence: Evidence::measured("share of disturbed windows", share, TAINTED),
        advice: "measure again when nothing else uses the device: planforge bench, or build --refresh-disturbed".into(),
    })
}

fn unstable(case: &Case<'_>) -> Option<Advice> {
    let selection = case.report.selection.as_ref().filter(|selection| selection.unstable)?;
    Some(Advice {
        code: "build-unstable",
        severity: Severity::Warning,
        message: format!("{} builds of this engine differ by {}", selection.builds.len(), percent(selection.spread)),
        evidence: Evidence::measured("spread of the builds' medians", selection.spread, 0.0),
        advice: "build several and keep the best (--builds 5), from one tuning cache".into(),
    })
}

fn median_of(values: &[f64]) -> f64 {
    planforge_stats::median(values)
}

fn grows(case: &Case<'_>) -> Option<Advice> {
    let windows = case.report.windows.iter().filter(|window| window.tainted.is_empty());
    let medians: Vec<f64> = windows.map(|window| window.median_ms).collect();
    if medians.len() < GROWING_WINDOWS {
        return None;
    }
    let third = medians.len() / 3;
    let parts = [&medians[..third], &medians[third..medians.len() - third], &medians[medians.len() - third..]];
    let [first, middle, last] = parts.map(median_of);
    let ratio = last / first;
    (ratio >= GROWS && first < middle && middle < last).then(|| Advice {
        code: "grows",
        severity: Severity::Warning,
        message: format!("latencies grew by {} while they were measured, window after window", percent(ratio - 1.0)),
        evidence: Evidence::measured("median of the last third over that of the first", ratio, GROWS),
        advice: "measure for longer and watch clocks and temperature: where it goes on, serve by what it comes to"
            .into(),
    })
}

fn is_reference(layer: &LayerTime) -> bool {
    layer.tactic.starts_with("reference") || layer.kind.starts_with("reference")
}

fn reference_kernels(case: &Case<'_>) -> Option<Advice> {
    let share = case.share(is_reference).filter(|share| *share >= REFERENCE)?;
    let kinds: Vec<&str> = case.slowest(3, is_reference).into_iter().map(|layer| layer.kind.as_str()).collect();
    Some(Advice {
        code: "reference-kernels",
        severity: Severity::Warning,
        message: format!(
            "steps without a kernel of their own take {} of the layers' time: {}",
            percent(share),
            kinds.join("; ")
        ),
        evidence: Evidence::measured("share of the layers' time in reference implementations", share, REFERENCE),
        advice: "try another toolchain for this model (--toolchain onnxruntime), or write the operator's kernel".into(),
    })
}
