-- Files that were sent before migration 0012 and that no record names go like those that were sent since: their age begins
-- now, for nothing says when they were sent. What any document names stays, wherever in it that stands.

CREATE TABLE sent_before (digest TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO sent_before
    SELECT DISTINCT digest FROM blob_refs AS b
    WHERE b.tenure = 0 AND b.engine_key = ''
        AND NOT EXISTS (SELECT 1 FROM blob_refs AS o WHERE o.digest = b.digest AND (o.engine_key <> '' OR o.tenure <> 0))
        AND NOT EXISTS (SELECT 1 FROM engines AS e WHERE e.plan_digest = b.digest)
        AND NOT EXISTS (SELECT 1 FROM reports AS r WHERE r.digest = b.digest OR r.plan_digest = b.digest)
        AND NOT EXISTS (SELECT 1 FROM plugins AS p WHERE p.digest = b.digest)
        AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.model_digest = b.digest);
-- Where a document cannot be read, nobody knows what it names.
DELETE FROM sent_before WHERE EXISTS (SELECT 1 FROM jobs WHERE NOT json_valid(doc))
    OR EXISTS (SELECT 1 FROM engines WHERE NOT json_valid(doc)) OR EXISTS (SELECT 1 FROM caches WHERE NOT json_valid(doc));
DELETE FROM sent_before WHERE digest IN (
    SELECT t.atom FROM jobs AS j, json_tree(j.doc) AS t WHERE t.type = 'text' AND length(t.atom) = 64);
DELETE FROM sent_before WHERE digest IN (
    SELECT t.atom FROM engines AS e, json_tree(e.doc) AS t WHERE t.type = 'text' AND length(t.atom) = 64);
DELETE FROM sent_before WHERE digest IN (
    SELECT t.atom FROM caches AS c, json_tree(c.doc) AS t WHERE t.type = 'text' AND length(t.atom) = 64);
DELETE FROM sent_before WHERE digest IN (
    SELECT t.atom FROM reports AS r, json_tree(CASE WHEN json_valid(r.artifacts) THEN r.artifacts ELSE '[]' END) AS t
    WHERE t.type = 'text' AND length(t.atom) = 64);
UPDATE blob_refs SET tenure = 2, since_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000
    WHERE tenure = 0 AND engine_key = '' AND digest IN (SELECT digest FROM sent_before);
DROP TABLE sent_before;
