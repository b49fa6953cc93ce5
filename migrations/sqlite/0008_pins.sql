-- Who wants a plan kept, why, and until when. A pin that has expired counts for nothing and is taken away with the next
-- change of any pin.

CREATE TABLE pins (
    plan_digest TEXT   NOT NULL,
    project     TEXT   NOT NULL,
    owner       TEXT   NOT NULL,  -- name of the token, or local
    created_ms  BIGINT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    doc         TEXT   NOT NULL,  -- the pin
    PRIMARY KEY (plan_digest, project, owner)
) WITHOUT ROWID;
CREATE INDEX pins_project ON pins (project, created_ms);
CREATE INDEX pins_expires ON pins (expires_ms);
