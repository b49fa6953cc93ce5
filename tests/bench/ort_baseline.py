"""Times ONNX Runtime and a native engine in turns, in one run, on the same inputs.

    ort_baseline.py ENGINE MODEL PLAN THREADS ROUNDS

ENGINE is the `native_engine` example; PLAN was built for THREADS threads. Each round runs both once or a few times,
who begins alternates. Beside wall time stands processor time (all threads, from the kernel's own account): with
neighbours on the same cores it is the fairer figure. Prints one line of JSON. The outputs of both are compared too.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import onnxruntime


def made_up_inputs(session, seed=7):
    """Normal floats; integers that are valid as token ids; masks of ones."""
    random = numpy.random.default_rng(seed)
    inputs = {}
    for port in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in port.shape]
        if port.type == "tensor(float)":
            inputs[port.name] = random.standard_normal(shape).astype(numpy.float32)
        elif "mask" in port.name:
            inputs[port.name] = numpy.ones(shape, numpy.int64)
        else:
            inputs[port.name] = random.integers(0, 1000, shape)
    return inputs


def cpu_ms(process):
    """Processor time of every thread of a process so far."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{process}/task").iterdir()) / 1e6


def spread(samples):
    ordered = sorted(samples)
    return {
        "runs": len(ordered),
        "fastest_ms": round(ordered[0], 3),
        "p10_ms": round(ordered[len(ordered) // 10], 3),
        "median_ms": round(statistics.median(ordered), 3),
    }


def main():
    engine, model, plan, threads, rounds = sys.argv[1:6]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    options.inter_op_num_threads = 1
    # Neither side may burn the other's time while it waits.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = made_up_inputs(session)
    with tempfile.TemporaryDirectory() as folder:
        files = [str(pathlib.Path(folder) / name) for name in ("in.npz", "out.npz")]
        numpy.savez(files[0], **inputs)
        native = subprocess.Popen([engine, "serve", plan, *files], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if native.stdout.readline().strip() != "ready":
            sys.exit("the native engine did not start")
        ours = dict(numpy.load(files[1]))

    def run_native(count):
        native.stdin.write(f"{count}\n")
        native.stdin.flush()
        return [float(text) for text in native.stdout.readline().split()]

    def run_ort(count):
        samples = []
        for _ in range(count):
            start = time.perf_counter()
            session.run(None, inputs)
            samples.append((time.perf_counter() - start) * 1e3)
        return samples

    theirs = dict(zip((port.name for port in session.get_outputs()), session.run(None, inputs)))
    error = max(float(numpy.abs(ours[name] - value).max() / numpy.abs(value).max()) for name, value in theirs.items())
    run_native(2), run_ort(2)
    samples = {"native": [], "onnxruntime": []}
    processor = {"native": [], "onnxruntime": []}
    for turn in range(int(rounds)):
        order = [("native", run_native, native.pid), ("onnxruntime", run_ort, os.getpid())]
        for name, run, process in order if turn % 2 == 0 else reversed(order):
            run(1)  # Finds caches that the other side filled.
            before = cpu_ms(process)
            samples[name] += run(2)
            processor[name].append((cpu_ms(process) - before) / 2)
    native.stdin.close()
    native.wait()
    result = {}
    for what, values in (("wall", samples), ("processor", processor)):
        sides = {name: spread(values[name]) for name in values}
        keys = ("fastest_ms", "p10_ms", "median_ms")
        ratio = {key: round(sides["native"][key] / sides["onnxruntime"][key], 3) for key in keys}
        result[what] = {**sides, "ratio": ratio}
    print(json.dumps({
        "model": pathlib.Path(model).name,
        "threads": int(threads),
        "onnxruntime_version": onnxruntime.__version__,
        "max_error_of_scale": error,
        **result,
    }))


if __name__ == "__main__":
    main()
