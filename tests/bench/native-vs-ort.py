#!/usr/bin/env python3
"""The native CPU engine beside ONNX Runtime: same files, same inputs, same threads, in turns, in one run.

    native-vs-ort.py [--rounds N] [--threads 1,2] [--models a,b] [--release]

Builds the programs, writes every fixed-shape fp32 model, builds both engines, times them in turns (who begins
alternates, a run that only warms the caches goes before each pair) and prints a table and one line of JSON per row.
Needs nothing but this workspace and a libonnxruntime (PLANFORGE_ONNXRUNTIME, or where the backend finds it). ONNX
Runtime's threads spin within a run and stop at its end, as the backend runs them.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BACKENDS = ("native", "onnxruntime")


class Server:
    """An engine in a process of its own."""

    def __init__(self, engine, plan, inputs, outputs):
        command = [engine, "serve", plan, inputs, outputs]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"{plan} did not start")

    def run(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return [float(text) for text in self.process.stdout.readline().split()]

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


def tuning_ms(built):
    return sum(ms for phase, ms in built["phases_ms"].items() if "tun" in phase or "tactic" in phase)


def measure(engine, model, threads, rounds, work):
    folders = {name: work / f"{model.stem}-{threads}-{name}" for name in BACKENDS}
    cache = work / f"{model.stem}-{threads}.cache"
    built = {name: build(engine, name, model, threads, folders[name], cache if name == "native" else None) for name in BACKENDS}
    warm = build(engine, "native", model, threads, work / "warm", cache)
    inputs = work / "inputs.npz"
    output_of(engine, "inputs", model, inputs)
    outputs = {name: work / f"{name}.npz" for name in BACKENDS}
    servers = {name: Server(engine, folders[name] / "engine.plan", inputs, outputs[name]) for name in BACKENDS}
    samples = {name: [] for name in BACKENDS}
    for server in servers.values():
        server.run(3)
    for turn in range(rounds):
        for name in BACKENDS if turn % 2 == 0 else reversed(BACKENDS):
            servers[name].run(1)
            samples[name] += servers[name].run(2)
    memory = {name: round(server.peak_mib(), 1) for name, server in servers.items()}
    for server in servers.values():
        server.close()
    apart = json.loads(output_of(engine, "numerics", model, outputs["native"], outputs["onnxruntime"]))
    median = {name: statistics.median(samples[name]) for name in BACKENDS}
    fastest = {name: min(samples[name]) for name in BACKENDS}
    cold_tuning = tuning_ms(built["native"])
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
        "warm_tuning_share": tuning_ms(warm) / cold_tuning if cold_tuning else None,
        "max_abs": max(output["max_error"] * output["scale"] for output in apart),
        "relative_rms_before_softmax": max(output["relative_rms"] for output in apart),
    }


COLUMNS = (
    "| model | threads | native ms | ONNX Runtime ms | ratio, median | ratio, fastest | peak MiB, native / ONNX Runtime "
    "| build s, native cold / warm / ONNX Runtime | warm tuning | max abs | relative RMS before softmax |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(figures):
    both = lambda field, form: " / ".join(format(figures[field][name], form) for name in BACKENDS)
    share = figures["warm_tuning_share"]
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
        "-" if share is None else f"{share:.1%}",
        f"{figures['max_abs']:.1e}",
        f"{figures['relative_rms_before_softmax']:.1e}",
    ]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--models", default="", help="all that `planforge testmodel --list` shows by default")
    parser.add_argument("--release", action="store_true", help="build with the release profile")
    arguments = parser.parse_args()
    profile = ["--release"] if arguments.release else []
    cargo = ["cargo", "build", "--quiet", "--manifest-path", ROOT / "Cargo.toml", *profile]
    output_of(*cargo, "--package", "planforge")
    output_of(*cargo, "--package", "planforge-onnxruntime", "--example", "engine")
    target = ROOT / "target" / ("release" if arguments.release else "debug")
    planforge, engine = target / "planforge", target / "examples" / "engine"
    models = arguments.models.split(",") if arguments.models else output_of(planforge, "testmodel", "--list").split()
    print(COLUMNS, flush=True)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name in models:
            model = work / f"{name}.onnx"
            output_of(planforge, "testmodel", name, "-o", model)
            for threads in arguments.threads.split(","):
                figures = measure(engine, model, int(threads), arguments.rounds, work)
                print(row(figures), flush=True)
                lines.append(json.dumps(figures))
            model.unlink()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
