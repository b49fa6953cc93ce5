"""The case people know: the detector at a static batch of 16 on 4 streams, ours against PyTorch fp32.

Every stream has its own inputs and executes one batch after the other; all work is queued by one host thread, which
stays ahead of the device. *Latency* is from the begin of a batch on its stream to its end, by events, while the other
streams work; *frames/s* is all batches over the host's time for all of them. Memory is what the engine itself took
(PyTorch: what its allocator reserved, weights included) and, where the driver tells, what its whole process has on the
device.
"""

import contextlib
import os
import statistics
import threading
import time

import torch

import grid
import limits
import measure
import peers
import rows
import timing
from limits import log

STREAMS = 4
BATCH = 16
# Batches of each stream in one repeat.
BATCHES = 50
REPEATS = 5
WARM_UP_BATCHES = 3
PEERS = ("eager-fp32", "eager-fp32-no-tf32")


class Nvml:
    """What the driver tells of the device; nothing where its Python package is not there."""

    PERIOD_S = 0.05

    def __init__(self):
        self.device = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self.nvml, self.device = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:
            log(f"no utilisation, no memory of processes: {error!r}")

    def process_mib(self, pid):
        if self.device is None:
            return None
        processes = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.device)
        used = [process.usedGpuMemory for process in processes if process.pid == pid]
        return used[0] >> 20 if used and used[0] else None

    @contextlib.contextmanager
    def utilisation(self):
        """Gives a list to which the device's own figure is added while something runs."""
        percent, stop = [], threading.Event()

        def sample():
            while not stop.wait(self.PERIOD_S):
                percent.append(self.nvml.nvmlDeviceGetUtilizationRates(self.device).gpu)

        thread = threading.Thread(target=sample, daemon=True)
        if self.device is not None:
            thread.start()
        try:
            yield percent
        finally:
            stop.set()
            if self.device is not None:
                thread.join()


def summary(repeats, percent):
    """`repeats`: seconds of each, and the latencies of its batches."""
    seconds = statistics.median(took for took, _ in repeats)
    latencies = sorted(ms for _, times in repeats for ms in times)
    return {
        "frames_per_s": round(STREAMS * BATCH * BATCHES / seconds, 1),
        "latency_ms": round(statistics.median(latencies), 3),
        "latency_p95_ms": round(latencies[int(0.95 * (len(latencies) - 1))], 3),
        "batches": len(latencies),
        "utilisation_percent": round(statistics.mean(percent), 1) if percent else None,
    }


def ours(run, nvml, sets):
    engine = run.engine(BATCH, contexts=STREAMS)
    try:
        engine.feed(run.names, sets)
        engine.ask("streams", WARM_UP_BATCHES)
        with run.part(f"streams: {grid.OURS}"), nvml.utilisation() as percent:
            answers = [engine.ask("streams", BATCHES) for _ in range(REPEATS)]
        row = summary([(answer["s"], answer["ms"]) for answer in answers], percent)
        return {**row, "memory_mib": engine.built["device_mib"], "process_mib": nvml.process_mib(engine.pid)}
    finally:
        engine.close()


def pytorch(run, nvml, sets, name):
    lanes = [torch.cuda.Stream() for _ in range(STREAMS)]

    def repeat(count):
        moments = []
        began = time.monotonic()
        for _ in range(count):
            for lane, tensors in zip(lanes, sets):
                with torch.cuda.stream(lane):
                    before, after = timing.event(), timing.event()
                    before.record()
                    run.module(*tensors)
                    after.record()
                    moments.append((before, after))
        torch.cuda.synchronize()
        return time.monotonic() - began, [before.elapsed_time(after) for before, after in moments]

    run.forget()
    torch.cuda.reset_peak_memory_stats()
    with peers.settings(name), torch.inference_mode():
        # cuDNN tries its algorithms here, where the settings ask for that.
        with run.part(f"streams: {name} warm-up"):
            repeat(WARM_UP_BATCHES)
        with run.part(f"streams: {name}"), nvml.utilisation() as percent:
            row = summary([repeat(BATCHES) for _ in range(REPEATS)], percent)
    memory_mib = torch.cuda.max_memory_reserved() >> 20
    return {**row, "memory_mib": memory_mib, "process_mib": nvml.process_mib(os.getpid())}


def streams(run):
    nvml, sets = Nvml(), run.sets(BATCH)
    engines = [name for name in PEERS if not run.given.peers or name in run.given.peers]
    engines += [] if run.given.no_ours else [grid.OURS]
    for name in engines:
        row = {**measure.machine(), "model": run.name, "batch": BATCH, "streams": STREAMS, "engine": name}
        try:
            with limits.limit(run.given.peer_seconds, name):
                row |= ours(run, nvml, sets) if name == grid.OURS else pytorch(run, nvml, sets, name)
        except (Exception, limits.OutOfTime) as error:
            row["error"] = repr(error)[:300]
        rows.append(run.given.out, "streams", [row])
        log(row)
