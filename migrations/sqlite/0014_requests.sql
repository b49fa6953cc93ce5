-- How requests stand, kept as their jobs change: those that are open, or of which something failed, are one range of an
-- index; and so are the events of a kind.

CREATE INDEX events_what ON events (what, seq);

CREATE TABLE request_jobs (
    job     TEXT NOT NULL,
    request TEXT NOT NULL,  -- that the job is of; a job may be of several
    PRIMARY KEY (job, request)
) WITHOUT ROWID;
INSERT OR IGNORE INTO request_jobs
    SELECT j.value, r.id
    FROM requests AS r, json_each(CASE WHEN json_valid(r.doc) THEN r.doc ELSE '{}' END, '$.jobs') AS j;

ALTER TABLE requests ADD COLUMN jobs BIGINT NOT NULL DEFAULT 0;  -- that it came to
ALTER TABLE requests ADD COLUMN live BIGINT NOT NULL DEFAULT 0;  -- of them: not ended
ALTER TABLE requests ADD COLUMN lost BIGINT NOT NULL DEFAULT 0;  -- of them: ended without success, those too that are kept no more
ALTER TABLE requests ADD COLUMN state TEXT NOT NULL DEFAULT 'succeeded';  -- open while some live, failed when some are lost
UPDATE requests SET (jobs, live, lost) = (standing.jobs, standing.live, standing.lost) FROM (
    SELECT r.request, COUNT(*) AS jobs,
        COALESCE(SUM(j.state NOT IN ('succeeded', 'failed', 'cancelled', 'skipped')), 0) AS live,
        COALESCE(SUM(j.state IN ('failed', 'cancelled', 'skipped')), 0) AS lost
    FROM request_jobs AS r LEFT JOIN jobs AS j ON j.id = r.job GROUP BY r.request
) AS standing WHERE standing.request = requests.id;
UPDATE requests SET state = CASE WHEN live > 0 THEN 'open' ELSE 'failed' END WHERE live > 0 OR lost > 0;

CREATE INDEX requests_state ON requests (state, created_ms, id);
CREATE INDEX requests_project ON requests (project, created_ms, id);
CREATE INDEX requests_project_state ON requests (project, state, created_ms, id);

-- A request is written with or behind its jobs.
CREATE TRIGGER requests_come AFTER INSERT ON requests BEGIN
    INSERT OR IGNORE INTO request_jobs SELECT value, NEW.id FROM json_each(NEW.doc, '$.jobs');
    UPDATE requests SET (jobs, live, lost) = (
        SELECT COUNT(*),
            COALESCE(SUM(j.state NOT IN ('succeeded', 'failed', 'cancelled', 'skipped')), 0),
            COALESCE(SUM(j.state IN ('failed', 'cancelled', 'skipped')), 0)
        FROM (SELECT DISTINCT value AS id FROM json_each(NEW.doc, '$.jobs')) AS n LEFT JOIN jobs AS j ON j.id = n.id
    ) WHERE id = NEW.id;
    UPDATE requests SET state = CASE WHEN live > 0 THEN 'open' ELSE 'failed' END
        WHERE id = NEW.id AND (live > 0 OR lost > 0);
END;
CREATE TRIGGER jobs_change_requests AFTER UPDATE OF state ON jobs
WHEN OLD.state <> NEW.state AND (NEW.state IN ('succeeded', 'failed', 'cancelled', 'skipped')
    OR OLD.state IN ('succeeded', 'failed', 'cancelled', 'skipped')) BEGIN
    UPDATE requests SET
        live = live - (OLD.state NOT IN ('succeeded', 'failed', 'cancelled', 'skipped'))
            + (NEW.state NOT IN ('succeeded', 'failed', 'cancelled', 'skipped')),
        lost = lost - (OLD.state IN ('failed', 'cancelled', 'skipped')) + (NEW.state IN ('failed', 'cancelled', 'skipped'))
        WHERE id IN (SELECT request FROM request_jobs WHERE job = NEW.id);
    UPDATE requests SET state = CASE WHEN live > 0 THEN 'open' WHEN lost > 0 THEN 'failed' ELSE 'succeeded' END
        WHERE id IN (SELECT request FROM request_jobs WHERE job = NEW.id)
        AND state <> CASE WHEN live > 0 THEN 'open' WHEN lost > 0 THEN 'failed' ELSE 'succeeded' END;
END;
CREATE TRIGGER jobs_go_requests AFTER DELETE ON jobs BEGIN
    DELETE FROM request_jobs WHERE job = OLD.id;
END;
