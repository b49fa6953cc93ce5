-- To whom bytes belong: a project that uploaded them or whose jobs name them, or an engine that they are of. A blob is
-- read by a project through a row of its own, or through an engine that it may see.

CREATE TABLE blob_refs (
    digest     TEXT   NOT NULL,
    project    TEXT   NOT NULL,  -- empty in the rows of engines
    engine_key TEXT   NOT NULL,  -- empty in the rows of projects
    size_bytes BIGINT NOT NULL,  -- 0 where nobody said; counts for the project
    PRIMARY KEY (digest, project, engine_key)
) WITHOUT ROWID;
CREATE INDEX blob_refs_project ON blob_refs (project, size_bytes) WHERE project <> '';

-- What was stored before this was kept: everything that is named by what a project asked for.
INSERT OR IGNORE INTO blob_refs
    SELECT json_extract(f.value, '$.digest'), p.project, '', COALESCE(json_extract(f.value, '$.size_bytes'), 0)
    FROM jobs AS j JOIN job_projects AS p ON p.job = j.id, json_each(j.doc, '$.model.files') AS f;
INSERT OR IGNORE INTO blob_refs
    SELECT json_extract(j.doc, '$.plan.digest'), p.project, '', COALESCE(json_extract(j.doc, '$.plan.size_bytes'), 0)
    FROM jobs AS j JOIN job_projects AS p ON p.job = j.id WHERE json_extract(j.doc, '$.plan.digest') IS NOT NULL;
INSERT OR IGNORE INTO blob_refs
    SELECT named.value, p.project, '', 0
    FROM jobs AS j JOIN job_projects AS p ON p.job = j.id, json_each(json_array(
        json_extract(j.doc, '$.spec.calibration'), json_extract(j.doc, '$.eval'),
        json_extract(j.doc, '$.measure.inputs'), json_extract(j.doc, '$.plan.card'), json_extract(j.doc, '$.report'))
    ) AS named WHERE named.value IS NOT NULL;
INSERT OR IGNORE INTO blob_refs
    SELECT json_extract(a.value, '$.log'), p.project, '', 0
    FROM jobs AS j JOIN job_projects AS p ON p.job = j.id, json_each(j.doc, '$.attempts') AS a
    WHERE json_extract(a.value, '$.log') IS NOT NULL;
INSERT OR IGNORE INTO blob_refs
    SELECT plan_digest, '', engine_key, 0 FROM engines;
INSERT OR IGNORE INTO blob_refs
    SELECT json_extract(doc, '$.plan.card'), '', engine_key, 0
    FROM engines WHERE json_extract(doc, '$.plan.card') IS NOT NULL;
INSERT OR IGNORE INTO blob_refs
    SELECT digest, '', engine_key, 0 FROM reports WHERE engine_key <> '';
INSERT OR IGNORE INTO blob_refs
    SELECT digest, p.project, '', 0 FROM reports AS r JOIN job_projects AS p ON p.job = r.job;
INSERT OR IGNORE INTO blob_refs
    SELECT json_extract(a.value, '$.digest'), '', r.engine_key, 0
    FROM reports AS r, json_each(r.artifacts) AS a WHERE r.engine_key <> '';
INSERT OR IGNORE INTO blob_refs
    SELECT json_extract(a.value, '$.digest'), p.project, '', COALESCE(json_extract(a.value, '$.size_bytes'), 0)
    FROM reports AS r JOIN job_projects AS p ON p.job = r.job, json_each(r.artifacts) AS a;

CREATE TABLE projects (
    name TEXT NOT NULL PRIMARY KEY,
    doc  TEXT NOT NULL  -- its share and limits, who set them and when; a project without a row has the usual ones
);
