-- Timing caches kept by the farm, plugins its operator allowed, and what a report has beside the usual.

CREATE TABLE caches (
    scope        TEXT   NOT NULL PRIMARY KEY,  -- device class, driver branch, SKU and whole toolchain, as one digest
    sku          TEXT   NOT NULL,
    published_ms BIGINT NOT NULL,              -- when it was last published or dropped
    doc          TEXT   NOT NULL               -- digest of the newest cache and where it came from; no digest: dropped
);

CREATE TABLE plugins (
    digest TEXT NOT NULL PRIMARY KEY,  -- of the library
    doc    TEXT NOT NULL               -- its name, who allowed it and when
);

ALTER TABLE reports ADD COLUMN measure TEXT NOT NULL DEFAULT '{}';    -- what was asked beside the usual, JSON
ALTER TABLE reports ADD COLUMN artifacts TEXT NOT NULL DEFAULT '[]';  -- files beside it: name, digest, bytes; JSON
