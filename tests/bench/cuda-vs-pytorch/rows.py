"""Rows of results in a folder, safe against the end of a run at any moment.

| file | holds |
|---|---|
| `rows.jsonl` | one row per engine and cell, appended when the cell is done |
| `unfinished.jsonl` | rows of the cell at work, written anew after every step and round; kept when the run is ended |
| `builds.jsonl` | every build of ours: how long, from which caches, how large |
| `streams.jsonl` | rows of the case with several streams |
| `seconds.jsonl` | what each command spent its time on |
"""

import json
import os


def read(folder, name):
    path = folder / f"{name}.jsonl"
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass  # the last line of a run that was killed may be half a line
    return found


def append(folder, name, rows):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.jsonl", "a+b") as file:
        # What a killed run left of its last line stays a line of its own.
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        torn = file.read() not in (b"", b"\n")
        file.write(("\n" if torn else "").encode() + "".join(json.dumps(row) + "\n" for row in rows).encode())
        file.flush()
        os.fsync(file.fileno())


def all_rows(folder):
    return read(folder, "rows") + read(folder, "unfinished")


def timed(folder, model, batch, measures):
    """The engines of a cell of which every measure was taken, without an error."""
    own = [row for row in all_rows(folder) if (row.get("model"), row.get("batch")) == (model, batch)]
    return {row["engine"] for row in own if "error" not in row and all(measure in row for measure in measures)}


class Cell:
    """Rows of one cell, by engine."""

    def __init__(self, folder, facts):
        self.folder, self.facts, self.rows = folder, facts, {}
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "unfinished.jsonl"
        adopt(folder)

    def set(self, engine, **values):
        row = self.rows.setdefault(engine, {**self.facts, "engine": engine})
        row.update(values)

    def keep(self):
        """Writes the rows as they are now, whole or not at all."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in self.rows.values()))
        os.replace(fresh, self.path)

    def finish(self):
        self.keep()
        adopt(self.folder)


def adopt(folder):
    """Takes rows of a cell at work among the finished ones."""
    left = read(folder, "unfinished")
    if left:
        append(folder, "rows", left)
    (folder / "unfinished.jsonl").unlink(missing_ok=True)
