-- Models that jobs of kind prepare made, by the key of how: who asks for the same is answered from here.
CREATE TABLE preparations (
    prepare_key  TEXT NOT NULL PRIMARY KEY,
    job          TEXT NOT NULL,  -- the newest that came to it: the row goes with that job
    model_digest TEXT NOT NULL,  -- of what was made
    doc          TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX preparations_job ON preparations (job);
CREATE INDEX preparations_model ON preparations (model_digest);

-- A job that waits for its model to be prepared is of the model that it is made from, and of the prepared one from then on.
CREATE TRIGGER jobs_rename_places AFTER UPDATE OF model_name ON jobs
WHEN OLD.model_name <> NEW.model_name AND NEW.state NOT IN ('succeeded', 'cancelled', 'skipped') BEGIN
    INSERT INTO coverage_places
        SELECT project, NEW.model_name, NEW.sku, 1
        FROM (SELECT '' AS project UNION ALL SELECT project FROM job_projects WHERE job = NEW.id) WHERE TRUE
        ON CONFLICT (project, model_name, sku) DO UPDATE SET n = n + 1;
    UPDATE coverage_places SET n = n - 1 WHERE model_name = OLD.model_name AND sku = NEW.sku
        AND project IN (SELECT '' UNION ALL SELECT project FROM job_projects WHERE job = NEW.id);
    DELETE FROM coverage_places WHERE model_name = OLD.model_name AND sku = NEW.sku AND n <= 0
        AND project IN (SELECT '' UNION ALL SELECT project FROM job_projects WHERE job = NEW.id);
END;
CREATE TRIGGER jobs_rename_models AFTER UPDATE OF model_digest ON jobs
WHEN OLD.model_digest <> NEW.model_digest AND NEW.model_name <> '' BEGIN
    INSERT INTO project_models
        SELECT project, NEW.model_digest, NEW.model_name, NEW.created_ms FROM job_projects WHERE job = NEW.id
        ON CONFLICT (project, model_digest) DO UPDATE
            SET model_name = excluded.model_name, created_ms = excluded.created_ms
            WHERE excluded.model_name <> project_models.model_name AND excluded.created_ms >= project_models.created_ms;
END;

-- What is prepared anywhere stands on no device kind.
CREATE TRIGGER coverage_places_anywhere BEFORE INSERT ON coverage_places WHEN NEW.sku = 'anywhere' BEGIN
    SELECT RAISE(IGNORE);
END;
