//! Links for reading without a token.

use super::{duration, render, short, table};
use planforge_proto::v1;

/// One row a link.
pub fn shares(shares: &[v1::Share], now_ms: u64) -> String {
    let mut rows = table(&["link", "shows", "project", "made by", "lasts", "last read"]);
    for share in shares {
        let shows = match share.request_id.as_str() {
            "" => format!("model {}", short(&share.model_digest)),
            request => format!("request {request}"),
        };
        let project = if share.project.is_empty() { "all" } else { &share.project };
        let read = match share.opened_ms {
            0 => "never".into(),
            at_ms => format!("{} ago", duration(now_ms.saturating_sub(at_ms))),
        };
        let lasts = duration(share.expires_ms.saturating_sub(now_ms));
        rows.add_row([share.id.clone(), shows, project.into(), share.actor.clone(), lasts, read]);
    }
    render(rows, &[4])
}
