-- What every build and report makes known, with plans that are kept: a function in SQL is planned anew whenever a trigger
-- calls it (unless it is small enough to become part of the caller's own), and planning took most of a job's commits.

CREATE OR REPLACE FUNCTION json_plain(found JSON) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    -- By its number: the language has a variable of the name.
    CASE json_typeof($1)
        WHEN 'null' THEN RETURN NULL;
        WHEN 'string' THEN RETURN $1 #>> '{}';
        WHEN 'boolean' THEN RETURN CASE $1::text WHEN 'true' THEN '1' ELSE '0' END;
        ELSE RETURN $1::text;
    END CASE;
END $$;

CREATE OR REPLACE FUNCTION known_as(project TEXT, builder TEXT, model_name TEXT, digest TEXT) RETURNS TEXT
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF known_as.project IN ('', builder) THEN
        RETURN known_as.model_name;
    END IF;
    RETURN COALESCE((SELECT m.model_name FROM project_models AS m
        WHERE m.project = known_as.project AND m.model_digest = digest), substr(digest, 1, 12));
END $$;

CREATE OR REPLACE FUNCTION know_engine(key TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO engine_facts
        SELECT engine_key, plan_digest, project, sku, model_name, model_digest, created_ms, spec, toolchain, accurate,
            simulated, median_ms, disturbed
        FROM build_facts WHERE engine_key = key AND plan_digest = (
            SELECT n.plan_digest FROM engines AS n WHERE n.engine_key = key
            ORDER BY n.seq DESC, n.created_ms DESC, n.plan_digest DESC LIMIT 1)
        ON CONFLICT ON CONSTRAINT engine_facts_pkey DO UPDATE SET plan_digest = excluded.plan_digest,
            project = excluded.project, model_name = excluded.model_name, created_ms = excluded.created_ms,
            spec = excluded.spec, toolchain = excluded.toolchain, accurate = excluded.accurate,
            simulated = excluded.simulated, median_ms = excluded.median_ms, disturbed = excluded.disturbed;
END $$;

CREATE OR REPLACE FUNCTION remember_builds(plan TEXT, device TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    -- Most builds come before the report that says how fast they are.
    IF NOT EXISTS (SELECT 1 FROM reports WHERE plan_digest = plan AND sku = device) THEN
        RETURN;
    END IF;
    INSERT INTO history_builds
        SELECT model_name, created_ms, engine_key, plan_digest, model_digest, sku, project, job, spec, toolchain,
            median_ms, disturbed
        FROM measured_builds WHERE plan_digest = plan AND sku = device
        ON CONFLICT ON CONSTRAINT history_builds_pkey DO UPDATE SET project = excluded.project, job = excluded.job,
            spec = excluded.spec, toolchain = excluded.toolchain, median_ms = excluded.median_ms,
            disturbed = excluded.disturbed;
END $$;

-- What is kept as jobs come and change, once for all rows of a statement: a commit writes many jobs, and each would
-- write the same counts again.

DROP TRIGGER jobs_come ON jobs;
CREATE OR REPLACE FUNCTION jobs_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counts AS c SELECT '', sku, state, COUNT(*) FROM came GROUP BY sku, state
        ON CONFLICT (project, sku, state) DO UPDATE SET n = c.n + excluded.n;
    INSERT INTO coverage_places AS c
        SELECT '', model_name, sku, COUNT(*) FROM came WHERE stands(state) GROUP BY model_name, sku
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = c.n + excluded.n;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_come AFTER INSERT ON jobs REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION jobs_come();

DROP TRIGGER jobs_change ON jobs;
CREATE OR REPLACE FUNCTION jobs_change() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM was JOIN became USING (id) WHERE was.state <> became.state) THEN
        RETURN NULL;
    END IF;
    -- With each project of a job, and with all of them.
    INSERT INTO job_counts AS c
        SELECT owner.project, job.sku, job.state, SUM(job.n)
        FROM (
            SELECT was.id, was.sku, was.state, -1 AS n FROM was JOIN became USING (id) WHERE was.state <> became.state
            UNION ALL
            SELECT became.id, became.sku, became.state, 1 FROM was JOIN became USING (id)
            WHERE was.state <> became.state) AS job
        CROSS JOIN LATERAL (
            SELECT '' AS project UNION SELECT p.project FROM job_projects AS p WHERE p.job = job.id) AS owner
        GROUP BY owner.project, job.sku, job.state HAVING SUM(job.n) <> 0
        ON CONFLICT (project, sku, state) DO UPDATE SET n = c.n + excluded.n;
    UPDATE job_projects AS p SET state = became.state FROM became JOIN was USING (id)
        WHERE p.job = became.id AND was.state <> became.state;
    IF EXISTS (SELECT 1 FROM was JOIN became USING (id) WHERE stands(was.state) <> stands(became.state)) THEN
        INSERT INTO coverage_places AS c
            SELECT owner.project, became.model_name, became.sku,
                SUM(CASE WHEN stands(became.state) THEN 1 ELSE -1 END)
            FROM was JOIN became USING (id)
            CROSS JOIN LATERAL (
                SELECT '' AS project UNION SELECT p.project FROM job_projects AS p WHERE p.job = became.id) AS owner
            WHERE stands(was.state) <> stands(became.state)
            GROUP BY owner.project, became.model_name, became.sku
            ON CONFLICT (project, model_name, sku) DO UPDATE SET n = c.n + excluded.n;
        DELETE FROM coverage_places AS c USING became
            WHERE c.model_name = became.model_name AND c.sku = became.sku AND c.n <= 0 AND (c.project = ''
                OR EXISTS (SELECT 1 FROM job_projects AS p WHERE p.job = became.id AND p.project = c.project));
    END IF;
    IF EXISTS (SELECT 1 FROM was JOIN became USING (id)
        WHERE was.state <> became.state AND (ended(was.state) OR ended(became.state))) THEN
        UPDATE requests AS r SET live = r.live + d.live, lost = r.lost + d.lost,
            state = CASE WHEN r.live + d.live > 0 THEN 'open' WHEN r.lost + d.lost > 0 THEN 'failed' ELSE 'succeeded' END
            FROM (
                SELECT named.request, SUM((NOT ended(became.state))::int - (NOT ended(was.state))::int) AS live,
                    SUM(lost(became.state)::int - lost(was.state)::int) AS lost
                FROM was JOIN became USING (id) JOIN request_jobs AS named ON named.job = became.id
                WHERE was.state <> became.state AND (ended(was.state) OR ended(became.state))
                GROUP BY named.request) AS d
            WHERE r.id = d.request;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_change AFTER UPDATE ON jobs REFERENCING OLD TABLE AS was NEW TABLE AS became
    FOR EACH STATEMENT EXECUTE FUNCTION jobs_change();

DROP TRIGGER job_projects_come ON job_projects;
CREATE OR REPLACE FUNCTION job_projects_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counts AS c
        SELECT came.project, j.sku, j.state, COUNT(*) FROM came JOIN jobs AS j ON j.id = came.job
        GROUP BY came.project, j.sku, j.state
        ON CONFLICT (project, sku, state) DO UPDATE SET n = c.n + excluded.n;
    INSERT INTO coverage_places AS c
        SELECT came.project, j.model_name, j.sku, COUNT(*) FROM came JOIN jobs AS j ON j.id = came.job
        WHERE stands(j.state) GROUP BY came.project, j.model_name, j.sku
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = c.n + excluded.n;
    INSERT INTO project_models AS m
        SELECT DISTINCT ON (came.project, j.model_digest) came.project, j.model_digest, j.model_name, came.created_ms
        FROM came JOIN jobs AS j ON j.id = came.job WHERE j.model_name <> ''
        ORDER BY came.project, j.model_digest, came.created_ms DESC, j.id DESC
        ON CONFLICT (project, model_digest) DO UPDATE
            SET model_name = excluded.model_name, created_ms = excluded.created_ms
            WHERE excluded.model_name <> m.model_name AND excluded.created_ms >= m.created_ms;
    RETURN NULL;
END $$;
CREATE TRIGGER job_projects_come AFTER INSERT ON job_projects REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION job_projects_come();

-- Documents name a few, not a thousand: with that many, a request's jobs were looked for in all of the farm's.
ALTER FUNCTION json_each(TEXT, TEXT) ROWS 4;
ALTER FUNCTION json_each(TEXT) ROWS 4;
