//! What foreign plans lose on a device kind that they were not built for, by the reports of the farm that is at hand.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need, Place},
    reports,
    request::models,
};
use planforge_proto::v1;
use planforge_report::{
    Report,
    compare::portability::{Portability, own_key, portability},
};
use planforge_types::fingerprint::DiscoveredDevice;
use std::path::Path;

/// Said where the farm has not measured a plan on such a device.
const NO_CELL: &str = "not measured: the farm has no measurement of this plan on a device like this one";

/// Reports of the engines that the foreign plans among `reports` are held against.
pub async fn own_engines<'a>(
    farm: &Farm,
    reports: impl IntoIterator<Item = &'a Report>,
) -> Result<Vec<Report>, Failure> {
    let mut keys: Vec<_> = reports.into_iter().filter_map(own_key).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut found = Vec::new();
    for key in keys {
        let engine_key = key.to_string();
        let request = v1::ListReportsRequest { engine_key: engine_key.clone(), ..Default::default() };
        found.extend(reports::listed(farm, request, &engine_key).await?.into_iter().map(|found| found.report));
    }
    Ok(found)
}

/// As [`own_engines`], of the farm that is at hand when there is one. Nothing is asked when no plan is foreign, and a farm
/// that does not answer is only warned of.
pub async fn own_engines_at_hand<'a>(
    context: &Context<'_>,
    reports: impl IntoIterator<Item = &'a Report>,
) -> Vec<Report> {
    let foreign: Vec<&Report> = reports.into_iter().filter(|report| report.foreign.is_some()).collect();
    if foreign.is_empty() {
        return Vec::new();
    }
    at_hand(context, async |farm| own_engines(farm, foreign.iter().copied()).await).await.unwrap_or_default()
}

/// What the plan loses on the `devices` of this machine, in words, and the cell it is from where there is one.
pub async fn of_plan(
    context: &Context<'_>,
    plan: &Path,
    devices: &[DiscoveredDevice],
) -> Result<(String, Option<Portability>), Failure> {
    let (plan_digest, _) = models::hash(plan)?;
    let cell = at_hand(context, async |farm| {
        let request = v1::ListReportsRequest { plan_digest: plan_digest.clone(), ..Default::default() };
        let found = reports::listed(farm, request, &plan_digest).await?;
        let here = |report: &Report| {
            let class = report.device.class_digest();
            report.foreign.is_some() && devices.iter().any(|device| device.fingerprint.class_digest() == class)
        };
        let Some(newest) = found.into_iter().map(|found| found.report).find(here) else { return Ok(None) };
        Ok(portability(&newest, &own_engines(farm, [&newest]).await?))
    });
    let cell = cell.await.flatten();
    Ok((cell.as_ref().map_or_else(|| NO_CELL.to_owned(), Portability::words), cell))
}

/// Asks the farm that is configured, or this machine's own when it has one. `None`, and a warning, when it does not
/// answer.
async fn at_hand<T>(context: &Context<'_>, ask: impl AsyncFnMut(&Farm) -> Result<T, Failure>) -> Option<T> {
    let asked = async {
        if let Place::ThisMachine(data) = Place::choose(&context.settings)?
            && !data.exists()
        {
            return Ok(None);
        }
        Farm::with(context, Need::Answers, ask).await.map(Some)
    };
    asked.await.unwrap_or_else(|failure| {
        context.printer.warn(&format!("what a foreign plan loses could not be looked up: {failure}"));
        None
    })
}
