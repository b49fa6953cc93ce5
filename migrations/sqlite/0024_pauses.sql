-- Device kinds, projects and agents that get no more jobs for a while, or in windows that come again. The id says what is
-- paused: its kind, whether once or in a window, its name.

CREATE TABLE pauses (
    id  TEXT PRIMARY KEY,
    doc TEXT NOT NULL
) STRICT;
