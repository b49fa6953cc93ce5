-- Who did what, from where, and what came of it. The oldest lines of each kind go when there are too many.

CREATE TABLE audit (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms   BIGINT NOT NULL,
    kind    TEXT   NOT NULL,  -- admin, use or denied: each is kept up to its own bound, so that none crowds out another
    project TEXT   NOT NULL,  -- that the caller belongs to, or that was acted on; empty: the whole farm
    actor   TEXT   NOT NULL,
    what    TEXT   NOT NULL,
    doc     TEXT   NOT NULL   -- the line
);
CREATE INDEX audit_kind ON audit (kind, seq);
CREATE INDEX audit_project ON audit (project, seq);
