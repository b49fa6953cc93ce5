//! The fastest engine that was measured on a device kind for which none was built.
//!
//! Whether a plan runs on another kind of device, and how well, is what `bench --on` found out; nothing is guessed.

use crate::{failure::Failure, farm::Farm, portability, reports};
use planforge_proto::v1;
use planforge_report::{
    Report,
    compare::portability::{Portability, portability},
    format::milliseconds,
};
use planforge_types::{Digest, Sku};

/// A plan that runs on the device kind, with what it loses there.
#[derive(Debug)]
pub(super) struct Foreign {
    /// Among the plans that were asked about.
    pub index: usize,
    report: Report,
    loss: Option<Portability>,
}

impl Foreign {
    /// What to warn of.
    pub fn words(&self, sku: &Sku) -> String {
        let median = milliseconds(self.report.latency_ms.median);
        let loss = self
            .loss
            .as_ref()
            .map_or_else(|| "what it loses is not known".into(), |loss| format!("loss {}", loss.words()));
        let built_for = self.report.foreign.as_ref().map_or(&self.report.sku, |foreign| &foreign.built_for);
        format!(
            "nothing was built for {sku}: this one, built for {built_for}, is the fastest measured there, {median}; {loss}"
        )
    }
}

/// What came of looking at the measurements of other kinds' engines.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub best: Option<Foreign>,
    /// By index, why the others are no answer.
    pub rejected: Vec<(usize, String)>,
}

/// Looks through the measurements of `plans`, none of which was built for `sku`.
pub(super) async fn fastest(
    farm: &Farm,
    plans: &[Digest],
    sku: &Sku,
    allow_inaccurate: bool,
) -> Result<Search, Failure> {
    let mut search = Search::default();
    for (index, plan) in plans.iter().enumerate() {
        let plan = plan.to_string();
        let request = v1::ListReportsRequest { plan_digest: plan.clone(), ..Default::default() };
        let found = reports::listed(farm, request, &plan).await?;
        let here = |report: &Report| report.foreign.as_ref().is_some_and(|foreign| foreign.measured_on == *sku);
        // Newest first.
        let Some(report) = found.into_iter().map(|found| found.report).find(here) else {
            search.rejected.push((index, format!("not measured on {sku} (planforge bench {plan} --on {sku} does)")));
            continue;
        };
        if !report.accurate && !allow_inaccurate {
            search.rejected.push((index, format!("its outputs are wrong on {sku}")));
            continue;
        }
        let median = report.latency_ms.median;
        match &mut search.best {
            Some(best) if best.report.latency_ms.median <= median => {
                let than = milliseconds(best.report.latency_ms.median);
                search.rejected.push((index, format!("slower on {sku}: {} against {than}", milliseconds(median))));
            }
            best => {
                if let Some(before) = best.take() {
                    let slower = milliseconds(before.report.latency_ms.median);
                    search
                        .rejected
                        .push((before.index, format!("slower on {sku}: {slower} against {}", milliseconds(median))));
                }
                *best = Some(Foreign { index, report, loss: None });
            }
        }
    }
    if let Some(best) = &mut search.best {
        best.loss = portability(&best.report, &portability::own_engines(farm, [&best.report]).await?);
    }
    Ok(search)
}
