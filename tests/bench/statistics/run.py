#!/usr/bin/env python3
"""Pairs of separate processes that measure one engine on one device: how often verdicts and gates are wrong.

    run.py PLAN --results FILE [--pairs N] [--slower PERCENT] [--seconds S] [--budget-s S] [--statistics PROGRAM]
           [--keep FOLDER]
    run.py --summary FILE
    run.py --judge FOLDER --results FILE

Every pair is two processes of its own, of which none is used twice; which of the two goes first alternates. With
--slower the second side really takes that much longer (see cli/examples/statistics.rs). Each pair is a line of JSON in
--results, written as soon as it is measured. A call ends before --seconds are over, and the next one goes on behind the
last line until there are --pairs of this plan, slowdown and budget. At its end, and with --summary alone, the counts
are printed with their 95 % bounds (Clopper and Pearson, The Use of Confidence or Fiducial Limits, 1934).

--keep stores the two reports of every pair, so that --judge can say what another version makes of the same ones.

Builds the program with `cargo build --release -p planforge-cli --example statistics` unless --statistics names it.
"""

import argparse
import collections
import hashlib
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
TAIL = 0.025


def at_most(count, trials, share):
    """How probable `count` or fewer of `trials` are where each happens with `share`."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return 1.0 if count >= trials else 0.0
    log = lambda k: (
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(share) + (trials - k) * math.log1p(-share)
    )
    return sum(math.exp(log(k)) for k in range(count + 1))


def bisect(falls):
    """Where a function of a share, which falls, passes zero."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falls(middle) > 0 else (low, middle)
    return (low + high) / 2


def bounds(count, trials):
    low = 0.0 if count == 0 else bisect(lambda share: TAIL - (1 - at_most(count - 1, trials, share)))
    high = 1.0 if count == trials else bisect(lambda share: at_most(count, trials, share) - TAIL)
    return low, high


def told(name, count, trials):
    low, high = bounds(count, trials)
    return f"  {name:<34} {count:4} of {trials:4}  {100 * count / trials:5.1f} %  ({100 * low:.1f} to {100 * high:.1f} %)"


def lines_of(path):
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def key_of(line):
    return line["plan"], line["slower_percent"], line["budget_s"]


def summary(lines):
    groups = collections.defaultdict(list)
    for line in lines:
        groups[key_of(line)].append(line)
    for (plan, slower, budget_s), found in sorted(groups.items()):
        print(f"plan {plan}, {slower:g} % slower, budget {budget_s} s: {len(found)} pairs")
        quiet = [line for line in found if all(side["tainted"] == 0 for side in line["sides"])]
        for name, some in (("all", found), ("no window disturbed", quiet)):
            if not some:
                continue
            print(f" {name}:")
            verdicts = collections.Counter(line["verdict"] for line in some)
            for verdict, count in sorted(verdicts.items()):
                print(told(verdict, count, len(some)))
            if slower == 0:
                wrong = verdicts["faster"] + verdicts["slower"]
                print(told("false verdicts", wrong, len(some)))
            else:
                held = sum(1 for line in some if covers(line, 1 + slower / 100))
                print(told("interval holds the slowdown", held, len(some)))
            for allowed in some[0]["gates"]:
                outcomes = collections.Counter(line["gates"][allowed] for line in some)
                # Slower by more than is allowed: to pass is wrong. By less: to fail is. By as much: neither.
                error = "passed" if slower > float(allowed) else "failed"
                if slower != float(allowed):
                    print(told(f"gate {allowed} %: wrongly {error}", outcomes[error], len(some)))
                print(told(f"gate {allowed} %: undecided", outcomes["undecided"], len(some)))
            spent = sum(side["elapsed_ms"] for line in some for side in line["sides"]) / 2e3 / len(some)
            print(f"  {spent:.2f} s a measurement")


def covers(line, ratio):
    return line["low"] is not None and line["high"] is not None and line["low"] <= ratio <= line["high"]


def program():
    command = ["cargo", "build", "--release", "-p", "planforge-cli", "--example", "statistics"]
    subprocess.run(command, check=True, cwd=ROOT)
    return ROOT / "target/release/examples/statistics"


def pair(statistics, plan, slower, budget_s, index, folder):
    sides = [(folder / "base.json", 0), (folder / "other.json", slower)]
    for report, percent in sides if index % 2 == 0 else sides[::-1]:
        words = [statistics, "measure", plan, report, percent, budget_s]
        done = subprocess.run([str(word) for word in words], stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"a measurement failed: {done.stderr.strip()}")
    return judge(statistics, folder)


def judge(statistics, folder):
    words = [str(statistics), "judge", str(folder / "base.json"), str(folder / "other.json")]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


def judge_again(statistics, kept, results):
    """What `statistics` says of pairs that --keep stored, in a file of results of its own."""
    with open(results, "w") as file:
        for folder in sorted(path.parent for path in kept.glob("*/own.json")):
            own = json.loads((folder / "own.json").read_text())
            file.write(json.dumps({**own, **judge(statistics, folder)}) + "\n")
    summary(lines_of(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--slower", type=float, default=0.0, metavar="PERCENT")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--budget-s", type=int, default=2)
    parser.add_argument("--statistics", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--summary", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--judge", type=pathlib.Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.summary:
        summary(lines_of(args.summary))
        return
    if args.judge and args.results:
        judge_again(args.statistics.resolve() if args.statistics else program(), args.judge, args.results)
        return
    if not args.plan or not args.results:
        parser.error("a plan and --results are needed")
    began = time.monotonic()
    statistics = args.statistics.resolve() if args.statistics else program()
    name = hashlib.sha256(args.plan.read_bytes()).hexdigest()[:12]
    own = {"plan": name, "slower_percent": args.slower, "budget_s": args.budget_s}
    done = sum(1 for line in lines_of(args.results) if key_of(line) == key_of(own))
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder, open(args.results, "a") as results:
        while done < args.pairs:
            from_s = time.monotonic()
            if from_s - began + 1.5 * longest > args.seconds:
                print(f"{done} of {args.pairs} pairs; the same call goes on", file=sys.stderr)
                break
            line = pair(statistics, args.plan, args.slower, args.budget_s, done, pathlib.Path(folder))
            results.write(json.dumps({**own, "unix_s": round(time.time()), **line}) + "\n")
            results.flush()
            if args.keep:
                kept = args.keep / f"{name}-{args.slower:g}-{done:04}"
                shutil.copytree(folder, kept, dirs_exist_ok=True)
                (kept / "own.json").write_text(json.dumps(own))
            done += 1
            longest = max(longest, time.monotonic() - from_s)
    summary([line for line in lines_of(args.results) if key_of(line) == key_of(own)])


if __name__ == "__main__":
    main()
