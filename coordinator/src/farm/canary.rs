//! Whether a canary is shown to be not slower than the engine that it would take the place of.

use super::{
    Farm,
    convert::{digest, invalid},
};
use crate::core::{Canary, Covered, FinishedIn, ReportIn};
use planforge_proto::{ApiError, v1};
use planforge_report::{
    Report,
    compare::{
        compare,
        gate::{self, Figure, Limit, Outcome},
    },
};

/// What to do about a canary that is slower.
pub(super) const HINT: &str = "nothing that needs it is built; 'planforge compare' shows where the time goes, and \
                               'planforge refresh --slower-percent N' allows more";

/// Most that a canary may be allowed to be slower.
const MOST_PERCENT: f64 = 1_000.0;

/// What a request says of one.
pub(super) fn asked(asked: &v1::Canary) -> Result<Canary, ApiError> {
    check_percent(asked.slower_percent)?;
    let plan = digest("the digest of the plan that a canary is held against", &asked.plan_digest)?;
    Ok(Canary { plan, slower_percent: asked.slower_percent })
}

pub(super) fn check_percent(slower_percent: f64) -> Result<(), ApiError> {
    if (0.0..=MOST_PERCENT).contains(&slower_percent) {
        return Ok(());
    }
    Err(invalid(format!("a canary may be 0 to {MOST_PERCENT} % slower, not {slower_percent}")))
}

/// Why the success of a canary is none; `None`: it is one, or no canary.
pub(super) async fn objection(farm: &Farm, finished: &FinishedIn) -> Result<Option<String>, ApiError> {
    let (id, number) = (finished.lease.job.clone(), finished.lease.attempt);
    let held = farm.ask(move |state, _| state.job(&id).filter(|job| job.attempt() == number).cloned()).await?;
    let Some((job, canary)) = held.and_then(|job| job.canary.clone().map(|canary| (job, canary))) else {
        return Ok(None);
    };
    let Some(report) = &finished.report else { return Ok(Some("a canary has to be measured".into())) };
    let base = farm.answering_report(canary.plan, job.sku.as_str(), &Covered::default()).await?;
    let Some(base) = base else {
        return Ok(Some(format!("there is no measurement of plan {} to hold the canary against", canary.plan.short())));
    };
    Ok(against(&base.document, report, canary.slower_percent))
}

fn against(base: &str, now: &ReportIn, slower_percent: f64) -> Option<String> {
    let (base, now) = match (Report::parse(base.as_bytes()), Report::parse(now.document.as_bytes())) {
        (Ok(base), Ok(now)) => (base, now),
        (Err(error), _) | (_, Err(error)) => return Some(format!("a report cannot be read: {error}")),
    };
    let reports = [base, now];
    let comparison = match compare(&reports) {
        Ok(comparison) => comparison,
        Err(error) => return Some(format!("the canary cannot be compared: {error}")),
    };
    let limit = Limit { sku: None, figure: Figure::Median, allowed_percent: slower_percent };
    let gate = gate::judge(&comparison, &reports, &[limit]);
    let line = gate.lines.iter().find(|line| line.outcome != Outcome::Passed);
    match (gate.passed, line) {
        (true, _) => None,
        (false, Some(line)) => Some(format!(
            "the canary of a refresh may be at most {slower_percent} % slower than plan {}: {}",
            reports[0].plan.digest.short(),
            line.reason
        )),
        (false, None) => Some("the canary was compared with nothing".into()),
    }
}
