"""Time limits on what runs in this process, and the seconds that each part took."""

import contextlib
import signal
import sys
import time

BEGAN = time.monotonic()
# A step or a cell that would get less is left for the next command.
SHORTEST_S = 20
# The alarm rings again, in case what it interrupts caught it.
AGAIN_S = 10


class OutOfTime(BaseException):
    """No `Exception`: those are swallowed by compilers that try one candidate after the other."""


def log(*words):
    print(f"[{time.monotonic() - BEGAN:6.1f} s]", *words, file=sys.stderr, flush=True)


def seconds_left(seconds):
    """Of so many seconds for the whole command; `None` is no limit."""
    return float("inf") if seconds is None else seconds - (time.monotonic() - BEGAN)


@contextlib.contextmanager
def limit(seconds, what):
    """Raises OutOfTime in here when `seconds` are over. Not to be nested; for the main thread."""

    def ring(*_):
        raise OutOfTime(f"{what} did not end within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01), AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Deadline:
    """A moment that several parts share."""

    def __init__(self, seconds):
        self.seconds, self.at = seconds, time.monotonic() + seconds

    def left(self):
        return self.at - time.monotonic()


class Parts:
    """Seconds by part, in the order begun."""

    def __init__(self):
        self.seconds = {}

    @contextlib.contextmanager
    def part(self, name):
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + took

    def text(self):
        rows = [f"  {took:7.1f} s  {name}" for name, took in self.seconds.items()]
        whole = time.monotonic() - BEGAN
        return "\n".join(["seconds by part:", *rows, f"  {whole:7.1f} s  everything"])


def end_on_request():
    """Lets a polite end of this process (SIGTERM) run every `finally`."""

    def end(*_):
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, end)
