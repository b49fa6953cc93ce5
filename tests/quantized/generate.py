#!/usr/bin/env python3
"""Small models with seeded weights, quantized by ONNX Runtime's own quantizer: what `verify` is tried on.

    python3 tests/quantized/generate.py FOLDER

needs the Python packages numpy, onnx, onnxruntime and packaging. The files in tests/fixtures/quantized were made so.
"""

import os
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

OPSET = 17


class Builder:
    """A chain of nodes whose weights come from one seed."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes = []
        self.weights = []

    def weight(self, shape, spread):
        name = f"w{len(self.weights)}"
        values = (self.random.standard_normal(shape) * spread).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, values):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, op, inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{len(self.nodes)}", **attributes))
        return name

    def conv(self, x, channels, filters, stride=1, size=3):
        kernel = self.weight((filters, channels, size, size), (2.0 / (channels * size * size)) ** 0.5)
        bias = self.weight((filters,), 0.1)
        pads = [size // 2] * 4
        return self.add("Conv", [x, kernel, bias], kernel_shape=[size, size], strides=[stride] * 2, pads=pads)

    def linear(self, x, inputs, outputs):
        product = self.add("MatMul", [x, self.weight((inputs, outputs), inputs**-0.5)])
        return self.add("Add", [product, self.weight((outputs,), 0.1)])

    def model(self, shape, y, y_shape):
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, y_shape)]
        self.nodes.append(helper.make_node("Identity", [y], ["y"], name="last"))
        graph = helper.make_graph(self.nodes, "quantized", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def images(seed):
    """Convolutions with residuals, as image models have them."""
    b = Builder(seed)
    x = b.add("Relu", [b.conv("x", 3, 8)])
    for _ in range(3):
        inner = b.add("Relu", [b.conv(x, 8, 8)])
        x = b.add("Relu", [b.add("Add", [b.conv(inner, 8, 8), x])])
    x = b.add("Relu", [b.conv(x, 8, 12, stride=2)])
    pooled = b.add("Flatten", [b.add("GlobalAveragePool", [x])])
    return b.model([1, 3, 16, 16], b.linear(pooled, 12, 10), [1, 10])


def tokens(seed):
    """Attention by one head, layer norms and GELU, as transformers have them."""
    b = Builder(seed)
    wide = 16
    x = b.linear("x", wide, wide)
    for _ in range(1):
        q, k, v = (b.linear(x, wide, wide) for _ in range(3))
        scores = b.add("MatMul", [q, b.add("Transpose", [k], perm=[0, 2, 1])])
        scores = b.add("Mul", [scores, b.constant(np.float32(wide**-0.5))])
        mixed = b.add("MatMul", [b.add("Softmax", [scores], axis=-1), v])
        x = b.add("Add", [x, b.linear(mixed, wide, wide)])
        scale, bias = b.constant(np.ones(wide, np.float32)), b.constant(np.zeros(wide, np.float32))
        x = b.add("LayerNormalization", [x, scale, bias], axis=-1)
        inner = b.linear(x, wide, 2 * wide)
        erf = b.add("Erf", [b.add("Div", [inner, b.constant(np.float32(2**0.5))])])
        gelu = b.add("Mul", [b.add("Mul", [inner, b.add("Add", [erf, b.constant(np.float32(1.0))])]), b.constant(np.float32(0.5))])
        x = b.add("Add", [x, b.linear(gelu, 2 * wide, wide)])
    return b.model([1, 12, wide], b.linear(x, wide, 8), [1, 12, 8])


class Calibration(CalibrationDataReader):
    def __init__(self, shape):
        random = np.random.default_rng(1)
        bound = 3**0.5
        self.rows = iter([{"x": random.uniform(-bound, bound, shape).astype(np.float32)} for _ in range(16)])

    def get_next(self):
        return next(self.rows, None)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for name, make, seed in [("images", images, 11), ("tokens", tokens, 12)]:
            plain = os.path.join(work, f"{name}.onnx")
            model = make(seed)
            onnx.save(model, plain)
            shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
            for kind, form in [("qdq", QuantFormat.QDQ), ("qoperator", QuantFormat.QOperator)]:
                quantize_static(
                    plain,
                    os.path.join(folder, f"{name}-{kind}.onnx"),
                    Calibration(shape),
                    quant_format=form,
                    per_channel=kind == "qdq",
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                )
            dynamic = os.path.join(folder, f"{name}-dynamic.onnx")
            weights = QuantType.QUInt8 if name == "images" else QuantType.QInt8
            quantize_dynamic(plain, dynamic, weight_type=weights)


if __name__ == "__main__":
    main(sys.argv[1])
