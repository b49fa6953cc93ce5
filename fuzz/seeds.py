#!/usr/bin/env python3
"""Writes the seeds of the model importer's fuzz target: small models of every family, and models that are refused.

    fuzz/seeds.py [FOLDER]     fuzz/corpus/import_model by default

`ok-*` must import, `bad-*` must be refused. Needs the `onnx` package and numpy. The seeds of plans are made from these:
PLANFORGE_WRITE_CORPUS=1 cargo nextest run -p planforge-cpu plans_are_refused_or_run
"""

import os
import sys

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus/import_model")
RNG = np.random.default_rng(7)


def value(name, shape, element=T.FLOAT):
    return h.make_tensor_value_info(name, element, shape)


def floats(name, *shape):
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


def ints(name, values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def save(name, nodes, inputs, outputs, weights=(), opset=17, functions=(), domains=()):
    graph = h.make_graph(nodes, "g", inputs, outputs, list(weights))
    imports = [h.make_opsetid("", opset)] + [h.make_opsetid(domain, 1) for domain in domains]
    model = h.make_model(graph, opset_imports=imports, functions=list(functions), producer_name="")
    model.ir_version = 10
    with open(os.path.join(FOLDER, name), "wb") as out:
        out.write(model.SerializeToString())


def one(name, op, shapes, rank, weights=(), opset=17, **attributes):
    """One operator on float inputs; `rank` sizes of the result are left open."""
    names = [f"x{index}" for index in range(len(shapes))]
    node = h.make_node(op, names + [weight.name for weight in weights], ["y"], name=op.lower(), **attributes)
    inputs = [value(name, shape) for name, shape in zip(names, shapes)]
    save(name, [node], inputs, [value("y", [None] * rank)], weights, opset)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    one("ok-conv", "Conv", [[1, 2, 5, 5]], 4, [floats("w", 3, 2, 3, 3), floats("b", 3)], pads=[1, 1, 1, 1])
    one("ok-depthwise", "Conv", [[1, 4, 4, 4]], 4, [floats("w", 4, 1, 3, 3)], group=4)
    one("ok-transposed", "ConvTranspose", [[1, 2, 3, 3]], 4, [floats("w", 2, 3, 2, 2)], strides=[2, 2])
    one("ok-gemm", "Gemm", [[2, 3]], 2, [floats("w", 4, 3), floats("b", 4)], transB=1, alpha=0.5)
    one("ok-matmul", "MatMul", [[2, 3, 4], [4, 5]], 3)
    one("ok-pool", "MaxPool", [[1, 2, 5, 5]], 4, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    one("ok-average", "AveragePool", [[1, 1, 4, 4]], 4, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    one("ok-softmax", "Softmax", [[2, 5]], 2)
    one("ok-norm", "LayerNormalization", [[2, 6]], 2, [floats("s", 6), floats("b", 6)])
    one("ok-reduce", "ReduceLogSumExp", [[2, 3, 4]], 2, axes=[1], keepdims=0)
    one("ok-resize", "Resize", [[1, 1, 2, 2]], 4, [floats("roi", 0), numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")], mode="linear")
    one("ok-slice", "Slice", [[4, 5]], 2, [ints("from", [3, 1]), ints("to", [-5, 4]), ints("axes", [0, 1]), ints("steps", [-1, 2])])
    one("ok-pad", "Pad", [[2, 3]], 2, [ints("pads", [1, 0, 0, 2])], mode="reflect")
    one("ok-gather", "Gather", [[4, 3]], 3, [ints("i", [[0, -1], [2, 1]])])
    one("ok-scatter", "ScatterND", [[4, 2]], 2, [ints("i", [[1], [3]]), floats("u", 2, 2)], reduction="add")
    one("ok-lstm", "LSTM", [[2, 1, 3]], 4, [floats("w", 1, 8, 3), floats("r", 1, 8, 2)], hidden_size=2)
    one("ok-gru", "GRU", [[2, 1, 3]], 4, [floats("w", 2, 6, 3), floats("r", 2, 6, 2)], hidden_size=2, direction="bidirectional")
    one("ok-dft", "DFT", [[1, 4, 1]], 3, onesided=1)
    one("ok-attention", "Attention", [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]], 4, opset=23, is_causal=1)
    one("ok-empty", "ReduceSum", [[2, 0]], 1, [ints("axes", [1])], keepdims=0)
    save("ok-chain", [
        h.make_node("Conv", ["x", "w"], ["a"]), h.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        h.make_node("Relu", ["n"], ["r"]), h.make_node("GlobalAveragePool", ["r"], ["p"]),
        h.make_node("Flatten", ["p"], ["f"]), h.make_node("Gemm", ["f", "c"], ["y"]),
    ], [value("x", [1, 1, 4, 4])], [value("y", [1, 2])],
        [floats("w", 2, 1, 3, 3), floats("s", 2), floats("b", 2), floats("m", 2), numpy_helper.from_array(np.ones(2, np.float32), "v"), floats("c", 2, 2)])
    then = h.make_graph([h.make_node("Add", ["x", "x"], ["t"])], "then", [], [value("t", [2])])
    other = h.make_graph([h.make_node("Neg", ["x"], ["e"])], "else", [], [value("e", [2])])
    save("ok-if", [h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
         [value("c", [], T.BOOL), value("x", [2])], [value("y", [2])])
    body = h.make_graph([
        h.make_node("Add", ["s", "x"], ["next"]), h.make_node("Identity", ["c"], ["go"]), h.make_node("Identity", ["next"], ["out"]),
    ], "body", [value("i", [], T.INT64), value("c", [], T.BOOL), value("s", [2])],
        [value("go", [], T.BOOL), value("next", [2]), value("out", [2])])
    save("ok-loop", [h.make_node("Loop", ["n", "", "x"], ["y", "z"], body=body)],
         [value("x", [2])], [value("y", [2]), value("z", [3, 2])], [numpy_helper.from_array(np.array(3, np.int64), "n")])
    endless = h.make_graph([
        h.make_node("Add", ["s", "s"], ["next"]), h.make_node("Identity", ["c"], ["go"]),
    ], "body", [value("i", [], T.INT64), value("c", [], T.BOOL), value("s", [2])], [value("go", [], T.BOOL), value("next", [2])])
    save("bad-endless", [h.make_node("Loop", ["", "t", "x"], ["y"], body=endless)],
         [value("x", [2])], [value("y", [2])], [numpy_helper.from_array(np.array(True), "t")])
    step = h.make_graph([h.make_node("Mul", ["s", "e"], ["next"]), h.make_node("Identity", ["next"], ["o"])],
                        "step", [value("s", [2]), value("e", [2])], [value("next", [2]), value("o", [2])])
    save("ok-scan", [h.make_node("Scan", ["x", "q"], ["y", "z"], body=step, num_scan_inputs=1)],
         [value("x", [2]), value("q", [3, 2])], [value("y", [2]), value("z", [3, 2])])
    inner = h.make_function("local", "Leak", ["a"], ["b"], [h.make_node("LeakyRelu", ["a"], ["b"])],
                            [h.make_opsetid("", 17)], ["slope"])
    bound = h.make_attribute("alpha", 0.5)
    bound.ClearField("f")
    bound.ref_attr_name = "slope"
    inner.node[0].attribute.append(bound)
    outer = h.make_function("local", "Twice", ["a"], ["c"], [
        h.make_node("Leak", ["a"], ["b"], domain="local", slope=0.25), h.make_node("Leak", ["b"], ["c"], domain="local"),
    ], [h.make_opsetid("", 17), h.make_opsetid("local", 1)])
    save("ok-function", [h.make_node("Twice", ["x"], ["y"], domain="local")], [value("x", [3])], [value("y", [3])],
         functions=[inner, outer], domains=["local"])
    again = h.make_function("local", "Again", ["a"], ["b"], [h.make_node("Again", ["a"], ["b"], domain="local")],
                            [h.make_opsetid("local", 1)])
    save("bad-recursion", [h.make_node("Again", ["x"], ["y"], domain="local")], [value("x", [3])], [value("y", [3])],
         functions=[again], domains=["local"])
    inside = h.make_graph([h.make_node("Add", ["x", "y"], ["t"])], "inside", [], [value("t", [2])])
    save("bad-cycle-inside", [h.make_node("If", ["c"], ["y"], then_branch=inside, else_branch=other)],
         [value("c", [], T.BOOL), value("x", [2])], [value("y", [2])])
    one("bad-operator", "Quux", [[2]], 1)
    one("bad-attribute", "Relu", [[2]], 1, shine=1)
    one("bad-opset", "Relu", [[2]], 1, opset=99)
    one("bad-huge", "Expand", [[1]], 4, [ints("shape", [1 << 20, 1 << 20, 1 << 20, 1])])
    save("bad-type", [h.make_node("Identity", ["x"], ["y"])], [value("x", [1], T.STRING)], [value("y", [1], T.STRING)])


main()
