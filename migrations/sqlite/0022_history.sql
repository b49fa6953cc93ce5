-- How fast builds were, one after the other: what a model's history is told from, read along one index and without a
-- document. A row for each build that was measured on its own device kind, of nothing simulated. Rows stay when plans,
-- reports and jobs go: a history is of what was.
CREATE TABLE history_builds (
    model_name   TEXT   NOT NULL,  -- as the project that had it built calls it
    created_ms   BIGINT NOT NULL,
    engine_key   TEXT   NOT NULL,
    plan_digest  TEXT   NOT NULL,
    model_digest TEXT   NOT NULL,
    sku          TEXT   NOT NULL,
    project      TEXT   NOT NULL,  -- that had it built
    job          TEXT   NOT NULL,  -- that built it
    spec         TEXT   NOT NULL,  -- JSON
    toolchain    TEXT   NOT NULL,  -- JSON
    median_ms    REAL   NOT NULL,
    disturbed    BIGINT NOT NULL,  -- every window that counts was
    PRIMARY KEY (model_name, created_ms, engine_key, plan_digest)
) WITHOUT ROWID;
CREATE INDEX history_builds_model ON history_builds (model_digest, created_ms, engine_key, plan_digest);

-- A build with the report that tells how fast it was: the one of the job that built it or, where that measured nothing, the
-- first that came after; of usual inputs before that of given ones. A build that came to the bytes of an earlier one is a
-- build of its own, and what was measured of the earlier one says nothing of it.
CREATE VIEW measured_builds AS
    SELECT COALESCE(NULLIF(e.model_name, ''), substr(e.model_digest, 1, 12)) AS model_name, e.created_ms, e.engine_key,
        e.plan_digest, e.model_digest, e.sku, COALESCE(json_extract(e.doc, '$.project'), '') AS project,
        COALESCE(json_extract(e.doc, '$.job'), '') AS job, COALESCE(json_extract(e.doc, '$.spec'), '{}') AS spec,
        COALESCE(json_extract(e.doc, '$.toolchain'), '{}') AS toolchain,
        json_extract(r.document, '$.latency_ms.median') AS median_ms,
        EXISTS (SELECT 1 FROM json_each(r.document, '$.windows') AS w
            WHERE CASE WHEN w.type = 'object' THEN json_extract(w.value, '$.kept_tainted') IS 1 ELSE 0 END)
        AND NOT EXISTS (SELECT 1 FROM json_each(r.document, '$.windows') AS w
            WHERE CASE WHEN w.type = 'object' THEN COALESCE(json_array_length(w.value, '$.tainted'), 0) = 0 ELSE 0 END)
            AS disturbed
    FROM engines AS e JOIN reports AS r ON r.digest = (
        SELECT digest FROM (
            SELECT n.digest, n.created_ms, n.job <> json_extract(e.doc, '$.job') AS of_another,
                n.measure LIKE '%"inputs":%' OR n.measure LIKE '%"time_inputs":true%' AS of_given
            FROM reports AS n WHERE n.plan_digest = e.plan_digest AND n.sku = e.sku
                AND CASE WHEN json_valid(e.doc) THEN
                    (n.job = json_extract(e.doc, '$.job') OR n.created_ms >= e.created_ms) ELSE 0 END)
        ORDER BY of_given, of_another, created_ms, digest LIMIT 1)
    WHERE CASE WHEN json_valid(r.document) THEN json_type(r.document, '$.latency_ms.median') IN ('real', 'integer')
            AND json_extract(r.document, '$.simulated') IS NOT 1 AND json_extract(e.doc, '$.simulated') IS NOT 1
        ELSE 0 END;

INSERT INTO history_builds
    SELECT model_name, created_ms, engine_key, plan_digest, model_digest, sku, project, job, spec, toolchain, median_ms,
        disturbed
    FROM measured_builds;

CREATE TRIGGER engines_come_history AFTER INSERT ON engines BEGIN
    INSERT INTO history_builds
        SELECT model_name, created_ms, engine_key, plan_digest, model_digest, sku, project, job, spec, toolchain,
            median_ms, disturbed
        FROM measured_builds WHERE engine_key = NEW.engine_key AND plan_digest = NEW.plan_digest
        ON CONFLICT (model_name, created_ms, engine_key, plan_digest) DO UPDATE SET project = excluded.project,
            job = excluded.job, spec = excluded.spec, toolchain = excluded.toolchain, median_ms = excluded.median_ms,
            disturbed = excluded.disturbed;
END;
CREATE TRIGGER engines_change_history AFTER UPDATE OF doc ON engines BEGIN
    INSERT INTO history_builds
        SELECT model_name, created_ms, engine_key, plan_digest, model_digest, sku, project, job, spec, toolchain,
            median_ms, disturbed
        FROM measured_builds WHERE engine_key = NEW.engine_key AND plan_digest = NEW.plan_digest
        ON CONFLICT (model_name, created_ms, engine_key, plan_digest) DO UPDATE SET project = excluded.project,
            job = excluded.job, spec = excluded.spec, toolchain = excluded.toolchain, median_ms = excluded.median_ms,
            disturbed = excluded.disturbed;
END;
CREATE TRIGGER reports_come_history AFTER INSERT ON reports BEGIN
    INSERT INTO history_builds
        SELECT model_name, created_ms, engine_key, plan_digest, model_digest, sku, project, job, spec, toolchain,
            median_ms, disturbed
        FROM measured_builds WHERE plan_digest = NEW.plan_digest AND sku = NEW.sku
        ON CONFLICT (model_name, created_ms, engine_key, plan_digest) DO UPDATE SET project = excluded.project,
            job = excluded.job, spec = excluded.spec, toolchain = excluded.toolchain, median_ms = excluded.median_ms,
            disturbed = excluded.disturbed;
END;
