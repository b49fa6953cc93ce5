-- What is kept by age and last use: see the crate planforge-retention.

ALTER TABLE engines ADD COLUMN last_ms BIGINT NOT NULL DEFAULT 0;  -- when it was built, or last fetched, answered with or measured
UPDATE engines SET last_ms = created_ms;
CREATE INDEX engines_last ON engines (last_ms, engine_key, plan_digest);
CREATE TRIGGER engines_are_used AFTER INSERT ON engines BEGIN
    UPDATE engines SET last_ms = MAX(last_ms, NEW.created_ms)
        WHERE engine_key = NEW.engine_key AND plan_digest = NEW.plan_digest;
END;
CREATE INDEX requests_created ON requests (created_ms, id);
