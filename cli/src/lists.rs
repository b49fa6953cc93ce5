//! Lists that come in pages, as a whole: a farm may have more jobs, engines and reports than one message holds.

use crate::{failure::Failure, farm::Farm};
use planforge_proto::v1;

/// Jobs that are named in one call.
pub const NAMED_MAX: usize = 512;
/// Jobs that one stream follows.
pub const WATCHED_MAX: usize = 256;

/// As many rows of a list as were asked for, newest first.
#[derive(Clone, Debug, Default)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// The list has more of them.
    pub more: bool,
    /// How many it has, as far as they were counted.
    pub total: u64,
    /// Counting ended there.
    pub more_than_total: bool,
}

impl<T> Page<T> {
    /// What to say below a list that ended at its limit; `None` where nothing is left out.
    pub fn rest(&self, what: &str) -> Option<String> {
        let shown = self.rows.len();
        let of = match (self.total, self.more_than_total) {
            // A coordinator of an older release does not count.
            (0, _) => format!("there are more {what} than these {shown}"),
            (total, false) => format!("{shown} of {total} {what}"),
            (total, true) => format!("{shown} of more than {total} {what}"),
        };
        self.more.then(|| format!("{of}: --limit {} shows more, --all all of them", shown.saturating_mul(4)))
    }
}

/// Jobs, newest first, up to the request's limit; all that are named where it names some.
pub async fn jobs(farm: &Farm, request: v1::ListJobsRequest) -> Result<Vec<v1::Job>, Failure> {
    Ok(page_of_jobs(farm, request).await?.rows)
}

/// As [`jobs`], with whether there are more.
pub async fn page_of_jobs(farm: &Farm, request: v1::ListJobsRequest) -> Result<Page<v1::Job>, Failure> {
    if request.ids.len() > NAMED_MAX {
        let mut found = Vec::with_capacity(request.ids.len());
        for ids in request.ids.chunks(NAMED_MAX) {
            let request = v1::ListJobsRequest { ids: ids.to_vec(), ..request.clone() };
            found.extend(pages_of_jobs(farm, request).await?.rows);
        }
        found.sort_by(|a, b| (b.created_ms, &b.id).cmp(&(a.created_ms, &a.id)));
        return Ok(Page { total: found.len() as u64, rows: found, ..Page::default() });
    }
    pages_of_jobs(farm, request).await
}

async fn pages_of_jobs(farm: &Farm, mut request: v1::ListJobsRequest) -> Result<Page<v1::Job>, Failure> {
    let mut found = Page::default();
    loop {
        let reply = farm.rpc().list_jobs(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        if std::mem::take(&mut request.with_total) {
            (found.total, found.more_than_total) = (reply.total, reply.more_than_total);
        }
        let count = reply.jobs.len();
        found.more = !reply.next_cursor.is_empty();
        let rest = Rest::after(count, &mut request.limit, reply.next_cursor, &mut request.cursor);
        found.rows.extend(reply.jobs);
        if rest == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Engines, newest first, up to the request's limit.
pub async fn engines(farm: &Farm, request: v1::ListEnginesRequest) -> Result<Vec<v1::Engine>, Failure> {
    Ok(page_of_engines(farm, request).await?.rows)
}

/// As [`engines`], with whether there are more.
pub async fn page_of_engines(farm: &Farm, mut request: v1::ListEnginesRequest) -> Result<Page<v1::Engine>, Failure> {
    let mut found = Page::default();
    loop {
        let reply = farm.rpc().list_engines(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        if std::mem::take(&mut request.with_total) {
            (found.total, found.more_than_total) = (reply.total, reply.more_than_total);
        }
        let count = reply.engines.len();
        found.more = !reply.next_cursor.is_empty();
        let rest = Rest::after(count, &mut request.limit, reply.next_cursor, &mut request.cursor);
        found.rows.extend(reply.engines);
        if rest == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Every build of a model's history, newest first; pages may go on with the same lines.
pub async fn history(farm: &Farm, mut request: v1::GetHistoryRequest) -> Result<Vec<v1::HistoryLine>, Failure> {
    let mut found = Vec::new();
    loop {
        let reply = farm.rpc().get_history(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        let count = reply.lines.iter().map(|line| line.builds.len()).sum();
        found.extend(reply.lines);
        if Rest::after(count, &mut request.limit, reply.next_cursor, &mut request.cursor) == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Every project, by name; places for jobs are those that the last page told.
pub async fn projects(farm: &Farm) -> Result<v1::ListProjectsReply, Failure> {
    let (mut request, mut found) = (v1::ListProjectsRequest::default(), Vec::new());
    loop {
        let mut reply = farm.rpc().list_projects(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        found.append(&mut reply.projects);
        let next_cursor = std::mem::take(&mut reply.next_cursor);
        if Rest::after(found.len(), &mut request.limit, next_cursor, &mut request.cursor) == Rest::Nothing {
            return Ok(v1::ListProjectsReply { projects: found, ..reply });
        }
    }
}

/// Requests, newest first, up to the limit.
pub async fn page_of_requests(
    farm: &Farm,
    mut request: v1::ListRequestsRequest,
) -> Result<Page<v1::SubmittedRequest>, Failure> {
    let mut found = Page::default();
    loop {
        let reply = farm.rpc().list_requests(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        if std::mem::take(&mut request.with_total) {
            (found.total, found.more_than_total) = (reply.total, reply.more_than_total);
        }
        let count = reply.requests.len();
        found.more = !reply.next_cursor.is_empty();
        let rest = Rest::after(count, &mut request.limit, reply.next_cursor, &mut request.cursor);
        found.rows.extend(reply.requests);
        if rest == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Events, the latest first, up to the limit.
pub async fn page_of_events(farm: &Farm, mut request: v1::ListEventsRequest) -> Result<Page<v1::EventRecord>, Failure> {
    let mut found = Page::default();
    loop {
        let reply = farm.rpc().list_events(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        if std::mem::take(&mut request.with_total) {
            (found.total, found.more_than_total) = (reply.total, reply.more_than_total);
        }
        let count = reply.events.len();
        found.more = !reply.next_cursor.is_empty();
        let rest = Rest::after(count, &mut request.limit, reply.next_cursor, &mut request.cursor);
        found.rows.extend(reply.events);
        if rest == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Lines of the audit log, newest first, up to the request's limit.
pub async fn page_of_audit(farm: &Farm, mut request: v1::ListAuditRequest) -> Result<Page<v1::AuditRecord>, Failure> {
    let mut found = Page::default();
    loop {
        let reply = farm.rpc().list_audit(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        let count = reply.records.len();
        found.more = count > 0 && !reply.next_cursor.is_empty();
        let rest = Rest::after(count, &mut request.limit, reply.next_cursor, &mut request.cursor);
        found.rows.extend(reply.records);
        if rest == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Pins, newest first, up to the request's limit.
pub async fn page_of_pins(farm: &Farm, mut request: v1::ListPinsRequest) -> Result<Page<v1::Pin>, Failure> {
    let mut found = Page::default();
    loop {
        let reply = farm.rpc().list_pins(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        let count = reply.pins.len();
        found.more = count > 0 && !reply.next_cursor.is_empty();
        let rest = Rest::after(count, &mut request.limit, reply.next_cursor, &mut request.cursor);
        found.rows.extend(reply.pins);
        if rest == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Every declaration, newest first.
pub async fn declarations(
    farm: &Farm,
    mut request: v1::ListDeclarationsRequest,
) -> Result<Vec<v1::Declaration>, Failure> {
    let mut found = Vec::new();
    loop {
        let reply = farm.rpc().list_declarations(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        let count = reply.declarations.len();
        found.extend(reply.declarations);
        if Rest::after(count, &mut request.limit, reply.next_cursor, &mut request.cursor) == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Every report of what the request names, newest first.
pub async fn reports(farm: &Farm, mut request: v1::ListReportsRequest) -> Result<v1::ListReportsReply, Failure> {
    let mut found = v1::ListReportsReply::default();
    loop {
        let reply = farm.rpc().list_reports(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        let mut no_limit = 0;
        let more = Rest::after(reply.reports_json.len(), &mut no_limit, reply.next_cursor, &mut request.cursor);
        found.reports_json.extend(reply.reports_json);
        found.facts.extend(reply.facts);
        if more == Rest::Nothing {
            return Ok(found);
        }
    }
}

/// Asks again for jobs that a long reply shortened.
pub async fn complete(farm: &Farm, jobs: &mut [v1::Job]) -> Result<(), Failure> {
    for job in jobs.iter_mut().filter(|job| job.partial) {
        let request = v1::GetJobRequest { id: job.id.clone() };
        let whole = farm.rpc().get_job(request).await.map_err(|e| farm.error(e))?.into_inner();
        // What was said to this caller alone stays.
        let (request_id, cached) = (std::mem::take(&mut job.request_id), job.cached);
        *job = v1::Job { request_id, cached, ..whole };
    }
    Ok(())
}

/// Whether a list goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Nothing,
    More,
}

impl Rest {
    /// Makes the next page's request of the last one's, where there is one: `count` items came, perhaps none of those that
    /// were looked at. A limit of 0 is none.
    fn after(count: usize, limit: &mut u32, next_cursor: String, cursor: &mut String) -> Self {
        let left = u32::try_from(count).map_or(0, |count| limit.saturating_sub(count));
        // The same page would come again and again.
        if next_cursor.is_empty() || next_cursor == *cursor || (*limit > 0 && left == 0) {
            return Self::Nothing;
        }
        *limit = left;
        *cursor = next_cursor;
        Self::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on_until_its_end_or_its_limit() {
        let (mut limit, mut cursor) = (1_500, String::new());
        assert_eq!(Rest::after(1_000, &mut limit, "7.a".into(), &mut cursor), Rest::More);
        assert_eq!((limit, cursor.as_str()), (500, "7.a"));
        assert_eq!(Rest::after(500, &mut limit, "3.b".into(), &mut cursor), Rest::Nothing);
        let (mut limit, mut cursor) = (0, String::new());
        assert_eq!(Rest::after(9, &mut limit, "7.a".into(), &mut cursor), Rest::More);
        assert_eq!(limit, 0);
        assert_eq!(Rest::after(9, &mut limit, String::new(), &mut cursor), Rest::Nothing);
        // A page may be empty and the list go on; the same place twice is no way on.
        assert_eq!(Rest::after(0, &mut limit, "5.c".into(), &mut cursor), Rest::More);
        assert_eq!(Rest::after(0, &mut limit, "5.c".into(), &mut cursor), Rest::Nothing);
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let page = |total, more, more_than_total| Page { rows: vec![(); 50], more, total, more_than_total };
        let said = |page: Page<()>| page.rest("jobs").unwrap_or_default();
        assert_eq!(said(page(1_234, true, false)), "50 of 1234 jobs: --limit 200 shows more, --all all of them");
        assert!(said(page(1_000, true, true)).starts_with("50 of more than 1000 jobs"));
        assert!(said(page(0, true, false)).starts_with("there are more jobs than these 50"));
        assert_eq!(page(50, false, false).rest("jobs"), None);
    }
}
