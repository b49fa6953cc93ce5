-- As SQLite's migration of the same number.

CREATE TABLE pauses (
    id  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    doc TEXT NOT NULL
);
