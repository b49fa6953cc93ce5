#!/usr/bin/env python3
"""int8 models by `planforge prepare` and by ONNX Runtime's own static quantizer: same data, same runtime, side by side.

    quantizers.py --planforge BINARY [--samples N] [--rounds N] [--threads 1,2] [--zoo FOLDER] MODEL...

A MODEL is an architecture of `planforge testmodel`, or, with --zoo, the title of a file in that folder, which
`tests/zoo.sh --files FOLDER` writes. Both quantize it from the same seeded samples: `planforge prepare --precision int8
--target onnxruntime` with its defaults, and quantize_static with signed weights for each channel and unsigned activations
(min-max, its default). ONNX Runtime runs both on samples that neither has seen. Printed, a row of a Markdown table a
model: relative RMS of the first output against the fp32 model, before softmax, and the medians of the two in turns.

Needs onnx, numpy and onnxruntime.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

HERE = pathlib.Path(__file__).resolve().parent
GRAPHS = HERE.parent / "zoo" / "graphs" / "zoo.jsonl"
UNSEEN = 4
# A turn takes about this long.
TURN_MS = 150


class Reader(CalibrationDataReader):
    def __init__(self, samples):
        self.samples = iter(samples)

    def get_next(self):
        return next(self.samples, None)


def ranges(title):
    """What the zoo's inputs are drawn between, by name."""
    for line in GRAPHS.read_text().splitlines():
        entry = json.loads(line)
        if f"{entry['name']}.{entry['exporter']}" == title:
            return {name: (dtype, shape, low, high) for name, dtype, shape, low, high in entry["inputs"]}
    return {}


def draw(path, title, count):
    """Seeded samples for the model's inputs, a dictionary each."""
    random, known, samples = numpy.random.default_rng(1), ranges(title), []
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    for _ in range(count):
        sample = {}
        for value in inputs:
            tensor = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            if value.name in known:
                _, shape, low, high = known[value.name]
                numbers = random.uniform(low, high, shape)
                sample[value.name] = (numpy.floor(numbers) if dtype.kind in "iu" else numbers).astype(dtype)
            else:
                shape = [max(dim.dim_value, 1) for dim in tensor.shape.dim]
                numbers = random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 2, shape)
                sample[value.name] = numbers.astype(dtype)
        samples.append(sample)
    return samples


def session(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def error(wanted, found):
    """Relative RMS."""
    wanted, found = numpy.concatenate([w.ravel() for w in wanted]), numpy.concatenate([f.ravel() for f in found])
    return float(numpy.sqrt(numpy.mean((wanted - found) ** 2) / max(numpy.mean(wanted**2), 1e-30)))


def timed(sessions, sample, rounds):
    """Medians in milliseconds, in turns; who begins alternates."""
    medians = [[] for _ in sessions]
    for run in sessions:
        run.run(None, sample)
    for turn in range(rounds):
        for at in list(range(len(sessions)))[:: 1 if turn % 2 else -1]:
            times, begin = [], time.perf_counter()
            while not times or (time.perf_counter() - begin) * 1e3 < TURN_MS:
                one = time.perf_counter()
                sessions[at].run(None, sample)
                times.append((time.perf_counter() - one) * 1e3)
            medians[at].append(statistics.median(times))
    return [statistics.median(times) for times in medians]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--planforge", required=True)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--zoo", type=pathlib.Path)
    arguments = parser.parse_args()
    planforge, zoo = os.path.abspath(arguments.planforge), arguments.zoo and arguments.zoo.resolve()
    threads = [int(count) for count in arguments.threads.split(",")]
    columns = [f"ms, {count} thread{'s' * (count > 1)}: ours / theirs" for count in threads]
    print(f"| model | relative RMS, ours | theirs | ratio | {' | '.join(columns)} |")
    print("|" + "---|" * (4 + len(columns)), flush=True)
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            # The quantizer leaves files in the current folder.
            os.chdir(work)
            model = zoo / f"{name}.onnx" if zoo else work / f"{name}.onnx"
            if not zoo:
                subprocess.run([planforge, "testmodel", name, "-o", model], check=True, capture_output=True)
            samples = draw(model, name, arguments.samples + UNSEEN)
            seen, unseen = samples[: arguments.samples], samples[arguments.samples :]
            # One array an input, rows along its first axis.
            numpy.savez(work / "seen.npz", **{key: numpy.concatenate([s[key] for s in seen]) for key in seen[0]})
            ours, theirs, plain = work / "ours.onnx", work / "theirs.onnx", work / "plain.onnx"
            command = [planforge, "prepare", model, "--precision", "int8", "--target", "onnxruntime"]
            told = subprocess.run(
                [*command, "--calibration", work / "seen.npz", "-o", ours], capture_output=True, text=True
            )
            if told.returncode:
                print(f"| {name} | refused: {told.stderr.strip().splitlines()[-1]} |", flush=True)
                continue
            outputs = lambda path: [session(path, 2).run(None, sample)[0] for sample in unseen]
            try:
                quant_pre_process(model, plain)
                quantize_static(
                    plain, theirs, Reader(seen), quant_format=QuantFormat.QDQ, per_channel=True,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                )
                found = outputs(theirs)
            except Exception as failed:  # the quantizer raises whatever it meets, and may write what does not load
                wanted = outputs(model)
                own = f"{error(wanted, outputs(ours)):.4f}"
                print(f"| {name} | {own} | ONNX Runtime's quantizer: {str(failed).splitlines()[0][:200]} |", flush=True)
                continue
            wanted = outputs(model)
            errors = [error(wanted, outputs(ours)), error(wanted, found)]
            cells = []
            for count in threads:
                own, peer = timed([session(path, count) for path in (ours, theirs)], unseen[0], arguments.rounds)
                cells.append(f"{own:.2f} / {peer:.2f}: **{own / peer:.2f}**")
            ratio = errors[0] / errors[1]
            print(f"| {name} | {errors[0]:.4f} | {errors[1]:.4f} | **{ratio:.2f}** | {' | '.join(cells)} |", flush=True)


main()
