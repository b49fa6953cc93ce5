-- Links for reading one request or one model without a token. One that has expired counts for nothing and is taken away
-- with the next change of any link; one that was revoked is gone.

CREATE TABLE shares (
    id          TEXT   NOT NULL PRIMARY KEY,
    secret_hash TEXT   NOT NULL UNIQUE,
    project     TEXT   NOT NULL,            -- empty: every project's
    created_ms  BIGINT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    opened_ms   BIGINT NOT NULL DEFAULT 0,  -- never goes back
    doc         TEXT   NOT NULL             -- the link as it was made
) WITHOUT ROWID;
CREATE INDEX shares_project ON shares (project, created_ms);
CREATE INDEX shares_expires ON shares (expires_ms);
