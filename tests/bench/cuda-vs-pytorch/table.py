"""Rows of measurements as Markdown: everything `docs/measurements/cuda-vs-pytorch.md` needs, and what is missing.

A ratio is only taken between rows of one run. Of several runs of a cell the latest row of each engine counts.
"""

import math

import rows as kept
from grid import (
    COLD_BUILD_MAX_S,
    ENGINES,
    GOALS_MS,
    MEASURES,
    MUST_CELLS,
    MUST_PEERS,
    MUST_SLOWER,
    OURS,
    RELATIVE_RMS_MAX,
    WARM_BUILD_MAX_S,
    ZOO_BATCHES,
    cells,
    must_peers,
    own,
    peers,
    zoo_cells,
)

SHOWN_LAYERS = 10


def number(value, digits=3):
    return "–" if value is None else f"{value:.{digits}f}"


def grid(head, body):
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(str(field) for field in row) + " |" for row in body]


def title(measure):
    column, definition = measure.removesuffix("_ms").split("_")
    return f"{definition}, {column}"


class Results:
    """Rows by cell and engine, the latest first."""

    def __init__(self, rows):
        self.by_cell = {}
        for row in reversed(rows):
            self.by_cell.setdefault((row["model"], row["batch"]), {}).setdefault(row["engine"], []).append(row)
        known = cells()
        order = {cell: place for place, cell in enumerate(known)}
        self.cells = sorted({*known, *self.by_cell}, key=lambda cell: (order.get(cell, len(known)), cell))
        self.engines = [name for name in ENGINES if any(name in cell for cell in self.by_cell.values())]

    def rows(self, cell, engine):
        return self.by_cell.get(cell, {}).get(engine, [])

    def latest(self, cell, engine, field):
        return next((row[field] for row in self.rows(cell, engine) if row.get(field) is not None), None)

    def ratio(self, cell, peer, measure, ours=OURS):
        """The peer's time over ours, of the latest run that has both."""
        for row in self.rows(cell, peer):
            for own in self.rows(cell, ours):
                if measure in row and measure in own and row.get("run") == own.get("run"):
                    return row[measure] / own[measure]
        return None

    def reason(self, cell, engine):
        """Why there is no time, or not of every round; `None` where nothing is missing."""
        found = self.rows(cell, engine)
        timed = next((row for row in found if MEASURES[0] in row), None)
        if timed:
            return timed.get("error") and f"timed in {timed['rounds']} rounds, then {timed['error']}"
        if not found:
            return "not run"
        return found[0].get("error") or "the run ended before it was timed"


def versions(rows):
    found = {}
    for row in rows:
        for field in ("date", "device", "torch", "torch_cudnn"):
            found.setdefault(field, set()).add(row.get(field))
        for field in ("driver", "cudnn", "cublaslt"):
            if field in row.get("built", {}):
                found.setdefault(f"our {field}", set()).add(row["built"][field])
    return [f"- {field}: {', '.join(sorted(str(value) for value in values))}" for field, values in found.items()]


def must(results):
    lines = [
        f"Asked: faster than {' and '.join(MUST_PEERS)} in {MUST_CELLS} of {len(cells())} cells of each column, in none "
        f"slower by more than {MUST_SLOWER - 1:.0%}.",
        "",
    ]
    body = []
    for measure in MEASURES:
        ratios = {cell: [results.ratio(cell, peer, measure) for peer in MUST_PEERS] for cell in cells()}
        whole = {cell: min(found) for cell, found in ratios.items() if None not in found}
        faster = sum(worst > 1 for worst in whole.values())
        much = [f"{model} {batch}" for (model, batch), worst in whole.items() if worst < 1 / MUST_SLOWER]
        missing = [f"{model} {batch}" for model, batch in ratios if (model, batch) not in whole]
        met = "yes" if faster >= MUST_CELLS and not much and not missing else "no"
        # Cells that are missing could only make it worse or leave it as it is.
        met = "so far, cells are missing" if faster >= MUST_CELLS and not much and missing else met
        body.append([title(measure), f"{faster} of {len(whole)}", ", ".join(much) or "none", ", ".join(missing) or "none", met])
    return lines + grid(["measure", "faster than both", "slower by more", "not measured", "met"], body)


def goals(results):
    measures = MEASURES[:2]
    body = []
    for (model, batch), most in GOALS_MS.items():
        found = [results.latest((model, batch), OURS, measure) for measure in measures]
        met = "–" if None in found else "yes" if max(found) <= most else "no"
        body.append([model, batch, number(most), *map(number, found), met])
    return grid(["model", "batch", "goal ms", *map(title, measures), "met"], body)


def ratios(results, measure):
    others = [name for name in results.engines if name != OURS]
    body = []
    for cell in results.cells:
        shown = [number(results.ratio(cell, name, measure), 2) for name in others]
        body.append([*cell, number(results.latest(cell, OURS, measure)), *shown])
    return grid(["model", "batch", "ours ms", *others], body)


def by_engine(results, field, show):
    body = [[*cell, *(show(results.latest(cell, name, field)) for name in results.engines)] for cell in results.cells]
    return grid(["model", "batch", *results.engines], body)


def builds(results, built):
    """What our engine takes, and how long its first and its later builds took."""
    body = []
    for model, batch in results.cells:
        own = [row for row in built if (row["model"], row["batch"], row["contexts"]) == (model, batch, 1)]
        cold = [row["ready_s"] for row in own if row["cold"]]
        warm = [row["ready_s"] for row in own if row["warm"]]
        last = own[-1] if own else {}
        body.append([
            model, batch, last.get("steps", "–"), last.get("plan_mib", "–"), last.get("weights_mib", "–"),
            last.get("device_mib", "–"), number(cold[-1] if cold else None, 1), number(warm[-1] if warm else None, 1),
        ])  # fmt: skip
    return grid(["model", "batch", "steps", "plan MiB", "weights MiB", "device MiB", "cold build s", "warm build s"], body)


def streams(rows):
    latest = {(row["model"], row["engine"]): row for row in rows if "error" not in row}
    fields = ["frames_per_s", "latency_ms", "latency_p95_ms", "utilisation_percent", "memory_mib", "process_mib"]
    body = [
        [model, f"{row['batch']} x {row['streams']}", engine, *("–" if row.get(f) is None else row[f] for f in fields)]
        for (model, engine), row in latest.items()
    ]
    lines = grid(["model", "batch x streams", "engine", *fields], body)
    failed = [row for row in rows if "error" in row and (row["model"], row["engine"]) not in latest]
    return lines + [f"- {row['engine']}: {row['error']}" for row in failed]


def not_measured(results):
    lines = []
    for cell in results.cells:
        why = {name: results.reason(cell, name) for name in (OURS, *peers(*cell))}
        if len(set(why.values())) == 1 and "not run" in why.values():
            lines.append(f"- {cell[0]}, batch {cell[1]}: not run")
            continue
        lines += [f"- {cell[0]}, batch {cell[1]}, {name}: {reason}" for name, reason in why.items() if reason]
    return lines or ["Nothing."]


def misses(results, built):
    """What a cell lacks of what is asked or aimed for."""
    found = {}
    for cell in results.cells:
        why = []
        for peer in peers(*cell):
            slower = [(m, results.ratio(cell, peer, m)) for m in MEASURES]
            slower = [f"{title(m)} {ratio:.2f} x" for m, ratio in slower if ratio is not None and ratio <= 1]
            if slower:
                why.append(f"not faster than {peer} ({'; '.join(slower)})")
        goal, call = GOALS_MS.get(cell), [results.latest(cell, OURS, measure) for measure in MEASURES[:2]]
        if goal and None not in call and max(call) > goal:
            why.append(f"{max(call):.3f} ms, the goal is {goal:.3f} ms")
        error = results.latest(cell, OURS, "relative_rms")
        if error is not None and not error <= RELATIVE_RMS_MAX:
            why.append(f"relative RMS {error:.1e}, allowed is {RELATIVE_RMS_MAX:.0e}")
        for kind, most in (("cold", COLD_BUILD_MAX_S), ("warm", WARM_BUILD_MAX_S)):
            took = [row["ready_s"] for row in built if (row["model"], row["batch"]) == cell and row[kind]]
            if took and took[-1] > most:
                why.append(f"{kind} build {took[-1]:.1f} s, allowed are {most} s")
        if why:
            found[cell] = why
    return found


def layers(results, cell):
    found = results.latest(cell, OURS, "layers")
    if not found:
        return ["No layers were recorded."]
    whole = sum(layer["ms"] for layer in found) or 1
    body = []
    for layer in sorted(found, key=lambda layer: -layer["ms"])[:SHOWN_LAYERS]:
        seconds = max(layer["ms"], 1e-9) / 1e3
        body.append([
            number(layer["ms"], 4), f"{layer['ms'] / whole:.1%}", number(layer["flops"] / seconds / 1e12, 1),
            number(layer["bytes"] / seconds / 1e9, 0), layer["kind"], layer["tactic"] or "–", layer["name"],
        ])  # fmt: skip
    head = [f"All {len(found)} steps by themselves, one after the other: {whole:.3f} ms. The slowest:", ""]
    return head + grid(["ms", "share", "TFLOP/s", "GB/s", "kind", "tactic", "step"], body)


def zoo_markdown(folder, precision="fp16", batches=ZOO_BATCHES):
    """The networks that nobody tuned for: by measure, the time of the better of the two peers over ours."""
    results = Results(kept.all_rows(folder))
    measures = MEASURES[1:3]
    ours, against = own(precision), must_peers(precision)
    wanted = [(model, batch) for model, batch in zoo_cells() if batch in batches]
    body, worst = [], {measure: [] for measure in measures}
    for cell in wanted:
        shown = []
        for measure in measures:
            found = [results.ratio(cell, peer, measure, ours) for peer in against]
            whole = None not in found
            worst[measure] += [min(found)] if whole else []
            shown += [number(results.latest(cell, ours, measure)), *(number(ratio, 2) for ratio in found)]
        errors = [results.latest(cell, engine, "relative_rms") for engine in (ours, against[0])]
        body.append([*cell, *shown, *("–" if error is None else f"{error:.1e}" for error in errors)])
    head = ["model", "batch"]
    for measure in measures:
        head += [f"ours ms ({title(measure)})", *(f"{peer} / ours" for peer in against)]
    lines = grid([*head, "relative RMS, ours", f"relative RMS, {against[0]}"], body) + [""]
    for measure, found in worst.items():
        if found:
            mean = math.exp(sum(map(math.log, found)) / len(found))
            faster = sum(ratio > 1 for ratio in found)
            lines.append(
                f"- {title(measure)}: faster than both in {faster} of {len(found)} cells measured of {len(body)}, against the "
                f"better of the two {mean:.2f} x in the geometric mean, {min(found):.2f} x at the least"
            )
    missing = [f"{model} {batch}: {results.reason((model, batch), ours)}" for model, batch in wanted
               if results.reason((model, batch), ours)]  # fmt: skip
    lines += ["", "Not measured, of ours: " + ("; ".join(missing) or "nothing") + "."]
    versioned = versions(kept.all_rows(folder))
    return "\n".join([*versioned, "", *lines]) + "\n"


def markdown(folder):
    rows, built, several = kept.all_rows(folder), kept.read(folder, "builds"), kept.read(folder, "streams")
    results = Results(rows)
    parts = [("What was used", versions(rows)), ("What must be", must(results)), ("Goals", goals(results))]
    parts += [(f"Time of the peer over ours ({title(measure)})", ratios(results, measure)) for measure in MEASURES]
    parts += [(f"Milliseconds ({title(measure)})", by_engine(results, measure, number)) for measure in MEASURES]
    errors = by_engine(results, "relative_rms", lambda value: "–" if value is None else f"{value:.1e}")
    parts.append(("Relative RMS of the outputs against eager fp32 without TF32", errors))
    memory = by_engine(results, "device_mib", lambda value: "–" if value is None else value)
    parts.append(("Device memory in MiB (ours: all it holds; peers: the allocator's peak while getting ready)", memory))
    ready = by_engine(results, "prepared_s", lambda value: number(value, 1))
    parts.append(("Seconds until a peer was ready", ready))
    parts.append(("Our engines: size and seconds until ready, import and start of the process included", builds(results, built)))
    parts.append(("Several streams", streams(several) if several else ["Not run."]))
    parts.append(("Not measured", not_measured(results)))
    missed = misses(results, built)
    parts.append(("Cells that miss something", ["None of those measured."] if not missed else []))
    for cell, why in missed.items():
        parts.append((f"{cell[0]}, batch {cell[1]}: misses", [*(f"- {reason}" for reason in why), "", *layers(results, cell)]))
    return "\n\n".join(f"### {name}\n\n" + "\n".join(lines) for name, lines in parts) + "\n"
