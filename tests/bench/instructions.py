#!/usr/bin/env python3
"""Counts the instructions that two builds of the example `count` take for the same work.

    instructions.py BEFORE AFTER run:PLAN load:PLAN import:MODEL ...

BEFORE and AFTER are the example's binaries (`cargo build --release --locked -p planforge-cpu --example count`), the
latter perhaps of another tree or profile. Counted by valgrind's callgrind on one thread: what one time more takes, so
that starting up is in no figure. Valgrind knows instructions up to AVX2, so plans must be for cpu-x86-64-v3 or below.
"""

import re
import subprocess
import sys
import tempfile

FEW, MORE = 1, 3


def counted(binary, what, path, times):
    with tempfile.NamedTemporaryFile() as out:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}"]
        ran = subprocess.run([*command, binary, what, path, str(times)], capture_output=True, text=True)
        found = re.search(r"Collected : (\d+)", ran.stderr)
        if ran.returncode or not found:
            sys.exit(f"{binary} {what} {path} {times} ended with {ran.returncode}:\n{ran.stderr}")
        return int(found[1])


def main():
    if len(sys.argv) < 4 or not all(":" in work for work in sys.argv[3:]):
        sys.exit(__doc__)
    before, after = sys.argv[1:3]
    print(f"{'':44} {'before':>16} {'after':>16} {'ratio':>9}", flush=True)
    for work in sys.argv[3:]:
        what, path = work.split(":", 1)
        each = [
            (counted(binary, what, path, MORE) - counted(binary, what, path, FEW)) / (MORE - FEW)
            for binary in (before, after)
        ]
        name = f"{what} {path.rsplit('/', 1)[-1]}"
        print(f"{name:44} {each[0]:16,.0f} {each[1]:16,.0f} {each[1] / each[0]:9.4f}", flush=True)


main()
