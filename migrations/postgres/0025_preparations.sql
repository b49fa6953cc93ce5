-- As SQLite's migration of the same number.

CREATE TABLE preparations (
    prepare_key  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    job          TEXT COLLATE "C" NOT NULL,
    model_digest TEXT COLLATE "C" NOT NULL,
    doc          TEXT NOT NULL
);
CREATE INDEX preparations_job ON preparations (job);
CREATE INDEX preparations_model ON preparations (model_digest);

CREATE FUNCTION jobs_rename() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    owners TEXT[] := ARRAY(SELECT '' UNION SELECT project FROM job_projects WHERE job = NEW.id);
BEGIN
    IF OLD.model_name <> NEW.model_name AND stands(NEW.state) THEN
        INSERT INTO coverage_places AS c SELECT owner, NEW.model_name, NEW.sku, 1 FROM unnest(owners) AS owner
            ON CONFLICT (project, model_name, sku) DO UPDATE SET n = c.n + 1;
        UPDATE coverage_places SET n = n - 1
            WHERE model_name = OLD.model_name AND sku = NEW.sku AND project = ANY (owners);
        DELETE FROM coverage_places
            WHERE model_name = OLD.model_name AND sku = NEW.sku AND n <= 0 AND project = ANY (owners);
    END IF;
    IF OLD.model_digest <> NEW.model_digest AND NEW.model_name <> '' THEN
        INSERT INTO project_models AS m
            SELECT owner, NEW.model_digest, NEW.model_name, NEW.created_ms FROM unnest(owners) AS owner WHERE owner <> ''
            ON CONFLICT (project, model_digest) DO UPDATE
                SET model_name = excluded.model_name, created_ms = excluded.created_ms
                WHERE excluded.model_name <> m.model_name AND excluded.created_ms >= m.created_ms;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_rename AFTER UPDATE OF model_name, model_digest ON jobs FOR EACH ROW
    WHEN (OLD.model_name <> NEW.model_name OR OLD.model_digest <> NEW.model_digest) EXECUTE FUNCTION jobs_rename();

CREATE FUNCTION coverage_places_anywhere() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RETURN NULL;
END $$;
CREATE TRIGGER coverage_places_anywhere BEFORE INSERT ON coverage_places FOR EACH ROW
    WHEN (NEW.sku = 'anywhere') EXECUTE FUNCTION coverage_places_anywhere();
