//! Lists of requests and of events in SQL databases: which index each is read along.

use super::{
    Count, EventFilter, EventListFilter, ListedRequest, Part, RequestFilter, StoreError,
    lists::{COUNTED_MAX, NAMED_AT_ONCE},
    sql::{Select, Statement, Value},
    tables::{Row, Tables, event, number, parse, text},
    walk::{Place, Stream, Walk},
};
use crate::core::{Event, JobId, RequestRecord};
use std::collections::BTreeMap;

/// In a request the place of one job is taken by another; both have been written.
pub(super) fn replaced(request: &str, from: &JobId, to: &JobId) -> Vec<Statement> {
    const ENDED_BADLY: &str = "'failed', 'cancelled', 'skipped'";
    // Of a state: with the first job, and without the second where the request has that already.
    let standing = |states: &str| {
        format!(
            "- (SELECT COUNT(*) FROM jobs JOIN request_jobs ON job = jobs.id \
               WHERE jobs.id = $1 AND request = $3 AND jobs.state {states}) \
             + (SELECT COUNT(*) FROM jobs WHERE jobs.id = $2 AND jobs.state {states} \
               AND NOT EXISTS (SELECT 1 FROM request_jobs WHERE job = $2 AND request = $3))"
        )
    };
    let live = standing(&format!("NOT IN ('succeeded', {ENDED_BADLY})"));
    let lost = standing(&format!("IN ({ENDED_BADLY})"));
    let statement = |sql: &str, values: &[&str]| Statement {
        sql: sql.into(),
        values: values.iter().map(|v| (*v).into()).collect(),
    };
    let (from, to) = (from.as_str(), to.as_str());
    let counted = format!(
        "UPDATE requests SET live = live {live}, lost = lost {lost}, \
         jobs = jobs + 1 - (SELECT COUNT(*) FROM request_jobs WHERE request = $3 AND job IN ($1, $2)), \
         doc = json_set(doc, '$.jobs', json((SELECT json_group_array(CASE value WHEN $1 THEN $2 ELSE value END) \
           FROM json_each(requests.doc, '$.jobs')))) \
         WHERE id = $3"
    );
    vec![
        statement(&counted, &[from, to, request]),
        statement("DELETE FROM request_jobs WHERE job = $1 AND request = $2", &[from, request]),
        statement(
            "INSERT INTO request_jobs (job, request) SELECT $1, id FROM requests WHERE id = $2 ON CONFLICT DO NOTHING",
            &[to, request],
        ),
        statement(
            "UPDATE requests SET state = \
             CASE WHEN live > 0 THEN 'open' WHEN lost > 0 THEN 'failed' ELSE 'succeeded' END WHERE id = $1",
            &[request],
        ),
    ]
}

impl Tables {
    pub(super) async fn part_of_requests(
        &self,
        filter: RequestFilter,
    ) -> Result<Part<ListedRequest, (u64, String)>, StoreError> {
        let behind = filter.behind.clone().map(|(at_ms, id)| Place { at_ms, names: vec![id] });
        let walked = self.walked(&walk_of_requests(&filter), behind, filter.limit).await?;
        let id = |place: &Place| place.names.first().cloned().unwrap_or_default();
        let mut found = BTreeMap::new();
        for ids in walked.places.chunks(NAMED_AT_ONCE) {
            let mut select = Select::new("SELECT doc, jobs, live, lost FROM requests");
            let statement = select.one_of("id", ids.iter().map(id)).order("id", NAMED_AT_ONCE);
            let listed = self.records(&self.rows(statement).await?, listed_request)?;
            found.extend(listed.into_iter().map(|listed| (listed.request.id.clone(), listed)));
        }
        let items = walked.places.iter().filter_map(|place| found.remove(&id(place))).collect();
        Ok(Part { items, rest: walked.rest.map(|rest| (rest.at_ms, id(&rest))) })
    }

    pub(super) async fn count_of_requests(&self, filter: RequestFilter) -> Result<Count, StoreError> {
        self.count_of_walk(&walk_of_requests(&filter)).await
    }

    /// Counts a list up to where counting ends, in the database where nothing is asked of its rows.
    async fn count_of_walk(&self, walk: &Walk) -> Result<Count, StoreError> {
        if !walk.fits.is_empty() {
            let walked = self.walked(walk, None, COUNTED_MAX).await?;
            return Ok(Count { count: walked.places.len() as u64, is_exact: walked.rest.is_none() });
        }
        let Statement { sql, values } = walk.statement(None, COUNTED_MAX + 1);
        let sql = format!("SELECT COUNT(*) AS n FROM ({sql}) AS counted");
        let found = self.rows(Statement { sql, values }).await?.first().map_or(Ok(0), |row| number(row, "n"))?;
        let most = COUNTED_MAX as u64;
        Ok(Count { count: found.min(most), is_exact: found <= most })
    }

    pub(super) async fn part_of_events(&self, filter: EventListFilter) -> Result<Part<Event, u64>, StoreError> {
        let behind = filter.before.map(|at_ms| Place { at_ms, names: Vec::new() });
        let walked = self.walked(&walk_of_events(&filter), behind, filter.limit).await?;
        let mut items = Vec::with_capacity(walked.places.len());
        for places in walked.places.chunks(NAMED_AT_ONCE) {
            let mut select = Select::new(EVENT_COLUMNS);
            let values = places.iter().map(|place| place.at_ms.into());
            let statement = select.one_of_values("seq", values).order("seq DESC", NAMED_AT_ONCE);
            items.extend(self.records(&self.rows(statement).await?, event)?);
        }
        Ok(Part { items, rest: walked.rest.map(|rest| rest.at_ms) })
    }

    pub(super) async fn count_of_events(&self, filter: EventListFilter) -> Result<Count, StoreError> {
        self.count_of_walk(&walk_of_events(&filter)).await
    }

    /// Events in the order in which they happened.
    pub(super) async fn events_after(&self, filter: EventFilter) -> Result<Vec<Event>, StoreError> {
        let mut select = Select::new(EVENT_COLUMNS);
        select
            .filter("seq > #", Some(filter.after))
            // Asked of each event that comes by: a project may have more jobs than a list is worth making of.
            .filter(
                // Left to itself SQLite reads all jobs of the project for each event.
                "EXISTS (SELECT 1 FROM job_projects AS p INDEXED BY job_projects_job WHERE p.job = events.job \
                 AND p.project = #)",
                filter.project,
            )
            .one_of("job", filter.jobs.iter().map(|id| id.as_str().to_owned()));
        self.page(&select, "seq", filter.limit, event).await
    }
}

const EVENT_COLUMNS: &str = "SELECT seq, at_ms, job, actor, what, state, attempt, phase, detail FROM events";

fn listed_request(row: &Row) -> Result<ListedRequest, StoreError> {
    let request: RequestRecord = parse("a request", &text(row, "doc")?)?;
    Ok(ListedRequest { request, jobs: number(row, "jobs")?, live: number(row, "live")?, lost: number(row, "lost")? })
}

fn walk_of_requests(filter: &RequestFilter) -> Walk {
    let from = match (&filter.project, filter.states.as_slice()) {
        (Some(_), [_, ..]) => "requests INDEXED BY requests_project_state",
        (Some(_), []) => "requests INDEXED BY requests_project",
        (None, [_, ..]) => "requests INDEXED BY requests_state",
        (None, []) => "requests INDEXED BY requests_created",
    };
    let project = filter.project.as_ref().map(|project| ("project", Value::from(project.clone())));
    let stream = |state: Option<&str>| {
        let equal = project.clone().into_iter().chain(state.map(|state| ("state", state.into()))).collect();
        Stream { from, only: "", equal, at: "created_ms", names: &["id"] }
    };
    let streams = match filter.states.is_empty() {
        true => vec![stream(None)],
        false => filter.states.iter().map(|state| stream(Some(state.name()))).collect(),
    };
    let (since_ms, until_ms) = (filter.since_ms, filter.until_ms);
    Walk { streams, newest_first: true, since_ms, until_ms, fits: String::new(), fits_values: Vec::new() }
}

/// By their numbers: newest first is the order in which they stand in the table, and in the indexes by job and by kind.
fn walk_of_events(filter: &EventListFilter) -> Walk {
    let stream = |from, equal| Stream { from, only: "", equal, at: "seq", names: &[] };
    let streams: Vec<Stream> = match (filter.jobs.as_slice(), filter.kinds.as_slice()) {
        ([], []) => vec![stream("events", Vec::new())],
        ([], kinds) => {
            let of_kind = |kind: &String| vec![("what", Value::from(kind.as_str()))];
            kinds.iter().map(|kind| stream("events INDEXED BY events_what", of_kind(kind))).collect()
        }
        (jobs, _) => {
            let of_job = |job: &JobId| vec![("job", Value::from(job.as_str()))];
            jobs.iter().map(|job| stream("events INDEXED BY events_job", of_job(job))).collect()
        }
    };
    let (mut conditions, mut fits_values) = (Vec::new(), Vec::new());
    if !filter.kinds.is_empty() && !filter.jobs.is_empty() {
        conditions.push(format!("v.what IN ({})", vec!["#"; filter.kinds.len()].join(", ")));
        fits_values.extend(filter.kinds.iter().map(|kind| Value::from(kind.as_str())));
    }
    if let Some(project) = &filter.project {
        let own = "EXISTS (SELECT 1 FROM job_projects AS p INDEXED BY job_projects_job WHERE p.job = v.job \
                   AND p.project = #)";
        conditions.push(own.to_owned());
        fits_values.push(project.as_str().into());
    }
    let fits = match conditions.is_empty() {
        true => String::new(),
        false => format!("EXISTS (SELECT 1 FROM events AS v WHERE v.seq = w.a AND {})", conditions.join(" AND ")),
    };
    let since_ms = Some(filter.after.saturating_add(1)).filter(|_| filter.after > 0);
    Walk { streams, newest_first: true, since_ms, until_ms: None, fits, fits_values }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            RequestState, SqliteStore, Store as _, lists::tests::assert_along_indexes, lists::tests::plan,
            sql_store::SqlStore as _,
        },
        *,
    };

    #[tokio::test]
    async fn lists_of_requests_and_events_are_read_along_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
        let any = RequestFilter::default;
        let project = || Some("vision".to_owned());
        for (filter, index) in [
            (any(), "requests_created"),
            (RequestFilter { since_ms: Some(1), ..any() }, "requests_created"),
            (RequestFilter { project: project(), ..any() }, "requests_project"),
            (RequestFilter { states: vec![RequestState::Open, RequestState::Failed], ..any() }, "requests_state"),
            (RequestFilter { project: project(), states: vec![RequestState::Open], ..any() }, "requests_project_state"),
        ] {
            let plan = plan(store.tables(), &walk_of_requests(&filter)).await;
            assert_along_indexes(&plan, &format!("{filter:?}"));
            let along = format!(" USING COVERING INDEX {index}");
            assert!(plan.iter().any(|line| line.contains(&along)), "{filter:?}: {plan:#?}");
        }
        let any = EventListFilter::default;
        for filter in [
            any(),
            EventListFilter { after: 7, kinds: vec!["failed".into()], ..any() },
            EventListFilter { project: project(), kinds: vec!["failed".into()], ..any() },
            EventListFilter { project: project(), ..any() },
            EventListFilter { jobs: vec!["aa1".into(), "bb2".into()], ..any() },
        ] {
            let plan = plan(store.tables(), &walk_of_events(&filter)).await;
            let of_jobs = !filter.jobs.is_empty();
            let told = |way: &str| plan.iter().any(|line| line.contains(way));
            assert!(filter.project.is_none() || told("INDEX job_projects_job (job=?)"), "{filter:?}: {plan:#?}");
            assert!(filter.kinds.is_empty() || told("INDEX events_what (what=?"), "{filter:?}: {plan:#?}");
            for line in &plan {
                // Without conditions the table itself is the list, in its order.
                assert!(!line.starts_with("SCAN events") || filter.after == 0 && !of_jobs, "{filter:?}: {plan:#?}");
                assert!(!line.contains("TEMP B-TREE") || of_jobs, "{filter:?}: {plan:#?}");
            }
            assert_along_indexes(&plan, &format!("{filter:?}"));
        }
        store.close().await.unwrap();
    }
}
