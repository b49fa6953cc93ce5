-- Lists, counts and tags at any size: every way in which jobs and engines are listed is one range of an index, and how
-- many there are is kept as rows come, change and go.

CREATE INDEX jobs_state ON jobs (state, created_ms, id);
CREATE INDEX jobs_sku ON jobs (sku, state, created_ms, id);
CREATE INDEX jobs_model ON jobs (model_digest, state, created_ms, id);
CREATE INDEX jobs_model_name ON jobs (model_name, state, created_ms, id);
CREATE INDEX jobs_ended ON jobs (ended_ms, id) WHERE ended_ms <> 0;

ALTER TABLE job_projects ADD COLUMN state TEXT NOT NULL DEFAULT '';  -- the job's, kept by the triggers below
UPDATE job_projects SET state = COALESCE((SELECT state FROM jobs WHERE id = job), '');
CREATE INDEX job_projects_state ON job_projects (project, state, created_ms, job);

-- What people and pipelines called their requests.
CREATE TABLE job_tags (
    project    TEXT   NOT NULL,  -- that the tag belongs to; empty: a row for those who see every project
    tag        TEXT   NOT NULL,  -- NAME or NAME=VALUE
    created_ms BIGINT NOT NULL,  -- the job's
    job        TEXT   NOT NULL,
    PRIMARY KEY (project, tag, created_ms, job)
) WITHOUT ROWID;
CREATE INDEX job_tags_job ON job_tags (job);

CREATE TABLE job_counts (
    project TEXT   NOT NULL,  -- empty: of all projects
    sku     TEXT   NOT NULL,
    state   TEXT   NOT NULL,
    n       BIGINT NOT NULL,
    PRIMARY KEY (project, sku, state)
) WITHOUT ROWID;
INSERT INTO job_counts SELECT '', sku, state, COUNT(*) FROM jobs GROUP BY sku, state;
INSERT INTO job_counts
    SELECT p.project, j.sku, j.state, COUNT(*) FROM job_projects AS p JOIN jobs AS j ON j.id = p.job
    GROUP BY p.project, j.sku, j.state;

CREATE TRIGGER jobs_come AFTER INSERT ON jobs BEGIN
    INSERT INTO job_counts VALUES ('', NEW.sku, NEW.state, 1)
        ON CONFLICT (project, sku, state) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER jobs_change AFTER UPDATE OF state ON jobs WHEN OLD.state <> NEW.state BEGIN
    UPDATE job_counts SET n = n - 1 WHERE sku = OLD.sku AND state = OLD.state
        AND project IN (SELECT '' UNION ALL SELECT project FROM job_projects WHERE job = NEW.id);
    INSERT INTO job_counts
        SELECT project, NEW.sku, NEW.state, 1
        FROM (SELECT '' AS project UNION ALL SELECT project FROM job_projects WHERE job = NEW.id) WHERE TRUE
        ON CONFLICT (project, sku, state) DO UPDATE SET n = n + 1;
    UPDATE job_projects SET state = NEW.state WHERE job = NEW.id;
END;
CREATE TRIGGER jobs_go AFTER DELETE ON jobs BEGIN
    UPDATE job_counts SET n = n - 1 WHERE sku = OLD.sku AND state = OLD.state
        AND project IN (SELECT '' UNION ALL SELECT project FROM job_projects WHERE job = OLD.id);
    DELETE FROM job_projects WHERE job = OLD.id;
    DELETE FROM job_tags WHERE job = OLD.id;
END;
CREATE TRIGGER job_projects_come AFTER INSERT ON job_projects BEGIN
    UPDATE job_projects SET state = COALESCE((SELECT state FROM jobs WHERE id = NEW.job), '')
        WHERE project = NEW.project AND created_ms = NEW.created_ms AND job = NEW.job;
    INSERT INTO job_counts SELECT NEW.project, sku, state, 1 FROM jobs WHERE id = NEW.job
        ON CONFLICT (project, sku, state) DO UPDATE SET n = n + 1;
END;

DROP INDEX engines_newest;
CREATE INDEX engines_newest ON engines (created_ms, engine_key, plan_digest);
DROP INDEX engines_model;
CREATE INDEX engines_model ON engines (model_digest, created_ms, engine_key, plan_digest);
CREATE INDEX engines_model_name ON engines (model_name, created_ms, engine_key, plan_digest);
CREATE INDEX engines_sku ON engines (sku, created_ms, engine_key, plan_digest);
CREATE INDEX engine_projects_project ON engine_projects (project, engine_key);

-- Engines by keys: of several builds of one key only the newest is listed.
CREATE TABLE engine_counts (
    project TEXT   NOT NULL,  -- empty: of all projects
    sku     TEXT   NOT NULL,
    n       BIGINT NOT NULL,
    PRIMARY KEY (project, sku)
) WITHOUT ROWID;
INSERT INTO engine_counts SELECT '', sku, COUNT(DISTINCT engine_key) FROM engines GROUP BY sku;
INSERT INTO engine_counts
    SELECT p.project, e.sku, COUNT(DISTINCT e.engine_key)
    FROM engine_projects AS p JOIN engines AS e ON e.engine_key = p.engine_key GROUP BY p.project, e.sku;

CREATE TRIGGER engines_come AFTER INSERT ON engines
WHEN NOT EXISTS (SELECT 1 FROM engines WHERE engine_key = NEW.engine_key AND plan_digest <> NEW.plan_digest) BEGIN
    INSERT INTO engine_counts
        SELECT project, NEW.sku, 1
        FROM (SELECT '' AS project UNION ALL SELECT project FROM engine_projects WHERE engine_key = NEW.engine_key)
        WHERE TRUE
        ON CONFLICT (project, sku) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER engines_go AFTER DELETE ON engines
WHEN NOT EXISTS (SELECT 1 FROM engines WHERE engine_key = OLD.engine_key) BEGIN
    UPDATE engine_counts SET n = n - 1 WHERE sku = OLD.sku
        AND project IN (SELECT '' UNION ALL SELECT project FROM engine_projects WHERE engine_key = OLD.engine_key);
    DELETE FROM engine_projects WHERE engine_key = OLD.engine_key;
END;
CREATE TRIGGER engine_projects_come AFTER INSERT ON engine_projects BEGIN
    INSERT INTO engine_counts
        SELECT NEW.project, sku, 1 FROM engines WHERE engine_key = NEW.engine_key LIMIT 1
        ON CONFLICT (project, sku) DO UPDATE SET n = n + 1;
END;
