//! What foreign plans lose: looked up when somebody asks, because either measurement may come later than the other.

use super::Farm;
use crate::{auth::Actor, store::ReportFilter};
use planforge_proto::{ApiError, v1};
use planforge_report::{
    Report,
    compare::portability::{Portability, own_key, portability},
};

/// Newest measurements of the device's own engine that are looked at.
const LOOKED_AT: usize = 20;

impl Farm {
    /// What the plan of a measured job loses on a device kind that it was not built for; `None` for other jobs, and
    /// where the report is of a version that this program cannot read.
    pub async fn portability(&self, actor: &Actor, job: &v1::Job) -> Result<Option<Portability>, ApiError> {
        if job.built_for.is_empty() || job.built_for == job.sku {
            return Ok(None);
        }
        let Some(report) = parse(&job.report_json) else { return Ok(None) };
        let Some(key) = own_key(&report) else { return Ok(None) };
        let filter = ReportFilter { key: Some(key), limit: LOOKED_AT, ..ReportFilter::default() };
        let others = self.visible_reports(actor, filter).await?;
        let others: Vec<Report> = others.iter().filter_map(|other| parse(&other.document)).collect();
        let told = tokio::task::spawn_blocking(move || portability(&report, &others)).await;
        Ok(told.inspect_err(|error| tracing::error!(%error, "cannot tell what a plan loses")).unwrap_or_default())
    }
}

fn parse(document: &str) -> Option<Report> {
    Report::parse(document.as_bytes()).inspect_err(|error| tracing::debug!(%error, "unreadable report")).ok()
}
