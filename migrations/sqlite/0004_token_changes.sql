-- What happens to a token after it was made, each in a column of its own, so that no write can undo another's.

ALTER TABLE tokens ADD COLUMN revoked BIGINT NOT NULL DEFAULT 0;       -- 1: revoked, for ever; an older version's `doc` may say so too
ALTER TABLE tokens ADD COLUMN last_used_ms BIGINT NOT NULL DEFAULT 0;  -- never goes back; the later of this and the one in `doc` counts
