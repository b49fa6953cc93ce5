-- Which agent a token belongs to: the first that used it, or the one an administrator gave it to.

ALTER TABLE tokens ADD COLUMN agent TEXT NOT NULL DEFAULT '';  -- id of the agent; empty: nobody's yet, and so is every token made before
