#!/usr/bin/env python3
"""Runs what README.md says to type, as it stands there, and holds what is printed against what stands below it.

    readme.py [--write] [--readme FILE] [--only WORD]

Blocks whose fence says `tried` (```sh tried, ```console tried) are run in their order in one shell, in the folder where
this is started: that is meant to be a fresh root, or a fresh HOME, with nothing of Planforge in it but the wheel and
`examples/`. In a console block, lines that begin with `$ ` are commands, and what stands between them is what they print;
in a shell block, every line is a command. A command has to succeed, or to end with the exit code that its comment names
(`exit code 1: ...`). JOB stands for the newest job, 127.0.0.1:7400 for an address that is free.

Numbers, digests, names of this machine and the like differ from run to run: they are compared by what they are (`normal`).
With --write, the samples are written anew from what was printed. Needs Python alone.
"""

import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

PORT = "7400"
# Longest that one command may take, in seconds; a loaded machine included.
LIMIT_S = 300
MARK = "--- readme.py: command ended with "


class Failure(Exception):
    """What went wrong, for people."""


def blocks(text):
    """Each tried block: (its first line's number, kind, list of [command, sample lines])."""
    found, lines, at = [], text.split("\n"), 0
    while at < len(lines):
        fence = re.fullmatch(r"```(sh|console) tried", lines[at])
        at += 1
        if not fence:
            continue
        first, entries = at, []
        while lines[at] != "```":
            line = lines[at]
            if fence[1] == "sh" or line.startswith("$ "):
                entries.append([line.removeprefix("$ "), []])
            else:
                entries[-1][1].append(line)
            at += 1
        found.append((first, fence[1], entries))
    return found


class Shell:
    """One shell, fed a command at a time; what it writes to stdout, and its errors apart."""

    def __init__(self, errors):
        self.errors = errors
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        self.lines, self.changed = [], threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.lines.append(MARK + "a closed shell")
            self.changed.notify_all()

    def run(self, command):
        """What the command printed, and its exit code; of one in the background, once it has fallen silent."""
        self.process.stdin.write(f"{command}\necho '{MARK}'$?\n".encode())
        self.process.stdin.flush()
        deadline = time.monotonic() + LIMIT_S
        with self.changed:
            ended = lambda: next((line for line in self.lines if line.startswith(MARK)), None)
            while ended() is None:
                if not self.changed.wait(deadline - time.monotonic()):
                    raise Failure(f"`{command}` goes on after {LIMIT_S} s")
            end = ended()
            if command.rstrip().endswith("&"):
                # Its words come when it is ready, and then no more.
                while not self.words() or self.changed.wait(2):
                    if time.monotonic() > deadline:
                        raise Failure(f"`{command}` says nothing for {LIMIT_S} s")
                    if not self.words():
                        self.changed.wait(1)
            words = self.words()
            self.lines.clear()
        code = end.removeprefix(MARK)
        if not code.isdigit():
            raise Failure(f"`{command}` ended the shell")
        return words, int(code)

    def words(self):
        return [line for line in self.lines if not line.startswith(MARK)]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def told(line, port):
    """A line as the page shows it: in nobody's folders, on no machine in particular."""
    home = os.environ.get("HOME", "/nowhere")
    for own, shown in [(home, "/home/me"), (os.getcwd(), "/home/me/here"), (f":{port}", f":{PORT}")]:
        line = line.replace(own, shown)
    host, shown = socket.gethostname(), "host"

    def renamed(found):
        # Columns stay where they are, if there is room.
        blanks = len(found[1]) + len(host) - len(shown)
        return shown + (" " * blanks if blanks >= 2 else found[1])

    return re.sub(rf"(?<![\w./-]){re.escape(host)}(?![\w.-])( *)", renamed, line).rstrip()


# Lines whose number and order are the machine's or the moment's.
MANY = ("layer", "finding", "*")
# Lines of a report whose words depend on how quiet the machine is, or on what else is installed: that they are there counts.
LABELS = r"(engine|device|latency|spread|throughput|samples|size|energy|build|outputs|ceilings)\s{2,}.*"
# A row of `planforge devices`, up to its state: names of the machine.
DEVICE = r".*?(?=(?:idle|busy|offline).*--sku )"


def normal(lines):
    """What has to be the same in the page and in a run: words, names of columns, what kind of thing stands where."""
    found = []
    for line in lines:
        if line.startswith(MANY) or line == "...":
            continue
        line = re.sub(LABELS, r"\1", line.replace("*", ""))
        line = re.sub(DEVICE, "DEVICE ", line, count=1)
        for pattern, name in [
            (r"\bonce=[0-9a-zA-Z_-]+(?:\.\.\.)?", "once=SECRET"),
            (r"\b[0-9a-f]{12,64}\b", "DIGEST"),
            (r"^[0-9a-z]{12}(?= {2,})|(?<=/jobs/)[0-9a-z]{12}\b", "JOB"),
            (r"cpu-[a-z0-9-]+", "SKU"),
            (r"\d{4}-\d{2}-\d{2}", "DATE"),
            (r"±?\d[\d.,e+-]*\s?(?:ms|us|ns|s|m|h|d|%|/s|KiB|MiB|GiB|bytes|GB/s|GFLOP/s|TFLOP/s)?(?![A-Za-z])", "N"),
            (r"(?:N){2,}", "N"),
        ]:
            line = re.sub(pattern, name, line)
        line = re.sub(r"\s+", " ", line).strip()
        # A processor whose best level is one that README names later has built for it already.
        line = line.replace("SKU cached N - ", "SKU succeeded N N ").replace("SKU cached ", "SKU succeeded ")
        # Many devices, many levels: each like the one before.
        if not found or found[-1] != line:
            found.append(line)
    return found


def allowed(command):
    """Exit codes that a command may have."""
    return {0} | {int(code) for code in re.findall(r"#.*exit code (\d+)", command)}


def short(lines):
    """What of many lines the page shows: the first layers, no findings."""
    kept, layers = [], 0
    for line in lines:
        layers += line.startswith("layer")
        if line.startswith("finding") or (line.startswith("layer") and layers > 3):
            continue
        if line.startswith("layer") and layers == 3:
            line = "..."
        kept.append(line)
    return kept


def newest_job(shell):
    words, _ = shell.run("planforge jobs --limit 1 --json")
    found = re.search(r'"id": "([0-9a-z]+)"', "\n".join(words))
    if not found:
        raise Failure("JOB is named, but there is no job")
    return found[1]


def try_all(text, write, only, errors):
    """Runs every tried block; the text with samples anew, and what was wrong."""
    port, wrong, count = free_port(), [], 0
    lines, shifted = text.split("\n"), 0
    shell = Shell(errors)
    for first, kind, entries in blocks(text):
        anew = []
        for command, sample in entries:
            if only and only not in command:
                continue
            typed = command.replace(f":{PORT}", f":{port}")
            if re.search(r"\bJOB\b", typed.split("#")[0]):
                typed = re.sub(r"\bJOB\b", newest_job(shell), typed)
            words, code = shell.run(typed)
            count += 1
            words = [told(line, port) for line in words]
            if code not in allowed(command):
                errors.flush()
                wrong.append(f"`{command}` ended with exit code {code}")
            if kind == "console" and not write and normal(words) != normal(sample):
                wrong.append(
                    f"`{command}` does not print what README.md says:\n"
                    + "\n".join(f"  printed  {line}" for line in normal(words))
                    + "\n"
                    + "\n".join(f"  README   {line}" for line in normal(sample))
                )
            anew += [f"$ {command}", *short(words)]
        if write and kind == "console":
            length = sum(1 + len(sample) for _, sample in entries)
            lines[first + shifted : first + shifted + length] = anew
            shifted += len(anew) - length
    shell.close()
    if not count:
        wrong.append("nothing was tried")
    return "\n".join(lines), wrong, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "README.md")
    parser.add_argument("--write", action="store_true", help="write the samples anew")
    parser.add_argument("--only", help="only commands that hold this word")
    given = parser.parse_args()
    log = pathlib.Path("readme-errors.log")
    with log.open("w+b") as errors:
        try:
            text, wrong, count = try_all(given.readme.read_text(), given.write, given.only, errors)
        except Failure as failure:
            text, wrong, count = None, [str(failure)], 0
    if wrong:
        tail = log.read_text(errors="replace").splitlines()[-40:]
        sys.exit("readme.py: " + "\n".join(wrong) + "\nreadme.py: the end of what was said on stderr:\n" + "\n".join(tail))
    if given.write:
        given.readme.write_text(text)
    print(f"readme.py: {count} commands do what README.md says")


if __name__ == "__main__":
    main()
