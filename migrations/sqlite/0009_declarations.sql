-- Which engines should exist: what each repository of a project declares, replaced as a whole by each sync.

CREATE TABLE declarations (
    project     TEXT   NOT NULL,
    name        TEXT   NOT NULL,  -- of the repository
    declared_ms BIGINT NOT NULL,
    doc         TEXT   NOT NULL,  -- its specs and cells, who declared them and when
    PRIMARY KEY (project, name)
);
CREATE INDEX declarations_age ON declarations (declared_ms, project, name);
