-- What the coordinator remembers. Times are Unix milliseconds of the coordinator's clock, digests and keys 64 hex digits.
-- A `doc` column holds the whole record as JSON; the columns beside it repeat what queries filter and order by.

CREATE TABLE leader (
    id       BIGINT PRIMARY KEY,  -- always 1: one leader
    epoch    BIGINT NOT NULL,     -- rises with every leader; a commit that names another is refused
    owner    TEXT   NOT NULL,     -- who leads, for people
    since_ms BIGINT NOT NULL      -- when it began to
);
INSERT INTO leader (id, epoch, owner, since_ms) VALUES (1, 0, '', 0);

CREATE TABLE jobs (
    id           TEXT   NOT NULL PRIMARY KEY,
    state        TEXT   NOT NULL,  -- blocked, queued, leased, running, succeeded, failed, cancelled, skipped, unplaceable
    sku          TEXT   NOT NULL,  -- device kind it is for
    model_name   TEXT   NOT NULL,  -- file name, for people
    model_digest TEXT   NOT NULL,  -- identity of the model
    created_ms   BIGINT NOT NULL,  -- when it was submitted
    ended_ms     BIGINT NOT NULL,  -- when it ended, 0 while it lives
    doc          TEXT   NOT NULL   -- the job with its attempts
);
CREATE INDEX jobs_newest ON jobs (created_ms, id);
CREATE INDEX jobs_live ON jobs (id) WHERE ended_ms = 0;

CREATE TABLE job_projects (
    project    TEXT   NOT NULL,  -- a project that asked for the job
    created_ms BIGINT NOT NULL,  -- the job's, so that a project's newest jobs are one range
    job        TEXT   NOT NULL,
    PRIMARY KEY (project, created_ms, job)
);
CREATE INDEX job_projects_job ON job_projects (job);

CREATE TABLE events (
    seq     BIGINT NOT NULL PRIMARY KEY,  -- rises by one without gaps
    at_ms   BIGINT NOT NULL,
    job     TEXT   NOT NULL,
    actor   TEXT   NOT NULL,  -- token name, agent id, or 'coordinator'
    what    TEXT   NOT NULL,  -- submitted, merged, leased, running, phase, built, succeeded, ...
    state   TEXT   NOT NULL,  -- the job's state after it
    attempt BIGINT NOT NULL,  -- the job's newest attempt, 0 when none
    phase   TEXT   NOT NULL,  -- what the attempt was doing
    detail  TEXT   NOT NULL   -- for people
);
CREATE INDEX events_job ON events (job, seq);

CREATE TABLE engines (
    engine_key   TEXT   NOT NULL,  -- the name it is found under
    plan_digest  TEXT   NOT NULL,  -- the artifact; a forced build adds another one under the same key
    sku          TEXT   NOT NULL,
    model_name   TEXT   NOT NULL,
    model_digest TEXT   NOT NULL,
    created_ms   BIGINT NOT NULL,  -- the newest of a key is the one that is fetched
    doc          TEXT   NOT NULL,
    PRIMARY KEY (engine_key, plan_digest)
);
CREATE INDEX engines_plan ON engines (plan_digest);
CREATE INDEX engines_model ON engines (model_digest, sku);
CREATE INDEX engines_newest ON engines (created_ms);

CREATE TABLE engine_projects (
    engine_key TEXT NOT NULL,
    project    TEXT NOT NULL,  -- a project that asked for it and may see it
    PRIMARY KEY (engine_key, project)
);

CREATE TABLE reports (
    digest      TEXT   NOT NULL PRIMARY KEY,  -- of the document, which is also a blob
    plan_digest TEXT   NOT NULL,              -- the plan it measured
    engine_key  TEXT   NOT NULL,              -- empty when the plan has none
    job         TEXT   NOT NULL,              -- the job that measured it
    sku         TEXT   NOT NULL,              -- the device kind it ran on
    eval_digest TEXT   NOT NULL,              -- test set its accuracy was counted on, empty when none
    created_ms  BIGINT NOT NULL,
    document    TEXT   NOT NULL               -- the report, JSON
);
CREATE INDEX reports_plan ON reports (plan_digest, created_ms);
CREATE INDEX reports_key ON reports (engine_key, created_ms);
CREATE INDEX reports_job ON reports (job);

CREATE TABLE agents (
    id      TEXT   NOT NULL PRIMARY KEY,  -- stable across restarts of the agent
    seen_ms BIGINT NOT NULL,              -- when its last session began or ended
    doc     TEXT   NOT NULL               -- name, version, devices and what they offer
);

CREATE TABLE requests (
    id              TEXT   NOT NULL PRIMARY KEY,
    project         TEXT   NOT NULL,
    idempotency_key TEXT   NOT NULL,  -- empty: cannot be repeated
    created_ms      BIGINT NOT NULL,
    doc             TEXT   NOT NULL   -- actor, fingerprint of its contents, its jobs
);
CREATE UNIQUE INDEX requests_idempotency ON requests (project, idempotency_key) WHERE idempotency_key <> '';

CREATE TABLE refusals (
    engine_key TEXT NOT NULL PRIMARY KEY,  -- known to fail because of its model or spec
    doc        TEXT NOT NULL               -- which job found out, and how it failed
);

CREATE TABLE tokens (
    id  TEXT NOT NULL PRIMARY KEY,
    doc TEXT NOT NULL  -- name, role, project, SHA-256 of the secret, times; the secret itself is nowhere
);
