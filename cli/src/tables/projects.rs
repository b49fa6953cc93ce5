//! Projects and the audit log as tables.

use super::{bytes, render as render_table, table};
use planforge_proto::v1;
use planforge_report::format::date;

/// One row a project. Of two limits the smaller is shown, with whose it is.
pub fn render(projects: &[v1::Project]) -> String {
    let mut rows = table(&["project", "share", "jobs", "running", "may have", "stored", "may store", "tokens"]);
    for project in projects {
        let may_store = match (project.max_stored_bytes, project.own_max_stored_bytes) {
            (0, 0) => "no limit".to_owned(),
            (farm, own) if own > 0 && (farm == 0 || own < farm) => format!("{} (its own)", bytes(own)),
            (farm, _) => bytes(farm),
        };
        rows.add_row([
            project.name.clone(),
            project.share.to_string(),
            project.live_jobs.to_string(),
            project.running_jobs.to_string(),
            project.jobs_limit.to_string(),
            bytes(project.stored_bytes),
            may_store,
            project.tokens.to_string(),
        ]);
    }
    render_table(rows, &[1, 2, 3, 4, 7])
}

/// `2026-11-20 09:05:01`, in UTC.
pub fn moment(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000 % 86_400;
    format!("{} {:02}:{:02}:{:02}", date(unix_ms), seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// One row a line of the audit log.
pub fn audit(records: &[v1::AuditRecord]) -> String {
    let mut rows = table(&["when (utc)", "who", "role", "project", "from", "what", "object", "outcome", "detail"]);
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    for record in records {
        rows.add_row([
            moment(record.at_ms),
            or_dash(&record.actor),
            or_dash(&record.role),
            if record.project.is_empty() { "all".into() } else { record.project.clone() },
            or_dash(&record.from),
            record.what.clone(),
            or_dash(&record.object),
            record.outcome.clone(),
            or_dash(&record.detail),
        ]);
    }
    render_table(rows, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_clock() {
        assert_eq!(moment(20_777 * 86_400_000 + 32_701_999), "2026-11-20 09:05:01");
    }
}
