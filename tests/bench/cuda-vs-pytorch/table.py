"""Rows of measurements as Markdown: how much faster ours is first, then the times behind it."""

OURS = "planforge-fp16"
ORDER = (OURS, "eager-fp32", "eager-fp32-no-tf32", "eager-fp16", "graph-fp16", "reduce-overhead", "max-autotune")
MEASURES = ("static_call_ms", "rotated_call_ms", "static_queued_ms", "rotated_queued_ms")


def _number(value, digits):
    return "–" if value is None else f"{value:.{digits}f}"


def _cells(rows):
    cells = {}
    for row in rows:
        cells.setdefault((row["model"], row["batch"]), {})[row["engine"]] = row
    return cells


def markdown(rows):
    cells = _cells(rows)
    engines = [name for name in ORDER if any(name in cell for cell in cells.values())]
    lines = []
    for measure in MEASURES:
        lines += ["", f"### Time of the peer over ours, {measure.removesuffix('_ms').replace('_', ', ')}", ""]
        peers = [name for name in engines if name != OURS]
        lines += ["| model | batch | ours ms | " + " | ".join(peers) + " |", "|---" * (3 + len(peers)) + "|"]
        for (model, batch), cell in cells.items():
            ours = cell.get(OURS, {}).get(measure)
            ratio = {name: cell[name][measure] / ours for name in peers if ours and measure in cell.get(name, {})}
            shown = " | ".join(_number(ratio.get(name), 2) for name in peers)
            lines.append(f"| {model} | {batch} | {_number(ours, 3)} | {shown} |")
    for measure in MEASURES:
        lines += ["", f"### Milliseconds, {measure.removesuffix('_ms').replace('_', ', ')}", ""]
        lines += ["| model | batch | " + " | ".join(engines) + " |", "|---" * (2 + len(engines)) + "|"]
        for (model, batch), cell in cells.items():
            shown = " | ".join(_number(cell.get(name, {}).get(measure), 3) for name in engines)
            lines.append(f"| {model} | {batch} | {shown} |")
    lines += ["", "### Relative RMS of the outputs against eager fp32 without TF32", ""]
    lines += ["| model | batch | " + " | ".join(engines) + " |", "|---" * (2 + len(engines)) + "|"]
    for (model, batch), cell in cells.items():
        errors = [cell.get(name, {}).get("relative_rms") for name in engines]
        shown = " | ".join("–" if error is None else f"{error:.1e}" for error in errors)
        lines.append(f"| {model} | {batch} | {shown} |")
    return "\n".join(lines) + "\n"
