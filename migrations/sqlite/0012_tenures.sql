-- How long a project's row of a blob lasts: as long as the records that name the blob, or by an age of its own. And an
-- order by age for what goes by it.

ALTER TABLE blob_refs ADD COLUMN tenure BIGINT NOT NULL DEFAULT 0;    -- 0 as the records that name it, 1 given beside a model, 2 sent and not yet named, 3 a log
ALTER TABLE blob_refs ADD COLUMN since_ms BIGINT NOT NULL DEFAULT 0;  -- when it was sent or last named, where it has a tenure
UPDATE blob_refs SET tenure = 3, since_ms = named.at_ms FROM (
    SELECT json_extract(a.value, '$.log') AS digest, MAX(j.ended_ms) AS at_ms
    FROM jobs AS j, json_each(j.doc, '$.attempts') AS a
    WHERE j.ended_ms <> 0 AND json_extract(a.value, '$.log') IS NOT NULL GROUP BY 1
) AS named WHERE blob_refs.digest = named.digest AND blob_refs.engine_key = '';
UPDATE blob_refs SET tenure = 1, since_ms = named.at_ms FROM (
    SELECT given.value AS digest, MAX(MAX(j.created_ms, j.ended_ms)) AS at_ms
    FROM jobs AS j, json_each(json_array(
        json_extract(j.doc, '$.spec.calibration'), json_extract(j.doc, '$.eval'), json_extract(j.doc, '$.measure.inputs'))
    ) AS given WHERE given.value IS NOT NULL GROUP BY 1
) AS named WHERE blob_refs.digest = named.digest AND blob_refs.engine_key = ''
    AND named.digest NOT IN (SELECT json_extract(f.value, '$.digest')
        FROM jobs AS j, json_each(j.doc, '$.model.files') AS f);
CREATE INDEX blob_refs_age ON blob_refs (tenure, since_ms) WHERE tenure <> 0;
CREATE INDEX reports_age ON reports (created_ms, digest);
