-- Which of a key's builds is the newest, however often it was built: one step along an index instead of a look at each of them.

CREATE INDEX engines_builds ON engines (engine_key, seq, created_ms, plan_digest);
