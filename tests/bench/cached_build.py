#!/usr/bin/env python3
"""Wall time of `planforge build` for an engine that is already stored, beside the cold build and the fsync rate.

    cargo build --release && tests/bench/cached_build.py --planforge target/release/planforge [--rounds 30]

Prints one row a model: cold build (s, whole command), then minimum, median and maximum of the cached builds (ms), taken
in turns over the models so that a busy minute hits all of them.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time


def fsyncs_per_s(folder, seconds=1.0):
    with open(folder / "fsync", "wb") as file:
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - begin)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--planforge", required=True)
    arguments.add_argument("--rounds", type=int, default=30)
    arguments.add_argument("--models", default="digits,resnet50,bert-base")
    arguments.add_argument("--threads", default="2")
    given = arguments.parse_args()
    planforge = pathlib.Path(given.planforge).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {**os.environ, "HOME": name, "XDG_DATA_HOME": name}
        run = lambda *words: subprocess.run(
            [planforge, *words], cwd=folder, env=environment, check=True, capture_output=True, text=True
        ).stdout
        rows = {}
        for model in given.models.split(","):
            run("testmodel", model, "-o", f"{model}.onnx")
        time.sleep(3)  # files younger than two seconds are hashed again
        for model in given.models.split(","):
            begin = time.perf_counter()
            jobs = json.loads(run("build", f"{model}.onnx", "--threads", given.threads, "--json"))["jobs"]
            rows[model] = {"cold_s": time.perf_counter() - begin, "build_ms": jobs[0]["report"].get("build_ms"), "ms": []}
        for _ in range(given.rounds):
            for model, row in rows.items():
                begin = time.perf_counter()
                jobs = json.loads(run("build", f"{model}.onnx", "--threads", given.threads, "--json"))["jobs"]
                row["ms"].append((time.perf_counter() - begin) * 1e3)
                assert jobs[0]["cached"], jobs
        print(f"fsync {fsyncs_per_s(folder):.0f}/s")
        for model, row in rows.items():
            ms = row["ms"]
            print(
                f"{model}: cold {row['cold_s']:.1f} s (phases {json.dumps(row['build_ms'])}); "
                f"cached {min(ms):.1f} / {statistics.median(ms):.1f} / {max(ms):.1f} ms min/median/max of {len(ms)}"
            )


if __name__ == "__main__":
    main()
