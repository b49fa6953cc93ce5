"""How every engine is timed, ours and PyTorch's alike.

Two definitions, for each of the two columns (one static buffer; rotated inputs):

- **call**: the device is idle; an event is recorded, one execution is queued, an event is recorded, and both are waited
  for. What the host needs to queue the execution counts, as it does for whoever asks for one result at a time. The
  median over all calls of all rounds.
- **queued**: an event, QUEUED executions one behind the other without waiting, an event; time over QUEUED. Device time,
  as long as the host queues faster than the device works. The median over rounds.

Rounds are interleaved: in each, every engine gets its turn for each measurement, begun by a few executions that do not
count. The engines of PyTorch run in this process, ours in another; only one of them works at a time.
"""

import statistics

import torch

import peers

WARM_UPS = 3
QUEUED = 20
COLUMNS = ("static", "rotated")


class Samples:
    """Times of one engine by column."""

    def __init__(self):
        self.call = {column: [] for column in COLUMNS}
        self.queued = {column: [] for column in COLUMNS}

    def summary(self):
        row = {}
        for column in COLUMNS:
            calls = sorted(self.call[column])
            row[f"{column}_call_ms"] = round(statistics.median(calls), 5)
            row[f"{column}_call_p95_ms"] = round(calls[int(0.95 * (len(calls) - 1))], 5)
            row[f"{column}_queued_ms"] = round(statistics.median(self.queued[column]), 5)
            row[f"{column}_calls"] = len(calls)
        return row


def event():
    return torch.cuda.Event(enable_timing=True)


@torch.inference_mode()
def time_peer(peer, samples, count):
    """One round of a PyTorch engine."""
    runs = {"static": lambda number: peer.static(), "rotated": peer.rotated}
    with peers.settings(peer.name):
        for column, run in runs.items():
            for number in range(WARM_UPS):
                run(number)
            for number in range(count):
                before, after = event(), event()
                torch.cuda.synchronize()
                before.record()
                run(number)
                after.record()
                after.synchronize()
                samples.call[column].append(before.elapsed_time(after))
            before, after = event(), event()
            torch.cuda.synchronize()
            before.record()
            for number in range(QUEUED):
                run(number)
            after.record()
            after.synchronize()
            samples.queued[column].append(before.elapsed_time(after) / QUEUED)


def time_ours(engine, samples, count):
    """One round of our engine, which takes the same steps in its own process."""
    torch.cuda.synchronize()
    for column, command in (("static", "fixed"), ("rotated", "rotated")):
        engine.ask(command, WARM_UPS)
        samples.call[column] += engine.ask(command, count)["ms"]
        samples.queued[column].append(engine.ask(f"{command}-queued", QUEUED)["ms"])


def calls_a_round(ms):
    """Enough for a steady median, not more than a fifth of a second a measurement."""
    return int(min(50, max(10, 200 / max(ms, 0.01))))
