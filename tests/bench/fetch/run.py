#!/usr/bin/env python3
"""`planforge fetch` of a project's engines beside nginx, curl, sha256sum and sync, in turns in one run.

    tests/bench/fetch/run.py --planforge target/release/planforge [--rounds 7] [--dir FOLDER]

A project of ten engines (ResNet-50 and digits on one CPU level, at several batches) is synced with a coordinator of this
machine. Then, in turns: `planforge fetch` into an empty folder with nothing remembered; and the same plans as files of
nginx, by `curl --parallel`, held against their digests by `sha256sum --check`, and made durable by `sync`. Last, `fetch`
where every engine is here already, as whole processes.

Prints one JSON object: seconds and milliseconds of each round, medians, the ratio. Needs nginx and curl.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "blobs"))
import run as blobs  # noqa: E402

UNCHANGED_ROUNDS = 50
SKU = "cpu-x86-64-v3"
# Name, model and how many images: plans of 100 MiB and of some.
MODELS = [(f"resnet50-{batch}", "resnet50", batch) for batch in (1, 2, 3, 4)]
MODELS += [(f"digits-{batch}", "digits", batch) for batch in range(1, 7)]


def timed(words, **more):
    begin = time.perf_counter()
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **more)
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr.strip()}")
    return seconds


def project(folder, binary, environment):
    """A synced project; its folder."""
    home = folder / "project"
    home.mkdir()
    lines = [f'targets = ["{SKU}"]\n', '[specs.default]\noptimization_level = 0\nthreads = 1\n']
    for name, model, batch in MODELS:
        timed([binary, "testmodel", model, "--batch", str(batch), "-o", home / f"{name}.onnx"], env=environment)
        lines.append(f'[models.{name}]\npath = "{name}.onnx"\n')
    (home / "planforge.toml").write_text("\n".join(lines))
    timed([binary, "sync"], cwd=home, env=environment)
    return home


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planforge", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", help="where the data lies; a temporary folder by default")
    given = parser.parse_args()
    binary = given.planforge.resolve()
    missing = [name for name in ("nginx", "curl") if not shutil.which(name)]
    if missing:
        sys.exit(f"{' and '.join(missing)} not installed")
    folder, children = pathlib.Path(tempfile.mkdtemp(dir=given.dir)), []
    try:
        print(json.dumps(measure(given, binary, folder, children), indent=1))
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
        shutil.rmtree(folder, ignore_errors=True)


def measure(given, binary, folder, children):
    port = blobs.free_port()
    environment = {**os.environ, "HOME": str(folder), "PLANFORGE_DATA": str(folder / "client"), "NO_COLOR": "1"}
    up = {**environment, "PLANFORGE_DATA": str(folder / "farm")}
    with open(folder / "up.log", "wb") as log:
        words = [binary, "up", "--listen", f"127.0.0.1:{port}"]
        children.append(subprocess.Popen(words, stdout=log, stderr=log, env=up))
    blobs.wait_for("the coordinator", lambda: blobs.listens(port))
    environment["PLANFORGE_SERVER"] = f"http://127.0.0.1:{port}"
    environment["PLANFORGE_TOKEN"] = (folder / "farm" / "admin.token").read_text().strip()
    home = project(folder, binary, environment)

    fetch = [binary, "fetch", "--sku", SKU]
    timed(fetch, cwd=home, env=environment)
    plans = sorted((home / "engines").rglob("*.plan"))
    served = folder / "www"
    served.mkdir()
    sums, urls, nginx = [], [], blobs.start_nginx(folder, children)
    for plan in plans:
        name = str(plan.relative_to(home / "engines")).replace("/", "-")
        shutil.copy(plan, served / name)
        sums.append(subprocess.check_output(["sha256sum", name], cwd=served, text=True))
        urls.append(f"http://127.0.0.1:{nginx}/{name}")
    theirs = folder / "theirs"
    (folder / "SHA256SUMS").write_text("".join(sums))
    # As a pipeline would, in one shell. Four at once, as many as ours.
    script = (
        f"cd {theirs} && curl --silent --show-error --fail --parallel --parallel-max 4 --remote-name-all {' '.join(urls)}"
        f" && sha256sum --quiet --check {folder}/SHA256SUMS && sync *"
    )

    def ours():
        shutil.rmtree(home / "engines")
        shutil.rmtree(folder / "client")
        return timed(fetch, cwd=home, env=environment)

    def peer():
        shutil.rmtree(theirs, ignore_errors=True)
        theirs.mkdir()
        return timed(["sh", "-c", script])

    rounds = {"planforge": [], "curl": []}
    for number in range(given.rounds):
        pair = [("planforge", ours), ("curl", peer)]
        for name, one in pair if number % 2 == 0 else pair[::-1]:
            rounds[name].append(round(one(), 4))
    unchanged = sorted(timed(fetch, cwd=home, env=environment) * 1e3 for _ in range(UNCHANGED_ROUNDS))
    ratios = sorted(curl / own for own, curl in zip(rounds["planforge"], rounds["curl"]))
    return {
        "engines": len(plans),
        "mib": round(sum(plan.stat().st_size for plan in plans) / 2**20, 1),
        "seconds": rounds,
        "rate_over_curl_median": round(statistics.median(ratios), 3),
        "rate_over_curl": [round(ratio, 3) for ratio in ratios],
        "unchanged_ms": {
            "median": round(statistics.median(unchanged), 2),
            "max": round(unchanged[-1], 2),
        },
    }


if __name__ == "__main__":
    main()
