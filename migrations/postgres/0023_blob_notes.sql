-- As migrations/sqlite/0023_blob_notes.sql.
CREATE TABLE blob_notes (
    kind  TEXT   NOT NULL,
    name  TEXT   NOT NULL,  -- a blob's digest, an upload's id, or an id and the number of a part
    text  TEXT   NOT NULL,  -- JSON of uploads and parts, else empty
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (kind, name)
);
