"""Our CUDA engine beside PyTorch: the same modules, one GPU, one run, in turns.

    python3 tests/bench/cuda-vs-pytorch MODEL [--batches 1,8] --cache FOLDER [--out FOLDER]   measure
    python3 tests/bench/cuda-vs-pytorch MODEL --cache FOLDER --fill [--seconds 540]           fill the caches
    python3 tests/bench/cuda-vs-pytorch detector --cache FOLDER --streams                     batch 16 on 4 streams
    python3 tests/bench/cuda-vs-pytorch --table FOLDER                                        the table of all rows

MODEL is one of resnet50, detector, mobilenet_v3_large, efficientnet_b0, vit_b_16, bert_base. PyTorch's own exporter
writes the module of this run as ONNX, from which our engine is built, so graph and weights are the same; `timing.py`
says what exactly is timed, `peers.py` what the peers are. Inputs are random, in each engine's own type: ours takes
what the ONNX file declares (fp32 images), the half-precision peers take halves with channels last. Everything stays on
the device.

Filling the caches (Inductor's and Triton's, our tactics) is a command of its own that may be repeated until it says
that nothing is left; it begins no step after --seconds. Measuring without it works and takes longer. Rows are appended
to OUT/rows.jsonl, one per engine and cell; the table is rewritten after every cell.

Needs a GPU, torch, torchvision, transformers, onnx and onnxscript. PLANFORGE_ENGINE_SERVER names our program where
there is no cargo.
"""

import argparse
import gc
import json
import os
import pathlib
import sys
import threading
import time

SETS = 4
ROUNDS = 5
STREAMS = 4
STREAMS_BATCH = 16
STREAMS_ROUNDS = 50


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--batches", type=lambda text: [int(number) for number in text.split(",")])
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/cuda-vs-pytorch"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("cuda-vs-pytorch-results"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--level", type=int, default=3, help="how hard our tuner searches, 0 to 5")
    parser.add_argument("--peers", type=lambda text: text.split(","), help="only these, for a quick look")
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--seconds", type=float, default=540, help="with --fill: no step begins after this")
    parser.add_argument("--streams", action="store_true")
    parser.add_argument("--table", type=pathlib.Path)
    given = parser.parse_args()
    if not given.table and not given.model:
        parser.error("name a model, or a folder of rows by --table")
    return given


def log(*words):
    print(f"[{time.monotonic() - BEGAN:6.1f} s]", *words, file=sys.stderr, flush=True)


BEGAN = time.monotonic()


def rows_of(folder):
    path = folder / "rows.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def machine():
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "torch_cudnn": torch.backends.cudnn.version(),
    }


def relative_rms(actual, expected):
    return float(((actual - expected).pow(2).mean() / expected.pow(2).mean()).sqrt())


class Run:
    """One model of this run, with its export."""

    def __init__(self, given):
        import torch

        import models

        if given.model not in models.NAMES:
            sys.exit(f"unknown model {given.model}; there are {', '.join(models.NAMES)}")
        torch._dynamo.config.cache_size_limit = 64
        self.given, self.models, self.torch = given, models, torch
        self.name = given.model
        self.batches = given.batches or models.batches(self.name)
        self.module = models.settle(models.module(self.name).cuda(), self.name, "cuda")
        self.names = models.input_names(self.name)
        self.onnx = given.cache / "onnx" / f"{self.name}.onnx"
        self.onnx.parent.mkdir(parents=True, exist_ok=True)
        self.export_s = models.export(self.module, self.name, self.onnx)
        log(f"{self.name} exported in {self.export_s:.1f} s")

    def sets(self, batch):
        return [self.models.inputs(self.name, batch, "cuda", seed) for seed in range(SETS)]

    def engine(self, batch, contexts=1):
        import ours

        began = time.monotonic()
        errors = open(self.given.cache / "engine.log", "a")
        made = ours.Engine(self.onnx, batch, self.given.cache / "planforge", contexts, self.given.level, errors)
        made.built["ready_s"] = round(time.monotonic() - began, 2)
        log(f"ours, batch {batch}: {json.dumps(made.built)}")
        return made

    def wanted(self, batch):
        import peers

        wanted = peers.wanted(self.name, batch)
        return [name for name in wanted if not self.given.peers or name in self.given.peers]

    def forget(self):
        """Frees what a cell held."""
        self.torch._dynamo.reset()
        gc.collect()
        self.torch.cuda.empty_cache()


def fill(run):
    import peers

    done_file = run.given.cache / "filled.json"
    done = set(json.loads(done_file.read_text())) if done_file.exists() else set()
    steps = [(batch, name) for batch in run.batches for name in ["planforge", *run.wanted(batch)]]
    steps = [step for step in steps if step[1] == "planforge" or step[1] in peers.COMPILED]
    left = [step for step in steps if f"{run.name} {step[0]} {step[1]}" not in done]
    for batch, name in left:
        if time.monotonic() - BEGAN > run.given.seconds:
            break
        began = time.monotonic()
        try:
            if name == "planforge":
                run.engine(batch).close()
            else:
                peers.Peer(name, run.module, run.sets(batch))
        except Exception as error:  # one that fails here fails in the measurement too, and is reported there
            log(f"{run.name} {batch} {name}: {error!r}"[:300])
        run.forget()
        done.add(f"{run.name} {batch} {name}")
        done_file.write_text(json.dumps(sorted(done)))
        log(f"filled {run.name} {batch} {name} in {time.monotonic() - began:.1f} s")
    count = len([step for step in steps if f"{run.name} {step[0]} {step[1]}" not in done])
    log(f"{run.name}: {count} steps left")


def copy_ms(run, sets):
    """Device time of copying one set of inputs in half precision, as the graphs' buffers are fed."""
    import peers
    import timing

    halved = [peers.in_half(tensors) for tensors in sets]
    fixed = [tensor.clone() for tensor in halved[0]]
    before, after = timing.event(), timing.event()
    run.torch.cuda.synchronize()
    before.record()
    for number in range(100):
        for to, tensor in zip(fixed, halved[number % len(halved)]):
            to.copy_(tensor)
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 100


def cell(run, batch):
    """Measures one cell and gives its rows."""
    import peers
    import table
    import timing

    torch = run.torch
    sets = run.sets(batch)
    compared = run.models.compared_inputs(run.name, batch, "cuda")
    facts = {**machine(), "model": run.name, "batch": batch, "input_copy_ms": round(copy_ms(run, sets), 5)}
    rows, engines, samples = [], {}, {}
    with peers.settings("eager-fp32-no-tf32"), torch.inference_mode():
        expected = run.models.before_squashing(run.name, run.module(*compared))
    for name in run.wanted(batch):
        try:
            peer = peers.Peer(name, run.module, sets)
            with peers.settings(name), torch.inference_mode():
                output = run.models.before_squashing(run.name, peer.compute(compared))
            engines[name] = peer
            rows.append({**facts, "engine": name, "relative_rms": relative_rms(output, expected)})
            rows[-1]["prepared_s"] = round(peer.prepared_s, 1)
            log(f"{name} ready in {peer.prepared_s:.1f} s, relative RMS {rows[-1]['relative_rms']:.1e}")
        except Exception as error:  # a peer that cannot run this cell is a row that says so
            log(f"{name}: {error!r}"[:300])
            rows.append({**facts, "engine": name, "error": repr(error)[:300]})
    engine = None
    try:
        engine = run.engine(batch)
        engine.feed(run.names, sets)
        given = torch.from_numpy(engine.outputs(run.names, compared)["output"]).cuda()
        error = relative_rms(run.models.before_squashing(run.name, given), expected)
        engine.feed(run.names, sets)
        rows.append({**facts, "engine": table.OURS, "relative_rms": error, "built": engine.built})
        log(f"{table.OURS}: relative RMS {error:.1e}")
    except Exception as error:
        log(f"{table.OURS}: {error!r}"[:300])
        rows.append({**facts, "engine": table.OURS, "error": repr(error)[:300]})
        engine = None
    samples = {name: timing.Samples() for name in [*engines, table.OURS]}
    counts = {}
    for _ in range(run.given.rounds):
        for name, peer in engines.items():
            timing.time_peer(peer, samples[name], counts.get(name, 10))
            counts[name] = timing.calls_a_round(samples[name].call["static"][-1])
        if engine:
            timing.time_ours(engine, samples[table.OURS], counts.get(table.OURS, 10))
            counts[table.OURS] = timing.calls_a_round(samples[table.OURS].call["static"][-1])
    for row in rows:
        if "error" not in row:
            row.update(samples[row["engine"]].summary())
    if engine:
        rows[-1]["layers"] = engine.ask("layers")["layers"]
        engine.close()
    engines.clear()
    run.forget()
    return rows


def measure(run):
    import table

    run.given.out.mkdir(parents=True, exist_ok=True)
    for batch in run.batches:
        began = time.monotonic()
        rows = cell(run, batch)
        with open(run.given.out / "rows.jsonl", "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        (run.given.out / "table.md").write_text(table.markdown(rows_of(run.given.out)))
        for row in rows:
            shown = {key: value for key, value in row.items() if key.endswith("_ms") or key in ("engine", "error")}
            log(json.dumps(shown))
        log(f"{run.name} batch {batch} took {time.monotonic() - began:.1f} s")


class Utilisation:
    """Samples the device's own figure while something runs."""

    PERIOD_S = 0.05

    def __enter__(self):
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.percent, self.stop = [], threading.Event()

        def sample():
            while not self.stop.wait(self.PERIOD_S):
                self.percent.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)

        self.thread = threading.Thread(target=sample)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def mean(self):
        return round(sum(self.percent) / len(self.percent), 1) if self.percent else None


def streams(run):
    """The detector at a static batch of 16 on 4 streams, ours against PyTorch fp32."""
    torch = run.torch
    frames = STREAMS * STREAMS_BATCH * STREAMS_ROUNDS
    sets = run.sets(STREAMS_BATCH)
    rows = []

    def row(engine, seconds, utilisation, memory_mib):
        rows.append({
            **machine(), "case": f"{run.name} batch {STREAMS_BATCH} x {STREAMS} streams", "engine": engine,
            "frames_per_s": round(frames / seconds, 1), "batch_latency_ms": round(seconds / STREAMS_ROUNDS * 1e3, 3),
            "utilisation_percent": utilisation.mean(), "memory_mib": memory_mib,
        })
        log(json.dumps(rows[-1]))

    engine = run.engine(STREAMS_BATCH, contexts=STREAMS)
    engine.feed(run.names, sets)
    engine.ask("streams", STREAMS_ROUNDS)
    with Utilisation() as utilisation:
        answers = [engine.ask("streams", STREAMS_ROUNDS)["s"] for _ in range(ROUNDS)]
    row("planforge-fp16", sorted(answers)[ROUNDS // 2], utilisation, engine.built["device_mib"])
    engine.close()
    import peers

    for name in ("eager-fp32", "eager-fp32-no-tf32"):
        lanes = [torch.cuda.Stream() for _ in range(STREAMS)]
        torch.cuda.reset_peak_memory_stats()

        def rounds(count):
            for _ in range(count):
                for lane, tensors in zip(lanes, sets):
                    with torch.cuda.stream(lane):
                        run.module(*tensors)
            torch.cuda.synchronize()

        with peers.settings(name), torch.inference_mode():
            rounds(3)
            seconds = []
            with Utilisation() as utilisation:
                for _ in range(ROUNDS):
                    began = time.monotonic()
                    rounds(STREAMS_ROUNDS)
                    seconds.append(time.monotonic() - began)
        row(name, sorted(seconds)[ROUNDS // 2], utilisation, torch.cuda.max_memory_reserved() >> 20)
        run.forget()
    run.given.out.mkdir(parents=True, exist_ok=True)
    with open(run.given.out / "streams.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def main():
    given = arguments()
    if given.table:
        import table

        print(table.markdown(rows_of(given.table)))
        return
    given.cache.mkdir(parents=True, exist_ok=True)
    # Before torch is loaded, so that it finds what was compiled before.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(given.cache / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(given.cache / "triton"))
    run = Run(given)
    if given.fill:
        fill(run)
    elif given.streams:
        streams(run)
    else:
        measure(run)


if __name__ == "__main__":
    main()
