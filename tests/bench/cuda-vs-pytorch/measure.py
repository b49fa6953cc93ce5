"""The cells of one model: every engine made ready, then timed in turns."""

import gc
import time

import torch

import grid
import limits
import models
import peers
import rows
import timing
from limits import log

SETS = 4
# Of a cell's time, what is kept for timing what got ready.
ROUNDS_S = 60
# A cell that would get less is not begun.
CELL_LEAST_S = ROUNDS_S + 30
# Longest that one engine's turn in a round may take beyond the cell's end before it counts as hanging.
TURN_S = 60


def machine():
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "torch_cudnn": torch.backends.cudnn.version(),
    }


def relative_rms(actual, expected):
    return float(((actual - expected).pow(2).mean() / expected.pow(2).mean()).sqrt())


class Run:
    """One model of this run."""

    def __init__(self, given, parts, name):
        torch._dynamo.config.cache_size_limit = 64
        self.given, self.parts = given, parts
        self.name = name
        # Ratios are only taken between rows of one run.
        self.started = int(time.time())
        self.own = grid.own(given.precision)
        self.batches = given.batches or grid.batches(self.name)
        with self.part("making the module"):
            self.module = models.settle(models.module(self.name).cuda(), self.name, "cuda")
        self.names = models.input_names(self.name)
        self.exported = None

    def part(self, what):
        return self.parts.part(f"{self.name}, {what}")

    def onnx(self):
        """The module of this run as a file, written when it is first needed."""
        if self.exported is None:
            path = self.given.cache / "onnx" / f"{self.name}.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.part("export to ONNX"):
                seconds = models.export(self.module, self.name, path)
            log(f"{self.name} exported in {seconds:.1f} s")
            self.exported = path
        return self.exported

    def sets(self, batch):
        return [models.inputs(self.name, batch, "cuda", seed) for seed in range(SETS)]

    def engine(self, batch, contexts=1):
        """Builds ours. Each cell has a cache of its own, so that its first build is really a cold one."""
        import ours

        model = self.onnx()
        cache = self.given.cache / self.own / f"{self.name}-{batch}"
        cold = not cache.exists()
        with self.part(f"batch {batch}: {self.own} ready"):
            began = time.monotonic()
            log_file = self.given.cache / "engine.log"
            made = ours.Engine(model, batch, cache, contexts, self.given.level, log_file, self.given.precision)
            made.built["ready_s"] = round(time.monotonic() - began, 2)
        made.built["cold"], made.built["warm"] = cold, made.built["timed"] == 0
        cell = {"model": self.name, "batch": batch, "contexts": contexts, "precision": self.given.precision}
        rows.append(self.given.out, "builds", [{**cell, **made.built}])
        log(f"ours, batch {batch}: {made.built}")
        return made

    def peer(self, name, batch, sets):
        """Makes a peer ready and says what memory that took."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        with self.part(f"batch {batch}: {name} ready"):
            peer = peers.Peer(name, self.module, sets)
            with peers.settings(name), torch.inference_mode():
                peer.static()
                torch.cuda.synchronize()
        taken = torch.cuda.max_memory_reserved() - before
        if peer.model is self.module:
            taken += sum(tensor.nbytes for tensor in (*self.module.parameters(), *self.module.buffers()))
        return peer, taken >> 20

    def wanted(self, batch):
        """Peers of a cell, as far as they were asked for."""
        wanted = grid.peers(self.name, batch, self.given.precision)
        return [name for name in wanted if not self.given.peers or name in self.given.peers]

    def order(self, batch):
        """Every engine of a cell; the one that takes longest to get ready comes last."""
        wanted = self.wanted(batch)
        at = wanted.index("max-autotune") if "max-autotune" in wanted else len(wanted)
        return wanted[:at] + ([] if self.given.no_ours else [self.own]) + wanted[at:]

    def forget(self):
        """Frees what a cell held."""
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def copy_ms(sets):
    """Device time of copying one set of inputs in half precision, as the graphs' buffers are fed."""
    halved = [peers.in_half(tensors) for tensors in sets]
    fixed = [tensor.clone() for tensor in halved[0]]
    before, after = timing.event(), timing.event()
    torch.cuda.synchronize()
    before.record()
    for number in range(100):
        for to, tensor in zip(fixed, halved[number % len(halved)]):
            to.copy_(tensor)
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 100


class Turn:
    """One engine of a cell, ready to be timed."""

    def __init__(self, run, name, batch, sets, compared, expected, cell):
        self.name, self.count, self.samples = name, 10, timing.Samples()
        if grid.is_own(name):
            self.engine = run.engine(batch)
            try:
                self.engine.feed(run.names, sets)
                output = torch.from_numpy(self.engine.outputs(run.names, compared)["output"]).cuda()
                self.engine.feed(run.names, sets)
            except BaseException:
                self.engine.close()
                raise
            output = models.before_squashing(run.name, output)
            cell.set(name, built=self.engine.built, device_mib=self.engine.built["device_mib"])
        else:
            self.engine, device_mib = run.peer(name, batch, sets)
            with peers.settings(name), torch.inference_mode():
                output = models.before_squashing(run.name, self.engine.compute(compared))
            cell.set(name, prepared_s=round(self.engine.prepared_s, 1), device_mib=device_mib)
        error = relative_rms(output, expected)
        cell.set(name, relative_rms=error)
        log(f"{name} ready, relative RMS {error:.1e}")

    def take(self):
        timed = timing.time_ours if grid.is_own(self.name) else timing.time_peer
        timed(self.engine, self.samples, self.count)
        self.count = timing.calls_a_round(self.samples.call["static"][-1])

    def close(self):
        if grid.is_own(self.name):
            self.engine.close()
        self.engine = None


def failed(cell, name, what, error):
    """An engine that cannot be measured is a row that says so."""
    reason = str(error) if isinstance(error, limits.OutOfTime) else repr(error)
    log(f"{name} {what}: {reason}"[:400])
    cell.set(name, error=f"{what}: {reason}"[:400])
    cell.keep()


def make_ready(run, batch, cell, deadline):
    sets = run.sets(batch)
    compared = models.compared_inputs(run.name, batch, "cuda")
    with peers.settings("eager-fp32-no-tf32"), torch.inference_mode():
        expected = models.before_squashing(run.name, run.module(*compared))
    turns = []
    for name in run.order(batch):
        seconds = min(run.given.peer_seconds, deadline.left() - ROUNDS_S)
        if seconds <= 0:
            failed(cell, name, "not begun", limits.OutOfTime(f"the cell's {deadline.seconds:.0f} s were used up"))
            continue
        try:
            with limits.limit(seconds, f"getting {name} ready"):
                turns.append(Turn(run, name, batch, sets, compared, expected, cell))
        except (Exception, limits.OutOfTime) as error:
            failed(cell, name, "not ready", error)
            # What compilers hold stays while another peer of theirs is to be timed.
            if turns:
                torch.cuda.empty_cache()
            else:
                run.forget()
        cell.keep()
    return turns


def time_in_turns(run, batch, cell, deadline, turns):
    for number in range(run.given.rounds):
        if number and deadline.left() <= 0:
            log(f"batch {batch}: {number} of {run.given.rounds} rounds, the cell's time is used up")
            return
        for turn in list(turns):
            try:
                with limits.limit(max(deadline.left(), 0) + TURN_S, f"timing {turn.name}"):
                    turn.take()
                cell.set(turn.name, rounds=number + 1, **turn.samples.summary())
            except (Exception, limits.OutOfTime) as error:
                failed(cell, turn.name, "failed while it was timed", error)
                turn.close()
                turns.remove(turn)
        cell.keep()


def measure_cell(run, batch):
    deadline = limits.Deadline(min(run.given.cell_seconds, limits.seconds_left(run.given.seconds)))
    facts = {**machine(), "run": run.started, "model": run.name, "batch": batch}
    cell = rows.Cell(run.given.out, {**facts, "input_copy_ms": round(copy_ms(run.sets(batch)), 5)})
    turns = []
    try:
        turns = make_ready(run, batch, cell, deadline)
        with run.part(f"batch {batch}: timing"):
            time_in_turns(run, batch, cell, deadline, turns)
        for turn in turns:
            if grid.is_own(turn.name):
                with run.part(f"batch {batch}: layers of ours"), limits.limit(TURN_S, "the layers"):
                    cell.set(turn.name, layers=turn.engine.ask("layers")["layers"])
    except (Exception, limits.OutOfTime) as error:
        log(f"batch {batch} ended early: {error!r}"[:400])
    finally:
        for turn in turns:
            turn.close()
        cell.finish()
    turns.clear()
    run.forget()
    if run.given.warm and not run.given.no_ours:
        try:
            with limits.limit(run.given.peer_seconds, "the warm build"):
                run.engine(batch).close()
        except (Exception, limits.OutOfTime) as error:
            log(f"the warm build: {error!r}"[:400])
    for row in cell.rows.values():
        log({key: value for key, value in row.items() if key.endswith("_ms") or key in ("engine", "error", "rounds")})


def measure(run):
    import table

    for batch in run.batches:
        engines = run.order(batch)
        if run.given.missing and rows.timed(run.given.out, run.name, batch, grid.MEASURES).issuperset(engines):
            log(f"{run.name} batch {batch}: nothing is missing")
            continue
        if limits.seconds_left(run.given.seconds) < CELL_LEAST_S:
            log(f"{run.name} batch {batch}: not begun, the command's {run.given.seconds:.0f} s are used up")
            continue
        began = time.monotonic()
        measure_cell(run, batch)
        if run.given.precision == "fp16":
            (run.given.out / "table.md").write_text(table.markdown(run.given.out))
        log(f"{run.name} batch {batch} took {time.monotonic() - began:.1f} s")
