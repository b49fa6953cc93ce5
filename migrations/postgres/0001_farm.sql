-- What the coordinator remembers, as SQLite's migrations 1 to 22 leave it; what each table is for stands there. Times are
-- Unix milliseconds of the coordinator's clock, digests and keys 64 hex digits. A `doc` column holds the whole record as
-- JSON; the columns beside it repeat what queries filter and order by.
--
-- Texts are compared byte by byte (COLLATE "C"), as SQLite does: cursors of lists and beginnings of digests rest on it.

-- Documents are text: what was stored is given back byte by byte. These read them as SQLite's functions of the same names
-- do, as far as the statements need it: true and false are 1 and 0, a document that cannot be read has nothing in it.

CREATE FUNCTION json_valid(doc TEXT) RETURNS BOOLEAN LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    PERFORM doc::json;
    RETURN TRUE;
EXCEPTION WHEN others THEN
    RETURN FALSE;
END $$;

CREATE FUNCTION json_plain(found JSON) RETURNS TEXT LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE json_typeof(found)
        WHEN 'null' THEN NULL
        WHEN 'string' THEN found #>> '{}'
        WHEN 'boolean' THEN CASE found::text WHEN 'true' THEN '1' ELSE '0' END
        ELSE found::text END
$$;

CREATE FUNCTION json_extract(doc TEXT, path TEXT) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN json_plain(doc::json #> string_to_array(substr(path, 3), '.'));
EXCEPTION WHEN others THEN
    RETURN NULL;
END $$;

CREATE FUNCTION json_each(doc TEXT, path TEXT) RETURNS TABLE (value TEXT) LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN QUERY SELECT json_plain(one) FROM json_array_elements(
        CASE path WHEN '$' THEN doc::json ELSE doc::json #> string_to_array(substr(path, 3), '.') END) AS list(one);
EXCEPTION WHEN others THEN
    RETURN;
END $$;

CREATE FUNCTION json_each(doc TEXT) RETURNS TABLE (value TEXT) LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT value FROM json_each(doc, '$')
$$;

-- Of a field at the top of a document.
CREATE FUNCTION json_set(doc TEXT, path TEXT, field JSON) RETURNS TEXT LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT json_object_agg(known.key, CASE known.key WHEN substr(path, 3) THEN field ELSE known.value END)::text
    FROM pg_catalog.json_each(doc::json) AS known
$$;

CREATE FUNCTION json_texts(texts TEXT[]) RETURNS TEXT LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT array_to_json(texts)::text
$$;

CREATE AGGREGATE json_group_array(TEXT) (SFUNC = array_append, STYPE = TEXT[], INITCOND = '{}', FINALFUNC = json_texts);

-- Which farm this is: a coordinator's folders know it by this name.
CREATE TABLE farm (
    id   BIGINT PRIMARY KEY,  -- always 1
    name TEXT   NOT NULL
);
INSERT INTO farm (id, name) VALUES (1, gen_random_uuid()::text);

CREATE TABLE leader (
    id         BIGINT PRIMARY KEY,  -- always 1: one leader
    epoch      BIGINT NOT NULL,     -- rises with every leader; a commit that names another is refused
    owner      TEXT   NOT NULL,     -- who leads, for people
    since_ms   BIGINT NOT NULL,     -- when it began to
    holder     TEXT   NOT NULL,     -- the process that leads
    address    TEXT   NOT NULL,     -- where callers reach it
    expires_at TIMESTAMPTZ NOT NULL -- by the clock of this database; after that another may lead
) WITH (fillfactor = 20);
INSERT INTO leader VALUES (1, 0, '', 0, '', '', '-infinity');

CREATE TABLE jobs (
    id           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    state        TEXT COLLATE "C" NOT NULL,
    sku          TEXT COLLATE "C" NOT NULL,
    model_name   TEXT COLLATE "C" NOT NULL,
    model_digest TEXT COLLATE "C" NOT NULL,
    created_ms   BIGINT NOT NULL,
    ended_ms     BIGINT NOT NULL,
    doc          TEXT NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX jobs_newest ON jobs (created_ms, id);
CREATE INDEX jobs_live ON jobs (id) WHERE ended_ms = 0;
CREATE INDEX jobs_state ON jobs (state, created_ms, id);
CREATE INDEX jobs_sku ON jobs (sku, state, created_ms, id);
CREATE INDEX jobs_model ON jobs (model_digest, state, created_ms, id);
CREATE INDEX jobs_model_name ON jobs (model_name, state, created_ms, id);
CREATE INDEX jobs_ended ON jobs (ended_ms, id) WHERE ended_ms <> 0;
CREATE INDEX jobs_live_places ON jobs (model_name, sku, created_ms, id) WHERE ended_ms = 0;
CREATE INDEX jobs_failed_places ON jobs (model_name, sku, ended_ms, id) WHERE state = 'failed';

CREATE TABLE job_projects (
    project    TEXT COLLATE "C" NOT NULL,
    created_ms BIGINT NOT NULL,
    job        TEXT COLLATE "C" NOT NULL,
    state      TEXT COLLATE "C" NOT NULL DEFAULT '',
    sku        TEXT COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (project, created_ms, job)
) WITH (fillfactor = 70);
CREATE INDEX job_projects_job ON job_projects (job);
CREATE INDEX job_projects_state ON job_projects (project, state, created_ms, job);
CREATE INDEX job_projects_sku ON job_projects (project, sku, state, created_ms, job);

CREATE TABLE job_tags (
    project    TEXT COLLATE "C" NOT NULL,
    tag        TEXT COLLATE "C" NOT NULL,
    created_ms BIGINT NOT NULL,
    job        TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (project, tag, created_ms, job)
);
CREATE INDEX job_tags_job ON job_tags (job);

CREATE TABLE job_counts (
    project TEXT COLLATE "C" NOT NULL,
    sku     TEXT COLLATE "C" NOT NULL,
    state   TEXT COLLATE "C" NOT NULL,
    n       BIGINT NOT NULL,
    PRIMARY KEY (project, sku, state)
) WITH (fillfactor = 50);

CREATE TABLE events (
    seq     BIGINT NOT NULL PRIMARY KEY,
    at_ms   BIGINT NOT NULL,
    job     TEXT COLLATE "C" NOT NULL,
    actor   TEXT NOT NULL,
    what    TEXT COLLATE "C" NOT NULL,
    state   TEXT COLLATE "C" NOT NULL,
    attempt BIGINT NOT NULL,
    phase   TEXT NOT NULL,
    detail  TEXT NOT NULL
);
CREATE INDEX events_job ON events (job, seq);
CREATE INDEX events_what ON events (what, seq);

CREATE TABLE engines (
    engine_key   TEXT COLLATE "C" NOT NULL,
    plan_digest  TEXT COLLATE "C" NOT NULL,
    sku          TEXT COLLATE "C" NOT NULL,
    model_name   TEXT COLLATE "C" NOT NULL,
    model_digest TEXT COLLATE "C" NOT NULL,
    created_ms   BIGINT NOT NULL,
    doc          TEXT NOT NULL,
    seq          BIGINT NOT NULL DEFAULT 0,
    last_ms      BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (engine_key, plan_digest)
);
CREATE INDEX engines_plan ON engines (plan_digest);
CREATE INDEX engines_newest ON engines (created_ms, engine_key, plan_digest);
CREATE INDEX engines_model ON engines (model_digest, created_ms, engine_key, plan_digest);
CREATE INDEX engines_model_name ON engines (model_name, created_ms, engine_key, plan_digest);
CREATE INDEX engines_sku ON engines (sku, created_ms, engine_key, plan_digest);
CREATE INDEX engines_last ON engines (last_ms, engine_key, plan_digest);
CREATE INDEX engines_builds ON engines (engine_key, seq, created_ms, plan_digest);

CREATE TABLE engine_projects (
    engine_key TEXT COLLATE "C" NOT NULL,
    project    TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (engine_key, project)
);
CREATE INDEX engine_projects_project ON engine_projects (project, engine_key);

CREATE TABLE engine_counts (
    project TEXT COLLATE "C" NOT NULL,
    sku     TEXT COLLATE "C" NOT NULL,
    n       BIGINT NOT NULL,
    PRIMARY KEY (project, sku)
) WITH (fillfactor = 50);

CREATE TABLE reports (
    digest      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    plan_digest TEXT COLLATE "C" NOT NULL,
    engine_key  TEXT COLLATE "C" NOT NULL,
    job         TEXT COLLATE "C" NOT NULL,
    sku         TEXT COLLATE "C" NOT NULL,
    eval_digest TEXT COLLATE "C" NOT NULL,
    created_ms  BIGINT NOT NULL,
    document    TEXT NOT NULL,
    measure     TEXT NOT NULL DEFAULT '{}',
    artifacts   TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX reports_plan ON reports (plan_digest, created_ms);
CREATE INDEX reports_key ON reports (engine_key, created_ms);
CREATE INDEX reports_job ON reports (job);
CREATE INDEX reports_age ON reports (created_ms, digest);

CREATE TABLE agents (
    id      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    seen_ms BIGINT NOT NULL,
    doc     TEXT NOT NULL
);

CREATE TABLE requests (
    id              TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    project         TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C" NOT NULL,
    created_ms      BIGINT NOT NULL,
    doc             TEXT NOT NULL,
    jobs            BIGINT NOT NULL DEFAULT 0,
    live            BIGINT NOT NULL DEFAULT 0,
    lost            BIGINT NOT NULL DEFAULT 0,
    state           TEXT COLLATE "C" NOT NULL DEFAULT 'succeeded'
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX requests_idempotency ON requests (project, idempotency_key) WHERE idempotency_key <> '';
CREATE INDEX requests_created ON requests (created_ms, id);
CREATE INDEX requests_state ON requests (state, created_ms, id);
CREATE INDEX requests_project ON requests (project, created_ms, id);
CREATE INDEX requests_project_state ON requests (project, state, created_ms, id);

CREATE TABLE request_jobs (
    job     TEXT COLLATE "C" NOT NULL,
    request TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (job, request)
);

CREATE TABLE refusals (
    engine_key TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    doc        TEXT NOT NULL
);

CREATE TABLE tokens (
    id           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    doc          TEXT NOT NULL,
    revoked      BIGINT NOT NULL DEFAULT 0,
    last_used_ms BIGINT NOT NULL DEFAULT 0,
    agent        TEXT NOT NULL DEFAULT ''
);

CREATE TABLE caches (
    scope        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    sku          TEXT COLLATE "C" NOT NULL,
    published_ms BIGINT NOT NULL,
    doc          TEXT NOT NULL
);

CREATE TABLE plugins (
    digest TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    doc    TEXT NOT NULL
);

CREATE TABLE blob_refs (
    digest     TEXT COLLATE "C" NOT NULL,
    project    TEXT COLLATE "C" NOT NULL,
    engine_key TEXT COLLATE "C" NOT NULL,
    size_bytes BIGINT NOT NULL,
    tenure     BIGINT NOT NULL DEFAULT 0,
    since_ms   BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (digest, project, engine_key)
);
CREATE INDEX blob_refs_project ON blob_refs (project, size_bytes) WHERE project <> '';
CREATE INDEX blob_refs_age ON blob_refs (tenure, since_ms) WHERE tenure <> 0;

CREATE TABLE projects (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    doc  TEXT NOT NULL
);

CREATE TABLE audit (
    seq     BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at_ms   BIGINT NOT NULL,
    kind    TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    actor   TEXT COLLATE "C" NOT NULL,
    what    TEXT COLLATE "C" NOT NULL,
    doc     TEXT NOT NULL
);
CREATE INDEX audit_kind ON audit (kind, seq);
CREATE INDEX audit_project ON audit (project, seq);

CREATE TABLE pins (
    plan_digest TEXT COLLATE "C" NOT NULL,
    project     TEXT COLLATE "C" NOT NULL,
    owner       TEXT COLLATE "C" NOT NULL,
    created_ms  BIGINT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    doc         TEXT NOT NULL,
    PRIMARY KEY (plan_digest, project, owner)
);
CREATE INDEX pins_project ON pins (project, created_ms);
CREATE INDEX pins_expires ON pins (expires_ms);

CREATE TABLE declarations (
    project     TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    declared_ms BIGINT NOT NULL,
    doc         TEXT NOT NULL,
    PRIMARY KEY (project, name)
);
CREATE INDEX declarations_age ON declarations (declared_ms, project, name);

CREATE TABLE shares (
    id          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    secret_hash TEXT COLLATE "C" NOT NULL UNIQUE,
    project     TEXT COLLATE "C" NOT NULL,
    created_ms  BIGINT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    opened_ms   BIGINT NOT NULL DEFAULT 0,
    doc         TEXT NOT NULL
);
CREATE INDEX shares_project ON shares (project, created_ms);
CREATE INDEX shares_expires ON shares (expires_ms);

CREATE TABLE project_models (
    project      TEXT COLLATE "C" NOT NULL,
    model_digest TEXT COLLATE "C" NOT NULL,
    model_name   TEXT COLLATE "C" NOT NULL,
    created_ms   BIGINT NOT NULL,
    PRIMARY KEY (project, model_digest)
);

CREATE TABLE engine_facts (
    engine_key   TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    plan_digest  TEXT COLLATE "C" NOT NULL,
    project      TEXT COLLATE "C" NOT NULL,
    sku          TEXT COLLATE "C" NOT NULL,
    model_name   TEXT COLLATE "C" NOT NULL,
    model_digest TEXT COLLATE "C" NOT NULL,
    created_ms   BIGINT NOT NULL,
    spec         TEXT NOT NULL,
    toolchain    TEXT NOT NULL,
    accurate     BIGINT NOT NULL,
    simulated    BIGINT NOT NULL,
    median_ms    DOUBLE PRECISION,
    disturbed    BIGINT NOT NULL
);
CREATE INDEX engine_facts_plan ON engine_facts (plan_digest, sku);
CREATE INDEX engine_facts_model ON engine_facts (model_digest, created_ms);

CREATE TABLE coverage_engines (
    project    TEXT COLLATE "C" NOT NULL,
    model_name TEXT COLLATE "C" NOT NULL,
    sku        TEXT COLLATE "C" NOT NULL,
    engine_key TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (project, model_name, sku, engine_key)
);
CREATE UNIQUE INDEX coverage_engines_key ON coverage_engines (engine_key, project);

CREATE TABLE coverage_places (
    project    TEXT COLLATE "C" NOT NULL,
    model_name TEXT COLLATE "C" NOT NULL,
    sku        TEXT COLLATE "C" NOT NULL,
    n          BIGINT NOT NULL,
    PRIMARY KEY (project, model_name, sku)
) WITH (fillfactor = 50);
CREATE INDEX coverage_places_sku ON coverage_places (project, sku, model_name);

CREATE TABLE coverage_models (
    project    TEXT COLLATE "C" NOT NULL,
    model_name TEXT COLLATE "C" NOT NULL,
    n          BIGINT NOT NULL,
    PRIMARY KEY (project, model_name)
);

-- What is kept as jobs come, change and go. A statement's rows are all there when the first of its AFTER triggers runs: so
-- what depends on the order of rows is a BEFORE trigger, which sees those before its own alone.

CREATE FUNCTION ended(state TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT state IN ('succeeded', 'failed', 'cancelled', 'skipped')
$$;
CREATE FUNCTION lost(state TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT state IN ('failed', 'cancelled', 'skipped')
$$;
-- Whether a job stands for its model on the device kind: it lives, or failed.
CREATE FUNCTION stands(state TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT state NOT IN ('succeeded', 'cancelled', 'skipped')
$$;

CREATE FUNCTION jobs_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counts AS c VALUES ('', NEW.sku, NEW.state, 1)
        ON CONFLICT (project, sku, state) DO UPDATE SET n = c.n + 1;
    IF stands(NEW.state) THEN
        INSERT INTO coverage_places AS c VALUES ('', NEW.model_name, NEW.sku, 1)
            ON CONFLICT (project, model_name, sku) DO UPDATE SET n = c.n + 1;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_come AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION jobs_come();

CREATE FUNCTION jobs_change() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    owners TEXT[] := ARRAY(SELECT '' UNION SELECT project FROM job_projects WHERE job = NEW.id);
BEGIN
    UPDATE job_counts SET n = n - 1 WHERE sku = OLD.sku AND state = OLD.state AND project = ANY (owners);
    INSERT INTO job_counts AS c SELECT owner, NEW.sku, NEW.state, 1 FROM unnest(owners) AS owner
        ON CONFLICT (project, sku, state) DO UPDATE SET n = c.n + 1;
    UPDATE job_projects SET state = NEW.state WHERE job = NEW.id;
    IF stands(OLD.state) <> stands(NEW.state) THEN
        INSERT INTO coverage_places AS c
            SELECT owner, NEW.model_name, NEW.sku, CASE WHEN stands(NEW.state) THEN 1 ELSE -1 END
            FROM unnest(owners) AS owner
            ON CONFLICT (project, model_name, sku) DO UPDATE SET n = c.n + excluded.n;
        DELETE FROM coverage_places
            WHERE model_name = NEW.model_name AND sku = NEW.sku AND n <= 0 AND project = ANY (owners);
    END IF;
    IF ended(OLD.state) OR ended(NEW.state) THEN
        UPDATE requests SET
            live = live - (NOT ended(OLD.state))::int + (NOT ended(NEW.state))::int,
            lost = lost - lost(OLD.state)::int + lost(NEW.state)::int
            WHERE id IN (SELECT request FROM request_jobs WHERE job = NEW.id);
        UPDATE requests SET state = CASE WHEN live > 0 THEN 'open' WHEN lost > 0 THEN 'failed' ELSE 'succeeded' END
            WHERE id IN (SELECT request FROM request_jobs WHERE job = NEW.id)
            AND state <> CASE WHEN live > 0 THEN 'open' WHEN lost > 0 THEN 'failed' ELSE 'succeeded' END;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_change AFTER UPDATE OF state ON jobs FOR EACH ROW
    WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION jobs_change();

CREATE FUNCTION jobs_go() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    owners TEXT[] := ARRAY(SELECT '' UNION SELECT project FROM job_projects WHERE job = OLD.id);
BEGIN
    UPDATE job_counts SET n = n - 1 WHERE sku = OLD.sku AND state = OLD.state AND project = ANY (owners);
    IF stands(OLD.state) THEN
        UPDATE coverage_places SET n = n - 1
            WHERE model_name = OLD.model_name AND sku = OLD.sku AND project = ANY (owners);
        DELETE FROM coverage_places
            WHERE model_name = OLD.model_name AND sku = OLD.sku AND n <= 0 AND project = ANY (owners);
    END IF;
    DELETE FROM job_projects WHERE job = OLD.id;
    DELETE FROM job_tags WHERE job = OLD.id;
    DELETE FROM request_jobs WHERE job = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_go AFTER DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION jobs_go();

CREATE FUNCTION job_projects_begin() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    SELECT j.state, j.sku INTO NEW.state, NEW.sku FROM jobs AS j WHERE j.id = NEW.job;
    NEW.state := COALESCE(NEW.state, '');
    NEW.sku := COALESCE(NEW.sku, '');
    RETURN NEW;
END $$;
CREATE TRIGGER job_projects_begin BEFORE INSERT ON job_projects FOR EACH ROW EXECUTE FUNCTION job_projects_begin();

CREATE FUNCTION job_projects_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    own jobs%ROWTYPE;
BEGIN
    SELECT * INTO own FROM jobs WHERE id = NEW.job;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO job_counts AS c VALUES (NEW.project, own.sku, own.state, 1)
        ON CONFLICT (project, sku, state) DO UPDATE SET n = c.n + 1;
    IF stands(own.state) THEN
        INSERT INTO coverage_places AS c VALUES (NEW.project, own.model_name, own.sku, 1)
            ON CONFLICT (project, model_name, sku) DO UPDATE SET n = c.n + 1;
    END IF;
    IF own.model_name <> '' THEN
        INSERT INTO project_models AS m VALUES (NEW.project, own.model_digest, own.model_name, NEW.created_ms)
            ON CONFLICT (project, model_digest) DO UPDATE
                SET model_name = excluded.model_name, created_ms = excluded.created_ms
                WHERE excluded.model_name <> m.model_name AND excluded.created_ms >= m.created_ms;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER job_projects_come AFTER INSERT ON job_projects FOR EACH ROW EXECUTE FUNCTION job_projects_come();

-- A request is written with or behind its jobs.
CREATE FUNCTION requests_begin() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    SELECT COUNT(*), COUNT(*) FILTER (WHERE j.id IS NOT NULL AND NOT ended(j.state)), COUNT(*) FILTER (WHERE lost(j.state))
        INTO NEW.jobs, NEW.live, NEW.lost
        FROM (SELECT DISTINCT named.value AS id FROM json_each(NEW.doc, '$.jobs') AS named) AS n
        LEFT JOIN jobs AS j ON j.id = n.id;
    NEW.state := CASE WHEN NEW.live > 0 THEN 'open' WHEN NEW.lost > 0 THEN 'failed' ELSE 'succeeded' END;
    RETURN NEW;
END $$;
CREATE TRIGGER requests_begin BEFORE INSERT ON requests FOR EACH ROW EXECUTE FUNCTION requests_begin();

CREATE FUNCTION requests_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO request_jobs SELECT named.value, NEW.id FROM json_each(NEW.doc, '$.jobs') AS named
        WHERE named.value IS NOT NULL ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER requests_come AFTER INSERT ON requests FOR EACH ROW EXECUTE FUNCTION requests_come();

-- Engines, counted by keys: of several builds of one key only the newest is listed.
CREATE FUNCTION engines_begin() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    NEW.last_ms := GREATEST(NEW.last_ms, NEW.created_ms);
    IF NOT EXISTS (SELECT 1 FROM engines WHERE engine_key = NEW.engine_key) THEN
        INSERT INTO engine_counts AS c
            SELECT owner.project, NEW.sku, 1
            FROM (SELECT '' AS project UNION SELECT project FROM engine_projects WHERE engine_key = NEW.engine_key) AS owner
            ON CONFLICT (project, sku) DO UPDATE SET n = c.n + 1;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER engines_begin BEFORE INSERT ON engines FOR EACH ROW EXECUTE FUNCTION engines_begin();

-- What is kept of a build. Of its reports that are shown of usual inputs goes before that of given ones, then the newest.
CREATE VIEW build_facts AS
    SELECT e.engine_key, e.plan_digest, COALESCE(json_extract(e.doc, '$.project'), '') AS project, e.sku,
        COALESCE(NULLIF(e.model_name, ''), substr(e.model_digest, 1, 12)) AS model_name, e.model_digest, e.created_ms,
        COALESCE(json_extract(e.doc, '$.spec'), '{}') AS spec, COALESCE(json_extract(e.doc, '$.toolchain'), '{}') AS toolchain,
        (COALESCE(json_extract(e.doc, '$.accurate'), '0') <> '0')::int::bigint AS accurate,
        (COALESCE(json_extract(e.doc, '$.simulated'), '0') <> '0'
            OR COALESCE(json_extract(r.document, '$.simulated') = '1', FALSE))::int::bigint AS simulated,
        CASE WHEN r.document::json #> '{latency_ms,median}' IS NOT NULL
            AND json_typeof(r.document::json #> '{latency_ms,median}') = 'number'
            THEN (r.document::json #>> '{latency_ms,median}')::double precision END AS median_ms,
        (EXISTS (SELECT 1 FROM json_each(r.document, '$.windows') AS w WHERE json_extract(w.value, '$.kept_tainted') = '1')
            AND NOT EXISTS (SELECT 1 FROM json_each(r.document, '$.windows') AS w WHERE left(w.value, 1) = '{'
                AND NOT EXISTS (SELECT 1 FROM json_each(w.value, '$.tainted'))))::int::bigint AS disturbed
    FROM engines AS e LEFT JOIN LATERAL (
        SELECT CASE WHEN json_valid(n.document) THEN n.document END AS document
        FROM reports AS n WHERE n.plan_digest = e.plan_digest AND n.sku = e.sku
        ORDER BY n.measure LIKE '%"inputs":%' OR n.measure LIKE '%"time_inputs":true%', n.created_ms DESC, n.digest DESC
        LIMIT 1) AS r ON TRUE
    WHERE json_valid(e.doc);

-- The newest build of a key, as it stands now.
CREATE FUNCTION know_engine(key TEXT) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO engine_facts
        SELECT engine_key, plan_digest, project, sku, model_name, model_digest, created_ms, spec, toolchain, accurate,
            simulated, median_ms, disturbed
        FROM build_facts WHERE engine_key = key AND plan_digest = (
            SELECT n.plan_digest FROM engines AS n WHERE n.engine_key = key
            ORDER BY n.seq DESC, n.created_ms DESC, n.plan_digest DESC LIMIT 1)
        ON CONFLICT (engine_key) DO UPDATE SET plan_digest = excluded.plan_digest, project = excluded.project,
            model_name = excluded.model_name, created_ms = excluded.created_ms, spec = excluded.spec,
            toolchain = excluded.toolchain, accurate = excluded.accurate, simulated = excluded.simulated,
            median_ms = excluded.median_ms, disturbed = excluded.disturbed
$$;

CREATE FUNCTION engines_know() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM know_engine(NEW.engine_key);
    RETURN NULL;
END $$;
CREATE TRIGGER engines_come AFTER INSERT ON engines FOR EACH ROW EXECUTE FUNCTION engines_know();
CREATE TRIGGER engines_change AFTER UPDATE OF doc ON engines FOR EACH ROW EXECUTE FUNCTION engines_know();

CREATE FUNCTION engines_go() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM engines WHERE engine_key = OLD.engine_key) THEN
        PERFORM know_engine(OLD.engine_key);
        RETURN NULL;
    END IF;
    DELETE FROM engine_facts WHERE engine_key = OLD.engine_key;
    UPDATE engine_counts SET n = n - 1 WHERE sku = OLD.sku AND project IN (
        SELECT '' UNION ALL SELECT project FROM engine_projects WHERE engine_key = OLD.engine_key);
    DELETE FROM engine_projects WHERE engine_key = OLD.engine_key;
    RETURN NULL;
END $$;
CREATE TRIGGER engines_go AFTER DELETE ON engines FOR EACH ROW EXECUTE FUNCTION engines_go();

CREATE FUNCTION reports_know() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    report reports%ROWTYPE;
BEGIN
    IF TG_OP = 'DELETE' THEN
        report := OLD;
    ELSE
        report := NEW;
    END IF;
    UPDATE engine_facts AS f SET simulated = b.simulated, median_ms = b.median_ms, disturbed = b.disturbed
        FROM build_facts AS b
        WHERE f.plan_digest = report.plan_digest AND f.sku = report.sku
            AND b.engine_key = f.engine_key AND b.plan_digest = f.plan_digest;
    RETURN NULL;
END $$;
CREATE TRIGGER reports_know AFTER INSERT OR DELETE ON reports FOR EACH ROW EXECUTE FUNCTION reports_know();

-- By which name a project that asked for an engine knows its model.
CREATE FUNCTION known_as(project TEXT, builder TEXT, model_name TEXT, digest TEXT) RETURNS TEXT LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN known_as.project IN ('', builder) THEN known_as.model_name
        ELSE COALESCE((SELECT m.model_name FROM project_models AS m
            WHERE m.project = known_as.project AND m.model_digest = digest), substr(digest, 1, 12)) END
$$;

CREATE FUNCTION engine_facts_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO coverage_engines
        SELECT p.project, known_as(p.project, NEW.project, NEW.model_name, NEW.model_digest), NEW.sku, NEW.engine_key
        FROM (SELECT '' AS project UNION SELECT project FROM engine_projects WHERE engine_key = NEW.engine_key) AS p;
    RETURN NULL;
END $$;
CREATE TRIGGER engine_facts_come AFTER INSERT ON engine_facts FOR EACH ROW EXECUTE FUNCTION engine_facts_come();

CREATE FUNCTION engine_facts_change() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    UPDATE coverage_engines SET model_name = known_as(project, NEW.project, NEW.model_name, NEW.model_digest)
        WHERE engine_key = NEW.engine_key;
    RETURN NULL;
END $$;
CREATE TRIGGER engine_facts_change AFTER UPDATE ON engine_facts FOR EACH ROW
    WHEN (OLD.model_name <> NEW.model_name OR OLD.project <> NEW.project) EXECUTE FUNCTION engine_facts_change();

CREATE FUNCTION engine_facts_go() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM coverage_engines WHERE engine_key = OLD.engine_key;
    RETURN NULL;
END $$;
CREATE TRIGGER engine_facts_go AFTER DELETE ON engine_facts FOR EACH ROW EXECUTE FUNCTION engine_facts_go();

CREATE FUNCTION engine_projects_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO engine_counts AS c SELECT NEW.project, sku, 1 FROM engines WHERE engine_key = NEW.engine_key LIMIT 1
        ON CONFLICT (project, sku) DO UPDATE SET n = c.n + 1;
    IF NEW.project <> '' THEN
        INSERT INTO coverage_engines
            SELECT NEW.project, known_as(NEW.project, f.project, f.model_name, f.model_digest), f.sku, f.engine_key
            FROM engine_facts AS f WHERE f.engine_key = NEW.engine_key
            ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER engine_projects_come AFTER INSERT ON engine_projects FOR EACH ROW EXECUTE FUNCTION engine_projects_come();

CREATE FUNCTION project_models_change() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    UPDATE coverage_engines SET model_name = NEW.model_name
        WHERE project = NEW.project AND engine_key IN (
            SELECT engine_key FROM engine_facts WHERE model_digest = NEW.model_digest AND project <> NEW.project);
    RETURN NULL;
END $$;
CREATE TRIGGER project_models_change AFTER UPDATE OF model_name ON project_models FOR EACH ROW
    WHEN (OLD.model_name <> NEW.model_name) EXECUTE FUNCTION project_models_change();

CREATE FUNCTION coverage_engines_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO coverage_places AS c VALUES (NEW.project, NEW.model_name, NEW.sku, 1)
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = c.n + 1;
    RETURN NULL;
END $$;
CREATE TRIGGER coverage_engines_come AFTER INSERT ON coverage_engines FOR EACH ROW EXECUTE FUNCTION coverage_engines_come();
CREATE TRIGGER coverage_engines_change_to AFTER UPDATE OF model_name ON coverage_engines FOR EACH ROW
    WHEN (OLD.model_name <> NEW.model_name) EXECUTE FUNCTION coverage_engines_come();

CREATE FUNCTION coverage_engines_go() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    UPDATE coverage_places SET n = n - 1
        WHERE project = OLD.project AND model_name = OLD.model_name AND sku = OLD.sku;
    DELETE FROM coverage_places
        WHERE project = OLD.project AND model_name = OLD.model_name AND sku = OLD.sku AND n <= 0;
    RETURN NULL;
END $$;
CREATE TRIGGER coverage_engines_go AFTER DELETE ON coverage_engines FOR EACH ROW EXECUTE FUNCTION coverage_engines_go();
CREATE TRIGGER coverage_engines_change_from AFTER UPDATE OF model_name ON coverage_engines FOR EACH ROW
    WHEN (OLD.model_name <> NEW.model_name) EXECUTE FUNCTION coverage_engines_go();

CREATE FUNCTION coverage_places_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO coverage_models AS c VALUES (NEW.project, NEW.model_name, 1)
        ON CONFLICT (project, model_name) DO UPDATE SET n = c.n + 1;
    RETURN NULL;
END $$;
CREATE TRIGGER coverage_places_come AFTER INSERT ON coverage_places FOR EACH ROW EXECUTE FUNCTION coverage_places_come();

CREATE FUNCTION coverage_places_go() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    UPDATE coverage_models SET n = n - 1 WHERE project = OLD.project AND model_name = OLD.model_name;
    DELETE FROM coverage_models WHERE project = OLD.project AND model_name = OLD.model_name AND n <= 0;
    RETURN NULL;
END $$;
CREATE TRIGGER coverage_places_go AFTER DELETE ON coverage_places FOR EACH ROW EXECUTE FUNCTION coverage_places_go();

-- How fast builds were, one after the other (SQLite's migration 22).
CREATE TABLE history_builds (
    model_name   TEXT COLLATE "C" NOT NULL,
    created_ms   BIGINT NOT NULL,
    engine_key   TEXT COLLATE "C" NOT NULL,
    plan_digest  TEXT COLLATE "C" NOT NULL,
    model_digest TEXT COLLATE "C" NOT NULL,
    sku          TEXT COLLATE "C" NOT NULL,
    project      TEXT COLLATE "C" NOT NULL,
    job          TEXT COLLATE "C" NOT NULL,
    spec         TEXT NOT NULL,
    toolchain    TEXT NOT NULL,
    median_ms    DOUBLE PRECISION NOT NULL,
    disturbed    BIGINT NOT NULL,
    PRIMARY KEY (model_name, created_ms, engine_key, plan_digest)
);
CREATE INDEX history_builds_model ON history_builds (model_digest, created_ms, engine_key, plan_digest);

CREATE VIEW measured_builds AS
    SELECT COALESCE(NULLIF(e.model_name, ''), substr(e.model_digest, 1, 12)) AS model_name, e.created_ms, e.engine_key,
        e.plan_digest, e.model_digest, e.sku, COALESCE(json_extract(e.doc, '$.project'), '') AS project,
        COALESCE(json_extract(e.doc, '$.job'), '') AS job, COALESCE(json_extract(e.doc, '$.spec'), '{}') AS spec,
        COALESCE(json_extract(e.doc, '$.toolchain'), '{}') AS toolchain,
        json_extract(r.document, '$.latency_ms.median')::double precision AS median_ms,
        (EXISTS (SELECT 1 FROM json_each(r.document, '$.windows') AS w WHERE json_extract(w.value, '$.kept_tainted') = '1')
            AND NOT EXISTS (SELECT 1 FROM json_each(r.document, '$.windows') AS w WHERE left(w.value, 1) = '{'
                AND NOT EXISTS (SELECT 1 FROM json_each(w.value, '$.tainted'))))::int::bigint AS disturbed
    FROM engines AS e JOIN LATERAL (
        SELECT n.document FROM reports AS n WHERE n.plan_digest = e.plan_digest AND n.sku = e.sku
            AND (n.job = json_extract(e.doc, '$.job') OR n.created_ms >= e.created_ms)
        ORDER BY n.measure LIKE '%"inputs":%' OR n.measure LIKE '%"time_inputs":true%',
            n.job <> json_extract(e.doc, '$.job'), n.created_ms, n.digest
        LIMIT 1) AS r ON TRUE
    WHERE CASE WHEN json_valid(e.doc) AND json_valid(r.document) THEN
            json_typeof(r.document::json #> '{latency_ms,median}') = 'number'
            AND json_extract(r.document, '$.simulated') IS DISTINCT FROM '1'
            AND json_extract(e.doc, '$.simulated') IS DISTINCT FROM '1'
        ELSE FALSE END;

CREATE FUNCTION remember_builds(plan TEXT, device TEXT) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO history_builds
        SELECT model_name, created_ms, engine_key, plan_digest, model_digest, sku, project, job, spec, toolchain,
            median_ms, disturbed
        FROM measured_builds WHERE plan_digest = plan AND sku = device
        ON CONFLICT (model_name, created_ms, engine_key, plan_digest) DO UPDATE SET project = excluded.project,
            job = excluded.job, spec = excluded.spec, toolchain = excluded.toolchain, median_ms = excluded.median_ms,
            disturbed = excluded.disturbed
$$;
CREATE FUNCTION builds_come() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM remember_builds(NEW.plan_digest, NEW.sku);
    RETURN NULL;
END $$;
CREATE TRIGGER engines_come_history AFTER INSERT OR UPDATE OF doc ON engines FOR EACH ROW EXECUTE FUNCTION builds_come();
CREATE TRIGGER reports_come_history AFTER INSERT ON reports FOR EACH ROW EXECUTE FUNCTION builds_come();
