-- Which engine of a key is the newest, told by the order of events: a clock may stand still or be set back.

ALTER TABLE engines ADD COLUMN seq BIGINT NOT NULL DEFAULT 0;  -- the newest event when it was stored; 0: stored before this was kept
