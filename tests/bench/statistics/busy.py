#!/usr/bin/env python3
"""Keeps cores busy now and then, as neighbours on a shared machine do.

    busy.py SHARE CORE [CORE ...]

On every core named one process works for a while and rests for a while, both drawn from an exponential distribution;
works last 120 ms in the mean, and rests so much longer that SHARE of the time is work. It goes on until it is ended.
"""

import os
import random
import sys
import time

WORK_S = 0.12


def neighbour(core, share):
    os.sched_setaffinity(0, {core})
    chance = random.Random(core)
    while os.getppid() != 1:
        until = time.monotonic() + chance.expovariate(1 / WORK_S)
        while time.monotonic() < until:
            pass
        time.sleep(chance.expovariate(share / (1 - share) / WORK_S))


def main():
    share, cores = float(sys.argv[1]), [int(core) for core in sys.argv[2:]]
    for core in cores:
        if os.fork() == 0:
            neighbour(core, share)
            os._exit(0)
    for _ in cores:
        os.wait()


if __name__ == "__main__":
    main()
