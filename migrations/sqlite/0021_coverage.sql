-- How models stand on device kinds, at any size: what the first page says of an engine stands beside its name, so that no
-- document is read for it, and which models stand where is kept as engines and jobs come, change and go.

-- What projects call their models: an engine that another project had built is told to nobody by that one's name.
CREATE TABLE project_models (
    project      TEXT   NOT NULL,
    model_digest TEXT   NOT NULL,
    model_name   TEXT   NOT NULL,  -- in the newest job of the project that has the model
    created_ms   BIGINT NOT NULL,  -- when it was first called so
    PRIMARY KEY (project, model_digest)
) WITHOUT ROWID;
INSERT INTO project_models
    SELECT p.project, j.model_digest, j.model_name, MAX(p.created_ms)
    FROM job_projects AS p JOIN jobs AS j ON j.id = p.job WHERE j.model_name <> '' GROUP BY p.project, j.model_digest;
CREATE TRIGGER job_projects_name_models AFTER INSERT ON job_projects BEGIN
    INSERT INTO project_models
        SELECT NEW.project, model_digest, model_name, NEW.created_ms FROM jobs WHERE id = NEW.job AND model_name <> ''
        ON CONFLICT (project, model_digest) DO UPDATE
            SET model_name = excluded.model_name, created_ms = excluded.created_ms
            WHERE excluded.model_name <> project_models.model_name AND excluded.created_ms >= project_models.created_ms;
END;

-- The newest build of each key, with the figures of the report that is shown of it.
CREATE TABLE engine_facts (
    engine_key   TEXT   NOT NULL PRIMARY KEY,
    plan_digest  TEXT   NOT NULL,
    project      TEXT   NOT NULL,  -- that had it built
    sku          TEXT   NOT NULL,
    model_name   TEXT   NOT NULL,  -- as that project calls it
    model_digest TEXT   NOT NULL,
    created_ms   BIGINT NOT NULL,
    spec         TEXT   NOT NULL,  -- JSON
    toolchain    TEXT   NOT NULL,  -- JSON
    accurate     BIGINT NOT NULL,
    simulated    BIGINT NOT NULL,  -- the engine's device or the report's
    median_ms    REAL,             -- NULL: no report, or none that says so
    disturbed    BIGINT NOT NULL   -- every window that counts was
) WITHOUT ROWID;

-- What is kept of a build. Of its reports that are shown of usual inputs goes before that of given ones, then the newest.
CREATE VIEW build_facts AS
    SELECT e.engine_key, e.plan_digest, COALESCE(json_extract(e.doc, '$.project'), '') AS project, e.sku,
        COALESCE(NULLIF(e.model_name, ''), substr(e.model_digest, 1, 12)) AS model_name, e.model_digest, e.created_ms,
        COALESCE(json_extract(e.doc, '$.spec'), '{}') AS spec, COALESCE(json_extract(e.doc, '$.toolchain'), '{}') AS toolchain,
        COALESCE(json_extract(e.doc, '$.accurate'), 0) AS accurate,
        COALESCE(json_extract(e.doc, '$.simulated'), 0) OR COALESCE(json_extract(r.document, '$.simulated') IS 1, 0)
            AS simulated,
        CASE WHEN json_type(r.document, '$.latency_ms.median') IN ('real', 'integer')
            THEN json_extract(r.document, '$.latency_ms.median') END AS median_ms,
        EXISTS (SELECT 1 FROM json_each(r.document, '$.windows') AS w
            WHERE CASE WHEN w.type = 'object' THEN json_extract(w.value, '$.kept_tainted') IS 1 ELSE 0 END)
        AND NOT EXISTS (SELECT 1 FROM json_each(r.document, '$.windows') AS w
            WHERE CASE WHEN w.type = 'object' THEN COALESCE(json_array_length(w.value, '$.tainted'), 0) = 0 ELSE 0 END)
            AS disturbed
    FROM engines AS e LEFT JOIN reports AS r ON json_valid(r.document) AND r.digest = (
        SELECT n.digest FROM reports AS n WHERE n.plan_digest = e.plan_digest AND n.sku = e.sku
        ORDER BY n.measure LIKE '%"inputs":%' OR n.measure LIKE '%"time_inputs":true%', n.created_ms DESC, n.digest DESC
        LIMIT 1)
    WHERE json_valid(e.doc);

INSERT INTO engine_facts
    SELECT engine_key, plan_digest, project, sku, model_name, model_digest, created_ms, spec, toolchain, accurate,
        simulated, median_ms, disturbed
    FROM build_facts AS b WHERE plan_digest = (
        SELECT n.plan_digest FROM engines AS n WHERE n.engine_key = b.engine_key
        ORDER BY n.seq DESC, n.created_ms DESC, n.plan_digest DESC LIMIT 1);
CREATE INDEX engine_facts_plan ON engine_facts (plan_digest, sku);
CREATE INDEX engine_facts_model ON engine_facts (model_digest, created_ms);

-- Who sees which engine, by which name of its model.
CREATE TABLE coverage_engines (
    project    TEXT NOT NULL,  -- empty: a row for those who see every project
    model_name TEXT NOT NULL,
    sku        TEXT NOT NULL,
    engine_key TEXT NOT NULL,
    PRIMARY KEY (project, model_name, sku, engine_key)
) WITHOUT ROWID;
INSERT INTO coverage_engines SELECT '', model_name, sku, engine_key FROM engine_facts;
INSERT INTO coverage_engines
    SELECT p.project,
        CASE WHEN f.project = p.project THEN f.model_name
            ELSE COALESCE(m.model_name, substr(f.model_digest, 1, 12)) END, f.sku, f.engine_key
    FROM engine_projects AS p JOIN engine_facts AS f ON f.engine_key = p.engine_key
    LEFT JOIN project_models AS m ON m.project = p.project AND m.model_digest = f.model_digest WHERE p.project <> '';
CREATE UNIQUE INDEX coverage_engines_key ON coverage_engines (engine_key, project);

-- Which models stand on which device kinds: by engines, jobs that live and jobs that failed.
CREATE TABLE coverage_places (
    project    TEXT   NOT NULL,  -- empty: of all projects
    model_name TEXT   NOT NULL,
    sku        TEXT   NOT NULL,
    n          BIGINT NOT NULL,
    PRIMARY KEY (project, model_name, sku)
) WITHOUT ROWID;
INSERT INTO coverage_places
    SELECT project, model_name, sku, COUNT(*) FROM (
        SELECT project, model_name, sku FROM coverage_engines
        UNION ALL SELECT '', model_name, sku FROM jobs
            WHERE state IN ('blocked', 'queued', 'leased', 'running', 'unplaceable', 'failed')
        UNION ALL SELECT p.project, j.model_name, j.sku FROM jobs AS j CROSS JOIN job_projects AS p ON p.job = j.id
            WHERE j.state IN ('blocked', 'queued', 'leased', 'running', 'unplaceable', 'failed')
    ) GROUP BY 1, 2, 3;
CREATE INDEX coverage_places_sku ON coverage_places (project, sku, model_name);

CREATE TABLE coverage_models (
    project    TEXT   NOT NULL,
    model_name TEXT   NOT NULL,
    n          BIGINT NOT NULL,  -- device kinds that it stands on
    PRIMARY KEY (project, model_name)
) WITHOUT ROWID;
INSERT INTO coverage_models SELECT project, model_name, COUNT(*) FROM coverage_places GROUP BY 1, 2;

CREATE INDEX jobs_live_places ON jobs (model_name, sku, created_ms, id) WHERE ended_ms = 0;
CREATE INDEX jobs_failed_places ON jobs (model_name, sku, ended_ms, id) WHERE state = 'failed';

CREATE TRIGGER coverage_places_come AFTER INSERT ON coverage_places BEGIN
    INSERT INTO coverage_models VALUES (NEW.project, NEW.model_name, 1)
        ON CONFLICT (project, model_name) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER coverage_places_go AFTER DELETE ON coverage_places BEGIN
    UPDATE coverage_models SET n = n - 1 WHERE project = OLD.project AND model_name = OLD.model_name;
    DELETE FROM coverage_models WHERE project = OLD.project AND model_name = OLD.model_name AND n <= 0;
END;

CREATE TRIGGER coverage_engines_come AFTER INSERT ON coverage_engines BEGIN
    INSERT INTO coverage_places VALUES (NEW.project, NEW.model_name, NEW.sku, 1)
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER coverage_engines_go AFTER DELETE ON coverage_engines BEGIN
    UPDATE coverage_places SET n = n - 1
        WHERE project = OLD.project AND model_name = OLD.model_name AND sku = OLD.sku;
    DELETE FROM coverage_places
        WHERE project = OLD.project AND model_name = OLD.model_name AND sku = OLD.sku AND n <= 0;
END;
CREATE TRIGGER coverage_engines_change AFTER UPDATE OF model_name ON coverage_engines
WHEN OLD.model_name <> NEW.model_name BEGIN
    INSERT INTO coverage_places VALUES (NEW.project, NEW.model_name, NEW.sku, 1)
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = n + 1;
    UPDATE coverage_places SET n = n - 1
        WHERE project = OLD.project AND model_name = OLD.model_name AND sku = OLD.sku;
    DELETE FROM coverage_places
        WHERE project = OLD.project AND model_name = OLD.model_name AND sku = OLD.sku AND n <= 0;
END;

CREATE TRIGGER engine_facts_come AFTER INSERT ON engine_facts BEGIN
    INSERT INTO coverage_engines
        SELECT p.project,
            CASE WHEN p.project IN ('', NEW.project) THEN NEW.model_name
                ELSE COALESCE((SELECT m.model_name FROM project_models AS m
                    WHERE m.project = p.project AND m.model_digest = NEW.model_digest), substr(NEW.model_digest, 1, 12)) END,
            NEW.sku, NEW.engine_key
        FROM (SELECT '' AS project UNION SELECT project FROM engine_projects WHERE engine_key = NEW.engine_key) AS p;
END;
CREATE TRIGGER engine_facts_change AFTER UPDATE ON engine_facts
WHEN OLD.model_name <> NEW.model_name OR OLD.project <> NEW.project BEGIN
    UPDATE coverage_engines SET model_name =
            CASE WHEN project IN ('', NEW.project) THEN NEW.model_name
                ELSE COALESCE((SELECT m.model_name FROM project_models AS m
                    WHERE m.project = coverage_engines.project AND m.model_digest = NEW.model_digest),
                    substr(NEW.model_digest, 1, 12)) END
        WHERE engine_key = NEW.engine_key;
END;
CREATE TRIGGER engine_facts_go AFTER DELETE ON engine_facts BEGIN
    DELETE FROM coverage_engines WHERE engine_key = OLD.engine_key;
END;
CREATE TRIGGER engine_projects_cover AFTER INSERT ON engine_projects WHEN NEW.project <> '' BEGIN
    INSERT INTO coverage_engines
        SELECT NEW.project,
            CASE WHEN f.project = NEW.project THEN f.model_name
                ELSE COALESCE((SELECT m.model_name FROM project_models AS m
                    WHERE m.project = NEW.project AND m.model_digest = f.model_digest), substr(f.model_digest, 1, 12)) END,
            f.sku, f.engine_key
        FROM engine_facts AS f WHERE f.engine_key = NEW.engine_key
        ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER project_models_change AFTER UPDATE OF model_name ON project_models
WHEN OLD.model_name <> NEW.model_name BEGIN
    UPDATE coverage_engines SET model_name = NEW.model_name
        WHERE project = NEW.project AND engine_key IN (
            SELECT engine_key FROM engine_facts WHERE model_digest = NEW.model_digest AND project <> NEW.project);
END;

CREATE TRIGGER engines_come_facts AFTER INSERT ON engines BEGIN
    INSERT INTO engine_facts
        SELECT engine_key, plan_digest, project, sku, model_name, model_digest, created_ms, spec, toolchain, accurate,
            simulated, median_ms, disturbed
        FROM build_facts WHERE engine_key = NEW.engine_key AND plan_digest = (
            SELECT n.plan_digest FROM engines AS n WHERE n.engine_key = NEW.engine_key
            ORDER BY n.seq DESC, n.created_ms DESC, n.plan_digest DESC LIMIT 1)
        ON CONFLICT (engine_key) DO UPDATE SET plan_digest = excluded.plan_digest, project = excluded.project,
            model_name = excluded.model_name, created_ms = excluded.created_ms, spec = excluded.spec,
            toolchain = excluded.toolchain, accurate = excluded.accurate, simulated = excluded.simulated,
            median_ms = excluded.median_ms, disturbed = excluded.disturbed;
END;
CREATE TRIGGER engines_change_facts AFTER UPDATE OF doc ON engines BEGIN
    INSERT INTO engine_facts
        SELECT engine_key, plan_digest, project, sku, model_name, model_digest, created_ms, spec, toolchain, accurate,
            simulated, median_ms, disturbed
        FROM build_facts WHERE engine_key = NEW.engine_key AND plan_digest = (
            SELECT n.plan_digest FROM engines AS n WHERE n.engine_key = NEW.engine_key
            ORDER BY n.seq DESC, n.created_ms DESC, n.plan_digest DESC LIMIT 1)
        ON CONFLICT (engine_key) DO UPDATE SET plan_digest = excluded.plan_digest, project = excluded.project,
            model_name = excluded.model_name, created_ms = excluded.created_ms, spec = excluded.spec,
            toolchain = excluded.toolchain, accurate = excluded.accurate, simulated = excluded.simulated,
            median_ms = excluded.median_ms, disturbed = excluded.disturbed;
END;
CREATE TRIGGER engines_go_facts AFTER DELETE ON engines BEGIN
    DELETE FROM engine_facts WHERE engine_key = OLD.engine_key
        AND NOT EXISTS (SELECT 1 FROM engines WHERE engine_key = OLD.engine_key);
    INSERT INTO engine_facts
        SELECT engine_key, plan_digest, project, sku, model_name, model_digest, created_ms, spec, toolchain, accurate,
            simulated, median_ms, disturbed
        FROM build_facts WHERE engine_key = OLD.engine_key AND plan_digest = (
            SELECT n.plan_digest FROM engines AS n WHERE n.engine_key = OLD.engine_key
            ORDER BY n.seq DESC, n.created_ms DESC, n.plan_digest DESC LIMIT 1)
        ON CONFLICT (engine_key) DO UPDATE SET plan_digest = excluded.plan_digest, project = excluded.project,
            model_name = excluded.model_name, created_ms = excluded.created_ms, spec = excluded.spec,
            toolchain = excluded.toolchain, accurate = excluded.accurate, simulated = excluded.simulated,
            median_ms = excluded.median_ms, disturbed = excluded.disturbed;
END;
CREATE TRIGGER reports_come_facts AFTER INSERT ON reports BEGIN
    UPDATE engine_facts SET (simulated, median_ms, disturbed) = (
            SELECT b.simulated, b.median_ms, b.disturbed FROM build_facts AS b
            WHERE b.engine_key = engine_facts.engine_key AND b.plan_digest = engine_facts.plan_digest)
        WHERE plan_digest = NEW.plan_digest AND sku = NEW.sku
            AND EXISTS (SELECT 1 FROM engines AS e WHERE e.engine_key = engine_facts.engine_key
                AND e.plan_digest = engine_facts.plan_digest AND json_valid(e.doc));
END;
CREATE TRIGGER reports_go_facts AFTER DELETE ON reports BEGIN
    UPDATE engine_facts SET (simulated, median_ms, disturbed) = (
            SELECT b.simulated, b.median_ms, b.disturbed FROM build_facts AS b
            WHERE b.engine_key = engine_facts.engine_key AND b.plan_digest = engine_facts.plan_digest)
        WHERE plan_digest = OLD.plan_digest AND sku = OLD.sku
            AND EXISTS (SELECT 1 FROM engines AS e WHERE e.engine_key = engine_facts.engine_key
                AND e.plan_digest = engine_facts.plan_digest AND json_valid(e.doc));
END;

CREATE TRIGGER jobs_come_places AFTER INSERT ON jobs WHEN NEW.state NOT IN ('succeeded', 'cancelled', 'skipped') BEGIN
    INSERT INTO coverage_places VALUES ('', NEW.model_name, NEW.sku, 1)
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER jobs_change_places AFTER UPDATE OF state ON jobs
WHEN (OLD.state IN ('succeeded', 'cancelled', 'skipped')) <> (NEW.state IN ('succeeded', 'cancelled', 'skipped')) BEGIN
    INSERT INTO coverage_places
        SELECT project, NEW.model_name, NEW.sku,
            CASE WHEN NEW.state IN ('succeeded', 'cancelled', 'skipped') THEN -1 ELSE 1 END
        FROM (SELECT '' AS project UNION ALL SELECT project FROM job_projects WHERE job = NEW.id) WHERE TRUE
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = n + excluded.n;
    DELETE FROM coverage_places WHERE model_name = NEW.model_name AND sku = NEW.sku AND n <= 0
        AND project IN (SELECT '' UNION ALL SELECT project FROM job_projects WHERE job = NEW.id);
END;
-- Before: what goes with a job takes its projects along.
CREATE TRIGGER jobs_go_places BEFORE DELETE ON jobs WHEN OLD.state NOT IN ('succeeded', 'cancelled', 'skipped') BEGIN
    UPDATE coverage_places SET n = n - 1 WHERE model_name = OLD.model_name AND sku = OLD.sku
        AND project IN (SELECT '' UNION ALL SELECT project FROM job_projects WHERE job = OLD.id);
    DELETE FROM coverage_places WHERE model_name = OLD.model_name AND sku = OLD.sku AND n <= 0
        AND project IN (SELECT '' UNION ALL SELECT project FROM job_projects WHERE job = OLD.id);
END;
CREATE TRIGGER job_projects_come_places AFTER INSERT ON job_projects BEGIN
    INSERT INTO coverage_places
        SELECT NEW.project, model_name, sku, 1 FROM jobs
        WHERE id = NEW.job AND state NOT IN ('succeeded', 'cancelled', 'skipped')
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = n + 1;
END;
