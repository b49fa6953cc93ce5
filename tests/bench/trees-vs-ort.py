#!/usr/bin/env python3
"""Ensembles of trees on one thread: the native CPU engine beside ONNX Runtime, in turns.

    trees-vs-ort.py [--rounds N]

Trains two classifiers of 100 trees of depth 6 on generated data (a random forest of three classes, gradient boosting
of two), exports each at 1, 100 and 10,000 rows and times both engines of each file as native-vs-ort.py does. Needs
scikit-learn, skl2onnx, xgboost and onnxmltools beside this workspace and a libonnxruntime. Run
`cargo build --workspace --example engine` before, with --release where the profile of releases is to be measured,
and name that folder by --target.
"""

import argparse
import importlib.util
import pathlib
import statistics
import tempfile

import numpy as np
import xgboost
from onnxmltools.convert import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("native_vs_ort", ROOT / "tests/bench/native-vs-ort.py")
BENCH = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BENCH)

FEATURES = 20
ROWS = (1, 100, 10_000)
# A turn takes about this long.
TURN_MS = 30


def models():
    rng = np.random.default_rng(7)
    x = rng.standard_normal((4000, FEATURES)).astype(np.float32)
    line = x @ rng.standard_normal(FEATURES) + x[:, 0] * x[:, 1]
    forest = RandomForestClassifier(100, max_depth=6, random_state=0).fit(x, np.digitize(line, [-2.0, 2.0]))
    boosted = xgboost.XGBClassifier(n_estimators=100, max_depth=6, random_state=0).fit(x, (line > 0).astype(int))
    options = {id(forest): {"zipmap": False}}
    yield "random forest, 3 classes", to_onnx(forest, x[:1], options=options, target_opset={"": 17, "ai.onnx.ml": 3})
    yield "gradient boosting, 2 classes", convert_xgboost(boosted, initial_types=[("x", FloatTensorType([None, FEATURES]))], target_opset=15)


def fix(model, rows):
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = rows
    for value in model.graph.output:
        value.type.tensor_type.shape.Clear()
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target/debug")
    arguments = parser.parse_args()
    engine = arguments.target / "examples/engine"
    print("| model | rows | native us | ONNX Runtime us | ratio, median | ratio, fastest | labels that differ |\n|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, model in models():
            for rows in ROWS:
                path = work / "model.onnx"
                path.write_bytes(fix(model, rows).SerializeToString())
                inputs = work / "inputs.npz"
                BENCH.output_of(engine, "inputs", path, inputs)
                servers, outputs = {}, {}
                for backend in BENCH.BACKENDS:
                    BENCH.build(engine, backend, path, 1, work / backend)
                    outputs[backend] = work / f"{backend}.npz"
                    servers[backend] = BENCH.Server(engine, work / backend / "engine.plan", inputs, outputs[backend])
                slowest = max(min(server.run(20)) for server in servers.values())
                runs = min(max(round(TURN_MS / slowest), 3), 2000)
                samples = {backend: [] for backend in BENCH.BACKENDS}
                for turn in range(arguments.rounds):
                    for backend in BENCH.BACKENDS if turn % 2 == 0 else reversed(BENCH.BACKENDS):
                        servers[backend].run(3)
                        samples[backend] += servers[backend].run(runs)
                for server in servers.values():
                    server.close()
                answers = [np.load(outputs[backend]) for backend in BENCH.BACKENDS]
                label = next(key for key in answers[0] if answers[0][key].dtype == np.int64)
                differ = int((answers[0][label] != answers[1][label]).sum())
                median, fastest = ({backend: f(samples[backend]) * 1e3 for backend in BENCH.BACKENDS} for f in (statistics.median, min))
                ratios = [figures["native"] / figures["onnxruntime"] for figures in (median, fastest)]
                print(f"| {name} | {rows} | {median['native']:.1f} | {median['onnxruntime']:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} | {differ} of {rows} |", flush=True)


main()
