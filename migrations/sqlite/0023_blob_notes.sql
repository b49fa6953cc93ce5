-- What a blob store in a cloud has to remember beside its objects. Kinds: 'farm' (which farm this is, as the store's marker
-- names it), 'upload' and 'part' (uploads that go on, and parts that the store has of them), 'announced' (when somebody was
-- last told that a blob is there), 'quarantined' (damaged blobs), 'unconfirmed' (nobody knows yet whether the store kept
-- the right bytes). Empty where blobs lie in a folder.
CREATE TABLE blob_notes (
    kind  TEXT   NOT NULL,
    name  TEXT   NOT NULL,  -- a blob's digest, an upload's id, or an id and the number of a part
    text  TEXT   NOT NULL,  -- JSON of uploads and parts, else empty
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
