#!/usr/bin/env python3
"""The native CPU engine beside ONNX Runtime: same files, same inputs, same threads, in turns, in one run.

    native-vs-ort.py [--release] [--rounds N] [--threads 1,2] [--models a,b | --population [a,b]] [--quantized [a,b]]
                     [--results FILE] [--table FILE] [--layers N]

Builds the programs, writes the six architectures, builds both engines, times them in turns (who begins
alternates, a run that only warms the caches goes before each turn) and prints a Markdown table with the numerics,
builds, memory and winning tactics beside. Needs nothing but this workspace and a libonnxruntime
(PLANFORGE_ONNXRUNTIME, or where the backend finds it). ONNX Runtime's threads spin within a run and stop at its end,
as the backend runs them.

With --results every row is kept in that file, a line of JSON each, as soon as it is measured; a run that was broken
off goes on where it stopped, and rows of another commit are measured again. --table writes the table to a file.
--layers prints the native engine's slowest steps.

--population measures the networks of population.py instead, each of operators that are easily left slow, and says which
steps of the plan run by reference implementations and what share of the time they take. It needs onnx and numpy, in the
environment that target/onnx-venv holds, or in the one that runs this.

--quantized measures forms of the models as ONNX Runtime's quantizer writes them (qdq, qoperator, dynamic) in the place of
the models themselves. It needs onnxruntime in that environment too.
"""

import argparse
import collections
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BACKENDS = ("native", "onnxruntime")
MODELS = "resnet50,mobilenet-v3-large,efficientnet-b0,yolo-s,bert-base,vit-b-16"
# A turn takes about this long, so that short models are not all clock and wake-up.
TURN_MS = 60
TURN_RUNS = (2, 12)


class Server:
    """An engine in a process of its own."""

    def __init__(self, engine, plan, inputs, outputs):
        command = [engine, "serve", plan, inputs, outputs]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"{plan} did not start")

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def run(self, count):
        return [float(text) for text in self.ask(count).split()]

    def layers(self, runs):
        total = self.ask(f"layers {runs}")
        shown = int(total.rsplit(" ", 1)[1])
        return [total] + [self.process.stdout.readline().rstrip("\n") for _ in range(shown)]

    def references(self, runs):
        """The steps that run by reference implementations, and their share of the time."""
        steps = [line.split() for line in self.layers(runs)[1:]]
        slow = [words for words in steps if words[5].startswith("reference_")]
        total = sum(float(words[0]) for words in steps)
        names = collections.Counter(words[5].removeprefix("reference_") for words in slow)
        return dict(names), sum(float(words[0]) for words in slow) / max(total, 1e-9)

    def peak_mib(self):
        """Highest resident memory of the process: weights, activations, library and all."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def build(engine, backend, model, threads, folder, cache=None):
    words = [engine, "build", backend, model, threads, folder] + ([cache] if cache else [])
    return json.loads(output_of(*words))


def winners(planforge, plan):
    """How many steps of each kind each tactic won; without the sizes of its blocks."""
    wins = collections.defaultdict(collections.Counter)
    for step in json.loads(output_of(planforge, "inspect", "--json", plan))["steps"]:
        if step["tried"]:
            wins[step["kind"]][re.sub(r"\+[rck]\d+", "", step["kernel"])] += 1
    return {kind: dict(counter.most_common()) for kind, counter in sorted(wins.items())}


def measure(programs, model, threads, rounds, layers, work):
    planforge, engine = programs
    folders = {name: work / f"{model.stem}-{threads}-{name}" for name in BACKENDS}
    cache = work / f"{model.stem}-{threads}.cache"
    built = {name: build(engine, name, model, threads, folders[name], cache if name == "native" else None) for name in BACKENDS}
    warm = build(engine, "native", model, threads, work / "warm", cache)
    same = (work / "warm" / "engine.plan").read_bytes() == (folders["native"] / "engine.plan").read_bytes()
    inputs = work / "inputs.npz"
    output_of(engine, "inputs", model, inputs)
    outputs = {name: work / f"{name}.npz" for name in BACKENDS}
    servers = {name: Server(engine, folders[name] / "engine.plan", inputs, outputs[name]) for name in BACKENDS}
    samples = {name: [] for name in BACKENDS}
    slowest = max(min(server.run(3)) for server in servers.values())
    runs = min(max(round(TURN_MS / slowest), TURN_RUNS[0]), TURN_RUNS[1])
    for turn in range(rounds):
        for name in BACKENDS if turn % 2 == 0 else reversed(BACKENDS):
            servers[name].run(1)
            samples[name] += servers[name].run(runs)
    memory = {name: round(server.peak_mib(), 1) for name, server in servers.items()}
    references, share = servers["native"].references(5)
    if layers:
        print("\n".join(servers["native"].layers(9)[: layers + 1]), flush=True)
    for server in servers.values():
        server.close()
    apart = json.loads(output_of(engine, "numerics", model, outputs["native"], outputs["onnxruntime"]))
    median = {name: statistics.median(samples[name]) for name in BACKENDS}
    fastest = {name: min(samples[name]) for name in BACKENDS}
    return {
        "model": model.stem,
        "threads": threads,
        "runs": len(samples["native"]),
        "median_ms": median,
        "fastest_ms": fastest,
        "ratio_of_medians": median["native"] / median["onnxruntime"],
        "ratio_of_fastest": fastest["native"] / fastest["onnxruntime"],
        "peak_mib": memory,
        "cold_build_s": {name: built[name]["build_ms"] / 1e3 for name in BACKENDS},
        "warm_build_s": warm["build_ms"] / 1e3,
        "cold_tuning_s": built["native"]["facts"]["tuning_seconds"],
        "warm_tuning_s": warm["facts"]["tuning_seconds"],
        "warm_plan_is_the_same": same,
        "reference_steps": built["native"]["facts"]["reference_steps"],
        "reference_kinds": references,
        "reference_share": share,
        "tactics": winners(planforge, folders["native"] / "engine.plan"),
        "max_abs": max(output["max_error"] * output["scale"] for output in apart),
        "relative_rms_before_softmax": max(output["relative_rms"] for output in apart),
    }


COLUMNS = (
    "| model | threads | native ms | ONNX Runtime ms | ratio, median | ratio, fastest | peak MiB, native / ONNX Runtime "
    "| build s, native cold / warm / ONNX Runtime | tuning s, cold / warm | max abs | relative RMS before softmax |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(figures):
    both = lambda field, form: " / ".join(format(figures[field][name], form) for name in BACKENDS)
    cold = figures["cold_build_s"]
    cells = [
        figures["model"],
        str(figures["threads"]),
        f"{figures['median_ms']['native']:.2f}",
        f"{figures['median_ms']['onnxruntime']:.2f}",
        f"{figures['ratio_of_medians']:.2f}",
        f"{figures['ratio_of_fastest']:.2f}",
        both("peak_mib", ".0f"),
        f"{cold['native']:.1f} / {figures['warm_build_s']:.1f} / {cold['onnxruntime']:.1f}",
        f"{figures['cold_tuning_s']:.1f} / {figures['warm_tuning_s']:.2f}",
        f"{figures['max_abs']:.1e}",
        f"{figures['relative_rms_before_softmax']:.1e}",
    ]
    return "| " + " | ".join(cells) + " |"


POPULATION_COLUMNS = (
    "| model | threads | native ms | ONNX Runtime ms | ratio | steps by reference, and their share of the time | max abs |\n"
    "|---|---|---|---|---|---|---|"
)


def population_row(figures):
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(figures["reference_kinds"].items()))
    median = figures["median_ms"]
    cells = [
        figures["model"],
        str(figures["threads"]),
        f"{median['native']:.3f}",
        f"{median['onnxruntime']:.3f}",
        f"{figures['ratio_of_medians']:.2f}",
        f"{kinds}: {figures['reference_share']:.0%}" if kinds else "none",
        f"{figures['max_abs']:.1e}",
    ]
    return "| " + " | ".join(cells) + " |"


def summary(rows):
    ratios = [figures["ratio_of_medians"] for figures in rows]
    worst = max(rows, key=lambda figures: figures["ratio_of_medians"])
    return (
        f"{len(rows)} rows: geometric mean {statistics.geometric_mean(ratios):.2f}, median {statistics.median(ratios):.2f}, "
        f"above 1.5: {sum(ratio > 1.5 for ratio in ratios)}, largest {worst['ratio_of_medians']:.2f} ({worst['model']})"
    )


def population(names, work):
    """Writes the networks of population.py; their names."""
    own = ROOT / "target" / "onnx-venv" / "bin" / "python"
    python = own if own.exists() else sys.executable
    return output_of(python, ROOT / "tests" / "bench" / "population.py", work, *([names] if names else [])).split()


def quantized(planforge, names, forms, work):
    """Writes quantized forms of the named architectures; their names."""
    own = ROOT / "target" / "onnx-venv" / "bin" / "python"
    python = own if own.exists() else sys.executable
    written = []
    for name in names:
        model = work / f"{name}.onnx"
        output_of(planforge, "testmodel", name, "-o", model)
        script = ROOT / "tests" / "bench" / "quantized.py"
        written += output_of(python, script, model, work, *forms).splitlines()[-len(forms) :]
        model.unlink()
    return written


def tactics(rows):
    """The steps that each tactic won, over all rows of one number of threads."""
    wins = collections.defaultdict(collections.Counter)
    for figures in rows:
        for kind, counts in figures["tactics"].items():
            wins[figures["threads"], kind].update(counts)
    lines = ["| threads | kind of step | steps won by each tactic |", "|---|---|---|"]
    for (threads, kind), counter in sorted(wins.items()):
        lines.append(f"| {threads} | {kind} | " + ", ".join(f"{name} {count}" for name, count in counter.most_common()) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--models", default=MODELS, help="names that `planforge testmodel --list` shows")
    parser.add_argument("--population", nargs="?", const="", help="the networks of population.py, or some by name")
    parser.add_argument("--quantized", nargs="?", const="qdq,qoperator,dynamic", help="forms of the models instead")
    parser.add_argument("--release", action="store_true", help="build with the release profile")
    parser.add_argument("--results", type=pathlib.Path, help="keep rows here, and take those of this commit from here")
    parser.add_argument("--table", type=pathlib.Path, help="write the tables here too")
    parser.add_argument("--layers", type=int, default=0, metavar="N", help="print the N slowest native steps")
    arguments = parser.parse_args()
    profile = ["--release"] if arguments.release else []
    cargo = ["cargo", "build", "--quiet", "--manifest-path", ROOT / "Cargo.toml", *profile]
    output_of(*cargo, "--package", "planforge")
    output_of(*cargo, "--package", "planforge-onnxruntime", "--example", "engine")
    target = ROOT / "target" / ("release" if arguments.release else "debug")
    planforge, engine = target / "planforge", target / "examples" / "engine"
    commit = output_of("git", "-C", ROOT, "describe", "--always", "--dirty").strip()
    known = {}
    if arguments.results and arguments.results.exists():
        rows = map(json.loads, arguments.results.read_text().splitlines())
        known = {(figures["model"], figures["threads"]): figures for figures in rows if figures["commit"] == commit}
    small = arguments.population is not None
    columns, line = (POPULATION_COLUMNS, population_row) if small else (COLUMNS, row)
    print(columns, flush=True)
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        names = population(arguments.population, work) if small else arguments.models.split(",")
        if arguments.quantized:
            names = quantized(planforge, names, arguments.quantized.split(","), work)
        for name in names:
            model = work / f"{name}.onnx"
            for threads in map(int, arguments.threads.split(",")):
                figures = known.get((name, threads))
                if figures is None:
                    if not model.exists():
                        output_of(planforge, "testmodel", name, "-o", model)
                    figures = measure((planforge, engine), model, threads, arguments.rounds, arguments.layers, work)
                    figures["commit"] = commit
                    if arguments.results:
                        arguments.results.parent.mkdir(parents=True, exist_ok=True)
                        with arguments.results.open("a") as file:
                            file.write(json.dumps(figures) + "\n")
                measured.append(figures)
                print(line(figures), flush=True)
            model.unlink(missing_ok=True)
    end = summary(measured) if small else tactics(measured)
    print("\n" + end)
    if arguments.table:
        arguments.table.parent.mkdir(parents=True, exist_ok=True)
        arguments.table.write_text("\n".join([columns, *map(line, measured), "", end, ""]))
    if not arguments.results:
        print("\n".join(json.dumps(figures) for figures in measured))


if __name__ == "__main__":
    main()
